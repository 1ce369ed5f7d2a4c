#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::wire::ChunkStatReply;

fuzz_target!(|data: &[u8]| millpond_fuzz::round_trip!(ChunkStatReply, data));
