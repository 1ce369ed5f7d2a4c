//! CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of every chunk and frame.

use std::fmt;

/// CRC-32C of some bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Crc32c(pub u32);

impl Crc32c {
    /// The checksum of no bytes.
    pub const EMPTY: Self = Self(0);

    /// Checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc32c::crc32c(bytes))
    }

    /// Checksum of the bytes seen so far followed by `bytes`.
    #[must_use]
    pub fn append(self, bytes: &[u8]) -> Self {
        Self(crc32c::crc32c_append(self.0, bytes))
    }

    /// Checksum of the bytes of `self` followed by `next_len` bytes whose checksum is `next`.
    #[must_use]
    pub fn combine(self, next: Self, next_len: usize) -> Self {
        Self(crc32c::crc32c_combine(self.0, next.0, next_len))
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:08x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_vectors() {
        // RFC 3720 appendix B.4.
        assert_eq!(Crc32c::of(&[0; 32]).0, 0x8a91_36aa);
        assert_eq!(Crc32c::of(&[0xff; 32]).0, 0x62a8_ab43);
        assert_eq!(Crc32c::of(b"123456789").0, 0xe306_9283);
    }

    #[test]
    fn pieces_combine_to_the_whole() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7).to_le_bytes()[0]).collect();
        let (a, b) = bytes.split_at(65_536);
        assert_eq!(Crc32c::of(a).combine(Crc32c::of(b), b.len()), Crc32c::of(&bytes));
        assert_eq!(Crc32c::of(a).append(b), Crc32c::of(&bytes));
    }
}
