//! Clients: they put, get, look for and delete keys that they share, and note what they heard.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millpond_client::{
    Client, ClientError, ClientOptions, ErrorKind, GetOutcome, Keys, Room, Transport, Value,
};
use millpond_env::Rng;
use millpond_types::wire::{ItemStatus, Leaders, NamespaceOpen, Verb};
use millpond_types::{Ack, BlockKey, GroupId, NamespaceOptions, Uuid128};

use super::history::{Deed, Entry};
use super::value::{self, LEN_MAX};

/// Clients at work.
const WORKERS: usize = 5;
/// Keys that are worked on at a time: few, so that clients meet.
const LIVE: usize = 40;
/// Operations on a key before another one takes its place.
const KEY_OPERATIONS: u64 = 80;
/// Keys of one call at most.
const BATCH_MAX: u64 = 6;
/// Pause between calls: the machine is shared with the cluster.
const PAUSE_MS_MAX: u64 = 6;
/// An update refused within this time was not tried twice.
const AT_ONCE_US: u64 = 100_000;
/// Errors that are told in full.
const ERRORS_TOLD: usize = 20;

/// A call that took long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Longest {
    took: u64,
    ended: u64,
    verb: &'static str,
}

impl std::fmt::Display for Longest {
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (took, ended) = (self.took as f64 / 1e6, self.ended as f64 / 1e6);
        write!(f, "{} {took:.2} s at {ended:.1} s", self.verb)
    }
}

/// What clients agree about.
pub(crate) struct Shared {
    started: Instant,
    stop: AtomicBool,
    /// Disks are being filled: updates may be refused.
    pub(crate) full: AtomicBool,
    /// The key of each place, and operations begun on it.
    live: Vec<(AtomicU64, AtomicU64)>,
    next_key: AtomicU64,
    next_number: AtomicU64,
    pub(crate) calls: AtomicU64,
    /// Updates refused while disks were full.
    pub(crate) refused: AtomicU64,
    /// The longest call since it was asked for.
    longest: Mutex<Longest>,
    /// Calls that failed or had no answer for a key.
    errors: Mutex<Vec<String>>,
    pub(crate) error_count: AtomicU64,
    /// Bytes that nobody wrote there.
    wrong: Mutex<Vec<String>>,
}

impl Shared {
    fn micros(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The longest call since the last question.
    pub(crate) fn take_longest(&self) -> Longest {
        std::mem::take(&mut *self.longest.lock().unwrap())
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    pub(crate) fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    fn failed(&self, what: &str) {
        self.error_count.fetch_add(1, Ordering::Relaxed);
        let mut errors = self.errors.lock().unwrap();
        if errors.len() < ERRORS_TOLD {
            errors.push(format!("at {:.3} s: {what}", self.elapsed().as_secs_f64()));
        }
    }

    /// A key to work on, and whether it is its last operation.
    fn pick(&self, rng: &mut Rng) -> (u64, bool) {
        let (key, begun) = &self.live[rng.index(LIVE)];
        let now = key.load(Ordering::Relaxed);
        let last = begun.fetch_add(1, Ordering::Relaxed) + 1 == KEY_OPERATIONS;
        if last {
            key.store(self.next_key.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            begun.store(0, Ordering::Relaxed);
        }
        (now, last)
    }
}

/// A namespace of the cluster, through a client of one worker.
pub(crate) struct Door {
    client: Client,
    namespace: GroupId,
    node: Uuid128,
    run_blocks: u16,
}

impl Door {
    /// Opens the namespace `name`, durable and never evicted, made if need be.
    pub(crate) fn open(
        addresses: &str,
        (name, replicas): (&str, u8),
        transport: Transport,
        deadline: Duration,
    ) -> Result<Self, ClientError> {
        let options =
            ClientOptions { transport, deadline, ..ClientOptions::new(addresses.parse()?) };
        let client = Client::new(options)?;
        let options = NamespaceOptions {
            replicas,
            ack: Ack::Disk,
            evict: false,
            ..NamespaceOptions::default()
        };
        let open = NamespaceOpen { name: name.to_owned(), create: true, options };
        let info = client.open_namespace(&open, None)?;
        let node = client.node()?;
        Ok(Self { client, namespace: info.id, node, run_blocks: info.options.run_blocks })
    }

    pub(crate) fn namespace(&self) -> GroupId {
        self.namespace
    }

    fn keys<'k>(&self, keys: &'k [BlockKey], leaders: &'k Leaders) -> Keys<'k> {
        let Self { namespace, node, run_blocks, .. } = *self;
        Keys { namespace, node, run_blocks, keys, leaders }
    }

    pub(crate) fn put(
        &self,
        names: &[BlockKey],
        values: &[Vec<u8>],
    ) -> Result<Vec<ItemStatus>, ClientError> {
        let values: Vec<Value<'_>> = values.iter().map(|value| Value::One(value)).collect();
        self.client.put(self.keys(names, &Leaders::Own), &values, None)
    }

    pub(crate) fn on_keys(
        &self,
        verb: Verb,
        names: &[BlockKey],
    ) -> Result<Vec<ItemStatus>, ClientError> {
        self.client.on_keys(verb, self.keys(names, &Leaders::Own), None)
    }

    /// Values; what was not read, and why.
    pub(crate) fn get(
        &self,
        names: &[BlockKey],
    ) -> Result<Vec<Result<Vec<u8>, GetOutcome>>, ClientError> {
        let mut memory = vec![vec![0xee; LEN_MAX]; names.len()];
        let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(|room| Room::One(room)).collect();
        let outcomes = self.client.get(self.keys(names, &Leaders::Own), &mut rooms, None)?;
        let read = |(outcome, mut bytes): (GetOutcome, Vec<u8>)| match outcome {
            GetOutcome::Read(len) => {
                bytes.truncate(len as usize);
                Ok(bytes)
            }
            other => Err(other),
        };
        Ok(outcomes.into_iter().zip(memory).map(read).collect())
    }
}

/// Clients at work.
pub(crate) struct Load {
    pub(crate) shared: Arc<Shared>,
    workers: Vec<JoinHandle<Vec<Entry>>>,
}

impl Load {
    /// Starts clients of the cluster at `addresses`; every other one over TCP only.
    pub(crate) fn start(addresses: &str, replicas: u8, seed: u64) -> Self {
        let live = u64::try_from(LIVE).unwrap();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            stop: AtomicBool::new(false),
            full: AtomicBool::new(false),
            live: (0..live).map(|key| (key.into(), (key % KEY_OPERATIONS).into())).collect(),
            next_key: AtomicU64::new(live),
            next_number: AtomicU64::new(1),
            calls: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            longest: Mutex::default(),
            errors: Mutex::default(),
            error_count: AtomicU64::new(0),
            wrong: Mutex::default(),
        });
        let worker = |number: usize| {
            let transport = if number.is_multiple_of(2) { Transport::Auto } else { Transport::Tcp };
            let deadline = Duration::from_secs(5);
            let door = Door::open(addresses, ("chaos", replicas), transport, deadline).unwrap();
            let rng = Rng::with_stream(seed, number as u64 + 1);
            let mut worker =
                Worker { number, door, rng, shared: Arc::clone(&shared), entries: Vec::new() };
            std::thread::spawn(move || {
                while !worker.shared.stop.load(Ordering::Relaxed) {
                    worker.call();
                }
                worker.entries
            })
        };
        let workers = (0..WORKERS).map(worker).collect();
        Self { shared, workers }
    }

    /// Ends the clients; what they did.
    pub(crate) fn stop(self) -> Vec<Entry> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let ended = self.workers.into_iter().map(|worker| worker.join().expect("no panic"));
        ended.flatten().collect()
    }
}

struct Worker {
    number: usize,
    door: Door,
    rng: Rng,
    shared: Arc<Shared>,
    entries: Vec<Entry>,
}

impl Worker {
    /// One call and a pause.
    fn call(&mut self) {
        let mut keys = Vec::new();
        let mut retired = Vec::new();
        for _ in 0..=self.rng.below(BATCH_MAX) {
            let (key, last) = self.shared.pick(&mut self.rng);
            if last {
                retired.push(key);
            }
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        match self.rng.below(20) {
            0..7 => self.put(&keys),
            7..15 => self.get(&keys),
            15..17 => self.on_keys(Verb::Contains, &keys),
            _ => self.on_keys(Verb::Delete, &keys[..1]),
        }
        // Most keys are deleted when they retire; the others stay until the end.
        retired.retain(|_| !self.rng.chance(1, 8));
        if !retired.is_empty() {
            self.on_keys(Verb::Delete, &retired);
        }
        let pause = self.rng.below(PAUSE_MS_MAX * 1000);
        std::thread::sleep(Duration::from_micros(pause));
    }

    fn note(&mut self, (verb, call): (Verb, u64), deeds: Vec<(u64, Option<Deed>)>) {
        let ret = self.shared.micros();
        let mut longest = self.shared.longest.lock().unwrap();
        if ret - call > longest.took {
            *longest = Longest { took: ret - call, ended: ret, verb: verb.name() };
        }
        drop(longest);
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        let worker = self.number;
        let entry =
            |(key, deed): (u64, Option<Deed>)| Some(Entry { key, worker, call, ret, deed: deed? });
        self.entries.extend(deeds.into_iter().filter_map(entry));
    }

    /// A key of an update without a certain answer; true when it was certainly refused.
    fn uncertain(&self, (verb, call): (Verb, u64), key: u64, status: ItemStatus) -> bool {
        let refused = matches!(status, ItemStatus::NoSpace | ItemStatus::Busy);
        if refused && self.shared.full.load(Ordering::Relaxed) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.failed(&format!("{} of key {key}: {status:?}", verb.name()));
        }
        // Answered at once, it was the first attempt, and nothing of it is under way.
        refused && self.shared.micros() - call < AT_ONCE_US
    }

    /// A call that failed.
    fn broken(&self, verb: Verb, call: u64, error: &ClientError) {
        let refused = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Busy);
        if refused && verb != Verb::Get && self.shared.full.load(Ordering::Relaxed) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        let took = (self.shared.micros() - call) as f64 / 1e6;
        let worker = self.number;
        self.shared.failed(&format!("{} of worker {worker}, {took:.3} s: {error}", verb.name()));
    }

    fn put(&mut self, keys: &[u64]) {
        let next = || self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        let numbers: Vec<u64> = keys.iter().map(|_| next()).collect();
        let names: Vec<BlockKey> = keys.iter().map(|key| value::name(*key)).collect();
        let made = keys.iter().zip(&numbers).map(|(key, number)| value::make(*key, *number));
        let values: Vec<Vec<u8>> = made.collect();
        let call = self.shared.micros();
        let answer = self.door.put(&names, &values);
        if let Err(error) = &answer {
            self.broken(Verb::Put, call, error);
        }
        let mut deeds = Vec::new();
        for (index, (key, number)) in keys.iter().zip(numbers).enumerate() {
            let deed = match answer.as_ref().map(|statuses| statuses[index]) {
                Ok(ItemStatus::Ok) => Deed::Stored(number),
                Ok(ItemStatus::Exists) => Deed::Exists(number),
                Ok(status) => {
                    if self.uncertain((Verb::Put, call), *key, status) {
                        continue;
                    }
                    Deed::MaybeStored(number)
                }
                Err(_) => Deed::MaybeStored(number),
            };
            deeds.push((*key, Some(deed)));
        }
        self.note((Verb::Put, call), deeds);
    }

    fn get(&mut self, keys: &[u64]) {
        let names: Vec<BlockKey> = keys.iter().map(|key| value::name(*key)).collect();
        let call = self.shared.micros();
        let answers = match self.door.get(&names) {
            Ok(answers) => answers,
            Err(error) => return self.broken(Verb::Get, call, &error),
        };
        let ret = self.shared.micros();
        let mut deeds = Vec::new();
        for (key, answer) in keys.iter().zip(answers) {
            let deed = match answer.map(|bytes| value::verify(*key, &bytes)) {
                Ok(Ok(number)) => Some(Deed::Read(number)),
                Ok(Err(what)) => {
                    self.shared.wrong.lock().unwrap().push(what);
                    None
                }
                Err(GetOutcome::Miss) => Some(Deed::Absent),
                Err(other) => {
                    let took = (ret - call) / 1000;
                    self.shared.failed(&format!("get of key {key}, {took} ms: {other:?}"));
                    None
                }
            };
            deeds.push((*key, deed));
        }
        self.note((Verb::Get, call), deeds);
    }

    fn on_keys(&mut self, verb: Verb, keys: &[u64]) {
        let names: Vec<BlockKey> = keys.iter().map(|key| value::name(*key)).collect();
        let deletes = verb == Verb::Delete;
        let call = self.shared.micros();
        let answer = self.door.on_keys(verb, &names);
        if let Err(error) = &answer {
            self.broken(verb, call, error);
        }
        let mut deeds = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let deed = match answer.as_ref().map(|statuses| statuses[index]) {
                Ok(ItemStatus::Ok) if deletes => Some(Deed::Removed),
                Ok(ItemStatus::Miss) if deletes => Some(Deed::WasAbsent),
                Ok(ItemStatus::Ok) => Some(Deed::Present),
                Ok(ItemStatus::Miss) => Some(Deed::Absent),
                Ok(status) => {
                    let refused = self.uncertain((verb, call), *key, status);
                    (deletes && !refused).then_some(Deed::MaybeRemoved)
                }
                Err(_) => deletes.then_some(Deed::MaybeRemoved),
            };
            deeds.push((*key, deed));
        }
        self.note((verb, call), deeds);
    }
}
