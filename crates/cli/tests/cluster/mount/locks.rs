//! Locks of open files and of processes: whose they are, when they go, and what they order.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::HANG;
use super::host::{Host, left_out};
use crate::process::{Cluster, until};

/// The three kinds of locks of all of a file.
const KINDS: &str = r#"
import errno, fcntl, mmap, os, struct, sys, time

def ofd(file, kind, wait):
    fcntl.fcntl(file, 38 if wait else 37, struct.pack("hhqqi", kind, 0, 0, 0, 0))

def take(file, kind, wait=True):
    how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    if kind == "flock":
        fcntl.flock(file, how)
    elif kind == "posix":
        fcntl.lockf(file, how)
    else:
        ofd(file, fcntl.F_WRLCK, wait)

def give(file, kind):
    if kind == "flock":
        fcntl.flock(file, fcntl.LOCK_UN)
    elif kind == "posix":
        fcntl.lockf(file, fcntl.LOCK_UN)
    else:
        ofd(file, fcntl.F_UNLCK, False)

def tried(file, kind):
    try:
        take(file, kind, False)
        return True
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EACCES), error
        return False
"#;

/// Takes a lock, contends for it, closes, fast and again.
const CHURN: &str = r#"
path, kind, wait, rounds = sys.argv[1], sys.argv[2], sys.argv[3] == "wait", int(sys.argv[4])
for n in range(rounds):
    file = os.open(path, os.O_RDWR)
    if wait:
        take(file, kind)
    else:
        tried(file, kind)
    time.sleep(0.001 * (n % 3))
    os.close(file)
"#;

/// Closes a locked file, opens it again and locks it at once; nobody else gets the lock then.
const REOPEN: &str = r#"
here, there, kind, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
other = os.open(there, os.O_RDWR)
file = os.open(here, os.O_RDWR)
take(file, kind)
in_the_way = 0
for n in range(rounds):
    os.close(file)
    file = os.open(here, os.O_RDWR)
    while not tried(file, kind):
        in_the_way += 1
    time.sleep(0.002 * (n % 3))
    assert not tried(other, kind), f"round {n}: the lock is lost"
# A try waits for the close, 250 ms: a busy machine may take longer, now and then.
assert in_the_way < rounds / 5, f"what was closed was in the way {in_the_way} times"
"#;

/// Reads a file anew all the time, beside those who take turns.
const NOISE: &str = r#"
file = os.open(sys.argv[1], os.O_RDONLY)
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]):
    os.posix_fadvise(file, 8192, 0, os.POSIX_FADV_DONTNEED)
    for n in range(2, 16):
        os.pread(file, 8, n * 4096)
    time.sleep(0.0005)
"#;

/// Changes a file again and again, each time with a lock.
const TURNS: &str = r#"
path, kind, what, turns, me = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
file = os.open(path, os.O_RDWR | (os.O_APPEND if what == "append" else 0))
mapped = mmap.mmap(file, 8, prot=mmap.PROT_READ) if what == "mapped" else None
print("ready", flush=True)
sys.stdin.readline()
for n in range(turns):
    take(file, kind)
    if what == "append":
        os.write(file, f"{me}{n:04}\n".encode())
    elif what == "end":
        os.pwrite(file, f"{me}{n:04}\n".encode(), os.fstat(file).st_size)
    elif what == "long":
        os.pwrite(file, (f"{me}{n:04}\n" * 4000).encode(), os.lseek(file, 0, os.SEEK_END))
    else:
        old = mapped[:8] if mapped else os.pread(file, 8, 0)
        os.pwrite(file, struct.pack("<q", struct.unpack("<q", old)[0] + 1), 0)
    give(file, kind)
"#;

fn python(program: &str, args: &[&str]) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{KINDS}{program}")]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn succeeds(what: &str, child: Child) {
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A file on a mount, and the same on another one.
fn file_on_two(mounts: [&PathBuf; 2], name: &str, content: &[u8]) -> [PathBuf; 2] {
    let paths = mounts.map(|mount| mount.join(name));
    fs::write(&paths[0], content).unwrap();
    until("the other mount to see it", || paths[1].exists().then_some(()));
    paths
}

/// A lock that can be had on a mount, now or soon.
fn is_free(path: &Path, kind: &str) {
    let program = "assert tried(os.open(sys.argv[1], os.O_RDWR), sys.argv[2])";
    until("a lock that nobody has", || {
        let done = python(program, &[path.to_str().unwrap(), kind]).wait_with_output().unwrap();
        done.status.success().then_some(())
    });
}

#[test]
fn a_lock_belongs_to_one_open_handle() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (here, there) = (host.mount("here", ""), host.mount("there", ""));
    for kind in ["ofd", "flock"] {
        for (wait, dies) in [("try", false), ("wait", false), ("wait", true)] {
            let what = format!("{kind}-{wait}-{dies}");
            let paths = file_on_two([&here, &there], &what, b"content");
            let start = |n: usize| {
                let path = paths[usize::from(n == 3)].to_str().unwrap();
                python(CHURN, &[path, kind, wait, "60"])
            };
            let all: Vec<Child> = (0..4).map(start).collect();
            if dies {
                host.kill_daemon();
            }
            for child in all {
                succeeds(&what, child);
            }
            is_free(&paths[1], kind);
            is_free(&paths[0], kind);
        }
        let paths = file_on_two([&here, &there], kind, b"content");
        let [one, other] = [0, 1].map(|n: usize| paths[n].to_str().unwrap());
        succeeds(kind, python(REOPEN, &[one, other, kind, "100"]));
        is_free(&paths[1], kind);
    }
}

/// What a lock protects: counted by two, each of which sees what the other one did; or grown.
#[test]
fn a_lock_orders_what_two_mounts_do() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let all = ["append", "counter"];
    let more = ["append", "beside", "end", "long", "mapped"];
    for (options, kinds, whats) in [
        ("", &["posix", "flock", "ofd"][..], &all[..]),
        ("nodelegations,threads=2", &["posix"], &more),
        ("mode=relaxed", &["flock"], &["append", "counter", "beside"]),
        ("mode=strict", &["ofd"], &["append", "counter", "mapped"]),
    ] {
        let name = |n: usize| format!("{}-{n}", options.replace(['=', ','], "-"));
        let mounts = [1, 2].map(|n| host.mount(&name(n), options));
        for kind in kinds {
            for what in whats {
                let name = format!("{kind}-{what}-{}", options.len());
                takes_turns([&mounts[0], &mounts[1]], &name, (kind, what));
            }
        }
        for mount in &mounts {
            host.umount(mount);
        }
    }
}

const TURNS_EACH: usize = 25;
static NOTHING: [u8; 65_536] = [0; 65_536];

fn is_ready(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
}

fn takes_turns(mounts: [&PathBuf; 2], name: &str, (kind, what): (&str, &str)) {
    let counts = ["counter", "beside", "mapped"].contains(&what);
    let len = if what == "beside" { 65_536 } else { 8 };
    let paths = file_on_two(mounts, name, if counts { &NOTHING[..len] } else { b"" });
    let mut noise: Vec<Child> = Vec::new();
    if what == "beside" {
        let own = std::process::id().to_string();
        noise.extend(paths.iter().map(|path| python(NOISE, &[path.to_str().unwrap(), &own])));
        noise.iter_mut().for_each(is_ready);
    }
    let turns = TURNS_EACH.to_string();
    let start = |n: usize| {
        let me = ["a", "b"][n];
        let mut child = python(TURNS, &[paths[n].to_str().unwrap(), kind, what, &turns, me]);
        is_ready(&mut child);
        child
    };
    let mut both = [0, 1].map(start);
    for child in &mut both {
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    for child in both {
        succeeds(name, child);
    }
    for mut child in noise {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for path in paths {
        let found = fs::read(&path).unwrap();
        if counts {
            let count = i64::from_le_bytes(found[..8].try_into().unwrap());
            assert_eq!(count, 2 * i64::try_from(TURNS_EACH).unwrap(), "{name}");
            continue;
        }
        let found = String::from_utf8_lossy(&found);
        let mut lines: Vec<&str> = found.lines().collect();
        lines.sort_unstable();
        let times = if what == "long" { 4000 } else { 1 };
        assert_eq!(lines.len(), 2 * TURNS_EACH * times, "{name}: lines are lost");
        lines.dedup();
        assert_eq!(lines.len(), 2 * TURNS_EACH, "{name}: {lines:?}");
    }
}

/// Locks all of a file as QEMU locks an image (`F_OFD_SETLK`), until there is nothing more to read; waits for nobody.
const GUEST: &str = r#"
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
except OSError:
    sys.exit(0)
print("locked", flush=True)
sys.stdin.read()
"#;

/// A process that has a file locked; none when somebody else has.
fn guest(path: &Path) -> Option<Child> {
    let mut command = Command::new("python3");
    command.args(["-c", GUEST]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.trim() == "locked" {
        return Some(child);
    }
    assert!(child.wait().unwrap().success());
    None
}

fn end(mut guest: Child) {
    drop(guest.stdin.take());
    assert!(guest.wait().unwrap().success());
}

#[test]
fn locks_of_an_open_file_go_when_it_is_closed() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (here, there) = (host.mount("here", ""), host.mount("there", ""));
    let (image, same) = (here.join("image"), there.join("image"));
    fs::write(&image, "content").unwrap();
    until("the other mount to see it", || same.exists().then_some(()));
    // Alone; beside somebody who has it open all the time; and with a daemon that dies meanwhile.
    for (others, dies) in [(false, false), (true, false), (false, true), (true, true)] {
        let other = others.then(|| File::open(&image).unwrap());
        let first = until("the image is free", || guest(&image)).0;
        assert!(guest(&same).is_none() && guest(&image).is_none(), "it is locked");
        if dies {
            host.kill_daemon();
            assert!(guest(&same).is_none(), "it is locked still");
        }
        end(first);
        // A close is done when its process has ended; what it gives back a moment later.
        end(until("the image is free elsewhere", || guest(&same)).0);
        drop(other);
    }
}
