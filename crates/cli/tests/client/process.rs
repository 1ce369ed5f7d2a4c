//! A server process that can be killed, stopped for a while and started again at its address.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use millpond_client::{Client, ClientOptions, Transport};

pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) folder: PathBuf,
    pub(crate) address: String,
    flags: Vec<String>,
}

impl Server {
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let flags = more.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = Self { child: None, folder: folder.to_owned(), address, flags };
        server.start_again();
        server
    }

    pub(crate) fn start_again(&mut self) {
        let path = self.folder.join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["server", "--size", "1GiB", "--memory", "256MiB", "--cores", "2"])
            .args(["--listen", &self.address, "--http", "127.0.0.1:0"])
            .args(["--data", &self.folder.join("data").display().to_string()])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line == "READY");
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap();
        assert!(ready, "the server did not start:\n{log}");
        self.child = Some(child);
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
        assert!(sent.success());
        // A thread that runs on another core stops a moment after the signal was sent.
        while name == "STOP" && !all_threads_stopped(&id) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn options(&self, transport: Transport) -> ClientOptions {
        let mut options = ClientOptions::new(self.address.parse().unwrap());
        options.transport = transport;
        options.deadline = std::time::Duration::from_secs(20);
        options
    }

    pub(crate) fn client(&self, transport: Transport) -> Client {
        Client::new(self.options(transport)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether every thread of the process is in state `T` (proc(5)).
fn all_threads_stopped(id: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    tasks.flatten().all(|task| {
        std::fs::read_to_string(task.path().join("stat"))
            .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    })
}
