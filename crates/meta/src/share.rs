//! Files that have the bytes of others: a clone copies no chunk (RFC 0014).
//!
//! A client that clones has the record of the source's chunks made, seals them on all chains, and then has
//! the new file get the same chunks. Neither file can write to them any more: whoever is refused by a chain
//! seals them too, and has the file get chunks of a fresh name with these behind them. So a client that dies
//! on the way leaves a file that is as it was to read, and that the next writer takes on.
//!
//! A file counts for each name of chunks that it is read from. When nobody does, the record goes, and the
//! chunks are garbage, with their seals.

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
        // Without it nobody knows what lies behind the chunks: a check says so.
        self.read(&keys::shared(chunks)).await?.ok_or(Failed::Refused(MetaError::Io))
    }

    fn put_shared(&self, chunks: u64, record: &mut SharedRecord) -> Result<(), Failed> {
        record.version += 1;
        Ok(self.txn.put(&keys::shared(chunks), record.seal())?)
    }

    /// A file of `size` bytes is read from chunks, and what is behind them, no more.
    pub(crate) async fn release(&self, (chunks, size): (u64, u64)) -> Result<(), Failed> {
        let Some(mut own) = self.read::<SharedRecord>(&keys::shared(chunks)).await? else {
            // Others may have them. Chunks that nobody has are a check's.
            return Ok(());
        };
        let behind: Vec<u64> = own.bases.iter().map(|base| base.chunks).collect();
        // It may have grown since it was written down.
        own.size = own.size.max(size);
        self.leave(chunks, own)?;
        for base in behind {
            let record = self.shared(base).await?;
            self.leave(base, record)?;
        }
        Ok(())
    }

    /// Puts right how many files are read from chunks, if the record is as it was seen.
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

/// One more name may not be put in front of these.
fn must_be_shallow(record: &SharedRecord) -> Result<(), MetaError> {
    if record.bases.len() < BASES_MAX { Ok(()) } else { Err(MetaError::TooManyLinks) }
}

/// Makes the record of a file's chunks, so that they can be sealed; nothing of one whose bytes lie in the store.
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

/// These chunks, if a file has them or had them until others were put right in front of them, and how long it was then.
async fn sealed(view: &View, source: &Attr, chunks: u64) -> Result<Option<(u64, u64)>, Failed> {
    let Some(own) = source.chunks.filter(|_| source.is_shared) else { return Ok(None) };
    if own == chunks {
        return Ok(Some((chunks, source.size)));
    }
    let front = view.shared(own).await?;
    let was = front.bases.first().is_some_and(|base| base.chunks == chunks);
    Ok(was.then_some((chunks, front.began)))
}

/// Makes a file that has the bytes of another one, if that has, or just had, the chunks that the client has sealed;
/// otherwise the answer is what it is now.
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
    // A meta that knows no chains yet knows those of the source.
    let layout = if fresh.layout.chains == 0 { source.layout } else { fresh.layout };
    entry::create(view, caller, &create, Fresh { layout, ..fresh }).await?;
    let mut record = view.inode(Ino(fresh.id)).await?;
    let (mut size, mut solid) = (source.size, 0);
    if let Some((chunks, began)) = sealed {
        size = began;
        share(view, chunks, size).await?;
        let attr = &mut record.attr;
        (attr.chunks, attr.is_shared, attr.layout) = (Some(chunks), true, source.layout);
        // What was written since others were put in front of them is in those.
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

/// One more file has these chunks, which are sealed.
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

/// Gives a file chunks of the fresh name `id` in front of these, which the client has sealed; otherwise the
/// answer is what it is now.
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
    // Whose they were may have written more before they were sealed, of which no meta was told yet. To a clone what
    // lies behind its end was never there.
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

/// What is known of a name of chunks; without a conflict.
pub(crate) async fn look(view: &View, chunks: u64) -> Result<MetaReply, Failed> {
    let key = keys::shared(chunks);
    let found = view.txn.get_snapshot(&key).await?.ok_or(Failed::Refused(MetaError::Stale))?;
    Ok(MetaReply::Shared(crate::view::opened(&key, &found)?))
}

/// Takes note of how far a file reached that is cut: empty chunks behind its new end hide what lies behind them, and go
/// with the others.
pub(crate) async fn reached(view: &View, attr: &Attr) -> Result<(), Failed> {
    let Some(own) = attr.chunks else { return Ok(()) };
    let mut record = view.shared(own).await?;
    if attr.size > record.size {
        record.size = attr.size;
        view.put_shared(own, &mut record)?;
    }
    Ok(())
}

/// Bytes were written to chunks that lie behind those of a file by now: they were sealed before the meta was told.
/// True when the file reaches so far by them.
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
