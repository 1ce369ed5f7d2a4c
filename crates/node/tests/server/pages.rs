//! What the pages for people name exists: commands, flags, metrics, settings. The pages compared with
//! here are themselves generated from the code or compared with it.

use std::collections::{BTreeMap, BTreeSet};

const PAGES: [&str; 9] = [
    "README.md",
    "docs/operations.md",
    "docs/cluster.md",
    "docs/admin.md",
    "docs/dev.md",
    "docs/python.md",
    "docs/vllm.md",
    "docs/compatibility.md",
    "docs/benchmarks.md",
];

fn page(name: &str) -> String {
    let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Code of a page: spans, and the lines of blocks without their comments.
fn code(page: &str) -> Vec<String> {
    let (mut found, mut in_block, mut text) = (Vec::new(), false, String::new());
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.push(line.split(" #").next().unwrap_or_default().trim().to_owned());
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    found.extend(text.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")));
    found
}

/// The sections of `docs/cli.md`: a command's words and its help.
fn commands() -> BTreeMap<String, String> {
    let page = page("docs/cli.md");
    let sections = page.split("\n##").skip(1).map(|section| {
        let (title, help) = section.split_once('\n').unwrap();
        (title.trim_matches(['#', ' ', '`']).to_owned(), help.to_owned())
    });
    sections.collect()
}

/// The command that a line of code runs, as far as it consists of commands, and its flags.
fn command_of(line: &str, known: &BTreeMap<String, String>) -> Option<(Vec<String>, Vec<String>)> {
    let mut words = line.trim_start_matches("$ ").split_whitespace().peekable();
    if words.next()? != "millpond" {
        return None;
    }
    let mut names = vec!["millpond".to_owned()];
    while let Some(word) = words.peek()
        && (*word == "s3" || word.chars().all(|c| c.is_ascii_lowercase() || c == '|'))
        && known.contains_key(&names[0])
        && known.keys().any(|k| k.strip_prefix(&names[0]).is_some_and(|rest| rest.contains(' ')))
    {
        names = word.split('|').map(|word| format!("{} {word}", names[0])).collect();
        words.next();
    }
    let flags = words.filter(|word| word.starts_with("--"));
    let name = |flag: &str| flag.trim_matches(['[', ']']).split('=').next().unwrap().to_owned();
    Some((names, flags.map(name).collect()))
}

/// The help of the commands that a command belongs to: their flags hold for it too.
fn inherited(command: &str, known: &BTreeMap<String, String>) -> String {
    let above = known.iter().filter(|(name, _)| command.starts_with(&format!("{name} ")));
    above.map(|(_, help)| help.as_str()).collect()
}

#[test]
fn commands_and_flags() {
    let known = commands();
    let mut checked = 0;
    for name in PAGES {
        for line in code(&page(name)) {
            let Some((names, flags)) = command_of(&line, &known) else { continue };
            for command in names {
                let help = known.get(&command);
                let help = help.unwrap_or_else(|| panic!("{name}: no command `{command}`"));
                let help = help.to_owned() + &inherited(&command, &known);
                for flag in &flags {
                    assert!(help.contains(flag.as_str()), "{name}: `{command}` has no {flag}");
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 15, "the pages were not understood: {checked} commands");
    // Flags by themselves; on the other pages they may be those of other programs.
    let all: String = known.into_values().collect();
    let spans = code(&page("docs/operations.md"));
    for flag in spans.iter().filter(|span| span.starts_with("--")) {
        let flag = flag.split([' ', '=']).next().unwrap();
        assert!(all.contains(flag), "docs/operations.md: nothing has {flag}");
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':')))
}

#[test]
fn metrics() {
    let table = page("docs/metrics.md");
    let known: BTreeSet<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut checked = 0;
    for name in PAGES {
        for span in code(&page(name)) {
            for word in words(&span).filter(|word| word.starts_with("millpond_")) {
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| word.strip_suffix(s));
                let there = known.contains(word) || base.is_some_and(|base| known.contains(base));
                assert!(there, "{name}: no metric {word}");
                checked += 1;
            }
        }
    }
    assert!(checked > 0, "the pages were not understood");
}

#[test]
fn settings() {
    let table = page("docs/configuration.md");
    let mut known = BTreeSet::new();
    for section in table.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap().trim_matches(['`', '[', ']']);
        let keys = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        known.extend(keys.map(|key| format!("{title}.{key}")));
    }
    let sections: BTreeSet<&str> = known.iter().filter_map(|key| key.split('.').next()).collect();
    let mut checked = 0;
    for name in PAGES {
        for span in code(&page(name)) {
            let is_key = |word: &&str| {
                word.split_once('.').is_some_and(|(section, key)| {
                    sections.contains(section)
                        && key.starts_with(|c: char| c.is_ascii_lowercase())
                        && !key.ends_with("log")
                })
            };
            for key in words(&span).filter(is_key) {
                assert!(known.contains(key), "{name}: no setting {key}");
                checked += 1;
            }
        }
    }
    assert!(checked > 1, "the pages were not understood");
}
