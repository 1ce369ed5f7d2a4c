//! `millpond mount`, `umount` and `mounts`: files of a cluster as a file system of this host.

pub(super) mod helper;
mod list;
mod processes;
pub(super) mod profile;
pub(super) mod stats;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use millpond_client::{Addresses, ClientOptions};
use millpond_env::{RealClock, effective_uid};
use millpond_fuse::admin::{Answer, CallError, Connection, MountRequest, Request, call};
use millpond_fuse::{Mount, MountSpec, RunDir, probe};
use millpond_fuse_wire as wire;

pub(super) use self::list::{MountsArgs, mounts};
pub(super) use self::processes::{ProcessArgs, daemon, holder};
use super::interrupt::Interrupt;
use super::{log, output};
use crate::exit::{OK, Outcome, abort_on_panic};
use millpond_node::config::LogConfig;

pub(super) const EXAMPLES: &str = "Options of -o, comma-separated:
  mode=NAME     consistency with changes of other clients: strict, close-to-open (default),
                one-writer, relaxed, read-only; see the table in docs/files.md
  ro, rw        mount read-only or read-write
  noexec, nosuid, nodev, noallow_other
                as in mount(8)
  relatime      set the access time of a file when it is opened for reading, as in mount(8);
                without it (noatime) reads do not change the access time
  idmap         allow another mount of the folder with mapped owners (X-mount.idmap of
                mount(8), Linux 6.12); the access log then names users only for requests
                that create something
  nowatch       no .stats and .accesslog in the root
  threads=N     threads that serve requests, 1 to 63 (default 16)
  timeout=TIME  a system call returns, or fails with EIO, within this time under any failure:
                1s to 1h (default 1m)
  noread_ahead  no read-ahead except that of the kernel
  nodelegations, delegations
                whether the mount holds the directories that it creates until another client
                needs them, and acknowledges changes in them before a meta executes them;
                delegations is the default with mode=close-to-open, see docs/files.md
  acl           store, inherit and check access control lists (setfacl, getfacl); see
                docs/files.md
  memory=SIZE   memory for requests and read-ahead (default 256MiB)
  bandwidth=RATE, read_bandwidth=RATE, write_bandwidth=RATE
                limit in bytes per second, for both directions together or for each: 100MiB
  cache=FOLDER,cache_size=SIZE
                cache whole files on a local disk; needs mode=read-only
  nopassthrough the daemon, not the kernel, reads files of the cache
  io_uring      serve requests over io_uring; the mount ends with its process

Examples:
  millpond mount 127.0.0.1:7440 /mnt/pond
  millpond mount 10.0.0.1:7440,10.0.0.2:7440 /models -o mode=read-only
  millpond mount 10.0.0.1:7440 /models -o mode=read-only,cache=/var/cache/millpond,cache_size=500GiB
  millpond mounts
  millpond mounts upgrade
  millpond umount /mnt/pond";

/// What whoever mounts so must know.
const OVER_IO_URING: &str = "warning: with io_uring this mount ends with its process: \
     the kernel does not resend requests in flight, so a crash cannot be replayed, and an upgrade \
     is rejected";
/// A mount is made, or not, within this.
const MOUNT: Duration = Duration::from_mins(2);
/// An unmount that the kernel allows is done within this.
const UNMOUNT: Duration = Duration::from_mins(1);
/// Who presses Ctrl-C wants no mount, and waits so long to be sure.
const UNDO: Duration = Duration::from_secs(15);
/// How often Ctrl-C is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Where the processes behind the mounts meet.
#[derive(Debug, clap::Args)]
struct RunDirArgs {
    /// Run directory of the processes that serve mounts. [default: /run/millpond for root, else
    /// `$XDG_RUNTIME_DIR/millpond`]
    #[arg(long, value_name = "FOLDER", env = "MILLPOND_RUN_DIR", hide_env_values = true)]
    run_dir: Option<PathBuf>,
}

impl RunDirArgs {
    fn find(&self) -> anyhow::Result<RunDir> {
        let folder = match &self.run_dir {
            Some(folder) => absolute(folder)?,
            None if effective_uid() == 0 => PathBuf::from("/run/millpond"),
            None => {
                let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
                PathBuf::from(of_user.context(
                    "XDG_RUNTIME_DIR is not set: choose a folder of your own, for example \
                         --run-dir ~/.millpond",
                )?)
                .join("millpond")
            }
        };
        Ok(RunDir::new(folder))
    }
}

/// What is mounted where, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Addresses of some nodes of the cluster: HOST:PORT, comma-separated.
    cluster: Addresses,
    /// Folder to mount the files on.
    mountpoint: PathBuf,
    /// Mount options, comma-separated.
    #[arg(short, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Credential, if the cluster requires one.
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// Serve the mount in this process until Ctrl-C unmounts it. Applications lose the mount when
    /// the process dies.
    #[arg(long)]
    foreground: bool,
    /// Log file of the background processes, if this command starts them.
    /// [default: mount.log in the run directory]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    #[command(flatten)]
    run_dir: RunDirArgs,
}

/// What is to be unmounted.
#[derive(Debug, clap::Args)]
pub(super) struct UmountArgs {
    /// Mount point.
    mountpoint: PathBuf,
    /// Do not wait for users of the mount: detach it from the tree at once, and end it when the
    /// last file is closed.
    #[arg(long, short)]
    lazy: bool,
    #[command(flatten)]
    run_dir: RunDirArgs,
}

/// What the arguments ask for.
fn spec(args: &Args) -> anyhow::Result<MountSpec> {
    let mut client = ClientOptions::new(args.cluster.clone());
    client.token.clone_from(&args.token);
    let mut spec = MountSpec::new(client, place(&args.mountpoint)?);
    spec.apply(&args.options)?;
    Ok(spec)
}

pub(super) fn run(args: &Args) -> Outcome {
    let spec = spec(args)?;
    if spec.io_uring {
        eprintln!("millpond: {OVER_IO_URING}");
    }
    if args.foreground { foreground(spec) } else { background(args, spec) }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{}", path.display()))
}

/// The path as the list of mounts has it; one that is not there stays as it is.
fn place(path: &Path) -> anyhow::Result<PathBuf> {
    let path = absolute(path)?;
    Ok(wire::place_of(&path).unwrap_or(path))
}

fn foreground(spec: MountSpec) -> Outcome {
    abort_on_panic();
    log::start(&LogConfig::default())?;
    let mut interrupt = Interrupt::install()?;
    let target = spec.target.clone();
    probe(&spec)?;
    let mount = Mount::start(spec, &mut |_, _| Ok(()))?;
    output::bytes(format!("{} is mounted\nREADY\n", target.display()).as_bytes())?;
    let stopped = target.clone();
    let waiting = millpond_env::thread("mp-signals", move || {
        while !interrupt.pause(Duration::from_secs(1)) {}
        if let Err(error) = wire::unmount(&stopped, true) {
            eprintln!("millpond: {error}");
        }
    })?;
    mount.wait();
    // It ends with the process: nobody may send a signal.
    drop(waiting);
    Ok(OK)
}

/// Has the daemon of this host mount; returns when requests are served.
fn background(args: &Args, spec: MountSpec) -> Outcome {
    let run_dir = args.run_dir.find()?;
    run_dir.prepare()?;
    // The mount would hide the daemon's socket.
    let (folder, target) = (place(run_dir.path())?, &spec.target);
    let hides = folder.starts_with(target);
    ensure!(
        !hides,
        "run directory {} is inside the mount point {}: choose another one with --run-dir",
        folder.display(),
        target.display()
    );
    let log_file = match &args.log_file {
        Some(path) => absolute(path)?,
        None => run_dir.log(),
    };
    let mut interrupt = Interrupt::install()?;
    let mut connection = processes::connect(&run_dir, &log_file, &mut interrupt)?;
    connection.ask(&Request::Mount(MountRequest {
        cluster: args.cluster.to_string(),
        token: args.token.clone(),
        mountpoint: spec.target.clone(),
        options: args.options.clone(),
    }))?;
    match answer(&mut connection, &interrupt)? {
        Answer::Ok if interrupt.came() => {
            let request = Request::Unmount { mountpoint: spec.target, lazy: true };
            call(&run_dir, &request, UNMOUNT)?;
            bail!("interrupted: nothing is mounted")
        }
        Answer::Ok => Ok(OK),
        Answer::Error(error) => bail!("{error}"),
        answer => bail!("the mount daemon answers {answer:?}: is it of another version?"),
    }
}

/// Waits for an answer; for a while only once Ctrl-C came.
fn answer(connection: &mut Connection, interrupt: &Interrupt) -> anyhow::Result<Answer> {
    let started = RealClock::tick();
    let mut until = started.plus(MOUNT);
    let mut came = false;
    loop {
        if let Some(answer) = connection.answer(LOOK)? {
            return Ok(answer);
        }
        let now = RealClock::tick();
        if interrupt.came() && !came {
            came = true;
            until = now.plus(UNDO);
            eprintln!("millpond: interrupted: undoing the mount");
        }
        if now >= until {
            // The daemon unmounts what nobody waits for.
            let why = if came { "interrupted" } else { "the cluster did not answer in time" };
            bail!("{why}: the daemon undoes the mount as soon as it is made");
        }
    }
}

pub(super) fn umount(args: &UmountArgs) -> Outcome {
    let target = place(&args.mountpoint)?;
    let request = Request::Unmount { mountpoint: target.clone(), lazy: args.lazy };
    let asked = args.run_dir.find().ok().map(|run_dir| call(&run_dir, &request, UNMOUNT));
    match asked {
        // A mount in the foreground, or of another run directory; its process notices.
        None | Some(Ok(Answer::NotMine) | Err(CallError::Absent(_) | CallError::Forbidden(_))) => {
            wire::unmount(&target, args.lazy).map_err(|error| match error {
                wire::MountError::TargetMissing(path) => {
                    anyhow!("{} does not exist: `millpond mounts` lists the mounts", path.display())
                }
                error => error.into(),
            })?;
        }
        Some(Ok(Answer::Ok)) => {}
        Some(Ok(Answer::Error(error))) => bail!("{error}"),
        Some(Ok(answer)) => {
            bail!("the mount daemon answers {answer:?}: is it of another version?")
        }
        Some(Err(error)) => return Err(error.into()),
    }
    Ok(OK)
}
