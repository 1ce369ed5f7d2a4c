//! `millpond mounts`: what is mounted on this host, and another daemon for it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use millpond_env::RealClock;
use millpond_fuse::admin::{Answer, CallError, Listed, Request, call};
use millpond_fuse_wire as wire;
use millpond_types::ByteSize;
use serde_json::json;

use super::processes::this_program;
use super::{RunDirArgs, absolute};
use crate::exit::{FAILED, OK, Outcome};
use crate::output;

/// A daemon that lives answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
const METRICS_EXAMPLES: &str = "Example, for the textfile collector of node_exporter, from a timer:
  millpond mounts metrics > /var/lib/node_exporter/millpond.prom.new &&
    mv /var/lib/node_exporter/millpond.prom.new /var/lib/node_exporter/millpond.prom";

/// Whether somebody serves a mount is known within this.
const LOOK: Duration = Duration::from_secs(1);
/// An upgrade takes no longer, with the way back.
const UPGRADE: Duration = Duration::from_mins(1);

/// Which mounts are shown, and how.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MountsArgs {
    #[command(subcommand)]
    command: Option<MountsCommand>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run_dir: RunDirArgs,
}

#[derive(Debug, clap::Subcommand)]
enum MountsCommand {
    /// Print the metrics of all mounts in the Prometheus text format.
    #[command(after_help = METRICS_EXAMPLES)]
    Metrics {
        #[command(flatten)]
        run_dir: RunDirArgs,
    },
    /// Replace the daemon that serves the mounts with a new process; applications see a pause.
    Upgrade {
        /// Program of the new daemon. [default: this one]
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        #[command(flatten)]
        run_dir: RunDirArgs,
    },
}

pub(crate) fn mounts(args: &MountsArgs) -> Outcome {
    match &args.command {
        Some(MountsCommand::Upgrade { program, run_dir }) => upgrade(program.as_ref(), run_dir),
        Some(MountsCommand::Metrics { run_dir }) => metrics(run_dir),
        None => list(args),
    }
}

/// Mounts of the daemon, and those that this host has besides.
fn list(args: &MountsArgs) -> Outcome {
    let served = match args.run_dir.find() {
        Err(_) => Vec::new(),
        Ok(run_dir) => match call(&run_dir, &Request::List, PATIENCE) {
            Ok(Answer::Mounts(served)) => served,
            Ok(answer) => bail!("the mount daemon answers {answer:?}: is it of another version?"),
            Err(CallError::Absent(_)) => Vec::new(),
            Err(error) => return Err(error.into()),
        },
    };
    let mut others = wire::mounts().context("reading the list of mounts")?;
    others.retain(|mount| served.iter().all(|it| it.mountpoint != mount.target));
    if args.json {
        let mut all: Vec<_> = served.iter().map(|mount| json!(mount)).collect();
        all.extend(others.iter().map(|mount| {
            let cluster = mount.source.to_string_lossy();
            let (target, read_only, state) = (&mount.target, mount.read_only, state(mount));
            json!({"mountpoint": target, "cluster": cluster, "read_only": read_only, "state": state})
        }));
        return output::line(&serde_json::to_string_pretty(&all)?);
    }
    if served.is_empty() && others.is_empty() {
        eprintln!("nothing is mounted on this host");
        return Ok(FAILED);
    }
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(served.iter().map(row));
    rows.extend(others.iter().map(|mount| {
        let (target, source) = (mount.target.display(), mount.source.display());
        let mut row = vec![target.to_string(), source.to_string(), "-".to_owned()];
        row.extend([access(mount.read_only), state(mount)].map(str::to_owned));
        row.resize(HEAD.len(), "-".to_owned());
        row
    }));
    output::bytes(output::table(&rows).as_bytes())
}

/// What is known of a mount that the daemon does not serve: `dead` if nobody does any more (`umount -l` takes it away).
fn state(mount: &wire::MountPoint) -> &'static str {
    let (target, (told, heard)) = (mount.target.clone(), std::sync::mpsc::channel());
    // Of one whose process stands still the kernel does not answer.
    let asked = millpond_env::thread("mp-look", move || {
        let _ = told.send(std::fs::metadata(target).err().and_then(|it| it.raw_os_error()));
    });
    let answer = asked.ok().and_then(|_| heard.recv_timeout(LOOK).ok()).flatten();
    if answer == Some(libc::ENOTCONN) { "dead" } else { "elsewhere" }
}

const HEAD: [&str; 10] = [
    "MOUNTPOINT",
    "CLUSTER",
    "MODE",
    "ACCESS",
    "STATE",
    "SINCE",
    "THREADS",
    "MEMORY",
    "BANDWIDTH",
    "DAEMON",
];

/// Limits a second: of both ways together, of reads, of writes.
fn bandwidth(mount: &Listed) -> String {
    let limits =
        [("", mount.bandwidth), ("r ", mount.read_bandwidth), ("w ", mount.write_bandwidth)];
    let limits = limits.into_iter().filter(|(_, limit)| *limit > 0);
    let limits: Vec<String> =
        limits.map(|(way, limit)| format!("{way}{}/s", ByteSize(limit))).collect();
    if limits.is_empty() { "-".to_owned() } else { limits.join(", ") }
}

fn row(mount: &Listed) -> Vec<String> {
    vec![
        mount.mountpoint.display().to_string(),
        mount.cluster.clone(),
        mount.mode.clone(),
        access(mount.read_only).to_owned(),
        mount.state.name().to_owned(),
        age(RealClock::wall_ms().saturating_sub(mount.since_unix_ms) / 1000),
        mount.threads.to_string(),
        if mount.memory == 0 { "-".to_owned() } else { ByteSize(mount.memory).to_string() },
        bandwidth(mount),
        mount.pid.to_string(),
    ]
}

const fn access(read_only: bool) -> &'static str {
    if read_only { "ro" } else { "rw" }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The numbers of all mounts of the run directory; none of them is no error.
fn metrics(run_dir: &RunDirArgs) -> Outcome {
    match call(&run_dir.find()?, &Request::Metrics, PATIENCE) {
        Ok(Answer::Metrics(page)) => output::bytes(page.as_bytes()),
        Ok(answer) => bail!("the mount daemon answers {answer:?}: is it of another version?"),
        Err(CallError::Absent(_)) => Ok(OK),
        Err(error) => Err(error.into()),
    }
}

fn upgrade(program: Option<&PathBuf>, run_dir: &RunDirArgs) -> Outcome {
    let program = match program {
        Some(program) => absolute(program)?,
        None => this_program()?,
    };
    ensure!(program.is_file(), "{} is not a program: give one with --program", program.display());
    match call(&run_dir.find()?, &Request::Upgrade { program }, UPGRADE)? {
        Answer::Upgraded { pid, pause_ms } => {
            output::line(&format!(
                "upgraded: process {pid} serves after a pause of {pause_ms} ms"
            ))?;
            Ok(OK)
        }
        Answer::Error(error) => bail!("{error}"),
        answer => bail!("the mount daemon answers {answer:?}: is it of another version?"),
    }
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn ages_are_short() {
        let shown = [59, 125, 7300, 200_000].map(age);
        assert_eq!(shown, ["59 s", "2 min", "2 h", "2 d"]);
    }
}
