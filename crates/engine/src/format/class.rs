//! Slab classes: the sizes in which disk space is allocated.
//!
//! 4 KiB to 64 KiB in 4 KiB steps, then eight classes per doubling up to 64 MiB, so that a chunk
//! above 64 KiB wastes under 12.5 % of its slab (the scheme of jemalloc's size classes). A segment
//! serves one class; the remainder at its end stays unused.

use millpond_types::limits::PAGE_BYTES;

/// Classes in 4 KiB steps.
const LINEAR: u64 = 16;
const PAGE: u64 = PAGE_BYTES as u64;
const LINEAR_BYTES_MAX: u64 = LINEAR * PAGE;
/// Number of slab classes.
pub(crate) const CLASSES: usize = 96;

/// Index of a slab class, below [`CLASSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    /// Smallest class that holds `len` bytes; `None` above 64 MiB.
    pub(crate) fn for_len(len: u64) -> Option<Self> {
        let pages = len.div_ceil(PAGE).max(1);
        if pages <= LINEAR {
            return u8::try_from(pages - 1).ok().map(Self);
        }
        // The doubling [base, 2 * base) that holds the last byte, and the eighth within it.
        let bytes = len - 1;
        let doubling = u64::from(bytes.ilog2()) - u64::from(LINEAR_BYTES_MAX.ilog2());
        let step = (LINEAR_BYTES_MAX << doubling) / 8;
        let eighth = (bytes - (LINEAR_BYTES_MAX << doubling)) / step;
        let index = LINEAR + doubling * 8 + eighth;
        if index < CLASSES as u64 { u8::try_from(index).ok().map(Self) } else { None }
    }

    pub(crate) fn from_index(index: usize) -> Option<Self> {
        if index < CLASSES { u8::try_from(index).ok().map(Self) } else { None }
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Bytes of one slab of this class.
    pub(crate) const fn slab_bytes(self) -> u64 {
        let index = self.0 as u64;
        if index < LINEAR {
            return (index + 1) * PAGE;
        }
        let above = index - LINEAR;
        let base = LINEAR_BYTES_MAX << (above / 8);
        base + (above % 8 + 1) * (base / 8)
    }

    /// Slabs of this class in a segment of `segment_bytes`.
    pub(crate) fn slabs_per_segment(self, segment_bytes: u64) -> u16 {
        u16::try_from(segment_bytes / self.slab_bytes()).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_and_end_at_64_mib() {
        let sizes: Vec<u64> =
            (0..CLASSES).map(|i| Class::from_index(i).unwrap().slab_bytes()).collect();
        assert!(sizes.windows(2).all(|w| w[0] < w[1]));
        assert!(sizes.iter().all(|s| s % PAGE == 0));
        assert_eq!(sizes[0], 4096);
        assert_eq!(sizes[15], 64 << 10);
        assert_eq!(sizes[16], 72 << 10);
        assert_eq!(*sizes.last().unwrap(), 64 << 20);
        assert_eq!(Class::for_len((64 << 20) + 1), None);
    }

    #[test]
    fn every_length_gets_the_smallest_class_that_holds_it() {
        let lens = (0..CLASSES).flat_map(|i| {
            let s = Class::from_index(i).unwrap().slab_bytes();
            [s - 1, s, s + 1]
        });
        for len in lens.filter(|l| *l <= 64 << 20) {
            let class = Class::for_len(len).unwrap();
            assert!(class.slab_bytes() >= len, "{len}");
            if let Some(below) = class.index().checked_sub(1).and_then(Class::from_index) {
                assert!(below.slab_bytes() < len, "{len}");
            }
            if len > 64 << 10 {
                assert!((class.slab_bytes() - len) * 8 < class.slab_bytes(), "{len} wastes");
            }
        }
    }
}
