//! The tool against an object store in memory that can be made to break its promises, through real sockets.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod load;
mod proxy;
mod store;
