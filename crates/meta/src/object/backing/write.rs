//! What becomes of the state of a key that is put, filled, or removed.

use millpond_types::meta::object::{
    KeyState, LANE_SWEEP, Mode, Origin, Place, QueueRecord, Remote, Wanted,
};
use millpond_types::meta::{Attr, keys};
use millpond_types::wire::Record;

use super::slot::{Slot, file, lane_of};
use super::{Backed, ms};
use crate::error::Failed;
use crate::view::View;
use crate::volume::Volume;

/// A step of a rule's priority is as much as having waited for a minute, in milliseconds: so what has no priority is not passed
/// for ever.
const STEP_MS: u64 = 60_000;

/// What is done with a key.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Change<'a> {
    /// It has a new file, and had another one before.
    Put { now: &'a Attr, before: Option<&'a Attr> },
    /// Its file has other bytes kept with it.
    Attach(&'a Attr),
    /// It has none any more, and had this one before.
    Remove(Option<&'a Attr>),
}

impl Change<'_> {
    const fn wanted(self) -> Wanted {
        match self {
            Self::Put { now: attr, .. } | Self::Attach(attr) => file(attr),
            Self::Remove(_) => Wanted::Nothing,
        }
    }
}

/// Writes down what is to be brought to the backend.
pub(in super::super) async fn changed(
    view: &View,
    volume: &Volume,
    (backed, key): (&Backed, &[u8]),
    change: Change<'_>,
) -> Result<(), Failed> {
    let rule = backed.rule_of(key);
    let slot = Slot::read(view, backed.ino, key).await?;
    let mut wanted = change.wanted();
    if rule.mode == Mode::Transient {
        let (now, before) = match change {
            Change::Put { now, before } => (Some(now), before),
            Change::Attach(_) => (None, None),
            Change::Remove(before) => (None, before),
        };
        expire_later(view, (backed, key), (now, before), rule.ttl_s)?;
        if slot.was.is_none() {
            return Ok(());
        }
        // What the backend has of the key from before the rule is not to come back.
        wanted = Wanted::Nothing;
    }
    if let Some(was) = slot.was.as_ref().filter(|_| wanted == Wanted::Nothing)
        && was.is_tombstone()
        && (was.is_dirty() || !backed.backing.is_shared_at(key))
    {
        return Ok(());
    }
    let seq = volume.fresh_id().await?;
    slot.put(view, &dirty(view, slot.was.as_ref(), (wanted, seq), (rule.mode, rule.priority)))
}

/// The state of a key that is to be brought to the backend. What waits keeps its place and its time, and what is under way stays.
pub(super) fn dirty(
    view: &View,
    was: Option<&KeyState>,
    (wanted, seq): (Wanted, u64),
    (mode, priority): (Mode, u8),
) -> KeyState {
    let lane = lane_of(wanted);
    if let Some(was) = was.filter(|was| was.is_dirty()) {
        let place = was.place.map(|place| Place { lane, ..place });
        return KeyState { seq, wanted, place, mode, ..was.clone() };
    }
    let due_ms = ms(view.now).saturating_sub(u64::from(priority) * STEP_MS);
    KeyState {
        seq,
        wanted,
        has: was.and_then(|was| was.has.clone()),
        place: Some(Place { lane, due_ms, n: seq }),
        under: None,
        since: view.now,
        mode,
        attempts: 0,
        error: String::new(),
    }
}

/// Writes down when a transient object goes, and no longer when the one before it does. That one's entry is found by its file: where
/// the rule had another time then, or a mount has written to the file, it stays until it is due.
fn expire_later(
    view: &View,
    (backed, key): (&Backed, &[u8]),
    (now, before): (Option<&Attr>, Option<&Attr>),
    ttl_s: u32,
) -> Result<(), Failed> {
    if ttl_s == 0 {
        return Ok(());
    }
    let at = |attr: &Attr| {
        let due_ms = ms(attr.mtime).saturating_add(u64::from(ttl_s) * 1000);
        keys::queued(backed.ino, Place { lane: LANE_SWEEP, due_ms, n: attr.ino.0 })
    };
    if let Some(before) = before {
        view.txn.delete(&at(before))?;
    }
    if let Some(now) = now {
        let (key, bytes) = (key.to_vec(), now.size);
        let entry = QueueRecord { key, bytes, since: view.now, file: now.ino };
        view.txn.put(&at(now), entry.seal())?;
    }
    Ok(())
}

/// Whether a key may be filled whose state was seen before the backend was asked: nothing has happened to it since.
pub(in super::super) async fn may_fill(
    view: &View,
    (backed, key): (&Backed, &[u8]),
    origin: &Origin,
) -> Result<bool, Failed> {
    if backed.rule_of(key).mode == Mode::Transient {
        return Ok(false);
    }
    let slot = Slot::read(view, backed.ino, key).await?;
    let is_clean = slot.was.as_ref().is_none_or(KeyState::is_clean);
    Ok(is_clean && slot.was.map(|was| was.seq) == origin.seen)
}

/// Whether a key without a file is known to have its object at the backend: it was evicted a while ago. Transient ones are never
/// looked for there.
pub(in super::super) async fn is_elsewhere(
    view: &View,
    (backed, key): (&Backed, &[u8]),
) -> Result<bool, Failed> {
    if backed.rule_of(key).mode == Mode::Transient {
        return Ok(false);
    }
    let slot = Slot::read(view, backed.ino, key).await?;
    Ok(slot.was.is_some_and(|was| was.wanted == Wanted::Forgotten))
}

/// Writes down that the backend has a file.
pub(in super::super) async fn filled(
    view: &View,
    volume: &Volume,
    (backed, key): (&Backed, &[u8]),
    (attr, origin): (&Attr, &Origin),
) -> Result<(), Failed> {
    let slot = Slot::read(view, backed.ino, key).await?;
    // Another number than the one that was seen: another fill that saw that comes too late.
    let seq = volume.fresh_id().await?;
    let state = KeyState {
        seq,
        wanted: file(attr),
        has: Some(Remote { etag: origin.etag.clone(), seq }),
        place: None,
        under: None,
        since: view.now,
        mode: backed.rule_of(key).mode,
        attempts: 0,
        error: String::new(),
    };
    slot.put(view, &state)
}
