//! Random numbers of a run, all from one seed.

/// `SplitMix64` (Steele, Lea & Flood, OOPSLA 2014): small, fast, and any seed is a good one.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        // The bias of the remainder is below 2^-40 for the small bounds used here.
        if n == 0 { 0 } else { self.next() % n }
    }

    /// An index below `n`.
    pub(crate) fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).expect("it is below a usize")
    }

    /// A number from `low` up to, not including, `high`.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    /// True `n` times in a thousand.
    pub(crate) const fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    /// One of `items`.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(items[self.index(items.len())]) }
    }
}
