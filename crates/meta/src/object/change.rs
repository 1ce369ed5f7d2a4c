//! Puts and removes objects, and replaces their attachments.

use millpond_store::RangeOptions;
use millpond_types::meta::object::{
    Expect, ObjectBody, ObjectReply, PutObject, SELF_NAME, SetAttachment, names_of_key,
};
use millpond_types::meta::{
    Attr, Caller, EntryRecord, FileKind, INLINE_MAX, Ino, InodeRecord, MetaError, MetaRequest,
    Name, keys,
};

use super::backing::{self, Change};
use super::way::{Step, Way, meets, walk, walk_to_change};
use super::{nameless, nameless_of, upload};
use crate::entry::Fresh;
use crate::error::Failed;
use crate::permit;
use crate::quota::{self, Charge};
use crate::view::View;
use crate::volume::Volume;

/// Directories that one transaction makes at most: six records each, of the 120 that it may write.
const MADE_MAX: usize = 12;
/// Directories that one transaction removes at most: ten writes each.
pub(super) const PRUNED_MAX: usize = 8;
/// Permission bits of directories made for objects, besides those inherited with the group.
const DIR_MODE: u16 = 0o755;

/// Gives a key a new inode.
pub(super) async fn put(
    view: &View,
    volume: &Volume,
    request: &MetaRequest,
    (put, fresh): (&PutObject, Fresh),
) -> Result<ObjectReply, Failed> {
    let caller = &request.caller;
    let mut way = walk_to_change(view, caller, (&put.bucket, &put.key)).await?;
    let there = match way.file() {
        Some(ino) => Some(view.inode(ino).await?),
        None => None,
    };
    if !meets(put.expect, there.as_ref()) {
        return unmet(view, there.as_ref()).await;
    }
    let backed = backing::of(view, &way.dirs[0].record).await?;
    if let Some(backed) = backed.as_ref().filter(|_| put.expect == Expect::Absent)
        && put.origin.is_none()
        && backing::is_elsewhere(view, (backed, &put.key)).await?
    {
        return Ok(ObjectReply::Unmet(None));
    }
    if let Some(origin) = &put.origin {
        let is_free = way.there.is_none() || way.rest.len() > 1;
        let backed = backed.as_ref().ok_or(MetaError::NotSupported)?;
        if !is_free || !backing::may_fill(view, (backed, &put.key), origin).await? {
            return unmet(view, there.as_ref()).await;
        }
    }
    permit::change_entries(caller, &way.dir().attr)?;
    let mut whole = None;
    if let Some(id) = put.upload {
        let upload = (way.dirs[0].record.attr.ino, id);
        if let ObjectBody::Whole { parts, size } = put.body {
            whole = Some(upload::whole(view, upload, (parts, size)).await?);
        }
        upload::end(view, upload, whole.is_some()).await?;
    }
    let replaced = take_place(view, caller, &way).await?;
    make_dirs(view, volume, caller, (&mut way, MADE_MAX)).await?;
    if way.rest.len() > 1 {
        return Err(MetaError::Again.into());
    }
    let (dir, name) = (way.dir(), way.name());
    let mut record = match (nameless_of(put), whole) {
        (Some(ino), _) => {
            named(view, nameless::take(view, request.session, ino).await?, dir).await?
        }
        (None, Some(whole)) => named(view, whole, dir).await?,
        (None, None) => filled(view, (caller, dir), put, fresh).await?,
    };
    if !put.attachment.is_empty() {
        view.attach(&record.attr, &put.attachment)?;
    }
    view.put_inode(&mut record)?;
    let kind = FileKind::Regular;
    view.put_entry(dir, name, EntryRecord { ino: record.attr.ino, kind })?;
    view.touch_and_tell(dir)?;
    if let Some(backed) = &backed {
        let at = (backed, &put.key[..]);
        if let Some(origin) = &put.origin {
            backing::filled(view, volume, at, (&record.attr, origin)).await?;
        } else {
            let before = replaced.as_ref().map(|object| &object.attr);
            let change = Change::Put { now: &record.attr, before };
            backing::changed(view, volume, at, change).await?;
        }
    }
    Ok(ObjectReply::Done { attr: Some(record.attr), replaced })
}

async fn unmet(view: &View, there: Option<&InodeRecord>) -> Result<ObjectReply, Failed> {
    Ok(ObjectReply::Unmet(match there {
        Some(record) => Some(view.object(record).await?),
        None => None,
    }))
}

/// Removes the name at the end of a path from its present inode, which may be anything but a
/// directory.
async fn take_place(
    view: &View,
    caller: &Caller,
    way: &Way,
) -> Result<Option<millpond_types::meta::object::Object>, Failed> {
    let Some(there) = way.there.filter(|_| way.rest.len() == 1) else { return Ok(None) };
    let mut record = view.inode(there.ino).await?;
    permit::remove(caller, &way.dir().attr, &record.attr)?;
    let old = match there.kind {
        FileKind::Regular => Some(view.object(&record).await?),
        _ => None,
    };
    view.unname(way.dir(), way.name(), &mut record)?;
    Ok(old)
}

/// Returns the inode of a file that had no name, as it is in a directory.
async fn named(
    view: &View,
    mut record: InodeRecord,
    dir: &InodeRecord,
) -> Result<InodeRecord, Failed> {
    quota::moved(view, &mut record, dir).await?;
    let attr = &mut record.attr;
    (attr.nlink, attr.parent) = (1, dir.attr.ino);
    (attr.mtime, attr.ctime) = (view.now, view.now);
    Ok(record)
}

/// Makes the inode of a new file with bytes in the store.
async fn filled(
    view: &View,
    (caller, dir): (&Caller, &InodeRecord),
    put: &PutObject,
    fresh: Fresh,
) -> Result<InodeRecord, Failed> {
    let ObjectBody::Bytes(bytes) = &put.body else { return Err(MetaError::Invalid.into()) };
    fresh.is_placed()?;
    let mut record = nameless::new_file(view, (caller, dir), put.mode, fresh);
    record.attr.size = bytes.len() as u64;
    let ino = record.attr.ino;
    view.charge(record.quota, ino, Charge::of(&record)).await?;
    if !bytes.is_empty() {
        view.put_stored(&record.attr, bytes.clone())?;
    }
    if bytes.len() > INLINE_MAX {
        view.txn.put(&keys::large(ino), Vec::new())?;
    }
    Ok(record)
}

/// Makes some of the missing directories of a path. A file that has the name of the first one moves
/// into it.
async fn make_dirs(
    view: &View,
    volume: &Volume,
    caller: &Caller,
    (way, at_most): (&mut Way, usize),
) -> Result<(), Failed> {
    let count = (way.rest.len() - 1).min(at_most);
    for _ in 0..count {
        let name = way.rest.remove(0);
        let there = way.there.take();
        let mut parent = way.dirs.pop().ok_or(MetaError::Invalid)?;
        let mut made =
            nameless::new_dir(view, (caller, &parent.record), DIR_MODE, volume.fresh_id().await?);
        made.marks.objects = true;
        made.marks.implied = true;
        let ino = made.attr.ino;
        view.charge(made.quota, ino, Charge::of(&made)).await?;
        view.put_inode(&mut made)?;
        if let Some(there) = there {
            if there.kind != FileKind::Regular {
                return Err(MetaError::NotDirectory.into());
            }
            move_inside(view, (&parent.record, &name, there), &made).await?;
        }
        view.put_entry(&parent.record, &name, EntryRecord { ino, kind: FileKind::Directory })?;
        view.touch(ino)?;
        parent.record.attr.nlink += 1;
        view.put_inode(&mut parent.record)?;
        view.touch(parent.record.attr.ino)?;
        way.dirs.push(parent);
        way.dirs.push(Step { name, record: made });
    }
    Ok(())
}

/// Moves a file into the directory that takes its name.
async fn move_inside(
    view: &View,
    (parent, name, there): (&InodeRecord, &Name, EntryRecord),
    made: &InodeRecord,
) -> Result<(), Failed> {
    let mut file = view.inode(there.ino).await?;
    file.attr.parent = made.attr.ino;
    view.put_inode(&mut file)?;
    view.delete_entry(parent, name, there.kind)?;
    let itself = Name::new(SELF_NAME).map_err(|_| MetaError::Invalid)?;
    view.put_entry(made, &itself, there)
}

/// Makes directories of a key that needs more of them than one transaction can make.
pub(super) async fn make_way(
    volume: &Volume,
    caller: &Caller,
    put: &PutObject,
) -> Result<(), Failed> {
    let count = names_of_key(&put.key).map_or(0, |names| names.len());
    for _ in 0..count / MADE_MAX {
        let is_left = volume.store.transact(|txn| async move {
            let view = View::new(txn, volume.now());
            let mut way = walk_to_change(&view, caller, (&put.bucket, &put.key)).await?;
            if way.rest.len() - 1 <= MADE_MAX {
                return Ok::<_, Failed>(false);
            }
            permit::change_entries(caller, &way.dir().attr)?;
            make_dirs(&view, volume, caller, (&mut way, MADE_MAX)).await?;
            Ok(true)
        });
        if !is_left.await? {
            break;
        }
    }
    Ok(())
}

/// Replaces the attachment of an object.
pub(super) async fn attach(
    view: &View,
    volume: &Volume,
    caller: &Caller,
    set: &SetAttachment,
) -> Result<ObjectReply, Failed> {
    let way = walk_to_change(view, caller, (&set.bucket, &set.key)).await?;
    let Some(ino) = way.file() else { return Ok(ObjectReply::Unmet(None)) };
    let mut record = view.inode(ino).await?;
    if !meets(set.expect, Some(&record)) {
        return unmet(view, Some(&record)).await;
    }
    permit::access(caller, &record.attr, permit::WRITE)?;
    view.attach(&record.attr, &set.attachment)?;
    record.attr.ctime = view.now;
    view.put_inode(&mut record)?;
    if let Some(backed) = backing::of(view, &way.dirs[0].record).await? {
        let at = (&backed, &set.key[..]);
        backing::changed(view, volume, at, Change::Attach(&record.attr)).await?;
    }
    Ok(ObjectReply::Done { attr: Some(record.attr), replaced: None })
}

/// Removes an object, and the empty directories that were made for it.
pub(super) async fn remove(
    view: &View,
    volume: &Volume,
    caller: &Caller,
    (at, expect): ((&Name, &[u8]), Expect),
) -> Result<ObjectReply, Failed> {
    let mut way = walk_to_change(view, caller, at).await?;
    let backed = backing::of(view, &way.dirs[0].record).await?;
    let Some(ino) = way.file() else {
        if !meets(expect, None) {
            return Ok(ObjectReply::Unmet(None));
        }
        if let Some(backed) = backed.filter(|_| expect == Expect::Any) {
            // The backend may have the object nevertheless.
            permit::change_entries(caller, &way.dir().attr)?;
            backing::changed(view, volume, (&backed, at.1), Change::Remove(None)).await?;
        }
        return Ok(ObjectReply::Done { attr: None, replaced: None });
    };
    let mut record = view.inode(ino).await?;
    if !meets(expect, Some(&record)) {
        return unmet(view, Some(&record)).await;
    }
    permit::remove(caller, &way.dir().attr, &record.attr)?;
    let (attr, replaced): (Attr, _) = (record.attr, Some(view.object(&record).await?));
    view.delete_entry(way.dir(), way.name(), record.attr.kind)?;
    view.unname(way.dir(), way.name(), &mut record)?;
    view.touch_and_tell(way.dir())?;
    prune(view, &mut way.dirs).await?;
    if let Some(backed) = &backed {
        backing::changed(view, volume, (backed, at.1), Change::Remove(Some(&attr))).await?;
    }
    Ok(ObjectReply::Done { attr: Some(attr), replaced })
}

/// Removes empty directories that were made for objects, from the last one up, and returns how
/// many. The bucket stays.
pub(super) async fn prune(view: &View, dirs: &mut Vec<Step>) -> Result<usize, Failed> {
    for done in 0..PRUNED_MAX {
        let goes = dirs.len() > 1 && dirs.last().is_some_and(|dir| dir.record.marks.implied);
        let Some(mut dir) = dirs.pop().filter(|_| goes) else { return Ok(done) };
        if !is_empty(view, dir.record.attr.ino).await? {
            return Ok(done);
        }
        let Some(parent) = dirs.last_mut() else { return Ok(done) };
        // Read with a conflict: both must stay as they were walked until the commit.
        let (above, own) = (parent.record.attr.ino, dir.record.attr.ino);
        view.txn.get_many(&[&keys::inode(above), &keys::inode(own)]).await?;
        view.delete_entry(&parent.record, &dir.name, FileKind::Directory)?;
        view.unname(&parent.record, &dir.name, &mut dir.record)?;
        parent.record.attr.nlink = parent.record.attr.nlink.saturating_sub(1);
        view.put_inode(&mut parent.record)?;
        view.touch(above)?;
    }
    Ok(PRUNED_MAX)
}

/// Whether a directory has no entry. For a directory with entries only one is read with a conflict:
/// while it stays, the directory is not empty, and a transaction that removes it checks for others.
async fn is_empty(view: &View, dir: Ino) -> Result<bool, Failed> {
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(2) };
    if let Some(key) = view.first_entry(dir, options).await? {
        view.txn.get(&key).await?;
        return Ok(false);
    }
    view.must_be_empty(dir).await?;
    Ok(true)
}

/// Continues after a transaction that removed as many directories as it could.
pub(super) async fn prune_rest(
    volume: &Volume,
    caller: &Caller,
    (bucket, key): (&Name, &[u8]),
) -> Result<(), Failed> {
    let count = names_of_key(key).map_or(0, |names| names.len());
    for _ in 0..count / PRUNED_MAX {
        let pruned = volume.store.transact(|txn| async move {
            let view = View::new(txn, volume.now());
            let mut way = walk(&view, caller, (bucket, key)).await?;
            prune(&view, &mut way.dirs).await
        });
        if pruned.await? < PRUNED_MAX {
            break;
        }
    }
    Ok(())
}
