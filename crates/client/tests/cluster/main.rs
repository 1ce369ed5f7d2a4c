//! Tests of the client against scripted nodes over real sockets, with failures that a real cluster
//! does not produce on demand.

#![allow(clippy::disallowed_methods, reason = "tests start threads, sockets and clocks")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod scripted;
mod silent_resolver;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use millpond_client::{Client, ClientOptions, ErrorKind, GetOutcome, Room, TransportInUse, Value};
use millpond_types::cluster::{ChainId, SlotPlace};
use millpond_types::wire::{ItemStatus, Leaders, Status, Verb};
use millpond_types::{BlockKey, GroupId, Uuid128, placement};

use scripted::{Act, CLUSTER, Cluster, GROUP, chain, keys_of, node_id};

fn names(count: usize) -> Vec<BlockKey> {
    (0..count).map(|n| BlockKey::new(format!("key-{n}").as_bytes()).unwrap()).collect()
}

/// A key with its slot on this chain.
fn on_chain(cluster: &Cluster, id: u32) -> BlockKey {
    let routing = cluster.world().routing.clone();
    let of = |key: &BlockKey| routing.place(placement::slot(GROUP, key)).chain;
    names(1000).into_iter().find(|key| of(key) == ChainId(id)).unwrap()
}

fn value(key: &BlockKey, len: usize) -> Vec<u8> {
    key.as_bytes().iter().copied().cycle().take(len).collect()
}

fn put(client: &Client, keys: &[BlockKey], len: usize) -> Vec<ItemStatus> {
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, len)).collect();
    let values: Vec<Value<'_>> = values.iter().map(|value| Value::One(value)).collect();
    client.put(keys_of(keys, &Leaders::Own), &values, None).unwrap()
}

fn get(client: &Client, keys: &[BlockKey], len: usize) -> Vec<Option<Vec<u8>>> {
    let mut memory = vec![vec![0xee; len]; keys.len()];
    let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(|room| Room::One(room)).collect();
    let outcomes = client.get(keys_of(keys, &Leaders::Own), &mut rooms, None).unwrap();
    let read = |(outcome, bytes): (GetOutcome, Vec<u8>)| {
        matches!(outcome, GetOutcome::Read(_)).then_some(bytes)
    };
    outcomes.into_iter().zip(memory).map(read).collect()
}

#[test]
fn a_batch_meets_each_node_once_and_keeps_its_order() {
    let cluster = Cluster::start(3, vec![chain(1, 1, &[1]), chain(2, 1, &[2]), chain(3, 1, &[3])]);
    let client = cluster.client();
    let keys = names(300);
    assert_eq!(put(&client, &keys[..200], 5000), [ItemStatus::Ok; 200]);
    for (verb, requests) in [
        (Verb::Put, cluster.seen()),
        (Verb::Get, {
            for (index, got) in get(&client, &keys, 5000).into_iter().enumerate() {
                assert_eq!(got, (index < 200).then(|| value(&keys[index], 5000)), "{index}");
            }
            cluster.seen()
        }),
    ] {
        let nodes: HashSet<u8> = requests.iter().map(|seen| seen.node).collect();
        assert_eq!((requests.len(), nodes.len()), (3, 3), "{verb:?}");
        assert!(requests.iter().all(|seen| seen.verb == verb));
        let asked: usize = requests.iter().map(|seen| seen.keys.len()).sum();
        assert_eq!(asked, if verb == Verb::Put { 200 } else { 300 });
    }
    let mut both = keys.clone();
    both.reverse();
    let present = client.on_keys(Verb::Contains, keys_of(&both, &Leaders::Own), None).unwrap();
    assert_eq!(present.iter().filter(|status| **status == ItemStatus::Ok).count(), 200);
    assert_eq!((present[99], present[100]), (ItemStatus::Miss, ItemStatus::Ok));
}

#[test]
fn a_batch_of_many_megabytes_passes_two_nodes() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1]), chain(2, 1, &[2])]);
    let client = cluster.client();
    let keys = names(48);
    // 96 MiB: more than sockets and windows hold, in both directions.
    assert_eq!(put(&client, &keys, 2 << 20), [ItemStatus::Ok; 48]);
    for (key, got) in keys.iter().zip(get(&client, &keys, 2 << 20)) {
        assert!(got.unwrap() == value(key, 2 << 20));
    }
}

#[test]
fn keys_that_moved_are_found_where_they_are() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1])]);
    let client = cluster.client();
    let keys = names(20);
    put(&client, &keys, 100);
    cluster.change(|routing| {
        routing.chains.insert(ChainId(1), chain(1, 2, &[2]));
    });
    cluster.seen();
    for (key, got) in keys.iter().zip(get(&client, &keys, 100)) {
        assert_eq!(got, Some(value(key, 100)));
    }
    let more: Vec<BlockKey> = names(40)[20..].to_vec();
    assert_eq!(put(&client, &more, 10), [ItemStatus::Ok; 20]);
}

#[test]
fn an_update_without_an_answer_is_tried_again_under_its_name() {
    let cluster = Cluster::start(2, vec![chain(1, 7, &[1, 2])]);
    let client = cluster.client();
    let keys = names(3);
    cluster.then(1, Act::CutAfter);
    let mut next = cluster.world().routing.clone();
    next.chains.insert(ChainId(1), chain(1, 8, &[2]));
    next.version.0 += 1;
    cluster.world().once_suspected = Some(next);
    // The first attempt stored it and its answer was lost; the scripted node does not remember
    // tags.
    assert_eq!(put(&client, &keys, 64), [ItemStatus::Exists; 3]);
    let seen = cluster.seen();
    assert_eq!((seen.first().unwrap().node, seen.last().unwrap().node), (1, 2));
    let first = &seen[0];
    for later in &seen[1..] {
        assert_eq!((&later.tags, later.client), (&first.tags, first.client));
    }
    assert!(first.client != 0 && first.tags.iter().all(|tag| tag.issued.0 == 7));
    let channels: HashSet<u32> = first.tags.iter().map(|tag| tag.channel).collect();
    assert_eq!(channels, HashSet::from([128, 129, 130]), "one update per channel, the lowest ones");
    assert_eq!(cluster.world().suspected, [(2, 1)], "the other node was told");
    // The next update reuses a channel with a later sequence.
    assert_eq!(put(&client, &names(4)[3..], 64), [ItemStatus::Ok]);
    let tag = cluster.seen()[0].tags[0];
    assert_eq!(tag.channel, 128);
    assert!(first.tags.iter().all(|before| tag.sequence > before.sequence));
}

#[test]
fn a_reply_that_breaks_off_is_read_from_another_replica() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1, 2])]);
    let client = cluster.client();
    let keys = names(10);
    put(&client, &keys, 50_000);
    for _ in 0..20 {
        cluster.then(1, Act::CutInside);
        for (key, got) in keys.iter().zip(get(&client, &keys, 50_000)) {
            assert!(got.unwrap() == value(key, 50_000));
        }
        cluster.world().acts.clear();
    }
}

#[test]
fn a_slow_replica_is_hedged_and_never_writes_to_the_caller_afterwards() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1, 2])]);
    let client = cluster.client();
    let key = names(1)[0];
    put(&client, &[key], 4096);
    let slow = Duration::from_millis(400);
    let (mut hedged, mut memory) = (0, vec![0u8; 4096]);
    for _ in 0..10 {
        for node in [1, 2] {
            cluster.world().acts.entry(node).or_default().clear();
        }
        // The node asked first is slow, and its late answer is wrong.
        cluster.then(1, Act::LateAndWrong(slow));
        cluster.seen();
        memory.fill(0xee);
        let start = Instant::now();
        let rooms = &mut [Room::One(&mut memory)];
        let got = client.get(keys_of(&[key], &Leaders::Own), rooms, None).unwrap();
        assert_eq!(got, [GetOutcome::Read(4096)]);
        assert!(start.elapsed() < slow / 2, "{:?}", start.elapsed());
        assert!(memory == value(&key, 4096));
        if cluster.seen().len() == 2 {
            hedged += 1;
            std::thread::sleep(slow + Duration::from_millis(100));
            assert!(memory == value(&key, 4096), "the loser wrote after the call");
        }
    }
    assert!(hedged > 0, "node 1 was never asked first");
}

/// A process that shares the connection, through a fork or a fault, counts the same ids and may
/// even draw the same numbers. The answer to another request is never accepted, with or without
/// checksums.
#[test]
fn a_reply_to_what_another_asked_is_never_taken() {
    let cluster = Cluster::start(1, vec![chain(1, 1, &[1])]);
    let client = cluster.client();
    let keys = names(2);
    put(&client, &keys, 4096);
    let mut memory = vec![0u8; 4096];
    for _ in 0..5 {
        cluster.then(1, Act::AnswerToOther(keys[1]));
        memory.fill(0xee);
        let rooms = &mut [Room::One(&mut memory)];
        let got = client.get(keys_of(&keys[..1], &Leaders::Own), rooms, None);
        let is_read = got.as_ref().is_ok_and(|got| matches!(got[..], [GetOutcome::Read(_)]));
        assert!(!is_read || memory == value(&keys[0], 4096), "the other's value: {got:?}");
        assert!(memory != value(&keys[1], 4096), "the other's value is in the caller's memory");
    }
    let rooms = &mut [Room::One(&mut memory)];
    assert_eq!(
        client.get(keys_of(&keys[..1], &Leaders::Own), rooms, None).unwrap(),
        [GetOutcome::Read(4096)]
    );
    assert!(memory == value(&keys[0], 4096));
}

#[test]
fn a_silent_head_is_reported_and_left_when_the_routing_says_so() {
    let cluster = Cluster::start(3, vec![chain(1, 1, &[1, 2])]);
    let client = cluster.client();
    let keys = names(2);
    assert_eq!(put(&client, &keys[..1], 10), [ItemStatus::Ok]);
    let mut next = cluster.world().routing.clone();
    next.chains.insert(ChainId(1), chain(1, 2, &[2]));
    next.version.0 += 1;
    cluster.world().once_suspected = Some(next);
    cluster.then(1, Act::Silent);
    let start = Instant::now();
    // The script does the work and stays silent, so the second attempt finds the value.
    assert_eq!(put(&client, &keys[1..], 10), [ItemStatus::Exists]);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(cluster.world().suspected.iter().all(|(by, node)| *by != 1 && *node == 1));
    let seen = cluster.seen();
    assert_eq!(seen[1].tags, seen.last().unwrap().tags);
}

#[test]
fn a_node_that_died_costs_no_error() {
    let cluster = Cluster::start(3, vec![chain(1, 1, &[1, 2]), chain(2, 1, &[2, 3])]);
    let client = Client::new(ClientOptions {
        addresses: [1, 2].map(|n| cluster.address(n)).join(",").parse().unwrap(),
        ..cluster.options()
    });
    let client = client.unwrap();
    let keys = names(100);
    put(&client, &keys, 1000);
    let mut next = cluster.world().routing.clone();
    next.chains.insert(ChainId(1), chain(1, 2, &[2]));
    next.version.0 += 1;
    cluster.world().once_suspected = Some(next);
    cluster.kill(1);
    for (key, got) in keys.iter().zip(get(&client, &keys, 1000)) {
        assert_eq!(got, Some(value(key, 1000)), "reads need no change of the routing");
    }
    let start = Instant::now();
    assert_eq!(put(&client, &keys, 10), [ItemStatus::Exists; 100]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // A client that starts now finds the cluster through its second address.
    let late = Client::new(client.options().clone()).unwrap();
    assert_eq!(get(&late, &keys[..1], 1000), [Some(value(&keys[0], 1000))]);
}

#[test]
fn a_replica_that_cannot_read_leaves_it_to_another() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1, 2])]);
    let client = cluster.client();
    let key = names(1)[0];
    put(&client, &[key], 10);
    for status in [Status::Internal, Status::Busy, Status::ReadOnly] {
        for node in [1, 2, 1, 2, 1, 2] {
            cluster.world().acts.clear();
            cluster.then(node, Act::Refuse(status));
            assert_eq!(get(&client, &[key], 10), [Some(value(&key, 10))], "{status:?}");
        }
        // Both refuse, so the call returns the refusal.
        cluster.world().acts.clear();
        cluster.then(1, Act::Refuse(status));
        cluster.then(2, Act::Refuse(status));
        let mut room = [0; 10];
        let rooms = &mut [Room::One(&mut room)];
        assert!(client.get(keys_of(&[key], &Leaders::Own), rooms, None).is_err(), "{status:?}");
    }
    cluster.world().acts.clear();
    cluster.then(1, Act::Refuse(Status::ShuttingDown));
    assert_eq!(put(&client, &names(2)[1..], 10), [ItemStatus::Ok], "it was asked again");
}

#[test]
fn what_stays_unanswered_is_late_and_the_error_says_what_was_tried() {
    let cluster = Cluster::start(1, vec![chain(1, 1, &[1]), chain(2, 1, &[])]);
    let client = cluster.client();
    let (there, lost) = (on_chain(&cluster, 1), on_chain(&cluster, 2));
    put(&client, &[there], 10);
    let brief = Some(Duration::from_millis(200));
    let (mut one, mut two) = ([0; 10], [0; 10]);
    let rooms = &mut [Room::One(&mut one), Room::One(&mut two)];
    let both = [there, lost];
    let got = client.get(keys_of(&both, &Leaders::Own), rooms, brief).unwrap();
    assert_eq!(got, [GetOutcome::Read(10), GetOutcome::Late]);
    let error = client.on_keys(Verb::Contains, keys_of(&both, &Leaders::Own), brief).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let text = error.to_string();
    assert!(text.contains("1 of 2 keys") && text.contains("without a serving replica"), "{text}");
    // The call was in progress, not given up: it succeeds once a node serves the chain.
    let waiting = client.clone();
    let call = std::thread::spawn(move || get(&waiting, &[lost], 10));
    std::thread::sleep(Duration::from_millis(100));
    cluster.world().values.insert(lost.as_bytes().to_vec(), value(&lost, 10));
    cluster.change(|routing| {
        routing.chains.insert(ChainId(2), chain(2, 2, &[1]));
    });
    assert_eq!(call.join().unwrap(), [Some(value(&lost, 10))]);
}

#[test]
fn a_prompt_is_matched_on_all_its_nodes_in_one_round_trip() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1]), chain(2, 1, &[2])]);
    let client = cluster.client();
    let keys = names(200);
    let runs = Leaders::Runs;
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, 8)).collect();
    let values: Vec<Value<'_>> = values.iter().map(|value| Value::One(value)).collect();
    client.put(keys_of(&keys, &runs), &values, None).unwrap();
    cluster.world().values.remove(keys[150].as_bytes());
    cluster.seen();
    let reply = client.match_prefix(keys_of(&keys, &runs), 1000, None).unwrap();
    assert_eq!((reply.matched, reply.leased), (150, 150));
    assert_eq!(cluster.seen().len(), 2, "each node once, lease included");
    cluster.world().leases = 0;
    let reply = client.match_prefix(keys_of(&keys, &runs), 1000, None).unwrap();
    assert_eq!((reply.matched, reply.leased), (150, 0), "present, and no lease left");
}

#[test]
fn a_moving_slot_is_looked_for_in_both_chains() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1]), chain(2, 1, &[2])]);
    let client = cluster.client();
    let key = on_chain(&cluster, 1);
    put(&client, &[key], 10);
    let slot = placement::slot(GROUP, &key);
    cluster.change(|routing| {
        routing.set_place(slot, SlotPlace { chain: ChainId(2), old: Some(ChainId(1)) });
    });
    assert_eq!(get(&client, &[key], 10), [Some(value(&key, 10))]);
    // Until the client learns of the move it asks the old chain, which is right as well.
    let deleted = client.on_keys(Verb::Delete, keys_of(&[key], &Leaders::Own), None).unwrap();
    assert_eq!(deleted, [ItemStatus::Ok]);
    assert_eq!(get(&client, &[key], 10), [None]);
}

#[test]
fn lists_and_numbers_of_all_nodes_are_put_together() {
    let chains = vec![chain(1, 1, &[1, 2, 3]), chain(2, 1, &[2, 3, 1]), chain(3, 1, &[3, 1, 2])];
    let cluster = Cluster::start(3, chains);
    let client = cluster.client();
    let mut stats = client.stats(GroupId::SYSTEM, None).unwrap();
    stats.sort();
    let named = |(name, value): (&str, u64)| (name.to_owned(), value);
    let expected = [("keys", 6), ("namespaces", 3), ("nodes", 3), ("nodes_away", 0)];
    let more = [("replicas", 3), ("unix_ms", 3)];
    assert_eq!(stats, expected.into_iter().chain(more).map(named).collect::<Vec<_>>());
    let (mut cursor, mut found, mut pages) = (0, Vec::new(), Vec::new());
    loop {
        pages.push(cursor);
        let page = client.list(GROUP, b"", cursor, None).unwrap();
        found.extend(
            page.keys.iter().map(|info| String::from_utf8(info.key.as_bytes().to_vec()).unwrap()),
        );
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    let expected: Vec<String> =
        (1..=3).flat_map(|node| [0, 77].map(|page| format!("node-{node}-page-{page}"))).collect();
    assert_eq!(found, expected);
    let again = client.list(GROUP, b"", pages[3], None).unwrap();
    assert_eq!(again.keys[0].key.as_bytes(), b"node-2-page-77", "a page can be asked for twice");
    let error = client.list(GROUP, b"", 999, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn numbers_and_lists_go_on_without_a_node_that_is_away() {
    let cluster = Cluster::start(3, vec![chain(1, 1, &[1, 2]), chain(2, 1, &[2, 1])]);
    cluster.kill(3);
    let client = cluster.client();
    let stats = client.stats(GroupId::SYSTEM, None).unwrap();
    let number = |wanted: &str| stats.iter().find(|(name, _)| name == wanted).unwrap().1;
    assert_eq!((number("nodes"), number("nodes_away"), number("keys")), (3, 1, 3));
    let (mut cursor, mut pages) = (0, 0);
    while cursor != 0 || pages == 0 {
        cursor = client.list(GROUP, b"", cursor, None).unwrap().cursor;
        pages += 1;
    }
    assert_eq!(pages, 4, "two pages of each head");
    // A serving node is not left out, because its numbers would be missing.
    cluster.kill(2);
    let error = client.stats(GroupId::SYSTEM, Some(Duration::from_millis(300))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[test]
fn a_client_takes_all_its_connections_and_its_thread_with_it() {
    let cluster = Cluster::start(2, vec![chain(1, 1, &[1, 2])]);
    let client = cluster.client();
    let keys = names(10);
    put(&client, &keys, 10);
    assert_eq!(client.server_info().unwrap().transport, TransportInUse::Tcp);
    assert_eq!(client.node().unwrap(), CLUSTER);
    let other = client.clone();
    drop(client);
    assert_eq!(get(&other, &keys[..1], 10), [Some(value(&keys[0], 10))]);
    assert!(cluster.world().connections > 0);
    drop(other);
    // These nodes notice the end of a connection only after the five seconds of the request on it.
    let end = Instant::now() + Duration::from_secs(15);
    while cluster.world().connections > 0 {
        assert!(Instant::now() < end, "connections outlive their client");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_closed_client_says_so() {
    let cluster = Cluster::start(1, vec![chain(1, 1, &[1])]);
    let client = cluster.client();
    put(&client, &names(1), 10);
    client.close();
    let values = [Value::One(b"x")];
    let error = client.put(keys_of(&names(1), &Leaders::Own), &values, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn a_server_that_stands_alone_is_asked_as_ever_and_noticed_when_it_joins() {
    let cluster = Cluster::start(1, vec![chain(1, 1, &[1])]);
    cluster.world().routing.cluster = Uuid128::NIL;
    let client = cluster.client();
    let keys = names(5);
    let alone = |keys| millpond_client::Keys { node: node_id(1).0, ..keys_of(keys, &Leaders::Own) };
    let values = [Value::One(b"0123456789"); 0];
    assert_eq!(client.put(alone(&[]), &values, None).unwrap(), []);
    let values = vec![Value::One(b"0123456789"); 5];
    assert_eq!(client.put(alone(&keys), &values, None).unwrap(), [ItemStatus::Ok; 5]);
    let seen = cluster.seen();
    assert_eq!((seen.len(), seen[0].client), (1, 0), "one request, without tags");
    assert_eq!(cluster.world().connections, 1, "and no other connection");
    assert_eq!(client.node().unwrap(), node_id(1).0);
    // It restarts as a member of a cluster.
    cluster.world().routing.cluster = CLUSTER;
    cluster.then(1, Act::CutAfter);
    let mut rooms = [[0; 10]; 5];
    let mut rooms: Vec<Room<'_>> = rooms.iter_mut().map(|room| Room::One(room)).collect();
    assert!(client.get(alone(&keys), &mut rooms, None).is_err(), "the connection was cut");
    let error = client.get(alone(&keys), &mut rooms, None).unwrap_err();
    assert!(error.to_string().contains("open the namespace again"), "{error}");
    assert_eq!(client.node().unwrap(), CLUSTER);
    assert_eq!(get(&client, &keys[..1], 10), [Some(b"0123456789".to_vec())]);
}
