//! Folders of servers of an earlier version, which stood alone: their values are the cluster's of the next start.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use millpond_control::manager::{NamespaceTable, TABLE_CHUNK};
use millpond_engine::{EngineOptions, FormatOptions, WriteMode, WriteRequest};
use millpond_env::{BufferPool, FileDisk, PoolOptions, RealClock, Runtime, RuntimeOptions};
use millpond_replica::Engine;
use millpond_types::{
    Ack, BlockKey, ChunkId, ChunkIds, Crc32c, GroupId, NamespaceInfo, NamespaceOptions,
    UnixSeconds, Uuid128,
};

use super::harness::{MILLPOND, TestServer, flags, until};
use super::wire::bytes;

const VALUES: u64 = 400;
const OLD: GroupId = GroupId(3);
const DROPPED: GroupId = GroupId(2);

fn key(n: u64) -> String {
    format!("key-{n:03}")
}

fn value(n: u64) -> Vec<u8> {
    bytes(n, if n == 7 { 3_000_000 } else { 1 + (n * 997 % 90_000) as usize })
}

fn request(bytes: &[u8], pool: &BufferPool) -> WriteRequest<'static> {
    let buf = if bytes.is_empty() { pool.try_alloc(1) } else { pool.try_copy(bytes) };
    WriteRequest {
        bytes: buf.unwrap().freeze(),
        crc: Crc32c::of(bytes),
        attrs: &[],
        group: GroupId::SYSTEM,
        priority: 1,
        expires: None,
        evictable: false,
        mode: WriteMode::Replace,
        ack: Ack::Disk,
    }
}

/// What such a server left: values under unkeyed ids with their keys beside them, and the namespaces in a chunk.
async fn write_old(engine: &Engine, pool: &BufferPool) {
    let info =
        NamespaceInfo { id: OLD, name: "old".to_owned(), options: NamespaceOptions::default() };
    let table =
        NamespaceTable { version: 4, next_id: 9, namespaces: vec![info], dropping: vec![DROPPED] };
    let bytes = table.encode();
    engine.write(TABLE_CHUNK, request(&bytes, pool)).await.unwrap();
    let put = async |group: GroupId, name: &str, bytes: &[u8], expires: Option<u32>| {
        let key = BlockKey::new(name.as_bytes()).unwrap();
        let id = ChunkIds::UNKEYED.block(group, &key);
        let expires = expires.map(UnixSeconds);
        let attrs = name.as_bytes();
        let write = WriteRequest { group, expires, attrs, evictable: true, ..request(bytes, pool) };
        engine.write(id, write).await.unwrap();
        id
    };
    let mut ids: Vec<ChunkId> = Vec::new();
    for n in 0..VALUES {
        ids.push(put(OLD, &key(n), &value(n), None).await);
    }
    assert!(engine.set_pinned(ids[5], true).await.unwrap());
    put(OLD, "expired", b"gone", Some(1_700_000_000)).await;
    put(OLD, "later", b"still here", Some(u32::MAX)).await;
    put(DROPPED, "dropped", b"gone too", None).await;
    engine.shutdown().await.unwrap();
}

fn make_old(data: &Path) -> Uuid128 {
    std::fs::create_dir_all(data).unwrap();
    let cluster = Uuid128::from_random([7; 16]);
    let pool = BufferPool::new(PoolOptions::new(32 << 20)).unwrap();
    let runtime = Runtime::new(RuntimeOptions::default()).unwrap();
    runtime.block_on(async {
        let disk = FileDisk::create(&data.join("millpond.data"), 2 << 30).unwrap();
        let format = FormatOptions::new(Uuid128::from_random([8; 16]), cluster);
        Engine::format(&disk, &pool, format).await.unwrap();
        let options = EngineOptions { own_removal: false, ..EngineOptions::default() };
        let engine = Engine::open(disk, pool.clone(), Arc::new(RealClock), options).await.unwrap();
        write_old(&engine, &pool).await;
    });
    cluster
}

fn kv(server: &TestServer, args: &[&str]) -> (i32, Vec<u8>) {
    let mut command = Command::new(MILLPOND);
    command.args(["kv", "--address", &server.clients.to_string(), "--namespace", "old"]);
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), output.stdout)
}

fn holds_all(server: &TestServer) {
    let listed = String::from_utf8(kv(server, &["ls"]).1).unwrap();
    assert_eq!(listed.lines().filter(|line| line.contains("key-")).count() as u64, VALUES);
    assert!(listed.contains("later") && !listed.contains("expired"), "{listed}");
    let pinned = listed.lines().find(|line| line.contains("pinned")).unwrap_or_default();
    assert!(pinned.contains(&key(5)), "{listed}");
    for n in [0, 5, 7, 8, VALUES - 1] {
        assert_eq!(kv(server, &["get", &key(n)]), (0, value(n)), "{n}");
    }
    // By another leader than the key itself, as a prompt's blocks are asked for.
    let names: Vec<String> = (0..40).map(key).collect();
    let mut args = vec!["match"];
    args.extend(names.iter().map(String::as_str));
    let matched = String::from_utf8(kv(server, &args).1).unwrap();
    assert!(matched.starts_with("40 of 40 matched"), "{matched}");
}

#[test]
fn values_of_a_server_that_stood_alone_are_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let cluster = make_old(&data);
    let server = TestServer::start(folder.path(), &[]);
    assert!(
        server.log().contains("401 values of a server of an earlier version"),
        "{}",
        server.log()
    );
    holds_all(&server);
    let status = Command::new(MILLPOND)
        .args(["admin", "status", "--server", &server.clients.to_string()])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&status.stdout).contains(&cluster.to_string()), "the disk's");
    assert_eq!(kv(&server, &["put", &key(3), "other"]).0, 1, "the key has a value");
    assert_eq!(kv(&server, &["rm", &key(3)]).0, 0);
    assert_eq!(kv(&server, &["get", &key(3)]).0, 3);
    assert_eq!(kv(&server, &["put", &key(3), "other"]).0, 0);
    server.stop();
    let server = TestServer::start(folder.path(), &[]);
    assert_eq!(kv(&server, &["get", &key(3)]), (0, b"other".to_vec()));
    assert_eq!(kv(&server, &["get", &key(4)]), (0, value(4)));
    assert_eq!(server.log().matches("of an earlier version").count(), 1, "once is enough");
    server.stop();
}

/// However often it is killed meanwhile.
#[test]
fn a_takeover_that_was_cut_off_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    make_old(&data);
    for sign in ["millpond.adopt", "meta", "millpond.node", "millpond.node"] {
        let log = std::fs::File::create(folder.path().join("cut.log")).unwrap();
        let mut child = Command::new(MILLPOND)
            .args(flags(folder.path()))
            .env("MILLPOND_TEST_DISK_BYTES_PER_SECOND", "20000000")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        until("it has begun", || data.join(sign).exists());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let server = TestServer::start(folder.path(), &[]);
    holds_all(&server);
    server.stop();
}
