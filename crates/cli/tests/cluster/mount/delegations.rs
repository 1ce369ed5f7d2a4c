//! Directories that a mount in close-to-open has to itself: changes in them are answered before a meta has made them,
//! and nobody else sees anything of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use millpond_env::{ProcessSignal, Rng};

use super::HANG;
use super::host::{Host, left_out, signal};
use super::promises::{check, names, number, shuffle};
use crate::process::{Cluster, until};

const OPTIONS: &str = "mode=close-to-open";

fn delegated(host: &Host, mount: &Path) -> u64 {
    number(host, mount, "millpond_mount_delegated_directories")
}

fn recalled(host: &Host, mount: &Path) -> u64 {
    number(host, mount, "millpond_mount_recalled_directories_total")
}

/// Waits until metas give the mount what it makes: it has to have asked one before, and again where it returned
/// something late.
pub(super) fn until_given(host: &Host, mount: &Path) {
    until("the mount is given directories", || {
        let probe = mount.join("probe");
        fs::create_dir(&probe).unwrap();
        let is_given = delegated(host, mount) > 0;
        fs::remove_dir(&probe).unwrap();
        is_given.then_some(())
    });
}

/// A cluster that is mounted on two hosts.
fn two_hosts() -> Option<(Cluster, [Host; 2], [PathBuf; 2])> {
    if left_out() {
        return None;
    }
    let cluster = Cluster::start(3, 2);
    let hosts = [(); 2].map(|()| Host::new(&cluster, HANG));
    let mounts = [hosts[0].mount("one", OPTIONS), hosts[1].mount("two", OPTIONS)];
    until_given(&hosts[0], &mounts[0]);
    Some((cluster, hosts, mounts))
}

/// Whoever comes waits until the mount has told metas all that it answered, and sees that.
#[test]
fn others_see_what_was_answered_as_soon_as_they_look() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let (host, elsewhere) = (Host::new(&cluster, HANG), Host::new(&cluster, HANG));
    let mount = host.mount("one", OPTIONS);
    let others = ["mode=strict", OPTIONS].map(|options| {
        let name = if options == OPTIONS { "other" } else { "strict" };
        elsewhere.mount(name, options)
    });
    for (n, other) in others.iter().enumerate() {
        for round in 0..4 {
            until_given(&host, &mount);
            let folder = format!("round{n}{round}");
            fs::create_dir(mount.join(&folder)).unwrap();
            let there = shuffle(&mount.join(&folder), round, 150);
            assert!(delegated(&host, &mount) >= 4, "the directories are the mount's");
            check(&other.join(&folder), &there);
            check(&mount.join(&folder), &there);
        }
    }
    assert_eq!(delegated(&host, &mount), 0, "all of them were looked at");
    assert!(recalled(&host, &mount) >= 8, "at least each folder");
    assert_eq!(number(&host, &mount, "millpond_mount_broken_promises_total"), 0);
    // What nobody looked at is there after an unmount, and nobody waits for a mount that has gone.
    fs::create_dir(mount.join("last")).unwrap();
    let there = shuffle(&mount.join("last"), 99, 150);
    host.umount(&mount);
    let start = Instant::now();
    check(&others[0].join("last"), &there);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

/// Whoever walks through a tree is given more than he asks for, and does not wait at each directory.
#[test]
fn walking_through_a_tree_recalls_few() {
    let Some((_cluster, [host, _elsewhere], [mount, other])) = two_hosts() else { return };
    let mut dirs = vec!["tree".to_owned()];
    fs::create_dir(mount.join("tree")).unwrap();
    // A chain of directories with one in it each, so that none is listed together with another one.
    for n in 0..15 {
        let mut at = format!("tree/{n:02}");
        for _ in 0..20 {
            fs::create_dir(mount.join(&at)).unwrap();
            fs::write(mount.join(&at).join("file"), &at).unwrap();
            dirs.push(at.clone());
            at += "/d";
        }
    }
    assert_eq!(delegated(&host, &mount), dirs.len() as u64);
    // Where one is looked at, the others stay.
    assert!(other.join("tree").is_dir());
    assert_eq!(delegated(&host, &mount), dirs.len() as u64 - 1);
    for dir in &dirs[1..] {
        assert_eq!(&fs::read_to_string(other.join(dir).join("file")).unwrap(), dir);
    }
    assert_eq!(delegated(&host, &mount), 0, "all of them were looked at");
    let recalled = recalled(&host, &mount);
    assert!(recalled < 40, "{recalled} of {} directories were recalled", dirs.len());
}

/// A tree of files that say when they were written; directories have no content.
#[derive(Default)]
struct Tree(BTreeMap<String, Option<String>>);

impl Tree {
    /// A file, or a directory: the mount itself when there is none yet.
    fn pick(&self, rng: &mut Rng, is_dir: bool) -> Option<String> {
        let all = self.0.iter().filter(|(_, it)| it.is_none() == is_dir).map(|(path, _)| path);
        let all: Vec<&String> = all.collect();
        let n = usize::try_from(rng.below(all.len().max(1) as u64)).unwrap();
        all.get(n).map(|path| (*path).clone()).or_else(|| is_dir.then(|| ".".to_owned()))
    }

    /// Changes something through a mount.
    fn step(&mut self, mount: &Path, step: usize, rng: &mut Rng) {
        let new = format!("{}/{step}", self.pick(rng, true).unwrap());
        let file = self.pick(rng, false);
        let content = format!("written in {step}");
        match (rng.below(10), file) {
            (0 | 1, _) => {
                fs::create_dir(mount.join(&new)).unwrap();
                self.0.insert(new, None);
            }
            (6, Some(file)) => {
                fs::write(mount.join(&file), &content).unwrap();
                self.0.insert(file, Some(content));
            }
            (7, Some(file)) => {
                fs::rename(mount.join(&file), mount.join(&new)).unwrap();
                let content = self.0.remove(&file).unwrap();
                self.0.insert(new, content);
            }
            (8 | 9, Some(file)) => {
                fs::remove_file(mount.join(&file)).unwrap();
                self.0.remove(&file);
            }
            _ => {
                fs::write(mount.join(&new), &content).unwrap();
                self.0.insert(new, Some(content));
            }
        }
    }

    /// What a mount shows of a directory is what there is.
    fn check(&self, mount: &Path, dir: &str, step: usize) {
        let inside = |path: &str| path.rsplit_once('/').is_some_and(|(of, _)| of == dir);
        let all: Vec<(&String, &Option<String>)> =
            self.0.iter().filter(|(path, _)| inside(path)).collect();
        let last = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        let wanted: BTreeSet<String> = all.iter().map(|(path, _)| last(path)).collect();
        let mut found = names(&mount.join(dir));
        found.retain(|name| !name.starts_with('.'));
        assert_eq!(found, wanted, "step {step}: {dir}");
        for (path, content) in all {
            let Some(content) = content else { continue };
            let found = fs::read_to_string(mount.join(path)).unwrap();
            assert_eq!(&found, content, "step {step}: {path}");
        }
    }
}

/// Two mounts change one tree in turns, by chance: each sees at once all that the other one did.
#[test]
fn two_mounts_in_turns_see_one_tree() {
    let Some((_cluster, hosts, mounts)) = two_hosts() else { return };
    let (mut rng, mut tree) = (Rng::new(7), Tree::default());
    for step in 0..600 {
        tree.step(&mounts[usize::from(rng.below(2) == 0)], step, &mut rng);
        // Often a mount goes on by itself for some steps.
        if rng.below(3) == 0 {
            let dir = tree.pick(&mut rng, true).unwrap();
            tree.check(&mounts[usize::from(rng.below(2) == 0)], &dir, step);
        }
    }
    for (host, mount) in hosts.iter().zip(&mounts) {
        assert_eq!(number(host, mount, "millpond_mount_broken_promises_total"), 0);
    }
}

/// `kill -9` of the daemon between the answer and the meta's word for it: the next one tells metas, and gives back
/// what it knows nothing of any more.
#[test]
fn what_was_answered_outlives_the_daemon() {
    let Some((cluster, [host, _elsewhere], [mount, other])) = two_hosts() else { return };
    for round in 0..3 {
        let folder = mount.join(format!("round{round}"));
        fs::create_dir(&folder).unwrap();
        let file = |n: usize| folder.join(format!("file{n}"));
        (0..30).for_each(|n| fs::write(file(n), format!("{n}")).unwrap());
        until("all is kept", || {
            (number(&host, &mount, "millpond_mount_promised_changes") == 0).then_some(())
        });
        cluster.manager.stand_still();
        (0..20).for_each(|n| fs::remove_file(file(n)).unwrap());
        (30..35).for_each(|n| fs::write(file(n), format!("{n}")).unwrap());
        let open: Vec<File> = (35..40)
            .map(|n| {
                let mut file = File::create_new(file(n)).unwrap();
                write!(file, "{n}").unwrap();
                file
            })
            .collect();
        assert!(
            number(&host, &mount, "millpond_mount_promised_changes") >= 25,
            "closes wait for no meta"
        );
        host.kill_daemon();
        cluster.manager.signal("CONT");
        let wanted: BTreeSet<String> = (20..40).map(|n| format!("file{n}")).collect();
        let start = Instant::now();
        let there = other.join(format!("round{round}"));
        assert_eq!(names(&there), wanted);
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        drop(open);
        for n in 20..40 {
            assert_eq!(fs::read_to_string(there.join(format!("file{n}"))).unwrap(), n.to_string());
        }
        assert_eq!(names(&folder), wanted);
    }
}

/// A host that stands still is not waited for longer than some seconds, and believes nothing old when it goes on.
#[test]
fn who_stands_still_is_fenced() {
    let Some((cluster, [host, _elsewhere], [mount, other])) = two_hosts() else { return };
    for name in ["a", "b", "c"] {
        fs::create_dir(mount.join(name)).unwrap();
        fs::write(mount.join(name).join("file"), "old").unwrap();
    }
    until("metas have the files", || {
        (number(&host, &mount, "millpond_mount_promised_changes") == 0).then_some(())
    });
    // Closed, and no meta hears of it before the daemon stands still.
    cluster.manager.stand_still();
    for name in ["late", "taken"] {
        fs::write(mount.join("c").join(name), "answered").unwrap();
    }
    let daemon = host.status().unwrap().pid;
    signal(daemon, ProcessSignal::Stop);
    cluster.manager.signal("CONT");
    let start = Instant::now();
    fs::write(other.join("a/file"), "newer").unwrap();
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(4) && waited < Duration::from_secs(20), "{waited:?}");
    let start = Instant::now();
    fs::write(other.join("b/new"), "new").unwrap();
    fs::remove_file(other.join("b/file")).unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "one wait for all: {:?}", start.elapsed());
    // What was asked for before the daemon stood still may be done by now; most likely it is not.
    let is_others = File::create_new(other.join("c/taken")).is_ok_and(|mut file| {
        file.write_all(b"others'").unwrap();
        true
    });
    signal(daemon, ProcessSignal::Continue);
    until("what was answered is done where nobody else was", || {
        fs::read_to_string(other.join("c/late")).is_ok_and(|it| it == "answered").then_some(())
    });
    let there = if is_others { "others'" } else { "answered" };
    assert_eq!(fs::read_to_string(other.join("c/taken")).unwrap(), there);
    until("its mount sees the same", || {
        fs::read_to_string(mount.join("c/taken")).is_ok_and(|it| it == there).then_some(())
    });
    until("the mount sees the other one's bytes", || {
        (fs::read_to_string(mount.join("a/file")).unwrap() == "newer").then_some(())
    });
    until("and names", || {
        (names(&mount.join("b")) == BTreeSet::from(["new".to_owned()])).then_some(())
    });
    // It has directories of its own again.
    until("something is delegated", || {
        let name = format!("again{}", start.elapsed().as_millis());
        fs::create_dir(mount.join(name)).unwrap();
        thread::sleep(Duration::from_millis(10));
        (delegated(&host, &mount) > 0).then_some(())
    });
}
