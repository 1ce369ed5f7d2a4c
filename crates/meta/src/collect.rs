//! Collection of unreachable things: orphans that no session uses, and bytes.
//!
//! An orphan goes in three steps. First the living sessions are written into it. Then each of them
//! reports that it does not have the orphan open, or ends. Then inode and attributes go, and its
//! bytes become garbage. The node removes garbage chunk by chunk and then forgets it. Every step
//! can be repeated, by any meta.

use millpond_store::{KeyRange, RangeOptions, StoreErrorKind};
use millpond_types::meta::{GarbageRecord, Ino, InodeRecord, OrphanRecord, keys};
use millpond_types::wire::Record;

use crate::error::{Failed, VolumeError};
use crate::lock;
use crate::object;
use crate::quota::{self, Charge};
use crate::session::{ORPHAN_BYTES_MAX, living};
use crate::trash;
use crate::view::{View, opened};
use crate::volume::Volume;
use crate::xattr::{self, XATTRS_AT_ONCE};

/// Orphans that one round looks at.
const ORPHANS_MAX: usize = 1000;
/// Orphans that one transaction marks: a record each.
const MARKED_MAX: usize = 50;
/// Files that one transaction removes: each takes some six writes.
const FORGOTTEN_MAX: usize = 8;

/// Result of one round of collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Orphans that are gone.
    pub inodes: usize,
    /// Orphans that wait for sessions.
    pub waiting: usize,
    /// Those of `waiting` that this round marked: sessions are asked about them from now on.
    pub marked: usize,
}

/// Bytes with chunks that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// Their data id.
    pub data: u64,
    /// Layout and length.
    pub record: GarbageRecord,
}

fn outer<T>(done: Result<T, Failed>, otherwise: T) -> Result<T, VolumeError> {
    match done {
        Ok(done) => Ok(done),
        Err(failed) => failed.answer().map(|answer| answer.unwrap_or(otherwise)),
    }
}

/// Returns how many orphans are gone: 1, or 0 for an orphan that cannot be removed. Such an orphan
/// does not stop the others, but a store that does not answer does.
fn unless_stuck(ino: Ino, done: Result<(), Failed>) -> Result<usize, Failed> {
    let why = match done {
        Ok(()) => return Ok(1),
        Err(Failed::Refused(error)) => error.to_string(),
        Err(Failed::Broken(VolumeError::Store(error)))
            if error.kind() == StoreErrorKind::TooLarge =>
        {
            error.to_string()
        }
        Err(Failed::Broken(error @ VolumeError::Record { .. })) => error.to_string(),
        Err(error) => return Err(error),
    };
    tracing::error!("inode {} has no name, but cannot be removed: {why}", ino.0);
    Ok(0)
}

async fn forget_one(view: &View, ino: Ino) -> Result<(), Failed> {
    let (orphan, inode) = (keys::orphan(ino), keys::inode(ino));
    if view.txn.get(&orphan).await?.is_none() {
        return Ok(());
    }
    if let Some(bytes) = view.txn.get(&inode).await? {
        let record: InodeRecord = opened(&inode, &bytes)?;
        view.discard_bytes(&record.attr).await?;
        view.charge(record.quota, ino, Charge::of(&record).back()).await?;
        if record.xattrs > 0 {
            // A larger number of attributes was removed before.
            let _ = xattr::remove_some(view, ino).await?;
        }
        if record.attr.is_dir() {
            view.txn.delete(&keys::times(ino))?;
        }
        for beside in [keys::locks(ino), keys::attachment(ino)] {
            if view.txn.get(&beside).await?.is_some() {
                view.txn.delete(&beside)?;
            }
        }
        view.txn.delete(&inode)?;
    }
    Ok(view.txn.delete(&orphan)?)
}

impl Volume {
    /// Takes some orphans one step further, and ends sessions with an expired lease. Call it every
    /// few seconds: after a round that fails, no session is ended for the time of one lease.
    ///
    /// # Errors
    /// [`VolumeError`]; calling again continues.
    pub async fn collect(&self) -> Result<Collected, VolumeError> {
        let done = outer(self.collect_some().await, Collected::default());
        if done.is_err() {
            // Perhaps no meta reaches the store: then no session could be renewed either.
            self.grant_grace();
        }
        done
    }

    async fn collect_some(&self) -> Result<Collected, Failed> {
        lock::release_ended(self).await?;
        trash::expire(self).await?;
        object::let_go(self).await?;
        object::sweep(self).await?;
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(ORPHANS_MAX) };
        let all = KeyRange::prefix(keys::ORPHANS);
        // Continues where the last round ended, so that many waiting orphans do not hide others.
        let range = self.uncollected.lock().take().unwrap_or(all);
        let page = self.store.begin().range(&range, options).await?;
        *self.uncollected.lock() = page.rest;
        if page.entries.is_empty() {
            return Ok(Collected::default());
        }
        let sessions = living(self).await?;
        let (mut new, mut old, mut done) = (Vec::new(), Vec::new(), Collected::default());
        for (key, bytes) in page.entries {
            let orphan: OrphanRecord = opened(&key, &bytes)?;
            let Some(ino) = keys::number(keys::ORPHANS, &key) else { continue };
            match orphan.waits_for {
                None => new.push(Ino(ino)),
                Some(ids) if ids.iter().any(|id| sessions.contains(id)) => done.waiting += 1,
                Some(_) => old.push(Ino(ino)),
            }
        }
        done.inodes += self.forget_all(&old).await?;
        (done.waiting, done.marked) = (done.waiting + new.len(), new.len());
        let mut rest = &new[..];
        while !rest.is_empty() {
            let marked = self.mark(&rest[..rest.len().min(MARKED_MAX)], &sessions).await?;
            rest = &rest[marked..];
        }
        Ok(done)
    }

    /// Writes the sessions that may have these open into the orphans, in one transaction. Returns
    /// how many orphans it handled.
    async fn mark(&self, orphans: &[Ino], sessions: &[u64]) -> Result<usize, Failed> {
        self.store
            .transact(|txn| async move {
                let names: Vec<Vec<u8>> = orphans.iter().map(|ino| keys::orphan(*ino)).collect();
                let wanted: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                let mut written = 0;
                for (n, (key, bytes)) in names.iter().zip(txn.get_many(&wanted).await?).enumerate()
                {
                    let Some(bytes) = bytes else { continue };
                    if written > ORPHAN_BYTES_MAX {
                        return Ok(n);
                    }
                    let orphan: OrphanRecord = opened(key, &bytes)?;
                    if orphan.waits_for.is_none() {
                        let waits_for = Some(sessions.to_vec());
                        let record = OrphanRecord { waits_for, ..orphan }.seal();
                        written += record.len();
                        txn.put(key, record)?;
                    }
                }
                Ok(orphans.len())
            })
            .await
    }

    /// Removes orphans and returns how many are gone. Most are files, and several go in one
    /// transaction: a client that replaces objects all day makes as many orphans, and one commit
    /// for each would not keep up.
    async fn forget_all(&self, orphans: &[Ino]) -> Result<usize, Failed> {
        let (mut files, mut gone) = (Vec::new(), 0);
        for ino in orphans {
            let key = keys::inode(*ino);
            let found = self.store.begin().get_snapshot(&key).await?;
            match found.map(|bytes| opened::<InodeRecord>(&key, &bytes)).transpose() {
                Ok(Some(record)) if record.attr.is_dir() || record.xattrs > 0 => {
                    gone += unless_stuck(*ino, self.forget_alone(*ino, record).await)?;
                }
                Ok(_) => files.push(*ino),
                Err(error) => gone += unless_stuck(*ino, Err(error))?,
            }
        }
        for some in files.chunks(FORGOTTEN_MAX) {
            if self.forget(some).await.is_ok() {
                gone += some.len();
                continue;
            }
            // Perhaps they are too much for one transaction.
            for one in some {
                gone += unless_stuck(*one, self.forget(&[*one]).await)?;
            }
        }
        Ok(gone)
    }

    /// Removes an orphan together with everything that may belong to a directory.
    async fn forget_alone(&self, ino: Ino, record: InodeRecord) -> Result<(), Failed> {
        if record.marks.objects {
            object::end_all(self, ino).await?;
            // Buckets lie in the root.
            if record.attr.parent == Ino::ROOT {
                object::forget_states(self, ino).await?;
            }
        }
        if record.quota == ino {
            quota::forget(self, ino).await?;
        }
        if usize::from(record.xattrs) > XATTRS_AT_ONCE {
            let remove =
                |txn| async move { xattr::remove_some(&View::new(txn, self.now()), ino).await };
            while self.store.transact(remove).await? {}
        }
        self.forget(&[ino]).await
    }

    /// Removes inodes, attributes, times and locks of orphans; their bytes become garbage.
    async fn forget(&self, orphans: &[Ino]) -> Result<(), Failed> {
        self.store
            .transact(|txn| async move {
                let view = View::new(txn, self.now());
                for ino in orphans {
                    forget_one(&view, *ino).await?;
                }
                Ok(())
            })
            .await
    }

    /// Lists some bytes with chunks that can be removed, from a data id on. The caller advances
    /// `from`, so that garbage that cannot be removed now does not hide the rest.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub async fn garbage(&self, from: u64, limit: usize) -> Result<Vec<Garbage>, VolumeError> {
        outer(self.some_garbage(from, limit).await, Vec::new())
    }

    async fn some_garbage(&self, from: u64, limit: usize) -> Result<Vec<Garbage>, Failed> {
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
        let range = KeyRange { start: keys::garbage(from), ..KeyRange::prefix(keys::GARBAGE) };
        let page = self.store.begin().range(&range, options).await?;
        let mut found = Vec::with_capacity(page.entries.len());
        for (key, bytes) in page.entries {
            let record = opened(&key, &bytes)?;
            let Some(data) = keys::number(keys::GARBAGE, &key) else { continue };
            found.push(Garbage { data, record });
        }
        Ok(found)
    }

    /// Forgets bytes after their chunks are removed.
    ///
    /// # Errors
    /// [`VolumeError`]; calling again is harmless.
    pub async fn forget_garbage(&self, data: &[u64]) -> Result<(), VolumeError> {
        for some in data.chunks(MARKED_MAX) {
            let done = self.store.transact(|txn| async move {
                for data in some {
                    txn.delete(&keys::garbage(*data))?;
                }
                Ok::<_, Failed>(())
            });
            outer(done.await, ())?;
        }
        Ok(())
    }
}
