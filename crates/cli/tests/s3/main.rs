//! S3 clients against real servers: requests are signed here and sent as they are, wrong ones too.

#![allow(clippy::disallowed_methods, reason = "tests start processes and use sockets and clocks")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod access;
mod back;
mod backed;
mod backed_lists;
mod behind;
mod bodies;
mod buckets;
mod classes;
mod client;
mod conditions;
mod forms;
mod hostile;
mod late;
mod lists;
mod lost;
mod objects;
mod parts;
mod plain;
mod refused;
mod replicas;
mod room;
mod rules;
mod sent;
#[allow(dead_code, reason = "shared with the oracle of kills")]
mod server;
mod sharing;
mod sign;
mod versions;
