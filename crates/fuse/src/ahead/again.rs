//! Finds places of files that are read repeatedly past the kernel's cache: pure, without I/O.
//!
//! A place that was read several times recently is worth its bytes in memory. One that was read
//! once is not: otherwise random reads in a large file would fetch sixteen times the bytes they ask
//! for. So places are counted in a short list that forgets the oldest entry first, and a place that
//! returns before it is forgotten is admitted (the ghost queue of S3-FIFO, J. Yang et al., "FIFO
//! Queues are All You Need for Cache Eviction", SOSP 2023).

use std::collections::{HashMap, VecDeque};

use millpond_types::meta::Ino;

use super::detect::Span;

/// The unit of counting, fetching and caching in bytes; also the storage engine's unit of
/// checksums.
pub(super) const PLACE: u64 = 64 << 10;
/// Largest read in bytes that counts; larger reads gain little.
const READ_MAX: u64 = 16 << 10;
/// The number of reads of a place from which on the whole place is fetched.
const READS: u8 = 3;
/// The largest number of counted places: 512 MiB of data, twice the memory of a mount. They take
/// some 400 KiB, regardless of the number of open files.
const PLACES_MAX: usize = 8192;

/// The counted places of a mount.
#[derive(Debug, Default)]
pub(super) struct Places {
    reads: HashMap<(Ino, u64), u8>,
    order: VecDeque<(Ino, u64)>,
}

impl Places {
    /// Counts a read that found nothing in memory; returns the range to fetch and keep if its place
    /// is read often. `size` is the size of the file.
    pub(super) fn read(&mut self, ino: Ino, span: Span, size: u64) -> Option<Span> {
        let place = span.offset / PLACE;
        let end = (place + 1).saturating_mul(PLACE).min(size);
        if span.len > READ_MAX || span.end() > end {
            return None;
        }
        let known = self.reads.len();
        let reads = self.reads.entry((ino, place)).or_default();
        *reads = reads.saturating_add(1);
        let is_often = *reads >= READS;
        if self.reads.len() > known {
            self.order.push_back((ino, place));
            if self.order.len() > PLACES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.reads.remove(&oldest);
            }
        }
        let offset = place * PLACE;
        is_often.then(|| Span { offset, len: end - offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;
    const INO: Ino = Ino(7);

    fn page(number: u64) -> Span {
        Span { offset: number << 12, len: 4096 }
    }

    #[test]
    fn the_third_read_of_a_place_fetches_it() {
        let mut places = Places::default();
        assert_eq!(places.read(INO, page(17), SIZE), None);
        assert_eq!(places.read(INO, page(40), SIZE), None, "another place");
        assert_eq!(places.read(INO, page(31), SIZE), None);
        assert_eq!(places.read(Ino(8), page(16), SIZE), None, "another file");
        assert_eq!(places.read(INO, page(16), SIZE), Some(Span { offset: PLACE, len: PLACE }));
        assert_eq!(
            places.read(INO, page(16), SIZE),
            Some(Span { offset: PLACE, len: PLACE }),
            "it went since"
        );
        // No bytes after the file's end.
        let short = PLACE + 8192;
        assert_eq!(places.read(INO, page(17), short), Some(Span { offset: PLACE, len: 8192 }));
        assert_eq!(places.read(INO, page(18), short), None);
    }

    #[test]
    fn large_reads_and_reads_of_two_places_are_left_alone() {
        let mut places = Places::default();
        for _ in 0..9 {
            assert_eq!(places.read(INO, Span { offset: 0, len: READ_MAX + 1 }, SIZE), None);
            assert_eq!(places.read(INO, Span { offset: PLACE - 4096, len: 8192 }, SIZE), None);
        }
    }

    #[test]
    fn who_does_not_come_back_in_time_is_forgotten() {
        let mut places = Places::default();
        let of = |place: u64| Span { offset: place * PLACE, len: 4096 };
        for round in 0..9 {
            for place in 0..=PLACES_MAX as u64 {
                assert_eq!(places.read(INO, of(place), SIZE), None, "{place} in round {round}");
            }
        }
        assert!(places.reads.len() == PLACES_MAX && places.order.len() == PLACES_MAX);
        let last = of(PLACES_MAX as u64);
        assert_eq!(places.read(INO, last, SIZE), None);
        assert!(places.read(INO, last, SIZE).is_some());
    }
}
