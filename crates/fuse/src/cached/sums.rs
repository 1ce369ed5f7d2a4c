//! The checksums of a cached file, in a file beside it.
//!
//! magic u64, bytes of a piece u32, bytes of the file u64, a CRC-32C u32 of each piece, then one of
//! all before it.

use millpond_types::Crc32c;
use millpond_types::wire::{Reader, WireError, Writer};

/// The unit of checksums in bytes, and of reads that compare them.
pub(super) const PIECE: u64 = 1 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"mpcache1");
const HEAD: usize = 20;
const SUM: usize = 4;

/// Checksums of the pieces of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pieces: Vec<Crc32c>,
    /// Bytes of the last piece.
    last: u64,
}

impl Sums {
    /// Adds the next bytes of the file.
    pub(super) fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.pieces.is_empty() || self.last == PIECE {
                self.pieces.push(Crc32c::EMPTY);
                self.last = 0;
            }
            let room = usize::try_from(PIECE - self.last).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            if let Some(sum) = self.pieces.last_mut() {
                *sum = if self.last == 0 { Crc32c::of(now) } else { sum.append(now) };
            }
            self.last += room as u64;
            bytes = later;
        }
    }

    /// Whether the piece of this number has these bytes.
    pub(super) fn fits(&self, piece: usize, bytes: &[u8]) -> bool {
        self.pieces.get(piece).is_some_and(|sum| *sum == Crc32c::of(bytes))
    }

    fn len(&self) -> u64 {
        (self.pieces.len() as u64).saturating_sub(1) * PIECE + self.last
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(HEAD + SUM * (self.pieces.len() + 1));
        w.u64(MAGIC);
        w.u32(u32::try_from(PIECE).unwrap_or(0));
        w.u64(self.len());
        for sum in &self.pieces {
            w.u32(sum.0);
        }
        let mut bytes = w.into_bytes();
        let all = Crc32c::of(&bytes);
        bytes.extend_from_slice(&all.0.to_le_bytes());
        bytes
    }

    /// Length of the encoded form for a file of `len` bytes.
    pub(super) fn bytes_of(len: u64) -> u64 {
        (HEAD + SUM) as u64 + SUM as u64 * len.div_ceil(PIECE)
    }

    /// Decodes the form of a file of `len` bytes.
    pub(super) fn decode(bytes: &[u8], len: u64) -> Result<Self, WireError> {
        let end = bytes.len().checked_sub(SUM).ok_or(WireError::Field("checksums"))?;
        let mut r = Reader::new(&bytes[end..]);
        if Crc32c::of(&bytes[..end]) != Crc32c(r.u32()?) {
            return Err(WireError::Field("checksum of checksums"));
        }
        let mut r = Reader::new(&bytes[..end]);
        let head = (r.u64()?, u64::from(r.u32()?), r.u64()?);
        if head != (MAGIC, PIECE, len) || bytes.len() as u64 != Self::bytes_of(len) {
            return Err(WireError::Field("head of checksums"));
        }
        let mut pieces = Vec::with_capacity(bytes.len() / SUM);
        for _ in 0..len.div_ceil(PIECE) {
            pieces.push(Crc32c(r.u32()?));
        }
        r.finish()?;
        let last = len - (pieces.len() as u64).saturating_sub(1) * PIECE;
        Ok(Self { pieces, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_how_bytes_come() {
        let bytes: Vec<u8> = (0..(PIECE * 2 + 77)).map(|n| (n % 251) as u8).collect();
        let whole = |step: usize| {
            let mut sums = Sums::default();
            bytes.chunks(step).for_each(|part| sums.append(part));
            sums
        };
        let sums = whole(bytes.len());
        assert_eq!(whole(300_001), sums);
        assert_eq!((sums.pieces.len(), sums.len()), (3, bytes.len() as u64));
        let first = usize::try_from(PIECE).unwrap();
        assert!(sums.fits(0, &bytes[..first]) && sums.fits(2, &bytes[2 * first..]));
        assert!(!sums.fits(1, &bytes[..first]) && !sums.fits(3, b""));
        let form = sums.encode();
        assert_eq!(form.len() as u64, Sums::bytes_of(bytes.len() as u64));
        assert_eq!(Sums::decode(&form, bytes.len() as u64), Ok(sums));
    }

    #[test]
    fn what_is_no_such_form_is_refused() {
        let mut sums = Sums::default();
        sums.append(&[1; 5000]);
        let form = sums.encode();
        assert!(Sums::decode(&form, 5001).is_err());
        for cut in 0..form.len() {
            assert!(Sums::decode(&form[..cut], 5000).is_err(), "cut at {cut}");
            let mut other = form.clone();
            other[cut] ^= 1;
            assert!(Sums::decode(&other, 5000).is_err(), "changed at {cut}");
        }
    }
}
