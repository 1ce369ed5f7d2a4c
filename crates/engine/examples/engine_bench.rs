//! Measures one engine on a real file; prints one JSON object per operation.
//!
//! `engine_bench --dir DIR [--size BYTES] [--secs N] [--cores N] [--only OP]`

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "printed figures"
)]

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millpond_engine::{Ack, Engine, EngineOptions, FormatOptions, WriteMode, WriteRequest};
use millpond_env::{
    BufferPool, Clock, FileDisk, IoBackend, PoolOptions, RealClock, Rng, Runtime, RuntimeOptions,
    SharedBuf,
};
use millpond_types::{ByteSize, ChunkId, Crc32c, GroupId, Uuid128};

type Disk = Engine<FileDisk>;

struct Args {
    dir: PathBuf,
    size: u64,
    secs: u64,
    cores: usize,
    only: Option<String>,
}

fn args() -> Args {
    let mut out = Args { dir: ".bench".into(), size: 4 << 30, secs: 3, cores: 1, only: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().expect("every option has a value");
        match word.as_str() {
            "--dir" => out.dir = value.into(),
            "--size" => out.size = value.parse::<ByteSize>().expect("a size").0,
            "--secs" => out.secs = value.parse().expect("seconds"),
            "--cores" => out.cores = value.parse().expect("a number of cores"),
            "--only" => out.only = Some(value),
            _ => panic!("unknown option {word}"),
        }
    }
    out
}

fn runtime(pool: &BufferPool) -> Runtime {
    Runtime::new(RuntimeOptions {
        io: IoBackend::Auto,
        pools: vec![pool.clone()],
        ..RuntimeOptions::default()
    })
    .expect("a runtime")
}

#[derive(Clone, Copy)]
enum Op {
    Read,
    Put,
}

/// One row of the table.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    op: Op,
    len: usize,
    queue: usize,
}

const ROWS: &[Row] = &[
    Row { name: "randread", op: Op::Read, len: 4096, queue: 64 },
    Row { name: "put", op: Op::Put, len: 4096, queue: 64 },
    Row { name: "put", op: Op::Put, len: 4096, queue: 1 },
    Row { name: "read", op: Op::Read, len: 1 << 20, queue: 8 },
    Row { name: "read", op: Op::Read, len: 256 << 10, queue: 16 },
    Row { name: "put", op: Op::Put, len: 1 << 20, queue: 8 },
    Row { name: "put", op: Op::Put, len: 1 << 20, queue: 1 },
];

fn id_of(len: usize, n: u64) -> ChunkId {
    // Spread as a hash would.
    let mut rng = Rng::new(n ^ (len as u64) << 40);
    ChunkId(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
}

fn payload(e: &Disk, len: usize) -> (SharedBuf, Crc32c) {
    let mut buf = e.alloc(len).expect("a buffer");
    let mut rng = Rng::new(1);
    for word in buf.as_full_mut().as_chunks_mut::<8>().0 {
        *word = rng.next_u64().to_le_bytes();
    }
    buf.set_len(len);
    let crc = Crc32c::of(&buf);
    (buf.freeze(), crc)
}

async fn put(e: &Disk, id: ChunkId, (bytes, crc): &(SharedBuf, Crc32c), ack: Ack) {
    let request = WriteRequest {
        bytes: bytes.clone(),
        crc: *crc,
        attrs: b"a key of some thirty-two bytes..",
        group: GroupId(1),
        priority: 1,
        expires: None,
        evictable: true,
        mode: WriteMode::Replace,
        ack,
    };
    e.write(id, request).await.expect("a write");
}

/// Runs one row on this core; returns operations and their latencies in microseconds.
async fn run(e: Disk, row: Row, chunks: u64, secs: u64, seed: u64) -> Vec<u32> {
    let end = RealClock.now().plus(Duration::from_secs(secs));
    let took = Rc::new(Cell::new(Vec::new()));
    let mut tasks = Vec::new();
    for task in 0..row.queue as u64 {
        let (e, took) = (e.clone(), Rc::clone(&took));
        tasks.push(millpond_env::spawn(async move {
            let mut rng = Rng::new(seed << 32 | task);
            let data = payload(&e, row.len);
            let mut mine = Vec::new();
            loop {
                let start = RealClock.now();
                if start >= end {
                    break;
                }
                let id = id_of(row.len, rng.next_u64() % chunks);
                match row.op {
                    Op::Read => {
                        let got = e.read(id).await.expect("a read").expect("a chunk");
                        assert_eq!(got.bytes.len(), row.len);
                    }
                    Op::Put => {
                        let mut own = e.alloc(row.len).expect("a buffer");
                        own.copy_from_slice(&data.0);
                        put(&e, id, &(own.freeze(), data.1), Ack::Disk).await;
                    }
                }
                let us = RealClock.now().since(start).as_micros();
                mine.push(u32::try_from(us).unwrap_or(u32::MAX));
            }
            let mut all = took.take();
            all.extend(mine);
            took.set(all);
        }));
    }
    for task in tasks {
        task.await.expect("a task");
    }
    took.take()
}

async fn fill(e: &Disk, row: Row, chunks: u64) {
    let data = payload(e, row.len);
    for n in 0..chunks {
        // Each chunk gets a buffer of its own, as in a server; a shared buffer could never leave
        // memory.
        let mut own = e.alloc(row.len).expect("a buffer");
        own.copy_from_slice(&data.0);
        put(e, id_of(row.len, n), &(own.freeze(), data.1), Ack::Memory).await;
        if n % 64 == 0 {
            millpond_env::yield_now().await;
        }
    }
    e.flush().await.expect("a flush");
}

fn measure(e: &Disk, pool: &BufferPool, row: Row, args: &Args) {
    // Half the disk, so that copy-on-write finds free slabs without evicting.
    let chunks = (args.size / 2 / row.len as u64).min(400_000);
    let (engine, secs) = (e.clone(), args.secs);
    runtime(pool).block_on(async {
        let background = engine.clone();
        let work = millpond_env::spawn(async move { background.run_background().await });
        fill(&engine, row, chunks).await;
        if matches!(row.op, Op::Put) {
            // Every chunk has been written once; later writes overwrite, as in fio.
            drop(run(engine.clone(), row, chunks, 1, 99).await);
        }
        work.abort();
    });
    let start = RealClock.now();
    let others: Vec<_> = (1..args.cores as u64)
        .map(|core| {
            let (e, pool) = (e.clone(), pool.clone());
            let (send, receive) = std::sync::mpsc::channel();
            let thread = millpond_env::thread(&format!("core-{core}"), move || {
                let took = runtime(&pool).block_on(run(e, row, chunks, secs, core));
                drop(send.send(took));
            });
            (thread.expect("a thread"), receive)
        })
        .collect();
    let mut took = runtime(pool).block_on(run(e.clone(), row, chunks, secs, 0));
    for (thread, receive) in others {
        took.extend(receive.recv().expect("a result"));
        drop(thread);
    }
    let elapsed = RealClock.now().since(start).as_secs_f64();
    took.sort_unstable();
    let rate = took.len() as f64 / elapsed;
    let at = |q: f64| took[((took.len() - 1) as f64 * q) as usize];
    println!(
        "{{\"op\":\"{}\",\"size\":{},\"queue\":{},\"cores\":{},\"ops_s\":{:.0},\"mb_s\":{:.1},\"p50_us\":{},\"p99_us\":{}}}",
        row.name,
        row.len,
        row.queue,
        args.cores,
        rate,
        rate * row.len as f64 / 1e6,
        at(0.5),
        at(0.99)
    );
    let m = e.metrics();
    stages(m);
    eprintln!(
        "  hits {} disk {} commits {} records {} evictions {}",
        m.dram_hits.get(),
        m.disk_hits.get(),
        m.commits.get(),
        m.commit_records.get(),
        m.evictions.get()
    );
}

/// Prints the time spent in each stage, summed over the whole process.
fn stages(m: &millpond_engine::EngineMetrics) {
    let all = [
        ("lock", &m.queue),
        ("read", &m.disk_read),
        ("write", &m.disk_write),
        ("commit", &m.commit_wait),
        ("flush", &m.log_flush),
    ];
    for (name, stage) in all {
        let s = stage.snapshot();
        let mean = s.sum_us.checked_div(s.count()).unwrap_or(0);
        eprintln!("  {name}: {} times, mean {mean} us, p50 {} us", s.count(), s.quantile_us(500));
    }
}

fn main() {
    let args = args();
    let path = args.dir.join("engine_bench.millpond");
    let disk =
        FileDisk::create(&path, (64 << 10) + args.size / (64 << 20) * (64 << 20)).expect("a disk");
    let pool = BufferPool::new(PoolOptions::new(96 << 20)).expect("a pool");
    let engine = runtime(&pool).block_on(async {
        Disk::format(&disk, &pool, FormatOptions::new(Uuid128([7; 16]), Uuid128([8; 16])))
            .await
            .expect("a format");
        Disk::open(disk, pool.clone(), Arc::new(RealClock), EngineOptions::default())
            .await
            .expect("an engine")
    });
    for row in ROWS {
        let name = format!("{}-{}-{}", row.name, row.len, row.queue);
        if args.only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        measure(&engine, &pool, *row, &args);
        runtime(&pool).block_on(async {
            engine.remove_group(GroupId(1)).await.expect("a removal");
            engine.checkpoint().await.expect("a checkpoint");
        });
    }
    drop(engine);
    drop(std::fs::remove_file(path));
}
