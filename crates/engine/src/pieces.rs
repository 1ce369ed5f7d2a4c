//! Piece checksums.

use millpond_types::Crc32c;
use millpond_types::limits::PIECE_BYTES;

use crate::format::record::piece_count;

/// Checksums of the 64 KiB pieces of `bytes` (none for a single piece) and of the whole.
///
/// One pass over the bytes; the whole is combined from the pieces.
pub(crate) fn checksums(bytes: &[u8]) -> (Box<[u32]>, Crc32c) {
    if bytes.len() <= PIECE_BYTES {
        return (Box::default(), Crc32c::of(bytes));
    }
    let mut whole = Crc32c::EMPTY;
    let pieces = bytes
        .chunks(PIECE_BYTES)
        .map(|piece| {
            let crc = Crc32c::of(piece);
            whole = whole.combine(crc, piece.len());
            crc.0
        })
        .collect();
    (pieces, whole)
}

/// Whether `bytes`, which begin at piece `first` of a chunk, match its checksums.
pub(crate) fn verify(bytes: &[u8], first: usize, pieces: &[u32], whole: Crc32c) -> bool {
    if pieces.is_empty() {
        return Crc32c::of(bytes) == whole;
    }
    let mut expected = pieces.iter().skip(first);
    bytes.chunks(PIECE_BYTES).all(|p| expected.next() == Some(&Crc32c::of(p).0))
}

/// Checksums of a chunk of `len` bytes after `more` is appended.
pub(crate) fn append(len: u32, pieces: &[u32], whole: Crc32c, more: &[u8]) -> (Box<[u32]>, Crc32c) {
    let new_whole = whole.append(more);
    let new_len = len + u32::try_from(more.len()).unwrap_or(u32::MAX);
    if piece_count(new_len) == 0 {
        return (Box::default(), new_whole);
    }
    let mut out: Vec<u32> = if len == 0 {
        Vec::new()
    } else if pieces.is_empty() {
        vec![whole.0]
    } else {
        pieces.to_vec()
    };
    let filled = len as usize % PIECE_BYTES;
    let (head, rest) = if filled == 0 {
        (&more[..0], more)
    } else {
        more.split_at(more.len().min(PIECE_BYTES - filled))
    };
    if let (Some(last), false) = (out.last_mut(), head.is_empty()) {
        *last = Crc32c(*last).append(head).0;
    }
    out.extend(rest.chunks(PIECE_BYTES).map(|p| Crc32c::of(p).0));
    (out.into(), new_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appending_equals_computing_anew() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 31).to_le_bytes()[1]).collect();
        for cut in [0, 1, 4096, 65_535, 65_536, 65_537, 131_072, 200_000] {
            for end in [cut, cut + 1, 65_536.max(cut), 300_000] {
                let (pieces, whole) = checksums(&bytes[..cut]);
                let len = u32::try_from(cut).unwrap();
                let got = append(len, &pieces, whole, &bytes[cut..end]);
                assert_eq!(got, checksums(&bytes[..end]), "{cut}..{end}");
            }
        }
        let (pieces, whole) = checksums(&bytes);
        assert!(verify(&bytes[65_536..], 1, &pieces, whole));
        assert!(!verify(&bytes[65_536..], 0, &pieces, whole));
    }
}
