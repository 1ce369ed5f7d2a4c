#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::wire::{
    NamespaceTableReply, NamespaceTableRequest, RoutingRequest, SlotAnswer, SlotAsk, SuspectRequest,
};

// The first byte picks the message.
fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 6 {
        0 => millpond_fuzz::round_trip!(RoutingRequest, rest),
        1 => millpond_fuzz::round_trip!(SuspectRequest, rest),
        2 => millpond_fuzz::round_trip!(NamespaceTableRequest, rest),
        3 => millpond_fuzz::round_trip!(NamespaceTableReply, rest),
        4 => millpond_fuzz::round_trip!(SlotAnswer, rest),
        _ => {
            if let Ok(ask) = SlotAsk::decode(rest, 0) {
                assert_eq!(ask.encode(), rest);
            }
        }
    }
});
