//! A server on a raw block device: a loop device, where this user may make one.

use std::path::{Path, PathBuf};
use std::process::Command;

use millpond_types::wire::ItemStatus;

use super::harness::{MILLPOND, TestServer, fails};
use super::wire::{Wire, key};

/// A loop device, taken down when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// `None` where making one is not allowed (no root, no loop driver).
    fn new(folder: &Path) -> Option<Self> {
        let file = folder.join("device");
        std::fs::File::create(&file).unwrap().set_len(3 << 30).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        let name = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        if !made.status.success() || !Path::new(&name).exists() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            eprintln!("SKIPPED: no loop device can be made here: {why}");
            return None;
        }
        Some(Self(name.into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_keeps_values_through_kill_and_a_foreign_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::new(folder.path()) else { return };
    let name = device.0.display().to_string();
    let flags = [
        "server",
        "--data",
        &name,
        "--memory",
        "128MiB",
        "--cores",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--socket",
        "",
    ];
    let start = || {
        let mut command = Command::new(MILLPOND);
        // The records of its cluster are kept in the default folder.
        command.args(flags).current_dir(folder.path());
        TestServer::spawn(command, folder.path())
    };
    let value = vec![7; 3_000_000];
    let server = start();
    let mut wire = Wire::connect(&server);
    let namespace = wire.open_durable("model");
    assert_eq!(wire.put(namespace, &[(key("a"), &value[..])]), [ItemStatus::Ok]);
    // Restarted at once each time: the killed process's ring holds the device a moment longer.
    let mut server = server;
    for _ in 0..4 {
        server.kill();
        server = start();
        let mut wire = Wire::connect(&server);
        let namespace = wire.open_durable("model");
        assert_eq!(wire.get(namespace, &[key("a")])[0].as_deref(), Some(&value[..]));
    }
    server.stop();

    // Both copies of the superblock.
    std::fs::write(folder.path().join("foreign"), vec![0x5a; 64 << 10]).unwrap();
    let copied = Command::new("dd")
        .arg(format!("if={}", folder.path().join("foreign").display()))
        .arg(format!("of={name}"))
        .args(["bs=64k", "count=1", "conv=notrunc,fsync"])
        .output()
        .unwrap();
    assert!(copied.status.success());
    let error = fails(Command::new(MILLPOND).args(flags).current_dir(folder.path()));
    assert!(error.contains("not a Millpond disk"), "{error}");
}
