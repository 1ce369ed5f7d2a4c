//! Lines of the access log, in the logfmt form: `name=value`, separated by blanks.

use std::fmt::Write as _;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_fuse_wire::abi::{LkIn, SetattrIn, SetattrValid};
use millpond_fuse_wire::{Operation, Reply, Request};
use millpond_types::units::Utc;

use crate::errno::Errno;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has no answer.
    Silent,
    /// Success.
    Done,
    /// An error with this errno.
    Failed(i32),
    /// The number of bytes read or written.
    Bytes(u64),
    /// The inode found or made.
    Entry(u64),
}

impl Outcome {
    pub(super) fn of(reply: Option<&Reply<'_>>) -> Self {
        match reply {
            None => Self::Silent,
            Some(Reply::Error(errno)) => Self::Failed(*errno),
            // A negative entry, which the kernel may cache.
            Some(Reply::Entry(entry)) if entry.nodeid == 0 => Self::Failed(libc::ENOENT),
            Some(Reply::Entry(entry) | Reply::Create(entry, _)) => Self::Entry(entry.nodeid),
            Some(Reply::Data(data)) => Self::Bytes(data.len() as u64),
            Some(Reply::Pieces(pieces)) => {
                Self::Bytes(pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            Some(Reply::Directory(entries)) => Self::Bytes(entries.bytes().len() as u64),
            Some(Reply::Written(bytes)) => Self::Bytes(u64::from(*bytes)),
            Some(Reply::Copied(bytes)) => Self::Bytes(*bytes),
            Some(_) => Self::Done,
        }
    }
}

/// The current time in UTC.
fn time() -> String {
    let nanos = RealClock::wall_nanos();
    let (seconds, micros) = (nanos / 1_000_000_000, nanos / 1_000 % 1_000_000);
    let at = Utc::of_unix_seconds(u64::try_from(seconds).unwrap_or(0));
    let Utc { year, month, day, hour, minute, second } = at;
    format!("time={year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// A line about the log itself.
pub(super) fn event(what: &str) -> Vec<u8> {
    format!("{} event={what}\n", time()).into_bytes()
}

/// The caller and the operation of a request.
pub(super) fn call(request: &Request<'_>) -> String {
    let header = &request.header;
    let name = request.opcode().name().to_lowercase();
    let mut text = format!(
        " uid={} gid={} pid={} op={name} ino={}",
        header.uid, header.gid, header.pid, header.nodeid
    );
    arguments(&mut text, &request.operation);
    text
}

/// The line of a finished request.
pub(super) fn finish(call: &str, outcome: &Outcome, took: Duration) -> Vec<u8> {
    let mut line = time();
    line.push_str(call);
    let _ = match outcome {
        Outcome::Silent => write!(line, " result=none"),
        Outcome::Done => write!(line, " result=ok"),
        Outcome::Failed(errno) => write!(line, " result={}", Errno(*errno).name()),
        Outcome::Bytes(bytes) => write!(line, " result=ok bytes={bytes}"),
        Outcome::Entry(ino) => write!(line, " result=ok entry={ino}"),
    };
    let _ = writeln!(line, " seconds={}.{:06}", took.as_secs(), took.subsec_micros());
    line.into_bytes()
}

fn arguments(text: &mut String, operation: &Operation<'_>) {
    let _ = match operation {
        Operation::Forget { nlookup } => write!(text, " count={nlookup}"),
        Operation::BatchForget { items } => write!(text, " count={}", items.len()),
        Operation::Setattr(args) => return set(text, args),
        Operation::Lookup { name }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Removexattr { name } => return quoted(text, "name", name),
        Operation::Symlink { name, target } => {
            quoted(text, "name", name);
            return quoted(text, "target", target);
        }
        Operation::Mknod { args, name } => {
            quoted(text, "name", name);
            write!(text, " mode={:#o}", args.mode)
        }
        Operation::Mkdir { args, name } => {
            quoted(text, "name", name);
            write!(text, " mode={:#o}", args.mode)
        }
        Operation::Create { args, name } | Operation::Tmpfile { args, name } => {
            quoted(text, "name", name);
            write!(text, " mode={:#o} flags={:#x}", args.mode, args.flags)
        }
        Operation::Rename { new_parent, flags, name, new_name } => {
            quoted(text, "name", name);
            let _ = write!(text, " new_parent={new_parent}");
            quoted(text, "new_name", new_name);
            write!(text, " flags={:#x}", flags.bits())
        }
        Operation::Link { inode, name } => {
            quoted(text, "name", name);
            write!(text, " linked={inode}")
        }
        Operation::Open(args) | Operation::Opendir(args) => {
            write!(text, " flags={:#x}", args.flags)
        }
        Operation::Read(args) | Operation::Readdir(args) | Operation::Readdirplus(args) => {
            write!(text, " offset={} length={}", args.offset, args.size)
        }
        Operation::Write { args, .. } => {
            write!(text, " offset={} length={}", args.offset, args.size)
        }
        Operation::Fallocate(args) => {
            let mode = args.mode.bits();
            write!(text, " offset={} length={} mode={mode:#x}", args.offset, args.length)
        }
        Operation::Setxattr { name, value, .. } => {
            quoted(text, "name", name);
            write!(text, " length={}", value.len())
        }
        Operation::Getxattr { size, name } => {
            quoted(text, "name", name);
            write!(text, " length={size}")
        }
        Operation::Listxattr { size } => write!(text, " length={size}"),
        Operation::Getlk(args) | Operation::Setlk(args) | Operation::Setlkw(args) => {
            return lock(text, args);
        }
        Operation::Access { mask } => write!(text, " mask={mask}"),
        Operation::Interrupt { unique } => write!(text, " request={unique}"),
        _ => Ok(()),
    };
}

/// The attributes that are set; the field names differ from those of the caller's ids.
fn set(text: &mut String, args: &SetattrIn) {
    let has = |flag| args.valid.contains(flag);
    if has(SetattrValid::SIZE) {
        let _ = write!(text, " set_size={}", args.size);
    }
    if has(SetattrValid::MODE) {
        let _ = write!(text, " set_mode={:#o}", args.mode);
    }
    if has(SetattrValid::UID) {
        let _ = write!(text, " set_uid={}", args.uid);
    }
    if has(SetattrValid::GID) {
        let _ = write!(text, " set_gid={}", args.gid);
    }
    if has(SetattrValid::ATIME) {
        let _ = write!(text, " set_atime={}", args.atime);
    }
    if has(SetattrValid::MTIME) {
        let _ = write!(text, " set_mtime={}", args.mtime);
    }
}

fn lock(text: &mut String, args: &LkIn) {
    let kind = match args.lk.kind.cast_signed() {
        libc::F_RDLCK => "read",
        libc::F_WRLCK => "write",
        _ => "unlock",
    };
    let _ = write!(text, " lock={kind} start={} end={}", args.lk.start, args.lk.end);
}

/// Bytes between quotes, so that no name can end a field or a line.
fn quoted(text: &mut String, field: &str, bytes: &[u8]) {
    let _ = write!(text, " {field}=\"");
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                letter if letter.is_control() => {
                    hex(text, letter.encode_utf8(&mut [0; 4]).as_bytes());
                }
                letter => text.push(letter),
            }
        }
        hex(text, chunk.invalid());
    }
    text.push('"');
}

fn hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_a_line() {
        let mut text = String::new();
        quoted(&mut text, "name", b"a b\"\\\n\xff\xc3\xa4");
        assert_eq!(text, " name=\"a b\\\"\\\\\\x0a\\xff\u{e4}\"");
    }

    #[test]
    fn a_line_says_how_it_went_and_how_long_it_took() {
        let took = Duration::from_micros(1_000_017);
        let line = finish(" uid=5 op=read", &Outcome::Bytes(9), took);
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with("time=20"), "{line}");
        assert!(line.ends_with("Z uid=5 op=read result=ok bytes=9 seconds=1.000017\n"), "{line}");
        for (outcome, shown) in [
            (Outcome::Failed(libc::ENOENT), " result=ENOENT "),
            (Outcome::Failed(500), " result=E500 "),
            (Outcome::Entry(7), " result=ok entry=7 "),
            (Outcome::Silent, " result=none "),
        ] {
            let line = String::from_utf8(finish("", &outcome, took)).unwrap();
            assert!(line.contains(shown), "{line}");
        }
    }
}
