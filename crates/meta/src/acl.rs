//! Access control lists: extended attributes that extend a mode, with defaults that new entries of
//! a directory inherit.
//!
//! The kernels of mounts check permissions against the lists; [`crate::permit`] checks modes only.
//! This module keeps lists and modes consistent, in one transaction: the permission bits in the
//! mode of an inode with an access list are [`Acl::mode`].
//!
//! An inode without extended attributes has no list, and finding that out reads nothing.

use millpond_types::meta::{
    Acl, AclKind, Caller, FileKind, InodeRecord, MetaError, MetaReply, Setxattr, keys,
};

use crate::error::Failed;
use crate::permit;
use crate::view::View;
use crate::xattr;

/// The mode bits that a list determines.
const PERMISSIONS: u16 = 0o777;

/// Mode and lists of a new inode.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Its mode.
    pub(crate) mode: u16,
    lists: Vec<(AclKind, Acl)>,
}

impl Inherited {
    /// Writes the lists of the new inode and counts them. The caller writes the record afterwards.
    pub(crate) fn put(&self, view: &View, record: &mut InodeRecord) -> Result<(), Failed> {
        for (kind, acl) in &self.lists {
            let key = keys::xattr(record.attr.ino, &kind.name());
            xattr::put(view, record, (&key, false), Some(&acl.to_bytes()))?;
        }
        Ok(())
    }
}

/// Reads a list of an inode. The caller has read the record with a conflict; changing a list
/// changes the record too.
async fn list_of(view: &View, record: &InodeRecord, kind: AclKind) -> Result<Option<Acl>, Failed> {
    if record.xattrs == 0 {
        return Ok(None);
    }
    let ino = record.attr.ino;
    let found = view.txn.get_snapshot(&keys::xattr(ino, &kind.name())).await?;
    let Some(value) = found else { return Ok(None) };
    Acl::parse(&value).map_err(|error| {
        // An earlier version stored it without validation. A kernel that gets it refuses all
        // access.
        tracing::error!("inode {ino} has an invalid access control list ({kind:?}): {error}");
        Failed::Refused(MetaError::Io)
    })
}

/// Computes mode and lists of an inode that is made with `mode` in a directory, for a caller that
/// leaves the umask to metas: the directory's default list applies, or else the mode without the
/// umask.
pub(crate) async fn inherit(
    view: &View,
    parent: &InodeRecord,
    (kind, umask): (FileKind, Option<u16>),
    mode: u16,
) -> Result<Inherited, Failed> {
    let has_mode = kind != FileKind::Symlink;
    let Some(umask) = umask.filter(|_| has_mode) else {
        return Ok(Inherited { mode, lists: Vec::new() });
    };
    let Some(default) = list_of(view, parent, AclKind::Default).await? else {
        return Ok(Inherited { mode: mode & !umask, lists: Vec::new() });
    };
    let (access, mode) = default.inherit(mode);
    let mut lists = Vec::new();
    if !access.is_minimal() {
        lists.push((AclKind::Access, access));
    }
    if kind == FileKind::Directory {
        lists.push((AclKind::Default, default));
    }
    Ok(Inherited { mode, lists })
}

/// Sets or removes a list, for a caller with permission. An access list also sets the mode; it is
/// not stored when the mode expresses it completely. Removing it leaves the mode.
pub(crate) async fn set(
    view: &View,
    caller: &Caller,
    (set, kind): (&Setxattr, AclKind),
    mut record: InodeRecord,
) -> Result<MetaReply, Failed> {
    let acl = Acl::parse(&set.value)?;
    let attr = &mut record.attr;
    match (attr.kind, kind) {
        (FileKind::Symlink, _) => return Err(MetaError::NotSupported.into()),
        (FileKind::Directory, _) | (_, AclKind::Access) => {}
        // Linux returns the same error.
        (_, AclKind::Default) if acl.is_some() => return Err(MetaError::Access.into()),
        (_, AclKind::Default) => return Ok(MetaReply::Done),
    }
    let key = keys::xattr(set.ino, &set.name);
    let there = view.txn.get(&key).await?.is_some();
    xattr::expect(set.mode, there)?;
    if acl.is_none() && !there {
        return Ok(MetaReply::Done);
    }
    if let (Some(acl), AclKind::Access) = (&acl, kind) {
        attr.mode = attr.mode & !PERMISSIONS | acl.mode();
        if set.drops_set_gid || permit::drops_set_gid(caller, attr) {
            attr.mode &= !permit::SET_GID;
        }
    }
    attr.ctime = view.now;
    let kept = acl.filter(|acl| kind == AclKind::Default || !acl.is_minimal());
    let value = kept.map(|acl| acl.to_bytes());
    xattr::put(view, &mut record, (&key, there), value.as_deref())?;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Done)
}

/// Updates the access list of an inode after its mode was set.
pub(crate) async fn chmod(view: &View, record: &InodeRecord) -> Result<(), Failed> {
    let Some(mut acl) = list_of(view, record, AclKind::Access).await? else { return Ok(()) };
    acl.chmod(record.attr.mode);
    let key = keys::xattr(record.attr.ino, &AclKind::Access.name());
    Ok(view.txn.put(&key, acl.to_bytes())?)
}
