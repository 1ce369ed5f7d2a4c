//! Mounting without root, through the real `fusermount3`.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use millpond_fuse_wire::{InitWishes, MountOptions, mount, mounts, unmount};

use crate::guard::handshake;

/// The environment variable with the target for the unprivileged process.
const TARGET: &str = "MILLPOND_FUSE_WIRE_TARGET";
const NOBODY: u32 = 65_534;
const AS_NOBODY: &str = r#"
    mknod -m 666 "$1/fuse" c 10 229
    mount --bind "$1/fuse" /dev/fuse
    exec setpriv --reuid 65534 --regid 65534 --clear-groups \
        "$1/test" --exact helper::user --ignored --nocapture
"#;

#[test]
fn a_user_mounts_through_the_helper() {
    let installed = Command::new("fusermount3").arg("--version").output();
    if installed.is_err() {
        println!("left out: fusermount3 (package fuse3) is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build folder may be unreadable for other users.
    let program = folder.path().join("test");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let target = folder.path().join("mount");
    fs::create_dir(&target).unwrap();
    chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
    // A mount namespace of its own: there all users may open the device, and leftover mounts end
    // with the process.
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", AS_NOBODY, "sh"])
        .arg(folder.path())
        .env(TARGET, &target)
        .status();
    assert!(status.unwrap().success());
}

#[test]
#[ignore = "the user of the test above, who is a process of its own"]
fn user() {
    let Ok(target) = env::var(TARGET) else { return };
    let target = Path::new(&target);
    let options = MountOptions { fsname: "a,b".to_owned(), ..MountOptions::default() };
    let device = mount(target, &options).unwrap();
    let listed = mounts().unwrap();
    let ours = listed.iter().find(|mount| mount.target == target).unwrap();
    assert_eq!(ours.source, "a,b");
    handshake(&device, &InitWishes::default());
    unmount(target, false).unwrap();
    assert!(mounts().unwrap().iter().all(|mount| mount.target != target));
    let forbidden = MountOptions { allow_other: true, ..options };
    let error = mount(target, &forbidden).unwrap_err().to_string();
    assert!(error.contains("user_allow_other"), "{error}");
}
