//! Files that share the bytes of others: a clone copies no chunk (RFC 0014).
//!
//! A client that clones a file first has the record of the source's chunks made, seals the chunks
//! on all chains, and then has the new file get the same chunks. Neither file can write to them any
//! more. A writer that a chain refuses seals them too, and has the file get chunks of a fresh name
//! with these behind them. So a client that dies in between leaves a readable file, unchanged, and
//! the next writer continues.
//!
//! A file counts for each name of chunks that it is read from. When the count is zero, the record
//! is deleted, and the chunks become garbage, with their seals.

use millpond_types::limits::BASES_MAX;
use millpond_types::meta::{
    Attr, Caller, CloneFile, Create, Entry, FILE_BYTES_MAX, FileBase, FileKind, GarbageRecord, Ino,
    MetaError, MetaReply, SharedRecord, keys,
};
use millpond_types::wire::Record;

use crate::entry::{self, Fresh};
use crate::error::Failed;
use crate::permit;
use crate::quota::Charge;
use crate::view::View;

impl View {
    async fn shared(&self, chunks: u64) -> Result<SharedRecord, Failed> {
        // Without the record the chunks behind these are unknown: a check reports it.
        self.read(&keys::shared(chunks)).await?.ok_or(Failed::Refused(MetaError::Io))
    }

    fn put_shared(&self, chunks: u64, record: &mut SharedRecord) -> Result<(), Failed> {
        record.version += 1;
        Ok(self.txn.put(&keys::shared(chunks), record.seal())?)
    }

    /// Records that a file of `size` bytes no longer uses chunks and those behind them.
    pub(crate) async fn release(&self, (chunks, size): (u64, u64)) -> Result<(), Failed> {
        let Some(mut own) = self.read::<SharedRecord>(&keys::shared(chunks)).await? else {
            // Others may have them. A check reports chunks without an owner.
            return Ok(());
        };
        let behind: Vec<u64> = own.bases.iter().map(|base| base.chunks).collect();
        // The file may have grown since the record was written.
        own.size = own.size.max(size);
        self.leave(chunks, own)?;
        for base in behind {
            let record = self.shared(base).await?;
            self.leave(base, record)?;
        }
        Ok(())
    }

    /// Corrects the number of files read from chunks, if the record is as it was seen.
    pub(crate) async fn set_users(
        &self,
        chunks: u64,
        (version, users): (u64, u64),
    ) -> Result<bool, Failed> {
        let found: Option<SharedRecord> = self.read(&keys::shared(chunks)).await?;
        let Some(mut record) = found.filter(|record| record.version == version) else {
            return Ok(false);
        };
        record.users = users.saturating_add(1);
        self.leave(chunks, record)?;
        Ok(true)
    }

    fn leave(&self, chunks: u64, mut record: SharedRecord) -> Result<(), Failed> {
        if record.users > 1 {
            record.users -= 1;
            return self.put_shared(chunks, &mut record);
        }
        let SharedRecord { layout, size, .. } = record;
        let garbage = GarbageRecord { layout, size, since: self.now, is_sealed: true };
        self.txn.put(&keys::garbage(chunks), garbage.seal())?;
        Ok(self.txn.delete(&keys::shared(chunks))?)
    }
}

fn must_be_file(attr: &Attr) -> Result<(), MetaError> {
    match attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(MetaError::IsDirectory),
        _ => Err(MetaError::Invalid),
    }
}

/// Checks that one more name may be put in front of these.
fn must_be_shallow(record: &SharedRecord) -> Result<(), MetaError> {
    if record.bases.len() < BASES_MAX { Ok(()) } else { Err(MetaError::TooManyLinks) }
}

/// Makes the record of a file's chunks, so that they can be sealed; does nothing for a file with
/// bytes in the store.
pub(crate) async fn begin(view: &View, caller: &Caller, ino: Ino) -> Result<MetaReply, Failed> {
    let mut record = view.inode(ino).await?;
    let attr = &mut record.attr;
    must_be_file(attr)?;
    permit::access(caller, attr, permit::READ)?;
    let Some(chunks) = attr.chunks else { return Ok(MetaReply::Attr(*attr)) };
    if attr.is_shared {
        must_be_shallow(&view.shared(chunks).await?)?;
        return Ok(MetaReply::Attr(*attr));
    }
    let (layout, size) = (attr.layout, attr.size);
    let (version, users, is_sealed, began, owner, bases) = (0, 1, false, 0, ino, Vec::new());
    let mut shared = SharedRecord { version, users, is_sealed, layout, size, began, owner, bases };
    view.put_shared(chunks, &mut shared)?;
    attr.is_shared = true;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Attr(record.attr))
}

/// Returns these chunks and the length of the file at that time, if the file has them, or had them
/// until others were put right in front of them.
async fn sealed(view: &View, source: &Attr, chunks: u64) -> Result<Option<(u64, u64)>, Failed> {
    let Some(own) = source.chunks.filter(|_| source.is_shared) else { return Ok(None) };
    if own == chunks {
        return Ok(Some((chunks, source.size)));
    }
    let front = view.shared(own).await?;
    let was = front.bases.first().is_some_and(|base| base.chunks == chunks);
    Ok(was.then_some((chunks, front.began)))
}

/// Makes a file with the bytes of another one, if that has, or just had, the chunks that the client
/// has sealed; otherwise returns its present attributes.
pub(crate) async fn clone(
    view: &View,
    caller: &Caller,
    wanted: &CloneFile,
    fresh: Fresh,
) -> Result<MetaReply, Failed> {
    let source = view.inode(wanted.source).await?.attr;
    must_be_file(&source)?;
    permit::access(caller, &source, permit::READ)?;
    let sealed = sealed(view, &source, wanted.chunks).await?;
    if !source.is_stored() && sealed.is_none() {
        return Ok(MetaReply::Attr(source));
    }
    let create = Create {
        parent: wanted.parent,
        name: wanted.name.clone(),
        kind: FileKind::Regular,
        mode: source.mode & 0o777,
        umask: None,
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        promised: None,
        delegate: None,
    };
    // A meta that knows no chains yet uses those of the source.
    let layout = if fresh.layout.chains == 0 { source.layout } else { fresh.layout };
    entry::create(view, caller, &create, Fresh { layout, ..fresh }).await?;
    let mut record = view.inode(Ino(fresh.id)).await?;
    let (mut size, mut solid) = (source.size, 0);
    if let Some((chunks, began)) = sealed {
        size = began;
        share(view, chunks, size).await?;
        let attr = &mut record.attr;
        (attr.chunks, attr.is_shared, attr.layout) = (Some(chunks), true, source.layout);
        // Writes since others were put in front of them are in those.
        if source.chunks == Some(chunks) {
            solid = source.solid.min(size);
        }
    } else {
        view.copy_stored(&source, &record.attr).await?;
    }
    (record.attr.size, record.attr.solid) = (size, solid);
    view.charge(record.quota, record.attr.ino, Charge::resize(0, size)).await?;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Entry(Entry { attr: record.attr, created: true }))
}

/// Adds a file to these chunks, which are sealed.
async fn share(view: &View, chunks: u64, size: u64) -> Result<(), Failed> {
    let mut own = view.shared(chunks).await?;
    must_be_shallow(&own)?;
    (own.users, own.is_sealed, own.size) = (own.users + 1, true, own.size.max(size));
    view.put_shared(chunks, &mut own)?;
    for base in own.bases {
        let mut record = view.shared(base.chunks).await?;
        record.users += 1;
        view.put_shared(base.chunks, &mut record)?;
    }
    Ok(())
}

/// Gives a file chunks of the fresh name `id` in front of these, which the client has sealed;
/// otherwise returns its present attributes.
pub(crate) async fn unshare(
    view: &View,
    (ino, chunks): (Ino, u64),
    id: u64,
) -> Result<MetaReply, Failed> {
    let mut record = view.inode(ino).await?;
    let attr = &mut record.attr;
    must_be_file(attr)?;
    if attr.chunks != Some(chunks) || !attr.is_shared {
        return Ok(MetaReply::Attr(*attr));
    }
    let mut behind = view.shared(chunks).await?;
    must_be_shallow(&behind)?;
    (behind.is_sealed, behind.size) = (true, behind.size.max(attr.size));
    let size = attr.size;
    // Their owner may have written more before they were sealed, and no meta knows of it yet. For a
    // clone, bytes after its end never existed.
    let counts = if behind.owner == ino { FILE_BYTES_MAX } else { size };
    let cut = |base: &FileBase| FileBase { size: base.size.min(counts), ..*base };
    let first = FileBase { chunks, size: counts };
    let bases = std::iter::once(first).chain(behind.bases.iter().map(cut)).collect();
    let (layout, version, users, is_sealed, owner) = (attr.layout, 0, 1, false, ino);
    let mut own =
        SharedRecord { version, users, is_sealed, layout, size, began: size, owner, bases };
    view.put_shared(chunks, &mut behind)?;
    view.put_shared(id, &mut own)?;
    attr.chunks = Some(id);
    view.put_inode(&mut record)?;
    Ok(MetaReply::Attr(record.attr))
}

/// Reads the record of a name of chunks; without a conflict.
pub(crate) async fn look(view: &View, chunks: u64) -> Result<MetaReply, Failed> {
    let key = keys::shared(chunks);
    let found = view.txn.get_snapshot(&key).await?.ok_or(Failed::Refused(MetaError::Stale))?;
    Ok(MetaReply::Shared(crate::view::opened(&key, &found)?))
}

/// Records the length of a file that is cut: empty chunks after its new end hide those behind them,
/// and go with the others.
pub(crate) async fn reached(view: &View, attr: &Attr) -> Result<(), Failed> {
    let Some(own) = attr.chunks else { return Ok(()) };
    let mut record = view.shared(own).await?;
    if attr.size > record.size {
        record.size = attr.size;
        view.put_shared(own, &mut record)?;
    }
    Ok(())
}

/// Handles a write to chunks that are now behind those of a file: they were sealed before the meta
/// learned of the write. Returns whether the file reaches to `size` by them.
pub(crate) async fn reach(
    view: &View,
    attr: &Attr,
    chunks: u64,
    size: u64,
) -> Result<bool, Failed> {
    let Some(own) = attr.chunks.filter(|_| attr.is_shared) else { return Ok(false) };
    let counts = |base: &FileBase| base.chunks == chunks && base.size >= size;
    if !view.shared(own).await?.bases.iter().any(counts) {
        return Ok(false);
    }
    let mut behind = view.shared(chunks).await?;
    if size > behind.size {
        behind.size = size;
        view.put_shared(chunks, &mut behind)?;
    }
    Ok(true)
}
