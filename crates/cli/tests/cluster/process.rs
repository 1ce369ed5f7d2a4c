//! Processes of a cluster.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millpond_control::admin::{Answer, Command as Admin, Status, decode_answer, encode_command};
use millpond_env::{ProcessId, ProcessSignal};
use millpond_types::wire::Verb;

use crate::wire::Wire;

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// One `millpond server`; killed when dropped.
pub(crate) struct Process {
    name: String,
    folder: PathBuf,
    flags: Vec<String>,
    child: Option<Child>,
    /// `127.0.0.1:port`; the same after a restart.
    pub(crate) address: String,
    /// Where its metrics are, if it was told to show them.
    pub(crate) http: String,
}

impl Process {
    /// Starts a server whose data lies in `folder/name`.
    pub(crate) fn start(folder: &Path, name: &str, flags: &[&str]) -> Self {
        let mut process = Self::new(folder, name, flags);
        process.run();
        process
    }

    pub(crate) fn new(folder: &Path, name: &str, flags: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            child: None,
            address: "127.0.0.1:0".to_owned(),
            http: String::new(),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn spawn(&self) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let data = self.folder.join(&self.name);
        Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["server", "--size", "1GiB", "--memory", "128MiB", "--cores", "1"])
            .args(["--http", "", "--s3", "", "--socket", "", "--listen", &self.address])
            .args(["--log-level", "info,millpond=debug", "--data"])
            .arg(data)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Starts it again, where it was; returns once it says READY.
    pub(crate) fn run(&mut self) {
        self.await_port();
        let mut child = self.spawn();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = None;
        for line in lines.map_while(Result::ok) {
            if let Some(rest) = line.trim_start().strip_prefix("clients") {
                address = rest.trim().split(',').next().map(str::to_owned);
            }
            if let Some(rest) = line.trim_start().strip_prefix("metrics  http://") {
                rest.trim_end_matches("/metrics").clone_into(&mut self.http);
            }
            if line == "READY" {
                self.address = address.expect("a server says where it listens");
                self.child = Some(child);
                return;
            }
        }
        let _ = child.wait();
        panic!("{} did not start:\n{}", self.name, self.log());
    }

    /// Waits until nobody listens where it did: the kernel takes the rings of a process that was
    /// killed down in the background, and the sockets with them.
    fn await_port(&self) {
        until("its port is free", || TcpListener::bind(&self.address).ok().map(drop));
    }

    /// Starts it and waits for it to give up; what it says then.
    pub(crate) fn run_refused(&mut self) -> String {
        let child = self.spawn();
        let before = self.log().len();
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "{} was let in", self.name);
        let log = self.log();
        log[before.min(log.len())..].to_owned()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Those that processes stand still with not by a command: a child that is started closes the files of all tests
    /// first, and waits for their mounts, which may wait for this.
    pub(crate) fn signal(&self, name: &str) {
        let signal = match name {
            "STOP" => ProcessSignal::Stop,
            "CONT" => ProcessSignal::Continue,
            "TERM" => ProcessSignal::Terminate,
            _ => {
                let id = self.child.as_ref().unwrap().id().to_string();
                let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
                assert!(sent.success());
                return;
            }
        };
        let process = ProcessId::of(self.child.as_ref().unwrap().id()).unwrap();
        assert!(process.signal(signal).unwrap());
    }

    /// SIGSTOP, and waits until none of its threads does anything any more.
    pub(crate) fn stand_still(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.as_ref().unwrap().id());
        let is_still = |task: std::io::Result<std::fs::DirEntry>| {
            let stat =
                std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        until("the process stands still", || {
            std::fs::read_dir(&tasks).unwrap().all(is_still).then_some(())
        });
    }

    /// SIGTERM, and how long the clean end took.
    pub(crate) fn stop(&mut self) -> Duration {
        self.signal("TERM");
        let started = Instant::now();
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "{} stopped with {status}:\n{}", self.name, self.log());
        started.elapsed()
    }

    /// True once the process has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    pub(crate) fn wire(&self) -> Wire {
        Wire::connect(&self.address)
    }

    /// Whether every replica of every chain serves, as the manager and its node say.
    pub(crate) fn all_serve(&self) -> bool {
        let mut after = 0;
        loop {
            let request = encode_command(&Admin::Chains { after, unhealthy: false });
            let Some(mut wire) = Wire::try_connect(&self.address) else { return false };
            let reply = wire.call(Verb::Admin, &request, Duration::from_secs(2));
            let Ok(Ok(Answer::Chains(page))) = reply.map(|reply| decode_answer(&reply)) else {
                return false;
            };
            let mut targets = page.chains.iter().flat_map(|chain| &chain.targets);
            if !targets.all(|it| it.state == "serving" && it.local.as_deref() == Some("uptodate")) {
                return false;
            }
            match page.next {
                Some(next) => after = next,
                None => return true,
            }
        }
    }

    /// How the cluster is, by whoever is primary; none while nobody is.
    pub(crate) fn status(&self) -> Option<Status> {
        self.status_within(Duration::from_secs(2))
    }

    /// The same for who measures time: a primary that stands still holds one request up for long.
    pub(crate) fn glance(&self) -> Option<Status> {
        self.status_within(Duration::from_millis(300))
    }

    fn status_within(&self, time: Duration) -> Option<Status> {
        let request = encode_command(&Admin::Status {});
        let mut wire = Wire::try_connect(&self.address)?;
        let reply = wire.call(Verb::Admin, &request, time).ok()?;
        match decode_answer(&reply) {
            Ok(Answer::Status(status)) => Some(*status),
            _ => None,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the end of the log of {}", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Tells threads of a scope to end when dropped: a failure elsewhere in the scope is not waited for forever.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `check` gives something and returns it with the time that took.
pub(crate) fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> (T, Duration) {
    let started = Instant::now();
    loop {
        if let Some(found) = check() {
            return (found, started.elapsed());
        }
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A manager and nodes that have formed a cluster.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Process>,
    pub(crate) manager: Process,
    more: &'static [&'static str],
    /// Last, so that logs are there while processes end.
    pub(crate) folder: tempfile::TempDir,
}

impl Cluster {
    /// One manager without disks and `count` nodes of one disk; chains of `replicas`.
    pub(crate) fn start(count: usize, replicas: usize) -> Self {
        Self::with(count, replicas, &[])
    }

    /// The same, and all of them show their metrics.
    pub(crate) fn watched(count: usize, replicas: usize) -> Self {
        Self::with(count, replicas, &["--http", "127.0.0.1:0"])
    }

    /// The same, with disks that hold chunks of files of all lengths.
    pub(crate) fn roomy(count: usize, replicas: usize) -> Self {
        Self::with(count, replicas, &["--size", "2GiB"])
    }

    /// The same, and all of them show their metrics.
    pub(crate) fn roomy_and_watched(count: usize, replicas: usize) -> Self {
        Self::with(count, replicas, &["--size", "2GiB", "--http", "127.0.0.1:0"])
    }

    fn with(count: usize, replicas: usize, more: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (count, replicas) = (count.to_string(), replicas.to_string());
        let flags = ["--manager", "--no-storage", "--form-nodes", &count, "--replicas", &replicas];
        let flags = [&flags[..], more].concat();
        let manager = Process::start(folder.path(), "manager", &flags);
        let count = count.parse().unwrap();
        let mut cluster = Self { nodes: Vec::new(), manager, more, folder };
        (0..count).for_each(|_| cluster.add());
        // They are made in several steps.
        let formed = |status: Status| status.chains() > 0 && status.progress.chains_to_make == 0;
        until("chains", || cluster.nodes[0].status().is_some_and(formed).then_some(()));
        // New chains are taken to serve until their replicas say that they still begin.
        until("every replica serves", || cluster.nodes[0].all_serve().then_some(()));
        cluster
    }

    /// Adds a node.
    pub(crate) fn add(&mut self) {
        let name = format!("node{}", self.nodes.len());
        let flags = [&["--join", &self.manager.address], self.more].concat();
        self.nodes.push(Process::start(self.folder.path(), &name, &flags));
    }
}

/// Chains of any state.
pub(crate) trait Chains {
    fn chains(&self) -> usize;

    /// All chains are made and have all their replicas.
    fn is_whole(&self) -> bool;
}

impl Chains for Status {
    fn chains(&self) -> usize {
        self.chains_whole + self.chains_degraded + self.chains_down
    }

    fn is_whole(&self) -> bool {
        self.chains_whole > 0
            && self.chains_whole == self.chains()
            && self.progress.chains_to_make == 0
    }
}
