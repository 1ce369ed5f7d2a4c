//! What the pages for people name exists: commands, flags, metrics, settings. The pages compared with
//! here are themselves generated from the code or compared with it. Links between documents lead to
//! existing files and headings, and the site of `make docs` has every page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// Documents outside `docs/` whose links are checked; the site has them too.
const OTHER_DOCUMENTS: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "packaging/README.md"];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// The Markdown files in a folder and the folders in it, by their absolute paths.
fn markdown_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(markdown_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// Every document, by its absolute path.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut found = markdown_in(&root.join("docs"));
    found.extend(OTHER_DOCUMENTS.iter().map(|name| root.join(name)));
    found
}

/// A document without its blocks of code.
fn without_blocks(text: &str) -> String {
    let (mut prose, mut in_block) = (String::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// Targets of the relative links and images of a document.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // A span of code ends in its paragraph.
    for paragraph in without_blocks(text).split("\n\n") {
        let prose: Vec<&str> = paragraph.split('`').step_by(2).collect();
        let prose = prose.join("`");
        let mut targets: Vec<&str> = Vec::new();
        targets.extend(prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
        for attribute in ["href=\"", "src=\"", "srcset=\""] {
            targets
                .extend(prose.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()));
        }
        // `[name]: target`
        let definitions = prose.lines().filter(|line| line.starts_with('['));
        targets.extend(definitions.filter_map(|line| Some(line.split_once("]: ")?.1)));
        // The title that may follow a target does not belong to it.
        let targets = targets.iter().filter_map(|target| target.split_whitespace().next());
        let relative = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
        found.extend(targets.filter(relative).map(str::to_owned));
    }
    found
}

/// The text of a heading without the targets of its links.
fn heading_text(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or(part, |(_, after)| after));
    }
    text
}

/// The anchors that GitHub gives the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut seen) = (BTreeSet::new(), BTreeMap::new());
    for line in without_blocks(text).lines() {
        let level = line.chars().take_while(|c| *c == '#').count();
        let Some(heading) = line[level..].strip_prefix(' ').filter(|_| level > 0) else { continue };
        let heading = heading_text(heading.trim()).to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug = kept.collect::<String>().replace(' ', "-");
        let before: &mut u32 = seen.entry(slug.clone()).or_default();
        found.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    found
}

/// The file or folder that a link of a document leads to, if it exists in the repository.
fn target_of(document: &Path, link: &str) -> Option<PathBuf> {
    let path = link.split('#').next().unwrap_or_default();
    if path.is_empty() {
        return Some(document.to_owned());
    }
    let target = document.parent()?.join(path).canonicalize().ok()?;
    target.starts_with(root()).then_some(target)
}

/// The reason why a link of a document is broken.
fn fault_of(document: &Path, link: &str) -> Option<&'static str> {
    let Some(target) = target_of(document, link) else { return Some("no such file") };
    let (_, anchor) = link.split_once('#')?;
    let headings = std::fs::read_to_string(target).map(|text| anchors(&text)).unwrap_or_default();
    (!headings.contains(anchor)).then_some("no such heading")
}

#[test]
fn links_lead_somewhere() {
    let (mut faults, mut checked) = (Vec::new(), 0);
    for document in documents() {
        for link in links(&std::fs::read_to_string(&document).unwrap()) {
            if let Some(fault) = fault_of(&document, &link) {
                faults.push(format!("{}: {link}: {fault}", document.display()));
            }
            checked += 1;
        }
    }
    assert!(faults.is_empty(), "broken links:\n{}", faults.join("\n"));
    assert!(checked > 100, "the documents were not understood: {checked} links");
}

#[test]
fn anchors_are_those_of_github() {
    let text =
        "# The `a_b` [page](x.md#y)\n## Why, now?\n```\n# code\n```\n## Why now\n### C-d & e\n";
    let expected = ["the-a_b-page", "why-now", "why-now-1", "c-d--e"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
    let text = "[a](b.md#c) and ![d](e.svg \"title\"), `[f](g)`\n\n[h]: i.md\n\n[j](https://k)\n";
    assert_eq!(links(text), ["b.md#c", "e.svg", "i.md"]);
}

/// Every document is once in the site's list of pages.
#[test]
fn the_site_has_every_page() {
    let summary = root().join("docs/site/SUMMARY.md");
    let entries = links(&std::fs::read_to_string(&summary).unwrap());
    let mut listed = BTreeSet::new();
    for entry in &entries {
        let target = target_of(&summary, entry);
        let target = target.unwrap_or_else(|| panic!("docs/site/SUMMARY.md: no file {entry}"));
        assert!(listed.insert(target), "docs/site/SUMMARY.md: {entry} is there twice");
    }
    for document in documents() {
        let of_site = document.starts_with(root().join("docs/site"));
        let name = document.display();
        assert!(of_site || listed.contains(&document), "docs/site/SUMMARY.md: {name} is missing");
    }
}
