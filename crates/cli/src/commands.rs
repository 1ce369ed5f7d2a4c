//! All commands of `millpond`, and the module that runs each of them.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, Subcommand};
use millpond_node::BUILD;

use crate::address::OLD_NAME;
use crate::exit::{OK, code};
use crate::{
    admin, bench, clone, config, dev, doctor, engine, files, fsck, kv, man, mount, output, s3,
    server, simulate, trash, warmup,
};

/// The Millpond server and its command line.
#[derive(Debug, Parser)]
#[command(
    name = "millpond",
    version = BUILD,
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
    Bench(bench::Command),
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
        Command::Bench(command) => bench::run(&command).map(|()| OK),
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

/// The whole command line.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// The commands without those that only processes of ours call: completion would offer them.
fn shown() -> clap::Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|it| !it.is_hide_set());
    clap::Command::new("millpond").version(BUILD).subcommands(shown.cloned().collect::<Vec<_>>())
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
}
