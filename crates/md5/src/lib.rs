//! MD5 (RFC 1321), which S3 uses as `ETag` of single-request uploads and of parts: of one body, or
//! of many side by side ([`Beside`]), which takes a fraction of the time.
//!
//! A separate crate because all of it is generic code that the compiler turns into wide
//! instructions: it is optimised in every profile, which its users need not be.

mod rounds;

use fearless_simd::Level;

pub use rounds::{BLOCK, LANES};

use rounds::START;

/// From this number of bodies on, hashing side by side is faster than one after the other.
pub const WORTH: usize = 3;

/// An MD5 hash in progress.
#[derive(Clone, Debug)]
pub struct Md5 {
    state: [u32; 4],
    /// Bytes received.
    len: u64,
    /// Bytes that do not fill a block yet.
    rest: [u8; BLOCK],
}

impl Default for Md5 {
    fn default() -> Self {
        Self::new()
    }
}

impl Md5 {
    /// The hash of no bytes.
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

    /// Completes a block in progress with the first of these bytes, as far as they go, and returns
    /// the rest.
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

    /// Adds whole blocks when no block is in progress.
    fn blocks(&mut self, blocks: &[[u8; BLOCK]]) {
        debug_assert!(blocks.is_empty() || self.held() == 0, "a block is begun");
        rounds::alone(&mut self.state, blocks);
        self.len += (blocks.len() * BLOCK) as u64;
    }

    /// Adds less than a block when no block is in progress.
    ///
    /// # Panics
    /// For more.
    pub fn keep(&mut self, tail: &[u8]) {
        debug_assert!(tail.is_empty() || self.held() == 0, "a block is begun");
        self.rest[..tail.len()].copy_from_slice(tail);
        self.len += tail.len() as u64;
    }

    /// The number of bytes in `rest`.
    #[expect(clippy::cast_possible_truncation, reason = "less than a block")]
    const fn held(&self) -> usize {
        (self.len % BLOCK as u64) as usize
    }

    /// Returns the hash of all bytes.
    #[must_use]
    pub fn finish(mut self) -> [u8; 16] {
        let bits = (self.len * 8).to_le_bytes();
        let held = self.held();
        let mut last = [[0; BLOCK]; 2];
        last[0][..held].copy_from_slice(&self.rest[..held]);
        last[0][held] = 0x80;
        // The length goes into the block with room for it.
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
    /// Adds whole blocks to each of up to [`LANES`] hashes without a block in progress: to each as
    /// many as the shortest body has, which is returned.
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
        // With fewer bodies than lanes, the spare lanes hash the first body without use.
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

    /// The result of another implementation.
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
