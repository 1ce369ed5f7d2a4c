//! Room: what is cached is given up, the oldest first, and writes wait when the pool is nearly full.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_client::{Backing, ClientError};
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::Timestamp;
use s3s::{S3ErrorCode, S3Result};

use super::adopt::walk;
use crate::door::Door;
use crate::error::{Told as _, told};
use crate::store::{Store, Wanted};

/// Watermarks of the pool, in thousandths: above the first what is clean is given up and writes wait, above the second they
/// go through or are refused.
const HIGH: u64 = 850;
const LAST: u64 = 950;
/// A write waits so long right below the second.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// How often the pool is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A walk over all states of a bucket takes at most one part of so many of the time.
const SHARE: u32 = 10;
/// States that are asked for at once.
const PAGE: u32 = 1_000;
/// Keys that one walk gives up at most.
const EVICTED_MAX: usize = 100_000;
/// How often a bucket is walked whose time to live is shorter, or none.
const WALK: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(1)];

/// Waits in proportion to how full the pool is; whether it is too full for more.
pub(crate) async fn is_over(door: &Door) -> bool {
    let full = door.cached.full.load(Ordering::Relaxed);
    if full >= LAST {
        return true;
    }
    if let Some(over) = full.checked_sub(HIGH).filter(|over| *over > 0) {
        let ms = u64::try_from(DELAY_MAX.as_millis()).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(ms * over / (LAST - HIGH))).await;
    }
    false
}

/// A clean key whose file may go.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Clean {
    since: Timestamp,
    key: Vec<u8>,
    seq: u64,
    size: u64,
}

/// When a bucket may be walked again.
#[derive(Clone, Copy)]
struct Due {
    evict: Tick,
    adopt: Tick,
}

/// Looks after the room of all backed buckets as long as the gateway lives.
pub(crate) async fn keep(door: Arc<Door>) {
    let mut due = HashMap::new();
    loop {
        if let Err(error) = once(&door, &mut due).await {
            tracing::debug!("S3: room of backed buckets: {error}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn once(door: &Arc<Door>, due: &mut HashMap<String, Due>) -> S3Result<()> {
    let (buckets, usage) = door
        .blocking(|store| {
            let buckets = store.buckets().in_bucket()?;
            let is_any = buckets.iter().any(|it| it.backing.is_some());
            let usage = is_any.then(|| store.usage().in_bucket()).transpose()?;
            Ok((buckets, usage))
        })
        .await?;
    let Some(usage) = usage else {
        door.cached.full.store(0, Ordering::Relaxed);
        due.clear();
        return Ok(());
    };
    let used = usage.bytes.saturating_sub(usage.bytes_free);
    let full = used.saturating_mul(1_000).checked_div(usage.bytes).unwrap_or(0);
    door.cached.full.store(full, Ordering::Relaxed);
    let mut over = used.saturating_sub(usage.bytes / 1_000 * HIGH);
    let backed = buckets.into_iter().filter_map(|it| Some((it.name, it.backing?)));
    let backed: Vec<(String, Backing)> = backed.collect();
    due.retain(|name, _| backed.iter().any(|(it, _)| it == name));
    for (name, backing) in backed {
        let now = RealClock::tick();
        let mut next = *due.entry(name.clone()).or_insert(Due { evict: now, adopt: now });
        if now >= next.evict && (over > 0 || backing.cache_bytes > 0) {
            let given = evicted(door, (&name, &backing), over).await?;
            over = over.saturating_sub(given);
            let end = RealClock::tick();
            next.evict = end.plus(end.since(now) * SHARE);
        }
        let now = RealClock::tick();
        if now >= next.adopt {
            adopted(door, &name, &backing).await?;
            let end = RealClock::tick();
            let ttl = Duration::from_secs(backing.ttl_s.into());
            let pause = if ttl.is_zero() { WALK[1] } else { ttl.max(WALK[0]) };
            next.adopt = end.plus(pause.max(end.since(now) * SHARE));
        }
        due.insert(name, next);
    }
    Ok(())
}

async fn adopted(door: &Arc<Door>, name: &str, backing: &Backing) -> S3Result<()> {
    let (bucket, backing) = (name.to_owned(), backing.clone());
    let walked = door
        .blocking(move |store| walk(store, (&bucket, b""), &backing).map_err(in_bucket))
        .await?;
    if walked > 0 {
        tracing::info!(bucket = name, walked, "S3: changes of mounts go to the backend");
        door.wake_persister();
    }
    Ok(())
}

fn in_bucket(error: ClientError) -> s3s::S3Error {
    told(error, S3ErrorCode::NoSuchBucket)
}

/// Gives up what is over the bound of a bucket, or as much as the pool needs; how many bytes went.
async fn evicted(door: &Arc<Door>, (name, backing): (&str, &Backing), over: u64) -> S3Result<u64> {
    let (bucket, backing) = (name.to_owned(), backing.clone());
    let given = door
        .blocking(move |store| evict(store, (&bucket, &backing), over).map_err(in_bucket))
        .await?;
    if given > 0 {
        tracing::debug!(bucket = name, given, "S3: bytes of clean keys were given up");
    }
    Ok(given)
}

fn evict(
    store: &Store,
    (bucket, backing): (&str, &Backing),
    over: u64,
) -> Result<u64, ClientError> {
    let (mut oldest, cached) = clean(store, (bucket, backing))?;
    let of_bound = match backing.cache_bytes {
        0 => 0,
        bound => cached.saturating_sub(bound),
    };
    let (wanted, mut given) = (of_bound.max(over), 0);
    while given < wanted
        && let Some(Reverse(it)) = oldest.pop()
    {
        if store.evict(bucket, &it.key, it.seq)? {
            given += it.size;
        }
    }
    Ok(given)
}

/// Clean keys, the oldest first; and how many bytes are cached, with what is pinned.
fn clean(
    store: &Store,
    (bucket, backing): (&str, &Backing),
) -> Result<(BinaryHeap<Reverse<Clean>>, u64), ClientError> {
    // The youngest goes first when there are too many.
    let (mut oldest, mut cached, mut after) = (BinaryHeap::<Clean>::new(), 0, Vec::new());
    loop {
        let page = store.states_page(bucket, b"", &after, PAGE)?;
        let Some((last, _)) = page.states.last() else { break };
        after.clone_from(last);
        for (key, state) in page.states {
            let Wanted::File { size, .. } = state.wanted else { continue };
            if state.is_dirty() {
                continue;
            }
            cached += size;
            if backing.rule_of(&key).is_pinned {
                continue;
            }
            oldest.push(Clean { since: state.since, key, seq: state.seq, size });
            if oldest.len() > EVICTED_MAX {
                oldest.pop();
            }
        }
        if page.end {
            break;
        }
    }
    Ok((oldest.into_iter().map(Reverse).collect(), cached))
}
