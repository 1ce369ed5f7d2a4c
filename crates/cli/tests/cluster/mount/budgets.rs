//! What a mount may use: it keeps to that, shows it, and does not forget it with its process.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::HANG;
use super::host::{Host, left_out};
use super::watch::stats;
use crate::process::Cluster;

const MIB: usize = 1 << 20;

/// Writes files of some MiB in parallel; how long that took.
fn write(folder: &Path, name: &str, mib: usize) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        for n in 0..4 {
            let path = folder.join(format!("{name}{n}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                for _ in 0..mib / 4 {
                    file.write_all(&vec![3; MIB]).unwrap();
                }
            });
        }
    });
    start.elapsed()
}

fn read(folder: &Path, name: &str) -> Duration {
    let start = Instant::now();
    for n in 0..4 {
        let mut bytes = Vec::new();
        File::open(folder.join(format!("{name}{n}"))).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 3));
    }
    start.elapsed()
}

/// `mib` took `took`, at 8 MiB a second: not faster than that, and not much slower.
fn kept(what: &str, mib: usize, took: Duration) {
    let wanted = Duration::from_secs_f64(f64::from(u32::try_from(mib).unwrap()) / 8.0);
    println!("{what}: {mib} MiB at 8 MiB/s took {took:?}");
    assert!(took >= wanted.mul_f64(0.85), "{what}: faster than its bandwidth, {took:?}");
    assert!(took <= wanted.mul_f64(1.2), "{what}: slower than its bandwidth, {took:?}");
}

#[test]
fn a_mount_keeps_to_its_bandwidth_and_others_do_not_notice() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let free = host.mount("free", "");
    let alone = write(&free, "alone", 24);
    let slow = host.mount("slow", "bandwidth=8MiB");
    let (mut limited, mut other) = (Duration::ZERO, Duration::ZERO);
    thread::scope(|scope| {
        let limits = scope.spawn(|| write(&slow, "file", 24));
        other = write(&free, "other", 24);
        limited = limits.join().unwrap();
    });
    kept("writes", 24, limited);
    println!("24 MiB of another mount took {other:?}, and {alone:?} before");
    assert!(other < limited && other < alone * 3, "{other:?} after {alone:?}");
    let now = stats(&slow);
    assert_eq!(now["bandwidth_limit_bytes"], 8 << 20);
    assert!(now["throttled_microseconds_total"] > 0 && now["throttled_requests"] == 0);
    assert_eq!(stats(&free)["throttled_microseconds_total"], 0);

    // The next process knows, and so do those who list mounts.
    host.kill_daemon();
    let files = |n| slow.join(format!("file{n}"));
    assert_eq!(fs::metadata(files(0)).unwrap().len(), 6 << 20);
    kept("reads", 24, {
        let reader = host.mount("reader", "read_bandwidth=8MiB/s");
        read(&reader, "file")
    });
    host.must(&["mounts", "upgrade"]);
    kept("writes after a kill and an upgrade", 16, write(&slow, "again", 16));
    let listed = host.listed();
    let of = |target: &Path| listed.iter().find(|it| it.mountpoint == target).unwrap();
    assert_eq!((of(&slow).bandwidth, of(&free).bandwidth), (8 << 20, 0));
    assert_eq!((of(&slow).memory, of(&slow).read_bandwidth), (256 << 20, 0));
    let shown = host.must(&["mounts"]);
    assert!(shown.contains("8 MiB/s") && shown.contains("r 8 MiB/s"), "{shown}");
}

#[test]
fn a_mount_keeps_to_its_memory() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("small", "memory=8MiB,threads=8");
    let _ = write(&target, "file", 16);
    let mut most = 0;
    for n in 0..4 {
        let mut file = File::open(target.join(format!("file{n}"))).unwrap();
        let mut buf = vec![0; MIB];
        while file.read(&mut buf).unwrap() > 0 {
            most = most.max(stats(&target)["memory_bytes"]);
        }
    }
    println!("at most {most} bytes");
    assert!((1 << 20..=8 << 20).contains(&most), "{most}");
    assert_eq!(stats(&target)["memory_limit_bytes"], 8 << 20);
}
