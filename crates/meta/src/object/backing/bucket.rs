//! Attaches a backend to a bucket, and detaches it.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{Backing, LANE_SWEEP};
use millpond_types::meta::{Caller, Ino, MetaError, Name, keys};
use millpond_types::wire::Record;

use super::super::way;
use super::of;
use crate::error::Failed;
use crate::view::View;
use crate::volume::Volume;

/// Records that one transaction deletes: each counts as two writes.
const DELETED_MAX: usize = 50;

/// Sets or removes the backend of a bucket.
pub(super) async fn set(
    view: &View,
    caller: &Caller,
    (name, backing): (&Name, Option<&Backing>),
) -> Result<(), Failed> {
    // A gateway's credentials at a backend are not for every bucket owner.
    if caller.uid != 0 {
        return Err(MetaError::NotPermitted.into());
    }
    let ino = way::bucket(view, name).await?.attr.ino;
    let mut record = view.dir(ino).await?;
    let before = of(view, &record).await?;
    match (backing, &before) {
        (Some(backing), Some(before)) if !before.backing.is_same_place(backing) => {
            return Err(MetaError::Busy.into());
        }
        // The states refer to the previous backend.
        (Some(_), None) if any_state(view, ino).await? => return Err(MetaError::Again.into()),
        (None, _) => must_be_idle(view, ino).await?,
        _ => {}
    }
    match backing {
        Some(backing) => view.txn.put(&keys::backing(ino), backing.seal())?,
        None => view.txn.delete(&keys::backing(ino))?,
    }
    record.marks.backed = backing.is_some();
    record.attr.ctime = view.now;
    view.put_inode(&mut record)
}

async fn any_state(view: &View, bucket: Ino) -> Result<bool, Failed> {
    let page =
        view.txn.range(&KeyRange::prefix(&keys::states(bucket)), RangeOptions::limit(1)).await?;
    Ok(!page.entries.is_empty())
}

/// Refuses a bucket with keys that wait for the backend; this holds until the commit.
pub(in super::super) async fn must_be_idle(view: &View, bucket: Ino) -> Result<(), Failed> {
    let mut more = Some(KeyRange::prefix(&keys::queue(bucket)));
    if let Some(range) = &mut more {
        range.end = keys::lane(bucket, LANE_SWEEP);
    }
    while let Some(range) = more {
        let page = view.txn.range(&range, RangeOptions::limit(1)).await?;
        if !page.entries.is_empty() {
            return Err(MetaError::Busy.into());
        }
        more = page.rest;
    }
    Ok(())
}

/// Forgets states that are left from a previous backend, before a bucket gets a backend again.
pub(in super::super) async fn forget_leftovers(volume: &Volume, name: &Name) -> Result<(), Failed> {
    let view = View::new(volume.store.begin(), volume.now());
    let record = way::bucket(&view, name).await?;
    if record.marks.backed { Ok(()) } else { forget_states(volume, record.attr.ino).await }
}

/// Forgets all states and the queue of a bucket without a backend, or of one that is gone.
pub(crate) async fn forget_states(volume: &Volume, bucket: Ino) -> Result<(), Failed> {
    for prefix in [keys::states(bucket), keys::queue(bucket)] {
        loop {
            let deleted = volume.store.transact(|txn| {
                let range = KeyRange::prefix(&prefix);
                async move {
                    let view = View::new(txn, volume.now());
                    if view.txn.get(&keys::backing(bucket)).await?.is_some() {
                        return Ok(0);
                    }
                    let page = view.txn.range(&range, RangeOptions::limit(DELETED_MAX)).await?;
                    for (key, _) in &page.entries {
                        view.txn.delete(key)?;
                    }
                    Ok::<_, Failed>(page.entries.len())
                }
            });
            if deleted.await? < DELETED_MAX {
                break;
            }
        }
    }
    Ok(())
}
