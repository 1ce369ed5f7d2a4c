//! Access control lists: kept, inherited and checked as on a local disk, and seen elsewhere.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::HANG;
use super::delegations::until_given;
use super::host::{Host, left_out};
use crate::process::{Cluster, until};

/// Prints what lists become and allow in a folder: by system calls, and by the tools of the package
/// acl where it is installed.
const PROGRAM: &str = r#"
import errno, os, shutil, stat, struct, subprocess, sys

os.chdir(sys.argv[1])
os.umask(0o027)
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NO_ID, NOBODY = 0xFFFFFFFF, 65534
TAGS = {"u": 0x01, "U": 0x02, "g": 0x04, "G": 0x08, "m": 0x10, "o": 0x20}

def encode(text):
    value = struct.pack("<I", 2)
    for entry in text.split():
        tag, who, bits = entry.split(":")
        value += struct.pack("<HHI", TAGS[tag], int(bits), int(who) if who else NO_ID)
    return value

def decode(value):
    tags = {number: tag for tag, number in TAGS.items()}
    entries = struct.iter_unpack("<HHI", value[4:])
    return " ".join(f"{tags[t]}:{'' if i == NO_ID else i}:{bits}" for t, bits, i in entries)

def attempt(call, *args, **more):
    try:
        call(*args, **more)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]

def give(path, name, text, **more):
    return attempt(os.setxattr, path, name, encode(text) if text else b"", **more)

def of(path, name):
    try:
        return decode(os.getxattr(path, name, follow_symlinks=False))
    except OSError as error:
        return errno.errorcode[error.errno]

def show(*paths):
    for path in paths:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        names = [name for name in os.listxattr(path, follow_symlinks=False) if "posix_acl" in name]
        print(f"{path} {mode:04o} [{of(path, ACCESS)}] [{of(path, DEFAULT)}] {sorted(names)}")

def show_tree(top):
    for folder, folders, files in os.walk(top):
        folders.sort()
        show(folder, *(f"{folder}/{name}" for name in sorted(files)))

def make(path, mode=0o666):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

def as_nobody(what, call):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        print("nobody", what, attempt(call))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

print("what is made in a directory begins with its list")
os.mkdir("d", 0o777)
make("d/before")
print(give("d", DEFAULT, f"u::7 U:{NOBODY}:7 U:7:4 g::5 G:8:3 m::7 o::4"))
show("d", "d/before")
make("d/file")
make("d/program", 0o777)
make("d/private", 0o600)
os.mkdir("d/below", 0o777)
os.mkdir("d/sticky", 0o1755)
make("d/below/file")
os.mkfifo("d/fifo", 0o666)
os.symlink("file", "d/link")
os.link("d/file", "d/hard")
for number in range(5):
    make(f"d/below/{number}")
show_tree("d")
os.rename("d/file", "moved")
os.mkdir("plain")
os.rename("d/below", "plain/below")
make("plain/below/after")
make("plain/file")
show("moved", "plain", "plain/file", "plain/below", "plain/below/after")
print(give("plain", DEFAULT, "u::7 g::5 o::1"))
make("plain/with")
os.mkdir("plain/dir", 0o777)
print(attempt(os.removexattr, "plain", DEFAULT), attempt(os.removexattr, "plain", DEFAULT))
make("plain/without")
os.mkdir("plain/other", 0o777)
make("plain/other/file")
make("plain/dir/file")
show_tree("plain")

print("a list and the mode go together")
make("f")
show("f")
for mode in [0o600, 0o664, 0o6777]:
    print(give("f", ACCESS, "u::6 U:7:7 g::5 m::7 o::4"))
    os.chmod("f", mode)
    show("f")
print(give("f", ACCESS, "u::6 U:7:7 g::5 m::2 o::4"))
show("f")
print(give("f", ACCESS, "u::7 g::4 o::0"))
show("f")
print(give("f", ACCESS, "u::7 g::4 m::6 o::0"))
show("f")
print(attempt(os.removexattr, "f", ACCESS), attempt(os.removexattr, "f", ACCESS))
show("f")
print(give("f", ACCESS, "u::7 U:7:7 g::4 m::7 o::0"), give("f", ACCESS, ""), give("f", ACCESS, ""))
show("f")
with open("f", "w") as file:
    print(give("f", ACCESS, "u::7 U:7:7 g::4 m::6 o::0"))
    file.write("bytes")
    file.flush()
    os.fchown(file.fileno(), 7, 8)
    show("f")
os.chown("f", 0, 0)

print("what makes no sense is refused")
for name in [ACCESS, DEFAULT]:
    for text in ["u::7", "u::7 g::5", "g::5 u::7 o::0", "u::7 U:7:7 g::5 o::0", "u::8 g::5 o::0",
                 "u::7 g::5 U:7:7 m::7 o::0", "u::7 g::5 m::7 m::7 o::0", "u::7 g::5 o::0 o::0"]:
        print(name, text, give("d", name, text))
    print(attempt(os.setxattr, "d", name, b"\2\0\0"), attempt(os.setxattr, "d", name, b"\3\0\0\0"))
    print(give("d/link", name, "u::7 g::5 o::0", follow_symlinks=False))
print(give("f", DEFAULT, "u::7 g::5 o::0"), give("f", DEFAULT, ""))
show("d", "f")

print("who is not in the group takes its bit away")
make("g")
os.mkdir("h")
for path in ["g", "h"]:
    os.chown(path, NOBODY, 12345)
    os.chmod(path, 0o2755)
    print(give(path, ACCESS, "u::7 g::7 o::0"))
    show(path)
    as_nobody("gives", lambda: os.setxattr(path, ACCESS, encode("u::7 U:7:7 g::5 m::7 o::5")))
    show(path)
os.chmod("h", 0o2775)
as_nobody("gives a default list", lambda: os.setxattr("h", DEFAULT, encode("u::7 g::7 o::0")))
make("h/file")
os.mkdir("h/dir", 0o777)
show_tree("h")

print("lists are checked")
os.mkdir("secret", 0o700)
os.mkdir("secret/in", 0o755)
for path in ["secret/a", "secret/in/a"]:
    make(path, 0o600)
reads = lambda path: as_nobody(f"reads {path}", lambda: open(path).close())
writes = lambda path: as_nobody(f"writes {path}", lambda: open(path, "a").close())
makes = lambda path: as_nobody(f"makes {path}", lambda: make(path))

def all_of_it():
    for do in [reads, writes]:
        do("secret/a")
        do("secret/in/a")
    makes("secret/in/b")
    as_nobody("removes", lambda: os.remove("secret/in/b"))
    as_nobody("lists", lambda: os.listdir("secret"))
    as_nobody("gives", lambda: os.setxattr("secret/a", ACCESS, encode("u::7 g::7 o::7")))

all_of_it()
give("secret", ACCESS, f"u::7 U:{NOBODY}:1 g::0 m::1 o::0")
all_of_it()
give("secret/a", ACCESS, f"u::6 U:{NOBODY}:4 g::0 m::6 o::0")
give("secret/in/a", ACCESS, f"u::6 g::0 G:{NOBODY}:6 m::6 o::0")
give("secret/in", ACCESS, f"u::7 U:{NOBODY}:7 g::5 m::7 o::5")
all_of_it()
os.chmod("secret/in/a", 0o640)
os.chmod("secret/in", 0o755)
all_of_it()
give("secret", ACCESS, f"u::7 U:{NOBODY}:0 g::7 m::7 o::7")
all_of_it()
os.removexattr("secret", ACCESS)
all_of_it()
os.mkdir("shared", 0o700)
give("shared", ACCESS, f"u::7 U:{NOBODY}:7 g::0 m::7 o::0")
give("shared", DEFAULT, f"u::7 U:{NOBODY}:6 g::0 m::7 o::0")
make("shared/of root", 0o640)
makes("shared/of nobody")
reads("shared/of root")
writes("shared/of root")
show_tree("shared")

print("copies have them")
subprocess.run(["cp", "-a", "d", "copied"], check=True)
show_tree("copied")
os.mkdir("unpacked")
subprocess.run("tar --acls -cf - d | tar --acls -xpf - -C unpacked", shell=True, check=True)
show_tree("unpacked")
if shutil.which("setfacl"):
    os.mkdir("t")
    make("t/f")
    for line in ["-m u:7:rw,g:8:r t/f", "-m m::r t/f", "-x u:7 t/f", "-b t/f",
                 "-d -m u:7:rwx t", "-m u:7:x t", "-R -m g:9:rX t", "-k t", "-n -m u:7:rwx t/f",
                 "-d -m u:7:rwx t/f"]:
        done = subprocess.run(["setfacl", *line.split()], capture_output=True, text=True)
        print(line, done.returncode, done.stderr)
        show("t", "t/f")
        print(subprocess.run(["getfacl", "-n", "t", "t/f"], capture_output=True, text=True).stdout)
"#;

/// What the program prints in a folder that everybody may enter.
fn shown(folder: &Path) -> String {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let mut program = Command::new("python3");
    program.args(["-c", PROGRAM]).arg(folder).stdin(Stdio::null());
    let done = program.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", folder.display());
    String::from_utf8(done.stdout).unwrap()
}

/// The first line that two texts do not share, and the one before it.
fn difference(found: &str, wanted: &str) -> Option<String> {
    let mut before = "";
    for (found, wanted) in found.lines().zip(wanted.lines()) {
        if found != wanted {
            return Some(format!("after {before}\n  found {found}\n wanted {wanted}"));
        }
        before = found;
    }
    (found.len() != wanted.len()).then(|| format!("one has more lines, after {before}"))
}

#[test]
fn lists_are_as_on_a_local_disk() {
    if left_out() {
        return;
    }
    let local = tempfile::tempdir().unwrap();
    let wanted = shown(local.path());
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    // The folder of the cluster may be closed to others.
    fs::set_permissions(cluster.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for options in ["", "nodelegations", "mode=strict", "mode=relaxed", "mode=one-writer"] {
        let name = format!("of-{}", options.replace('=', "-"));
        let mount = host.mount(&name, &format!("acl,{options}"));
        if options.is_empty() {
            until_given(&host, &mount);
        }
        let folder = mount.join(&name);
        fs::create_dir(&folder).unwrap();
        let found = shown(&folder);
        assert_eq!(difference(&found, &wanted), None, "{options}");
        host.umount(&mount);
    }
    let checked = host.must(&["fsck", &host.addresses, "--settle", "0"]);
    assert!(checked.contains("clean"), "{checked}");
}

const ACCESS: &str = "access";
const DEFAULT: &str = "default";
/// The arguments are which list, what to do with it and the file; then the hexadecimal value.
const LIST: &str = "import errno, os, sys
name, path = 'system.posix_acl_' + sys.argv[1], sys.argv[3]
try:
    if sys.argv[2] == 'get':
        print(os.getxattr(path, name).hex())
    elif sys.argv[2] == 'set':
        os.setxattr(path, name, bytes.fromhex(sys.argv[4]))
    elif sys.argv[2] == 'remove':
        os.removexattr(path, name)
    else:
        print(*os.listxattr(path))
except OSError as error:
    print(errno.errorcode[error.errno])";

/// All rights for owner, nobody (user 65534) and mask, none for the others.
const FOR_NOBODY: &str =
    "0200000001000700ffffffff02000700feff000004000000ffffffff10000700ffffffff20000000ffffffff";
/// The same as an access list of a file that is made with 0666.
const OF_FILE: &str =
    "0200000001000600ffffffff02000700feff000004000000ffffffff10000600ffffffff20000000ffffffff";

fn list(kind: &str, what: &str, path: &Path, value: &str) -> String {
    let mut program = Command::new("python3");
    program.args(["-c", LIST, kind, what]).arg(path).arg(value).stdin(Stdio::null());
    let done = program.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", path.display());
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn set(kind: &str, path: &Path, value: &str) {
    assert_eq!(list(kind, "set", path, value), "");
}

fn get(kind: &str, path: &Path) -> String {
    list(kind, "get", path, "")
}

fn remove(kind: &str, path: &Path) {
    assert_eq!(list(kind, "remove", path, ""), "");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn nobody_reads(path: &Path) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"]).arg(path);
    command.output().unwrap().status.success()
}

/// Makes a file as a program does whose umask leaves others nothing.
fn make(path: &Path) {
    let mut command = Command::new("sh");
    command.args(["-euc", "umask 077; : > \"$0\""]).arg(path);
    assert!(command.status().unwrap().success(), "{}", path.display());
}

/// A cluster that is mounted on two hosts, open to others.
fn two_hosts() -> (Cluster, [Host; 2], [PathBuf; 2]) {
    let cluster = Cluster::start(3, 2);
    fs::set_permissions(cluster.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = [(); 2].map(|()| Host::new(&cluster, HANG));
    let mounts = [hosts[0].mount("one", "acl"), hosts[1].mount("two", "acl")];
    (cluster, hosts, mounts)
}

/// A kernel keeps a list until it is told that it is another one.
#[test]
fn a_list_that_is_set_elsewhere_counts_here() {
    if left_out() {
        return;
    }
    let (_cluster, _hosts, [here, there]) = two_hosts();
    let (dir, elsewhere) = (here.join("dir"), there.join("dir"));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).unwrap();
    let (file, its) = (dir.join("file"), elsewhere.join("file"));
    make(&file);
    // By the file's own list, then by that of the directory.
    for (of, other) in [(&file, &its), (&dir, &elsewhere)] {
        let before = mode(of);
        for _ in 0..3 {
            until("what is not allowed is refused", || (!nobody_reads(&file)).then_some(()));
            set(ACCESS, other, FOR_NOBODY);
            if of == &dir {
                set(ACCESS, &its, FOR_NOBODY);
            }
            until("nobody may read", || nobody_reads(&file).then_some(()));
            assert_eq!((mode(of), get(ACCESS, of)), (0o770, FOR_NOBODY.to_owned()));
            // A mode that is set elsewhere is the mask here.
            fs::set_permissions(other, fs::Permissions::from_mode(0o700)).unwrap();
            until("nobody may read no more", || (!nobody_reads(&file)).then_some(()));
            remove(ACCESS, other);
            until("it is gone", || (get(ACCESS, of) == "ENODATA").then_some(()));
        }
        fs::set_permissions(other, fs::Permissions::from_mode(before)).unwrap();
        until("the mode is as before", || (mode(of) == before).then_some(()));
    }
}

/// Who makes names in a directory before a meta hears of it must know its list, whoever sets that.
#[test]
fn a_directory_that_a_mount_has_to_itself_gives_its_list() {
    if left_out() {
        return;
    }
    let (_cluster, hosts, [here, there]) = two_hosts();
    until_given(&hosts[0], &here);
    for n in 0..5 {
        let (dir, elsewhere) = (here.join(format!("dir{n}")), there.join(format!("dir{n}")));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(dir.join("below")).unwrap();
        for before in 0..20 {
            make(&dir.join(format!("before{before}")));
        }
        // By this mount, or by another one, which takes the directory from it.
        set(DEFAULT, if n % 2 == 0 { &dir } else { &elsewhere }, FOR_NOBODY);
        for after in 0..5 {
            make(&dir.join(format!("after{after}")));
            assert_eq!(get(ACCESS, &elsewhere.join(format!("after{after}"))), OF_FILE);
        }
        let inner = dir.join("inner");
        fs::create_dir(&inner).unwrap();
        make(&inner.join("file"));
        assert_eq!(get(DEFAULT, &elsewhere.join("inner")), FOR_NOBODY);
        assert_eq!(get(ACCESS, &elsewhere.join("inner/file")), OF_FILE);
        assert_eq!(mode(&elsewhere.join("inner/file")), 0o660, "the umask does not count");
        // Those of before have none.
        make(&dir.join("below/file"));
        for without in ["before7", "below/file"] {
            assert_eq!(get(ACCESS, &elsewhere.join(without)), "ENODATA");
            assert_eq!(mode(&elsewhere.join(without)), 0o600);
        }
        remove(DEFAULT, &inner);
        make(&inner.join("other"));
        assert_eq!(mode(&elsewhere.join("inner/other")), 0o600);
    }
}

#[test]
fn a_mount_without_the_option_knows_no_lists() {
    if left_out() {
        return;
    }
    let (_cluster, [host, other], [here, _]) = two_hosts();
    let plain = other.mount("plain", "nodelegations");
    let (dir, same) = (here.join("dir"), plain.join("dir"));
    fs::create_dir(&dir).unwrap();
    set(DEFAULT, &dir, FOR_NOBODY);
    set(ACCESS, &dir, FOR_NOBODY);
    make(&dir.join("file"));
    for kind in [ACCESS, DEFAULT] {
        for what in ["get", "set", "remove"] {
            assert_eq!(list(kind, what, &same, FOR_NOBODY), "ENOTSUP", "{what}");
        }
    }
    assert_eq!((list(ACCESS, "list", &same, ""), mode(&same.join("file"))), (String::new(), 0o660));
    make(&same.join("plain"));
    assert_eq!(mode(&same.join("plain")), 0o600);
    assert_eq!(get(ACCESS, &dir.join("plain")), "ENODATA");
    // The next daemon of a mount with lists has them too.
    host.kill_daemon();
    make(&dir.join("later"));
    assert_eq!(get(ACCESS, &dir.join("later")), OF_FILE);
}
