//! The files that git tracks: sizes (STYLE rules 3 and 5), columns, and counted faults.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::counts::Counted;
use crate::prose;

/// Lines of code, tests not counted, above which a file is a design question.
const LINES_MAX: usize = 800;
/// Lines of a `lib.rs`: it is a map.
const LIB_LINES_MAX: usize = 150;

/// Documents that a program writes: their columns are those of its texts.
const GENERATED: [&str; 2] = ["docs/cli.md", "docs/configuration.md"];

/// Faults in the files that git tracks. With `write`, counts that fell are recorded.
pub(crate) fn check(root: &Path, write: bool) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "*.rs", "*.py", "*.md"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    let names = String::from_utf8(listed.stdout)?;
    let (mut faults, mut counted) = (Vec::new(), Counted::default());
    for name in names.split('\0').filter(|n| !n.is_empty() && !n.contains("/generated/")) {
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        let extension = Path::new(name).extension().and_then(std::ffi::OsStr::to_str);
        if extension == Some("md") {
            if !GENERATED.contains(&name) {
                faults.extend(too_long(name, prose::long_lines(&text)));
            }
            continue;
        }
        faults.extend(faults_of(name, &text));
        if extension == Some("rs") {
            counted.add(name, &text)?;
        }
    }
    faults.extend(counted.check(root, write)?);
    Ok(faults)
}

fn too_long(name: &str, lines: impl Iterator<Item = usize>) -> Vec<String> {
    lines.map(|line| format!("{name}:{line} is prose of over 100 columns: wrap it")).collect()
}

fn faults_of(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").count();
    if name.ends_with("lib.rs") && lines > LIB_LINES_MAX {
        return Some(format!(
            "{name} has {lines} lines: a lib.rs is a map of at most {LIB_LINES_MAX}"
        ));
    }
    let is_test = name.contains("/tests/") || name.ends_with("tests.rs");
    (lines > LINES_MAX && !is_test)
        .then(|| format!("{name} has {lines} lines without tests: split it ({LINES_MAX} at most)"))
}

#[cfg(test)]
mod tests {
    use super::faults_of;

    #[test]
    fn long_files_are_faults_and_their_tests_are_free() {
        let long = "x\n".repeat(801);
        assert!(faults_of("crates/a/src/b.rs", &long).is_some());
        assert!(faults_of("crates/a/src/b/tests.rs", &long).is_none());
        let tested = format!("{}#[cfg(test)]\n{long}", "x\n".repeat(700));
        assert!(faults_of("crates/a/src/b.rs", &tested).is_none());
        assert!(faults_of("crates/a/src/lib.rs", &"x\n".repeat(151)).is_some());
    }
}
