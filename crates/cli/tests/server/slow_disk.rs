//! Disks that are slower than their writers, and disks that do not answer.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millpond_types::NamespaceOptions;
use millpond_types::wire::{ItemStatus, Verb};

use super::harness::{MILLPOND, TestServer, flags, until};
use super::wire::{Wire, key, put_request};

fn start(folder: &Path, bytes_per_second: u32, stop: &str, more: &[&str]) -> TestServer {
    let config = folder.join("config.toml");
    std::fs::write(&config, format!("[limits]\nstop = \"{stop}\"\n")).unwrap();
    let mut command = Command::new(MILLPOND);
    command.args(flags(folder)).args(["--config", &config.display().to_string()]).args(more);
    command.env("MILLPOND_TEST_DISK_BYTES_PER_SECOND", bytes_per_second.to_string());
    TestServer::spawn(command, folder)
}

/// Small values, whose pages fill memory long before their bytes do, from more writers than the disk follows.
#[test]
fn memory_full_of_small_values_leaves_what_making_room_needs() {
    const WRITERS: usize = 32;
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), 4 << 20, "60s", &["--size", "1GiB", "--cores", "1"]);
    let ns = Wire::connect(&server).open("small", NamespaceOptions::default()).id;
    let done = AtomicBool::new(false);
    let value = vec![7; 4096];
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (server, done, value) = (&server, &done, &value);
            scope.spawn(move || {
                let mut wire = Wire::connect(server);
                for batch in 0.. {
                    let len = [1, 300, 1000, 4096][(batch + writer) % 4];
                    let name = |n: usize| key(format!("{writer} {batch} {n}"));
                    let values: Vec<_> = (0..1024).map(|n| (name(n), &value[..len])).collect();
                    let (meta, payload) = put_request(ns, &values);
                    if done.load(Ordering::Relaxed)
                        || wire.call(Verb::Put, &meta, &payload).is_err()
                    {
                        return;
                    }
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(15);
        while Instant::now() < end {
            let began = Instant::now();
            Wire::connect(&server).call(Verb::Ping, &[], &[]).unwrap().ok();
            assert!(began.elapsed() < Duration::from_secs(10), "a new client waits too long");
            std::thread::sleep(Duration::from_millis(200));
        }
        let before = server.metric("millpond_namespace_stored_total{namespace=\"small\"}");
        until("values are still stored", || {
            server.metric("millpond_namespace_stored_total{namespace=\"small\"}") > before + 10_000
        });
        done.store(true, Ordering::Relaxed);
    });
    let mut wire = Wire::connect(&server);
    until("a value is taken", || wire.put(ns, &[(key("last"), b"1")])[0] != ItemStatus::Busy);
    assert_eq!(server.page("/readyz").0, 200);
    server.stop();
}
