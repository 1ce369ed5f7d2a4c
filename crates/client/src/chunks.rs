//! The bytes of files: parts of chunks, on the chains of a file's layout. Only clusters have them.
//!
//! A call completes all of its parts or returns an error. After an error any part may have been
//! done, and an update that was given up at the deadline may still be done a moment later.
//! Overlapping parts of one call, and cuts of one chunk, are done in their order; all others run at
//! the same time. A missing chunk counts as an empty one.

use std::time::Duration;

use millpond_types::DataId;
use millpond_types::FileChunk;
use millpond_types::cluster::{ChainId, NodeId};
use millpond_types::limits::{CHUNK_BYTES_MAX, FILE_PARTS_MAX, LIST_KEYS_MAX};
use millpond_types::wire::{
    ChunkBases, ChunkChange, ChunkListReply, ChunkListRequest, ChunkStat, ItemStatus, PlacedChunk,
    Verb,
};

use crate::call::{GetOutcome, Reads, Room, Value};
use crate::client::Client;
use crate::cluster::{Asked, Chains, Cluster, Files, Work};
use crate::connection::Deadline;
use crate::error::ClientError;
use crate::lent::LentBytes;
use crate::verbs::{REQUEST_KEYS, wire_len};

const _: () = assert!(REQUEST_KEYS <= FILE_PARTS_MAX);

/// A place in a chunk of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkAt {
    /// The chunk's chain by the file's layout.
    pub chain: ChainId,
    /// The chunk.
    pub chunk: FileChunk,
    /// Bytes from the chunk's start.
    pub offset: u32,
    /// Chunks to read when this one does not exist. Ignored by a write, before which
    /// [`ChunkChange::Copy`] must copy such bytes.
    pub bases: ChunkBases,
    /// Number of bytes from `offset` on that were written: a read fails if one of them is missing.
    /// Ignored by a write.
    pub solid: u32,
}

impl ChunkAt {
    pub(crate) const fn at(&self) -> PlacedChunk {
        PlacedChunk { chain: self.chain, chunk: self.chunk }
    }
}

/// A change of a whole chunk of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCut {
    /// The chunk's chain by the file's layout.
    pub chain: ChainId,
    /// The chunk.
    pub chunk: FileChunk,
    /// The change.
    pub change: ChunkChange,
}

impl ChunkCut {
    pub(crate) const fn at(&self) -> PlacedChunk {
        PlacedChunk { chain: self.chain, chunk: self.chunk }
    }
}

/// Filter for a list of chunks; by default it lists all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkFilter {
    /// Only chunks of this data id.
    pub data: Option<DataId>,
    /// Only chunks on this chain.
    pub chain: Option<ChainId>,
}

/// Checks that each part has a value, and ends within a chunk.
fn check(
    parts: &[ChunkAt],
    lens: impl ExactSizeIterator<Item = usize>,
    what: &'static str,
) -> Result<(), ClientError> {
    if lens.len() != parts.len() {
        let fix = format!("{} given for {} parts", lens.len(), parts.len());
        return Err(ClientError::argument(what, fix));
    }
    for (part, len) in parts.iter().zip(lens) {
        let end = (part.offset as usize).saturating_add(len);
        if end > CHUNK_BYTES_MAX {
            let fix = format!("{} ends at byte {end}: a chunk has at most 64 MiB", part.chunk);
            return Err(ClientError::argument(what, fix));
        }
    }
    Ok(())
}

impl Client {
    /// The cluster; an error for a standalone server.
    fn files(&self, deadline: Deadline) -> Result<std::sync::Arc<Cluster>, ClientError> {
        if let Some(cluster) = self.cluster(deadline)? {
            return Ok(cluster);
        }
        // The server may have joined a cluster by the next call.
        self.look_again();
        Err(ClientError::Alone { address: self.name() })
    }

    /// Reads parts, each into its room, from any replica of each chain: the bytes of the chunk at
    /// some moment of the call, per part. Bytes that were never written, past the chunk's end or in
    /// a missing chunk, become zeros. Returns for each part how many bytes the chunk had. `None`:
    /// the deadline of the options.
    ///
    /// # Errors
    /// [`ClientError::Missing`] when a chunk has fewer bytes than its part's [`ChunkAt::solid`];
    /// `DeadlineExceeded` naming a chunk and the last node asked; `InvalidArgument` for a part that
    /// ends after 64 MiB, or a standalone server; and as for every call. The contents of all rooms
    /// are then undefined.
    pub fn read_chunks(
        &self,
        parts: &[ChunkAt],
        rooms: &mut [Room<'_>],
        deadline: Option<Duration>,
    ) -> Result<Vec<u32>, ClientError> {
        let lens = self.read(parts, (rooms, &mut []), deadline)?;
        for (room, len) in rooms.iter_mut().zip(&lens) {
            room.zero_after(*len as usize);
        }
        Ok(lens)
    }

    /// As [`Client::read_chunks`], but a part may stay in the memory of the node on this host: its
    /// room is then left unchanged, and its bytes are returned in its place. This applies to parts
    /// of which the chunk has every byte, for a client opened with [`crate::ClientOptions::lends`],
    /// and a node that shares memory with it.
    ///
    /// # Errors
    /// As for [`Client::read_chunks`].
    pub fn lend_chunks(
        &self,
        parts: &[ChunkAt],
        rooms: &mut [Room<'_>],
        deadline: Option<Duration>,
    ) -> Result<Vec<Option<LentBytes>>, ClientError> {
        let mut lent: Vec<Option<LentBytes>> = parts.iter().map(|_| None).collect();
        let there = self.read(parts, (rooms, &mut lent), deadline)?;
        // Lent bytes are as long as their room, so none follow them.
        for (room, len) in rooms.iter_mut().zip(there) {
            room.zero_after(len as usize);
        }
        Ok(lent)
    }

    /// Reads parts into their rooms, or into their places in `lent` if there are any. Returns how
    /// many bytes each chunk had.
    fn read(
        &self,
        parts: &[ChunkAt],
        (rooms, lent): (&mut [Room<'_>], &mut [Option<LentBytes>]),
        deadline: Option<Duration>,
    ) -> Result<Vec<u32>, ClientError> {
        check(parts, rooms.iter().map(Room::len), "rooms")?;
        let deadline = self.deadline(deadline);
        let cluster = self.files(deadline)?;
        let mut outcomes = vec![GetOutcome::Late; parts.len()];
        let wanted = rooms.iter().map(|room| wire_len(room.len())).collect();
        let files = Files::Read(parts, wanted, !lent.is_empty());
        let work = Work { verb: Verb::ChunkRead, asked: Asked::Files(files) };
        let mut reads = Reads { rooms, out: &mut outcomes, lent, ..Reads::none() };
        cluster.run(&work, &mut reads, deadline)?;
        let len_of = |outcome: &GetOutcome| {
            let GetOutcome::Read(len) = *outcome else {
                unreachable!("a successful call has read every part")
            };
            len
        };
        let read: Vec<u32> = outcomes.iter().map(len_of).collect();
        let short = parts.iter().zip(&read).find(|(part, len)| **len < part.solid);
        if let Some((ChunkAt { chain, chunk, offset, solid, .. }, there)) = short {
            let (chain, chunk, offset, solid, there) = (*chain, *chunk, *offset, *solid, *there);
            return Err(ClientError::Missing { chunk, chain, offset, solid, there });
        }
        Ok(read)
    }

    /// Writes parts; a gap between a chunk's end and a part becomes zeros. Durable on all replicas
    /// when it returns. A part without bytes does nothing. `None`: the deadline of the options.
    ///
    /// A retry is not executed twice, except when all replicas of a chain lost their memory of it
    /// at once (a power cut): this does no harm to parts that only this caller writes.
    ///
    /// # Errors
    /// `NoSpace` when a disk of a chain is full; `DeadlineExceeded`; `InvalidArgument` as for
    /// [`Client::read_chunks`]; and as for every call. All name a chunk and, if known, a node.
    pub fn write_chunks(
        &self,
        parts: &[ChunkAt],
        values: &[Value<'_>],
        deadline: Option<Duration>,
    ) -> Result<(), ClientError> {
        check(parts, values.iter().map(Value::len), "values")?;
        if values.iter().any(Value::is_empty) {
            let full = parts.iter().zip(values).filter(|(_, value)| !value.is_empty());
            let (parts, values): (Vec<ChunkAt>, Vec<Value<'_>>) =
                full.map(|(part, value)| (*part, value.clone())).unzip();
            return self.write_chunks(&parts, &values, deadline);
        }
        self.update((Verb::ChunkWrite, Files::Write(parts, values)), deadline)
    }

    /// Cuts, extends, copies, seals or removes chunks. Durable on all replicas when it returns. A
    /// missing chunk stays missing, unless it is copied or a seal. `None`: the deadline of the
    /// options.
    ///
    /// # Errors
    /// As for [`Client::write_chunks`]; a cut to another length needs space too, a removal never.
    pub fn cut_chunks(
        &self,
        cuts: &[ChunkCut],
        deadline: Option<Duration>,
    ) -> Result<(), ClientError> {
        let long = |cut: &&ChunkCut| matches!(cut.change, ChunkChange::Cut(len) if len as usize > CHUNK_BYTES_MAX);
        if let Some(cut) = cuts.iter().find(long) {
            let fix = format!("{}: a chunk has at most 64 MiB", cut.chunk);
            return Err(ClientError::argument("cuts", fix));
        }
        self.update((Verb::ChunkUpdate, Files::Cut(cuts)), deadline)
    }

    fn update(
        &self,
        (verb, files): (Verb, Files<'_, '_>),
        deadline: Option<Duration>,
    ) -> Result<(), ClientError> {
        let deadline = self.deadline(deadline);
        let cluster = self.files(deadline)?;
        let work = Work { verb, asked: Asked::Files(files) };
        let batch = cluster.run(&work, &mut Reads::none(), deadline)?;
        let answers = batch.answers(ItemStatus::Late);
        let failed = answers.iter().position(|status| *status != ItemStatus::Ok);
        let (Some(item), Asked::Files(files)) = (failed, &work.asked) else { return Ok(()) };
        let PlacedChunk { chain, chunk } = files.at(item);
        let node = batch.asked(item).unwrap_or_default();
        Err(ClientError::Chunk { chunk, chain, node, status: answers[item] })
    }

    /// Lengths and versions of chunks; `None` for a missing chunk.
    ///
    /// # Errors
    /// As for [`Client::read_chunks`].
    pub fn stat_chunks(
        &self,
        chunks: &[PlacedChunk],
        deadline: Option<Duration>,
    ) -> Result<Vec<Option<ChunkStat>>, ClientError> {
        let deadline = self.deadline(deadline);
        let cluster = self.files(deadline)?;
        let mut stats = vec![None; chunks.len()];
        let work = Work { verb: Verb::ChunkStat, asked: Asked::Files(Files::Stat(chunks)) };
        let mut reads = Reads { stats: &mut stats, ..Reads::none() };
        cluster.run(&work, &mut reads, deadline)?;
        Ok(stats)
    }

    /// One page of the chunks on the chains that `node` heads: `cursor` is 0 for the first page,
    /// then the cursor of the page before, until that is 0. A page may be empty without being the
    /// last. Chunks that are written, or on a chain that changes its head, during a list may be
    /// missing or listed twice.
    ///
    /// # Errors
    /// `Unreachable` or `DeadlineExceeded` when the node does not answer; and as for every call.
    pub fn list_chunks(
        &self,
        node: NodeId,
        filter: ChunkFilter,
        cursor: u64,
        deadline: Option<Duration>,
    ) -> Result<ChunkListReply, ClientError> {
        let ChunkFilter { data, chain } = filter;
        let limit = wire_len(LIST_KEYS_MAX);
        let request = ChunkListRequest { data, chain, cursor, limit };
        let deadline = self.deadline(deadline);
        self.files(deadline)?.list_files(node, &request, deadline)
    }

    /// The chains of the cluster and their nodes, for making layouts.
    ///
    /// # Errors
    /// `InvalidArgument` for a standalone server; and as for every call.
    pub fn chains(&self, deadline: Option<Duration>) -> Result<Chains, ClientError> {
        let deadline = self.deadline(deadline);
        self.files(deadline)?.chains(deadline)
    }
}
