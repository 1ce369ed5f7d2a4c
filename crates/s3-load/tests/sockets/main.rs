//! Tests over real sockets, against an in-memory object store that can break its promises.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod load;
mod proxy;
mod store;
