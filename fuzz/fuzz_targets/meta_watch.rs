#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::meta::{Answered, MetaNews, MetaWatch};

fuzz_target!(|data: &[u8]| {
    millpond_fuzz::round_trip!(MetaWatch, data);
    millpond_fuzz::round_trip!(MetaNews, data);
    millpond_fuzz::round_trip!(Answered, data);
});
