//! Threads on a real file: bytes read under an id were written under that id, and never older than
//! its last acknowledged write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_engine::{
    Ack, Engine, EngineError, EngineOptions, ErrorKind, FormatOptions, PatchRequest, WriteMode,
    WriteRequest,
};
use millpond_env::{
    BufferPool, Clock, FileDisk, IoBackend, PoolOptions, RealClock, Rng, Runtime, RuntimeOptions,
};
use millpond_types::{ByteSize, ChunkId, Crc32c, GroupId, Uuid128};

use crate::harness::value;

const IDS: u64 = 64;

struct Shared {
    engine: Engine<FileDisk>,
    /// Per id: writes begun, and the last acknowledged one.
    begun: Vec<AtomicU64>,
    sure: Vec<AtomicU64>,
}

fn runtime(pool: &BufferPool, io: IoBackend) -> Runtime {
    let options = RuntimeOptions { io, pools: vec![pool.clone()], ..RuntimeOptions::default() };
    Runtime::new(options).unwrap()
}

/// Chunks that are patched and promoted, and never evicted.
const fn is_patched(id: u64) -> bool {
    id % 4 > 1
}

fn len_of(id: u64, n: u64) -> usize {
    if is_patched(id) {
        return 9000;
    }
    [64, 4096, 20_000, 130_000][usize::try_from((id + n) % 4).unwrap()]
}

async fn writer(s: &Shared, seed: u64, end: millpond_types::Tick) -> u64 {
    let mut rng = Rng::new(seed);
    let mut done = 0;
    while RealClock.now() < end {
        // Each writer owns the ids of its own residue, so that versions are in order.
        let id = rng.below(IDS / 2) * 2 + seed % 2;
        let at = usize::try_from(id).unwrap();
        let n = s.begun[at].fetch_add(1, Ordering::SeqCst) + 1;
        let bytes = value(id << 32 | n, len_of(id, n));
        if is_patched(id) && s.sure[at].load(Ordering::SeqCst) > 0 {
            match patch(s, id, &bytes).await {
                Ok(true) => {
                    s.sure[at].store(n, Ordering::SeqCst);
                    done += 1;
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                    continue;
                }
            }
        }
        let Ok(mut buf) = s.engine.alloc(bytes.len()) else { continue };
        buf.set_len(bytes.len());
        buf.copy_from_slice(&bytes);
        let request = WriteRequest {
            crc: Crc32c::of(&bytes),
            bytes: buf.freeze(),
            attrs: &id.to_le_bytes(),
            group: GroupId(1),
            priority: 1,
            expires: None,
            evictable: !is_patched(id),
            mode: WriteMode::Replace,
            ack: if n.is_multiple_of(2) || is_patched(id) { Ack::Disk } else { Ack::Memory },
        };
        match s.engine.write(ChunkId(id.into()), request).await {
            Ok(_) => {
                s.sure[at].store(n, Ordering::SeqCst);
                done += 1;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
    }
    done
}

/// Makes `bytes` the content of a chunk as a replica does: staged as a patch over all of it, then
/// promoted.
async fn patch(s: &Shared, id: u64, bytes: &[u8]) -> Result<bool, EngineError> {
    let (base, staged) = (ChunkId(id.into()), ChunkId(u128::from(id) | 1 << 100));
    let crc = Crc32c::of(bytes);
    let request = PatchRequest { base, offset: 0, bytes, crc, attrs: &id.to_le_bytes() };
    if s.engine.write_patch(staged, request).await?.is_none() {
        return Ok(false);
    }
    s.engine.promote(staged, base, &id.to_le_bytes()).await
}

async fn reader(s: &Shared, seed: u64, end: millpond_types::Tick) -> u64 {
    let mut rng = Rng::new(seed);
    let mut done = 0;
    while RealClock.now() < end {
        let id = rng.below(IDS);
        let at = usize::try_from(id).unwrap();
        if rng.chance(1, 4) {
            let _ = s.engine.reclaim(1 << 20);
        }
        let before = s.sure[at].load(Ordering::SeqCst);
        match s.engine.read(ChunkId(id.into())).await {
            Ok(Some(data)) => {
                let tag = u64::from_le_bytes(*data.bytes.first_chunk().unwrap());
                let n = tag & 0xffff_ffff;
                assert_eq!(tag >> 32, id, "bytes of another chunk");
                assert!(n >= before, "chunk {id} went back from {before} to {n}");
                assert!(n <= s.begun[at].load(Ordering::SeqCst));
                assert!(*data.bytes == *value(tag, len_of(id, n)), "bytes of no write");
                done += 1;
            }
            Ok(None) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
        if rng.chance(1, 8) {
            millpond_env::yield_now().await;
        }
    }
    done
}

fn run(io: IoBackend) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let disk = FileDisk::create(&path, (64 << 10) + (40 << 20)).unwrap();
    let pool = BufferPool::new(PoolOptions::new(16 << 20)).unwrap();
    let options = EngineOptions {
        checkpoint_log_bytes: ByteSize::mib(1),
        scrub_bytes_per_second: ByteSize::mib(8),
        ..EngineOptions::default()
    };
    let engine = runtime(&pool, io).block_on(async {
        let format = FormatOptions {
            segment_bytes: ByteSize::mib(1),
            ..FormatOptions::new(Uuid128([1; 16]), Uuid128([2; 16]))
        };
        Engine::format(&disk, &pool, format).await.unwrap();
        let clock = Arc::new(RealClock);
        Engine::open(disk.clone(), pool.clone(), clock, options.clone()).await.unwrap()
    });
    let counts = || (0..IDS).map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared { engine, begun: counts(), sure: counts() });
    let end = RealClock.now().plus(Duration::from_secs(2));
    let threads: Vec<_> = (0..3u64)
        .map(|core| {
            let (s, pool) = (Arc::clone(&shared), pool.clone());
            let (send, receive) = std::sync::mpsc::channel();
            let thread = millpond_env::thread(&format!("core-{core}"), move || {
                let done = runtime(&pool, io).block_on(async {
                    let other = Arc::clone(&s);
                    let aside = millpond_env::spawn(async move {
                        if core == 2 {
                            let work = other.engine.run_background();
                            let _ = millpond_env::timeout(Duration::from_secs(2), work).await;
                        }
                        reader(&other, core + 10, end).await
                    });
                    let mine = if core < 2 { writer(&s, core, end).await } else { 1 };
                    mine.min(1) + aside.await.unwrap().min(1)
                });
                let _ = send.send(done);
            });
            (thread.unwrap(), receive)
        })
        .collect();
    for (_, receive) in &threads {
        assert!(receive.recv().unwrap() >= 1, "a thread failed or did nothing");
    }
    runtime(&pool, io).block_on(async {
        assert_eq!(shared.engine.scrub_pass().await.unwrap(), 0);
        shared.engine.flush().await.unwrap();
        assert!(shared.engine.metrics().patches.get() > 0);
    });
    assert_eq!(shared.engine.metrics().corruptions.get(), 0);
    // Patched chunks are in the log alone; they come back.
    let begun = shared.begun.iter().map(|n| n.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let sure = shared.sure.iter().map(|n| n.load(Ordering::SeqCst)).collect::<Vec<_>>();
    drop(shared);
    runtime(&pool, io).block_on(async {
        let engine = Engine::open(disk, pool.clone(), Arc::new(RealClock), options).await.unwrap();
        for id in (0..IDS).filter(|id| is_patched(*id)) {
            let at = usize::try_from(id).unwrap();
            let Some(data) = engine.read(ChunkId(id.into())).await.unwrap() else {
                assert_eq!(sure[at], 0, "chunk {id} is gone");
                continue;
            };
            let n = u64::from_le_bytes(*data.bytes.first_chunk().unwrap()) & 0xffff_ffff;
            assert!((sure[at]..=begun[at]).contains(&n), "chunk {id} went back to {n}");
            assert!(*data.bytes == *value(id << 32 | n, 9000));
        }
        engine.shutdown().await.unwrap();
    });
}

#[test]
fn histories_hold_over_io_uring() {
    run(IoBackend::Auto);
}

#[test]
fn histories_hold_over_threads() {
    run(IoBackend::Threads);
}
