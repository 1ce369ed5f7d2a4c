//! Periodic work of metas: forgets states, and removes transient objects when their time is over.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{KeyState, LANE_SWEEP, Place, QueueRecord, names_of_key};
use millpond_types::meta::{Caller, Ino, InodeRecord, MetaError, Name, keys};
use millpond_types::wire::Record;

use super::super::change::{PRUNED_MAX, prune};
use super::super::way::{Step, Way, hold, walk_from};
use super::cached::drop_file;
use super::ms;
use super::slot::{Slot, entry};
use crate::error::Failed;
use crate::view::{View, opened};
use crate::volume::Volume;

/// Buckets that a round looks at.
const BUCKETS_MAX: usize = 1000;
/// Entries of one bucket that a round looks at.
const LOOKED_AT_MAX: usize = 1000;
/// States that one transaction forgets: two deletes each, which count as four writes.
const FORGOTTEN_MAX: usize = 25;

/// Sweeps some of the due entries, in all backed buckets.
pub(crate) async fn sweep(volume: &Volume) -> Result<(), Failed> {
    let options = |limit| RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
    let all = KeyRange::prefix(keys::BACKINGS);
    let buckets = volume.store.begin().range(&all, options(BUCKETS_MAX)).await?;
    for (key, _) in buckets.entries {
        let Some(bucket) = keys::number(keys::BACKINGS, &key).map(Ino) else { continue };
        let mut range = KeyRange::prefix(&keys::lane(bucket, LANE_SWEEP));
        let due_ms = ms(volume.now()).saturating_add(1);
        range.end = keys::queued(bucket, Place { lane: LANE_SWEEP, due_ms, n: 0 });
        let page = volume.store.begin().range(&range, options(LOOKED_AT_MAX)).await?;
        let mut states = Vec::new();
        for (at, bytes) in page.entries {
            let entry: QueueRecord = opened(&at, &bytes)?;
            if entry.file == Ino(0) {
                states.push((at, entry.key));
            } else {
                expire(volume, bucket, (&at, &entry)).await?;
            }
        }
        for some in states.chunks(FORGOTTEN_MAX) {
            let forgotten = volume.store.transact(|txn| async move {
                let view = View::new(txn, volume.now());
                for (at, key) in some {
                    forget(&view, bucket, (at, key)).await?;
                }
                Ok::<_, Failed>(())
            });
            forgotten.await?;
        }
    }
    Ok(())
}

/// Forgets the state of an entry.
async fn forget(view: &View, bucket: Ino, (at, key): (&[u8], &[u8])) -> Result<(), Failed> {
    let slot = Slot::read(view, bucket, key).await?;
    let place = keys::split_queued(at).map(|(_, place)| place);
    if place.is_some() && slot.was.as_ref().and_then(|was| was.place) == place {
        slot.forget(view)?;
    }
    Ok(())
}

/// Removes a transient object after its time, if it is still the one of the entry.
async fn expire(
    volume: &Volume,
    bucket: Ino,
    (at, entry): (&[u8], &QueueRecord),
) -> Result<(), Failed> {
    let done = volume.store.transact(|txn| async move {
        let view = View::new(txn, volume.now());
        if view.txn.get(at).await?.is_none() {
            return Ok(());
        }
        view.txn.delete(at)?;
        let Some(mut way) = way_in(&view, bucket, &entry.key).await? else { return Ok(()) };
        if way.file() != Some(entry.file) {
            return Ok(());
        }
        let slot = Slot::read(&view, bucket, &entry.key).await?;
        if slot.was.is_some_and(|was| was.wanted.is_of(entry.file)) {
            // It is no longer transient: another rule applies, and its state determines when it
            // goes.
            return Ok(());
        }
        let record = view.inode(entry.file).await?;
        drop_file(&view, &mut way, record).await
    });
    done.await?;
    let names = names_of_key(&entry.key).map_or(0, |names| names.len());
    for _ in 0..names / PRUNED_MAX {
        let pruned = volume.store.transact(|txn| async move {
            let view = View::new(txn, volume.now());
            let Some(mut way) = way_in(&view, bucket, &entry.key).await? else { return Ok(0) };
            prune(&view, &mut way.dirs).await
        });
        if pruned.await? < PRUNED_MAX {
            break;
        }
    }
    Ok(())
}

/// The bucket at the beginning of a path; its real name is not needed for the removals below.
async fn step_in(view: &View, bucket: Ino) -> Result<Option<Step>, Failed> {
    let key = keys::inode(bucket);
    let Some(found) = view.txn.get_snapshot(&key).await? else { return Ok(None) };
    let record: InodeRecord = opened(&key, &found)?;
    let name = Name::new(b"bucket").map_err(|_| MetaError::Io)?;
    Ok((record.attr.nlink > 0).then_some(Step { name, record }))
}

async fn way_in(view: &View, bucket: Ino, key: &[u8]) -> Result<Option<Way>, Failed> {
    let Some(step) = step_in(view, bucket).await? else { return Ok(None) };
    let way = walk_from(view, &Caller::checked(0, 0), step, key).await?;
    hold(view, &way).await?;
    Ok(Some(way))
}

/// Removes a record of a bucket that is gone. Returns whether it did.
async fn is_gone(view: &View, key: &[u8]) -> Result<bool, Failed> {
    let backing = keys::number(keys::BACKINGS, key);
    let of_key = [keys::STATES, keys::QUEUES].iter().find_map(|prefix| keys::leading(prefix, key));
    let Some(bucket) = backing.or(of_key).map(Ino) else { return Ok(false) };
    let (inode, backed) = (keys::inode(bucket), keys::backing(bucket));
    let found = view.txn.get_many(&[key, &inode, &backed]).await?;
    let [Some(_), None, there] = &found[..] else { return Ok(false) };
    if backing.is_none() && there.is_some() {
        return Ok(false);
    }
    view.txn.delete(key)?;
    Ok(true)
}

/// Repairs an entry without a state, a state without its entry, and records of a bucket that is
/// gone; `None` for any other record.
pub(in super::super) async fn stray(view: &View, key: &[u8]) -> Result<Option<bool>, Failed> {
    if is_gone(view, key).await? {
        return Ok(Some(true));
    }
    if keys::number(keys::BACKINGS, key).is_some() {
        return Ok(Some(false));
    }
    if let Some((bucket, place)) = keys::split_queued(key) {
        let Some(found) = view.read::<QueueRecord>(key).await? else { return Ok(Some(false)) };
        let slot = Slot::read(view, bucket, &found.key).await?;
        let is_placed = slot.was.and_then(|was| was.place) == Some(place);
        if is_placed || found.file != Ino(0) {
            return Ok(Some(false));
        }
        view.txn.delete(key)?;
        return Ok(Some(true));
    }
    let Some((bucket, of)) = keys::split_state(key) else { return Ok(None) };
    let Some(state) = view.read::<KeyState>(key).await? else { return Ok(Some(false)) };
    let Some(place) = state.place else { return Ok(Some(false)) };
    let at = keys::queued(bucket, place);
    if view.txn.get(&at).await?.is_some() {
        return Ok(Some(false));
    }
    view.txn.put(&at, entry(of, &state).seal())?;
    Ok(Some(true))
}
