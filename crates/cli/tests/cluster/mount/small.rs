//! Small files: what is held is nobody's loss, and what several mounts write at once is all there.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use millpond_env::{ProcessSignal, Rng};

use super::host::{Host, left_out, signal};
use super::watch::stats;
use super::{HANG, number};
use crate::process::{Cluster, until};

/// Files that are counted.
const FILES: u64 = 40;
/// Bytes of a record of one writer.
const RECORD: usize = 61;

fn record(n: usize, turn: u8) -> [u8; RECORD] {
    let mut bytes = [turn; RECORD];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// Writes every other record of a file, from its begin or its end on, twice, and makes it longer now and then.
fn write_records(path: &Path, (of, records): (usize, usize), seed: u64) {
    let mut rng = Rng::new(seed);
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for turn in 1..=2 {
        for n in (0..records).filter(|n| n % 2 == of) {
            file.write_all_at(&record(n, turn), (n * RECORD) as u64).unwrap();
            match rng.below(12) {
                0 => file.sync_all().unwrap(),
                1 => thread::sleep(Duration::from_millis(rng.below(15))),
                2 => {
                    // As far as the file will reach at the end; what is there stays.
                    let len = file.metadata().unwrap().len();
                    let longer = len.max((n * RECORD) as u64);
                    if longer < (records * RECORD) as u64 && of == 0 && len == 0 {
                        file.set_len(longer).unwrap();
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn two_mounts_write_the_same_small_files() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for mode in ["mode=close-to-open", "mode=strict"] {
        let mounts = [1, 2].map(|n| host.mount(&format!("{}{n}", &mode[5..7]), mode));
        for round in 0..number("MILLPOND_SMALL", 6) {
            // Of these lengths some stay in the store, and others leave it at about the middle of the work.
            let records = [100, 268, 269, 500][round % 4];
            let name = format!("{}-{round}", &mode[5..7]);
            fs::write(mounts[0].join(&name), b"").unwrap();
            let paths = [0, 1].map(|n| mounts[n].join(&name));
            until("both to see it", || paths[1].exists().then_some(()));
            thread::scope(|scope| {
                for (of, path) in paths.iter().enumerate() {
                    let seed = (round * 2 + of) as u64;
                    scope.spawn(move || write_records(path, (of, records), seed));
                }
            });
            let wanted: Vec<u8> = (0..records).flat_map(|n| record(n, 2)).collect();
            for path in &paths {
                let found = fs::read(path).unwrap();
                assert_eq!(found.len(), wanted.len(), "{mode}, {records} records");
                let wrong =
                    found.chunks(RECORD).zip(wanted.chunks(RECORD)).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "{mode}, {records} records");
            }
        }
    }
}

/// One truncates, cuts to nothing and writes anew what the other one appends to. Whatever is left was written there by one of
/// them, or is a hole.
#[test]
fn one_cuts_what_the_other_one_fills() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let mounts = [host.mount("one", ""), host.mount("two", "")];
    for round in 0..number("MILLPOND_SMALL", 6) as u64 {
        let name = format!("f{round}");
        fs::write(mounts[0].join(&name), b"").unwrap();
        let paths = [0, 1].map(|n| mounts[n].join(&name));
        until("both to see it", || paths[1].exists().then_some(()));
        thread::scope(|scope| {
            scope.spawn(|| {
                let file = OpenOptions::new().write(true).open(&paths[0]).unwrap();
                for n in 0..300_u64 {
                    file.write_all_at(&[b'a'; 100], n * 100).unwrap();
                }
            });
            scope.spawn(|| {
                let mut rng = Rng::new(round);
                for _ in 0..20 {
                    let file = OpenOptions::new().write(true).open(&paths[1]).unwrap();
                    file.set_len(rng.below(20_000)).unwrap();
                    file.write_all_at(&[b'b'; 50], rng.below(20_000)).unwrap();
                    if rng.below(4) == 0 {
                        fs::write(&paths[1], [b'c'; 30]).unwrap();
                    }
                }
            });
        });
        let found = paths.each_ref().map(|path| fs::read(path).unwrap());
        assert!(found[0] == found[1], "both mounts read the same: round {round}");
        assert!(found[0].iter().all(|byte| matches!(byte, 0 | b'a'..=b'c')));
        // It is a file like any other.
        fs::write(&paths[0], b"whole").unwrap();
        assert_eq!(fs::read(&paths[1]).unwrap(), b"whole");
    }
}

#[test]
fn what_was_written_outlives_the_daemon_before_it_is_sent() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (here, there) = (host.mount("here", ""), host.mount("there", "mode=strict,ro"));
    let mut rng = Rng::new(3);
    for round in 0..number("MILLPOND_KILLS", 12) {
        let name = format!("f{round}");
        let mut file = File::create(here.join(&name)).unwrap();
        let pid = until("a daemon answers", || host.status()).0.pid;
        let first: Vec<u8> = (0..=rng.below(6000)).map(|n| n.to_le_bytes()[0]).collect();
        for part in first.chunks(1500) {
            file.write_all(part).unwrap();
        }
        // At once, while it is held, or when it is just being sent.
        thread::sleep(Duration::from_micros(rng.below(if round % 2 == 0 { 500 } else { 16_000 })));
        signal(pid, ProcessSignal::Kill);
        let mut wanted = first;
        if round % 3 == 0 {
            // Nobody does anything: the next process sends it by itself.
            until("it is sent", || {
                let len = fs::metadata(there.join(&name)).unwrap().len();
                (len == wanted.len() as u64).then_some(())
            });
        } else {
            file.write_all(b"and more").unwrap();
            wanted.extend_from_slice(b"and more");
        }
        assert_eq!(file.metadata().unwrap().len(), wanted.len() as u64);
        drop(file);
        for folder in [&here, &there] {
            assert!(fs::read(folder.join(&name)).unwrap() == wanted, "round {round}");
        }
        until("another daemon", || host.status().filter(|it| it.pid != pid).map(drop));
    }
}

#[test]
fn a_small_file_costs_its_name_and_its_bytes() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (here, there) = (host.mount("here", ""), host.mount("there", ""));
    let calls = |folder: &Path| {
        let numbers = stats(folder);
        let of = |call: &str| {
            let is_it = |name: &&String| {
                name.contains("seconds_count") && name.contains(&format!("call=\"{call}\""))
            };
            let name = numbers.keys().find(is_it).unwrap_or_else(|| panic!("{call}: {numbers:?}"));
            numbers[name]
        };
        ["change", "write", "read", "look"].map(of)
    };
    let before = calls(&here);
    for n in 0..FILES {
        let mut file = File::create(here.join(n.to_string())).unwrap();
        file.write_all(&[b'x'; 3000]).unwrap();
        file.write_all(&[b'y'; 1000]).unwrap();
    }
    let after = calls(&here);
    let [changes, writes, ..] = [0, 1, 2, 3].map(|n| after[n] - before[n]);
    println!("{FILES} files of 4,000 bytes: {changes} changes by metas, {writes} writes to chunks");
    assert_eq!(writes, 0, "no chunk is written");
    // A slow machine may let 10 ms pass between a write and the close.
    assert!((2 * FILES..=3 * FILES).contains(&changes), "{changes} changes");
    let before = calls(&there);
    for n in 0..FILES {
        assert_eq!(fs::read(there.join(n.to_string())).unwrap().len(), 4000);
    }
    let after = calls(&there);
    let [_, _, reads, looks] = [0, 1, 2, 3].map(|n| after[n] - before[n]);
    println!("{FILES} files read elsewhere: {looks} questions to metas, {reads} reads of chunks");
    assert_eq!(reads, 0, "no chunk is read");
    assert!(looks <= 2 * FILES + 8, "a name and an open each: {looks}");
    // Durable when it is answered, where that is asked for.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(libc::O_SYNC)
        .open(here.join("sync"))
        .unwrap();
    let before = calls(&here)[0];
    file.write_all_at(b"one", 0).unwrap();
    assert_eq!(calls(&here)[0], before + 1);
    let info = host.must(&["info", here.join("sync").to_str().unwrap()]);
    assert!(info.contains("inline"), "{info}");
}
