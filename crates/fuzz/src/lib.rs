//! Shared parts of the fuzz targets: checks that hold for every decoder, and the seed corpus.
//!
//! A decoder must never panic, and a value that it accepts must survive encoding and decoding
//! again: otherwise two hosts could read the same bytes in two ways.

use millpond_types::Crc32c;

pub mod chain;
mod cluster;
mod files;
mod fuse;
mod meta;
pub mod seeds;

/// Four little-endian bytes at `at`; 0 beyond the end.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

/// Writes the right checksum at `at`: of the salt, then of the bytes before `end` with zeros in its
/// own place. Random bytes hardly ever carry it, and the fuzzer must reach the checks after it.
pub fn repair(bytes: &mut [u8], at: usize, end: usize, salt: Option<u64>) {
    let end = end.min(bytes.len());
    if end < at + 4 {
        return;
    }
    let crc = salt.map_or(Crc32c::EMPTY, |salt| Crc32c::of(&salt.to_le_bytes()));
    let crc = crc.append(&bytes[..at]).append(&[0; 4]).append(&bytes[at + 4..end]);
    bytes[at..at + 4].copy_from_slice(&crc.0.to_le_bytes());
}

/// Decodes `$data` as the message `$message` and checks that the value survives a round trip.
#[macro_export]
macro_rules! round_trip {
    ($message:ty, $data:expr) => {
        if let Ok(message) = <$message>::decode($data) {
            let again = <$message>::decode(&message.encode());
            assert_eq!(again.as_ref(), Ok(&message), "the value changed on a round trip");
        }
    };
}
