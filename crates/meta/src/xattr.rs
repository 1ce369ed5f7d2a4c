//! Extended attributes.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    AclKind, Attr, Caller, FileKind, Ino, InodeRecord, MetaError, MetaReply, Setxattr, XATTRS_MAX,
    XattrMode, XattrName, keys,
};

use crate::acl;
use crate::error::Failed;
use crate::permit;
use crate::view::View;

/// Attributes that are read or removed at a time: each comes with its value, and a transaction is
/// small.
pub(crate) const XATTRS_AT_ONCE: usize = 50;

/// Checks that the caller may use attributes of this class (xattr(7)).
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
    let owns = caller.uid == attr.uid;
    if wanted == permit::WRITE && owns && AclKind::of(name.as_bytes()).is_some() {
        return Ok(());
    }
    let is_trusted = name.as_bytes().starts_with(b"trusted.");
    if caller.uid == 0 || wanted == permit::READ && !is_trusted {
        return Ok(());
    }
    hidden()
}

/// Checks that an attribute exists or not, as `mode` requires.
pub(crate) fn expect(mode: XattrMode, there: bool) -> Result<(), MetaError> {
    match mode {
        XattrMode::Create if there => Err(MetaError::Exists),
        XattrMode::Replace if !there => Err(MetaError::NoData),
        _ => Ok(()),
    }
}

/// Writes or removes an attribute, and counts it in `record`, which the caller puts afterwards;
/// `there` tells whether it exists.
pub(crate) fn put(
    view: &View,
    record: &mut InodeRecord,
    (key, there): (&[u8], bool),
    value: Option<&[u8]>,
) -> Result<(), Failed> {
    match (value, there) {
        (Some(_), false) if usize::from(record.xattrs) >= XATTRS_MAX => {
            return Err(MetaError::NoSpace.into());
        }
        (Some(_), false) => record.xattrs += 1,
        (None, true) => record.xattrs = record.xattrs.saturating_sub(1),
        _ => {}
    }
    match value {
        Some(value) => view.txn.put(key, value)?,
        None => view.txn.delete(key)?,
    }
    Ok(())
}

/// Sets an attribute.
pub(crate) async fn set(view: &View, caller: &Caller, set: &Setxattr) -> Result<MetaReply, Failed> {
    let mut record = view.inode(set.ino).await?;
    may(caller, &record.attr, &set.name, permit::WRITE)?;
    if let Some(kind) = AclKind::of(set.name.as_bytes()) {
        return acl::set(view, caller, (set, kind), record).await;
    }
    let key = keys::xattr(set.ino, &set.name);
    let there = view.txn.get(&key).await?.is_some();
    expect(set.mode, there)?;
    put(view, &mut record, (&key, there), Some(&set.value))?;
    record.attr.ctime = view.now;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Done)
}

/// Returns the value of an attribute.
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

/// Lists the names of all attributes.
pub(crate) async fn list(view: &View, ino: Ino) -> Result<MetaReply, Failed> {
    if view.inode(ino).await?.xattrs == 0 {
        return Ok(MetaReply::Xattrs(Vec::new()));
    }
    let prefix = keys::xattrs(ino);
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(XATTRS_AT_ONCE) };
    let name = |(key, _): &(Vec<u8>, _)| XattrName::new(key.strip_prefix(prefix.as_slice())?).ok();
    let (mut names, mut more) = (Vec::new(), Some(KeyRange::prefix(&prefix)));
    while let Some(range) = more.filter(|_| names.len() < XATTRS_MAX) {
        let page = view.txn.range(&range, options).await?;
        names.extend(page.entries.iter().filter_map(name));
        more = page.rest;
    }
    names.truncate(XATTRS_MAX);
    Ok(MetaReply::Xattrs(names))
}

/// Removes some attributes of an inode that will be removed. Returns whether there are more.
pub(crate) async fn remove_some(view: &View, ino: Ino) -> Result<bool, Failed> {
    let all = KeyRange::prefix(&keys::xattrs(ino));
    let page = view.txn.range(&all, RangeOptions::limit(XATTRS_AT_ONCE)).await?;
    for (key, _) in page.entries {
        view.txn.delete(&key)?;
    }
    Ok(page.rest.is_some())
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
    put(view, &mut record, (&key, true), None)?;
    record.attr.ctime = view.now;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Done)
}
