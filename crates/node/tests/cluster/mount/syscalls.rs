//! What programs ask of a file system beside reading and writing, and local ones answer.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::HANG;
use super::host::{Host, left_out};
use crate::process::Cluster;

const PROGRAM: &str = r#"
import errno, os, subprocess, sys

folder = sys.argv[1]
def path(name):
    return f"{folder}/{name}"

def refused(number, call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"{args} was taken")

def extents(name):
    file, all, at = os.open(path(name), os.O_RDONLY), [], 0
    size = os.fstat(file).st_size
    while at < size:
        try:
            data = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            break
        at = os.lseek(file, data, os.SEEK_HOLE)
        assert data < at <= size, (data, at)
        all.append((data, at))
    refused(errno.ENXIO, os.lseek, file, size, os.SEEK_DATA)
    os.close(file)
    return all

def sparse(name, pieces, size):
    file = os.open(path(name), os.O_RDWR | os.O_CREAT)
    for offset, bytes in pieces:
        os.pwrite(file, b"x" * bytes, offset)
    os.ftruncate(file, size)
    os.close(file)

MIB, CHUNK = 1 << 20, 256 << 10
sparse("small", [(5, 3)], 9)
assert extents("small") == [(0, 9)], "a small file has no holes"
sparse("ends", [(0, MIB)], 8 * MIB)
assert extents("ends") == [(0, MIB)], extents("ends")
sparse("begins", [(100 * MIB, MIB)], 101 * MIB)
assert extents("begins") == [(100 * MIB, 101 * MIB)], extents("begins")
sparse("between", [(0, MIB), (10 * MIB, 10)], 12 * MIB)
assert extents("between") == [(0, MIB), (10 * MIB, 10 * MIB + 10)], extents("between")
sparse("nothing", [], 5 * MIB)
assert extents("nothing") in ([], [(0, 5 * MIB)])
# What has no hole by these is copied with `copy_file_range` and others just the same.
file, other = os.open(path("between"), os.O_RDONLY), os.open(path("copy"), os.O_RDWR | os.O_CREAT)
for data, hole in extents("between"):
    os.pwrite(other, os.pread(file, hole - data, data), data)
os.ftruncate(other, os.fstat(file).st_size)
subprocess.run(["cmp", path("between"), path("copy")], check=True)

for name in ["user.a", "trusted.a", "security.a"]:
    os.setxattr(path("small"), name, b"value")
    assert os.getxattr(path("small"), name) == b"value"
for name in ["system.a", "other.a", "a", "userx"]:
    refused(errno.EOPNOTSUPP, os.setxattr, path("small"), name, b"value")
    refused(errno.EOPNOTSUPP, os.getxattr, path("small"), name)
refused(errno.EINVAL, os.setxattr, path("small"), "user.", b"value")

free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
file = os.open(path("small"), os.O_RDWR)
refused(errno.ENOSPC, os.posix_fallocate, file, 0, free + (1 << 30))
assert os.fstat(file).st_size == 9
os.posix_fallocate(file, 0, 3 * MIB)
assert os.fstat(file).st_size == 3 * MIB
"#;

fn holds(folder: &Path) {
    let mut program = Command::new("python3");
    program.args(["-c", PROGRAM]).arg(folder).stdin(Stdio::null());
    let done = program.output().unwrap();
    assert!(
        done.status.success(),
        "{}: {}",
        folder.display(),
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn holes_names_and_room_are_told() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for options in ["", "nodelegations", "mode=strict", "mode=relaxed"] {
        let mount = host.mount(&format!("of-{}", options.replace('=', "-")), options);
        let folder = mount.join(format!("of{}", options.len()));
        fs::create_dir(&folder).unwrap();
        holds(&folder);
        host.umount(&mount);
    }
}
