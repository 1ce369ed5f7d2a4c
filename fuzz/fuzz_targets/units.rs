#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_types::ByteSize;
use millpond_types::units::parse_duration;

// Sizes and durations as users write them on the command line and in the configuration.
fuzz_target!(|text: &str| {
    if let Ok(size) = text.parse::<ByteSize>() {
        // Rounding up to two digits may pass the largest size.
        assert!(size.0 > u64::MAX / 2 || size.to_string().parse::<ByteSize>().is_ok());
    }
    let _ = parse_duration(text);
});
