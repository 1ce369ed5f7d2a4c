//! The mount table, and the switch that ends a connection.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::mount::FS_TYPE;

/// The kernel's folder of connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Its path, as this process sees it.
    pub target: PathBuf,
    /// The source, as set by `fsname`.
    pub source: OsString,
    /// The minor device number, which names the connection for [`abort_connection`].
    pub connection: u32,
    /// Whether this mount point is read-only.
    pub read_only: bool,
}

/// The mounts of type `fuse.millpond` that this process sees, including bind mounts of them.
///
/// # Errors
/// Those of reading `/proc/self/mountinfo`.
pub fn mounts() -> io::Result<Vec<MountPoint>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Parses the mount table; lines that do not match `proc(5)` are skipped.
fn parse(text: &[u8]) -> Vec<MountPoint> {
    text.split(|&byte| byte == b'\n').filter_map(mount_point).collect()
}

/// `id parent major:minor root target options [optional...] - type source super-options`
fn mount_point(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let connection = device.split_once(':')?.1.parse().ok()?;
    let target = OsString::from_vec(unescape(fields.nth(1)?)).into();
    let options = fields.next()?;
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    if fields.next()? != FS_TYPE.as_bytes() {
        return None;
    }
    let source = OsString::from_vec(unescape(fields.next()?));
    let read_only = options.split(|&byte| byte == b',').any(|option| option == b"ro");
    Some(MountPoint { target, source, connection, read_only })
}

/// Decodes spaces, tabs, line ends and backslashes, which are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| first == b'\\');
        let octal = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    bytes
}

/// Sets the kernel's read-ahead for files of a mount, in bytes.
///
/// A new connection gets at most 128 KiB, even if INIT asks for more.
///
/// # Errors
/// `NotFound` when there is no such connection, `PermissionDenied` for users other than root.
pub fn set_read_ahead(connection: u32, bytes: u32) -> io::Result<()> {
    let setting = format!("/sys/class/bdi/0:{connection}/read_ahead_kb");
    fs::write(setting, (bytes >> 10).to_string())
}

/// The kernel's read-ahead for files of a mount, in bytes.
///
/// # Errors
/// `NotFound` when there is no such connection, `InvalidData` when the setting is not a number.
pub fn read_ahead(connection: u32) -> io::Result<u32> {
    let text = fs::read_to_string(format!("/sys/class/bdi/0:{connection}/read_ahead_kb"))?;
    let kib: u32 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(kib.saturating_mul(1 << 10))
}

/// Ends a connection at once: all waiting and future requests get `ECONNABORTED`. The last resort
/// when a server hangs.
///
/// Mounts the kernel's control file system if it is not mounted and we are allowed to.
///
/// # Errors
/// `NotFound` when there is no such connection, `PermissionDenied`.
pub fn abort_connection(connection: u32) -> io::Result<()> {
    let switch = Path::new(CONNECTIONS).join(connection.to_string()).join("abort");
    if !switch.exists() && fs::read_dir(CONNECTIONS)?.next().is_none() {
        mount_control()?;
    }
    fs::write(switch, "1")
}

fn mount_control() -> io::Result<()> {
    let [kind, target] = ["fusectl", CONNECTIONS].map(|text| CString::new(text).expect("no zero"));
    let (kind, target) = (kind.as_ptr(), target.as_ptr());
    // SAFETY: strings that end with a zero and outlive the call; there is no data.
    let rc = unsafe { libc::mount(kind, target, kind, 0, std::ptr::null()) };
    let error = io::Error::last_os_error();
    // Busy: another process mounted it just now.
    if rc < 0 && error.raw_os_error() != Some(libc::EBUSY) { Err(error) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::{any, proptest};

    use super::{parse, unescape};

    const TEXT: &[u8] = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
        77 36 0:52 / /a\\040b rw,nosuid shared:3 master:4 - fuse.millpond ten\\054x rw,user_id=0\n\
        78 36 0:53 / /mnt/ro ro,nosuid - fuse.millpond two ro\n\
        79 36 0:54 / /mnt/x rw - fuse.sshfs other rw\n\
        80 36 nonsense\n";

    #[test]
    fn only_ours_are_listed() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].target, Path::new("/a b"));
        assert_eq!(mounts[0].source, "ten,x");
        assert_eq!((mounts[0].connection, mounts[0].read_only), (52, false));
        assert_eq!((mounts[1].connection, mounts[1].read_only), (53, true));
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(b"a\\011b\\134040\\12"), b"a\tb\\040\\12");
        assert_eq!(unescape(b"\\777\\"), b"\\777\\", "no byte has that number");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<Vec<u8>>()) {
            parse(&text);
        }
    }
}
