//! Making room on a disk: heads delete what is coldest, has expired or belongs to a dropped namespace,
//! on all replicas alike.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use millpond_chain::Op;
use millpond_engine::Cursor;
use millpond_env::{RealClock, sleep, spawn};
use millpond_types::cluster::{ChainId, Routing, TargetId};
use millpond_types::{Ack, ChunkId, Crc32c, SlotId};

use super::Host;
use super::attrs::{self, Block, engine_id};
use super::host::ROOM_SEGMENTS;
use super::hosted::Hosted;
use super::update::Change;

/// How often a disk is looked at.
const ROUND: Duration = Duration::from_millis(100);
/// Bytes given up in one round at most: some 2 GiB/s.
const ROUND_BYTES_MAX: u64 = 256 << 20;
/// Free segments below which blocks are given up although bytes are left: before updates are refused.
const SEGMENTS_MIN: u64 = ROOM_SEGMENTS + 2;
/// Bytes given up in one round then: about what compaction, which makes segments of them, moves.
const CRAMPED_BYTES: u64 = 32 << 20;
/// Chunks looked at per round for ones that have expired: 100 million in three hours.
const EXPIRY_PAGE: usize = 1024;
/// The same while the blocks of a dropped namespace are removed.
const DROP_PAGE: usize = 8192;

/// Looks after one disk until the host is gone.
pub(super) async fn run(host: Weak<Host>, disk: usize) {
    let mut cursor = Cursor::default();
    loop {
        sleep(ROUND).await;
        let Some(host) = host.upgrade() else { return };
        let mut victims = coldest(&host, disk);
        cursor = expired(&host, disk, cursor, &mut victims);
        for (hosted, chunk) in victims {
            remove(&host, &hosted, chunk);
        }
    }
}

/// The replica of this node that may remove a chunk of these attributes.
fn remover(host: &Host, attrs: &[u8]) -> Option<(Arc<Hosted>, Block)> {
    let version = attrs::version(attrs)?;
    if version.staged || version.tombstone {
        return None;
    }
    let block = Block::decode(&version.block).ok()?;
    if leaves(&host.routing(), version.chain, block.slot) {
        return None;
    }
    let head = host.replica(version.target).filter(|hosted| hosted.is_head())?;
    Some((head, block))
}

/// Whether a slot is on its way from a chain to another. Nothing else may remove what it holds: a copy
/// of a chunk that is gone here would bring it back there.
fn leaves(routing: &Routing, chain: ChainId, slot: SlotId) -> bool {
    routing.place(slot).chain != chain
}

fn coldest(host: &Host, disk: usize) -> Vec<(Arc<Hosted>, ChunkId)> {
    let engine = &host.disks[disk].engine;
    let full = |hosted: &Arc<Hosted>| hosted.disk == disk && hosted.is_head();
    // Half-empty segments hold the rest: what is given up lets them be emptied and serve another size.
    let cramped = || (engine.stats().free_segments < SEGMENTS_MIN).then_some(CRAMPED_BYTES);
    let Some(over) = engine.over_watermark().or_else(cramped) else { return Vec::new() };
    // Known before the engine is asked, which asks back under its own lock.
    let heads: HashMap<TargetId, Arc<Hosted>> =
        host.all().into_iter().filter(full).map(|hosted| (hosted.target, hosted)).collect();
    let (routing, mut chosen) = (host.routing(), Vec::new());
    let victims = engine.coldest(over.min(ROUND_BYTES_MAX), |_, attrs| {
        let committed = attrs::version(attrs).filter(|v| !v.staged && !v.tombstone);
        let Some(version) = committed else { return false };
        let Some(head) = heads.get(&version.target) else { return false };
        let slot = Block::decode(&version.block).map(|block| block.slot);
        if slot.is_ok_and(|slot| leaves(&routing, version.chain, slot)) {
            return false;
        }
        chosen.push(Arc::clone(head));
        true
    });
    let chunk = |(head, id): (Arc<Hosted>, ChunkId)| {
        let chunk = engine_id(head.target, id);
        (head, chunk)
    };
    chosen.into_iter().zip(victims).map(chunk).collect()
}

fn expired(
    host: &Host,
    disk: usize,
    cursor: Cursor,
    victims: &mut Vec<(Arc<Hosted>, ChunkId)>,
) -> Cursor {
    let now = u32::try_from(RealClock::wall_ms() / 1000).unwrap_or(u32::MAX);
    let dropped = host.dropped();
    let limit = if dropped.is_empty() { EXPIRY_PAGE } else { DROP_PAGE };
    let (page, next) = host.disks[disk].engine.scan(None, cursor, limit);
    for (info, attrs) in page {
        if let Some((head, block)) = remover(host, &attrs)
            && (block.expired(now) || dropped.contains(&block.group))
        {
            let chunk = engine_id(head.target, info.id);
            victims.push((head, chunk));
        }
    }
    next.unwrap_or_default()
}

/// Deletes a chunk on every replica of its chain; what comes of it is not waited for.
fn remove(host: &Arc<Host>, hosted: &Arc<Hosted>, chunk: ChunkId) {
    let (tag, hosted) = (host.own_tag(), Arc::clone(hosted));
    let change = Change { chunk, op: Op::Remove, crc: Crc32c::EMPTY, durability: Ack::Memory };
    spawn(async move {
        let _gone_or_not = hosted.change(tag, change).await;
    })
    .detach();
}
