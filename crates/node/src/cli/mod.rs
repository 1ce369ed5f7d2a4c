//! The command line. The Python package's `millpond` command calls [`run`] too.

mod admin;
mod clone;
mod config;
mod dev;
mod doctor;
mod engine;
mod files;
mod fsck;
mod interrupt;
mod kv;
mod log;
mod man;
mod metas;
mod mount;
mod output;
mod s3;
mod server;
mod simulate;
mod trash;
mod warmup;

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Everything went well.
const OK: i32 = 0;
/// It did not; standard error says why.
const FAILED: i32 = 1;
/// A key or namespace is not there.
const ABSENT: i32 = 3;

/// What `MILLPOND_ADDRESS` was called for some commands.
const OLD_NAME: &str = "MILLPOND_SERVER";

/// How a command went, as an exit code.
type Outcome = anyhow::Result<i32>;

/// The Millpond server and its command line.
#[derive(Debug, Parser)]
#[command(
    name = "millpond",
    version = crate::BUILD,
    about,
    after_help = "Start with:\n  millpond server\n  millpond kv put greeting hello && millpond kv get greeting"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server.
    #[command(after_help = server::EXAMPLES, args_override_self = true)]
    Server(Box<server::Args>),
    /// Check, show or explain the configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// Read, write and list keys of a running server.
    #[command(after_help = kv::EXAMPLES)]
    Kv(kv::Args),
    /// Manage the S3 gateway: access keys, backends and backed buckets.
    #[command(subcommand, after_help = s3::EXAMPLES)]
    S3(s3::Command),
    /// Mount the files of a cluster on this host.
    #[command(after_help = mount::EXAMPLES)]
    Mount(mount::Args),
    /// Unmount the files of a cluster.
    Umount(mount::UmountArgs),
    /// List the mounts of this host, print their metrics, or upgrade their daemon.
    Mounts(mount::MountsArgs),
    /// Profile the requests on a mount: counts, latencies and callers.
    #[command(after_help = mount::profile::EXAMPLES)]
    Profile(mount::profile::Args),
    /// Show request rates, throughput and latencies of a mount, every second.
    #[command(after_help = mount::stats::EXAMPLES)]
    Stats(mount::stats::Args),
    /// Show where the bytes of a file on a mount are stored.
    Info(files::InfoArgs),
    /// Count the files, folders, bytes and chunks below a folder on a mount.
    Summary(files::Args),
    /// Clone a file or a folder on a mount; the copy shares its bytes until either one changes.
    #[command(after_help = clone::EXAMPLES)]
    Clone(clone::Args),
    /// Check the files of a cluster and repair them.
    #[command(after_help = fsck::EXAMPLES)]
    Fsck(fsck::Args),
    /// Keep and restore files and folders that are removed on a mount.
    #[command(subcommand, after_help = trash::EXAMPLES)]
    Trash(trash::Command),
    /// Read files on a mount into the memory of this host and of the nodes.
    #[command(after_help = warmup::EXAMPLES)]
    Warmup(warmup::Args),
    /// Keeps mounts alive.
    #[command(hide = true)]
    MountHolder(mount::ProcessArgs),
    /// Serves mounts for a holder.
    #[command(hide = true)]
    MountDaemon(mount::ProcessArgs),
    /// Show the quota that applies to a folder on a mount, or set one.
    #[command(
        after_help = "Example:\n  millpond quota /mnt/pond/team --bytes 100GiB --inodes 1000000"
    )]
    Quota(files::QuotaArgs),
    /// Inspect and change a running cluster.
    #[command(after_help = admin::EXAMPLES)]
    Admin(admin::Args),
    /// Run a local cluster of real processes, and inject faults.
    #[command(after_help = dev::EXAMPLES)]
    Dev(dev::Args),
    /// Inspect and check a data folder or block device while no server uses it.
    #[command(subcommand)]
    Engine(engine::Command),
    /// Benchmark a server.
    #[command(subcommand)]
    Bench(crate::bench::Command),
    /// Check this machine (kernel features, limits, space, clock) and a cluster.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Args),
    /// Simulate a cluster without running one.
    #[command(subcommand)]
    Simulate(simulate::Command),
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  millpond completion bash > /etc/bash_completion.d/millpond"
    )]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of a command, or write all pages to a folder.
    #[command(after_help = man::EXAMPLES)]
    Man(man::Args),
}

/// Where the server is when nobody says so. `MILLPOND_SERVER` is the old name of `MILLPOND_ADDRESS`.
pub(crate) fn default_address() -> &'static str {
    static OLD: OnceLock<Option<String>> = OnceLock::new();
    let old = OLD.get_or_init(|| std::env::var(OLD_NAME).ok().filter(|text| !text.is_empty()));
    old.as_deref().unwrap_or("127.0.0.1:7440")
}

/// Runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage, 3 not found.
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    if mount::helper::is_called(&args) {
        return mount::helper::run(&args).map_or_else(|code| code, code);
    }
    if std::env::var_os(OLD_NAME).is_some_and(|text| !text.is_empty()) {
        eprintln!("millpond: {OLD_NAME} is the old name of MILLPOND_ADDRESS: set the new one");
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let error = without_hidden(error);
            let _ = error.print();
            return error.exit_code();
        }
    };
    let outcome = match cli.command {
        Command::Server(args) => server::run(&args),
        Command::Config(command) => config::run(&command),
        Command::Kv(args) => kv::run(&args),
        Command::S3(command) => s3::run(&command),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => mount::umount(&args),
        Command::Mounts(args) => mount::mounts(&args),
        Command::Profile(args) => mount::profile::run(&args),
        Command::Stats(args) => mount::stats::run(&args),
        Command::Info(args) => files::info(&args),
        Command::Summary(args) => files::summary(&args),
        Command::Clone(args) => clone::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Trash(command) => trash::run(&command),
        Command::Warmup(args) => warmup::run(&args),
        Command::MountHolder(args) => mount::holder(&args),
        Command::MountDaemon(args) => mount::daemon(&args),
        Command::Quota(args) => files::quota(&args),
        Command::Admin(args) => admin::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Engine(command) => engine::run(&command),
        Command::Bench(command) => crate::bench::run(&command).map(|()| OK),
        Command::Doctor(args) => doctor::run(&args),
        Command::Simulate(command) => simulate::run(&command),
        Command::Completion { shell } => {
            let mut command = shown();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "millpond", &mut script);
            output::bytes(&script)
        }
        Command::Man(args) => man::run(&args, Cli::command()),
    };
    code(outcome)
}

/// A thread that panicked serves nobody, and whoever waits for it waits for ever: the process ends, and its supervisor
/// starts a new one. What a server acknowledged is on its disks, what a mount answered in its journal.
fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        std::process::abort();
    }));
}

/// An error of usage that suggests no command which only processes of ours call.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let program = Cli::command();
    let is_shown =
        |name: &String| program.find_subcommand(name).is_none_or(|command| !command.is_hide_set());
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(is_shown);
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    error
}

/// The exit code; an error is told.
fn code(outcome: Outcome) -> i32 {
    outcome.unwrap_or_else(|error| {
        eprintln!("millpond: {}", told(&error));
        FAILED
    })
}

/// An error and its causes in one line; a cause that the text before names already is not repeated.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The commands without those that only processes of ours call: completion would offer them.
fn shown() -> clap::Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|it| !it.is_hide_set());
    clap::Command::new("millpond")
        .version(crate::BUILD)
        .subcommands(shown.cloned().collect::<Vec<_>>())
}

/// The text of `docs/cli.md`, from the help texts.
#[must_use]
pub fn reference() -> String {
    let mut out = String::from(
        "# Command line\n\n\
         <!-- Generated by `cargo test -p millpond-node` with UPDATE_DOCS=1. -->\n\n\
         Exit codes: 0 done, 1 failed (standard error names the cause and the fix), 2 wrong\n\
         usage, 3 not found (a key, namespace, bucket, backend or rule). `millpond fsck` has exit\n\
         codes of its own.\n",
    );
    describe(&mut out, &mut Cli::command(), "");
    out
}

fn describe(out: &mut String, command: &mut clap::Command, above: &str) {
    use std::fmt::Write as _;
    let path = format!("{above}{}", command.get_name());
    let help = command.clone().bin_name(&path).term_width(100).render_long_help().to_string();
    let level = "#".repeat(2 + path.matches(' ').count().min(3));
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(out, "\n{level} `{path}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    let children: Vec<clap::Command> = command
        .get_subcommands()
        .filter(|it| it.get_name() != "help" && !it.is_hide_set())
        .cloned()
        .collect();
    for mut child in children {
        describe(out, &mut child, &format!("{path} "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_mistyped_suggests_no_hidden_command() {
        for (typed, suggested) in [("mountz", Some("mounts")), ("mount-hold", None)] {
            let error = without_hidden(Cli::try_parse_from(["millpond", typed]).unwrap_err());
            let text = error.to_string();
            assert!(!text.contains("holder") && !text.contains("daemon"), "{text}");
            assert!(suggested.is_none_or(|name| text.contains(name)), "{text}");
        }
    }

    #[test]
    fn the_reference_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(page == reference(), "docs/cli.md is stale: run the tests with UPDATE_DOCS=1");
    }
}
