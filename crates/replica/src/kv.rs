//! The KV verbs that read, over chains: a replica that may answer for a key does; other keys get
//! `Moved`.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond_chain::{Event, ReadRequest, Refusal, Reply};
use millpond_engine::{ChunkInfo, Cursor, ErrorKind};
use millpond_env::{JoinHandle, RealClock, SharedBuf, spawn, timeout};
use millpond_types::cluster::{Chain, ChainId, News};
use millpond_types::limits::{PAGE_BYTES, PAYLOAD_BYTES_MAX};
use millpond_types::wire::{
    GetItem, GetRequest, ItemStatus, KeyInfo, KeysRequest, ListReply, ListRequest, Planned,
};
use millpond_types::{BlockKey, ChunkId, ChunkIds, Crc32c, GroupId, SlotId, Tick, placement};

use super::Host;
use super::attrs::{self, Block};
use super::blob::Blob;
use super::blocks::{GetOutcome, time_left};
use super::hosted::Hosted;
use crate::local::Metrics;

/// Maximum reads of one request in flight: enough to fill a device queue of 32 twice.
pub(super) const READS_MAX: usize = 64;
/// Bits of a list cursor that belong to the engine; the disk's index stands above them.
pub(super) const CURSOR_BITS: u32 = 56;

/// A block to find.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    group: GroupId,
    key: BlockKey,
    slot: SlotId,
    chunk: ChunkId,
    /// Routing versions by which the client chose this node.
    planned: Planned,
}

impl Wanted {
    fn new(ids: ChunkIds, of: (GroupId, Planned), key: &BlockKey, leader: &BlockKey) -> Self {
        let (group, planned) = of;
        let (slot, chunk) = (placement::slot(group, leader), ids.block(group, key));
        Self { group, key: *key, slot, chunk, planned }
    }

    /// The blocks of a request, in its order.
    fn all(
        ids: ChunkIds,
        request: &KeysRequest,
        run_blocks: u16,
    ) -> impl Iterator<Item = Self> + '_ {
        request.keys.iter().enumerate().map(move |(index, key)| {
            let leader = request.leaders.leader(&request.keys, index, run_blocks);
            Self::new(ids, (request.namespace, request.planned), key, leader)
        })
    }

    fn is(&self, block: &[u8], now: u32) -> bool {
        Block::decode(block).is_ok_and(|block| {
            block.key == self.key && block.group == self.group && !block.expired(now)
        })
    }
}

/// Knowledge of a replica about a block, without asking others.
enum Known {
    /// The block is here.
    Here(ChunkInfo),
    /// The block is not here.
    Nothing,
    /// A version is under way: the protocol must decide.
    Ask,
    /// This replica may not answer.
    Moved,
}

/// Right of a replica to answer for a chunk at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// None: another replica must be asked.
    Elsewhere,
    /// A version is under way: the protocol must decide.
    Pending,
    /// The committed version here is the answer.
    Committed,
}

pub(super) type Value = Result<(SharedBuf, Crc32c), GetItem>;

pub(super) const fn no_value(status: ItemStatus, len: u32) -> GetItem {
    GetItem { status, len, crc: Crc32c(0), pool_offset: 0 }
}

/// The item status for a chain's refusal; `elsewhere` if the chain cannot answer here and now.
pub(super) const fn refused(why: Refusal, elsewhere: ItemStatus) -> ItemStatus {
    match why {
        Refusal::Busy(_) => ItemStatus::Busy,
        Refusal::NoSpace => ItemStatus::NoSpace,
        Refusal::BadChecksum | Refusal::Invalid => ItemStatus::Corrupt,
        Refusal::Superseded => ItemStatus::Late,
        Refusal::Sealed => ItemStatus::Sealed,
        Refusal::Stale(_)
        | Refusal::Behind
        | Refusal::NotServing
        | Refusal::Corrupt
        | Refusal::Undecided => elsewhere,
    }
}

pub(super) fn unix_seconds() -> u32 {
    u32::try_from(RealClock::wall_ms() / 1000).unwrap_or(u32::MAX)
}

impl Host {
    /// The same block stored as its own leader, if this host allows that.
    fn as_own_leader(&self, wanted: &Wanted) -> Option<Wanted> {
        let slot = placement::slot(wanted.group, &wanted.key);
        (self.own_leaders && slot != wanted.slot).then_some(Wanted { slot, ..*wanted })
    }

    /// Whether a block is here as its own leader although the request names another one.
    pub(super) fn is_own_leader(&self, group: GroupId, (key, slot): (&BlockKey, SlotId)) -> bool {
        if !self.own_leaders {
            return false;
        }
        let chunk = self.around.ids().block(group, key);
        let wanted = Wanted { group, key: *key, slot, chunk, planned: Planned::default() };
        let own = self.as_own_leader(&wanted);
        own.is_some_and(|own| matches!(self.known_as(&own).0, Known::Here(_)))
    }

    /// Pins this node's copy of a block that is its own leader.
    pub async fn pin_own(&self, group: GroupId, key: &BlockKey) {
        let of = (group, Planned::default());
        let wanted = Wanted::new(self.around.ids(), of, key, key);
        let mut pin = async |host: &Host, disk, id| host.pin(disk, id, true).await;
        let _gone_again = self.on_copies_of(&wanted, &mut pin).await;
    }

    /// Knowledge of this node's replicas about a block, without waiting.
    fn known(&self, wanted: &Wanted) -> (Known, Option<Arc<Hosted>>) {
        let found = self.known_as(wanted);
        if !matches!(found.0, Known::Nothing) {
            return found;
        }
        let own = self.as_own_leader(wanted).map(|own| self.known_as(&own));
        own.filter(|own| matches!(own.0, Known::Here(_))).unwrap_or(found)
    }

    /// Same as `known`, only under the leader of the request.
    fn known_as(&self, wanted: &Wanted) -> (Known, Option<Arc<Hosted>>) {
        let news = self.news();
        if !news.agrees(wanted.slot, wanted.planned) {
            return (Known::Moved, None);
        }
        let place = news.routing.place(wanted.slot);
        let serves = |chain: &ChainId| {
            let chain = news.routing.chains.get(chain);
            chain.is_some_and(|chain| chain.serving().any(|member| member.node == self.node))
        };
        // A node that serves both chains is asked for one of them and cannot tell which: a block on
        // either counts, and it is absent only if it is on neither.
        let mut answer = (Known::Moved, None);
        for chain in std::iter::once(place.chain).chain(place.old) {
            let mut may = false;
            for hosted in self.replicas_of(chain) {
                let known = hosted.known(wanted);
                match known {
                    Known::Here(_) => return (known, Some(hosted)),
                    // Both must be asked, one after the other: the client does that a moment later.
                    Known::Ask if matches!(answer.0, Known::Ask) => return (Known::Moved, None),
                    Known::Nothing if matches!(answer.0, Known::Ask) => may = true,
                    Known::Ask | Known::Nothing => (may, answer) = (true, (known, Some(hosted))),
                    Known::Moved => {}
                }
            }
            // While a slot moves, its other chain may be on another node, where the client asks
            // too. The client counts on this node for every chain that it serves, as both know.
            if !may && serves(&chain) {
                return (Known::Moved, None);
            }
        }
        // A block that left during the search was not looked for at its new place.
        if !self.news().agrees(wanted.slot, wanted.planned) {
            return (Known::Moved, None);
        }
        answer
    }

    /// Whether a block is there: `Ok`, `Miss` or `Moved`.
    async fn present(&self, wanted: Wanted) -> (ItemStatus, Option<Arc<Hosted>>) {
        match self.known(&wanted) {
            (Known::Here(_), hosted) => (ItemStatus::Ok, hosted),
            (Known::Nothing, hosted) => (ItemStatus::Miss, hosted),
            (Known::Moved, _) | (Known::Ask, None) => (ItemStatus::Moved, None),
            (Known::Ask, Some(hosted)) => {
                let status = match hosted.presence(&wanted).await {
                    // It may have left during the wait.
                    ItemStatus::Miss if !self.news().agrees(wanted.slot, wanted.planned) => {
                        ItemStatus::Moved
                    }
                    status => status,
                };
                (status, Some(hosted))
            }
        }
    }

    /// Applies `each` to the keys of a request that are present on this node's replicas.
    pub async fn on_keys(
        &self,
        request: &KeysRequest,
        run_blocks: u16,
        mut each: impl AsyncFnMut(&Host, usize, ChunkId) -> ItemStatus,
    ) -> Vec<ItemStatus> {
        let mut items = Vec::with_capacity(request.keys.len());
        for wanted in Wanted::all(self.around.ids(), request, run_blocks) {
            let (status, hosted) = self.present(wanted).await;
            items.push(match (status, hosted) {
                (ItemStatus::Ok, Some(hosted)) => {
                    each(self, hosted.disk, hosted.store.id(wanted.chunk)).await
                }
                (status, _) => status,
            });
        }
        items
    }

    /// Applies `each`, which keeps a block or lets it go, to this node's copies of the keys of a
    /// request. While a slot moves there may be two copies: this node cannot tell for which chain
    /// it is asked, and the result at the head of a chain counts.
    pub async fn on_copies(
        &self,
        request: &KeysRequest,
        run_blocks: u16,
        mut each: impl AsyncFnMut(&Host, usize, ChunkId) -> ItemStatus,
    ) -> Vec<ItemStatus> {
        let mut items = Vec::with_capacity(request.keys.len());
        for wanted in Wanted::all(self.around.ids(), request, run_blocks) {
            let mut status = self.on_copies_of(&wanted, &mut each).await;
            if status == ItemStatus::Miss
                && let Some(own) = self.as_own_leader(&wanted)
                && let found @ (ItemStatus::Ok | ItemStatus::Exists) =
                    self.on_copies_of(&own, &mut each).await
            {
                status = found;
            }
            // The mover no longer looks at changes made by older routing.
            let known = self.news().agrees(wanted.slot, wanted.planned);
            items.push(if known { status } else { ItemStatus::Moved });
        }
        items
    }

    async fn on_copies_of(
        &self,
        wanted: &Wanted,
        each: &mut impl AsyncFnMut(&Host, usize, ChunkId) -> ItemStatus,
    ) -> ItemStatus {
        let news = self.news();
        if !news.agrees(wanted.slot, wanted.planned) {
            return ItemStatus::Moved;
        }
        let place = news.routing.place(wanted.slot);
        let (mut asked, mut answer) = (false, ItemStatus::Miss);
        // A copy arrives at the new chain before it leaves the old one: looking at the new chain
        // last misses none.
        for id in place.old.into_iter().chain([place.chain]) {
            let chain = news.routing.chains.get(&id);
            let mut serving = chain.into_iter().flat_map(Chain::serving);
            let head = serving.next().map(|member| member.target);
            let serves = chain.into_iter().flat_map(Chain::serving).any(|m| m.node == self.node);
            let mut may = false;
            for hosted in self.replicas_of(id) {
                let mut status = match hosted.presence(wanted).await {
                    ItemStatus::Moved => continue,
                    status => status,
                };
                may = true;
                if status == ItemStatus::Ok {
                    status = each(self, hosted.disk, hosted.store.id(wanted.chunk)).await;
                }
                let counts = place.old.is_none() || head == Some(hosted.target);
                if counts && status != ItemStatus::Miss {
                    answer = status;
                }
            }
            if !may && serves {
                return ItemStatus::Moved;
            }
            asked |= may;
        }
        if asked { answer } else { ItemStatus::Moved }
    }

    /// Counts an access for eviction. `id` names the engine's chunk, here and below.
    pub fn touch(&self, disk: usize, id: ChunkId) -> ItemStatus {
        if self.disks[disk].engine.touch(id) { ItemStatus::Ok } else { ItemStatus::Miss }
    }

    /// Promises not to evict a block before `until`: `Ok`, or `Exists` without a lease.
    pub fn lease(&self, disk: usize, id: ChunkId, until: Option<Tick>) -> ItemStatus {
        let leased = until.is_some_and(|until| self.disks[disk].engine.lease(id, until));
        if leased { ItemStatus::Ok } else { ItemStatus::Exists }
    }

    /// Pins or unpins this node's copy of a block. A client sends this to every replica, since any
    /// may become the head, which alone decides about eviction.
    pub async fn pin(&self, disk: usize, id: ChunkId, on: bool) -> ItemStatus {
        match self.disks[disk].engine.set_pinned(id, on).await {
            Ok(true) => ItemStatus::Ok,
            Ok(false) => ItemStatus::Miss,
            Err(error) if error.kind() == ErrorKind::Busy => ItemStatus::Busy,
            Err(error) => {
                tracing::error!("pinning: {error}");
                ItemStatus::ReadOnly
            }
        }
    }

    /// Bytes of the pool that a get may hold, in whole pages. This does not check whether the
    /// values may be read.
    pub fn get_bytes(&self, request: &GetRequest, run_blocks: u16) -> u64 {
        let news = self.news();
        let each = request.keys.iter().enumerate().map(|(index, key)| {
            let leader = request.leaders.leader(&request.keys, index, run_blocks);
            let of = (request.namespace, request.planned);
            let wanted = Wanted::new(self.around.ids(), of, key, leader);
            let room = request.room[index];
            let own = self.as_own_leader(&wanted).map(|own| self.len_of(&news, &own, room));
            let len = self.len_of(&news, &wanted, room).max(own.unwrap_or(0));
            u64::from(len).next_multiple_of(PAGE_BYTES as u64)
        });
        each.sum::<u64>().min(PAYLOAD_BYTES_MAX as u64)
    }

    /// Length of the longest chunk under the block's id on this node that fits into `room` bytes; 0
    /// if there is none.
    fn len_of(&self, news: &News, wanted: &Wanted, room: u32) -> u32 {
        let place = news.routing.place(wanted.slot);
        let len = |hosted: Arc<Hosted>| {
            let found = hosted.store.engine.lookup(hosted.store.id(wanted.chunk));
            found.map(|info| info.len).filter(|len| *len <= room)
        };
        let chains = std::iter::once(place.chain).chain(place.old);
        chains.flat_map(|chain| self.replicas_of(chain)).filter_map(len).max().unwrap_or(0)
    }

    /// Reads values. Values not read by the deadline are `Late`.
    pub async fn get(
        self: &Arc<Self>,
        request: &GetRequest,
        run_blocks: u16,
        (deadline, metrics): (Tick, &Metrics),
    ) -> GetOutcome {
        let late = || Err(no_value(ItemStatus::Late, 0));
        let mut values: Vec<Value> = (0..request.keys.len()).map(|_| late()).collect();
        let mut waiting: VecDeque<(usize, Wanted)> = VecDeque::new();
        let mut bytes = 0;
        for (index, key) in request.keys.iter().enumerate() {
            let leader = request.leaders.leader(&request.keys, index, run_blocks);
            let wanted =
                Wanted::new(self.around.ids(), (request.namespace, request.planned), key, leader);
            values[index] = match self.known(&wanted) {
                (Known::Moved, _) => Err(no_value(ItemStatus::Moved, 0)),
                (Known::Nothing, _) => Err(no_value(ItemStatus::Miss, 0)),
                (Known::Here(info), _) if info.len > request.room[index] => {
                    Err(no_value(ItemStatus::TooLong, info.len))
                }
                (Known::Here(info), _)
                    if bytes + u64::from(info.len) > PAYLOAD_BYTES_MAX as u64 =>
                {
                    Err(no_value(ItemStatus::Busy, info.len))
                }
                (Known::Here(info), Some(hosted)) => {
                    bytes += u64::from(info.len);
                    match hosted.store.engine.read_cached(hosted.store.id(wanted.chunk)) {
                        Some(data) if data.info.version == info.version => {
                            metrics.memory_hits.inc();
                            Ok((data.bytes, data.info.crc))
                        }
                        _ => {
                            waiting.push_back((index, wanted));
                            late()
                        }
                    }
                }
                _ => {
                    waiting.push_back((index, wanted));
                    late()
                }
            };
        }
        if !waiting.is_empty()
            && let Some(left) = time_left(deadline)
        {
            let started = RealClock::tick();
            metrics.disk_reads.add(waiting.len() as u64);
            let _late = timeout(left, self.read_all(waiting, &mut values)).await;
            metrics.stages.disk.observe(RealClock::tick().since(started));
        }
        outcome(values, &request.room)
    }

    async fn read_all(
        self: &Arc<Self>,
        mut waiting: VecDeque<(usize, Wanted)>,
        values: &mut [Value],
    ) {
        let mut reads: VecDeque<(usize, JoinHandle<Value>)> = VecDeque::new();
        loop {
            while reads.len() < READS_MAX {
                let Some((index, wanted)) = waiting.pop_front() else { break };
                let host = Arc::clone(self);
                reads.push_back((index, spawn(async move { host.read_one(wanted).await })));
            }
            let Some((index, read)) = reads.pop_front() else { return };
            values[index] = read.await.unwrap_or(Err(no_value(ItemStatus::Moved, 0)));
        }
    }

    async fn read_one(&self, wanted: Wanted) -> Value {
        let (known, hosted) = self.known(&wanted);
        let Some(hosted) = hosted else { return Err(no_value(ItemStatus::Moved, 0)) };
        let direct = match known {
            Known::Moved => return Err(no_value(ItemStatus::Moved, 0)),
            Known::Nothing => return Err(no_value(ItemStatus::Miss, 0)),
            // The committed version may be read without the state machine.
            Known::Here(info) => {
                match hosted.store.engine.read(hosted.store.id(wanted.chunk)).await {
                    Ok(Some(data)) if data.info.version == info.version => {
                        Some((data.bytes, data.info.crc))
                    }
                    _ => None,
                }
            }
            Known::Ask => None,
        };
        if let Some(value) = direct {
            return Ok(value);
        }
        match hosted.read(wanted.chunk).await {
            Ok(Some(blob)) if wanted.is(&blob.block, unix_seconds()) => {
                let crc = millpond_chain::Payload::crc(&blob);
                Ok((blob.bytes, crc))
            }
            // It may have left during the wait.
            Ok(_) if !self.news().agrees(wanted.slot, wanted.planned) => {
                Err(no_value(ItemStatus::Moved, 0))
            }
            Ok(_) => Err(no_value(ItemStatus::Miss, 0)),
            Err(status) => Err(no_value(status, 0)),
        }
    }

    /// One page of the keys of a namespace on chains that this node heads. It includes all keys
    /// that were acknowledged before.
    pub async fn list(&self, request: &ListRequest) -> ListReply {
        self.settled().await;
        let mut disk = usize::try_from(request.cursor >> CURSOR_BITS).unwrap_or(usize::MAX);
        let mut inner = request.cursor & ((1 << CURSOR_BITS) - 1);
        let (mut keys, limit) = (Vec::new(), request.limit as usize);
        let now = unix_seconds();
        while disk < self.disks.len() && keys.len() < limit {
            let engine = &self.disks[disk].engine;
            let wanted = limit - keys.len();
            let (page, next) = engine.scan(Some(request.namespace), Cursor(inner), wanted);
            for (info, attrs) in page {
                let Some(version) = attrs::version(&attrs) else { continue };
                let Ok(block) = Block::decode(&version.block) else { continue };
                let heads = || self.replica(version.target).is_some_and(|h| h.is_head());
                let shown = !version.staged && !version.tombstone && !block.expired(now);
                if shown && block.key.as_bytes().starts_with(&request.prefix) && heads() {
                    keys.push(KeyInfo {
                        key: block.key,
                        len: info.len,
                        expires: block.expires,
                        pinned: info.pinned,
                    });
                }
            }
            (disk, inner) = next.map_or((disk + 1, 0), |next| (disk, next.0));
        }
        let ended = disk >= self.disks.len();
        ListReply { cursor: if ended { 0 } else { (disk as u64) << CURSOR_BITS | inner }, keys }
    }
}

impl Hosted {
    /// Whether a block is there: `Ok` or `Miss`, or the reason why this replica may not answer.
    async fn presence(self: &Arc<Self>, wanted: &Wanted) -> ItemStatus {
        match self.known(wanted) {
            Known::Here(_) => ItemStatus::Ok,
            Known::Nothing => ItemStatus::Miss,
            Known::Moved => ItemStatus::Moved,
            Known::Ask => match self.read(wanted.chunk).await {
                Ok(Some(blob)) if wanted.is(&blob.block, unix_seconds()) => ItemStatus::Ok,
                Ok(_) => ItemStatus::Miss,
                Err(status) => status,
            },
        }
    }

    fn known(&self, wanted: &Wanted) -> Known {
        match self.standing(wanted.chunk) {
            Standing::Elsewhere => Known::Moved,
            Standing::Pending => Known::Ask,
            Standing::Committed => self.committed(wanted).map_or(Known::Nothing, Known::Here),
        }
    }

    /// Whether this replica may answer for a chunk without asking others.
    pub(super) fn standing(&self, chunk: ChunkId) -> Standing {
        let state = self.state();
        let now = RealClock::tick();
        if !state.replica.may_read(now) {
            return Standing::Elsewhere;
        }
        // A commit that has not reached the engine yet must be visible all the same.
        if !state.replica.committed_now(now, chunk) || state.flipping(chunk) {
            return Standing::Pending;
        }
        Standing::Committed
    }

    /// The committed version of a block, if it is this block and has not expired.
    fn committed(&self, wanted: &Wanted) -> Option<ChunkInfo> {
        let (now, block) = (unix_seconds(), (wanted.group, &wanted.key));
        let is = |attrs: &[u8]| attrs::holds_block(attrs, self.target, block, now);
        self.store.engine.lookup_where(self.store.id(wanted.chunk), is)
    }

    /// Reads a whole chunk through the protocol.
    async fn read(self: &Arc<Self>, chunk: ChunkId) -> Result<Option<Blob>, ItemStatus> {
        let reply = self.ask(|request, state| {
            let version = state.replica.chain_version();
            Some(Event::Read(request, ReadRequest { version, chunk, offset: 0, len: u32::MAX }))
        });
        match reply.await {
            Some(Reply::Data { bytes, .. }) => Ok(Some(bytes)),
            Some(Reply::NotFound) => Ok(None),
            Some(Reply::Refused(why)) => Err(refused(why, ItemStatus::Moved)),
            Some(Reply::Done(_) | Reply::Exists { .. }) | None => Err(ItemStatus::Moved),
        }
    }
}

/// The answer to a get, with the client's room for each value.
pub(super) fn outcome<'r>(
    values: Vec<Value>,
    room: impl IntoIterator<Item = &'r u32>,
) -> GetOutcome {
    let mut out = GetOutcome::default();
    for (value, room) in values.into_iter().zip(room) {
        out.items.push(match value {
            Err(item) => item,
            Ok((value, crc)) => {
                let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
                if len > *room {
                    no_value(ItemStatus::TooLong, len)
                } else {
                    out.values.push(value);
                    GetItem { status: ItemStatus::Ok, len, crc, pool_offset: 0 }
                }
            }
        });
    }
    out
}
