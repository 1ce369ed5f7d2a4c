//! Faults that are being removed: `counts.toml` has their number for each crate, and it only falls.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{code, prose};

/// The file with the numbers.
const FILE: &str = "xtask/counts.toml";

/// Crate -> kind of fault -> number.
type Numbers = BTreeMap<String, BTreeMap<String, usize>>;

/// Adds up the faults of every crate.
#[derive(Debug, Default)]
pub(crate) struct Counted(Numbers);

impl Counted {
    /// Counts one Rust file.
    ///
    /// # Errors
    /// The file is not Rust.
    pub(crate) fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let owner = name.strip_prefix("crates/").unwrap_or(name);
        let owner = owner.split('/').next().unwrap_or(owner).to_owned();
        let mut note = |kind: &str, number: usize| {
            if number > 0 {
                *self.0.entry(owner.clone()).or_default().entry(kind.to_owned()).or_default() +=
                    number;
            }
        };
        note("words", prose::words(text));
        note("long_comments", prose::long_comments(text));
        if !name.contains("/tests/") && !name.ends_with("tests.rs") {
            let code = code::count(text).with_context(|| name.to_owned())?;
            note("tuple_parameters", code.tuple_parameters);
            note("closures_it", code.closures_it);
        }
        Ok(())
    }

    /// Faults: numbers that differ from the recorded ones. With `write`, records those that fell.
    ///
    /// # Errors
    /// `counts.toml` cannot be read or written.
    pub(crate) fn check(&self, root: &Path, write: bool) -> Result<Vec<String>> {
        let path = root.join(FILE);
        let recorded: Numbers = std::fs::read_to_string(&path)
            .context(FILE)?
            .parse::<toml::Table>()
            .context(FILE)?
            .try_into()
            .context(FILE)?;
        let faults = compare(&recorded, &self.0);
        let only_fell = faults.iter().all(|fault| fault.fell);
        if write && only_fell {
            std::fs::write(&path, self.text()).context(FILE)?;
            return Ok(Vec::new());
        }
        Ok(faults.into_iter().map(|fault| fault.text).collect())
    }

    fn text(&self) -> String {
        let mut text =
            "# Faults that are being removed, for each crate. `cargo xtask tidy --write` lowers \
                        the numbers; none may rise.\n"
                .to_owned();
        for (owner, kinds) in &self.0 {
            let _ = write!(text, "\n[{owner}]\n");
            for (kind, number) in kinds {
                let _ = writeln!(text, "{kind} = {number}");
            }
        }
        text
    }
}

struct Difference {
    fell: bool,
    text: String,
}

fn compare(recorded: &Numbers, counted: &Numbers) -> Vec<Difference> {
    let number = |numbers: &Numbers, owner: &str, kind: &str| {
        numbers.get(owner).and_then(|kinds| kinds.get(kind)).copied().unwrap_or(0)
    };
    let owners =
        recorded.keys().chain(counted.keys().filter(|owner| !recorded.contains_key(*owner)));
    let mut differences = Vec::new();
    for owner in owners {
        for (kind, meaning) in [
            ("closures_it", "closures with a parameter named `it`: name it"),
            ("long_comments", "comment lines of over 100 columns: wrap them"),
            ("tuple_parameters", "functions with a tuple as parameter: use named parameters"),
            ("words", "comment lines with who, whose, what or whatever: write the noun"),
        ] {
            let (was, is) = (number(recorded, owner, kind), number(counted, owner, kind));
            if is > was {
                let text = format!("{owner} has {is} {meaning} ({was} before, see {FILE})");
                differences.push(Difference { fell: false, text });
            } else if is < was {
                let text = format!(
                    "{owner}: {kind} fell from {was} to {is}: run `cargo xtask tidy --write`"
                );
                differences.push(Difference { fell: true, text });
            }
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::{Counted, compare};

    #[test]
    fn a_number_that_rises_is_a_fault_and_one_that_falls_is_recorded() {
        let mut before = Counted::default();
        before.add("crates/a/src/lib.rs", "// What?\n// Who?\nfn f() {}\n").unwrap();
        let mut after = Counted::default();
        after.add("crates/a/src/lib.rs", "// Who?\nfn f((a, b): (u8, u8)) {}\n").unwrap();
        let found: Vec<bool> = compare(&before.0, &after.0).iter().map(|d| d.fell).collect();
        assert_eq!(found, [false, true]);
        assert!(compare(&before.0, &before.0).is_empty());
        let written: toml::Table = before.text().parse().unwrap();
        assert_eq!(written["a"]["words"].as_integer(), Some(2));
    }

    #[test]
    fn tests_may_use_tuples() {
        let mut counted = Counted::default();
        counted.add("crates/a/tests/x.rs", "fn f((a, b): (u8, u8)) {}\n").unwrap();
        assert!(counted.0.is_empty());
        counted.add("crates/a/src/x.rs", "fn (").unwrap_err();
    }
}
