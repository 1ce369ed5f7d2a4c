//! A replica's store: the protocol's operations on the engine of the target's disk.

use std::sync::Arc;
use std::time::Duration;

use millpond_chain::{
    Content, Meta, Payload as _, ReadOp, StageRequest, StoreAnswer, StoreError, Write,
};
use millpond_engine::{
    ChunkInfo, EngineError, ErrorKind, LostChunk, PatchRequest, WriteMode, WriteRequest,
};
use millpond_env::{SharedBuf, sleep};
use millpond_types::cluster::{ChainId, ChainVersion, ChunkVersion, TargetId};
use millpond_types::{Ack, ChunkId, Crc32c, GroupId, Priority, Tick};

use super::attrs::{self, Owner, TargetRecord, Version, engine_id, staged_id};
use super::blob::Blob;
use super::blocks::Engine;

/// Interval of retries after a full queue or pool.
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// The store of one target: its share of an engine.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) engine: Engine,
    pub(super) chain: ChainId,
    pub(super) target: TargetId,
}

/// Contents of a version that became the committed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flipped {
    pub(super) tombstone: bool,
    pub(super) lost: bool,
    pub(super) len: u32,
    pub(super) group: GroupId,
    /// Contents of the version that it replaced.
    pub(super) replaced: Held,
}

/// Owner and size of a chunk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) group: GroupId,
    pub(super) len: u32,
}

impl Held {
    const NOTHING: Self = Self { group: GroupId::SYSTEM, len: 0 };
}

/// Parameters of a write to the engine.
struct Plain<'a> {
    attrs: &'a [u8],
    owner: Option<Owner>,
    ack: Ack,
}

fn why(error: &EngineError) -> StoreError {
    match error.kind() {
        ErrorKind::NoSpace => StoreError::NoSpace,
        // Bytes that do not match, or a place that cannot be read on an otherwise readable disk.
        ErrorKind::Corrupt => StoreError::Corrupt,
        // Bytes that the engine calls invalid changed in memory: the disk must not be trusted with
        // them.
        ErrorKind::Busy
        | ErrorKind::Io
        | ErrorKind::ReadOnly
        | ErrorKind::Format
        | ErrorKind::Invalid => StoreError::Io,
    }
}

impl Store {
    /// The engine chunk for a chunk's committed version.
    pub(super) fn id(&self, chunk: ChunkId) -> ChunkId {
        engine_id(self.target, chunk)
    }

    /// The engine chunk for its staged version.
    pub(super) fn staged(&self, chunk: ChunkId) -> ChunkId {
        staged_id(self.id(chunk))
    }

    fn found(&self, id: ChunkId) -> Option<(Version, ChunkInfo)> {
        // Nothing else changes the chunk in between: its operations run one by one.
        let info = self.engine.lookup(id)?;
        let version = attrs::version(&self.engine.attrs(id)?)?;
        (version.target == self.target).then_some((version, info))
    }

    /// The committed version of a chunk.
    pub(super) fn meta(&self, chunk: ChunkId) -> Option<Meta> {
        self.found(self.id(chunk)).map(|(version, info)| version.meta(info.len, info.crc))
    }

    /// The answer to a lookup.
    pub(super) fn entry(&self, chunk: ChunkId) -> StoreAnswer<Blob> {
        let found = self.found(self.id(chunk));
        let meta = found.as_ref().map(|(version, info)| version.meta(info.len, info.crc));
        match (meta, found) {
            (Some(meta), Some((_, info))) if info.lost => StoreAnswer::Lost(meta),
            (meta, _) => StoreAnswer::Entry(meta),
        }
    }

    /// Whether the bytes of a chunk's committed version are lost.
    pub(super) fn is_lost(&self, chunk: ChunkId) -> bool {
        self.engine.lookup(self.id(chunk)).is_some_and(|info| info.lost)
    }

    /// The committed version as written, with the owner of its bytes.
    pub(super) fn version(&self, chunk: ChunkId) -> Option<Version> {
        self.found(self.id(chunk)).map(|(version, _)| version)
    }

    /// Whether this replica keeps the chunk from eviction.
    pub(super) fn is_pinned(&self, chunk: ChunkId) -> bool {
        self.engine.lookup(self.id(chunk)).is_some_and(|info| info.pinned)
    }

    /// End of this replica's lease on the chunk, which keeps it from eviction.
    pub(super) fn leased_until(&self, chunk: ChunkId) -> Option<Tick> {
        self.engine.leased_until(self.id(chunk))
    }

    /// Whether another name has the chunk's id here: the committed or staged bytes do not belong to
    /// `owner`.
    pub(super) fn is_of_another(&self, chunk: ChunkId, owner: &Owner) -> bool {
        let id = self.id(chunk);
        [id, staged_id(id)].into_iter().filter_map(|id| self.found(id)).any(|(version, _)| {
            !version.tombstone
                && Owner::decode(&version.block).is_ok_and(|found| !found.is_same(owner))
        })
    }

    /// The staged version of a chunk.
    pub(super) fn staged_meta(&self, chunk: ChunkId) -> Option<Meta> {
        let (version, info) = self.found(self.staged(chunk))?;
        version.staged.then(|| version.meta(info.len, info.crc))
    }

    /// Contents of the committed version now; empty if there is none.
    pub(super) fn held(&self, chunk: ChunkId) -> Held {
        let info = self.engine.lookup(self.id(chunk));
        info.map_or(Held::NOTHING, |info| Held { group: info.group, len: info.len })
    }

    /// Whether a chunk's committed version holds bytes.
    pub(super) fn has(&self, chunk: ChunkId) -> bool {
        self.version(chunk).is_some_and(|version| !version.tombstone)
    }

    async fn write(
        &self,
        id: ChunkId,
        version: &Version,
        (bytes, crc): (SharedBuf, Crc32c),
        ack: Ack,
    ) -> Result<(), StoreError> {
        let owner = Owner::decode(&version.block).ok();
        self.write_plain(id, Plain { attrs: &version.encode(), owner, ack }, (bytes, crc)).await
    }

    async fn write_plain(
        &self,
        id: ChunkId,
        Plain { attrs, owner, ack }: Plain<'_>,
        (bytes, crc): (SharedBuf, Crc32c),
    ) -> Result<(), StoreError> {
        loop {
            let request = WriteRequest {
                bytes: bytes.clone(),
                crc,
                attrs,
                group: owner.map_or(GroupId::SYSTEM, |owner| owner.group()),
                priority: owner.map_or(Priority::High as u8, |owner| owner.priority()),
                // The head decides about expiry, for all replicas.
                expires: None,
                evictable: owner.is_some_and(|owner| owner.evictable()),
                mode: WriteMode::Replace,
                ack,
            };
            match self.engine.write(id, request).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    fn failed(&self, error: &EngineError) -> StoreError {
        let answer = why(error);
        if answer == StoreError::Io {
            tracing::error!(chain = self.chain.0, target = self.target.0, "{error}");
        }
        answer
    }

    fn nothing(&self) -> Result<SharedBuf, StoreError> {
        let empty = self.engine.alloc_reserved(0).map_err(|error| self.failed(&error))?;
        Ok(empty.freeze())
    }

    /// Stores a version beside the committed one.
    pub(super) async fn stage(
        &self,
        request: StageRequest<Blob>,
    ) -> Result<StoreAnswer<Blob>, StoreError> {
        let stored = self.version_of(&request, true);
        let StageRequest { chunk, write, durability, .. } = request;
        let tombstone = stored.tombstone;
        let stored = |block: Box<[u8]>| Version { block, ..stored };
        if let Write::Part { offset, bytes } = &write
            && durability == Ack::Disk
            && let Some((committed, _)) = self.found(self.id(chunk))
            && !committed.tombstone
        {
            let attrs = stored(committed.block).encode();
            if let Some((len, crc)) = self.stage_patch(chunk, (*offset, bytes), &attrs).await? {
                return Ok(StoreAnswer::Staged(Content::Data { len, crc }));
            }
        }
        let blob = self.bytes_of(chunk, write).await?;
        let stored = stored(if tombstone { Box::default() } else { blob.block.as_ref().into() });
        let len = u32::try_from(blob.bytes.len()).unwrap_or(u32::MAX);
        // Checksum of the bytes as they arrived: the engine compares it, and so detects changes in
        // memory since.
        let crc = blob.crc();
        self.write(self.staged(chunk), &stored, (blob.bytes, crc), durability).await?;
        let content = if tombstone { Content::Tombstone } else { Content::Data { len, crc } };
        Ok(StoreAnswer::Staged(content))
    }

    /// The version that a request makes, without its owner, which the bytes name.
    fn version_of(&self, request: &StageRequest<Blob>, staged: bool) -> Version {
        Version {
            chain: self.chain,
            target: self.target,
            staged,
            tombstone: matches!(request.write, Write::Tombstone | Write::Collect),
            number: request.version,
            written: request.written,
            tag: request.tag,
            block: Box::default(),
        }
    }

    /// Stores a version as the committed one, if there is none.
    pub(super) async fn put(
        &self,
        request: StageRequest<Blob>,
    ) -> Result<(StoreAnswer<Blob>, Flipped), StoreError> {
        let version = self.version_of(&request, false);
        let StageRequest { chunk, write, durability, .. } = request;
        let blob = self.bytes_of(chunk, write).await?;
        let version = Version { block: blob.block.as_ref().into(), ..version };
        let owner = Owner::decode(&version.block).ok();
        let (len, crc) = (u32::try_from(blob.bytes.len()).unwrap_or(u32::MAX), blob.crc());
        let plain = Plain { attrs: &version.encode(), owner, ack: durability };
        self.write_plain(self.id(chunk), plain, (blob.bytes, crc)).await?;
        let flipped = Flipped {
            tombstone: false,
            lost: false,
            len,
            group: owner.map_or(GroupId::SYSTEM, |owner| owner.group()),
            replaced: Held::NOTHING,
        };
        Ok((StoreAnswer::Staged(Content::Data { len, crc }), flipped))
    }

    /// Stages a small part over the committed version without writing the whole chunk; returns
    /// length and checksum of the result. None if the engine needs the whole chunk.
    async fn stage_patch(
        &self,
        chunk: ChunkId,
        (offset, part): (u32, &Blob),
        attrs: &[u8],
    ) -> Result<Option<(u32, Crc32c)>, StoreError> {
        if part.bytes.len() > Engine::PATCH_BYTES_MAX {
            return Ok(None);
        }
        let (base, bytes, crc) = (self.id(chunk), &*part.bytes, part.crc());
        loop {
            let request = PatchRequest { base, offset, bytes, crc, attrs };
            match self.engine.write_patch(self.staged(chunk), request).await {
                Ok(info) => return Ok(info.map(|info| (info.len, info.crc))),
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// All bytes of the version that `write` makes.
    async fn bytes_of(&self, chunk: ChunkId, write: Write<Blob>) -> Result<Blob, StoreError> {
        let (offset, bytes, len) = match write {
            Write::Whole(blob) => return Ok(blob),
            Write::Tombstone | Write::Collect => {
                return Ok(Blob::checked(self.nothing()?, Crc32c::EMPTY, Arc::default()));
            }
            Write::Part { offset, bytes } => (offset as usize, Some(bytes), None),
            Write::Truncate { len } => (0, None, Some(len as usize)),
        };
        // A cut needs the bytes that it keeps.
        let kept = len.map(|len| 0..len as u64);
        let old = self.read_whole(self.id(chunk), kept).await?;
        let old = old.and_then(|(_, blob)| blob);
        let held = old.as_ref().map_or(0, |blob| blob.bytes.len());
        let part = bytes.as_ref().map_or(0, |blob| blob.bytes.len());
        let len = len.unwrap_or_else(|| held.max(offset + part));
        let mut all = loop {
            match self.engine.alloc(len) {
                Ok(buf) => break buf,
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        };
        let kept = held.min(len);
        if let Some(old) = &old {
            all[..kept].copy_from_slice(&old.bytes[..kept]);
        }
        all[kept..].fill(0);
        if let Some(bytes) = &bytes {
            all[offset..offset + part].copy_from_slice(&bytes.bytes);
        }
        let block = old.map(|blob| blob.block).or(bytes.map(|blob| blob.block));
        Ok(Blob::arrived(all.freeze(), block.unwrap_or_default()))
    }

    /// Makes the staged version the committed one; none if another version is staged.
    pub(super) async fn commit(
        &self,
        chunk: ChunkId,
        wanted: ChunkVersion,
    ) -> Result<Option<Flipped>, StoreError> {
        let from = self.staged(chunk);
        let Some((mut version, info)) = self.found(from) else { return Ok(None) };
        if !version.staged || version.number != wanted {
            return Ok(None);
        }
        version.staged = false;
        let attrs = version.encode();
        let (replaced, group) = (self.held(chunk), info.group);
        let Version { tombstone, .. } = version;
        let ChunkInfo { lost, len, .. } = info;
        let flipped = Flipped { tombstone, lost, len, group, replaced };
        loop {
            match self.engine.promote(from, self.id(chunk), &attrs).await {
                Ok(true) => return Ok(Some(flipped)),
                Ok(false) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// Forgets engine chunks, lazily.
    pub(super) async fn forget(&self, ids: &[ChunkId]) -> Result<(), StoreError> {
        loop {
            match self.engine.delete_lazy(ids).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// Replaces damaged bytes by good ones.
    pub(super) async fn restore(
        &self,
        chunk: ChunkId,
        meta: Meta,
        blob: Blob,
    ) -> Result<StoreAnswer<Blob>, StoreError> {
        let id = self.id(chunk);
        let Some((version, info)) = self.found(id) else { return Ok(StoreAnswer::Done) };
        if version.meta(info.len, info.crc) == meta {
            let crc = Crc32c::of(&blob.bytes);
            self.write(id, &version, (blob.bytes, crc), Ack::Disk).await?;
        }
        Ok(StoreAnswer::Done)
    }

    /// Stores beside the committed version the fact that this version is lost.
    pub(super) async fn stage_lost(
        &self,
        chunk: ChunkId,
        meta: Meta,
        label: Blob,
    ) -> Result<StoreAnswer<Blob>, StoreError> {
        let Meta { version: number, written, content, tag } = meta;
        // A deletion has no bytes to lose: no replica sends this.
        let Content::Data { len, crc } = content else { return Err(StoreError::Corrupt) };
        let block: Box<[u8]> = label.block.as_ref().into();
        let owner = Owner::decode(&block).ok();
        let (staged, tombstone) = (true, false);
        let (chain, target) = (self.chain, self.target);
        let version = Version { chain, target, staged, tombstone, number, written, tag, block };
        let attrs = version.encode();
        loop {
            let lost = LostChunk {
                len,
                crc,
                attrs: &attrs,
                group: owner.map_or(GroupId::SYSTEM, |owner| owner.group()),
                priority: owner.map_or(Priority::High as u8, |owner| owner.priority()),
                evictable: owner.is_some_and(|owner| owner.evictable()),
            };
            match self.engine.write_lost(self.staged(chunk), lost).await {
                Ok(()) => return Ok(StoreAnswer::Staged(content)),
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// The attributes beside the committed version's bytes, which are not read.
    pub(super) async fn label(&self, chunk: ChunkId) -> Result<StoreAnswer<Blob>, StoreError> {
        let nothing = loop {
            match self.engine.alloc_reserved(0) {
                Ok(buf) => break buf.freeze(),
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        };
        let Some((version, info)) = self.found(self.id(chunk)) else {
            return Ok(StoreAnswer::Bytes(None));
        };
        let meta = version.meta(info.len, info.crc);
        let label = Blob::checked(nothing, Crc32c::EMPTY, Arc::from(version.block));
        Ok(StoreAnswer::Bytes(Some((meta, Some(label)))))
    }

    /// Reads the staged version if it is the wanted one, else the committed one.
    pub(super) async fn read(&self, read: ReadOp) -> Result<StoreAnswer<Blob>, StoreError> {
        let whole = read.offset == 0 && read.len == u32::MAX;
        let range = (!whole).then(|| {
            let from = u64::from(read.offset);
            from..from + u64::from(read.len)
        });
        let staged = self.staged(read.chunk);
        let wanted = read.version.filter(|wanted| {
            self.found(staged).is_some_and(|(version, _)| version.number == *wanted)
        });
        let id = if wanted.is_some() { staged } else { self.id(read.chunk) };
        Ok(StoreAnswer::Bytes(self.read_whole(id, range).await?))
    }

    async fn read_whole(
        &self,
        id: ChunkId,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<Option<(Meta, Option<Blob>)>, StoreError> {
        loop {
            let Some((version, info)) = self.found(id) else { return Ok(None) };
            let meta = version.meta(info.len, info.crc);
            if version.tombstone {
                return Ok(Some((meta, None)));
            }
            let all = range.as_ref().is_none_or(|r| r.start == 0 && r.end >= u64::from(info.len));
            let read = async {
                if all {
                    return self.engine.read(id).await;
                }
                self.engine.read_range(id, range.clone().unwrap_or_default()).await
            };
            match read.await {
                Ok(Some(data)) if data.info.version == info.version => {
                    let block = Arc::from(version.block);
                    let blob = if all {
                        Blob::checked(data.bytes, data.info.crc, block)
                    } else {
                        Blob::arrived(data.bytes, block)
                    };
                    return Ok(Some((meta, Some(blob))));
                }
                // Replaced during the read: look again.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Busy => sleep(BUSY_RETRY).await,
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// Forgets engine chunks durably.
    pub(super) async fn discard(&self, ids: &[ChunkId]) -> Result<StoreAnswer<Blob>, StoreError> {
        self.forget(ids).await?;
        self.sync().await
    }

    /// Makes all earlier writes durable.
    pub(super) async fn sync(&self) -> Result<StoreAnswer<Blob>, StoreError> {
        self.engine.flush().await.map_err(|error| self.failed(&error))?;
        Ok(StoreAnswer::Done)
    }

    /// Stores durably that the target acted on this version of the chain.
    pub(super) async fn save(&self, saved: ChainVersion) -> Result<StoreAnswer<Blob>, StoreError> {
        let record = TargetRecord { chain: self.chain, target: self.target, saved };
        let bytes = (self.nothing()?, Crc32c::EMPTY);
        let plain = Plain { attrs: &record.encode(), owner: None, ack: Ack::Disk };
        self.write_plain(TargetRecord::id(self.target), plain, bytes).await?;
        Ok(StoreAnswer::Done)
    }
}
