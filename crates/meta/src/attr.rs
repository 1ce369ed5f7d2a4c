//! Attributes of one inode.

use millpond_types::meta::{
    Attr, Caller, DirTimes, Extend, FILE_BYTES_MAX, FileKind, Hollow, Ino, MetaError, MetaReply,
    SetAttr, SetTime, Timestamp, keys,
};
use millpond_types::wire::Record;

use crate::acl;
use crate::content;
use crate::error::Failed;
use crate::permit;
use crate::quota::Charge;
use crate::share;
use crate::view::{View, opened, with_times};

/// The target of a symbolic link.
pub(crate) async fn target(view: &View, ino: Ino) -> Result<MetaReply, Failed> {
    let record = view.inode(ino).await?;
    if record.attr.kind != FileKind::Symlink {
        return Err(MetaError::Invalid.into());
    }
    Ok(MetaReply::Target(record.target))
}

/// Sets attributes. A file that is truncated to zero gets the data id `id`, and its bytes become
/// garbage; for any other cut the client has already cut the chunks.
pub(crate) async fn set(
    view: &View,
    caller: &Caller,
    (ino, set): (Ino, SetAttr),
    id: u64,
) -> Result<MetaReply, Failed> {
    if let Some(at) = set.read {
        return was_read(view, ino, at).await;
    }
    let mut record =
        if set.size.is_some() { view.file_to_write(ino).await? } else { view.inode(ino).await? };
    if set.stored && !record.attr.is_stored() {
        return Ok(MetaReply::Attr(record.attr));
    }
    let set = permit::set_attr(caller, &record.attr, set)?;
    let attr = &mut record.attr;
    attr.mode = set.mode.unwrap_or(attr.mode);
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    if let Some(size) = set.size {
        let old = attr.size;
        resize(view, attr, (size, id)).await?;
        view.charge(record.quota, ino, Charge::resize(old, size)).await?;
    }
    let time = |time| match time {
        SetTime::Now => view.now,
        SetTime::At(time) => time,
    };
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
    if attr.kind == FileKind::Regular && matches!(set.mtime, Some(SetTime::At(_))) {
        view.outdate(attr).await?;
    }
    attr.ctime = set.ctime.unwrap_or(view.now);
    let mut times = None;
    if attr.is_dir() {
        times = dir_times(view, attr, set.mtime.map(time)).await?;
    }
    if set.mode.is_some() {
        acl::chmod(view, &record).await?;
    }
    view.put_inode(&mut record)?;
    Ok(MetaReply::Attr(with_times(record.attr, times)))
}

/// Sets the time of the last read, under the rules of `relatime`. The version stays, so no client
/// drops cached pages for it.
async fn was_read(view: &View, ino: Ino, at: Timestamp) -> Result<MetaReply, Failed> {
    let mut record = view.inode(ino).await?;
    let told = view.attr(ino).await?;
    if !told.is_read_due(at) {
        return Ok(MetaReply::Attr(told));
    }
    record.attr.atime = at;
    view.put_unchanged(&record)?;
    Ok(MetaReply::Attr(Attr { atime: at, ..told }))
}

/// Returns the times of a directory's entries after its attributes are set.
async fn dir_times(
    view: &View,
    attr: &Attr,
    mtime: Option<Timestamp>,
) -> Result<Option<DirTimes>, Failed> {
    let key = keys::times(attr.ino);
    if let Some(mtime) = mtime {
        let times = DirTimes { mtime, ctime: attr.ctime };
        view.txn.put(&key, times.seal())?;
        return Ok(Some(times));
    }
    let found = view.txn.get_snapshot(&key).await?;
    found.map(|bytes| opened(&key, &bytes)).transpose()
}

async fn resize(view: &View, attr: &mut Attr, (size, id): (u64, u64)) -> Result<(), Failed> {
    match attr.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(MetaError::IsDirectory.into()),
        _ => return Err(MetaError::Invalid.into()),
    }
    if size > FILE_BYTES_MAX {
        return Err(MetaError::TooLarge.into());
    }
    if size == 0 {
        // Also for an empty file: the meta may not yet know of bytes that were written.
        view.discard_bytes(attr).await?;
        (attr.data, attr.chunks, attr.is_shared) = (id, None, false);
    } else if attr.is_stored() && size < attr.size {
        content::cut(view, attr, size).await?;
    }
    if attr.is_shared && size < attr.size {
        share::reached(view, attr).await?;
    }
    if size < attr.size || size == 0 {
        // The client has cut the chunks, or they no longer belong to the file.
        attr.hollow(size, true);
    }
    attr.size = size;
    attr.mtime = view.now;
    Ok(())
}

/// Records that bytes were written to chunks; this moves an empty file to chunks. A write to chunks
/// of another name has no effect: they were cut off in the meantime, or belong to no file because
/// the file's bytes lie in the store.
pub(crate) async fn extend(view: &View, extend: &Extend) -> Result<MetaReply, Failed> {
    if extend.size > FILE_BYTES_MAX {
        return Err(MetaError::TooLarge.into());
    }
    let mut record = view.file_to_write(extend.ino).await?;
    let attr = &mut record.attr;
    if attr.kind != FileKind::Regular {
        return Err(MetaError::Invalid.into());
    }
    let begins = attr.is_stored() && attr.size == 0 && attr.data == extend.data;
    if begins {
        attr.chunks = Some(extend.data);
    }
    let is_its = attr.chunks == Some(extend.data);
    if is_its || share::reach(view, attr, extend.data, extend.size).await? {
        let size = attr.size.max(extend.size);
        view.charge(record.quota, extend.ino, Charge::resize(attr.size, size)).await?;
        attr.size = size;
        attr.fill(&extend.filled);
        attr.mtime = extend.mtime;
        attr.ctime = extend.mtime.max(attr.ctime);
        view.put_inode(&mut record)?;
    }
    Ok(MetaReply::Attr(record.attr))
}

/// Records that bytes of a file's chunks are being removed, or have been.
pub(crate) async fn hollow(view: &View, hollow: Hollow) -> Result<MetaReply, Failed> {
    let mut record = view.file_to_write(hollow.ino).await?;
    if record.attr.kind != FileKind::Regular {
        return Err(MetaError::Invalid.into());
    }
    if !record.attr.is_stored() {
        record.attr.hollow(hollow.from, hollow.ended);
        view.put_inode(&mut record)?;
    }
    Ok(MetaReply::Attr(record.attr))
}
