//! Chunks of files over chains (DESIGN section 8). Unlike a block, a chunk of a file is written in
//! parts, cut and removed; the file's layout, not a slot, names its chain; it is never evicted.
//!
//! Any replica that may do so answers reads, the head answers updates. `Moved` means that the chain
//! is not here, `Behind` that this node cannot do the update now, or does not know whether it was
//! done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use millpond_chain::{
    Event, Lane, Op, Payload as _, ReadRequest, Refusal, Reply, Tag, UpdateRequest,
};
use millpond_engine::{ChunkInfo, Cursor};
use millpond_env::{JoinHandle, SharedBuf, spawn, timeout, yield_now};
use millpond_types::cluster::{ChainId, ChainVersion, ChunkVersion};
use millpond_types::limits::LIST_KEYS_MAX;
use millpond_types::wire::{
    ChunkBases, ChunkChange, ChunkListReply, ChunkListRequest, ChunkReadRequest, ChunkStat,
    ChunkStatRequest, ChunkUpdateRequest, FileChunkInfo, GetItem, ItemStatus, ItemTag, PlacedChunk,
    ReadPart,
};
use millpond_types::{Ack, Crc32c, FileChunk, GroupId, Tick};

use super::Host;
use super::attrs::{self, Owner};
use super::blob::Blob;
use super::blocks::{GetOutcome, time_left};
use super::hosted::Hosted;
use super::kv::{CURSOR_BITS, READS_MAX, Standing, Value, no_value, outcome, refused};

/// Bytes of a read, and their checksum.
type Found = (SharedBuf, Crc32c);

/// Maximum scans of an engine for one page of a list: after some 260,000 chunks the page ends, full
/// or not.
const SCANS_MAX: usize = 4;

/// Adds the checksum, which is known if the bytes are the whole chunk.
fn summed(info: &ChunkInfo, bytes: SharedBuf) -> Found {
    let is_whole = bytes.len() == info.len as usize;
    let crc = if is_whole { info.crc } else { Crc32c::of(&bytes) };
    (bytes, crc)
}

/// An update of a chunk of a file, with its tag.
#[derive(Clone, Copy, Debug)]
pub struct FileUpdate {
    at: PlacedChunk,
    /// The client's tag, if it gave one, and the chain version that it knew at the first attempt.
    tag: Option<(Tag, ChainVersion)>,
    ack: Ack,
    /// Refused if the data id is sealed.
    unless_sealed: bool,
}

impl FileUpdate {
    /// The update of a chunk by a client.
    #[must_use]
    pub fn new(at: PlacedChunk, tag: Option<(u128, ItemTag)>, ack: Ack) -> Self {
        let named = |(client, item): (u128, ItemTag)| {
            let lane = Lane { client, channel: item.channel };
            (Tag { lane, sequence: item.sequence }, item.issued)
        };
        Self { at, tag: tag.map(named), ack, unless_sealed: true }
    }
}

const fn answer(reply: Option<&Reply<Blob>>) -> ItemStatus {
    match reply {
        // An absent chunk needs no cut and no removal; an existing seal or copy needs no second
        // one.
        Some(Reply::Done(_) | Reply::NotFound | Reply::Exists { .. }) => ItemStatus::Ok,
        Some(Reply::Refused(why)) => refused(*why, ItemStatus::Behind),
        Some(Reply::Data { .. }) | None => ItemStatus::Behind,
    }
}

impl Host {
    /// The replica that takes updates of a chain, if it is here.
    fn head_of(&self, chain: ChainId) -> Result<Arc<Hosted>, ItemStatus> {
        let mut otherwise = ItemStatus::Moved;
        for hosted in self.replicas_of(chain) {
            if hosted.is_head() {
                return Ok(hosted);
            }
            otherwise = ItemStatus::Behind;
        }
        Err(otherwise)
    }

    /// Whether writes to a chain start at this node.
    ///
    /// # Errors
    /// The answer to the write if they do not.
    pub fn takes_file(&self, chain: ChainId) -> Result<(), ItemStatus> {
        self.head_of(chain).map(|_| ())
    }

    /// Writes a part of a chunk on every replica of its chain.
    pub async fn write_file(
        self: Arc<Self>,
        update: FileUpdate,
        offset: u32,
        (bytes, crc): (SharedBuf, Crc32c),
    ) -> ItemStatus {
        let bytes = Blob::arrived(bytes, attrs::encode_file(update.at.chunk).into());
        self.update_file(update, (Op::Write { offset, bytes }, crc)).await
    }

    /// Cuts, extends, copies, seals or removes chunks on every replica of their chains.
    pub async fn cut_files(self: &Arc<Self>, request: &ChunkUpdateRequest) -> Vec<ItemStatus> {
        let mut tasks: Vec<JoinHandle<ItemStatus>> = Vec::with_capacity(request.cuts.len());
        for (index, cut) in request.cuts.iter().enumerate() {
            let tag = request.tags.as_ref().map(|tags| (tags.client, tags.items[index]));
            let update = FileUpdate::new(cut.at, tag, request.ack);
            let (host, change) = (Arc::clone(self), cut.change);
            tasks.push(spawn(async move { host.change_file(update, change).await }));
        }
        let mut items = Vec::with_capacity(tasks.len());
        for task in tasks {
            items.push(task.await.unwrap_or(ItemStatus::Behind));
        }
        items
    }

    async fn change_file(
        self: Arc<Self>,
        mut update: FileUpdate,
        change: ChunkChange,
    ) -> ItemStatus {
        let op = match change {
            ChunkChange::Remove => Op::Remove,
            ChunkChange::Cut(len) => Op::Truncate { len },
            ChunkChange::Copy(bases) => return self.copy_file(update, &bases).await,
            ChunkChange::Collect => {
                update.unless_sealed = false;
                Op::Remove
            }
            ChunkChange::Seal => {
                // A seal must survive a power failure, regardless of the client's `ack`.
                (update.unless_sealed, update.ack) = (false, Ack::Disk);
                let Ok(head) = self.head_of(update.at.chain) else { return ItemStatus::Behind };
                let Ok((nothing, _)) = head.no_bytes() else { return ItemStatus::Busy };
                Op::Seal(Blob::arrived(nothing, attrs::encode_file(update.at.chunk).into()))
            }
        };
        self.update_file(update, (op, Crc32c::EMPTY)).await
    }

    /// Copies a chunk from its bases unless it exists: the head decides this in the order of all
    /// updates of the chunk. Bases are sealed, so the time of reading them does not matter.
    async fn copy_file(&self, update: FileUpdate, bases: &ChunkBases) -> ItemStatus {
        let head = match self.head_of(update.at.chain) {
            Ok(head) => head,
            Err(status) => return status,
        };
        if head.file(update.at.chunk).is_some() {
            return ItemStatus::Ok;
        }
        for base in bases.as_slice() {
            let chunk = FileChunk { data: base.data, ..update.at.chunk };
            let at = PlacedChunk { chunk, ..update.at };
            let part = ReadPart { at, offset: 0, len: base.len, bases: ChunkBases::NONE };
            let found = match head.read_file(part).await {
                Ok(Some((_, found))) => found,
                Ok(None) => continue,
                Err(status) => return status,
            };
            // The head itself copies: a retry finds the copy or has it made again.
            let block = attrs::encode_file(update.at.chunk).into();
            let copy = Blob::arrived(found.bytes.clone(), block);
            let (crc, update) = (copy.crc(), FileUpdate { tag: None, ..update });
            return answer(
                self.ask_head_of_file(&head, update, (Op::Put(copy), crc)).await.as_ref(),
            );
        }
        ItemStatus::Ok
    }

    async fn update_file(&self, update: FileUpdate, op: (Op<Blob>, Crc32c)) -> ItemStatus {
        let head = match self.head_of(update.at.chain) {
            Ok(head) => head,
            Err(status) => return status,
        };
        let reply = self.ask_head_of_file(&head, update, op.clone()).await;
        if !matches!(reply, Some(Reply::Refused(Refusal::Undecided))) {
            return answer(reply.as_ref());
        }
        // The whole chain lost its memory of writers. Writing a part twice is safe: its one writer
        // waits for the answer before it writes there again, so these are its last bytes for that
        // place.
        let anew = FileUpdate { tag: None, ..update };
        answer(self.ask_head_of_file(&head, anew, op).await.as_ref())
    }

    async fn ask_head_of_file(
        &self,
        head: &Arc<Hosted>,
        update: FileUpdate,
        (op, crc): (Op<Blob>, Crc32c),
    ) -> Option<Reply<Blob>> {
        let owner = Owner::File(update.at.chunk);
        if head.store.is_of_another(self.around.ids().file(update.at.chunk), &owner) {
            return Some(Reply::Refused(Refusal::Invalid));
        }
        let (chunk, durability) = (self.around.ids().file(update.at.chunk), update.ack);
        let seal = update.unless_sealed.then(|| self.around.ids().file(update.at.chunk.seal()));
        head.ask(|request, state| {
            let version = state.replica.chain_version();
            let (tag, issued) = update.tag.unwrap_or_else(|| (self.own_tag(), version));
            let update = UpdateRequest { version, issued, tag, chunk, op, crc, durability, seal };
            Some(Event::Update(request, update))
        })
        .await
    }

    /// Reads parts of chunks. Parts not read by the deadline are `Late`.
    pub async fn read_files(
        self: &Arc<Self>,
        request: &ChunkReadRequest,
        deadline: Tick,
    ) -> GetOutcome {
        let late = || Err(no_value(ItemStatus::Late, 0));
        let mut values: Vec<Value> = request.parts.iter().map(|_| late()).collect();
        if let Some(left) = time_left(deadline) {
            let _late = timeout(left, self.read_parts(&request.parts, &mut values)).await;
        }
        outcome(values, request.parts.iter().map(|part| &part.len))
    }

    async fn read_parts(self: &Arc<Self>, parts: &[ReadPart], values: &mut [Value]) {
        let mut reads: VecDeque<(usize, JoinHandle<Value>)> = VecDeque::new();
        let broken = || Err(no_value(ItemStatus::Moved, 0));
        for (index, part) in parts.iter().enumerate() {
            if reads.len() >= READS_MAX
                && let Some((index, read)) = reads.pop_front()
            {
                values[index] = read.await.unwrap_or_else(|_| broken());
            }
            // Reads from memory need no task of their own.
            let mut read = Box::pin(Arc::clone(self).read_part(*part));
            let polled = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context)));
            match polled.await {
                Poll::Ready(value) => values[index] = value,
                Poll::Pending => reads.push_back((index, spawn(read))),
            }
        }
        for (index, read) in reads {
            values[index] = read.await.unwrap_or_else(|_| broken());
        }
    }

    /// Reads parts of chunks from memory, on any thread; none if a part is not in memory, or not
    /// complete.
    pub fn cached_files(&self, request: &ChunkReadRequest) -> Option<GetOutcome> {
        let found = request.parts.iter().map(|part| self.in_memory(part));
        let found: Vec<(Arc<Hosted>, ChunkInfo)> = found.collect::<Option<_>>()?;
        let parts = request.parts.iter().zip(found);
        let values = parts.map(|(part, (hosted, info))| hosted.cached(part, &info).map(Ok));
        Some(outcome(values.collect::<Option<_>>()?, request.parts.iter().map(|part| &part.len)))
    }

    /// A replica that may answer for the chunk and has it in memory up to the end of the part.
    fn in_memory(&self, part: &ReadPart) -> Option<(Arc<Hosted>, ChunkInfo)> {
        let chunk = part.at.chunk;
        let mut replicas = self.replicas_of(part.at.chain);
        let hosted = replicas
            .find(|it| it.standing(self.around.ids().file(chunk)) == Standing::Committed)?;
        let (info, _) = hosted.file(chunk)?;
        let is_within = part.offset.checked_add(part.len).is_some_and(|end| end <= info.len);
        (info.in_memory && is_within).then_some((hosted, info))
    }

    /// Reads a part of a chunk or, if the chunk is absent, of its bases.
    async fn read_part(self: Arc<Self>, part: ReadPart) -> Value {
        let found = self.read_chunk(&part).await?;
        if let Some(found) = found {
            return Ok(found);
        }
        for base in part.bases.as_slice() {
            let len = part.len.min(base.len.saturating_sub(part.offset));
            let chunk = FileChunk { data: base.data, ..part.at.chunk };
            let of_base = ReadPart { at: PlacedChunk { chunk, ..part.at }, len, ..part };
            if let Some(found) = self.read_chunk(&of_base).await? {
                return Ok(found);
            }
        }
        self.empty_at(part.at.chain)
    }

    /// An empty value, if a replica of the chain is here.
    fn empty_at(&self, chain: ChainId) -> Value {
        let replica = self.replicas_of(chain).next();
        replica.map_or_else(|| Err(no_value(ItemStatus::Moved, 0)), |hosted| hosted.no_bytes())
    }

    /// Reads a part of a chunk; none if the chunk is absent.
    async fn read_chunk(self: &Arc<Self>, part: &ReadPart) -> Result<Option<Found>, GetItem> {
        let ReadPart { at: PlacedChunk { chain, chunk }, offset, len, .. } = *part;
        for hosted in self.replicas_of(chain) {
            match hosted.standing(self.around.ids().file(chunk)) {
                Standing::Elsewhere => continue,
                Standing::Pending => {}
                Standing::Committed => {
                    let Some((info, _)) = hosted.file(chunk) else { return Ok(None) };
                    if len == 0 || offset >= info.len {
                        return hosted.no_bytes().map(Some);
                    }
                    let range = u64::from(offset)..u64::from(offset) + u64::from(len);
                    let id = hosted.store.id(self.around.ids().file(chunk));
                    match hosted.store.engine.read_range(id, range).await {
                        Ok(Some(data)) if data.info.version == info.version => {
                            return Ok(Some(summed(&info, data.bytes)));
                        }
                        // Changed during the read, or damaged.
                        _ => {}
                    }
                }
            }
            return match hosted.read_file(*part).await {
                Ok(Some((_, blob))) => Ok(Some((blob.bytes.clone(), blob.crc()))),
                Ok(None) => Ok(None),
                Err(status) => Err(no_value(status, 0)),
            };
        }
        Err(no_value(ItemStatus::Moved, 0))
    }

    /// Lengths and versions of chunks.
    pub async fn stat_files(&self, request: &ChunkStatRequest) -> Vec<(ItemStatus, ChunkStat)> {
        let mut items = Vec::with_capacity(request.chunks.len());
        for at in &request.chunks {
            items.push(match self.stat_file(*at).await {
                Ok(Some(stat)) => (ItemStatus::Ok, stat),
                Ok(None) => (ItemStatus::Miss, ChunkStat::default()),
                Err(status) => (status, ChunkStat::default()),
            });
        }
        items
    }

    async fn stat_file(&self, at: PlacedChunk) -> Result<Option<ChunkStat>, ItemStatus> {
        for hosted in self.replicas_of(at.chain) {
            match hosted.standing(self.around.ids().file(at.chunk)) {
                Standing::Elsewhere => {}
                Standing::Committed => {
                    let stat =
                        |(info, version): (ChunkInfo, _)| ChunkStat { version, len: info.len };
                    return Ok(hosted.file(at.chunk).map(stat));
                }
                Standing::Pending => {
                    let nothing = ReadPart { at, offset: 0, len: 0, bases: ChunkBases::NONE };
                    return Ok(hosted.read_file(nothing).await?.map(|(stat, _)| stat));
                }
            }
        }
        Err(ItemStatus::Moved)
    }

    /// One page of the chunks of files on chains that this node heads. It includes all chunks that
    /// were acknowledged before.
    pub async fn list_files(&self, request: &ChunkListRequest) -> ChunkListReply {
        self.settled().await;
        let limit = (request.limit as usize).min(LIST_KEYS_MAX);
        let mut disk = usize::try_from(request.cursor >> CURSOR_BITS).unwrap_or(usize::MAX);
        let mut inner = request.cursor & ((1 << CURSOR_BITS) - 1);
        let mut chunks = Vec::new();
        for _ in 0..SCANS_MAX {
            if disk >= self.disks.len() || chunks.len() >= limit {
                break;
            }
            let (page, next) = self.disks[disk].engine.scan(
                Some(GroupId::FILES),
                Cursor(inner),
                limit - chunks.len(),
            );
            let found = page.iter().filter_map(|(info, attrs)| self.listed(request, info, attrs));
            chunks.extend(found);
            (disk, inner) = next.map_or((disk + 1, 0), |next| (disk, next.0));
            yield_now().await;
        }
        let ended = disk >= self.disks.len();
        let cursor = if ended { 0 } else { (disk as u64) << CURSOR_BITS | inner };
        ChunkListReply { cursor, chunks }
    }

    fn listed(
        &self,
        request: &ChunkListRequest,
        info: &ChunkInfo,
        attrs: &[u8],
    ) -> Option<FileChunkInfo> {
        let version = attrs::version(attrs).filter(|it| !it.staged && !it.tombstone)?;
        let (chain, chunk) = (version.chain, attrs::file(&version.block).ok()?);
        let other_data = request.data.is_some_and(|data| data != chunk.data);
        if other_data || request.chain.is_some_and(|wanted| wanted != chain) {
            return None;
        }
        self.replica(version.target).filter(|hosted| hosted.is_head())?;
        let stat = ChunkStat { version: version.number, len: info.len };
        Some(FileChunkInfo { at: PlacedChunk { chain, chunk }, stat })
    }
}

impl Hosted {
    /// The committed version of a chunk of a file.
    fn file(&self, chunk: FileChunk) -> Option<(ChunkInfo, ChunkVersion)> {
        let id = self.store.id(self.around.ids().file(chunk));
        let info = self.store.engine.lookup(id)?;
        let version = attrs::version(&self.store.engine.attrs(id)?)?;
        let is = !version.tombstone
            && version.target == self.target
            && attrs::file(&version.block) == Ok(chunk);
        is.then_some((info, version.number))
    }

    /// Reads a part of a chunk from memory, if the chunk is unchanged since it was found.
    fn cached(&self, part: &ReadPart, info: &ChunkInfo) -> Option<Found> {
        let id = self.store.id(self.around.ids().file(part.at.chunk));
        let data = self.store.engine.read_cached(id)?;
        let range = part.offset as usize..part.offset as usize + part.len as usize;
        let is_same = data.info.version == info.version && range.end <= data.bytes.len();
        is_same.then(|| summed(info, data.bytes.slice(range)))
    }

    /// Reads a part through the protocol.
    async fn read_file(
        self: &Arc<Self>,
        part: ReadPart,
    ) -> Result<Option<(ChunkStat, Blob)>, ItemStatus> {
        let ReadPart { at, offset, len, .. } = part;
        let chunk = self.around.ids().file(at.chunk);
        let reply = self.ask(|request, state| {
            let version = state.replica.chain_version();
            Some(Event::Read(request, ReadRequest { version, chunk, offset, len }))
        });
        match reply.await {
            Some(Reply::Data { version, chunk_len, bytes }) => {
                let is = attrs::file(&bytes.block) == Ok(at.chunk);
                Ok(is.then_some((ChunkStat { version, len: chunk_len }, bytes)))
            }
            Some(Reply::NotFound) => Ok(None),
            Some(Reply::Refused(why)) => Err(refused(why, ItemStatus::Moved)),
            Some(Reply::Done(_) | Reply::Exists { .. }) | None => Err(ItemStatus::Moved),
        }
    }

    /// The value of a read without bytes.
    fn no_bytes(&self) -> Value {
        match self.store.engine.alloc(0) {
            Ok(empty) => Ok((empty.freeze(), Crc32c::EMPTY)),
            Err(_) => Err(no_value(ItemStatus::Busy, 0)),
        }
    }
}
