//! The seed corpus: real encodings, so that the fuzzer starts behind the first checks.
//!
//! `cargo run --example seeds` writes them to `seeds/`, which is committed.

use millpond_types::namespace::{LayoutDigest, NamespaceInfo, NamespaceOptions};
use millpond_types::wire::{
    ErrorReply, FLAG_REPLY, FrameHeader, GetItem, GetReply, GetRequest, Hello, HelloReply,
    ItemStatus, KeyInfo, KeysRequest, Leaders, ListReply, ListRequest, MatchReply, MatchRequest,
    NamespaceOpen, NamespaceRef, NamespacesReply, PutItem, PutRequest, ShmAttach, ShmAttachReply,
    ShmRelease, StatsReply, StatsRequest, StatusReply, Verb, Writer,
};
use millpond_types::{Ack, BlockKey, ByteSize, Crc32c, GroupId, Priority, Uuid128};

/// A target's name and its seeds.
pub type Seeds = (&'static str, Vec<Vec<u8>>);

/// The seeds of every target.
#[must_use]
pub fn all() -> Vec<Seeds> {
    let mut all = batches();
    all.extend(control());
    all.extend(replies());
    all.extend(other());
    all
}

fn key(n: u8) -> BlockKey {
    BlockKey::new(&[n; 32]).expect("32 bytes are a key")
}

fn leaders() -> [Leaders; 3] {
    [Leaders::Own, Leaders::Runs, Leaders::Each(vec![key(1), key(1), key(3)])]
}

fn keys_request(leaders: Leaders) -> KeysRequest {
    KeysRequest { namespace: GroupId(3), keys: vec![key(1), key(2), key(3)], leaders }
}

fn put(leaders: Leaders) -> PutRequest {
    let items = [5, 0, 4096].map(|len| PutItem { len, crc: Crc32c(9) }).to_vec();
    let keys = vec![key(1), key(2), key(3)];
    PutRequest { namespace: GroupId(1), arena_offset: 4096, keys, items, leaders }
}

fn get(leaders: Leaders) -> GetRequest {
    let keys = vec![key(1), key(2), key(3)];
    GetRequest { namespace: GroupId(1), keys, room: vec![4096, 0, 77], leaders }
}

fn batches() -> Vec<Seeds> {
    let each = |encode: &dyn Fn(Leaders) -> Vec<u8>| leaders().map(encode).to_vec();
    vec![
        ("wire_put_request", each(&|l| put(l).encode())),
        ("wire_get_request", each(&|l| get(l).encode())),
        ("wire_keys_request", each(&|l| keys_request(l).encode())),
        (
            "wire_match_request",
            each(&|l| MatchRequest { keys: keys_request(l), lease_ms: 9 }.encode()),
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
    let list = ListRequest { namespace: GroupId(1), prefix: vec![1], cursor: 2, limit: 3 };
    vec![
        ("wire_hello", vec![hello.encode(), anonymous.encode()]),
        ("wire_namespace_open", vec![open.encode()]),
        ("wire_namespace_ref", vec![NamespaceRef { name: "n".into() }.encode()]),
        ("wire_list_request", vec![list.encode()]),
        ("wire_stats_request", vec![StatsRequest { namespace: GroupId(1) }.encode()]),
        ("wire_shm_attach", vec![ShmAttach { payload_bytes: 1 << 26 }.encode()]),
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
    };
    let frame = [header.encode().as_slice(), &meta].concat();
    let mut table = Writer::default();
    namespaces().iter().for_each(|info| info.encode(&mut table));
    let units = ["4096", "64KiB", "1.5 GiB", "10GB", "200us", "50ms", "2s", "24h"];
    vec![
        ("wire_frame_header", vec![frame]),
        ("namespace_table", vec![table.into_bytes()]),
        ("units", units.iter().map(|text| text.as_bytes().to_vec()).collect()),
    ]
}

#[cfg(test)]
mod tests {
    use millpond_types::wire::{FrameHeader, HEADER_BYTES};

    /// Every target of `Cargo.toml` has seeds, and the committed ones are what the code makes.
    #[test]
    fn committed_seeds_are_fresh_and_complete() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
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
