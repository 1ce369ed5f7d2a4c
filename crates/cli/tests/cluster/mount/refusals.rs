//! What cannot be mounted: one line that names the fix, and nothing is left mounted.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use millpond_fuse_wire::mounts;
use millpond_store::{EmbeddedBackend, EmbeddedOptions, Store, StoreError};
use millpond_types::meta::{Layout, Timestamp, VOLUME_FORMAT, VolumeRecord, keys};
use millpond_types::wire::Record as _;

use super::HANG;
use super::host::{Host, ended, left_out};
use crate::process::Cluster;

/// Who waits for an error waits for seconds.
const SECONDS: Duration = Duration::from_secs(15);

/// The command failed with one line that has `part` in it, and `host` has `left` mounts.
fn refused(host: &Host, done: &Output, part: &str, left: usize) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "it worked; wanted: {part}");
    assert!(said.contains(part), "'{said}' does not say '{part}'");
    assert!(said.starts_with("millpond: ") && said.trim_end().lines().count() == 1, "{said}");
    let mounted = mounts().unwrap();
    let found = mounted.iter().filter(|mount| mount.target.starts_with(&host.folder)).count();
    assert_eq!(found, left, "{part}");
}

#[test]
fn bad_input_is_refused_in_one_line() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let target = host.folder.join("new");
    std::fs::create_dir(&target).unwrap();
    let (target, addresses) = (target.to_str().unwrap(), &*host.addresses);
    let missing = format!("{target}/missing");
    let (log, other) = (format!("{missing}/log"), format!("{}/other", host.folder.display()));
    let file = host.folder.join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["127.0.0.1:1", target], "cannot reach"),
        (&[&silent, target], "does not answer within 5s"),
        (&[addresses, &missing], "mkdir -p"),
        (&[addresses, file], "choose a directory"),
        (&[addresses, target, "-o", "mode=lax"], "close-to-open"),
        (&[addresses, target, "-o", "ro,fast"], "is not an option"),
        (&[addresses, target, "-o", "memory=1MiB"], "use memory=6MiB or more, or threads=3"),
        (&[addresses, target, "-o", "bandwidth=fast"], "use a number of bytes a second"),
        (&[addresses, target, "--run-dir", &other, "--log-file", &log], "--log-file"),
        (&[addresses, target, "--run-dir", &missing], "choose another one with --run-dir"),
    ];
    for (args, part) in cases {
        let started = Instant::now();
        let done = host.run(&[&["mount"], *args].concat());
        refused(&host, &done, part, 0);
        assert!(started.elapsed() < SECONDS, "{part}: {:?}", started.elapsed());
    }
    let theirs = host.folder.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(65_534), None).unwrap();
    let run_dir = ["--run-dir", theirs.to_str().unwrap()];
    let done = host.run(&[&["mount", addresses, target], &run_dir[..]].concat());
    refused(&host, &done, "belongs to user 65534", 0);

    host.mount("new", "");
    let done = host.run(&["mount", addresses, target]);
    refused(&host, &done, "already", 1);
    refused(&host, &host.run(&["umount", &missing]), "`millpond mounts` lists", 1);
    let elsewhere = host.folder.to_str().unwrap();
    refused(&host, &host.run(&["umount", elsewhere]), "is not a mount", 1);
    let done = host.run(&["mounts", "upgrade", "--program", &missing]);
    refused(&host, &done, "--program", 1);
    let status = host.status().unwrap();
    host.umount(target.as_ref());
    ended(&status);
    refused(&host, &host.run(&["mounts", "upgrade"]), "no mount daemon", 0);
}

/// Hides `/dev/fuse`, in a view of the file system that ends with the process.
const NO_DEVICE: &str = r#"
    mkdir "$1/dev"
    mount -t tmpfs none "$1/dev"
    mknod -m 666 "$1/dev/null" c 1 3
    mount --bind "$1/dev" /dev
    exec "$2" mount --foreground "$3" "$4"
"#;

#[test]
fn without_device_or_rights_there_is_no_mount() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1, 1);
    let host = Host::new(&cluster, HANG);
    let (folder, program) = (host.folder.to_str().unwrap(), env!("CARGO_BIN_EXE_millpond"));
    let target = host.folder.join("new");
    std::fs::create_dir(&target).unwrap();
    let target = target.to_str().unwrap();
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", NO_DEVICE, "sh", folder])
        .args([program, &host.addresses, target])
        .output()
        .unwrap();
    refused(&host, &done, "/dev/fuse is missing", 0);
    let done = Command::new("setpriv")
        .args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", program])
        .args(["mount", "--run-dir", host.run_dir.path().to_str().unwrap()])
        .args([&host.addresses, target])
        .output()
        .unwrap();
    // Where fusermount3 is installed it is asked, and may not either.
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let part = if said.contains("fusermount3") { "fusermount3" } else { "no right to mount" };
    refused(&host, &done, part, 0);
}

#[test]
fn a_volume_of_a_newer_format_is_refused() {
    if left_out() {
        return;
    }
    let mut cluster = Cluster::start(1, 1);
    cluster.manager.stop();
    let folder = cluster.folder.path().join("manager/meta");
    assert!(folder.is_dir(), "the manager's store is where this test looks for it");
    let record = VolumeRecord {
        format: VOLUME_FORMAT + 1,
        layout: Layout::NONE,
        created: Timestamp { secs: 1, nanos: 0 },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let backend = EmbeddedBackend::open(&EmbeddedOptions::new(folder)).unwrap();
        let store = Store::new(std::sync::Arc::new(backend));
        let put = store.transact(|txn| async move { txn.put(keys::VOLUME, record.seal()) });
        let put: Result<(), StoreError> = put.await;
        put.unwrap();
    });
    cluster.manager.run();
    let host = Host::new(&cluster, HANG);
    let target = host.folder.join("new");
    std::fs::create_dir(&target).unwrap();
    let done = host.run(&["mount", &host.addresses, target.to_str().unwrap()]);
    refused(&host, &done, "format", 0);
}
