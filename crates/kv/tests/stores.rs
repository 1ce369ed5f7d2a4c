//! Stages of pipelines through their public API: cache, folder, failing open.

#![allow(clippy::disallowed_methods, reason = "tests damage files on purpose")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_env::FakeClock;
use millpond_kv::{
    Batch, BlockStore, Cache, FailOpen, FailOpenOptions, PipelineOptions, Posix, pipeline,
};
use millpond_types::wire::{ItemStatus, Leaders};
use millpond_types::{BlockKey, ByteSize, LayoutDigest};
use proptest::prelude::*;

fn key(n: u32) -> BlockKey {
    BlockKey::new(format!("key-{n}").as_bytes()).unwrap()
}

fn put(store: &dyn BlockStore, n: u32, value: &[u8]) -> ItemStatus {
    store.put(Batch::own(&[key(n)]), &[Value::One(value)]).unwrap()[0]
}

fn get(store: &dyn BlockStore, n: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0xee; 1 << 20];
    let outcome = store.get(Batch::own(&[key(n)]), &mut [Room::One(&mut bytes)]).unwrap()[0];
    match outcome {
        GetOutcome::Read(len) => Some(bytes[..len as usize].to_vec()),
        GetOutcome::Miss => None,
        other => panic!("{other:?}"),
    }
}

fn posix(folder: &Path, bytes: u64) -> Posix {
    Posix::open(folder, LayoutDigest([7; 32]), ByteSize(bytes)).unwrap()
}

/// Keeps blocks in a map; can fail calls, and can require a deadline for every call.
#[derive(Default)]
struct Fake {
    timed: bool,
    blocks: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    calls: AtomicUsize,
    fails: AtomicUsize,
}

impl Fake {
    fn fail(&self) -> Result<(), ClientError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.fails.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(ClientError::Closed),
        }
    }
}

impl BlockStore for &Fake {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        self.fail()?;
        let mut blocks = self.blocks.lock().unwrap();
        let store = |(key, value): (&BlockKey, &Value<'_>)| {
            if blocks.contains_key(key.as_bytes()) {
                return ItemStatus::Exists;
            }
            blocks.insert(key.as_bytes().to_vec(), value.pieces().concat());
            ItemStatus::Ok
        };
        Ok(batch.keys.iter().zip(values).map(store).collect())
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        self.fail()?;
        let blocks = self.blocks.lock().unwrap();
        let mut out = Vec::new();
        for (key, room) in batch.keys.iter().zip(rooms) {
            let Some(value) = blocks.get(key.as_bytes()) else {
                out.push(GetOutcome::Miss);
                continue;
            };
            let mut rest = value.as_slice();
            room.fill(value.len(), |piece| {
                let (here, left) = rest.split_at(piece.len());
                piece.copy_from_slice(here);
                rest = left;
                Ok::<(), ClientError>(())
            })?;
            out.push(GetOutcome::Read(u32::try_from(value.len()).unwrap()));
        }
        Ok(out)
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.fail()?;
        assert!(!self.timed || batch.deadline.is_some());
        let blocks = self.blocks.lock().unwrap();
        Ok(batch.keys.iter().map(|key| blocks.contains_key(key.as_bytes())).collect())
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.fail()?;
        let mut blocks = self.blocks.lock().unwrap();
        Ok(batch.keys.iter().map(|key| blocks.remove(key.as_bytes()).is_some()).collect())
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        Ok(Vec::new())
    }
}

#[test]
fn a_folder_keeps_blocks_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = posix(folder.path(), 1 << 20);
    assert_eq!(put(&store, 1, b"one"), ItemStatus::Ok);
    assert_eq!(put(&store, 1, b"two"), ItemStatus::Exists);
    assert_eq!(put(&store, 2, b""), ItemStatus::Ok);
    drop(store);
    let store = posix(folder.path(), 1 << 20);
    assert_eq!(get(&store, 1).as_deref(), Some(b"one".as_slice()));
    assert_eq!(get(&store, 2).as_deref(), Some(b"".as_slice()));
    assert_eq!(get(&store, 3), None);
    let other = Posix::open(folder.path(), LayoutDigest([8; 32]), ByteSize(1 << 20)).unwrap();
    assert_eq!(get(&other, 1), None, "another layout sees nothing");
}

fn files_under(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_under(&path));
        } else if path.file_name().is_some_and(|name| name != "usage") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_flipped_byte_of_a_file_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let store = posix(folder.path(), 1 << 20);
    put(&store, 1, b"some value");
    let path = files_under(folder.path()).pop().unwrap();
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(get(&store, 1), None, "byte {at}");
        assert!(!path.exists(), "a damaged file is removed");
    }
    for len in 0..good.len() {
        std::fs::write(&path, &good[..len]).unwrap();
        assert_eq!(get(&store, 1), None, "cut at {len}");
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(get(&store, 1).as_deref(), Some(b"some value".as_slice()));
}

#[test]
fn a_folder_stays_within_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = posix(folder.path(), 20 * 4096);
    for n in 0..60 {
        assert_eq!(put(&store, n, &[1; 3000]), ItemStatus::Ok);
    }
    assert!(files_under(folder.path()).len() <= 20);
    assert!(get(&store, 59).is_some());
    drop(store);
    let store = posix(folder.path(), 5 * 4096);
    assert!(files_under(folder.path()).len() <= 5);
    drop(store);
}

#[test]
fn the_bound_of_a_folder_counts_every_process_and_layout() {
    let folder = tempfile::tempdir().unwrap();
    // They share only files, like separate processes.
    let stores: Vec<Posix> = [7, 7, 8]
        .map(|layout| Posix::open(folder.path(), LayoutDigest([layout; 32]), ByteSize(20 * 4096)))
        .map(Result::unwrap)
        .into();
    for n in 0..60 {
        for (store, first) in stores.iter().zip([0, 100, 0]) {
            assert_eq!(put(store, first + n, &[1; 3000]), ItemStatus::Ok);
            let here = files_under(folder.path()).len();
            assert!(here <= 20, "{here} blocks of 4 KiB in a folder of 80 KiB");
        }
    }
    let all = files_under(folder.path()).len() as u64;
    for store in &stores {
        let stats = store.stats().unwrap();
        assert_eq!(stats[0], ("posix_blocks".to_owned(), all));
        assert_eq!(stats[1], ("posix_bytes".to_owned(), all * 4096));
    }
    assert_eq!(
        put(&stores[0], 999, &vec![1; 100_000]),
        ItemStatus::NoSpace,
        "larger than the folder"
    );
}

#[test]
fn a_damaged_or_missing_count_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = posix(folder.path(), 20 * 4096);
    for n in 0..5 {
        put(&store, n, &[1; 3000]);
    }
    let usage = folder.path().join("usage");
    let good = std::fs::read(&usage).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&usage, &bad).unwrap();
        assert_eq!(store.stats().unwrap()[0].1, 5, "byte {at}");
        assert_eq!(std::fs::read(&usage).unwrap(), good);
    }
    std::fs::remove_file(&usage).unwrap();
    assert_eq!(store.delete(Batch::own(&[key(1)])).unwrap(), [true]);
    assert_eq!(store.stats().unwrap()[0].1, 4);
}

#[test]
fn a_cache_serves_parts_and_asks_for_the_rest() {
    let fake = Fake::default();
    let cache = Cache::new(&fake, ByteSize::kib(64));
    put(&cache, 1, b"one");
    put(&&fake, 2, b"second");
    let keys = [key(1), key(2), key(3)];
    let each = Leaders::Each(keys.to_vec());
    for leaders in [&Leaders::Own, &Leaders::Runs, &each] {
        let (mut a, mut b1, mut b2, mut c) = ([0; 3], [0; 2], [0; 9], [0; 3]);
        let mut rooms = [Room::One(&mut a), Room::Many(vec![&mut b1, &mut b2]), Room::One(&mut c)];
        let batch = Batch { keys: &keys, leaders, deadline: None };
        let got = cache.get(batch, &mut rooms).unwrap();
        assert_eq!(got, [GetOutcome::Read(3), GetOutcome::Read(6), GetOutcome::Miss]);
        assert_eq!((&a, &b1, &b2[..4]), (b"one", b"se", b"cond".as_slice()));
    }
    let calls = fake.calls.load(Ordering::SeqCst);
    assert_eq!(get(&cache, 2).as_deref(), Some(b"second".as_slice()));
    assert_eq!(fake.calls.load(Ordering::SeqCst), calls, "served from memory");
    assert_eq!(put(&cache, 2, b"other"), ItemStatus::Exists);
    assert_eq!(get(&cache, 2).as_deref(), Some(b"second".as_slice()), "the first value stays");
    assert_eq!(cache.match_prefix(Batch::own(&keys), 0).unwrap(), 2);
    assert_eq!(cache.delete(Batch::own(&keys)).unwrap(), [true, true, false]);
    assert_eq!(get(&cache, 1), None);
}

#[test]
fn failing_open_never_fails_and_stops_trying() {
    let fake = Fake { timed: true, ..Fake::default() };
    let clock = FakeClock::default();
    let open = FailOpen::new(&fake, clock.clone(), FailOpenOptions::default());
    let keys = [key(1)];
    let batch = Batch::own(&keys);
    assert_eq!(open.put(batch, &[Value::One(b"x")]), [ItemStatus::Ok]);
    assert_eq!(open.match_prefix(batch, 0), 1);
    fake.fails.store(1, Ordering::SeqCst);
    let mut bytes = [0; 4];
    for _ in 0..10 {
        assert_eq!(open.get(batch, &mut [Room::One(&mut bytes)]), [GetOutcome::Late]);
    }
    assert!(!open.is_up());
    assert!(open.last_error().is_some());
    assert_eq!(fake.calls.load(Ordering::SeqCst), 2 + 2, "two failures stop the tries");
    assert_eq!(open.put(batch, &[Value::One(b"x")]), [ItemStatus::Late]);
    let counters = open.counters();
    assert_eq!((counters.reads_failed, counters.writes_dropped, counters.outages), (10, 1, 1));
    fake.fails.store(0, Ordering::SeqCst);
    clock.advance(Duration::from_millis(200));
    assert_eq!(open.get(batch, &mut [Room::One(&mut bytes)]), [GetOutcome::Read(1)]);
    assert!(open.is_up());
    assert_eq!(open.put(batch, &[Value::One(b"x")]), [ItemStatus::Exists]);
    assert_eq!((open.touch(batch), open.delete(batch)), (vec![true], vec![true]));
    assert_eq!(open.touch(batch), [false]);
    let stats = BlockStore::stats(&open).unwrap();
    assert!(stats.contains(&("reads_failed".to_owned(), 10)), "{stats:?}");
    let error = open.attempt(|_| Err::<(), _>(ClientError::Closed)).unwrap_err();
    assert_eq!(open.last_error(), Some(error.to_string()));
}

#[test]
fn pipelines_are_built_from_text() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        || PipelineOptions { folder: Some(folder.path().to_owned()), ..PipelineOptions::default() };
    let store = pipeline("Cache|Posix", options()).unwrap();
    assert_eq!(put(&store, 1, b"one"), ItemStatus::Ok);
    assert_eq!(get(&pipeline("Posix", options()).unwrap(), 1).unwrap(), b"one");
    for text in ["Cash|Posix", "Posix|Cache", "", "Cache|Millpond"] {
        let error = pipeline(text, options()).err().unwrap().to_string();
        assert!(error.contains("Cache|Posix") || error.contains("namespace"), "{text}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn pipelines_race_a_map(
        steps in proptest::collection::vec((0u8..4, 0u32..12, 0usize..9000), 1..60),
        cached in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let store: Box<dyn BlockStore> = if cached {
            Box::new(Cache::new(posix(folder.path(), 1 << 30), ByteSize::kib(16)))
        } else {
            Box::new(posix(folder.path(), 1 << 30))
        };
        let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (what, n, len) in steps {
            match what {
                0 => prop_assert_eq!(get(&store, n), model.get(&n).cloned()),
                1 => {
                    let there = store.delete(Batch::own(&[key(n)])).unwrap()[0];
                    prop_assert_eq!(there, model.remove(&n).is_some());
                }
                2 => {
                    let there = store.contains(Batch::own(&[key(n)])).unwrap()[0];
                    prop_assert_eq!(there, model.contains_key(&n));
                }
                _ => {
                    let value = vec![n.to_le_bytes()[0] ^ len.to_le_bytes()[0]; len];
                    let there = model.contains_key(&n);
                    let expected = if there { ItemStatus::Exists } else { ItemStatus::Ok };
                    prop_assert_eq!(put(&store, n, &value), expected);
                    model.entry(n).or_insert(value);
                }
            }
        }
    }
}
