//! Many clients, and slow ones.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use millpond_types::NamespaceOptions;
use millpond_types::wire::{ItemStatus, Verb};

use super::harness::{TestServer, until};
use super::wire::{Wire, bytes, get_request, key, values};

/// Idle connections: as many as the limit on open files allows both sides, at most 10,000.
fn crowd() -> usize {
    let limit = millpond_env::raise_fd_limit().unwrap();
    let room = usize::try_from(limit.soft).unwrap_or(usize::MAX);
    room.saturating_sub(600).min(10_000)
}

/// The median and the slowest of some round trips.
fn round_trips(wire: &mut Wire, ns: millpond_types::GroupId) -> (Duration, Duration) {
    let mut took: Vec<Duration> = (0..300)
        .map(|_| {
            let started = Instant::now();
            assert!(wire.get(ns, &[key("small")])[0].is_some());
            started.elapsed()
        })
        .collect();
    took.sort();
    (took[took.len() / 2], took[took.len() - 1])
}

#[test]
fn idle_connections_and_slow_readers_do_not_hurt_others() {
    let folder = tempfile::tempdir().unwrap();
    let memory = 256 << 20;
    let server = TestServer::start(folder.path(), &["--memory", "256MiB"]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    wire.put(ns, &[(key("small"), &bytes(1, 4096))]);
    let big: Vec<_> = (0..24).map(|i| key(format!("big {i}"))).collect();
    for (i, name) in big.iter().enumerate() {
        let value = bytes(i as u64 + 10, 4 << 20);
        assert_eq!(wire.put(ns, &[(*name, &value)]), [ItemStatus::Ok]);
    }
    let (alone, _) = round_trips(&mut wire, ns);

    let idle: Vec<TcpStream> = (0..crowd())
        .map(|i| {
            // Half of them have said hello, half say nothing at all.
            let stream = TcpStream::connect(server.clients).unwrap();
            if i % 2 == 0 {
                let frame = super::wire::frame(Verb::Hello, 1, &super::wire::hello(b""), &[]);
                std::io::Write::write_all(&mut &stream, &frame).unwrap();
            }
            stream
        })
        .collect();
    let count = idle.len() as u64;
    until("all are accepted", || server.metric("millpond_connections_total") > count);

    // Slow readers ask for far more than they take.
    let mut slow: Vec<Wire> = (0..4).map(|_| Wire::connect(&server)).collect();
    let asked = 40;
    for reader in &mut slow {
        for index in 0..asked {
            let request = get_request(ns, &[big[index % big.len()]]);
            reader.send(Verb::Get, &request, &[]).unwrap();
        }
    }
    let (crowded, worst) = round_trips(&mut wire, ns);
    let held = server.metric("millpond_in_flight_bytes");
    assert!(held <= 4 * (14 << 20) + (20 << 20), "slow readers hold {held} bytes");
    let resident = server.resident_bytes();
    assert!(resident <= memory + memory / 20, "{} MiB resident", resident >> 20);
    // Generous: the machine is shared with other tests. What it must not be is seconds.
    assert!(crowded < alone * 20 + Duration::from_millis(20), "{alone:?} became {crowded:?}");
    assert!(worst < Duration::from_secs(2), "{worst:?}");

    // Back-pressure loses nothing: every reply comes once it is taken.
    for reader in &mut slow {
        for index in 0..asked {
            let got = values(&reader.receive().unwrap());
            assert!(got[0].as_deref() == Some(&bytes(index as u64 % 24 + 10, 4 << 20)[..]));
        }
    }
    drop(idle);
    drop(slow);
    until("everything is given back", || {
        server.metric("millpond_connections") == 1 && server.metric("millpond_in_flight_bytes") == 0
    });
    assert_eq!(server.metric("millpond_requests_in_flight"), 0);
    server.stop();
}

#[test]
fn many_writers_and_readers_see_whole_values() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let ns = Wire::connect(&server).open("model", NamespaceOptions::default()).id;
    std::thread::scope(|scope| {
        for writer in 0..6u8 {
            let server = &server;
            scope.spawn(move || {
                let mut wire = Wire::connect(server);
                for round in 0..150u64 {
                    // All writers fight for the same keys with values of their own.
                    let name = key(format!("{}", round % 50));
                    let mut value =
                        bytes(round * 7 + u64::from(writer), 20_000 + 100 * usize::from(writer));
                    value[0] = writer;
                    wire.put(ns, &[(name, &value)]);
                    let got = wire.get(ns, &[name])[0].clone().unwrap();
                    let winner = usize::from(got[0]);
                    assert_eq!(got.len(), 20_000 + 100 * winner, "a mix of two values");
                }
            });
        }
    });
    server.stop();
}
