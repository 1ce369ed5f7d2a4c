//! A cluster of processes under `millpond dev`, and what its primary manager says of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millpond_client::{Address, Client, ClientOptions, Transport};
use millpond_control::admin::{
    Answer, Chain, Command as Admin, Status, decode_answer, encode_command,
};
use millpond_types::wire::Verb;

/// The binary under test.
const MILLPOND: &str = env!("CARGO_BIN_EXE_millpond");
/// How long a cluster may take to be whole again on a busy machine.
const WHOLE_MAX: Duration = Duration::from_mins(2);
/// Words in a log that only a fault of the program writes.
const FATAL: [&str; 4] =
    ["panicked at", "hold different bytes", "gives an impossible state", "has no good copy"];

/// What a cluster is to be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) nodes: usize,
    pub(crate) replicas: u8,
    /// Three managers over etcd instead of one with its own store.
    pub(crate) etcd: bool,
    /// Every process in a network namespace.
    pub(crate) netns: bool,
    /// Size of a disk and memory of a server, as flags want them.
    pub(crate) size: &'static str,
    pub(crate) memory: &'static str,
}

/// A process of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// `n1`, `m1`, `e1`.
    pub(crate) name: String,
    pub(crate) address: String,
}

/// A running cluster; ended and removed when dropped.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    pub(crate) wish: Wish,
    /// Nodes with disks.
    pub(crate) nodes: Vec<Member>,
    pub(crate) managers: Vec<Member>,
    /// A client of each server, for the operator's questions.
    desk: Mutex<Vec<Client>>,
}

impl Cluster {
    pub(crate) fn up(wish: Wish) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster =
            Self { folder, wish, nodes: Vec::new(), managers: Vec::new(), desk: Mutex::default() };
        let (nodes, replicas) = (wish.nodes.to_string(), wish.replicas.to_string());
        let mut words = vec!["up", "--nodes", &nodes, "--replicas", &replicas];
        words.extend(["--size", wish.size, "--memory", wish.memory]);
        if wish.etcd {
            words.extend(["--managers", "3", "--store", "etcd"]);
        }
        if wish.netns {
            words.push("--netns");
        }
        cluster.dev(&words).expect("a cluster that starts");
        let members = cluster.members();
        let of = |letter| members.iter().filter(move |it| it.name.starts_with(letter)).cloned();
        cluster.nodes = of('n').collect();
        cluster.managers = of('m').collect();
        let clients = cluster.nodes.iter().chain(&cluster.managers).map(|member| {
            let options = ClientOptions {
                transport: Transport::Tcp,
                deadline: Duration::from_secs(2),
                connections: 1,
                ..ClientOptions::new(member.address.parse::<Address>().unwrap().into())
            };
            Client::new(options).unwrap()
        });
        cluster.desk = Mutex::new(clients.collect());
        cluster
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `millpond dev`; what it prints, or its complaint.
    pub(crate) fn dev(&self, words: &[&str]) -> Result<String, String> {
        let done = Command::new(MILLPOND)
            .args(["dev", "--dir"])
            .arg(self.folder())
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() {
            return Ok(text(&done.stdout));
        }
        Err(format!("millpond dev {}: {}", words.join(" "), text(&done.stderr)))
    }

    fn state(&self) -> serde_json::Value {
        let text = std::fs::read(self.folder().join("dev.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    fn members(&self) -> Vec<Member> {
        let state = self.state();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let members = state["members"].as_array().cloned().unwrap_or_default();
        let member = |it: &serde_json::Value| Member {
            name: text(&it["name"]),
            address: format!("{}:{}", text(&it["ip"]), it["port"]),
        };
        members.iter().map(member).collect()
    }

    /// The number of a process that was started.
    pub(crate) fn pid(&self, name: &str) -> Option<u64> {
        let state = self.state();
        let member = state["members"].as_array()?.iter().find(|it| it["name"] == name)?.clone();
        member["process"]["pid"].as_u64()
    }

    /// The file that a node keeps its chunks in.
    pub(crate) fn chunk_file(&self, node: &str) -> PathBuf {
        let folder = self.folder().join(node).join("disk1");
        if folder.is_file() {
            return folder;
        }
        let files = std::fs::read_dir(&folder).unwrap().flatten().map(|it| it.path());
        files.max_by_key(|path| path.metadata().map_or(0, |it| it.len())).unwrap()
    }

    pub(crate) fn addresses(&self) -> String {
        let all: Vec<&str> = self.nodes.iter().map(|node| node.address.as_str()).collect();
        all.join(",")
    }

    fn ask(&self, command: &Admin) -> Option<Answer> {
        let mut desk = self.desk.lock().unwrap();
        for at in 0..desk.len() {
            let asked = desk[at].call(Verb::Admin, encode_command(command), None);
            match asked.ok().and_then(|reply| decode_answer(&reply).ok()) {
                Some(Answer::NotPrimary { .. }) | None => {}
                // Whoever answered is asked first next time.
                answer => {
                    desk.swap(0, at);
                    return answer;
                }
            }
        }
        None
    }

    /// How the cluster is; none while nobody is primary.
    pub(crate) fn status(&self) -> Option<Status> {
        match self.ask(&Admin::Status {})? {
            Answer::Status(status) => Some(*status),
            _ => None,
        }
    }

    /// All chains.
    pub(crate) fn chains(&self) -> Option<Vec<Chain>> {
        let (mut chains, mut after) = (Vec::new(), 0);
        loop {
            let Answer::Chains(page) = self.ask(&Admin::Chains { after, unhealthy: false })? else {
                return None;
            };
            chains.extend(page.chains);
            match page.next {
                Some(next) => after = next,
                None => return Some(chains),
            }
        }
    }

    /// The name of each node by its identity.
    pub(crate) fn names(&self, status: &Status) -> BTreeMap<String, String> {
        let mut names = BTreeMap::new();
        for node in &status.nodes {
            let member = self.nodes.iter().chain(&self.managers);
            let mut found = member.filter(|it| node.addresses.contains(&it.address));
            if let Some(member) = found.next() {
                names.insert(node.id.clone(), member.name.clone());
            }
        }
        names
    }

    /// The primary manager.
    pub(crate) fn primary(&self) -> Option<String> {
        let primary = self.status()?.primary;
        let mut managers = self.managers.iter();
        Some(managers.find(|it| primary.contains(&it.address))?.name.clone())
    }

    fn is_whole(&self, status: &Status) -> bool {
        let names = self.names(status);
        let alive =
            |node: &&millpond_control::admin::Node| node.alive && names.contains_key(&node.id);
        status.chains_whole > 0
            && status.chains_degraded + status.chains_down == 0
            && status.nodes.iter().filter(alive).count() == self.nodes.len() + self.managers.len()
    }

    /// Waits until every chain serves with all its replicas and every process is heard; how long
    /// that took.
    pub(crate) fn wait_whole(&self) -> Result<Duration, String> {
        let started = Instant::now();
        loop {
            let status = self.status();
            if status.as_ref().is_some_and(|status| self.is_whole(status)) {
                return Ok(started.elapsed());
            }
            if started.elapsed() > WHOLE_MAX {
                let what = status.map_or("nobody is primary".to_owned(), |status| {
                    let problems: Vec<&str> =
                        status.problems.iter().map(|it| it.what.as_str()).collect();
                    format!("{}; targets {:?}", problems.join("; "), status.targets)
                });
                return Err(format!("not whole {WHOLE_MAX:?} after the fault ended: {what}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lines of the logs that only a fault of the program writes, and processes that ended by
    /// themselves.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        for member in self.members() {
            let log = std::fs::read_to_string(self.log_path(&member.name)).unwrap_or_default();
            let bad = log.lines().filter(|line| FATAL.iter().any(|word| line.contains(word)));
            found.extend(bad.map(|line| format!("{}: {line}", member.name)));
        }
        let status = self.dev(&["status"]).unwrap_or_default();
        let gone = status.lines().filter(|line| line.contains("does not run"));
        found.extend(gone.map(|line| format!("ended by itself: {line}")));
        found
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder().join(name).join("log")
    }

    /// The ends of all logs, for whoever must find out what happened.
    pub(crate) fn show_logs(&self, lines: usize) {
        for member in self.members() {
            let log = std::fs::read_to_string(self.log_path(&member.name)).unwrap_or_default();
            let all: Vec<&str> = log.lines().collect();
            eprintln!("--- the end of the log of {}", member.name);
            all[all.len().saturating_sub(lines)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs(60);
            if let Some(keep) = std::env::var_os("MILLPOND_CHAOS_KEEP") {
                let _ = Command::new("cp").arg("-r").arg(self.folder()).arg(keep).status();
            }
        }
        let _ = self.dev(&["heal"]);
        let _ = self.dev(&["down"]);
    }
}
