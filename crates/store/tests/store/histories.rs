//! Random transactions from several clients at once, recorded for the checker.
//!
//! Lists live in three layouts. *Points* are one key each. *Movers* are a range in which the list
//! has one of two names and every append deletes the one and inserts the other, read by range only.
//! *Takers* are a key that is read without a conflict, and a range of tokens from which every
//! append takes one: only the missing token informs others. So every phantom, by insert and by
//! delete, shows as a list with missing values.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millpond_env::Rng;
use millpond_store::{KeyRange, RangeOptions, Store, StoreError, StoreErrorKind, Transaction};

use crate::checker::{Outcome, Record, check};

/// Lists: two points, two movers, two takers.
const LISTS: u32 = 6;
const POINTS: std::ops::Range<u32> = 0..2;
const MOVERS: std::ops::Range<u32> = 2..4;
const TAKERS: std::ops::Range<u32> = 4..6;

fn point(list: u32) -> Vec<u8> {
    format!("p/{list}").into_bytes()
}

fn mover(list: u32) -> KeyRange {
    KeyRange::prefix(format!("m/{list}/").as_bytes())
}

fn taker(list: u32) -> Vec<u8> {
    format!("t/{list}").into_bytes()
}

fn tokens(list: u32) -> KeyRange {
    KeyRange::prefix(format!("token/{list}/").as_bytes())
}

fn decode(value: &[u8]) -> Vec<u64> {
    value.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
}

fn appended(mut list: Vec<u8>, value: u64) -> Vec<u8> {
    list.extend(value.to_le_bytes());
    list
}

/// Shared state of all clients.
pub(crate) struct Run {
    clock: AtomicU64,
    values: AtomicU64,
    history: Mutex<Vec<Record>>,
}

/// Counts of outcomes in a run.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) committed: usize,
    pub(crate) aborted: usize,
    pub(crate) unknown: usize,
}

impl Run {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: AtomicU64::new(0),
            values: AtomicU64::new(1),
            history: Mutex::new(Vec::new()),
        })
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn committed(&self) -> usize {
        let history = self.history.lock().unwrap();
        history.iter().filter(|record| record.outcome == Outcome::Committed).count()
    }

    /// Runs transactions, one after the other, while `go_on` returns true.
    pub(crate) async fn client(
        self: Arc<Self>,
        store: Store,
        seed: u64,
        go_on: impl Fn(u32) -> bool + Send,
    ) {
        let mut rng = Rng::new(seed);
        let mut done = 0;
        while go_on(done) {
            let record = self.transaction(&store, &mut rng).await;
            self.history.lock().unwrap().push(record);
            done += 1;
            // After a commit other clients get a turn, after a conflict a short wait: as real
            // clients do.
            tokio::time::sleep(std::time::Duration::from_micros(rng.below(2_000))).await;
        }
    }

    async fn transaction(&self, store: &Store, rng: &mut Rng) -> Record {
        let mut record = Record {
            invoked: self.tick(),
            completed: 0,
            outcome: Outcome::Committed,
            reads: Vec::new(),
            appends: Vec::new(),
        };
        let txn = store.begin();
        let mut result = self.steps(&txn, rng, &mut record).await;
        if result.is_ok() {
            result = txn.commit().await.map(|_| ());
        }
        record.outcome = match result.map_err(|error| error.kind()) {
            Ok(()) => Outcome::Committed,
            Err(StoreErrorKind::Conflict | StoreErrorKind::Unavailable) => Outcome::Aborted,
            Err(StoreErrorKind::Unknown) => Outcome::Unknown,
            Err(kind) => panic!("{kind:?}"),
        };
        record.completed = self.tick();
        record
    }

    async fn steps(
        &self,
        txn: &Transaction,
        rng: &mut Rng,
        record: &mut Record,
    ) -> Result<(), StoreError> {
        if rng.chance(1, 8) {
            record.reads = read_all(txn).await?;
            return Ok(());
        }
        // Reads first: the record has the state before the transaction's own writes.
        let mut lists: Vec<u32> = (0..LISTS).collect();
        rng.shuffle(&mut lists);
        lists.truncate(1 + rng.index(3));
        for list in lists {
            let append = rng.chance(2, 3);
            let found = match list {
                list if POINTS.contains(&list) => {
                    self.step_point(txn, list, append, record).await?
                }
                list if MOVERS.contains(&list) => {
                    self.step_mover(txn, list, append, record).await?
                }
                list => self.step_taker(txn, list, append, record).await?,
            };
            record.reads.push((list, decode(&found)));
            // Makes transactions overlap also when nothing waits for a network.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn value(&self, list: u32, record: &mut Record) -> u64 {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        record.appends.push((list, value));
        value
    }

    async fn step_point(
        &self,
        txn: &Transaction,
        list: u32,
        append: bool,
        record: &mut Record,
    ) -> Result<Vec<u8>, StoreError> {
        let key = point(list);
        let found = txn.get(&key).await?.unwrap_or_default();
        if append {
            txn.put(&key, appended(found.clone(), self.value(list, record)))?;
        }
        Ok(found)
    }

    async fn step_mover(
        &self,
        txn: &Transaction,
        list: u32,
        append: bool,
        record: &mut Record,
    ) -> Result<Vec<u8>, StoreError> {
        let page = txn.range(&mover(list), RangeOptions::limit(10)).await?;
        assert!(page.entries.len() <= 1, "a list has one name at a time: {page:?}");
        let old = page.entries.into_iter().next();
        let found = old.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
        if append {
            let name =
                if old.as_ref().is_some_and(|(key, _)| key.ends_with(b"a")) { "b" } else { "a" };
            if let Some((key, _)) = old {
                txn.delete(&key)?;
            }
            let value = appended(found.clone(), self.value(list, record));
            txn.put(format!("m/{list}/{name}").as_bytes(), value)?;
        }
        Ok(found)
    }

    async fn step_taker(
        &self,
        txn: &Transaction,
        list: u32,
        append: bool,
        record: &mut Record,
    ) -> Result<Vec<u8>, StoreError> {
        let left = txn.range_all(&tokens(list), RangeOptions::default()).await?;
        let found = txn.get_snapshot(&taker(list)).await?.unwrap_or_default();
        if !append {
            return Ok(found);
        }
        txn.put(&taker(list), appended(found.clone(), self.value(list, record)))?;
        match left.first() {
            Some((token, _)) => txn.delete(token)?,
            None => {
                for n in 0..8 {
                    txn.put(format!("token/{list}/{n}").as_bytes(), "")?;
                }
            }
        }
        Ok(found)
    }

    /// Reads everything once more and checks the whole history.
    pub(crate) async fn finish(&self, store: &Store) -> Summary {
        let mut end = Record {
            invoked: self.tick(),
            completed: 0,
            outcome: Outcome::Committed,
            reads: Vec::new(),
            appends: Vec::new(),
        };
        end.reads = store.transact(|txn| async move { read_all(&txn).await }).await.unwrap();
        end.completed = self.tick();
        let mut history = std::mem::take(&mut *self.history.lock().unwrap());
        history.push(end);
        let faults = check(&history);
        assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
        let count = |outcome| history.iter().filter(|record| record.outcome == outcome).count();
        Summary {
            committed: count(Outcome::Committed),
            aborted: count(Outcome::Aborted),
            unknown: count(Outcome::Unknown),
        }
    }
}

async fn read_all(txn: &Transaction) -> Result<Vec<(u32, Vec<u64>)>, StoreError> {
    let mut lists = Vec::new();
    let singles: Vec<Vec<u8>> = POINTS.map(point).chain(TAKERS.map(taker)).collect();
    let keys: Vec<&[u8]> = singles.iter().map(Vec::as_slice).collect();
    for (list, value) in std::iter::zip(POINTS.chain(TAKERS), txn.get_many(&keys).await?) {
        lists.push((list, decode(&value.unwrap_or_default())));
    }
    let movers = txn.range_all(&KeyRange::prefix(b"m/"), RangeOptions::limit(2)).await?;
    for list in MOVERS {
        let mut values = movers.iter().filter(|(key, _)| mover(list).contains(key));
        lists.push((list, values.next().map(|(_, value)| decode(value)).unwrap_or_default()));
        assert!(values.next().is_none(), "a list has one name at a time");
    }
    Ok(lists)
}

/// A run of `clients` clients with `transactions` each, over two handles of one store.
pub(crate) async fn run(stores: [Store; 2], clients: u64, transactions: u32, seed: u64) -> Summary {
    let run = Run::new();
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let store = stores[usize::from(client % 2 == 1)].clone();
            let seed = seed.wrapping_mul(1_000).wrapping_add(client);
            tokio::spawn(Arc::clone(&run).client(store, seed, move |done| done < transactions))
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    run.finish(&stores[0]).await
}
