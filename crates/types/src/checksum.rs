//! CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of every chunk and frame.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of some bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Crc32c(pub u32);

impl Crc32c {
    /// The checksum of no bytes.
    pub const EMPTY: Self = Self(0);

    /// Checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::crc32_iscsi(bytes))
    }

    /// Checksum of the bytes of `self` followed by `bytes`.
    #[must_use]
    pub fn append(self, bytes: &[u8]) -> Self {
        // The register state is the checksum before its final inversion.
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!self.0));
        digest.update(bytes);
        Self(low(digest.finalize()))
    }

    /// Checksum of the bytes of `self` followed by `next_len` bytes with checksum `next`.
    #[must_use]
    pub fn combine(self, next: Self, next_len: usize) -> Self {
        Self(multiply(x_power_of_bytes(next_len as u64), self.0) ^ next.0)
    }
}

/// The polynomial, reflected: bit 31 is the coefficient of `x^0`.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `x^(2^i)` modulo the polynomial. From `i = 31` on the values repeat, because the polynomial is
/// `x + 1` times a primitive polynomial of degree 31.
const X_POWERS: [u32; 32] = {
    let mut powers = [0; 32];
    powers[0] = 1 << 30;
    let mut i = 1;
    while i < 32 {
        powers[i] = multiply(powers[i - 1], powers[i - 1]);
        i += 1;
    }
    powers
};

/// The product of two polynomials modulo the polynomial, as `multmodp` in zlib's `crc32.c`.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while a != 0 {
        // Branch-free: the bits are random.
        product ^= b & 0u32.wrapping_sub(a >> 31);
        a <<= 1;
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
    }
    product
}

/// `x^(8 bytes)` modulo the polynomial: the factor of a checksum when `bytes` more bytes follow.
/// Takes about 0.1 µs for a power of two; the available libraries square matrices for 30 µs.
const fn x_power_of_bytes(bytes: u64) -> u32 {
    let (mut bytes, mut power, mut i) = (bytes, 1 << 31, 3);
    while bytes != 0 {
        if bytes & 1 != 0 {
            power = multiply(X_POWERS[i % 31], power);
        }
        bytes >>= 1;
        i += 1;
    }
    power
}

/// The library returns all checksums as 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "a CRC of 32 bits has no higher ones")]
const fn low(crc: u64) -> u32 {
    crc as u32
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

    #[test]
    fn long_lengths_combine_as_the_library_combines_them() {
        for bits in 0..44 {
            let len = (0x0123_4567_89ab_u64 >> (44 - bits)) | (1 << bits);
            let expected = crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, 0x8a91, 0x77, len);
            let len = usize::try_from(len).unwrap();
            assert_eq!(Crc32c(0x8a91).combine(Crc32c(0x77), len), Crc32c(low(expected)), "{len}");
        }
    }

    #[test]
    fn every_length_and_split_agrees_with_the_definition() {
        // Bitwise reference with the reflected polynomial 0x82f63b78: guards each vector path of
        // the library.
        let slow = |bytes: &[u8]| {
            !bytes.iter().fold(!0u32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0x82f6_3b78 * (c & 1)))
            })
        };
        let bytes: Vec<u8> = (0..5_000u32).map(|i| (i * 31 + i / 7).to_le_bytes()[0]).collect();
        for len in (0..600).chain([1023, 1024, 1025, 4095, 4096, 4097, 5000]) {
            let expected = Crc32c(slow(&bytes[..len]));
            assert_eq!(Crc32c::of(&bytes[..len]), expected, "{len} bytes");
            let (a, b) = bytes[..len].split_at(len / 3);
            assert_eq!(Crc32c::of(a).append(b), expected, "{len} bytes appended");
            assert_eq!(Crc32c::of(a).combine(Crc32c::of(b), b.len()), expected, "{len} combined");
        }
    }
}
