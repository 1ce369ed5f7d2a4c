//! Same-host clients through shared memory, kind and hostile ones.

use std::os::fd::OwnedFd;
use std::time::Duration;

use millpond_env::{
    BlockingStream, EventFd, RING_HEADER, RealClock, RingConsumer, RingProducer, RingWake,
    ShmAccess, ShmRegion, ShmView,
};
use millpond_types::cluster::ChainId;
use millpond_types::wire::{
    ChunkWriteRequest, FLAG_LEND, FLAG_SHM, FrameHeader, GetReply, HEADER_BYTES, ItemStatus,
    Leaders, PlacedChunk, Planned, PutItem, PutRequest, ShmAttach, ShmAttachReply, ShmRelease,
    Status, StatusReply, Verb, WritePart,
};
use millpond_types::{Ack, Crc32c, DataId, FileChunk, GroupId, NamespaceOptions, Tick};

use super::harness::{PATIENCE, TestServer, until};
use super::wire::{Wire, bytes, frame, get_request, hello, key};

/// A connection with its shared memory.
struct Attached {
    stream: BlockingStream,
    /// While it is open, what was lent stays.
    alive: Option<OwnedFd>,
    pool: ShmRegion,
    arena: ShmRegion,
    requests: RingProducer,
    replies: RingConsumer,
    layout: ShmAttachReply,
}

fn header_of(frame: &[u8]) -> FrameHeader {
    FrameHeader::decode(frame.first_chunk().unwrap()).unwrap()
}

fn soon() -> Tick {
    RealClock::tick().plus(PATIENCE)
}

fn exchange(
    stream: &BlockingStream,
    bytes: &[u8],
    fds: bool,
) -> (FrameHeader, Vec<u8>, Vec<OwnedFd>) {
    stream.send_vectored(&[std::io::IoSlice::new(bytes)], soon()).unwrap();
    let mut head = [0; HEADER_BYTES];
    let mut got = Vec::new();
    if fds {
        let (n, received) = stream.recv_fds(&mut head, soon()).unwrap();
        stream.recv_exact(&mut head[n..], soon()).unwrap();
        got = received;
    } else {
        stream.recv_exact(&mut head, soon()).unwrap();
    }
    let header = FrameHeader::decode(&head).unwrap();
    let mut meta = vec![0; header.meta_len as usize];
    stream.recv_exact(&mut meta, soon()).unwrap();
    (header, meta, got)
}

impl Attached {
    fn new(server: &TestServer) -> Self {
        Self::attach(server, false)
    }

    fn attach(server: &TestServer, lends: bool) -> Self {
        let stream = BlockingStream::connect_unix(&server.socket, PATIENCE).unwrap();
        exchange(&stream, &frame(Verb::Hello, 1, &hello(b""), &[]), false);
        let meta = ShmAttach { payload_bytes: 8 << 20, lends }.encode();
        let (header, meta, fds) = exchange(&stream, &frame(Verb::ShmAttach, 2, &meta, &[]), true);
        assert_eq!(header.deadline_or_status, 0, "{}", String::from_utf8_lossy(&meta));
        let layout = ShmAttachReply::decode(&meta).unwrap();
        let mut fds = fds.into_iter();
        let mut region = |bytes: u64, access| {
            let bytes = usize::try_from(bytes).unwrap();
            ShmRegion::from_fd(fds.next().unwrap(), bytes, access).unwrap()
        };
        let pool = region(layout.pool_bytes, ShmAccess::ReadOnly);
        let arena = region(layout.arena_bytes, ShmAccess::ReadWrite);
        let event = EventFd::from_owned(fds.next().unwrap());
        let alive = fds.next();
        assert_eq!(alive.is_some(), lends);
        let room = u32::try_from(layout.ring_bytes - RING_HEADER).unwrap();
        let requests = RingProducer::new(arena.clone(), 0, room, RingWake::Event(event)).unwrap();
        let replies =
            RingConsumer::new(arena.clone(), layout.ring_bytes, room, RingWake::Futex).unwrap();
        Self { stream, alive, pool, arena, requests, replies, layout }
    }

    fn send(&mut self, verb: Verb, id: u64, meta: &[u8], payload_len: usize) {
        let frame = frame(verb, id, meta, &vec![0; payload_len]);
        let record = &frame[..HEADER_BYTES + meta.len()];
        assert!(self.requests.push(&[record], soon()).unwrap());
    }

    fn receive(&mut self) -> (FrameHeader, Vec<u8>) {
        let mut record = Vec::new();
        assert!(self.replies.pop(&mut record, Duration::ZERO, soon()).unwrap(), "no reply");
        let (head, meta) = record.split_first_chunk::<HEADER_BYTES>().unwrap();
        (FrameHeader::decode(head).unwrap(), meta.to_vec())
    }

    fn put(&mut self, ns: GroupId, name: &str, value: &[u8]) -> ItemStatus {
        self.arena.copy_in(self.layout.payload_offset, value).unwrap();
        let item = PutItem { len: u32::try_from(value.len()).unwrap(), crc: Crc32c::of(value) };
        let request = PutRequest {
            namespace: ns,
            planned: Planned::default(),
            arena_offset: self.layout.payload_offset,
            keys: vec![key(name)],
            items: vec![item],
            leaders: Leaders::Own,
            tags: None,
        };
        self.send(Verb::Put, 5, &request.encode(), value.len());
        let (header, meta) = self.receive();
        assert_eq!(header.deadline_or_status, 0, "{}", String::from_utf8_lossy(&meta));
        StatusReply::decode(&meta).unwrap().items[0]
    }

    /// Has a value lent; its hold, and the value where it lies.
    fn borrow(&mut self, ns: GroupId, name: &str) -> (u64, ShmView) {
        let meta = get_request(ns, &[key(name)]);
        let frame = frame(Verb::Get, 6, &meta, &[]);
        let header = FrameHeader { flags: FLAG_LEND, ..header_of(&frame) };
        assert!(self.requests.push(&[&header.encode(), &meta], soon()).unwrap());
        let reply = GetReply::decode(&self.receive().1).unwrap();
        let item = reply.items[0];
        let value = self.pool.view(item.pool_offset, item.len as usize).unwrap();
        assert_eq!(Crc32c::of(&value), item.crc);
        (reply.hold, value)
    }

    fn get(&mut self, ns: GroupId, name: &str) -> (u64, Option<Vec<u8>>) {
        self.send(Verb::Get, 6, &get_request(ns, &[key(name)]), 0);
        let (header, meta) = self.receive();
        assert_eq!(header.flags & FLAG_SHM, FLAG_SHM);
        let reply = GetReply::decode(&meta).unwrap();
        let item = reply.items[0];
        if item.status != ItemStatus::Ok {
            return (reply.hold, None);
        }
        let mut value = vec![0; item.len as usize];
        let crc = self.pool.copy_out_checksummed(item.pool_offset, &mut value).unwrap();
        assert_eq!(crc, item.crc);
        (reply.hold, Some(value))
    }
}

#[test]
fn values_pass_through_shared_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let facts = Wire::facts(&server);
    assert!(facts.shm);
    assert_eq!(std::path::Path::new(&facts.socket_path), server.socket);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let mut shm = Attached::new(&server);
    for len in [0, 1, 4096, 100_000, 5 << 20] {
        let (name, value) = (format!("len {len}"), bytes(len as u64 + 5, len));
        assert_eq!(shm.put(ns, &name, &value), ItemStatus::Ok);
        assert_eq!(shm.put(ns, &name, &value), ItemStatus::Exists);
        let (hold, got) = shm.get(ns, &name);
        assert!(got.as_ref() == Some(&value), "{len}");
        assert!(wire.get(ns, &[key(&name)]) == [Some(value)], "the same over TCP");
        shm.send(Verb::ShmRelease, 7, &ShmRelease { hold }.encode(), 0);
    }
    assert_eq!(shm.get(ns, "absent"), (0, None));
    until("holds are released", || server.metric("millpond_in_flight_bytes") == 0);
    assert_eq!(server.metric("millpond_shm_clients"), 1);
    // Bytes that differ from their checksum are not stored.
    let request = PutRequest {
        namespace: ns,
        planned: Planned::default(),
        arena_offset: shm.layout.payload_offset,
        keys: vec![key("bad")],
        items: vec![PutItem { len: 10, crc: Crc32c(1) }],
        leaders: Leaders::Own,
        tags: None,
    };
    shm.send(Verb::Put, 8, &request.encode(), 10);
    let (_, meta) = shm.receive();
    assert_eq!(StatusReply::decode(&meta).unwrap().items, [ItemStatus::Corrupt]);
    drop(shm);
    until("the client's seat is free", || server.metric("millpond_shm_clients") == 0);
    server.stop();
}

#[test]
fn holds_end_by_themselves_and_with_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[limits]\nhold = \"300ms\"\n").unwrap();
    let server = TestServer::start(folder.path(), &["--config", &config.display().to_string()]);
    let mut shm = Attached::new(&server);
    let ns = Wire::connect(&server).open("model", NamespaceOptions::default()).id;
    shm.put(ns, "k", &bytes(1, 100_000));
    shm.get(ns, "k");
    // A value takes whole pages of memory.
    assert_eq!(server.metric("millpond_in_flight_bytes"), 100_000_u64.next_multiple_of(4096));
    until("the hold has expired", || server.metric("millpond_in_flight_bytes") == 0);
    assert_eq!(server.metric("millpond_shm_holds_expired_total"), 1);
    shm.get(ns, "k");
    drop(shm);
    until("the hold went with its client", || server.metric("millpond_in_flight_bytes") == 0);
}

/// A server whose pool has room for some values of [`LENT`] bytes only, and takes back what is held for long.
fn small(folder: &std::path::Path) -> TestServer {
    let config = folder.join("config.toml");
    let text = "[server]\nmemory = \"128MiB\"\n[limits]\nhold = \"300ms\"\n";
    std::fs::write(&config, text).unwrap();
    TestServer::start(folder, &["--config", &config.display().to_string()])
}

const LENT: usize = 4 << 20;

/// Puts and reads as much as the server's pool has room for three times over: whatever memory is free was used for
/// something else then.
fn churn(server: &TestServer, ns: GroupId) {
    let mut other = Attached::new(server);
    for n in 0..96 {
        let name = format!("churn {n}");
        other.put(ns, &name, &bytes(1000 + n, LENT));
        let (hold, _) = other.get(ns, &name);
        other.send(Verb::ShmRelease, 7, &ShmRelease { hold }.encode(), 0);
    }
}

#[test]
fn what_is_lent_stays_as_it_is_until_it_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = small(folder.path());
    let ns = Wire::connect(&server).open("model", NamespaceOptions::default()).id;
    let mut shm = Attached::attach(&server, true);
    let value = bytes(1, LENT);
    assert_eq!(shm.put(ns, "k", &value), ItemStatus::Ok);
    let (_, lent) = shm.borrow(ns, "k");
    // The same value as it is held for a copy: its time limit ends that, and the other one goes on.
    shm.get(ns, "k");
    until("the copy's hold ends", || server.metric("millpond_shm_holds_expired_total") == 1);
    until("the other one is noted", || server.metric("millpond_shm_lent_overdue_total") == 1);
    assert_eq!(server.metric("millpond_in_flight_bytes"), LENT as u64);
    let deleted = Wire::connect(&server).keys(Verb::Delete, ns, &[key("k")]);
    assert_eq!(deleted, [ItemStatus::Ok]);
    churn(&server, ns);
    assert!(*lent == *value, "lent");

    // Its connection ends, and the client still uses it.
    let alive = shm.alive.take();
    drop(shm);
    until("the client's seat is free", || server.metric("millpond_shm_clients") == 0);
    churn(&server, ns);
    assert!(*lent == *value, "lent, without a connection");
    assert_eq!(server.metric("millpond_in_flight_bytes"), LENT as u64);
    drop(alive);
    until("nothing is lent any more", || server.metric("millpond_in_flight_bytes") == 0);

    // Given back without waking anybody; and what was lent to a client that ends its connection and everything else at once.
    let mut shm = Attached::attach(&server, true);
    assert_eq!(shm.put(ns, "k", &value), ItemStatus::Ok);
    let (again, _) = shm.borrow(ns, "k");
    assert_eq!(server.metric("millpond_in_flight_bytes"), LENT as u64);
    let release = frame(Verb::ShmRelease, 7, &ShmRelease { hold: again }.encode(), &[]);
    assert!(shm.requests.try_push_silently(&[&release]).unwrap());
    until("the server looks", || server.metric("millpond_in_flight_bytes") == 0);
    shm.borrow(ns, "k");
    drop(shm);
    until("the client has gone", || server.metric("millpond_in_flight_bytes") == 0);
    server.stop();
}

/// Parts of files must say where they lie, each of them, in the arena; and only through the rings.
fn refuses_parts_out_of_place(server: &TestServer, shm: &mut Attached) {
    let at = PlacedChunk { chain: ChainId(1), chunk: FileChunk { data: DataId(1), index: 0 } };
    let part = WritePart { at, offset: 0, len: 10, crc: Crc32c(0) };
    let (start, end) = (shm.layout.payload_offset, shm.layout.arena_bytes);
    let request = |arena: &[u64]| {
        let (parts, arena) = (vec![part; 2], arena.to_vec());
        ChunkWriteRequest { ack: Ack::Disk, parts, tags: None, arena }.encode()
    };
    let bad = u32::from(Status::BadRequest as u16);
    for places in [&[][..], &[start, 0], &[start - 1, start], &[start, end - 9], &[u64::MAX, end]] {
        shm.send(Verb::ChunkWrite, 1, &request(places), 20);
        assert_eq!(shm.receive().0.deadline_or_status, bad, "{places:?}");
    }
    // In place: now each part is answered for itself.
    shm.send(Verb::ChunkWrite, 1, &request(&[end - 10, start]), 20);
    assert_eq!(shm.receive().0.deadline_or_status, u32::from(Status::Ok as u16));
    let mut wire = Wire::connect_unix(&server.socket);
    let reply = wire.call(Verb::ChunkWrite, &request(&[start, start + 10]), &[0; 20]).unwrap();
    assert_eq!(reply.status, Status::BadRequest);
    assert!(reply.error().contains("shared memory"), "{}", reply.error());
}

#[test]
fn hostile_clients_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start(folder.path(), &[]);
    let ns = Wire::connect(&server).open("model", NamespaceOptions::default()).id;

    // Payload outside the arena.
    let mut shm = Attached::new(&server);
    for arena_offset in [0, u64::MAX - 5, shm.layout.arena_bytes - 5] {
        let request = PutRequest {
            namespace: ns,
            planned: Planned::default(),
            arena_offset,
            keys: vec![key("k")],
            items: vec![PutItem { len: 10, crc: Crc32c(0) }],
            leaders: Leaders::Own,
            tags: None,
        };
        shm.send(Verb::Put, 1, &request.encode(), 10);
        assert_eq!(shm.receive().0.deadline_or_status, u32::from(Status::BadRequest as u16));
    }
    refuses_parts_out_of_place(&server, &mut shm);
    // Who did not ask to be lent to at first is not.
    let mut late = Attached::new(&server);
    let lend = FrameHeader { flags: FLAG_LEND, ..header_of(&frame(Verb::Ping, 1, &[], &[])) };
    assert!(late.requests.push(&[&lend.encode()], soon()).unwrap());
    assert_eq!(late.stream.recv(&mut [0; 64], soon()).unwrap(), 0);
    // A record of rubbish: the connection ends.
    assert!(shm.requests.push(&[&[1; 100]], soon()).unwrap());
    assert_eq!(shm.stream.recv(&mut [0; 64], soon()).unwrap(), 0);

    // Impossible ring counters.
    let shm = Attached::new(&server);
    shm.arena.copy_in(0, &0x7fff_fff1u32.to_le_bytes()).unwrap();
    let wake = Wire::connect_unix(&server.socket);
    drop(wake);
    let mut kept = shm;
    let _ = kept.requests.try_push(&[&[0; 8]]);
    kept.arena.copy_in(0, &0x7fff_fff1u32.to_le_bytes()).unwrap();

    // More requests than allowed, whose values are never released.
    let mut greedy = Attached::new(&server);
    assert_eq!(greedy.put(ns, "k", b"value"), ItemStatus::Ok);
    for id in 0..300 {
        let meta = get_request(ns, &[key("k")]);
        let frame = frame(Verb::Get, id, &meta, &[]);
        if !greedy.requests.try_push(&[&frame]).unwrap() {
            break;
        }
    }
    assert_eq!(greedy.stream.recv(&mut [0; 64], soon()).unwrap(), 0, "dropped");
    drop(greedy);
    drop(kept);
    until("all seats are free", || server.metric("millpond_shm_clients") == 0);
    until("nothing is held for them", || server.metric("millpond_in_flight_bytes") == 0);
    assert!(server.is_running());
}

#[test]
fn clients_that_take_no_replies_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[limits]\nstalled_client = \"300ms\"\n").unwrap();
    let server = TestServer::start(folder.path(), &["--config", &config.display().to_string()]);
    let ping = frame(Verb::Ping, 1, &vec![0; 1 << 20], &[]);
    // Many at once: those that were answered count as long as nobody takes the answers. Eight are
    // more than the ring takes; how soon the server takes them is up to the machine.
    let mut flood = Attached::new(&server);
    for _ in 0..8 {
        assert!(flood.requests.push(&[&ping], soon()).unwrap());
    }
    for _ in 0..3000 {
        if !flood.requests.try_push(&[&ping]).unwrap() {
            std::thread::yield_now();
        }
    }
    assert_eq!(flood.stream.recv(&mut [0; 64], soon()).unwrap(), 0, "dropped");
    // A few more than the ring takes.
    let mut still = Attached::new(&server);
    for _ in 0..8 {
        assert!(still.requests.push(&[&ping], soon()).unwrap());
    }
    assert_eq!(still.stream.recv(&mut [0; 64], soon()).unwrap(), 0, "dropped");
    drop((flood, still));
    until("all seats are free", || server.metric("millpond_shm_clients") == 0);
}

#[test]
fn only_unlimited_tokens_on_unix_sockets_get_the_pool() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "limited-token model\nunlimited-token\n").unwrap();
    let server = TestServer::start(folder.path(), &["--token-file", &tokens.display().to_string()]);
    let attach = ShmAttach { payload_bytes: 0, lends: true }.encode();
    let (mut tcp, reply) = Wire::try_hello(&server, b"unlimited-token");
    reply.ok();
    let reply = tcp.call(Verb::ShmAttach, &attach, &[]).unwrap();
    assert_eq!(reply.status, Status::Unsupported);
    let stream = BlockingStream::connect_unix(&server.socket, PATIENCE).unwrap();
    exchange(&stream, &frame(Verb::Hello, 1, &hello(b"limited-token"), &[]), false);
    let (header, meta, fds) = exchange(&stream, &frame(Verb::ShmAttach, 2, &attach, &[]), true);
    assert_eq!(header.deadline_or_status, u32::from(Status::Unsupported as u16), "{meta:?}");
    assert!(fds.is_empty());
}
