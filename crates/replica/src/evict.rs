//! Making room on a disk: heads delete the coldest blocks, expired ones and those of dropped
//! namespaces, on all replicas alike. A disk with targets that head no chain asks the heads of
//! their chains.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use millpond_chain::{Op, Reply};
use millpond_engine::{Cursor, EngineStats};
use millpond_env::{RealClock, sleep, spawn, timeout};
use millpond_types::cluster::{ChainId, Routing, TargetId};
use millpond_types::limits::PAGE_BYTES;
use millpond_types::{Ack, ByteSize, ChunkId, Crc32c, GroupId, SlotId, Tick};
use parking_lot::Mutex;

use super::Host;
use super::attrs::{self, Block, engine_id};
use super::host::{HostDisk, ROOM_SEGMENTS};
use super::hosted::Hosted;
use super::kv::unix_seconds;
use super::update::Change;

/// Interval of looks at a disk.
const ROUND: Duration = Duration::from_millis(100);
/// Maximum bytes evicted in one round: some 2 GiB/s.
const ROUND_BYTES_MAX: u64 = 256 << 20;
/// Maximum chunks of a node that are being removed at the same time: their messages must not crowd
/// out those of updates in the queue of a link.
pub(super) const REMOVING_MAX: usize = 4096;
/// Time after which a removal, delayed by a chain that stands still, no longer delays removals of
/// other chains.
const REMOVING_FOR: Duration = Duration::from_secs(1);
/// Pause before the next round if that number was reached.
const SHORT_ROUND: Duration = Duration::from_millis(20);
/// Segments, free or obtainable by compaction, below which blocks are evicted although bytes are
/// left: updates are not refused yet.
const SEGMENTS_MIN: u64 = ROOM_SEGMENTS + 2;
/// Interval of log lines about a full index.
const INDEX_NEWS: Duration = Duration::from_mins(10);
/// Share of used room, in per mille, below which no block is evicted for the sake of segments: with
/// values of many sizes on a disk of few segments it could not help.
const CRAMPED_MIN: u64 = 400;
/// Chunks checked for expiry per round: 100 million in three hours.
const EXPIRY_PAGE: usize = 1024;
/// Same as `EXPIRY_PAGE`, while blocks of a dropped namespace are removed.
const DROP_PAGE: usize = 8192;

/// A chunk to be removed.
struct Victim {
    /// Head of its chain.
    head: Arc<Hosted>,
    chunk: ChunkId,
    /// Its namespace, if it is removed to make room.
    evicts: Option<GroupId>,
}

/// Bytes that the heads of a disk are removing: still stored, but about to go.
#[derive(Debug, Default)]
struct Leaving(Mutex<HashMap<TargetId, u64>>);

impl Leaving {
    fn begin(&self, target: TargetId, bytes: u64) {
        *self.0.lock().entry(target).or_default() += bytes;
    }

    fn end(&self, target: TargetId, bytes: u64) {
        if let Some(left) = self.0.lock().get_mut(&target) {
            *left = left.saturating_sub(bytes);
        }
    }

    fn all(&self) -> u64 {
        self.0.lock().values().sum()
    }

    fn of(&self, target: TargetId) -> u64 {
        self.0.lock().get(&target).copied().unwrap_or(0)
    }
}

/// Looks after one disk until the host is dropped.
pub(super) async fn run(host: Weak<Host>, disk: usize) {
    let (mut cursor, leaving) = (Cursor::default(), Arc::<Leaving>::default());
    let (mut pause, mut news) = (ROUND, IndexNews::default());
    loop {
        sleep(pause).await;
        let Some(host) = host.upgrade() else { return };
        if host.takes_over.load(Ordering::Acquire) {
            continue;
        }
        news.look(&host.disks[disk]);
        let may_go = host.may_remove();
        let mut victims = coldest(&host, disk, &leaving, may_go);
        host.evicted.fetch_add(victims.len() as u64, Ordering::Relaxed);
        cursor = expired(&host, disk, cursor, may_go - victims.len(), &mut victims);
        pause = if victims.len() >= may_go { SHORT_ROUND } else { ROUND };
        for victim in victims {
            remove(&host, disk, victim, &leaving);
        }
        if disk == 0 {
            host.keep_quotas();
        }
    }
}

/// Time of the last log line about a full index of a disk.
#[derive(Default)]
struct IndexNews(Option<Tick>);

impl IndexNews {
    fn look(&mut self, disk: &HostDisk) {
        let stats = disk.engine.stats();
        let now = RealClock::tick();
        let is_news = self.0.is_none_or(|said| now.since(said) >= INDEX_NEWS);
        if stats.index_bytes < stats.index_bytes_max || !is_news {
            return;
        }
        self.0 = Some(now);
        let [used, most] = [stats.index_bytes, stats.index_bytes_max].map(ByteSize);
        tracing::warn!(
            disk = %disk.id,
            "the index is full: it uses {used} of {most} for {} values. Values that cannot be \
             evicted are rejected as if the disk were full: raise --memory, or server.index_memory",
            stats.chunks
        );
    }
}

/// Bytes that a disk should give up.
fn excess(over_watermark: Option<u64>, stats: &EngineStats) -> u64 {
    let missing = SEGMENTS_MIN.saturating_sub(stats.free_segments + stats.compactable_segments);
    let helps = stats.used_bytes.saturating_sub(stats.room_bytes / 1000 * CRAMPED_MIN);
    let cramped = (missing * stats.segment_bytes).min(helps);
    over_watermark.unwrap_or(0).max(cramped)
}

/// Bytes that each target of a disk should give up; `all` includes those targets.
pub(super) fn share_of_excess(
    host: &Host,
    disk: usize,
    (stats, all): (&EngineStats, &[Arc<Hosted>]),
) -> u64 {
    match excess(host.disks[disk].engine.over_watermark(), stats) {
        0 => 0,
        excess => {
            let targets = all.iter().filter(|hosted| hosted.disk == disk).count();
            excess.div_ceil(targets.max(1) as u64)
        }
    }
}

/// The replica of this node that may remove a chunk with these attributes.
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

/// Whether a slot is moving away from a chain. Nothing else may remove its chunks: a copy of a
/// chunk that is gone here would bring it back at the new chain.
fn leaves(routing: &Routing, chain: ChainId, slot: SlotId) -> bool {
    routing.place(slot).chain != chain
}

/// Bytes to give up by the chains with heads on this disk.
///
/// Every target of an overfull disk asks for an equal share of the excess. A head gives up the
/// bytes for its own disk from all of its chains alike, coldest first; bytes that the replicas
/// below it need beyond that come from their chain only.
struct Wanted {
    own: u64,
    below: HashMap<TargetId, (Arc<Hosted>, u64)>,
}

impl Wanted {
    fn new(host: &Host, disk: usize, leaving: &Leaving) -> Self {
        let all = host.all();
        let share = share_of_excess(host, disk, (&host.disks[disk].engine.stats(), &all));
        let mut heads = all;
        heads.retain(|hosted| hosted.disk == disk && hosted.is_head());
        let own = (share * heads.len() as u64).saturating_sub(leaving.all());
        let below = |hosted: Arc<Hosted>| {
            // A replica below repeats its request until the leaving chunks are gone there too.
            let known = share.max(leaving.of(hosted.target));
            let more = hosted.state().replica.take_excess_below().saturating_sub(known);
            (hosted.target, (hosted, more))
        };
        Self { own, below: heads.into_iter().map(below).collect() }
    }

    fn bytes(&self) -> u64 {
        let below: u64 = self.below.values().map(|(_, bytes)| bytes).sum();
        (self.own + below).min(ROUND_BYTES_MAX)
    }

    /// The head to remove a chunk of this target, if it should go.
    fn take(&mut self, target: TargetId, bytes: u64) -> Option<Arc<Hosted>> {
        let (head, below) = self.below.get_mut(&target)?;
        if self.own == 0 && *below == 0 {
            return None;
        }
        self.own = self.own.saturating_sub(bytes);
        *below = below.saturating_sub(bytes);
        Some(Arc::clone(head))
    }
}

/// At most `max` chunks to remove for room.
fn coldest(host: &Host, disk: usize, leaving: &Leaving, max: usize) -> Vec<Victim> {
    // Made before the call of the engine, which calls back under its own lock.
    let mut wanted = Wanted::new(host, disk, leaving);
    let bytes = wanted.bytes();
    if bytes == 0 || max == 0 {
        return Vec::new();
    }
    let (routing, mut chosen) = (host.routing(), Vec::new());
    let victims = host.disks[disk].engine.coldest(bytes, |_, attrs, bytes| {
        let committed = attrs::version(attrs).filter(|v| !v.staged && !v.tombstone);
        let Some(version) = committed.filter(|_| chosen.len() < max) else { return false };
        // Chunks of files are never evicted, even if the engine offers them.
        let Ok(block) = Block::decode(&version.block) else { return false };
        if leaves(&routing, version.chain, block.slot) {
            return false;
        }
        let Some(head) = wanted.take(version.target, bytes) else { return false };
        chosen.push((head, block.group));
        true
    });
    let victim = |((head, group), id): ((Arc<Hosted>, GroupId), ChunkId)| {
        let chunk = engine_id(head.target, id);
        Victim { head, chunk, evicts: Some(group) }
    };
    chosen.into_iter().zip(victims).map(victim).collect()
}

/// Checks at most `max` chunks for expiry or a dropped namespace.
fn expired(
    host: &Host,
    disk: usize,
    cursor: Cursor,
    max: usize,
    victims: &mut Vec<Victim>,
) -> Cursor {
    if max == 0 {
        return cursor;
    }

    let now = u32::try_from(RealClock::wall_ms() / 1000).unwrap_or(u32::MAX);
    let dropped = host.dropped();
    let limit = if dropped.is_empty() { EXPIRY_PAGE } else { DROP_PAGE };
    let (page, next) = host.disks[disk].engine.scan(None, cursor, limit.min(max));
    for (info, attrs) in page {
        if let Some((head, block)) = remover(host, &attrs)
            && (block.expired(now) || dropped.contains(&block.group))
        {
            let chunk = engine_id(head.target, info.id);
            victims.push(Victim { head, chunk, evicts: None });
        }
    }
    next.unwrap_or_default()
}

/// Deletes a chunk on every replica of its chain, without waiting for the outcome.
fn remove(host: &Arc<Host>, disk: usize, victim: Victim, leaving: &Arc<Leaving>) {
    let Victim { head, chunk, evicts } = victim;
    let info = host.disks[disk].engine.lookup(engine_id(head.target, chunk));
    let bytes = info.map_or(0, |info| u64::from(info.len).next_multiple_of(PAGE_BYTES as u64));
    let (leaving, target) = (Arc::clone(leaving), head.target);
    leaving.begin(target, bytes);
    let removal = host.remove_own(head, chunk);
    let counts = Arc::clone(host);
    spawn(async move {
        let is_gone = removal.await;
        leaving.end(target, bytes);
        if let Some(group) = evicts.filter(|_| is_gone) {
            counts.count_evicted(group);
        }
    })
    .detach();
}

/// Counts a chunk that its head removes of its own accord, until dropped.
struct Removing(Arc<Host>);

impl Drop for Removing {
    fn drop(&mut self) {
        self.0.removing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Host {
    /// Number of further chunks that heads of this node may remove of their own accord now.
    pub(super) fn may_remove(&self) -> usize {
        REMOVING_MAX.saturating_sub(self.removing.load(Ordering::Relaxed))
    }

    /// Removes an expired block before the sweep reaches it; true if a new put of it may find it
    /// gone, or will wait for the running change of it.
    pub(super) async fn remove_expired(self: &Arc<Self>, hosted: &Hosted, chunk: ChunkId) -> bool {
        let attrs = hosted.store.engine.attrs(hosted.store.id(chunk));
        let Some((head, block)) = attrs.and_then(|attrs| remover(self, &attrs)) else {
            return false;
        };
        if !block.expired(unix_seconds()) {
            return false;
        }
        // The staged version may already be the new put of the block, which must not be removed.
        if head.store.staged_meta(chunk).is_none() {
            self.remove_own(head, chunk).await;
        }
        true
    }

    /// Deletes a chunk on every replica of its chain; true if that is known to be done. Counted
    /// from this call on.
    pub(super) fn remove_own(
        self: &Arc<Self>,
        head: Arc<Hosted>,
        chunk: ChunkId,
    ) -> impl Future<Output = bool> + use<> {
        self.removing.fetch_add(1, Ordering::Relaxed);
        let (counted, tag) = (Removing(Arc::clone(self)), self.own_tag());
        let change = Change { chunk, op: Op::Remove, crc: Crc32c::EMPTY, durability: Ack::Memory };
        async move {
            let reply = timeout(REMOVING_FOR, head.change(tag, change)).await;
            drop(counted);
            matches!(reply, Ok(Some(Reply::Done(_))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EngineStats, excess};

    const FULL: EngineStats = EngineStats {
        usable_bytes: 1 << 40,
        room_bytes: 1 << 40,
        used_bytes: 900 << 30,
        segment_bytes: 64 << 20,
        free_segments: 1,
        compactable_segments: 3,
        dirty_bytes: 0,
        leased_bytes: 0,
        log_bytes: 0,
        chunks: 0,
        index_bytes: 0,
        index_bytes_max: u64::MAX,
        read_only: false,
    };

    #[test]
    fn blocks_go_for_segments_only_when_compaction_has_none_and_it_can_help() {
        assert_eq!(excess(Some(10 << 20), &FULL), 10 << 20);
        assert_eq!(excess(None, &FULL), 0);
        let cramped = EngineStats { compactable_segments: 2, ..FULL };
        assert_eq!(excess(None, &cramped), 64 << 20);
        assert_eq!(excess(Some(10 << 20), &cramped), 64 << 20);
        assert_eq!(excess(None, &EngineStats { used_bytes: 300 << 30, ..cramped }), 0);
        let least = cramped.room_bytes / 1000 * super::CRAMPED_MIN;
        let nearly = EngineStats { used_bytes: least + (10 << 20), ..cramped };
        assert_eq!(excess(None, &nearly), 10 << 20, "no further than it can help");
    }
}
