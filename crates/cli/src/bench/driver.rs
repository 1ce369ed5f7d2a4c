//! Runs `millpond bench kv`: stores the working set, then lets callers ask until time is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use millpond_client::{
    Addresses, Client, ClientError, ClientOptions, ErrorKind, GetOutcome, Keys, Room, Transport,
    Value,
};
use millpond_types::wire::{ItemStatus, Leaders, NamespaceOpen, Verb};
use millpond_types::{
    Ack, BlockKey, GroupId, LayoutDigest, NamespaceInfo, NamespaceOptions, Uuid128,
};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::args::{AckArg, KvArgs, TransportArg, VerifyArg};
use super::chart;
use super::echo::nanos;
use super::record::{Outcome, Record};
use super::report::{self, Run};
use super::workload::{Dice, Popularity, Values, key};

/// The layout of namespaces that benchmarks make: no client stores blocks of an engine there, and what
/// has another one is not dropped.
const OURS: LayoutDigest = LayoutDigest(*b"made by millpond bench, may drop");
/// Bytes of one put while the working set is stored.
const LOAD_BYTES: usize = 4 << 20;
/// Keys of one put while the working set is stored.
const LOAD_KEYS: usize = 64;
/// Callers that store the working set.
const LOADERS: u64 = 2;
/// Wait after the server said that it is busy.
const BUSY_WAIT: Duration = Duration::from_millis(2);
/// Every so many values one is compared whole.
const WHOLE_EVERY: u64 = 64;

/// What all callers share.
struct Bench<'a> {
    args: &'a KvArgs,
    client: Client,
    namespace: GroupId,
    node: Uuid128,
    values: Values,
    popularity: Popularity,
    keys: u64,
    /// Index of the next key that a put makes: beyond the working set, and different in each run.
    fresh: AtomicU64,
    /// Requests that may still start.
    budget: AtomicU64,
    stop: Arc<AtomicBool>,
}

/// Runs the benchmark and prints the result.
pub(super) fn run(args: &KvArgs) -> Result<()> {
    args.validate()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("handle Ctrl-C")?;
    }
    let bench = Bench::open(args, stop)?;
    let (record, run) = bench.measure()?;
    bench.close();
    let text = report::text(args, &run, &record);
    report::give(args.json.as_deref(), &text, &report::json(args, &run, &record))?;
    if let Some(path) = &args.chart {
        std::fs::write(path, chart::svg(&report::describe(args, &run), &record))
            .with_context(|| format!("write {}", path.display()))?;
    }
    let wrong = record.wrong();
    ensure!(wrong == 0, "{wrong} values had wrong bytes: this is a bug in the store, report it");
    Ok(())
}

impl<'a> Bench<'a> {
    fn open(args: &'a KvArgs, stop: Arc<AtomicBool>) -> Result<Self> {
        let addresses: Addresses = args.address.parse()?;
        let client = Client::new(ClientOptions {
            token: args.token.clone(),
            tls_ca: args.tls_ca.clone(),
            deadline: args.deadline,
            connections: args.in_flight.max(2),
            transport: match args.transport {
                TransportArg::Auto => Transport::Auto,
                TransportArg::Tcp => Transport::Tcp,
                TransportArg::Unix => Transport::Unix,
                TransportArg::Shm => Transport::Shm,
            },
            ..ClientOptions::new(addresses)
        })?;
        let node = client.node()?;
        let known = client.namespaces(None)?.into_iter().find(|ns| ns.name == args.namespace);
        if !args.keep
            && let Some(known) = &known
        {
            ensure!(is_ours(known) || args.drop_existing, foreign(&args.namespace));
            drop_namespace(&client, &args.namespace)?;
        }
        let ack = match args.ack {
            AckArg::Memory => Ack::Memory,
            AckArg::Disk => Ack::Disk,
        };
        // A namespace that is kept may be anybody's.
        let layout = if args.keep && known.is_some() { LayoutDigest::default() } else { OURS };
        let options = NamespaceOptions { ack, layout, ..NamespaceOptions::default() };
        let open = NamespaceOpen { name: args.namespace.clone(), create: true, options };
        let namespace = client.open_namespace(&open, None)?;
        // It was made by somebody else meanwhile, or was not listed yet.
        ensure!(args.keep || is_ours(&namespace), foreign(&args.namespace));
        ensure!(
            namespace.options.ack == ack,
            "namespace {} exists with another --ack: drop it, or omit --keep",
            args.namespace
        );
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let keys = args.keys();
        Ok(Self {
            args,
            client,
            namespace: namespace.id,
            node,
            values: Values::new(args.size.max()),
            popularity: Popularity::new(keys, args.skew),
            keys,
            // Milliseconds keep the keys of two runs apart; a run makes fewer than 2^20 a ms.
            fresh: AtomicU64::new(keys.max(1 << 40) + (u64::try_from(wall.as_millis())? << 20)),
            budget: AtomicU64::new(args.ops.unwrap_or(u64::MAX)),
            stop,
        })
    }

    fn close(&self) {
        if !self.args.keep
            && let Err(error) = drop_namespace(&self.client, &self.args.namespace)
        {
            eprintln!("namespace {} was not dropped: {error:#}", self.args.namespace);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn keys<'k>(&self, keys: &'k [BlockKey]) -> Keys<'k> {
        let run_blocks = NamespaceOptions::default().run_blocks;
        let (namespace, node) = (self.namespace, self.node);
        Keys { namespace, node, run_blocks, keys, leaders: &Leaders::Own }
    }

    fn bar(&self, length: u64, message: &str, unit: &str) -> ProgressBar {
        if self.args.quiet {
            return ProgressBar::hidden();
        }
        let template = format!("{{msg:10}} {{bar:40}} {{pos}}/{{len}} {unit} {{eta}}");
        let style = ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(length).with_style(style).with_message(message.to_owned())
    }

    /// Stores the part of the working set that is not there.
    fn load(&self) -> Result<()> {
        let bar = self.bar(self.keys, "storing", "values");
        let next = AtomicU64::new(0);
        let step = (LOAD_BYTES / self.args.size.max() as usize).clamp(1, LOAD_KEYS) as u64;
        let result = std::thread::scope(|scope| {
            let loaders: Vec<_> = (0..LOADERS)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        loop {
                            let from = next.fetch_add(step, Ordering::Relaxed);
                            if from >= self.keys || self.stopped() {
                                return Ok(());
                            }
                            let to = self.keys.min(from + step);
                            self.load_some(from, to)?;
                            bar.inc(to - from);
                        }
                    })
                })
                .collect();
            loaders.into_iter().try_for_each(joined)
        });
        bar.finish_and_clear();
        result
    }

    fn load_some(&self, from: u64, to: u64) -> Result<()> {
        let mut indexes: Vec<u64> = (from..to).collect();
        let names: Vec<BlockKey> = indexes.iter().map(|i| self.key(*i)).collect();
        let present = self.client.on_keys(Verb::Contains, self.keys(&names), None)?;
        let mut statuses = present.into_iter();
        indexes.retain(|_| statuses.next() != Some(ItemStatus::Ok));
        let patience = Instant::now() + self.args.deadline;
        while !indexes.is_empty() && !self.stopped() {
            let names: Vec<BlockKey> = indexes.iter().map(|i| self.key(*i)).collect();
            let statuses = match self.put(&indexes, &names) {
                Ok(statuses) => statuses,
                Err(error) if error.kind() == ErrorKind::Busy => {
                    vec![ItemStatus::Busy; names.len()]
                }
                Err(error) => return Err(error.into()),
            };
            let mut left = Vec::new();
            for (index, status) in indexes.iter().zip(statuses) {
                match status {
                    ItemStatus::Ok | ItemStatus::Exists => {}
                    ItemStatus::Busy | ItemStatus::Late => left.push(*index),
                    ItemStatus::NoSpace => {
                        bail!("the server is full: lower --working-set or give it more space")
                    }
                    other => bail!("the server rejected a value: {}", other.name()),
                }
            }
            if !left.is_empty() {
                ensure!(Instant::now() < patience, "the server stayed busy for the whole deadline");
                std::thread::sleep(BUSY_WAIT);
            }
            indexes = left;
        }
        Ok(())
    }

    fn key(&self, index: u64) -> BlockKey {
        key(index, self.args.size.of(index))
    }

    fn put(&self, indexes: &[u64], names: &[BlockKey]) -> Result<Vec<ItemStatus>, ClientError> {
        let values: Vec<Value<'_>> = indexes
            .iter()
            .map(|i| Value::One(self.values.value(*i, self.args.size.of(*i))))
            .collect();
        self.client.put(self.keys(names), &values, None)
    }

    /// Stores, warms up, measures.
    fn measure(&self) -> Result<(Record, Run)> {
        if self.args.read_ratio > 0.0 {
            self.load()?;
        }
        let transport = self.client.server_info()?;
        let start = Instant::now() + self.args.warmup;
        let end = start + Duration::from_secs_f64(self.args.seconds);
        let ended = AtomicBool::new(false);
        let mut record = Record::new();
        std::thread::scope(|scope| -> Result<()> {
            let callers: Vec<_> = (0..self.args.in_flight as u64)
                .map(|number| scope.spawn(move || Caller::new(self, number).run(start, end)))
                .collect();
            let bar = scope.spawn(|| self.show_progress(start, end, &ended));
            let mut result = Ok(());
            for caller in callers {
                match joined(caller) {
                    Ok(seen) => record.merge(&seen),
                    Err(error) => result = Err(error),
                }
            }
            ended.store(true, Ordering::Relaxed);
            bar.thread().unpark();
            result
        })?;
        let took = Instant::now().min(end).saturating_duration_since(start).as_secs_f64();
        ensure!(took > 0.0, "stopped before anything was measured");
        let run = Run {
            seconds: took,
            transport: transport.transport.to_string(),
            server: transport.version,
            keys: self.keys,
            interrupted: self.stopped(),
        };
        Ok((record, run))
    }

    fn show_progress(&self, start: Instant, end: Instant, ended: &AtomicBool) {
        let span = nanos(end - start) / 1_000_000;
        let bar = self.bar(span, "measuring", "ms");
        while !ended.load(Ordering::Relaxed) {
            bar.set_position(nanos(Instant::now().saturating_duration_since(start)) / 1_000_000);
            std::thread::park_timeout(Duration::from_millis(200));
        }
        bar.finish_and_clear();
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow::anyhow!("a thread of the benchmark panicked"))?
}

/// Whether a benchmark made the namespace, and may therefore drop it.
fn is_ours(namespace: &NamespaceInfo) -> bool {
    namespace.options.layout == OURS
}

fn foreign(name: &str) -> String {
    format!(
        "namespace '{name}' was not made by a benchmark and would be dropped with all its values: \
         choose another --namespace, or use --keep or --drop-existing"
    )
}

fn drop_namespace(client: &Client, name: &str) -> Result<()> {
    match client.drop_namespace(name, None) {
        Err(error) if error.kind() != ErrorKind::NoNamespace => Err(error.into()),
        _ => Ok(()),
    }
}

/// One caller: asks, waits for the answer, asks again.
struct Caller<'b, 'a> {
    bench: &'b Bench<'a>,
    dice: Dice,
    record: Record,
    indexes: Vec<u64>,
    names: Vec<BlockKey>,
    memory: Vec<u8>,
    read: u64,
}

impl<'b, 'a> Caller<'b, 'a> {
    fn new(bench: &'b Bench<'a>, number: u64) -> Self {
        let room = bench.args.size.max() as usize * bench.args.batch;
        Self {
            bench,
            dice: Dice::new(bench.args.seed.wrapping_mul(0x1_0001).wrapping_add(number)),
            record: Record::new(),
            indexes: Vec::new(),
            names: Vec::new(),
            memory: vec![0; if bench.args.read_ratio > 0.0 { room } else { 0 }],
            read: 0,
        }
    }

    fn run(mut self, start: Instant, end: Instant) -> Result<Record> {
        let mut measuring = false;
        while !self.bench.stopped() {
            let now = Instant::now();
            if now >= end {
                break;
            }
            measuring |= now >= start;
            if measuring && !self.take_budget() {
                break;
            }
            let is_get = self.dice.unit() < self.bench.args.read_ratio;
            self.choose(is_get);
            let (took, outcome) = if is_get { self.get()? } else { self.put()? };
            if measuring {
                let at = nanos(now.saturating_duration_since(start) + took);
                self.record.add(is_get, at, nanos(took), outcome);
            }
        }
        Ok(self.record)
    }

    fn take_budget(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.bench.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn choose(&mut self, is_get: bool) {
        let batch = self.bench.args.batch;
        self.indexes.clear();
        if is_get {
            let popularity = &self.bench.popularity;
            let dice = &mut self.dice;
            self.indexes.extend((0..batch).map(|_| popularity.pick(dice)));
        } else {
            let first = self.bench.fresh.fetch_add(batch as u64, Ordering::Relaxed);
            self.indexes.extend(first..first + batch as u64);
        }
        self.names.clear();
        self.names.extend(self.indexes.iter().map(|i| self.bench.key(*i)));
    }

    fn get(&mut self) -> Result<(Duration, Outcome)> {
        let bench = self.bench;
        let room = bench.args.size.max() as usize;
        let mut rooms: Vec<Room<'_>> = self.memory.chunks_mut(room).map(Room::One).collect();
        let before = Instant::now();
        let answer = bench.client.get(bench.keys(&self.names), &mut rooms, None);
        let took = before.elapsed();
        drop(rooms);
        let mut outcome = Outcome::default();
        match answer {
            Err(error) => self.excuse(error, &mut outcome)?,
            Ok(items) => {
                for (i, item) in items.into_iter().enumerate() {
                    self.check(i, item, &mut outcome);
                }
            }
        }
        Ok((took, outcome))
    }

    fn check(&mut self, i: usize, item: GetOutcome, outcome: &mut Outcome) {
        let (args, index) = (self.bench.args, self.indexes[i]);
        let at = i * args.size.max() as usize;
        match item {
            GetOutcome::Read(len) => {
                self.read += 1;
                let whole = args.verify == VerifyArg::All || self.read.is_multiple_of(WHOLE_EVERY);
                let bytes = &self.memory[at..at + len as usize];
                if len == args.size.of(index) && self.bench.values.check(index, bytes, whole) {
                    outcome.done += 1;
                    outcome.bytes += u64::from(len);
                } else {
                    outcome.wrong += 1;
                }
            }
            GetOutcome::Miss => outcome.missed += 1,
            GetOutcome::TooLong(_) => outcome.wrong += 1,
            GetOutcome::Late => outcome.refused += 1,
        }
    }

    fn put(&mut self) -> Result<(Duration, Outcome)> {
        let before = Instant::now();
        let answer = self.bench.put(&self.indexes, &self.names);
        let took = before.elapsed();
        let mut outcome = Outcome::default();
        match answer {
            Err(error) => self.excuse(error, &mut outcome)?,
            Ok(items) => {
                for (status, index) in items.into_iter().zip(&self.indexes) {
                    match status {
                        ItemStatus::Ok => {
                            outcome.done += 1;
                            outcome.bytes += u64::from(self.bench.args.size.of(*index));
                        }
                        ItemStatus::Exists => outcome.missed += 1,
                        _ => outcome.refused += 1,
                    }
                }
            }
        }
        if outcome.refused > 0 {
            std::thread::sleep(BUSY_WAIT);
        }
        Ok((took, outcome))
    }

    /// Counts a request that the server answered with "not now"; anything else ends the run.
    fn excuse(&self, error: ClientError, outcome: &mut Outcome) -> Result<()> {
        match error.kind() {
            ErrorKind::Busy | ErrorKind::DeadlineExceeded | ErrorKind::NoSpace => {
                outcome.refused += self.indexes.len() as u64;
                Ok(())
            }
            _ => Err(error.into()),
        }
    }
}
