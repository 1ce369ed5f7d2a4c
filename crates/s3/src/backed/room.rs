//! Room in the pool: evicts cached objects, oldest first, and delays writes when the pool is nearly
//! full.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_client::{Backing, ClientError, ErrorKind};
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::object::Mode;
use millpond_types::meta::{MetaError, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::Cached;
use super::adopt::walk;
use crate::door::Door;
use crate::error::{Told as _, refuse, told};
use crate::store::{Store, Wanted};

/// Watermarks of the pool, in thousandths: above the first, clean objects are evicted and writes
/// wait; above the second, writes are written through or refused.
pub(super) const HIGH: u64 = 850;
pub(super) const LAST: u64 = 950;
/// Delay of a write right below the second watermark.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// How often the pool is checked.
const LOOK: Duration = Duration::from_secs(1);
/// A walk over all states of a bucket takes at most 1/N of the time; the second N applies while
/// room is needed.
const SHARE: [u32; 2] = [10, 1];
/// States requested at once.
const PAGE: u32 = 1_000;
/// Keys remembered from one walk at most, the oldest.
const OLDEST_MAX: usize = 100_000;
/// Interval of adoption walks: the minimum for buckets with a time to live, and the interval
/// without one.
const WALK: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(1)];
/// How long a pool that refused a write for lack of space counts as full: one of its disks is full,
/// however empty the others are.
const PRESSED: Duration = Duration::from_secs(2);
/// Then this part of the pool is evicted at once.
const PRESSED_PART: u64 = 10;
/// Evicted bytes are free after this time: metas remove them, and nodes report them.
const FREED: Duration = Duration::from_secs(5);

/// How long to wait for evicted bytes before a write is told that no room can be made.
const AWAITED: Duration = Duration::from_secs(30);

/// How long the result of a walk that found nothing to evict is valid: writes bring more.
const BARREN: Duration = Duration::from_secs(5);

/// The message for a write that finds no room.
const MESSAGE: &str = "The pool is full. Objects that a backend has are being evicted, and those \
                       that backends do not have yet are being persisted. Please reduce your \
                       request rate.";

/// The error for a write that finds the pool full.
pub(crate) fn full() -> S3Error {
    refuse(S3ErrorCode::SlowDown, MESSAGE)
}

/// Waits in proportion to the fill level of the pool; returns whether it is too full for more.
pub(crate) async fn is_over(door: &Door) -> bool {
    let full = door.cached.full.load(Ordering::Relaxed);
    if full >= LAST || door.cached.is_pressed() {
        door.metrics.no_room.inc();
        return true;
    }
    if let Some(over) = full.checked_sub(HIGH).filter(|over| *over > 0) {
        door.metrics.waited.inc();
        let ms = u64::try_from(DELAY_MAX.as_millis()).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(ms * over / (LAST - HIGH))).await;
    }
    false
}

impl Cached {
    /// Notes that the pool had no room for a write.
    fn press(&self) {
        *self.pressed.lock() = Some(RealClock::tick());
    }

    /// Whether the pool lately had no room for a write.
    fn is_pressed(&self) -> bool {
        self.pressed.lock().is_some_and(|at| RealClock::tick().since(at) < PRESSED)
    }
}

/// Whether an error means that the pool has no room; a quota is a different error.
pub(crate) fn is_full(error: &S3Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<ClientError>());
    source.is_some_and(|cause| match cause {
        ClientError::File { source, .. } => *source == MetaError::NoSpace,
        cause => cause.kind() == ErrorKind::NoSpace,
    })
}

/// The error for a client: reports that room is being made if the pool is full and there is
/// something to evict.
pub(crate) fn told_of(door: &Door, error: S3Error) -> S3Error {
    if !is_full(&error) {
        return error;
    }
    door.cached.press();
    door.metrics.no_room.inc();
    if door.cached.has_relief.load(Ordering::Relaxed) { full() } else { error }
}

/// A clean key with a file that may be evicted.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Clean {
    since: Timestamp,
    key: Vec<u8>,
    seq: u64,
    size: u64,
}

/// The state of a bucket's room.
struct OfBucket {
    /// When its states may be walked again: for eviction, and for changes of mounts.
    evict: Tick,
    adopt: Tick,
    /// Keys to evict, as of the last walk, oldest last. They may have changed since: metas check.
    oldest: Vec<Clean>,
    /// When a walk found nothing that can be evicted, now or once the backend has it.
    barren: Option<Tick>,
}

/// The state of room of a gateway.
#[derive(Default)]
struct Room {
    buckets: HashMap<String, OfBucket>,
    /// Bytes evicted for the pool, with the time.
    given: VecDeque<(Tick, u64)>,
    /// When something was evicted last.
    gave: Option<Tick>,
}

/// Manages the room of all backed buckets as long as the gateway lives.
pub(crate) async fn keep(door: Arc<Door>) {
    let mut room = Room::default();
    loop {
        if let Err(error) = once(&door, &mut room).await {
            tracing::debug!("S3: cannot make room in backed buckets: {error}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn once(door: &Arc<Door>, room: &mut Room) -> S3Result<()> {
    let (buckets, usage) = door
        .blocking(|store| {
            let buckets = store.buckets().in_bucket()?;
            let is_any = buckets.iter().any(|bucket| bucket.backing.is_some());
            let usage = is_any.then(|| store.usage().in_bucket()).transpose()?;
            Ok((buckets, usage))
        })
        .await?;
    let Some(usage) = usage else {
        door.cached.full.store(0, Ordering::Relaxed);
        door.metrics.full.set(0);
        door.cached.has_relief.store(false, Ordering::Relaxed);
        *room = Room::default();
        return Ok(());
    };
    let used = usage.bytes.saturating_sub(usage.bytes_free);
    let full = used.saturating_mul(1_000).checked_div(usage.bytes).unwrap_or(0);
    door.cached.full.store(full, Ordering::Relaxed);
    door.metrics.full.set(full);
    let mut over = used.saturating_sub(usage.bytes / 1_000 * HIGH);
    if door.cached.is_pressed() {
        over = over.max(usage.bytes / PRESSED_PART);
    }
    let now = RealClock::tick();
    room.given.retain(|(at, _)| now.since(*at) < FREED);
    over = over.saturating_sub(room.given.iter().map(|(_, bytes)| bytes).sum());
    let backed = buckets.into_iter().filter_map(|bucket| Some((bucket.name, bucket.backing?)));
    let backed: Vec<(String, Backing)> = backed.collect();
    room.buckets.retain(|name, _| backed.iter().any(|(known, _)| known == name));
    for (name, backing) in backed {
        let of = room.buckets.entry(name.clone()).or_insert_with(|| OfBucket::new(now));
        let given = of.evict(door, (&name, &backing), over).await?;
        if over > 0 {
            room.given.push_back((RealClock::tick(), given.min(over)));
        }
        over = over.saturating_sub(given);
        if given > 0 {
            room.gave = Some(RealClock::tick());
        }
        of.adopt(door, (&name, &backing)).await?;
    }
    let is_awaited = room.gave.is_some_and(|at| now.since(at) < AWAITED);
    let has_relief = is_awaited || room.buckets.values().any(|bucket| !bucket.is_barren(now));
    door.cached.has_relief.store(has_relief, Ordering::Relaxed);
    Ok(())
}

impl OfBucket {
    const fn new(now: Tick) -> Self {
        Self { evict: now, adopt: now, oldest: Vec::new(), barren: None }
    }

    /// Whether a recent walk found nothing to evict.
    fn is_barren(&self, now: Tick) -> bool {
        self.barren.is_some_and(|at| now.since(at) < BARREN)
    }

    /// Has the metas adopt changes of mounts from time to time.
    async fn adopt(&mut self, door: &Arc<Door>, (name, backing): (&str, &Backing)) -> S3Result<()> {
        let now = RealClock::tick();
        if now < self.adopt {
            return Ok(());
        }
        let (bucket, of) = (name.to_owned(), backing.clone());
        let walked =
            door.blocking(move |store| walk(store, (&bucket, b""), &of).map_err(in_bucket)).await?;
        if walked > 0 {
            tracing::info!(
                bucket = name,
                walked,
                "S3: changes made by mounts are queued for the backend"
            );
            door.wake_persister();
        }
        let end = RealClock::tick();
        let ttl = Duration::from_secs(backing.ttl_s.into());
        let pause = if ttl.is_zero() { WALK[1] } else { ttl.max(WALK[0]) };
        self.adopt = end.plus(pause.max(end.since(now) * SHARE[0]));
        Ok(())
    }

    /// Evicts the excess over the bound of a bucket, or as much as the pool needs; returns the
    /// bytes evicted.
    async fn evict(
        &mut self,
        door: &Arc<Door>,
        (name, backing): (&str, &Backing),
        over: u64,
    ) -> S3Result<u64> {
        let now = RealClock::tick();
        let (mut oldest, mut wanted) = (std::mem::take(&mut self.oldest), over);
        let is_wanted = over > 0 && oldest.is_empty() || backing.cache_bytes > 0;
        if is_wanted && now >= self.evict {
            let (bucket, of) = (name.to_owned(), backing.clone());
            let walked = door
                .blocking(move |store| Walked::of(store, (&bucket, &of)).map_err(in_bucket))
                .await?;
            let bound = Some(backing.cache_bytes).filter(|bytes| *bytes > 0);
            wanted = over.max(bound.map_or(0, |bound| walked.cached.saturating_sub(bound)));
            oldest = walked.oldest;
            let end = RealClock::tick();
            self.barren = (!walked.has_relief).then_some(end);
            self.evict = end.plus(end.since(now) * SHARE[usize::from(over > 0)]);
        }
        let bucket = name.to_owned();
        let giving = move |store: &Store| {
            let given = give(store, (&bucket, &mut oldest), wanted).map_err(in_bucket)?;
            Ok((given, oldest))
        };
        let ((keys, bytes), left) = door.blocking(giving).await?;
        // Remembered only while the pool needs room.
        self.oldest = if over > 0 { left } else { Vec::new() };
        if keys > 0 {
            let numbers = door.metrics.back.bucket(name);
            numbers.evictions.add(keys);
            numbers.evicted.add(bytes);
            tracing::debug!(bucket = name, keys, bytes, "S3: clean keys were evicted");
        }
        Ok(bytes)
    }
}

fn in_bucket(error: ClientError) -> S3Error {
    told(error, S3ErrorCode::NoSuchBucket)
}

/// Evicts `wanted` bytes, oldest first; returns the keys and bytes evicted.
fn give(
    store: &Store,
    (bucket, oldest): (&str, &mut Vec<Clean>),
    wanted: u64,
) -> Result<(u64, u64), ClientError> {
    let (mut keys, mut bytes, mut seen) = (0, 0, 0);
    // Keys evicted by another gateway count too.
    while seen < wanted
        && let Some(clean) = oldest.pop()
    {
        seen += clean.size;
        if store.evict(bucket, &clean.key, clean.seq)? {
            keys += 1;
            bytes += clean.size;
        }
    }
    Ok((keys, bytes))
}

/// The result of a walk over the states of a bucket.
struct Walked {
    /// Clean keys that are not pinned, oldest last.
    oldest: Vec<Clean>,
    /// Cached bytes, including pinned ones.
    cached: u64,
    has_relief: bool,
}

impl Walked {
    fn of(store: &Store, (bucket, backing): (&str, &Backing)) -> Result<Self, ClientError> {
        // The youngest is dropped first when there are too many.
        let mut oldest = BinaryHeap::<Clean>::new();
        let (mut cached, mut has_relief, mut after) = (0, false, Vec::new());
        loop {
            let page = store.states_page(bucket, b"", &after, PAGE)?;
            let Some((last, _)) = page.states.last() else { break };
            after.clone_from(last);
            for (key, state) in page.states {
                let Wanted::File { size, .. } = state.wanted else { continue };
                let rule = backing.rule_of(&key);
                // Reads under a transient rule do not go to the backend: an evicted key would be
                // gone for clients.
                let is_pinned = rule.is_pinned || rule.mode == Mode::Transient;
                has_relief |= !is_pinned;
                if state.is_dirty() {
                    continue;
                }
                cached += size;
                if is_pinned {
                    continue;
                }
                oldest.push(Clean { since: state.since, key, seq: state.seq, size });
                if oldest.len() > OLDEST_MAX {
                    oldest.pop();
                }
            }
            if page.end {
                break;
            }
        }
        let mut oldest = oldest.into_vec();
        oldest.sort_by_key(|clean| Reverse((clean.since, clean.seq)));
        Ok(Self { oldest, cached, has_relief })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects written since a walk may be evicted: a client must not be told for good that there
    /// is no room.
    #[test]
    fn a_walk_that_found_nothing_is_not_believed_for_long() {
        let start = RealClock::tick();
        let mut of = OfBucket::new(start);
        assert!(!of.is_barren(start), "nobody has looked");
        of.barren = Some(start);
        assert!(of.is_barren(start) && of.is_barren(start.plus(BARREN / 2)));
        assert!(!of.is_barren(start.plus(BARREN)));
    }
}
