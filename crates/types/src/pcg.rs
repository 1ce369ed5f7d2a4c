//! The pseudo-random generator of the whole system: the same seed gives the same numbers in every
//! build.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// PCG XSL RR 128/64 (M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically
/// Good Algorithms for Random Number Generation", 2014), described in `docs/placement.md`.
///
/// Not for secrets. Stored placements depend on these numbers: a change here is a change of format.
#[derive(Clone, Debug)]
pub struct Pcg {
    state: u128,
    increment: u128,
}

impl Pcg {
    /// A generator for `seed`; different streams are independent sequences.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut pcg = Self { state: 0, increment: (u128::from(stream) << 1) | 1 };
        pcg.advance();
        pcg.state = pcg.state.wrapping_add(u128::from(seed));
        pcg.advance();
        pcg
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.advance();
        #[expect(clippy::cast_possible_truncation, reason = "XSL RR folds 128 bits into 64")]
        let folded = ((self.state >> 64) as u64) ^ (self.state as u64);
        let rotation = (self.state >> 122) as u32;
        folded.rotate_right(rotation)
    }

    /// A number in `0..bound`, without bias (D. Lemire, "Fast Random Integer Generation in an
    /// Interval", 2019, section 4).
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random member");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            #[expect(clippy::cast_possible_truncation, reason = "low and high halves")]
            let (low, high) = (product as u64, (product >> 64) as u64);
            if low >= threshold {
                return high;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pcg;

    #[test]
    fn golden_values_never_change() {
        let mut pcg = Pcg::new(42, 54);
        let first: Vec<u64> = (0..3).map(|_| pcg.next_u64()).collect();
        // The reference implementation's check values for pcg64 seeded with (42, 54).
        assert_eq!(first, [0x86b1_da1d_7206_2b68, 0x1304_aa46_c985_3d39, 0xa367_0e9e_0dd5_0358]);
        let dice: Vec<u64> = (0..8).map(|_| pcg.below(6)).collect();
        assert_eq!(dice, DICE);
    }

    const DICE: [u64; 8] = [5, 4, 2, 2, 4, 2, 4, 0];
}
