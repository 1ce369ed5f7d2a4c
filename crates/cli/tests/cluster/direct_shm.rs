//! Files without a mount on the host of a node: bytes go through memory that both share.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use millpond_client::{
    Body, ChunkAt, Client, ClientOptions, Expect, LentBytes, OpenOptions, OwnBytes, OwnMeta,
    OwnNode, Put, PutObject, Room, Transport, TransportInUse, Value, Volume, VolumeOptions,
};
use millpond_env::{BufferPool, PoolOptions, Rng};
use millpond_types::meta::{Answered, Caller, MetaOp, MetaReply, MetaRequest, keys};
use millpond_types::wire::{ChunkBases, ChunkReadRequest};
use millpond_types::{Crc32c, DataId, FileChunk};

use crate::direct::random;
use crate::metrics::{metrics, value};
use crate::process::{Chains as _, PATIENCE, Process, until};

const MIB: usize = 1 << 20;

/// A cluster of one node with a Unix socket.
struct Host {
    node: Process,
    _folder: tempfile::TempDir,
}

impl Host {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("node.sock");
        let flags = ["--manager", "--form-nodes", "1", "--replicas", "1", "--size", "2GiB"];
        let more = ["--http", "127.0.0.1:0", "--socket", socket.to_str().unwrap()];
        let node = Process::start(folder.path(), "node", &[&flags[..], &more].concat());
        let host = Self { node, _folder: folder };
        host.await_chains();
        host
    }

    fn await_chains(&self) {
        let whole = || self.node.status().is_some_and(|status| status.is_whole()).then_some(());
        until("chains", whole);
        until("every replica serves", || self.node.all_serve().then_some(()));
    }

    fn restart(&mut self) {
        self.node.kill();
        self.node.run();
    }

    /// A client with little room in its arenas.
    fn client(&self, transport: Transport) -> Client {
        let mut options = ClientOptions::new(self.node.address.parse().unwrap());
        options.transport = transport;
        options.deadline = PATIENCE / 3;
        options.arena_bytes = MIB as u64;
        Client::new(options).unwrap()
    }

    /// Payload that the node received through shared memory, and altogether.
    fn received(&self) -> (u64, u64) {
        let page = metrics(&self.node.http);
        let all = value(&page, "millpond_receive_bytes_total");
        (value(&page, "millpond_shm_receive_bytes_total"), all)
    }
}

#[test]
fn bytes_of_files_come_through_shared_memory() {
    let host = Host::start();
    let client = host.client(Transport::Shm);
    let volume = Volume::open(client.clone(), "shm").unwrap();
    let file = volume.open_file("file", &OpenOptions::CREATE).unwrap();
    let bytes = random(&mut Rng::new(8), 3 << 20);
    file.write_batch(&[(0, &bytes)]).unwrap();
    let mut rooms: Vec<Vec<u8>> = vec![vec![0; 50_000]; 64];
    let each = rooms.iter_mut().enumerate();
    let mut batch: Vec<(u64, &mut [u8])> =
        each.map(|(n, room)| (n as u64 * 48_000, &mut room[..])).collect();
    file.read_batch(&mut batch).unwrap();
    for (n, room) in rooms.iter().enumerate() {
        let there = &bytes[n * 48_000..][..50_000];
        assert!(room == there, "range {n}");
    }
    assert_eq!(client.server_info().unwrap().transport, TransportInUse::Shm);
}

/// What a write moves through shared memory, and what over the socket.
#[test]
fn bytes_of_files_go_through_shared_memory_where_they_fit() {
    let host = Host::start();
    let volume = Volume::open(host.client(Transport::Shm), "shm").unwrap();
    let file = volume.open_file("file", &OpenOptions::CREATE).unwrap();
    let model = random(&mut Rng::new(3), 9 * MIB);
    let cost = |write: &dyn Fn()| {
        let before = host.received();
        write();
        let after = host.received();
        ((after.0 - before.0), (after.1 - before.1))
    };
    let parts: Vec<(u64, &[u8])> =
        (0..9).map(|n| (n as u64 * 100_000, &model[n * 100_000..][..100_000])).collect();
    let ring = cost(&|| file.write_batch(&parts).unwrap());
    assert_eq!(ring, (900_000, 900_000));
    // More than the arena has goes over the socket.
    let socket = cost(&|| file.write_batch(&[(900_000, &model[900_000..6 * MIB])]).unwrap());
    assert_eq!(socket, (0, 6 * MIB as u64 - 900_000));

    // Registered memory is read where it lies, however long it is.
    let mut region = volume.register(4 * MIB).unwrap();
    assert!(region.is_shared());
    region.copy_from_slice(&model[5 * MIB..]);
    let from = |at: usize| (5 * MIB + at) as u64;
    let registered = cost(&|| {
        let half = 2 * MIB + 5;
        file.write_batch(&[(from(half), &region[half..]), (from(0), &region[..half])]).unwrap();
    });
    assert_eq!(registered, (4 * MIB as u64, 4 * MIB as u64));
    let mut seen = vec![0; 9 * MIB];
    assert_eq!(file.read_batch(&mut [(0, &mut seen)]).unwrap(), [9 * MIB]);
    assert!(seen == model);

    // Two batches from one region at the same time: one of them finds its connection in use.
    let mut second = region;
    let mut first = second.split_to(2 * MIB).unwrap();
    first.fill(1);
    second.fill(2);
    let pending = [file.submit_write(vec![(0, first)]), file.submit_write(vec![(3, second)])];
    let [mut first, second] = pending.map(|pending| pending.wait().unwrap().pop().unwrap());
    assert!(second.iter().all(|byte| *byte == 2));
    assert_eq!(file.read_batch(&mut [(0, &mut first[..])]).unwrap(), [2 * MIB]);
    assert_eq!(first[..3], [1; 3]);
    assert!(first.is_shared() && first[3..].iter().all(|byte| *byte == first[3]));
}

/// A node that dies takes its side of the memory along: writes go on as from any other.
#[test]
fn writes_survive_the_node_whose_memory_they_use() {
    let mut host = Host::start();
    let options = VolumeOptions { workers: 3, ..VolumeOptions::new("shm") };
    let volume = Volume::with(host.client(Transport::Auto), options).unwrap();
    let file = volume.open_file("file", &OpenOptions::CREATE).unwrap();
    let mut regions: Vec<_> = (0..2).map(|_| volume.register(MIB).unwrap()).collect();
    assert!(regions.iter().all(millpond_client::Region::is_shared));
    let done = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let writers = regions.iter_mut().enumerate().map(|(n, region)| {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                let mut round = 0_u8;
                while !done.load(Ordering::Relaxed) {
                    round = round % 250 + 1;
                    region.fill(round);
                    // From registered memory, and a copy through the arena of another connection.
                    file.write_batch(&[((2 * n * MIB) as u64, &region[..])]).unwrap();
                    let copy = vec![round; MIB / 2];
                    file.write_batch(&[(((2 * n + 1) * MIB) as u64, &copy)]).unwrap();
                }
                round
            })
        });
        let writers: Vec<_> = writers.collect();
        thread::sleep(std::time::Duration::from_millis(300));
        host.restart();
        host.await_chains();
        thread::sleep(std::time::Duration::from_millis(300));
        done.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<u8>>()
    });
    assert!(regions.iter().all(|region| !region.is_shared()), "the node knows them no more");
    for (n, round) in rounds.into_iter().enumerate() {
        let mut seen = vec![0; MIB + MIB / 2];
        let at = (2 * n * MIB) as u64;
        assert_eq!(file.read_batch(&mut [(at, &mut seen)]).unwrap(), [seen.len()]);
        assert!(seen.iter().all(|byte| *byte == round), "writer {n}");
    }
    let (before, all) = host.received();
    assert!(before > 0 && before <= all, "the arenas of new connections are in use");
    assert!(volume.register(MIB).unwrap().is_shared());
}

/// What a chunk has in full is lent, and stays readable after its node was killed; the rest comes into its room.
#[test]
fn whole_parts_of_chunks_are_lent() {
    let mut host = Host::start();
    let mut options = ClientOptions::new(host.node.address.parse().unwrap());
    options.lends = true;
    let client = Client::new(options).unwrap();
    let chains = client.chains(None).unwrap().chains;
    let part = |index: u32, offset: u32| {
        let chunk = FileChunk { data: DataId(4242), index };
        let chain = chains[index as usize % chains.len()].id;
        ChunkAt { chain, chunk, offset, bases: ChunkBases::NONE, solid: 0 }
    };
    let bytes = random(&mut Rng::new(9), 300_000);
    let values = [Value::One(&bytes[..]), Value::One(&bytes[..100_000])];
    client.write_chunks(&[part(0, 0), part(1, 0)], &values, None).unwrap();
    // All of one, the middle of it, one that ends before its room, one that is not there.
    let parts = [part(0, 0), part(0, 70_001), part(1, 50_000), part(2, 0)];
    let mut memory = [300_000, 100_000, 100_000, 9].map(|len| vec![9; len]);
    let read = |memory: &mut [Vec<u8>], client: &Client| {
        let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(|it| Room::One(it)).collect();
        client.lend_chunks(&parts, &mut rooms, None).unwrap()
    };
    let lent = read(&mut memory, &client);
    let is_lent: Vec<bool> = lent.iter().map(Option::is_some).collect();
    assert_eq!(is_lent, [true, true, false, false]);
    assert!(memory[0].iter().all(|byte| *byte == 9), "its room stays as it is");
    let is_right = |lent: &[Option<LentBytes>]| {
        let [Some(all), Some(middle), ..] = lent else { return false };
        *all.as_ref() == bytes && *middle.as_ref() == bytes[70_001..170_001]
    };
    assert!(is_right(&lent));
    assert!(memory[2][..50_000] == bytes[50_000..100_000]);
    assert!(memory[2][50_000..].iter().chain(&memory[3]).all(|byte| *byte == 0));
    let held = || value(&metrics(&host.node.http), "millpond_in_flight_bytes");
    assert!(held() > 0, "while they are used");
    host.restart();
    host.await_chains();
    assert!(is_right(&lent), "the node is another one now");
    drop(lent);
    assert!(is_right(&read(&mut memory, &client)));
    until("all is given back", || {
        (value(&metrics(&host.node.http), "millpond_in_flight_bytes") == 0).then_some(())
    });
    // Who is not lent to has all in its rooms.
    let plain = host.client(Transport::Shm);
    assert!(read(&mut memory, &plain).iter().all(Option::is_none));
    assert!(memory[0] == bytes && memory[1] == bytes[70_001..170_001]);
}

/// A meta in this process that executes everything, and loses every other answer.
#[derive(Debug)]
struct Forgetful {
    client: Client,
    asked: AtomicUsize,
}

impl OwnMeta for Forgetful {
    fn answer<'a>(
        &'a self,
        request: &'a MetaRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Answered>> + Send + 'a>> {
        let done = self.client.meta(request, None).ok();
        let is_told = self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        Box::pin(std::future::ready(done.filter(|_| is_told)))
    }

    fn ask(&self, _request: &MetaRequest) -> Option<Answered> {
        None
    }
}

/// Objects that are put by the meta of this process, which loses answers: each is put once, also where it is asked again.
#[test]
fn questions_are_answered_once_also_where_an_answer_was_lost() {
    let host = Host::start();
    let asked = AtomicUsize::new(0);
    let own = Arc::new(Forgetful { client: host.client(Transport::Auto), asked });
    let mut options = ClientOptions::new(host.node.address.parse().unwrap());
    options.own_meta = Some(Arc::clone(&own) as Arc<dyn OwnMeta>);
    let volume = Volume::open(Client::new(options).unwrap(), "questions").unwrap();
    volume.make_bucket("bucket", b"").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut lost = 0;
    for n in 0..200 {
        let key = format!("key-{n}");
        let put = PutObject {
            bucket: "bucket",
            key: key.as_bytes(),
            body: Body::Bytes(key.as_bytes()),
            attachment: b"a",
            expect: Expect::Absent,
            replicas: 0,
            origin: None,
        };
        let question = volume.question_put(&put).unwrap();
        let answer = runtime.block_on(volume.ask_here(&question));
        lost += usize::from(answer.is_none());
        let reply = answer.unwrap_or_else(|| volume.ask(question)).unwrap();
        let done = volume.put_done(reply).unwrap();
        assert!(matches!(done, Put::Done { .. }), "{key} was put before it was put");
        let look_up = volume.question_look_up("bucket", key.as_bytes(), true).unwrap();
        let found = volume.looked_up(volume.ask(look_up).unwrap()).unwrap();
        assert_eq!(found.object.unwrap().bytes.as_deref(), Some(key.as_bytes()));
    }
    assert_eq!((lost, own.asked.load(Ordering::Relaxed)), (100, 200));
}

/// How a node in this process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Right,
    /// The last part lacks a byte.
    Short,
    /// A byte of the last part is another one.
    Wrong,
    /// One part too few.
    Few,
    Silent,
}

/// A node that has its bytes from a real one.
#[derive(Debug)]
struct Moody {
    client: Client,
    pool: BufferPool,
    mood: parking_lot::Mutex<Mood>,
}

impl OwnNode for Moody {
    fn read(
        &self,
        request: ChunkReadRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<OwnBytes>>> + Send + '_>> {
        let mood = *self.mood.lock();
        let last = request.parts.len() - 1;
        let give = |(n, part): (usize, &millpond_types::wire::ReadPart)| {
            let mut bytes = vec![0; part.len as usize];
            let (chain, chunk) = (part.at.chain, part.at.chunk);
            let at = ChunkAt { chain, chunk, offset: part.offset, bases: part.bases, solid: 0 };
            let held = self.client.read_chunks(&[at], &mut [Room::One(&mut bytes)], None).unwrap();
            bytes.truncate(held[0] as usize);
            let crc = Crc32c::of(&bytes);
            match mood {
                Mood::Short if n == last => drop(bytes.pop()),
                Mood::Wrong if n == last => bytes[0] ^= 1,
                _ => {}
            }
            let crc = if mood == Mood::Short { Crc32c::of(&bytes) } else { crc };
            OwnBytes::new(self.pool.try_copy(&bytes).unwrap().freeze(), crc, Arc::new(()))
        };
        let mut found: Vec<OwnBytes> = request.parts.iter().enumerate().map(give).collect();
        if mood == Mood::Few {
            found.pop();
        }
        Box::pin(std::future::ready((mood != Mood::Silent).then_some(found)))
    }
}

/// What a node in this process gives is taken whole and sound, or not at all; and only where the file is known to lie so.
#[test]
fn bytes_of_the_own_node_are_taken_only_whole_and_sound() {
    let host = Host::start();
    let pool = BufferPool::new(PoolOptions::new(16 << 20)).unwrap();
    let client = host.client(Transport::Auto);
    let own = Arc::new(Moody { client, pool, mood: parking_lot::Mutex::new(Mood::Right) });
    let mut options = ClientOptions::new(host.node.address.parse().unwrap());
    options.own_node = Some(Arc::clone(&own) as Arc<dyn OwnNode>);
    let volume = Volume::open(Client::new(options).unwrap(), "here").unwrap();
    let file = volume.open_file("file", &OpenOptions::CREATE).unwrap();
    let model = random(&mut Rng::new(5), MIB + 9);
    file.write_batch(&[(0, &model)]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let here = |file: &millpond_client::File, offset: usize, len: usize| {
        // What was heard of it is not older than a second.
        file.stat().unwrap();
        let found = runtime.block_on(file.read_here(offset as u64, len))?;
        Some(found.iter().flat_map(|it| it.as_ref().to_vec()).collect::<Vec<u8>>())
    };
    for (offset, len) in [(0, MIB + 9), (MIB / 4 - 1, 2), (MIB, 9), (5, 5)] {
        assert!(here(&file, offset, len).unwrap() == model[offset..][..len], "{offset}, {len}");
    }
    assert!(here(&file, 9, MIB + 1).is_none(), "behind the end");
    for mood in [Mood::Short, Mood::Wrong, Mood::Few, Mood::Silent] {
        *own.mood.lock() = mood;
        assert!(here(&file, 1, MIB).is_none(), "{mood:?}");
    }
    *own.mood.lock() = Mood::Right;
    // Of a second and more ago it is not known whether it is so still.
    thread::sleep(std::time::Duration::from_millis(1_100));
    assert!(runtime.block_on(file.read_here(0, 9)).is_none());
    // A hole, bytes that lie in the store, and chunks that a clone has too.
    let holes = volume.open_file("holes", &OpenOptions::CREATE).unwrap();
    holes.set_len(MIB as u64).unwrap();
    assert!(here(&holes, 0, MIB).is_none());
    volume.write_file("small", b"bytes", 0o600).unwrap();
    let small = volume.open_file("small", &OpenOptions::READ).unwrap();
    assert!(here(&small, 0, 5).is_none());
    volume.clone_file("file", "clone").unwrap();
    let clone = volume.open_file("clone", &OpenOptions::READ).unwrap();
    assert!(here(&clone, 0, MIB).is_none());
    let write_only = OpenOptions { read: false, ..OpenOptions::UPDATE };
    let unread = volume.open_file("file", &write_only).unwrap();
    assert!(here(&unread, 0, 9).is_none());
}

/// A process ends the session that its note names, if it is of that name: the number alone may be anybody's, since another
/// cluster counts from the same one.
#[test]
fn a_note_ends_the_session_that_it_was_written_for_and_no_other() {
    let host = Host::start();
    let client = host.client(Transport::Auto);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let open = |name: &str| {
        let options = VolumeOptions { note: Some(path(name)), ..VolumeOptions::new("noted") };
        Volume::with(client.clone(), options).unwrap()
    };
    let lives = |session: u64| {
        let caller = Caller::checked(0, 0);
        let op = MetaOp::RecordsAt { keys: vec![keys::session(session)] };
        let request = MetaRequest { session: 0, sequence: 0, hour: 0, caller, op };
        let answer = client.meta(&request, None).unwrap().answer;
        matches!(answer, Ok(MetaReply::Values(found)) if found[0].is_some())
    };
    let _first = open("first");
    let text = std::fs::read_to_string(path("first")).unwrap();
    let session: u64 = text.split_once(' ').unwrap().0.parse().unwrap();
    assert!(lives(session), "{text}");
    let others = format!("{session} noted 0123456789abcdef\n");
    std::fs::write(path("of another cluster"), others).unwrap();
    let _second = open("of another cluster");
    assert!(lives(session), "only the number is right");
    // As left behind by a process that was killed.
    std::fs::write(path("killed"), &text).unwrap();
    let _third = open("killed");
    assert!(!lives(session));
}

#[test]
fn memory_is_not_shared_where_no_node_shares_any() {
    let host = Host::start();
    let volume = Volume::open(host.client(Transport::Tcp), "tcp").unwrap();
    let mut region = volume.register(MIB).unwrap();
    assert!(!region.is_shared());
    region.fill(6);
    let file = volume.open_file("file", &OpenOptions::CREATE).unwrap();
    file.write_batch(&[(0, &region[..])]).unwrap();
    assert_eq!(host.received(), (0, MIB as u64));
    region.fill(0);
    assert_eq!(file.read_batch(&mut [(0, &mut region[..])]).unwrap(), [MIB]);
    assert!(region.iter().all(|byte| *byte == 6));

    let shm = Volume::open(host.client(Transport::Shm), "shm").unwrap();
    let error = shm.register(300 * MIB).unwrap_err().to_string();
    assert!(error.contains("limits.shm_arena"), "{error}");
    assert!(shm.register(0).unwrap_err().to_string().contains("bytes"));
}
