//! Eviction when memory runs out: S3-FIFO (Yang et al., SOSP 2023, section 4).
//!
//! New blocks enter a small queue; those read again before they reach its end move to the main
//! queue, the others leave and are remembered as ghosts. A ghost that comes back enters the main
//! queue at once. So a scan of blocks that are read once never displaces the useful ones.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// Share of the bytes for blocks that were not read again yet: one in ten, as in the paper.
const SMALL_SHARE: u64 = 10;
/// Reads that count at most.
const READS_MAX: u8 = 3;

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: u64,
    reads: u8,
    main: bool,
}

/// A bounded map with S3-FIFO eviction.
#[derive(Debug)]
pub(crate) struct S3Fifo<K, V> {
    capacity: u64,
    used: u64,
    small_used: u64,
    entries: HashMap<K, Entry<V>>,
    small: VecDeque<K>,
    main: VecDeque<K>,
    ghosts: HashSet<K>,
    ghost_order: VecDeque<K>,
}

impl<K: Hash + Eq + Clone, V> S3Fifo<K, V> {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            small_used: 0,
            entries: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: HashSet::new(),
            ghost_order: VecDeque::new(),
        }
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether `key` is present; does not count as a read.
    pub(crate) fn contains<Q>(&self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.contains_key(key)
    }

    /// The value of `key`; counts as a read.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.entries.get_mut(key)?;
        entry.reads = (entry.reads + 1).min(READS_MAX);
        Some(&entry.value)
    }

    /// Removes a value and returns it.
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // Its key stays in a queue until it reaches the end; `evict_one` skips it there.
        let entry = self.entries.remove(key)?;
        self.forget(&entry);
        Some(entry.value)
    }

    fn forget(&mut self, entry: &Entry<V>) {
        self.used -= entry.bytes;
        if !entry.main {
            self.small_used -= entry.bytes;
        }
    }

    /// Inserts a value unless the key has one or it can never fit. Returns the evicted entries.
    pub(crate) fn insert(&mut self, key: K, value: V, bytes: u64) -> Vec<(K, V)> {
        if self.entries.contains_key(&key) || bytes > self.capacity {
            return Vec::new();
        }
        let mut gone = Vec::new();
        while self.used + bytes > self.capacity {
            gone.extend(self.evict_one());
        }
        let main = self.ghosts.remove(&key);
        if main {
            self.main.push_back(key.clone());
        } else {
            self.small.push_back(key.clone());
        }
        self.used += bytes;
        if !main {
            self.small_used += bytes;
        }
        self.entries.insert(key, Entry { value, bytes, reads: 0, main });
        self.bound_queues();
        gone
    }

    /// Bounds the queues: keys of removed values must not fill them.
    fn bound_queues(&mut self) {
        let limit = 64 + 2 * self.entries.len();
        if self.small.len() + self.main.len() > limit {
            let entries = &self.entries;
            let mut seen = HashSet::new();
            let mut keep = |key: &K, main| {
                entries.get(key).is_some_and(|entry| entry.main == main) && seen.insert(key.clone())
            };
            self.small.retain(|key| keep(key, false));
            self.main.retain(|key| keep(key, true));
        }
    }

    fn evict_one(&mut self) -> Option<(K, V)> {
        let small_is_due = self.main.is_empty() || self.small_used * SMALL_SHARE >= self.capacity;
        if small_is_due && let Some(key) = self.small.pop_front() {
            return self.leave_small(key);
        }
        let key = self.main.pop_front()?;
        let entry = self.entries.get_mut(&key).filter(|entry| entry.main)?;
        if entry.reads > 0 {
            entry.reads -= 1;
            self.main.push_back(key);
            return None;
        }
        let entry = self.entries.remove(&key)?;
        self.forget(&entry);
        Some((key, entry.value))
    }

    fn leave_small(&mut self, key: K) -> Option<(K, V)> {
        let entry = self.entries.get_mut(&key).filter(|entry| !entry.main)?;
        if entry.reads > 0 {
            entry.reads = 0;
            entry.main = true;
            self.small_used -= entry.bytes;
            self.main.push_back(key);
            return None;
        }
        let entry = self.entries.remove(&key)?;
        self.forget(&entry);
        if self.ghosts.insert(key.clone()) {
            self.ghost_order.push_back(key.clone());
        }
        while self.ghost_order.len() > 64 + self.entries.len() {
            if let Some(old) = self.ghost_order.pop_front() {
                self.ghosts.remove(&old);
            }
        }
        Some((key, entry.value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::S3Fifo;

    #[test]
    fn a_scan_does_not_displace_what_is_read_again() {
        let mut cache = S3Fifo::new(100);
        for key in 0..20 {
            cache.insert(key, key, 1);
        }
        for round in 0..3 {
            for key in 0..20 {
                assert!(cache.get(&key).is_some(), "round {round}");
            }
        }
        for key in 1000..3000 {
            cache.insert(key, key, 1);
        }
        assert_eq!((0..20).filter(|key| cache.contains(key)).count(), 20);
        assert_eq!(cache.used(), 100);
    }

    proptest! {
        #[test]
        fn what_it_holds_is_what_was_put_in_and_within_bounds(
            steps in proptest::collection::vec((0u8..4, 0u16..40, 1u64..30), 1..600)
        ) {
            let mut cache = S3Fifo::new(100);
            let mut model: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
            for (n, (what, key, bytes)) in steps.into_iter().enumerate() {
                let n = n as u64;
                match what {
                    0 => prop_assert_eq!(cache.get(&key).copied(), model.get(&key).map(|v| v.0)),
                    1 => prop_assert_eq!(cache.remove(&key), model.remove(&key).map(|v| v.0)),
                    _ => {
                        for (gone, _) in cache.insert(key, n, bytes) {
                            prop_assert!(model.remove(&gone).is_some());
                        }
                        model.entry(key).or_insert((n, bytes));
                    }
                }
                prop_assert_eq!(cache.used(), model.values().map(|v| v.1).sum::<u64>());
                prop_assert!(cache.used() <= 100);
                prop_assert_eq!(cache.len(), model.len());
            }
        }
    }
}
