//! A cluster of one process with a gateway.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::client::Client;

/// The credential of the configuration.
pub(crate) const ACCESS: &str = "AKIAROOTROOTROOTROOT";
pub(crate) const SECRET: &str = "correct-horse-battery-staple";
const PATIENCE: Duration = Duration::from_mins(3);
const MEMORY: [&str; 2] = ["--memory", "128MiB"];

/// Waits until every gateway has heard what was changed of buckets, backends and rules: it believes for a second what it
/// knows, and nothing shows from outside that it asked again.
pub(crate) fn heard() {
    std::thread::sleep(Duration::from_millis(1_200));
}

/// A server; killed when dropped.
pub(crate) struct Server {
    child: Option<Child>,
    /// Where clients of the cluster reach it.
    pub(crate) address: String,
    /// Where S3 clients reach it.
    pub(crate) s3: String,
    /// Where its metrics are.
    pub(crate) http: String,
    folder: tempfile::TempDir,
    flags: Vec<String>,
}

impl Server {
    /// Starts one with the credential of the configuration.
    pub(crate) fn start() -> Self {
        Self::with(&["--s3-access-key", ACCESS, "--s3-secret-key", SECRET])
    }

    /// Starts one with more flags, and waits until its gateway has the volume.
    pub(crate) fn with(flags: &[&str]) -> Self {
        Self::alone("1GiB", flags)
    }

    /// Starts one with a disk of another size.
    pub(crate) fn sized(size: &str) -> Self {
        Self::alone(size, &["--s3-access-key", ACCESS, "--s3-secret-key", SECRET])
    }

    fn alone(size: &str, flags: &[&str]) -> Self {
        let all = ["--manager", "--form-nodes", "1", "--http", "127.0.0.1:0", "--size", size];
        Self::run(&[&all[..], &MEMORY, flags].concat())
    }

    /// Starts one that is given no more than its sizes: it founds its own cluster.
    pub(crate) fn plain(flags: &[&str]) -> Self {
        let key = ["--s3-access-key", ACCESS, "--s3-secret-key", SECRET];
        let all = ["--http", "127.0.0.1:0", "--size", "1GiB"];
        Self::run(&[&all[..], &MEMORY, &key, flags].concat())
    }

    /// Starts one at an address that it has for good, so that it can die and start again.
    pub(crate) fn lasting() -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap().to_string();
        drop(free);
        Self::with(&["--s3-access-key", ACCESS, "--s3-secret-key", SECRET, "--listen", &listen])
    }

    /// Ends it in the midst of what it does, and starts it again with what it has on disk.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        self.launch();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// One more node of this one's cluster, on a disk of its own.
    pub(crate) fn node(&self) -> Self {
        let own = ["--join", &self.address, "--http", "", "--socket", "", "--size", "1GiB"];
        Self::run(&[&own[..], &MEMORY].concat())
    }

    /// A process that is only a gateway of this one's cluster.
    pub(crate) fn gateway(&self) -> Self {
        self.gateway_with(&[])
    }

    /// The same with more flags.
    pub(crate) fn gateway_with(&self, flags: &[&str]) -> Self {
        let own = ["--no-storage", "--join", &self.address, "--http", "", "--socket", ""];
        Self::run(&[&own[..], &MEMORY, flags].concat())
    }

    /// The same with the credential of the configuration, and with the memory that it has without an option.
    pub(crate) fn plain_gateway(&self) -> Self {
        let own = ["--no-storage", "--join", &self.address, "--http", "", "--socket", ""];
        let key = ["--s3-access-key", ACCESS, "--s3-secret-key", SECRET];
        Self::run(&[&own[..], &key].concat())
    }

    /// The sum of the metrics whose lines begin so.
    pub(crate) fn metric(&self, begin: &str) -> u64 {
        let page = Client::new(&self.http, ACCESS, SECRET).get("/metrics").send().expect(200);
        let text = page.text();
        let lines = text.lines().filter(|line| line.starts_with(begin));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// The most memory that the process ever had, in bytes.
    pub(crate) fn memory_max(&self) -> u64 {
        let id = self.child.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn run(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut flags: Vec<String> = flags.iter().map(|&it| it.to_owned()).collect();
        if !flags.iter().any(|it| it == "--listen") {
            flags.extend(["--listen", "127.0.0.1:0"].map(str::to_owned));
        }
        let (address, s3, http) = (String::new(), String::new(), String::new());
        let mut server = Self { child: None, address, s3, http, folder, flags };
        server.launch();
        server
    }

    fn launch(&mut self) {
        let log = self.folder.path().join("log");
        let log = std::fs::File::options().append(true).create(true).open(log).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["server", "--cores", "1"])
            .args(["--s3", "127.0.0.1:0", "--log-level", "info,millpond=debug", "--data"])
            .arg(self.folder.path().join("data"))
            .args(&self.flags)
            .env_remove("MILLPOND_S3_ACCESS_KEY")
            .env_remove("MILLPOND_S3_SECRET_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut is_ready = false;
        let out = child.stdout.take().unwrap();
        self.child = Some(child);
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let mut words = line.split_whitespace();
            let to = match words.next() {
                Some("clients") => &mut self.address,
                Some("s3") => &mut self.s3,
                Some("metrics") => &mut self.http,
                Some("READY") => {
                    is_ready = true;
                    break;
                }
                _ => continue,
            };
            let word = words.next().unwrap_or_default().trim_end_matches(',');
            let word = word.split_once("://").map_or(word, |(_, rest)| rest);
            word.trim_end_matches("/metrics").clone_into(to);
        }
        assert!(is_ready, "the server did not start:\n{}", self.log());
    }

    /// A client with the credential of the configuration, once the volume can be used.
    pub(crate) fn client(&self) -> Client {
        let client = Client::new(&self.s3, ACCESS, SECRET);
        until("the volume is open", || client.put("/ready", "").send().is(200).then_some(()));
        until("chains are made", || client.put("/ready/k", "v").send().is(200).then_some(()));
        client.delete("/ready/k").send().expect(204);
        client.delete("/ready").send().expect(204);
        client
    }

    /// Runs `millpond` with these words against this server.
    pub(crate) fn command(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.args(words).args(["--server", &self.address]).output().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(4_000);
            eprintln!("{}", log.get(from..).unwrap_or_default());
        }
    }
}

/// Waits for something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
