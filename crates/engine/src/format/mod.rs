//! Bytes on the disk: every layout is described once, beside its constants, and listed in
//! `docs/format.md`, which a test compares with the code.
//!
//! All numbers are little endian. Decoders take untrusted bytes and never panic.

pub(crate) mod batch;
pub(crate) mod checkpoint;
pub(crate) mod class;
pub(crate) mod codec;
#[cfg(test)]
mod doc_tests;
pub(crate) mod record;
pub(crate) mod superblock;
