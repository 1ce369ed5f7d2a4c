//! Bytes that one client has written to the chunks of a file, to be reported to a meta as solid
//! (RFC 0029).

use std::collections::BTreeMap;

use millpond_types::meta::{Attr, Filled};

/// Most ranges remembered. If there are more, the last are dropped, and a meta takes them for
/// holes.
const RANGES_MAX: usize = 256;

/// Ranges that were written and not yet reported to a meta, as far as they are remembered.
#[derive(Clone, Debug, Default)]
pub struct Fills {
    /// The value of [`Attr::cuts`] before all of these writes.
    cuts: u32,
    /// The latest known [`Attr::solid`].
    solid: u64,
    /// Ends of the ranges by their starts; ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl Fills {
    /// Records a written range, unless bytes may have been cut off since.
    pub fn note(&mut self, filled: Filled) {
        let Filled { mut from, mut to, cuts } = filled;
        if cuts != self.cuts || from >= to || to <= self.solid {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..=to).next_back()
            && end >= from
        {
            (from, to) = (from.min(start), to.max(end));
            self.ranges.remove(&start);
        }
        self.ranges.insert(from, to);
        if self.ranges.len() > RANGES_MAX {
            self.ranges.pop_last();
        }
    }

    /// The recorded ranges before `from`, for [`Self::keep`].
    #[must_use]
    pub fn before(&self, from: u64) -> Self {
        let ranges = self.ranges.range(..from).map(|(start, end)| (*start, (*end).min(from)));
        Self { ranges: ranges.collect(), ..*self }
    }

    /// Restores the ranges recorded before a cut by this client, which did not touch them, if no
    /// other client has cut since.
    pub fn keep(&mut self, before: &Self, ended: bool) {
        if self.cuts == Attr::cuts_after(before.cuts, ended) {
            for (from, to) in &before.ranges {
                self.note(Filled { from: *from, to: *to, cuts: self.cuts });
            }
        }
    }

    /// Applies a meta's attributes: drops the ranges that the meta knows, and all of them after a
    /// cut.
    pub fn learn(&mut self, attr: &Attr) {
        if attr.cuts != self.cuts {
            (self.cuts, self.ranges) = (attr.cuts, BTreeMap::new());
        }
        self.solid = attr.solid;
        while let Some(first) = self.ranges.first_entry()
            && *first.get() <= attr.solid
        {
            first.remove();
        }
    }

    /// The range to report to a meta next: a meta accepts a range that begins at the end of the
    /// solid part.
    #[must_use]
    pub fn first(&self) -> Filled {
        let first = self.ranges.first_key_value();
        first.map_or_else(Filled::default, |(from, to)| Filled {
            from: *from,
            to: *to,
            cuts: self.cuts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::tests::stored;

    fn file() -> Attr {
        Attr { chunks: Some(5), solid: 10, ..stored(100) }
    }

    fn filled(from: u64, to: u64) -> Filled {
        Filled { from, to, cuts: 0 }
    }

    #[test]
    fn ranges_that_meet_become_one() {
        let mut fills = Fills::default();
        for (from, to) in [(10, 20), (30, 40), (0, 5), (20, 25), (40, 41)] {
            fills.note(filled(from, to));
        }
        assert_eq!(fills.ranges, BTreeMap::from([(0, 5), (10, 25), (30, 41)]));
        fills.note(filled(4, 35));
        assert_eq!(fills.first(), filled(0, 41));
        fills.note(filled(7, 7));
        assert_eq!(fills.ranges.len(), 1);
    }

    #[test]
    fn what_a_meta_knows_or_cut_off_is_forgotten() {
        let mut fills = Fills::default();
        fills.note(filled(0, 10));
        fills.note(filled(20, 30));
        let mut attr = file();
        fills.learn(&attr);
        fills.note(filled(2, 8));
        assert_eq!(fills.first(), filled(20, 30), "what is written over says nothing new");
        attr.hollow(5, true);
        fills.learn(&attr);
        assert_eq!(fills.first(), Filled::default());
        fills.note(filled(5, 30));
        assert_eq!(fills.first(), Filled::default(), "it was begun before the cut");
        fills.note(Filled { from: 5, to: 30, cuts: 2 });
        attr.fill(&fills.first());
        assert_eq!(attr.solid, 30);
    }

    #[test]
    fn what_lies_before_a_cut_of_ones_own_is_kept() {
        let (mut fills, mut attr) = (Fills::default(), file());
        fills.learn(&attr);
        for (from, to) in [(20, 30), (40, 60), (70, 80)] {
            fills.note(filled(from, to));
        }
        for ended in [false, true] {
            let before = fills.before(50);
            attr.hollow(50, ended);
            fills.learn(&attr);
            fills.keep(&before, ended);
            assert_eq!(fills.ranges, BTreeMap::from([(20, 30), (40, 50)]));
        }
        let before = fills.before(50);
        attr.hollow(45, false);
        attr.hollow(50, false);
        fills.learn(&attr);
        fills.keep(&before, false);
        assert_eq!(fills.ranges, BTreeMap::new(), "somebody else has cut too");
    }

    #[test]
    fn of_many_ranges_the_first_are_remembered() {
        let mut fills = Fills::default();
        for n in (0..2 * RANGES_MAX as u64).rev() {
            fills.note(filled(2 * n, 2 * n + 1));
        }
        assert_eq!(fills.ranges.len(), RANGES_MAX);
        assert_eq!(fills.first(), filled(0, 1));
    }
}
