//! State changes of a key that is put, filled, or removed.

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

/// Milliseconds of waiting that one step of a rule's priority counts for, so that keys without a
/// priority are not overtaken for ever.
const STEP_MS: u64 = 60_000;

/// A change of a key.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Change<'a> {
    /// The key has a new file, and had the file `before`.
    Put { now: &'a Attr, before: Option<&'a Attr> },
    /// The attachment of its file changed.
    Attach(&'a Attr),
    /// The key has no file any more, and had this one before.
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

/// Records a change that must be persisted at the backend.
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
        // The object that the backend has from before the rule must not come back.
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

/// Returns the state of a key that must be persisted. A waiting key keeps its place and its time,
/// and an attempt under way stays.
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

/// Schedules the removal of a transient object, and cancels that of the object before. The latter's
/// entry is found by its file: if the rule had another time then, or a mount has written to the
/// file, it stays until it is due.
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

/// Whether a key may be filled: its state has not changed since the gateway read it and asked the
/// backend.
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

/// Whether a key without a file is known to have its object at the backend, because it was evicted
/// a while ago. Transient objects are never looked up there.
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

/// Records that the backend has a file.
pub(in super::super) async fn filled(
    view: &View,
    volume: &Volume,
    (backed, key): (&Backed, &[u8]),
    (attr, origin): (&Attr, &Origin),
) -> Result<(), Failed> {
    let slot = Slot::read(view, backed.ino, key).await?;
    // A new number: another fill that saw the same state comes too late.
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
