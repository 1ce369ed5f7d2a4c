#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_node::config;

// The printed form of an accepted configuration must be accepted too.
fuzz_target!(|text: &str| {
    if let Ok(config) = config::from_text(text, "fuzz") {
        let shown = config::to_text(&config);
        assert!(config::from_text(&shown, "fuzz").is_ok(), "refused: {shown}");
    }
});
