//! Times that programs set: a change like any other, behind the writes that came before and before those that come after.

use std::fs::{self, File, FileTimes};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use super::HANG;
use super::delegations::until_given;
use super::host::{Host, left_out};
use super::promises::number;
use crate::process::{Cluster, until};

/// Which times are set.
const SETS: [&str; 4] = ["mtime", "atime", "both", "now"];
/// What the program does then with the file.
const THENS: [&str; 4] = ["nothing", "fsync", "fchown", "other"];

/// A time that no write has.
fn long_ago(n: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + n, 123_456_789)
}

/// Writes a file in one piece, or in several with pauses in which metas are told.
fn write(file: &mut File, len: usize, n: u64) {
    let pieces = if len > 1000 { 6 } else { 1 };
    for piece in 0..pieces {
        file.write_all(&vec![b'x'; len / pieces]).unwrap();
        if piece + 1 < pieces {
            thread::sleep(Duration::from_millis((n * 3 + 5 * piece as u64) % 13));
        }
    }
}

/// Makes a file and sets times of it; the times that it has then.
fn make(path: &Path, (set, then): (&str, &str), (len, n): (usize, u64)) -> [Option<SystemTime>; 2] {
    let mut file = File::create(path).unwrap();
    write(&mut file, len, n);
    let (mtime, atime) = (long_ago(n), long_ago(n + 7));
    let wanted = match set {
        "mtime" => [Some(mtime), None],
        "atime" => [None, Some(atime)],
        "both" => [Some(mtime), Some(atime)],
        _ => [None, None],
    };
    let mut times = FileTimes::new();
    if let Some(mtime) = wanted[0] {
        times = times.set_modified(mtime);
    }
    if let Some(atime) = wanted[1] {
        times = times.set_accessed(atime);
    }
    if set == "now" {
        let now = SystemTime::now();
        times = times.set_modified(now).set_accessed(now);
        file.set_times(times).unwrap();
        return [Some(now), Some(now)];
    }
    file.set_times(times).unwrap();
    match then {
        "fsync" => file.sync_all().unwrap(),
        "fchown" => fchown(&file, Some(1), Some(1)).unwrap(),
        "other" => {
            let other = fs::OpenOptions::new().append(true).open(path).unwrap();
            drop(file);
            drop(other);
        }
        _ => {}
    }
    wanted
}

fn check(path: &Path, what: &str, [mtime, atime]: [Option<SystemTime>; 2]) {
    let found = fs::metadata(path).unwrap();
    let path = path.display();
    if let Some(mtime) = mtime {
        assert_eq!(found.modified().unwrap(), mtime, "{path}: {what} lost the time of change");
        // When it was set is now, not then.
        assert!(found.ctime() > 1_500_000_000, "{path}: {what}: {}", found.ctime());
    }
    if let Some(atime) = atime {
        assert_eq!(found.accessed().unwrap(), atime, "{path}: {what} lost the time of access");
    }
}

#[test]
fn an_explicit_time_is_behind_what_was_written_before() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let (host, elsewhere) = (Host::new(&cluster, HANG), Host::new(&cluster, HANG));
    let strict = elsewhere.mount("strict", "mode=strict");
    for (number_of, options) in
        ["", "nodelegations", "mode=strict", "mode=relaxed", "mode=one-writer"].iter().enumerate()
    {
        let mount = host.mount(&format!("mount{number_of}"), options);
        if options.is_empty() {
            until_given(&host, &mount);
        }
        let folder = format!("folder{number_of}");
        fs::create_dir(mount.join(&folder)).unwrap();
        let mut made: Vec<(PathBuf, String, [Option<SystemTime>; 2])> = Vec::new();
        for (n, len) in (0_u64..).zip([4, 4, 100_000, 100_000]) {
            for (set, then) in SETS.iter().flat_map(|set| THENS.map(|then| (*set, then))) {
                let name = format!("{folder}/{set}-{then}-{len}-{n}");
                let what = format!("{options} {set} {then} {len}");
                let wanted = make(&mount.join(&name), (set, then), (len, n));
                check(&mount.join(&name), &what, wanted);
                made.push((name.into(), what, wanted));
            }
        }
        until("metas know of all", || {
            (number(&host, &mount, "millpond_mount_promised_changes") == 0).then_some(())
        });
        for (name, what, wanted) in &made {
            check(&strict.join(name), what, *wanted);
            check(&mount.join(name), what, *wanted);
        }
        // A write behind it is a newer change.
        let path = mount.join(&made[0].0);
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.set_modified(long_ago(9)).unwrap();
        file.write_all(b"more").unwrap();
        drop(file);
        let is_new = || fs::metadata(strict.join(&made[0].0)).unwrap().mtime() > 1_500_000_000;
        until("the time of the write", || is_new().then_some(()));
        host.umount(&mount);
    }
}

/// A time that is set by name, when the file was closed.
#[test]
fn a_time_that_is_set_after_a_close_stays() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for (number_of, options) in ["nodelegations", "mode=strict", "mode=relaxed"].iter().enumerate()
    {
        let mount = host.mount(&format!("mount{number_of}"), options);
        for n in 0..60 {
            let path = mount.join(format!("{number_of}-{n}"));
            write(&mut File::create(&path).unwrap(), 60_000, n);
            let file = File::open(&path).unwrap();
            file.set_modified(long_ago(n)).unwrap();
            thread::sleep(Duration::from_millis(if n % 8 == 0 { 40 } else { 0 }));
            check(&path, options, [Some(long_ago(n)), None]);
        }
        thread::sleep(Duration::from_millis(60));
        for n in 0..60 {
            let path = mount.join(format!("{number_of}-{n}"));
            check(&path, options, [Some(long_ago(n)), None]);
        }
    }
}

/// What was answered while no meta could hear of it.
#[test]
fn times_outlive_the_daemon() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    for (options, upgraded) in [("", false), ("", true), ("mode=one-writer", false)] {
        let name = format!("mount-{}-{upgraded}", options.len());
        let mount = host.mount(&name, options);
        if options.is_empty() {
            until_given(&host, &mount);
        }
        let folder = mount.join(&name);
        until("the folder is the mount's own", || {
            fs::create_dir(&folder).unwrap();
            let of_delegations = "millpond_mount_delegated_directories";
            let is_own = !options.is_empty() || number(&host, &mount, of_delegations) > 0;
            (is_own || fs::remove_dir(&folder).is_err()).then_some(())
        });
        let path = |n: u64| folder.join(format!("file{n}"));
        drop(File::create(path(99)).unwrap());
        cluster.manager.stand_still();
        for n in 0..20 {
            let mut file = File::create(path(n)).unwrap();
            file.write_all(b"some").unwrap();
            file.set_modified(long_ago(n)).unwrap();
        }
        if upgraded {
            host.must(&["mounts", "upgrade"]);
        } else {
            host.kill_daemon();
        }
        cluster.manager.signal("CONT");
        for n in 0..20 {
            check(&path(n), &name, [Some(long_ago(n)), None]);
        }
        host.umount(&mount);
        let again = host.mount(&format!("{name}-again"), "");
        for n in 0..20 {
            let path = again.join(&name).join(format!("file{n}"));
            check(&path, &name, [Some(long_ago(n)), None]);
        }
        host.umount(&again);
    }
}
