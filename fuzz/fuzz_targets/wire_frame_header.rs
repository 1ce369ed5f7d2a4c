#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::Crc32c;
use millpond_types::wire::{FrameHeader, HEADER_BYTES};

fn check(bytes: &[u8; HEADER_BYTES]) {
    if let Ok(header) = FrameHeader::decode(bytes) {
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }
}

// Random bytes almost never have a valid checksum. The second call repairs the checksum, so that
// the fuzzer reaches the later checks too.
fuzz_target!(|data: &[u8]| {
    let Some((head, meta)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    check(head);
    let mut repaired = *head;
    let crc = Crc32c::of(&repaired[..36]).0;
    repaired[36..].copy_from_slice(&crc.to_le_bytes());
    check(&repaired);
    if let Ok(header) = FrameHeader::decode(&repaired) {
        let _ = header.check_meta(meta);
    }
});
