//! Tests of real `millpond` processes: each starts its own server on free ports, in its own folder.

#![allow(
    clippy::disallowed_methods,
    reason = "tests talk to the server from outside, over plain sockets and files"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod adopt;
mod block_device;
mod commands;
mod crowds;
mod documents;
mod failures;
mod forbidden;
mod harness;
mod hostile;
mod pages;
mod quota;
mod room;
mod shared_memory;
mod slow_disk;
mod tls;
mod tokens;
mod verbs;
mod wire;
