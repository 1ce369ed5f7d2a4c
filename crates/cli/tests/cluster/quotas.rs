//! Quotas of namespaces over nodes: kept by all together, also when one of them dies.

use std::time::Duration;

use millpond_client::{Client, ClientOptions, GetOutcome, Keys, Room, Value};
use millpond_types::wire::{ItemStatus, Leaders, NamespaceOpen, NamespaceSet};
use millpond_types::{BlockKey, ByteSize, NamespaceInfo, NamespaceOptions};

use crate::process::{Cluster, until};

const LEN: usize = 100_000;
/// Values that fit the quota.
const FIT: usize = 480;
/// Values put at once.
const BATCH: usize = 8;

fn key(n: usize) -> BlockKey {
    BlockKey::new(format!("quota/{n}").as_bytes()).unwrap()
}

fn value(n: usize) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(n % 251).unwrap(); LEN];
    bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
    bytes
}

struct Store<'c> {
    client: &'c Client,
    namespace: NamespaceInfo,
}

impl<'c> Store<'c> {
    fn open(client: &'c Client, name: &str, evict: bool) -> Self {
        let quota = ByteSize((FIT * LEN) as u64);
        let options = NamespaceOptions { replicas: 2, quota, evict, ..NamespaceOptions::default() };
        let open = NamespaceOpen { name: name.to_owned(), create: true, options };
        Self { client, namespace: client.open_namespace(&open, None).unwrap() }
    }

    fn with<T>(&self, ns: &[usize], work: impl FnOnce(Keys<'_>) -> T) -> T {
        let keys: Vec<BlockKey> = ns.iter().map(|n| key(*n)).collect();
        work(Keys {
            namespace: self.namespace.id,
            node: self.client.node().unwrap(),
            run_blocks: self.namespace.options.run_blocks,
            keys: &keys,
            leaders: &Leaders::Own,
        })
    }

    fn put(&self, ns: &[usize]) -> Vec<ItemStatus> {
        let bytes: Vec<Vec<u8>> = ns.iter().map(|n| value(*n)).collect();
        let values: Vec<Value<'_>> = bytes.iter().map(|bytes| Value::One(bytes)).collect();
        self.with(ns, |keys| self.client.put(keys, &values, None)).unwrap()
    }

    /// How many of the values are there; their bytes are checked.
    fn held(&self, ns: impl Iterator<Item = usize>) -> usize {
        let mut held = 0;
        for n in ns {
            let mut bytes = vec![0; LEN];
            let mut rooms = [Room::One(&mut bytes)];
            let outcome = self.with(&[n], |keys| self.client.get(keys, &mut rooms, None)).unwrap();
            if let GetOutcome::Read(_) = outcome[0] {
                assert!(bytes == value(n), "other bytes under key {n}");
                held += 1;
            }
        }
        held
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = self.client.stats(self.namespace.id, None).unwrap();
        stats.into_iter().find(|(found, _)| found == name).unwrap().1
    }

    /// Values that count against the quota, on all nodes together.
    fn used(&self) -> usize {
        usize::try_from(self.stat("quota_used_bytes")).unwrap() / LEN
    }

    /// Puts all; how many were stored, and the most that were ever counted.
    fn fill(&self, ns: std::ops::Range<usize>, mut look: impl FnMut(&[ItemStatus])) -> usize {
        let mut most = 0;
        for (round, from) in ns.clone().step_by(BATCH).enumerate() {
            let batch: Vec<usize> = (from..(from + BATCH).min(ns.end)).collect();
            look(&self.put(&batch));
            if round % 8 == 0 {
                most = most.max(self.used());
            }
        }
        most
    }
}

fn client(cluster: &Cluster) -> Client {
    let addresses: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let mut options = ClientOptions::new(addresses.join(",").parse().unwrap());
    options.deadline = Duration::from_secs(20);
    Client::new(options).unwrap()
}

#[test]
fn a_namespace_that_evicts_stays_within_its_quota_and_keeps_the_newest() {
    let mut cluster = Cluster::start(3, 2);
    let client = client(&cluster);
    let store = Store::open(&client, "small", true);
    let stored = |statuses: &[ItemStatus]| {
        assert!(statuses.iter().all(|status| *status == ItemStatus::Ok), "{statuses:?}");
    };
    // What is on its way out, a sixteenth or some values of every node, and what is in flight.
    let margin = FIT / 16 + 3 * 4 + BATCH;
    let most = store.fill(0..3 * FIT, stored);
    assert!(most <= FIT + margin, "{most} of {FIT}");
    assert!(most >= FIT * 8 / 10, "{most} of {FIT}: the quota is made use of");
    // Few are looked at: what is read stays longer than what is new.
    let newest = store.held((3 * FIT - 200..3 * FIT).step_by(10));
    assert!(newest >= 17, "{newest} of 20 of the newest");
    assert!(store.stat("evicted") >= (2 * FIT - margin) as u64);
    let oldest = store.held(0..100);
    assert!(oldest <= 10, "{oldest} of the oldest 100");

    cluster.nodes[2].kill();
    store.fill(3 * FIT..5 * FIT, stored);
    until("the quota again", || (store.used() <= FIT).then_some(()));
    let newest = store.held(5 * FIT - 200..5 * FIT);
    assert!(newest >= 170, "{newest} of the newest 200");
    let held = store.held(0..5 * FIT);
    assert!((FIT * 8 / 10..=FIT + margin).contains(&held), "{held} of {FIT}");
}

/// A quota that is set, halved and taken away while the cluster runs holds on every node.
#[test]
fn a_quota_that_changes_in_place_holds_on_every_node() {
    let cluster = Cluster::start(3, 2);
    let client = client(&cluster);
    let store = Store::open(&client, "small", true);
    let set = |values: usize| {
        let quota = Some(ByteSize((values * LEN) as u64));
        let set = NamespaceSet { name: "small".to_owned(), quota, ..NamespaceSet::default() };
        let changed = client.set_namespace(&set, None).unwrap();
        assert_eq!(changed.id, store.namespace.id);
    };
    store.fill(0..FIT * 3 / 4, |_| ());
    set(FIT / 2);
    until("half the quota", || {
        store.put(&[FIT]);
        (store.used() <= FIT / 2 + 1).then_some(())
    });
    set(2 * FIT);
    store.fill(2 * FIT..3 * FIT, |_| ());
    assert!(store.used() > FIT, "twice the quota is made use of");
    set(0);
    store.fill(4 * FIT..6 * FIT, |_| ());
    let held = store.held((4 * FIT..6 * FIT).step_by(20));
    assert_eq!(held, FIT / 10, "nothing goes without a quota");
}

#[test]
fn a_namespace_that_does_not_evict_never_holds_more_than_its_quota() {
    let mut cluster = Cluster::start(3, 2);
    let client = client(&cluster);
    let store = Store::open(&client, "kept", false);
    let (mut stored, mut refused) = (0, 0);
    let mut look = |statuses: &[ItemStatus]| {
        for status in statuses {
            match status {
                ItemStatus::Ok => stored += 1,
                ItemStatus::Quota => refused += 1,
                // Until the first answer of a manager, and after a change of heads.
                ItemStatus::Busy => {}
                other => panic!("{other:?}"),
            }
        }
    };
    store.fill(0..3 * FIT, &mut look);
    // What is left is shared out with the heartbeats.
    until("the room is used", || {
        store.fill(3 * FIT..4 * FIT, &mut look);
        (store.used() + 3 >= FIT).then_some(())
    });
    let held = store.held(0..4 * FIT);
    assert!(held <= FIT, "{held} held of {FIT}");
    // A commit may wait for the disk after its answer.
    until("all that is held counts", || (store.used() == held).then_some(()));
    cluster.nodes[0].kill();
    store.fill(4 * FIT..6 * FIT, &mut look);
    let held = store.held(0..6 * FIT);
    assert!(refused > 0, "{stored} stored");
    assert!(held <= FIT, "{held} of {FIT}");
    assert!(held + 3 >= FIT, "{held} of {FIT}: nothing was evicted");
    assert_eq!(store.stat("evicted"), 0);
}
