//! Repository chores that cargo and clippy cannot do: `cargo xtask tidy`.
#![allow(clippy::disallowed_methods, reason = "a developer tool reads the source tree directly")]

mod edges;
mod files;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some("tidy") {
        return tidy();
    }
    eprintln!("usage: cargo xtask tidy    checks dependency direction, file sizes and paths");
    Ok(ExitCode::from(2))
}

fn tidy() -> anyhow::Result<ExitCode> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let mut faults = edges::check(&root)?;
    faults.extend(files::check(&root)?);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if faults.is_empty() {
        println!("tidy: dependency direction, file sizes and paths are in order");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
