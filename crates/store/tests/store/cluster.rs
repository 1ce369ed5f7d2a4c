//! A real etcd cluster on loopback: three processes, free ports, temporary folders.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use millpond_env::Rng;
use tempfile::TempDir;

/// A cluster; its processes end with it.
pub(crate) struct Cluster {
    members: Vec<Member>,
    folder: TempDir,
    extra: Vec<String>,
}

struct Member {
    name: String,
    client: String,
    peer: String,
    process: Option<Child>,
}

/// True when the environment excludes etcd; prints a notice past libtest's capture.
pub(crate) fn left_out() -> bool {
    let told = std::env::var_os("NO_ETCD").is_some_and(|value| value == "1");
    if told {
        let _ =
            std::io::stderr().write_all(b"\nNO_ETCD=1: a test of the etcd engine was LEFT OUT\n");
    }
    told
}

/// The etcd to start: `MILLPOND_ETCD`, or built from the module pinned beside these tests.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("MILLPOND_ETCD") {
            return path.into();
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/build.sh");
        // target/debug/deps/store-…
        let exe = std::env::current_exe().unwrap();
        let target = exe.ancestors().nth(3).unwrap().join("etcd");
        let built = Command::new("bash")
            .arg(script)
            .arg(target)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("bash is there");
        assert!(
            built.status.success(),
            "no etcd to test against: install Go, or set MILLPOND_ETCD=path to an etcd 3.5 server; \
             NO_ETCD=1 leaves these tests out"
        );
        PathBuf::from(String::from_utf8(built.stdout).unwrap().trim())
    })
}

/// A port without a listener, below the kernel's range for outgoing connections: a member that is
/// started again must find its port free.
fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let first: u64 = range.split_whitespace().next().unwrap().parse().unwrap();
    let mut rng = Rng::from_os().unwrap();
    loop {
        let port = u16::try_from(2_000 + rng.below(first.max(4_000) - 2_000)).unwrap();
        let free = TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free && GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

impl Cluster {
    /// Starts `count` members and waits until they answer.
    pub(crate) async fn start(count: usize) -> Self {
        let mut cluster = Self::launch(count, "http", &[]);
        cluster.wait_ready().await;
        cluster
    }

    /// Starts processes; `extra` goes to each of them.
    pub(crate) fn launch(count: usize, scheme: &str, extra: &[String]) -> Self {
        let member = |n| Member {
            name: format!("m{n}"),
            client: format!("{scheme}://127.0.0.1:{}", free_port()),
            peer: format!("http://127.0.0.1:{}", free_port()),
            process: None,
        };
        let mut cluster = Self {
            members: (0..count).map(member).collect(),
            folder: tempfile::tempdir().unwrap(),
            extra: extra.to_vec(),
        };
        (0..count).for_each(|n| cluster.start_member(n));
        cluster
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.clone()).collect()
    }

    /// Starts a member that is not running; it finds its data if it has run before.
    pub(crate) fn start_member(&mut self, n: usize) {
        let all: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
        let member = &self.members[n];
        let log = self.folder.path().join(format!("{}.log", member.name));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let child = Command::new(binary())
            .env("MILLPOND_END_WITH_STDIN", "1")
            .args(["--name", &member.name])
            .arg("--data-dir")
            .arg(self.folder.path().join(&member.name))
            .args(["--listen-client-urls", &member.client])
            .args(["--advertise-client-urls", &member.client])
            .args(["--listen-peer-urls", &member.peer])
            .args(["--initial-advertise-peer-urls", &member.peer])
            .args(["--initial-cluster", &all.join(",")])
            .args(["--log-level", "warn"])
            .args(&self.extra)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.members[n].process = Some(child);
    }

    pub(crate) async fn wait_ready(&mut self) {
        let start = Instant::now();
        while !self.answers().await {
            // Another process may take a port for a moment.
            for n in 0..self.members.len() {
                let process = self.members[n].process.as_mut();
                if process.is_some_and(|process| process.try_wait().unwrap().is_some()) {
                    self.start_member(n);
                }
            }
            assert!(start.elapsed() < Duration::from_mins(1), "etcd is not ready\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn answers(&self) -> bool {
        for member in &self.members {
            let Ok(mut client) = connect(&member.client).await else { return false };
            if client.get("ready", None).await.is_err() {
                return false;
            }
        }
        true
    }

    /// The member that leads.
    pub(crate) async fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            for (n, member) in self.members.iter().enumerate() {
                let Ok(mut client) = connect(&member.client).await else { continue };
                let Ok(status) = client.status().await else { continue };
                let own = status.header().map(etcd_client::ResponseHeader::member_id);
                if own == Some(status.leader()) {
                    return n;
                }
            }
            assert!(start.elapsed() < Duration::from_mins(1), "no leader\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, n: usize) {
        let mut process = self.members[n].process.take().expect("the member runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops a member as if its host hung; [`Cluster::resume`] continues it.
    pub(crate) fn stop(&self, n: usize) {
        self.signal(n, "-STOP");
    }

    pub(crate) fn resume(&self, n: usize) {
        self.signal(n, "-CONT");
    }

    fn signal(&self, n: usize, signal: &str) {
        let pid = self.members[n].process.as_ref().expect("the member runs").id();
        let done = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(done.success());
    }

    fn logs(&self) -> String {
        let log = |member: &Member| {
            let path = self.folder.path().join(format!("{}.log", member.name));
            std::fs::read_to_string(path).unwrap_or_default()
        };
        self.members.iter().map(log).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A plain client of one member, independent of the engine under test.
pub(crate) async fn connect(endpoint: &str) -> Result<Client, etcd_client::Error> {
    let second = Duration::from_secs(1);
    let options = ConnectOptions::new().with_timeout(second).with_connect_timeout(second);
    Client::connect([endpoint], Some(options)).await
}
