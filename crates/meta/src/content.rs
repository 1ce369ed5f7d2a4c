//! Bytes of small files in the store: read, written, and moved to chunks.
//!
//! A file moves to chunks in three steps. A client reserves a name for the chunks, which is garbage
//! from the beginning; it writes the bytes there; a transaction gives the file these chunks, if the
//! file still is as it was read. Several clients may try that at the same time: each writes to
//! chunks of its own, so none of them overwrites later writes of another.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Attr, Caller, Content, ContentRecord, Create, Entry, EntryRecord, FILE_BYTES_MAX, FileKind,
    Filled, GarbageRecord, INLINE_MAX, Ino, InodeRecord, MetaError, MetaReply, Name, PutFile,
    Reserve, STORED_MAX, SetAttr, Spill, Timestamp, WriteInline, keys,
};
use millpond_types::wire::Record;

use crate::entry::{self, Fresh};
use crate::error::{Failed, VolumeError};
use crate::permit;
use crate::quota::Charge;
use crate::view::{View, opened};
use crate::volume::{Volume, broken};

/// How long a name for chunks is reserved, in seconds: a mount tries for a minute to write.
const RESERVED_S: i64 = 90;

impl View {
    /// Reads the bytes of a file in the store, in order to change them.
    async fn stored(&self, attr: &Attr) -> Result<Vec<u8>, Failed> {
        if attr.size == 0 {
            return Ok(Vec::new());
        }
        let found: Option<ContentRecord> = self.read(&keys::content(attr.ino)).await?;
        own(attr, found)
    }

    /// Gives a file in the store the bytes of another one.
    pub(crate) async fn copy_stored(&self, from: &Attr, to: &Attr) -> Result<(), Failed> {
        let bytes = self.stored(from).await?;
        if bytes.len() > INLINE_MAX {
            self.txn.put(&keys::large(to.ino), Vec::new())?;
        }
        if bytes.is_empty() { Ok(()) } else { self.put_stored(to, bytes) }
    }

    pub(crate) fn put_stored(&self, attr: &Attr, bytes: Vec<u8>) -> Result<(), Failed> {
        let record = ContentRecord { data: attr.data, bytes };
        Ok(self.txn.put(&keys::content(attr.ino), record.seal())?)
    }
}

/// Returns the bytes of this file; bytes from before it was truncated to zero are an error.
fn own(attr: &Attr, found: Option<ContentRecord>) -> Result<Vec<u8>, Failed> {
    match found {
        None => Ok(Vec::new()),
        Some(record) if record.data == attr.data => Ok(record.bytes),
        Some(_) => Err(MetaError::Io.into()),
    }
}

/// Reads an inode, and its bytes if they lie in the store; without a conflict.
pub(crate) async fn look(view: &View, ino: Ino) -> Result<MetaReply, Failed> {
    let (inode, content) = (keys::inode(ino), keys::content(ino));
    let mut found = view.txn.get_many_snapshot(&[&inode, &content]).await?.into_iter();
    let (record, bytes) = (found.next().flatten(), found.next().flatten());
    let record = record.ok_or(Failed::Refused(MetaError::Stale))?;
    let InodeRecord { attr, .. } = opened(&inode, &record)?;
    if attr.is_dir() {
        let attr = view.attr(ino).await?;
        return Ok(MetaReply::Content(Content { attr, bytes: Vec::new() }));
    }
    let bytes = match bytes {
        Some(bytes) if attr.is_stored() => own(&attr, Some(opened(&content, &bytes)?))?,
        _ => Vec::new(),
    };
    Ok(MetaReply::Content(Content { attr, bytes }))
}

/// Truncates the bytes of a file in the store to `size`.
pub(crate) async fn cut(view: &View, attr: &Attr, size: u64) -> Result<(), Failed> {
    let mut bytes = view.stored(attr).await?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if bytes.len() > size {
        bytes.truncate(size);
        view.put_stored(attr, bytes)?;
    }
    Ok(())
}

/// Extends the file to at least `size`, and sets its times if bytes were written at `at`.
async fn grow(
    view: &View,
    record: &mut InodeRecord,
    (size, at): (u64, Option<Timestamp>),
) -> Result<(), Failed> {
    let attr = &mut record.attr;
    let size = size.max(attr.size);
    view.charge(record.quota, attr.ino, Charge::resize(attr.size, size)).await?;
    attr.size = size;
    if let Some(at) = at {
        (attr.mtime, attr.ctime) = (at, at.max(attr.ctime));
    }
    Ok(())
}

/// Writes bytes into the store. A file that was truncated to zero, or has moved to chunks, stays as
/// it is.
pub(crate) async fn write(view: &View, write: &WriteInline) -> Result<MetaReply, Failed> {
    let mut record = view.file_to_write(write.ino).await?;
    if record.attr.kind != FileKind::Regular {
        return Err(MetaError::Invalid.into());
    }
    if record.attr.data != write.data || !record.attr.is_stored() {
        return Ok(MetaReply::Attr(record.attr));
    }
    let mut bytes = view.stored(&record.attr).await?;
    if !write.bytes.is_empty() {
        let start = write.offset as usize;
        let end = start + write.bytes.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(&write.bytes);
    }
    grow(view, &mut record, (write.end(), Some(write.mtime))).await?;
    if !write.bytes.is_empty() {
        view.put_stored(&record.attr, bytes)?;
    }
    view.put_inode(&mut record)?;
    Ok(MetaReply::Attr(record.attr))
}

/// Reserves the name `id` for chunks of a file.
pub(crate) async fn reserve(view: &View, reserve: Reserve, id: u64) -> Result<MetaReply, Failed> {
    let attr = view.attr(reserve.ino).await?;
    if attr.kind != FileKind::Regular {
        return Err(MetaError::Invalid.into());
    }
    let since = Timestamp { secs: view.now.secs.saturating_add(RESERVED_S), ..view.now };
    let (layout, size) = (attr.layout, reserve.size);
    let garbage = GarbageRecord { layout, size, since, is_sealed: false };
    view.txn.put(&keys::garbage(id), garbage.seal())?;
    Ok(MetaReply::Reserved(id))
}

/// Gives a file the chunks that its bytes were written to, if the file is as it was read, and if
/// the reservation has not run out: after that a node may already remove these chunks.
pub(crate) async fn spill(view: &View, spill: Spill) -> Result<MetaReply, Failed> {
    if spill.size > FILE_BYTES_MAX {
        return Err(MetaError::TooLarge.into());
    }
    let mut record = view.file_to_write(spill.ino).await?;
    let key = keys::garbage(spill.chunks);
    let reserved: Option<GarbageRecord> = view.read(&key).await?;
    let is_ours = reserved.is_some_and(|reserved| view.now < reserved.since);
    let attr = &mut record.attr;
    if !is_ours || !attr.is_stored() || attr.version != spill.version {
        return Ok(MetaReply::Attr(record.attr));
    }
    view.discard_bytes(attr).await?;
    view.txn.delete(&key)?;
    attr.chunks = Some(spill.chunks);
    let cuts = attr.cuts;
    grow(view, &mut record, (spill.size, spill.mtime)).await?;
    record.attr.fill(&Filled { from: 0, to: spill.solid, cuts });
    view.put_inode(&mut record)?;
    Ok(MetaReply::Attr(record.attr))
}

/// Finds the directory of a path's last name. It reads the directories above without a conflict: a
/// concurrent rename of one of them counts as later.
async fn walk(view: &View, caller: &Caller, dirs: &[Name]) -> Result<Ino, Failed> {
    let mut at = Ino::ROOT;
    for name in dirs {
        let key = keys::entry(at, name);
        let inode = keys::inode(at);
        let found = view.txn.get_many_snapshot(&[&inode, &key]).await?;
        let [Some(dir), Some(entry)] = &found[..] else { return Err(MetaError::NotFound.into()) };
        let dir: InodeRecord = opened(&inode, dir)?;
        view.may_see(&dir)?;
        permit::access(caller, &dir.attr, permit::EXECUTE)?;
        let entry: EntryRecord = opened(&key, entry)?;
        match entry.kind {
            FileKind::Directory => at = entry.ino,
            FileKind::Symlink => return Err(MetaError::NotSupported.into()),
            _ => return Err(MetaError::NotDirectory.into()),
        }
    }
    Ok(at)
}

fn split(path: &[Name]) -> Result<(&Name, &[Name]), Failed> {
    path.split_last().ok_or(Failed::Refused(MetaError::Invalid))
}

/// Reads the file at the end of a path; `NotSupported` if the path contains a symbolic link.
pub(crate) async fn get(view: &View, caller: &Caller, path: &[Name]) -> Result<MetaReply, Failed> {
    let (name, dirs) = split(path)?;
    let parent = walk(view, caller, dirs).await?;
    let MetaReply::Entry(entry) = entry::lookup(view, caller, parent, name).await? else {
        return Err(MetaError::Io.into());
    };
    match entry.attr.kind {
        FileKind::Regular => caller.access(&entry.attr, permit::READ)?,
        FileKind::Directory => return Err(MetaError::IsDirectory.into()),
        _ => return Err(MetaError::NotSupported.into()),
    }
    look(view, entry.attr.ino).await
}

/// Makes a file with these bytes, or replaces the bytes of the existing one; `NotSupported` if the
/// path contains a symbolic link.
pub(crate) async fn put(
    view: &View,
    caller: &Caller,
    put: &PutFile,
    fresh: Fresh,
) -> Result<MetaReply, Failed> {
    assert!(put.bytes.len() <= STORED_MAX, "a decoded request does not exceed the limit");
    let (name, dirs) = split(&put.path)?;
    let parent = walk(view, caller, dirs).await?;
    let wanted = Create {
        parent,
        name: name.clone(),
        kind: FileKind::Regular,
        mode: put.mode,
        umask: None,
        rdev: 0,
        target: Vec::new(),
        exclusive: false,
        promised: None,
        delegate: None,
    };
    let there = view.entry(parent, name).await?;
    let created = there.is_none();
    let ino = match there.map(|there| (there.kind, there.ino)) {
        Some((FileKind::Regular, ino)) => ino,
        Some((FileKind::Directory, _)) => return Err(MetaError::IsDirectory.into()),
        Some(_) => return Err(MetaError::NotSupported.into()),
        None => {
            entry::create(view, caller, &wanted, fresh).await?;
            Ino(fresh.id)
        }
    };
    let mut record = view.inode(ino).await?;
    let attr = &mut record.attr;
    let old = attr.size;
    if !created {
        permit::access(caller, &view.dir(parent).await?.attr, permit::EXECUTE)?;
        let set = SetAttr { size: Some(put.bytes.len() as u64), ..SetAttr::default() };
        attr.mode = permit::set_attr(caller, attr, set)?.mode.unwrap_or(attr.mode);
        view.discard_bytes(attr).await?;
        (attr.data, attr.chunks, attr.is_shared) = (fresh.id, None, false);
        attr.hollow(0, true);
    }
    attr.size = put.bytes.len() as u64;
    (attr.mtime, attr.ctime) = (view.now, view.now);
    let size = attr.size;
    view.charge(record.quota, ino, Charge::resize(old, size)).await?;
    if size > 0 {
        view.put_stored(&record.attr, put.bytes.clone())?;
    }
    if put.bytes.len() > INLINE_MAX {
        view.txn.put(&keys::large(ino), Vec::new())?;
    }
    view.put_inode(&mut record)?;
    Ok(MetaReply::Entry(Entry { attr: record.attr, created }))
}

impl Volume {
    /// Lists some files with enough bytes in the store that they should move to chunks; the list
    /// may contain files that no longer qualify. A client moves them, and then calls
    /// [`forget_large`](Self::forget_large).
    ///
    /// # Errors
    /// [`VolumeError`].
    pub async fn large(&self, limit: usize) -> Result<Vec<Ino>, VolumeError> {
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
        let page = self.store.begin().range(&KeyRange::prefix(keys::LARGE), options).await;
        let page = page.map_err(VolumeError::Store)?;
        let numbers = page.entries.iter().filter_map(|(key, _)| keys::number(keys::LARGE, key));
        Ok(numbers.map(Ino).collect())
    }

    /// Forgets those of these files that are gone, have their bytes in chunks, or are small.
    ///
    /// # Errors
    /// [`VolumeError`]; calling again is harmless.
    pub async fn forget_large(&self, files: &[Ino]) -> Result<(), VolumeError> {
        for ino in files {
            let done = self.store.transact(|txn| async move {
                let view = View::new(txn, self.now());
                let record: Option<InodeRecord> = view.read(&keys::inode(*ino)).await?;
                let is_large = |attr: &Attr| attr.is_stored() && attr.size > INLINE_MAX as u64;
                if !record.is_some_and(|record| is_large(&record.attr)) {
                    view.txn.delete(&keys::large(*ino))?;
                }
                Ok::<_, Failed>(())
            });
            done.await.map_err(broken)?;
        }
        Ok(())
    }
}
