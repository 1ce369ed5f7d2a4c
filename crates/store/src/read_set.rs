//! The read set of a transaction: the keys and ranges that must not change before it commits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::KeyRange;

/// Keys and ranges. Touching ranges are merged, and keys inside ranges are left out.
#[derive(Clone, Debug, Default)]
pub struct ReadSet {
    keys: BTreeSet<Vec<u8>>,
    /// Start → end; disjoint and not touching.
    ranges: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl ReadSet {
    /// Adds a key.
    pub fn add_key(&mut self, key: &[u8]) {
        if !self.in_ranges(key) {
            self.keys.insert(key.to_vec());
        }
    }

    /// Adds a range.
    pub fn add_range(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start.clone(), range.end.clone());
        // Everything that overlaps or touches: the last one that starts before the new range, and
        // all that start inside it.
        let before = self.ranges.range(..=start.clone()).next_back();
        if let Some((s, e)) = before.map(|(s, e)| (s.clone(), e.clone()))
            && e >= start
        {
            self.ranges.remove(&s);
            start = s;
            end = end.max(e);
        }
        while let Some((s, e)) = self
            .ranges
            .range(start.clone()..=end.clone())
            .next()
            .map(|(s, e)| (s.clone(), e.clone()))
        {
            self.ranges.remove(&s);
            end = end.max(e);
        }
        let merged = KeyRange { start, end };
        self.keys.retain(|key| !merged.contains(key));
        self.ranges.insert(merged.start, merged.end);
    }

    /// Whether a range was read.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Whether a key lies in one of the ranges.
    pub(crate) fn in_ranges(&self, key: &[u8]) -> bool {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let before = self.ranges.range::<[u8], _>(up_to).next_back();
        before.is_some_and(|(_, end)| key < end.as_slice())
    }

    /// The keys that are in no range of the set, in order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(Vec::as_slice)
    }

    /// The ranges as `(start, end)`, in order, none touching another.
    pub fn ranges(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.ranges.iter().map(|(start, end)| (start.as_slice(), end.as_slice()))
    }

    /// True when nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    /// Conflicts as `STORE_TXN_CONFLICTS_MAX` counts them: a key as one, a range as two.
    #[must_use]
    pub fn cost(&self) -> usize {
        self.keys.len() + 2 * self.ranges.len()
    }

    /// Bytes of all keys and of the ends of all ranges.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(Vec::len).sum();
        let ranges: usize = self.ranges.iter().map(|(start, end)| start.len() + end.len()).sum();
        keys + 2 * ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{Strategy, any, prop, proptest};

    use super::ReadSet;
    use crate::KeyRange;

    fn covered(set: &ReadSet) -> BTreeSet<u8> {
        (0..=u8::MAX)
            .filter(|key| {
                set.keys().any(|k| k == [*key])
                    || set.ranges().any(|(s, e)| s <= &[*key][..] && &[*key][..] < e)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn covers_exactly_what_was_added(
            adds in prop::collection::vec((any::<u8>(), prop::option::of(any::<u8>())), 0..40)
                .prop_map(|adds| adds)
        ) {
            let mut set = ReadSet::default();
            let mut model = BTreeSet::new();
            for (start, end) in adds {
                match end {
                    None => { set.add_key(&[start]); model.insert(start); }
                    Some(end) => {
                        set.add_range(&KeyRange::new([start], [end]));
                        model.extend(start..end);
                    }
                }
            }
            assert_eq!(covered(&set), model);
            let ranges: Vec<_> = set.ranges().collect();
            assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0), "touching ranges are merged");
            assert!(set.keys().all(|key| !ranges.iter().any(|(s, e)| *s <= key && key < *e)));
        }
    }

    #[test]
    fn pages_that_follow_each_other_are_one_range() {
        let mut set = ReadSet::default();
        set.add_range(&KeyRange::new(*b"a", *b"b\0"));
        set.add_range(&KeyRange::new(*b"b\0", *b"c"));
        assert_eq!(set.cost(), 2);
    }
}
