//! The engine through its public API: crashes, bit rot, a model, concurrent histories.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod compact;
mod concurrent;
mod crash;
mod flip;
mod fold;
mod golden;
mod harness;
mod lost;
mod model;
mod patch;
mod promote;
mod quota;
mod replica;
mod unreadable;
