//! Chunks that several files have, and chunks that are read through to others (RFC 0014).
//!
//! The record of a name of chunks is there from before its seals are made until nobody reads these chunks
//! any more. So whoever forgets the last file that does knows that there may be seals.

use super::request::flag;
use super::{Ino, Layout, Name};
use crate::limits::BASES_MAX;
use crate::wire::{Reader, Record, WireError, Writer};

/// Chunks that a file is read through to, where those in front of them have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBase {
    /// Their name.
    pub chunks: u64,
    /// Bytes of the file that count: all that were ever written, or those that a clone had.
    pub size: u64,
}

/// Chunks of a name that several files have, or that others are behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRecord {
    /// Grows with every change of the record.
    pub version: u64,
    /// Files that are read from these chunks, whether they are their own or behind them.
    pub users: u64,
    /// They are sealed on all chains. Before that they may be on some.
    pub is_sealed: bool,
    /// Where they lie; those behind them lie on the same chains.
    pub layout: Layout,
    /// The longest that a file of them was.
    pub size: u64,
    /// Bytes of a file when it got them in front of others; 0 of those that have none behind them.
    pub began: u64,
    /// The file that they were made for. Nobody else has ever written to them.
    pub owner: Ino,
    /// What is read where they have no chunk, nearest first: each counts no more bytes than the one before.
    pub bases: Vec<FileBase>,
}

/// A file is to be made that has the bytes of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneFile {
    /// Whose bytes.
    pub source: Ino,
    /// Its chunks, which the client has sealed, or those that it had until somebody put others in front of them. Those of
    /// bytes in the store do not matter.
    pub chunks: u64,
    /// In which directory.
    pub parent: Ino,
    /// Which name.
    pub name: Name,
}

impl CloneFile {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.source.0);
        w.u64(self.chunks);
        w.u64(self.parent.0);
        self.name.encode(w);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (source, chunks, parent) = (Ino(r.u64()?), r.u64()?, Ino(r.u64()?));
        Ok(Self { source, chunks, parent, name: Name::decode(r)? })
    }
}

impl SharedRecord {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.version);
        w.u64(self.users);
        w.u8(u8::from(self.is_sealed));
        self.layout.encode(w);
        w.u64(self.size);
        w.u64(self.began);
        w.u64(self.owner.0);
        w.count(self.bases.len());
        for base in &self.bases {
            w.u64(base.chunks);
            w.u64(base.size);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (version, users, is_sealed) = (r.u64()?, r.u64()?, flag(r, "chunks are sealed")?);
        let (layout, size) = (Layout::decode(r)?, r.u64()?);
        let (began, owner) = (r.u64()?, Ino(r.u64()?));
        let n = r.count(BASES_MAX, 16, "bases of chunks")?;
        let mut bases: Vec<FileBase> = Vec::with_capacity(n);
        for _ in 0..n {
            let base = FileBase { chunks: r.u64()?, size: r.u64()? };
            if bases.last().is_some_and(|nearer| nearer.size < base.size) {
                return Err(WireError::Field("bytes of a base (no more than of the one before)"));
            }
            bases.push(base);
        }
        Ok(Self { version, users, is_sealed, layout, size, began, owner, bases })
    }
}

impl Record for SharedRecord {
    const KIND: u8 = 53;

    fn write_body(&self, w: &mut Writer) {
        self.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::decode(r)
    }
}
