//! Evicts files of clean keys, and updates states after changes by mounts.

use millpond_types::meta::object::{KeyState, Mode, Wanted};
use millpond_types::meta::{Attr, Caller, InodeRecord, Name};

use super::super::change::prune;
use super::super::way::{Way, walk_to_change};
use super::settle::forgotten_later;
use super::slot::{Slot, file};
use super::write::dirty;
use super::{Backed, must_be};
use crate::error::Failed;
use crate::permit;
use crate::view::View;
use crate::volume::Volume;

/// Removes the file of a clean key, if the state still has this number and the file is the one of
/// the state. Returns whether it did.
///
/// For a key evicted before, where others write at the backend too, the caller has seen that the
/// backend no longer has the object.
pub(super) async fn evict(
    view: &View,
    volume: &Volume,
    caller: &Caller,
    (name, key): (&Name, &[u8]),
    seq: u64,
) -> Result<bool, Failed> {
    let mut way = walk_to_change(view, caller, (name, key)).await?;
    let backed = must_be(view, &way.dirs[0].record).await?;
    let slot = Slot::read(view, backed.ino, key).await?;
    let Some(was) = slot.was.as_ref().filter(|was| was.is_clean() && was.seq == seq) else {
        return Ok(false);
    };
    let (wanted, has) = if let Some(ino) = way.file() {
        let mut record = view.inode(ino).await?;
        if was.wanted != file(&record.attr) {
            return Ok(false);
        }
        permit::remove(caller, &way.dir().attr, &record.attr)?;
        // A file with another name is an ordinary file.
        record.marks.evicted = record.attr.nlink == 1;
        drop_file(view, &mut way, record).await?;
        (Wanted::Forgotten, was.has.clone())
    } else if was.wanted == Wanted::Forgotten && backed.backing.is_shared_at(key) {
        permit::access(caller, &way.dirs[0].record.attr, permit::WRITE)?;
        (Wanted::Nothing, None)
    } else {
        return Ok(false);
    };
    // A new number: a second client that evicts the same file has not seen this state.
    let seq = volume.fresh_id().await?;
    let place = Some(forgotten_later(view, seq));
    slot.put(view, &KeyState { seq, wanted, has, place, since: view.now, ..was.clone() })?;
    Ok(true)
}

/// Removes the name of a file that need not be kept: the backend has it, or its time is over.
pub(super) async fn drop_file(
    view: &View,
    way: &mut Way,
    mut record: InodeRecord,
) -> Result<(), Failed> {
    // A file that can be fetched again does not go to the trash.
    let dir = InodeRecord { keep_s: 0, ..way.dir().clone() };
    view.delete_entry(&dir, way.name(), record.attr.kind)?;
    view.unname(&dir, way.name(), &mut record)?;
    view.touch_and_tell(&dir)?;
    prune(view, &mut way.dirs).await?;
    Ok(())
}

/// Updates the state of a key to the file that lies there, and returns the state.
pub(super) async fn adopt(
    view: &View,
    volume: &Volume,
    caller: &Caller,
    (name, key): (&Name, &[u8]),
) -> Result<Option<KeyState>, Failed> {
    let way = walk_to_change(view, caller, (name, key)).await?;
    let backed = must_be(view, &way.dirs[0].record).await?;
    permit::access(caller, &way.dirs[0].record.attr, permit::WRITE)?;
    let there = match way.file() {
        Some(ino) => Some(view.inode(ino).await?.attr),
        None => None,
    };
    let slot = Slot::read(view, backed.ino, key).await?;
    let of = (slot.was.as_ref(), there.as_ref());
    let Some(state) = followed(view, volume, (&backed, key), of).await? else {
        return Ok(slot.was);
    };
    slot.put(view, &state)?;
    Ok(Some(state))
}

/// Returns the new state of a key with a file that differs from its state; `None` when they agree.
pub(super) async fn followed(
    view: &View,
    volume: &Volume,
    (backed, key): (&Backed, &[u8]),
    (was, there): (Option<&KeyState>, Option<&Attr>),
) -> Result<Option<KeyState>, Failed> {
    let rule = backed.rule_of(key);
    let wanted = match (was.map(|was| was.wanted), there) {
        (Some(Wanted::File { .. }), None) => Wanted::Nothing,
        (_, None) => return Ok(None),
        (Some(was @ Wanted::File { .. }), Some(there)) if was == file(there) => return Ok(None),
        (Some(Wanted::File { .. }), Some(there)) => file(there),
        // A transient object has no state.
        (_, Some(_)) if rule.mode == Mode::Transient => return Ok(None),
        (_, Some(there)) => file(there),
    };
    let seq = volume.fresh_id().await?;
    Ok(Some(dirty(view, was, (wanted, seq), (rule.mode, rule.priority))))
}
