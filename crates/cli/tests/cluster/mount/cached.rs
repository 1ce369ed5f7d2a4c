//! Whole files on a local disk: who reads them, what becomes of them, and that nobody ever reads wrong bytes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use millpond_env::{ProcessSignal, Rng};

use super::host::{Host, left_out, signal};
use super::watch::stats;
use super::{HANG, number};
use crate::process::{Cluster, Ends, until};

const MIB: usize = 1 << 20;

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// A read-only mount with a cache in a folder of its own.
fn mount(host: &Host, name: &str, more: &str) -> (PathBuf, PathBuf) {
    let folder = host.folder.join(format!("cache-{name}"));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let options = format!("mode=read-only,cache={}{more}", folder.display());
    (host.mount(name, &options), folder)
}

/// Files in a folder whose names end so.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect()
}

/// Opens a file twice, and waits until the cache has so many.
fn fill(target: &Path, name: &str, content: &[u8], count: u64) {
    for _ in 0..2 {
        assert!(fs::read(target.join(name)).unwrap() == content, "{name}");
    }
    until("it is cached", || (stats(target)["cache_files"] == count).then_some(()));
}

const READS: &str = "operation_seconds_count{operation=\"read\"}";
const CHUNKS: &str = "chunk_seconds_count{call=\"read\"}";

/// Takes a lock of all of a file, shared or alone, and closes it; waits for nobody.
const LOCKS: &str = r#"
import fcntl, sys
with open(sys.argv[1], "r+b" if sys.argv[2] == "alone" else "rb") as file:
    how = fcntl.LOCK_EX if sys.argv[2] == "alone" else fcntl.LOCK_SH
    fcntl.lockf(file, how | fcntl.LOCK_NB)
"#;

fn lock(path: &Path, how: &str) -> bool {
    let mut command = Command::new("python3");
    command.args(["-c", LOCKS]).arg(path).arg(how).stderr(Stdio::null()).status().unwrap().success()
}

/// How much a number grew while something was done.
fn grown(target: &Path, name: &str, done: impl FnOnce()) -> u64 {
    let of = |numbers: BTreeMap<String, u64>| numbers.get(name).copied().unwrap_or(0);
    let before = of(stats(target));
    done();
    of(stats(target)) - before
}

/// A program that has a file mapped, and compares all of it with another one for each line that it gets.
struct Mapped(Child, BufReader<std::process::ChildStdout>);

const MAPS: &str = r#"
import mmap, sys
wanted = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("mapped", flush=True)
for line in sys.stdin:
    memory.madvise(mmap.MADV_DONTNEED)
    print("same" if memory[:] == wanted else "other", flush=True)
"#;

impl Mapped {
    fn new(path: &Path, same: &Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", MAPS]).args([path, same]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self(child, said);
        assert_eq!(this.line(), "mapped");
        this
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn is_same(&mut self) -> bool {
        self.0.stdin.as_mut().unwrap().write_all(b"look\n").unwrap();
        self.line() == "same"
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_that_is_opened_again_is_read_by_the_kernel() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (content, small) = (random(1, 9 * MIB + 77), random(2, 5000));
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &content).unwrap();
    fs::write(writer.join("small"), &small).unwrap();
    fs::write(writer.join("empty"), b"").unwrap();
    let (target, folder) = mount(&host, "one", ",cache_size=64MiB");
    assert_eq!(stats(&target)["cache_passthrough"], 1, "{}", host.log());
    let before = stats(&target);
    assert!(fs::read(target.join("file")).unwrap() == content);
    assert!(stats(&target)[READS] > before.get(READS).copied().unwrap_or(0), "the daemon is asked");
    assert_eq!(stats(&target)["cache_fills_total"], 0, "one open is no reason");
    fill(&target, "file", &content, 1);
    // The second open may have come after the file was whole. While a file is open that the daemon reads, others are not passed
    // through, and the kernel tells of a close when that is over.
    until("everything is closed", || (stats(&target)["open_handles"] == 0).then_some(()));
    let hits = stats(&target)["cache_hits_total"];
    assert!(hits <= 1, "{hits}");

    // From here on neither the daemon nor a node is asked for bytes.
    for name in [READS, CHUNKS, "read_bytes_total"] {
        let reads = || {
            assert!(fs::read(target.join("file")).unwrap() == content);
            let file = File::open(target.join("file")).unwrap();
            let mut part = vec![0; 100_000];
            file.read_exact_at(&mut part, 5_000_001).unwrap();
            assert!(part == content[5_000_001..5_100_001]);
            assert_eq!(file.read_at(&mut part, content.len() as u64).unwrap(), 0, "its end");
        };
        assert_eq!(grown(&target, name, reads), 0, "{name}");
    }
    let now = stats(&target);
    assert_eq!(now["cache_bytes"], content.len() as u64);
    assert_eq!(now["cache_hits_total"], now["cache_passed_total"]);
    assert_eq!(now["cache_hits_total"], hits + 6);
    assert_eq!(now["cache_fills_total"], 1);
    // Locks of it go with the close, and another mount may have them.
    assert!(lock(&target.join("file"), "shared") && lock(&writer.join("file"), "alone"));
    // Small files come with their inode, and empty ones have nothing to come.
    for _ in 0..3 {
        assert!(fs::read(target.join("small")).unwrap() == small);
        assert!(fs::read(target.join("empty")).unwrap().is_empty());
    }
    assert_eq!(stats(&target)["cache_files"], 1);

    // A new content has another name, and the old one is nobody's from then on.
    let newer = random(3, 4 * MIB);
    fs::write(writer.join("file"), &newer).unwrap();
    let again = host.mount("again", "mode=read-only");
    assert!(fs::read(again.join("file")).unwrap() == newer);
    host.umount(&target);
    let (target, _) = mount(&host, "one", ",cache_size=64MiB");
    assert_eq!(stats(&target)["cache_files"], 1, "it outlives the mount");
    fill(&target, "file", &newer, 2);
    assert!(fs::read(target.join("file")).unwrap() == newer);
    assert_eq!((files(&folder, ".file").len(), files(&folder, ".part").len()), (2, 0));
}

/// Applications open, read and close all the time, while daemons die and are upgraded.
fn opens_while_daemons_die(host: &Host, target: &Path, content: &[u8]) {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Ends(&ended);
        let readers: Vec<_> = (0..4)
            .map(|n| {
                let (target, content, ended) = (target, content, &ended);
                scope.spawn(move || {
                    let mut rng = Rng::new(n);
                    let (mut part, mut count) = (vec![0; 10_000], 0);
                    while !ended.load(Relaxed) {
                        let name = ["file", "late"][usize::try_from(rng.below(2)).unwrap()];
                        let file = File::open(target.join(name)).unwrap();
                        let at = usize::try_from(rng.below(5 * MIB as u64)).unwrap();
                        file.read_exact_at(&mut part, at as u64).unwrap();
                        assert!(part == content[at..at + 10_000], "{name} at {at}");
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for round in 0..6 {
            thread::sleep(Duration::from_millis(200));
            host.kill_daemon();
            if round % 3 == 2 {
                host.must(&["mounts", "upgrade"]);
            }
        }
        drop(ends);
        let counts: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        println!("opens and reads: {counts:?}");
        assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
    });
}

#[test]
fn who_has_a_cached_file_open_sees_no_death_of_the_daemon() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(5, 6 * MIB);
    let same = host.folder.join("same");
    fs::write(&same, &content).unwrap();
    let writer = host.mount("writer", "");
    for name in ["file", "late"] {
        fs::write(writer.join(name), &content).unwrap();
    }
    let (target, _) = mount(&host, "one", ",cache_size=64MiB");
    fill(&target, "file", &content, 1);
    let path = target.join("file");
    // Not cached when it was opened: it stays with the daemon as long as it is open.
    let late = File::open(target.join("late")).unwrap();
    fill(&target, "late", &content, 2);
    let (open, mut mapped) = (File::open(&path).unwrap(), Mapped::new(&path, &same));
    let mut part = vec![0; MIB];
    let mut look = |what: &str| {
        for file in [&open, &late] {
            for at in 0..6 {
                file.read_exact_at(&mut part, (at * MIB) as u64).unwrap();
                assert!(part == content[at * MIB..(at + 1) * MIB], "{what} {at}");
            }
        }
        for name in ["file", "late"] {
            assert!(fs::read(target.join(name)).unwrap() == content, "{what}: opened again");
        }
        assert!(mapped.is_same(), "{what}");
        let _ = Mapped::new(&path, &same);
    };
    look("before");
    for round in 0..4 {
        host.kill_daemon();
        look("after a kill");
        if round % 2 == 1 {
            host.must(&["mounts", "upgrade"]);
            look("after an upgrade");
        }
    }
    // What was open is still passed through, in the daemon that was told of it by its predecessor only.
    assert_eq!(grown(&target, READS, || assert!(fs::read(&path).unwrap() == content)), 0);
    opens_while_daemons_die(&host, &target, &content);
    drop((open, late));
    drop(mapped);
    // With the last close the file is free again, and a later open is passed through by this daemon's own name of it.
    until("everything is closed", || (stats(&target)["open_handles"] == 0).then_some(()));
    for name in ["file", "late"] {
        let reads = || assert!(fs::read(target.join(name)).unwrap() == content);
        assert_eq!(grown(&target, READS, reads), 0, "{name}");
    }
    host.umount(&target);
}

#[test]
fn clones_are_cached_each_with_its_own_bytes() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(70, 5 * MIB);
    let writer = host.mount("writer", "");
    let [source, copy] = ["source", "copy"].map(|name| writer.join(name));
    fs::write(&source, &content).unwrap();
    host.must(&["clone", source.to_str().unwrap(), copy.to_str().unwrap()]);
    let mut changed = content.clone();
    changed[2 * MIB..2 * MIB + 5].copy_from_slice(b"other");
    let file = OpenOptions::new().write(true).open(&copy).unwrap();
    file.write_all_at(b"other", 2 * MIB as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let (target, _) = mount(&host, "one", ",cache_size=64MiB");
    fill(&target, "source", &content, 1);
    fill(&target, "copy", &changed, 2);
    for (name, wanted) in [("source", &content), ("copy", &changed)] {
        let reads = || assert!(fs::read(target.join(name)).unwrap() == *wanted, "{name}");
        assert_eq!(grown(&target, READS, reads), 0, "{name}");
    }
}

/// There is room for one of three files, so that each is read by the kernel now and by the daemon then. The kernel fails an open
/// with EIO when it does not agree with others of the inode.
#[test]
fn opens_that_race_agree_about_who_reads() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let writer = host.mount("writer", "");
    let content: Vec<Vec<u8>> = (0..3).map(|n| random(60 + n, MIB)).collect();
    for (n, bytes) in content.iter().enumerate() {
        fs::write(writer.join(n.to_string()), bytes).unwrap();
    }
    let (target, _) = mount(&host, "one", ",cache_size=1MiB");
    let ended = AtomicBool::new(false);
    let reads = |seed: u64| {
        let (mut rng, mut count) = (Rng::new(seed), 0_u64);
        let (mut open, mut part) = (Vec::new(), vec![0; 5000]);
        while !ended.load(Relaxed) {
            let n = usize::try_from(rng.below(3)).unwrap();
            let file = File::open(target.join(n.to_string())).unwrap();
            let at = usize::try_from(rng.below(MIB as u64 - 5000)).unwrap();
            file.read_exact_at(&mut part, at as u64).unwrap();
            assert!(part == content[n][at..at + 5000], "{n} at {at}");
            count += 1;
            // Some are open a little longer.
            if rng.below(4) == 0 {
                open.push(file);
            }
            if open.len() > 2 {
                open.clear();
                thread::sleep(Duration::from_millis(rng.below(5)));
            }
        }
        count
    };
    let sum = |name: &str, all: &mut u64| *all += stats(&target)[name];
    let (mut passed, mut evicted) = (0, 0);
    thread::scope(|scope| {
        let ends = Ends(&ended);
        let readers: Vec<_> = (0..6).map(|seed| scope.spawn(move || reads(seed))).collect();
        let mut rounds = 0;
        let all = number("MILLPOND_CACHE_ROUNDS", 4);
        // A busy machine takes more of them until a file is opened that is whole and still there.
        until("files are passed through and make room", || {
            thread::sleep(Duration::from_millis(700));
            sum("cache_passed_total", &mut passed);
            sum("cache_evictions_total", &mut evicted);
            host.kill_daemon();
            rounds += 1;
            (rounds >= all && passed > 0 && evicted > 2).then_some(())
        });
        drop(ends);
        let counts: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        println!("{counts:?} opens, {passed} were passed through, {evicted} files made room");
    });
}

#[test]
fn cached_files_are_read_while_all_nodes_are_away() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(7, 5 * MIB);
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &content).unwrap();
    host.umount(&writer);
    for (name, more) in [("kernel", ""), ("daemon", ",nopassthrough")] {
        let (target, _) = mount(&host, name, &format!(",cache_size=64MiB{more}"));
        assert_eq!(stats(&target)["cache_passthrough"], u64::from(more.is_empty()));
        fill(&target, "file", &content, 1);
        // Past the kernel's own pages, where the daemon is asked.
        let flags = if more.is_empty() { 0 } else { libc::O_DIRECT };
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags).open(target.join("file")).unwrap();
        let signal_all = |name| {
            cluster.nodes.iter().for_each(|node| node.signal(name));
            cluster.manager.signal(name);
        };
        signal_all("STOP");
        // Longer than a mount believes what it was told of a file.
        thread::sleep(Duration::from_millis(1500));
        let mut all = vec![0; content.len()];
        let served = grown(&target, "cache_read_bytes_total", || {
            file.read_exact_at(&mut all, 0).unwrap();
        });
        assert!(all == content, "{name}");
        assert_eq!(served > 0, name == "daemon", "{served}");
        signal_all("CONT");
        drop(file);
        host.umount(&target);
    }
}

#[test]
fn who_has_a_file_open_keeps_it_when_others_open_what_took_its_place() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (before, after) = (random(5, 2 * MIB), random(6, 2 * MIB));
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &before).unwrap();
    let (target, _) = mount(&host, "daemon", ",cache_size=64MiB,nopassthrough");
    fill(&target, "file", &before, 1);
    let mut options = OpenOptions::new();
    let open = options.read(true).custom_flags(libc::O_DIRECT).open(target.join("file")).unwrap();
    let all_of = |file: &File| {
        let mut all = vec![0; 2 * MIB];
        file.read_exact_at(&mut all, 0).unwrap();
        all
    };
    assert!(all_of(&open) == before);
    // The same file with other bytes, of which another mount knows at once.
    fs::write(writer.join("file"), &after).unwrap();
    let other = File::open(target.join("file")).unwrap();
    assert!(all_of(&open) == before, "what was opened first");
    drop((other, open));
}

#[test]
fn a_large_file_is_compared_in_the_background() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(8, 65 * MIB);
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &content).unwrap();
    let (target, folder) = mount(&host, "one", ",cache_size=1GiB");
    let path = target.join("file");
    host.must(&["warmup", "--cache", path.to_str().unwrap()]);
    let compared = || {
        // The first open of this mount has it compared, and does not wait for that.
        drop(File::open(&path).unwrap());
        let now = stats(&target);
        assert_eq!((now["cache_hits_total"], now["cache_misses_total"]), (0, 1));
    };
    host.umount(&target);
    let _ = mount(&host, "one", ",cache_size=1GiB");
    compared();
    let hit =
        || (File::open(&path).is_ok() && stats(&target)["cache_hits_total"] > 0).then_some(());
    until("it is compared", hit);
    let reads = || assert!(fs::read(&path).unwrap() == content);
    assert_eq!(grown(&target, READS, reads), 0);
    assert_eq!(stats(&target)["cache_fills_total"], 0, "it was right");
    host.umount(&target);
    let file = OpenOptions::new().write(true).open(&files(&folder, ".file")[0]).unwrap();
    file.write_all_at(b"damage", 64 * MIB as u64 + 5).unwrap();
    let _ = mount(&host, "one", ",cache_size=1GiB");
    compared();
    until("it is thrown away", || (stats(&target)["cache_damaged_total"] == 1).then_some(()));
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn a_damaged_file_is_noticed_and_fetched_anew() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(9, 3 * MIB + 5);
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &content).unwrap();
    let (target, folder) = mount(&host, "one", ",cache_size=64MiB");
    let path = target.join("file");
    fill(&target, "file", &content, 1);
    let damage = |at: u64| {
        let [file] = &files(&folder, ".file")[..] else { panic!("one file") };
        let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let anew = |count: u64| {
        until("it is fetched anew", || {
            (stats(&target)["cache_fills_total"] == count).then_some(())
        });
        assert_eq!(stats(&target)["cache_files"], 1);
        let reads = || assert!(fs::read(&path).unwrap() == content);
        assert_eq!(grown(&target, READS, reads), 0);
    };
    // While the daemon lives: the file was changed since it was checked.
    damage(2 * MIB as u64);
    assert!(fs::read(&path).unwrap() == content);
    assert_eq!(stats(&target)["cache_damaged_total"], 1);
    anew(2);
    // While nobody has it.
    host.umount(&target);
    damage(7);
    let _ = mount(&host, "one", ",cache_size=64MiB");
    assert!(fs::read(&path).unwrap() == content);
    assert_eq!(stats(&target)["cache_damaged_total"], 1);
    anew(1);
    // The checksums, and a file that is too short.
    host.umount(&target);
    let sums = &files(&folder, ".sums")[0];
    fs::write(sums, vec![1; usize::try_from(fs::metadata(sums).unwrap().len()).unwrap()]).unwrap();
    let _ = mount(&host, "one", ",cache_size=64MiB");
    assert!(fs::read(&path).unwrap() == content);
    assert_eq!(stats(&target)["cache_damaged_total"], 1);
    anew(1);
    host.umount(&target);
    let file = OpenOptions::new().write(true).open(&files(&folder, ".file")[0]).unwrap();
    file.set_len(100).unwrap();
    let _ = mount(&host, "one", ",cache_size=64MiB");
    assert_eq!(stats(&target)["cache_files"], 0, "it is not whole");
    assert!(fs::read(&path).unwrap() == content);
    assert!(host.log().contains("damaged"), "{}", host.log());
}

#[test]
fn the_oldest_files_make_room_and_open_ones_stay() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let writer = host.mount("writer", "");
    let content: Vec<Vec<u8>> = (0..6).map(|n| random(20 + n, 2 * MIB)).collect();
    for (n, bytes) in content.iter().enumerate() {
        fs::write(writer.join(n.to_string()), bytes).unwrap();
    }
    let large = random(30, 8 * MIB);
    fs::write(writer.join("large"), &large).unwrap();
    // Room for three of them; and another mount with a folder of its own for all.
    let (target, folder) = mount(&host, "narrow", ",cache_size=7MiB");
    let (wide, _) = mount(&host, "wide", ",cache_size=64MiB");
    for (n, bytes) in content.iter().enumerate().take(3) {
        fill(&target, &n.to_string(), bytes, n as u64 + 1);
    }
    let open = File::open(target.join("0")).unwrap();
    for (n, bytes) in content.iter().enumerate().skip(3) {
        let name = n.to_string();
        for _ in 0..2 {
            assert!(fs::read(target.join(&name)).unwrap() == *bytes);
        }
        let filled = n as u64 + 1;
        until("it is there", || (stats(&target)["cache_fills_total"] == filled).then_some(()));
        assert_eq!(stats(&target)["cache_evictions_total"], n as u64 - 2);
        let now = stats(&target);
        assert_eq!((now["cache_files"], now["cache_bytes"]), (3, 6 * MIB as u64));
        assert_eq!(files(&folder, ".file").len(), 3);
    }
    let reads = |name: &str, n: usize| {
        grown(&target, READS, || assert!(fs::read(target.join(name)).unwrap() == content[n])) > 0
    };
    assert!(!reads("0", 0) && !reads("4", 4) && !reads("5", 5), "0 is the oldest, and open");
    // The kernel may have its pages yet.
    let missed = grown(&target, "cache_misses_total", || drop(File::open(target.join("1"))));
    assert_eq!(missed, 1, "it made room");
    let mut all = vec![0; 2 * MIB];
    open.read_exact_at(&mut all, 0).unwrap();
    assert!(all == content[0]);
    // What does not fit at all is left where it is.
    for _ in 0..3 {
        assert!(fs::read(target.join("large")).unwrap() == large);
    }
    assert_eq!(stats(&target)["cache_files"], 3);
    let refused = host.run(&["warmup", "--cache", target.join("large").to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("larger than the cache"), "{said}");

    // All of it, on demand.
    let told = host.must(&["warmup", "--cache", "--json", wide.to_str().unwrap()]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["files"], &told["bytes"]), (&7.into(), &(20 * MIB).into()), "{told}");
    assert_eq!(stats(&wide)["cache_files"], 7);
    let reads = || assert!(fs::read(wide.join("large")).unwrap() == large);
    assert_eq!(grown(&wide, READS, reads), 0, "the first open is passed through");
    let refused = host.run(&["warmup", "--cache", writer.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("not on a mount with a cache"), "{said}");
}

#[test]
fn a_fill_that_is_killed_leaves_nothing_half() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(40, 12 * MIB);
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &content).unwrap();
    let (target, folder) = mount(&host, "slow", ",cache_size=64MiB,bandwidth=4MiB");
    for _ in 0..2 {
        drop(File::open(target.join("file")).unwrap());
    }
    let half = || {
        let parts = files(&folder, ".part");
        parts.first().and_then(|part| fs::metadata(part).ok()).filter(|it| it.len() > MIB as u64)
    };
    until("a part is there", half);
    let status = host.status().unwrap();
    signal(status.pid, ProcessSignal::Kill);
    until("another daemon answers", || host.status().filter(|it| it.pid != status.pid));
    until("it serves", || stats(&target).get("cache_files").copied());
    assert_eq!((files(&folder, ".part").len(), files(&folder, ".file").len()), (0, 0));
    assert_eq!(stats(&target)["cache_files"], 0);
    // The same in order, and then it is fetched to its end.
    for _ in 0..2 {
        drop(File::open(target.join("file")).unwrap());
    }
    until("a part is there", half);
    host.must(&["mounts", "upgrade"]);
    until("it serves", || stats(&target).get("cache_files").copied());
    assert_eq!(stats(&target)["cache_files"], 0);
    host.must(&["warmup", "--cache", target.join("file").to_str().unwrap()]);
    assert_eq!((files(&folder, ".part").len(), files(&folder, ".file").len()), (0, 1));
    let reads = || assert!(fs::read(target.join("file")).unwrap() == content);
    assert_eq!(grown(&target, READS, reads), 0);
}

#[test]
fn a_full_disk_only_stops_filling() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let content = random(50, 6 * MIB);
    let writer = host.mount("writer", "");
    fs::write(writer.join("file"), &content).unwrap();
    let disk = host.folder.join("disk");
    fs::create_dir(&disk).unwrap();
    let tmpfs = |args: &[&str]| Command::new("mount").args(args).arg(&disk).status();
    if !tmpfs(&["-t", "tmpfs", "-o", "size=4m,mode=700", "millpond-test"])
        .is_ok_and(|it| it.success())
    {
        eprintln!("left out: no tmpfs can be mounted");
        return;
    }
    let options = format!("mode=read-only,cache={},cache_size=64MiB", disk.display());
    let target = host.mount("full", &options);
    for _ in 0..4 {
        assert!(fs::read(target.join("file")).unwrap() == content);
    }
    until("it is told", || (stats(&target)["cache_fills_failed_total"] == 1).then_some(()));
    assert_eq!((files(&disk, ".part").len(), files(&disk, ".file").len()), (0, 0));
    assert!(host.log().contains("No space left"), "{}", host.log());
    assert!(fs::read(target.join("file")).unwrap() == content);
    host.umount(&target);
    let undone = Command::new("umount").arg(&disk).status().unwrap();
    assert!(undone.success(), "the mount lets go of its cache");
}

#[test]
fn a_cache_that_cannot_be_is_refused_and_nothing_is_mounted() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let other = host.mount("other", "");
    let (_, used) = mount(&host, "used", ",cache_size=1GiB");
    let target = host.folder.join("never");
    fs::create_dir(&target).unwrap();
    let file = host.folder.join("file");
    fs::write(&file, "").unwrap();
    let [other, used, file] = [&other, &used, &file].map(|path| path.display().to_string());
    let (missing, below) = (format!("{used}/no"), target.display().to_string());
    for (options, part) in [
        ("cache=/tmp,cache_size=1GiB".to_owned(), "add mode=read-only"),
        ("mode=read-only,cache=/tmp".to_owned(), "add cache_size="),
        ("mode=read-only,cache_size=1GiB".to_owned(), "add cache=FOLDER"),
        ("mode=read-only,cache=here,cache_size=1GiB".to_owned(), "the absolute path of a folder"),
        (format!("mode=read-only,cache={missing},cache_size=1GiB"), "mkdir -p"),
        (format!("mode=read-only,cache={file},cache_size=1GiB"), "is not a folder"),
        (format!("mode=read-only,cache={used},cache_size=1GiB"), "is the cache of another mount"),
        (format!("mode=read-only,cache={other},cache_size=1GiB"), "is on a FUSE file system"),
        (format!("mode=read-only,cache={below},cache_size=1GiB"), "would hide it"),
        ("mode=read-only,cache=/tmp,cache_size=1GiB".to_owned(), "is writable by other users"),
        ("mode=read-only,cache=/proc,cache_size=1GiB".to_owned(), "is not writable"),
    ] {
        let done = host.run(&["mount", &host.addresses, &below, "-o", &options]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(part), "{options}: {said}");
        assert!(said.starts_with("millpond: -o cache"), "it names the option: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(!super::is_mounted(&target), "{options}");
    }
}
