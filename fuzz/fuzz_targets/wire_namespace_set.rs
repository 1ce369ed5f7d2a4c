#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::wire::NamespaceSet;

fuzz_target!(|data: &[u8]| millpond_fuzz::round_trip!(NamespaceSet, data));
