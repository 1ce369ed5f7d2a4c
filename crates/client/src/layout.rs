//! Mapping of a range of a file to parts of chunks.

use std::ops::Range;

use millpond_types::meta::{Attr, Layout};
use millpond_types::wire::ChunkChange;
use millpond_types::{DataId, FileChunk};

use crate::call::{Room, Value};
use crate::chunks::{ChunkAt, ChunkCut};
use crate::share::FileBases;

/// The bytes of a file: their data id and placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBytes {
    /// Their data id: a file that is truncated to zero gets another one.
    pub data: DataId,
    /// Their placement.
    pub layout: Layout,
    /// Their base chunks, on the same chains; see [`crate::Chunks::bytes`].
    pub bases: FileBases,
    /// [`Attr::solid`]: a missing byte before this offset is lost.
    pub solid: u64,
}

/// The range is past the last byte that a file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BehindLastChunk;

impl FileBytes {
    /// The chunks of an inode. For a file with its bytes in the store, the chunks that it would get
    /// while empty. If they are shared, their bases are left out.
    #[must_use]
    pub const fn of(attr: &Attr) -> Self {
        let (data, layout) = (DataId(attr.chunk_data()), attr.layout);
        Self { data, layout, bases: FileBases::NONE, solid: attr.solid }
    }

    /// The part of a chunk at `offset`, and how many of `len` bytes are in it.
    fn part(self, offset: u64, len: usize) -> Result<(ChunkAt, usize), BehindLastChunk> {
        let (index, inner) = self.layout.locate(offset).ok_or(BehindLastChunk)?;
        let left = self.layout.chunk_bytes() - u64::from(inner);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let chunk = FileChunk { data: self.data, index };
        let (chain, bases) = (self.layout.chain(index), self.bases.chunk(&self.layout, index));
        let solid = self.solid.saturating_sub(offset).min(len as u64);
        let solid = u32::try_from(solid).unwrap_or(u32::MAX);
        Ok((ChunkAt { chain, chunk, offset: inner, bases, solid }, len))
    }

    /// The parts of chunks in a range, each with its number of bytes.
    pub(crate) fn parts(
        self,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = Result<(ChunkAt, usize), BehindLastChunk>> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = len.checked_sub(done).filter(|left| *left > 0)?;
            let part = self.part(offset + done as u64, left);
            // Past the last chunk there are no more parts.
            done += part.as_ref().map_or(left, |(_, len)| *len);
            Some(part)
        })
    }

    /// Splits the room for bytes at `offset` at chunk boundaries and appends the parts to `parts`,
    /// for [`crate::Client::read_chunks`].
    ///
    /// # Errors
    /// [`BehindLastChunk`]; some parts may have been appended then.
    pub fn rooms<'a>(
        self,
        offset: u64,
        buf: &'a mut [u8],
        (parts, rooms): (&mut Vec<ChunkAt>, &mut Vec<Room<'a>>),
    ) -> Result<(), BehindLastChunk> {
        let (mut rest, mut at) = (buf, offset);
        while !rest.is_empty() {
            let (part, len) = self.part(at, rest.len())?;
            let (room, tail) = std::mem::take(&mut rest).split_at_mut(len);
            parts.push(part);
            rooms.push(Room::One(room));
            rest = tail;
            at += len as u64;
        }
        Ok(())
    }

    /// Splits bytes for `offset` at chunk boundaries and appends the parts to `parts`, for
    /// [`crate::Client::write_chunks`].
    ///
    /// # Errors
    /// [`BehindLastChunk`]; some parts may have been appended then.
    pub fn values<'a>(
        self,
        offset: u64,
        data: &'a [u8],
        (parts, values): (&mut Vec<ChunkAt>, &mut Vec<Value<'a>>),
    ) -> Result<(), BehindLastChunk> {
        let (mut rest, mut at) = (data, offset);
        while !rest.is_empty() {
            let (part, len) = self.part(at, rest.len())?;
            let (value, tail) = rest.split_at(len);
            parts.push(part);
            values.push(Value::One(value));
            rest = tail;
            at += len as u64;
        }
        Ok(())
    }

    /// Cuts that remove all chunks touched by these parts.
    #[must_use]
    pub fn touched(self, parts: &[(u64, &[u8])]) -> Vec<ChunkCut> {
        let log2 = self.layout.chunk_log2;
        let range = |(offset, bytes): &(u64, &[u8])| {
            let end = offset + bytes.len() as u64;
            self.removals(offset >> log2..end.div_ceil(self.layout.chunk_bytes()))
        };
        parts.iter().flat_map(range).collect()
    }

    /// Cuts that remove the bytes after `size` from a file of at most `old` bytes, in their order.
    ///
    /// # Errors
    /// [`BehindLastChunk`].
    pub fn cuts(
        self,
        size: u64,
        old: u64,
    ) -> Result<impl Iterator<Item = ChunkCut>, BehindLastChunk> {
        let layout = self.layout;
        let removals = self.removals(layout.chunks(size)..layout.chunks(old));
        Ok(self.tail(size)?.into_iter().chain(removals))
    }

    /// The cut that removes the bytes after `size` from the chunk that contains `size`, preceded by
    /// the copy of that chunk's base; none at a chunk boundary.
    fn tail(self, size: u64) -> Result<Vec<ChunkCut>, BehindLastChunk> {
        if size.is_multiple_of(self.layout.chunk_bytes()) {
            return Ok(Vec::new());
        }
        let (index, inner) = self.layout.locate(size).ok_or(BehindLastChunk)?;
        let bases = self.bases.chunk(&self.layout, index);
        let copy =
            (!bases.as_slice().is_empty()).then(|| self.cut(index, ChunkChange::Copy(bases)));
        Ok(copy.into_iter().chain([self.cut(index, ChunkChange::Cut(inner))]).collect())
    }

    /// Cuts that leave no byte in the chunks of these indexes; indexes past the last chunk are
    /// ignored. A chunk is removed, or left empty where it hides a base.
    pub fn removals(self, indexes: Range<u64>) -> impl Iterator<Item = ChunkCut> {
        let indexes = indexes.map_while(|index| u32::try_from(index).ok());
        let indexes = indexes.filter(|index| *index != FileChunk::SEAL);
        indexes.flat_map(move |index| {
            let bases = self.bases.chunk(&self.layout, index);
            let changes = if bases.as_slice().is_empty() {
                [Some(ChunkChange::Remove), None]
            } else {
                // Makes an empty chunk if it does not exist; otherwise cuts the existing one.
                [Some(ChunkChange::Copy(bases.emptied())), Some(ChunkChange::Cut(0))]
            };
            changes.into_iter().flatten().map(move |change| self.cut(index, change))
        })
    }

    /// Cuts that seal the data id on all chains.
    pub fn seals(self) -> impl Iterator<Item = ChunkCut> {
        let chunk = FileChunk { data: self.data, index: FileChunk::SEAL };
        let seal = move |chain| ChunkCut { chain, chunk, change: ChunkChange::Seal };
        self.layout.all_chains().collect::<Vec<_>>().into_iter().map(seal)
    }

    fn cut(self, index: u32, change: ChunkChange) -> ChunkCut {
        let chunk = FileChunk { data: self.data, index };
        ChunkCut { chain: self.layout.chain(index), chunk, change }
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::FileBase;
    use millpond_types::wire::{ChunkBase, ChunkBases};

    use super::*;

    const BYTES: FileBytes = FileBytes {
        data: DataId(7),
        layout: Layout { chunk_log2: 16, stripe: 2, seed: 4, chains: 5, table: 0 },
        bases: FileBases::NONE,
        solid: 65_535,
    };

    #[test]
    fn a_range_is_cut_where_chunks_end() {
        let (mut parts, mut rooms, mut buf) = (Vec::new(), Vec::new(), vec![0; 70_000]);
        BYTES.rooms(65_530, &mut buf, (&mut parts, &mut rooms)).unwrap();
        let at: Vec<(u32, u32)> =
            parts.iter().map(|part| (part.chunk.index, part.offset)).collect();
        assert_eq!(at, [(0, 65_530), (1, 0), (2, 0)]);
        let lens: Vec<usize> = rooms.iter().map(Room::len).collect();
        assert_eq!(lens, [6, 65_536, 4458]);
        let solid: Vec<u32> = parts.iter().map(|part| part.solid).collect();
        assert_eq!(solid, [5, 0, 0], "the rest may be holes");
        let chains: Vec<u32> = parts.iter().map(|part| part.chain.0).collect();
        assert_eq!(chains, [5, 1, 5]);
        let (mut of_write, mut values) = (Vec::new(), Vec::new());
        BYTES.values(65_530, &buf, (&mut of_write, &mut values)).unwrap();
        assert_eq!(of_write, parts);
        assert_eq!(values.iter().map(Value::len).collect::<Vec<_>>(), lens);
    }

    #[test]
    fn behind_the_last_chunk_there_is_nothing() {
        let end = 1 << 48;
        let (mut parts, mut values) = (Vec::new(), Vec::new());
        assert_eq!(BYTES.values(end - 1, b"ab", (&mut parts, &mut values)), Err(BehindLastChunk));
        assert_eq!(BYTES.tail(end + 1), Err(BehindLastChunk));
        assert_eq!(BYTES.tail(end), Ok(Vec::new()), "a file may be as long as that");
        assert_eq!(BYTES.tail(65_536), Ok(Vec::new()));
        let cut = BYTES.tail(65_537).unwrap()[0];
        assert_eq!((cut.chunk.index, cut.change), (1, ChunkChange::Cut(1)));
        assert_eq!(BYTES.removals((1 << 32) - 2..(1 << 32) + 9).count(), 1);
    }

    #[test]
    fn what_is_cut_off_hides_what_lies_behind_it() {
        let bases = FileBases::new(&[FileBase { chunks: 6, size: 140_000 }]);
        let bytes = FileBytes { bases, ..BYTES };
        let all: Vec<(u32, ChunkChange)> =
            bytes.cuts(70_000, 230_000).unwrap().map(|cut| (cut.chunk.index, cut.change)).collect();
        let base = |len| ChunkBases::new(&[ChunkBase { data: DataId(6), len }]).unwrap();
        let wanted = [
            (1, ChunkChange::Copy(base(65_536))),
            (1, ChunkChange::Cut(4464)),
            (2, ChunkChange::Copy(base(0))),
            (2, ChunkChange::Cut(0)),
            (3, ChunkChange::Remove),
        ];
        assert_eq!(all, wanted);
        let seals: Vec<ChunkCut> = bytes.seals().collect();
        assert_eq!(seals.len(), 2, "one on each chain of the stripe");
        assert!(seals.iter().all(|seal| seal.chunk.is_seal() && seal.chunk.data == DataId(7)));
    }
}
