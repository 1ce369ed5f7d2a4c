//! One chunk in memory: 48 bytes, plus attributes and piece checksums beside it ([`super::sides`]).

use millpond_types::{ChunkId, Crc32c, GroupId};

use crate::format::record::Location;

/// Queues of eviction: probation and main (S3-FIFO), or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    None = 0,
    Small = 1,
    Main = 2,
}

/// Flag bits in the low byte of `segment_flags`; the eviction state is in `state`.
const EVICTABLE: u32 = 1 << 27;
const PINNED: u32 = 1 << 28;
const HOT: u32 = 1 << 29;
const DEAD: u32 = 1 << 30;
const SIDE: u32 = 1 << 31;
const LEN_MASK: u32 = (1 << 27) - 1;

/// Packed chunk state. Byte-wise fields keep it at 48 bytes with 8-byte alignment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ChunkId,
    /// Version in the upper 48 bits, then the class' upper 2 bits and the slab in 14.
    version_slab: u64,
    len_flags: u32,
    pub(crate) crc: Crc32c,
    pub(crate) group: GroupId,
    pub(crate) expires: u32,
    pub(crate) side: u32,
    /// Segment in the upper 21 bits, then the class' lower 5; frequency, queue, priority in 2 each.
    segment_state: u32,
}

/// Index share of one chunk: the entry; four bytes and a control byte per bucket of a hash
/// table at its emptiest (7/16 full); four bytes of eviction queue.
pub(crate) const INDEX_BYTES_PER_CHUNK: usize = size_of::<Entry>() + (5 * 16usize).div_ceil(7) + 4;
const _: () = assert!(INDEX_BYTES_PER_CHUNK <= 64);

impl Entry {
    pub(crate) fn new(id: ChunkId, version: u64, location: Location) -> Self {
        assert!(version >> 48 == 0, "versions have 48 bits");
        let mut entry = Self {
            id,
            version_slab: version << 16,
            len_flags: 0,
            crc: Crc32c::EMPTY,
            group: GroupId(0),
            expires: 0,
            side: 0,
            segment_state: 0,
        };
        entry.set_location(location);
        entry
    }

    pub(crate) fn set_version(&mut self, version: u64) {
        assert!(version >> 48 == 0, "versions have 48 bits");
        self.version_slab = self.version_slab & 0xffff | version << 16;
    }
    pub(crate) const fn version(&self) -> u64 {
        self.version_slab >> 16
    }
    pub(crate) const fn location(&self) -> Location {
        let low = (self.version_slab & 0xffff) as u16;
        let class = (self.segment_state >> 6 & 0x1f) as u8 | ((low >> 14) as u8) << 5;
        Location { segment: self.segment_state >> 11, slab: low & 0x3fff, class }
    }
    pub(crate) fn set_location(&mut self, l: Location) {
        assert!(l.segment >> 21 == 0, "segments have 21 bits");
        assert!(l.slab >> 14 == 0, "slabs have 14 bits");
        let low = l.slab | u16::from(l.class >> 5) << 14;
        self.version_slab = self.version_slab & !0xffff | u64::from(low);
        let state = l.segment << 11 | u32::from(l.class & 0x1f) << 6;
        self.segment_state = self.segment_state & 0x3f | state;
    }
    pub(crate) const fn len(&self) -> u32 {
        self.len_flags & LEN_MASK
    }
    pub(crate) fn set_len(&mut self, len: u32) {
        assert!(len <= LEN_MASK, "lengths have 27 bits");
        self.len_flags = self.len_flags & !LEN_MASK | len;
    }
    fn set(&mut self, bit: u32, on: bool) {
        self.len_flags = if on { self.len_flags | bit } else { self.len_flags & !bit };
    }
    pub(crate) const fn evictable(&self) -> bool {
        self.len_flags & EVICTABLE != 0
    }
    pub(crate) const fn pinned(&self) -> bool {
        self.len_flags & PINNED != 0
    }
    pub(crate) const fn hot(&self) -> bool {
        self.len_flags & HOT != 0
    }
    pub(crate) const fn dead(&self) -> bool {
        self.len_flags & DEAD != 0
    }
    pub(crate) const fn has_side(&self) -> bool {
        self.len_flags & SIDE != 0
    }
    pub(crate) fn set_evictable(&mut self, on: bool) {
        self.set(EVICTABLE, on);
    }
    pub(crate) fn set_pinned(&mut self, on: bool) {
        self.set(PINNED, on);
    }
    pub(crate) fn set_hot(&mut self, on: bool) {
        self.set(HOT, on);
    }
    pub(crate) fn set_dead(&mut self, on: bool) {
        self.set(DEAD, on);
    }
    pub(crate) fn set_side(&mut self, side: Option<u32>) {
        self.set(SIDE, side.is_some());
        self.side = side.unwrap_or(0);
    }
    pub(crate) const fn priority(&self) -> usize {
        (self.segment_state & 3) as usize
    }
    pub(crate) fn set_priority(&mut self, priority: u8) {
        self.segment_state = self.segment_state & !3 | u32::from(priority & 3);
    }
    pub(crate) const fn queue(&self) -> Queue {
        match self.segment_state >> 2 & 3 {
            1 => Queue::Small,
            2 => Queue::Main,
            _ => Queue::None,
        }
    }
    pub(crate) fn set_queue(&mut self, queue: Queue) {
        self.segment_state = self.segment_state & !0xc | (queue as u32) << 2;
    }
    pub(crate) const fn frequency(&self) -> u32 {
        self.segment_state >> 4 & 3
    }
    pub(crate) fn set_frequency(&mut self, n: u32) {
        self.segment_state = self.segment_state & !0x30 | n.min(3) << 4;
    }
    pub(crate) const fn expired(&self, unix_seconds: u32) -> bool {
        self.expires != 0 && self.expires <= unix_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_disturb_each_other() {
        let at = Location { segment: 0x1b_cdef, slab: 0x1234, class: 95 };
        let mut e = Entry::new(ChunkId(1), (1 << 48) - 1, at);
        e.set_len(64 << 20);
        e.set_priority(2);
        e.set_queue(Queue::Main);
        e.set_frequency(9);
        e.set_pinned(true);
        e.set_side(Some(7));
        assert_eq!((e.version(), e.location(), e.len()), ((1 << 48) - 1, at, 64 << 20));
        assert_eq!((e.priority(), e.queue(), e.frequency()), (2, Queue::Main, 3));
        assert!(e.pinned() && e.has_side() && !e.evictable() && !e.dead() && !e.hot());
        e.set_location(Location { segment: 1, slab: 2, class: 3 });
        assert_eq!((e.priority(), e.queue(), e.frequency()), (2, Queue::Main, 3));
        assert_eq!(e.version(), (1 << 48) - 1);
    }
}
