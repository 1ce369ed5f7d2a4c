//! Uploads in parts. Each part is a file without a name, held by a record, or lies at its place in
//! one file for all parts, the whole (RFC 0023).
//!
//! An upload ends in one transaction, which records that its parts go; they become orphans some at
//! a time.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{
    ObjectReply, PART_MIN, Part, PartPlace, PartRecord, PutPart, Upload, UploadId, UploadRecord,
    Whole, check_key,
};
use millpond_types::meta::{
    Caller, DIR_PAGE_MAX, Ino, InodeRecord, MetaError, Name, OrphanRecord, keys,
};
use millpond_types::wire::Record;

use super::{nameless, way};
use crate::entry::Fresh;
use crate::error::Failed;
use crate::permit;
use crate::quota::{self, Charge};
use crate::view::{View, opened};
use crate::volume::Volume;

/// Parts that one transaction frees: four writes each.
const FREED_MAX: usize = 25;
/// Uploads that one transaction ends: seven writes each, if parts had places in a whole.
const ENDED_MAX: usize = 15;
/// Ended uploads that a round looks at.
const LOOKED_AT_MAX: usize = 100;
/// Limit of a place's offset, in addition to twice the taken length: when a file goes, all of its
/// length is searched for chunks.
const HOLES_MAX: u64 = 16 << 30;
/// Bytes of a page of uploads or parts, about: it fits the ring of a client on the same host.
const PAGE_BYTES: usize = 1 << 20;

async fn bucket(
    view: &View,
    caller: &Caller,
    name: &Name,
    wanted: u16,
) -> Result<InodeRecord, Failed> {
    let record = way::bucket(view, name).await?;
    permit::access(caller, &record.attr, wanted)?;
    Ok(record)
}

async fn record(view: &View, bucket: Ino, id: UploadId) -> Result<UploadRecord, Failed> {
    let found = view.read(&keys::upload(bucket, id)).await?;
    found.ok_or(Failed::Refused(MetaError::NotFound))
}

fn told(id: UploadId, record: UploadRecord) -> Upload {
    let UploadRecord { key, attachment, started, .. } = record;
    Upload { id, key, attachment, started }
}

/// Begins an upload.
pub(super) async fn create(
    view: &View,
    caller: &Caller,
    name: &Name,
    (key, attachment, id): (&[u8], &[u8], u64),
) -> Result<ObjectReply, Failed> {
    check_key(key).map_err(|_| MetaError::Invalid)?;
    let ino = bucket(view, caller, name, permit::WRITE | permit::EXECUTE).await?.attr.ino;
    // Read with a conflict: the bucket must not go before the commit.
    view.dir(ino).await?;
    let (id, key, attachment) = (UploadId(id), key.to_vec(), attachment.to_vec());
    view.txn.put(&keys::upload_by_key(ino, &key, id), Vec::new())?;
    let record = UploadRecord { key, started: view.now, attachment, whole: None };
    view.txn.put(&keys::upload(ino, id), record.seal())?;
    Ok(ObjectReply::Upload(told(id, record)))
}

/// Reads an upload.
pub(super) async fn get(
    view: &View,
    caller: &Caller,
    (name, id): (&Name, UploadId),
) -> Result<ObjectReply, Failed> {
    let ino = bucket(view, caller, name, permit::READ).await?.attr.ino;
    Ok(ObjectReply::Upload(told(id, record(view, ino, id).await?)))
}

/// Lists a page of uploads.
pub(super) async fn list(
    view: &View,
    caller: &Caller,
    (name, after): (&Name, Option<&(Vec<u8>, UploadId)>),
    limit: u32,
) -> Result<ObjectReply, Failed> {
    let ino = bucket(view, caller, name, permit::READ).await?.attr.ino;
    let limit = (limit as usize).clamp(1, DIR_PAGE_MAX);
    let mut range = KeyRange::prefix(&keys::uploads_by_key(ino));
    if let Some((key, id)) = after {
        range.start = [&keys::upload_by_key(ino, key, *id)[..], &[0]].concat();
    }
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
    let page = view.txn.range(&range, options).await?;
    let (mut uploads, mut end, mut bytes) = (Vec::new(), page.rest.is_none(), 0);
    for (key, _) in page.entries {
        if bytes > PAGE_BYTES {
            end = false;
            break;
        }
        let Some((_, id)) = keys::split_upload_by_key(&key) else { continue };
        let upload = keys::upload(ino, id);
        let Some(found) = view.txn.get_snapshot(&upload).await? else { continue };
        bytes += found.len();
        uploads.push(told(id, opened(&upload, &found)?));
    }
    Ok(ObjectReply::Uploads { uploads, end })
}

/// Takes the place of a part in the whole of its upload. The first part that shows the part length
/// makes the whole.
pub(super) async fn take_place(
    view: &View,
    caller: &Caller,
    (name, id): (&Name, UploadId),
    (number, len): (u16, u64),
    (mode, fresh): (u16, Fresh),
) -> Result<ObjectReply, Failed> {
    let dir = bucket(view, caller, name, permit::WRITE | permit::EXECUTE).await?;
    let mut upload = record(view, dir.attr.ino, id).await?;
    let (mut whole, mut file, is_new) = match upload.whole.take() {
        Some(whole) => {
            let file = view.inode(whole.ino).await?;
            (whole, file, false)
        }
        // A shorter part is the last, and does not show the length of the others.
        None if len < PART_MIN => return Ok(ObjectReply::Place(None)),
        None => {
            fresh.is_placed()?;
            let mut file = nameless::new_file(view, (caller, &dir), mode, fresh);
            (file.attr.nlink, file.attr.chunks) = (0, Some(file.attr.data));
            (Whole::new(file.attr.ino, len), file, true)
        }
    };
    let reach = HOLES_MAX.saturating_add(whole.part_len.saturating_mul(2 * whole.taken() as u64));
    let offset = whole.place(number, len).filter(|at| *at <= reach);
    let Some(offset) = offset.filter(|_| whole.take(number)) else {
        return Ok(ObjectReply::Place(None));
    };
    // The file gets its length before any client writes: a write beyond the end first cuts the
    // bytes there, including writes of others to the same chunk.
    let before = file.attr.size;
    file.attr.size = before.max(offset + len);
    let charge = if is_new { Charge::of(&file) } else { Charge::resize(before, file.attr.size) };
    // A separate file has no holes, which count as bytes.
    if !view.has_room(file.quota, charge).await? {
        return Ok(ObjectReply::Place(None));
    }
    view.charge(file.quota, file.attr.ino, charge).await?;
    view.put_inode(&mut file)?;
    upload.whole = Some(whole);
    view.txn.put(&keys::upload(dir.attr.ino, id), upload.seal())?;
    Ok(ObjectReply::Place(Some((file.attr, offset))))
}

/// Records a file without a name, or the bytes at a place of the whole, as a part.
pub(super) async fn put_part(
    view: &View,
    (caller, session): (&Caller, u64),
    put: &PutPart,
) -> Result<ObjectReply, Failed> {
    let dir = bucket(view, caller, &put.bucket, permit::WRITE | permit::EXECUTE).await?;
    let ino = dir.attr.ino;
    let mut upload = record(view, ino, put.id).await?;
    let key = keys::part(ino, put.id, put.number);
    let before: Option<PartRecord> = view.read(&key).await?;
    if put.replaces.is_some() && put.replaces != before.as_ref().map(|before| before.ino) {
        return Err(MetaError::Stale.into());
    }
    let was_placed = before.as_ref().is_some_and(|before| before.place.is_some());
    let (attr, place) = match put.place {
        None => {
            let mut file = nameless::take(view, session, put.ino).await?;
            quota::moved(view, &mut file, &dir).await?;
            file.attr.parent = ino;
            view.put_inode(&mut file)?;
            (file.attr, None)
        }
        Some(len) => {
            let whole = upload.whole.as_mut().filter(|whole| whole.ino == put.ino);
            let whole = whole.ok_or(MetaError::Stale)?;
            let offset = whole.place(put.number, len).ok_or(MetaError::Invalid)?;
            // A place is written once.
            if was_placed || !whole.is_taken(put.number) {
                return Err(MetaError::Stale.into());
            }
            let attr = view.inode(whole.ino).await?.attr;
            (attr, Some(PartPlace { offset, len, modified: view.now }))
        }
    };
    if let Some(whole) = upload.whole.as_mut().filter(|_| was_placed != place.is_some()) {
        let filled =
            if was_placed { whole.filled.checked_sub(1) } else { whole.filled.checked_add(1) };
        whole.filled = filled.ok_or(MetaError::Io)?;
        view.txn.put(&keys::upload(ino, put.id), upload.seal())?;
    }
    if let Some(before) = before.filter(|_| !was_placed) {
        free(view, before.ino).await?;
    }
    let part = PartRecord { ino: put.ino, attachment: put.attachment.clone(), place };
    view.txn.put(&key, part.seal())?;
    Ok(ObjectReply::Done { attr: Some(attr), replaced: None })
}

/// Returns the whole of an ending upload, if it contains exactly the first `parts` parts: no client
/// writes to it any more.
///
/// # Errors
/// `Stale` if the whole cannot become the object: the parts must be copied.
pub(super) async fn whole(
    view: &View,
    (bucket, id): (Ino, UploadId),
    (parts, size): (u16, u64),
) -> Result<InodeRecord, Failed> {
    let whole = record(view, bucket, id).await?.whole.ok_or(MetaError::Stale)?;
    let mut file = view.inode(whole.ino).await?;
    let is_all = whole.filled == parts && whole.taken() == usize::from(parts);
    if !is_all || file.attr.size != size {
        return Err(MetaError::Stale.into());
    }
    // Every place was filled by the gateway that took it.
    file.attr.solid = size;
    Ok(file)
}

/// Makes the file of a part an orphan.
async fn free(view: &View, ino: Ino) -> Result<(), Failed> {
    let Some(mut record) = view.read::<InodeRecord>(&keys::inode(ino)).await? else {
        return Ok(());
    };
    let orphan = OrphanRecord { since: view.now, waits_for: None };
    view.txn.put(&keys::orphan(ino), orphan.seal())?;
    // The new version tells a running check that the inode changed.
    view.put_inode(&mut record)
}

/// Lists a page of parts.
pub(super) async fn parts(
    view: &View,
    caller: &Caller,
    (name, id): (&Name, UploadId),
    (after, limit): (u16, u32),
) -> Result<ObjectReply, Failed> {
    let ino = bucket(view, caller, name, permit::READ).await?.attr.ino;
    record(view, ino, id).await?;
    let limit = (limit as usize).clamp(1, DIR_PAGE_MAX);
    let Some(first) = after.checked_add(1) else {
        return Ok(ObjectReply::Parts { parts: Vec::new(), end: true });
    };
    let mut range = KeyRange::prefix(&keys::upload(ino, id));
    range.start = keys::part(ino, id, first);
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
    let page = view.txn.range(&range, options).await?;
    let (mut parts, mut end, mut bytes) = (Vec::new(), page.rest.is_none(), 0);
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    for (key, value) in page.entries {
        if bytes > PAGE_BYTES {
            end = false;
            break;
        }
        bytes += value.len();
        let part: PartRecord = opened(&key, &value)?;
        wanted.push(keys::inode(part.ino));
        found.extend(keys::part_number(&key).map(|number| (number, part)));
    }
    let names: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    let inodes = view.txn.get_many_snapshot(&names).await?;
    for ((number, part), (key, inode)) in found.into_iter().zip(wanted.iter().zip(inodes)) {
        let inode = inode.ok_or(Failed::Refused(MetaError::Io))?;
        let InodeRecord { attr, .. } = opened(key, &inode)?;
        let PartRecord { attachment, place, .. } = part;
        parts.push(Part { number, attr, attachment, place });
    }
    Ok(ObjectReply::Parts { parts, end })
}

/// Ends an upload; its parts go later, and its whole goes unless it is kept.
pub(super) async fn end(
    view: &View,
    (bucket, id): (Ino, UploadId),
    keeps_whole: bool,
) -> Result<(), Failed> {
    let record = record(view, bucket, id).await?;
    if let Some(whole) = record.whole.as_ref().filter(|_| !keeps_whole) {
        free(view, whole.ino).await?;
    }
    view.txn.delete(&keys::upload(bucket, id))?;
    view.txn.delete(&keys::upload_by_key(bucket, &record.key, id))?;
    Ok(view.txn.put(&keys::ended(bucket, id), Vec::new())?)
}

/// Aborts an upload.
pub(super) async fn abort(
    view: &View,
    caller: &Caller,
    (name, id): (&Name, UploadId),
) -> Result<ObjectReply, Failed> {
    let dir = bucket(view, caller, name, permit::WRITE | permit::EXECUTE).await?;
    end(view, (dir.attr.ino, id), false).await?;
    Ok(ObjectReply::Done { attr: None, replaced: None })
}

/// Ends all uploads of a bucket that will be removed.
pub(crate) async fn end_all(volume: &Volume, bucket: Ino) -> Result<(), Failed> {
    loop {
        let ended = volume.store.transact(|txn| async move {
            let view = View::new(txn, volume.now());
            let range = KeyRange::prefix(&keys::uploads_by_key(bucket));
            let page = view.txn.range(&range, RangeOptions::limit(ENDED_MAX)).await?;
            let mut count = 0;
            for (key, _) in page.entries {
                let Some((_, id)) = keys::split_upload_by_key(&key) else { continue };
                match end(&view, (bucket, id), false).await {
                    Err(Failed::Refused(_)) => view.txn.delete(&key)?,
                    done => done?,
                }
                count += 1;
            }
            Ok::<_, Failed>(count)
        });
        if ended.await? < ENDED_MAX {
            return Ok(());
        }
    }
}

/// Frees parts of some ended uploads.
pub(crate) async fn let_go(volume: &Volume) -> Result<(), Failed> {
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(LOOKED_AT_MAX) };
    let page = volume.store.begin().range(&KeyRange::prefix(keys::ENDED), options).await?;
    for (key, _) in page.entries {
        let Some(upload) = keys::split_upload(keys::ENDED, &key) else { continue };
        while !volume.store.transact(|txn| free_some(View::new(txn, volume.now()), upload)).await? {
        }
    }
    Ok(())
}

/// Frees some parts. Returns whether all are gone.
async fn free_some(view: View, (bucket, id): (Ino, UploadId)) -> Result<bool, Failed> {
    let range = KeyRange::prefix(&keys::upload(bucket, id));
    let page = view.txn.range(&range, RangeOptions::limit(FREED_MAX)).await?;
    for (key, value) in &page.entries {
        let part: PartRecord = opened(key, value)?;
        // The whole went when the upload ended, or is an object now.
        if part.place.is_none() {
            free(&view, part.ino).await?;
        }
        view.txn.delete(key)?;
    }
    if page.rest.is_none() {
        view.txn.delete(&keys::ended(bucket, id))?;
    }
    Ok(page.rest.is_none())
}

/// Removes a record of a missing upload, or marks the missing upload of a part as ended; `None` for
/// any other record, and for a part with a file that may be missing.
pub(crate) async fn stray(view: &View, key: &[u8]) -> Result<Option<bool>, Failed> {
    if let Some((bucket, id)) = keys::split_upload_by_key(key) {
        let is_there = view.txn.get(key).await?.is_some();
        if !is_there || view.txn.get(&keys::upload(bucket, id)).await?.is_some() {
            return Ok(Some(false));
        }
        view.txn.delete(key)?;
        return Ok(Some(true));
    }
    let Some((bucket, id)) = keys::split_upload(keys::UPLOADS, key) else { return Ok(None) };
    let ended = keys::ended(bucket, id);
    let found = view.txn.get_many(&[key, &keys::upload(bucket, id), &ended]).await?;
    if keys::part_number(key).is_none() || !matches!(found[..], [Some(_), None, None]) {
        return Ok(None);
    }
    view.txn.put(&ended, Vec::new())?;
    Ok(Some(true))
}
