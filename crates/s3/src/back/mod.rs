//! Backends of buckets (RFC 0020): their settings, the requests to them, and the persister.
//!
//! Reading order: `backends` (settings), `store` (requests), `aws`, `counted` and `folders`
//! (clients), `rate` (pace), `known` (cached backends); `persist` (claims queued keys), `job`
//! (persists one key), `upload`, `source` and `etags` (transfer of bytes), `words` (metadata),
//! `wake`, `metrics`.

pub(crate) mod aws;
pub(crate) mod backends;
mod counted;
mod etags;
pub(crate) mod folders;
mod job;
pub(crate) mod known;
pub(crate) mod metrics;
pub(crate) mod persist;
pub(crate) mod rate;
mod source;
pub(crate) mod store;
mod upload;
mod wake;
pub(crate) mod words;
