//! Permissions: the rules of POSIX without access control lists. Pure.

use millpond_types::meta::{Attr, Caller, FileKind, MetaError, SetAttr, SetTime};

/// Search a directory, or run a file.
pub(crate) const EXECUTE: u16 = 1;
/// Change the content.
pub(crate) const WRITE: u16 = 2;
/// Read the content.
pub(crate) const READ: u16 = 4;

const SET_UID: u16 = 0o4000;
/// Runs with the rights of its group; a directory passes its group on.
pub(crate) const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
const STICKY: u16 = 0o1000;

/// Whether no check is needed: the caller is root, or a kernel has checked it.
const fn is_free(caller: &Caller) -> bool {
    caller.checked || caller.uid == 0
}

/// Checks that the caller has all of `wanted`.
///
/// # Errors
/// `Access`.
pub(crate) fn access(caller: &Caller, attr: &Attr, wanted: u16) -> Result<(), MetaError> {
    caller.access(attr, wanted)
}

/// Checks that the caller may change the entries of a directory.
///
/// # Errors
/// `Access`.
pub(crate) fn change_entries(caller: &Caller, dir: &Attr) -> Result<(), MetaError> {
    access(caller, dir, WRITE | EXECUTE)
}

/// Checks that the caller may remove a name of `inode` from `dir`.
///
/// # Errors
/// `Access`; `NotPermitted` in a sticky directory.
pub(crate) fn remove(caller: &Caller, dir: &Attr, inode: &Attr) -> Result<(), MetaError> {
    change_entries(caller, dir)?;
    let owns = caller.uid == inode.uid || caller.uid == dir.uid;
    if is_free(caller) || dir.mode & STICKY == 0 || owns {
        return Ok(());
    }
    Err(MetaError::NotPermitted)
}

/// Checks that the caller may make an inode of this kind: only root makes devices (mknod(2)).
///
/// # Errors
/// `NotPermitted`.
pub(crate) const fn make(caller: &Caller, kind: FileKind) -> Result<(), MetaError> {
    match kind {
        FileKind::CharDevice | FileKind::BlockDevice if !is_free(caller) => {
            Err(MetaError::NotPermitted)
        }
        _ => Ok(()),
    }
}

/// Checks that the caller may set these attributes, and returns them with their side effects: a
/// group that the caller is not in clears the set-group-id bit, and another owner, group or length
/// clears both set-id bits (chown(2)). A kernel that has checked the caller sends these side
/// effects itself.
///
/// # Errors
/// `NotPermitted`, `Access`.
pub(crate) fn set_attr(caller: &Caller, attr: &Attr, set: SetAttr) -> Result<SetAttr, MetaError> {
    if is_free(caller) {
        return Ok(set);
    }
    let owns = caller.uid == attr.uid;
    let mut set = SetAttr { ctime: None, ..set };
    if set.uid.is_some_and(|uid| uid != attr.uid || !owns) {
        return Err(MetaError::NotPermitted);
    }
    if set.gid.is_some_and(|gid| !owns || gid != attr.gid && !caller.is_in_group(gid)) {
        return Err(MetaError::NotPermitted);
    }
    if let Some(mode) = &mut set.mode {
        if !owns {
            return Err(MetaError::NotPermitted);
        }
        if !caller.is_in_group(set.gid.unwrap_or(attr.gid)) {
            *mode &= !SET_GID;
        }
    }
    if set.size.is_some() {
        access(caller, attr, WRITE)?;
    }
    for time in [set.atime, set.mtime].into_iter().flatten() {
        match time {
            _ if owns => {}
            SetTime::At(_) => return Err(MetaError::NotPermitted),
            SetTime::Now => access(caller, attr, WRITE)?,
        }
    }
    let is_given = set.uid.is_some() || set.gid.is_some() || set.size.is_some();
    if is_given && !attr.is_dir() {
        let mode = set.mode.unwrap_or(attr.mode);
        set.mode = Some(without_set_ids(mode));
    }
    Ok(set)
}

/// Whether an access control list that the caller sets clears the set-group-id bit, as a mode that
/// the caller sets does.
pub(crate) fn drops_set_gid(caller: &Caller, attr: &Attr) -> bool {
    !is_free(caller) && !caller.is_in_group(attr.gid)
}

/// Clears the set-id bits. Without the group's execute bit, the set-group-id bit means mandatory
/// locking, and stays.
const fn without_set_ids(mode: u16) -> u16 {
    if mode & GROUP_EXECUTE == 0 { mode & !SET_UID } else { mode & !(SET_UID | SET_GID) }
}

/// Returns group and mode of a new inode in `dir`: a directory with the set-group-id bit passes on
/// its group, and to directories also the bit. A caller cannot make a program for a group that it
/// is not in.
pub(crate) fn inherit(caller: &Caller, dir: &Attr, is_dir: bool, mode: u16) -> (u32, u16) {
    if dir.mode & SET_GID == 0 {
        return (caller.gid, mode);
    }
    let is_program = mode & GROUP_EXECUTE != 0 && !is_dir;
    let mode = match (is_dir, is_program && !is_free(caller) && !caller.is_in_group(dir.gid)) {
        (true, _) => mode | SET_GID,
        (false, true) => mode & !SET_GID,
        (false, false) => mode,
    };
    (dir.gid, mode)
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{FileKind, Ino, Layout, Timestamp};

    use super::*;

    fn attr(mode: u16, uid: u32, gid: u32) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino: Ino(2),
            kind: FileKind::Directory,
            mode,
            uid,
            gid,
            nlink: 2,
            rdev: 0,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            data: 0,
            chunks: Some(0),
            is_shared: false,
            solid: 0,
            cuts: 0,
            layout: Layout::NONE,
            parent: Ino::ROOT,
            version: 0,
        }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec(), checked: false }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let dir = attr(0o750, 10, 20);
        assert_eq!(access(&caller(10, 1, &[]), &dir, WRITE), Ok(()));
        assert_eq!(access(&caller(11, 20, &[]), &dir, READ | EXECUTE), Ok(()));
        assert_eq!(access(&caller(11, 1, &[5, 20]), &dir, READ), Ok(()));
        assert_eq!(access(&caller(11, 20, &[]), &dir, WRITE), Err(MetaError::Access));
        assert_eq!(access(&caller(11, 1, &[]), &dir, READ), Err(MetaError::Access));
        // The owner class decides for the owner even where others have more rights.
        assert!(access(&caller(10, 20, &[]), &attr(0o077, 10, 20), READ).is_err());
        assert_eq!(access(&caller(0, 0, &[]), &attr(0, 10, 20), READ | WRITE), Ok(()));
        let file = Attr { kind: FileKind::Regular, ..attr(0o600, 10, 20) };
        assert!(access(&caller(0, 0, &[]), &file, EXECUTE).is_err());
        let checked = Caller { checked: true, ..caller(11, 1, &[]) };
        assert_eq!(access(&checked, &attr(0, 10, 20), WRITE), Ok(()));
    }

    #[test]
    fn in_a_sticky_directory_only_owners_remove() {
        let (dir, inode) = (attr(0o1777, 10, 20), attr(0o644, 11, 20));
        assert_eq!(remove(&caller(11, 1, &[]), &dir, &inode), Ok(()));
        assert_eq!(remove(&caller(10, 1, &[]), &dir, &inode), Ok(()));
        assert_eq!(remove(&caller(12, 20, &[]), &dir, &inode), Err(MetaError::NotPermitted));
        assert_eq!(remove(&caller(0, 0, &[]), &dir, &inode), Ok(()));
        assert_eq!(remove(&caller(12, 20, &[]), &attr(0o777, 10, 20), &inode), Ok(()));
    }

    #[test]
    fn only_owners_and_root_set_attributes() {
        let file = attr(0o644, 10, 20);
        let mode = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
        assert!(set_attr(&caller(11, 20, &[]), &file, mode).is_err());
        let set = set_attr(&caller(10, 1, &[]), &file, mode).unwrap();
        assert_eq!(set.mode, Some(0o755), "the owner is not in the group");
        assert_eq!(set_attr(&caller(10, 1, &[20]), &file, mode).unwrap().mode, Some(0o2755));
        let uid = SetAttr { uid: Some(11), ..SetAttr::default() };
        assert!(set_attr(&caller(10, 20, &[]), &file, uid).is_err());
        assert!(set_attr(&caller(0, 0, &[]), &file, uid).is_ok());
        let gid = SetAttr { gid: Some(30), ..SetAttr::default() };
        assert!(set_attr(&caller(10, 20, &[]), &file, gid).is_err());
        assert!(set_attr(&caller(10, 20, &[30]), &file, gid).is_ok());
        let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(set_attr(&caller(11, 1, &[]), &file, now), Err(MetaError::Access));
        let at = SetTime::At(Timestamp::default());
        let at = SetAttr { mtime: Some(at), ..SetAttr::default() };
        assert_eq!(set_attr(&caller(11, 20, &[]), &file, at), Err(MetaError::NotPermitted));
        let size = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(set_attr(&caller(11, 20, &[]), &file, size), Err(MetaError::Access));
    }

    #[test]
    fn set_group_id_is_inherited() {
        let dir = attr(0o2775, 10, 20);
        assert_eq!(inherit(&caller(11, 1, &[]), &dir, true, 0o755), (20, 0o2755));
        assert_eq!(inherit(&caller(11, 1, &[]), &dir, false, 0o644), (20, 0o644));
        assert_eq!(inherit(&caller(11, 1, &[]), &attr(0o775, 10, 20), true, 0o755), (1, 0o755));
    }
}
