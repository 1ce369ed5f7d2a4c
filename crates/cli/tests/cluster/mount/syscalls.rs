//! What programs ask of a file system beside reading and writing, and local ones answer.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

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
assert extents("nothing") == [], extents("nothing")
sparse("little", [(9, 1)], 5 * MIB)
assert extents("little") == [(0, 4096)], extents("little")
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

/// What came with Linux and not with POSIX.
const LINUX: &str = r#"
import ctypes, errno, os, stat, subprocess, sys, time

folder = sys.argv[1]
def path(name):
    return f"{folder}/{name}"

libc = ctypes.CDLL(None, use_errno=True)

def refused(number, call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"{args} was taken")

# Without a name until it gets one.
def nameless(flags=0):
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR | flags, 0o640)
    os.write(file, b"nameless")
    return file

# Python's own does not follow links.
def link(file, name):
    source, target = f"/proc/self/fd/{file}".encode(), path(name).encode()
    if libc.linkat(-100, source, -100, target, 0x400) != 0:
        raise OSError(ctypes.get_errno(), "linkat")

file = nameless()
assert (os.fstat(file).st_nlink, os.fstat(file).st_size) == (0, 8), os.fstat(file)
assert os.listdir(folder) == []
link(file, "named")
assert (os.fstat(file).st_nlink, os.stat(path("named")).st_ino) == (1, os.fstat(file).st_ino)
assert stat.S_IMODE(os.stat(path("named")).st_mode) == 0o640
os.write(file, b", and more" * 10000)
os.close(file)
assert open(path("named"), "rb").read() == b"nameless" + b", and more" * 10000
file = nameless(os.O_EXCL)
refused(errno.ENOENT, link, file, "other")
os.close(file)
file = os.open(path("gone"), os.O_RDWR | os.O_CREAT)
os.unlink(path("gone"))
refused(errno.ENOENT, link, file, "other")
os.close(file)

# When it was born.
def born(name):
    command = ["stat", "-c", "%.W", path(name)]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    assert told != "-", "no time of birth"
    return float(told)

open(path("born"), "w").close()
at = born("born")
assert abs(at - time.time()) < 60, at
os.utime(path("born"), (5, 5))
os.rename(path("born"), path("renamed"))
assert born("renamed") == at
os.mkdir(path("dir"))
assert abs(born("dir") - time.time()) < 60

# A whiteout stays under the old name.
def whiteout(old, new):
    done = libc.renameat2(-100, path(old).encode(), -100, path(new).encode(), 4)
    assert done == 0, os.strerror(ctypes.get_errno())

whiteout("renamed", "moved")
left = os.lstat(path("renamed"))
assert stat.S_ISCHR(left.st_mode) and left.st_rdev == 0, left
assert os.stat(path("moved")).st_size == 0

# How much there is of it.
MIB = 1 << 20
def blocks(name):
    return os.stat(path(name)).st_blocks * 512

def write(name, pieces, size):
    file = os.open(path(name), os.O_RDWR | os.O_CREAT)
    for offset, text in pieces:
        os.pwrite(file, text, offset)
    os.ftruncate(file, size)
    os.close(file)

write("full", [(0, b"x" * 3 * MIB)], 3 * MIB)
assert blocks("full") == 3 * MIB
write("sparse", [(0, b"x" * MIB), (4 * MIB, b"y" * MIB)], 8 * MIB)
assert blocks("sparse") == 2 * MIB, blocks("sparse")
write("empty", [], 8 * MIB)
assert blocks("empty") <= 1 << 16, blocks("empty")
file = os.open(path("sparse"), os.O_RDWR)
os.pwrite(file, b"z" * MIB, 6 * MIB)
os.close(file)
assert blocks("sparse") == 3 * MIB, blocks("sparse")
punch = ["fallocate", "-p", "-o", str(4 * MIB), "-l", str(MIB), path("sparse")]
subprocess.run(punch, check=True)
assert blocks("sparse") == 2 * MIB, blocks("sparse")
subprocess.run(["cp", "--sparse=auto", path("sparse"), path("copied")], check=True)
subprocess.run(["cmp", path("sparse"), path("copied")], check=True)
assert blocks("copied") == 2 * MIB, blocks("copied")
# tar writes such files in pieces of 512 bytes.
write("some", [(2 * MIB, b"some" * 4096)], 3 * MIB)
subprocess.run(["tar", "-C", folder, "-Scf", path("tar"), "some", "empty"], check=True)
assert os.stat(path("tar")).st_size < MIB, "tar leaves the holes out"
os.mkdir(path("out"))
subprocess.run(["tar", "-C", path("out"), "-xf", path("tar")], check=True)
subprocess.run(["cmp", path("some"), path("out/some")], check=True)
assert os.stat(path("out/empty")).st_size == 8 * MIB
"#;

/// An overlay that has its upper directory on a mount, and a directory of this host below.
const OVERLAY: &str = r#"
set -euo pipefail
upper=$1 lower=$(mktemp -d)
trap 'cd /; umount "$lower/merged" 2>/dev/null || true; rm -rf "$lower"' EXIT
mkdir -p "$lower"/{low/dir,merged} "$upper"/{up,work}
echo below >"$lower/low/file"; echo inside >"$lower/low/dir/inside"; echo stays >"$lower/low/stays"
mount -t overlay overlay -o "lowerdir=$lower/low,upperdir=$upper/up,workdir=$upper/work" "$lower/merged"
cd "$lower/merged"
rm file; [ ! -e file ]; [ -c "$upper/up/file" ]
echo new >file; [ "$(cat file)" = new ]
mv stays moved; [ ! -e stays ]; [ "$(cat moved)" = stays ]
echo more >>dir/inside; [ "$(cat "$upper/up/dir/inside")" = $'inside\nmore' ]
rm -r dir; mkdir dir; [ -z "$(ls dir)" ]
cd /; umount "$lower/merged"
[ "$(cat "$lower/low/dir/inside")" = inside ]
[ -c "$upper/up/stays" ]
"#;

/// Mounts a folder again, so that files of root are those of user 1000 there and the other way about.
const IDMAP: &str = r#"
import ctypes, os, struct, subprocess, sys, time

folder, again = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):
    done = libc.syscall(number, *args)
    assert done >= 0, os.strerror(ctypes.get_errno())
    return done

# A user namespace with the mapping, which outlives its process as a descriptor.
child = subprocess.Popen(["unshare", "--user", "sleep", "60"])
until = time.monotonic() + 20
while os.readlink(f"/proc/{child.pid}/ns/user") == os.readlink("/proc/self/ns/user"):
    assert time.monotonic() < until
    time.sleep(0.01)
for kind in ["uid", "gid"]:
    with open(f"/proc/{child.pid}/{kind}_map", "w") as file:
        file.write("0 1000 1")
namespace = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY)
child.kill()
child.wait()
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
tree = call(OPEN_TREE, -100, folder.encode(), 1)
attr = struct.pack("QQQQ", 0x100000, 0, 0, namespace)
call(MOUNT_SETATTR, tree, b"", 0x1000, attr, len(attr))
call(MOVE_MOUNT, tree, b"", -100, again.encode(), 4)
try:
    assert os.stat(f"{folder}/file").st_uid == 0
    assert os.stat(f"{again}/file").st_uid == 1000
    if os.fork() == 0:
        os.setgid(1000)
        os.setuid(1000)
        for name in ["made", "dir/made"]:
            os.makedirs(os.path.dirname(f"{again}/{name}"), exist_ok=True)
            with open(f"{again}/{name}", "w") as file:
                file.write("text")
        os.chmod(f"{again}/file", 0o640)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, status
    for name in ["made", "dir", "dir/made"]:
        told = [os.stat(f"{of}/{name}") for of in [folder, again]]
        assert [(it.st_uid, it.st_gid) for it in told] == [(0, 0), (1000, 1000)], (name, told)
    assert os.stat(f"{folder}/file").st_mode & 0o777 == 0o640
    os.chown(f"{again}/made", 1000, 1000)
    assert os.stat(f"{folder}/made").st_uid == 0
    assert open(f"{again}/dir/made").read() == "text"
finally:
    libc.umount2(again.encode(), 2)
"#;

fn holds(program: &str, folder: &Path) {
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(folder);
    succeeds(python, folder);
}

fn succeeds(mut program: Command, folder: &Path) {
    program.stdin(Stdio::null());
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
        holds(PROGRAM, &folder);
        host.umount(&mount);
    }
}

#[test]
fn what_linux_has_beyond_posix_is_there() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for options in ["", "nodelegations", "mode=strict", "mode=relaxed"] {
        let mount = host.mount(&format!("of-{}", options.replace('=', "-")), options);
        let folder = mount.join(format!("of{}", options.len()));
        fs::create_dir(&folder).unwrap();
        holds(LINUX, &folder);
        let upper = folder.join("upper");
        fs::create_dir(&upper).unwrap();
        let mut overlay = Command::new("bash");
        overlay.args(["-c", OVERLAY, "overlay"]).arg(&upper);
        succeeds(overlay, &upper);
        host.umount(&mount);
    }
}

#[test]
fn a_mount_may_be_mounted_again_with_other_owners() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let again = host.folder.join("again");
    fs::create_dir(&again).unwrap();
    for options in ["idmap", "idmap,mode=strict", "idmap,mode=one-writer", "idmap,acl"] {
        let mount = host.mount(&format!("of{}", options.len()), options);
        let folder = mount.join(format!("of{}", options.len()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "text").unwrap();
        let mut python = Command::new("python3");
        python.args(["-c", IDMAP]).arg(&folder).arg(&again);
        succeeds(python, &folder);
        host.umount(&mount);
    }
}

#[test]
fn reads_are_noted_where_that_is_wanted() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    let shown = |mount: &Path| {
        let all = fs::read_to_string("/proc/self/mounts").unwrap();
        let of = |line: &&str| line.split(' ').nth(1) == mount.to_str();
        all.lines().find(of).map(str::to_owned).unwrap()
    };
    let read_at = |path: &Path| fs::metadata(path).unwrap().accessed().unwrap();
    let (plain, noting) = (host.mount("plain", ""), host.mount("noting", "relatime"));
    assert!(shown(&plain).contains("noatime") && shown(&noting).contains("relatime"));
    let (file, dir) = (noting.join("file"), noting.join("dir"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, b"text").unwrap();
    let text = fs::read_to_string(plain.join("file")).unwrap();
    let (made, of_dir) = (read_at(&file), read_at(&dir));
    assert_eq!((text.as_str(), read_at(&plain.join("file"))), ("text", made));
    thread::sleep(Duration::from_millis(20));
    let changed = fs::metadata(&file).unwrap().ctime_nsec();
    let (_, _) = (fs::read(&file).unwrap(), fs::read_dir(&dir).unwrap().count());
    let (read, of_dir_then) = (read_at(&file), read_at(&dir));
    assert!(read > made && of_dir_then > of_dir);
    assert_eq!(fs::metadata(&file).unwrap().ctime_nsec(), changed, "nothing else changed");
    thread::sleep(Duration::from_millis(20));
    let (_, _) = (fs::read(&file).unwrap(), fs::read_dir(&dir).unwrap().count());
    assert_eq!((read_at(&file), read_at(&dir)), (read, of_dir_then), "that was noted");
    fs::write(&file, b"other").unwrap();
    thread::sleep(Duration::from_millis(20));
    let _ = fs::read(&file).unwrap();
    assert!(read_at(&file) > read);
    for mount in [plain, noting] {
        host.umount(&mount);
    }
}
