//! Servers that die, hang, come back, or are replaced.

use std::time::{Duration, Instant};

use millpond_client::{ErrorKind, GetOutcome, Room, Transport, Value};
use millpond_kv::{Batch, BlockStore as _};
use millpond_types::wire::ItemStatus;

use super::process::Server;
use super::{ALL, bytes, get, key, open, put};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

#[test]
fn a_dead_server_fails_fast_and_is_used_again_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    for transport in ALL {
        let client = server.client(transport);
        let ns = open(&client, "outage");
        assert_eq!(put(&ns, &key(&format!("{transport:?}")), b"before"), ItemStatus::Ok);
        server.kill();
        let start = Instant::now();
        for _ in 0..200 {
            let error = ns.contains(Batch::own(&[key("a")])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{transport:?}: {error}");
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        server.start_again();
        let start = Instant::now();
        while let Err(error) = ns.contains(Batch::own(&[key("a")])) {
            assert!(start.elapsed() < PATIENCE, "{transport:?}: {error}");
        }
        assert_eq!(put(&ns, &key(&format!("{transport:?}-again")), b"after"), ItemStatus::Ok);
    }
}

#[test]
fn a_call_ends_at_its_deadline_and_its_memory_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for transport in ALL {
        let client = server.client(transport);
        let ns = open(&client, "hang");
        let name = key(&format!("{transport:?}"));
        put(&ns, &name, &bytes(1, 1 << 20));
        server.signal("STOP");
        let mut memory = vec![0xee; 1 << 20];
        let start = Instant::now();
        let within =
            |ms, keys| Batch { deadline: Some(Duration::from_millis(ms)), ..Batch::own(keys) };
        let names = [name];
        let error = ns.get(within(200, &names), &mut [Room::One(&mut memory)]).unwrap_err();
        let took = start.elapsed();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{transport:?}: {error}");
        assert!(took >= Duration::from_millis(190) && took < Duration::from_secs(10), "{took:?}");
        let value = bytes(2, 4 << 20);
        let put_late = ns.put(within(100, &[key("late")]), &[Value::One(&value)]);
        let late = put_late.unwrap_err();
        let kinds = [ErrorKind::DeadlineExceeded, ErrorKind::Unreachable];
        assert!(kinds.contains(&late.kind()), "{transport:?}: {late}");
        server.signal("CONT");
        let start = Instant::now();
        loop {
            let again = ns.get(Batch::own(&[name]), &mut [Room::One(&mut memory)]);
            if again.is_ok_and(|got| got == [GetOutcome::Read(1 << 20)]) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{transport:?}");
        }
        assert!(memory == bytes(1, 1 << 20));
    }
}

#[test]
fn a_namespace_is_opened_again_on_a_server_that_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    let client = server.client(Transport::Auto);
    let other = open(&client, "other");
    let ns = open(&client, "mine");
    put(&ns, &key("a"), b"old");
    server.kill();
    std::fs::remove_dir_all(folder.path().join("data")).unwrap();
    server.start_again();
    // A namespace made first on the new server has the number that another one had before.
    let fresh = server.client(Transport::Tcp);
    let newer = open(&fresh, "newer");
    put(&newer, &key("a"), b"newer");
    let start = Instant::now();
    while ns.contains(Batch::own(&[key("a")])).is_err() {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(get(&ns, &key("a"), 9).0, GetOutcome::Miss);
    assert_eq!(get(&other, &key("a"), 9).0, GetOutcome::Miss);
    assert_eq!(put(&ns, &key("a"), b"mine"), ItemStatus::Ok);
    assert_eq!(get(&newer, &key("a"), 5), (GetOutcome::Read(5), b"newer".to_vec()));
}
