//! A namespace at its quota: gives up its own blocks, nobody else's, and none it promised to keep.

use millpond_types::wire::{
    ItemStatus, NamespaceSet, NamespacesReply, StatsReply, StatsRequest, Verb,
};
use millpond_types::{Ack, BlockKey, ByteSize, GroupId, NamespaceOptions, Priority};

use super::harness::{TestServer, until};
use super::wire::{Wire, bytes, key};

const LEN: usize = 64 << 10;

fn options(blocks: u64) -> NamespaceOptions {
    NamespaceOptions { quota: ByteSize(blocks * LEN as u64), ..NamespaceOptions::default() }
}

fn name(id: u64) -> BlockKey {
    key(format!("block {id}"))
}

fn put(wire: &mut Wire, ns: GroupId, ids: std::ops::Range<u64>) -> Vec<ItemStatus> {
    let values: Vec<_> = ids.map(|id| (name(id), bytes(id + 1, LEN))).collect();
    wire.put(ns, &values.iter().map(|(k, v)| (*k, &v[..])).collect::<Vec<_>>())
}

/// How many of the blocks are there; those that are hold the right bytes.
fn held(wire: &mut Wire, ns: GroupId, ids: std::ops::Range<u64>) -> usize {
    let names: Vec<_> = ids.clone().map(name).collect();
    let found = wire.get(ns, &names);
    for (id, value) in ids.zip(&found) {
        assert!(value.as_ref().is_none_or(|value| *value == bytes(id + 1, LEN)), "{id}");
    }
    found.iter().flatten().count()
}

fn stat(wire: &mut Wire, ns: GroupId, wanted: &str) -> u64 {
    let reply = wire.call(Verb::Stats, &StatsRequest { namespace: ns }.encode(), &[]).unwrap().ok();
    let values = StatsReply::decode(&reply.meta).unwrap().values;
    values.into_iter().find(|(name, _)| name == wanted).unwrap().1
}

#[test]
fn an_evicting_namespace_gives_up_its_own_blocks() {
    for ack in [Ack::Memory, Ack::Disk] {
        let folder = tempfile::tempdir().unwrap();
        let second = folder.path().join("second").display().to_string();
        let disks: &[&str] = if ack == Ack::Memory { &["--data", &second] } else { &[] };
        let server = TestServer::start(folder.path(), disks);
        let mut wire = Wire::connect(&server);
        // Of a lower priority than the one at its quota: the quota is no reason to take from it.
        let low = NamespaceOptions { priority: Priority::Low, ..NamespaceOptions::default() };
        let other = wire.open("other", low).id;
        put(&mut wire, other, 0..50);
        let ns = wire.open("small", NamespaceOptions { ack, ..options(100) }).id;
        let mut stored = 0;
        for from in (0..1000).step_by(20) {
            let statuses = put(&mut wire, ns, from..from + 20);
            assert!(statuses.iter().all(|status| *status == ItemStatus::Ok), "{statuses:?}");
            stored += statuses.len() as u64;
            // What is given up goes through its chain, and is gone a moment later.
            until("the quota is kept", || stat(&mut wire, ns, "bytes") <= 100 * LEN as u64);
        }
        assert!(stat(&mut wire, ns, "keys") >= 95, "no more is evicted than needed");
        assert_eq!(stat(&mut wire, ns, "evicted"), stored - stat(&mut wire, ns, "keys"));
        assert_eq!(server.metric("millpond_namespace_evictions_total{namespace=\"other\"}"), 0);
        // What is being written behind may not go, and two disks are not filled alike: so not there.
        if ack == Ack::Disk {
            assert!(held(&mut wire, ns, 900..1000) >= 95, "the oldest go");
        }
        assert_eq!(held(&mut wire, other, 0..50), 50);
        let kept = held(&mut wire, ns, 0..1000);
        server.stop();

        let server = TestServer::start(folder.path(), disks);
        let mut wire = Wire::connect(&server);
        assert_eq!(held(&mut wire, ns, 0..1000), kept, "what was evicted stays away");
        assert_eq!(held(&mut wire, other, 0..50), 50);
        assert!(put(&mut wire, ns, 2000..2040).iter().all(|status| *status == ItemStatus::Ok));
        until("it goes on so", || stat(&mut wire, ns, "bytes") <= 100 * LEN as u64);
    }
}

#[test]
fn what_is_read_stays_longer() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("small", options(100)).id;
    put(&mut wire, ns, 0..20);
    for from in (100..400).step_by(10) {
        assert_eq!(held(&mut wire, ns, 0..20), 20, "at {from}");
        put(&mut wire, ns, from..from + 10);
    }
}

/// Options change in place: what is stored stays, counters go on, and a smaller quota is kept at once.
#[test]
fn a_quota_grows_shrinks_and_goes_away_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let set = |wire: &mut Wire, set: NamespaceSet| {
        let set = NamespaceSet { name: "small".to_owned(), ..set };
        let reply = wire.call(Verb::NamespaceSet, &set.encode(), &[]).unwrap().ok();
        NamespacesReply::decode(&reply.meta).unwrap().namespaces.pop().unwrap()
    };
    let quota =
        |blocks| NamespaceSet { quota: Some(options(blocks).quota), ..NamespaceSet::default() };
    let ns = wire.open("small", options(0)).id;
    put(&mut wire, ns, 0..100);
    assert_eq!(set(&mut wire, quota(200)).id, ns);
    assert!(put(&mut wire, ns, 100..180).iter().all(|status| *status == ItemStatus::Ok));
    assert_eq!(held(&mut wire, ns, 0..180), 180, "nothing goes that the quota has room for");
    let stored = stat(&mut wire, ns, "stored");
    assert_eq!(stored, 180);
    set(&mut wire, quota(50));
    until("the smaller quota is kept", || {
        put(&mut wire, ns, 200..202);
        stat(&mut wire, ns, "bytes") <= 50 * LEN as u64
    });
    assert!(stat(&mut wire, ns, "evicted") >= 130, "counters go on");
    let rest = NamespaceSet { ttl_seconds: Some(1), priority: Some(Priority::High), ..quota(0) };
    let changed = set(&mut wire, rest).options;
    assert_eq!((changed.ttl_seconds, changed.priority), (1, Priority::High));
    put(&mut wire, ns, 300..400);
    assert!(stat(&mut wire, ns, "bytes") > 50 * LEN as u64, "no quota any more");
    until("what is stored from now on expires", || held(&mut wire, ns, 300..400) == 0);
    assert!(held(&mut wire, ns, 0..202) > 0, "what was stored before does not");
    server.stop();
    let server = TestServer::start(folder.path(), &[]);
    assert_eq!(Wire::connect(&server).open("small", options(0)).options, changed, "it is durable");
}

#[test]
fn only_when_nothing_can_go_is_the_quota_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("small", options(10)).id;
    put(&mut wire, ns, 0..10);
    let names: Vec<_> = (0..10).map(name).collect();

    let large = bytes(1, 10 * LEN + 1);
    assert_eq!(wire.put(ns, &[(key("large"), &large)]), [ItemStatus::Quota]);
    assert_eq!(held(&mut wire, ns, 0..10), 10, "what cannot fit costs nothing");

    wire.keys(Verb::Pin, ns, &names[..6]);
    assert_eq!(wire.match_prefix(ns, &names, 600_000).leased, 10);
    assert_eq!(put(&mut wire, ns, 10..11), [ItemStatus::Quota], "pinned and leased");
    assert_eq!(stat(&mut wire, ns, "over_quota"), 2);
    wire.keys(Verb::Delete, ns, &names[9..]);
    assert_eq!(put(&mut wire, ns, 10..11), [ItemStatus::Ok]);
    // A block that is being written behind makes no room.
    until("block 10 can go", || {
        let statuses = put(&mut wire, ns, 11..13);
        statuses[0] == ItemStatus::Ok
    });
    assert_eq!(held(&mut wire, ns, 0..9), 9);

    let kept = NamespaceOptions { evict: false, ..options(10) };
    let ns = wire.open("kept", kept).id;
    let statuses = put(&mut wire, ns, 0..12);
    assert_eq!(statuses.iter().filter(|status| **status == ItemStatus::Ok).count(), 10);
    assert_eq!(statuses[10..], [ItemStatus::Quota; 2]);
    assert_eq!(held(&mut wire, ns, 0..10), 10);
}
