//! The seed corpus: real encodings, so that the fuzzer starts after the first checks.
//!
//! `cargo run --example seeds` writes them to `seeds/`, which is committed.

use std::sync::Arc;

use millpond_engine::{Engine, EngineOptions, FormatOptions, WriteMode, WriteRequest};
use millpond_env::disk::block_on;
use millpond_env::{BufferPool, FakeClock, FakeDisk, PoolOptions};
use millpond_types::cluster::{ChainId, ChainVersion, Incarnation, RoutingVersion};
use millpond_types::namespace::{LayoutDigest, NamespaceInfo, NamespaceOptions};
use millpond_types::wire::{
    ErrorReply, FLAG_REPLY, FrameHeader, GetItem, GetReply, GetRequest, Hello, HelloReply,
    ItemStatus, ItemTag, KeyInfo, KeysRequest, Leaders, ListReply, ListRequest, MatchReply,
    MatchRequest, NamespaceOpen, NamespaceRef, NamespaceSet, NamespacesReply, Planned, PutItem,
    PutRequest, ShmAttach, ShmAttachReply, ShmRelease, StatsReply, StatsRequest, StatusReply, Tags,
    Verb, Writer,
};
use millpond_types::{Ack, BlockKey, ByteSize, ChunkId, Crc32c, GroupId, Priority, Tick, Uuid128};

/// Replaces the disk's random salt in the seeds and in the targets of the engine.
pub const SALT: u64 = 5;

/// A target's name and its seeds.
pub type Seeds = (&'static str, Vec<Vec<u8>>);

/// The seeds of every target.
#[must_use]
pub fn all() -> Vec<Seeds> {
    let mut all = batches();
    all.extend(control());
    all.extend(replies());
    all.extend(other());
    all.extend(disk());
    all.extend(crate::cluster::all());
    all.extend(crate::chain::all());
    all.push(crate::fuse::all());
    all.extend(crate::files::all());
    all.extend(crate::meta::all());
    all.push(("shm_ring", rings()));
    all.push(("config", configs()));
    all
}

fn key(n: u8) -> BlockKey {
    BlockKey::new(&[n; 32]).expect("32 bytes are a key")
}

fn leaders() -> [Leaders; 3] {
    [Leaders::Own, Leaders::Runs, Leaders::Each(vec![key(1), key(1), key(3)])]
}

/// Tags of three keys, as a client of a cluster sends them.
fn tags() -> Tags {
    let item =
        |sequence| ItemTag { channel: 1, sequence, chain: ChainId(3), issued: ChainVersion(7) };
    Tags { client: 5, items: [8, 9, 10].map(item).to_vec() }
}

fn planned() -> Planned {
    Planned { by: RoutingVersion(9), needs: RoutingVersion(4) }
}

fn keys_request(leaders: Leaders) -> KeysRequest {
    let tags = (leaders == Leaders::Runs).then(tags);
    let (namespace, planned) = (GroupId(3), planned());
    KeysRequest { namespace, planned, keys: vec![key(1), key(2), key(3)], leaders, tags }
}

fn put(leaders: Leaders) -> PutRequest {
    let items = [5, 0, 4096].map(|len| PutItem { len, crc: Crc32c(9) }).to_vec();
    let keys = vec![key(1), key(2), key(3)];
    let tags = (leaders == Leaders::Runs).then(tags);
    let (namespace, planned, arena_offset) = (GroupId(1), planned(), 4096);
    PutRequest { namespace, planned, arena_offset, keys, items, leaders, tags }
}

fn get(leaders: Leaders) -> GetRequest {
    let keys = vec![key(1), key(2), key(3)];
    let (namespace, planned) = (GroupId(1), planned());
    GetRequest { namespace, planned, keys, room: vec![4096, 0, 77], leaders }
}

fn batches() -> Vec<Seeds> {
    let each = |encode: &dyn Fn(Leaders) -> Vec<u8>| leaders().map(encode).to_vec();
    vec![
        ("wire_put_request", each(&|l| put(l).encode())),
        ("wire_get_request", each(&|l| get(l).encode())),
        ("wire_keys_request", each(&|l| keys_request(l).encode())),
        (
            "wire_match_request",
            each(&|l| {
                let each = l != Leaders::Runs;
                MatchRequest { keys: keys_request(l), lease_ms: 9, each }.encode()
            }),
        ),
    ]
}

fn options() -> NamespaceOptions {
    NamespaceOptions {
        layout: LayoutDigest([7; 32]),
        ack: Ack::Disk,
        priority: Priority::High,
        ttl_seconds: 60,
        quota: ByteSize::gib(1),
        ..NamespaceOptions::default()
    }
}

fn namespaces() -> Vec<NamespaceInfo> {
    let default = NamespaceOptions::default();
    vec![
        NamespaceInfo { id: GroupId(1), name: "default".into(), options: default },
        NamespaceInfo { id: GroupId(9), name: "llama-3.1/70b@fp8".into(), options: options() },
    ]
}

fn control() -> Vec<Seeds> {
    let hello = Hello { version_min: 1, version_max: 2, client: "t".into(), token: vec![1, 2] };
    let anonymous = Hello { token: Vec::new(), ..hello.clone() };
    let open = NamespaceOpen { name: "model".into(), create: true, options: options() };
    let set = NamespaceSet {
        name: "n".into(),
        quota: Some(options().quota),
        ttl_seconds: Some(60),
        priority: None,
    };
    let list = ListRequest { namespace: GroupId(1), prefix: vec![1], cursor: 2, limit: 3 };
    vec![
        ("wire_hello", vec![hello.encode(), anonymous.encode()]),
        ("wire_namespace_open", vec![open.encode()]),
        ("wire_namespace_ref", vec![NamespaceRef { name: "n".into() }.encode()]),
        ("wire_namespace_set", vec![set.encode()]),
        ("wire_list_request", vec![list.encode()]),
        ("wire_stats_request", vec![StatsRequest { namespace: GroupId(1) }.encode()]),
        ("wire_shm_attach", vec![ShmAttach { payload_bytes: 1 << 26, lends: true }.encode()]),
        ("wire_shm_release", vec![ShmRelease { hold: 1 }.encode()]),
    ]
}

fn hello_reply() -> HelloReply {
    HelloReply {
        version: 1,
        server: "0.1.0".into(),
        node: Uuid128([1; 16]),
        boot_id: Uuid128([2; 16]),
        socket_path: "/run/millpond/millpond.sock".into(),
        shm: true,
        in_flight_max: 128,
        cluster: Uuid128([3; 16]),
        incarnation: Incarnation(4),
    }
}

fn get_reply() -> GetReply {
    let ok = GetItem { status: ItemStatus::Ok, len: 4096, crc: Crc32c(4), pool_offset: 8192 };
    let miss = GetItem { status: ItemStatus::Miss, len: 0, crc: Crc32c(0), pool_offset: 0 };
    GetReply { hold: 1, items: vec![ok, miss] }
}

fn list_reply() -> ListReply {
    let keys = vec![
        KeyInfo { key: key(5), len: 6, expires: 7, pinned: true },
        KeyInfo { key: key(6), len: 1 << 20, expires: 0, pinned: false },
    ];
    ListReply { cursor: 1, keys }
}

fn replies() -> Vec<Seeds> {
    let error = ErrorReply { retry_after_ms: 50, message: "busy: retry".into() };
    let statuses = StatusReply { items: ItemStatus::ALL.to_vec() };
    let values = vec![("chunks".into(), 1), ("bytes".into(), 1 << 40)];
    let attached = ShmAttachReply {
        pool_bytes: 1 << 30,
        arena_bytes: 1 << 26,
        ring_bytes: 1 << 16,
        payload_offset: 1 << 17,
    };
    vec![
        ("wire_error_reply", vec![error.encode()]),
        ("wire_hello_reply", vec![hello_reply().encode()]),
        ("wire_namespaces_reply", vec![NamespacesReply { namespaces: namespaces() }.encode()]),
        ("wire_status_reply", vec![statuses.encode()]),
        ("wire_get_reply", vec![get_reply().encode()]),
        ("wire_match_reply", vec![MatchReply { matched: 2, leased: 1 }.encode()]),
        ("wire_list_reply", vec![list_reply().encode()]),
        ("wire_stats_reply", vec![StatsReply { values }.encode()]),
        ("wire_shm_attach_reply", vec![attached.encode()]),
    ]
}

fn other() -> Vec<Seeds> {
    let meta = get(Leaders::Own).encode();
    let header = FrameHeader {
        flags: FLAG_REPLY,
        verb: Verb::Get as u16,
        request_id: 7,
        meta_len: u32::try_from(meta.len()).expect("a short meta"),
        payload_len: 34,
        deadline_or_status: 0,
        meta_crc: Crc32c::of(&meta),
        proof: 9,
    };
    let frame = [header.encode().as_slice(), &meta].concat();
    let mut table = Writer::default();
    for info in namespaces() {
        info.encode(&mut table);
    }
    let units = ["4096", "64KiB", "1.5 GiB", "10GB", "200us", "50ms", "2s", "24h"];
    vec![
        ("wire_frame_header", vec![frame]),
        ("namespace_table", vec![table.into_bytes()]),
        ("units", units.iter().map(|text| text.as_bytes().to_vec()).collect()),
    ]
}

/// A ring's counters and records: two whole ones, then one that is cut.
fn rings() -> Vec<Vec<u8>> {
    let record = |len: u32| {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.resize((4 + len as usize).next_multiple_of(8), 7);
        bytes
    };
    let records = [record(12), record(100)].concat();
    let tail = u32::try_from(records.len()).expect("short");
    let whole = [&tail.to_le_bytes(), &tail.to_le_bytes(), records.as_slice()].concat();
    let cut = [&8u32.to_le_bytes(), &64u32.to_le_bytes(), records.as_slice()].concat();
    vec![whole, cut]
}

fn configs() -> Vec<Vec<u8>> {
    let shown = millpond_node::config::to_text(&millpond_node::config::Config::default());
    let short = "[server]\nmemory = \"2GiB\"\nlisten = \"127.0.0.1:7440\"\n";
    vec![shown.into_bytes(), short.as_bytes().to_vec()]
}

/// Superblock, log batch and checkpoint block of a disk that an engine wrote. The identities are
/// fixed, so that every run gives the same bytes.
fn disk() -> Vec<Seeds> {
    let pages = engine_pages();
    let starting = |magic: &[u8]| -> Vec<Vec<u8>> {
        pages.iter().filter(|page| page.starts_with(magic)).take(2).cloned().collect()
    };
    vec![
        ("engine_superblock", starting(b"MILLPOND")),
        ("engine_log_batch", starting(b"MPLG")),
        ("engine_checkpoint_block", starting(b"MPCK")),
    ]
}

/// Every page that an engine wrote for a handful of chunks, without trailing zeros.
fn engine_pages() -> Vec<Vec<u8>> {
    const PAGE: usize = 4096;
    let disk = FakeDisk::new((64 << 10) + (16 << 20));
    let pool = BufferPool::new(PoolOptions::new(4 << 20)).expect("4 MiB of memory");
    let mut options = FormatOptions::new(Uuid128([1; 16]), Uuid128([2; 16]));
    options.log_salt = SALT;
    options.segment_bytes = ByteSize::mib(1);
    options.created_unix_ms = 1;
    block_on(async {
        Engine::format(&disk, &pool, options).await.expect("a format");
        let clock = Arc::new(FakeClock::new(Tick(0), 1_700_000_000_000));
        let engine = Engine::open(disk.clone(), pool.clone(), clock, EngineOptions::default());
        let engine = engine.await.expect("an engine");
        for n in 0..6u8 {
            let id = ChunkId(u128::from(n));
            engine.write(id, chunk(&pool, n)).await.expect("a write");
        }
        engine.delete(&[ChunkId(2)], Ack::Disk).await.expect("a delete");
        engine.checkpoint().await.expect("a checkpoint");
    });
    let mut pages = Vec::new();
    for block in disk.written_blocks() {
        let mut page = vec![0; PAGE];
        disk.peek(block, &mut page);
        let used = page.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        page.truncate(used);
        pages.push(page);
    }
    pages
}

fn chunk(pool: &BufferPool, n: u8) -> WriteRequest<'static> {
    let mut bytes = pool.try_alloc(100).expect("room in the pool");
    bytes.fill(n);
    let crc = Crc32c::of(&bytes);
    WriteRequest {
        bytes: bytes.freeze(),
        crc,
        attrs: b"a key",
        group: GroupId(1),
        priority: 1,
        expires: None,
        evictable: true,
        mode: WriteMode::Replace,
        ack: Ack::Disk,
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::wire::{FrameHeader, HEADER_BYTES};

    /// Every target of `Cargo.toml` has seeds, and the committed ones match the code.
    #[test]
    fn committed_seeds_are_fresh_and_complete() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        let mut targets: Vec<String> = std::fs::read_dir(root.join("fuzz_targets"))
            .unwrap()
            .map(|e| e.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        targets.sort();
        let mut seeded = Vec::new();
        for (target, seeds) in super::all() {
            for (i, seed) in seeds.iter().enumerate() {
                let path = root.join(format!("seeds/{target}/{i:02}"));
                let committed = std::fs::read(&path);
                assert!(
                    committed.is_ok_and(|c| c == *seed),
                    "{} is stale: cargo run --example seeds",
                    path.display()
                );
            }
            seeded.push(target.to_owned());
        }
        seeded.sort();
        assert_eq!(targets, seeded);
    }

    #[test]
    fn the_frame_seed_is_valid() {
        let (_, seeds) = super::other().swap_remove(0);
        let (head, meta) = seeds[0].split_first_chunk::<HEADER_BYTES>().unwrap();
        FrameHeader::decode(head).unwrap().check_meta(meta).unwrap();
    }
}
