//! Merges the listings of the pool and of the backend, in the order of keys.
//!
//! Pure: the caller fetches the requested pages. A page of the backend is never older than the page
//! of the metas beside it, so that a key that is persisted and evicted between the two is on one of
//! them. So a new page of the pool discards the rest of the page of the backend.

use std::collections::VecDeque;

/// A key, or a common prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line<T> {
    pub(crate) name: Vec<u8>,
    /// The data of a key; none for a prefix.
    pub(crate) of: Option<T>,
}

/// A page of one side.
#[derive(Debug)]
pub(crate) struct Page<T> {
    /// Lines in the order of names.
    pub(crate) lines: Vec<Line<T>>,
    /// The page is complete up to here; none if it reaches the end.
    pub(crate) upto: Option<Vec<u8>>,
}

/// The next action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<H, T> {
    /// The pool has it; with the line of the backend if that has it too.
    Here(Line<H>, Option<Line<T>>),
    /// Only the backend has it.
    There(Line<T>),
    /// A page of the pool after this position is needed.
    NeedHere(Vec<u8>),
    /// A page of the backend after this position is needed.
    NeedThere(Vec<u8>),
    /// The end of the listing.
    End,
}

#[derive(Debug)]
struct Side<T> {
    lines: VecDeque<Line<T>>,
    upto: Option<Vec<u8>>,
}

impl<T> Side<T> {
    fn new(after: &[u8]) -> Self {
        Self { lines: VecDeque::new(), upto: Some(after.to_vec()) }
    }

    /// Takes a page, without names already returned.
    fn take(&mut self, page: Page<T>, told: &[u8]) {
        let new = page.lines.into_iter().filter(|line| line.name.as_slice() > told);
        self.lines = new.collect();
        self.upto = page.upto;
    }

    fn front(&self) -> Option<&[u8]> {
        self.lines.front().map(|line| line.name.as_slice())
    }

    /// The position after which its lines are unknown, if no line is left before it.
    fn gap(&self) -> Option<&Vec<u8>> {
        self.upto.as_ref().filter(|_| self.lines.is_empty())
    }
}

/// The merge of both sides.
#[derive(Debug)]
pub(crate) struct Merge<H, T> {
    here: Side<H>,
    there: Side<T>,
    told: Vec<u8>,
}

impl<H, T> Merge<H, T> {
    /// Starts after this key or prefix; empty for the beginning.
    pub(crate) fn new(after: &[u8]) -> Self {
        Self { here: Side::new(after), there: Side::new(after), told: after.to_vec() }
    }

    /// Takes a page of the pool.
    pub(crate) fn take_here(&mut self, page: Page<H>) {
        let from = self.here.upto.take();
        self.here.take(page, &self.told);
        self.there = Side { lines: VecDeque::new(), upto: from };
    }

    /// Takes a page of the backend.
    pub(crate) fn take_there(&mut self, page: Page<T>) {
        self.there.take(page, &self.told);
    }

    /// The position up to which everything has been returned: a next merge can begin there.
    pub(crate) fn reached(&self) -> Vec<u8> {
        let gaps = [self.here.gap(), self.there.gap()];
        let is_between = self.here.front().is_some() || self.there.front().is_some();
        let known = gaps.into_iter().flatten().min().filter(|_| !is_between);
        known.map_or(self.told.as_slice(), |gap| gap.as_slice().max(&self.told)).to_vec()
    }

    /// The next step.
    pub(crate) fn step(&mut self) -> Step<H, T> {
        match (self.here.front(), self.there.front()) {
            (Some(here), Some(there)) if there < here => self.tell_there(),
            (Some(here), Some(there)) => {
                let is_both = here == there;
                let too = is_both.then(|| self.there.lines.pop_front()).flatten();
                self.tell_here(too)
            }
            (Some(here), None) => match self.there.gap() {
                Some(gap) if gap.as_slice() < here => Step::NeedThere(gap.clone()),
                _ => self.tell_here(None),
            },
            (None, Some(there)) => match self.here.gap() {
                Some(gap) if gap.as_slice() < there => Step::NeedHere(gap.clone()),
                _ => self.tell_there(),
            },
            (None, None) => match (self.here.gap(), self.there.gap()) {
                (Some(here), Some(there)) if there < here => Step::NeedThere(there.clone()),
                (Some(here), _) => Step::NeedHere(here.clone()),
                (None, Some(there)) => Step::NeedThere(there.clone()),
                (None, None) => Step::End,
            },
        }
    }

    fn tell_here(&mut self, too: Option<Line<T>>) -> Step<H, T> {
        let Some(line) = self.here.lines.pop_front() else { return Step::End };
        self.told.clone_from(&line.name);
        Step::Here(line, too)
    }

    fn tell_there(&mut self) -> Step<H, T> {
        let Some(line) = self.there.lines.pop_front() else { return Step::End };
        self.told.clone_from(&line.name);
        Step::There(line)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use millpond_env::Rng;

    use super::*;

    /// A page of keys in the form of metas and backends.
    fn page(keys: &BTreeSet<Vec<u8>>, after: &[u8], (by, limit): (bool, usize)) -> Page<u8> {
        let mut lines: Vec<Line<u8>> = Vec::new();
        for key in keys.iter().filter(|key| key.as_slice() > after) {
            let cut = key.iter().position(|byte| *byte == b'/').filter(|_| by);
            let (name, of) = match cut {
                Some(at) => (key[..=at].to_vec(), None),
                None => (key.clone(), Some(1)),
            };
            if name.as_slice() <= after || lines.last().is_some_and(|line| line.name == name) {
                continue;
            }
            if lines.len() == limit {
                let upto = lines.last().map(|line| line.name.clone());
                return Page { lines, upto };
            }
            lines.push(Line { name, of });
        }
        Page { lines, upto: None }
    }

    fn keys(rng: &mut Rng) -> BTreeSet<Vec<u8>> {
        let letter = |rng: &mut Rng| b"/a\xc3\x01z"[rng.index(5)];
        let key = |rng: &mut Rng| (0..=rng.index(4)).map(|_| letter(rng)).collect();
        (0..rng.index(40)).map(|_| key(rng)).collect()
    }

    fn merged(
        (here, there): (&BTreeSet<Vec<u8>>, &BTreeSet<Vec<u8>>),
        by: bool,
        rng: &mut Rng,
    ) -> Vec<(Vec<u8>, bool)> {
        let (mut all, mut after) = (Vec::new(), Vec::new());
        // One page of a client after another.
        'pages: loop {
            let mut merge = Merge::<u8, u8>::new(&after);
            let room = 1 + rng.index(5);
            let mut told = 0;
            while told < room {
                let limit = 1 + rng.index(4);
                match merge.step() {
                    Step::Here(line, too) => {
                        let is_told = page(there, b"", (by, usize::MAX))
                            .lines
                            .contains(&Line { name: line.name.clone(), of: line.of });
                        assert!(too.is_some() == is_told, "what the backend has is known");
                        all.push((line.name, true));
                    }
                    Step::There(line) => all.push((line.name, false)),
                    Step::NeedHere(at) => {
                        merge.take_here(page(here, &at, (by, limit)));
                        continue;
                    }
                    Step::NeedThere(at) => {
                        merge.take_there(page(there, &at, (by, limit)));
                        continue;
                    }
                    Step::End => break 'pages,
                }
                told += 1;
            }
            after = merge.reached();
        }
        all
    }

    #[test]
    fn a_merge_tells_every_name_once_and_in_order() {
        for seed in 0..3_000 {
            let mut rng = Rng::new(seed);
            let (here, there, by) = (keys(&mut rng), keys(&mut rng), rng.chance(1, 2));
            let mut expected = BTreeMap::new();
            for (side, is_here) in [(&there, false), (&here, true)] {
                for line in page(side, b"", (by, usize::MAX)).lines {
                    expected.insert(line.name, is_here);
                }
            }
            let got = merged((&here, &there), by, &mut rng);
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(got, expected, "seed {seed}");
        }
    }

    #[test]
    fn a_page_from_here_makes_the_backend_tell_again() {
        let line = |name: &[u8]| Line { name: name.to_vec(), of: Some(1) };
        let mut merge = Merge::<u8, u8>::new(b"");
        assert_eq!(merge.step(), Step::NeedHere(vec![]));
        merge.take_here(Page { lines: vec![line(b"b")], upto: Some(b"b".to_vec()) });
        assert_eq!(merge.step(), Step::NeedThere(vec![]));
        merge.take_there(Page { lines: vec![line(b"a"), line(b"z")], upto: None });
        assert_eq!(merge.step(), Step::There(line(b"a")));
        assert_eq!(merge.step(), Step::Here(line(b"b"), None));
        // The keys of the pool after `b` are requested before `z` is returned, and then `z` again.
        assert_eq!(merge.step(), Step::NeedHere(b"b".to_vec()));
        merge.take_here(Page { lines: vec![], upto: None });
        assert_eq!(merge.step(), Step::NeedThere(b"b".to_vec()));
        assert_eq!(merge.reached(), b"b");
        merge.take_there(Page { lines: vec![line(b"y")], upto: None });
        assert_eq!(merge.step(), Step::There(line(b"y")));
        assert_eq!(merge.step(), Step::End);
    }
}
