//! Commands that work on what a mount shows: `millpond trash`, `millpond warmup` and `millpond quota`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::HANG;
use super::host::{Host, left_out};
use crate::process::{Cluster, until};

fn refused(done: &Output) -> String {
    assert!(!done.status.success());
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn what_is_removed_is_restored_by_its_path() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    for mode in ["strict", "close-to-open"] {
        let mount = host.mount(mode, &format!("mode={mode}"));
        restores(&host, &mount.join(mode));
    }
    let checked = host.must(&["fsck", &host.addresses, "--settle", "0"]);
    assert!(checked.contains("clean"), "{checked}");
}

#[test]
fn a_line_of_fstab_mounts() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.folder.join("pond");
    fs::create_dir_all(&target).unwrap();
    let program = host.folder.join("mount.millpond");
    symlink(env!("CARGO_BIN_EXE_millpond"), &program).unwrap();
    // As mount(8) calls it.
    let mounts = |options: &str| {
        let run_dir = format!("run_dir={},{options}", host.run_dir.path().display());
        let mut command = Command::new(&program);
        command.arg(&host.addresses).arg(&target).args(["-v", "-n", "-o", &run_dir]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    assert!(refused(&mounts("rw,modes=strict")).contains("modes=strict"));
    assert!(refused(&mounts("remount,ro")).contains("umount"));
    let done = mounts("rw,noauto,_netdev,nofail,noatime,x-systemd.automount,mode=strict");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    fs::write(target.join("k"), "value").unwrap();
    assert_eq!(host.listed()[0].mode, "strict");
    host.umount(&target);
}

/// Removes and restores in a new folder of a mount.
fn restores(host: &Host, team: &Path) {
    fs::create_dir_all(team.join("old")).unwrap();
    let path = |text: &str| team.join(text).to_str().unwrap().to_owned();
    let top = team.to_str().unwrap();
    host.must(&["trash", "set", top, "--keep", "7d"]);

    fs::create_dir_all(team.join("a/b")).unwrap();
    for (text, content) in [("a/b/deep", "deep"), ("old/f", "first"), ("open", "some")] {
        fs::write(team.join(text), content).unwrap();
    }
    let mut open = File::options().read(true).append(true).open(team.join("open")).unwrap();
    for text in ["old/f", "open"] {
        fs::remove_file(team.join(text)).unwrap();
    }
    fs::write(team.join("old/f"), "second").unwrap();
    fs::write(team.join("new"), "third").unwrap();
    fs::rename(team.join("new"), team.join("old/f")).unwrap();
    fs::remove_dir_all(team.join("a")).unwrap();
    assert!(!team.join("a").exists() && fs::read_dir(team).unwrap().count() == 1);

    let listed = host.must(&["trash", "list", top, "-r", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let mut paths: Vec<&str> =
        listed.as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, [path("a"), path("old/f"), path("old/f"), path("open")]);
    let shown = host.must(&["trash", "list", top]);
    assert!(shown.contains("keeps removed files for 7d") && shown.contains("open"), "{shown}");

    // Who had it open goes on, and what was written then is there afterwards.
    open.write_all(b" more").unwrap();
    open.sync_all().unwrap();
    host.must(&["trash", "restore", &path("a"), &path("open")]);
    // Another session did it: the mount hears of it.
    until("both are seen", || {
        let is_there = |text| team.join(text).exists();
        (is_there("open") && is_there("a/b/deep")).then_some(())
    });
    assert_eq!(fs::read_to_string(team.join("open")).unwrap(), "some more");
    assert_eq!(fs::read_to_string(team.join("a/b/deep")).unwrap(), "deep");
    let mut seen = String::new();
    File::open(team.join("open")).unwrap().read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "some more");

    let taken = refused(&host.run(&["trash", "restore", &path("old/f")]));
    assert!(taken.contains("--as"), "{taken}");
    host.must(&["trash", "restore", &path("old/f"), "--as", "second"]);
    host.must(&["trash", "restore", &path("old/f"), "--as", "first"]);
    for text in ["first", "second"] {
        until("it is seen", || team.join("old").join(text).exists().then_some(()));
        assert_eq!(fs::read_to_string(team.join("old").join(text)).unwrap(), text);
    }
    let none = refused(&host.run(&["trash", "restore", &path("old/f")]));
    assert!(none.contains("no removed file of that name"), "{none}");

    fs::remove_dir_all(team.join("a")).unwrap();
    host.must(&["trash", "empty", top, "--older-than", "1h"]);
    assert!(host.must(&["trash", "list", top]).contains("dir"), "it is not old");
    host.must(&["trash", "empty", top]);
    let shown = host.must(&["trash", "list", top, "-r", "--json"]);
    assert_eq!(shown.trim(), "[]");
}

#[test]
fn files_are_warmed_up() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let mount = host.mount("one", "");
    fs::create_dir_all(mount.join("models/empty")).unwrap();
    for n in 0..20 {
        fs::write(mount.join(format!("models/{n}")), vec![n; 50_000]).unwrap();
    }
    fs::write(mount.join("models/large"), vec![7; 3_000_000]).unwrap();
    std::os::unix::fs::symlink("large", mount.join("models/link")).unwrap();
    let models = mount.join("models");
    let models = models.to_str().unwrap();
    let told = host.must(&["warmup", models, "--threads", "4", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["files"], &told["bytes"]), (&21.into(), &4_000_000.into()), "{told}");
    assert_eq!((&told["failed"], &told["finished"]), (&0.into(), &true.into()));
    let away = refused(&host.run(&["warmup", models, "/there/is/none"]));
    assert!(away.contains("/there/is/none"), "{away}");
}

#[test]
fn a_file_that_a_quota_refused_can_be_cut_while_it_is_open() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for mode in ["strict", "close-to-open"] {
        let folder = host.mount(mode, &format!("mode={mode}")).join(mode);
        fs::create_dir(&folder).unwrap();
        host.must(&["quota", folder.to_str().unwrap(), "--bytes", "1MiB"]);
        refused_and_cut(&folder.join("file"));
    }
}

#[test]
fn a_quota_that_is_used_up_is_told_at_write() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for mode in ["strict", "close-to-open", "relaxed"] {
        let folder = host.mount(mode, &format!("mode={mode}")).join(mode);
        fs::create_dir(&folder).unwrap();
        host.must(&["quota", folder.to_str().unwrap(), "--bytes", "1MiB"]);
        fs::create_dir_all(folder.join("deep/er")).unwrap();
        let (large, small) = (folder.join("large"), folder.join("deep/er/small"));
        fs::write(&large, vec![7; 1 << 20]).unwrap();
        // The first to meet it may hear of it at its close alone, and so not at all.
        for bytes in [vec![8; 10], vec![9; 100_000]] {
            let told = File::create(folder.join("first")).and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            });
            assert_eq!(told.unwrap_err().raw_os_error(), Some(libc::EDQUOT), "{mode}");
        }
        let append = || {
            let echo = ["-c", "echo some text >>\"$1\"", "sh"];
            Command::new("bash").args(echo).arg(&small).output().unwrap()
        };
        let told = append();
        let said = String::from_utf8_lossy(&told.stderr);
        assert!(!told.status.success() && said.contains("quota"), "{mode}: '{said}'");
        fs::remove_file(&large).unwrap();
        let _ = until("there is room again", || append().status.success().then_some(()));
        assert!(fs::read_to_string(&small).unwrap().ends_with("some text\n"));
    }
}

/// Appends more than there is room for, twice: who wrote hears of it once each time, and goes on. In a process of its own: the
/// next close hears of it too, and that is any process to which a descriptor was handed down.
const REFUSED_AND_CUT: &str = r#"
import errno, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL)
KIB = 1 << 10

def write(bytes, count):
    while count:
        count -= os.write(file, bytes * count)

def is_refused(*calls):
    try:
        for call in calls:
            call()
    except OSError as error:
        assert error.errno == errno.EDQUOT, error
    else:
        raise AssertionError("it was not refused")

for _ in range(2):
    write(b"7", 900 * KIB)
    os.fsync(file)
    is_refused(lambda: write(b"8", 400 * KIB), lambda: os.fsync(file))
    os.fsync(file)
    assert 900 * KIB <= os.fstat(file).st_size <= 1024 * KIB, os.fstat(file)
    os.fchmod(file, 0o600)
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
# Nobody has heard of it, and the file is cut.
write(b"7", 900 * KIB)
os.fsync(file)
try:
    write(b"8", 400 * KIB)
    is_told = False
except OSError as error:
    assert error.errno == errno.EDQUOT, error
    is_told = True
os.fchmod(file, 0o640)
os.ftruncate(file, 1000)
assert os.fstat(file).st_size == 1000
if not is_told:
    is_refused(lambda: os.fsync(file))
os.fsync(file)
assert os.pread(file, 2000, 0) == b"7" * 1000
"#;

fn refused_and_cut(path: &Path) {
    let done = Command::new("python3").args(["-c", REFUSED_AND_CUT]).arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", path.display());
}
