//! Buckets with a slower object store as backend (RFC 0020): states of keys, and the queue of keys
//! to persist.
//!
//! Invariants: a state with a place in the queue has an entry there, and every entry, except those
//! of transient objects, has such a state. Both are written in one transaction, which reads the
//! state. So two transactions that claim or change a key conflict, and no range of the queue needs
//! to be read with a conflict.
//!
//! Reading order: the backend of a bucket (this file); `slot` (the state of a key, and its entry),
//! `write` (their changes by a put, a fill or a removal), `claim` and `settle` (the persister's),
//! `cached` (eviction, and changes by mounts), `bucket`, `list`, `sweep` (periodic work of metas).

mod bucket;
mod cached;
mod claim;
mod list;
mod settle;
mod slot;
mod sweep;
mod write;

use millpond_types::meta::object::{Backing, BackingOp, BackingReply, KeyState, Rule};
use millpond_types::meta::{Caller, Ino, InodeRecord, MetaError, Timestamp, keys};

use crate::error::Failed;
use crate::view::{View, opened};
use crate::volume::Volume;

pub(crate) use bucket::forget_states;
pub(super) use bucket::{forget_leftovers, must_be_idle};
pub(super) use sweep::stray;
pub(crate) use sweep::sweep;
pub(super) use write::{Change, changed, filled, is_elsewhere, may_fill};

/// A backed bucket.
#[derive(Debug)]
pub(super) struct Backed {
    pub(super) ino: Ino,
    pub(super) backing: Backing,
}

impl Backed {
    fn rule_of(&self, key: &[u8]) -> Rule {
        self.backing.rule_of(key)
    }
}

/// Reads the backend of a bucket for a change: it does not change until the commit.
pub(super) async fn of(view: &View, bucket: &InodeRecord) -> Result<Option<Backed>, Failed> {
    if !bucket.marks.backed {
        return Ok(None);
    }
    let ino = bucket.attr.ino;
    let found: Option<Backing> = view.read(&keys::backing(ino)).await?;
    Ok(found.map(|backing| Backed { ino, backing }))
}

/// As [`of`], for a bucket that must have a backend.
async fn must_be(view: &View, bucket: &InodeRecord) -> Result<Backed, Failed> {
    of(view, bucket).await?.ok_or(Failed::Refused(MetaError::NotSupported))
}

/// Reads the backend of a bucket; without a conflict.
pub(super) async fn told(view: &View, bucket: &InodeRecord) -> Result<Option<Backing>, Failed> {
    if !bucket.marks.backed {
        return Ok(None);
    }
    let key = keys::backing(bucket.attr.ino);
    let found = view.txn.get_snapshot(&key).await?;
    found.map(|bytes| opened(&key, &bytes)).transpose()
}

/// Reads the state of a key; without a conflict.
pub(super) async fn state(
    view: &View,
    bucket: &InodeRecord,
    key: &[u8],
) -> Result<Option<KeyState>, Failed> {
    if !bucket.marks.backed {
        return Ok(None);
    }
    let key = keys::state(bucket.attr.ino, key);
    let found = view.txn.get_snapshot(&key).await?;
    found.map(|bytes| opened(&key, &bytes)).transpose()
}

/// Milliseconds since 1970.
fn ms(time: Timestamp) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or(0);
    secs.saturating_mul(1000).saturating_add(u64::from(time.nanos / 1_000_000))
}

/// Executes an operation that changes something.
pub(super) async fn change(
    view: &View,
    volume: &Volume,
    caller: &Caller,
    op: &BackingOp,
) -> Result<BackingReply, Failed> {
    match op {
        BackingOp::Set { bucket, backing } => {
            bucket::set(view, caller, (bucket, backing.as_ref())).await?;
            Ok(BackingReply::Is(true))
        }
        BackingOp::Claim { bucket, lane, limit, lease_ms, put_ids_from } => {
            let wanted = claim::Wanted {
                lane: *lane,
                limit: *limit,
                lease_ms: *lease_ms,
                put_ids_from: *put_ids_from,
            };
            claim::claim(view, volume, (caller, bucket), wanted).await
        }
        BackingOp::Settle { bucket, key, put_id, outcome } => {
            settle::settle(view, caller, (bucket, key), (*put_id, outcome)).await
        }
        BackingOp::Evict { bucket, key, seq } => {
            cached::evict(view, volume, caller, (bucket, key), *seq).await.map(BackingReply::Is)
        }
        BackingOp::Adopt { bucket, key } => {
            let state = cached::adopt(view, volume, caller, (bucket, key)).await?;
            Ok(BackingReply::State(state))
        }
        BackingOp::Hasten { bucket, key } => {
            settle::hasten(view, caller, (bucket, key)).await.map(BackingReply::Is)
        }
        BackingOp::ListQueue { .. } | BackingOp::ListStates { .. } => {
            Err(MetaError::NotSupported.into())
        }
    }
}

/// Executes an operation that only reads.
pub(super) async fn look(
    view: &View,
    caller: &Caller,
    op: &BackingOp,
) -> Result<BackingReply, Failed> {
    match op {
        BackingOp::ListQueue { bucket, lane, after, limit } => {
            list::queue(view, (caller, bucket), (*lane, *after), *limit).await
        }
        BackingOp::ListStates { bucket, prefix, after, limit } => {
            list::states(view, (caller, bucket), (prefix, after), *limit).await
        }
        _ => Err(MetaError::NotSupported.into()),
    }
}
