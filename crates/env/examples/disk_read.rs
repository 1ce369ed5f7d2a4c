//! Random reads through the runtime and `FileDisk`, to compare with fio on the same file.
//!
//! `disk_read FILE [BLOCK_BYTES=4096] [DEPTH=64] [SECONDS=3] [auto|uring|threads] [plain]`; `plain`
//! does not register the buffers. The file must exist and be fully written. Prints operations per
//! second and latency percentiles.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use millpond_env::{
    BufferPool, Disk, FileDisk, IoBackend, PoolOptions, RealClock, Rng, Runtime, RuntimeOptions,
    spawn,
};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: disk_read FILE [BLOCK] [DEPTH] [SECONDS] [IO]");
    let mut number =
        |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (block, depth, seconds) = (number(4096), number(64), number(3));
    let io = match arguments.next().as_deref() {
        Some("threads") => IoBackend::Threads,
        Some("uring") => IoBackend::Uring,
        _ => IoBackend::Auto,
    };
    let registered = arguments.next().as_deref() != Some("plain");
    let block_len = usize::try_from(block).expect("a block fits memory");
    let bytes = (block_len * usize::try_from(depth).expect("a depth fits memory")).max(1 << 20);
    let pool = BufferPool::new(PoolOptions::new(bytes)).expect("a pool");
    let options = RuntimeOptions {
        io,
        pools: if registered { vec![pool.clone()] } else { Vec::new() },
        ..Default::default()
    };
    let runtime = Runtime::new(options).expect("a runtime");
    let disk = FileDisk::open(Path::new(&path)).expect("the file");
    let blocks = disk.capacity() / block;
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(4_000_000)));
    let stop = Rc::new(Cell::new(false));
    let start = RealClock::tick();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..depth)
            .map(|seed| {
                let (disk, pool) = (disk.clone(), pool.clone());
                let (latencies, stop) = (Rc::clone(&latencies), Rc::clone(&stop));
                spawn(async move {
                    let mut rng = Rng::new(seed);
                    while !stop.get() {
                        let begin = RealClock::tick();
                        let buf = pool.try_alloc(block_len).expect("one buffer per task");
                        let (buf, result) = disk.read(rng.below(blocks) * block, buf).await;
                        result.expect("a read");
                        drop(buf);
                        latencies.borrow_mut().push(RealClock::tick().since(begin));
                    }
                })
            })
            .collect();
        millpond_env::sleep(Duration::from_secs(seconds)).await;
        stop.set(true);
        for task in tasks {
            task.await.expect("a task");
        }
    });
    let spent = RealClock::tick().since(start).as_secs_f64();
    let mut latencies = latencies.borrow_mut();
    latencies.sort_unstable();
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 1000].as_micros();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = latencies.len() as f64 / spent;
    println!(
        "{:?} registered={} block={block} depth={depth}: {rate:.0} IOPS, latency us p50 {} p99 {} p99.9 {}",
        runtime.backend(),
        runtime.buffers_registered(),
        at(500),
        at(990),
        at(999),
    );
}
