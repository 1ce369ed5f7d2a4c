//! Metadata of requests about chunks of files, and of their replies. The layouts are the order of
//! the fields in `encode`. The answer to `ChunkRead` is a [`super::GetReply`], the answer to
//! `ChunkWrite` and `ChunkUpdate` a [`super::StatusReply`].
//!
//! A missing chunk counts as an empty one: a read returns no bytes; a cut or a removal succeeds.
//! The data id of a clone has *bases*: where it has no chunk, a read uses the chunk with the same
//! index of the first base that has one, and a write of a part copies that chunk first.

use super::codec::{Reader, WireError, Writer};
use super::replies::ItemStatus;
use super::requests::Tags;
use crate::checksum::Crc32c;
use crate::cluster::{ChainId, ChunkVersion};
use crate::ids::{DataId, FileChunk};
use crate::limits::{BASES_MAX, CHUNK_BYTES_MAX, FILE_PARTS_MAX, LIST_KEYS_MAX, PAYLOAD_BYTES_MAX};
use crate::namespace::Ack;

/// A chunk of a file, and its chain by the file's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlacedChunk {
    /// The chain.
    pub chain: ChainId,
    /// The chunk.
    pub chunk: FileChunk,
}

impl PlacedChunk {
    const BYTES: usize = 16;

    fn encode(&self, w: &mut Writer) {
        w.u32(self.chain.0);
        w.u64(self.chunk.data.0);
        w.u32(self.chunk.index);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let chain = ChainId(r.u32()?);
        let data = DataId(r.u64()?);
        Ok(Self { chain, chunk: FileChunk { data, index: r.u32()? } })
    }
}

/// A base of a chunk: the chunk with the same index of another data id, on the same chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChunkBase {
    /// Data id of the base.
    pub data: DataId,
    /// Number of valid bytes of that chunk.
    pub len: u32,
}

/// The bases of a chunk, nearest first. No base has more valid bytes than a nearer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChunkBases {
    list: [ChunkBase; BASES_MAX],
    count: u8,
}

impl ChunkBases {
    /// No bases.
    pub const NONE: Self =
        Self { list: [ChunkBase { data: DataId(0), len: 0 }; BASES_MAX], count: 0 };

    /// Makes a list of bases, nearest first; `None` when they are more than [`BASES_MAX`], or one
    /// has more valid bytes than a nearer one or than a chunk can have.
    #[must_use]
    pub fn new(bases: &[ChunkBase]) -> Option<Self> {
        let fits = bases.iter().all(|base| base.len as usize <= CHUNK_BYTES_MAX);
        let shrink = bases.is_sorted_by(|nearer, farther| nearer.len >= farther.len);
        if bases.len() > BASES_MAX || !fits || !shrink {
            return None;
        }
        let mut all = Self { count: u8::try_from(bases.len()).ok()?, ..Self::NONE };
        all.list[..bases.len()].copy_from_slice(bases);
        Some(all)
    }

    /// The bases, nearest first.
    #[must_use]
    pub fn as_slice(&self) -> &[ChunkBase] {
        &self.list[..usize::from(self.count)]
    }

    /// The same bases with no valid bytes: copying one of them makes an empty chunk, if the base
    /// exists.
    #[must_use]
    pub fn emptied(mut self) -> Self {
        self.list.iter_mut().for_each(|base| base.len = 0);
        self
    }

    fn encode(&self, w: &mut Writer) {
        w.u8(self.count);
        for base in self.as_slice() {
            w.u64(base.data.0);
            w.u32(base.len);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let bad = WireError::Field("bases of a chunk (at most 4, none longer than the one before)");
        let count = usize::from(r.u8()?);
        let mut list = [ChunkBase::default(); BASES_MAX];
        let Some(bases) = list.get_mut(..count) else { return Err(bad) };
        for base in &mut *bases {
            *base = ChunkBase { data: DataId(r.u64()?), len: r.u32()? };
        }
        Self::new(bases).ok_or(bad)
    }
}

/// Decodes the offset and length of a part.
fn range(r: &mut Reader<'_>) -> Result<(u32, u32), WireError> {
    let (offset, len) = (r.u32()?, r.u32()?);
    if offset as usize + len as usize > CHUNK_BYTES_MAX {
        return Err(WireError::Field("end of a part (at most 64 MiB)"));
    }
    Ok((offset, len))
}

fn sum(lens: impl Iterator<Item = u32>) -> Result<u64, WireError> {
    let bytes = lens.map(u64::from).sum();
    if bytes > PAYLOAD_BYTES_MAX as u64 {
        return Err(WireError::Field("bytes of all parts (at most 256 MiB)"));
    }
    Ok(bytes)
}

fn ack(r: &mut Reader<'_>) -> Result<Ack, WireError> {
    match r.u8()? {
        0 => Ok(Ack::Memory),
        1 => Ok(Ack::Disk),
        _ => Err(WireError::Field("ack")),
    }
}

/// Decodes the tags of a request's chunks, each for the chain of its chunk.
fn tags(
    r: &mut Reader<'_>,
    chains: impl ExactSizeIterator<Item = ChainId>,
) -> Result<Option<Tags>, WireError> {
    let tags = Tags::decode(r, chains.len())?;
    let agree = |tags: &Tags| tags.items.iter().zip(chains).all(|(tag, of)| tag.chain == of);
    if tags.as_ref().is_some_and(|tags| !agree(tags)) {
        return Err(WireError::Field("chain of a tag"));
    }
    Ok(tags)
}

/// A part of a chunk to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPart {
    /// The chunk.
    pub at: PlacedChunk,
    /// Offset of the first byte.
    pub offset: u32,
    /// Most bytes to read.
    pub len: u32,
    /// Chunks to read when this one does not exist.
    pub bases: ChunkBases,
}

/// Reads parts of chunks (`ChunkRead`). For each part the answer has the bytes that exist there, if
/// any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkReadRequest {
    /// The parts.
    pub parts: Vec<ReadPart>,
}

impl ChunkReadRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.parts.len() * (PlacedChunk::BYTES + 9));
        w.count(self.parts.len());
        for part in &self.parts {
            part.at.encode(&mut w);
            w.u32(part.offset);
            w.u32(part.len);
            part.bases.encode(&mut w);
        }
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(FILE_PARTS_MAX, PlacedChunk::BYTES + 9, "parts")?;
        let mut parts = Vec::with_capacity(n);
        for _ in 0..n {
            let at = PlacedChunk::decode(&mut r)?;
            let (offset, len) = range(&mut r)?;
            parts.push(ReadPart { at, offset, len, bases: ChunkBases::decode(&mut r)? });
        }
        r.finish()?;
        sum(parts.iter().map(|part| part.len))?;
        Ok(Self { parts })
    }

    /// Most payload bytes of the answer.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.len)).sum()
    }
}

/// A part of a chunk to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePart {
    /// The chunk.
    pub at: PlacedChunk,
    /// Offset of the first byte; a gap before it is filled with zeros.
    pub offset: u32,
    /// Number of bytes, not 0: an empty write must not make a chunk, or a longer one.
    pub len: u32,
    /// Their checksum, computed by the client.
    pub crc: Crc32c,
}

/// Writes parts of chunks (`ChunkWrite`); the payload is the concatenation of their bytes. The
/// server may write the parts of one request in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkWriteRequest {
    /// When the server acknowledges a part.
    pub ack: Ack,
    /// The parts.
    pub parts: Vec<WritePart>,
    /// Their tags.
    pub tags: Option<Tags>,
    /// Offset of each part's bytes in the arena when the frame has [`super::FLAG_SHM`], else empty.
    /// Each part has its own offset, so that bytes already in the arena need not be moved together.
    pub arena: Vec<u64>,
}

impl ChunkWriteRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(32 + self.parts.len() * 48);
        w.u8(self.ack as u8);
        w.count(self.parts.len());
        for part in &self.parts {
            part.at.encode(&mut w);
            w.u32(part.offset);
            w.u32(part.len);
            w.u32(part.crc.0);
        }
        Tags::encode(self.tags.as_ref(), &mut w);
        self.arena.iter().for_each(|place| w.u64(*place));
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let ack = ack(&mut r)?;
        let n = r.count(FILE_PARTS_MAX, PlacedChunk::BYTES + 12, "parts")?;
        let mut parts = Vec::with_capacity(n);
        for _ in 0..n {
            let at = PlacedChunk::decode(&mut r)?;
            let (offset, len) = range(&mut r)?;
            if at.chunk.is_seal() {
                return Err(WireError::Field("index of a chunk (that of a seal)"));
            }
            if len == 0 {
                return Err(WireError::Field("length of a part (not 0)"));
            }
            parts.push(WritePart { at, offset, len, crc: Crc32c(r.u32()?) });
        }
        let tags = tags(&mut r, parts.iter().map(|part| part.at.chain))?;
        let mut arena = Vec::new();
        if !r.is_empty() {
            for _ in 0..n {
                arena.push(r.u64()?);
            }
        }
        r.finish()?;
        sum(parts.iter().map(|part| part.len))?;
        Ok(Self { ack, parts, tags, arena })
    }

    /// Sum of the parts' lengths in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.len)).sum()
    }
}

/// Change of a whole chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkChange {
    /// Removes it.
    Remove,
    /// Sets its length in bytes, and pads a shorter chunk with zeros.
    Cut(u32),
    /// Seals the data id on this chain; only for the chunk [`FileChunk::seal`]. Done when the seal
    /// is on the disks of all replicas and no earlier update is in progress.
    Seal,
    /// Copies the chunk of the first base that has one; does nothing if the chunk exists, or if no
    /// base has one.
    Copy(ChunkBases),
    /// Removes it even if it is sealed, or is a seal: no file uses its data id any more.
    Collect,
}

/// A chunk, and the change of it as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The chunk.
    pub at: PlacedChunk,
    /// What is done to it.
    pub change: ChunkChange,
}

impl Cut {
    fn encode(&self, w: &mut Writer) {
        self.at.encode(w);
        match &self.change {
            ChunkChange::Remove => w.u8(0),
            ChunkChange::Cut(len) => {
                w.u8(1);
                w.u32(*len);
            }
            ChunkChange::Seal => w.u8(2),
            ChunkChange::Copy(bases) => {
                w.u8(3);
                bases.encode(w);
            }
            ChunkChange::Collect => w.u8(4),
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let at = PlacedChunk::decode(r)?;
        let change = match r.u8()? {
            0 => ChunkChange::Remove,
            1 => match r.u32()? {
                len if len as usize <= CHUNK_BYTES_MAX => ChunkChange::Cut(len),
                _ => return Err(WireError::Field("length of a cut")),
            },
            2 => ChunkChange::Seal,
            3 => ChunkChange::Copy(ChunkBases::decode(r)?),
            4 => ChunkChange::Collect,
            _ => return Err(WireError::Field("change of a chunk")),
        };
        let seals = matches!(change, ChunkChange::Seal);
        if change != ChunkChange::Collect && seals != at.chunk.is_seal() {
            return Err(WireError::Field("index of a chunk (that of a seal, or not of one)"));
        }
        Ok(Self { at, change })
    }
}

/// Cuts, extends, copies, seals or removes chunks (`ChunkUpdate`), in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkUpdateRequest {
    /// When a cut is answered.
    pub ack: Ack,
    /// The cuts.
    pub cuts: Vec<Cut>,
    /// Their tags.
    pub tags: Option<Tags>,
}

impl ChunkUpdateRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(32 + self.cuts.len() * 41);
        w.u8(self.ack as u8);
        w.count(self.cuts.len());
        for cut in &self.cuts {
            cut.encode(&mut w);
        }
        Tags::encode(self.tags.as_ref(), &mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let ack = ack(&mut r)?;
        let n = r.count(FILE_PARTS_MAX, PlacedChunk::BYTES + 1, "cuts")?;
        let mut cuts = Vec::with_capacity(n);
        for _ in 0..n {
            cuts.push(Cut::decode(&mut r)?);
        }
        let tags = tags(&mut r, cuts.iter().map(|cut| cut.at.chain))?;
        r.finish()?;
        Ok(Self { ack, cuts, tags })
    }
}

/// Asks for lengths and versions of chunks (`ChunkStat`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkStatRequest {
    /// The chunks.
    pub chunks: Vec<PlacedChunk>,
}

impl ChunkStatRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.chunks.len() * PlacedChunk::BYTES);
        w.count(self.chunks.len());
        for chunk in &self.chunks {
            chunk.encode(&mut w);
        }
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(FILE_PARTS_MAX, PlacedChunk::BYTES, "chunks")?;
        let chunks = (0..n).map(|_| PlacedChunk::decode(&mut r)).collect::<Result<Vec<_>, _>>()?;
        r.finish()?;
        Ok(Self { chunks })
    }
}

/// State of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkStat {
    /// Grows with every change of the chunk, and starts again some minutes after the chunk was
    /// removed.
    pub version: ChunkVersion,
    /// Its length in bytes.
    pub len: u32,
}

/// Answer to `ChunkStat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkStatReply {
    /// In the order of the request's chunks: `Ok` with the state of the chunk, `Miss` for a chunk
    /// that does not exist, or the reason why this node cannot answer.
    pub items: Vec<(ItemStatus, ChunkStat)>,
}

impl ChunkStatReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.items.len() * 13);
        w.count(self.items.len());
        for (status, stat) in &self.items {
            w.u8(*status as u8);
            w.u64(stat.version.0);
            w.u32(stat.len);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(FILE_PARTS_MAX, 13, "items")?;
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            let status = ItemStatus::try_from(r.u8()?)?;
            items.push((status, ChunkStat { version: ChunkVersion(r.u64()?), len: r.u32()? }));
        }
        r.finish()?;
        Ok(Self { items })
    }
}

/// Lists the chunks of files on the chains that the asked node heads, in pages (`ChunkList`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkListRequest {
    /// Only chunks of this data id.
    pub data: Option<DataId>,
    /// Only chunks on this chain.
    pub chain: Option<ChainId>,
    /// 0 for the first page, then the cursor of the last page of the same node.
    pub cursor: u64,
    /// Most chunks per page.
    pub limit: u32,
}

impl ChunkListRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(26);
        w.u8(u8::from(self.data.is_some()));
        w.u64(self.data.unwrap_or_default().0);
        w.u8(u8::from(self.chain.is_some()));
        w.u32(self.chain.map_or(0, |chain| chain.0));
        w.u64(self.cursor);
        w.u32(self.limit);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let data = match (r.u8()?, r.u64()?) {
            (0, 0) => None,
            (1, data) => Some(DataId(data)),
            _ => return Err(WireError::Field("data")),
        };
        let chain = match (r.u8()?, r.u32()?) {
            (0, 0) => None,
            (1, chain) => Some(ChainId(chain)),
            _ => return Err(WireError::Field("chain")),
        };
        let request = Self { data, chain, cursor: r.u64()?, limit: r.u32()? };
        r.finish()?;
        if request.limit == 0 || request.limit as usize > LIST_KEYS_MAX {
            return Err(WireError::Field("limit (1 to 1000)"));
        }
        Ok(request)
    }
}

/// A chunk in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChunkInfo {
    /// The chunk, and the chain that it is on.
    pub at: PlacedChunk,
    /// Its state.
    pub stat: ChunkStat,
}

/// Answer to `ChunkList`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkListReply {
    /// Cursor of the next page; 0 after the last page.
    pub cursor: u64,
    /// The chunks of this page, in no particular order. A page may be empty without being the last.
    pub chunks: Vec<FileChunkInfo>,
}

impl ChunkListReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(12 + self.chunks.len() * (PlacedChunk::BYTES + 12));
        w.u64(self.cursor);
        w.count(self.chunks.len());
        for info in &self.chunks {
            info.at.encode(&mut w);
            w.u64(info.stat.version.0);
            w.u32(info.stat.len);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let cursor = r.u64()?;
        let n = r.count(LIST_KEYS_MAX, PlacedChunk::BYTES + 12, "chunks")?;
        let mut chunks = Vec::with_capacity(n);
        for _ in 0..n {
            let at = PlacedChunk::decode(&mut r)?;
            let stat = ChunkStat { version: ChunkVersion(r.u64()?), len: r.u32()? };
            chunks.push(FileChunkInfo { at, stat });
        }
        r.finish()?;
        Ok(Self { cursor, chunks })
    }
}
