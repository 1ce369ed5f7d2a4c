//! Membership, target states, placement and routing: pure, synchronous.
//!
//! Reading order: [`next_chain`] (what the manager makes of what nodes report), [`Pcg`] (the
//! generator behind placement).

mod moves;
mod pcg;
pub mod placement;
mod planner;
mod table;

pub use moves::{join, retiring, settle};
pub use pcg::Pcg;
pub use planner::{Limits, PlanDisk, PlanView, Planner, Progress, Step};
pub use table::{Report, next_chain};
