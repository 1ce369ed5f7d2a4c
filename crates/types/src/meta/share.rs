//! Chunks that several files share, and base chunks that are read through (RFC 0014).
//!
//! The record of a name of chunks exists from before its seals are made until no file reads these
//! chunks any more. So a meta that removes the last user knows that there may be seals.

use super::request::flag;
use super::{Ino, Layout, Name};
use crate::limits::BASES_MAX;
use crate::wire::{Reader, Record, WireError, Writer};

/// Base chunks of a file, read where the chunks before them have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBase {
    /// Their name.
    pub chunks: u64,
    /// Number of valid bytes: all that were ever written, or those that a clone had.
    pub size: u64,
}

/// The record of chunks that several files share, or that have bases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRecord {
    /// Grows with every change of the record.
    pub version: u64,
    /// Number of files that read these chunks, as their own or as a base.
    pub users: u64,
    /// Whether they are sealed on all chains. Before that they may be sealed on some.
    pub is_sealed: bool,
    /// Their placement; their bases are on the same chains.
    pub layout: Layout,
    /// The greatest length of a file with these chunks.
    pub size: u64,
    /// Length of the file when it got these chunks in front of others; 0 for chunks without bases.
    pub began: u64,
    /// The file that they were made for. No other file has ever written to them.
    pub owner: Ino,
    /// Chunks to read where these have none, nearest first; none counts more bytes than the one
    /// before it.
    pub bases: Vec<FileBase>,
}

/// Request to make a file with the bytes of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneFile {
    /// The file with the bytes.
    pub source: Ino,
    /// Its chunks, which the client has sealed, or the chunks it had until another client put
    /// others in front of them. Ignored for bytes in the store.
    pub chunks: u64,
    /// The directory.
    pub parent: Ino,
    /// The name.
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
