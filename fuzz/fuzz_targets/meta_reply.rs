#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::meta::MetaReply;

fuzz_target!(|data: &[u8]| {
    if let Ok(answer) = MetaReply::decode_answer(data) {
        let again = MetaReply::decode_answer(&MetaReply::encode_answer(&answer));
        assert_eq!(again, Ok(answer), "the value changed on a round trip");
    }
});
