//! MD5 of bodies, which S3 has as the `ETag` of what is put at once and of parts. Bodies that come at the same time are hashed
//! side by side ([`Together`]): MD5 is most of the work of a large PUT otherwise.

mod rounds;
mod together;

pub(crate) use together::Together;

use rounds::{BLOCK, START};

/// MD5 under way.
#[derive(Clone, Debug)]
pub(crate) struct Md5 {
    state: [u32; 4],
    /// Bytes that have come.
    len: u64,
    /// Those of them that make no block yet.
    rest: [u8; BLOCK],
}

impl Md5 {
    pub(crate) const fn new() -> Self {
        Self { state: START, len: 0, rest: [0; BLOCK] }
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let rest = self.fill(bytes);
        let (blocks, tail) = rest.as_chunks::<BLOCK>();
        rounds::alone(&mut self.state, blocks);
        self.keep(tail);
        self.len += (rest.len() - tail.len()) as u64;
    }

    /// Completes the block that was begun, and returns what is behind it.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
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

    /// Keeps less than a block for later, where nothing is kept.
    fn keep(&mut self, tail: &[u8]) {
        self.rest[..tail.len()].copy_from_slice(tail);
        self.len += tail.len() as u64;
    }

    /// Bytes that wait for more.
    #[expect(clippy::cast_possible_truncation, reason = "less than a block")]
    const fn held(&self) -> usize {
        (self.len % BLOCK as u64) as usize
    }

    /// The hash of all.
    pub(crate) fn finish(mut self) -> [u8; 16] {
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

#[cfg(test)]
mod tests {
    use s3s::crypto::Checksum as _;

    use super::*;

    /// What another implementation says.
    pub(super) fn known(bytes: &[u8]) -> [u8; 16] {
        let mut md5 = s3s::crypto::Md5::new();
        md5.update(bytes);
        md5.finalize()
    }

    pub(super) fn bytes(len: usize, seed: usize) -> Vec<u8> {
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
}
