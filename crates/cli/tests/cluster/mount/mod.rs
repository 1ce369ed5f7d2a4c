//! Mounts of a real cluster by real processes, which are killed, upgraded and stopped while they are used.
//! `NO_FUSE=1` leaves these tests out.

mod acl;
mod ahead;
mod battery;
mod bounds;
mod budgets;
mod cached;
mod clone;
mod delegations;
mod direct;
mod host;
mod hosts;
mod kernel;
mod load;
mod locks;
mod losses;
mod missing;
mod programs;
mod promises;
mod questions;
mod refusals;
mod small;
mod soak;
mod syscalls;
mod times;
mod tools;
mod user;
mod watch;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use millpond_env::ProcessSignal;
use millpond_fuse_wire::mounts;

pub(crate) use self::host::left_out;
use self::host::{Host, ended, signal};
use self::load::{Tally, work};
use crate::process::{Cluster, until};

/// A test that takes longer hangs: more than any of them waits for one thing.
const HANG: Duration = Duration::from_mins(6);

fn is_mounted(target: &Path) -> bool {
    mounts().unwrap().iter().any(|mount| mount.target == target)
}

fn number(name: &str, short: usize) -> usize {
    std::env::var(name).ok().map_or(short, |text| text.parse().unwrap())
}

#[test]
fn files_live_on_a_mount_until_it_is_unmounted() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (one, two) = (host.mount("one", ""), host.mount("two", "mode=strict,ro,threads=2"));
    let (file, renamed) = (one.join("file"), one.join("renamed"));
    fs::write(&file, "content").unwrap();
    assert_eq!(fs::read(two.join("file")).unwrap(), b"content");
    assert!(fs::write(two.join("file"), "x").is_err(), "it is mounted read-only");
    fs::rename(&file, &renamed).unwrap();
    assert_eq!(fs::read_to_string(&renamed).unwrap(), "content");
    fs::remove_file(&renamed).unwrap();
    assert_eq!(fs::read_dir(&one).unwrap().count(), 0);

    let listed = host.listed();
    assert_eq!((&listed[0].mountpoint, &listed[1].mountpoint), (&one, &two));
    assert_eq!((listed[0].mode.as_str(), listed[0].read_only), ("close-to-open", false));
    let second = &listed[1];
    assert_eq!((second.mode.as_str(), second.read_only, second.threads), ("strict", true, 2));
    assert_eq!(listed[0].pid, second.pid, "one daemon serves all mounts of a host");
    let shown = host.must(&["mounts"]);
    assert!(shown.contains(one.to_str().unwrap()) && shown.contains("strict"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&host.must(&["mounts", "--json"])).unwrap();
    let ours = |it: &&serde_json::Value| it["mountpoint"] == two.to_str().unwrap();
    assert_eq!(json.as_array().unwrap().iter().find(ours).unwrap()["state"], "serving");
    let mode = fs::metadata(host.run_dir.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let status = host.status().unwrap();
    host.umount(&one);
    assert!(!is_mounted(&one) && host.listed().len() == 1);
    // Somebody else's umount is noticed, and then nothing is left to do.
    assert!(std::process::Command::new("umount").arg(&two).status().unwrap().success());
    ended(&status);
    assert!(!host.run_dir.socket().exists());
    // And it can be had again.
    host.mount("one", "");
    assert_ne!(host.status().unwrap().holder_pid, status.holder_pid);
}

#[test]
fn a_mount_in_use_is_unmounted_lazily_or_not_at_all() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("used", "");
    let mut file = File::create_new(target.join("open")).unwrap();
    let done = host.run(&["umount", target.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("in use"), "{said}");
    assert!(is_mounted(&target));

    host.must(&["umount", "-l", target.to_str().unwrap()]);
    assert!(!is_mounted(&target));
    file.write_all(b"still").unwrap();
    file.sync_all().unwrap();
    assert_eq!(host.listed()[0].state.name(), "detached");
    // The place is free, and a detached mount outlives its daemon too.
    host.mount("used", "");
    host.kill_daemon();
    file.write_all(b" works").unwrap();
    assert_eq!(host.listed().len(), 2);
    drop(file);
    until("the detached mount ends", || (host.listed().len() == 1).then_some(()));
    assert_eq!(fs::read_to_string(target.join("open")).unwrap(), "still works");
}

/// Runs applications in 8 threads while `disturb` does something to the mount's processes, with
/// work done in between.
fn under_load(target: &Path, times: usize, mut disturb: impl FnMut(usize)) -> Tally {
    let tally = Tally::default();
    thread::scope(|scope| {
        for worker in 0..8 {
            let (folder, tally) = (target.join(format!("worker{worker}")), &tally);
            scope.spawn(move || work(&folder, worker, tally));
        }
        let more = || {
            let from = tally.done.load(Ordering::Relaxed);
            until("applications go on", || {
                (tally.done.load(Ordering::Relaxed) > from + 100).then_some(())
            });
        };
        for time in 0..times {
            more();
            disturb(time);
            if !tally.errors().is_empty() {
                break;
            }
        }
        more();
        tally.ended.store(true, Ordering::Relaxed);
    });
    tally
}

#[test]
fn applications_do_not_see_that_the_daemon_is_killed_and_upgraded() {
    if left_out() {
        return;
    }
    for options in ["", "nodelegations", "mode=one-writer"] {
        kill_and_upgrade(options);
    }
}

fn kill_and_upgrade(options: &str) {
    let cluster = Cluster::start(3, 2);
    let (kills, upgrades) = (number("MILLPOND_KILLS", 5), number("MILLPOND_UPGRADES", 2));
    let host = Host::new(&cluster, HANG * u32::try_from(1 + kills / 10).unwrap());
    let target = host.mount("busy", options);
    let tally = under_load(&target, kills, |time| {
        host.kill_daemon();
        if (time + 1) * upgrades / kills > time * upgrades / kills {
            println!("{}", host.must(&["mounts", "upgrade"]).trim());
        }
    });
    let (longest, what) = tally.longest();
    let done = tally.done.load(Ordering::Relaxed);
    println!(
        "{options}: {done} operations, {kills} kills; the longest, a {what}, took {longest:?}"
    );
    for line in host.log().lines().filter(|line| line.contains(" after ")) {
        println!("{line}");
    }
    assert_eq!(tally.errors(), Vec::<String>::new());
    let limit = number("MILLPOND_LONGEST_MS", 2000);
    assert!(longest < Duration::from_millis(limit as u64), "a {what} took {longest:?}");
    host.umount(&target);
}

#[test]
fn without_its_journal_a_mount_does_things_twice() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("forgetful", "journal=off");
    let tally = under_load(&target, 40, |_| host.kill_daemon());
    println!("{:?}", tally.errors());
    assert!(!tally.errors().is_empty(), "40 kills without an error: the journal is for nothing");
}

#[test]
fn an_upgrade_that_does_not_work_is_rolled_back() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("kept", "");
    fs::write(target.join("file"), "content").unwrap();
    let mut open = File::open(target.join("file")).unwrap();
    let before = host.status().unwrap();
    // It starts, and has no descriptors for the mount: by then the old one has parked it.
    let starved = host.folder.join("starved");
    let script =
        format!("#!/bin/sh\nulimit -n 16\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_millpond"));
    fs::write(&starved, script).unwrap();
    fs::set_permissions(&starved, fs::Permissions::from_mode(0o755)).unwrap();
    for program in ["/bin/false", starved.to_str().unwrap(), "/etc/passwd"] {
        let done = host.run(&["mounts", "upgrade", "--program", program]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains("not upgraded"), "{program}: {said}");
        assert_eq!(host.status().unwrap().pid, before.pid, "{program}");
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        fs::write(target.join("other"), program).unwrap();
    }
    assert!(host.log().contains("rolled back"), "{}", host.log());
    host.must(&["mounts", "upgrade"]);
    let after = host.status().unwrap();
    assert_ne!(after.pid, before.pid);
    assert_eq!((after.holder_pid, after.taken_over), (before.holder_pid, 1));
    assert_eq!(fs::read_to_string(target.join("other")).unwrap(), "/etc/passwd");
}

/// Processes that a process started and has not waited for: those that live, and zombies.
fn children(parent: u32) -> Vec<u32> {
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let parent_of = |text: &str| text.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).and_then(|text| parent_of(&text)) == Some(parent)).collect()
}

#[test]
fn an_upgrade_leaves_no_process_behind() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("upgraded", "");
    for upgrade in 0..3 {
        host.must(&["mounts", "upgrade"]);
        let status = host.status().unwrap();
        until("the daemon before is gone, and was waited for", || {
            (children(status.holder_pid) == [status.pid]).then_some(())
        });
        fs::write(target.join("file"), format!("upgrade {upgrade}")).unwrap();
    }
    host.umount(&target);
}

#[test]
fn a_daemon_that_starts_while_the_cluster_is_away_waits_for_it() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("patient", "");
    let file = target.join("file");
    fs::write(&file, "content").unwrap();
    let signal_all = |name| {
        cluster.nodes.iter().for_each(|node| node.signal(name));
        cluster.manager.signal(name);
    };
    signal_all("STOP");
    host.kill_daemon();
    assert_eq!(host.listed()[0].state.name(), "resuming");
    let done = host.run(&["umount", target.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("is taking it over"), "{said}");
    let done = host.run(&["mounts", "upgrade"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("is resuming now"), "{said}");
    let reader = thread::spawn(move || fs::read_to_string(file));
    signal_all("CONT");
    assert_eq!(reader.join().unwrap().unwrap(), "content");
    // Whoever cannot wait gives up what is under way.
    signal_all("STOP");
    host.kill_daemon();
    let status = host.status().unwrap();
    host.must(&["umount", "-l", target.to_str().unwrap()]);
    ended(&status);
    assert!(!is_mounted(&target));
    signal_all("CONT");
}

#[test]
fn a_log_on_a_full_disk_is_no_reason_to_end() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.folder.join("unheard");
    fs::create_dir(&target).unwrap();
    let path = target.to_str().unwrap();
    host.must(&["mount", &host.addresses, path, "--log-file", "/dev/full"]);
    fs::write(target.join("file"), "content").unwrap();
    let holder = host.status().unwrap().holder_pid;
    host.kill_daemon();
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "content");
    host.must(&["mounts", "upgrade"]);
    assert_eq!(host.status().unwrap().holder_pid, holder);
    host.umount(&target);
}

#[test]
fn a_mount_without_its_holder_goes_away() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("lost", "");
    fs::write(target.join("file"), "content").unwrap();
    let status = host.status().unwrap();
    signal(status.holder_pid, ProcessSignal::Kill);
    ended(&status);
    assert!(!is_mounted(&target));
    assert!(host.log().contains("the holder is gone"), "{}", host.log());
    let again = host.mount("lost", "");
    assert_eq!(fs::read_to_string(again.join("file")).unwrap(), "content");
}

#[test]
fn a_holder_that_is_told_to_stop_unmounts_everything() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (free, used) = (host.mount("free", ""), host.mount("used", ""));
    let file = File::create_new(used.join("file")).unwrap();
    let status = host.status().unwrap();
    signal(status.holder_pid, ProcessSignal::Terminate);
    ended(&status);
    assert!(!is_mounted(&free) && !is_mounted(&used));
    drop(file);
}

#[test]
fn ctrl_c_while_mounting_leaves_nothing() {
    if left_out() {
        return;
    }
    let mut cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let target = host.folder.join("never");
    fs::create_dir(&target).unwrap();
    // Nobody answers, and nobody refuses.
    cluster.nodes[0].signal("STOP");
    cluster.manager.signal("STOP");
    let started = Instant::now();
    let mut command = host.command();
    let child = command.args(["mount", &host.addresses]).arg(&target).spawn().unwrap();
    until("a daemon answers", || host.status());
    signal(child.id(), ProcessSignal::Terminate);
    let done = child.wait_with_output().unwrap();
    assert!(!done.status.success());
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    cluster.nodes[0].signal("CONT");
    cluster.manager.signal("CONT");
    until("nothing is being mounted", || {
        host.status().is_none_or(|it| it.mounts == 0).then_some(())
    });
    assert!(!is_mounted(&target));
    cluster.nodes[0].kill();
}
