//! Chunks that a file shares with others, and their bases (RFC 0014).
//!
//! The bases of a name of chunks never change, so they are fetched once. Chunks of a name with
//! bases are never removed while a file has the name, so the client remembers which exist: only
//! missing ones need a copy before a part of them is written.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::Mutex;
use millpond_types::limits::BASES_MAX;
use millpond_types::meta::{
    Attr, CloneFile, FileBase, Ino, Layout, MetaOp, MetaReply, Name, SharedRecord,
};
use millpond_types::wire::{ChunkBase, ChunkBases, ChunkChange};
use millpond_types::{DataId, FileChunk};

use crate::call::Value;
use crate::chunks::{ChunkAt, ChunkCut};
use crate::client::Client;
use crate::error::ClientError;
use crate::layout::FileBytes;

/// Most existing chunks of one name to remember; beyond that the memory is cleared.
const THERE_MAX: usize = 1 << 15;
/// Chunks cut by one call.
const CUTS_MAX: usize = 1024;
/// Attempts to clone a file that changes in the meantime.
const CLONE_TRIES: usize = 16;

/// The bases of the chunks of a file, nearest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBases {
    list: [FileBase; BASES_MAX],
    count: usize,
}

impl FileBases {
    /// No bases.
    pub const NONE: Self = Self { list: [FileBase { chunks: 0, size: 0 }; BASES_MAX], count: 0 };

    /// Makes a list of bases; of more than [`BASES_MAX`], which no record has, it keeps the
    /// nearest.
    #[must_use]
    pub fn new(bases: &[FileBase]) -> Self {
        let count = bases.len().min(BASES_MAX);
        let mut all = Self { count, ..Self::NONE };
        all.list[..count].copy_from_slice(&bases[..count]);
        all
    }

    /// The bases of one chunk.
    pub(crate) fn chunk(&self, layout: &Layout, index: u32) -> ChunkBases {
        let start = u64::from(index) << layout.chunk_log2;
        let of_chunk = |base: &FileBase| {
            let len = base.size.saturating_sub(start).min(layout.chunk_bytes());
            ChunkBase { data: DataId(base.chunks), len: u32::try_from(len).unwrap_or(u32::MAX) }
        };
        // No base after one without a byte of the chunk has any.
        let all = self.list[..self.count].iter().map(of_chunk).take_while(|base| base.len > 0);
        ChunkBases::new(&all.collect::<Vec<_>>()).unwrap_or(ChunkBases::NONE)
    }
}

/// Known facts about a name of chunks with a record.
#[derive(Debug)]
pub struct SharedName {
    bases: FileBases,
    is_sealed: bool,
    owner: Ino,
    there: Mutex<HashSet<u32>>,
}

impl SharedName {
    /// The facts from a meta's record.
    #[must_use]
    pub fn of(record: &SharedRecord) -> Self {
        let (bases, is_sealed) = (FileBases::new(&record.bases), record.is_sealed);
        Self { bases, is_sealed, owner: record.owner, there: Mutex::default() }
    }

    fn is_sealed_for(&self, ino: Ino) -> bool {
        self.is_sealed || self.owner != ino
    }

    /// The copies needed before these parts are written; each chunk once.
    fn copies(&self, parts: &[ChunkAt], lens: impl Iterator<Item = usize>) -> Vec<ChunkCut> {
        let there = self.there.lock();
        let (mut seen, mut copies) = (HashSet::new(), Vec::new());
        for (part, len) in parts.iter().zip(lens) {
            let Some(nearest) = part.bases.as_slice().first() else { continue };
            let covers = part.offset == 0 && len >= nearest.len as usize;
            if covers || there.contains(&part.chunk.index) || !seen.insert(part.chunk.index) {
                continue;
            }
            let (chain, chunk) = (part.chain, part.chunk);
            copies.push(ChunkCut { chain, chunk, change: ChunkChange::Copy(part.bases) });
        }
        copies
    }

    /// Records that these chunks now exist, or have no bases.
    fn note_there(&self, chunks: impl Iterator<Item = FileChunk>) {
        let mut there = self.there.lock();
        if there.len() >= THERE_MAX {
            there.clear();
        }
        there.extend(chunks.map(|chunk| chunk.index));
    }
}

/// The chunks of a file, as known to a client that may write them.
#[derive(Clone, Debug)]
pub struct Chunks {
    bytes: FileBytes,
    name: Option<Arc<SharedName>>,
}

impl Chunks {
    /// The chunks of a file that shares none.
    #[must_use]
    pub const fn own(attr: &Attr) -> Self {
        Self::of(FileBytes::of(attr))
    }

    /// The chunks of a name without bases.
    #[must_use]
    pub const fn of(bytes: FileBytes) -> Self {
        Self { bytes, name: None }
    }

    /// The chunks of a file with this record for its name of chunks.
    #[must_use]
    pub fn shared(attr: &Attr, name: Arc<SharedName>) -> Self {
        let bytes = FileBytes { bases: name.bases, ..FileBytes::of(attr) };
        Self { bytes, name: Some(name) }
    }

    /// Their placement and bases.
    #[must_use]
    pub const fn bytes(&self) -> FileBytes {
        self.bytes
    }

    /// Whether this file is known to be unable to write them; otherwise a chain may report it.
    #[must_use]
    pub fn are_sealed_for(&self, ino: Ino) -> bool {
        self.name.as_ref().is_some_and(|name| name.is_sealed_for(ino))
    }

    /// Writes parts of them, as [`Client::write_chunks`]; copies the base of a chunk before it
    /// writes a part of it.
    ///
    /// # Errors
    /// As there; [`ClientError::is_sealed`] when the file must get chunks of its own first.
    pub fn write(
        &self,
        client: &Client,
        (parts, values): (&[ChunkAt], &[Value<'_>]),
        deadline: Option<Duration>,
    ) -> Result<(), ClientError> {
        let Some(name) = &self.name else { return client.write_chunks(parts, values, deadline) };
        let copies = name.copies(parts, values.iter().map(Value::len));
        for some in copies.chunks(CUTS_MAX) {
            client.cut_chunks(some, deadline)?;
        }
        client.write_chunks(parts, values, deadline)?;
        name.note_there(parts.iter().map(|part| part.chunk));
        Ok(())
    }

    /// Cuts them as [`Client::cut_chunks`]; cuts of one chunk are done in this order.
    ///
    /// # Errors
    /// As there; [`ClientError::is_sealed`] when the file must get chunks of its own first.
    pub fn cut(
        &self,
        client: &Client,
        cuts: impl Iterator<Item = ChunkCut>,
        deadline: Option<Duration>,
    ) -> Result<(), ClientError> {
        let mut cuts = cuts.peekable();
        while cuts.peek().is_some() {
            let some: Vec<ChunkCut> = cuts.by_ref().take(CUTS_MAX).collect();
            client.cut_chunks(&some, deadline)?;
            if let Some(name) = &self.name {
                let left = some.iter().filter(|cut| cut.change != ChunkChange::Remove);
                name.note_there(left.map(|cut| cut.chunk));
            }
        }
        Ok(())
    }

    /// Seals them on all chains, so that nobody can write them any more.
    ///
    /// # Errors
    /// As [`Client::cut_chunks`].
    pub fn seal(&self, client: &Client, deadline: Option<Duration>) -> Result<(), ClientError> {
        client.cut_chunks(&self.bytes.seals().collect::<Vec<_>>(), deadline)
    }
}

/// Makes a file with the present bytes of `source` and returns its attributes. `ask` has a meta
/// execute an operation on behalf of the user.
///
/// # Errors
/// As `ask`, which returns `TooManyLinks` for a file with [`BASES_MAX`] bases: its bytes must be
/// copied; as [`Client::cut_chunks`]. Then there is no new file, unless a meta's answer was lost.
pub fn clone_file<E: From<ClientError>>(
    client: &Client,
    mut ask: impl FnMut(MetaOp) -> Result<MetaReply, E>,
    source: Ino,
    (parent, name): (Ino, &Name),
) -> Result<Attr, E> {
    let unexpected = || {
        let what = "unexpected answer from a meta: is it of another version?";
        E::from(ClientError::Unexpected { address: client.name(), what })
    };
    for _ in 0..CLONE_TRIES {
        let MetaReply::Attr(attr) = ask(MetaOp::Share { ino: source })? else {
            return Err(unexpected());
        };
        if !attr.is_stored() {
            Chunks::own(&attr).seal(client, None)?;
        }
        let (chunks, name) = (attr.chunk_data(), name.clone());
        match ask(MetaOp::Clone(CloneFile { source, chunks, parent, name }))? {
            MetaReply::Entry(entry) => return Ok(entry.attr),
            // In the meantime it moved to chunks, was truncated to zero, or was cloned and written
            // twice.
            MetaReply::Attr(_) => {}
            _ => return Err(unexpected()),
        }
    }
    Err(unexpected())
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::ChainId;

    use super::*;

    const LAYOUT: Layout = Layout { chunk_log2: 16, stripe: 2, seed: 4, chains: 5, table: 0 };
    const OWNER: Ino = Ino(9);

    fn record(bases: &[(u64, u64)]) -> SharedRecord {
        let base = |(chunks, size): &(u64, u64)| FileBase { chunks: *chunks, size: *size };
        SharedRecord {
            version: 1,
            users: 1,
            is_sealed: false,
            layout: LAYOUT,
            size: 9,
            began: 0,
            owner: OWNER,
            bases: bases.iter().map(base).collect(),
        }
    }

    fn lens(bases: &ChunkBases) -> Vec<(u64, u32)> {
        bases.as_slice().iter().map(|base| (base.data.0, base.len)).collect()
    }

    #[test]
    fn behind_a_chunk_lies_what_counts_there() {
        let bases = FileBases::new(&record(&[(5, 1 << 40), (6, 70_000), (7, 65_536)]).bases);
        assert_eq!(lens(&bases.chunk(&LAYOUT, 0)), [(5, 65_536), (6, 65_536), (7, 65_536)]);
        assert_eq!(lens(&bases.chunk(&LAYOUT, 1)), [(5, 65_536), (6, 4464)]);
        assert_eq!(lens(&bases.chunk(&LAYOUT, 2)), [(5, 65_536)]);
        assert_eq!(FileBases::NONE.chunk(&LAYOUT, 0), ChunkBases::NONE);
    }

    #[test]
    fn chunks_are_copied_once_and_not_before_they_are_covered() {
        let name = SharedName::of(&record(&[(5, 70_000)]));
        assert!(!name.is_sealed_for(OWNER) && name.is_sealed_for(Ino(10)));
        let at = |index, offset| {
            let chunk = FileChunk { data: DataId(8), index };
            ChunkAt {
                chain: ChainId(1),
                chunk,
                offset,
                bases: name.bases.chunk(&LAYOUT, index),
                solid: 0,
            }
        };
        let copied = |parts: &[(ChunkAt, usize)]| -> Vec<u32> {
            let lens = parts.iter().map(|(_, len)| *len);
            let at: Vec<ChunkAt> = parts.iter().map(|(at, _)| *at).collect();
            name.copies(&at, lens).iter().map(|cut| cut.chunk.index).collect()
        };
        assert_eq!(copied(&[(at(0, 5), 9), (at(0, 90), 9), (at(1, 0), 9), (at(2, 3), 9)]), [0, 1]);
        assert_eq!(copied(&[(at(0, 0), 65_536), (at(1, 0), 4464), (at(1, 1), 65_535)]), [1]);
        name.note_there([at(1, 0).chunk].into_iter());
        assert_eq!(copied(&[(at(0, 5), 9), (at(1, 1), 65_535)]), [0]);
    }
}
