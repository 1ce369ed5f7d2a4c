//! Slabs that several chunks need.
//!
//! A slab normally belongs to one chunk. A slab below patches belongs to every chunk made of it:
//! the chunk it was written for, and the patched chunks over it. Each gives it back once; only the
//! last one frees it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::record::Location;

/// Slabs with several owners.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Number of shared slabs; an engine without any skips the lookup.
    count: AtomicUsize,
    /// Owners beside the first one.
    others: Mutex<HashMap<Location, usize>>,
}

impl Shares {
    /// Adds an owner.
    pub(crate) fn add(&self, at: Location) {
        let mut others = self.others.lock();
        *others.entry(at).or_default() += 1;
        self.count.store(others.len(), Ordering::Release);
    }

    /// Removes an owner; false when it was the last one, so that the slab is free.
    pub(crate) fn leave(&self, at: Location) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut others = self.others.lock();
        let Some(count) = others.get_mut(&at) else { return false };
        *count -= 1;
        if *count == 0 {
            others.remove(&at);
        }
        self.count.store(others.len(), Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_owner_gives_a_slab_back() {
        let at = |slab| Location { segment: 1, slab, class: 2 };
        let shares = Shares::default();
        assert!(!shares.leave(at(1)), "nobody shares it");
        shares.add(at(1));
        shares.add(at(1));
        shares.add(at(3));
        assert!(!shares.leave(at(2)));
        assert!(shares.leave(at(1)) && shares.leave(at(1)) && !shares.leave(at(1)));
        assert!(shares.leave(at(3)) && !shares.leave(at(3)));
        assert_eq!(shares.count.load(Ordering::Acquire), 0);
    }
}
