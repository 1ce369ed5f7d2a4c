//! Requests of a gateway and its persister to a meta.

use super::super::super::Name;
use super::super::super::request::flag;
use super::super::record::key;
use super::state::lane;
use super::{Backing, ERROR_BYTES_MAX, ETAG_BYTES_MAX, Place, read_text, write_option, write_text};
use crate::wire::{Reader, WireError, Writer};

/// Most keys that one claim takes; a meta may take fewer.
pub const CLAIMS_MAX: u32 = 64;
/// Longest pause and lease in milliseconds: a day.
pub const PAUSE_MS_MAX: u32 = 86_400_000;

/// Origin of the bytes of an object that is filled from the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The `ETag` on the backend, at most [`ETAG_BYTES_MAX`] bytes.
    pub etag: String,
    /// The state seen before the backend was read: its [`seq`](super::KeyState::seq), or none.
    pub seen: Option<u64>,
}

/// Outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The backend was changed.
    Done {
        /// `ETag` that the backend has now; none when it has no object.
        etag: Option<String>,
    },
    /// The attempt failed for good: the backend was not changed, and will not be.
    Failed {
        /// The reason, for operators; cut at [`ERROR_BYTES_MAX`] bytes.
        error: String,
        /// Pause before the next attempt, in milliseconds.
        pause_ms: u32,
    },
    /// The backend may have been changed, or may still be changed.
    Unknown {
        /// The reason, for operators; cut at [`ERROR_BYTES_MAX`] bytes.
        error: String,
        /// Pause before the outcome is looked up, in milliseconds.
        pause_ms: u32,
    },
    /// The attempt is still in progress.
    GoingOn {
        /// New lease in milliseconds from now: no other gateway takes the key in this time.
        lease_ms: u32,
    },
}

/// Operations on backed buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingOp {
    /// Sets or removes the backing of a bucket.
    Set {
        /// The bucket.
        bucket: Name,
        /// The backing; none removes it.
        backing: Option<Backing>,
    },
    /// Claims keys that are due.
    Claim {
        /// The bucket.
        bucket: Name,
        /// The lane: 0 or 1.
        lane: u8,
        /// Most keys to claim, 1 to [`CLAIMS_MAX`].
        limit: u32,
        /// Lease in milliseconds, at most [`PAUSE_MS_MAX`]: no other gateway takes the keys in this
        /// time.
        lease_ms: u32,
        /// Put id of the first attempt that begins; the next numbers are those of the others.
        put_ids_from: u64,
    },
    /// Reports the outcome of an attempt.
    Settle {
        /// The bucket.
        bucket: Name,
        /// The key.
        key: Vec<u8>,
        /// Put id of the attempt.
        put_id: u64,
        /// Its outcome.
        outcome: Outcome,
    },
    /// Evicts the file of a clean key. Where others also write on the backend, it may instead
    /// record that the backend no longer has the evicted object.
    Evict {
        /// The bucket.
        bucket: Name,
        /// The key.
        key: Vec<u8>,
        /// Sequence number of the state that the caller saw.
        seq: u64,
    },
    /// Sets the state of a key to the file that mounts have made of it.
    Adopt {
        /// The bucket.
        bucket: Name,
        /// The key.
        key: Vec<u8>,
    },
    /// Makes a waiting key due now.
    Hasten {
        /// The bucket.
        bucket: Name,
        /// The key.
        key: Vec<u8>,
    },
    /// Lists a page of a queue, in its order.
    ListQueue {
        /// The bucket.
        bucket: Name,
        /// The lane.
        lane: u8,
        /// Lists only entries after this place.
        after: Option<Place>,
        /// Most entries to return.
        limit: u32,
    },
    /// Lists a page of states, in the order of keys.
    ListStates {
        /// The bucket.
        bucket: Name,
        /// Prefix of the keys.
        prefix: Vec<u8>,
        /// Lists only keys after this one; empty for the beginning.
        after: Vec<u8>,
        /// Most states to return.
        limit: u32,
    },
}

impl Origin {
    pub(in super::super) fn encode(&self, w: &mut Writer) {
        write_text(w, &self.etag, ETAG_BYTES_MAX);
        write_option(w, self.seen.as_ref(), |w, seq| w.u64(*seq));
    }

    pub(in super::super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let etag = read_text(r, ETAG_BYTES_MAX, "ETag")?;
        Ok(Self { etag, seen: flag(r, "a state was seen")?.then(|| r.u64()).transpose()? })
    }
}

fn pause(r: &mut Reader<'_>) -> Result<u32, WireError> {
    let pause = r.u32()?;
    if pause > PAUSE_MS_MAX { Err(WireError::Field("pause (at most a day)")) } else { Ok(pause) }
}

impl Outcome {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Done { etag } => {
                w.u8(0);
                write_option(w, etag.as_ref(), |w, etag| write_text(w, etag, ETAG_BYTES_MAX));
            }
            Self::Failed { error, pause_ms } | Self::Unknown { error, pause_ms } => {
                w.u8(if matches!(self, Self::Failed { .. }) { 1 } else { 2 });
                write_text(w, error, ERROR_BYTES_MAX);
                w.u32(*pause_ms);
            }
            Self::GoingOn { lease_ms } => {
                w.u8(3);
                w.u32(*lease_ms);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let error = |r: &mut Reader<'_>| read_text(r, ERROR_BYTES_MAX, "error of an attempt");
        Ok(match r.u8()? {
            0 => {
                let is_there = flag(r, "an object")?;
                let etag = is_there.then(|| read_text(r, ETAG_BYTES_MAX, "ETag"));
                Self::Done { etag: etag.transpose()? }
            }
            1 => Self::Failed { error: error(r)?, pause_ms: pause(r)? },
            2 => Self::Unknown { error: error(r)?, pause_ms: pause(r)? },
            3 => Self::GoingOn { lease_ms: pause(r)? },
            _ => return Err(WireError::Field("outcome of an attempt")),
        })
    }
}

impl BackingOp {
    /// The operation's name in logs and metrics.
    pub(in super::super) const fn name(&self) -> &'static str {
        match self {
            Self::Set { .. } => "set_backing",
            Self::Claim { .. } => "claim",
            Self::Settle { .. } => "settle",
            Self::Evict { .. } => "evict",
            Self::Adopt { .. } => "adopt",
            Self::Hasten { .. } => "hasten",
            Self::ListQueue { .. } => "list_queue",
            Self::ListStates { .. } => "list_states",
        }
    }

    /// Whether the operation changes anything.
    pub(in super::super) const fn changes(&self) -> bool {
        !matches!(self, Self::ListQueue { .. } | Self::ListStates { .. })
    }

    pub(in super::super) fn encode(&self, w: &mut Writer) {
        match self {
            Self::Set { bucket, backing } => {
                w.u8(0);
                bucket.encode(w);
                write_option(w, backing.as_ref(), |w, backing| backing.encode(w));
            }
            Self::Claim { bucket, lane, limit, lease_ms, put_ids_from } => {
                w.u8(1);
                bucket.encode(w);
                w.u8(*lane);
                w.u32(*limit);
                w.u32(*lease_ms);
                w.u64(*put_ids_from);
            }
            Self::Settle { bucket, key, put_id, outcome } => {
                w.u8(2);
                bucket.encode(w);
                w.bytes16(key);
                w.u64(*put_id);
                outcome.encode(w);
            }
            Self::Evict { bucket, key, seq } => {
                w.u8(3);
                bucket.encode(w);
                w.bytes16(key);
                w.u64(*seq);
            }
            Self::Adopt { bucket, key } | Self::Hasten { bucket, key } => {
                w.u8(if matches!(self, Self::Adopt { .. }) { 4 } else { 5 });
                bucket.encode(w);
                w.bytes16(key);
            }
            Self::ListQueue { bucket, lane, after, limit } => {
                w.u8(6);
                bucket.encode(w);
                w.u8(*lane);
                write_option(w, after.as_ref(), |w, place| place.encode(w));
                w.u32(*limit);
            }
            Self::ListStates { bucket, prefix, after, limit } => {
                w.u8(7);
                bucket.encode(w);
                w.bytes16(prefix);
                w.bytes16(after);
                w.u32(*limit);
            }
        }
    }

    pub(in super::super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (code, bucket) = (r.u8()?, Name::decode(r)?);
        Ok(match code {
            0 => {
                let is_backed = flag(r, "a backing")?;
                let backing = is_backed.then(|| Backing::decode(r)).transpose()?;
                Self::Set { bucket, backing }
            }
            1 => {
                let (lane, limit, lease_ms) = (lane(r)?, r.u32()?, pause(r)?);
                if limit == 0 || limit > CLAIMS_MAX {
                    return Err(WireError::Field("number of claimed keys (1 to 64)"));
                }
                Self::Claim { bucket, lane, limit, lease_ms, put_ids_from: r.u64()? }
            }
            2 => {
                let (key, put_id) = (key(r)?, r.u64()?);
                Self::Settle { bucket, key, put_id, outcome: Outcome::decode(r)? }
            }
            3 => Self::Evict { bucket, key: key(r)?, seq: r.u64()? },
            4 => Self::Adopt { bucket, key: key(r)? },
            5 => Self::Hasten { bucket, key: key(r)? },
            6 => {
                let lane = lane(r)?;
                let after = flag(r, "after a place")?.then(|| Place::decode(r)).transpose()?;
                Self::ListQueue { bucket, lane, after, limit: r.u32()? }
            }
            7 => {
                let (prefix, after) = (key(r)?, key(r)?);
                Self::ListStates { bucket, prefix, after, limit: r.u32()? }
            }
            _ => return Err(WireError::Field("operation on a backed bucket")),
        })
    }
}
