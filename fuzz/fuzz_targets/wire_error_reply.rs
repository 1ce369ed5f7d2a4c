#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::wire::ErrorReply;

// The message is text for humans: bytes that are not UTF-8 are replaced, so only the number
// survives a round trip.
fuzz_target!(|data: &[u8]| {
    if let Ok(reply) = ErrorReply::decode(data) {
        let again = ErrorReply::decode(&reply.encode());
        assert_eq!(again.map(|r| r.retry_after_ms), Ok(reply.retry_after_ms));
    }
});
