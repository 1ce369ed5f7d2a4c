//! Quotas of directories.
//!
//! An inode records the directory with the quota that it counts for: the nearest one above it. It
//! inherits this from its parent when it is made. So a directory gets a quota only while it is
//! empty, and an inode that has two names, or entries below it, does not move from one quota to
//! another.
//!
//! The usage of a quota is kept in parts, each for the inodes of some hashes, so that changes of
//! different files hardly ever conflict. A limit is compared with the sum of the parts without a
//! conflict: concurrent operations can together exceed it by the amounts that they add, and the
//! next one is refused. The sum itself is exact.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Caller, Ino, InodeRecord, MetaError, MetaReply, Quota, QuotaLimits, QuotaRecord, USAGE_SHARDS,
    Usage, UsageRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::view::{View, opened};
use crate::volume::Volume;

/// The quota of an inode without one.
pub(crate) const NONE: Ino = Ino(0);

/// A change of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) bytes: i64,
    pub(crate) inodes: i64,
}

impl Charge {
    /// The charge of an inode, with all its bytes.
    pub(crate) fn of(record: &InodeRecord) -> Self {
        Self { bytes: signed(record.attr.size), inodes: 1 }
    }

    pub(crate) const fn back(self) -> Self {
        Self { bytes: -self.bytes, inodes: -self.inodes }
    }

    /// Whether it adds to a limited amount.
    const fn may_break(self, limits: &QuotaLimits) -> bool {
        self.bytes > 0 && limits.bytes > 0 || self.inodes > 0 && limits.inodes > 0
    }

    /// Whether it exceeds a limit by its addition; `sum` is the usage including it.
    fn breaks(self, limits: &QuotaLimits, sum: &UsageRecord) -> bool {
        let over = |adds: i64, sum: u64, limit: u64| adds > 0 && limit > 0 && sum > limit;
        over(self.bytes, sum.bytes, limits.bytes) || over(self.inodes, sum.inodes, limits.inodes)
    }

    /// The charge of a new length of the same inode.
    pub(crate) fn resize(old: u64, new: u64) -> Self {
        Self { bytes: signed(new) - signed(old), inodes: 0 }
    }
}

/// Converts a length; lengths are below 2^48.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Whether an inode is a directory with a quota.
fn is_root(record: &InodeRecord) -> bool {
    record.quota == record.attr.ino
}

/// Checks that an inode may get a name in `dir`.
///
/// # Errors
/// `CrossDevice` when another quota applies there, and other names of the inode or entries in it
/// would stay behind.
pub(crate) fn may_move(record: &InodeRecord, dir: &InodeRecord) -> Result<(), MetaError> {
    let stays = record.quota == dir.quota || is_root(record);
    let moves = !record.attr.is_dir() && record.attr.nlink == 1;
    if stays || moves { Ok(()) } else { Err(MetaError::CrossDevice) }
}

/// Charges an inode to the quota of the directory that it moves to.
pub(crate) async fn moved(
    view: &View,
    record: &mut InodeRecord,
    dir: &InodeRecord,
) -> Result<(), Failed> {
    if record.quota == dir.quota || is_root(record) {
        return Ok(());
    }
    let (ino, charge) = (record.attr.ino, Charge::of(record));
    view.charge(record.quota, ino, charge.back()).await?;
    view.charge(dir.quota, ino, charge).await?;
    record.quota = dir.quota;
    Ok(())
}

impl View {
    /// Charges a change of inode `ino` to a quota.
    ///
    /// # Errors
    /// `Quota` when it exceeds the limits.
    pub(crate) async fn charge(&self, root: Ino, ino: Ino, charge: Charge) -> Result<(), Failed> {
        if root == NONE || charge == Charge::default() {
            return Ok(());
        }
        let key = keys::usage(root, ino);
        let old: UsageRecord = self.read(&key).await?.unwrap_or_default();
        let new = UsageRecord {
            bytes: old.bytes.saturating_add_signed(charge.bytes),
            inodes: old.inodes.saturating_add_signed(charge.inodes),
            version: old.version + 1,
        };
        self.txn.put(&key, new.seal())?;
        let quota = keys::quota(root);
        let is_empty = new.bytes == 0 && new.inodes == 0;
        let found = if is_empty {
            // Read with a conflict: a transaction that forgets the quota at the same time either
            // leaves this part or removes it.
            self.txn.get(&quota).await?
        } else {
            self.txn.get_snapshot(&quota).await?
        };
        let Some(found) = found else {
            // The directory is gone, and its orphans follow.
            if is_empty {
                self.txn.delete(&key)?;
            }
            return Ok(());
        };
        let limits = opened::<QuotaRecord>(&quota, &found)?.limits;
        if charge.may_break(&limits) && charge.breaks(&limits, &self.quota_usage(root).await?) {
            return Err(MetaError::Quota.into());
        }
        Ok(())
    }

    /// Whether a charge fits into a quota. Counts nothing.
    pub(crate) async fn has_room(&self, root: Ino, charge: Charge) -> Result<bool, Failed> {
        if root == NONE {
            return Ok(true);
        }
        let quota = keys::quota(root);
        let Some(found) = self.txn.get_snapshot(&quota).await? else { return Ok(true) };
        let limits = opened::<QuotaRecord>(&quota, &found)?.limits;
        if !charge.may_break(&limits) {
            return Ok(true);
        }
        let mut sum = self.quota_usage(root).await?;
        sum.bytes = sum.bytes.saturating_add_signed(charge.bytes);
        sum.inodes = sum.inodes.saturating_add_signed(charge.inodes);
        Ok(!charge.breaks(&limits, &sum))
    }

    /// Returns the usage of a quota, including this transaction's changes.
    async fn quota_usage(&self, root: Ino) -> Result<UsageRecord, Failed> {
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(USAGE_SHARDS.into()) };
        let all = KeyRange::prefix(&keys::usages(root));
        let mut sum = UsageRecord::default();
        for (key, bytes) in self.txn.range_all(&all, options).await? {
            let part: UsageRecord = opened(&key, &bytes)?;
            sum.bytes = sum.bytes.saturating_add(part.bytes);
            sum.inodes = sum.inodes.saturating_add(part.inodes);
        }
        Ok(sum)
    }

    /// Returns the quota that an inode counts for.
    async fn quota(&self, ino: Ino) -> Result<Option<Quota>, Failed> {
        let root = self.inode(ino).await?.quota;
        if root == NONE {
            return Ok(None);
        }
        let record: Option<QuotaRecord> = self.read(&keys::quota(root)).await?;
        let limits = record.unwrap_or_default().limits;
        let UsageRecord { bytes, inodes, .. } = self.quota_usage(root).await?;
        Ok(Some(Quota { root, limits, bytes, inodes }))
    }
}

/// Sets the limits of a directory; an empty one without a quota gets one.
pub(crate) async fn set(
    view: &View,
    caller: &Caller,
    (dir, limits): (Ino, QuotaLimits),
) -> Result<MetaReply, Failed> {
    if caller.uid != 0 {
        return Err(MetaError::NotPermitted.into());
    }
    let mut record = view.dir(dir).await?;
    view.txn.put(&keys::quota(dir), QuotaRecord { limits }.seal())?;
    if is_root(&record) {
        return Ok(MetaReply::Done);
    }
    view.must_be_empty(dir).await?;
    let charge = Charge::of(&record);
    view.charge(record.quota, dir, charge.back()).await?;
    record.quota = dir;
    view.charge(dir, dir, charge).await?;
    record.attr.ctime = view.now;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Done)
}

/// Returns the quota that an inode counts for; `NoData` when there is none.
pub(crate) async fn get(view: &View, ino: Ino) -> Result<MetaReply, Failed> {
    let found = view.quota(ino).await?;
    found.map(MetaReply::Quota).ok_or(Failed::Refused(MetaError::NoData))
}

/// Returns the result of `statfs` at a directory, for a volume with usage `volume`.
pub(crate) async fn usage(view: &View, dir: Ino, volume: Usage) -> Result<MetaReply, Failed> {
    let Some(quota) = view.quota(dir).await? else { return Ok(MetaReply::Usage(volume)) };
    let mut usage = Usage { inodes: quota.inodes, ..volume };
    if quota.limits.bytes > 0 {
        usage.bytes = quota.limits.bytes.min(volume.bytes);
        usage.bytes_free = usage.bytes.saturating_sub(quota.bytes).min(volume.bytes_free);
    }
    Ok(MetaReply::Usage(usage))
}

/// Forgets the quota of a directory that is gone; parts of orphans that still count for it go with
/// them.
pub(crate) async fn forget(volume: &Volume, root: Ino) -> Result<(), Failed> {
    volume
        .store
        .transact(|txn| async move {
            txn.delete(&keys::quota(root))?;
            // Read with conflicts: a part that becomes zero later is removed then, one that is zero
            // now must be removed here.
            let all = KeyRange::prefix(&keys::usages(root));
            for (key, bytes) in txn.range_all(&all, RangeOptions::default()).await? {
                let part: UsageRecord = opened(&key, &bytes)?;
                if part.bytes == 0 && part.inodes == 0 {
                    txn.delete(&key)?;
                }
            }
            Ok(())
        })
        .await
}
