//! A one-writer mount answers creates and unlinks before a meta has done them. Nothing of that is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use millpond_env::Rng;

use super::HANG;
use super::host::{Host, left_out};
use crate::process::{Cluster, until};

pub(super) fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
}

/// Names in some folders, and what the files of these names hold.
pub(super) type There = Vec<BTreeMap<String, String>>;

/// Changes of names in some folders, by chance; what must be there then.
pub(super) fn shuffle(folder: &Path, seed: u64, steps: usize) -> There {
    let mut rng = Rng::new(seed);
    let mut there: There = vec![BTreeMap::new(); 3];
    let path = |dir: usize, name: &str| folder.join(format!("dir{dir}")).join(name);
    for n in 0..there.len() {
        fs::create_dir(folder.join(format!("dir{n}"))).unwrap();
    }
    for step in 0..steps {
        let mut pick = || {
            let dir = usize::try_from(rng.below(3)).unwrap();
            (dir, format!("file{}", rng.below(12)))
        };
        let ((dir, name), (other, new)) = (pick(), pick());
        let (here, to) = (path(dir, &name), path(other, &new));
        let content = there[dir].get(&name).cloned();
        match (rng.below(8), content) {
            // Of two names of one file, a rename does nothing.
            (0, Some(content)) if there[other].get(&new) != Some(&content) => {
                fs::rename(&here, &to).unwrap();
                there[dir].remove(&name);
                there[other].insert(new, content);
            }
            (1, Some(content)) if !there[other].contains_key(&new) => {
                fs::hard_link(&here, &to).unwrap();
                assert_eq!(fs::metadata(&here).unwrap().len(), content.len() as u64);
                there[other].insert(new, content);
            }
            (2, None) => {
                fs::create_dir(&here).unwrap();
                drop(File::create_new(here.join("inside")).unwrap());
                fs::remove_file(here.join("inside")).unwrap();
                fs::remove_dir(&here).unwrap();
            }
            (_, Some(content)) => {
                assert_eq!(fs::read_to_string(&here).unwrap(), content, "{}", here.display());
                fs::remove_file(&here).unwrap();
                assert!(!here.exists(), "{} was removed", here.display());
                there[dir].remove(&name);
            }
            (_, None) => {
                let content = format!("{step} {name}");
                let mut file = File::create_new(&here).unwrap();
                file.write_all(content.as_bytes()).unwrap();
                drop(file);
                assert_eq!(fs::metadata(&here).unwrap().len(), content.len() as u64);
                there[dir].insert(name, content);
            }
        }
        if rng.below(16) == 0 {
            assert!(names(&folder.join(format!("dir{dir}"))).iter().eq(there[dir].keys()));
        }
    }
    there
}

/// What is below a folder is what it must be.
pub(super) fn check(folder: &Path, there: &There) {
    for (n, wanted) in there.iter().enumerate() {
        let dir = folder.join(format!("dir{n}"));
        assert!(names(&dir).iter().eq(wanted.keys()), "{}: {wanted:?}", dir.display());
        for (name, content) in wanted {
            assert_eq!(&fs::read_to_string(dir.join(name)).unwrap(), content);
        }
    }
}

fn promised(host: &Host, mount: &Path) -> u64 {
    number(host, mount, "millpond_mount_promised_changes")
}

/// A number of a mount's `.stats`.
pub(super) fn number(host: &Host, mount: &Path, name: &str) -> u64 {
    let page = fs::read_to_string(mount.join(".stats")).unwrap();
    let line = page.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{page}\n{}", host.log()))
}

#[test]
fn what_was_answered_is_there_elsewhere_and_after_an_unmount() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let (host, elsewhere) = (Host::new(&cluster, HANG), Host::new(&cluster, HANG));
    let mount = host.mount("writer", "mode=one-writer");
    let there = shuffle(&mount, 1, 400);
    check(&mount, &there);
    let other = elsewhere.mount("other", "mode=strict");
    until("no meta waits to be told", || (promised(&host, &mount) == 0).then_some(()));
    check(&other, &there);
    // Right after an unmount everything is there.
    fs::create_dir(mount.join("again")).unwrap();
    let there = shuffle(&mount.join("again"), 2, 200);
    host.umount(&mount);
    check(&other.join("again"), &there);
    elsewhere.umount(&other);
}

/// `kill -9` of the daemon between the answer and the meta's word for it.
#[test]
fn what_was_answered_outlives_the_daemon() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let (host, elsewhere) = (Host::new(&cluster, HANG), Host::new(&cluster, HANG));
    let mount = host.mount("writer", "mode=one-writer");
    let other = elsewhere.mount("other", "mode=strict");
    for round in 0..3 {
        let folder = mount.join(format!("round{round}"));
        fs::create_dir(&folder).unwrap();
        let file = |n: usize| folder.join(format!("file{n}"));
        // Names that a mount knows not to be there are promised, and names that it made.
        assert!((0..50).all(|n| !file(n).exists()));
        (0..10).for_each(|n| drop(File::create(file(n)).unwrap()));
        cluster.manager.stand_still();
        for n in 10..50 {
            let mut file = File::create(file(n)).unwrap();
            write!(file, "{n} of {round}").unwrap();
            if n % 10 == 0 {
                // Its bytes are promised before it is closed: then the kernel says when it wrote them.
                thread::sleep(Duration::from_millis(40));
            }
        }
        (0..20).for_each(|n| fs::remove_file(file(n)).unwrap());
        assert!(promised(&host, &mount) >= 60);
        host.kill_daemon();
        cluster.manager.signal("CONT");
        let wanted: BTreeSet<String> = (20..50).map(|n| format!("file{n}")).collect();
        assert_eq!(names(&folder), wanted, "a listing waits for all of it");
        assert_eq!(names(&other.join(format!("round{round}"))), wanted);
        for n in 20..50 {
            let there = other.join(format!("round{round}/file{n}"));
            assert_eq!(fs::read_to_string(there).unwrap(), format!("{n} of {round}"));
        }
    }
    host.umount(&mount);
}

/// No meta answers: applications go on, fsync waits, and nothing is lost.
#[test]
fn fsync_waits_for_what_was_answered() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let mount = host.mount("writer", "mode=one-writer");
    // The directory and the names are known, and numbers are there.
    drop(File::create(mount.join("first")).unwrap());
    assert!(!mount.join("second").exists() && !mount.join("third").exists());
    until("the first one is kept", || (promised(&host, &mount) == 0).then_some(()));
    cluster.manager.stand_still();
    let file = File::create(mount.join("second")).unwrap();
    drop(File::create(mount.join("third")).unwrap());
    assert_eq!(promised(&host, &mount), 2);
    let dir = File::open(&mount).unwrap();
    let synced = [file, dir].map(|it| thread::spawn(move || it.sync_all()));
    thread::sleep(Duration::from_millis(300));
    assert!(synced.iter().all(|it| !it.is_finished()), "nobody can know that it is durable");
    cluster.manager.signal("CONT");
    for it in synced {
        it.join().unwrap().unwrap();
    }
    let elsewhere = Host::new(&cluster, HANG);
    let other = elsewhere.mount("other", "mode=strict");
    assert!(other.join("second").exists() && other.join("third").exists());
}

/// Somebody breaks the rule that nobody else writes: whoever asks is told, and nothing false stays.
#[test]
fn a_promise_that_cannot_be_kept_is_told_at_fsync() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let (host, elsewhere) = (Host::new(&cluster, HANG), Host::new(&cluster, HANG));
    let mount = host.mount("writer", "mode=one-writer");
    let other = elsewhere.mount("other", "mode=strict");
    drop(File::create(mount.join("first")).unwrap());
    assert!(!mount.join("name").exists());
    fs::write(other.join("name"), "theirs").unwrap();
    // Not exclusively: the kernel would look the name up once more.
    let file = File::create(mount.join("name")).unwrap();
    let error = file.sync_all().expect_err("somebody else made a file of that name");
    assert_eq!(error.raw_os_error(), Some(17), "{error}");
    drop(file);
    assert_eq!(fs::read(mount.join("name")).unwrap(), b"theirs");
    let log = host.log();
    assert!(log.contains("acknowledged but failed: EEXIST"), "{log}");
}
