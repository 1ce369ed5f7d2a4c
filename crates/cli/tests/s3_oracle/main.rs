//! Proofs that gateways lose nothing: kills of every role under load, held against an oracle; a backlog that outlives
//! a restart; memory that large objects do not fill; a gateway whose own meta has lost the store.
//!
//! Reading order: `oracle` (keys, and what reads of them may show), `load` and `more` (clients), `cluster` (the processes), `kills`
//! (what goes wrong, and the verdict), `backlog` (many keys that wait), `memory`, `cut_off`. `docs/dev.md` says how to run the
//! long forms.

#![allow(clippy::disallowed_methods, reason = "tests start processes and use sockets and clocks")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod backlog;
#[path = "../s3/behind.rs"]
#[allow(dead_code, reason = "shared with the other tests of gateways")]
mod behind;
#[path = "../s3/client.rs"]
#[allow(dead_code, reason = "shared with the other tests of gateways")]
mod client;
mod cluster;
mod cut_off;
#[path = "../cluster/etcd_members.rs"]
#[allow(dead_code, reason = "shared with the other tests of clusters")]
mod etcd_members;
mod kills;
mod load;
mod memory;
mod more;
mod oracle;
#[path = "../cluster/process.rs"]
#[allow(dead_code, reason = "shared with the other tests of clusters")]
mod process;
#[path = "../s3/server.rs"]
#[allow(dead_code, reason = "shared with the other tests of gateways")]
mod server;
#[path = "../s3/sign.rs"]
#[allow(dead_code, reason = "shared with the other tests of gateways")]
mod sign;
mod verify;
#[path = "../cluster/wire.rs"]
#[allow(dead_code, reason = "shared with the other tests of clusters")]
mod wire;

/// A number from the environment: long forms have others.
fn number<T: std::str::FromStr>(name: &str, short: T) -> T {
    let told = std::env::var(name).ok();
    told.map_or(short, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}
