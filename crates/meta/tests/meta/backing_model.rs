//! Random clients and persisters of a backed bucket, over a backend that applies requests late, or
//! never, and loses its answers. The rules of RFC 0020 hold at every step, and in the end the
//! backend has the last acknowledged objects.

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_env::Rng;
use millpond_types::meta::object::{Claimed, KeyState, LANE_SMALL, LANE_SWEEP, Outcome, Wanted};

use crate::backing::LEASE_MS;
use crate::flaky::Flaky;
use crate::support::{Client, Fixture};

/// A request is done within this time, or never: less than a lease.
const REQUEST_MS: u64 = 30_000;
/// Fills that take longer than this are given up: states are kept longer.
const FILL_MS: u64 = 3_000_000;
const KEYS: [&str; 4] = ["a", "a/b", "c", "d/e/f"];

/// An object at the backend.
#[derive(Clone, Debug, PartialEq)]
struct Remote {
    content: Vec<u8>,
    put_id: u64,
}

/// A request on its way.
#[derive(Clone, Debug)]
struct Request {
    key: String,
    put_id: u64,
    /// `None` removes.
    content: Option<Vec<u8>>,
    until_ms: u64,
    /// Its sender waits for an answer.
    is_awaited: bool,
    worker: usize,
}

/// A gateway has read an object of the backend, and is about to fill it.
#[derive(Debug)]
struct Fill {
    key: &'static str,
    content: Vec<u8>,
    seen: Option<u64>,
    since_ms: u64,
}

struct World {
    f: Fixture,
    clients: Vec<Client>,
    rng: Rng,
    now_ms: u64,
    /// The last acknowledged objects.
    model: BTreeMap<&'static str, Vec<u8>>,
    backend: BTreeMap<String, Remote>,
    requests: Vec<Request>,
    fills: Vec<Fill>,
    count: u64,
    /// Counts of events: a test that reaches none of them shows nothing.
    noted: BTreeMap<&'static str, u64>,
}

impl World {
    async fn new(f: Fixture, seed: u64, with_twin: bool) -> Self {
        let mut clients = Vec::new();
        for n in 0..3 {
            let volume = if n % 2 == 0 { &f.volume } else { &f.other };
            let mut opened = Client::open(volume).await;
            opened.twin = with_twin.then(|| f.other.clone());
            clients.push(opened);
        }
        clients[0].backed().await;
        let (model, backend, noted) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (requests, fills, rng) = (Vec::new(), Vec::new(), Rng::new(seed));
        let (now_ms, count) = (0, 0);
        Self { f, clients, rng, now_ms, model, backend, requests, fills, count, noted }
    }

    fn note(&mut self, what: &'static str) {
        *self.noted.entry(what).or_default() += 1;
    }

    fn any_client(&mut self) -> (usize, Client) {
        let n = self.rng.index(self.clients.len());
        (n, self.clients[n].clone())
    }

    fn any_key(&mut self) -> &'static str {
        KEYS[self.rng.index(KEYS.len())]
    }

    fn advance(&mut self, ms: u64) {
        self.f.clock.advance(Duration::from_millis(ms));
        self.now_ms += ms;
        let now_ms = self.now_ms;
        self.requests.retain(|request| request.until_ms > now_ms);
    }

    async fn put(&mut self) {
        let (key, (_, c), (worker, other)) = (self.any_key(), self.any_client(), self.any_client());
        self.count += 1;
        let content = format!("{}", self.count).into_bytes();
        // The key may be claimed at the same moment.
        if self.rng.chance(1, 3) {
            let id = self.count * 100;
            let (_, claims) =
                tokio::join!(c.put(key, &content), other.claim_lane(LANE_SMALL, 2, id));
            self.model.insert(key, content);
            Box::pin(self.work(worker, claims)).await;
        } else {
            c.put(key, &content).await;
            self.model.insert(key, content);
        }
    }

    async fn remove(&mut self) {
        let (key, (_, c)) = (self.any_key(), self.any_client());
        c.remove(key).await;
        self.model.remove(key);
    }

    async fn claim(&mut self) {
        let (worker, c) = self.any_client();
        self.count += 1;
        let limit = 1 + u32::try_from(self.rng.below(3)).unwrap();
        let claims = c.claim_lane(LANE_SMALL, limit, self.count * 100).await;
        Box::pin(self.work(worker, claims)).await;
    }

    async fn work(&mut self, worker: usize, claims: Vec<Claimed>) {
        for claimed in claims {
            let key = String::from_utf8(claimed.key.clone()).unwrap();
            let is_alive = self.requests.iter().any(|request| request.key == key);
            assert!(!is_alive, "{key} was taken while a request was on its way");
            if self.rng.chance(1, 8) {
                self.note("died");
            } else if claimed.is_fresh {
                self.send(worker, claimed).await;
            } else {
                self.resolve(worker, &key, &claimed).await;
            }
        }
    }

    async fn send(&mut self, worker: usize, claimed: Claimed) {
        let content = match (&claimed.object, claimed.state.wanted) {
            (Some(object), Wanted::File { ino, .. }) => {
                assert_eq!(object.attr.ino, ino);
                Some(self.clients[worker].content(ino).await.unwrap().bytes)
            }
            (None, Wanted::Nothing) => None,
            other => panic!("{other:?}"),
        };
        let under = claimed.state.under.unwrap();
        assert_eq!(under.seq, claimed.state.seq, "what is sent is what was wanted last");
        self.requests.push(Request {
            key: String::from_utf8(claimed.key).unwrap(),
            put_id: under.put_id,
            content,
            until_ms: self.now_ms + REQUEST_MS,
            is_awaited: true,
            worker,
        });
        self.note("sent");
    }

    /// Resolves an attempt with an unknown outcome: asks the backend.
    async fn resolve(&mut self, worker: usize, key: &str, claimed: &Claimed) {
        let (state, under) = (&claimed.state, claimed.state.under.unwrap());
        let there = self.backend.get(key);
        let failed = Outcome::Failed { error: "not there".into(), pause_ms: 0 };
        let outcome = match there {
            Some(there) if there.put_id == under.put_id => {
                let etag = String::from_utf8(there.content.clone()).unwrap();
                Outcome::Done { etag: Some(etag) }
            }
            None if state.is_tombstone() && state.seq == under.seq => Outcome::Done { etag: None },
            _ => failed,
        };
        self.clients[worker].settle(key, under.put_id, outcome).await.unwrap();
        self.note("resolved");
    }

    /// The backend applies a request, or refuses it, or the answer is lost.
    async fn answer(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let n = self.rng.index(self.requests.len());
        let fate = self.rng.below(6);
        if fate > 2 && !self.requests[n].is_awaited {
            return;
        }
        let mut request = self.requests[n].clone();
        if fate <= 3 {
            self.requests.remove(n);
            if fate < 3 {
                self.apply(&request);
            }
        }
        if !request.is_awaited {
            return;
        }
        let pause_ms = u32::try_from(REQUEST_MS).unwrap();
        let outcome = match fate {
            0 | 1 => {
                let etag = request.content.take().map(|bytes| String::from_utf8(bytes).unwrap());
                Outcome::Done { etag }
            }
            3 => Outcome::Failed { error: "503".into(), pause_ms: 1000 },
            4 => Outcome::GoingOn { lease_ms: LEASE_MS },
            _ => Outcome::Unknown { error: "lost".into(), pause_ms },
        };
        // It is applied later, or never.
        if fate == 5 {
            self.requests[n].is_awaited = false;
        }
        let c = &self.clients[request.worker];
        let settled = c.settle(&request.key, request.put_id, outcome).await;
        assert!(settled.is_ok(), "{settled:?}: nobody else may have known of it");
        let names = ["done", "done", "lost", "refused", "going on", "unknown"];
        self.note(names[usize::try_from(fate).unwrap()]);
    }

    fn apply(&mut self, request: &Request) {
        let Request { key, put_id, content, .. } = request.clone();
        match content {
            Some(content) => drop(self.backend.insert(key, Remote { content, put_id })),
            None => drop(self.backend.remove(&key)),
        }
    }

    async fn evict(&mut self) {
        let (_, c) = self.any_client();
        for key in KEYS {
            let Some(state) = c.state(key).await else { continue };
            let wrong = u64::from(self.rng.chance(1, 4));
            if c.evict(key, state.seq + wrong).await {
                assert!(state.is_clean() && wrong == 0);
                self.note("evicted");
            }
        }
    }

    /// A gateway finds neither file nor tombstone.
    async fn look(&mut self) {
        let (_, c) = self.any_client();
        for key in KEYS {
            let state = c.state(key).await;
            if c.object(key).await.is_some() || state.as_ref().is_some_and(KeyState::is_tombstone) {
                continue;
            }
            let Some(there) = self.backend.get(key) else { continue };
            let (content, seen) = (there.content.clone(), state.map(|state| state.seq));
            self.fills.push(Fill { key, content, seen, since_ms: self.now_ms });
        }
    }

    async fn fill(&mut self) {
        if self.fills.is_empty() {
            return;
        }
        let n = self.rng.index(self.fills.len());
        let fill = self.fills.swap_remove(n);
        if self.now_ms - fill.since_ms > FILL_MS {
            return;
        }
        let (_, c) = self.any_client();
        if c.fill(fill.key, &fill.content, fill.seen).await {
            assert_eq!(self.model.get(fill.key), Some(&fill.content), "an old object came back");
            self.note("filled");
        } else {
            self.note("filled too late");
        }
    }

    /// Checks the guarantees for each key.
    async fn judge(&mut self) {
        let (_, c) = self.any_client();
        for key in KEYS {
            let wanted = self.model.get(key);
            let there = self.backend.get(key).map(|there| &there.content);
            let (object, state) = (c.object(key).await, c.state(key).await);
            let is_tombstone = state.as_ref().is_some_and(KeyState::is_tombstone);
            let is_clean = state.as_ref().is_none_or(KeyState::is_clean);
            match &object {
                Some(object) => assert_eq!(object.bytes.as_ref(), wanted, "{key}: {state:?}"),
                None if is_tombstone => assert_eq!(wanted, None, "{key}: {state:?}"),
                None => {
                    assert!(is_clean, "{key}: {state:?}");
                    assert_eq!(there, wanted, "{key} has gone: {state:?}");
                }
            }
            if is_clean {
                assert_eq!(there, wanted, "{key} is clean: {state:?}");
                assert!(state.is_none_or(|state| state.under.is_none()));
            }
            let on_their_way = self.requests.iter().filter(|request| request.key == key).count();
            assert!(on_their_way <= 1, "{key} has two attempts");
        }
    }

    async fn step(&mut self) {
        match self.rng.below(26) {
            0..3 => Box::pin(self.put()).await,
            3 => self.remove().await,
            4..9 => self.claim().await,
            9..15 => self.answer().await,
            15..18 => self.evict().await,
            18..20 => self.look().await,
            20..22 => self.fill().await,
            22..25 => {
                let ms = self.rng.below(20_000);
                self.advance(ms);
            }
            _ => {
                let ms = if self.rng.chance(1, 3) { 1_300_000 } else { 61_000 };
                self.advance(ms);
                for client in &self.clients {
                    assert!(client.renew(&[], &[]).await.is_ok() || ms > 61_000);
                }
            }
        }
    }

    /// Without further writes and with a backend that answers, everything is persisted.
    async fn drain(&mut self) {
        for _ in 0..50 {
            self.advance(61_000);
            let c = self.clients[0].clone();
            self.count += 1;
            for claimed in c.claim_lane(LANE_SMALL, 9, self.count * 100).await {
                let key = String::from_utf8(claimed.key.clone()).unwrap();
                if !claimed.is_fresh {
                    self.resolve(0, &key, &claimed).await;
                    continue;
                }
                self.send(0, claimed).await;
                let request = self.requests.pop().unwrap();
                self.apply(&request);
                let etag = request.content.map(|bytes| String::from_utf8(bytes).unwrap());
                c.done(&key, request.put_id, etag.as_deref()).await;
            }
            if c.queue(LANE_SMALL, None, 9).await.entries.is_empty() {
                break;
            }
        }
        let has: BTreeMap<&str, &Vec<u8>> =
            self.backend.iter().map(|(key, there)| (&key[..], &there.content)).collect();
        let wanted: BTreeMap<&str, &Vec<u8>> =
            self.model.iter().map(|(key, content)| (*key, content)).collect();
        assert_eq!(has, wanted, "the backend has what was acknowledged last");
    }
}

async fn run(
    f: Fixture,
    seed: u64,
    (steps, with_twin): (u64, bool),
) -> BTreeMap<&'static str, u64> {
    let mut world = World::new(f, seed, with_twin).await;
    for _ in 0..steps {
        Box::pin(world.step()).await;
        world.judge().await;
    }
    Box::pin(world.drain()).await;
    world.judge().await;
    // An hour later only files and their states are left.
    world.advance(3_700_000);
    // Over a store that loses answers, collection continues where it stopped.
    while world.f.volume.collect().await.is_err() {}
    let c = Client::open(&world.f.volume).await;
    assert!(c.queue(LANE_SWEEP, None, 9).await.entries.is_empty());
    for (key, state) in c.states("", "", 9).await.states {
        let is_there = c.object(std::str::from_utf8(&key).unwrap()).await.is_some();
        assert!(is_there && state.is_clean());
    }
    world.f.assert_sound().await;
    world.noted
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

#[test]
fn the_backend_ends_with_what_was_acknowledged_last() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..60 {
        let all = block_on(async {
            let f = Fixture::in_memory().await;
            Box::pin(run(f, seed, (250, seed % 4 == 0))).await
        });
        for (what, count) in all {
            *seen.entry(what).or_default() += count;
        }
    }
    println!("{seen:?}");
    for what in ["died", "resolved", "lost", "unknown", "evicted", "filled", "filled too late"] {
        assert!(seen.get(what).is_some_and(|count| *count > 5), "{what}: {seen:?}");
    }
}

/// Lost answers of the store change none of this.
#[test]
fn the_same_over_a_store_that_loses_answers() {
    for seed in 100..120 {
        block_on(async {
            let store = Flaky::store(seed);
            let f = Fixture::new(store.clone(), store).await;
            Box::pin(run(f, seed, (120, seed % 2 == 0))).await
        });
    }
}
