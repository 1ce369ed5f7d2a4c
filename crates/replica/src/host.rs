//! All replicas of this node: made and ended according to routing, ticked, leased, reported.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use millpond_chain::{Envelope, Event};
use millpond_engine::{Cursor, EngineStats};
use millpond_env::{Handle, RealClock, sleep, spawn};
use millpond_types::cluster::{
    Chain, ChainId, ConfigRecord, DiskId, DiskReport, Grant, News, NodeId, Routing, TargetId,
    TargetReport, TargetState,
};
use millpond_types::limits::CHAIN_TICK_MS;
use millpond_types::wire::{NamespaceTableReply, PlacedChunk};
use millpond_types::{BlockKey, ByteSize, ChunkId, ChunkIds, GroupId, NamespaceInfo, Tick};
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::attrs::{self, Stored, TargetRecord, engine_id, staged_id};
use super::blob::Blob;
use super::blocks::{DamagedChunks, Engine};
use super::evict::{self, share_of_excess};
use super::hosted::{DiskHealth, Hosted, Surroundings, grant_longest};
use super::image::Image;
use super::kv::Standing;
use super::links::Links;
use super::moving::Movers;
use super::quota::{QuotaChanges, Quotas};
use super::relay::Asks;
use super::sole::{MARK_FILE, SoleMark};
use super::store::Store;
use millpond_control::member::{Targets, TargetsReport};

/// Chunks handled at a time while a disk is read in at the start.
const SCAN_PAGE: usize = 4096;
/// Chunks removed at a time from a target that left its chain.
const WIPE_PAGE: usize = 256;
/// Bytes per second that a node sends, or receives, to bring targets up to date, until it learns
/// the cluster's setting.
const RESYNC_RATE: u64 = ByteSize::mib(256).0;
/// Share of a disk, in per mille, that must be left for it to take more updates: the updates under
/// way must still fit.
const ROOM_MIN: u64 = 20;
/// Free segments that must be left as well: a segment holds one size of slabs, so an update under
/// way may find no slab of its size on one replica although there is room for other sizes. It
/// cannot be taken back there, and the replica would have to leave the chain.
pub(super) const ROOM_SEGMENTS: u64 = 2;

/// A disk with targets that a host looks after.
#[derive(Clone, Debug)]
pub struct HostDisk {
    /// Its identity.
    pub id: DiskId,
    /// Its chunk store.
    pub engine: Engine,
    /// Chunks that the engine found damaged.
    pub damaged: DamagedChunks,
    /// This process has formatted it: no earlier process had replicas there.
    pub is_new: bool,
    /// Whether an earlier process can have granted leases for its replicas.
    pub sole: Arc<SoleMark>,
}

impl HostDisk {
    /// Whether no earlier process has granted a lease that may be valid.
    fn is_free_of_grants(&self) -> bool {
        self.is_new || self.sole.is_set()
    }
}

/// Settings of a host.
#[derive(Debug)]
pub struct HostOptions {
    /// This node.
    pub node: NodeId,
    /// Its disks.
    pub disks: Vec<HostDisk>,
    /// The cores that replicas run on.
    pub cores: Vec<Handle>,
    /// The credential that other nodes require; empty for none.
    pub token: Vec<u8>,
    /// Whether blocks may be stored as their own leaders although requests name other leaders, as
    /// blocks of a server of an earlier version are.
    pub own_leaders: bool,
}

#[derive(Debug, Default)]
struct Replicas {
    by_target: HashMap<TargetId, Arc<Hosted>>,
    by_chain: HashMap<ChainId, Vec<Arc<Hosted>>>,
}

/// Contents of the disks at the start that no target has taken over yet.
#[derive(Debug, Default)]
struct Found {
    /// By disk and target.
    images: HashMap<(usize, TargetId), Image>,
    records: HashMap<TargetId, (usize, TargetRecord)>,
    /// End of replicas of this process with targets that may come back.
    ended: HashMap<TargetId, Tick>,
}

/// All replicas of this node.
pub struct Host {
    pub(super) node: NodeId,
    pub(super) disks: Vec<HostDisk>,
    /// From this time on no earlier process acts for its replicas.
    started: Tick,
    /// By disk: when the earlier processes of its replicas were over, [`Tick::default`] when none of
    /// them can have granted a lease.
    since: Vec<Tick>,
    pub(super) own_leaders: bool,
    /// Set while old chunks make room for new puts of their values: nothing else needs room then,
    /// and no shortage of now will last.
    pub(super) takes_over: AtomicBool,
    cores: Vec<Handle>,
    replicas: RwLock<Replicas>,
    found: parking_lot::Mutex<Found>,
    news: RwLock<Arc<News>>,
    pub(super) around: Arc<Surroundings>,
    pub(super) asks: Asks,
    pub(super) movers: Movers,
    resync_rate: AtomicU64,
    receivers: RwLock<Arc<HashMap<ChainId, u64>>>,
    /// Set when this process stops: its report that nothing serves here is not taken back.
    leaving: AtomicBool,
    /// Namespaces with blocks to be removed.
    dropped: RwLock<HashSet<GroupId>>,
    /// Numbers the host's own updates.
    pub(super) sequence: AtomicU64,
    /// Blocks evicted to make room, since the start.
    pub(super) evicted: AtomicU64,
    /// Chunks that heads of this node are removing of their own accord.
    pub(super) removing: AtomicUsize,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Host {
    /// Notes that values of a server of an earlier version are being put again, or no longer are.
    pub fn take_over(&self, on: bool) {
        self.takes_over.store(on, Ordering::Release);
    }

    fn health(&self, stats: &EngineStats) -> DiskHealth {
        match health(stats) {
            DiskHealth::Full if self.takes_over.load(Ordering::Acquire) => DiskHealth::Room,
            health => health,
        }
    }

    /// Reads the chains' data on the disks. Nothing serves before routing orders it.
    pub async fn open(options: HostOptions) -> Arc<Self> {
        let HostOptions { node, disks, cores, token, own_leaders } = options;
        let mut found = Found::default();
        for (index, disk) in disks.iter().enumerate() {
            read_in(index, &disk.engine, &mut found).await;
        }
        let links = Links::new(node, token, cores.clone());
        let around = Surroundings {
            links,
            changed: Arc::default(),
            quotas: Quotas::default(),
            ids: OnceLock::new(),
            refused: AtomicU64::new(0),
        };
        // Unique in every life of this node: the chain has one lane for all its heads.
        let sequence = AtomicU64::new(RealClock::wall_ms() << 20);
        let started = RealClock::tick();
        let over =
            |disk: &HostDisk| if disk.is_free_of_grants() { Tick::default() } else { started };
        let host = Arc::new(Self {
            node,
            since: disks.iter().map(over).collect(),
            disks,
            started,
            own_leaders,
            takes_over: AtomicBool::new(false),
            cores,
            replicas: RwLock::default(),
            found: parking_lot::Mutex::new(found),
            news: RwLock::default(),
            around: Arc::new(around),
            asks: Asks::default(),
            movers: Movers::default(),
            resync_rate: AtomicU64::new(RESYNC_RATE),
            receivers: RwLock::default(),
            leaving: AtomicBool::new(false),
            dropped: RwLock::default(),
            sequence,
            evicted: AtomicU64::default(),
            removing: AtomicUsize::default(),
        });
        host.around.links.deliver_to(&host);
        for (lane, core) in host.cores.iter().enumerate() {
            let host = Arc::downgrade(&host);
            let _core_gone = core.spawn_on(move || async move {
                while let Some(host) = host.upgrade() {
                    host.tick(lane);
                    drop(host);
                    sleep(Duration::from_millis(CHAIN_TICK_MS)).await;
                }
            });
        }
        for disk in 0..host.disks.len() {
            let (core, host) = (disk % host.cores.len(), Arc::downgrade(&host));
            if let Some(all) = host.upgrade() {
                let _core_gone = all.cores[core].spawn_on(move || evict::run(host, disk));
            }
        }
        host
    }

    /// Notes the cluster's secret, received when the manager admitted this node. It never changes.
    fn admitted(&self, ids: ChunkIds) {
        let known = *self.around.ids.get_or_init(|| ids);
        assert!(known == ids, "the secret of a cluster changed");
    }

    /// The newest routing.
    #[must_use]
    pub fn routing(&self) -> Arc<Routing> {
        Arc::clone(&self.news.read().routing)
    }

    /// The newest routing, and the history of its changes.
    pub(super) fn news(&self) -> Arc<News> {
        Arc::clone(&self.news.read())
    }

    /// The chunk id of a block.
    pub(crate) fn block_id(&self, group: GroupId, key: &BlockKey) -> ChunkId {
        self.around.ids().block(group, key)
    }

    /// Cores that replicas run on.
    pub(super) fn lanes(&self) -> usize {
        self.cores.len()
    }

    /// Bytes per second that this node may send to bring other replicas up to date.
    pub(super) fn rate(&self) -> u64 {
        self.resync_rate.load(Ordering::Relaxed)
    }

    /// This node's replicas of a chain: mostly one, which costs no allocation.
    pub(super) fn replicas_of(&self, chain: ChainId) -> impl Iterator<Item = Arc<Hosted>> + use<> {
        let replicas = self.replicas.read();
        let all = replicas.by_chain.get(&chain).map_or(&[][..], Vec::as_slice);
        let rest: Vec<Arc<Hosted>> = all.get(1..).unwrap_or_default().to_vec();
        all.first().cloned().into_iter().chain(rest)
    }

    /// The replica with this target.
    pub(super) fn replica(&self, target: TargetId) -> Option<Arc<Hosted>> {
        self.replicas.read().by_target.get(&target).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Hosted>> {
        self.replicas.read().by_target.values().cloned().collect()
    }

    /// Waits until the engines show all that was acknowledged so far, even from memory.
    pub(super) async fn settled(&self) {
        for hosted in self.all() {
            hosted.settled().await;
        }
    }

    /// Namespaces with blocks to be removed.
    pub(super) fn dropped(&self) -> HashSet<GroupId> {
        self.dropped.read().clone()
    }

    /// Ends the links to other nodes; no replica serves any more.
    pub fn close(&self) {
        self.around.links.close();
    }

    /// Counts a message of another node that was refused before any replica saw it.
    pub fn note_refused(&self) {
        self.around.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages of other nodes that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.around.refused.load(Ordering::Relaxed)
    }

    /// Delivers a message from another replica.
    pub fn deliver(&self, envelope: Envelope<Blob>) {
        let Envelope { from, to, chain, peer } = envelope;
        if let Some(hosted) = self.replica(to).filter(|hosted| hosted.chain == chain) {
            hosted.peer(from, peer);
        }
    }

    /// Handles a chunk that the scrubber of a disk, or a read, found damaged: another replica has
    /// it.
    fn repair(&self, disk: usize, id: ChunkId) {
        let attrs = self.disks[disk].engine.attrs(id);
        let Some(version) = attrs.as_deref().and_then(attrs::version) else { return };
        if version.staged {
            return;
        }
        if let Some(hosted) = self.replica(version.target).filter(|hosted| hosted.disk == disk) {
            hosted.step(Event::Damaged(engine_id(version.target, id)));
        }
    }

    fn tick(self: &Arc<Self>, lane: usize) {
        let all = self.all();
        let mine = all.iter().filter(|hosted| hosted.target.0 as usize % self.cores.len() == lane);
        let sources = all.iter().filter(|hosted| hosted.is_source()).count().max(1) as u64;
        let receivers = Arc::clone(&self.receivers.read());
        // Divided by the number of streams that this node sends, or that the other node receives if
        // that is larger.
        let budget = |hosted: &Hosted| {
            let streams = receivers.get(&hosted.chain).map_or(sources, |many| sources.max(*many));
            self.rate() * CHAIN_TICK_MS / 1000 / streams
        };
        let space = |(index, disk): (usize, &HostDisk)| {
            let stats = disk.engine.stats();
            (self.health(&stats), share_of_excess(self, index, (&stats, &all)))
        };
        let space: Vec<(DiskHealth, u64)> = self.disks.iter().enumerate().map(space).collect();
        let disks = self.disks.iter().enumerate();
        for (disk, damaged) in disks.filter(|(disk, _)| disk % self.cores.len() == lane) {
            for id in damaged.damaged.take() {
                self.repair(disk, id);
            }
        }
        for hosted in mine {
            hosted.tick(budget(hosted), space[hosted.disk]);
        }
        self.move_slots(lane);
        let grants_over = RealClock::tick() >= self.started.plus(grant_longest());
        for disk in self.disks.iter().filter(|disk| grants_over || disk.is_new) {
            disk.sole.set();
        }
    }

    /// Whether this node's replicas may learn that they have peers.
    fn may_have_peers(&self) -> bool {
        self.disks.iter().all(|disk| match disk.sole.end() {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(
                    "{}: {error}: no replica of this node gets a peer until the file can be removed",
                    MARK_FILE
                );
                false
            }
        })
    }

    /// Makes this node's replicas match routing.
    fn apply(self: &Arc<Self>, routing: &Arc<Routing>) {
        let addresses: HashMap<NodeId, Vec<String>> =
            routing.nodes.values().map(|node| (node.id, node.addresses.clone())).collect();
        self.around.links.set_addresses(addresses);
        *self.receivers.write() = Arc::new(receivers(routing));
        let before = self.news();
        *self.news.write() = Arc::new(before.after(routing));
        self.quotas().routing(routing, self.node);
        let mut mine = HashSet::new();
        let is_ours = |chain: &&Chain| chain.targets.iter().any(|member| member.node == self.node);
        let has_peers = |chain: &Chain| chain.targets.len() > 1;
        let shares = routing.chains.values().filter(is_ours).any(has_peers);
        let may_share = !shares || self.may_have_peers();
        for chain in routing.chains.values().filter(|chain| may_share || !has_peers(chain)) {
            for member in chain.targets.iter().filter(|member| member.node == self.node) {
                let Some(disk) = self.disks.iter().position(|disk| disk.id == member.disk) else {
                    continue;
                };
                mine.insert(member.target);
                let hosted = self.hosted(chain, member.target, disk);
                if self.leaving.load(Ordering::Relaxed) {
                    hosted.retire(true);
                }
                hosted.routing(chain);
            }
        }
        let gone: Vec<Arc<Hosted>> = {
            let replicas = self.replicas.read();
            let all = replicas.by_target.values();
            all.filter(|hosted| !mine.contains(&hosted.target)).cloned().collect()
        };
        for hosted in gone {
            self.end(routing, &hosted);
        }
        self.take_back(&before.routing, routing);
        self.wipe_unknown(routing);
    }

    /// Takes the manager's answer to the heartbeat that left at `sent`.
    fn grant(&self, sent: Tick, retire: &HashSet<TargetId>) {
        // The answer was on its way, or waited for its routing, when the stop began.
        if self.leaving.load(Ordering::Relaxed) {
            return;
        }
        for hosted in self.all() {
            hosted.retire(retire.contains(&hosted.target));
            let version = hosted.state().view.version;
            hosted.step(Event::Lease { sent, version });
        }
    }

    /// Stops all targets from serving.
    fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        for hosted in self.all() {
            hosted.retire(true);
        }
    }

    /// Counts the replicas of this node that serve, and those that will by `routing`: those it
    /// calls serving, and the only ones of their chains.
    pub fn readiness(&self, routing: &Routing) -> (usize, usize) {
        let (mut serving, mut waiting) = (0, 0);
        for chain in routing.chains.values() {
            let is_only = chain.targets.len() == 1;
            for member in chain.targets.iter().filter(|member| member.node == self.node) {
                if self.replica(member.target).is_some_and(|hosted| hosted.serves()) {
                    serving += 1;
                } else if is_only || member.state == TargetState::Serving {
                    waiting += 1;
                }
            }
        }
        (serving, waiting)
    }

    fn hosted(&self, chain: &Chain, target: TargetId, disk: usize) -> Arc<Hosted> {
        if let Some(known) = self.replica(target) {
            return known;
        }
        let (image, ended) = {
            let mut found = self.found.lock();
            let ended = found.ended.remove(&target);
            let mut image = found.images.remove(&(disk, target)).unwrap_or_default();
            if let Some((_, record)) = found.records.remove(&target) {
                image.saved = record.saved;
            }
            (image, ended)
        };
        let store = Store { engine: self.disks[disk].engine.clone(), chain: chain.id, target };
        let since = ended.unwrap_or(self.since[disk]);
        let hosted = Hosted::new(store, (disk, image), since, Arc::clone(&self.around));
        let mut replicas = self.replicas.write();
        replicas.by_target.insert(target, Arc::clone(&hosted));
        replicas.by_chain.entry(chain.id).or_default().push(Arc::clone(&hosted));
        hosted
    }

    /// Ends a replica that is no longer a member of its chain: its chunks are removed.
    fn end(&self, routing: &Routing, hosted: &Arc<Hosted>) {
        match routing.chains.get(&hosted.chain) {
            Some(chain) => hosted.routing(chain),
            None => hosted.retire(true),
        }
        let mut replicas = self.replicas.write();
        replicas.by_target.remove(&hosted.target);
        if let Some(of_chain) = replicas.by_chain.get_mut(&hosted.chain) {
            of_chain.retain(|other| other.target != hosted.target);
        }
        drop(replicas);
        let image = hosted.end_of_membership();
        self.found.lock().ended.insert(hosted.target, RealClock::tick());
        let record =
            TargetRecord { chain: hosted.chain, target: hosted.target, saved: image.saved };
        if !has_left(routing, &record) {
            let mut found = self.found.lock();
            found.images.insert((hosted.disk, hosted.target), image);
            found.records.insert(hosted.target, (hosted.disk, record));
            return;
        }
        tracing::info!(chain = hosted.chain.0, target = hosted.target.0, "replica left its chain");
        spawn(wipe(hosted.store.clone(), image)).detach();
    }

    /// Removes the chunks of targets that left their chains while this node was away.
    fn wipe_unknown(&self, routing: &Routing) {
        let members: HashSet<TargetId> = {
            let all = routing.chains.values().flat_map(|chain| &chain.targets);
            all.filter(|member| member.node == self.node).map(|member| member.target).collect()
        };
        let mut found = self.found.lock();
        let gone: Vec<(usize, TargetRecord)> = {
            let unknown = found.images.keys().filter(|(_, target)| !members.contains(target));
            let records = unknown.filter_map(|(_, target)| found.records.get(target));
            records.filter(|(_, record)| has_left(routing, record)).copied().collect()
        };
        for (disk, record) in gone {
            let (chain, target) = (record.chain, record.target);
            let Some(image) = found.images.remove(&(disk, target)) else { continue };
            let store = Store { engine: self.disks[disk].engine.clone(), chain, target };
            tracing::info!(target = target.0, "removing the rest of a moved replica");
            spawn(wipe(store, image)).detach();
        }
    }

    /// Whether a replica here may answer for a chunk by itself now.
    pub fn reads_here(&self, at: PlacedChunk) -> bool {
        let mut replicas = self.replicas_of(at.chain);
        replicas.any(|it| it.standing(self.around.ids().file(at.chunk)) == Standing::Committed)
    }

    /// A core to run reads on, chosen by `number`.
    pub fn core(&self, number: usize) -> &Handle {
        &self.cores[number % self.cores.len()]
    }

    /// Runs `work` on a core, since replicas live on cores, and waits for it.
    fn on_core(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let (sender, receiver) = mpsc::channel();
        let host = Arc::clone(self);
        let posted = self.cores[0].spawn_on(move || async move {
            work(&host);
            let _gone = sender.send(());
        });
        if posted.is_ok() {
            let _core_gone = receiver.recv();
        }
    }
}

#[cfg(test)]
impl Host {
    /// Same as [`HostTargets::routing`], from a core.
    pub(super) fn apply_now(self: &Arc<Self>, routing: &Arc<Routing>) {
        self.apply(routing);
    }

    /// Same as [`HostTargets::leave`], from a core.
    pub(super) fn leave_now(&self) {
        self.leave();
    }

    /// Same as [`HostTargets::granted`], from a core.
    pub(super) fn grant_now(&self, sent: Tick, grant: &Grant) {
        self.grant(sent, &grant.retire.iter().copied().collect());
    }
}

/// The member's interface to the host; every call is carried out on a core.
#[derive(Clone, Debug)]
pub struct HostTargets(pub Arc<Host>);

impl Targets for HostTargets {
    fn admitted(&self, ids: ChunkIds) {
        self.0.admitted(ids);
    }

    fn routing(&self, routing: &Arc<Routing>) {
        let routing = Arc::clone(routing);
        self.0.on_core(move |host| host.apply(&routing));
    }

    fn granted(&self, sent: Tick, grant: &Grant) {
        let retire: HashSet<TargetId> = grant.retire.iter().copied().collect();
        self.0.quotas().granted(grant.routing, &grant.quotas);
        self.0.on_core(move |host| {
            host.grant(sent, &retire);
        });
    }

    fn report(&self) -> TargetsReport {
        let host = &self.0;
        let mut report = TargetsReport {
            slots_done: host.movers.done(),
            slots_moved: host.movers.moved(),
            quotas: host.quotas().report(),
            ..TargetsReport::default()
        };
        for hosted in host.all() {
            let Some((local, used_bytes)) = hosted.report() else { continue };
            report.targets.push(TargetReport {
                target: local.target,
                chain: local.chain,
                at: local.version,
                local: local.state,
                used_bytes,
                behind_bytes: 0,
            });
        }
        for (index, disk) in host.disks.iter().enumerate() {
            let stats = disk.engine.stats();
            // A disk is reported as failed only once its targets have stopped.
            let all = host.all();
            let mut on_it = all.iter().filter(|hosted| hosted.disk == index);
            let failed = stats.read_only && on_it.all(|hosted| hosted.is_stopped());
            report.disks.push(DiskReport {
                disk: disk.id,
                capacity_bytes: stats.usable_bytes,
                used_bytes: stats.used_bytes,
                healthy: !failed,
            });
        }
        report
    }

    fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.0.around.changed)
    }

    fn leave(&self) {
        self.0.on_core(|host| host.leave());
    }

    fn namespaces(&self, table: &NamespaceTableReply) {
        *self.0.dropped.write() = table.dropping.iter().copied().collect();
        self.0.take_quotas(table);
    }

    fn config(&self, config: &ConfigRecord) {
        let set = millpond_cluster::manager::setting(config, "rebalance.bytes_per_second");
        let rate = set.and_then(|text| text.parse::<ByteSize>().ok()).map(|size| size.0);
        // A value that does not parse was set by a newer version.
        self.0.resync_rate.store(rate.unwrap_or(RESYNC_RATE), Ordering::Relaxed);
    }
}

/// Whether a target that is no member has left its chain for good. Routing may be older than the
/// chain version of the target's last action, if it comes from a manager that is cut off or from a
/// store that was restored. A chain absent from it is younger.
fn has_left(routing: &Routing, record: &TargetRecord) -> bool {
    routing.chains.get(&record.chain).is_some_and(|chain| chain.version > record.saved)
}

/// For each chain with a syncing replica: the number of syncing replicas on that replica's node.
fn receivers(routing: &Routing) -> HashMap<ChainId, u64> {
    let syncing = |chain: &Chain| {
        let mut all = chain.targets.iter();
        all.find(|member| member.state == TargetState::Syncing).map(|member| member.node)
    };
    let filled: Vec<(ChainId, NodeId)> =
        routing.chains.values().filter_map(|chain| Some((chain.id, syncing(chain)?))).collect();
    let mut on_node: HashMap<NodeId, u64> = HashMap::new();
    for (_, node) in &filled {
        *on_node.entry(*node).or_default() += 1;
    }
    filled.into_iter().map(|(chain, node)| (chain, on_node[&node])).collect()
}

fn health(stats: &EngineStats) -> DiskHealth {
    let left = stats.room_bytes.saturating_sub(stats.used_bytes);
    if stats.read_only {
        return DiskHealth::Failed;
    }
    let room = left > stats.room_bytes / 1000 * ROOM_MIN
        && stats.free_segments >= ROOM_SEGMENTS
        && stats.index_bytes < stats.index_bytes_max;
    if room { DiskHealth::Room } else { DiskHealth::Full }
}

/// Reads the chains' data on a disk.
async fn read_in(disk: usize, engine: &Engine, found: &mut Found) {
    let mut cursor = Cursor::default();
    loop {
        let (page, next) = engine.scan(None, cursor, SCAN_PAGE);
        for (info, attrs) in page {
            match attrs::decode(&attrs) {
                Ok(Stored::Version(version)) => {
                    let image = found.images.entry((disk, version.target)).or_default();
                    if version.staged {
                        image.staged.insert(engine_id(version.target, staged_id(info.id)));
                        continue;
                    }
                    let chunk = engine_id(version.target, info.id);
                    image.committed.insert(chunk);
                    image.used_bytes += u64::from(info.len);
                    image.counted.found(info.group, info.len);
                    if version.tombstone {
                        image.tombstones.insert(chunk);
                    }
                    if info.lost {
                        image.lost.insert(chunk);
                    }
                }
                Ok(Stored::Target(record)) => {
                    found.records.insert(record.target, (disk, record));
                }
                // Blocks of a server that stood alone, or its namespace table.
                Err(_) => {}
            }
        }
        let Some(next) = next else { return };
        cursor = next;
        millpond_env::yield_now().await;
    }
}

/// Removes the chunks of a target.
async fn wipe(store: Store, image: Image) {
    let staged = image.staged.into_iter().map(|chunk| store.staged(chunk));
    let committed = image.committed.into_iter().map(|chunk| store.id(chunk));
    let mut ids: Vec<ChunkId> = committed.chain(staged).collect();
    ids.push(TargetRecord::id(store.target));
    for page in ids.chunks(WIPE_PAGE) {
        if store.forget(page).await.is_err() {
            return;
        }
        millpond_env::yield_now().await;
    }
}

impl Host {
    /// Applies the quotas of namespaces from now on.
    fn take_quotas(self: &Arc<Self>, table: &NamespaceTableReply) {
        let holds = |group| self.disks.iter().any(|disk| disk.engine.group_usage(group).chunks > 0);
        let QuotaChanges { any, made, ended } = self.quotas().namespaces(table, holds);
        if !any {
            return;
        }
        let evicts = |info: &&NamespaceInfo| info.options.evict && made.contains(&info.id);
        let own: Vec<GroupId> =
            table.namespaces.iter().filter(evicts).map(|info| info.id).collect();
        for (index, disk) in self.disks.iter().enumerate() {
            // Not on this thread: for new quotas it looks at every chunk of the disk.
            let (engine, own, ended) = (disk.engine.clone(), own.clone(), ended.clone());
            let core = &self.cores[index % self.cores.len()];
            let _core_gone = core.spawn_on(move || async move {
                engine.track_groups(&own);
                for group in ended {
                    engine.forget_group(group);
                }
            });
        }
        self.around.changed.notify_one();
    }

    /// The links to other nodes, for their counters.
    pub(super) fn links(&self) -> &Links {
        &self.around.links
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::Uuid128;
    use millpond_types::cluster::{ChainTarget, ChainVersion};

    use super::{
        Chain, ChainId, DiskHealth, DiskId, EngineStats, NodeId, Routing, TargetId, TargetState,
        health, receivers,
    };

    #[test]
    fn streams_to_one_node_share_what_it_receives() {
        let uuid = |n| Uuid128([n; 16]);
        let chain = |id: u32, to: u8, state| {
            let member = |node: u8, state| ChainTarget {
                target: TargetId(id * 10 + u32::from(node)),
                disk: DiskId(uuid(node)),
                node: NodeId(uuid(node)),
                state,
            };
            let targets = vec![member(1, TargetState::Serving), member(to, state)];
            (ChainId(id), Chain { id: ChainId(id), version: ChainVersion(1), targets })
        };
        let chains = [
            chain(1, 2, TargetState::Syncing),
            chain(2, 2, TargetState::Syncing),
            chain(3, 3, TargetState::Syncing),
            chain(4, 2, TargetState::Waiting),
            chain(5, 2, TargetState::Serving),
        ];
        let routing = Routing { chains: chains.into(), ..Routing::default() };
        let expected = [(ChainId(1), 2), (ChainId(2), 2), (ChainId(3), 1)];
        assert_eq!(receivers(&routing), expected.into());
    }

    #[test]
    fn a_disk_has_room_for_every_size_or_none() {
        let stats = EngineStats {
            room_bytes: 1 << 30,
            used_bytes: 1 << 29,
            free_segments: 2,
            index_bytes: 99,
            index_bytes_max: 100,
            ..EngineStats::default()
        };
        assert_eq!(health(&stats), DiskHealth::Room);
        assert_eq!(health(&EngineStats { free_segments: 1, ..stats }), DiskHealth::Full);
        assert_eq!(health(&EngineStats { index_bytes: 100, ..stats }), DiskHealth::Full);
        let used_bytes = (1 << 30) - (1 << 24);
        assert_eq!(health(&EngineStats { used_bytes, ..stats }), DiskHealth::Full);
        assert_eq!(health(&EngineStats { read_only: true, ..stats }), DiskHealth::Failed);
    }
}
