//! Objects: files of a bucket by their keys (RFC 0019). Buckets and all directories in them are
//! marked, and keep the places of their names in the order of keys.
//!
//! Reading order: `way` (from a key to a directory and a name), `change` (put, attach, remove),
//! `bucket`, `list`, `nameless` (files before they have a name), `upload` (in parts), `backing`
//! (backends of buckets).

mod backing;
mod bucket;
mod change;
mod list;
mod nameless;
mod upload;
mod way;

use millpond_types::meta::object::{
    Attachment, AttachmentRecord, BackingOp, Meaning, Object, ObjectBody, ObjectOp, ObjectReply,
    PutObject, meaning,
};
use millpond_types::meta::{
    Attr, Caller, FileKind, Ino, InodeRecord, MetaError, MetaOp, MetaReply, MetaRequest, Name, keys,
};
use millpond_types::wire::Record;

use crate::entry::Fresh;
use crate::error::Failed;
use crate::view::{View, opened, places_in};
use crate::volume::Volume;

pub(crate) use backing::{forget_states, sweep};
pub(crate) use nameless::{new_file, takes_first_name};
pub(crate) use upload::{end_all, let_go};

/// Checks whether an inode of this kind may get a name: names with a special meaning are reserved
/// for keys.
///
/// # Errors
/// `Invalid`.
pub(crate) fn may_name(dir: &InodeRecord, name: &Name, kind: FileKind) -> Result<(), MetaError> {
    if !dir.marks.objects {
        return Ok(());
    }
    match meaning(name, kind == FileKind::Directory) {
        Meaning::Nothing => Err(MetaError::Invalid),
        // No object has the key of its bucket.
        Meaning::Itself if dir.attr.parent == Ino::ROOT => Err(MetaError::Invalid),
        _ => Ok(()),
    }
}

/// Marks a directory that moves into a directory of objects. It must be empty: existing names would
/// have no places.
///
/// # Errors
/// `CrossDevice` for a directory that has names and is not marked.
pub(crate) async fn enter(
    view: &View,
    dir: &InodeRecord,
    record: &mut InodeRecord,
) -> Result<(), Failed> {
    if !dir.marks.objects || !record.attr.is_dir() || record.marks.objects {
        return Ok(());
    }
    // Listings by keys do not check each directory, so no directory of objects may be held.
    if let Some(holder) = view.holder(record) {
        return Err(Failed::Delegated(vec![(record.attr.ino, holder)]));
    }
    match view.must_be_empty(record.attr.ino).await {
        Err(Failed::Refused(_)) => Err(MetaError::CrossDevice.into()),
        done => {
            record.marks.objects = true;
            done
        }
    }
}

/// Repairs the places of a name. Returns whether something changed.
pub(crate) async fn repair_places(view: &View, dir: Ino, name: &Name) -> Result<bool, Failed> {
    let above: Option<InodeRecord> = view.read(&keys::inode(dir)).await?;
    let entry = view.entry(dir, name).await?;
    let wanted = match (&above, entry) {
        (Some(above), Some(entry)) => places_in(above, name, entry.kind),
        _ => Vec::new(),
    };
    let sealed = entry.map(|entry| entry.seal());
    let mut changed = false;
    let all = [true, false].map(|is_dir| millpond_types::meta::object::places(name, is_dir));
    for place in all.concat() {
        let key = keys::place(dir, &place);
        let found = view.txn.get(&key).await?;
        let wanted = sealed.as_ref().filter(|_| wanted.contains(&place));
        if found.as_ref() == wanted {
            continue;
        }
        changed = true;
        match wanted {
            Some(sealed) => view.txn.put(&key, sealed.as_slice())?,
            None => view.txn.delete(&key)?,
        }
    }
    Ok(changed)
}

/// Returns the attachment in a record of an inode.
fn attachment(attr: &Attr, record: AttachmentRecord) -> Attachment {
    // The attachment of a directory stays current when its entries change.
    let is_same = record.size == attr.size && record.mtime == attr.mtime;
    Attachment { bytes: record.bytes, is_current: attr.is_dir() || is_same }
}

fn opened_attachment(attr: &Attr, found: Option<Vec<u8>>) -> Result<Option<Attachment>, Failed> {
    let Some(bytes) = found else { return Ok(None) };
    let record = opened(&keys::attachment(attr.ino), &bytes)?;
    Ok(Some(attachment(attr, record)))
}

impl View {
    /// Sets the attachment of an inode; removes it when `bytes` is empty.
    fn attach(&self, attr: &Attr, bytes: &[u8]) -> Result<(), Failed> {
        let key = keys::attachment(attr.ino);
        if bytes.is_empty() {
            return Ok(self.txn.delete(&key)?);
        }
        let (size, mtime, bytes) = (attr.size, attr.mtime, bytes.to_vec());
        Ok(self.txn.put(&key, AttachmentRecord { size, mtime, bytes }.seal())?)
    }

    /// Makes the attachment of an inode outdated for ever, if length and time of change say that it
    /// is current: the time was set by hand, so the content may have changed.
    pub(crate) async fn outdate(&self, attr: &Attr) -> Result<(), Failed> {
        let key = keys::attachment(attr.ino);
        let kept = self.read::<AttachmentRecord>(&key).await?;
        let Some(kept) = kept.filter(|kept| (kept.size, kept.mtime) == (attr.size, attr.mtime))
        else {
            return Ok(());
        };
        Ok(self.txn.put(&key, AttachmentRecord { size: u64::MAX, ..kept }.seal())?)
    }

    async fn attachment(&self, attr: &Attr) -> Result<Option<Attachment>, Failed> {
        opened_attachment(attr, self.txn.get_snapshot(&keys::attachment(attr.ino)).await?)
    }

    /// Returns an object without its bytes.
    async fn object(&self, record: &InodeRecord) -> Result<Object, Failed> {
        let attachment = self.attachment(&record.attr).await?;
        Ok(Object { attr: record.attr, attachment, bytes: None })
    }
}

/// Does the work that must precede the transaction of a change, because no transaction could take
/// it.
pub(crate) async fn before(volume: &Volume, request: &MetaRequest) -> Result<(), Failed> {
    let Some(op) = op_of(request) else { return Ok(()) };
    match op {
        ObjectOp::Put(put) => change::make_way(volume, &request.caller, put).await,
        ObjectOp::RemoveBucket { bucket } => bucket::clear(volume, &request.caller, bucket).await,
        ObjectOp::Backing(BackingOp::Set { bucket, backing: Some(_) }) => {
            backing::forget_leftovers(volume, bucket).await
        }
        _ => Ok(()),
    }
}

/// Does the work that is left after a change.
pub(crate) async fn after(volume: &Volume, request: &MetaRequest) -> Result<(), Failed> {
    match op_of(request) {
        Some(
            ObjectOp::Remove { bucket, key, .. }
            | ObjectOp::Backing(BackingOp::Evict { bucket, key, .. }),
        ) => change::prune_rest(volume, &request.caller, (bucket, key)).await,
        Some(ObjectOp::Backing(BackingOp::Set { bucket, backing: None })) => {
            backing::forget_leftovers(volume, bucket).await
        }
        _ => Ok(()),
    }
}

/// Repairs a record of objects without its owner; `None` for any other record.
pub(crate) async fn stray(view: &View, key: &[u8]) -> Result<Option<bool>, Failed> {
    match backing::stray(view, key).await? {
        Some(done) => Ok(Some(done)),
        None => upload::stray(view, key).await,
    }
}

const fn op_of(request: &MetaRequest) -> Option<&ObjectOp> {
    match &request.op {
        MetaOp::Object(op) => Some(op),
        _ => None,
    }
}

/// Executes an operation that changes something.
pub(crate) async fn change(
    view: &View,
    volume: &Volume,
    request: &MetaRequest,
    (op, fresh): (&ObjectOp, Fresh),
) -> Result<MetaReply, Failed> {
    let (caller, session): (&Caller, u64) = (&request.caller, request.session);
    let reply = match op {
        ObjectOp::Nameless { parent, ino, mode, umask, .. } => {
            let fresh = Fresh { id: ino.0, ..fresh };
            return nameless::make(view, (caller, session), (*parent, *mode, *umask), fresh).await;
        }
        ObjectOp::Put(put) => change::put(view, volume, request, (put, fresh)).await?,
        ObjectOp::SetAttachment(set) => change::attach(view, volume, caller, set).await?,
        ObjectOp::Remove { bucket, key, expect } => {
            change::remove(view, volume, caller, ((bucket, key), *expect)).await?
        }
        ObjectOp::MakeBucket { bucket, attachment } => {
            bucket::make(view, caller, (bucket, attachment), fresh.id).await?
        }
        ObjectOp::RemoveBucket { bucket } => bucket::remove(view, caller, bucket).await?,
        ObjectOp::SetBucket { bucket, attachment } => {
            bucket::set(view, caller, (bucket, attachment)).await?
        }
        ObjectOp::CreateUpload { bucket, key, attachment } => {
            upload::create(view, caller, bucket, (key, attachment, fresh.id)).await?
        }
        ObjectOp::PutPart(put) => upload::put_part(view, (caller, session), put).await?,
        ObjectOp::TakePlace { bucket, id, number, len, mode, .. } => {
            upload::take_place(view, caller, (bucket, *id), (*number, *len), (*mode, fresh)).await?
        }
        ObjectOp::AbortUpload { bucket, id } => upload::abort(view, caller, (bucket, *id)).await?,
        ObjectOp::Backing(op) => {
            ObjectReply::Backing(backing::change(view, volume, caller, op).await?)
        }
        _ => return Err(MetaError::NotSupported.into()),
    };
    Ok(MetaReply::Object(reply))
}

/// Executes an operation that only reads.
pub(crate) async fn look(view: &View, caller: &Caller, op: &ObjectOp) -> Result<MetaReply, Failed> {
    let reply = match op {
        ObjectOp::Get { bucket, key, with_bytes } => {
            let way = way::walk(view, caller, (bucket, key)).await?;
            let object = way::object(view, caller, &way, *with_bytes).await?;
            let state = backing::state(view, &way.dirs[0].record, key).await?;
            ObjectReply::Object { object, state }
        }
        ObjectOp::List(list) => list::page(view, caller, list).await?,
        ObjectOp::GetBucket { bucket } => bucket::get(view, bucket).await?,
        ObjectOp::ListBuckets { after } => bucket::list(view, *after).await?,
        ObjectOp::GetUpload { bucket, id } => upload::get(view, caller, (bucket, *id)).await?,
        ObjectOp::ListUploads { bucket, after, limit } => {
            upload::list(view, caller, (bucket, after.as_ref()), *limit).await?
        }
        ObjectOp::ListParts { bucket, id, after, limit } => {
            upload::parts(view, caller, (bucket, *id), (*after, *limit)).await?
        }
        ObjectOp::Backing(op) => ObjectReply::Backing(backing::look(view, caller, op).await?),
        _ => return Err(MetaError::NotSupported.into()),
    };
    Ok(MetaReply::Object(reply))
}

/// The file without a name that an object will have.
const fn nameless_of(put: &PutObject) -> Option<Ino> {
    match put.body {
        ObjectBody::Nameless(ino) => Some(ino),
        ObjectBody::Bytes(_) | ObjectBody::Whole { .. } => None,
    }
}
