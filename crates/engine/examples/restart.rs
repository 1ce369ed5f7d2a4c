//! Measures a restart with many chunks: `restart [--dir DIR] [--chunks N]`.
//!
//! Empty chunks have ordinary index entries and need no data on the disk, so ten million of them go
//! through the real write path, log and checkpoint within minutes.

#![allow(clippy::disallowed_methods, reason = "a benchmark makes its own sparse file")]

use std::path::PathBuf;
use std::sync::Arc;

use millpond_engine::{Ack, Engine, EngineOptions, FormatOptions, WriteMode, WriteRequest};
use millpond_env::{
    BufferPool, Clock, FileDisk, IoBackend, PoolOptions, RealClock, Runtime, RuntimeOptions,
};
use millpond_types::{ChunkId, Crc32c, GroupId, Uuid128};

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let value = |name: &str| words.iter().position(|w| w == name).map(|i| words[i + 1].clone());
    let dir = PathBuf::from(value("--dir").unwrap_or_else(|| ".bench".to_owned()));
    let chunks: u64 = value("--chunks").map_or(10_000_000, |n| n.parse().expect("a number"));
    let path = dir.join("restart.millpond");
    // One 4 KiB slab for each chunk, and room for log and checkpoint. Slabs stay holes in the file.
    let size = (64 << 10) + (chunks * 4096 / (64 << 20) + 200) * (64 << 20);
    // Sparse, so that forty gigabytes of empty slabs take no space.
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(size).expect("a length");
    drop(file);
    let disk = FileDisk::open(&path).expect("a disk");
    let pool = BufferPool::new(PoolOptions::new(256 << 20)).expect("a pool");
    let options = EngineOptions::default();
    let runtime = Runtime::new(RuntimeOptions {
        io: IoBackend::Auto,
        pools: vec![pool.clone()],
        ..RuntimeOptions::default()
    })
    .expect("a runtime");
    runtime.block_on(async {
        let ids = FormatOptions::new(Uuid128([7; 16]), Uuid128([8; 16]));
        Engine::format(&disk, &pool, ids).await.expect("a format");
        let engine = Engine::open(disk.clone(), pool.clone(), Arc::new(RealClock), options.clone())
            .await
            .expect("an engine");
        let empty = pool.try_alloc(1).map(|mut b| {
            b.set_len(0);
            b.freeze()
        });
        let empty = empty.expect("a buffer");
        for n in 0..chunks {
            let key = format!("a key of some thirty-two bytes {n:08}");
            let request = WriteRequest {
                bytes: empty.clone(),
                crc: Crc32c::EMPTY,
                attrs: key.as_bytes(),
                group: GroupId(1),
                priority: 1,
                expires: None,
                evictable: true,
                mode: WriteMode::Replace,
                ack: Ack::Memory,
            };
            let id =
                ChunkId(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n));
            engine.write(id, request).await.expect("a write");
            if n % 4096 == 4095 {
                engine.flush().await.expect("a flush");
            }
        }
        engine.shutdown().await.expect("a shutdown");
        drop(engine);
        let start = RealClock.now();
        let engine = Engine::open(disk, pool, Arc::new(RealClock), options).await;
        let took = RealClock.now().since(start);
        let found = engine.expect("an engine").stats().chunks;
        assert_eq!(found, chunks);
        println!(
            "{{\"op\":\"restart\",\"chunks\":{chunks},\"seconds\":{:.2}}}",
            took.as_secs_f64()
        );
    });
    drop(std::fs::remove_file(path));
}
