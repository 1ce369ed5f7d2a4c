//! Shared parts of the tests: small disks, distinguishable values, joined futures.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

pub(crate) use millpond_engine::{
    Ack, ChunkInfo, Cursor, Engine, EngineError, EngineOptions, ErrorKind, FormatOptions,
    PatchRequest, WriteMode, WriteOutcome, WriteRequest,
};
pub(crate) use millpond_env::disk::{Fault, FaultKind, block_on};
use millpond_env::{BufferPool, Disk, FakeClock, FakeDisk, PoolOptions, SharedBuf};
use millpond_types::{ByteSize, ChunkId, Crc32c, GroupId, Tick, Uuid128};

pub(crate) type Fake = Engine<FakeDisk>;

pub(crate) const SEGMENT: u64 = 1 << 20;

/// A disk with its own memory and clock.
#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) disk: FakeDisk,
    pub(crate) pool: BufferPool,
    pub(crate) clock: FakeClock,
    pub(crate) options: EngineOptions,
}

impl Rig {
    /// A formatted disk of `segments` segments.
    pub(crate) fn new(segments: u64) -> Self {
        let rig = Self::over(FakeDisk::new((64 << 10) + segments * SEGMENT));
        let options = FormatOptions {
            segment_bytes: ByteSize(SEGMENT),
            ..FormatOptions::new(Uuid128([1; 16]), Uuid128([2; 16]))
        };
        block_on(Fake::format(&rig.disk, &rig.pool, options)).unwrap();
        rig
    }

    pub(crate) fn over(disk: FakeDisk) -> Self {
        let pool = BufferPool::new(PoolOptions::new(16 << 20)).unwrap();
        let clock = FakeClock::new(Tick(0), 1_700_000_000_000);
        Self { disk, pool, clock, options: EngineOptions::default() }
    }

    /// The same with another disk, such as a crash image.
    pub(crate) fn with_disk(&self, disk: FakeDisk) -> Self {
        Self { disk, ..self.clone() }
    }

    pub(crate) fn try_open(&self) -> Result<Fake, EngineError> {
        let clock = Arc::new(self.clock.clone());
        block_on(Fake::open(self.disk.clone(), self.pool.clone(), clock, self.options.clone()))
    }

    pub(crate) fn open(&self) -> Fake {
        self.try_open().unwrap()
    }
}

/// Bytes that identify the write they came from.
pub(crate) fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out: Vec<u8> = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()[4]
    })
    .take(len)
    .collect();
    let tag = seed.to_le_bytes();
    let n = len.min(8);
    out[..n].copy_from_slice(&tag[..n]);
    out
}

pub(crate) fn buf<D: Disk>(engine: &Engine<D>, bytes: &[u8]) -> SharedBuf {
    let mut buf = engine.alloc(bytes.len().max(1)).unwrap();
    buf.as_full_mut().fill(0);
    buf.set_len(bytes.len());
    buf.copy_from_slice(bytes);
    buf.freeze()
}

pub(crate) fn request(bytes: SharedBuf, ack: Ack) -> WriteRequest<'static> {
    WriteRequest {
        crc: Crc32c::of(&bytes),
        bytes,
        attrs: b"key",
        group: GroupId(1),
        priority: 1,
        expires: None,
        evictable: false,
        mode: WriteMode::Replace,
        ack,
    }
}

/// Writes over a part of the chunk `base`, which makes the chunk `to`.
pub(crate) async fn patch(
    e: &Fake,
    (base, to): (u128, u128),
    offset: usize,
    bytes: &[u8],
) -> Result<Option<ChunkInfo>, EngineError> {
    let request = PatchRequest {
        base: ChunkId(base),
        offset: u32::try_from(offset).unwrap(),
        bytes,
        crc: Crc32c::of(bytes),
        attrs: b"patched",
    };
    e.write_patch(ChunkId(to), request).await
}

pub(crate) async fn put<D: Disk>(
    e: &Engine<D>,
    id: u128,
    bytes: &[u8],
    ack: Ack,
) -> Result<WriteOutcome, EngineError> {
    e.write(ChunkId(id), request(buf(e, bytes), ack)).await
}

pub(crate) fn get<D: Disk>(e: &Engine<D>, id: u128) -> Option<Vec<u8>> {
    block_on(e.read(ChunkId(id))).unwrap().map(|d| d.bytes.to_vec())
}

/// Polls all in turn until every one is done.
pub(crate) fn run_all<'a, T>(futures: Vec<Pin<Box<dyn Future<Output = T> + 'a>>>) -> Vec<T> {
    let mut slots: Vec<_> = futures.into_iter().map(|f| (Some(f), None)).collect();
    block_on(std::future::poll_fn(move |cx| {
        for (future, output) in &mut slots {
            if let Some(f) = future
                && let Poll::Ready(v) = f.as_mut().poll(cx)
            {
                *output = Some(v);
                *future = None;
            }
        }
        if slots.iter().any(|(f, _)| f.is_some()) {
            return Poll::Pending;
        }
        Poll::Ready(slots.drain(..).filter_map(|(_, v)| v).collect())
    }))
}

/// Lets the other futures run for `count` turns.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        let mut again = true;
        let turn = |_: &mut std::task::Context<'_>| {
            if std::mem::take(&mut again) { Poll::Pending } else { Poll::Ready(()) }
        };
        std::future::poll_fn(turn).await;
    }
}

/// Flushes records without a waiter, as the background does: they may hold a guard.
pub(crate) async fn flush_lazily(e: &Fake, working: &Cell<usize>) {
    let mut n = 0;
    while working.get() > 0 {
        turns(200).await;
        n += 1;
        put(e, 1 << 90, &value(n, 10), Ack::Disk).await.unwrap();
    }
}
