//! Disk space: segments, their slabs, and the readers of each slab.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use millpond_types::Tick;
use parking_lot::Mutex;

use crate::format::class::{CLASSES, Class};
use crate::format::record::Location;
use crate::format::superblock::DATA_START;

/// While segments are left, a chunk gets a slab of at most this many times its class size.
const SHARED_MAX: u64 = 4;
/// Time for which a disk without room is assumed to have none.
const ROOM_RETRY: Duration = Duration::from_secs(5);

fn class_byte(class: Class) -> u8 {
    u8::try_from(class.index()).unwrap_or(u8::MAX)
}

/// Use of a segment.
#[derive(Debug)]
enum Use {
    Free,
    Log,
    Checkpoint,
    Slabs(Slabs),
}

/// A segment cut into slabs of one class; a set bit is a slab in use.
#[derive(Debug)]
struct Slabs {
    class: Class,
    free: u16,
    draining: bool,
    used: Box<[u64]>,
}

impl Slabs {
    fn new(class: Class, segment_bytes: u64) -> Self {
        let count = class.slabs_per_segment(segment_bytes);
        let words = usize::from(count).div_ceil(64);
        Self { class, free: count, draining: false, used: vec![0; words].into() }
    }

    fn is_used(&self, slab: u16) -> bool {
        self.used.get(usize::from(slab) / 64).is_some_and(|w| w >> (slab % 64) & 1 == 1)
    }

    fn set(&mut self, slab: u16, on: bool) {
        let bit = 1 << (slab % 64);
        let word = &mut self.used[usize::from(slab) / 64];
        assert!((*word & bit != 0) != on, "slab {slab} is taken or given back twice");
        *word ^= bit;
        self.free = if on { self.free - 1 } else { self.free + 1 };
    }

    fn first_free(&self) -> Option<u16> {
        let word = self.used.iter().position(|w| *w != u64::MAX)?;
        u16::try_from(word * 64 + self.used[word].trailing_ones() as usize).ok()
    }
}

/// Use of the segments of one slab class, for `inspect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassUsage {
    /// Bytes of one slab.
    pub slab_bytes: u64,
    /// Segments of this class.
    pub segments: u32,
    /// Slabs in use.
    pub used_slabs: u64,
    /// Slabs not in use.
    pub free_slabs: u64,
}

/// Segments of one class that are being filled, by their slabs not in use.
#[derive(Clone, Debug, Default)]
struct Partial {
    segments: BTreeSet<(u16, u32)>,
    /// Slabs not in use in all of them.
    holes: usize,
}

impl Partial {
    fn insert(&mut self, free: u16, segment: u32) {
        if self.segments.insert((free, segment)) {
            self.holes += usize::from(free);
        }
    }

    fn remove(&mut self, free: u16, segment: u32) {
        if self.segments.remove(&(free, segment)) {
            self.holes -= usize::from(free);
        }
    }

    /// The one with the fewest free slabs.
    fn fullest(&self) -> Option<u32> {
        self.segments.first().map(|(_, segment)| *segment)
    }
}

/// The allocator of one disk.
#[derive(Debug)]
pub(crate) struct Space {
    segment_bytes: u64,
    segments: Vec<Use>,
    /// Slabs and checkpoints take from the back. Former log segments are at the front, and return
    /// to the log if possible.
    free: VecDeque<u32>,
    /// Free segments without a promise of room from the disk, the lowest last.
    bare: VecDeque<u32>,
    /// Time when the disk had no room for a segment, if none has got any since.
    short_since: Option<Tick>,
    /// Segments refused since the last success.
    refused: usize,
    /// The log's next segment, if it is prepared already.
    ready: Option<u32>,
    /// Segments that were prepared for the log: every byte of them was written once.
    written: HashSet<u32>,
    partial: Vec<Partial>,
    /// Free segments that slabs may not take. The log and checkpoints must always be able to
    /// continue, as a full disk is emptied by logging deletes.
    reserve: usize,
    /// Segments of the log and of checkpoints.
    taken: usize,
    used_bytes: u64,
}

impl Space {
    pub(crate) fn new(segments: u32, segment_bytes: u64) -> Self {
        let reserve = (segments as usize / 50).clamp(3, 16).min(segments as usize / 2);
        Self {
            segment_bytes,
            segments: (0..segments).map(|_| Use::Free).collect(),
            free: (0..segments).rev().collect(),
            bare: VecDeque::new(),
            short_since: None,
            refused: 0,
            ready: None,
            written: HashSet::new(),
            partial: vec![Partial::default(); CLASSES],
            reserve,
            taken: 0,
            used_bytes: 0,
        }
    }

    /// Byte offset of a segment.
    pub(crate) fn segment_offset(&self, segment: u32) -> u64 {
        DATA_START + u64::from(segment) * self.segment_bytes
    }

    /// Byte offset and length of a slab; `None` when the location names none.
    pub(crate) fn slab(&self, at: Location) -> Option<(u64, u64)> {
        match self.segments.get(at.segment as usize)? {
            Use::Slabs(s)
                if at.slab < s.class.slabs_per_segment(self.segment_bytes)
                    && s.class.index() == usize::from(at.class) =>
            {
                let bytes = s.class.slab_bytes();
                Some((self.segment_offset(at.segment) + u64::from(at.slab) * bytes, bytes))
            }
            _ => None,
        }
    }

    /// Takes a slab that holds `len` bytes: of its class, of a fresh segment, or of a larger class
    /// when no segment is left, or few are on a small disk. Zero bytes need no slab.
    pub(crate) fn alloc(&mut self, len: u64) -> Option<Location> {
        if len == 0 {
            return Some(Location::NOWHERE);
        }
        let class = Class::for_len(len)?;
        if class.slab_bytes() > self.segment_bytes {
            return None;
        }
        let segment = match self.partial[class.index()].fullest() {
            Some(segment) => segment,
            None if self.left() > 0 && self.free.len() > self.stock() => match self.shared(class) {
                Some(segment) => segment,
                None => self.open_segment(class)?,
            },
            None => self.partial[class.index() + 1..].iter().find_map(Partial::fullest)?,
        };
        self.take_in(segment)
    }

    /// A segment with slightly larger slabs, for a disk with too few free segments for every class.
    /// Chunks of files have all lengths: each new length would take a segment, and a disk of a GiB
    /// would be full with a few MiB.
    fn shared(&self, class: Class) -> Option<u32> {
        let all = self.segments.len();
        let few = self.left() <= all / 4;
        if !few || all >= 2 * CLASSES {
            return None;
        }
        let larger = (class.index() + 1..CLASSES).filter_map(Class::from_index);
        let mut near =
            larger.take_while(|other| other.slab_bytes() <= SHARED_MAX * class.slab_bytes());
        near.find_map(|other| self.partial[other.index()].fullest())
    }

    fn open_segment(&mut self, class: Class) -> Option<u32> {
        let segment = self.free.pop_back()?;
        let slabs = Slabs::new(class, self.segment_bytes);
        self.partial[class.index()].insert(slabs.free, segment);
        self.segments[segment as usize] = Use::Slabs(slabs);
        Some(segment)
    }

    fn take_in(&mut self, segment: u32) -> Option<Location> {
        let Use::Slabs(s) = &mut self.segments[segment as usize] else { return None };
        let slab = s.first_free()?;
        let partial = &mut self.partial[s.class.index()];
        partial.remove(s.free, segment);
        s.set(slab, true);
        if s.free > 0 {
            partial.insert(s.free, segment);
        }
        self.used_bytes += s.class.slab_bytes();
        Some(Location { segment, slab, class: class_byte(s.class) })
    }

    /// Gives a slab back; an empty segment returns to the free pool.
    pub(crate) fn free(&mut self, at: Location) {
        if at.is_nowhere() {
            return;
        }
        let Use::Slabs(s) = &mut self.segments[at.segment as usize] else {
            panic!("slab of segment {} given back, but it holds none", at.segment);
        };
        let partial = &mut self.partial[s.class.index()];
        partial.remove(s.free, at.segment);
        s.set(at.slab, false);
        self.used_bytes -= s.class.slab_bytes();
        if s.free == s.class.slabs_per_segment(self.segment_bytes) {
            self.segments[at.segment as usize] = Use::Free;
            self.free.push_back(at.segment);
        } else if !s.draining {
            partial.insert(s.free, at.segment);
        }
    }

    /// Marks a slab found in the index as used; `false` when it cannot be.
    pub(crate) fn claim(&mut self, at: Location) -> bool {
        if at.is_nowhere() {
            return true;
        }
        let Some(class) = Class::from_index(usize::from(at.class)) else { return false };
        let segment_bytes = self.segment_bytes;
        let Some(state) = self.segments.get_mut(at.segment as usize) else { return false };
        if matches!(state, Use::Free) {
            *state = Use::Slabs(Slabs::new(class, segment_bytes));
        }
        match state {
            Use::Slabs(s) if at.slab < s.class.slabs_per_segment(segment_bytes) => {
                if s.is_used(at.slab) || s.class != class {
                    return false;
                }
                s.set(at.slab, true);
                self.used_bytes += s.class.slab_bytes();
                true
            }
            _ => false,
        }
    }

    /// Rebuilds the free lists after [`Space::claim`] and [`Space::claim_segment`]: the lowest free
    /// segment is taken first. Segments in use have their room; a disk that `takes_room` is asked
    /// for the others.
    pub(crate) fn finish_claims(&mut self, takes_room: bool) {
        self.partial.fill(Partial::default());
        self.free.clear();
        let free = if takes_room { &mut self.bare } else { &mut self.free };
        for (n, state) in (0u32..).zip(&self.segments) {
            match state {
                Use::Free => free.push_front(n),
                Use::Slabs(s) if s.free > 0 => {
                    self.partial[s.class.index()].insert(s.free, n);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn claim_segment(&mut self, segment: u32, log: bool) -> bool {
        match self.segments.get_mut(segment as usize) {
            Some(state @ Use::Free) => {
                *state = if log { Use::Log } else { Use::Checkpoint };
                self.taken += 1;
                self.free.retain(|s| *s != segment);
                true
            }
            _ => false,
        }
    }

    /// Takes a whole segment for the log or a checkpoint.
    pub(crate) fn alloc_segment(&mut self, log: bool) -> Option<u32> {
        let ready = if log { self.ready.take() } else { None };
        let segment = ready.or_else(|| self.free.pop_back()).or_else(|| self.ready.take())?;
        self.segments[segment as usize] = if log { Use::Log } else { Use::Checkpoint };
        self.taken += 1;
        Some(segment)
    }

    /// Takes the log's next segment for preparation, and reports whether it needs no writing.
    /// `None` when the log has one or few segments are left. Call [`Space::prepared`] afterwards.
    pub(crate) fn begin_preparing(&mut self) -> Option<(u32, bool)> {
        if self.ready.is_some() || self.left() == 0 {
            return None;
        }
        let first = *self.free.front()?;
        if self.written.contains(&first) {
            self.free.pop_front();
            return Some((first, true));
        }
        self.free.pop_back().map(|segment| (segment, false))
    }

    /// Keeps a segment for the log if it was written; frees it otherwise.
    pub(crate) fn prepared(&mut self, segment: u32, written: bool) {
        if written {
            self.written.insert(segment);
        }
        match &self.ready {
            None if written => self.ready = Some(segment),
            _ => self.free.push_back(segment),
        }
    }

    pub(crate) fn free_segment(&mut self, segment: u32) {
        let state = &mut self.segments[segment as usize];
        assert!(matches!(state, Use::Log | Use::Checkpoint), "segment {segment} holds slabs");
        *state = Use::Free;
        self.taken -= 1;
        if self.written.contains(&segment) {
            self.free.push_front(segment);
        } else {
            self.free.push_back(segment);
        }
    }

    /// Bytes that slabs may use in all.
    pub(crate) fn usable_bytes(&self) -> u64 {
        (self.segments.len().saturating_sub(self.reserve + 1)) as u64 * self.segment_bytes
    }

    pub(crate) const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(crate) fn free_segments(&self) -> usize {
        (self.reachable() + usize::from(self.ready.is_some())).saturating_sub(self.kept())
    }

    /// Free segments, without those that the disk has no room for.
    fn reachable(&self) -> usize {
        let bare = if self.short_since.is_some() { 0 } else { self.bare.len() };
        self.free.len() + bare
    }

    /// Free segments that slabs may not take. A disk that is short of room may need all of them
    /// before their number is that of the reserve.
    fn kept(&self) -> usize {
        if self.short_since.is_some() { self.stock() } else { self.reserve }
    }

    /// Free segments that slabs may take.
    fn left(&self) -> usize {
        self.reachable().saturating_sub(self.kept())
    }

    /// Free segments with room that slabs must leave while others have none: one for the log to
    /// continue in, and as many as log and checkpoint hold now, so that the next checkpoint can
    /// free those.
    fn stock(&self) -> usize {
        if self.bare.is_empty() {
            return 0;
        }
        (1 + self.taken.max(1)).min(self.reserve) - usize::from(self.ready.is_some())
    }

    /// Whether slabs for `len` bytes need room for another segment from the disk.
    pub(crate) fn lacks_room(&self, len: u64) -> bool {
        let Some(class) = Class::for_len(len).filter(|_| len > 0) else { return false };
        let has_slab = self.partial[class.index()].fullest().is_some();
        !has_slab && !self.bare.is_empty() && self.free.len() <= self.stock()
    }

    /// Whether the log or a checkpoint needs room for another segment from the disk.
    pub(crate) fn log_lacks_room(&self) -> bool {
        self.free.is_empty() && self.ready.is_none() && !self.bare.is_empty()
    }

    /// Whether to ask the disk for room ahead of need. It is when chunks are stored and the
    /// prepared room is low, or when the disk was short of room: clients of a full disk bring no
    /// chunk that would trigger the question.
    pub(crate) fn stock_lacks_room(&self) -> bool {
        let is_low = self.used_bytes > 0 && self.free.len() <= self.stock();
        !self.bare.is_empty() && (is_low || self.is_short())
    }

    /// Whether the disk lacks room for some of its segments.
    pub(crate) const fn is_short(&self) -> bool {
        self.short_since.is_some()
    }

    /// Takes a segment that the disk is asked to make room for; call [`Space::has_room`]
    /// afterwards. `None` when all have room, or when the disk refused a moment ago.
    pub(crate) fn begin_room(&mut self, now: Tick) -> Option<u32> {
        if self.short_since.is_some_and(|since| now.since(since) < ROOM_RETRY) {
            return None;
        }
        self.bare.pop_back()
    }

    /// Notes that a segment has room now, or that the disk has none for it.
    pub(crate) fn has_room(&mut self, segment: u32, is_there: bool, now: Tick) {
        if is_there {
            (self.short_since, self.refused) = (None, 0);
            return self.free.push_back(segment);
        }
        self.bare.push_front(segment);
        // Another segment may have its room from an earlier use: all are tried, once.
        self.refused += 1;
        if self.refused >= self.bare.len() {
            self.short_since = Some(now);
        }
    }

    /// Gives a segment back when the disk did not answer.
    pub(crate) fn forget_room(&mut self, segment: u32) {
        self.bare.push_back(segment);
    }

    /// Bytes that slabs may use beside the segments that the log and checkpoints hold now. On a
    /// disk of a few segments that is much less than [`Space::usable_bytes`].
    pub(crate) fn room_bytes(&self) -> u64 {
        let lacking = if self.short_since.is_some() { self.bare.len() } else { 0 };
        let other = self.kept() + self.taken.max(1) + lacking;
        self.segments.len().saturating_sub(other) as u64 * self.segment_bytes
    }

    /// Segments that compaction can empty: each class needs only enough to hold its slabs in use.
    pub(crate) fn compactable_segments(&self) -> usize {
        let surplus = |class: &Partial| {
            // All segments of a class have as many slabs.
            let all = class.fullest().map_or(1, |segment| self.slabs_in(segment));
            class.holes / all
        };
        self.partial.iter().map(surplus).sum()
    }

    fn slabs_in(&self, segment: u32) -> usize {
        match &self.segments[segment as usize] {
            Use::Slabs(s) => usize::from(s.class.slabs_per_segment(self.segment_bytes)),
            _ => 0,
        }
    }

    /// Chooses up to `count` segments to be emptied into holes of their class, those with the least
    /// to move first, and stops filling them. It takes half-empty ones; without any, and with
    /// `pressed` set, the emptiest one however full it is.
    pub(crate) fn start_draining(&mut self, count: usize, pressed: bool) -> Vec<u32> {
        let mut candidates: Vec<(u64, u32)> = Vec::new();
        for class in &self.partial {
            for (free, n) in &class.segments {
                let Use::Slabs(s) = &self.segments[*n as usize] else { continue };
                let live = self.slabs_in(*n) - usize::from(*free);
                let live_bytes = live as u64 * s.class.slab_bytes();
                if pressed || live_bytes * 2 < self.segment_bytes {
                    candidates.push((live_bytes, *n));
                }
            }
        }
        candidates.sort_unstable();
        let (mut found, mut promised) = (Vec::new(), self.promised());
        for (live_bytes, n) in candidates {
            if found.len() == count {
                break;
            }
            let half_empty = live_bytes * 2 < self.segment_bytes;
            if !half_empty && !found.is_empty() {
                break;
            }
            let Use::Slabs(s) = &self.segments[n as usize] else { continue };
            let (class, free) = (s.class.index(), usize::from(s.free));
            let live = self.slabs_in(n) - free;
            if self.partial[class].holes - free >= live + promised[class] {
                promised[class] += live;
                self.set_draining(n, true);
                found.push(n);
            }
        }
        found
    }

    /// Slabs, by class, that the segments being emptied still need elsewhere.
    fn promised(&self) -> [usize; CLASSES] {
        let mut promised = [0; CLASSES];
        for (n, state) in (0u32..).zip(&self.segments) {
            if let Use::Slabs(s) = state
                && s.draining
            {
                promised[s.class.index()] += self.slabs_in(n) - usize::from(s.free);
            }
        }
        promised
    }

    pub(crate) fn set_draining(&mut self, segment: u32, on: bool) {
        if let Use::Slabs(s) = &mut self.segments[segment as usize] {
            s.draining = on;
            if on {
                self.partial[s.class.index()].remove(s.free, segment);
            } else if s.free > 0 {
                self.partial[s.class.index()].insert(s.free, segment);
            }
        }
    }

    pub(crate) fn class_usage(&self) -> Vec<ClassUsage> {
        let mut all = vec![ClassUsage::default(); CLASSES];
        for state in &self.segments {
            if let Use::Slabs(s) = state {
                let u = &mut all[s.class.index()];
                let count = s.class.slabs_per_segment(self.segment_bytes);
                u.slab_bytes = s.class.slab_bytes();
                u.segments += 1;
                u.used_slabs += u64::from(count - s.free);
                u.free_slabs += u64::from(s.free);
            }
        }
        all.retain(|u| u.segments > 0);
        all
    }
}

/// Readers of a slab, and whether it was given back since they began.
type ReadMap = HashMap<Location, (u32, bool), crate::index::IdHasher>;

/// Slabs being read: a freed slab is reused only after its last reader.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    shards: [Mutex<ReadMap>; 16],
}

impl Readers {
    fn shard(&self, at: Location) -> &Mutex<ReadMap> {
        &self.shards[usize::from(at.slab ^ (at.segment & 0xf) as u16) % 16]
    }

    pub(crate) fn enter(&self, at: Location) {
        self.shard(at).lock().entry(at).or_default().0 += 1;
    }

    /// True when this was the last reader of a slab that was given back: free it now.
    pub(crate) fn leave(&self, at: Location) -> bool {
        let mut shard = self.shard(at).lock();
        let Some(state) = shard.get_mut(&at) else { return false };
        state.0 -= 1;
        let (readers, retired) = *state;
        if readers == 0 {
            shard.remove(&at);
        }
        readers == 0 && retired
    }

    /// True when the slab has no reader: free it now. Otherwise the last reader frees it.
    pub(crate) fn retire(&self, at: Location) -> bool {
        match self.shard(at).lock().get_mut(&at) {
            Some(state) => {
                state.1 = true;
                false
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_come_and_go_and_empty_segments_change_class() {
        let mut s = Space::new(8, 1 << 20);
        let all: Vec<_> = (0..256).map(|_| s.alloc(4096).unwrap()).collect();
        assert_eq!(s.free_segments(), 4);
        assert_eq!(s.used_bytes(), 1 << 20);
        for at in all {
            s.free(at);
        }
        assert_eq!(s.free_segments(), 5);
        assert!(s.alloc(1 << 20).is_some());
        assert_eq!(s.alloc((1 << 20) + 1), None);
    }

    #[test]
    fn a_larger_slab_serves_when_no_segment_is_left() {
        let mut s = Space::new(8, 1 << 20);
        let big = s.alloc(64 << 10).unwrap();
        while s.free_segments() > 0 {
            s.alloc(1 << 20).unwrap();
        }
        assert_eq!(s.alloc(4096).unwrap().segment, big.segment);
    }

    #[test]
    fn chunks_of_all_lengths_share_what_a_small_disk_has() {
        let mut s = Space::new(16, 64 << 20);
        let mut lens: Vec<u64> = (1..=300).map(|n| n * 1000).collect();
        // In random order, as files arrive.
        lens.sort_by_key(|len| len.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let all: Vec<Location> = lens.iter().map(|len| s.alloc(*len).unwrap()).collect();
        assert!(s.free_segments() >= 2, "{} are left", s.free_segments());
        for (len, at) in lens.iter().zip(&all) {
            let (_, slab) = s.slab(*at).unwrap();
            assert!((*len..=SHARED_MAX * len.next_multiple_of(4096)).contains(&slab));
        }
        // A disk with a segment for every class does not share.
        let mut s = Space::new(2 * 96, 1 << 20);
        let big = s.alloc(8192).unwrap();
        assert_ne!(s.alloc(4096).unwrap().segment, big.segment);
    }

    /// A space of one class, with the given number of used slabs in each segment.
    fn with_slabs(used: &[usize]) -> Space {
        let mut s = Space::new(32, 1 << 20);
        let all = (1 << 20) / 4096;
        let slabs: Vec<_> = (0..used.len() * all).map(|_| s.alloc(4096).unwrap()).collect();
        for (segment, used) in slabs.chunks(all).zip(used) {
            segment[*used..].iter().for_each(|at| s.free(*at));
        }
        s
    }

    #[test]
    fn half_empty_segments_are_emptied_first_and_full_ones_under_pressure() {
        let mut s = with_slabs(&[250, 100, 240, 10]);
        assert_eq!(s.compactable_segments(), 1);
        assert_eq!(s.start_draining(4, false), [3], "the second does not fit into what is left");
        assert_eq!(s.start_draining(4, true), [0; 0], "what is promised is not promised twice");

        let mut s = with_slabs(&[200, 190, 210, 180, 240]);
        assert_eq!(s.compactable_segments(), 1);
        assert_eq!(s.start_draining(4, false), [0; 0]);
        assert_eq!(s.start_draining(4, true), [3]);
    }

    #[test]
    fn a_segment_whose_slabs_fit_nowhere_stays() {
        let mut s = with_slabs(&[100]);
        assert_eq!(s.compactable_segments(), 0);
        assert_eq!(s.start_draining(4, true), [0; 0]);
        let mut s = with_slabs(&[200, 200]);
        assert_eq!(s.compactable_segments(), 0);
        assert_eq!(s.start_draining(4, true), [0; 0]);
    }

    #[test]
    fn the_log_takes_room_from_chunks() {
        let mut s = Space::new(32, 1 << 20);
        assert_eq!(s.room_bytes(), s.usable_bytes());
        let taken: Vec<u32> = (0..5).map(|_| s.alloc_segment(true).unwrap()).collect();
        assert_eq!(s.room_bytes(), s.usable_bytes() - (4 << 20));
        for segment in taken {
            s.free_segment(segment);
        }
        assert_eq!(s.room_bytes(), s.usable_bytes());
    }

    #[test]
    fn the_log_goes_on_in_what_was_prepared_for_it() {
        let mut s = Space::new(8, 1 << 20);
        let free = s.free_segments();
        let first = s.alloc_segment(true).unwrap();
        let (next, is_written) = s.begin_preparing().unwrap();
        assert!(!is_written);
        assert_ne!(s.alloc_segment(false).unwrap(), next, "it is nobody's meanwhile");
        s.prepared(next, true);
        assert_eq!(s.free_segments(), free - 2, "it is as good as free");
        assert_eq!(s.begin_preparing(), None, "one is enough");
        assert_eq!(s.alloc_segment(true), Some(next));
        // A former log segment returns to the log, and is not written again; chunks take others
        // first.
        s.free_segment(first);
        s.free_segment(next);
        assert_ne!(s.alloc(1 << 20).unwrap().segment, next);
        assert_eq!(s.begin_preparing(), Some((next, true)));
        s.prepared(next, true);
        // After a failed write it is an ordinary free segment.
        assert_eq!(s.alloc_segment(true), Some(next));
        let (other, _) = s.begin_preparing().unwrap();
        let free = s.free_segments();
        s.prepared(other, false);
        assert_eq!(s.free_segments(), free + 1);
        // The last segments are left to the log and the checkpoint.
        while s.alloc(1 << 20).is_some() {}
        assert_eq!((s.begin_preparing(), s.alloc_segment(false).is_some()), (None, true));
    }

    #[test]
    fn a_checkpoint_may_have_what_was_prepared_when_nothing_else_is_left() {
        let mut s = Space::new(8, 1 << 20);
        let (next, _) = s.begin_preparing().unwrap();
        s.prepared(next, true);
        let others: Vec<u32> = (0..7).map(|_| s.alloc_segment(false).unwrap()).collect();
        assert!(!others.contains(&next));
        assert_eq!((s.alloc_segment(false), s.alloc_segment(true)), (Some(next), None));
    }

    #[test]
    fn the_last_reader_frees() {
        let (r, at) = (Readers::default(), Location { segment: 1, slab: 2, class: 0 });
        r.enter(at);
        r.enter(at);
        assert!(!r.retire(at));
        assert!(!r.leave(at));
        assert!(r.leave(at));
        assert!(r.retire(at));
    }
}
