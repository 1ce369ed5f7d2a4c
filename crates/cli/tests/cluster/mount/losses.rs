//! Mounts of a cluster whose processes are killed: applications see pauses, and what was fsynced stays.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use millpond_env::{ProcessSignal, Rng};

use super::host::{Host, left_out, signal};
use super::{is_mounted, number, under_load};
use crate::etcd_members::{Etcd, left_out as etcd_left_out};
use crate::process::{Chains as _, Cluster, Ends, Process, until};

const HANG: Duration = Duration::from_mins(8);
/// Files that are fsynced before everything is lost, where a disk has not done 60 in [`PROMPT`].
const FEW: usize = 12;
const PROMPT: Duration = Duration::from_secs(20);
/// Names that two mounts look at.
const NAMES: u64 = 12;

/// Three managers, which are metas too, over etcd, and three nodes.
struct Servers {
    managers: Vec<Process>,
    nodes: Vec<Process>,
    folder: tempfile::TempDir,
    _etcd: Etcd,
}

impl Servers {
    fn start() -> Self {
        let etcd = Etcd::start(1);
        let folder = tempfile::tempdir().unwrap();
        let store = etcd.store();
        let flags = ["--manager", "--no-storage", "--form-nodes", "3", "--replicas", "2"];
        let flags = [&flags[..], &["--store", &store]].concat();
        let start = |name: String, flags: &[&str]| Process::start(folder.path(), &name, flags);
        let managers: Vec<Process> = (0..3).map(|n| start(format!("manager{n}"), &flags)).collect();
        let all: Vec<&str> = managers.iter().map(|manager| &*manager.address).collect();
        // Room for chunks of all lengths, while chains without one of their nodes are made whole too.
        let join = ["--join", &all.join(","), "--size", "2GiB"];
        let nodes: Vec<Process> = (0..3).map(|n| start(format!("node{n}"), &join)).collect();
        let servers = Self { managers, nodes, folder, _etcd: etcd };
        servers.until_whole();
        servers
    }

    fn until_whole(&self) {
        until("all chains are whole", || {
            self.nodes[0].status().is_some_and(|status| status.is_whole()).then_some(())
        });
        until("every replica serves", || self.nodes[0].all_serve().then_some(()));
    }

    fn primary(&self) -> usize {
        let named = || {
            let status = self.nodes.iter().find_map(Process::glance)?;
            self.managers.iter().position(|manager| status.primary.contains(&manager.address))
        };
        until("a primary", named).0
    }

    fn addresses(&self) -> String {
        let all: Vec<&str> = self.nodes.iter().map(|node| &*node.address).collect();
        all.join(",")
    }
}

#[test]
fn applications_do_not_see_that_nodes_managers_and_metas_are_killed() {
    if left_out() || etcd_left_out() {
        return;
    }
    for options in ["", "nodelegations", "mode=one-writer"] {
        lose_processes(options);
    }
}

fn lose_processes(options: &str) {
    let mut servers = Servers::start();
    let host = Host::at(servers.folder.path(), servers.addresses(), HANG);
    let target = host.mount("busy", options);
    let rounds = number("MILLPOND_LOSSES", 1);
    let tally = under_load(&target, 4 * rounds, |time| {
        // A daemon dies in the middle of each of the others.
        let killed = match time % 4 {
            0 => &mut servers.nodes[time / 4 % 3],
            1 => {
                let primary = servers.primary();
                &mut servers.managers[primary]
            }
            // Of the other two one is the meta that is asked, or was.
            which => {
                let other = (servers.primary() + which - 1) % 3;
                &mut servers.managers[other]
            }
        };
        killed.kill();
        host.kill_daemon();
        // It stays dead while the mount is used without it.
        for n in 0..20 {
            let path = target.join(format!("meanwhile{n}"));
            fs::write(&path, "bytes").unwrap();
            fs::remove_file(&path).unwrap();
        }
        killed.run();
        servers.until_whole();
    });
    let (longest, what) = tally.longest();
    let done = tally.done.load(Ordering::Relaxed);
    println!("{done} operations, {rounds} rounds; the longest, a {what}, took {longest:?}");
    assert_eq!(tally.errors(), Vec::<String>::new());
    let limit = number("MILLPOND_LONGEST_MS", 20_000);
    assert!(longest < Duration::from_millis(limit as u64), "a {what} took {longest:?}");
    host.umount(&target);
}

/// What a folder shows: the length of each name's file.
fn shown(folder: &Path) -> BTreeMap<u64, u64> {
    let len = |name: u64| fs::metadata(folder.join(name.to_string())).map(|data| data.len());
    (0..NAMES).filter_map(|name| len(name).ok().map(|len| (name, len))).collect()
}

/// Changes one of the names in a folder.
fn change(folder: &Path, rng: &mut Rng) {
    let path = |name: u64| folder.join(name.to_string());
    let (one, other) = (path(rng.below(NAMES)), path(rng.below(NAMES)));
    let done = match rng.below(4) {
        0 => fs::remove_file(&one),
        1 => fs::rename(&one, &other),
        2 => fs::hard_link(&one, &other),
        _ => fs::write(&one, vec![7; usize::try_from(rng.below(9000)).unwrap()]),
    };
    if let Err(error) = done {
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::NotFound | ErrorKind::AlreadyExists),
            "{}: {error}",
            one.display()
        );
    }
}

/// What a mount keeps of names and attributes, it keeps for ten seconds: a change that it misses is seen
/// later than this test waits.
#[test]
fn a_mount_misses_no_change_when_metas_and_daemons_die() {
    if left_out() || etcd_left_out() {
        return;
    }
    let mut servers = Servers::start();
    let addresses = servers.addresses();
    let [here, there] = [(); 2].map(|()| Host::at(servers.folder.path(), addresses.clone(), HANG));
    let (one, two) = (here.mount("one", ""), there.mount("two", ""));
    let (mut rng, mut longest) = (Rng::new(5), Duration::ZERO);
    for round in 0..number("MILLPOND_HEAR_ROUNDS", 24) {
        // All of it is kept there, names that are not there too.
        assert_eq!(shown(&one), shown(&two), "round {round}");
        let dies = round / 2 % 4;
        match (round % 2, dies) {
            (0, 3) => there.kill_daemon(),
            (0, meta) => servers.managers[meta].kill(),
            _ => {}
        }
        for _ in 0..10 {
            change(&one, &mut rng);
        }
        let wanted = shown(&one);
        let ((), took) =
            until("the other mount to see it", || (shown(&two) == wanted).then_some(()));
        longest = longest.max(took);
        if round % 2 == 0 && dies < 3 {
            servers.managers[dies].run();
        }
    }
    println!("the longest until all was seen: {longest:?}");
    assert!(longest < Duration::from_secs(6), "a change was missed: {longest:?}");
}

/// Writes files and fsyncs them until that fails; the ones whose fsync returned.
fn write_until_it_fails(
    folder: &Path,
    seed: u64,
    (over, count): (&AtomicBool, &AtomicUsize),
) -> Vec<(PathBuf, Vec<u8>)> {
    let mut rng = Rng::new(seed);
    let mut durable = Vec::new();
    for n in 0.. {
        let path = folder.join(format!("{seed}-{n}"));
        let mut bytes = vec![0; usize::try_from(1 + rng.below(300_000)).unwrap()];
        rng.fill(&mut bytes);
        let written = File::create_new(&path).and_then(|mut file| {
            let (left, right) = bytes.split_at(bytes.len() / 2);
            file.write_all(left)?;
            file.sync_all()?;
            file.write_all(right)?;
            file.sync_all()
        });
        match written {
            Ok(()) => durable.push((path, bytes)),
            Err(_) => assert!(over.load(Ordering::Acquire), "{} failed too early", path.display()),
        }
        if over.load(Ordering::Acquire) {
            break;
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
    durable
}

#[test]
fn what_was_fsynced_survives_the_loss_of_everything() {
    if left_out() {
        return;
    }
    for options in ["", "mode=one-writer"] {
        lose_everything(options);
    }
}

fn lose_everything(options: &str) {
    let mut cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.mount("before", options);
    let (over, count, durable) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::default());
    thread::scope(|scope| {
        for seed in 0..4 {
            let (target, over, count, durable) = (&target, &over, &count, &durable);
            scope.spawn(move || {
                let written = write_until_it_fails(target, seed, (over, count));
                let mut all: std::sync::MutexGuard<'_, Vec<_>> = durable.lock().unwrap();
                all.extend(written);
            });
        }
        let ends = Ends(&over);
        let started = Instant::now();
        until("files are written", || {
            let enough = if started.elapsed() < PROMPT { 60 } else { FEW };
            (count.load(Ordering::Relaxed) > enough).then_some(())
        });
        drop(ends);
        let status = host.status().unwrap();
        for node in &mut cluster.nodes {
            node.kill();
        }
        cluster.manager.kill();
        // The holder too: nobody takes the mount over.
        signal(status.holder_pid, ProcessSignal::Kill);
        signal(status.pid, ProcessSignal::Kill);
    });
    // The daemon may have lived long enough to do so by itself.
    let _ = host.run(&["umount", "-l", target.to_str().unwrap()]);
    assert!(!is_mounted(&target));
    cluster.manager.run();
    cluster.nodes.iter_mut().for_each(Process::run);
    until("every replica serves", || cluster.nodes[0].all_serve().then_some(()));
    let after = host.mount("after", "");
    let durable = durable.into_inner().unwrap();
    println!("{} files were fsynced", durable.len());
    assert!(durable.len() > FEW);
    for (path, bytes) in durable {
        let read = fs::read(after.join(path.file_name().unwrap())).unwrap();
        assert!(read == bytes, "{}: {} of {} bytes", path.display(), read.len(), bytes.len());
    }
    host.umount(&after);
}

/// Whether a thread (`/proc/PID/task/TID`) stands in the kernel, where no signal reaches it.
fn is_stuck(task: &Path) -> bool {
    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|it| it.starts_with(" D"))
}

/// Whether a thread of a process does.
fn has_stuck(pid: u32) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.any(|task| task.is_ok_and(|task| is_stuck(&task.path())))
}

/// A daemon has the kernel drop pages that somebody reads, and the kernel waits for the read, which waits for that daemon. Killed
/// then it cannot end before the next one has answered.
#[test]
fn a_daemon_that_is_killed_while_it_stands_in_the_kernel_is_replaced() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let (one, two) = (host.mount("one", ""), host.mount("two", ""));
    fs::write(one.join("file"), vec![7; 1 << 20]).unwrap();
    let file = File::open(two.join("file")).unwrap();
    for node in &cluster.nodes {
        node.stand_still();
    }
    thread::scope(|scope| {
        let (sender, task) = mpsc::channel();
        let file = &file;
        let reader = scope.spawn(move || {
            sender.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            (&*file).read(&mut [0; 4096]).unwrap()
        });
        let task = Path::new("/proc").join(task.recv().unwrap());
        until("the read waits for its pages", || is_stuck(&task).then_some(()));
        let cut = scope.spawn(|| File::create(one.join("file")).unwrap());
        let daemon = host.status().unwrap().pid;
        until("a thread of the daemon waits for the read", || has_stuck(daemon).then_some(()));
        host.kill_daemon();
        assert!(host.log().contains("the kernel keeps it"), "{}", host.log());
        for node in &cluster.nodes {
            node.signal("CONT");
        }
        reader.join().unwrap();
        cut.join().unwrap();
    });
    fs::write(one.join("file"), "goes on").unwrap();
    assert_eq!(fs::read(two.join("file")).unwrap(), b"goes on");
}
