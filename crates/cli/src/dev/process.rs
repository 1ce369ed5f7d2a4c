//! Starting, watching and ending the processes of a local cluster.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use millpond_env::{BlockingStream, ProcessId, ProcessSignal, RealClock, Rng};

use super::plan::{Member, Role, State};
use super::{etcd, network};
use crate::interrupt::Interrupt;

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a server may take to open its disks.
const READY_MAX: Duration = Duration::from_mins(1);
/// How long a server may take to write what is in memory to its disks.
const END_MAX: Duration = Duration::from_secs(20);
/// What is shown of the log of a process that ended.
const TAIL_BYTES: i64 = 3_000;

/// What the log of a member is called in its folder.
pub(super) const LOG: &str = "log";

/// The log of a member.
pub(crate) fn log_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(name).join(LOG)
}

/// A port of this host that nobody listens on, below those that the kernel gives to outgoing
/// connections: a server that is started again must find its port free.
pub(crate) fn free_port(taken: &[u16]) -> anyhow::Result<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let above = first.unwrap_or(32_768).max(12_000);
    let mut rng = Rng::from_os()?;
    for _ in 0..1_000 {
        let port = u16::try_from(10_000 + rng.below(above - 10_000)).unwrap_or(10_000);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let refused = BlockingStream::connect_tcp(address, Duration::from_millis(200)).is_err();
        if refused && !taken.contains(&port) {
            return Ok(port);
        }
    }
    bail!("no free port found between 10000 and {above}")
}

/// Starts a member; it outlives this process.
pub(crate) fn start(state: &mut State, folder: &Path, name: &str) -> anyhow::Result<()> {
    let member = state.member(name)?.clone();
    if member.running().is_some() {
        bail!("{name} is already running");
    }
    let home = folder.join(name);
    std::fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
    network::prepare(state, name)?;
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_path(folder, name))
        .with_context(|| log_path(folder, name).display().to_string())?;
    let program = match member.role {
        Role::Etcd => etcd::program(&state.program)?,
        Role::Manager | Role::Storage => state.program.clone(),
    };
    let mut words = match &state.network {
        Some(network) => network.prefix(name),
        None => Vec::new(),
    };
    words.push(program.display().to_string());
    words.extend(state.arguments(&member, folder));
    let child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C in this terminal is not meant for it.
        .process_group(0)
        .spawn()
        .with_context(|| words.join(" "))?;
    let id = ProcessId::of(child.id()).with_context(|| format!("{name} exited at once"))?;
    state.set_process(name, Some(id.into()));
    state.write(folder)
}

/// Waits until a member that was just started serves. `since` is the length that its log had.
pub(crate) fn wait_ready(
    folder: &Path,
    member: &Member,
    since: u64,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let until = RealClock::tick().plus(READY_MAX);
    loop {
        let ready = match member.role {
            // Members of etcd answer once most of them are there.
            Role::Etcd => true,
            _ => read_log(folder, &member.name, since)?.lines().any(|line| line == "READY"),
        };
        if ready {
            return Ok(());
        }
        if member.running().is_none() {
            bail!("{} exited:\n{}", member.name, tail(folder, &member.name));
        }
        if RealClock::tick() > until {
            bail!(
                "{} is not ready after {READY_MAX:?}:\n{}",
                member.name,
                tail(folder, &member.name)
            );
        }
        if interrupt.pause(LOOK) {
            bail!("interrupted");
        }
    }
}

/// Length of a member's log.
pub(crate) fn log_len(folder: &Path, name: &str) -> u64 {
    std::fs::metadata(log_path(folder, name)).map_or(0, |meta| meta.len())
}

/// A member's log from a place on.
pub(crate) fn read_log(folder: &Path, name: &str, from: u64) -> anyhow::Result<String> {
    let path = log_path(folder, name);
    let read = || {
        let mut file = std::fs::OpenOptions::new().read(true).open(&path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let bytes = read().with_context(|| path.display().to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of a member's log.
fn tail(folder: &Path, name: &str) -> String {
    let from = log_len(folder, name).saturating_sub(TAIL_BYTES.unsigned_abs());
    read_log(folder, name, from).unwrap_or_else(|error| error.to_string())
}

/// Ends members in good order, all at once; those that do not end in time are killed. Names them.
pub(crate) fn end(
    state: &mut State,
    folder: &Path,
    names: &[String],
) -> anyhow::Result<Vec<String>> {
    let running = |state: &State| -> Vec<(String, ProcessId)> {
        let members = state.members.iter().filter(|member| names.contains(&member.name));
        members.filter_map(|it| Some((it.name.clone(), it.running()?))).collect()
    };
    for (_, process) in running(state) {
        process.signal(ProcessSignal::Terminate)?;
        // One that stands still hears nothing.
        process.signal(ProcessSignal::Continue)?;
    }
    let mut interrupt = Interrupt::install()?;
    let until = RealClock::tick().plus(END_MAX);
    while !running(state).is_empty() && RealClock::tick() < until {
        // Ctrl-C: no more patience.
        if interrupt.pause(LOOK) {
            break;
        }
    }
    let mut killed = Vec::new();
    for (name, process) in running(state) {
        process.signal(ProcessSignal::Kill)?;
        killed.push(name);
    }
    let until = RealClock::tick().plus(END_MAX);
    while !running(state).is_empty() && RealClock::tick() < until {
        interrupt.pause(LOOK);
    }
    for name in names {
        state.set_process(name, None);
    }
    state.write(folder)?;
    Ok(killed)
}

#[cfg(test)]
mod tests {
    use super::free_port;

    #[test]
    fn a_port_in_use_is_not_given() {
        let port = free_port(&[]).unwrap();
        assert!(port >= 10_000);
        let taken: Vec<u16> = (10_000..=u16::MAX).collect();
        assert!(free_port(&taken).is_err());
    }
}
