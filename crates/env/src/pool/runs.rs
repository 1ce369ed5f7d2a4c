//! Free pages of a pool: contiguous runs, best fit, joined when freed.
//!
//! Runs of up to [`SMALL_PAGES`] pages are in one list per exact length, found through a bit mask,
//! in constant time; longer ones are in an ordered set, in logarithmic time. The length of a free
//! run is written at its first and last page (boundary tags: D. E. Knuth, The Art of Computer
//! Programming, volume 1, 2.5), so freeing finds both neighbors in constant time.

use std::collections::BTreeSet;

const SMALL_PAGES: u32 = 64;
const NONE: u32 = u32::MAX;

/// The free runs of `pages` pages.
#[derive(Debug)]
pub(super) struct Runs {
    /// Length of a free run at its first and last page; zero at every other page.
    tags: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// First run of each short length; index = length - 1.
    heads: [u32; SMALL_PAGES as usize],
    /// Bit `length - 1` is set when that list has a run.
    mask: u64,
    /// (length, first page) of the long runs.
    long: BTreeSet<(u32, u32)>,
    free: u32,
}

const _: () = assert!(SMALL_PAGES == u64::BITS, "one mask bit per short length");

impl Runs {
    pub(super) fn new(pages: u32) -> Self {
        assert!(pages > 0, "a pool has pages");
        assert!(pages < NONE, "page numbers fit 32 bits");
        let count = pages as usize;
        let mut runs = Self {
            tags: vec![0; count],
            next: vec![NONE; count],
            previous: vec![NONE; count],
            heads: [NONE; SMALL_PAGES as usize],
            mask: 0,
            long: BTreeSet::new(),
            free: 0,
        };
        runs.free = pages;
        runs.insert(0, pages);
        runs
    }

    pub(super) const fn free(&self) -> u32 {
        self.free
    }

    /// Takes `pages` contiguous pages from the shortest run that is long enough.
    pub(super) fn take(&mut self, pages: u32) -> Option<u32> {
        assert!(pages > 0, "an allocation has pages");
        let (start, length) = self.best(pages)?;
        self.remove(start, length);
        if length > pages {
            self.insert(start + pages, length - pages);
        }
        self.free -= pages;
        Some(start)
    }

    /// Gives back pages that `take` returned.
    pub(super) fn give(&mut self, start: u32, pages: u32) {
        assert!(pages > 0, "an allocation has pages");
        let end = start.checked_add(pages).expect("a run lies within the pool");
        assert!(end as usize <= self.tags.len(), "a run lies within the pool");
        assert!(self.tags[start as usize] == 0, "the first page of a run was freed twice");
        assert!(self.tags[end as usize - 1] == 0, "the last page of a run was freed twice");
        let (mut from, mut to) = (start, end);
        if start > 0 {
            let before = self.tags[start as usize - 1];
            if before > 0 {
                from = start - before;
                self.remove(from, before);
            }
        }
        if (end as usize) < self.tags.len() {
            let after = self.tags[end as usize];
            if after > 0 {
                self.remove(end, after);
                to = end + after;
            }
        }
        self.insert(from, to - from);
        self.free += pages;
    }

    fn best(&self, pages: u32) -> Option<(u32, u32)> {
        if pages <= SMALL_PAGES {
            let fitting = self.mask & (u64::MAX << (pages - 1));
            if fitting != 0 {
                let index = fitting.trailing_zeros();
                return Some((self.heads[index as usize], index + 1));
            }
        }
        self.long.range((pages, 0)..).next().map(|&(length, start)| (start, length))
    }

    fn insert(&mut self, start: u32, length: u32) {
        let last = (start + length - 1) as usize;
        self.tags[start as usize] = length;
        self.tags[last] = length;
        if length > SMALL_PAGES {
            self.long.insert((length, start));
            return;
        }
        let bin = (length - 1) as usize;
        let head = self.heads[bin];
        self.next[start as usize] = head;
        self.previous[start as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = start;
        }
        self.heads[bin] = start;
        self.mask |= 1 << bin;
    }

    fn remove(&mut self, start: u32, length: u32) {
        let last = (start + length - 1) as usize;
        assert!(self.tags[start as usize] == length, "the tags of a free run agree");
        assert!(self.tags[last] == length, "the tags of a free run agree");
        self.tags[start as usize] = 0;
        self.tags[last] = 0;
        if length > SMALL_PAGES {
            let found = self.long.remove(&(length, start));
            assert!(found, "a long free run is in the ordered set");
            return;
        }
        let bin = (length - 1) as usize;
        let (before, after) = (self.previous[start as usize], self.next[start as usize]);
        if before == NONE {
            self.heads[bin] = after;
            if after == NONE {
                self.mask &= !(1 << bin);
            }
        } else {
            self.next[before as usize] = after;
        }
        if after != NONE {
            self.previous[after as usize] = before;
        }
    }

    /// Every free run as (start, length), in order of pages.
    #[cfg(test)]
    pub(super) fn free_runs(&self) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        let mut page = 0;
        while (page as usize) < self.tags.len() {
            let length = self.tags[page as usize];
            if length > 0 {
                found.push((page, length));
            }
            page += length.max(1);
        }
        found
    }
}
