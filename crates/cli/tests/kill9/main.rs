//! `kill -9` at random moments during load: no acknowledged durable value is lost, no byte is wrong.

#![allow(
    clippy::disallowed_methods,
    reason = "tests talk to the server from outside, over plain sockets and files"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "../server/harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real servers")]
mod harness;
#[path = "../server/wire.rs"]
#[allow(dead_code, reason = "shared with the other tests of real servers")]
mod wire;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond_types::wire::{ItemStatus, StatusReply, Verb};
use millpond_types::{BlockKey, GroupId};

use harness::{PATIENCE, TestServer};
use wire::{Wire, bytes, hello, key, put_request};

/// Rounds; `MILLPOND_KILLS=200` for the long run (`make kill9`).
fn rounds() -> u64 {
    std::env::var("MILLPOND_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10)
}

fn name(number: u64) -> BlockKey {
    key(format!("block {number}"))
}

fn value(number: u64) -> Vec<u8> {
    let sizes = [100, 4096, 5000, 70_000, 300_000];
    bytes(number + 1, sizes[usize::try_from(number).unwrap() % sizes.len()])
}

/// Connects to a server that may be dying.
fn connect(server: &TestServer) -> std::io::Result<Wire> {
    let stream = std::net::TcpStream::connect(server.clients)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut wire = Wire::over(Box::new(stream));
    wire.call(Verb::Hello, &hello(b""), &[])?;
    Ok(wire)
}

/// Puts until the server dies; notes each number whose put was acknowledged, and some deletes.
fn load(
    server: &TestServer,
    ns: GroupId,
    next: &AtomicU64,
    acknowledged: &Mutex<BTreeMap<u64, bool>>,
    stop: &AtomicBool,
) {
    let Ok(mut wire) = connect(server) else { return };
    while !stop.load(Ordering::Relaxed) {
        let numbers: Vec<u64> = (0..4).map(|_| next.fetch_add(1, Ordering::Relaxed)).collect();
        let all: Vec<_> = numbers.iter().map(|n| (name(*n), value(*n))).collect();
        let pairs: Vec<_> = all.iter().map(|(k, v)| (*k, &v[..])).collect();
        let (meta, payload) = put_request(ns, &pairs);
        let Ok(reply) = wire.call(Verb::Put, &meta, &payload) else { return };
        let items = StatusReply::decode(&reply.meta).unwrap().items;
        let mut log = acknowledged.lock().unwrap();
        for (number, status) in numbers.iter().zip(items) {
            if status == ItemStatus::Ok {
                log.insert(*number, true);
            }
        }
    }
}

fn verify(wire: &mut Wire, ns: GroupId, acknowledged: &BTreeMap<u64, bool>, upto: u64) {
    for start in (0..upto).step_by(32) {
        let numbers: Vec<u64> = (start..upto.min(start + 32)).collect();
        let keys: Vec<_> = numbers.iter().map(|n| name(*n)).collect();
        for (number, got) in numbers.iter().zip(wire.get(ns, &keys)) {
            match got {
                Some(got) => assert!(got == value(*number), "wrong bytes in block {number}"),
                None => assert!(!acknowledged.contains_key(number), "block {number} is lost"),
            }
        }
    }
}

#[test]
fn killed_servers_lose_no_acknowledged_value() {
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = Mutex::new(BTreeMap::new());
    let next = AtomicU64::new(0);
    let flags = ["--size", "3GiB", "--memory", "256MiB"];
    let mut server = TestServer::start(folder.path(), &flags);
    // Not evicted: what is missing was lost. The data of a round is dropped before disks fill.
    let options = millpond_types::NamespaceOptions {
        ack: millpond_types::Ack::Disk,
        evict: false,
        ..millpond_types::NamespaceOptions::default()
    };
    let ns = Wire::connect(&server).open("kept", options).id;
    let mut random = bytes(0x5eed, 4096).into_iter().cycle();
    let started = Instant::now();
    for round in 0..rounds() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| load(&server, ns, &next, &acknowledged, &stop));
            }
            let pause = 20 + 2 * u64::from(random.next().unwrap_or(0));
            std::thread::sleep(Duration::from_millis(pause));
            server.signal("KILL");
            stop.store(true, Ordering::Relaxed);
        });
        server = TestServer::start(folder.path(), &flags);
        let mut wire = Wire::connect(&server);
        let upto = next.load(Ordering::Relaxed);
        let log = acknowledged.lock().unwrap();
        verify(&mut wire, ns, &log, upto);
        println!("round {round}: {} acknowledged, {:?}", log.len(), started.elapsed());
        if log.len() > 10_000 {
            drop(log);
            let keys: Vec<_> = (0..upto).map(name).collect();
            keys.chunks(1000).for_each(|keys| drop(wire.keys(Verb::Delete, ns, keys)));
            acknowledged.lock().unwrap().clear();
        }
    }
    server.stop();
}
