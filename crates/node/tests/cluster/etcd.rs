//! Three managers over a real etcd: one is primary, another one follows it.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Chains as _, PATIENCE, Process, until};

/// One member is enough here: the store's own tests break larger ones.
struct Etcd {
    child: Child,
    client: String,
    _folder: tempfile::TempDir,
}

fn left_out() -> bool {
    let told = std::env::var_os("NO_ETCD").is_some_and(|value| value == "1");
    if told {
        let text = b"\nNO_ETCD=1: a test of managers over etcd was LEFT OUT\n";
        let _ = std::io::stderr().write_all(text);
    }
    told
}

/// `MILLPOND_ETCD`, or built from the module pinned beside the store's tests.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("MILLPOND_ETCD") {
        return path.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/etcd/build.sh");
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap().join("etcd");
    let built = Command::new("bash").arg(script).arg(target).stdin(Stdio::null()).output().unwrap();
    assert!(
        built.status.success(),
        "no etcd: install Go, or set MILLPOND_ETCD=path; NO_ETCD=1 leaves this out\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    PathBuf::from(String::from_utf8(built.stdout).unwrap().trim())
}

impl Etcd {
    fn start() -> Self {
        let binary = binary();
        let started = Instant::now();
        loop {
            let folder = tempfile::tempdir().unwrap();
            let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let (client, peer) = (format!("127.0.0.1:{}", port()), format!("127.0.0.1:{}", port()));
            let (at, peers) = (format!("http://{client}"), format!("http://{peer}"));
            let child = Command::new(&binary)
                .env("MILLPOND_END_WITH_STDIN", "1")
                .args(["--name", "m", "--log-level", "error", "--data-dir"])
                .arg(folder.path().join("data"))
                .args(["--listen-client-urls", &at, "--advertise-client-urls", &at])
                .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
                .args(["--initial-cluster", &format!("m={peers}")])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut etcd = Self { child, client, _folder: folder };
            let up = |etcd: &mut Self| std::net::TcpStream::connect(&etcd.client).is_ok();
            while etcd.child.try_wait().unwrap().is_none() {
                if up(&mut etcd) {
                    return etcd;
                }
                assert!(started.elapsed() < PATIENCE, "etcd does not start");
                std::thread::sleep(Duration::from_millis(20));
            }
            // Somebody else took one of the ports meanwhile.
            assert!(started.elapsed() < PATIENCE, "etcd does not start");
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The manager that is primary, by what nodes are told.
fn primary(node: &Process, managers: &[Process]) -> Option<usize> {
    let status = node.status()?;
    managers.iter().position(|manager| status.primary.contains(&manager.address))
}

#[test]
fn another_manager_follows_a_primary_that_was_killed_frozen_or_stopped() {
    if left_out() {
        return;
    }
    let etcd = Etcd::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd://{}/test", etcd.client);
    let flags = ["--manager", "--no-storage", "--store", &store, "--form-nodes", "2"];
    let mut managers: Vec<Process> =
        (0..3).map(|n| Process::start(folder.path(), &format!("manager{n}"), &flags)).collect();
    let all: Vec<&str> = managers.iter().map(|manager| manager.address.as_str()).collect();
    let all = all.join(",");
    let nodes: Vec<Process> = (0..2)
        .map(|n| Process::start(folder.path(), &format!("node{n}"), &["--join", &all]))
        .collect();
    until("chains", || nodes[0].status().filter(|status| status.chains() > 0));
    let made = nodes[0].wire().open("kept", 1).unwrap();
    let mut term = nodes[0].status().unwrap().term;

    for how in ["KILL", "STOP", "TERM"] {
        let first = until("a primary", || primary(&nodes[0], &managers)).0;
        let started = Instant::now();
        match how {
            "KILL" => managers[first].kill(),
            "TERM" => drop(managers[first].stop()),
            _ => managers[first].signal(how),
        }
        let next = until("another primary", || {
            let status = nodes[1].status().filter(|status| status.term > term)?;
            term = status.term;
            primary(&nodes[1], &managers)
        });
        let took = started.elapsed();
        eprintln!("SIG{how}: a new primary answered after {took:?}");
        assert_ne!(next.0, first);
        let limit = if how == "TERM" { 2 } else { 7 };
        assert!(took < Duration::from_secs(limit), "SIG{how}: {took:?}");
        until("all nodes are heard", || {
            let status = nodes[0].status()?;
            let mut ours = status.nodes.iter().filter(|node| {
                nodes.iter().any(|process| node.addresses.contains(&process.address))
            });
            ours.all(|node| node.alive).then_some(())
        });
        assert_eq!(nodes[1].wire().open("kept", 1).unwrap(), made);
        match how {
            "STOP" => managers[first].signal("CONT"),
            _ => managers[first].run(),
        }
    }
    // The one that was frozen stands by, and did not act on what it believed.
    let status = until("status", || nodes[0].status()).0;
    assert_eq!(status.term, term);
    assert!(managers.iter_mut().all(|manager| !manager.has_ended()));
}
