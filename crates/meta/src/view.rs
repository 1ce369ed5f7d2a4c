//! The namespace as one transaction sees it.

use std::sync::Arc;

use millpond_store::{KeyRange, RangeOptions, Transaction};
use millpond_types::meta::object::places;
use millpond_types::meta::{
    Attr, DirTimes, EntryRecord, FileKind, GarbageRecord, Ino, InodeRecord, MetaError, Name,
    OrphanRecord, Timestamp, keys,
};
use millpond_types::wire::Record;
use parking_lot::Mutex;

use crate::delegation::Delegations;
use crate::error::{Failed, VolumeError};
use crate::trash;
use crate::volume::Volume;

/// Decodes a record that was stored under `key`.
pub(crate) fn opened<R: Record>(key: &[u8], bytes: &[u8]) -> Result<R, Failed> {
    R::open(bytes).map_err(|source| {
        let key = key.escape_ascii().to_string();
        Failed::Broken(VolumeError::Record { key, source })
    })
}

/// A transaction and the time at which it happens.
pub(crate) struct View {
    pub(crate) txn: Transaction,
    pub(crate) now: Timestamp,
    /// The session that it is done for; `None` for the meta itself, which sees held directories.
    pub(crate) session: Option<u64>,
    /// Known former holders.
    pub(crate) delegations: Option<Arc<Delegations>>,
    /// Directories with entries that this transaction changed, as they will be.
    dirs: Mutex<Vec<Attr>>,
}

impl View {
    pub(crate) fn new(txn: Transaction, now: Timestamp) -> Self {
        Self { txn, now, session: None, delegations: None, dirs: Mutex::default() }
    }

    /// A view for a request.
    pub(crate) fn of(volume: &Volume, txn: Transaction, session: u64) -> Self {
        let delegations = Some(Arc::clone(&volume.delegations));
        Self { session: Some(session), delegations, ..Self::new(txn, volume.now()) }
    }

    /// Reads a record.
    pub(crate) async fn read<R: Record>(&self, key: &[u8]) -> Result<Option<R>, Failed> {
        let found = self.txn.get(key).await?;
        found.map(|bytes| opened(key, &bytes)).transpose()
    }

    /// Reads an inode; `Stale` when there is none.
    pub(crate) async fn inode(&self, ino: Ino) -> Result<InodeRecord, Failed> {
        let found = self.read(&keys::inode(ino)).await?.ok_or(Failed::Refused(MetaError::Stale))?;
        self.may_see(&found)?;
        Ok(found)
    }

    /// Reads a file in order to change its bytes. `Stale` also for an evicted file that is still
    /// open: its writer must learn that its bytes would be in no object.
    pub(crate) async fn file_to_write(&self, ino: Ino) -> Result<InodeRecord, Failed> {
        let record = self.inode(ino).await?;
        if record.marks.evicted && record.attr.nlink == 0 {
            return Err(MetaError::Stale.into());
        }
        Ok(record)
    }

    /// Reads a directory that names can be made in; its times are not filled in.
    pub(crate) async fn dir(&self, ino: Ino) -> Result<InodeRecord, Failed> {
        let found: InodeRecord =
            self.read(&keys::inode(ino)).await?.ok_or(Failed::Refused(MetaError::NotFound))?;
        if !found.attr.is_dir() {
            return Err(MetaError::NotDirectory.into());
        }
        self.may_see(&found)?;
        // The directory was removed while it was open.
        if found.attr.nlink == 0 {
            return Err(MetaError::NotFound.into());
        }
        Ok(found)
    }

    /// Reads an inode's attributes, with the times of a directory's entries; without a conflict.
    pub(crate) async fn attr(&self, ino: Ino) -> Result<Attr, Failed> {
        let (inode, times) = (keys::inode(ino), keys::times(ino));
        let mut found = self.txn.get_many_snapshot(&[&inode, &times]).await?.into_iter();
        let (record, changed) = (found.next().flatten(), found.next().flatten());
        let record = record.ok_or(Failed::Refused(MetaError::Stale))?;
        let record: InodeRecord = opened(&inode, &record)?;
        self.may_see(&record)?;
        let changed = changed.map(|bytes| opened(&times, &bytes)).transpose()?;
        Ok(with_times(record.attr, changed))
    }

    /// Reads the entry of a name.
    pub(crate) async fn entry(&self, dir: Ino, name: &Name) -> Result<Option<EntryRecord>, Failed> {
        self.read(&keys::entry(dir, name)).await
    }

    pub(crate) fn put_inode(&self, record: &mut InodeRecord) -> Result<(), Failed> {
        record.attr.version += 1;
        record.delegated = self.holder(record);
        Ok(self.txn.put(&keys::inode(record.attr.ino), record.seal())?)
    }

    /// Writes an inode with no change except its time of access.
    pub(crate) fn put_unchanged(&self, record: &InodeRecord) -> Result<(), Failed> {
        Ok(self.txn.put(&keys::inode(record.attr.ino), record.seal())?)
    }

    /// Writes an entry, and its places in a directory of objects. A replaced entry must match this
    /// one: both are directories, or neither is.
    pub(crate) fn put_entry(
        &self,
        dir: &InodeRecord,
        name: &Name,
        entry: EntryRecord,
    ) -> Result<(), Failed> {
        let (ino, sealed) = (dir.attr.ino, entry.seal());
        for place in places_in(dir, name, entry.kind) {
            self.txn.put(&keys::place(ino, &place), sealed.as_slice())?;
        }
        Ok(self.txn.put(&keys::entry(ino, name), sealed)?)
    }

    /// Removes the entry of an inode of this kind.
    pub(crate) fn delete_entry(
        &self,
        dir: &InodeRecord,
        name: &Name,
        kind: FileKind,
    ) -> Result<(), Failed> {
        for place in places_in(dir, name, kind) {
            self.txn.delete(&keys::place(dir.attr.ino, &place))?;
        }
        Ok(self.txn.delete(&keys::entry(dir.attr.ino, name))?)
    }

    /// Sets the times of a directory with changed entries, and adds its attributes to the answer of
    /// the request. The caller has read the directory with a conflict, and has already put it if it
    /// changes otherwise.
    pub(crate) fn touch_and_tell(&self, dir: &InodeRecord) -> Result<(), Failed> {
        let times = DirTimes { mtime: self.now, ctime: self.now };
        self.dirs.lock().push(with_times(dir.attr, Some(times)));
        self.touch(dir.attr.ino)
    }

    /// Takes the directories of all calls of [`Self::touch_and_tell`].
    pub(crate) fn touched(&self) -> Vec<Attr> {
        std::mem::take(&mut *self.dirs.lock())
    }

    /// Sets the times of a directory with changed entries.
    pub(crate) fn touch(&self, dir: Ino) -> Result<(), Failed> {
        let times = DirTimes { mtime: self.now, ctime: self.now };
        Ok(self.txn.put(&keys::times(dir), times.seal())?)
    }

    /// Refuses a directory with entries; entries that appear before the commit make it fail.
    pub(crate) async fn must_be_empty(&self, dir: Ino) -> Result<(), Failed> {
        let found = self.first_entry(dir, RangeOptions::limit(1)).await?;
        if found.is_none() { Ok(()) } else { Err(MetaError::NotEmpty.into()) }
    }

    /// Returns the key of the first entry of a directory, except those that this transaction
    /// removes.
    pub(crate) async fn first_entry(
        &self,
        dir: Ino,
        options: RangeOptions,
    ) -> Result<Option<Vec<u8>>, Failed> {
        let mut more = Some(KeyRange::prefix(&keys::entries(dir)));
        while let Some(range) = more {
            let page = self.txn.range(&range, options).await?;
            if let Some((key, _)) = page.entries.into_iter().next() {
                return Ok(Some(key));
            }
            more = page.rest;
        }
        Ok(None)
    }

    /// Removes the name in `dir` from an inode; without names it is kept, if the directory keeps
    /// removed entries, or becomes an orphan.
    pub(crate) fn unname(
        &self,
        dir: &InodeRecord,
        name: &Name,
        record: &mut InodeRecord,
    ) -> Result<(), Failed> {
        let attr = &mut record.attr;
        attr.nlink =
            if attr.kind == FileKind::Directory { 0 } else { attr.nlink.saturating_sub(1) };
        attr.ctime = self.now;
        if attr.nlink == 0 && !trash::keep(self, dir, name, attr.ino)? {
            let orphan = OrphanRecord { since: self.now, waits_for: None };
            self.txn.put(&keys::orphan(attr.ino), orphan.seal())?;
        }
        self.put_inode(record)
    }

    /// Removes the bytes of an inode from the store, or names them as garbage. An empty file in the
    /// store may have chunks that no meta knows of.
    pub(crate) async fn discard_bytes(&self, attr: &Attr) -> Result<(), Failed> {
        if attr.layout.chains == 0 {
            return Ok(());
        }
        if attr.is_shared {
            return self.release((attr.chunk_data(), attr.size)).await;
        }
        if attr.is_stored() && attr.size > 0 {
            return Ok(self.txn.delete(&keys::content(attr.ino))?);
        }
        let (layout, size, since) = (attr.layout, attr.size, self.now);
        let garbage = GarbageRecord { layout, size, since, is_sealed: false };
        Ok(self.txn.put(&keys::garbage(attr.chunk_data()), garbage.seal())?)
    }
}

/// Returns the places of a name; only directories of objects have any.
pub(crate) fn places_in(dir: &InodeRecord, name: &Name, kind: FileKind) -> Vec<Vec<u8>> {
    if dir.marks.objects { places(name, kind == FileKind::Directory) } else { Vec::new() }
}

/// Returns a directory's attributes with the times of its entries.
pub(crate) fn with_times(attr: Attr, times: Option<DirTimes>) -> Attr {
    match times {
        Some(times) if attr.is_dir() => {
            Attr { mtime: times.mtime, ctime: attr.ctime.max(times.ctime), ..attr }
        }
        _ => attr,
    }
}
