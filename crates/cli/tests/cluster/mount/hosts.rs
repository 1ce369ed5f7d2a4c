//! Two hosts with networks of their own mount a cluster of `millpond dev --netns`; one of them is cut off.
//! Where no networks can be made (not root, or no iproute2) these tests are left out, and say so.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::HANG;
use super::host::{Host, left_out};
use crate::two_mounts::sees_changes_soon;

/// How long the network of a host is away: longer than a mount believes what it was told.
const AWAY: Duration = Duration::from_secs(4);

/// A cluster whose members are hosts with a network each; ended when dropped.
struct Hosts {
    folder: tempfile::TempDir,
    state: serde_json::Value,
}

impl Hosts {
    /// Three nodes with two replicas; none where this machine lets nobody make networks.
    fn up() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut hosts = Self { folder, state: serde_json::Value::Null };
        if let Err(said) = hosts.dev(&["up", "--nodes", "3", "--replicas", "2", "--netns"]) {
            let known = said.contains("needs root") || said.contains("Operation not permitted");
            assert!(known || said.contains("install iproute2"), "{said}");
            eprintln!("left out, because no network namespaces can be made: {said}");
            return None;
        }
        let state = fs::read(hosts.folder.path().join("dev.json")).unwrap();
        hosts.state = serde_json::from_slice(&state).unwrap();
        Some(hosts)
    }

    /// Runs `millpond dev`; its complaint, if it has one.
    fn dev(&self, words: &[&str]) -> Result<(), String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.args(["dev", "--dir"]).arg(self.folder.path()).args(words).stdin(Stdio::null());
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(said) }
    }

    /// Mounts from the host of a node.
    fn host(&self, node: &str) -> Host {
        let members = self.state["members"].as_array().unwrap();
        let address =
            |it: &serde_json::Value| format!("{}:{}", it["ip"].as_str().unwrap(), it["port"]);
        let addresses: Vec<String> = members.iter().map(address).collect();
        let tag = self.state["network"]["tag"].as_str().unwrap();
        Host::at(self.folder.path(), addresses.join(","), HANG).within(format!("{tag}{node}"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = self.dev(&["heal"]);
        if let Err(said) = self.dev(&["down"]) {
            eprintln!("{said}");
        }
    }
}

#[test]
fn changes_of_another_host_are_seen_within_50_ms() {
    if left_out() {
        return;
    }
    let Some(hosts) = Hosts::up() else { return };
    let (one, two) = (hosts.host("n2"), hosts.host("n3"));
    for options in ["mode=strict", "mode=close-to-open"] {
        let name = options.replace('=', "-");
        let (here, there) = (one.mount(&name, options), two.mount(&name, options));
        sees_changes_soon(options, &here, &there);
        // Each host has a daemon, and it is where the host is.
        assert_ne!(one.status().unwrap().pid, two.status().unwrap().pid);
        one.umount(&here);
        two.umount(&there);
    }
}

/// A host that is cut off shows nothing old, loses nothing, and goes on when its network is back.
#[test]
fn a_host_that_is_cut_off_waits_and_goes_on() {
    if left_out() {
        return;
    }
    let Some(hosts) = Hosts::up() else { return };
    let (one, two) = (hosts.host("n2"), hosts.host("n3"));
    let (here, there) = (one.mount("files", ""), two.mount("files", ""));
    fs::write(here.join("kept"), "before").unwrap();
    assert_eq!(fs::read(there.join("kept")).unwrap(), b"before", "it is kept now");

    hosts.dev(&["partition", "n3"]).unwrap();
    let cut = Instant::now();
    fs::write(here.join("kept"), "after!").unwrap();
    fs::rename(here.join("kept"), here.join("moved")).unwrap();
    thread::scope(|scope| {
        let asks = |name: &'static str| {
            let path = there.join(name);
            scope.spawn(move || (fs::read(&path).map_err(|error| error.kind()), Instant::now()))
        };
        let written =
            scope.spawn(|| write_durably(&there.join("written"), b"while it was cut off"));
        thread::sleep(AWAY);
        let (moved, kept) = (asks("moved"), asks("kept"));
        thread::sleep(Duration::from_secs(1));
        let healed = Instant::now();
        hosts.dev(&["heal"]).unwrap();
        let (moved, seen) = moved.join().unwrap();
        assert_eq!(moved.unwrap(), b"after!");
        assert!(seen > healed, "nobody could tell the host before");
        let (kept, seen) = kept.join().unwrap();
        assert_eq!(kept, Err(std::io::ErrorKind::NotFound), "the old name was believed");
        assert!(seen > healed, "nobody could tell the host before");
        written.join().unwrap();
    });
    println!("a host was away for {:?}", cut.elapsed());
    assert_eq!(fs::read(here.join("written")).unwrap(), b"while it was cut off");
}

/// Writes a file and waits until it is durable.
fn write_durably(path: &Path, bytes: &[u8]) {
    let file = fs::File::create_new(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    file.sync_all().unwrap();
}
