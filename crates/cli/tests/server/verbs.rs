//! What the verbs do, over a socket.

use std::collections::BTreeSet;

use millpond_types::wire::{
    GetReply, GetRequest, ItemStatus, Leaders, ListReply, ListRequest, NamespaceRef,
    NamespacesReply, Planned, PutItem, PutRequest, StatsReply, StatsRequest, Status, StatusReply,
    Verb,
};
use millpond_types::{ByteSize, Crc32c, GroupId, NamespaceOptions};

use super::harness::TestServer;
use super::wire::{Wire, bytes, get_request, key, keys_request};

#[test]
fn values_come_back_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    for len in [0, 1, 4095, 4096, 4097, 65_536, 1 << 20, 5_000_001] {
        let value = bytes(len as u64 + 1, len);
        let name = key(format!("len {len}"));
        assert_eq!(wire.put(ns, &[(name, &value)]), [ItemStatus::Ok], "{len}");
        assert_eq!(wire.get(ns, &[name]), [Some(value)], "{len}");
    }
    server.stop();
}

#[test]
fn the_first_value_wins_and_batches_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let all: Vec<_> = (0..300u64).map(|i| (key(format!("k{i}")), bytes(i + 1, 4096))).collect();
    let pairs: Vec<_> = all.iter().map(|(k, v)| (*k, &v[..])).collect();
    assert!(wire.put(ns, &pairs[..200]).iter().all(|s| *s == ItemStatus::Ok));
    let other = bytes(99, 50);
    let mixed = [(pairs[0].0, &other[..]), (pairs[250].0, pairs[250].1), (pairs[1].0, &other)];
    assert_eq!(wire.put(ns, &mixed), [ItemStatus::Exists, ItemStatus::Ok, ItemStatus::Exists]);
    let keys: Vec<_> = all.iter().map(|(k, _)| *k).collect();
    for (index, value) in wire.get(ns, &keys).into_iter().enumerate() {
        let expected = (index < 200 || index == 250).then(|| all[index].1.clone());
        assert_eq!(value, expected, "{index}");
    }
    assert_eq!(wire.match_prefix(ns, &keys, 1000).matched, 200);
    assert_eq!(wire.match_prefix(ns, &keys, 1000).leased, 200);
    assert_eq!(wire.match_prefix(ns, &keys[250..], 0).matched, 1);
    // A node of a cluster is asked for the runs it has, which need not be the leading ones.
    let (ok, exists, miss) = (ItemStatus::Ok, ItemStatus::Exists, ItemStatus::Miss);
    assert_eq!(wire.match_each(ns, &keys[249..252], 1000), [miss, ok, miss]);
    assert_eq!(wire.match_each(ns, &keys[198..201], 0), [exists, exists, miss]);
    assert_eq!(wire.keys(Verb::Contains, ns, &keys[199..201]), [ItemStatus::Ok, ItemStatus::Miss]);
    for verb in [Verb::Touch, Verb::Pin, Verb::Unpin, Verb::Delete] {
        let statuses = wire.keys(verb, ns, &keys[199..201]);
        assert_eq!(statuses, [ItemStatus::Ok, ItemStatus::Miss], "{verb:?}");
    }
    assert_eq!(wire.get(ns, &keys[199..200]), [None]);
    server.stop();
}

#[test]
fn a_longer_value_than_the_room_is_told_and_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let keys = vec![key("a"), key("b")];
    wire.put(ns, &[(keys[0], &bytes(1, 100)), (keys[1], &bytes(2, 10))]);
    let request = GetRequest {
        namespace: ns,
        planned: Planned::default(),
        keys,
        room: vec![99, 10],
        leaders: Leaders::Own,
    };
    let reply = wire.call(Verb::Get, &request.encode(), &[]).unwrap().ok();
    let items = GetReply::decode(&reply.meta).unwrap().items;
    assert_eq!((items[0].status, items[0].len), (ItemStatus::TooLong, 100));
    assert_eq!(items[1].status, ItemStatus::Ok);
    assert_eq!(reply.payload, bytes(2, 10));
}

#[test]
fn damaged_bytes_are_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let request = PutRequest {
        namespace: ns,
        planned: Planned::default(),
        arena_offset: 0,
        keys: vec![key("bad"), key("good")],
        items: vec![
            PutItem { len: 3, crc: Crc32c(1) },
            PutItem { len: 3, crc: Crc32c::of(b"def") },
        ],
        leaders: Leaders::Own,
        tags: None,
    };
    let reply = wire.call(Verb::Put, &request.encode(), b"abcdef").unwrap().ok();
    let items = StatusReply::decode(&reply.meta).unwrap().items;
    assert_eq!(items, [ItemStatus::Corrupt, ItemStatus::Ok]);
    assert_eq!(wire.get(ns, &[key("bad"), key("good")]), [None, Some(b"def".to_vec())]);
}

#[test]
fn namespaces_are_apart_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let quota = ByteSize::mib(1);
    let quota = NamespaceOptions { quota, evict: false, ..NamespaceOptions::default() };
    let (a, b) = (wire.open("a", quota), wire.open("b", NamespaceOptions::default()));
    wire.put(a.id, &[(key("k"), b"of a")]);
    assert_eq!(wire.get(b.id, &[key("k")]), [None]);
    wire.put(b.id, &[(key("k"), b"of b")]);
    let big = bytes(1, 1 << 20);
    assert_eq!(wire.put(a.id, &[(key("big"), &big)]), [ItemStatus::Quota]);
    server.stop();

    // Values acknowledged from memory survive a clean stop as well.
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let reply = wire.call(Verb::NamespaceList, &[], &[]).unwrap().ok();
    assert_eq!(NamespacesReply::decode(&reply.meta).unwrap().namespaces, [a.clone(), b.clone()]);
    assert_eq!(wire.get(a.id, &[key("k")]), [Some(b"of a".to_vec())]);
    let name = NamespaceRef { name: "a".to_owned() };
    wire.call(Verb::NamespaceDrop, &name.encode(), &[]).unwrap().ok();
    let reply = wire.call(Verb::Get, &get_request(a.id, &[key("k")]), &[]).unwrap();
    assert_eq!(reply.status, Status::NoNamespace);
    let again = wire.open("a", NamespaceOptions::default());
    assert_ne!(again.id, a.id, "ids are never used twice");
    assert_eq!(wire.get(again.id, &[key("k")]), [None]);
    assert_eq!(wire.get(b.id, &[key("k")]), [Some(b"of b".to_vec())]);
    server.stop();
}

/// Keys of two namespaces that differ as the namespaces' numbers do once had one chunk: the second put was
/// answered `Exists` and stored nothing.
#[test]
fn alike_keys_of_two_namespaces_are_two_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let namespaces = ["one", "two", "three"].map(|n| wire.open(n, NamespaceOptions::default()).id);
    let names: Vec<_> = (0..3000).map(|n| key(format!("{n}"))).collect();
    for ns in namespaces {
        let values: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
        for part in values.chunks(500) {
            let stored = wire.put(ns, part);
            assert!(stored.iter().all(|status| *status == ItemStatus::Ok), "{ns:?}: {stored:?}");
        }
    }
    for ns in namespaces {
        let found = wire.get(ns, &names);
        assert!(found.iter().zip(&names).all(|(v, name)| v.as_deref() == Some(name.as_bytes())));
    }
}

#[test]
fn keys_are_listed_in_pages_over_all_disks() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("second").display().to_string();
    let server = TestServer::start(folder.path(), &["--data", &second]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let names: Vec<_> = (0..250).map(|i| format!("{}/{i:03}", ["x", "y"][i % 2])).collect();
    for name in &names {
        wire.put(ns, &[(key(name), name.as_bytes())]);
    }
    let mut listed = Vec::new();
    let mut cursor = 0;
    loop {
        let request = ListRequest { namespace: ns, prefix: b"x/".to_vec(), cursor, limit: 40 };
        let reply = wire.call(Verb::List, &request.encode(), &[]).unwrap().ok();
        let page = ListReply::decode(&reply.meta).unwrap();
        listed.extend(
            page.keys.iter().map(|k| String::from_utf8(k.key.as_bytes().to_vec()).unwrap()),
        );
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    listed.sort();
    let expected: Vec<_> = names.iter().filter(|n| n.starts_with('x')).cloned().collect();
    assert_eq!(listed, expected);
    let used = |disk: &str| {
        let name = format!("millpond_disk_chunks{{disk=\"{disk}\"}}");
        server.metric(&name)
    };
    assert!(used(&second) > 50, "both disks are used");
}

#[test]
fn blocks_expire() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let options = NamespaceOptions { ttl_seconds: 1, ..NamespaceOptions::default() };
    let ns = wire.open("short", options).id;
    wire.put(ns, &[(key("k"), b"v")]);
    super::harness::until("the block has expired", || wire.get(ns, &[key("k")]) == [None]);
}

#[test]
fn stats_metrics_and_health_tell_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &["--log-format", "json"]);
    assert_eq!(server.page("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.page("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(server.page("/nothing").0, 404);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    wire.put(ns, &[(key("a"), &bytes(1, 5000))]);
    wire.get(ns, &[key("a"), key("b")]);
    let reply = wire.call(Verb::Stats, &StatsRequest { namespace: ns }.encode(), &[]).unwrap().ok();
    let stats = StatsReply::decode(&reply.meta).unwrap().values;
    for (name, value) in [("keys", 1), ("bytes", 5000), ("hits", 1), ("misses", 1), ("stored", 1)] {
        assert!(stats.contains(&(name.to_owned(), value)), "{name}: {stats:?}");
    }
    let all = StatsRequest { namespace: GroupId(0) };
    wire.call(Verb::Stats, &all.encode(), &[]).unwrap().ok();
    assert_eq!(server.metric("millpond_namespace_hits_total{namespace=\"model\"}"), 1);
    assert_eq!(server.metric("millpond_request_seconds_count{verb=\"put\"}"), 1);
    assert_eq!(server.metric("millpond_receive_bytes_total"), 5000);
    assert!(server.metric("millpond_pool_used_bytes") > 0);
    let (_, info) = server.page("/v1/info");
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["namespaces"][0]["name"], "model");
    let log = server.log();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["level"], "INFO");
}

/// Names in the first column of tables.
fn named(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// `docs/metrics.md` names every metric of a server, and its first part no other.
#[test]
fn the_metrics_page_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    Wire::connect(&server).open("model", NamespaceOptions::default());
    let (_, page) = server.page("/metrics");
    let shown: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (alone, _of_a_cluster) = text.split_once("## Of the cluster").unwrap();
    let absent: Vec<_> = named(alone).difference(&shown).copied().collect();
    assert!(absent.is_empty(), "not shown: {absent:?}");
    let all = named(&text);
    let unnamed: Vec<_> = shown.iter().filter(|name| !all.contains(*name)).collect();
    assert!(unnamed.is_empty(), "not named: {unnamed:?}");
}

#[test]
fn a_request_past_its_deadline_is_answered_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let keys: Vec<_> = (0..16_000).map(|i| key(format!("{i}"))).collect();
    // Many large requests ahead on the same core make the last ones late at 1 ms.
    let meta = keys_request(ns, &keys).encode();
    let mut frames = Vec::new();
    for id in 0..100 {
        let mut frame = super::wire::frame(Verb::Contains, id, &meta, &[]);
        let mut header =
            millpond_types::wire::FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
        header.deadline_or_status = 1;
        frame[..40].copy_from_slice(&header.encode());
        frames.extend_from_slice(&frame);
    }
    let mut statuses = Vec::new();
    std::thread::scope(|scope| {
        let (mut writer, reader) = {
            let stream = std::net::TcpStream::connect(server.clients).unwrap();
            (stream.try_clone().unwrap(), stream)
        };
        let mut other = Wire::over(Box::new(reader));
        other.call(Verb::Hello, &super::wire::hello(b""), &[]).unwrap().ok();
        scope.spawn(move || std::io::Write::write_all(&mut writer, &frames).unwrap());
        for _ in 0..100 {
            statuses.push(other.receive().unwrap().status);
        }
    });
    let known = |s: &Status| matches!(s, Status::Ok | Status::DeadlineExceeded);
    assert!(statuses.iter().all(known), "{statuses:?}");
}
