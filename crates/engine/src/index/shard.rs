//! One shard: hash table, entries, chunks in memory, leases and eviction queues.

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashTable;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::{ChunkId, GroupId, Tick, UnixSeconds};

use super::entry::{Entry, INDEX_BYTES_PER_CHUNK, Queue};
use super::guard::Busy;
use super::queues::{Ghost, Probe, Queues, Turn, Verdict};
use super::sides::Sides;
use super::{ChunkInfo, Hot, SHARED_BYTES, SlotMap, Usage, hash_id};
use crate::content::Content;
use crate::format::record::{ChunkRecord, Location, piece_count};
use crate::quota::Groups;

/// Entries per page of the entry array: growing never copies entries.
const PAGE: usize = 4096;
/// Priorities of eviction.
const PRIORITIES: usize = 4;

/// Resources of a removed chunk that its caller must free.
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) location: Location,
    pub(crate) hot: Option<Hot>,
    pub(crate) leased: bool,
    pub(crate) len: u32,
}

/// One of the index's shards.
#[derive(Debug)]
pub(crate) struct Shard {
    table: HashTable<u32>,
    pages: Vec<Vec<Entry>>,
    free: Vec<u32>,
    sides: Sides,
    pub(crate) hot: SlotMap<Hot>,
    pub(crate) leases: SlotMap<Tick>,
    pub(crate) busy: Busy,
    queues: [Queues<u32>; PRIORITIES],
    ghost: Ghost,
    groups: Arc<Groups>,
    dram: Queues<(u32, u32)>,
    next_ticket: u32,
    pub(crate) usage: HashMap<GroupId, Usage>,
    dead: usize,
    /// Number of empty chunks of the system group: marks that an owner keeps for removed chunks for
    /// a while.
    bare: usize,
}

const fn table_hash(id: ChunkId) -> u64 {
    // The upper six bits chose the shard. The table takes its buckets from the lowest bits and
    // its tags from the highest: halves swapped, neither is the same throughout a shard.
    hash_id(id).rotate_left(32)
}

#[expect(clippy::cast_possible_truncation, reason = "a fingerprint")]
const fn fingerprint(id: ChunkId) -> u32 {
    hash_id(id) as u32
}

/// Approximate bytes of a chunk on the disk.
pub(crate) fn weight(len: u32) -> u64 {
    u64::from(len.max(1)).next_multiple_of(PAGE_BYTES as u64)
}

fn is_bare(e: &Entry) -> bool {
    e.len() == 0 && e.group == GroupId::SYSTEM
}

/// Attributes with their length before them, then piece checksums.
fn add_side(sides: &mut Sides, c: &ChunkRecord) -> u32 {
    let len = u16::try_from(c.attrs.len()).unwrap_or(u16::MAX).to_le_bytes();
    let pieces: Vec<u8> = c.pieces.iter().flat_map(|piece| piece.to_le_bytes()).collect();
    sides.add(&[&len, &c.attrs, &pieces])
}

/// Attributes, and the bytes behind them: the piece checksums.
fn side_of<'a>(sides: &'a Sides, entry: &Entry) -> (&'a [u8], &'a [u8]) {
    if !entry.has_side() {
        return (&[], &[]);
    }
    let side = sides.get(entry.side);
    let len = usize::from(u16::from_le_bytes([side[0], side[1]]));
    side[2..].split_at(len)
}

impl Shard {
    pub(super) fn new(expected: usize, groups: Arc<Groups>) -> Self {
        Self {
            table: HashTable::with_capacity(expected),
            pages: Vec::new(),
            free: Vec::new(),
            sides: Sides::default(),
            hot: SlotMap::default(),
            leases: SlotMap::default(),
            busy: Busy::default(),
            queues: Default::default(),
            ghost: Ghost::default(),
            groups,
            dram: Queues::default(),
            next_ticket: 0,
            usage: HashMap::new(),
            dead: 0,
            bare: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Approximate memory in bytes of entries, their sides, tables and queues.
    pub(super) fn memory_bytes(&self) -> usize {
        let entries: usize = self.pages.iter().map(Vec::capacity).sum();
        let queued: usize = self.queues.iter().map(Queues::len).sum();
        let slots = self.table.capacity() + queued + self.free.capacity();
        let hot = self.hot.capacity() * size_of::<(u32, Hot)>() + self.hot.len() * SHARED_BYTES;
        entries * size_of::<Entry>() + slots * size_of::<u32>() + hot + self.sides.bytes()
    }

    /// Approximate memory in bytes of the live chunks, without the extra memory of chunks in
    /// memory. After removals it is less than [`Self::memory_bytes`], as later chunks reuse the
    /// freed memory.
    pub(super) fn live_bytes(&self) -> usize {
        self.len() * INDEX_BYTES_PER_CHUNK + self.sides.live_bytes()
    }

    /// Number of empty chunks of the system group among them.
    pub(super) const fn bare(&self) -> usize {
        self.bare
    }

    /// Slots in use or once used: the range a scan walks.
    pub(crate) fn slots(&self) -> u32 {
        let full = self.pages.len().saturating_sub(1) * PAGE;
        u32::try_from(full + self.pages.last().map_or(0, Vec::len)).unwrap_or(u32::MAX)
    }

    pub(crate) fn find(&self, id: ChunkId) -> Option<u32> {
        self.table.find(table_hash(id), |slot| self.entry(*slot).id == id).copied()
    }

    pub(crate) fn entry(&self, slot: u32) -> &Entry {
        &self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }

    pub(crate) fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }

    /// The live chunk in a slot, if any.
    pub(crate) fn live(&self, slot: u32) -> Option<&Entry> {
        let entry = self.pages.get(slot as usize / PAGE)?.get(slot as usize % PAGE)?;
        (!entry.dead()).then_some(entry)
    }

    pub(crate) fn attrs(&self, slot: u32) -> &[u8] {
        side_of(&self.sides, self.entry(slot)).0
    }

    /// Piece checksums; a chunk of one piece has its own checksum as the only one.
    pub(crate) fn pieces(&self, slot: u32) -> Vec<u32> {
        let entry = self.entry(slot);
        let count = piece_count(entry.len());
        if count == 0 {
            return Vec::new();
        }
        let sums = side_of(&self.sides, entry).1.get(..count * 4).unwrap_or_default();
        sums.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    pub(crate) fn info(&self, slot: u32) -> ChunkInfo {
        let e = self.entry(slot);
        ChunkInfo {
            id: e.id,
            version: e.version(),
            len: e.len(),
            crc: e.crc,
            group: e.group,
            expires: (e.expires != 0).then_some(UnixSeconds(e.expires)),
            priority: u8::try_from(e.priority()).unwrap_or(0),
            evictable: e.evictable(),
            pinned: e.pinned(),
            in_memory: e.hot(),
            lost: e.location().is_nowhere() && e.len() > 0,
        }
    }

    pub(crate) fn record(&self, slot: u32) -> ChunkRecord {
        let e = self.entry(slot);
        ChunkRecord {
            id: e.id,
            version: e.version(),
            len: e.len(),
            crc: e.crc,
            group: e.group,
            expires: e.expires,
            location: e.location(),
            priority: u8::try_from(e.priority()).unwrap_or(0),
            evictable: e.evictable(),
            pinned: e.pinned(),
            attrs: self.attrs(slot).into(),
            pieces: self.pieces(slot).into(),
        }
    }

    /// Inserts a chunk that is absent and returns its slot.
    pub(crate) fn insert(&mut self, c: &ChunkRecord) -> u32 {
        self.insert_known(c, false)
    }

    /// Inserts a chunk; one that is `known` to be read skips probation.
    pub(crate) fn insert_known(&mut self, c: &ChunkRecord, known: bool) -> u32 {
        let mut e = Entry::new(c.id, c.version, c.location);
        e.set_len(c.len);
        e.crc = c.crc;
        e.group = c.group;
        e.expires = c.expires;
        e.set_priority(c.priority);
        e.set_evictable(c.evictable);
        e.set_pinned(c.pinned);
        if !c.attrs.is_empty() || !c.pieces.is_empty() {
            e.set_side(Some(add_side(&mut self.sides, c)));
        }
        let in_main = known || self.ghost.take(fingerprint(c.id));
        if c.evictable {
            e.set_queue(if in_main { Queue::Main } else { Queue::Small });
        }
        let slot = self.add_entry(e);
        if c.evictable {
            self.queues[e.priority()].insert(slot, weight(c.len), in_main);
        }
        self.bare += usize::from(is_bare(self.entry(slot)));
        let usage = self.usage.entry(c.group).or_default();
        usage.chunks += 1;
        usage.bytes += u64::from(c.len);
        let Self { table, pages, .. } = self;
        table.insert_unique(table_hash(c.id), slot, |s| {
            table_hash(pages[*s as usize / PAGE][*s as usize % PAGE].id)
        });
        self.groups.came(self.entry(slot), slot);
        slot
    }

    /// Changes place, length, checksums, version and pin of the chunk in `slot`.
    pub(crate) fn update(&mut self, slot: u32, c: &ChunkRecord) {
        let old = *self.entry(slot);
        if let Some(usage) = self.usage.get_mut(&old.group) {
            usage.bytes = (usage.bytes + u64::from(c.len)).saturating_sub(u64::from(old.len()));
        }
        if old.queue() != Queue::None {
            let in_main = old.queue() == Queue::Main;
            let queue = &mut self.queues[old.priority()];
            queue.forget_bytes(in_main, weight(old.len()));
            queue.add_bytes(in_main, weight(c.len));
        }
        if !c.pieces.is_empty() || old.len() != c.len {
            if old.has_side() {
                self.sides.remove(old.side);
            }
            let side = add_side(&mut self.sides, c);
            self.entry_mut(slot).set_side(Some(side));
        }
        let e = self.entry_mut(slot);
        e.set_version(c.version);
        e.set_location(c.location);
        e.set_len(c.len);
        e.crc = c.crc;
        e.set_pinned(c.pinned);
        let is_bare_now = is_bare(e);
        self.bare = self.bare + usize::from(is_bare_now) - usize::from(is_bare(&old));
        if c.version != old.version() {
            self.groups.went(&old);
            self.groups.came(self.entry(slot), slot);
        }
    }

    fn add_entry(&mut self, e: Entry) -> u32 {
        if let Some(slot) = self.free.pop() {
            *self.entry_mut(slot) = e;
            return slot;
        }
        if self.pages.last().is_none_or(|p| p.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let slot = self.slots();
        if let Some(page) = self.pages.last_mut() {
            page.push(e);
        }
        slot
    }

    /// Removes the chunk in `slot`.
    pub(crate) fn remove(&mut self, slot: u32) -> Removed {
        let e = *self.entry(slot);
        if let Ok(found) = self.table.find_entry(table_hash(e.id), |s| *s == slot) {
            found.remove();
        }
        if let Some(usage) = self.usage.get_mut(&e.group) {
            usage.chunks = usage.chunks.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(u64::from(e.len()));
            if usage.chunks == 0 {
                self.usage.remove(&e.group);
            }
        }
        if e.has_side() {
            self.sides.remove(e.side);
        }
        self.bare -= usize::from(is_bare(&e));
        self.groups.went(&e);
        let hot = self.take_hot(slot);
        let leased = self.leases.remove(&slot).is_some();
        self.entry_mut(slot).set_dead(true);
        match e.queue() {
            Queue::None => self.free.push(slot),
            queue => {
                self.queues[e.priority()].forget_bytes(queue == Queue::Main, weight(e.len()));
                self.dead += 1;
                self.sweep_dead();
            }
        }
        Removed { location: e.location(), hot, leased, len: e.len() }
    }

    /// Frees slots that only an eviction queue still names; amortised constant cost.
    fn sweep_dead(&mut self) {
        let queued: usize = self.queues.iter().map(Queues::len).sum();
        if self.dead < 64 + queued / 8 {
            return;
        }
        let Self { queues, pages, free, .. } = self;
        for q in queues.iter_mut().flat_map(|q| [&mut q.small, &mut q.main]) {
            q.retain(|slot| {
                let dead = pages[*slot as usize / PAGE][*slot as usize % PAGE].dead();
                if dead {
                    free.push(*slot);
                }
                !dead
            });
        }
        self.dead = 0;
    }

    /// Counts a read for both tiers.
    pub(crate) fn touch(&mut self, slot: u32) {
        let e = self.entry_mut(slot);
        e.set_frequency(e.frequency() + 1);
    }

    /// Next chunk to evict: `Some(Ok(slot))`, or `Some(Err(()))` when the step only moved one.
    ///
    /// Keeps chunks that are leased, pinned, dirty, being changed or not `wanted`. `wanted` is
    /// called last: a chunk that it accepts is evicted.
    pub(crate) fn evict_step(
        &mut self,
        (priority, turn): (usize, Turn),
        now: Tick,
        wanted: &mut dyn FnMut(&Entry, &[u8]) -> bool,
    ) -> Option<Result<u32, ()>> {
        let Self { queues, pages, sides, leases, hot, busy, .. } = self;
        let entry = |slot: u32| pages[slot as usize / PAGE][slot as usize % PAGE];
        let (slot, verdict) = queues[priority].step(turn, |slot| {
            let e = entry(slot);
            if e.dead() {
                return Probe::Gone;
            }
            let bytes = weight(e.len());
            let leased = leases.get(&slot).is_some_and(|until| *until > now);
            let dirty = e.hot() && hot.get(&slot).is_some_and(|h| h.dirty);
            if leased || dirty || e.pinned() || busy.contains_key(&e.id) {
                return Probe::Protected(bytes);
            }
            if e.frequency() == 0 && !wanted(&e, side_of(sides, &e).0) {
                return Probe::Protected(bytes);
            }
            Probe::Idle { bytes, reads: e.frequency() }
        })?;
        let e = self.entry_mut(slot);
        Some(match verdict {
            Verdict::Forgotten => {
                self.dead -= 1;
                self.free.push(slot);
                Err(())
            }
            Verdict::Main { reads } => {
                e.set_queue(Queue::Main);
                e.set_frequency(reads);
                Err(())
            }
            Verdict::Evicted => {
                // Out of the queue; `requeue` puts it back if the eviction fails.
                self.remember_evicted(slot);
                self.entry_mut(slot).set_queue(Queue::None);
                Ok(slot)
            }
        })
    }

    /// Remembers an evicted chunk: when it is stored again, it skips probation.
    pub(crate) fn remember_evicted(&mut self, slot: u32) {
        let e = self.entry(slot);
        if e.queue() == Queue::Small {
            let seen = fingerprint(e.id);
            self.ghost.remember(seen);
        }
    }

    /// Puts a chunk that was chosen for eviction but stays into the main queue.
    pub(crate) fn requeue(&mut self, slot: u32) {
        let e = self.entry_mut(slot);
        if e.queue() == Queue::None && e.evictable() && !e.dead() {
            e.set_queue(Queue::Main);
            let (priority, bytes) = (e.priority(), weight(e.len()));
            self.queues[priority].insert(slot, bytes, true);
        }
    }

    pub(crate) fn queued(&self, priority: usize) -> usize {
        self.queues[priority].len()
    }

    /// Keeps `bytes` in memory as the content of `slot`.
    pub(crate) fn set_hot(&mut self, slot: u32, bytes: impl Into<Content>, dirty: bool) {
        if self.entry(slot).hot() {
            self.take_hot(slot);
        }
        let ticket = self.next_ticket;
        self.next_ticket = ticket.wrapping_add(1);
        let e = self.entry_mut(slot);
        e.set_hot(true);
        // A chunk that was read before it left memory skips probation: its own count serves as the
        // ghost.
        let (bytes_held, known) = (weight(e.len()), e.frequency() >= 2);
        self.hot.insert(slot, Hot::new(bytes.into(), ticket, dirty));
        self.dram.insert((slot, ticket), bytes_held, known);
        if self.dram.len() > 2 * self.hot.len() + 64 {
            let Self { dram, hot, .. } = self;
            let valid = |(slot, t): &(u32, u32)| hot.get(slot).is_some_and(|h| h.ticket == *t);
            dram.small.retain(valid);
            dram.main.retain(valid);
        }
    }

    /// Drops the bytes of `slot` from memory.
    pub(crate) fn take_hot(&mut self, slot: u32) -> Option<Hot> {
        let hot = self.hot.remove(&slot)?;
        let e = self.entry_mut(slot);
        e.set_hot(false);
        let bytes = weight(e.len());
        // The queue that holds it is not stored: take from the larger, as the sums only guide a
        // policy.
        let in_main = self.dram.main_bytes >= self.dram.small_bytes;
        self.dram.forget_bytes(in_main, bytes);
        Some(hot)
    }

    /// Drops one clean chunk from memory; `Some(bytes)` when a step was made, with the bytes freed,
    /// `None` when nothing can be dropped.
    pub(crate) fn reclaim_step(&mut self) -> Option<u64> {
        let Self { dram, hot, .. } = self;
        let ((slot, _), verdict) =
            dram.step(Turn::Policy, |(slot, ticket)| match hot.get(&slot) {
                Some(h) if h.ticket == ticket => {
                    let bytes = weight(u32::try_from(h.bytes.len()).unwrap_or(u32::MAX));
                    // Bytes that are being sent right now would not be freed anyway.
                    if h.dirty || h.bytes.is_shared() {
                        Probe::Protected(bytes)
                    } else {
                        Probe::Idle { bytes, reads: u32::from(h.reads) }
                    }
                }
                _ => Probe::Gone,
            })?;
        Some(match verdict {
            Verdict::Forgotten => 0,
            Verdict::Main { reads } => {
                if let Some(h) = self.hot.get_mut(&slot) {
                    h.reads = u8::try_from(reads).unwrap_or(u8::MAX);
                }
                0
            }
            Verdict::Evicted => {
                self.entry_mut(slot).set_hot(false);
                self.hot
                    .remove(&slot)
                    .map_or(0, |h| weight(u32::try_from(h.bytes.len()).unwrap_or(0)))
            }
        })
    }

    pub(crate) fn hot_len(&self) -> usize {
        self.dram.len()
    }
}
