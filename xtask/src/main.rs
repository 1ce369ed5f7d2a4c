//! Repository chores that cargo and clippy cannot do: `cargo xtask tidy`.
#![allow(clippy::disallowed_methods, reason = "a developer tool reads the source tree directly")]

mod code;
mod counts;
mod edges;
mod files;
mod prose;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => return tidy(false),
        ["tidy", "--write"] => return tidy(true),
        _ => {}
    }
    eprintln!(
        "usage: cargo xtask tidy [--write]    checks dependency direction, file sizes, columns and \
         counted faults; --write records counts that fell in xtask/counts.toml"
    );
    Ok(ExitCode::from(2))
}

fn tidy(write: bool) -> anyhow::Result<ExitCode> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let mut faults = edges::check(&root)?;
    faults.extend(files::check(&root, write)?);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if faults.is_empty() {
        println!("tidy: dependency direction, file sizes, columns and counted faults are in order");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
