//! The processes behind mounts: the holder and its daemon. Nobody starts these by hand.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use millpond_env::{RealClock, begin_session, files};
use millpond_fuse::admin::{CallError, Connection};
use millpond_fuse::{HolderError, RunDir, hold, serve_mounts};

use crate::exit::{OK, Outcome, abort_on_panic};
use crate::interrupt::Interrupt;
use crate::log;
use millpond_node::config::LogConfig;

/// A holder and its daemon are there after this, or never.
const START: Duration = Duration::from_secs(10);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// Where the processes meet.
#[derive(Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// The run directory.
    #[arg(long)]
    run_dir: PathBuf,
}

/// The holder.
pub(crate) fn holder(args: &ProcessArgs) -> Outcome {
    // The terminal of whoever mounts must not reach it. Fails where that was seen to already.
    let _ = begin_session();
    log::start(&LogConfig::default())?;
    let interrupt = Interrupt::install()?;
    match hold(&RunDir::new(args.run_dir.clone()), this_program()?, interrupt.arrivals()) {
        Err(error @ HolderError::Another(_)) => tracing::info!("{error}: this one is not needed"),
        done => done?,
    }
    Ok(OK)
}

/// The daemon, whose standard input is the socket to its holder.
pub(crate) fn daemon(args: &ProcessArgs) -> Outcome {
    log::start(&LogConfig::default())?;
    // The holder starts the next one, which goes on with what the kernel sends again.
    abort_on_panic();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
    serve_mounts(&RunDir::new(args.run_dir.clone()), &UnixStream::from(socket))?;
    Ok(OK)
}

/// The file of this program. One that was replaced since it started is still found.
pub(super) fn this_program() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let name = program.to_string_lossy();
    Ok(name.strip_suffix(" (deleted)").map_or_else(|| program.clone(), PathBuf::from))
}

/// A connection to the daemon of a run directory, which is started if there is none.
pub(super) fn connect(
    run_dir: &RunDir,
    log_file: &std::path::Path,
    interrupt: &mut Interrupt,
) -> anyhow::Result<Connection> {
    let until = RealClock::tick().plus(START);
    let mut holder = None;
    loop {
        match Connection::open(run_dir) {
            Err(CallError::Absent(_)) => {}
            found => return Ok(found?),
        }
        match &mut holder {
            None => holder = Some(start_holder(run_dir, log_file)?),
            Some(child) => {
                if let Some(status) = child.try_wait().context("the holder of mounts")? {
                    // The one before was about to end, or nothing starts.
                    anyhow::ensure!(status.success(), "{}", last_words(log_file));
                    holder = None;
                }
            }
        }
        if RealClock::tick() >= until {
            bail!("the mount daemon did not start: see {}", log_file.display());
        }
        anyhow::ensure!(!interrupt.pause(LOOK), "interrupted: nothing is mounted");
    }
}

fn start_holder(run_dir: &RunDir, log_file: &std::path::Path) -> anyhow::Result<Child> {
    let log = files::open_append(log_file)
        .with_context(|| format!("--log-file {}", log_file.display()))?;
    Command::new(this_program()?)
        .args(["mount-holder", "--run-dir"])
        .arg(run_dir.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("starting the holder of mounts")
}

fn last_words(log_file: &std::path::Path) -> String {
    let text = std::fs::read_to_string(log_file).unwrap_or_default();
    let last = text.lines().last().unwrap_or("its log is empty").trim_start_matches("millpond: ");
    format!("the holder of mounts did not start: {last}")
}
