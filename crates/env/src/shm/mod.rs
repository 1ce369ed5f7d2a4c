//! Memory shared with another process on this host: regions, rings of records, checked copies.
//!
//! The other process may write anything at any time. Nothing here hands out references to shared
//! memory, except memory that a region lends once to a single holder ([`ShmMemory`]). Bytes are
//! copied out first and checked afterwards.

mod copy;
mod futex;
mod region;
mod ring;
#[cfg(test)]
mod tests;

pub use copy::copy_checksummed;
pub use region::{ShmAccess, ShmMemory, ShmRegion, ShmView};
pub use ring::{RING_HEADER, RingConsumer, RingError, RingProducer, RingWake};
