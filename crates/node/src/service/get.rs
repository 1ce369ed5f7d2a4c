//! Reading values: what is in memory at once, the rest from the disks in parallel.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond_env::{JoinHandle, RealClock, SharedBuf, spawn, timeout};
use millpond_types::limits::PAYLOAD_BYTES_MAX;
use millpond_types::wire::{GetItem, GetRequest, ItemStatus};
use millpond_types::{BlockKey, Crc32c, Tick};

use super::namespaces::Namespace;
use super::{Place, Service, time_left};

/// Disk reads of one request in flight: enough to fill a device queue of 32 twice.
const READS_MAX: usize = 64;

/// The values of a get.
#[derive(Debug, Default)]
pub struct GetOutcome {
    /// Outcome per key, pool offsets not filled in.
    pub items: Vec<GetItem>,
    /// The values of the `Ok` items, in order.
    pub values: Vec<SharedBuf>,
}

type Value = Result<(SharedBuf, Crc32c), GetItem>;

const fn no_value(status: ItemStatus, len: u32) -> GetItem {
    GetItem { status, len, crc: Crc32c(0), pool_offset: 0 }
}

const MISS: GetItem = no_value(ItemStatus::Miss, 0);

/// What a get will hold in memory, decided before anything is read.
#[derive(Debug)]
pub struct GetPlan {
    /// Where each wanted value lives; `Err` for what will not be read.
    wanted: Vec<Result<Place, GetItem>>,
    /// Bytes of the values that will be read.
    pub bytes: u64,
}

impl Service {
    /// Decides what a get will read: present, within the caller's room and one frame.
    #[must_use]
    pub fn plan_get(&self, namespace: &Namespace, request: &GetRequest) -> GetPlan {
        let mut bytes = 0;
        let bytes_max = (PAYLOAD_BYTES_MAX as u64).min(self.pool.capacity() as u64 / 4);
        let run_blocks = namespace.info.options.run_blocks;
        let mut wanted = Vec::with_capacity(request.keys.len());
        for (index, key) in request.keys.iter().enumerate() {
            let leader = request.leaders.leader(&request.keys, index, run_blocks);
            wanted.push(match self.find(request.namespace, key, leader) {
                None => Err(MISS),
                Some((_, info)) if info.len > request.room[index] => {
                    Err(no_value(ItemStatus::TooLong, info.len))
                }
                Some((_, info)) if bytes + u64::from(info.len) > bytes_max => {
                    Err(no_value(ItemStatus::Busy, info.len))
                }
                Some((place, info)) => {
                    bytes += u64::from(info.len);
                    Ok(place)
                }
            });
        }
        GetPlan { wanted, bytes }
    }

    /// Reads what was planned. Values that the deadline overtakes are `Late`.
    pub async fn get(
        self: &Arc<Self>,
        namespace: &Namespace,
        request: &GetRequest,
        plan: GetPlan,
        deadline: Tick,
    ) -> GetOutcome {
        let mut values: Vec<Value> = Vec::with_capacity(plan.wanted.len());
        let mut absent: VecDeque<(usize, Place)> = VecDeque::new();
        for (index, wanted) in plan.wanted.into_iter().enumerate() {
            let cached = |place: Place| self.disks[place.disk].engine.read_cached(place.id);
            values.push(match wanted.map(|place| (place, cached(place))) {
                Err(item) => Err(item),
                Ok((_, Some(data))) => Ok((data.bytes, data.info.crc)),
                Ok((place, None)) => {
                    absent.push_back((index, place));
                    Err(no_value(ItemStatus::Late, 0))
                }
            });
        }
        self.metrics.memory_hits.add(values.iter().filter(|value| value.is_ok()).count() as u64);
        if !absent.is_empty() {
            let started = RealClock::tick();
            self.metrics.disk_reads.add(absent.len() as u64);
            self.read_absent(&mut values, absent, &request.keys, deadline).await;
            self.metrics.stages.disk.observe(RealClock::tick().since(started));
        }
        outcome(namespace, values, &request.room)
    }

    async fn read_absent(
        self: &Arc<Self>,
        values: &mut [Value],
        absent: VecDeque<(usize, Place)>,
        keys: &[BlockKey],
        deadline: Tick,
    ) {
        let Some(left) = time_left(deadline) else { return };
        if let [(index, place)] = *absent.as_slices().0 {
            if let Ok(value) = timeout(left, self.read_one(place, keys[index])).await {
                values[index] = value;
            }
            return;
        }
        let mut reads: VecDeque<(usize, JoinHandle<Value>)> = VecDeque::new();
        let all = async {
            let mut absent = absent;
            loop {
                while reads.len() < READS_MAX {
                    let Some((index, place)) = absent.pop_front() else { break };
                    let (service, key) = (Arc::clone(self), keys[index]);
                    let read = async move { service.read_one(place, key).await };
                    reads.push_back((index, spawn(read)));
                }
                let Some((index, read)) = reads.front_mut() else { return };
                let index = *index;
                let value = read.await.unwrap_or(Err(MISS));
                reads.pop_front();
                values[index] = value;
            }
        };
        // Reads that are still under way when the deadline passes end by themselves.
        let _ = timeout(left, all).await;
    }

    async fn read_one(&self, place: Place, key: BlockKey) -> Value {
        let disk = &self.disks[place.disk];
        match disk.read(place.id, &self.metrics).await {
            // The chunk may have been replaced since it was looked up.
            Ok(Some(data)) if disk.lookup(place.id, &key).is_some() => {
                Ok((data.bytes, data.info.crc))
            }
            Ok(_) => Err(MISS),
            Err(status) => Err(no_value(status, 0)),
        }
    }
}

impl Namespace {
    /// Counts what a get found.
    pub fn count(&self, outcome: &GetOutcome) {
        let hits = outcome.values.len() as u64;
        let bytes = outcome.values.iter().map(|value| value.len() as u64).sum();
        self.metrics.hits.add(hits);
        self.metrics.misses.add(outcome.items.len() as u64 - hits);
        self.metrics.bytes_out.add(bytes);
    }
}

fn outcome(namespace: &Namespace, values: Vec<Value>, room: &[u32]) -> GetOutcome {
    let mut out = GetOutcome::default();
    out.items.reserve(values.len());
    for (value, room) in values.into_iter().zip(room) {
        out.items.push(match value {
            Err(item) => item,
            Ok((value, crc)) => {
                let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
                if len > *room {
                    no_value(ItemStatus::TooLong, len)
                } else {
                    out.values.push(value);
                    GetItem { status: ItemStatus::Ok, len, crc, pool_offset: 0 }
                }
            }
        });
    }
    namespace.count(&out);
    out
}
