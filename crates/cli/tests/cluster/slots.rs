//! Slots that move between chains while clients use their keys.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millpond_client::{Client, ClientOptions, GetOutcome, Keys, Room, Value};
use millpond_control::admin::{Answer, Command as Admin, decode_answer, encode_command};
use millpond_types::cluster::{ChainId, NodeId, Routing, SlotPlace};
use millpond_types::wire::{ItemStatus, KeyInfo, Leaders, NamespaceOpen, Verb};
use serde_json::Value as Json;

use millpond_types::{Ack, BlockKey, NamespaceInfo, NamespaceOptions, SlotId, placement};

use crate::metrics::{metrics, value as number};
use crate::process::{Cluster, Process, until};

/// Bytes of a value: some pieces of a checksum, so that a move takes a while.
const VALUE_BYTES: usize = 100_000;

fn key(n: usize) -> BlockKey {
    BlockKey::new(format!("slot/{n}").as_bytes()).unwrap()
}

fn value(n: usize) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(n % 251).unwrap(); VALUE_BYTES];
    bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
    bytes
}

/// A namespace whose keys here all have one leader, so that they share a slot.
struct Store {
    client: Client,
    namespace: NamespaceInfo,
}

impl Store {
    fn open(cluster: &Cluster) -> Self {
        let addresses: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
        let mut options = ClientOptions::new(addresses.join(",").parse().unwrap());
        options.deadline = Duration::from_secs(20);
        let client = Client::new(options).unwrap();
        let options =
            NamespaceOptions { ack: Ack::Disk, evict: false, ..NamespaceOptions::default() };
        let open = NamespaceOpen { name: "slots".to_owned(), create: true, options };
        let namespace = client.open_namespace(&open, None).unwrap();
        Self { client, namespace }
    }

    fn slot(&self) -> SlotId {
        placement::slot(self.namespace.id, &key(0))
    }

    fn with<T>(&self, ns: &[usize], work: impl FnOnce(Keys<'_>) -> T) -> T {
        let keys: Vec<BlockKey> = ns.iter().map(|n| key(*n)).collect();
        let leaders = Leaders::Each(vec![key(0); keys.len()]);
        work(Keys {
            namespace: self.namespace.id,
            node: self.client.node().unwrap(),
            run_blocks: self.namespace.options.run_blocks,
            keys: &keys,
            leaders: &leaders,
        })
    }

    fn on(&self, verb: Verb, n: usize) -> ItemStatus {
        self.with(&[n], |keys| self.client.on_keys(verb, keys, None)).unwrap()[0]
    }

    fn put(&self, n: usize) -> ItemStatus {
        let bytes = value(n);
        let values = [Value::One(&bytes)];
        self.with(&[n], |keys| self.client.put(keys, &values, None)).unwrap()[0]
    }

    fn list(&self) -> Vec<KeyInfo> {
        let (mut listed, mut cursor) = (Vec::new(), 0);
        loop {
            let page = self.client.list(self.namespace.id, b"", cursor, None).unwrap();
            listed.extend(page.keys);
            cursor = page.cursor;
            if cursor == 0 {
                return listed;
            }
        }
    }

    /// Whether the key is there; its bytes are checked.
    fn has(&self, n: usize) -> bool {
        let mut bytes = vec![0; VALUE_BYTES];
        let mut rooms = [Room::One(&mut bytes)];
        let outcome = self.with(&[n], |keys| self.client.get(keys, &mut rooms, None)).unwrap();
        match outcome[0] {
            GetOutcome::Read(_) => {
                assert!(bytes == value(n), "other bytes under key {n}");
                true
            }
            GetOutcome::Miss => false,
            other => panic!("key {n}: {other:?}"),
        }
    }
}

fn ask(node: &Process, command: &Admin) -> Answer {
    let reply = node.wire().call(Verb::Admin, &encode_command(command), Duration::from_secs(5));
    decode_answer(&reply.unwrap()).unwrap()
}

/// Where the slot is by the routing of a node.
fn place(cluster: &Cluster, slot: SlotId) -> SlotPlace {
    routing(cluster).place(slot)
}

pub(crate) fn move_slot(cluster: &Cluster, slot: SlotId, chain: u32) {
    let answer = ask(&cluster.nodes[0], &Admin::MoveSlot { slot: slot.0, chain });
    assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
}

pub(crate) fn moved(cluster: &Cluster) -> Duration {
    until("the slot has moved", || match ask(&cluster.nodes[0], &Admin::Slots {}) {
        Answer::Slots { moving } => moving.is_empty().then_some(()),
        _ => None,
    })
    .1
}

#[test]
fn a_hit_stays_a_hit_while_its_slot_moves_there_and_back() {
    let cluster = Cluster::start(3, 2);
    let store = Store::open(&cluster);
    let keys = 200;
    for n in 0..keys {
        assert_eq!(store.put(n), ItemStatus::Ok);
    }
    assert_eq!(store.on(Verb::Pin, 7), ItemStatus::Ok);
    let (ended, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (ended, reads) = (&ended, &reads);
            let store = Store::open(&cluster);
            scope.spawn(move || {
                for n in (reader..keys).step_by(3).cycle() {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    assert!(store.has(n), "key {n} is missed");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let home = place(&cluster, store.slot()).chain.0;
        for chain in [home % 256 + 1, (home + 77) % 256 + 1, home] {
            move_slot(&cluster, store.slot(), chain);
            // While it moves, what is there is not stored again, and what is not, is.
            assert_eq!(store.put(3), ItemStatus::Exists);
            let took = moved(&cluster);
            assert_eq!(place(&cluster, store.slot()).chain.0, chain);
            let read = reads.swap(0, Ordering::Relaxed);
            eprintln!("{keys} chunks went to chain {chain} in {took:?}, read {read} times");
            assert!(read > 0);
        }
        ended.store(true, Ordering::Relaxed);
    });
    for n in 0..keys {
        assert!(store.has(n), "key {n} is lost");
    }
    // The chain that the slot left and came back to takes updates again.
    assert_eq!(store.put(keys), ItemStatus::Ok);
    assert_eq!(store.on(Verb::Delete, keys), ItemStatus::Ok);
    let listed = store.list();
    assert_eq!(listed.len(), keys, "no copy is left behind");
    let pinned: Vec<BlockKey> =
        listed.iter().filter(|info| info.pinned).map(|info| info.key).collect();
    assert_eq!(pinned, [key(7)], "pins came along");
}

/// What `millpond admin --json` prints.
fn cli(cluster: &Cluster, command: &str) -> Json {
    let output = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["admin", "--json", "--server", &cluster.nodes[0].address, command])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The sum of a series over the nodes.
fn sum(cluster: &Cluster, series: &str) -> u64 {
    cluster.nodes.iter().map(|node| number(&metrics(&node.http), series)).sum()
}

#[test]
fn it_is_told_how_far_a_slot_is_while_a_node_joins() {
    let mut cluster = Cluster::watched(3, 2);
    let store = Store::open(&cluster);
    let keys = 200;
    for n in 0..keys {
        assert_eq!(store.put(n), ItemStatus::Ok);
    }
    // 20 MB in some 7 s.
    let set =
        Admin::Set { name: "rebalance.bytes_per_second".to_owned(), value: "3MiB".to_owned() };
    assert!(matches!(ask(&cluster.nodes[0], &set), Answer::Done { .. }));
    let slots = cli(&cluster, "slots");
    assert_eq!((&slots["moving"], &slots["totals"]["chunks"]), (&Json::Array(vec![]), &0.into()));
    let home = place(&cluster, store.slot()).chain.0;
    move_slot(&cluster, store.slot(), home % 256 + 1);
    cluster.add();
    // The new node may become the head of the old chain meanwhile, and begin anew.
    let (mut chunks, mut grew, mut through, mut longest, mut shown) = (0, 0, 0, None, 0);
    until("the slot has moved", || {
        let (slots, status) = (cli(&cluster, "slots"), cli(&cluster, "status"));
        let Some(it) = slots["moving"].get(0) else { return Some(()) };
        assert_eq!((&it["slot"], &it["to"]), (&store.slot().0.into(), &(home % 256 + 1).into()));
        through = through.max(it["through"].as_u64().unwrap_or(0));
        let totals = &status["slots"];
        let now = totals["chunks"].as_u64().unwrap();
        assert!(now >= chunks && now >= it["chunks"].as_u64().unwrap(), "{status} after {chunks}");
        grew += usize::from(now > chunks);
        chunks = now;
        longest = longest.max(totals["seconds_left"].as_u64());
        shown |= sum(&cluster, "millpond_slot_moves");
        shown |= number(&metrics(&cluster.manager.http), "millpond_cluster_slots_moving") << 1;
        // Every look takes ports, of which other tests need some again.
        std::thread::sleep(Duration::from_millis(200));
        None
    });
    assert!(grew > 3, "chunks are seen to go: {grew}");
    assert!((500..=1000).contains(&through), "{through} thousandths");
    assert!(longest.is_some_and(|seconds| seconds < 60), "when it ends is told: {longest:?}");
    assert_eq!(shown, 3, "the old chain's head and the manager show the slot");
    let (least, bytes) = (keys as u64, (keys * VALUE_BYTES) as u64);
    until("all is told", || {
        let slots = cli(&cluster, "slots");
        assert_eq!(slots["moving"], Json::Array(vec![]));
        let totals = &slots["totals"];
        let all = totals["chunks"].as_u64()? >= least && totals["bytes"].as_u64()? >= bytes;
        all.then_some(())
    });
    assert_eq!(cli(&cluster, "status")["progress"]["slots_running"], 0);
    assert!(sum(&cluster, "millpond_slot_moved_chunks_total") >= least);
    assert!(sum(&cluster, "millpond_slot_moved_bytes_total") >= bytes);
    until("no node moves a slot", || (sum(&cluster, "millpond_slot_moves") == 0).then_some(()));
}

/// The routing of a node.
pub(crate) fn routing(cluster: &Cluster) -> Routing {
    let mut copy = Routing::default();
    cluster.nodes[0].wire().follow(&mut copy, Duration::from_secs(5));
    copy
}

/// The nodes that serve a chain, head first.
fn members(routing: &Routing, chain: u32) -> Vec<NodeId> {
    routing.chains[&ChainId(chain)].serving().map(|member| member.node).collect()
}

/// Bytes under a lease on a node.
fn leased(cluster: &Cluster, node: NodeId) -> u64 {
    let address = &routing(cluster).nodes[&node].addresses[0];
    let process = cluster.nodes.iter().find(|process| process.address == *address).unwrap();
    let page = metrics(&process.http);
    let disks = page.lines().filter(|line| line.starts_with("millpond_disk_leased_bytes{"));
    disks.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn leases_and_pins_follow_a_slot_from_wherever_they_were_taken() {
    let cluster = Cluster::watched(3, 2);
    let store = Store::open(&cluster);
    let keys = 200;
    for n in 0..keys {
        assert_eq!(store.put(n), ItemStatus::Ok);
    }
    let set =
        Admin::Set { name: "rebalance.bytes_per_second".to_owned(), value: "6MiB".to_owned() };
    assert!(matches!(ask(&cluster.nodes[0], &set), Answer::Done { .. }));
    let length = |ns: &[usize]| u32::try_from(ns.len()).unwrap();
    let matched = |store: &Store, ns: &[usize]| {
        let reply = store.with(ns, |keys| store.client.match_prefix(keys, 60_000, None)).unwrap();
        assert_eq!((reply.matched, reply.leased), (length(ns), length(ns)), "{ns:?}");
    };
    // First to a chain whose head is a replica below at the old one: it serves both, and who asks it
    // for the one is answered from the other.
    let home = place(&cluster, store.slot()).chain.0;
    let chains = routing(&cluster);
    let below = members(&chains, home)[1];
    let beside = (1..=256).find(|chain| members(&chains, *chain)[0] == below).unwrap();
    move_slot(&cluster, store.slot(), beside);
    let before: Vec<usize> = (0..20).collect();
    matched(&store, &before);
    let slow = std::thread::scope(|scope| {
        let pins = scope.spawn(|| {
            let store = Store::open(&cluster);
            for n in (0..keys).step_by(10) {
                assert_eq!(store.on(Verb::Pin, n), ItemStatus::Ok, "key {n}");
            }
        });
        let leases = scope.spawn(|| {
            let store = Store::open(&cluster);
            for n in 20..keys {
                matched(&store, &[n]);
            }
            place(&cluster, store.slot()).old.is_some()
        });
        pins.join().unwrap();
        leases.join().unwrap()
    });
    assert!(slow, "all of it happened while the slot moved");
    moved(&cluster);
    let held = (keys * VALUE_BYTES) as u64;
    assert_eq!(leased(&cluster, below), held, "all leases came along");
    // Then on, with nobody asking.
    let other = (beside + 1..=256).find(|chain| members(&chains, *chain)[0] != below).unwrap();
    move_slot(&cluster, store.slot(), other);
    moved(&cluster);
    assert_eq!(leased(&cluster, members(&chains, other)[0]), held, "and went on");
    let listed = store.list();
    let pinned = listed.iter().filter(|info| info.pinned).count();
    assert_eq!((listed.len(), pinned), (keys, keys / 10), "pins came along");
}

#[test]
fn updates_go_on_while_their_slot_moves_and_a_delete_stays_one() {
    let cluster = Cluster::start(3, 2);
    let store = Store::open(&cluster);
    let keys = 240;
    for n in 0..keys {
        assert_eq!(store.put(n), ItemStatus::Ok);
    }
    let home = place(&cluster, store.slot()).chain.0;
    move_slot(&cluster, store.slot(), home % 256 + 1);
    std::thread::scope(|scope| {
        // Each its own keys: what a thread did last is what it must see.
        for writer in 0..3 {
            let store = Store::open(&cluster);
            scope.spawn(move || {
                for n in (writer..keys).step_by(3) {
                    match n % 4 {
                        0 => {
                            assert_eq!(store.on(Verb::Delete, n), ItemStatus::Ok, "key {n}");
                            assert!(!store.has(n), "key {n} is back");
                            assert_eq!(store.put(n), ItemStatus::Ok, "key {n} anew");
                            assert!(store.has(n), "key {n} anew");
                        }
                        1 => {
                            assert_eq!(store.on(Verb::Delete, n), ItemStatus::Ok, "key {n}");
                            assert!(!store.has(n), "key {n} is back");
                        }
                        2 => {
                            assert_eq!(store.put(n + 1000), ItemStatus::Ok, "key {n}");
                            assert_eq!(store.put(n + 1000), ItemStatus::Exists, "key {n}");
                        }
                        _ => assert_eq!(store.put(n), ItemStatus::Exists, "key {n}"),
                    }
                }
            });
        }
    });
    moved(&cluster);
    for n in 0..keys {
        assert_eq!(store.has(n), n % 4 != 1, "key {n}");
        assert_eq!(store.has(n + 1000), n % 4 == 2, "key {}", n + 1000);
    }
}

#[test]
fn a_slot_arrives_although_the_heads_of_both_chains_die() {
    let mut cluster = Cluster::start(4, 2);
    let store = Store::open(&cluster);
    let keys = 150;
    for n in 0..keys {
        assert_eq!(store.put(n), ItemStatus::Ok);
    }
    let home = place(&cluster, store.slot()).chain.0;
    move_slot(&cluster, store.slot(), home % 256 + 1);
    for node in 0..4 {
        cluster.nodes[node].kill();
        for n in (node..keys).step_by(7) {
            assert!(store.has(n), "key {n} is missed");
        }
        cluster.nodes[node].run();
        until("all chains are whole", || {
            let status = cluster.nodes[(node + 1) % 4].status()?;
            (status.chains_whole == 256).then_some(())
        });
    }
    moved(&cluster);
    for n in 0..keys {
        assert!(store.has(n), "key {n} is lost");
    }
}

#[test]
fn a_move_that_makes_no_sense_is_refused_by_name() {
    let cluster = Cluster::start(2, 2);
    let refuse =
        |slot, chain, why: &str| match ask(&cluster.nodes[0], &Admin::MoveSlot { slot, chain }) {
            Answer::Refused { text } => assert!(text.contains(why), "{text}"),
            other => panic!("{other:?}"),
        };
    refuse(5, 100_000, "no chain 100000");
    refuse(5, place(&cluster, SlotId(5)).chain.0, "already");
}
