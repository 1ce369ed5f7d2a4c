//! Object stores behind buckets (RFC 0020): what they are, how they are asked, and what brings objects to them.
//!
//! Reading order: `backends` (where they are), `store` (what is asked of them), `aws`, `counted` and `folders` (the asking), `rate`
//! (how fast), `known` (what a gateway remembers); `persist` (claims what is queued), `job` (does it), `upload`, `source` and `etags`
//! (bytes on their way), `words` (metadata on theirs), `wake`, `metrics`.

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
