//! The Rust client and its namespaces against real `millpond` processes, over every transport.

#![allow(clippy::disallowed_methods, reason = "tests start processes, threads and clocks")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod outages;
mod process;
mod race;
mod tls;

use millpond_client::{Client, ErrorKind, GetOutcome, Room, Transport, TransportInUse, Value};
use millpond_kv::{Batch, BlockStore as _, Namespace};
use millpond_types::wire::ItemStatus;
use millpond_types::{BlockKey, LayoutDigest, NamespaceOptions};

use process::Server;

const ALL: [Transport; 3] = [Transport::Tcp, Transport::Unix, Transport::Shm];

fn key(text: &str) -> BlockKey {
    BlockKey::new(text.as_bytes()).unwrap()
}

fn keys(prefix: &str, count: usize) -> Vec<BlockKey> {
    (0..count).map(|n| key(&format!("{prefix}-{n}"))).collect()
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed * 7).to_le_bytes()[0]).collect()
}

fn open(client: &Client, name: &str) -> Namespace {
    Namespace::open(client, name, true, NamespaceOptions::default()).unwrap()
}

fn put(ns: &Namespace, key: &BlockKey, value: &[u8]) -> ItemStatus {
    ns.put(Batch::own(&[*key]), &[Value::One(value)]).unwrap()[0]
}

fn get(ns: &Namespace, key: &BlockKey, room: usize) -> (GetOutcome, Vec<u8>) {
    let mut bytes = vec![0xee; room];
    let got = ns.get(Batch::own(&[*key]), &mut [Room::One(&mut bytes)]).unwrap()[0];
    (got, bytes)
}

#[test]
fn values_of_every_size_come_back_over_every_transport() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for transport in ALL {
        let client = server.client(transport);
        let ns = open(&client, "sizes");
        for len in [0, 1, 4095, 4096, 4097, 16_384, 65_537, 1 << 20, (5 << 20) + 3] {
            let name = key(&format!("{transport:?}-{len}"));
            let value = bytes(len, len);
            assert_eq!(put(&ns, &name, &value), ItemStatus::Ok, "{transport:?} {len}");
            assert_eq!(put(&ns, &name, &value), ItemStatus::Exists);
            let (got, room) = get(&ns, &name, len + 5);
            assert_eq!(got, GetOutcome::Read(u32::try_from(len).unwrap()), "{transport:?} {len}");
            assert!(room[..len] == value[..], "{transport:?} {len}");
            assert_eq!(room[len..], [0xee; 5], "nothing is written behind the value");
            if len > 0 {
                let (got, room) = get(&ns, &name, len - 1);
                assert_eq!(got, GetOutcome::TooLong(u32::try_from(len).unwrap()));
                assert!(room.iter().all(|byte| *byte == 0xee));
            }
        }
        assert_eq!(get(&ns, &key("absent"), 9).0, GetOutcome::Miss);
        let used = client.server_info().unwrap().transport;
        assert_eq!(format!("{used:?}"), format!("{transport:?}"));
    }
    let auto = server.client(Transport::Auto).server_info().unwrap();
    assert_eq!(auto.transport, TransportInUse::Shm);
}

#[test]
fn scattered_values_and_large_batches_are_split_and_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for transport in ALL {
        let mut options = server.options(transport);
        options.arena_bytes = 1 << 20;
        let client = Client::new(options).unwrap();
        let ns = open(&client, "batches");
        for (count, len) in [(6000, 100), (40, 300_000), (3, 9 << 20)] {
            let names = keys(&format!("{transport:?}-{count}"), count);
            let values: Vec<Vec<u8>> = (0..count).map(|n| bytes(n, len)).collect();
            let cut = len / 3;
            let parts: Vec<Value<'_>> = values
                .iter()
                .map(|value| Value::Many(vec![&value[..cut], &value[cut..cut], &value[cut..]]))
                .collect();
            let stored = ns.put(Batch::prompt(&names), &parts).unwrap();
            assert!(stored.iter().all(|status| *status == ItemStatus::Ok), "{transport:?} {len}");
            let mut rooms_bytes = vec![vec![0; len]; count];
            let mut rooms: Vec<Room<'_>> = rooms_bytes
                .iter_mut()
                .map(|room| {
                    let (left, right) = room.split_at_mut(len / 2);
                    Room::Many(vec![left, right])
                })
                .collect();
            let got = ns.get(Batch::prompt(&names), &mut rooms).unwrap();
            let whole = GetOutcome::Read(u32::try_from(len).unwrap());
            assert!(got.iter().all(|outcome| *outcome == whole), "{transport:?} {len}");
            assert!(rooms_bytes == values, "{transport:?} {len}");
            assert_eq!(ns.contains(Batch::prompt(&names)).unwrap(), vec![true; count]);
            let matched = ns.match_prefix(Batch::prompt(&names), 100).unwrap();
            assert_eq!(matched.matched as usize, count);
            assert_eq!(ns.delete(Batch::prompt(&names)).unwrap(), vec![true; count]);
        }
    }
}

#[test]
fn the_other_verbs_answer_per_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for transport in ALL {
        let client = server.client(transport);
        let ns = open(&client, &format!("verbs-{transport:?}"));
        let names = keys("k", 20);
        for name in &names[..10] {
            put(&ns, name, b"value");
        }
        let expected: Vec<bool> = (0..20).map(|n| n < 10).collect();
        assert_eq!(ns.contains(Batch::own(&names)).unwrap(), expected);
        assert_eq!(ns.touch(Batch::own(&names)).unwrap(), expected);
        assert_eq!(ns.pin(Batch::own(&names)).unwrap(), expected);
        assert_eq!(ns.unpin(Batch::own(&names)).unwrap(), expected);
        assert_eq!(ns.match_prefix(Batch::own(&names), 0).unwrap().matched, 10);
        assert_eq!(ns.match_prefix(Batch::own(&[]), 0).unwrap().matched, 0);
        let page = ns.list_page(b"k-", 0).unwrap();
        assert_eq!((page.keys.len(), page.cursor), (10, 0));
        assert!(!ns.stats().unwrap().is_empty());
        assert_eq!(ns.delete(Batch::own(&names)).unwrap(), expected);
        assert_eq!(ns.contains(Batch::own(&names)).unwrap(), vec![false; 20]);
        assert!(client.namespaces(None).unwrap().iter().any(|info| info.name == ns.info().name));
        client.drop_namespace(&ns.info().name, None).unwrap();
        let gone = client.drop_namespace(&ns.info().name, None).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NoNamespace);
    }
}

#[test]
fn refusals_name_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let client = server.client(Transport::Auto);
    let ns = open(&client, "a");
    let options = NamespaceOptions { layout: LayoutDigest([1; 32]), ..NamespaceOptions::default() };
    Namespace::open(&client, "with-layout", true, options.clone()).unwrap();
    let options = NamespaceOptions { layout: LayoutDigest([2; 32]), ..options };
    let error = Namespace::open(&client, "with-layout", false, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    let error = Namespace::open(&client, "absent", false, NamespaceOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoNamespace);
    let error = Namespace::open(&client, "no spaces", true, NamespaceOptions::default());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);

    assert!(BlockKey::new(&[1; 129]).unwrap_err().to_string().contains("1 to 128"));
    let long = vec![0; (64 << 20) + 1];
    let error = ns.put(Batch::own(&keys("k", 1)), &[Value::One(&long)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("64 MiB"), "{error}");
    let error = ns.put(Batch::own(&keys("k", 2)), &[Value::One(b"x")]).unwrap_err();
    assert!(error.to_string().contains("1 given for 2 keys"), "{error}");
    let error = ns.match_prefix(Batch::own(&keys("k", 1)), 100_000).unwrap_err();
    assert!(error.to_string().contains("60000"), "{error}");
}

#[test]
fn a_wrong_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "all-powerful\nonly-some some/*\n").unwrap();
    let server = Server::start(folder.path(), &["--token-file", &tokens.display().to_string()]);
    for transport in ALL {
        let error = server.client(transport).server_info().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
        let mut options = server.options(transport);
        options.token = "all-powerful".to_owned();
        let client = Client::new(options).unwrap();
        assert_eq!(put(&open(&client, "a"), &key(&format!("{transport:?}")), b"x"), ItemStatus::Ok);
    }
    let mut options = server.options(Transport::Auto);
    options.token = "only-some".to_owned();
    let client = Client::new(options).unwrap();
    assert_eq!(put(&open(&client, "some/a"), &key("k"), b"x"), ItemStatus::Ok);
    let used = client.server_info().unwrap().transport;
    assert_eq!(used, TransportInUse::Unix, "a limited token gets no shared memory");
}
