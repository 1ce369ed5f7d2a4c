//! The Millpond server: its settings, its connections, and its pages over HTTP.

pub mod config;
pub mod http;
pub mod server;

#[cfg(test)]
#[path = "../build.rs"]
#[expect(dead_code, reason = "only its parts are tested")]
mod build;

/// The version of this program and the commit that it was built from: `0.1.0 (abcdef123456)`. Without a commit where
/// the source has no repository, as in a tarball; `0.1.0 (debug)` of a debug build.
pub const BUILD: &str = env!("MILLPOND_BUILD");
