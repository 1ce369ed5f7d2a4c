//! Changes of the namespace, for mounts that cache answers.
//!
//! A meta follows the store and keeps the last changes in memory, in short form: only inodes and
//! names. Mounts ask for the changes after a version. The version is the store's, so a mount may
//! continue at another meta; a mount that asks for changes no longer kept learns that there is a
//! gap.
//!
//! Every mount hears of every change of others: metas do not know the cache of a mount.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millpond_store::{ChangeBatch, KeyRange, StoreError, StoreErrorKind, Version};
use millpond_types::meta::{CHANGES_MAX, Changed, Ino, MetaNews, MetaWatch, WATCH_MS_MAX, keys};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::VolumeError;
use crate::volume::Volume;

/// Changes within this time go together: for a busy volume, each mount gets some hundred answers a
/// second, not one for each change.
const GATHER: Duration = Duration::from_millis(2);
/// Limit of kept changes: some ten MiB.
const KEPT_MAX: usize = 1 << 17;

/// The changes of one transaction.
#[derive(Debug)]
struct Batch {
    version: u64,
    by: u64,
    changes: Arc<[Changed]>,
}

#[derive(Debug)]
struct Kept {
    batches: VecDeque<Batch>,
    changes: usize,
    /// `batches` has every change after this version.
    base: u64,
    newest: u64,
}

/// The last changes of a volume.
#[derive(Debug)]
pub(crate) struct Feed {
    /// `None` while this meta does not follow the store.
    kept: Mutex<Option<Kept>>,
    /// The newest version with changes.
    wake: watch::Sender<u64>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { kept: Mutex::default(), wake: watch::Sender::new(0) }
    }
}

/// Decodes a batch of the store. Returns the session that made it, 0 for none, and its changes.
fn read(batch: &ChangeBatch) -> (u64, Vec<Changed>) {
    let (mut by, mut changes) = (0, Vec::new());
    for change in &batch.changes {
        let key = change.key.as_slice();
        if key == keys::BY {
            let session = change.value.as_deref().and_then(|value| value.try_into().ok());
            by = session.map_or(0, u64::from_be_bytes);
        } else if let Some((dir, name)) = keys::directory_and_name(key) {
            changes.push(Changed::Name(dir, name));
        } else if let Some(ino) =
            keys::number(keys::INODES, key).or_else(|| keys::number(keys::TIMES, key))
        {
            let inode = Changed::Inode(Ino(ino));
            if !changes.contains(&inode) {
                changes.push(inode);
            }
        }
    }
    (by, changes)
}

fn unfollowed() -> VolumeError {
    let text = "this meta does not follow the changes of its store at the moment";
    VolumeError::Store(StoreError::Unavailable(text.into()))
}

impl Feed {
    /// Starts again: no change up to this version is known.
    fn start(&self, version: Version) {
        let version = version.0;
        let batches = VecDeque::new();
        *self.kept.lock() = Some(Kept { batches, changes: 0, base: version, newest: version });
        self.wake.send_replace(version);
    }

    fn push(&self, batch: &ChangeBatch) {
        let (by, changes) = read(batch);
        let version = batch.version.0;
        let mut guard = self.kept.lock();
        let Some(kept) = guard.as_mut() else { return };
        kept.newest = version;
        if changes.is_empty() {
            return;
        }
        kept.changes += changes.len();
        kept.batches.push_back(Batch { version, by, changes: changes.into() });
        while kept.changes > KEPT_MAX {
            let Some(oldest) = kept.batches.pop_front() else { break };
            kept.changes -= oldest.changes.len();
            kept.base = oldest.version;
        }
        drop(guard);
        self.wake.send_replace(version);
    }

    /// Returns changes of others after `after`, as many as fit; `None` while this meta does not
    /// follow the store.
    fn since(&self, session: u64, after: u64) -> Option<MetaNews> {
        let guard = self.kept.lock();
        let kept = guard.as_ref()?;
        if after < kept.base || after == 0 {
            return Some(MetaNews { version: kept.newest, gap: true, changes: Vec::new() });
        }
        let mut news =
            MetaNews { version: after.max(kept.newest), gap: false, changes: Vec::new() };
        let from = kept.batches.partition_point(|batch| batch.version <= after);
        for batch in kept.batches.range(from..).filter(|batch| batch.by != session) {
            let room = CHANGES_MAX - news.changes.len();
            if batch.changes.len() > room {
                // A batch that is larger than any answer is reported as a gap.
                news.gap = news.changes.is_empty();
                news.version = if news.gap { kept.newest } else { batch.version - 1 };
                break;
            }
            news.changes.extend(batch.changes.iter().map(|change| (batch.version, change.clone())));
        }
        Some(news)
    }
}

/// Changes are followed until this is dropped.
struct Following<'f>(&'f Feed);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        *self.0.kept.lock() = None;
        self.0.wake.send_modify(|_| {});
    }
}

impl Volume {
    /// Follows the changes of the store for [`Self::news`], until the store fails; call it again
    /// then. One call at a time.
    ///
    /// # Errors
    /// [`VolumeError`]: the store.
    pub async fn follow(&self) -> Result<(), VolumeError> {
        let _following = Following(&self.feed);
        loop {
            let version = self.version().await?;
            self.feed.start(version);
            let range = KeyRange::prefix(keys::PREFIX);
            let failed = match self.store.watch(range, version).await {
                Ok(mut stream) => loop {
                    match stream.next().await {
                        Ok(batch) => self.feed.push(&batch),
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            if failed.kind() != StoreErrorKind::Compacted {
                return Err(VolumeError::Store(failed));
            }
        }
    }

    /// Returns a version of the store that includes every acknowledged change.
    async fn version(&self) -> Result<Version, VolumeError> {
        let newest = async {
            let txn = self.store.begin();
            txn.get_snapshot(keys::VOLUME).await?;
            txn.version().await
        };
        newest.await.map_err(|error: StoreError| VolumeError::Store(error))
    }

    /// Waits for changes by sessions other than the one that asks. Without any, the answer comes
    /// when the time is over, and only if the store answers, which shows that this meta is not cut
    /// off.
    ///
    /// # Errors
    /// [`VolumeError`]: the store.
    pub async fn news(&self, watch: &MetaWatch) -> Result<MetaNews, VolumeError> {
        let mut newest = self.feed.wake.subscribe();
        let mut after = watch.after;
        let changed = async {
            loop {
                newest.mark_unchanged();
                let news = self.feed.since(watch.session, after)?;
                if news.gap {
                    return Some(news);
                }
                if !news.changes.is_empty() {
                    tokio::time::sleep(GATHER).await;
                    return self.feed.since(watch.session, after);
                }
                newest.changed().await.ok()?;
                // The session's own changes need not be read again.
                after = after.max(news.version);
            }
        };
        let wait = Duration::from_millis(watch.wait_ms.min(WATCH_MS_MAX).into());
        if let Ok(news) = tokio::time::timeout(wait, changed).await {
            return news.ok_or_else(unfollowed);
        }
        self.version().await?;
        self.feed.since(watch.session, after).ok_or_else(unfollowed)
    }
}
