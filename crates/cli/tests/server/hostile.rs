//! Peers that break the rules hurt nobody but themselves.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use millpond_chain::{Envelope, Payload, Peer, PeerBody, Tag, Update, Write};
use millpond_types::cluster::{Chain, ChunkVersion, Routing, RoutingUpdate};
use millpond_types::wire::{FrameHeader, RoutingRequest, Status, Verb};
use millpond_types::{Ack, ChunkId, Crc32c, NamespaceOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::harness::{PATIENCE, TestServer, until};
use super::wire::{Wire, bytes, frame, hello, key, put_request};

/// Sends `bytes`, then waits until the server has closed or answered everything.
fn throw(server: &TestServer, bytes: &[u8]) {
    let mut stream = TcpStream::connect(server.clients).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn garbage_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    throw(&server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    throw(&server, &[0; 10_000]);
    throw(&server, &bytes(1, 100_000));
    let mut runner = TestRunner::new(Config { cases: 150, ..Config::default() });
    let verbs = prop::sample::select(Verb::ALL.to_vec());
    let any = (verbs, prop::collection::vec(any::<u8>(), 0..300), 0usize..300, any::<u8>());
    runner
        .run(&any, |(verb, meta, at, flip)| {
            // A sound hello, then a frame of random meta, then one with a damaged byte.
            let mut all = frame(Verb::Hello, 1, &hello(b""), &[]);
            all.extend(frame(verb, 2, &meta, &[]));
            let (meta, payload) = put_request(ns, &[(key("x"), b"value")]);
            let mut bad = frame(Verb::Put, 3, &meta, &payload);
            let at = at % bad.len();
            bad[at] ^= flip;
            all.extend(bad);
            throw(&server, &all);
            Ok(())
        })
        .unwrap();
    assert!(server.is_running(), "{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    wire.call(Verb::Ping, &[], &[]).unwrap().ok();
    until("all connections are gone", || server.metric("millpond_connections") == 1);
    // Work that was begun for a connection ends after it.
    until("no request is left", || server.metric("millpond_requests_in_flight") == 0);
    until("no bytes are held", || server.metric("millpond_in_flight_bytes") == 0);
}

/// The bytes of a message between replicas.
#[derive(Clone, Debug)]
struct Bytes(Vec<u8>);

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc(&self) -> Crc32c {
        Crc32c::of(&self.0)
    }
}

/// An update as the replica before it would pass it on to the only one of `chain`, with so many bytes of attributes.
fn forged(chain: &Chain, base: u64, attrs: usize) -> Vec<u8> {
    let bytes = Bytes(vec![7; 10]);
    let update = Update {
        chunk: ChunkId(77),
        tag: Tag::default(),
        base: ChunkVersion(base),
        version: ChunkVersion(1),
        written: chain.version,
        crc: bytes.crc(),
        write: Write::Whole(bytes),
        durability: Ack::Memory,
    };
    let to = chain.targets[0].target;
    let peer = Peer { version: chain.version, body: PeerBody::Forward { update, ready: true } };
    let (meta, payload) =
        Envelope { chain: chain.id, from: to, to, peer }.encode(|_| vec![1; attrs]);
    frame(Verb::Peer, 2, &meta, &payload.unwrap().0)
}

#[test]
fn messages_that_no_replica_sends_are_refused_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let mut routing = Routing::default();
    let request = RoutingRequest { cluster: routing.cluster, have: routing.version };
    let reply = wire.call(Verb::Routing, &request.encode(), &[]).unwrap().ok();
    routing.apply(RoutingUpdate::decode(&reply.meta).unwrap()).unwrap();
    let chain = routing.chains.values().next().unwrap();
    let refused = || server.metric("millpond_replica_refused_messages_total");
    assert_eq!(refused(), 0);
    let sound = forged(chain, 0, 40);
    let messages = [
        ("a version that does not follow its base", forged(chain, 5, 40)),
        // The disk keeps 256 bytes beside a chunk, with what the protocol keeps there.
        ("more attributes than a disk keeps", forged(chain, 0, 250)),
        ("a message that ends early", frame(Verb::Peer, 2, &[1, 2, 3], &[])),
        ("no message", frame(Verb::Peer, 2, &[0xff; 40], &[])),
    ];
    for (at, (what, message)) in (1..).zip(messages) {
        throw(&server, &[frame(Verb::Hello, 1, &hello(b""), &[]), message].concat());
        until(what, || refused() == at);
    }
    // From who does not come before it in the chain: no fault of the message.
    throw(&server, &[frame(Verb::Hello, 1, &hello(b""), &[]), sound].concat());
    wire.call(Verb::Ping, &[], &[]).unwrap().ok();
    assert_eq!((refused(), server.metric("millpond_replicas_stopped")), (4, 0));
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let (meta, payload) = put_request(ns, &[(key("x"), b"value")]);
    wire.call(Verb::Put, &meta, &payload).unwrap().ok();
    assert!(server.is_running(), "{}", server.log());
}

/// What a peer without a credential can make the server keep: nothing to speak of.
#[test]
fn strangers_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "a-good-token\n").unwrap();
    let server = TestServer::start(folder.path(), &["--token-file", &tokens.display().to_string()]);
    let before = server.metric("millpond_pool_used_bytes");
    let header = |verb: Verb, meta_len: u32, payload_len: u32| {
        FrameHeader { meta_len, payload_len, ..FrameHeader::request(verb, 1, b"") }.encode()
    };
    let mut strangers = Vec::new();
    for (verb, meta, payload) in
        [(Verb::Put, 100, 64 << 20), (Verb::Hello, 5 << 20, 0), (Verb::Hello, 100, 64 << 20)]
    {
        let stream = TcpStream::connect(server.clients).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut wire = Wire::over(Box::new(stream));
        wire.socket.write_all(&header(verb, meta, payload)).unwrap();
        let reply = wire.receive().unwrap();
        assert!(matches!(reply.status, Status::Unauthorized | Status::BadRequest), "{reply:?}");
        strangers.push(wire);
    }
    assert_eq!(server.metric("millpond_pool_used_bytes"), before);
}

#[test]
fn silence_and_half_frames_are_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let text = "[limits]\nhello = \"200ms\"\nstalled_client = \"300ms\"\n";
    std::fs::write(&config, text).unwrap();
    let server = TestServer::start(folder.path(), &["--config", &config.display().to_string()]);
    let mut idle = Wire::connect(&server);
    let ns = idle.open("model", NamespaceOptions::default()).id;
    let mut silent = TcpStream::connect(server.clients).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "no hello: disconnected");

    let mut half = Wire::connect(&server);
    let (meta, payload) = put_request(ns, &[(key("half"), &bytes(1, 1 << 20))]);
    let whole = frame(Verb::Put, 9, &meta, &payload);
    half.socket.write_all(&whole[..whole.len() / 2]).unwrap();
    assert!(half.receive().is_err(), "half a payload: disconnected");
    until("the half value's memory is back", || server.metric("millpond_in_flight_bytes") == 0);
    assert_eq!(idle.get(ns, &[key("half")]), [None]);
    idle.call(Verb::Ping, &[], &[]).unwrap().ok();
}
