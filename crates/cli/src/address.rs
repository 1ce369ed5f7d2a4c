//! The address of the server that a command asks.

use std::sync::OnceLock;

/// What `MILLPOND_ADDRESS` was called for some commands.
pub(crate) const OLD_NAME: &str = "MILLPOND_SERVER";

/// Where the server is when nobody says so. `MILLPOND_SERVER` is the old name of `MILLPOND_ADDRESS`.
pub(crate) fn default_address() -> &'static str {
    static OLD: OnceLock<Option<String>> = OnceLock::new();
    let old = OLD.get_or_init(|| std::env::var(OLD_NAME).ok().filter(|text| !text.is_empty()));
    old.as_deref().unwrap_or("127.0.0.1:7440")
}
