//! Mounts without the rights of root, through the real `fusermount3`; and what others than root do on a mount.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use super::HANG;
use super::host::{Host, left_out};
use crate::process::{Cluster, until};

const NOBODY: u32 = 65_534;

/// In a view of the file system that ends with the process; there the device is open to all.
const AS_NOBODY: &str = r#"
    mknod -m 666 "$1/fuse" c 10 229
    mount --bind "$1/fuse" /dev/fuse
    exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -euxc "$3" "$1" "$2"
"#;

/// `$0` is the folder and `$1` the cluster.
const SESSION: &str = r#"
    cd "$0"
    export MILLPOND_RUN_DIR="$0/run"
    ./millpond mount "$1" mount -o noallow_other
    trap './millpond umount -l mount' EXIT
    echo content > mount/of-nobody
    daemon=$(./millpond mounts --json | grep '"pid"' | tr -dc 0-9)
    kill -9 "$daemon"
    test "$(cat mount/of-nobody)" = content
    ./millpond mounts upgrade
    mv mount/of-nobody mount/renamed
    ./millpond umount mount
    trap - EXIT
    test ! -e mount/renamed
    if ./millpond mount "$1" mount -o noallow_other,mode=lax; then exit 1; fi
"#;

#[test]
fn a_user_has_a_holder_too() {
    if left_out() {
        return;
    }
    if Command::new("fusermount3").arg("--version").output().is_err() {
        println!("left out: fusermount3 (package fuse3) is not installed");
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let root = host.mount("root", "");
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    // The folders of the build and of the cluster may be closed to others.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_millpond"), folder.path().join("millpond")).unwrap();
    let target = folder.path().join("mount");
    fs::create_dir(&target).unwrap();
    chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", AS_NOBODY, "sh"])
        .arg(folder.path())
        .args([&host.addresses, SESSION])
        .output()
        .unwrap();
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let log = fs::read_to_string(folder.path().join("run/mount.log")).unwrap_or_default();
    assert!(done.status.success(), "{}\n{log}", said.concat());
    assert!(log.contains("served again after"), "{log}");
    assert_eq!(fs::read_to_string(root.join("renamed")).unwrap(), "content\n");
}

/// Runs a line of a shell as nobody; `$0` is the file.
fn as_nobody(line: &str, path: &Path) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-euc", line]);
    assert!(command.arg(path).status().unwrap().success(), "{line}");
}

#[test]
fn who_writes_to_a_program_of_others_takes_its_set_ids_away() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    // The folder of the cluster may be closed to others.
    fs::set_permissions(cluster.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let over = "printf x | dd of=\"$0\" conv=notrunc bs=1 status=none";
    for mode in ["strict", "close-to-open", "one-writer"] {
        let path = host.mount(mode, &format!("mode={mode}")).join(mode);
        let longer = "fallocate -l 100 \"$0\"";
        for line in [over, ": > \"$0\"", "truncate -s 3 \"$0\"", longer] {
            fs::write(&path, "content").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
            as_nobody(line, &path);
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(found, 0o777, "{mode}: {line}: {found:o}");
        }
        // Whoever gives it to another owner takes them away too; a directory keeps them.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        chown(&path, Some(NOBODY), None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o777, "{mode}");
        let dir = path.with_extension("dir");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
        chown(&dir, Some(NOBODY), None).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, 0o2777, "{mode}");
    }
}

/// What setcap(8) does, and whether a file has capabilities.
const SET_CAPABILITY: &str = "import os, sys
os.setxattr(sys.argv[1], 'security.capability', bytes.fromhex('0100000200040000' + '00' * 12))";
const HAS_CAPABILITY: &str = "import os, sys
os.getxattr(sys.argv[1], 'security.capability')";

/// A way to change the bytes of an open file.
type Write = fn(&mut File);

fn python(program: &str, path: &Path) -> bool {
    Command::new("python3").args(["-c", program]).arg(path).output().unwrap().status.success()
}

/// The kernel asks for them once, and not before every write: who has the file open takes away what somebody else
/// gave it since.
#[test]
fn who_writes_to_a_program_takes_its_capabilities_away() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let (host, elsewhere) = (Host::new(&cluster, HANG), Host::new(&cluster, HANG));
    let here = host.mount("here", "").join("program");
    let there = elsewhere.mount("there", "").join("program");
    let mut open = File::create(&here).unwrap();
    let ways: [Write; 3] = [
        |file| file.write_all(b"bytes").unwrap(),
        |file| file.set_len(3).unwrap(),
        |file| file.write_all(&[7].repeat(100_000)).unwrap(),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        // The kernel has asked now.
        open.write_all(b"first").unwrap();
        assert!(python(SET_CAPABILITY, &there) && python(HAS_CAPABILITY, &there), "{n}");
        until("word of it comes", || python(HAS_CAPABILITY, &here).then_some(()));
        way(&mut open);
        assert!(!python(HAS_CAPABILITY, &there), "way {n}");
    }
    drop(open);
    // By their paths, and as root, who may keep set-user-id bits.
    for line in
        ["printf x >> \"$0\"", ": > \"$0\"", "truncate -s 3 \"$0\"", "fallocate -l 100 \"$0\""]
    {
        assert!(python(SET_CAPABILITY, &here), "{line}");
        assert!(Command::new("sh").args(["-euc", line]).arg(&here).status().unwrap().success());
        assert!(!python(HAS_CAPABILITY, &here), "{line}");
    }
}
