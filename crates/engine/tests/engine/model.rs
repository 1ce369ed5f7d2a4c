//! Random operations race a map.

use std::collections::BTreeMap;

use millpond_engine::PatchRequest;
use millpond_types::{ChunkId, Crc32c, GroupId, Tick};
use proptest::prelude::*;

use crate::harness::{
    Ack, Cursor, Fake, Rig, WriteMode, WriteRequest, block_on, buf, get, request, value,
};

#[derive(Clone, Debug)]
enum Op {
    Write { id: u8, len: usize, ack: bool, replace: bool },
    Append { id: u8, len: usize },
    Delete { id: u8, ack: bool },
    DeleteLazily(u8),
    Promote { from: u8, to: u8 },
    Patch { base: u8, to: u8, offset: usize, len: usize },
    Read(u8),
    Range { id: u8, from: usize, len: usize },
    Pin(u8),
    Reopen,
    Flush,
    Reclaim,
    Checkpoint,
    Maintain,
    Scrub,
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![0..200usize, 4000..9000usize, 60_000..140_000usize];
    prop_oneof![
        6 => (0..20u8, len.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(id, len, ack, replace)| Op::Write { id, len, ack, replace }),
        3 => (0..20u8, len.clone()).prop_map(|(id, len)| Op::Append { id, len }),
        2 => (0..20u8, any::<bool>()).prop_map(|(id, ack)| Op::Delete { id, ack }),
        1 => (0..20u8).prop_map(Op::DeleteLazily),
        4 => (0..20u8, 0..20u8).prop_map(|(from, to)| Op::Promote { from, to }),
        6 => (0..20u8, 0..20u8, 0..140_000usize, 1..9000usize)
            .prop_map(|(base, to, offset, len)| Op::Patch { base, to, offset, len }),
        4 => (0..20u8).prop_map(Op::Read),
        2 => (0..20u8, 0..100_000usize, 0..70_000usize)
            .prop_map(|(id, from, len)| Op::Range { id, from, len }),
        1 => (0..20u8).prop_map(Op::Pin),
        1 => Just(Op::Reopen),
        1 => Just(Op::Flush),
        2 => Just(Op::Reclaim),
        1 => Just(Op::Checkpoint),
        1 => Just(Op::Maintain),
        1 => Just(Op::Scrub),
    ]
}

type Model = BTreeMap<u8, Vec<u8>>;

fn append(e: &Fake, model: &mut Model, id: u8, more: &[u8]) {
    let at = model.get(&id).map_or(0, Vec::len);
    let fits = at + more.len() <= 1 << 20;
    let done = block_on(e.append(ChunkId(id.into()), at as u64, buf(e, more)));
    match model.get_mut(&id) {
        Some(old) if fits => {
            assert!(done.unwrap().is_some());
            old.extend(more);
        }
        Some(_) => assert!(done.is_err()),
        None => assert_eq!(done.unwrap(), None),
    }
}

fn promote(e: &Fake, model: &mut Model, from: u8, to: u8) {
    let done = block_on(e.promote(ChunkId(from.into()), ChunkId(to.into()), b"key"));
    match model.remove(&from) {
        Some(bytes) if from == to => {
            assert!(done.is_err());
            model.insert(from, bytes);
        }
        Some(bytes) => {
            assert!(done.unwrap());
            model.insert(to, bytes);
        }
        None => assert!(from == to || !done.unwrap()),
    }
}

fn patch(e: &Fake, model: &mut Model, (base, to): (u8, u8), offset: usize, bytes: &[u8]) {
    let request = PatchRequest {
        base: ChunkId(base.into()),
        offset: u32::try_from(offset).unwrap(),
        bytes,
        crc: Crc32c::of(bytes),
        attrs: b"key",
    };
    let done = block_on(e.write_patch(ChunkId(to.into()), request));
    if base == to {
        assert!(done.is_err());
    } else if done.unwrap().is_some() {
        let mut new = model[&base].clone();
        new.resize(new.len().max(offset + bytes.len()), 0);
        new[offset..offset + bytes.len()].copy_from_slice(bytes);
        model.insert(to, new);
    }
}

fn run(ops: Vec<Op>) {
    let rig = Rig::new(48);
    let mut e = rig.open();
    let mut model = Model::new();
    for (n, op) in ops.into_iter().enumerate() {
        let seed = n as u64 + 1;
        match op {
            Op::Write { id, len, ack, replace } => {
                let bytes = value(seed, len);
                let ack = if ack { Ack::Disk } else { Ack::Memory };
                let mode = if replace { WriteMode::Replace } else { WriteMode::IfAbsent };
                let req = WriteRequest { mode, ..request(buf(&e, &bytes), ack) };
                block_on(e.write(ChunkId(id.into()), req)).unwrap();
                if replace || !model.contains_key(&id) {
                    model.insert(id, bytes);
                }
            }
            Op::Append { id, len } => append(&e, &mut model, id, &value(seed, len)),
            Op::Delete { id, ack } => {
                let ack = if ack { Ack::Disk } else { Ack::Memory };
                let n = block_on(e.delete(&[ChunkId(id.into())], ack)).unwrap();
                assert_eq!(n, usize::from(model.remove(&id).is_some()));
            }
            Op::DeleteLazily(id) => {
                let n = block_on(e.delete_lazy(&[ChunkId(id.into())])).unwrap();
                assert_eq!(n, usize::from(model.remove(&id).is_some()));
            }
            Op::Promote { from, to } => promote(&e, &mut model, from, to),
            Op::Patch { base, to, offset, len } => {
                patch(&e, &mut model, (base, to), offset, &value(seed, len));
            }
            Op::Read(id) => assert_eq!(get(&e, id.into()), model.get(&id).cloned()),
            Op::Range { id, from, len } => {
                let range = from as u64..(from + len) as u64;
                let got = block_on(e.read_range(ChunkId(id.into()), range)).unwrap();
                let want = model.get(&id).map(|b| {
                    let end = (from + len).min(b.len());
                    b[from.min(end)..end].to_vec()
                });
                assert_eq!(got.map(|d| d.bytes.to_vec()), want);
            }
            Op::Pin(id) => {
                let done = block_on(e.set_pinned(ChunkId(id.into()), n % 2 == 0)).unwrap();
                assert_eq!(done, model.contains_key(&id));
            }
            Op::Reopen => {
                block_on(e.flush()).unwrap();
                drop(e);
                e = rig.open();
            }
            Op::Flush => block_on(e.flush()).unwrap(),
            Op::Reclaim => drop(e.reclaim(64 << 20)),
            Op::Checkpoint => block_on(e.checkpoint()).unwrap(),
            Op::Maintain => block_on(e.maintain()).unwrap(),
            Op::Scrub => assert_eq!(block_on(e.scrub_pass()).unwrap(), 0),
        }
        let usage = e.group_usage(GroupId(1));
        assert_eq!(usage.chunks, model.len() as u64);
        assert_eq!(usage.bytes, model.values().map(|b| b.len() as u64).sum::<u64>());
    }
    finish(&rig, e, &model);
}

fn finish(rig: &Rig, e: Fake, model: &Model) {
    let (page, next) = e.scan(None, Cursor::default(), 1000);
    assert_eq!((page.len(), next), (model.len(), None));
    assert!(model.iter().all(|(id, bytes)| get(&e, (*id).into()).as_ref() == Some(bytes)));
    block_on(e.shutdown()).unwrap();
    drop(e);
    let e = rig.open();
    assert!(model.iter().all(|(id, bytes)| get(&e, (*id).into()).as_ref() == Some(bytes)));
    let found = block_on(millpond_engine::check(&rig.disk, &rig.pool)).unwrap();
    assert!(found.errors.is_empty(), "{found}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn engine_equals_a_map(ops in proptest::collection::vec(op(), 1..120)) {
        run(ops);
    }
}

#[test]
fn eviction_drops_cold_chunks_and_serves_no_wrong_bytes() {
    let rig = Rig::new(24);
    let e = rig.open();
    for id in 0..600u64 {
        let req =
            WriteRequest { evictable: true, ..request(buf(&e, &value(id, 60_000)), Ack::Disk) };
        block_on(e.write(ChunkId(id.into()), req)).unwrap();
        assert!(get(&e, 3.min(id).into()).is_some(), "what is read stays");
    }
    let kept: Vec<u64> = (0..600).filter(|id| get(&e, (*id).into()).is_some()).collect();
    assert!(kept.len() > 150 && kept.len() < 400, "{}", kept.len());
    assert!(kept.iter().all(|id| get(&e, (*id).into()) == Some(value(*id, 60_000))));
    drop(e);
    let e = rig.open();
    let again: Vec<u64> = (0..600).filter(|id| get(&e, (*id).into()).is_some()).collect();
    assert_eq!(kept, again);
}

#[test]
fn leases_pins_and_priorities_hold() {
    let rig = Rig::new(24);
    let e = rig.open();
    let write = |id: u64, priority| {
        let req = WriteRequest {
            evictable: true,
            priority,
            ..request(buf(&e, &value(id, 60_000)), Ack::Disk)
        };
        block_on(e.write(ChunkId(id.into()), req)).unwrap();
    };
    (0..20).for_each(|id| write(id, 0));
    (20..40).for_each(|id| write(id, 2));
    assert!((0..5).all(|id| e.lease(ChunkId(id), Tick(1_000_000))));
    assert!((5..10).all(|id| block_on(e.set_pinned(ChunkId(id), true)).unwrap()));
    let until = [0, 5, 9_999].map(|id| e.leased_until(ChunkId(id)));
    assert_eq!(until, [Some(Tick(1_000_000)), None, None], "leased, pinned, not there");
    (100..600).for_each(|id| write(id, 1));
    assert!((0..10).all(|id| get(&e, id).is_some()), "leased and pinned stay");
    assert!((20..40).all(|id| get(&e, id).is_some()), "high priority stays");
    assert!((10..20).all(|id| get(&e, id).is_none()), "low priority goes");
    rig.clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(e.leased_until(ChunkId(0)), None, "it has ended, also before it is cleared away");
    block_on(e.maintain()).unwrap();
    assert_eq!(e.stats().leased_bytes, 0);
    (600..1200).for_each(|id| write(id, 1));
    assert!((0..5).all(|id| get(&e, id).is_none()), "leases end");
    assert!((5..10).all(|id| get(&e, id).is_some()), "pins stay");
}
