//! MD5 (RFC 1321), which S3 has as the `ETag` of what is put at once and of parts: of one body, and of many side by side
//! ([`Beside`]), which takes a fraction of the time.
//!
//! A crate of its own since all of it is generic code that the compiler makes wide instructions of: it is optimised in every
//! profile, and what uses it need not be.

mod rounds;

use fearless_simd::Level;

pub use rounds::{BLOCK, LANES};

use rounds::START;

/// So many bodies cost more one after the other than side by side.
pub const WORTH: usize = 3;

/// MD5 under way.
#[derive(Clone, Debug)]
pub struct Md5 {
    state: [u32; 4],
    /// Bytes that have come.
    len: u64,
    /// Those of them that make no block yet.
    rest: [u8; BLOCK],
}

impl Default for Md5 {
    fn default() -> Self {
        Self::new()
    }
}

impl Md5 {
    /// Of no bytes yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: START, len: 0, rest: [0; BLOCK] }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let rest = self.fill(bytes);
        let (blocks, tail) = rest.as_chunks::<BLOCK>();
        self.blocks(blocks);
        self.keep(tail);
    }

    /// Adds the first of these bytes where a block was begun, up to its end, and returns what is behind them.
    pub fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let held = self.held();
        if held == 0 {
            return bytes;
        }
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK - held));
        self.rest[held..held + now.len()].copy_from_slice(now);
        self.len += now.len() as u64;
        if held + now.len() == BLOCK {
            rounds::alone(&mut self.state, &[self.rest]);
        }
        later
    }

    /// Adds whole blocks where none is begun.
    fn blocks(&mut self, blocks: &[[u8; BLOCK]]) {
        debug_assert!(blocks.is_empty() || self.held() == 0, "a block is begun");
        rounds::alone(&mut self.state, blocks);
        self.len += (blocks.len() * BLOCK) as u64;
    }

    /// Adds less than a block where none is begun.
    ///
    /// # Panics
    /// For more.
    pub fn keep(&mut self, tail: &[u8]) {
        debug_assert!(tail.is_empty() || self.held() == 0, "a block is begun");
        self.rest[..tail.len()].copy_from_slice(tail);
        self.len += tail.len() as u64;
    }

    /// Bytes that wait for more.
    #[expect(clippy::cast_possible_truncation, reason = "less than a block")]
    const fn held(&self) -> usize {
        (self.len % BLOCK as u64) as usize
    }

    /// The hash of all.
    #[must_use]
    pub fn finish(mut self) -> [u8; 16] {
        let bits = (self.len * 8).to_le_bytes();
        let held = self.held();
        let mut last = [[0; BLOCK]; 2];
        last[0][..held].copy_from_slice(&self.rest[..held]);
        last[0][held] = 0x80;
        // The length goes where there is room for it.
        let count = if held < BLOCK - 8 { 1 } else { 2 };
        last[count - 1][BLOCK - 8..].copy_from_slice(&bits);
        rounds::alone(&mut self.state, &last[..count]);
        let mut out = [0; 16];
        for (bytes, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            *bytes = word.to_le_bytes();
        }
        out
    }
}

/// Hashes bodies side by side.
#[derive(Clone, Copy, Debug)]
pub struct Beside(Level);

impl Default for Beside {
    fn default() -> Self {
        Self(Level::new())
    }
}

impl Beside {
    /// Adds whole blocks to each of up to [`LANES`] hashes in which none is begun: as many to each as the one with the fewest
    /// has, which is returned.
    ///
    /// # Panics
    /// For more hashes.
    pub fn blocks(self, bodies: &mut [(&mut Md5, &[[u8; BLOCK]])]) -> usize {
        assert!(bodies.len() <= LANES, "one body for a lane");
        let count = bodies.iter().map(|(_, blocks)| blocks.len()).min().unwrap_or(0);
        if bodies.len() < WORTH {
            for (md5, blocks) in bodies {
                md5.blocks(&blocks[..count]);
            }
            return count;
        }
        // Where there are fewer bodies than lanes, the first one is hashed for nothing.
        let of = |at: usize| bodies.get(at).unwrap_or(&bodies[0]);
        let mut states = std::array::from_fn(|at| of(at).0.state);
        let blocks = std::array::from_fn(|at| &of(at).1[..count]);
        rounds::beside(self.0, &mut states, &blocks);
        for ((md5, _), state) in bodies.iter_mut().zip(states) {
            md5.state = state;
            md5.len += (count * BLOCK) as u64;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use md5::Digest as _;

    use super::*;

    /// What another implementation says.
    fn known(bytes: &[u8]) -> [u8; 16] {
        md5::Md5::digest(bytes).into()
    }

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31 + seed * 7) ^ (at >> 7)).to_le_bytes()[0]).collect()
    }

    #[test]
    fn every_length_and_cut_gives_the_known_hash() {
        for len in 0..=200 {
            let bytes = bytes(len, len);
            for cut in [0, 1, 55, 56, 63, 64, 65, 127, 128] {
                let (head, tail) = bytes.split_at(cut.min(len));
                let mut md5 = Md5::new();
                md5.update(head);
                md5.update(tail);
                assert_eq!(md5.finish(), known(&bytes), "{len} bytes cut at {cut}");
            }
        }
    }

    #[test]
    fn lanes_do_not_touch_each_other() {
        for level in [Level::new(), Level::baseline()] {
            for count in 0..=LANES {
                let bodies: Vec<Vec<u8>> = (0..count).map(|n| bytes(640 + 64 * n, n)).collect();
                let mut all = vec![Md5::new(); count];
                let blocks = bodies.iter().map(|body| body.as_chunks::<BLOCK>().0);
                let mut lanes: Vec<_> = all.iter_mut().zip(blocks).collect();
                assert_eq!(Beside(level).blocks(&mut lanes), if count == 0 { 0 } else { 10 });
                for (md5, body) in all.into_iter().zip(&bodies) {
                    assert_eq!(md5.finish(), known(&body[..640]));
                }
            }
        }
    }
}
