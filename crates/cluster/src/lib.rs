//! Membership, target states, placement and routing: pure, synchronous.
//!
//! Reading order: [`next_chain`] (what the manager makes of what nodes report), [`Pcg`] (the
//! generator behind placement).

mod pcg;
pub mod placement;
mod table;

pub use pcg::Pcg;
pub use table::{Report, next_chain};
