//! Quotas of directories.

use super::Ino;
use crate::wire::{Reader, Record, WireError, Writer};

/// Limits for everything below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Bytes, by the lengths of files; 0 for no limit.
    pub bytes: u64,
    /// Number of inodes, including the directory itself; 0 for no limit.
    pub inodes: u64,
}

/// A directory with a quota, and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The directory.
    pub root: Ino,
    /// Its limits.
    pub limits: QuotaLimits,
    /// Bytes in use, by the lengths of files.
    pub bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The limits of a directory with a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaRecord {
    /// Its limits.
    pub limits: QuotaLimits,
}

/// Part of the usage of a directory with a quota: that of the inodes of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageRecord {
    /// Bytes, by the lengths of files.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Grows with every change.
    pub version: u64,
}

impl QuotaLimits {
    pub(super) fn encode(self, w: &mut Writer) {
        w.u64(self.bytes);
        w.u64(self.inodes);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { bytes: r.u64()?, inodes: r.u64()? })
    }
}

impl Quota {
    pub(super) fn encode(self, w: &mut Writer) {
        w.u64(self.root.0);
        self.limits.encode(w);
        w.u64(self.bytes);
        w.u64(self.inodes);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (root, limits) = (Ino(r.u64()?), QuotaLimits::decode(r)?);
        Ok(Self { root, limits, bytes: r.u64()?, inodes: r.u64()? })
    }
}

impl Record for QuotaRecord {
    const KIND: u8 = 49;

    fn write_body(&self, w: &mut Writer) {
        self.limits.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { limits: QuotaLimits::decode(r)? })
    }
}

impl Record for UsageRecord {
    const KIND: u8 = 50;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.bytes);
        w.u64(self.inodes);
        w.u64(self.version);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { bytes: r.u64()?, inodes: r.u64()?, version: r.u64()? })
    }
}
