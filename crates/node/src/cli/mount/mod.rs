//! `millpond mount`, `umount` and `mounts`: files of a cluster as a file system of this host.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use millpond_client::{Addresses, ClientOptions};
use millpond_fuse::{Mount, MountSpec};
use millpond_fuse_wire as wire;
use serde_json::json;

use super::interrupt::Interrupt;
use super::{FAILED, OK, Outcome, log, output};
use crate::config::LogConfig;

pub(super) const EXAMPLES: &str = "Options of -o, with commas:
  mode=NAME     what is promised about changes made elsewhere: strict, close-to-open (default),
                one-writer, relaxed, read-only; docs/files.md has the table
  ro, rw        whether files can be written
  noexec, nosuid, nodev, noallow_other
                as of mount(8)
  threads=N     threads that serve requests, 1 to 63 (default 16)

Examples:
  millpond mount 127.0.0.1:7440 /mnt/pond
  millpond mount 10.0.0.1:7440,10.0.0.2:7440 /models -o mode=read-only
  millpond mounts
  millpond umount /mnt/pond";

/// What is mounted where, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Addresses of some nodes of the cluster: HOST:PORT, with commas.
    cluster: Addresses,
    /// The folder that shows the files.
    mountpoint: PathBuf,
    /// Options, with commas.
    #[arg(short, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Credential, when the cluster asks for one.
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// Stay in the foreground; Ctrl-C unmounts.
    #[arg(long)]
    foreground: bool,
    /// File that gets the log lines of the mount in the background. [default: none]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

/// What is to be unmounted.
#[derive(Debug, clap::Args)]
pub(super) struct UmountArgs {
    /// The folder.
    mountpoint: PathBuf,
    /// Do not wait for whoever uses it: it is gone from the tree at once, and the mount ends when the
    /// last file is closed.
    #[arg(long, short)]
    lazy: bool,
}

/// How mounts are shown.
#[derive(Debug, clap::Args)]
pub(super) struct MountsArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a mount in the background says when it serves.
const READY: &str = "READY";

pub(super) fn run(args: &Args) -> Outcome {
    let mut client = ClientOptions::new(args.cluster.clone());
    client.token.clone_from(&args.token);
    let mut spec = MountSpec::new(client, absolute(&args.mountpoint)?);
    spec.apply(&args.options)?;
    if args.foreground { foreground(spec) } else { background(args) }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{}", path.display()))
}

fn foreground(spec: MountSpec) -> Outcome {
    log::start(&LogConfig::default())?;
    let mut interrupt = Interrupt::install()?;
    let target = spec.target.clone();
    let mount = Mount::start(spec, &mut |_, _| Ok(()))?;
    output::bytes(format!("{} is mounted\n{READY}\n", target.display()).as_bytes())?;
    let stopped = target.clone();
    let waiting = millpond_env::thread("mp-signals", move || {
        while !interrupt.pause(std::time::Duration::from_secs(1)) {}
        if let Err(error) = wire::unmount(&stopped, true) {
            eprintln!("millpond: {error}");
        }
    })?;
    mount.wait();
    // It ends with the process: nobody may send a signal.
    drop(waiting);
    Ok(OK)
}

/// Runs this program again with `--foreground`, and returns when that one serves.
fn background(args: &Args) -> Outcome {
    let program = std::env::current_exe().context("finding this program")?;
    let log = match &args.log_file {
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            Stdio::from(file.with_context(|| format!("--log-file {}", path.display()))?)
        }
        None => Stdio::piped(),
    };
    let mut child = Command::new(program)
        .args(["mount", "--foreground", "-o", &args.options])
        .arg(args.cluster.to_string())
        .arg(absolute(&args.mountpoint)?)
        .env("MILLPOND_TOKEN", &args.token)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("starting the mount in the background")?;
    if is_ready(&mut child)? {
        return Ok(OK);
    }
    let mut words = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut words)?;
    }
    let _ = child.wait();
    let words = words.trim().trim_start_matches("millpond: ");
    match &args.log_file {
        Some(path) => bail!("the mount did not start: {} says why", path.display()),
        None => bail!("{words}"),
    }
}

fn is_ready(child: &mut Child) -> anyhow::Result<bool> {
    let Some(stdout) = child.stdout.take() else { return Ok(false) };
    for line in BufReader::new(stdout).lines() {
        if line? == READY {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn umount(args: &UmountArgs) -> Outcome {
    wire::unmount(&absolute(&args.mountpoint)?, args.lazy)?;
    Ok(OK)
}

pub(super) fn mounts(args: &MountsArgs) -> Outcome {
    let found = wire::mounts().context("reading the list of mounts")?;
    let mut out = String::new();
    if args.json {
        let list: Vec<_> = found
            .iter()
            .map(|mount| json!({"mountpoint": mount.target, "cluster": mount.source.to_string_lossy()}))
            .collect();
        out = format!("{}\n", serde_json::to_string_pretty(&list)?);
    } else {
        for mount in &found {
            let _ = writeln!(out, "{}  {}", mount.target.display(), mount.source.display());
        }
        if found.is_empty() {
            eprintln!("nothing is mounted on this host");
        }
    }
    output::bytes(out.as_bytes())?;
    Ok(if found.is_empty() && !args.json { FAILED } else { OK })
}
