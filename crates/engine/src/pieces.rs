//! Piece checksums.

use std::ops::Range;

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

/// Checksums of a chunk with a new `part` from `start` on, and zeros in any gap before it, given
/// its old bytes and checksums. Only changed pieces are computed.
pub(crate) fn patched(
    (old, pieces, whole): (&[u8], &[u32], Crc32c),
    (start, part): (usize, &[u8]),
) -> (Box<[u32]>, Crc32c) {
    let whole = [whole.0];
    let before = if pieces.is_empty() { &whole[..] } else { pieces };
    let end = start + part.len();
    let len = old.len().max(end);
    let mut all = Crc32c::EMPTY;
    let of_piece = |at: usize| {
        let piece = at * PIECE_BYTES..len.min((at + 1) * PIECE_BYTES);
        // The old last piece may have been shorter.
        let same = piece.end <= old.len() && (piece.end == old.len() || piece.len() == PIECE_BYTES);
        let touched = piece.start < end && start < piece.end;
        let crc = match before.get(at) {
            Some(crc) if same && !touched => Crc32c(*crc),
            Some(crc) if same => of_changed_piece(Crc32c(*crc), &piece, old, (start, part)),
            _ => of_patched_piece(&piece, old, (start, part)),
        };
        all = all.combine(crc, piece.len());
        crc.0
    };
    let pieces: Box<[u32]> = (0..len.div_ceil(PIECE_BYTES)).map(of_piece).collect();
    if len <= PIECE_BYTES { (Box::default(), all) } else { (pieces, all) }
}

/// Checksum of a piece with its new part, which is not assembled in memory yet.
fn of_patched_piece(piece: &Range<usize>, old: &[u8], (start, part): (usize, &[u8])) -> Crc32c {
    static ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];
    let end = start + part.len();
    let gap = piece.end.min(start).saturating_sub(piece.start.max(old.len()));
    Crc32c::of(within(piece, 0, &old[..old.len().min(start)]))
        .append(&ZEROS[..gap])
        .append(within(piece, start, part))
        .append(within(piece, end, old.get(end..).unwrap_or_default()))
}

/// Checksum of a piece of unchanged length with a new part, given the checksum before.
///
/// A CRC is linear: for two pieces that differ in one part only, the difference of the checksums is
/// the difference of the parts' checksums, shifted by the bytes after the part. This is less work
/// for a small part, and it never accepts old bytes that contradict the piece's checksum.
fn of_changed_piece(
    before: Crc32c,
    piece: &Range<usize>,
    old: &[u8],
    (start, part): (usize, &[u8]),
) -> Crc32c {
    let new = within(piece, start, part);
    if new.len() > piece.len() / 2 {
        return of_patched_piece(piece, old, (start, part));
    }
    let from = piece.start.max(start);
    let difference = Crc32c(Crc32c::of(new).0 ^ Crc32c::of(&old[from..from + new.len()]).0);
    difference.combine(before, piece.end - from - new.len())
}

/// The section of `bytes` that lies in the given piece; the first of `bytes` is byte `at` of the
/// chunk.
fn within<'b>(piece: &Range<usize>, at: usize, bytes: &'b [u8]) -> &'b [u8] {
    let place = |end: usize| end.saturating_sub(at).min(bytes.len());
    &bytes[place(piece.start)..place(piece.end)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patching_equals_computing_anew() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 31).to_le_bytes()[1]).collect();
        for len in [1, 4096, 65_535, 65_536, 65_537, 131_072, 200_000] {
            for start in [0, 5, 65_536, 100_000, 199_999] {
                let mut new = bytes[..len].to_vec();
                let end = start + 5000;
                new.resize(len.max(end), 0);
                new[start..end].fill(9);
                let (pieces, whole) = checksums(&bytes[..len]);
                let got = patched((&bytes[..len], &pieces, whole), (start, &[9; 5000]));
                assert_eq!(got, checksums(&new), "{len} {start}");
            }
        }
    }

    #[test]
    fn small_patches_at_every_place_equal_computing_anew() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 31).to_le_bytes()[1]).collect();
        let (pieces, whole) = checksums(&bytes);
        for part in [1, 512, 4096, 32_767, 32_768, 32_769, 70_000] {
            for start in [0, 1, 65_535, 65_536, 65_537, 130_000, 200_000 - part] {
                let mut new = bytes.clone();
                new[start..start + part].fill(9);
                let got = patched((&bytes, &pieces, whole), (start, &vec![9; part]));
                assert_eq!(got, checksums(&new), "{part} {start}");
            }
        }
    }

    #[test]
    fn a_small_patch_does_not_make_damage_beside_it_sound() {
        let mut bytes = vec![7; 2 * PIECE_BYTES];
        let (pieces, whole) = checksums(&bytes);
        bytes[100] ^= 1;
        let (pieces, whole) = patched((&bytes, &pieces, whole), (4096, &[9; 4096]));
        bytes[4096..8192].fill(9);
        assert!(!verify(&bytes[..PIECE_BYTES], 0, &pieces, whole));
        bytes[100] ^= 1;
        assert!(verify(&bytes, 0, &pieces, whole));
    }

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
