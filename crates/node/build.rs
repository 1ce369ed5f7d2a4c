//! Tells the program the commit that it is built from, as `MILLPOND_BUILD`: `0.1.0 (abcdef123456)`, or `0.1.0` where
//! no repository tells one. A debug build is `0.1.0 (debug)`: this crate would be compiled anew after every commit.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit that are shown.
const DIGITS: usize = 12;

fn main() {
    // Without a line of this kind every change in the package would run this again.
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MILLPOND_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let is_debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let source = if is_debug { Some("debug".to_owned()) } else { commit() };
    let build = source.map_or_else(|| version.clone(), |source| format!("{version} ({source})"));
    println!("cargo:rustc-env=MILLPOND_BUILD={build}");
}

/// The commit: that of the environment, for builders of packages from a tarball, or that of the repository.
fn commit() -> Option<String> {
    let given = std::env::var("MILLPOND_COMMIT").unwrap_or_default();
    let found = if given.is_empty() { of_repository()? } else { given };
    let is_hex = !found.is_empty() && found.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| found.chars().take(DIGITS).collect())
}

fn of_repository() -> Option<String> {
    // A tarball that was unpacked inside another repository has no commit of that.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top != root {
        return None;
    }
    for path in changed_by_commits() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    git(&["rev-parse", "HEAD"])
}

/// Files that change with the commit. One that is not there would have this run at every build.
fn changed_by_commits() -> Vec<PathBuf> {
    let path = |name: &str| {
        let path =
            PathBuf::from(git(&["rev-parse", "--path-format=absolute", "--git-path", name])?);
        path.exists().then_some(path)
    };
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    // A branch that was packed has no file of its own before the next commit.
    let branch = branch.and_then(|name| path(&name).or_else(|| path("packed-refs")));
    [path("HEAD"), branch].into_iter().flatten().collect()
}

/// The one line that git answers, unless it fails or is not there.
fn git(words: &[&str]) -> Option<String> {
    let answer = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let line = text.trim();
    (answer.status.success() && !line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_commit_is_that_of_this_repository() {
        let Some(head) = super::git(&["rev-parse", "HEAD"]) else {
            eprintln!("there is no repository here: nothing is tested");
            return;
        };
        assert_eq!(super::commit(), Some(head[..super::DIGITS].to_owned()));
        let changed = super::changed_by_commits();
        assert!(!changed.is_empty() && changed.iter().all(|path| path.is_file()), "{changed:?}");
    }
}
