//! Claims keys that are due.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{
    BackingReply, Claimed, KeyState, LANE_LARGE, Object, Place, QueueRecord, Under,
    Wanted as WantedThere,
};
use millpond_types::meta::{Caller, MetaError, Name, keys};

use super::super::way::{self, Step};
use super::cached::followed;
use super::slot::{Slot, lane_of};
use super::{Backed, ms, must_be};
use crate::error::Failed;
use crate::permit;
use crate::view::{View, opened};
use crate::volume::Volume;

/// Keys in one transaction: each writes its state and an entry, and deletes one, which counts as
/// two writes.
const TAKEN_MAX: usize = 28;
/// Bytes of attachments after which an answer ends, because answers are stored.
const ANSWER_BYTES: usize = 256 << 10;

/// Parameters of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) lane: u8,
    pub(super) limit: u32,
    pub(super) lease_ms: u32,
    pub(super) put_ids_from: u64,
}

/// Claims the first keys of a lane that are due.
pub(super) async fn claim(
    view: &View,
    volume: &Volume,
    (caller, name): (&Caller, &Name),
    wanted: Wanted,
) -> Result<BackingReply, Failed> {
    let record = way::bucket(view, name).await?;
    permit::access(caller, &record.attr, permit::WRITE)?;
    let backed = must_be(view, &record).await?;
    if wanted.lane > LANE_LARGE {
        return Err(MetaError::Invalid.into());
    }
    let mut range = KeyRange::prefix(&keys::lane(backed.ino, wanted.lane));
    let due_ms = ms(view.now).saturating_add(1);
    range.end = keys::queued(backed.ino, Place { lane: wanted.lane, due_ms, n: 0 });
    let limit = (wanted.limit as usize).clamp(1, TAKEN_MAX);
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
    let page = view.txn.range(&range, options).await?;
    let (mut claims, mut bytes) = (Vec::new(), 0);
    for (at, entry) in page.entries {
        if bytes > ANSWER_BYTES {
            break;
        }
        let entry: QueueRecord = opened(&at, &entry)?;
        let put_id = wanted.put_ids_from.wrapping_add(claims.len() as u64);
        let step = Step { name: name.clone(), record: record.clone() };
        let Some((_, place)) = keys::split_queued(&at) else { continue };
        let slot = Slot::read(view, backed.ino, &entry.key).await?;
        if slot.was.as_ref().and_then(|was| was.place) != Some(place) {
            // The entry is stale.
            view.txn.delete(&at)?;
            continue;
        }
        let of = (&backed, &slot);
        let claimed =
            take(view, volume, (caller, step, &entry.key), of, (put_id, wanted.lease_ms)).await?;
        let attached = claimed.object.as_ref().and_then(|object| object.attachment.as_ref());
        bytes += attached.map_or(0, |attached| attached.bytes.len());
        claims.push(claimed);
    }
    Ok(BackingReply::Claims(claims))
}

async fn take(
    view: &View,
    volume: &Volume,
    (caller, bucket, key): (&Caller, Step, &[u8]),
    (backed, slot): (&Backed, &Slot<'_>),
    (put_id, lease_ms): (u64, u32),
) -> Result<Claimed, Failed> {
    let way = way::walk_from(view, caller, bucket, key).await?;
    let there: Option<Object> = way::object(view, caller, &way, false).await?;
    // The claim covers the object that exists now, including changes by mounts since.
    let attr = there.as_ref().map(|there| &there.attr);
    let mut state = slot.was.clone().ok_or(MetaError::Io)?;
    if let Some(followed) = followed(view, volume, (backed, key), (Some(&state), attr)).await? {
        state = followed;
    }
    let is_fresh = state.under.is_none();
    if is_fresh {
        state.under = Some(Under { seq: state.seq, put_id, since: view.now });
    }
    later(view, &mut state, lease_ms);
    slot.put(view, &state)?;
    let is_file = matches!(state.wanted, WantedThere::File { .. });
    Ok(Claimed { key: key.to_vec(), state, object: there.filter(|_| is_file), is_fresh })
}

/// Makes a key due `pause` milliseconds from now.
pub(super) fn later(view: &View, state: &mut KeyState, pause: u32) {
    let due_ms = ms(view.now).saturating_add(pause.into());
    let n = state.place.map_or(state.seq, |place| place.n);
    let lane = lane_of(state.wanted);
    state.place = Some(Place { lane, due_ms, n });
}
