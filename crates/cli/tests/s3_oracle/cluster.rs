//! A cluster of real processes in each role, with an object store behind it.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc;

use millpond_client::{Client as Desk, ClientOptions, Volume, VolumeOptions};
use millpond_control::admin::Status;
use millpond_env::Rng;
use millpond_s3::{BackendRing, BackendSettings};
use millpond_s3_load::proxy::{Faults, Proxy};
use millpond_types::meta::Caller;
use millpond_types::meta::object::{Backing, Mode, Rule};

use crate::client::Client;
use crate::etcd_members::Etcd;
use crate::process::{Chains as _, Process, until};
use crate::server::{ACCESS, SECRET};

/// A bucket that nothing is behind, one that is backed, and the one behind it.
pub(crate) const PLAIN: &str = "plain";
pub(crate) const BACKED: &str = "backed";
pub(crate) const BEHIND: &str = "behind";
/// What keys have there.
pub(crate) const PREFIX: &str = "of/backed/";
/// Keys that are answered when the backend has them.
pub(crate) const THROUGH: &str = "through/";
/// So few bytes are kept of what the backend has: it is given up and fetched all the time.
const CACHE: u64 = 2 << 20;
const NODES: usize = 3;
const GATEWAYS: usize = 2;
/// Members of etcd: one may be away.
const MEMBERS: usize = 3;

/// What a cluster is to be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) replicas: usize,
    /// Three managers over etcd instead of one with a store of its own.
    pub(crate) etcd: bool,
}

/// Processes of all roles. A manager is a meta too, and a gateway that asks the meta of its own process.
pub(crate) struct Cluster {
    pub(crate) gateways: Vec<Process>,
    pub(crate) nodes: Vec<Process>,
    pub(crate) managers: Vec<Process>,
    /// The object store behind.
    pub(crate) far: Process,
    /// Clients of all that are gateways, and of the object store past the proxy.
    pub(crate) s3: Vec<Client>,
    pub(crate) direct: Client,
    /// Where faults are made.
    proxy: Client,
    /// What the managers keep their state in, if it is not theirs.
    pub(crate) etcd: Option<Etcd>,
    _folder: tempfile::TempDir,
}

/// A port that is free, below those that the system gives to connections: nobody else takes it while its process is dead.
fn port() -> String {
    let mut rng = Rng::from_os().unwrap();
    loop {
        let address = format!("127.0.0.1:{}", 10_000 + rng.below(20_000));
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// A server that S3 clients reach; where.
pub(crate) fn with_s3(folder: &Path, name: &str, flags: &[&str]) -> (Process, Client) {
    let at = port();
    let own = ["--s3", &at, "--s3-access-key", ACCESS, "--s3-secret-key", SECRET];
    let process = Process::start(folder, name, &[flags, &own].concat());
    (process, Client::new(&at, ACCESS, SECRET))
}

/// A proxy to this address, until the process ends.
fn proxy(to: &str) -> Client {
    let to = to.parse().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listen = "127.0.0.1:0".parse().unwrap();
            let proxy = Proxy::bind(listen, to, Faults::default()).await.unwrap();
            sender.send(proxy.address().unwrap().to_string()).unwrap();
            proxy.serve().await;
        });
    });
    Client::new(&receiver.recv().unwrap(), ACCESS, SECRET)
}

impl Cluster {
    pub(crate) fn start(wish: Wish) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let etcd = wish.etcd.then(|| Etcd::start(MEMBERS));
        let (count, replicas) = (NODES.to_string(), wish.replicas.to_string());
        let store = etcd.as_ref().map(Etcd::store);
        let mut flags =
            vec!["--manager", "--no-storage", "--form-nodes", &count, "--replicas", &replicas];
        flags.extend(store.iter().flat_map(|store| ["--store", store]));
        let managers = 0..if wish.etcd { 3 } else { 1 };
        let manager = |n| with_s3(at, &format!("manager{n}"), &flags);
        let (managers, mut s3): (Vec<_>, Vec<_>) = managers.map(manager).unzip();
        let all: Vec<&str> = managers.iter().map(|it| it.address.as_str()).collect();
        let all = all.join(",");
        let node = |n| Process::start(at, &format!("node{n}"), &["--join", &all, "--size", "3GiB"]);
        let nodes: Vec<Process> = (0..NODES).map(node).collect();
        until("chains", || nodes[0].status().filter(|it| it.chains() > 0).map(drop));
        until("every replica serves", || nodes[0].all_serve().then_some(()));
        let gateway = |n| with_s3(at, &format!("gateway{n}"), &["--join", &all, "--no-storage"]);
        let (gateways, of_gateways): (Vec<_>, Vec<_>) = (0..GATEWAYS).map(gateway).unzip();
        s3.extend(of_gateways);
        let single = ["--manager", "--form-nodes", "1", "--size", "2GiB"];
        let (far, direct) = with_s3(at, "far", &single);
        let proxy = proxy(&direct.address);
        let it = Self { gateways, nodes, managers, far, s3, direct, proxy, etcd, _folder: folder };
        it.make_buckets(it.make_table(wish));
        it
    }

    /// Makes chains of another number of replicas; which.
    fn make_table(&self, wish: Wish) -> u8 {
        let replicas = if wish.replicas == NODES { NODES - 1 } else { NODES };
        let form = ["admin", "form", "--replicas", &replicas.to_string()];
        until("chains are formed", || self.command(&form).status.success().then_some(()));
        let is_there = |it: &Status| !it.tables.is_empty() && it.progress.chains_to_make == 0;
        until("they are made", || self.nodes[0].status().filter(is_there));
        until("their replicas serve", || self.nodes[0].all_serve().then_some(()));
        u8::try_from(replicas).unwrap()
    }

    /// Keys that go through have so many replicas, and all others as many as the pool.
    fn make_buckets(&self, replicas: u8) {
        let made = |client: &Client, name: &str| {
            until("a bucket is made", || {
                let answer = client.put(&format!("/{name}"), "").send();
                answer.is(200).then_some(())
            });
        };
        made(&self.direct, BEHIND);
        made(&self.s3[0], PLAIN);
        made(&self.s3[1], BACKED);
        let desk =
            || Desk::new(ClientOptions::new(self.nodes[0].address.parse().unwrap())).unwrap();
        let settings = BackendSettings {
            timeout_ms: 1_000,
            connect_timeout_ms: 500,
            ..BackendSettings::new(&format!("http://{}", self.proxy.address), ACCESS, SECRET)
        };
        BackendRing::open(desk()).unwrap().set("far", &settings).unwrap();
        let caller = Caller::checked(0, 0);
        let options = VolumeOptions { caller, ..VolumeOptions::new("a test") };
        let prefix = THROUGH.as_bytes().to_vec();
        let through = Rule { prefix, mode: Mode::WriteThrough, replicas, ..Rule::default() };
        let backing = Backing {
            backend: "far".to_owned(),
            bucket: BEHIND.to_owned(),
            prefix: PREFIX.as_bytes().to_vec(),
            cache_bytes: CACHE,
            rules: vec![through],
            ..Backing::default()
        };
        Volume::with(desk(), options).unwrap().set_backing(BACKED, Some(&backing)).unwrap();
    }

    /// Sets faults before the object store; all that are not named are off.
    pub(crate) fn faults(&self, faults: &Faults) {
        self.proxy.put("/_faults", serde_json::to_vec(faults).unwrap()).send().expect(200);
    }

    /// Waits until every replica serves and every gateway answers.
    pub(crate) fn await_whole(&self) {
        until("every replica serves", || self.nodes[0].all_serve().then_some(()));
        for client in self.s3.iter().chain([&self.direct]) {
            until("a gateway answers", || {
                let there = client.get("/").try_send(std::time::Duration::from_secs(10));
                there.is_ok_and(|it| it.is(200)).then_some(())
            });
        }
    }

    /// Runs `millpond` with these words against the cluster.
    pub(crate) fn command(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.args(words).args(["--server", &self.nodes[0].address]).output().unwrap()
    }

    /// All processes.
    pub(crate) fn all(&mut self) -> Vec<&mut Process> {
        let own = self.managers.iter_mut().chain(&mut self.nodes).chain(&mut self.gateways);
        own.chain([&mut self.far]).collect()
    }

    /// Processes that ended by themselves, and lines of logs that only a fault of the program writes.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for process in self.all() {
            let log = process.log();
            let bad = |line: &&str| FATAL.iter().any(|word| line.contains(word));
            found.extend(log.lines().filter(bad).map(str::to_owned));
            if process.has_ended() {
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                found.push(format!("ended by itself: {tail:?}"));
            }
        }
        found
    }
}

/// Words in a log that only a fault of the program writes.
const FATAL: [&str; 4] =
    ["panicked at", "hold different bytes", "gives an impossible state", "has no good copy"];
