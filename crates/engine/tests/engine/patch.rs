//! Patches: their contents, and their state after a restart and after a crash.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;

use millpond_engine::{EngineOptions, PatchRequest};
use millpond_env::{FakeDisk, Rng};
use millpond_types::{ByteSize, ChunkId, Crc32c, GroupId};

use crate::harness::{
    Ack, EngineError, ErrorKind, Fake, Rig, WriteRequest, block_on, buf, flush_lazily, get, patch,
    put, request, run_all, turns, value,
};

/// Id of a staged version, as a replica of a chain uses it.
const fn staged(id: u128) -> u128 {
    id ^ 1 << 100
}

fn promote(e: &Fake, id: u128) {
    assert!(block_on(e.promote(ChunkId(staged(id)), ChunkId(id), b"new")).unwrap());
}

/// Result of a patch over these bytes.
fn over(old: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    new.resize(old.len().max(offset + bytes.len()), 0);
    new[offset..offset + bytes.len()].copy_from_slice(bytes);
    new
}

#[test]
fn a_patch_costs_one_log_write_and_leaves_its_base() {
    let rig = Rig::new(24);
    let e = rig.open();
    let mut bytes = value(1, 200_000);
    block_on(put(&e, 1, &bytes, Ack::Disk)).unwrap();
    for (n, (offset, len)) in [(70_000, 4096), (199_000, 5000), (210_000, 100)].iter().enumerate() {
        rig.disk.forget_history();
        let new = value(n as u64 + 2, *len);
        let info = block_on(patch(&e, (1, staged(1)), *offset, &new)).unwrap().unwrap();
        assert_eq!(rig.disk.history_len(), 2, "one write, and its flush");
        assert_eq!(get(&e, 1), Some(bytes.clone()), "the base stays");
        bytes = over(&bytes, *offset, &new);
        assert_eq!((info.len as usize, info.crc), (bytes.len(), Crc32c::of(&bytes)));
        assert_eq!(info, e.lookup(ChunkId(staged(1))).unwrap());
        assert_eq!(get(&e, staged(1)), Some(bytes.clone()));
        promote(&e, 1);
        assert_eq!(get(&e, 1), Some(bytes.clone()));
        assert_eq!(*e.attrs(ChunkId(1)).unwrap(), *b"new");
    }
    assert_eq!((e.metrics().patches.get(), e.metrics().folds.get()), (3, 0));
    assert_eq!(e.group_usage(GroupId(1)).bytes, bytes.len() as u64);
    block_on(e.flush()).unwrap();
    assert_eq!(e.metrics().folds.get(), 0, "durable as it is");
    // An inspection of the disk shows it, and a restart folds it.
    let found = block_on(millpond_engine::check(&rig.disk, &rig.pool)).unwrap();
    assert!(found.errors.is_empty(), "{found}");
    assert_eq!((found.chunks, found.live_bytes), (1, bytes.len() as u64));
    drop(e);
    let e = rig.open();
    assert_eq!((get(&e, 1), get(&e, staged(1))), (Some(bytes.clone()), None));
    assert_eq!(e.metrics().folds.get(), 1);
    assert_eq!(e.stats().used_bytes, 212_992, "one slab");
    drop(e);
    let e = rig.open();
    assert_eq!((get(&e, 1), e.metrics().folds.get()), (Some(bytes), 0));
}

#[test]
fn what_cannot_be_a_patch_is_left_to_the_caller() {
    let rig = Rig::new(24);
    let e = rig.open();
    let none = |base: u128, offset: usize, bytes: &[u8]| {
        assert_eq!(block_on(patch(&e, (base, staged(base)), offset, bytes)).unwrap(), None);
        assert!(get(&e, staged(base)).is_none());
    };
    none(1, 0, b"absent");
    block_on(put(&e, 1, &value(1, 9000), Ack::Memory)).unwrap();
    none(1, 0, b"not durable");
    block_on(e.flush()).unwrap();
    none(1, 0, b"");
    none(1, 0, &vec![1; Fake::PATCH_BYTES_MAX + 1]);
    none(1, 1 << 20, b"beyond the longest");
    block_on(put(&e, 2, b"", Ack::Disk)).unwrap();
    none(2, 0, b"over nothing");
    let evictable = WriteRequest { evictable: true, ..request(buf(&e, &[3; 9000]), Ack::Disk) };
    block_on(e.write(ChunkId(3), evictable)).unwrap();
    none(3, 0, b"may be evicted");
    let refused = |result: Result<_, EngineError>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
    };
    refused(block_on(patch(&e, (1, 1), 0, b"itself")));
    let wrong = PatchRequest {
        base: ChunkId(1),
        offset: 0,
        bytes: b"changed on its way",
        crc: Crc32c(1),
        attrs: b"",
    };
    refused(block_on(e.write_patch(ChunkId(9), wrong)));
    // After too many patches over one base the chunk is written whole, and patching continues.
    let patched = |n: u8| block_on(patch(&e, (1, staged(1)), 5, &[n; 9])).unwrap().is_some();
    let count = (0..100)
        .take_while(|n| {
            patched(*n) && {
                promote(&e, 1);
                true
            }
        })
        .count();
    assert_eq!(count, 64);
    let bytes = over(&value(1, 9000), 5, &[63; 9]);
    block_on(put(&e, staged(1), &bytes, Ack::Disk)).unwrap();
    promote(&e, 1);
    assert!(patched(1));
}

#[test]
fn much_that_is_patched_is_folded_and_slabs_come_back() {
    let mut rig = Rig::new(24);
    rig.options.dirty_bytes_max = ByteSize::kib(400);
    let e = rig.open();
    let mut all: Vec<Vec<u8>> = (0..12).map(|n| value(n, 40_000)).collect();
    for (id, bytes) in all.iter().enumerate() {
        block_on(put(&e, id as u128, bytes, Ack::Disk)).unwrap();
    }
    let used = e.stats().used_bytes;
    let mut rng = Rng::new(7);
    for n in 0..300u64 {
        let id = usize::try_from(rng.below(12)).unwrap();
        let (offset, new) = (usize::try_from(rng.below(36_000)).unwrap(), value(n, 4000));
        let done = block_on(patch(&e, (id as u128, staged(id as u128)), offset, &new)).unwrap();
        if done.is_some() {
            all[id] = over(&all[id], offset, &new);
            promote(&e, id as u128);
        }
        assert!(e.stats().dirty_bytes <= 300 << 10);
        // As the background does when it is woken.
        if done.is_none() || n % 8 == 0 {
            block_on(e.flush()).unwrap();
        }
        assert!(all.iter().enumerate().all(|(id, b)| get(&e, id as u128).as_ref() == Some(b)));
    }
    assert!(e.metrics().patches.get() > 150 && e.metrics().folds.get() > 20);
    block_on(e.checkpoint()).unwrap();
    assert_eq!((e.stats().dirty_bytes, e.stats().used_bytes), (0, used), "all is folded");
    drop(e);
    let e = rig.open();
    assert!(all.iter().enumerate().all(|(id, b)| get(&e, id as u128).as_ref() == Some(b)));
}

#[test]
fn what_lies_below_a_patch_may_get_another_name_or_go() {
    for gone in [false, true] {
        let rig = Rig::new(24);
        let e = rig.open();
        block_on(put(&e, 1, &value(1, 9000), Ack::Disk)).unwrap();
        let info = block_on(patch(&e, (1, 2), 4000, b"new")).unwrap().unwrap();
        // Patches under names that a replica does not use.
        block_on(patch(&e, (2, 3), 8990, &[5; 90])).unwrap().unwrap();
        if gone {
            assert_eq!(block_on(e.delete(&[ChunkId(1), ChunkId(2)], Ack::Disk)).unwrap(), 2);
        } else {
            assert!(block_on(e.promote(ChunkId(1), ChunkId(4), b"")).unwrap());
        }
        // If the old slabs were free, these chunks would take them again.
        for id in 10..20u64 {
            block_on(put(&e, id.into(), &value(id, 9000), Ack::Disk)).unwrap();
        }
        drop(e);
        let e = rig.open();
        let two = over(&value(1, 9000), 4000, b"new");
        assert_eq!(info.crc, Crc32c::of(&two));
        assert_eq!(get(&e, 3), Some(over(&two, 8990, &[5; 90])));
        assert_eq!(get(&e, 2), (!gone).then_some(two));
        assert_eq!((get(&e, 1), get(&e, 4)), (None, (!gone).then(|| value(1, 9000))));
        block_on(e.flush()).unwrap();
        let slabs = if gone { 11 } else { 13 };
        assert_eq!(e.stats().used_bytes, slabs * 12_288, "each chunk has one slab");
    }
}

#[test]
fn damage_below_a_patch_is_never_shown() {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 9000), Ack::Disk)).unwrap();
    block_on(patch(&e, (1, staged(1)), 100, b"new")).unwrap().unwrap();
    promote(&e, 1);
    block_on(e.flush()).unwrap();
    drop(e);
    let mut page = vec![0; 4096];
    let at = rig.disk.written_blocks().into_iter().find(|at| {
        rig.disk.peek(*at, &mut page);
        page == value(1, 9000)[4096..8192]
    });
    page[7] ^= 1;
    rig.disk.poke(at.unwrap(), &page);
    let found = block_on(millpond_engine::check(&rig.disk, &rig.pool)).unwrap();
    assert_eq!(found.errors.len(), 1, "{found}");
    let e = rig.open();
    let error = block_on(e.read(ChunkId(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

type Bytes = Option<Rc<Vec<u8>>>;
/// Possible contents of one chunk's two names: staged and committed version.
type State = (Bytes, Bytes);

/// States of one chunk in order, with the point of the disk's history when each began, and states
/// known durable: state and point.
#[derive(Default)]
struct Line {
    states: Vec<(State, usize)>,
    sure: Vec<(usize, usize)>,
}

type Lines = RefCell<HashMap<u128, Line>>;

struct Replicas<'a> {
    e: &'a Fake,
    disk: &'a FakeDisk,
    all: &'a Lines,
    hasty: bool,
}

impl Replicas<'_> {
    fn now(&self, id: u128) -> State {
        self.all
            .borrow()
            .get(&id)
            .and_then(|l| l.states.last())
            .map(|(s, _)| s.clone())
            .unwrap_or_default()
    }

    fn begins(&self, id: u128, state: State) {
        self.all.borrow_mut().entry(id).or_default().states.push((state, self.disk.history_len()));
    }

    fn is_sure(&self, id: u128) {
        let mut all = self.all.borrow_mut();
        let line = all.get_mut(&id).unwrap();
        line.sure.push((line.states.len() - 1, self.disk.history_len()));
    }

    /// Changes a chunk as a replica does; `n` numbers changes.
    async fn change(&self, id: u128, n: u64, rng: &mut Rng) {
        let (before, e) = (self.now(id), self.e);
        let (stage, commit) = (ChunkId(staged(id)), ChunkId(id));
        // A version staged in memory may be lost beside a later deletion of the other name.
        let in_memory = id == 4;
        // Many changes shown before they are durable, for checkpoints to meet.
        let hasty = [0, 0, 0, 9, 9, 9, 12, 13, 14, 16, 17, 18];
        let pick = usize::try_from(rng.below(20)).unwrap();
        match if self.hasty { hasty[pick % hasty.len()] } else { pick } {
            0..9 if before.0.is_some() => {
                self.begins(id, (None, before.0));
                assert!(e.promote(stage, commit, &n.to_le_bytes()).await.unwrap());
            }
            0..11 if before.1.is_some() => self.patch(id, n, rng).await,
            0..13 => {
                let len = [100, 5000, 20_000, 70_000][usize::try_from(n % 4).unwrap()];
                let bytes = value(n, len);
                self.begins(id, (Some(Rc::new(bytes.clone())), before.1));
                let ack = if in_memory && n % 4 == 3 { Ack::Memory } else { Ack::Disk };
                put(e, stage.0, &bytes, ack).await.unwrap();
                if ack == Ack::Disk {
                    self.is_sure(id);
                }
            }
            13 => {
                self.begins(id, (None, before.1));
                e.delete_lazy(&[stage]).await.unwrap();
            }
            14 if !in_memory => {
                self.begins(id, (before.0, None));
                e.delete_lazy(&[commit]).await.unwrap();
            }
            15 => {
                let pinned = e.set_pinned(commit, n.is_multiple_of(2)).await.unwrap();
                assert_eq!(pinned, before.1.is_some());
            }
            16 if !in_memory => {
                self.begins(id, (None, before.1));
                self.begins(id, (None, None));
                let ack = if n.is_multiple_of(2) { Ack::Disk } else { Ack::Memory };
                let count = e.delete(&[stage, commit], ack).await.unwrap();
                if count > 0 && ack == Ack::Disk {
                    self.is_sure(id);
                }
            }
            17 if !in_memory && before.1.is_some() => {
                self.begins(id, (before.1, None));
                assert!(e.promote(commit, stage, &n.to_le_bytes()).await.unwrap());
            }
            18 => self.patch_other(id, n, rng).await,
            _ => {
                self.begins(id, before);
                e.flush().await.unwrap();
                self.is_sure(id);
            }
        }
    }

    /// Stages another chunk with one part replaced, while that chunk is being changed.
    async fn patch_other(&self, id: u128, n: u64, rng: &mut Rng) {
        let (before, e, base) = (self.now(id), self.e, id % 4 + 1);
        let began = self.disk.history_len();
        let offset = usize::try_from(rng.below(5000)).unwrap();
        let new = value(n, 1 + usize::try_from(rng.below(6000)).unwrap());
        let Some(info) = patch(e, (base, staged(id)), offset, &new).await.unwrap() else { return };
        let made = {
            let all = self.all.borrow();
            // Every state is recorded before the change that makes it is requested.
            let states = all[&base].states.iter().rev().filter_map(|(state, _)| state.1.as_ref());
            let mut may = states.map(|old| over(old, offset, &new));
            may.find(|bytes| Crc32c::of(bytes) == info.crc).unwrap()
        };
        let state = (Some(Rc::new(made)), before.1);
        self.all.borrow_mut().entry(id).or_default().states.push((state, began));
        self.is_sure(id);
    }

    async fn patch(&self, id: u128, n: u64, rng: &mut Rng) {
        let (before, e) = (self.now(id), self.e);
        let old = before.1.clone().unwrap();
        let offset = usize::try_from(rng.below(old.len() as u64 + 1000)).unwrap();
        let new = value(n, 1 + usize::try_from(rng.below(6000)).unwrap());
        let bytes = over(&old, offset, &new);
        self.begins(id, (Some(Rc::new(bytes.clone())), before.1));
        match patch(e, (id, staged(id)), offset, &new).await.unwrap() {
            Some(info) => assert_eq!(info.crc, Crc32c::of(&bytes)),
            None => {
                put(e, staged(id), &bytes, Ack::Disk).await.unwrap();
            }
        }
        self.is_sure(id);
    }
}

/// Replicas of several chunks at work beside checkpoints and housekeeping.
fn workload(rig: &Rig, seed: u64) -> HashMap<u128, Line> {
    let e = rig.open();
    rig.disk.forget_history();
    let (all, disk) = (Lines::default(), rig.disk.clone());
    let mut work: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    let working = Cell::new(5);
    let working = &working;
    let hasty = seed % 4 == 3;
    for task in 0..4u64 {
        let replicas = Replicas { e: &e, disk: &disk, all: &all, hasty };
        work.push(Box::pin(async move {
            let mut rng = Rng::new(seed << 8 | task);
            for i in 0..20 {
                let n = seed * 1000 + task * 100 + i;
                replicas.change(u128::from(task) + 1, n, &mut rng).await;
            }
            working.set(working.get() - 1);
        }));
    }
    let engine = &e;
    work.push(Box::pin(async move {
        let (rounds, pause) = if hasty { (20, 1) } else { (seed % 4 * 2, 23) };
        for round in 0..rounds {
            // In the middle of the others' work: there are patches, some of them in the log's
            // queue.
            turns(pause + usize::try_from(seed % 7).unwrap() * pause / 5).await;
            if hasty || round % 2 == seed / 4 % 2 {
                engine.checkpoint().await.unwrap();
            } else {
                engine.maintain().await.unwrap();
                engine.flush().await.unwrap();
            }
        }
        working.set(working.get() - 1);
    }));
    work.push(Box::pin(flush_lazily(engine, working)));
    run_all(work);
    all.into_inner()
}

/// Contents of an engine that no state of the chunk explains.
fn contradicts(e: &Fake, all: &HashMap<u128, Line>, point: usize) -> Option<String> {
    for (id, line) in all {
        let read = |id: u128| block_on(e.read(ChunkId(id))).map(|d| d.map(|d| d.bytes.to_vec()));
        let got = match (read(staged(*id)), read(*id)) {
            (Ok(s), Ok(c)) => (s.map(Rc::new), c.map(Rc::new)),
            (Err(error), _) | (_, Err(error)) => return Some(format!("at {point}: {error}")),
        };
        let sure = line.sure.iter().rev().find(|(_, at)| *at <= point).map(|(i, _)| *i);
        let mut may = line.states[sure.unwrap_or(0)..].iter().filter(|(_, at)| *at <= point);
        let nothing = sure.is_none() && got == (None, None);
        if !nothing && !may.any(|(state, _)| *state == got) {
            let got = (got.0.map(|b| b.len()), got.1.map(|b| b.len()));
            return Some(format!("at {point}: chunk {id} holds {got:?}, sure {sure:?}"));
        }
    }
    None
}

fn options(seed: u64) -> EngineOptions {
    let dirty = if seed.is_multiple_of(3) { 200 } else { 16 << 10 };
    EngineOptions {
        dirty_bytes_max: ByteSize::kib(dirty),
        checkpoint_log_bytes: ByteSize::kib(if seed.is_multiple_of(5) { 64 } else { 4096 }),
        ..EngineOptions::default()
    }
}

/// Unexplained contents of crash images, and the number of images that had patches to fold.
fn contradictions(seed: u64, limit: usize) -> (Vec<String>, u64) {
    let mut rig = Rig::new(if seed.is_multiple_of(2) { 14 } else { 24 });
    rig.options = options(seed);
    rig.disk = rig.disk.clone().with_yields(seed);
    let all = workload(&rig, seed);
    let (mut found, mut folded) = (Vec::new(), 0);
    for image in rig.disk.crash_images(limit, seed) {
        let point = image.crash_point();
        let once = rig.with_disk(image);
        match once.try_open() {
            Ok(e) => {
                found.extend(contradicts(&e, &all, point));
                folded += u64::from(e.metrics().folds.get() > 0);
            }
            Err(error) => found.push(format!("at {point}: {error}")),
        }
    }
    (found, folded)
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let set = std::env::var("MILLPOND_PATCH_SEEDS").ok().and_then(|text| text.parse().ok());
    0..set.unwrap_or(default)
}

#[test]
fn a_crash_at_any_point_leaves_what_was_acknowledged() {
    let mut folded = 0;
    for seed in seeds(16) {
        let (bad, with_patches) = contradictions(seed, 300);
        assert!(bad.is_empty(), "seed {seed}: {bad:#?}");
        folded += with_patches;
    }
    assert!(folded > 1000, "{folded} images had patches");
}

#[test]
fn a_crash_while_patches_are_folded_at_a_restart_loses_nothing() {
    for seed in seeds(6) {
        let mut rig = Rig::new(14);
        rig.options = options(seed);
        rig.disk = rig.disk.clone().with_yields(seed);
        let all = workload(&rig, seed);
        for image in rig.disk.crash_images(25, seed) {
            let point = image.crash_point();
            let once = rig.with_disk(image);
            once.disk.forget_history();
            drop(once.open());
            for image in once.disk.crash_images(25, seed) {
                let e = once.with_disk(image).open();
                let bad = contradicts(&e, &all, point);
                assert_eq!(bad, None, "seed {seed}");
            }
        }
    }
}
