//! A small seedable generator. Not for secrets: use [`Rng::fill_from_os`] for those.

use std::io;

use millpond_types::Pcg;

/// [`Pcg`] with helpers for tests and clients, and seeds from the system. The same seed gives the
/// same numbers on every build.
#[derive(Clone, Debug)]
pub struct Rng(Pcg);

impl Rng {
    /// A generator for `seed`, on stream 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_stream(seed, 0)
    }

    /// A generator for `seed`; different streams are independent sequences.
    #[must_use]
    pub fn with_stream(seed: u64, stream: u64) -> Self {
        Self(Pcg::new(seed, stream))
    }

    /// A generator seeded by the operating system.
    ///
    /// # Errors
    /// Only where the kernel has no `getrandom`.
    pub fn from_os() -> io::Result<Self> {
        let mut seed = [0u8; 16];
        Self::fill_from_os(&mut seed)?;
        let seed = u128::from_le_bytes(seed);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 random bits")]
        let (low, high) = (seed as u64, (seed >> 64) as u64);
        Ok(Self::with_stream(low, high))
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Fills `bytes` with numbers fit for secrets.
    ///
    /// # Errors
    /// Only where the kernel has no `getrandom`.
    pub fn fill_from_os(bytes: &mut [u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // SAFETY: `rest` is writable for `rest.len()` bytes.
            let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
            match crate::sys::check_len(got) {
                Ok(got) => rest = &mut rest[got..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`, without bias.
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A number in `0..bound` as an index.
    ///
    /// # Panics
    /// When `bound` is zero.
    #[expect(clippy::cast_possible_truncation, reason = "the result is below a usize")]
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let number = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&number[..piece.len()]);
        }
    }

    /// Shuffles `items` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn golden_values_never_change() {
        let mut rng = Rng::with_stream(42, 54);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        // The reference implementation's check values for pcg64 seeded with (42, 54).
        assert_eq!(first, [0x86b1_da1d_7206_2b68, 0x1304_aa46_c985_3d39, 0xa367_0e9e_0dd5_0358]);
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1_000 {
            seen[rng.index(7)] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    #[test]
    fn os_numbers_differ() {
        let (mut a, mut b) = (Rng::from_os().unwrap(), Rng::from_os().unwrap());
        assert_ne!(a.next_u64(), b.next_u64());
    }
}
