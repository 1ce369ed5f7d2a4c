#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::cluster::{
    Heartbeat, HeartbeatAnswer, Register, RegisterAnswer, RoutingUpdate,
};

// The first byte picks the message.
fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 5 {
        0 => millpond_fuzz::round_trip!(RoutingUpdate, rest),
        1 => millpond_fuzz::round_trip!(Register, rest),
        2 => millpond_fuzz::round_trip!(RegisterAnswer, rest),
        3 => millpond_fuzz::round_trip!(Heartbeat, rest),
        _ => millpond_fuzz::round_trip!(HeartbeatAnswer, rest),
    }
});
