#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{Operation, Request};

// The bytes of one read of /dev/fuse, with both forms of SETXATTR.
fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    // The kernel sends the right length. Without this, almost no input would pass the length check.
    if let Some(len) = bytes.first_chunk_mut::<4>() {
        *len = u32::try_from(data.len()).expect("a small input").to_ne_bytes();
    }
    for granted in [InitFlags::NONE, InitFlags::SETXATTR_EXT] {
        match Request::decode(&bytes, granted) {
            Ok(request) => {
                assert_eq!(request.opcode() as u32, request.header.opcode);
                let groups = request.groups.map_or(0, |groups| groups.iter().count());
                assert!(groups * 4 <= bytes.len());
                if let Operation::BatchForget { items } = request.operation {
                    assert_eq!(items.iter().count(), items.len());
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
