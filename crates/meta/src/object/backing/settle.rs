//! Outcomes of attempts.

use millpond_types::meta::object::{
    BackingReply, FORGET_MS, KeyState, LANE_SWEEP, Outcome, Place, Remote, Under, Wanted,
};
use millpond_types::meta::{Caller, InodeRecord, MetaError, Name};

use super::super::way;
use super::claim::later;
use super::slot::Slot;
use super::{Backed, ms, must_be};
use crate::error::Failed;
use crate::permit;
use crate::view::View;

async fn backed(view: &View, caller: &Caller, name: &Name) -> Result<Backed, Failed> {
    let record: InodeRecord = way::bucket(view, name).await?;
    permit::access(caller, &record.attr, permit::WRITE)?;
    must_be(view, &record).await
}

/// Records the outcome of an attempt.
pub(super) async fn settle(
    view: &View,
    caller: &Caller,
    (name, key): (&Name, &[u8]),
    (put_id, outcome): (u64, &Outcome),
) -> Result<BackingReply, Failed> {
    let backed = backed(view, caller, name).await?;
    let slot = Slot::read(view, backed.ino, key).await?;
    let is_of = |state: &KeyState| state.under.is_some_and(|under| under.put_id == put_id);
    let mut state = slot.was.clone().filter(is_of).ok_or(MetaError::Stale)?;
    let under = state.under.ok_or(MetaError::Stale)?;
    match outcome {
        Outcome::Done { etag } => done(view, &mut state, (under, etag.as_deref()))?,
        Outcome::Failed { error, pause_ms } => {
            state.under = None;
            not_done(view, &mut state, (error, *pause_ms));
        }
        Outcome::Unknown { error, pause_ms } => not_done(view, &mut state, (error, *pause_ms)),
        Outcome::GoingOn { lease_ms } => {
            // A late renewal does not shorten the lease.
            let due_ms = state.place.map_or(0, |place| place.due_ms);
            if due_ms < ms(view.now).saturating_add(u64::from(*lease_ms)) {
                later(view, &mut state, *lease_ms);
            }
        }
    }
    slot.put(view, &state)?;
    Ok(BackingReply::Settled(state))
}

fn not_done(view: &View, state: &mut KeyState, (error, pause_ms): (&str, u32)) {
    state.attempts = state.attempts.saturating_add(1);
    error.clone_into(&mut state.error);
    later(view, state, pause_ms);
}

/// Records that the backend has the object of the attempt; the key may have changed again since.
fn done(
    view: &View,
    state: &mut KeyState,
    (under, etag): (Under, Option<&str>),
) -> Result<(), Failed> {
    let is_last = state.seq == under.seq;
    if is_last && state.is_tombstone() != etag.is_none() {
        return Err(MetaError::Invalid.into());
    }
    state.has = etag.map(|etag| Remote { etag: etag.to_owned(), seq: under.seq });
    state.under = None;
    state.attempts = 0;
    state.error.clear();
    if is_last {
        state.since = view.now;
        state.place = match state.wanted {
            Wanted::File { .. } => None,
            Wanted::Nothing | Wanted::Forgotten => Some(forgotten_later(view, state.seq)),
        };
    } else {
        later(view, state, 0);
    }
    Ok(())
}

/// The place of a clean state without a file.
pub(super) fn forgotten_later(view: &View, n: u64) -> Place {
    Place { lane: LANE_SWEEP, due_ms: ms(view.now).saturating_add(FORGET_MS), n }
}

/// Makes a key due now, unless an attempt may be under way. Returns whether that changed the state.
pub(super) async fn hasten(
    view: &View,
    caller: &Caller,
    (name, key): (&Name, &[u8]),
) -> Result<bool, Failed> {
    let backed = backed(view, caller, name).await?;
    let slot = Slot::read(view, backed.ino, key).await?;
    let Some(mut state) = slot.was.clone().filter(|was| was.is_dirty() && was.under.is_none())
    else {
        return Ok(false);
    };
    if state.place.is_none_or(|place| place.due_ms <= ms(view.now)) {
        return Ok(false);
    }
    later(view, &mut state, 0);
    slot.put(view, &state)?;
    Ok(true)
}
