//! The same system calls in a folder of ext4 and in a folder of a mount. Their answers differ only as
//! this file says, and each difference has a reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::HANG;
use super::host::{Host, left_out};
use crate::process::Cluster;

/// How the cluster is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Default,
    Strict,
    Relaxed,
    OneWriter,
}

impl Mode {
    const ALL: &[Self] = &[Self::Default, Self::Strict, Self::Relaxed, Self::OneWriter];
    const BUT_ONE_WRITER: &[Self] = &[Self::Default, Self::Strict, Self::Relaxed];

    const fn options(self) -> &'static str {
        match self {
            Self::Default => "acl",
            Self::Strict => "acl,mode=strict",
            Self::Relaxed => "acl,mode=relaxed",
            Self::OneWriter => "acl,mode=one-writer",
        }
    }
}

/// Answers of a mount that are not those of ext4.
struct Accepted {
    reason: &'static str,
    modes: &'static [Mode],
    /// Lines of `SECTION: CALL -> ANSWER OF EXT4 => ANSWER OF THE MOUNT`.
    lines: &'static str,
}

const ACCEPTED: &[Accepted] = &[
    Accepted {
        reason: "A rename looks at 100 folders above the new place at most (`DEPTH_MAX`).",
        modes: Mode::ALL,
        lines: r#"
            moves: rename("../../...."[337], "load") -> ok => EOPNOTSUPP
            moves: list() -> load:dir => empty
        "#,
    },
    Accepted {
        reason: "A file may have 2^48 bytes, and Linux lets files of FUSE have 2^63.",
        modes: Mode::ALL,
        lines: "
            lengths: ftruncate(@file, 17592186044416) -> EFBIG => ok
            plain: lseek(@file, 4611686018427387904, SEEK_SET) -> EINVAL => 4611686018427387904
        ",
    },
    Accepted {
        reason: "A file may have 2^48 bytes, and Linux lets files of FUSE have 2^63.",
        modes: &[Mode::OneWriter],
        lines: "
            lengths: pwrite(@file, 'far', 4611686018427387904) -> EFBIG => 3
            lengths: fstat(@file) -> file 0644 nlink=1 0:0 size=1000 => file 0644 nlink=1 0:0 size=4611686018427387907
            lengths: fsync(@file) -> ok => EFBIG
            lengths: syncfs(@file) -> 0 => EFBIG
        ",
    },
    Accepted {
        reason: "Linux' FUSE has no reads that do not wait.",
        modes: Mode::ALL,
        lines: "
            flagged: preadv2(@file, 5, 0, RWF_NOWAIT) -> '01+34' => EOPNOTSUPP
        ",
    },
    Accepted {
        reason: "Linux tells a mount of O_APPEND, and not that RWF_NOAPPEND takes it back for \
            one write.",
        modes: Mode::BUT_ONE_WRITER,
        lines: r#"
            flagged: contents("file") -> 'no+3456789+atend.' => '01+3456789+atnoend.'
        "#,
    },
    Accepted {
        reason: "O_DIRECT needs no alignment.",
        modes: Mode::ALL,
        lines: r#"
            flagged: direct(@direct, "write", 8192, 100, 0) -> EINVAL => 100
            flagged: direct(@direct, "write", 10, 4096, 0) -> EINVAL => 4096
            flagged: direct(@direct, "write", 0, 4096, 7) -> EINVAL => 4096
            flagged: direct(@direct, "read", 0, 16384, 0) -> 'd'*8192 '\x00'*4096 'd'*4096 => 'd'*8292 '\x00'*3996 'd'*4096
            flagged: direct(@direct, "read", 8192, 8192, 0) -> '\x00'*4096 'd'*4096 => 'd'*100 '\x00'*3996 'd'*4096
            flagged: direct(@direct, "read", 100, 4096, 0) -> EINVAL => 'd'*4096
            flagged: direct(@direct, "read", 0, 100, 0) -> EINVAL => 'd'*100
            flagged: direct(@direct, "read", 0, 4096, 7) -> EINVAL => 'd'*4096
            flagged: pwrite(@direct, 'odd', 3) -> EINVAL => 3
            flagged: contents("direct") -> 'd'*8192 '\x00'*4096 'd'*4096 => 'dddo' 'd'*8288 '\x00'*3996 'd'*4096
        "#,
    },
    Accepted {
        reason: "What a small file holds lies in the store, where nobody counts what was \
            written of it.",
        modes: Mode::ALL,
        lines: r#"
            sparse: blocks("nothing") -> none => part
            sparse: blocks("little") -> part => all
            sparse: extents("little") -> 8-12 => 0-12
        "#,
    },
    Accepted {
        reason: "A file that was open to be written since anybody opened it tells of no \
            holes.",
        modes: Mode::ALL,
        lines: r#"
            sparse: lseek(@writer, 4194304, SEEK_DATA) -> 10485760 => 4194304
            sparse: lseek(@writer, 4194304, SEEK_DATA) -> 6291456 => 4194304
            sparse: lseek(@writer, 0, SEEK_HOLE) -> 1048576 => 12582912
            sparse: extents("between") -> 0-1024 6144-6148 10240-10244 => 0-12288
        "#,
    },
    Accepted {
        reason: "The kernel of a one-writer mount has bytes that nobody else knows of, so \
            such a mount tells of no holes.",
        modes: &[Mode::OneWriter],
        lines: r#"
            sparse: blocks("ends") -> part => all
            sparse: extents("ends") -> 0-1024 => 0-8192
            sparse: blocks("begins") -> part => all
            sparse: extents("begins") -> 102400-103424 => 0-103424
            sparse: blocks("between") -> part => all
            sparse: extents("between") -> 0-1024 10240-10244 => 0-12288
            sparse: blocks("several") -> part => all
            sparse: extents("several") -> 2048-3072 5120-6144 8192-9216 => 0-9216
            sparse: extents("nothing") -> none => 0-5120
            sparse: lseek(@file, 0, SEEK_HOLE) -> 1048576 => 12582912
            sparse: lseek(@file, 4194304, SEEK_DATA) -> 10485760 => 4194304
            sparse: lseek(@file, 4194304, SEEK_HOLE) -> 4194304 => 12582912
            sparse: lseek(@file, 10485760, SEEK_HOLE) -> 10489856 => 12582912
            sparse: lseek(@file, 11534336, SEEK_DATA) -> ENXIO => 11534336
            sparse: lseek(@file, 11534336, SEEK_HOLE) -> 11534336 => 12582912
            sparse: lseek(@file, 0, SEEK_CUR) -> 11534336 => 12582912
            allocated: blocks("more") -> part => all
            allocated: blocks("hole") -> part => all
            allocated: extents("hole") -> 0-256 768-1024 => 0-1024
        "#,
    },
    Accepted {
        reason: "Linux lets no call to FUSE take bytes out of a file or put a hole between.",
        modes: Mode::ALL,
        lines: r#"
            allocated: fallocate(@file, FALLOC_COLLAPSE_RANGE, 262144, 262144) -> 0 => EOPNOTSUPP
            allocated: fstat(@file) -> file 0644 nlink=1 0:0 size=786432 => file 0644 nlink=1 0:0 size=1048576
            allocated: contents("less") -> 'f'*786432 => 'f'*1048576
            allocated: fallocate(@file, FALLOC_INSERT_RANGE, 262144, 262144) -> 0 => EOPNOTSUPP
            allocated: fstat(@file) -> file 0644 nlink=1 0:0 size=1310720 => file 0644 nlink=1 0:0 size=1048576
            allocated: contents("inserted") -> 'f'*262144 '\x00'*262144 'f'*786432 => 'f'*1048576
        "#,
    },
    Accepted {
        reason: "`fallocate` reserves nothing.",
        modes: Mode::ALL,
        lines: r#"
            allocated: blocks("kept") -> more => all
            allocated: blocks("empty") -> more => none
        "#,
    },
    Accepted {
        reason: "The protocol of FUSE keeps a set-group-id bit without the group's execute \
            bit; Linux' own file systems take it from whoever is not in the group.",
        modes: Mode::ALL,
        lines: r#"
            setids: stat("write-nobody-2767") -> file 0767 nlink=1 0:0 size=10 => file 2767 nlink=1 0:0 size=10
            setids: stat("cut-nobody-2767") -> file 0767 nlink=1 0:0 size=3 => file 2767 nlink=1 0:0 size=3
            setids: stat("same-nobody-2767") -> file 0767 nlink=1 0:0 size=10 => file 2767 nlink=1 0:0 size=10
            setids: stat("opened-nobody-2767") -> file 0767 nlink=1 0:0 size=0 => file 2767 nlink=1 0:0 size=0
            setids: stat("path-nobody-2767") -> file 0767 nlink=1 0:0 size=3 => file 2767 nlink=1 0:0 size=3
            setids: stat("allocated-nobody-2767") -> file 0767 nlink=1 0:0 size=4096 => file 2767 nlink=1 0:0 size=4096
            setids: stat("punched-nobody-2767") -> file 0767 nlink=1 0:0 size=10 => file 2767 nlink=1 0:0 size=10
            setids: stat("direct-nobody-2767") -> file 0767 nlink=1 0:0 size=4096 => file 2767 nlink=1 0:0 size=4096
        "#,
    },
    Accepted {
        reason: "Linux says the same of a chown(2) that leaves user and group as they are and of \
            a write, so a mount does not know which of them a stranger may not do.",
        modes: Mode::ALL,
        lines: r#"
            setids: nobody: chown("kept-nobody-2767", -1, -1) -> EPERM => ok
            setids: nobody: chown("kept-nobody-6777", -1, -1) -> EPERM => ok
        "#,
    },
    Accepted {
        reason: "The kernel of a one-writer mount sends its own times with a chown(2) that \
            leaves user and group as they are, and no word of the bits.",
        modes: &[Mode::OneWriter],
        lines: r#"
            setids: stat("kept-root-6777") -> file 0777 nlink=1 0:0 size=10 => file 6777 nlink=1 0:0 size=10
            setids: stat("kept-member-6777") -> file 0777 nlink=1 1000:4000 size=10 => file 6777 nlink=1 1000:4000 size=10
        "#,
    },
    Accepted {
        reason: "ext4 does not write an attribute that is what it was.",
        modes: Mode::ALL,
        lines: r#"
            moved: setxattr("file", "user.a", 'x') -> ok; file: kept, .: kept => ok; file: ctime, .: kept
        "#,
    },
    Accepted {
        reason: "Attributes may have 65,536 bytes; ext4 has a block for all of a file.",
        modes: Mode::ALL,
        lines: r#"
            extended: setxattr("sized", "user.sized", 'ssssssss'..[5000]) -> ENOSPC => ok
            extended: getxattr("sized", "user.sized") -> 's'*3000 => 's'*5000
            extended: setxattr("sized", "user.sized", 'ssssssss'..[65535]) -> ENOSPC => ok
            extended: getxattr("sized", "user.sized") -> 's'*3000 => 's'*65535
            extended: setxattr("sized", "user.sized", 'ssssssss'..[65536]) -> ENOSPC => ok
            extended: getxattr("sized", "user.sized") -> 's'*3000 => 's'*65536
        "#,
    },
    Accepted {
        reason: "Deadlocks are not detected: the wait goes on until a signal.",
        modes: Mode::ALL,
        lines: r#"
            ranges: interrupted(1, "lock", @file, F_SETLKW, F_WRLCK, 10, 1) -> EDEADLK => EINTR
        "#,
    },
    Accepted {
        reason: "Linux tells a mount the process of a lock, and not that it is one of an open \
            file.",
        modes: Mode::ALL,
        lines: "
            ofd: lock(@one, F_GETLK, F_WRLCK, 0, 0) -> write 0 0+5 of open file => write 0 0+5 of self
        ",
    },
    Accepted {
        reason: "No flags of files (`chattr`) and no map of extents.",
        modes: Mode::ALL,
        lines: "
            controls: ioctl(@file, FS_IOC_GETFLAGS) -> done => ENOTTY
            controls: ioctl(@file, FS_IOC_SETFLAGS) -> done => ENOTTY
            controls: ioctl(@file, FS_IOC_FIEMAP) -> EINVAL => EOPNOTSUPP
            controls: ioctl(@dir, FS_IOC_GETFLAGS) -> done => ENOTTY
            controls: ioctl(@dir, FS_IOC_SETFLAGS) -> done => ENOTTY
            controls: ioctl(@dir, FS_IOC_FIEMAP) -> EINVAL => EOPNOTSUPP
        ",
    },
    Accepted {
        reason: "What has no name any more is there until a round of collection, and can be \
            opened by its handle.",
        modes: &[Mode::Strict, Mode::Relaxed, Mode::OneWriter],
        lines: r#"
            controls: handle_of_removed("closed") -> ESTALE => opened
        "#,
    },
    Accepted {
        reason: "A write through a strict mount leaves capabilities to the kernel, which does \
            not look.",
        modes: &[Mode::Strict],
        lines: r#"
            extended: getxattr("program", "security.capability", 0) -> ENODATA => length 20
        "#,
    },
    Accepted {
        reason: "Linux itself keeps times of change of a one-writer mount, and those that a \
            cut to the same length does not move.",
        modes: &[Mode::OneWriter],
        lines: r#"
            moved: truncate("file", 9) -> ok; file: mtime+ctime, .: kept => ok; file: kept, .: kept
            moved: truncate("large", 9) -> ok; large: mtime+ctime, .: kept => ok; large: kept, .: kept
        "#,
    },
];

/// One line of the record.
#[derive(Clone, Debug)]
struct Answered {
    /// `SECTION: CALL`.
    call: String,
    answer: String,
}

/// The folder for the calls on ext4.
fn local_folder(cluster: &Cluster) -> PathBuf {
    let folder = cluster.folder.path().join("local");
    let mut command = Command::new("stat");
    let kind = command.args(["-f", "-c", "%T"]).arg(cluster.folder.path()).output().unwrap().stdout;
    let kind = String::from_utf8(kind).unwrap();
    let advice = "set TMPDIR to a folder on ext4, or NO_FUSE=1";
    assert_eq!(kind.trim(), "ext2/ext3", "answers are compared with those of ext4: {advice}");
    folder
}

/// Makes the calls in a new folder.
fn record(folder: &Path) -> Vec<Answered> {
    fs::create_dir(folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/battery/battery.py");
    let mut program = Command::new("python3");
    let done = program.arg(script).arg(folder).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let told = String::from_utf8(done.stdout).unwrap();
    let last = told.lines().last().unwrap_or_default();
    assert!(done.status.success(), "{}: after {last}: {said}", folder.display());
    let mut section = "";
    let mut record = Vec::new();
    for line in told.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            section = name;
            continue;
        }
        let (call, answer) = line.split_once(" -> ").unwrap();
        let (_number, call) = call.split_once(' ').unwrap();
        record.push(Answered { call: format!("{section}: {call}"), answer: answer.to_owned() });
    }
    record
}

/// The lines that differ.
fn differences(local: &[Answered], mount: &[Answered]) -> BTreeSet<String> {
    assert_eq!(local.len(), mount.len(), "the battery makes other calls on a mount");
    let mut found = BTreeSet::new();
    for (local, mount) in local.iter().zip(mount) {
        assert_eq!(local.call, mount.call, "the battery makes other calls on a mount");
        if local.answer != mount.answer {
            found.insert(format!("{} -> {} => {}", local.call, local.answer, mount.answer));
        }
    }
    found
}

/// The lines that may differ in a mode.
fn accepted(mode: Mode) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for accepted in ACCEPTED.iter().filter(|accepted| accepted.modes.contains(&mode)) {
        assert!(!accepted.reason.is_empty());
        let of_reason = accepted.lines.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.extend(of_reason.map(str::to_owned));
    }
    lines
}

#[test]
fn system_calls_answer_as_on_ext4() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, 4 * HANG);
    let local = record(&local_folder(&cluster));
    assert!(local.len() > 2000, "only {} calls", local.len());
    let mut faults = Vec::new();
    for mode in Mode::ALL {
        let name = format!("{mode:?}");
        let mount = host.mount(&name, mode.options());
        let found = differences(&local, &record(&mount.join(&name)));
        let accepted = accepted(*mode);
        let unknown = found.difference(&accepted);
        faults.extend(unknown.map(|line| format!("{name}: not accepted: {line}")));
        let gone = accepted.difference(&found);
        faults.extend(gone.map(|line| format!("{name}: no difference any more: {line}")));
        host.umount(&mount);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
