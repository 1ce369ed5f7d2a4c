//! Content of objects. An object begins with the number of the write, the size and the hash of the
//! key, each 8 bytes, little endian. Every further word of 8 bytes follows from these three and its
//! position. So a reader knows which write it sees, and detects bytes of another write, of another
//! key or at another position.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of the smallest object: the three words of the head.
pub const SIZE_MIN: u64 = 24;
/// Bytes of the largest object, the S3 limit for one `PutObject`.
pub const SIZE_MAX: u64 = 5 << 30;

const WORD: u64 = 8;
const WORD_BYTES: usize = size_of::<u64>();
const HEAD: usize = 3 * WORD_BYTES;
/// An odd number with multiples spread over 64 bits (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The content of one write of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seq: u64,
    size: u64,
    key_hash: u64,
    seed: u64,
}

impl Content {
    /// The content of write `seq` of `key`, `size` bytes.
    ///
    /// # Panics
    /// When `size` is below [`SIZE_MIN`]; options are checked earlier.
    #[must_use]
    pub fn new(key: &str, seq: u64, size: u64) -> Self {
        assert!(size >= SIZE_MIN, "an object has room for its head");
        let key_hash = xxh3_64(key.as_bytes());
        let mut both = [0u8; 16];
        both[..8].copy_from_slice(&seq.to_le_bytes());
        both[8..].copy_from_slice(&size.to_le_bytes());
        Self { seq, size, key_hash, seed: xxh3_64_with_seed(&both, key_hash) }
    }

    /// Bytes of the object.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    fn word(&self, index: u64) -> u64 {
        match index {
            0 => self.seq,
            1 => self.size,
            2 => self.key_hash,
            _ => body_word(self.seed, index),
        }
    }

    /// Fills `out` with the bytes from `offset`.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let (head, words) = out.split_at_mut(to_body(offset, out.len()));
        self.fill_part(offset, head);
        let mut index = (offset + head.len() as u64) / WORD;
        let mut chunks = words.chunks_exact_mut(WORD_BYTES);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&body_word(self.seed, index).to_le_bytes());
            index += 1;
        }
        self.fill_part(index * WORD, chunks.into_remainder());
    }

    /// Fills less than a word, from an offset that may lie inside a word.
    fn fill_part(&self, offset: u64, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            *byte = self.word(at / WORD).to_le_bytes()[(at % WORD) as usize];
        }
    }

    /// Position of the first byte of `bytes` that differs from the content at `offset`.
    fn first_difference(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let (head, rest) = bytes.split_at(to_body(offset, bytes.len()));
        let aligned = offset + head.len() as u64;
        let (words, tail) = rest.as_chunks::<WORD_BYTES>();
        let mut index = aligned / WORD;
        let mut differs = 0;
        for word in words {
            differs |= u64::from_le_bytes(*word) ^ body_word(self.seed, index);
            index += 1;
        }
        let slow = |from: u64, part: &[u8]| {
            (from..)
                .zip(part)
                .find(|(at, byte)| {
                    **byte != self.word(at / WORD).to_le_bytes()[(at % WORD) as usize]
                })
                .map(|(at, _)| at)
        };
        slow(offset, head)
            .or_else(|| if differs == 0 { None } else { slow(aligned, rest) })
            .or_else(|| slow(index * WORD, tail))
    }
}

fn body_word(seed: u64, index: u64) -> u64 {
    let spread = seed.wrapping_add(index.wrapping_mul(SPREAD));
    spread ^ (spread >> 29)
}

/// Bytes from `offset` to the next word after the head, `len` at most. The rest is whole words of
/// one rule, which the compiler vectorizes.
fn to_body(offset: u64, len: usize) -> usize {
    let body = offset.next_multiple_of(WORD).max(HEAD as u64);
    usize::try_from(body - offset).map_or(len, |distance| distance.min(len))
}

/// The write that an object shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Number of the write.
    pub seq: u64,
    /// Bytes of the object.
    pub size: u64,
}

/// Why bytes are not one whole write of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Torn {
    /// The number of bytes differs from the size of the write.
    #[error("has {got} bytes of {size}")]
    Length {
        /// Bytes according to the head.
        size: u64,
        /// Bytes received.
        got: u64,
    },
    /// The head belongs to another key, or is not a head.
    #[error("does not belong to this key")]
    Foreign,
    /// The byte at this position differs from that of the write.
    #[error("byte {at} differs from write {seq}")]
    Byte {
        /// Bytes from the object's start.
        at: u64,
        /// Number of the write according to the head.
        seq: u64,
    },
}

/// Compares an object with its own head while its bytes arrive.
#[derive(Debug)]
pub struct Checker<'a> {
    key: &'a str,
    head: [u8; HEAD],
    got: u64,
    content: Option<Content>,
    torn: Option<Torn>,
}

impl<'a> Checker<'a> {
    /// A checker for an object of `key`, before its first byte.
    #[must_use]
    pub const fn new(key: &'a str) -> Self {
        Self { key, head: [0; HEAD], got: 0, content: None, torn: None }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.content.is_none() && self.torn.is_none() {
            let place = usize::try_from(self.got).map_or(HEAD, |got| got.min(HEAD));
            let taken = rest.len().min(HEAD - place);
            self.head[place..place + taken].copy_from_slice(&rest[..taken]);
            self.got += taken as u64;
            rest = &rest[taken..];
            if self.got == HEAD as u64 {
                self.begin();
            }
        }
        if let (Some(content), None) = (&self.content, self.torn)
            && let Some(at) = content.first_difference(self.got, rest)
        {
            self.torn = Some(Torn::Byte { at, seq: content.seq });
        }
        self.got += rest.len() as u64;
    }

    fn begin(&mut self) {
        let (words, _) = self.head.as_chunks::<WORD_BYTES>();
        let (seq, size) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        if u64::from_le_bytes(words[2]) == xxh3_64(self.key.as_bytes()) && size >= SIZE_MIN {
            self.content = Some(Content::new(self.key, seq, size));
        } else {
            self.torn = Some(Torn::Foreign);
        }
    }

    /// Returns the write that the object shows, after its last byte.
    ///
    /// # Errors
    /// [`Torn`]: the object is not one whole write of the key.
    pub fn finish(self) -> Result<Seen, Torn> {
        if let Some(torn) = self.torn {
            return Err(torn);
        }
        let Some(content) = self.content else {
            return Err(Torn::Length { size: SIZE_MIN, got: self.got });
        };
        if content.size != self.got {
            return Err(Torn::Length { size: content.size, got: self.got });
        }
        Ok(Seen { seq: content.seq, size: content.size })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Checker, Content, SIZE_MIN, Seen, Torn};

    fn whole(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(content.size()).unwrap()];
        content.fill(0, &mut bytes);
        bytes
    }

    fn check(key: &str, bytes: &[u8], step: usize) -> Result<Seen, Torn> {
        let mut checker = Checker::new(key);
        for piece in bytes.chunks(step) {
            checker.feed(piece);
        }
        checker.finish()
    }

    proptest! {
        #[test]
        fn content_is_the_same_in_any_pieces(size in SIZE_MIN..3000, seq in 0u64..9, step in 1usize..200) {
            let content = Content::new("a/b", seq, size);
            let bytes = whole(&content);
            let mut pieces = Vec::new();
            while pieces.len() < bytes.len() {
                let mut piece = vec![0; step.min(bytes.len() - pieces.len())];
                content.fill(pieces.len() as u64, &mut piece);
                pieces.extend(piece);
            }
            prop_assert_eq!(&pieces, &bytes);
            prop_assert_eq!(check("a/b", &bytes, step), Ok(Seen { seq, size }));
        }

        #[test]
        fn one_wrong_byte_is_found_where_it_is(size in SIZE_MIN..3000, step in 1usize..200, place in 24usize..3000) {
            let mut bytes = whole(&Content::new("k", 3, size));
            prop_assume!(place < bytes.len());
            bytes[place] ^= 1;
            prop_assert_eq!(check("k", &bytes, step), Err(Torn::Byte { at: place as u64, seq: 3 }));
        }
    }

    #[test]
    fn a_mix_of_two_writes_another_key_and_a_short_object_are_torn() {
        let (old, new) = (whole(&Content::new("k", 1, 4096)), whole(&Content::new("k", 2, 4096)));
        let mixed = [&new[..1000], &old[1000..]].concat();
        assert_eq!(check("k", &mixed, 512), Err(Torn::Byte { at: 1000, seq: 2 }));
        assert_eq!(check("other", &new, 512), Err(Torn::Foreign));
        assert_eq!(check("k", &new[..4000], 512), Err(Torn::Length { size: 4096, got: 4000 }));
        assert_eq!(check("k", &new[..7], 512), Err(Torn::Length { size: 24, got: 7 }));
        assert_eq!(check("k", &[], 512), Err(Torn::Length { size: 24, got: 0 }));
    }
}
