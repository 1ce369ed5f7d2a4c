//! Extended attributes.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Attr, Caller, FileKind, Ino, MetaError, MetaReply, Setxattr, XATTRS_MAX, XattrMode, XattrName,
    keys,
};

use crate::error::Failed;
use crate::permit;
use crate::view::View;

/// Whether the caller may use attributes of this class (xattr(7)).
fn may(caller: &Caller, attr: &Attr, name: &XattrName, wanted: u16) -> Result<(), MetaError> {
    if caller.checked {
        return Ok(());
    }
    let hidden =
        || Err(if wanted == permit::READ { MetaError::NoData } else { MetaError::NotPermitted });
    if name.as_bytes().starts_with(b"user.") {
        return match attr.kind {
            FileKind::Regular | FileKind::Directory => permit::access(caller, attr, wanted),
            _ => hidden(),
        };
    }
    let is_trusted = name.as_bytes().starts_with(b"trusted.");
    if caller.uid == 0 || wanted == permit::READ && !is_trusted {
        return Ok(());
    }
    hidden()
}

/// Sets an attribute.
pub(crate) async fn set(view: &View, caller: &Caller, set: &Setxattr) -> Result<MetaReply, Failed> {
    let mut record = view.inode(set.ino).await?;
    may(caller, &record.attr, &set.name, permit::WRITE)?;
    let key = keys::xattr(set.ino, &set.name);
    let there = view.txn.get(&key).await?.is_some();
    match set.mode {
        XattrMode::Create if there => return Err(MetaError::Exists.into()),
        XattrMode::Replace if !there => return Err(MetaError::NoData.into()),
        _ => {}
    }
    if !there {
        if usize::from(record.xattrs) >= XATTRS_MAX {
            return Err(MetaError::NoSpace.into());
        }
        record.xattrs += 1;
    }
    record.attr.ctime = view.now;
    view.txn.put(&key, set.value.as_slice())?;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Done)
}

/// The value of an attribute.
pub(crate) async fn get(
    view: &View,
    caller: &Caller,
    ino: Ino,
    name: &XattrName,
) -> Result<MetaReply, Failed> {
    if !caller.checked {
        may(caller, &view.inode(ino).await?.attr, name, permit::READ)?;
    }
    let found = view.txn.get_snapshot(&keys::xattr(ino, name)).await?;
    found.map(MetaReply::Xattr).ok_or(Failed::Refused(MetaError::NoData))
}

/// The names of all attributes.
pub(crate) async fn list(view: &View, ino: Ino) -> Result<MetaReply, Failed> {
    if view.inode(ino).await?.xattrs == 0 {
        return Ok(MetaReply::Xattrs(Vec::new()));
    }
    let prefix = keys::xattrs(ino);
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(XATTRS_MAX) };
    let found = view.txn.range_all(&KeyRange::prefix(&prefix), options).await?;
    let name = |(key, _): &(Vec<u8>, _)| XattrName::new(key.strip_prefix(prefix.as_slice())?).ok();
    Ok(MetaReply::Xattrs(found.iter().filter_map(name).take(XATTRS_MAX).collect()))
}

/// Removes an attribute.
pub(crate) async fn remove(
    view: &View,
    caller: &Caller,
    ino: Ino,
    name: &XattrName,
) -> Result<MetaReply, Failed> {
    let mut record = view.inode(ino).await?;
    may(caller, &record.attr, name, permit::WRITE)?;
    let key = keys::xattr(ino, name);
    if view.txn.get(&key).await?.is_none() {
        return Err(MetaError::NoData.into());
    }
    record.xattrs = record.xattrs.saturating_sub(1);
    record.attr.ctime = view.now;
    view.txn.delete(&key)?;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Done)
}
