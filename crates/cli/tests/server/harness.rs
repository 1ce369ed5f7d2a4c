//! Starting, stopping and watching server processes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The binary under test.
pub(crate) const MILLPOND: &str = env!("CARGO_BIN_EXE_millpond");

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// A running server; killed when dropped.
pub(crate) struct TestServer {
    child: Child,
    pub(crate) clients: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) socket: PathBuf,
    pub(crate) banner: String,
    log: PathBuf,
}

/// Flags of a small server with its data in `folder`, on free ports.
pub(crate) fn flags(folder: &Path) -> Vec<String> {
    let data = folder.join("data").display().to_string();
    let flags = [
        "server",
        "--data",
        &data,
        "--size",
        "2GiB",
        "--memory",
        "128MiB",
        "--cores",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

impl TestServer {
    /// Starts a small server with `more` flags.
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(MILLPOND);
        command.args(flags(folder)).args(more);
        Self::spawn(command, folder)
    }

    /// Starts a server with a command of the caller's.
    pub(crate) fn spawn(mut command: Command, folder: &Path) -> Self {
        let log = folder.join("server.log");
        let errors = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut banner = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).unwrap() == 0 {
                let _ = child.wait();
                panic!("no READY; the log says:\n{}", std::fs::read_to_string(&log).unwrap());
            }
            if line == "READY\n" {
                break;
            }
            banner.push_str(&line);
        }
        let after = |word: &str| {
            let line = banner.lines().find(|line| line.trim_start().starts_with(word));
            line.map(|line| line.trim_start()[word.len()..].trim().to_owned()).unwrap_or_default()
        };
        let first = |text: String| text.split([',', ' ']).next().unwrap_or_default().to_owned();
        let http = after("metrics").replace("http://", "").replace("/metrics", "");
        Self {
            clients: first(after("clients")).parse().unwrap(),
            http: http.parse().unwrap(),
            socket: PathBuf::from(after("socket")),
            child,
            log,
            banner,
        }
    }

    /// What the server logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and waits for a clean end.
    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        let status = wait(&mut self.child);
        assert_eq!(status, Some(0), "{}", self.log());
    }

    /// Sends a signal, while others still look at the server.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let done = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
        assert!(done.success());
    }

    /// Whether the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Bytes of memory that the process has, shared ones included; not the pages of its program, which are the page cache's.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
        };
        of("RssAnon:") + of("RssShmem:")
    }

    /// The body and status of an HTTP page.
    pub(crate) fn page(&self, path: &str) -> (u16, String) {
        self.page_as(path, "")
    }

    /// The same with more lines of a head, each with its end.
    pub(crate) fn page_as(&self, path: &str, head: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{head}\r\n");
        stream.write_all(lines.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The value of a metric without labels, or with exactly these.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (status, body) = self.page("/metrics");
        assert_eq!(status, 200);
        let line = body.lines().find(|line| line.split(' ').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no metric {name}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the server's log ---\n{}", self.log());
        }
    }
}

/// Waits for a process; its exit code.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < end, "the process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command that must fail with code 1; what it said on standard error.
pub(crate) fn fails(command: &mut Command) -> String {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = wait(&mut child);
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status, Some(1), "{text}");
    text
}

/// Waits until `done` says so.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
