//! Buckets that are backed by slower object stores: their queues, and states of their keys (RFC
//! 0020).
//!
//! Every call is one request to a meta, unless stated otherwise, and blocks until it is answered.

use std::time::Duration;

use millpond_env::Rng;
use millpond_types::meta::object::{
    Backing, BackingOp, BackingReply, CLAIMS_MAX, Claimed, ETAG_BYTES_MAX, KeyState, LANE_LARGE,
    Object, ObjectOp, ObjectReply, Outcome, PAUSE_MS_MAX, Place, QueuePage, StatePage,
};

use super::Volume;
use super::objects::{bucket_name, checked_key, look_up_op, shown, whole};
use crate::error::ClientError;

/// The object and state of a key at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The object, if it exists.
    pub object: Option<Object>,
    /// The state of the key, if it has one: only in a backed bucket.
    pub state: Option<KeyState>,
}

/// Converts a pause or lease to milliseconds.
fn ms(time: Duration) -> Result<u32, ClientError> {
    let ms = u32::try_from(time.as_millis()).ok().filter(|ms| *ms <= PAUSE_MS_MAX);
    ms.ok_or_else(|| ClientError::argument("time", "is longer than a day"))
}

fn checked_outcome(outcome: &Outcome) -> Result<(), ClientError> {
    let (etag, pause) = match outcome {
        Outcome::Done { etag } => (etag.as_deref().unwrap_or_default(), 0),
        Outcome::Failed { pause_ms: pause, .. }
        | Outcome::Unknown { pause_ms: pause, .. }
        | Outcome::GoingOn { lease_ms: pause } => ("", *pause),
    };
    ms(Duration::from_millis(pause.into()))?;
    checked_etag(etag)
}

/// Rejects an `ETag` that would be cut.
pub(super) fn checked_etag(etag: &str) -> Result<(), ClientError> {
    if etag.len() > ETAG_BYTES_MAX {
        return Err(ClientError::argument("etag", "is longer than 200 bytes"));
    }
    Ok(())
}

impl Volume {
    fn backing_op(&self, path: &str, op: BackingOp) -> Result<BackingReply, ClientError> {
        match self.object_op(path, ObjectOp::Backing(op))? {
            ObjectReply::Backing(reply) => Ok(reply),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Sets or removes the backing of a bucket. Rules may change at any time, and apply to later
    /// writes. The previous backend keeps its objects; the states of keys are then forgotten.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `NotPermitted` unless the caller is root; `Busy` to
    /// remove the backing while keys are queued, or to change its place without removing it first;
    /// `InvalidArgument` for a backing that [`Backing::check`] rejects; and as for every call.
    pub fn set_backing(&self, bucket: &str, backing: Option<&Backing>) -> Result<(), ClientError> {
        let checked = backing.map_or(Ok(()), Backing::check);
        checked.map_err(|error| ClientError::argument("backing", error.to_string()))?;
        let (name, backing) = (bucket_name(bucket)?, backing.cloned());
        self.object_op(bucket, ObjectOp::Backing(BackingOp::Set { bucket: name, backing }))
            .map(drop)
    }

    /// Looks up an object, with its bytes if `with_bytes` and they are in the store, and the state
    /// of its key, all at one moment.
    ///
    /// # Errors
    /// As [`Volume::get_object`].
    pub fn look_up(
        &self,
        bucket: &str,
        key: &[u8],
        with_bytes: bool,
    ) -> Result<Found, ClientError> {
        let (path, op) = look_up_op(bucket, key, with_bytes)?;
        self.found(self.object_op(&path, op)?)
    }

    pub(super) fn found(&self, reply: ObjectReply) -> Result<Found, ClientError> {
        match reply {
            ObjectReply::Object { object, state } => Ok(Found { object: object.map(whole), state }),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Claims due keys of a lane (0 or 1) in queue order, at most `limit` (1 to 64) and possibly
    /// fewer; none when none is due. No other caller gets them during the lease. Sends a second
    /// request only if a key is due.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `NotSupported` without a backing, `Access`;
    /// `InvalidArgument` for a lane, a limit or a lease (over a day) out of range; and as for every
    /// call.
    pub fn claim(
        &self,
        bucket: &str,
        lane: u8,
        limit: u32,
        lease: Duration,
    ) -> Result<Vec<Claimed>, ClientError> {
        if lane > LANE_LARGE || limit == 0 || limit > CLAIMS_MAX {
            return Err(ClientError::argument(
                "claim",
                "the lane must be 0 or 1, and the limit 1 to 64",
            ));
        }
        let lease_ms = ms(lease)?;
        let page = self.queue_page(bucket, lane, None, 1)?;
        // Reading the queue changes nothing, while every claim is a stored change.
        if page.entries.first().is_none_or(|first| first.place.due_ms > page.now_ms) {
            return Ok(Vec::new());
        }
        let mut id = [0; 8];
        let random = |source| ClientError::Connect { address: self.metas().client.name(), source };
        Rng::fill_from_os(&mut id).map_err(random)?;
        let (name, put_ids_from) = (bucket_name(bucket)?, u64::from_le_bytes(id));
        let op = BackingOp::Claim { bucket: name, lane, limit, lease_ms, put_ids_from };
        match self.backing_op(bucket, op)? {
            BackingReply::Claims(claims) => Ok(claims),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Reports the outcome of an attempt; returns the state afterwards.
    ///
    /// # Errors
    /// `File`: `Stale` when that attempt is no longer the key's, `Invalid` for an outcome that does
    /// not fit the attempt; `InvalidArgument` for a pause over a day; and as for every call.
    pub fn settle(
        &self,
        bucket: &str,
        key: &[u8],
        put_id: u64,
        outcome: &Outcome,
    ) -> Result<KeyState, ClientError> {
        checked_outcome(outcome)?;
        let (path, key) = (shown(bucket, key), checked_key(key)?);
        let (bucket, outcome) = (bucket_name(bucket)?, outcome.clone());
        match self.backing_op(&path, BackingOp::Settle { bucket, key, put_id, outcome })? {
            BackingReply::Settled(state) => Ok(state),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Removes the file of a clean key, if its state is still this one, and the file is still that
    /// of the state. Returns whether it was done.
    ///
    /// # Errors
    /// As [`Volume::get_object`].
    pub fn evict(&self, bucket: &str, key: &[u8], seq: u64) -> Result<bool, ClientError> {
        let (path, key) = (shown(bucket, key), checked_key(key)?);
        let op = BackingOp::Evict { bucket: bucket_name(bucket)?, key, seq };
        match self.backing_op(&path, op)? {
            BackingReply::Is(done) => Ok(done),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Updates the state of a key after changes by mounts: a file other than that of the state
    /// becomes dirty, and a key without its file becomes a tombstone. Returns the state afterwards.
    ///
    /// # Errors
    /// As [`Volume::get_object`].
    pub fn adopt(&self, bucket: &str, key: &[u8]) -> Result<Option<KeyState>, ClientError> {
        let (path, key) = (shown(bucket, key), checked_key(key)?);
        let op = BackingOp::Adopt { bucket: bucket_name(bucket)?, key };
        match self.backing_op(&path, op)? {
            BackingReply::State(state) => Ok(state),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Makes a waiting key due now. A key with an attempt of unknown outcome still waits. Returns
    /// whether anything was changed.
    ///
    /// # Errors
    /// As [`Volume::get_object`].
    pub fn hasten(&self, bucket: &str, key: &[u8]) -> Result<bool, ClientError> {
        let (path, key) = (shown(bucket, key), checked_key(key)?);
        let op = BackingOp::Hasten { bucket: bucket_name(bucket)?, key };
        match self.backing_op(&path, op)? {
            BackingReply::Is(done) => Ok(done),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// A page of the queue after a place, in its order, 1,000 entries at most.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `Access`; and as for every call.
    pub fn queue_page(
        &self,
        bucket: &str,
        lane: u8,
        after: Option<Place>,
        limit: u32,
    ) -> Result<QueuePage, ClientError> {
        let op = BackingOp::ListQueue { bucket: bucket_name(bucket)?, lane, after, limit };
        match self.backing_op(bucket, op)? {
            BackingReply::Queue(page) => Ok(page),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// A page of the states of keys with a prefix, after a key, in the order of keys, 1,000 at
    /// most.
    ///
    /// # Errors
    /// As [`Volume::queue_page`]; `InvalidArgument` for a prefix or key that is too long.
    pub fn states_page(
        &self,
        bucket: &str,
        prefix: &[u8],
        after: &[u8],
        limit: u32,
    ) -> Result<StatePage, ClientError> {
        let max = millpond_types::meta::object::OBJECT_KEY_MAX;
        if prefix.len() > max || after.len() > max {
            return Err(ClientError::argument("states", "is longer than a key"));
        }
        let (name, prefix, after) = (bucket_name(bucket)?, prefix.to_vec(), after.to_vec());
        let op = BackingOp::ListStates { bucket: name, prefix, after, limit };
        match self.backing_op(bucket, op)? {
            BackingReply::States(page) => Ok(page),
            _ => Err(self.metas().unexpected()),
        }
    }
}
