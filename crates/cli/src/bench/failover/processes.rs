//! The cluster's processes, through what `millpond dev` wrote down and says.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use millpond_client::{Address, Client, ClientOptions, Transport};
use millpond_env::{ProcessId, ProcessSignal};
use millpond_types::wire::Verb;
use serde::Deserialize;

use millpond_control::admin::{self, Answer, Status, decode_answer, encode_command};

/// How long the cluster may take to be whole again.
const WHOLE_MAX: Duration = Duration::from_mins(3);
const LOOK: Duration = Duration::from_millis(20);

/// What is read of `dev.json`.
#[derive(Debug, Deserialize)]
struct State {
    members: Vec<Member>,
}

#[derive(Debug, Deserialize)]
struct Member {
    name: String,
    role: String,
    ip: String,
    port: u16,
    process: Option<Process>,
}

#[derive(Debug, Deserialize)]
struct Process {
    pid: u32,
    started: u64,
}

impl Member {
    fn address(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }
}

/// A local cluster.
pub(super) struct Processes {
    folder: PathBuf,
    members: Vec<Member>,
    /// A client of every server; who answered last is asked first.
    desk: Vec<Client>,
}

impl Processes {
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let mut all = Self { folder: folder.to_owned(), members: Vec::new(), desk: Vec::new() };
        all.read()?;
        for member in all.members.iter().filter(|member| member.role != "etcd") {
            all.desk.push(Client::new(ClientOptions {
                transport: Transport::Tcp,
                deadline: Duration::from_secs(1),
                connections: 1,
                ..ClientOptions::new(member.address().parse::<Address>()?.into())
            })?);
        }
        ensure!(all.nodes().count() > 1, "failover needs several nodes: start three");
        Ok(all)
    }

    fn read(&mut self) -> Result<()> {
        let path = self.folder.join("dev.json");
        let missing =
            || format!("{}: no cluster in this folder: run 'millpond dev up'", path.display());
        let text = std::fs::read(&path).with_context(missing)?;
        self.members = serde_json::from_slice::<State>(&text).with_context(missing)?.members;
        Ok(())
    }

    fn nodes(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == "storage")
    }

    /// Where clients connect.
    pub(super) fn addresses(&self) -> String {
        self.nodes().map(Member::address).collect::<Vec<_>>().join(",")
    }

    /// One node after the other.
    pub(super) fn node(&self, turn: usize) -> String {
        let names: Vec<&str> = self.nodes().map(|node| node.name.as_str()).collect();
        names[turn % names.len()].to_owned()
    }

    /// Runs `millpond dev`.
    pub(super) fn dev(&self, words: &[&str]) -> Result<()> {
        let program = std::env::current_exe().context("finding this program")?;
        let done = Command::new(program)
            .arg("dev")
            .arg("--dir")
            .arg(&self.folder)
            .args(words)
            .stdin(Stdio::null())
            .output()?;
        if !done.status.success() {
            let text = String::from_utf8_lossy(&done.stderr);
            bail!("millpond dev {}: {}", words.join(" "), text.trim());
        }
        Ok(())
    }

    /// Sends a signal, without the time that a command of its own takes.
    fn signal(&mut self, name: &str, signal: ProcessSignal) -> Result<ProcessId> {
        self.read()?;
        let member = self.members.iter().find(|member| member.name == name);
        let process = member.and_then(|member| member.process.as_ref());
        let process = process.with_context(|| format!("{name} does not run"))?;
        let id = ProcessId { pid: process.pid, started: process.started };
        ensure!(id.signal(signal)?, "{name} does not run");
        Ok(id)
    }

    fn end(&mut self, name: &str, signal: ProcessSignal) -> Result<()> {
        let id = self.signal(name, signal)?;
        let until = Instant::now() + Duration::from_secs(30);
        while id.is_there() {
            ensure!(Instant::now() < until, "{name} did not exit");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, name: &str) -> Result<()> {
        self.end(name, ProcessSignal::Kill)
    }

    pub(super) fn stop(&mut self, name: &str) -> Result<()> {
        self.end(name, ProcessSignal::Terminate)
    }

    pub(super) fn freeze(&mut self, name: &str, on: bool) -> Result<()> {
        let signal = if on { ProcessSignal::Stop } else { ProcessSignal::Continue };
        self.signal(name, signal).map(drop)
    }

    fn status(&mut self) -> Option<Status> {
        let request = encode_command(&admin::Command::Status {});
        for at in 0..self.desk.len() {
            let reply = self.desk[at].call(Verb::Admin, request.clone(), None);
            if let Some(Answer::Status(status)) = reply.ok().and_then(|it| decode_answer(&it).ok())
            {
                self.desk.swap(0, at);
                return Some(*status);
            }
        }
        None
    }

    /// The primary manager.
    pub(super) fn primary(&mut self) -> Result<String> {
        let status = self.status().context("no manager is primary")?;
        let mut members = self.members.iter();
        let found = members.find(|member| status.primary.contains(&member.address()));
        Ok(found.context("the primary does not belong to this cluster")?.name.clone())
    }

    /// Waits until every chain has all its replicas.
    pub(super) fn wait_whole(&mut self) -> Result<()> {
        let until = Instant::now() + WHOLE_MAX;
        let servers = self.desk.len();
        loop {
            let whole = self.status().is_some_and(|status| {
                status.chains_whole > 0
                    && status.chains_degraded + status.chains_down == 0
                    && status.nodes.iter().filter(|node| node.alive).count() >= servers
            });
            if whole {
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "the chains do not have all replicas after {WHOLE_MAX:?}"
            );
            std::thread::sleep(LOOK);
        }
    }
}
