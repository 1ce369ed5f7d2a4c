//! Finds conflicts between transactions of one process: versions of recent writes.
//!
//! The idea is `FoundationDB`'s resolver (Zhou et al., "`FoundationDB`: A Distributed Unbundled
//! Transactional Key Value Store", SIGMOD 2021, section 2.4.2, algorithm 1): keep the version of
//! the last write of every recently written key; a transaction conflicts when a key or range it
//! read has a later one than its read version. Pure: no clock, no locks.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use crate::{ReadSet, StoreError, Version};

/// The recent writes of a store.
///
/// The last write of a key is found by its hash. A range is compared with the writes since it was
/// read, which are few. An ordered map of all writes would cost every write more than this saves
/// for the few transactions that read ranges (comparing takes 5 us for a hundred writes, 4.5 ms for
/// 200,000, about all that is remembered, on a core of Zen 4).
#[derive(Debug)]
pub struct Resolver {
    /// Key → version of its last write.
    last: HashMap<Arc<[u8]>, Version>,
    /// Writes in order, to forget the oldest.
    log: VecDeque<(Version, Arc<[u8]>)>,
    /// Everything written after this version is known.
    horizon: Version,
    bytes: usize,
    bytes_max: usize,
}

/// The cost of a remembered write: its key, and its places in the map and the log.
fn cost(key: &[u8]) -> usize {
    key.len() + 112
}

impl Resolver {
    /// A resolver that starts at `now` and remembers about `bytes_max` bytes of writes.
    #[must_use]
    pub fn new(now: Version, bytes_max: usize) -> Self {
        Self { last: HashMap::new(), log: VecDeque::new(), horizon: now, bytes: 0, bytes_max }
    }

    /// Checks that nothing in `reads`, which were made at version `at`, was written since.
    ///
    /// # Errors
    /// `Conflict`; also when `at` is older than the remembered writes.
    pub fn check(&self, reads: &ReadSet, at: Version) -> Result<(), StoreError> {
        if reads.is_empty() {
            return Ok(());
        }
        if at < self.horizon {
            return Err(StoreError::Conflict);
        }
        let key_written =
            reads.keys().any(|key| self.last.get(key).is_some_and(|written| *written > at));
        if key_written || (reads.has_ranges() && self.wrote_in_ranges(reads, at)) {
            return Err(StoreError::Conflict);
        }
        Ok(())
    }

    fn wrote_in_ranges(&self, reads: &ReadSet, at: Version) -> bool {
        let since = self.log.partition_point(|(version, _)| *version <= at);
        self.log.range(since..).any(|(_, key)| reads.in_ranges(key))
    }

    /// Remembers that `keys` were written by `version`.
    pub fn record<'a>(&mut self, version: Version, keys: impl Iterator<Item = &'a Vec<u8>>) {
        for key in keys {
            let key: Arc<[u8]> = key.as_slice().into();
            self.bytes += cost(&key);
            self.last.insert(Arc::clone(&key), version);
            self.log.push_back((version, key));
        }
        while self.bytes > self.bytes_max {
            let Some((version, key)) = self.log.pop_front() else { return };
            self.bytes -= cost(&key);
            self.horizon = self.horizon.max(version);
            if let Entry::Occupied(last) = self.last.entry(key)
                && *last.get() == version
            {
                last.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

    use super::Resolver;
    use crate::{KeyRange, ReadSet, Version};

    fn point(key: u8) -> ReadSet {
        let mut reads = ReadSet::default();
        reads.add_key(&[key]);
        reads
    }

    #[test]
    fn what_is_forgotten_conflicts() {
        let mut resolver = Resolver::new(Version(0), 2 * super::cost(&[1]));
        for version in 1..=3 {
            resolver.record(Version(version), [vec![1]].iter());
        }
        assert!(resolver.check(&point(9), Version(0)).is_err(), "version 1 is forgotten");
        assert!(resolver.check(&point(9), Version(1)).is_ok());
        assert!(resolver.check(&point(1), Version(2)).is_err());
        assert!(resolver.check(&point(1), Version(3)).is_ok());
        assert!(resolver.check(&ReadSet::default(), Version(0)).is_ok(), "blind writes never do");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(Vec<u8>),
        Check(u8, Option<u8>, u64),
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_list_of_writes(steps in prop::collection::vec(prop_oneof![
            prop::collection::vec(0u8..20, 1..4).prop_map(Step::Write),
            (0u8..20, prop_oneof![Just(None), (0u8..20).prop_map(Some)], any::<u64>())
                .prop_map(|(a, b, at)| Step::Check(a, b, at)),
        ], 0..80)) {
            let mut resolver = Resolver::new(Version(0), usize::MAX);
            // A resolver that forgets may find more conflicts, never fewer.
            let mut short = Resolver::new(Version(0), 5 * super::cost(&[0]));
            let mut writes: BTreeMap<u8, u64> = BTreeMap::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Write(keys) => {
                        now += 1;
                        let bytes: Vec<Vec<u8>> = keys.iter().map(|key| vec![*key]).collect();
                        resolver.record(Version(now), bytes.iter());
                        short.record(Version(now), bytes.iter());
                        assert_eq!(short.log.len(), (resolver.log.len()).min(5));
                        assert!(short.last.len() <= 5);
                        writes.extend(keys.into_iter().map(|key| (key, now)));
                    }
                    Step::Check(start, end, at) => {
                        let at = at % (now + 1);
                        let mut reads = ReadSet::default();
                        let range = start..end.unwrap_or(start + 1);
                        match end {
                            None => reads.add_key(&[start]),
                            Some(end) => reads.add_range(&KeyRange::new([start], [end])),
                        }
                        let conflict =
                            range.into_iter().any(|key| writes.get(&key).is_some_and(|v| *v > at));
                        assert_eq!(resolver.check(&reads, Version(at)).is_err(), conflict);
                        let is_old = !reads.is_empty() && Version(at) < short.horizon;
                        assert_eq!(short.check(&reads, Version(at)).is_err(), conflict || is_old);
                    }
                }
            }
        }
    }
}
