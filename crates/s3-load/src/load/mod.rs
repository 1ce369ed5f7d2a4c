//! Load: workers that each own a part of the keys and have one request in flight.

mod record;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{ThreadHandle, thread};
use serde_json::{Value, json};
use tokio::sync::Barrier;

pub use record::Record;
use worker::{Done, Slot, Worker};

use crate::LoadError;
use crate::client::{Client, ClientOptions, Endpoint};
use crate::content::{SIZE_MAX, SIZE_MIN};
use crate::journal::{Journal, KeyState};

/// Workers at most: each has one or two connections.
const CONCURRENCY_MAX: usize = 4096;
/// Attempts to create the bucket, ten a second: a load may begin in the middle of faults.
const BUCKET_TRIES: usize = 20;

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Puts, key after key.
    Put,
    /// Gets of random keys; missing objects are put first.
    Get,
    /// Gets, deletes and puts of random keys, by the given percentages.
    Mixed,
    /// A put, then at once a get of the same key, through the next endpoint if there are several.
    ReadAfterWrite,
}

/// Kind and size of a load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The servers; workers are spread over them.
    pub endpoints: Vec<Endpoint>,
    /// Settings of the clients.
    pub client: ClientOptions,
    /// Kind of load.
    pub workload: Workload,
    /// Bytes of an object.
    pub size: u64,
    /// Requests in flight.
    pub concurrency: usize,
    /// Threads that the workers share.
    pub threads: usize,
    /// Duration of the load.
    pub time: Duration,
    /// Number of keys of all workers together.
    pub keys: usize,
    /// Prefix of the keys; a number follows.
    pub prefix: String,
    /// Percentage of gets in `Mixed`.
    pub read_percent: u8,
    /// Percentage of deletes in `Mixed`.
    pub delete_percent: u8,
    /// Seed for the choice of keys and requests.
    pub seed: u64,
    /// With `Get`, a worker compares the bytes of one answer in this many, and only counts the
    /// others.
    pub check_every: u32,
    /// Path of the journal: read at the start, written at the end.
    pub journal: Option<PathBuf>,
}

impl LoadOptions {
    fn validate(&self) -> Result<(), LoadError> {
        let refuse = |text: String| Err(LoadError::Option(text));
        if !(SIZE_MIN..=SIZE_MAX).contains(&self.size) {
            return refuse(format!("--size must be {SIZE_MIN} B to 5 GiB, not {} B", self.size));
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            return refuse(format!("--concurrency must be 1 to {CONCURRENCY_MAX}"));
        }
        if !(1..=self.concurrency).contains(&self.threads) {
            return refuse("--threads must be 1 to the value of --concurrency".to_owned());
        }
        if self.keys < self.concurrency {
            return refuse(
                "--keys must be at least --concurrency: every worker needs its own key".to_owned(),
            );
        }
        if u16::from(self.read_percent) + u16::from(self.delete_percent) > 100 {
            return refuse("--reads and --deletes together must be at most 100".to_owned());
        }
        if self.check_every == 0 {
            return refuse("--check-every must be at least 1, which checks all".to_owned());
        }
        if self.endpoints.is_empty() {
            return refuse("--endpoint is missing".to_owned());
        }
        Ok(())
    }

    /// The keys of each worker, with their state from the journal.
    fn slots(&self, journal: &mut Journal) -> Vec<Vec<Slot>> {
        let mut slots: Vec<Vec<Slot>> = vec![Vec::new(); self.concurrency];
        for number in 0..self.keys {
            let key = format!("{}{number:08}", self.prefix);
            let state = journal.keys.remove(&key).unwrap_or_default();
            slots[number % self.concurrency].push(Slot { key, state });
        }
        slots
    }
}

/// Result of a load.
#[derive(Debug)]
pub struct Loaded {
    /// Counts and latencies.
    pub record: Record,
    /// Time from the first request to the last answer.
    pub elapsed: Duration,
    /// The known state of the keys after the load.
    pub journal: Journal,
}

impl Loaded {
    /// The report. Latencies are in microseconds, rates per second.
    #[must_use]
    pub fn report(&self, options: &LoadOptions) -> Value {
        let mut report = json!({
            "workload": format!("{:?}", options.workload),
            "size": options.size,
            "concurrency": options.concurrency,
            "threads": options.threads,
            "keys": options.keys,
            "payload": if options.client.sign_payload { "signed" } else { "unsigned" },
            "checked": format!("1 of {}", options.check_every),
            "seconds": self.elapsed.as_secs_f64(),
        });
        if let (Some(report), Value::Object(record)) =
            (report.as_object_mut(), self.record.report(options.size, self.elapsed))
        {
            report.extend(record);
        }
        report
    }
}

/// Creates the bucket, puts objects for reads, runs the load and writes the journal.
///
/// # Errors
/// [`LoadError`]: an option, the endpoint, or the journal. Requests that fail during the load are
/// counted.
pub fn run(options: &LoadOptions, stop: &Arc<AtomicBool>) -> Result<Loaded, LoadError> {
    options.validate()?;
    let mut journal = match &options.journal {
        Some(path) => Journal::read(path)?.unwrap_or_default(),
        None => Journal::default(),
    };
    if journal.bucket.is_empty() {
        journal.bucket.clone_from(&options.client.bucket);
    } else if journal.bucket != options.client.bucket {
        return Err(LoadError::Option(format!("the journal belongs to bucket {}", journal.bucket)));
    }
    make_bucket(options)?;
    let loaded = run_workers(options, stop, journal)?;
    if let Some(path) = &options.journal {
        loaded.journal.write(path)?;
    }
    Ok(loaded)
}

fn make_bucket(options: &LoadOptions) -> Result<(), LoadError> {
    let mut client = Client::new(options.endpoints[0].clone(), options.client.clone());
    let mut tries = 0;
    runtime()?.block_on(async {
        while let Err(failure) = client.make_bucket().await {
            tries += 1;
            if tries == BUCKET_TRIES {
                let what = format!("bucket {}", options.client.bucket);
                return Err(LoadError::Refused { what, code: failure.code });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, LoadError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| LoadError::System { what: "an event loop", source })
}

type Worked = Vec<Result<Done, LoadError>>;

fn run_workers(
    options: &LoadOptions,
    stop: &Arc<AtomicBool>,
    mut journal: Journal,
) -> Result<Loaded, LoadError> {
    let barrier = Arc::new(Barrier::new(options.concurrency));
    let mut shares: Vec<Vec<Worker>> = (0..options.threads).map(|_| Vec::new()).collect();
    for (number, slots) in options.slots(&mut journal).into_iter().enumerate() {
        let worker = Worker::new(number, options, slots, Arc::clone(stop));
        shares[number % options.threads].push(worker);
    }
    let threads = shares
        .into_iter()
        .map(|workers| run_share(workers, Arc::clone(&barrier), runtime()?))
        .collect::<Result<Vec<_>, LoadError>>()?;
    let mut record = Record::default();
    let (mut begun, mut ended) = (None, None);
    let mut fault = None;
    for worked in threads.into_iter().flat_map(join) {
        match worked {
            Ok(done) => {
                record.add(&done.record);
                begun = Some(
                    begun.map_or(done.begun, |tick: millpond_types::Tick| tick.min(done.begun)),
                );
                ended = ended.max(Some(done.ended));
                journal.keys.extend(done.slots.into_iter().filter_map(known));
            }
            Err(error) => fault = Some(error),
        }
    }
    let elapsed = begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended.since(begun));
    fault.map_or(Ok(Loaded { record, elapsed, journal }), Err)
}

fn known(slot: Slot) -> Option<(String, KeyState)> {
    (slot.state != KeyState::default()).then_some((slot.key, slot.state))
}

fn join(thread: ThreadHandle<Worked>) -> Worked {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs workers on a thread of their own.
fn run_share(
    workers: Vec<Worker>,
    barrier: Arc<Barrier>,
    runtime: tokio::runtime::Runtime,
) -> Result<ThreadHandle<Worked>, LoadError> {
    let run = move || {
        runtime.block_on(async move {
            let tasks: Vec<_> = workers
                .into_iter()
                .map(|worker| tokio::spawn(worker.run(Arc::clone(&barrier))))
                .collect();
            let mut worked = Worked::new();
            for task in tasks {
                match task.await {
                    Ok(done) => worked.push(done),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            worked
        })
    };
    thread("s3-load", run).map_err(|source| LoadError::System { what: "a thread", source })
}

/// Returns a flag that SIGINT and SIGTERM set, so that an interrupted load still writes its
/// journal.
///
/// # Errors
/// [`LoadError::System`].
pub fn stop_flag() -> Result<Arc<AtomicBool>, LoadError> {
    let flag = Arc::<AtomicBool>::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|source| LoadError::System { what: "a signal handler", source })?;
    }
    Ok(flag)
}

fn is_up(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// Counts by name.
pub type Counts = BTreeMap<String, u64>;
