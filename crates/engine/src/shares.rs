//! Slabs that several chunks need.
//!
//! A slab belongs to one chunk. One that lies below patches belongs to every chunk made of it: the one
//! that it was written for, and those that are it with a part replaced. Each gives it back once; the
//! last one really does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::record::Location;

/// Slabs with several owners.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// How many there are, so that engines without any look no further.
    count: AtomicUsize,
    /// Owners beside the first one.
    others: Mutex<HashMap<Location, usize>>,
}

impl Shares {
    /// One more owner.
    pub(crate) fn add(&self, at: Location) {
        let mut others = self.others.lock();
        *others.entry(at).or_default() += 1;
        self.count.store(others.len(), Ordering::Release);
    }

    /// One owner less; false when it was the last one: the slab is nobody's any more.
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
