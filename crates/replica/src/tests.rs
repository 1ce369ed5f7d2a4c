//! One node with several disks, so that a chain's replicas live side by side: the whole shell on
//! real engines, with the manager's table in the manager's place.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_chain::Payload as _;
use millpond_cluster::{Report, next_chain};
use millpond_engine::{Cursor, EngineOptions, FormatOptions, WriteMode, WriteRequest};
use millpond_env::{BufferPool, FileDisk, PoolOptions, RealClock, Runtime, RuntimeOptions, sleep};
use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, DiskId, Grant, LocalState, NodeId, NodeInfo,
    NodeState, QuotaLimit, Routing, RoutingVersion, SlotMap, TargetId, TargetState,
};
use millpond_types::wire::{
    GetRequest, ItemStatus, ItemTag, KeysRequest, Leaders, ListRequest, NamespaceTableReply,
    Planned, Tags,
};
use millpond_types::{
    Ack, BlockKey, ChunkId, ChunkIds, Crc32c, GroupId, NamespaceOptions, Uuid128,
};

mod collisions;
mod files;
mod quota;

use super::evict::REMOVING_MAX;
use super::sole::{MARK_FILE, SoleMark};
use super::update::Update;
use super::{DamagedChunks, Engine, Host, HostDisk, HostOptions, HostTargets};
use crate::local::Metrics;
use millpond_control::member::Targets as _;

const NODE: NodeId = NodeId(Uuid128([7; 16]));
const GROUP: GroupId = GroupId(3);
const SIZE: u64 = (64 << 10) + (32 << 20);

fn disk_id(n: usize) -> Uuid128 {
    Uuid128([u8::try_from(n + 1).unwrap(); 16])
}

fn runtime(pool: &BufferPool) -> Runtime {
    Runtime::new(RuntimeOptions { pools: vec![pool.clone()], ..RuntimeOptions::default() }).unwrap()
}

/// A node and the stand-in for its manager.
struct Node {
    host: Arc<Host>,
    targets: HostTargets,
    engines: Vec<Engine>,
    pool: BufferPool,
    chain: Chain,
    version: u64,
    /// Targets that the manager gets no reports of.
    silent: Vec<TargetId>,
    /// The manager's quota limit.
    limit: Option<u64>,
}

impl Node {
    async fn open(folder: &Path, pool: &BufferPool, core: millpond_env::Handle, n: usize) -> Self {
        let mut disks = Vec::new();
        for index in 0..n {
            let path = folder.join(format!("disk{index}"));
            let new = !path.exists();
            let disk =
                if new { FileDisk::create(&path, SIZE) } else { FileDisk::open(&path) }.unwrap();
            if new {
                let format = FormatOptions {
                    segment_bytes: millpond_types::ByteSize::mib(2),
                    ..FormatOptions::new(disk_id(index), Uuid128([9; 16]))
                };
                Engine::format(&disk, pool, format).await.unwrap();
            }
            let damaged = DamagedChunks::default();
            let noted = damaged.clone();
            let options = EngineOptions {
                own_removal: false,
                on_damaged: Some(Arc::new(move |id| noted.push(id))),
                ..EngineOptions::default()
            };
            let clock = Arc::new(RealClock);
            let engine = Engine::open(disk, pool.clone(), clock, options).await.unwrap();
            let running = engine.clone();
            millpond_env::spawn(async move { running.run_background().await }).detach();
            let (id, sole) = (DiskId(disk_id(index)), Arc::new(SoleMark::read(folder)));
            disks.push(HostDisk { id, engine, damaged, is_new: false, sole });
        }
        let engines = disks.iter().map(|disk| disk.engine.clone()).collect();
        let options = HostOptions {
            node: NODE,
            disks,
            cores: vec![core],
            token: Vec::new(),
            own_leaders: false,
        };
        let host = Host::open(options).await;
        let member = |n: usize| ChainTarget {
            target: TargetId(u32::try_from(n + 1).unwrap()),
            disk: DiskId(disk_id(n)),
            node: NODE,
            state: if n == 0 { TargetState::LastServing } else { TargetState::Offline },
        };
        let targets = (0..n).map(member).collect();
        let chain = Chain { id: ChainId(1), version: ChainVersion(1), targets };
        let targets = HostTargets(Arc::clone(&host));
        let pool = pool.clone();
        Self { host, targets, engines, pool, chain, version: 1, silent: Vec::new(), limit: None }
    }

    /// The routing that the manager would push for a chain.
    fn routing_of(&self, chain: &Chain) -> Arc<Routing> {
        let node = NodeInfo {
            id: NODE,
            addresses: Vec::new(),
            domain: String::new(),
            state: NodeState::Active,
            meta: false,
        };
        Arc::new(Routing {
            cluster: Uuid128([9; 16]),
            version: RoutingVersion(self.version),
            nodes: [(NODE, node)].into(),
            chains: [(chain.id, chain.clone())].into(),
            slots: SlotMap::all(chain.id),
            moving: BTreeMap::new(),
        })
    }

    fn apply(&self, chain: &Chain) {
        self.host.apply_now(&self.routing_of(chain));
    }

    /// One heartbeat: report, decide, push, grant.
    async fn beat(&mut self) {
        let sent = RealClock::tick();
        let report = self.targets.report();
        let heard: BTreeMap<TargetId, Report> = report
            .targets
            .iter()
            .filter(|report| !self.silent.contains(&report.target))
            .map(|said| (said.target, Report { local: said.local, at: said.at }))
            .collect();
        let reports: Vec<Report> = self
            .chain
            .targets
            .iter()
            .map(|member| heard.get(&member.target).copied().unwrap_or(Report::OFFLINE))
            .collect();
        if let Some(next) = next_chain(&self.chain, &reports) {
            self.chain = next;
            self.version += 1;
        }
        self.apply(&self.chain);
        let limit = |limit_bytes| QuotaLimit { namespace: GROUP, limit_bytes };
        let limits: Vec<QuotaLimit> = self.limit.map(limit).into_iter().collect();
        self.host.quotas().granted(RoutingVersion(self.version), &limits);
        self.host.grant_now(sent, &Grant { lease_ms: 2000, ..Grant::default() });
        sleep(Duration::from_millis(20)).await;
    }

    async fn until(&mut self, what: &str, mut done: impl FnMut(&Chain) -> bool) {
        for _ in 0..1000 {
            if done(&self.chain) {
                return;
            }
            self.beat().await;
        }
        panic!("{what} did not come: {:?}", self.chain);
    }

    async fn all_serve(&mut self) {
        let n = self.chain.targets.len();
        self.until("all replicas serving", |chain| chain.serving().count() == n).await;
        // The newest routing and a lease for it.
        self.beat().await;
    }

    async fn put(&self, key: &BlockKey, value: &[u8], sequence: u64) -> ItemStatus {
        self.put_with(key, value, sequence, Ack::Disk).await
    }

    async fn put_with(&self, key: &BlockKey, value: &[u8], sequence: u64, ack: Ack) -> ItemStatus {
        let options = NamespaceOptions { ack, ..NamespaceOptions::default() };
        self.put_under(key, value, sequence, &options).await
    }

    async fn put_under(
        &self,
        key: &BlockKey,
        value: &[u8],
        sequence: u64,
        options: &NamespaceOptions,
    ) -> ItemStatus {
        let tag =
            (5, ItemTag { channel: 0, sequence, chain: self.chain.id, issued: self.chain.version });
        let update = Update::new(GROUP, key, Some(tag));
        let bytes = self.pool.try_copy(value).unwrap().freeze();
        self.host.put((GROUP, options), update, key, (bytes, Crc32c::of(value))).await
    }

    async fn get(&self, key: &BlockKey) -> Result<Vec<u8>, ItemStatus> {
        let request = GetRequest {
            namespace: GROUP,
            planned: Planned::default(),
            keys: vec![*key],
            room: vec![u32::MAX],
            leaders: Leaders::Own,
        };
        let deadline = RealClock::tick().plus(Duration::from_secs(5));
        let outcome = self.host.get(&request, 16, (deadline, &Metrics::default())).await;
        match outcome.items[0].status {
            ItemStatus::Ok => Ok(outcome.values[0].to_vec()),
            status => Err(status),
        }
    }

    /// Whether a read returns the put value of block `n`.
    async fn holds(&self, n: u32) -> bool {
        self.get(&key(n)).await == Ok(value(n))
    }

    async fn keys(&self) -> Vec<BlockKey> {
        let request = ListRequest { namespace: GROUP, prefix: Vec::new(), cursor: 0, limit: 100 };
        self.host.list(&request).await.keys.into_iter().map(|info| info.key).collect()
    }

    async fn delete(&self, key: &BlockKey, sequence: u64) -> ItemStatus {
        let tag =
            ItemTag { channel: 0, sequence, chain: self.chain.id, issued: self.chain.version };
        let request = KeysRequest {
            namespace: GROUP,
            planned: Planned::default(),
            keys: vec![*key],
            leaders: Leaders::Own,
            tags: Some(Tags { client: 5, items: vec![tag] }),
        };
        let options = NamespaceOptions::default();
        self.host.delete_keys(&request, &options).await[0]
    }

    /// Fills a disk with chunks that no chain knows and nothing may evict.
    async fn occupy(&self, disk: usize, chunks: u32) {
        let bytes = self.pool.try_copy(&vec![9; 64 << 10]).unwrap().freeze();
        for n in 0..chunks {
            let request = WriteRequest {
                crc: Crc32c::of(&bytes),
                bytes: bytes.clone(),
                attrs: b"a stranger",
                group: GroupId::SYSTEM,
                priority: 2,
                expires: None,
                evictable: false,
                mode: WriteMode::Replace,
                ack: Ack::Disk,
            };
            self.engines[disk].write(ChunkId(n.into()), request).await.unwrap();
        }
    }

    /// Puts this many values of 64 KiB; returns the number of refusals. Like a client it waits
    /// after a refusal: otherwise a disk that stands still for a moment would refuse all puts of
    /// that moment.
    async fn put_many(&mut self, puts: u32) -> u32 {
        let (bytes, mut refused) = (vec![7; 64 << 10], 0);
        for n in 0..puts {
            if n % 4 == 0 {
                self.beat().await;
            }
            let status = self.put(&key(n), &bytes, u64::from(n) + 1).await;
            if status != ItemStatus::Ok {
                refused += 1;
                self.beat().await;
            }
        }
        // Leaving blocks go; then nothing more does.
        for _ in 0..50 {
            self.beat().await;
        }
        refused
    }

    /// The committed value of a key on a disk.
    async fn on_disk(&self, disk: usize, key: &BlockKey) -> Option<Vec<u8>> {
        let target = TargetId(u32::try_from(disk + 1).unwrap());
        let id = super::attrs::engine_id(target, ChunkIds::UNKEYED.block(GROUP, key));
        let engine = &self.engines[disk];
        let version = super::attrs::version(&engine.attrs(id)?)?;
        if version.tombstone {
            return None;
        }
        Some(engine.read(id).await.unwrap()?.bytes.to_vec())
    }
}

fn key(n: u32) -> BlockKey {
    BlockKey::new(&n.to_le_bytes()).unwrap()
}

fn value(n: u32) -> Vec<u8> {
    (0..10_000 + n * 7).map(|i| u8::try_from((i * 31 + n) % 251).unwrap()).collect()
}

/// Runs `work` on a core of its own with `n` disks in `folder`.
fn with_node<F: AsyncFnOnce(Node)>(folder: &Path, n: usize, work: F) {
    let pool = BufferPool::new(PoolOptions::new(64 << 20)).unwrap();
    let runtime = runtime(&pool);
    let core = runtime.handle();
    runtime.block_on(async { work(Node::open(folder, &pool, core, n).await).await });
}

#[test]
fn a_chain_forms_and_every_replica_holds_what_was_put() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 3, async |mut node| {
        assert_eq!(node.put(&key(1), &value(1), 1).await, ItemStatus::Behind, "no chain yet");
        node.all_serve().await;
        for n in 1..=20 {
            assert_eq!(node.put(&key(n), &value(n), u64::from(n)).await, ItemStatus::Ok);
        }
        assert_eq!(node.put(&key(1), &value(99), 50).await, ItemStatus::Exists);
        for n in 1..=20 {
            assert!(node.holds(n).await, "block {n}");
            for disk in 0..3 {
                assert!(node.on_disk(disk, &key(n)).await == Some(value(n)), "disk {disk}");
            }
        }
        assert_eq!(node.get(&key(77)).await, Err(ItemStatus::Miss));
        assert_eq!(node.delete(&key(3), 60).await, ItemStatus::Ok);
        assert_eq!(node.delete(&key(3), 60).await, ItemStatus::Ok, "a retry hears the same");
        assert_eq!(node.delete(&key(3), 61).await, ItemStatus::Miss);
        assert_eq!(node.get(&key(3)).await, Err(ItemStatus::Miss));
        for disk in 0..3 {
            assert_eq!(node.on_disk(disk, &key(3)).await, None);
        }
    });
}

/// A list includes everything acknowledged before it, even from memory.
#[test]
fn a_list_has_what_was_acknowledged_before_it() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        for n in 1..=300 {
            let put = node.put_with(&key(n), &value(n), u64::from(n) * 2, Ack::Memory).await;
            assert_eq!(put, ItemStatus::Ok);
            assert_eq!(node.keys().await, [key(n)], "put {n}");
            assert_eq!(node.delete(&key(n), u64::from(n) * 2 + 1).await, ItemStatus::Ok);
            assert_eq!(node.keys().await, [], "delete {n}");
        }
    });
}

#[test]
fn a_lost_replica_leaves_and_is_brought_up_to_date_when_it_returns() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 3, async |mut node| {
        node.all_serve().await;
        for n in 1..=10 {
            assert_eq!(node.put(&key(n), &value(n), u64::from(n)).await, ItemStatus::Ok);
        }
        let tail = node.chain.targets[2].target;
        node.silent.push(tail);
        node.until("the tail gone", |chain| chain.serving().count() == 2).await;
        assert_eq!(node.delete(&key(2), 20).await, ItemStatus::Ok);
        for n in 11..=40 {
            assert_eq!(node.put(&key(n), &value(n), u64::from(n) + 20).await, ItemStatus::Ok);
        }
        let disk = usize::try_from(tail.0 - 1).unwrap();
        assert!(node.on_disk(disk, &key(2)).await == Some(value(2)), "it has not heard");
        assert_eq!(node.on_disk(disk, &key(30)).await, None);
        node.silent.clear();
        node.all_serve().await;
        assert_eq!(node.on_disk(disk, &key(2)).await, None);
        for n in 11..=40 {
            assert!(node.on_disk(disk, &key(n)).await == Some(value(n)), "block {n}");
        }
    });
}

#[test]
fn a_replica_is_filled_with_what_was_being_committed_when_that_began() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        node.silent = vec![TargetId(2)];
        node.until("the loss noticed", |chain| chain.serving().count() == 1).await;
        assert_eq!(node.put(&key(1), &value(1), 1).await, ItemStatus::Ok);
        let source = node.host.replica(TargetId(1)).unwrap();
        let change = source.begin_change();
        node.silent.clear();
        let syncing = |chain: &Chain| chain.targets[1].state == TargetState::Syncing;
        node.until("the other one being filled", syncing).await;
        for _ in 0..20 {
            node.beat().await;
        }
        assert!(syncing(&node.chain), "it has no list to go by");
        source.end_change(change);
        node.all_serve().await;
    });
}

#[test]
fn a_node_that_stops_keeps_its_word_whatever_lease_comes_late() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        node.host.leave_now();
        for _ in 0..10 {
            // Each ends with a lease, like one that was under way when the stop began.
            node.beat().await;
            let report = node.targets.report();
            assert!(report.targets.iter().all(|said| said.local == LocalState::Offline));
        }
        assert_eq!(node.chain.serving().count(), 0);
        assert_eq!(node.chain.targets[0].state, TargetState::LastServing);
    });
}

#[test]
fn a_full_disk_gives_up_what_it_must_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        // Three times the capacity of the disks, each written over in about two seconds.
        let puts = 1000;
        let refused = node.put_many(puts).await;
        assert!(refused < puts / 50, "{refused} of {puts} puts refused");
        // Each missing block was counted, exactly once.
        let evicted = node.host.evicted_of(GROUP);
        let there = node.engines[0].group_usage(GROUP).chunks;
        assert!(
            evicted > 0 && evicted + there <= u64::from(puts),
            "{evicted} of {puts}, {there} there"
        );
        for engine in &node.engines {
            let stats = engine.stats();
            assert!(stats.used_bytes > stats.room_bytes / 3, "too much was given up: {stats:?}");
        }
        let (mut held, mut refused) = (0, BTreeMap::<String, u32>::new());
        for n in puts - 100..puts {
            if n % 10 == 0 {
                // A slow disk must not outlast the lease that reads need.
                node.beat().await;
            }
            match node.get(&key(n)).await {
                Ok(_) => held += 1,
                Err(status) => *refused.entry(format!("{status:?}")).or_default() += 1,
            }
        }
        assert!(held >= 75, "{held} of the last hundred are there, the others: {refused:?}");
    });
}

#[test]
fn a_head_makes_room_for_a_replica_whose_disk_is_fuller_than_its_own() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let tail = usize::try_from(node.chain.targets[1].target.0 - 1).unwrap();
        node.occupy(tail, 128).await;
        // More than the tail has room for, and less than the head has.
        let refused = node.put_many(240).await;
        assert!(refused < 24, "{refused} of 240 puts refused");
        let stats = node.engines[1 - tail].stats();
        assert!(stats.used_bytes < 12 << 20, "the head kept all: {stats:?}");
        assert!(stats.used_bytes > 1 << 20, "too much was given up: {stats:?}");
    });
}

#[test]
fn what_is_given_up_goes_a_part_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let blocks = 3 * REMOVING_MAX / 2;
        for n in 0..u32::try_from(blocks).unwrap() {
            if n % 500 == 0 {
                node.beat().await;
            }
            let status = node.put_with(&key(n), b"", u64::from(n) + 1, Ack::Memory).await;
            assert_eq!(status, ItemStatus::Ok);
        }
        let dropping = vec![GROUP];
        node.targets
            .namespaces(&NamespaceTableReply { dropping, ..NamespaceTableReply::default() });
        let (mut most, mut left) = (0, blocks);
        for _ in 0..1000 {
            node.beat().await;
            for _ in 0..100 {
                most = most.max(node.host.removing.load(Ordering::Relaxed));
                millpond_env::yield_now().await;
            }
            let there = node.engines[0].scan(Some(GROUP), Cursor::default(), usize::MAX).0;
            let lives = |attrs: &[u8]| super::attrs::version(attrs).is_some_and(|v| !v.tombstone);
            left = there.iter().filter(|(_, attrs)| lives(attrs)).count();
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "blocks of a dropped namespace");
        assert!((1..=REMOVING_MAX).contains(&most), "{most} at the same time");
    });
}

#[test]
fn a_put_takes_the_place_of_a_block_that_has_expired() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        // Keeps the sweep from removing it.
        node.host.removing.fetch_add(REMOVING_MAX, Ordering::Relaxed);
        let soon =
            NamespaceOptions { ttl_seconds: 1, ack: Ack::Disk, ..NamespaceOptions::default() };
        assert_eq!(node.put_under(&key(1), &value(1), 1, &soon).await, ItemStatus::Ok);
        let mut beats = 0;
        while node.get(&key(1)).await != Err(ItemStatus::Miss) {
            node.beat().await;
            beats += 1;
            assert!(beats < 1000, "it does not expire");
        }
        assert!(node.on_disk(0, &key(1)).await == Some(value(1)), "it is swept already");
        assert_eq!(node.put(&key(1), &value(2), 2).await, ItemStatus::Ok);
        assert!(node.get(&key(1)).await == Ok(value(2)));
        for disk in 0..2 {
            assert!(node.on_disk(disk, &key(1)).await == Some(value(2)), "disk {disk}");
        }
        assert_eq!(node.put(&key(1), &value(3), 3).await, ItemStatus::Exists, "it has not expired");
        node.host.removing.fetch_sub(REMOVING_MAX, Ordering::Relaxed);
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart_of_all_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::default();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        for n in 1..=30 {
            assert_eq!(node.put(&key(n), &value(n), u64::from(n)).await, ItemStatus::Ok);
        }
        assert_eq!(node.delete(&key(4), 40).await, ItemStatus::Ok);
        chain = node.chain.clone();
        // Nothing is flushed or closed: the process ends here.
    });
    with_node(folder.path(), 2, async |mut node| {
        node.chain = chain;
        node.until("the absence noticed", |chain| chain.serving().count() == 0).await;
        node.all_serve().await;
        for n in (1..=30).filter(|n| *n != 4) {
            assert!(node.holds(n).await, "block {n}");
        }
        assert_eq!(node.get(&key(4)).await, Err(ItemStatus::Miss));
    });
}

/// A process serves at once when the one before it had no chain with a peer; otherwise it waits.
#[test]
fn only_a_process_that_followed_peers_waits_for_their_grants() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join(MARK_FILE);
    let waits = |node: &Node| {
        node.apply(&node.chain);
        node.host.all().iter().any(|hosted| hosted.is_silent())
    };
    with_node(folder.path(), 1, async |mut node| {
        assert!(waits(&node), "without a mark the earlier process is unknown");
        node.all_serve().await;
        node.until("the mark", |_| mark.exists()).await;
    });
    with_node(folder.path(), 1, async |node| {
        assert!(!waits(&node));
        assert!(mark.exists());
    });
    with_node(folder.path(), 2, async |node| {
        assert!(mark.exists());
        waits(&node);
        assert!(!mark.exists(), "the chain has two replicas");
    });
    with_node(folder.path(), 1, async |node| assert!(waits(&node)));
}

#[test]
fn routing_from_before_a_target_was_made_removes_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::default();
    with_node(folder.path(), 1, async |mut node| {
        node.all_serve().await;
        while node.put(&key(1), &value(1), 1).await != ItemStatus::Ok {
            node.beat().await;
        }
        chain = node.chain.clone();
    });
    with_node(folder.path(), 1, async |mut node| {
        let elsewhere = ChainTarget { target: TargetId(99), ..chain.targets[0] };
        let elsewhere = ChainTarget { node: NodeId(Uuid128([8; 16])), ..elsewhere };
        for version in [1, chain.version.0] {
            let (version, targets) = (ChainVersion(version), vec![elsewhere]);
            node.apply(&Chain { id: chain.id, version, targets });
        }
        node.host.apply_now(&Arc::new(Routing::default()));
        sleep(Duration::from_millis(100)).await;
        node.chain = chain.clone();
        node.until("the absence noticed", |chain| chain.serving().count() == 0).await;
        node.all_serve().await;
        let not_yet = [ItemStatus::Behind, ItemStatus::Moved];
        while node.get(&key(1)).await.is_err_and(|status| not_yet.contains(&status)) {
            node.beat().await;
        }
        assert!(node.holds(1).await);
        // And now it leaves.
        let version = ChainVersion(node.chain.version.0 + 1);
        node.apply(&Chain { id: chain.id, version, targets: vec![elsewhere] });
        sleep(Duration::from_millis(100)).await;
        assert_eq!(node.engines[0].scan(None, Cursor::default(), 10).0.len(), 0);
    });
}

#[test]
fn a_blob_counts_its_bytes_as_they_arrived() {
    let pool = BufferPool::new(PoolOptions::new(1 << 20)).unwrap();
    let blob = super::Blob::arrived(pool.try_copy(b"abc").unwrap().freeze(), Arc::default());
    assert_eq!((blob.len(), blob.crc()), (3, Crc32c::of(b"abc")));
}
