//! Buckets: marked directories of the root.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{Bucket, ObjectReply, is_bucket_name};
use millpond_types::meta::{
    Caller, DIR_PAGE_MAX, EntryRecord, FileKind, Ino, InodeRecord, MetaError, Name, keys,
};

use super::{backing, nameless, opened_attachment, way};
use crate::error::Failed;
use crate::permit;
use crate::quota::Charge;
use crate::view::{View, opened, with_times};
use crate::volume::Volume;

/// Permission bits of a bucket's directory.
const MODE: u16 = 0o755;
/// Limit of directories without objects that are removed with their bucket.
const CLEARED_MAX: usize = 10_000;

async fn told(view: &View, name: &Name, record: &InodeRecord) -> Result<Bucket, Failed> {
    let attr = view.attr(record.attr.ino).await?;
    let attachment = view.attachment(&attr).await?;
    let backing = backing::told(view, record).await?;
    Ok(Bucket { name: name.to_string(), attr, attachment, backing })
}

/// Makes a bucket.
pub(super) async fn make(
    view: &View,
    caller: &Caller,
    (name, attachment): (&Name, &[u8]),
    id: u64,
) -> Result<ObjectReply, Failed> {
    if !is_bucket_name(name.as_bytes()) {
        return Err(MetaError::Invalid.into());
    }
    let mut root = view.dir(Ino::ROOT).await?;
    permit::access(caller, &root.attr, permit::EXECUTE)?;
    if view.entry(Ino::ROOT, name).await?.is_some() {
        return Err(MetaError::Exists.into());
    }
    permit::change_entries(caller, &root.attr)?;
    let mut record = nameless::new_dir(view, (caller, &root), MODE, id);
    record.marks.objects = true;
    let (ino, kind) = (record.attr.ino, FileKind::Directory);
    view.charge(record.quota, ino, Charge::of(&record)).await?;
    view.attach(&record.attr, attachment)?;
    view.put_inode(&mut record)?;
    view.put_entry(&root, name, EntryRecord { ino, kind })?;
    view.touch(ino)?;
    root.attr.nlink += 1;
    view.put_inode(&mut root)?;
    view.touch_and_tell(&root)?;
    Ok(ObjectReply::Bucket(told(view, name, &record).await?))
}

/// Reads a bucket.
pub(super) async fn get(view: &View, name: &Name) -> Result<ObjectReply, Failed> {
    let record = way::bucket(view, name).await?;
    Ok(ObjectReply::Bucket(told(view, name, &record).await?))
}

/// Replaces the attachment of a bucket.
pub(super) async fn set(
    view: &View,
    caller: &Caller,
    (name, attachment): (&Name, &[u8]),
) -> Result<ObjectReply, Failed> {
    let ino = way::bucket(view, name).await?.attr.ino;
    let mut record = view.dir(ino).await?;
    permit::access(caller, &record.attr, permit::WRITE)?;
    view.attach(&record.attr, attachment)?;
    record.attr.ctime = view.now;
    view.put_inode(&mut record)?;
    Ok(ObjectReply::Bucket(told(view, name, &record).await?))
}

/// Removes an empty bucket.
pub(super) async fn remove(
    view: &View,
    caller: &Caller,
    name: &Name,
) -> Result<ObjectReply, Failed> {
    let ino = way::bucket(view, name).await?.attr.ino;
    let mut root = view.dir(Ino::ROOT).await?;
    let mut record = view.dir(ino).await?;
    let entry = view.entry(Ino::ROOT, name).await?;
    if entry.is_none_or(|entry| entry.ino != ino) {
        return Err(MetaError::NotFound.into());
    }
    permit::remove(caller, &root.attr, &record.attr)?;
    view.must_be_empty(ino).await?;
    if record.marks.backed {
        backing::must_be_idle(view, ino).await?;
        view.txn.delete(&keys::backing(ino))?;
    }
    view.delete_entry(&root, name, FileKind::Directory)?;
    view.unname(&root, name, &mut record)?;
    root.attr.nlink = root.attr.nlink.saturating_sub(1);
    view.put_inode(&mut root)?;
    view.touch_and_tell(&root)?;
    Ok(ObjectReply::Done { attr: Some(record.attr), replaced: None })
}

/// Lists the directories below a bucket, each after its parent; `None` if other entries lie there,
/// or too many directories.
async fn only_dirs(
    view: &View,
    bucket: InodeRecord,
) -> Result<Option<Vec<(Ino, Name, Ino)>>, Failed> {
    let (mut all, mut left) = (Vec::new(), vec![bucket.attr.ino]);
    while let Some(dir) = left.pop() {
        let mut more = Some(KeyRange::prefix(&keys::entries(dir)));
        while let Some(range) = more {
            let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
            let page = view.txn.range(&range, options).await?;
            more = page.rest;
            for (key, bytes) in page.entries {
                let entry: EntryRecord = opened(&key, &bytes)?;
                let Some((_, name)) = keys::split_entry(&key) else { return Ok(None) };
                if entry.kind != FileKind::Directory || all.len() >= CLEARED_MAX {
                    return Ok(None);
                }
                all.push((dir, name, entry.ino));
                left.push(entry.ino);
            }
        }
    }
    Ok(Some(all))
}

/// Removes the directories of a bucket that will be removed, if there is nothing else in it: no
/// list of objects shows them.
pub(super) async fn clear(volume: &Volume, caller: &Caller, name: &Name) -> Result<(), Failed> {
    let view = View::new(volume.store.begin(), volume.now());
    let bucket = way::bucket(&view, name).await?;
    permit::remove(caller, &view.dir(Ino::ROOT).await?.attr, &bucket.attr)?;
    let Some(dirs) = only_dirs(&view, bucket).await? else { return Ok(()) };
    for (parent, name, _) in dirs.iter().rev() {
        let removed = volume.store.transact(|txn| async move {
            let view = View::new(txn, volume.now());
            crate::entry::remove_dir(&view, &Caller::checked(0, 0), *parent, name).await
        });
        removed.await?;
    }
    Ok(())
}

/// Lists some buckets, from a place in the root directory on.
pub(super) async fn list(view: &View, after: u64) -> Result<ObjectReply, Failed> {
    let mut range = KeyRange::prefix(&keys::entries(Ino::ROOT));
    range.start = keys::entries_from(Ino::ROOT, after);
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(DIR_PAGE_MAX) };
    let page = view.txn.range(&range, options).await?;
    let mut found = Vec::with_capacity(page.entries.len());
    for (key, bytes) in &page.entries {
        let entry: EntryRecord = opened(key, bytes)?;
        found.extend(keys::split_entry(key).map(|(hash, name)| (hash, name, entry)));
    }
    let mut next = 0;
    if page.rest.is_some()
        && let Some(last) = found.last().map(|(hash, ..)| *hash)
    {
        // Names of one hash are listed together.
        next = last;
        found.retain(|(hash, ..)| *hash != last);
    }
    found.retain(|(_, name, entry)| {
        entry.kind == FileKind::Directory && is_bucket_name(name.as_bytes())
    });
    let mut wanted = Vec::with_capacity(3 * found.len());
    for (_, _, entry) in &found {
        let ino = entry.ino;
        wanted.extend([keys::inode(ino), keys::times(ino), keys::attachment(ino)]);
    }
    let names: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    let mut values = view.txn.get_many_snapshot(&names).await?.into_iter();
    let mut buckets = Vec::new();
    for (keys, (_, name, _)) in wanted.chunks(3).zip(found) {
        let (inode, times, attached) =
            (values.next().flatten(), values.next().flatten(), values.next().flatten());
        let Some(inode) = inode else { continue };
        let record: InodeRecord = opened(&keys[0], &inode)?;
        if record.marks.objects {
            let times = times.map(|bytes| opened(&keys[1], &bytes)).transpose()?;
            let attr = with_times(record.attr, times);
            let attachment = opened_attachment(&attr, attached)?;
            let backing = backing::told(view, &record).await?;
            buckets.push(Bucket { name: name.to_string(), attr, attachment, backing });
        }
    }
    Ok(ObjectReply::Buckets { buckets, next })
}
