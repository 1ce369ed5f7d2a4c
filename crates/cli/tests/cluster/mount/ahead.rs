//! What a mount reads ahead by itself: that it does, where it helps, and that nobody reads old bytes for it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use millpond_env::Rng;

use super::HANG;
use super::host::{Host, left_out};
use super::watch::stats;
use crate::process::Cluster;

const BLOCK: usize = 128 << 10;
const SIZE: usize = 24 << 20;

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

/// Reads these places and compares; bytes that were read, fetched ahead, and used of those.
fn reads(target: &Path, content: &[u8], places: impl Iterator<Item = (usize, usize)>) -> [u64; 3] {
    let file = direct(&target.join("file"));
    let before = stats(target);
    let mut total = 0;
    for (offset, len) in places {
        let mut buf = vec![0; len];
        file.read_exact_at(&mut buf, offset as u64).unwrap();
        assert!(buf == content[offset..offset + len], "{len} bytes at {offset} are wrong");
        total += len as u64;
    }
    let after = stats(target);
    let grown = |name: &str| after[name] - before[name];
    [total, grown("ahead_fetched_bytes_total"), grown("ahead_used_bytes_total")]
}

#[test]
fn what_will_be_read_is_fetched_before() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(1, SIZE);
    let target = host.mount("ahead", "");
    fs::write(target.join("file"), &content).unwrap();

    let blocks = SIZE / BLOCK;
    let [total, fetched, used] = reads(&target, &content, (0..blocks).map(|n| (n * BLOCK, BLOCK)));
    println!("in order: {used} of {total} bytes were there, {fetched} were fetched");
    assert!(used * 10 >= total * 9 && fetched <= total, "{used} {fetched} of {total}");
    let backwards = (0..blocks).rev().map(|n| (n * BLOCK, BLOCK));
    let [total, fetched, used] = reads(&target, &content, backwards);
    println!("backwards: {used} of {total} bytes were there, {fetched} were fetched");
    assert!(used * 10 >= total * 8, "{used} of {total}");
    let strides = (0..48).map(|n| (n << 19, 16 << 10));
    let [total, fetched, used] = reads(&target, &content, strides);
    println!("strides: {used} of {total} bytes were there, {fetched} were fetched");
    assert!(used * 10 >= total * 7 && fetched <= total, "{used} {fetched} of {total}");
    let mut rng = Rng::new(7);
    let mut random_pages = |of: usize, count: usize| -> Vec<(usize, usize)> {
        (0..count).map(|_| (rng.index(of >> 12) << 12, 4096)).collect()
    };
    let held = |name: &str| stats(&target)[name];
    let before = held("again_fetched_bytes_total");
    let [total, fetched, _] = reads(&target, &content, random_pages(SIZE, 300).into_iter());
    println!("at random: {total} bytes were read, {fetched} were fetched");
    assert!(fetched * 10 <= total, "{fetched} of {total}");
    let again = held("again_fetched_bytes_total") - before;
    assert!(again <= 4 * total, "few places were read three times: {again}");
    // Pages of some places, which are fetched once each and then read from memory.
    let part = 2 << 20;
    let before = [held("again_fetched_bytes_total"), held("again_read_bytes_total")];
    let [total, ..] = reads(&target, &content, random_pages(part, 1000).into_iter());
    let fetched = held("again_fetched_bytes_total") - before[0];
    let read = held("again_read_bytes_total") - before[1];
    println!("again and again: {read} of {total} bytes were there, {fetched} were fetched");
    assert!(read * 10 >= total * 7 && fetched <= 2 * part as u64, "{read} {fetched} of {total}");

    // What the kernel reads ahead by itself needs no help.
    let before = stats(&target);
    let _ = fs::read(target.join("file")).unwrap();
    assert_eq!(stats(&target)["ahead_fetched_bytes_total"], before["ahead_fetched_bytes_total"]);
    for options in ["noread_ahead", "mode=strict"] {
        let other = host.mount(&options.replace('=', "-"), options);
        let in_order = (0..blocks).map(|n| (n * BLOCK, BLOCK));
        let [_, fetched, used] = reads(&other, &content, in_order);
        assert_eq!((fetched, used), (0, 0), "{options}");
        let one_place = (0..64).map(|n| ((n % 8) << 12, 4096));
        let _ = reads(&other, &content, one_place);
        assert_eq!(stats(&other)["again_fetched_bytes_total"], 0, "{options}");
    }
    // The numbers add up, and memory is given back with the last close.
    let now = stats(&target);
    let (fetched, used) = (now["ahead_fetched_bytes_total"], now["ahead_used_bytes_total"]);
    assert!(used <= fetched && now["ahead_wasted_bytes_total"] <= fetched - used, "{now:?}");
    assert!(now["memory_bytes"] <= now["memory_limit_bytes"], "{now:?}");
}

/// A random piece of the file, within what is there.
fn piece(rng: &mut Rng, len: usize) -> (usize, usize) {
    let below = |rng: &mut Rng, end: usize| usize::try_from(rng.next_u64() % end as u64).unwrap();
    let offset = below(rng, len.max(1));
    (offset, below(rng, 300_000).min(len - offset))
}

/// Reads small pieces of few places, which are held, while the file is written and cut through the same mount, by
/// two at once: each of them must see its own last write.
#[test]
fn nothing_older_than_the_last_write_is_held() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for (seed, options) in [(1_u64, ""), (2, "mode=relaxed"), (3, "mode=one-writer")] {
        let target = host.mount(&format!("held{seed}"), options);
        let path = target.join("file");
        let size = 512 << 10;
        fs::write(&path, random(seed, size)).unwrap();
        std::thread::scope(|scope| {
            // Each has every other page of all places.
            for half in 0..2 {
                let path = &path;
                scope.spawn(move || {
                    let mut rng = Rng::new(10 * seed + half as u64);
                    let mut model = random(seed, size);
                    let (reader, writer) =
                        (direct(path), OpenOptions::new().write(true).open(path).unwrap());
                    for step in 0..2_000 {
                        let at = (2 * rng.index(size >> 13) + half) << 12;
                        if rng.chance(1, 8) {
                            let bytes = random(rng.next_u64(), 4096);
                            writer.write_all_at(&bytes, at as u64).unwrap();
                            model[at..at + 4096].copy_from_slice(&bytes);
                        }
                        let mut buf = vec![0; 4096];
                        reader.read_exact_at(&mut buf, at as u64).unwrap();
                        assert!(buf == model[at..at + 4096], "{options} step {step} at {at}");
                    }
                });
            }
        });
        // A cut, and zeros behind it.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        file.set_len(size as u64).unwrap();
        let mut buf = vec![1; 4096];
        for page in 1..16 {
            direct(&path).read_exact_at(&mut buf, page << 12).unwrap();
            assert!(buf.iter().all(|byte| *byte == 0), "{options}: page {page} was cut off");
        }
        let now = stats(&target);
        assert!(now["again_read_bytes_total"] > 1 << 20, "{options}: {now:?}");
    }
}

/// Reads in order from a random place on, while the file is written, cut and made longer through the same
/// mount: after each change the next read must see it.
#[test]
fn nothing_older_than_the_last_write_is_read() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for (seed, options) in [(1, ""), (2, "mode=relaxed"), (3, "mode=one-writer")] {
        let target = host.mount(&format!("fuzz{seed}"), options);
        let path = target.join("file");
        let mut rng = Rng::new(seed);
        let mut model = random(seed, 8 << 20);
        fs::write(&path, &model).unwrap();
        let (reader, writer) = (direct(&path), OpenOptions::new().write(true).open(&path).unwrap());
        for round in 0..60_u64 {
            let mut at = piece(&mut rng, model.len()).0;
            for step in 0..12 {
                let len = (64 << 10).min(model.len() - at);
                let mut buf = vec![0; len];
                reader.read_exact_at(&mut buf, at as u64).unwrap();
                assert!(buf == model[at..at + len], "{options} round {round}, step {step} at {at}");
                at += len;
                if step < 8 || rng.next_u64().is_multiple_of(2) {
                    continue;
                }
                // Just before the reader, where bytes have been fetched.
                let (_, len) = piece(&mut rng, model.len() - at + 1);
                let bytes = random(rng.next_u64(), len.min(model.len() - at));
                writer.write_all_at(&bytes, at as u64).unwrap();
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                if rng.next_u64().is_multiple_of(4) {
                    let end = model.len() - (model.len() - at) / 2;
                    writer.set_len(end as u64).unwrap();
                    model.truncate(end);
                    writer.set_len(8 << 20).unwrap();
                    model.resize(8 << 20, 0);
                }
            }
        }
        let now = stats(&target);
        println!("{options}: {} bytes were fetched ahead", now["ahead_fetched_bytes_total"]);
        assert!(now["ahead_used_bytes_total"] > 0, "{options}");
    }
}

#[test]
fn an_open_sees_what_was_closed_elsewhere_whatever_was_fetched() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (here, there) = (host.mount("here", ""), host.mount("there", ""));
    for round in 0..20 {
        let content = random(round, 2 << 20);
        fs::write(there.join("file"), &content).unwrap();
        let file = direct(&here.join("file"));
        let mut buf = vec![0; 64 << 10];
        for n in 0..6 {
            file.read_exact_at(&mut buf, n * (64 << 10)).unwrap();
            assert!(buf == content[usize::try_from(n).unwrap() * buf.len()..][..buf.len()]);
        }
        // In place: the bytes keep their name.
        let changed = random(1000 + round, 2 << 20);
        let writer = OpenOptions::new().write(true).open(there.join("file")).unwrap();
        writer.write_all_at(&changed, 0).unwrap();
        drop(writer);
        let again = direct(&here.join("file"));
        for n in 6..12 {
            again.read_exact_at(&mut buf, n * (64 << 10)).unwrap();
            let at = usize::try_from(n).unwrap() * buf.len();
            assert!(buf == changed[at..][..buf.len()], "round {round}, block {n}");
        }
    }
    assert!(stats(&here)["ahead_used_bytes_total"] > 0);
}
