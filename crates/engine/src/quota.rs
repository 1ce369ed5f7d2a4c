//! Eviction inside one group, for a quota smaller than the disk.
//!
//! The shards' eviction queues mix all groups, and finding one group's oldest chunk in them would
//! take time in proportion to the disk. A group with a quota is therefore *tracked*: it has queues
//! of its own, S3-FIFO like the shared ones and fed beside them, for twelve bytes a chunk. One
//! queue serves all shards: a group may have fewer chunks than there are shards, and a queue in
//! each would then evict in the order of hashes. The shared queues need no notice: they drop items
//! that they find gone.
//!
//! A queue names a chunk by slot and version, never by slot alone: slots are reused. Items of
//! chunks removed by other paths (deletes, expiry, eviction of the whole disk) stay in the queue
//! until it reaches them or the background sweeps.
//!
//! On a node of a cluster, where chains remove the chunks that heads choose, the same queues name
//! the coldest ([`Engine::coldest_of_group`]).
//!
//! Locks: a shard's first, then the queues'. Nothing may lock a shard while it holds the queues.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_env::Disk;
use millpond_types::{ChunkId, GroupId};
use parking_lot::Mutex;

use crate::engine::{Engine, Inner};
use crate::index::{Entry, Queue, Queues, SHARDS, Turn, Usage, shard_of};

/// Priorities of eviction, lowest first.
const PRIORITIES: usize = 4;
/// Protected chunks in a row before one call gives up; about a millisecond. The next call continues
/// behind them.
const LOOKS_MAX: usize = 16_384;
/// Unwanted chunks that keep their place in the queue in one call. Further ones move to the end, so
/// that a queue that begins with many of them is still traversed.
const PASSED_MAX: usize = 1024;
/// Gone items that a queue may hold beyond the number of its chunks.
const GONE_MIN: u64 = 64;

/// A chunk in a group's queue.
#[derive(Clone, Copy, Debug)]
struct Item {
    shard: u32,
    slot: u32,
    /// The low half of the chunk's version: distinguishes two stays in a slot.
    version: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "half of it is enough to tell stays apart")]
const fn low_half(version: u64) -> u32 {
    version as u32
}

/// The queues of one group. Every item weighs one: the blocks of a group have one size, and an item
/// of a removed chunk does not know its bytes.
#[derive(Debug, Default)]
struct GroupQueue {
    queues: [Queues<Item>; PRIORITIES],
    /// Evictable chunks of the group.
    chunks: u64,
}

impl GroupQueue {
    fn push(&mut self, e: &Entry, slot: u32) {
        let shard = u32::try_from(shard_of(e.id)).unwrap_or(0);
        let item = Item { shard, slot, version: low_half(e.version()) };
        self.queues[e.priority()].insert(item, 1, e.queue() == Queue::Main);
    }

    fn len(&self) -> u64 {
        self.queues.iter().map(|queue| queue.len() as u64).sum()
    }
}

/// The tracked groups, which evict among their own chunks.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Number of tracked groups; writes on a disk without any skip the lookup.
    tracked: AtomicUsize,
    queues: Mutex<HashMap<GroupId, GroupQueue>>,
    /// Held while the chunks of new groups are gathered: a second caller waits for complete queues.
    gathering: Mutex<()>,
}

impl Groups {
    fn with<T>(&self, group: GroupId, act: impl FnOnce(&mut GroupQueue) -> T) -> Option<T> {
        if self.tracked.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.queues.lock().get_mut(&group).map(act)
    }

    /// Notes a new chunk or version. Its shard is locked.
    pub(crate) fn came(&self, e: &Entry, slot: u32) {
        if e.evictable() {
            self.with(e.group, |queue| {
                queue.chunks += 1;
                queue.push(e, slot);
            });
        }
    }

    /// Notes that a chunk was removed, or is about to get a new version. Its shard is locked.
    pub(crate) fn went(&self, e: &Entry) {
        if e.evictable() {
            self.with(e.group, |queue| queue.chunks = queue.chunks.saturating_sub(1));
        }
    }

    /// Stops tracking a group that is gone.
    pub(crate) fn forget(&self, group: GroupId) {
        let mut queues = self.queues.lock();
        queues.remove(&group);
        self.tracked.store(queues.len(), Ordering::Release);
    }

    /// Takes the next item, and whether it was on probation; `turn` chooses the queue.
    fn pop(&self, group: GroupId, priority: usize, turn: Turn) -> Option<(Item, bool)> {
        self.with(group, |queue| {
            let queue = &mut queue.queues[priority];
            let (item, was_small) = queue.pop(turn)?;
            queue.forget_bytes(!was_small, 1);
            Some((item, was_small))
        })?
    }

    /// Puts items back at the head of the queues they came from, in that order; the flag marks the
    /// small queue.
    fn put_back(&self, group: GroupId, priority: usize, items: &[(Item, bool)]) {
        self.with(group, |queue| {
            let queue = &mut queue.queues[priority];
            for (item, was_small) in items.iter().rev() {
                let place = if *was_small { &mut queue.small } else { &mut queue.main };
                place.push_front(*item);
                queue.add_bytes(!was_small, 1);
            }
        });
    }

    fn keep(&self, group: GroupId, priority: usize, item: Item, into_main: bool) {
        self.with(group, |queue| queue.queues[priority].insert(item, 1, into_main));
    }
}

/// Fate of a chunk at the head of its queue.
enum Verdict {
    Gone,
    /// Leased, pinned or being changed, which does not show how cold it is: it returns to its own
    /// queue.
    Protected,
    /// Rejected by the caller.
    Unwanted,
    /// Read since its last visit.
    Read,
    /// May be evicted: id, version and bytes.
    Goes(ChunkId, u64, u64),
}

/// Result of a call of [`Engine::coldest_of_group`] so far.
#[derive(Default)]
struct FoundInGroup {
    ids: Vec<(ChunkId, u64)>,
    known: HashSet<ChunkId>,
    bytes: u64,
}

impl<D: Disk> Inner<D> {
    /// Judges the chunk that an item names, if it is `wanted`. A chunk that is not yet on the disk
    /// may be evicted too: dropping it saves writing it.
    fn judge(
        &self,
        group: GroupId,
        item: Item,
        wanted: &mut dyn FnMut(ChunkId, &[u8]) -> bool,
    ) -> Verdict {
        let mut shard = self.index.shard_at(item.shard as usize);
        let Some(e) = shard.live(item.slot).copied() else { return Verdict::Gone };
        if e.group != group || low_half(e.version()) != item.version {
            return Verdict::Gone;
        }
        let now = self.clock.now();
        let leased = shard.leases.get(&item.slot).is_some_and(|until| *until > now);
        if leased || e.pinned() || shard.busy.contains_key(&e.id) {
            return Verdict::Protected;
        }
        // Before the reads are checked: an unwanted chunk keeps its count.
        if !wanted(e.id, shard.attrs(item.slot)) {
            return Verdict::Unwanted;
        }
        if e.frequency() > 0 {
            shard.entry_mut(item.slot).set_frequency(e.frequency() - 1);
            return Verdict::Read;
        }
        shard.remember_evicted(item.slot);
        Verdict::Goes(e.id, e.version(), u64::from(e.len()))
    }

    /// Evicts the coldest chunk of a group and priority; returns its bytes, or `None` when none may
    /// go.
    fn evict_coldest(&self, group: GroupId, priority: usize) -> Option<u64> {
        let groups = &self.index.groups;
        let queued = groups.with(group, |queue| queue.queues[priority].len())?;
        // Four rounds of both queues use up any count of reads; then only protected chunks are
        // left.
        for look in 0..(queued * 8).min(LOOKS_MAX) {
            let (item, was_small) = groups.pop(group, priority, Turn::of_look(look, queued))?;
            match self.judge(group, item, &mut |_, _| true) {
                Verdict::Gone => {}
                Verdict::Goes(id, version, bytes) if self.remove_lazily(id, version) => {
                    return Some(bytes);
                }
                Verdict::Read => groups.keep(group, priority, item, true),
                Verdict::Protected | Verdict::Unwanted | Verdict::Goes(..) => {
                    groups.keep(group, priority, item, !was_small);
                }
            }
        }
        None
    }

    /// Finds the coldest chunks of a group and priority, and moves them to the end of their queue.
    fn coldest_in_group(
        &self,
        (group, priority): (GroupId, usize),
        bytes: u64,
        found: &mut FoundInGroup,
        wanted: &mut dyn FnMut(ChunkId, &[u8]) -> bool,
    ) {
        let groups = &self.index.groups;
        let queued = groups.with(group, |queue| queue.queues[priority].len()).unwrap_or(0);
        let mut passed: Vec<(Item, bool)> = Vec::new();
        for look in 0..(queued * 8).min(LOOKS_MAX) {
            if found.bytes >= bytes {
                break;
            }
            let popped = groups.pop(group, priority, Turn::of_look(look, queued));
            let Some((item, was_small)) = popped else { break };
            let FoundInGroup { known, .. } = found;
            let mut new = |id: ChunkId, attrs: &[u8]| !known.contains(&id) && wanted(id, attrs);
            match self.judge(group, item, &mut new) {
                Verdict::Gone => {}
                Verdict::Goes(id, _, len) => {
                    found.ids.push((id, len));
                    found.known.insert(id);
                    found.bytes += len;
                    groups.keep(group, priority, item, !was_small);
                }
                Verdict::Read => groups.keep(group, priority, item, true),
                Verdict::Unwanted if passed.len() < PASSED_MAX => passed.push((item, was_small)),
                Verdict::Protected | Verdict::Unwanted => {
                    groups.keep(group, priority, item, !was_small);
                }
            }
        }
        groups.put_back(group, priority, &passed);
    }

    /// Drops items of chunks that are gone from queues that hold too many of them.
    pub(crate) fn sweep_groups(&self) {
        let groups = &self.index.groups;
        let full = |(id, queue): (&GroupId, &GroupQueue)| {
            (queue.len() > 2 * queue.chunks + GONE_MIN).then_some(*id)
        };
        let swept: Vec<GroupId> = groups.queues.lock().iter().filter_map(full).collect();
        for group in swept {
            for priority in 0..PRIORITIES {
                let queued = groups.with(group, |queue| {
                    let queue = &mut queue.queues[priority];
                    (queue.small_bytes, queue.main_bytes) = (0, 0);
                    (std::mem::take(&mut queue.small), std::mem::take(&mut queue.main))
                });
                let Some((mut small, mut main)) = queued else { break };
                small.retain(|item| !self.is_gone(group, *item));
                main.retain(|item| !self.is_gone(group, *item));
                groups.with(group, |queue| {
                    // Items queued in the meantime are younger.
                    let queue = &mut queue.queues[priority];
                    small.append(&mut queue.small);
                    main.append(&mut queue.main);
                    (queue.small_bytes, queue.main_bytes) = (small.len() as u64, main.len() as u64);
                    (queue.small, queue.main) = (small, main);
                });
            }
        }
    }

    fn is_gone(&self, group: GroupId, item: Item) -> bool {
        let shard = self.index.shard_at(item.shard as usize);
        let here = |e: &Entry| e.group == group && low_half(e.version()) == item.version;
        !shard.live(item.slot).is_some_and(here)
    }

    /// Gathers the chunks of groups that are not tracked yet, oldest first.
    fn track(&self, wanted: &[GroupId]) {
        let groups = &self.index.groups;
        let _gathering = groups.gathering.lock();
        let mut new: Vec<GroupId> = Vec::new();
        {
            let mut queues = groups.queues.lock();
            for group in wanted {
                queues.entry(*group).or_insert_with(|| {
                    new.push(*group);
                    GroupQueue::default()
                });
            }
            groups.tracked.store(queues.len(), Ordering::Release);
        }
        let mut found: Vec<(Entry, u32)> = Vec::new();
        for at in 0..SHARDS {
            let shard = self.index.shard_at(at);
            if new.iter().any(|group| shard.usage.contains_key(group)) {
                let live = (0..shard.slots()).filter_map(|slot| Some((*shard.live(slot)?, slot)));
                found.extend(live.filter(|(e, _)| e.evictable() && new.contains(&e.group)));
            }
        }
        found.sort_unstable_by_key(|(e, _)| e.version());
        let mut queues = groups.queues.lock();
        for (e, slot) in found {
            if let Some(queue) = queues.get_mut(&e.group) {
                // Written since the groups became known, and so queued already: a second entry does
                // no harm.
                queue.chunks += 1;
                queue.push(&e, slot);
            }
        }
    }
}

impl<D: Disk> Engine<D> {
    /// Prepares eviction inside these groups. Visits every chunk of the disk, unless the groups are
    /// new: so call it before eviction is needed, and once for all groups.
    pub fn track_groups(&self, groups: &[GroupId]) {
        if !groups.is_empty() {
            self.0.track(groups);
        }
    }

    /// Stops tracking a group; its chunks are removed by other paths.
    pub fn forget_group(&self, group: GroupId) {
        self.0.index.groups.forget(group);
    }

    /// Items in a tracked group's queues, including those of removed chunks: the memory cost of
    /// tracking it.
    #[must_use]
    pub fn group_queue_len(&self, group: GroupId) -> u64 {
        self.0.index.groups.with(group, |queue| queue.len()).unwrap_or(0)
    }

    /// Evicts the coldest chunks of one group, lowest priority first, until `bytes` of values are
    /// removed; returns the evicted chunks and bytes.
    ///
    /// Only evictable chunks go, and none that is leased, pinned or being changed; so the result
    /// may be smaller than requested. It does not wait: the deletes reach the log with the next
    /// batch, and slabs are reused only after that. A crash before it may bring evicted chunks
    /// back.
    #[must_use]
    pub fn evict_group(&self, group: GroupId, bytes: u64) -> Usage {
        let inner = &self.0;
        let mut evicted = Usage::default();
        if inner.log.check().is_err() {
            // The deletes could not be logged: the chunks would be lost without freeing their
            // space.
            return evicted;
        }
        if inner.index.groups.with(group, |_| ()).is_none() {
            inner.track(&[group]);
        }
        for priority in 0..PRIORITIES {
            while evicted.bytes < bytes
                && let Some(freed) = inner.evict_coldest(group, priority)
            {
                evicted.chunks += 1;
                evicted.bytes += freed;
            }
        }
        inner.metrics.evictions.add(evicted.chunks);
        evicted
    }

    /// Lists the coldest chunks of one group worth `bytes` of values, lowest priority first, with
    /// their bytes and without removing them: evictable, not leased, pinned or being changed, and
    /// not recently read.
    ///
    /// `wanted` gets a chunk's attributes; it runs under the engine's lock and must not call the
    /// engine. A returned chunk moves to the end of its queue; up to a thousand unwanted chunks
    /// keep their places. Visits a bounded number of chunks, some milliseconds' worth, so the
    /// result may be smaller than requested.
    #[must_use]
    pub fn coldest_of_group(
        &self,
        group: GroupId,
        bytes: u64,
        mut wanted: impl FnMut(ChunkId, &[u8]) -> bool,
    ) -> Vec<(ChunkId, u64)> {
        let inner = &self.0;
        if inner.index.groups.with(group, |_| ()).is_none() {
            inner.track(&[group]);
        }
        let mut found = FoundInGroup::default();
        for priority in 0..PRIORITIES {
            inner.coldest_in_group((group, priority), bytes, &mut found, &mut wanted);
        }
        found.ids
    }
}
