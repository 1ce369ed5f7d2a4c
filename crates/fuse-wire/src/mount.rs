//! Mounting and unmounting, as root or through `fusermount3`.

mod fusermount;

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::device::Device;
use crate::mountinfo::mounts;

/// The file system type of our mounts in the mount table.
pub const FS_TYPE: &str = "fuse.millpond";
/// The subtype in the form that `fusermount3` expects.
const SUBTYPE: &str = "millpond";

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a mount option of that name")]
pub struct MountOptions {
    /// The source shown in the mount table.
    pub fsname: String,
    /// Mounts read-only.
    pub read_only: bool,
    /// Allows users other than the mounting one.
    pub allow_other: bool,
    /// The kernel checks modes and owners by itself.
    pub default_permissions: bool,
    /// Ignores set-user-id bits.
    pub nosuid: bool,
    /// Disables device files.
    pub nodev: bool,
    /// Forbids executing files.
    pub noexec: bool,
    /// Reads do not update the access time; the mount table shows it.
    pub noatime: bool,
    /// Bytes of the largest read; without it the value agreed in INIT.
    pub max_read: Option<u32>,
}

impl Default for MountOptions {
    /// Writable, for the mounting user only, without set-user-id bits and device files.
    fn default() -> Self {
        Self {
            fsname: SUBTYPE.to_owned(),
            read_only: false,
            allow_other: false,
            default_permissions: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            noatime: false,
            max_read: None,
        }
    }
}

impl MountOptions {
    /// Options specific to FUSE, not the kernel's general ones.
    fn own(&self) -> String {
        let mut own = String::new();
        if self.allow_other {
            own.push_str(",allow_other");
        }
        if self.default_permissions {
            own.push_str(",default_permissions");
        }
        if let Some(bytes) = self.max_read {
            own.push_str(",max_read=");
            own.push_str(&bytes.to_string());
        }
        own
    }

    /// General options as bits of `mount(2)`.
    fn flags(&self) -> libc::c_ulong {
        [
            (self.read_only, libc::MS_RDONLY),
            (self.nosuid, libc::MS_NOSUID),
            (self.nodev, libc::MS_NODEV),
            (self.noexec, libc::MS_NOEXEC),
            (self.noatime, libc::MS_NOATIME),
        ]
        .into_iter()
        .filter_map(|(set, flag)| set.then_some(flag))
        .fold(0, |all, flag| all | flag)
    }
}

/// Why mounting or unmounting failed. Each message says in a line how to fix it.
#[derive(Debug, Error)]
pub enum MountError {
    /// The kernel or the container has no FUSE.
    #[error("/dev/fuse is missing: `modprobe fuse`, or give the container `--device /dev/fuse`")]
    NoDevice,
    /// No permission to open the device.
    #[error(
        "/dev/fuse cannot be opened: run as root, or allow it (`chmod 666 /dev/fuse`, in a \
         container a device rule)"
    )]
    DeviceRights,
    /// Neither root nor a helper.
    #[error(
        "no right to mount: run as root (in a container with `--cap-add SYS_ADMIN`), or install fusermount3 (package fuse3)"
    )]
    NoRights,
    /// `/etc/fuse.conf` forbids it.
    #[error(
        "users may not mount with allow_other: add the line `user_allow_other` to /etc/fuse.conf"
    )]
    AllowOther,
    /// The target does not exist.
    #[error("{} does not exist: `mkdir -p {}`", .0.display(), .0.display())]
    TargetMissing(PathBuf),
    /// The target is not a directory.
    #[error("{} is not a directory: choose a directory to mount on", .0.display())]
    TargetNotDirectory(PathBuf),
    /// The target is already a mount of ours.
    #[error(
        "{} is already a mount of {source_name}: unmount it first (`umount {}`)",
        .target.display(),
        .target.display()
    )]
    Occupied {
        /// The target.
        target: PathBuf,
        /// The source mounted there.
        source_name: String,
    },
    /// The target is a mount without a server.
    #[error("{} is a mount whose server is gone: `umount -l {}`", .0.display(), .0.display())]
    Dead(PathBuf),
    /// There is no mount.
    #[error("{} is not a mount", .0.display())]
    NotMounted(PathBuf),
    /// Files below the target are open.
    #[error(
        "{} is in use: close the open files below it (`fuser -m {}`), or unmount lazily",
        .0.display(),
        .0.display()
    )]
    Busy(PathBuf),
    /// An option that cannot be passed on.
    #[error("mount option '{0}' has a zero byte in it")]
    Option(&'static str),
    /// Any other message of `fusermount3`.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// Any other error of the system.
    #[error("{what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Mounts the file system on the directory `target`. The returned device has the connection; its
/// first request is the INIT.
///
/// The directory need not be empty; the mount hides its content.
///
/// # Errors
/// [`MountError`] says how to fix it.
pub fn mount(target: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let target = check_target(target)?;
    let device = Device::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
        Some(libc::EACCES | libc::EPERM) => MountError::DeviceRights,
        _ => MountError::Os { what: "open /dev/fuse", source: error },
    });
    let device = match device {
        Ok(device) => device,
        // The helper may have the permission to open it that we lack.
        Err(MountError::DeviceRights) if fusermount::is_there() => {
            return fusermount::mount(&target, options);
        }
        Err(error) => return Err(error),
    };
    match mount_as_root(&device, &target, options) {
        Ok(()) => Ok(device),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            if !fusermount::is_there() {
                return Err(MountError::NoRights);
            }
            fusermount::mount(&target, options)
        }
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(MountError::NoDevice),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && options.has_zero() => {
            Err(MountError::Option("fsname"))
        }
        Err(error) => Err(MountError::Os { what: "mount", source: error }),
    }
}

impl MountOptions {
    fn has_zero(&self) -> bool {
        self.fsname.contains('\0')
    }
}

/// `mount(2)` with the device's descriptor.
fn mount_as_root(device: &Device, target: &Path, options: &MountOptions) -> io::Result<()> {
    // SAFETY: both calls only return a number.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let data = format!(
        "fd={},rootmode={:o},user_id={uid},group_id={gid}{}",
        device.as_fd().as_raw_fd(),
        libc::S_IFDIR,
        options.own()
    );
    let source = CString::new(options.fsname.as_str())?;
    let (target, kind) = (c_path(target)?, CString::new(FS_TYPE)?);
    let data = CString::new(data)?;
    // SAFETY: four strings that end with a zero and outlive the call.
    let rc = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            options.flags(),
            data.as_ptr().cast(),
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends a mount.
///
/// `lazy` takes it out of the tree at once and ends it when its last file is closed; it works on a
/// mount with a hanging server.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::Busy`], or the system's error.
pub fn unmount(target: &Path, lazy: bool) -> Result<(), MountError> {
    let path = c_path(target).map_err(|source| MountError::Os { what: "unmount", source })?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    match umount2(&path, flags) {
        Ok(()) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM) if fusermount::is_there() => fusermount::unmount(target, lazy),
            Some(libc::EPERM) => Err(MountError::NoRights),
            Some(libc::EINVAL) => Err(MountError::NotMounted(target.to_owned())),
            Some(libc::ENOENT) => Err(MountError::TargetMissing(target.to_owned())),
            Some(libc::EBUSY) => Err(MountError::Busy(target.to_owned())),
            _ => Err(MountError::Os { what: "unmount", source: error }),
        },
    }
}

fn umount2(path: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a string that ends with a zero and outlives the call.
    let rc = unsafe { libc::umount2(path.as_ptr(), flags) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The target with links resolved, if it can be mounted on.
fn check_target(target: &Path) -> Result<PathBuf, MountError> {
    let fault = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOENT) => MountError::TargetMissing(target.to_owned()),
        Some(libc::ENOTDIR) => MountError::TargetNotDirectory(target.to_owned()),
        Some(libc::ENOTCONN) => MountError::Dead(target.to_owned()),
        _ => MountError::Os { what: "target of the mount", source: error },
    };
    let place = place_of(target).map_err(fault)?;
    let ours = mounts().map_err(|source| MountError::Os { what: "list of mounts", source })?;
    if let Some(mount) = ours.into_iter().find(|mount| mount.target == place) {
        let source_name = mount.source.to_string_lossy().into_owned();
        return Err(MountError::Occupied { target: place, source_name });
    }
    let kind = fs::metadata(&place).map_err(fault)?;
    if !kind.is_dir() {
        return Err(MountError::TargetNotDirectory(place));
    }
    Ok(place)
}

/// The path of a mount point with links resolved, as in the mount table.
///
/// It does not access the last component, because a mount with a hanging server would block it
/// forever.
///
/// # Errors
/// `NotFound`, and other errors of the system for the parent folders.
pub fn place_of(target: &Path) -> io::Result<PathBuf> {
    let Some(name) = target.file_name() else { return fs::canonicalize(target) };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    let place = fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name);
    if fs::read_link(&place).is_ok() { fs::canonicalize(target) } else { Ok(place) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{MountError, MountOptions, mount, place_of, unmount};

    #[test]
    fn options_become_the_kernels() {
        let options = MountOptions {
            read_only: true,
            allow_other: true,
            default_permissions: true,
            nodev: false,
            max_read: Some(4096),
            ..MountOptions::default()
        };
        assert_eq!(options.own(), ",allow_other,default_permissions,max_read=4096");
        assert_eq!(options.flags(), libc::MS_RDONLY | libc::MS_NOSUID);
        assert_eq!(MountOptions::default().own(), "");
    }

    #[test]
    fn targets_that_cannot_be_mounted_on_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/such");
        let error = mount(&missing, &MountOptions::default()).unwrap_err();
        assert!(matches!(error, MountError::TargetMissing(_)), "{error}");
        let missing = folder.path().join("none");
        let error = mount(&missing, &MountOptions::default()).unwrap_err();
        assert!(error.to_string().contains("mkdir -p"), "{error}");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = mount(&file, &MountOptions::default()).unwrap_err();
        assert!(matches!(error, MountError::TargetNotDirectory(_)), "{error}");
        let error = unmount(folder.path(), true).unwrap_err();
        assert!(matches!(error, MountError::NotMounted(_)), "{error}");
    }

    #[test]
    fn links_to_a_target_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(place_of(&link).unwrap(), real);
        assert_eq!(place_of(&real.join(".")).unwrap(), real);
        assert_eq!(place_of(Path::new("/")).unwrap(), Path::new("/"));
    }
}
