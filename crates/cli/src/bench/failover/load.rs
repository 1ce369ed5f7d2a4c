//! The load: calls with one key on every chain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use millpond_client::{Addresses, Client, ClientOptions, GetOutcome, Keys, Room, Transport, Value};
use millpond_env::ThreadHandle;
use millpond_types::cluster::{ChainId, Routing, RoutingUpdate, RoutingVersion};
use millpond_types::wire::{ItemStatus, Leaders, NamespaceOpen, RoutingRequest, Verb};
use millpond_types::{Ack, BlockKey, GroupId, NamespaceOptions, Uuid128, placement};
use parking_lot::Mutex;

const WRITTEN: &str = "bench-failover";
/// What is read stays, however full the disks get.
const READ: &str = "bench-failover-read";
const WRITERS: usize = 2;
const READERS: usize = 2;
/// Pause between two calls: what is measured is when calls end, not how many there can be.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the cluster may take until every caller was answered.
const ANSWERED_MAX: Duration = Duration::from_mins(1);

/// One call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) caller: usize,
    pub(super) writes: bool,
    pub(super) start: Duration,
    pub(super) end: Duration,
    /// Every key was answered.
    pub(super) is_complete: bool,
}

/// What callers share.
struct Shared {
    started: Instant,
    stop: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

/// Callers at work.
pub(super) struct Load {
    /// Chains that have slots.
    pub(super) chains: usize,
    shared: Arc<Shared>,
    threads: Vec<ThreadHandle<()>>,
}

/// The namespace, as one caller uses it.
struct Caller {
    number: usize,
    client: Client,
    namespace: GroupId,
    node: Uuid128,
    run_blocks: u16,
    /// A leader on every chain.
    leaders: Leaders,
    chains: usize,
    value: Vec<u8>,
}

/// A key on every chain that has slots.
fn key_per_chain(client: &Client, group: GroupId) -> Result<Vec<BlockKey>> {
    let everything = RoutingRequest { cluster: Uuid128::NIL, have: RoutingVersion(0) };
    let reply = client.call(Verb::Routing, everything.encode(), None)?;
    let mut routing = Routing::default();
    routing.apply(RoutingUpdate::decode(&reply)?)?;
    let mut chains: std::collections::BTreeSet<ChainId> =
        routing.slots.iter().map(|(_, chain)| chain).collect();
    let mut found = Vec::with_capacity(chains.len());
    for number in 0..10_000_000_u64 {
        if chains.is_empty() {
            return Ok(found);
        }
        let key = BlockKey::new(format!("leader {number}").as_bytes())?;
        if chains.remove(&routing.place(placement::slot(group, &key)).chain) {
            found.push(key);
        }
    }
    bail!("no keys found for {} chains", chains.len())
}

impl Caller {
    fn open(addresses: &str, number: usize, bytes: usize) -> Result<Self> {
        let client = Client::new(ClientOptions {
            transport: Transport::Tcp,
            deadline: Duration::from_secs(10),
            ..ClientOptions::new(addresses.parse::<Addresses>()?)
        })?;
        let writes = number < WRITERS;
        let options =
            NamespaceOptions { ack: Ack::Disk, evict: writes, ..NamespaceOptions::default() };
        let name = if writes { WRITTEN } else { READ }.to_owned();
        let open = NamespaceOpen { name, create: true, options };
        let info = client.open_namespace(&open, None)?;
        let node = client.node()?;
        let leaders = key_per_chain(&client, info.id)?;
        Ok(Self {
            number,
            client,
            namespace: info.id,
            node,
            run_blocks: info.options.run_blocks,
            chains: leaders.len(),
            leaders: Leaders::Each(leaders),
            value: (0..bytes).map(|at| (at * 31 + at / 251).to_le_bytes()[0]).collect(),
        })
    }

    fn keys<'k>(&'k self, keys: &'k [BlockKey]) -> Keys<'k> {
        let Self { namespace, node, run_blocks, ref leaders, .. } = *self;
        Keys { namespace, node, run_blocks, keys, leaders }
    }

    fn names(&self, what: &str) -> Vec<BlockKey> {
        let name = |chain| BlockKey::new(format!("{what} {chain}").as_bytes());
        (0..self.chains).filter_map(|chain| name(chain).ok()).collect()
    }

    /// Stores a value on every chain; true when all did.
    fn put(&self, what: &str) -> Result<bool> {
        let names = self.names(what);
        let values = vec![Value::One(&self.value); names.len()];
        let done = self.client.put(self.keys(&names), &values, None)?;
        Ok(done.iter().all(|item| matches!(item, ItemStatus::Ok | ItemStatus::Exists)))
    }

    /// Reads a value from every chain; true when all came, and right.
    fn get(&self, names: &[BlockKey], memory: &mut [Vec<u8>]) -> Result<bool> {
        let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(|room| Room::One(room)).collect();
        let done = self.client.get(self.keys(names), &mut rooms, None)?;
        if !done.iter().all(|outcome| matches!(outcome, GetOutcome::Read(_))) {
            return Ok(false);
        }
        if memory.iter().any(|bytes| *bytes != self.value) {
            bail!("wrong bytes: this is a bug in the store, report it");
        }
        Ok(true)
    }

    fn work(&self, shared: &Shared) {
        let writes = self.number < WRITERS;
        let fixed = self.names("read");
        let mut memory = vec![vec![0; self.value.len()]; self.chains];
        let run = millpond_env::RealClock::wall_ms();
        for count in 0_u64.. {
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            let start = shared.started.elapsed();
            let done = if writes {
                self.put(&format!("write {run} {} {count}", self.number))
            } else {
                self.get(&fixed, &mut memory)
            };
            let end = shared.started.elapsed();
            if let Err(error) = &done {
                eprintln!(
                    "  a call of {:.3} s failed: {error}",
                    end.saturating_sub(start).as_secs_f64()
                );
            }
            let is_complete = done.unwrap_or(false);
            let call = Call { caller: self.number, writes, start, end, is_complete };
            shared.calls.lock().push(call);
            std::thread::sleep(PAUSE);
        }
    }
}

impl Load {
    /// Stores what is read, and starts the callers.
    pub(super) fn start(addresses: &str, bytes: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            stop: AtomicBool::new(false),
            calls: Mutex::default(),
        });
        let (mut threads, mut chains) = (Vec::new(), 0);
        for number in 0..WRITERS + READERS {
            let caller = Caller::open(addresses, number, bytes)?;
            chains = caller.chains;
            if number == WRITERS && !caller.put("read")? {
                bail!("the values to read could not be stored");
            }
            let shared = Arc::clone(&shared);
            let thread = millpond_env::thread("failover-caller", move || caller.work(&shared));
            threads.push(thread.context("start a caller")?);
        }
        Ok(Self { chains, shared, threads })
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Waits until every caller has had all answers to a call that began after `at`.
    pub(super) fn wait_answered(&self, at: Duration) -> Result<()> {
        let until = Instant::now() + ANSWERED_MAX;
        loop {
            let answered = |caller: usize| {
                let calls = self.shared.calls.lock();
                let mut after = calls.iter().rev().take_while(|call| call.end >= at);
                after.any(|call| call.caller == caller && call.start >= at && call.is_complete)
            };
            if (0..WRITERS + READERS).all(answered) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the cluster did not answer on every chain for {ANSWERED_MAX:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the callers; all their calls.
    pub(super) fn stop(self) -> Vec<Call> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _panicked = thread.join();
        }
        std::mem::take(&mut self.shared.calls.lock())
    }
}
