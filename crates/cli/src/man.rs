//! `millpond man`: manual pages, from the help texts.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::output;
use crate::exit::{OK, Outcome};

pub(super) const EXAMPLES: &str = "Examples:
  millpond man | man -l -
  millpond man kv put | man -l -
  millpond man --out /usr/local/share/man/man1";

/// Which pages, and where to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write the pages of all commands to this folder; it is created if it does not exist.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
    /// Command to print the page of. [default: `millpond` itself]
    command: Vec<String>,
}

/// The page of one command.
struct Page {
    /// `millpond-kv-put`
    name: String,
    text: Vec<u8>,
}

/// Runs it for a command line whose hidden commands have no pages.
pub(super) fn run(args: &Args, program: clap::Command) -> Outcome {
    let pages = pages(program)?;
    if let Some(folder) = &args.out {
        write(&pages, folder)?;
        return Ok(OK);
    }
    let words = std::iter::once("millpond").chain(args.command.iter().map(String::as_str));
    let name = words.collect::<Vec<_>>().join("-");
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        bail!("no command '{}': 'millpond --help' lists the commands", args.command.join(" "));
    };
    output::bytes(&page.text)
}

fn write(pages: &[Page], folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for page in pages {
        let path = folder.join(format!("{}.1", page.name));
        std::fs::write(&path, &page.text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn pages(program: clap::Command) -> anyhow::Result<Vec<Page>> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    add(&mut pages, &program)?;
    Ok(pages)
}

/// Adds the page of a command, and those of the commands below it.
fn add(pages: &mut Vec<Page>, command: &clap::Command) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    pages.push(Page { name, text: page(command)? });
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        add(pages, below)?;
    }
    Ok(())
}

fn page(command: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .source(format!("millpond {}", millpond_node::BUILD))
        .manual("Millpond");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        as_it_is(&notes.to_string()).to_writer(&mut text)?;
    }
    Ok(text)
}

/// What stands below a help text, with its lines as they are: most are commands.
fn as_it_is(notes: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    roff.control("nf", []);
    for line in notes.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{pages, write};
    use crate::commands::command;

    /// Commands by the names of their pages, as the help lists them.
    fn names(command: &clap::Command, above: &str, out: &mut Vec<String>) {
        let name = format!("{above}{}", command.get_name());
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            names(below, &format!("{name}-"), out);
        }
        out.push(name);
    }

    #[test]
    fn every_command_that_the_help_lists_has_a_page() {
        let mut listed = Vec::new();
        names(&command(), "", &mut listed);
        listed.sort();
        let pages = pages(command()).unwrap();
        let mut made: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        made.sort_unstable();
        assert_eq!(made, listed);
        assert!(made.contains(&"millpond-kv-ns-create"), "{made:?}");
        assert!(!made.iter().any(|name| name.contains("daemon")), "{made:?}");
    }

    /// With what shows them, where that is installed.
    #[test]
    fn pages_are_shown_without_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let pages = pages(command()).unwrap();
        write(&pages, folder.path()).unwrap();
        let files = pages.iter().map(|page| folder.path().join(format!("{}.1", page.name)));
        let mut groff = Command::new("groff");
        groff.args(["-Kutf8", "-man", "-Tutf8", "-ww", "-rLL=100n"]).args(files);
        let Ok(shown) = groff.output() else {
            eprintln!("groff is not installed: how the pages look is not tested");
            return;
        };
        assert_eq!(String::from_utf8_lossy(&shown.stderr), "");
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains("millpond kv put greeting hello\n"), "an example keeps its line");
        assert!(text.contains(millpond_node::BUILD));
    }
}
