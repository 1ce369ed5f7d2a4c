//! Pages of queues and states.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{
    BackingReply, Place, QueuePage, QueueRecord, Queued, StatePage,
};
use millpond_types::meta::{Caller, DIR_PAGE_MAX, Ino, Name, keys};

use super::super::way;
use super::ms;
use crate::error::Failed;
use crate::permit;
use crate::view::{View, opened};

async fn bucket(view: &View, (caller, name): (&Caller, &Name)) -> Result<Ino, Failed> {
    let record = way::bucket(view, name).await?;
    permit::access(caller, &record.attr, permit::READ)?;
    Ok(record.attr.ino)
}

fn options(limit: u32) -> RangeOptions {
    let limit = (limit as usize).clamp(1, DIR_PAGE_MAX);
    RangeOptions { snapshot: true, ..RangeOptions::limit(limit) }
}

/// Lists a page of a lane.
pub(super) async fn queue(
    view: &View,
    at: (&Caller, &Name),
    (lane, after): (u8, Option<Place>),
    limit: u32,
) -> Result<BackingReply, Failed> {
    let ino = bucket(view, at).await?;
    let mut range = KeyRange::prefix(&keys::lane(ino, lane));
    if let Some(after) = after {
        let place = Place { lane, ..after };
        range.start = [&keys::queued(ino, place)[..], &[0]].concat();
    }
    let found = view.txn.range(&range, options(limit)).await?;
    let mut page = QueuePage { end: found.rest.is_none(), now_ms: ms(view.now), entries: vec![] };
    for (key, bytes) in found.entries {
        let Some((_, place)) = keys::split_queued(&key) else { continue };
        let QueueRecord { key, bytes, since, .. } = opened(&key, &bytes)?;
        page.entries.push(Queued { key, bytes, since, place });
    }
    Ok(BackingReply::Queue(page))
}

/// Lists a page of states.
pub(super) async fn states(
    view: &View,
    at: (&Caller, &Name),
    (prefix, after): (&[u8], &[u8]),
    limit: u32,
) -> Result<BackingReply, Failed> {
    let ino = bucket(view, at).await?;
    let mut range = KeyRange::prefix(&keys::state(ino, prefix));
    if !after.is_empty() {
        let behind = [&keys::state(ino, after)[..], &[0]].concat();
        range.start = range.start.max(behind);
    }
    let found = view.txn.range(&range, options(limit)).await?;
    let mut page = StatePage { end: found.rest.is_none(), states: vec![] };
    for (at, bytes) in found.entries {
        let Some((_, key)) = keys::split_state(&at) else { continue };
        page.states.push((key.to_vec(), opened(&at, &bytes)?));
    }
    Ok(BackingReply::States(page))
}
