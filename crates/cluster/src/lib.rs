//! Membership, target states, placement and routing: pure, synchronous.
//!
//! Reading order: `table` ([`next_chain`]: the manager's decisions from the nodes' reports),
//! [`placement`] (which disks form chains), `moves` (a replica's way to another disk), `planner`
//! (the next moves), `slot_move` (a slot's way to another chain) and [`manager`] (one primary that
//! owns it all).
//!
//! Invariants: a chain that has data remembers its holder, by a SERVING or a LASTSRV target; at
//! most one target of a chain syncs; every change raises the chain's version by one; no two
//! replicas share a failure domain; nothing is in effect before the store has it. The same input
//! gives the same output on every build.
//!
//! Absent on purpose: I/O, clocks, randomness, and the replication protocol, which belongs to
//! `chain`.

pub mod manager;
mod moves;
pub mod placement;
mod planner;
mod quota;
mod slot_move;
mod table;

pub use moves::{join, retiring, settle};
pub use planner::{Limits, PlanDisk, PlanView, Planner, Progress, Step};
pub use quota::{Part, QuotaBook, Whole, share};
pub use slot_move::{Copied, SlotChunks, SlotEffect, SlotEvent, SlotMove};
pub use table::{Report, next_chain};
