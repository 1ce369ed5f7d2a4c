//! What depends on settings of the kernel: larger requests, and requests over `io_uring`. The settings are
//! those of the whole host, so one test at a time changes them, and puts them back.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use millpond_env::{ProcessSignal, Rng};

use super::HANG;
use super::host::{Host, left_out, signal};
use super::watch::stats;
use crate::process::{Cluster, until};

const PAGES: &str = "/proc/sys/fs/fuse/max_pages_limit";
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// A setting of the kernel that is another one while this lives.
struct Setting {
    path: PathBuf,
    before: String,
    /// Locked against other processes that do the same.
    _lock: File,
}

impl Setting {
    /// Says why when it cannot be changed.
    fn change(path: &str, value: &str) -> Option<Self> {
        let lock = std::env::temp_dir().join("millpond-tests-of-kernel-settings");
        let lock = OpenOptions::new().create(true).append(true).open(lock).unwrap();
        lock.lock().unwrap();
        let tried =
            fs::read_to_string(path).and_then(|before| fs::write(path, value).map(|()| before));
        match tried {
            Ok(before) => Some(Self { path: path.into(), before, _lock: lock }),
            Err(error) => {
                println!("left out: {path} cannot be changed: {error}");
                None
            }
        }
    }

    fn set(&self, value: &str) {
        fs::write(&self.path, value).unwrap();
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        fs::write(&self.path, self.before.trim()).unwrap();
    }
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

/// Bytes of requests of an operation, and how many there were.
fn requests(target: &Path, operation: &str, bytes: &str) -> [u64; 2] {
    let now = stats(target);
    let count = format!("operation_seconds_count{{operation=\"{operation}\"}}");
    [now[bytes], now.get(&count).copied().unwrap_or(0)]
}

#[test]
fn requests_are_as_large_as_the_kernel_allows() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let Some(setting) = Setting::change(PAGES, "1024") else { return };
    let target = host.mount("large", "noread_ahead");
    drop(setting);
    let content = random(5, 16 << 20);
    let path = target.join("file");
    direct(&path).write_all_at(&content, 0).unwrap();
    let [bytes, count] = requests(&target, "write", "written_bytes_total");
    println!("{count} requests wrote {bytes} bytes");
    assert!(bytes == 16 << 20 && bytes / count > 2 << 20, "{bytes} in {count}");
    let mut read = vec![0; content.len()];
    direct(&path).read_exact_at(&mut read, 0).unwrap();
    assert!(read == content, "other bytes came back");
    let [bytes, count] = requests(&target, "read", "read_bytes_total");
    println!("{count} requests read {bytes} bytes");
    assert!(bytes == 16 << 20 && bytes / count > 2 << 20, "{bytes} in {count}");
    // Less memory, smaller requests; and after a daemon's death they are what they were.
    host.kill_daemon();
    assert!(fs::read(&path).unwrap() == content);
    host.umount(&target);
}

/// Files are made, written, read and renamed by several threads.
fn used(folder: &Path) {
    thread::scope(|scope| {
        for worker in 0..8_u64 {
            scope.spawn(move || {
                let folder = folder.join(format!("worker{worker}"));
                fs::create_dir(&folder).unwrap();
                for round in 0..20 {
                    let (one, two) = (folder.join("one"), folder.join(format!("two{round}")));
                    let len = if round % 8 == 0 { 3 << 20 } else { 10_000 };
                    let content = random(worker * 100 + round, len);
                    fs::write(&one, &content).unwrap();
                    fs::rename(&one, &two).unwrap();
                    assert!(!one.exists());
                    assert!(fs::read(&two).unwrap() == content, "worker {worker} round {round}");
                    let mut past = vec![0; len];
                    direct(&two).read_exact_at(&mut past, 0).unwrap();
                    assert!(past == content, "past the cache: worker {worker} round {round}");
                }
                assert_eq!(fs::read_dir(&folder).unwrap().count(), 20);
                fs::remove_file(folder.join("two3")).unwrap();
                fs::remove_dir(&folder).unwrap_err();
            });
        }
    });
}

/// A lock that is waited for is answered by another thread than the one that took the request.
fn locked_in_turn(path: &Path) {
    let open = || OpenOptions::new().create(true).append(true).open(path).unwrap();
    let first = open();
    first.lock().unwrap();
    thread::scope(|scope| {
        let (sender, got) = channel();
        for _ in 0..6 {
            let (file, sender) = (open(), sender.clone());
            scope.spawn(move || {
                file.lock().unwrap();
                sender.send(()).unwrap();
            });
        }
        // Others are served meanwhile.
        fs::write(path.with_extension("other"), "content").unwrap();
        assert!(got.try_recv().is_err());
        first.unlock().unwrap();
        (0..6).for_each(|_| got.recv().unwrap());
    });
}

#[test]
fn a_mount_over_io_uring_works_and_says_what_it_lacks() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let Some(setting) = Setting::change(SWITCH, "N") else { return };
    let target = host.folder.join("ring");
    fs::create_dir(&target).unwrap();
    let place = target.to_str().unwrap();
    let args = ["mount", &host.addresses, place, "-o", "io_uring,threads=5"];
    let done = host.run(&args);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("enable_uring"), "{said}");
    setting.set("Y");
    let done = host.run(&args);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{}", host.log());
    assert!(said.contains("cannot be replayed") && said.lines().count() == 1, "{said}");
    let rings = || {
        let pid = host.status().unwrap().pid;
        let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let links = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().contains("[io_uring]")).count()
    };
    assert!(rings() >= 5, "{} rings", rings());

    used(&target);
    locked_in_turn(&target.join("lock"));
    let mut log = File::open(target.join(".accesslog")).unwrap();
    fs::metadata(target.join("nothing")).unwrap_err();
    let mut line = [0; 4096];
    let len = log.read(&mut line).unwrap();
    assert!(String::from_utf8_lossy(&line[..len]).contains("op=lookup"), "a line of the log");
    drop(log);

    // No other process can serve it.
    let done = host.run(&["mounts", "upgrade"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("io_uring"), "{said}");
    fs::write(target.join("kept"), "content").unwrap();
    host.umount(&target);
    assert!(host.run(&args).status.success());
    assert_eq!(fs::read(target.join("kept")).unwrap(), b"content");
    // Who uses it gets errors, and does not hang.
    signal(host.status().unwrap().pid, ProcessSignal::Kill);
    until("the mount is dead", || fs::metadata(target.join("kept")).is_err().then_some(()));
    host.must(&["umount", "-l", place]);
}
