#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_chain::Head;
use millpond_fuzz::chain::Bytes;

// The meta of a frame. The payload has the length in the meta, which a receiver checks.
fuzz_target!(|data: &[u8]| {
    let Ok(head) = Head::decode(data) else { return };
    let promised = head.payload.clone();
    let payload = promised.as_ref().map(|head| Bytes { len: head.len });
    let attrs = promised.map_or_else(Vec::new, |head| head.attrs);
    let envelope = head.finish(payload).expect("the payload is the promised one");
    let (meta, _) = envelope.encode(|_| attrs);
    assert_eq!(meta, data, "a message has one encoding");
});
