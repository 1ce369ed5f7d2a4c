//! The persister: copies queued keys of backed buckets to their backends (RFC 0020).
//!
//! A loop for each lane of each backed bucket claims due keys, as many as the pace of the backend
//! allows, and a task for each key persists it (`job`). Any number of gateways do so: the metas
//! ensure that a key is claimed once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_client::ClientError;
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::object::{
    Backing, CLAIMS_MAX, Claimed, LANE_LARGE, LANE_SMALL, QueuePage,
};
use parking_lot::RwLock;
use s3s::S3Result;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::job::Job;
use super::known::Connected;
use super::metrics::OfBucket;
use super::rate::LANES;
use crate::door::Door;
use crate::store::Store;

/// How often the list of backed buckets is read.
const LOOK: Duration = Duration::from_secs(1);
/// How often an idle lane looks for due keys without being woken: each second for a bucket of two
/// lanes.
const IDLE: Duration = Duration::from_secs(2);
/// The shortest time between two looks, however often the lane is woken.
const BREATH: Duration = Duration::from_millis(10);
/// Pause after a failure of the volume.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval between counts of the queues; a slow count makes it longer: [`COUNT_SHARE`] times the
/// duration of the count, up to [`COUNT_MAX`].
const COUNT: Duration = Duration::from_secs(10);
const COUNT_SHARE: u32 = 30;
const COUNT_MAX: Duration = Duration::from_mins(5);
const PAGE: u32 = 1_000;

/// A backed bucket.
pub(crate) struct Bucket {
    pub(crate) door: Arc<Door>,
    pub(crate) name: String,
    backing: RwLock<Arc<Backing>>,
    pub(crate) numbers: Arc<OfBucket>,
    wakes: [Arc<Notify>; LANES],
}

impl Bucket {
    fn new(door: &Arc<Door>, name: &str, backing: Backing) -> Arc<Self> {
        let wakes: [Arc<Notify>; LANES] = std::array::from_fn(|_| Arc::default());
        door.behind.wakes.set(name, wakes.to_vec());
        Arc::new(Self {
            door: Arc::clone(door),
            name: name.to_owned(),
            backing: RwLock::new(Arc::new(backing)),
            numbers: door.metrics.back.bucket(name),
            wakes,
        })
    }

    /// The backing of the bucket, at most a second old.
    pub(crate) fn backing(&self) -> Arc<Backing> {
        Arc::clone(&self.backing.read())
    }

    fn follow(&self, backing: Backing) {
        if *self.backing() != backing {
            *self.backing.write() = Arc::new(backing);
        }
    }

    /// Wakes its lanes.
    pub(crate) fn wake(&self) {
        for lane in &self.wakes {
            lane.notify_one();
        }
    }

    /// Runs a call to the volume on one of the threads of the persister.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, ClientError> + Send + 'static,
    ) -> S3Result<Result<T, ClientError>> {
        let _thread = self.door.behind.threads.acquire().await;
        self.door.blocking(move |store| Ok(work(store))).await
    }
}

/// Buckets with a running persister, with their loops.
type Buckets = HashMap<String, (Arc<Bucket>, JoinSet<()>)>;

/// Runs until the gateway ends. Then it claims nothing more; running jobs finish, or others claim
/// their keys after the lease.
pub(crate) async fn run(door: Arc<Door>, mut ended: watch::Receiver<bool>) {
    let mut buckets = Buckets::new();
    let work = async {
        loop {
            match door.blocking(|store| Ok(store.buckets())).await {
                Ok(Ok(found)) => {
                    let found = found.into_iter().filter_map(|it| Some((it.name, it.backing?)));
                    follow(&door, &mut buckets, found.collect(), &ended);
                }
                Ok(Err(error)) => tracing::warn!("S3: cannot list backed buckets: {error}"),
                Err(error) => tracing::warn!("S3: cannot list backed buckets: {error}"),
            }
            sleep(LOOK).await;
        }
    };
    let mut stop = ended.clone();
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|it| *it) => {}
    }
    // The loops end on the same signal, after their last jobs.
    let _ = ended.wait_for(|it| *it).await;
    for (_, (_, mut loops)) in buckets {
        while loops.join_next().await.is_some() {}
    }
}

/// Starts the loops of newly backed buckets, and stops those of buckets no longer backed.
fn follow(
    door: &Arc<Door>,
    buckets: &mut Buckets,
    mut found: HashMap<String, Backing>,
    ended: &watch::Receiver<bool>,
) {
    buckets.retain(|name, (bucket, _)| {
        let Some(backing) = found.remove(name) else {
            door.behind.wakes.forget(name);
            door.metrics.back.forget(name);
            return false;
        };
        bucket.follow(backing);
        true
    });
    for (name, backing) in found {
        let bucket = Bucket::new(door, &name, backing);
        let mut loops = JoinSet::new();
        for lane in [LANE_SMALL, LANE_LARGE] {
            loops.spawn(lane_loop(Arc::clone(&bucket), lane, ended.clone()));
        }
        loops.spawn(count_loop(Arc::clone(&bucket), ended.clone()));
        buckets.insert(name, (bucket, loops));
    }
}

async fn lane_loop(bucket: Arc<Bucket>, lane: u8, mut ended: watch::Receiver<bool>) {
    let mut jobs = JoinSet::new();
    {
        let work = claim_all(&bucket, lane, &mut jobs);
        tokio::select! {
            () = work => {}
            _ = ended.wait_for(|it| *it) => {}
        }
    }
    while jobs.join_next().await.is_some() {}
}

/// Claims keys and starts jobs, forever.
async fn claim_all(bucket: &Arc<Bucket>, lane: u8, jobs: &mut JoinSet<()>) {
    let mut told = false;
    loop {
        while jobs.try_join_next().is_some() {}
        let name = bucket.backing().backend.clone();
        let connected = match bucket.door.backend(&name).await {
            Ok(Ok(Some(connected))) => connected,
            other => {
                if !told {
                    let why = match other {
                        Ok(Ok(_)) => "there is no such backend".to_owned(),
                        Ok(Err(error)) => error.to_string(),
                        Err(error) => error.to_string(),
                    };
                    tracing::warn!("S3: bucket {} is backed by {name}: {why}", bucket.name);
                }
                told = true;
                sleep(PAUSE).await;
                continue;
            }
        };
        told = false;
        connected.numbers.window(connected.pace.window());
        if !is_due(bucket, lane).await {
            continue;
        }
        match claim(bucket, lane, (&name, &connected)).await {
            // Another gateway was faster.
            Ok((claims, _)) if claims.is_empty() => sleep(BREATH).await,
            Ok((claims, at)) => begin(bucket, lane, (&connected, claims, at), jobs),
            Err(error) => {
                tracing::warn!("S3: cannot claim keys of bucket {}: {error}", bucket.name);
                sleep(PAUSE).await;
            }
        }
    }
}

/// The lease of a claim. A job that cannot renew its claim gives up after half of the lease; a
/// request sent by then reaches the backend within the other half, or never. The rest covers the
/// clock difference between metas.
pub(crate) fn lease(connected: &Connected) -> Duration {
    2 * connected.settings.timeout(0) + Duration::from_secs(4)
}

/// Claims due keys, as many as there is room for; also returns the time before the request.
async fn claim(
    bucket: &Arc<Bucket>,
    lane: u8,
    (backend, connected): (&str, &Connected),
) -> Result<(Vec<Claimed>, Tick), String> {
    let limit = connected.pace.vacancies(usize::from(lane)).await.min(CLAIMS_MAX);
    // The wait for room may have been long: the lease begins now, at the earliest.
    let at = RealClock::tick();
    let (name, lease) = (bucket.name.clone(), lease(connected));
    let claims = bucket.ask(move |store| store.claim(&name, lane, limit, lease)).await;
    let claims = claims.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    if claims.is_empty() {
        return Ok((claims, at));
    }
    // The backing cannot change while a key is claimed, but it may have changed before.
    let name = bucket.name.clone();
    let found = bucket.ask(move |store| store.bucket(&name)).await;
    let found = found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    match found.backing {
        Some(backing) if backing.backend == backend => {
            bucket.follow(backing);
            Ok((claims, at))
        }
        Some(backing) => {
            bucket.follow(backing);
            Err("the bucket has another backend now: the claimed keys wait until their lease ends"
                .into())
        }
        None => Err("the bucket no longer has a backend".into()),
    }
}

fn begin(
    bucket: &Arc<Bucket>,
    lane: u8,
    (connected, claims, at): (&Arc<Connected>, Vec<Claimed>, Tick),
    jobs: &mut JoinSet<()>,
) {
    for claimed in claims {
        let seat = connected.pace.seat(usize::from(lane));
        let under_way = UnderWay::begin(&bucket.door);
        let job = Job {
            bucket: Arc::clone(bucket),
            backing: bucket.backing(),
            connected: Arc::clone(connected),
            claimed,
            at,
            lane: usize::from(lane),
        };
        jobs.spawn(async move {
            let _held = (seat, under_way);
            job.run().await;
        });
    }
}

/// Counts a job while it exists.
struct UnderWay(Arc<Door>);

impl UnderWay {
    fn begin(door: &Arc<Door>) -> Self {
        door.metrics.back.under_way.add(1);
        Self(Arc::clone(door))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.metrics.back.under_way.sub(1);
    }
}

/// Whether a key is due. If none is, waits until one may be.
async fn is_due(bucket: &Arc<Bucket>, lane: u8) -> bool {
    let name = bucket.name.clone();
    let look = bucket.ask(move |store| store.queue_page(&name, lane, None, 1)).await;
    let due = look.ok().and_then(Result::ok).and_then(|page: QueuePage| {
        let due_ms = page.entries.first()?.place.due_ms;
        Some(Duration::from_millis(due_ms.saturating_sub(page.now_ms)))
    });
    if due.is_some_and(|it| it.is_zero()) {
        return true;
    }
    sleep(BREATH).await;
    let wait = due.unwrap_or(IDLE).min(IDLE);
    let _ = timeout(wait, bucket.wakes[usize::from(lane)].notified()).await;
    false
}

/// The backlog of a bucket.
#[derive(Default)]
struct Waiting {
    keys: u64,
    bytes: u64,
    oldest_ms: Option<u64>,
}

impl Waiting {
    /// Reads the whole backlog, a page at a time; `None` when no meta answers.
    async fn of(bucket: &Arc<Bucket>) -> Option<Self> {
        let mut all = Self::default();
        for lane in [LANE_SMALL, LANE_LARGE] {
            let mut after = None;
            loop {
                let name = bucket.name.clone();
                let page =
                    bucket.ask(move |store| store.queue_page(&name, lane, after, PAGE)).await;
                let page = page.ok()?.ok()?;
                for entry in &page.entries {
                    all.keys += 1;
                    all.bytes += entry.bytes;
                    let since = millis(entry.since);
                    all.oldest_ms = Some(all.oldest_ms.map_or(since, |it| it.min(since)));
                }
                after = page.entries.last().map(|it| it.place);
                if page.end || after.is_none() {
                    break;
                }
            }
        }
        Some(all)
    }
}

/// Counts the backlog periodically.
async fn count_loop(bucket: Arc<Bucket>, mut ended: watch::Receiver<bool>) {
    let count = async {
        loop {
            let start = RealClock::tick();
            // The last count stays valid while no meta answers.
            if let Some(now) = Waiting::of(&bucket).await {
                bucket.numbers.keys.set(now.keys);
                bucket.numbers.bytes.set(now.bytes);
                let age = now.oldest_ms.map_or(0, |it| RealClock::wall_ms().saturating_sub(it));
                bucket.numbers.oldest_ms.set(age);
            }
            sleep(count_pause(RealClock::tick().since(start))).await;
        }
    };
    tokio::select! {
        () = count => {}
        _ = ended.wait_for(|it| *it) => {}
    }
}

/// The time from a count of this duration to the next.
fn count_pause(took: Duration) -> Duration {
    took.saturating_mul(COUNT_SHARE).clamp(COUNT, COUNT_MAX)
}

fn millis(time: millpond_types::meta::Timestamp) -> u64 {
    u64::try_from(time.secs).unwrap_or(0) * 1_000 + u64::from(time.nanos) / 1_000_000
}
