//! The meta of requests about chunks of files, and of their replies. Layouts are the order of the
//! fields in `encode`; the answer to `ChunkRead` is a [`super::GetReply`], to `ChunkWrite` and
//! `ChunkUpdate` a [`super::StatusReply`].
//!
//! A chunk that is not there is as one of no bytes: reading gives nothing, cutting and removing are done.

use super::codec::{Reader, WireError, Writer};
use super::replies::ItemStatus;
use super::requests::Tags;
use crate::checksum::Crc32c;
use crate::cluster::{ChainId, ChunkVersion};
use crate::ids::{DataId, FileChunk};
use crate::limits::{CHUNK_BYTES_MAX, FILE_PARTS_MAX, LIST_KEYS_MAX, PAYLOAD_BYTES_MAX};
use crate::namespace::Ack;

/// A chunk of a file, and the chain that the file's layout puts it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlacedChunk {
    /// Where it lies.
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

/// Reads offset and length of a part.
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

/// The tags of a request's chunks, each for the chain of its chunk.
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
    /// First byte wanted.
    pub offset: u32,
    /// At most so many bytes.
    pub len: u32,
}

/// Reads parts of chunks (`ChunkRead`). Of each comes what the chunk has there, perhaps nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkReadRequest {
    /// The parts.
    pub parts: Vec<ReadPart>,
}

impl ChunkReadRequest {
    /// Encodes the request's meta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.parts.len() * (PlacedChunk::BYTES + 8));
        w.count(self.parts.len());
        for part in &self.parts {
            part.at.encode(&mut w);
            w.u32(part.offset);
            w.u32(part.len);
        }
        w.into_bytes()
    }

    /// Decodes the request's meta.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(FILE_PARTS_MAX, PlacedChunk::BYTES + 8, "parts")?;
        let mut parts = Vec::with_capacity(n);
        for _ in 0..n {
            let at = PlacedChunk::decode(&mut r)?;
            let (offset, len) = range(&mut r)?;
            parts.push(ReadPart { at, offset, len });
        }
        r.finish()?;
        sum(parts.iter().map(|part| part.len))?;
        Ok(Self { parts })
    }

    /// Bytes that the answer has at most.
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
    /// First byte to write; a gap before it is filled with zeros.
    pub offset: u32,
    /// Number of bytes, not 0: writing nothing must not make a chunk, or a longer one.
    pub len: u32,
    /// Their checksum, computed by the client.
    pub crc: Crc32c,
}

/// Writes parts of chunks (`ChunkWrite`); the payload is their bytes one after the other. Parts of one
/// request may be done in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkWriteRequest {
    /// When a part is answered.
    pub ack: Ack,
    /// The parts.
    pub parts: Vec<WritePart>,
    /// Their tags.
    pub tags: Option<Tags>,
    /// Where the bytes of each part start in the arena when the frame has [`super::FLAG_SHM`], else
    /// none. A place for each, so that bytes which lie there already need not be moved together.
    pub arena: Vec<u64>,
}

impl ChunkWriteRequest {
    /// Encodes the request's meta.
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

    /// Decodes the request's meta.
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

/// A new length for a chunk, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The chunk.
    pub at: PlacedChunk,
    /// Its length in bytes afterwards, made up with zeros where it is shorter; `None` removes it.
    pub to: Option<u32>,
}

/// Cuts, extends or removes chunks (`ChunkUpdate`), in any order.
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
    /// Encodes the request's meta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(32 + self.cuts.len() * 41);
        w.u8(self.ack as u8);
        w.count(self.cuts.len());
        for cut in &self.cuts {
            cut.at.encode(&mut w);
            w.u8(u8::from(cut.to.is_some()));
            w.u32(cut.to.unwrap_or(0));
        }
        Tags::encode(self.tags.as_ref(), &mut w);
        w.into_bytes()
    }

    /// Decodes the request's meta.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let ack = ack(&mut r)?;
        let n = r.count(FILE_PARTS_MAX, PlacedChunk::BYTES + 5, "cuts")?;
        let mut cuts = Vec::with_capacity(n);
        for _ in 0..n {
            let at = PlacedChunk::decode(&mut r)?;
            let to = match (r.u8()?, r.u32()?) {
                (0, 0) => None,
                (1, len) if len as usize <= CHUNK_BYTES_MAX => Some(len),
                _ => return Err(WireError::Field("length of a cut")),
            };
            cuts.push(Cut { at, to });
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
    /// Encodes the request's meta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.chunks.len() * PlacedChunk::BYTES);
        w.count(self.chunks.len());
        for chunk in &self.chunks {
            chunk.encode(&mut w);
        }
        w.into_bytes()
    }

    /// Decodes the request's meta.
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

/// What a chunk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkStat {
    /// Grows with every change of the chunk, and begins anew some minutes after it was removed.
    pub version: ChunkVersion,
    /// Its length in bytes.
    pub len: u32,
}

/// Answer to `ChunkStat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkStatReply {
    /// In the order of the request's chunks: `Ok` with what the chunk is, `Miss` for one that is not
    /// there, or why this node cannot say.
    pub items: Vec<(ItemStatus, ChunkStat)>,
}

impl ChunkStatReply {
    /// Encodes the reply's meta.
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

    /// Decodes the reply's meta.
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
    /// Only chunks of these bytes.
    pub data: Option<DataId>,
    /// Only chunks on this chain.
    pub chain: Option<ChainId>,
    /// 0 for the first page, then what the last page told; of the same node.
    pub cursor: u64,
    /// Chunks per page at most.
    pub limit: u32,
}

impl ChunkListRequest {
    /// Encodes the request's meta.
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

    /// Decodes the request's meta.
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
    /// What it is.
    pub stat: ChunkStat,
}

/// Answer to `ChunkList`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkListReply {
    /// Where the next page starts; 0 after the last page.
    pub cursor: u64,
    /// The chunks of this page, in no order that means anything. A page may be empty and not the last.
    pub chunks: Vec<FileChunkInfo>,
}

impl ChunkListReply {
    /// Encodes the reply's meta.
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

    /// Decodes the reply's meta.
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
