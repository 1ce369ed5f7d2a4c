//! Every system call is answered, or fails, within the time that the mount's options state, whatever dies.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::HANG;
use super::delegations::until_given;
use super::host::{Host, left_out};
use crate::process::{Cluster, Process};

/// What the options say.
const TIMEOUT: &str = "timeout=2s";
/// A process asks some times, and closes what it has open when it ends; and 16 threads answer what 24 processes ask, in turns.
const BOUND: Duration = Duration::from_secs(45);

/// One process for each call: it says when it is about to ask, is told when the servers are gone, and asks.
const CALL: &str = r#"
import ctypes, fcntl, mmap, os, sys
folder, call = sys.argv[1], sys.argv[2]
file = os.open(folder + "/file", os.O_RDWR)
big = os.open(folder + "/big", os.O_RDWR)
mapped = mmap.mmap(big, 1 << 20)
print("ready", flush=True)
sys.stdin.readline()
try:
    exec(call)
except OSError as error:
    print(error.errno, flush=True)
else:
    print("done", flush=True)
"#;

/// Calls that a kernel cannot answer by itself, or may have to ask for.
const CALLS: [&str; 24] = [
    "os.pread(big, 4096, 300_000)",
    "os.pread(file, 100, 0)",
    "os.pwrite(file, b'x', 0)",
    "os.pwrite(big, b'x' * 100_000, 0)",
    "os.fsync(file)",
    "os.pwrite(file, b'y', 3); os.fsync(file)",
    "os.pwrite(file, b'z', 3); os.close(file)",
    "os.ftruncate(big, 5)",
    "os.fchmod(file, 0o600)",
    "os.utime(file)",
    "os.stat(folder + '/other')",
    "os.listdir(folder)",
    "[it.stat() for it in os.scandir(folder)]",
    "os.open(folder + '/new', os.O_CREAT | os.O_WRONLY, 0o644)",
    "os.mkdir(folder + '/dir')",
    "os.unlink(folder + '/other')",
    "os.rename(folder + '/other', folder + '/renamed')",
    "os.link(folder + '/other', folder + '/link')",
    "os.symlink('x', folder + '/symlink')",
    "os.statvfs(folder)",
    "os.setxattr(file, 'user.a', b'b')",
    "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "os.posix_fallocate(big, 0, 1 << 21)",
    "mapped[500_000]",
];

struct Asker {
    child: Child,
    call: &'static str,
}

fn ask(folder: &Path, call: &'static str) -> Asker {
    let mut command = Command::new("python3");
    command.args(["-c", CALL]).arg(folder).arg(call);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{call}");
    Asker { child, call }
}

#[test]
fn every_call_ends_when_all_servers_are_gone() {
    if left_out() {
        return;
    }
    // Stopped, so that connections stay and nobody answers; and killed, for good.
    for stopped in [true, false] {
        let mut cluster = Cluster::start(3, 2);
        let host = Host::new(&cluster, HANG);
        let mut askers = Vec::new();
        let mut mounts = Vec::new();
        for mode in ["mode=close-to-open", "mode=strict", "mode=one-writer"] {
            let mount = host.mount(mode, &format!("{mode},{TIMEOUT}"));
            if mode == "mode=close-to-open" {
                until_given(&host, &mount);
            }
            let folder = mount.join(mode.replace('=', "-"));
            fs::create_dir(&folder).unwrap();
            // Of its own, so that nobody waits in the kernel for another one's call.
            for (n, call) in CALLS.iter().enumerate() {
                let own = folder.join(n.to_string());
                fs::create_dir(&own).unwrap();
                for (name, len) in [("file", 4), ("other", 4), ("big", 1 << 20)] {
                    fs::write(own.join(name), vec![7; len]).unwrap();
                }
                File::open(own.join("big")).unwrap().sync_all().unwrap();
                askers.push(ask(&own, call));
            }
            mounts.push((mount, folder));
        }
        if stopped {
            cluster.manager.stand_still();
            cluster.nodes.iter().for_each(Process::stand_still);
        } else {
            cluster.nodes.iter_mut().for_each(Process::kill);
            cluster.manager.kill();
        }
        // Promises that nobody takes.
        for (_, folder) in &mounts {
            let _ = File::create(folder.join("promised")).and_then(|mut it| it.write_all(b"some"));
        }
        let begun = Instant::now();
        for asker in &mut askers {
            asker.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        for Asker { mut child, call } in askers {
            let mut status = None;
            while status.is_none() && begun.elapsed() < BOUND {
                status = child.try_wait().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            // With a page that cannot be read, by SIGBUS.
            assert!(status.is_some(), "stopped: {stopped}: {call} takes too long\n{}", host.log());
        }
        if stopped {
            cluster.nodes.iter().for_each(|node| node.signal("CONT"));
            cluster.manager.signal("CONT");
            for (mount, folder) in &mounts {
                fs::read(folder.join("3/big")).unwrap();
                host.umount(mount);
            }
        }
    }
}
