#![no_main]
use libfuzzer_sys::fuzz_target;
use millpond_node::config;

// Whatever is accepted must be accepted again in the form in which it is shown.
fuzz_target!(|text: &str| {
    if let Ok(config) = config::from_text(text, "fuzz") {
        let shown = config::to_text(&config);
        assert!(config::from_text(&shown, "fuzz").is_ok(), "refused: {shown}");
    }
});
