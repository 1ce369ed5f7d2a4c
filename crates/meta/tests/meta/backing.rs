//! Buckets with a slower object store as backend: states of keys, and the queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::Rng;
use millpond_types::meta::object::{
    Backing, BackingOp, BackingReply, Bucket, Claimed, Expect, FORGET_MS, KeyState, LANE_LARGE,
    LANE_SMALL, LANE_SWEEP, Mode, ObjectBody, ObjectOp, ObjectReply, Origin, Outcome, Place,
    PutObject, QueuePage, QueueRecord, Rule, SMALL_MAX, SetAttachment, StatePage, Wanted,
};
use millpond_types::meta::{Ino, MetaError, MetaOp, MetaReply, Rename, SetAttr, keys};
use millpond_types::wire::Record;
use parking_lot::Mutex;

use crate::objects::{BUCKET, Outcome as Put};
use crate::support::{Client, Fixture, name, rename};

pub(crate) const LEASE_MS: u32 = 60_000;
const HOUR: Duration = Duration::from_millis(FORGET_MS);

pub(crate) fn backing() -> Backing {
    let rule = |prefix: &str, mode| Rule { prefix: prefix.into(), mode, ..Rule::default() };
    let rules = vec![
        Rule { ttl_s: 60, ..rule("tmp/", Mode::Transient) },
        rule("tmp/kept/", Mode::WriteThrough),
        Rule { priority: 9, ..rule("soon/", Mode::WriteBack) },
    ];
    Backing { backend: "far".into(), bucket: "b".into(), ttl_s: 60, rules, ..Backing::default() }
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

impl Client {
    async fn backing_op(&self, op: BackingOp) -> Result<BackingReply, MetaError> {
        match self.object_op(ObjectOp::Backing(op)).await? {
            ObjectReply::Backing(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn back(&self, backing: Option<Backing>) -> Result<(), MetaError> {
        let op = BackingOp::Set { bucket: name(BUCKET), backing };
        assert_eq!(self.backing_op(op).await?, BackingReply::Is(true));
        Ok(())
    }

    /// A backed bucket.
    pub(crate) async fn backed(&self) -> Ino {
        let bucket = self.make_bucket(BUCKET).await.unwrap();
        self.back(Some(backing())).await.unwrap();
        bucket
    }

    pub(crate) async fn state(&self, key: &str) -> Option<KeyState> {
        let op = ObjectOp::Get { bucket: name(BUCKET), key: bytes(key), with_bytes: false };
        match self.object_op(op).await.unwrap() {
            ObjectReply::Object { state, .. } => state,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn claim_lane(&self, lane: u8, limit: u32, put_ids_from: u64) -> Vec<Claimed> {
        let (bucket, lease_ms) = (name(BUCKET), LEASE_MS);
        let op = BackingOp::Claim { bucket, lane, limit, lease_ms, put_ids_from };
        match self.backing_op(op).await.unwrap() {
            BackingReply::Claims(claims) => claims,
            other => panic!("{other:?}"),
        }
    }

    async fn claim(&self, put_id: u64) -> Option<Claimed> {
        self.claim_lane(LANE_SMALL, 1, put_id).await.pop()
    }

    pub(crate) async fn settle(
        &self,
        key: &str,
        put_id: u64,
        outcome: Outcome,
    ) -> Result<KeyState, MetaError> {
        let op = BackingOp::Settle { bucket: name(BUCKET), key: bytes(key), put_id, outcome };
        match self.backing_op(op).await? {
            BackingReply::Settled(state) => Ok(state),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn done(&self, key: &str, put_id: u64, etag: Option<&str>) -> KeyState {
        let etag = etag.map(str::to_owned);
        self.settle(key, put_id, Outcome::Done { etag }).await.unwrap()
    }

    async fn is(&self, op: BackingOp) -> bool {
        match self.backing_op(op).await.unwrap() {
            BackingReply::Is(done) => done,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn evict(&self, key: &str, seq: u64) -> bool {
        self.is(BackingOp::Evict { bucket: name(BUCKET), key: bytes(key), seq }).await
    }

    async fn hasten(&self, key: &str) -> bool {
        self.is(BackingOp::Hasten { bucket: name(BUCKET), key: bytes(key) }).await
    }

    pub(crate) async fn adopt(&self, key: &str) -> Option<KeyState> {
        let op = BackingOp::Adopt { bucket: name(BUCKET), key: bytes(key) };
        match self.backing_op(op).await.unwrap() {
            BackingReply::State(state) => state,
            other => panic!("{other:?}"),
        }
    }

    /// Fills a key. Returns whether it was filled.
    pub(crate) async fn fill(&self, key: &str, content: &[u8], seen: Option<u64>) -> bool {
        let origin = Some(Origin { etag: "filled".into(), seen });
        let put = PutObject { origin, ..Self::put_op(key.as_bytes(), content) };
        match self.outcome(ObjectOp::Put(put)).await.unwrap() {
            Put::Done(attr, replaced) => {
                assert!(attr.is_some() && replaced.is_none());
                true
            }
            Put::Unmet(_) => false,
        }
    }

    pub(crate) async fn queue(&self, lane: u8, after: Option<Place>, limit: u32) -> QueuePage {
        let op = BackingOp::ListQueue { bucket: name(BUCKET), lane, after, limit };
        match self.backing_op(op).await.unwrap() {
            BackingReply::Queue(page) => page,
            other => panic!("{other:?}"),
        }
    }

    async fn queued(&self, lane: u8) -> Vec<String> {
        let page = self.queue(lane, None, 1000).await;
        page.entries.into_iter().map(|entry| String::from_utf8(entry.key).unwrap()).collect()
    }

    pub(crate) async fn states(&self, prefix: &str, after: &str, limit: u32) -> StatePage {
        let (prefix, after) = (bytes(prefix), bytes(after));
        let op = BackingOp::ListStates { bucket: name(BUCKET), prefix, after, limit };
        match self.backing_op(op).await.unwrap() {
            BackingReply::States(page) => page,
            other => panic!("{other:?}"),
        }
    }

    async fn bucket(&self) -> Bucket {
        match self.object_op(ObjectOp::GetBucket { bucket: name(BUCKET) }).await.unwrap() {
            ObjectReply::Bucket(bucket) => bucket,
            other => panic!("{other:?}"),
        }
    }

    /// A clean object.
    async fn persisted(&self, key: &str, content: &[u8]) -> KeyState {
        self.put(key, content).await;
        let claimed = self.claim(1).await.unwrap();
        assert_eq!(claimed.key, key.as_bytes());
        self.done(key, claimed.state.under.unwrap().put_id, Some("etag")).await
    }
}

fn failed(pause_ms: u32) -> Outcome {
    Outcome::Failed { error: "503".into(), pause_ms }
}

fn unknown(pause_ms: u32) -> Outcome {
    Outcome::Unknown { error: "time-out".into(), pause_ms }
}

pub(crate) async fn what_is_put_waits_until_it_is_done(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    c.put("before", b"x").await;
    assert_eq!(c.state("before").await, None);
    c.back(Some(backing())).await.unwrap();
    let attr = c.put("a/b", b"bytes").await;
    let state = c.state("a/b").await.unwrap();
    let wanted = Wanted::File { ino: attr.ino, size: 5, ctime: attr.ctime };
    assert_eq!((state.wanted, state.is_dirty(), state.under), (wanted, true, None));
    assert_eq!((state.has.clone(), state.mode, state.attempts), (None, Mode::WriteBack, 0));
    let page = c.queue(LANE_SMALL, None, 10).await;
    assert_eq!((page.entries.len(), page.end), (1, true));
    assert_eq!((&page.entries[0].key[..], page.entries[0].bytes), (&b"a/b"[..], 5));
    assert_eq!(Some(page.entries[0].place), state.place);
    assert!(page.entries[0].place.due_ms <= page.now_ms);
    let claimed = c.claim(70).await.unwrap();
    assert!(claimed.is_fresh && claimed.key == b"a/b");
    let object = claimed.object.unwrap();
    assert_eq!((object.attr.ino, object.bytes), (attr.ino, None));
    assert!(object.attachment.unwrap().is_current);
    let under = claimed.state.under.unwrap();
    assert_eq!((under.put_id, under.seq), (70, state.seq));
    assert_eq!(c.state("a/b").await, Some(claimed.state));
    assert_eq!(c.claim(71).await, None, "nobody else takes it");
    assert_eq!(c.at(&f.other).claim(71).await, None);
    let clean = c.at(&f.other).done("a/b", 70, Some("e1")).await;
    assert!(clean.is_clean() && !clean.is_tombstone() && clean.place.is_none());
    assert_eq!(clean.has.as_ref().map(|has| (&has.etag[..], has.seq)), Some(("e1", state.seq)));
    assert_eq!(c.state("a/b").await, Some(clean));
    assert!(c.queued(LANE_SMALL).await.is_empty());
    let again = c.settle("a/b", 70, Outcome::Done { etag: None }).await;
    assert_eq!(again, Err(MetaError::Stale));
    assert_eq!(c.settle("x", 70, failed(0)).await, Err(MetaError::Stale));
    f.clock.advance(HOUR * 2);
    f.volume.collect().await.unwrap();
    assert!(c.state("a/b").await.is_some(), "of a file that is there it is kept");
    // A new attachment must be persisted too.
    let set = SetAttachment {
        bucket: name(BUCKET),
        key: bytes("a/b"),
        attachment: b"tags".to_vec(),
        expect: millpond_types::meta::object::Expect::Any,
    };
    c.outcome(ObjectOp::SetAttachment(set)).await.unwrap();
    let tagged = c.state("a/b").await.unwrap();
    assert!(tagged.is_dirty() && tagged.seq != state.seq && tagged.wanted.is_of(attr.ino));
    assert_eq!(tagged.has.unwrap().etag, "e1");
}

pub(crate) async fn overwrites_wait_for_what_is_under_way(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    c.put("k", b"1").await;
    let first = c.state("k").await.unwrap();
    f.clock.advance(Duration::from_secs(1));
    c.put("k", b"22").await;
    let second = c.state("k").await.unwrap();
    assert_eq!((second.since, second.place), (first.since, first.place), "it keeps its place");
    assert!(second.seq != first.seq && c.queue(LANE_SMALL, None, 9).await.entries[0].bytes == 2);
    let claimed = c.claim(1).await.unwrap();
    assert_eq!(claimed.state.under.unwrap().seq, second.seq);
    c.put("k", b"333").await;
    assert!(c.remove("k").await);
    let last = c.put("k", b"4444").await;
    let state = c.state("k").await.unwrap();
    assert_eq!((state.since, state.place), (first.since, claimed.state.place));
    assert_eq!(state.under, claimed.state.under);
    assert_eq!(c.claim(2).await, None, "what is under way comes first");
    let done = c.done("k", 1, Some("e2")).await;
    assert!(done.is_dirty() && done.under.is_none() && done.since == first.since);
    assert_eq!(done.has.clone().map(|has| has.seq), Some(second.seq));
    let claimed = c.claim(3).await.unwrap();
    assert!(claimed.is_fresh && claimed.object.unwrap().attr.ino == last.ino);
    assert_eq!(claimed.state.under.unwrap().seq, state.seq);
    assert!(c.done("k", 3, Some("e4")).await.is_clean());
    assert!(c.queued(LANE_SMALL).await.is_empty());
}

pub(crate) async fn removals_are_tombstones(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    assert!(!c.remove("nothing/known").await);
    let state = c.state("nothing/known").await.unwrap();
    assert!(state.is_tombstone() && state.is_dirty());
    assert!(!c.remove("nothing/known").await);
    assert_eq!(c.state("nothing/known").await, Some(state.clone()), "it changes nothing");
    let claimed = c.claim(1).await.unwrap();
    assert!(claimed.object.is_none() && claimed.is_fresh);
    let there = c.settle("nothing/known", 1, Outcome::Done { etag: Some("e".into()) }).await;
    assert_eq!(there, Err(MetaError::Invalid), "it is no removal that is done");
    let clean = c.done("nothing/known", 1, None).await;
    assert!(clean.is_clean() && clean.is_tombstone() && clean.has.is_none());
    assert_eq!(clean.place.map(|place| place.lane), Some(LANE_SWEEP));
    assert!(!c.remove("nothing/known").await);
    assert_eq!(c.state("nothing/known").await, Some(clean), "the backend has nothing");
    f.clock.advance(Duration::from_millis(FORGET_MS - 1000));
    f.volume.collect().await.unwrap();
    assert!(c.state("nothing/known").await.is_some());
    f.clock.advance(Duration::from_secs(1));
    f.volume.collect().await.unwrap();
    assert_eq!(c.state("nothing/known").await, None);
    assert!(c.queued(LANE_SWEEP).await.is_empty());
    // A key that is put again is dirty, and is not forgotten.
    c.persisted("k", b"x").await;
    assert!(c.remove("k").await);
    c.claim(5).await.unwrap();
    c.done("k", 5, None).await;
    c.put("k", b"again").await;
    assert!(c.queued(LANE_SWEEP).await.is_empty() && c.state("k").await.unwrap().is_dirty());
    // In a shared bucket others may have put it again.
    let shared = Backing { is_shared: true, ..backing() };
    c.back(Some(shared)).await.unwrap();
    assert!(c.remove("k").await);
    let claimed = c.claim(6).await.unwrap();
    c.done("k", claimed.state.under.unwrap().put_id, None).await;
    assert!(!c.remove("k").await);
    assert!(c.state("k").await.unwrap().is_dirty());
}

pub(crate) async fn attempts_of_unknown_outcome_stay(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    c.put("k", b"1").await;
    let first = c.claim(1).await.unwrap();
    f.clock.advance(Duration::from_millis(u64::from(LEASE_MS) - 1));
    assert_eq!(c.claim(2).await, None);
    f.clock.advance(Duration::from_millis(1));
    // The first gateway died, or is slow.
    let other = c.at(&f.other);
    let again = other.claim(2).await.unwrap();
    assert!(!again.is_fresh && again.state.under == first.state.under);
    let state = other.settle("k", 1, unknown(5000)).await.unwrap();
    assert_eq!((state.under, state.attempts, &state.error[..]), (first.state.under, 1, "time-out"));
    assert!(!c.hasten("k").await, "it may be under way");
    let late = c.settle("k", 1, Outcome::GoingOn { lease_ms: 1000 }).await.unwrap();
    assert_eq!(late.place, state.place, "who says late that it goes on shortens no pause");
    assert_eq!(c.claim(3).await, None);
    f.clock.advance(Duration::from_secs(5));
    assert!(!c.claim(3).await.unwrap().is_fresh);
    let state = c.settle("k", 1, Outcome::GoingOn { lease_ms: 1000 }).await.unwrap();
    assert_eq!((state.under, state.attempts), (first.state.under, 1));
    let state = c.settle("k", 1, failed(2000)).await.unwrap();
    assert_eq!((state.under, state.attempts, &state.error[..]), (None, 2, "503"));
    assert_eq!(other.settle("k", 1, failed(0)).await, Err(MetaError::Stale));
    c.put("k", b"22").await;
    let after = c.state("k").await.unwrap();
    assert_eq!((after.attempts, after.place), (2, state.place), "an overwrite waits too");
    assert_eq!(c.claim(4).await, None);
    assert!(c.hasten("k").await);
    assert!(!c.hasten("k").await);
    let claimed = c.claim(4).await.unwrap();
    assert!(claimed.is_fresh && claimed.state.attempts == 2);
    assert_eq!(claimed.state.under.unwrap().seq, after.seq);
    let state = c.done("k", 4, Some("e")).await;
    assert_eq!((state.attempts, &state.error[..]), (0, ""));
    assert!(!c.hasten("k").await && !c.hasten("none").await);
}

pub(crate) async fn queues_have_lanes_and_an_order(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    let large = async |key: &str| {
        let file = c.filled(b"x").await;
        let set = SetAttr { size: Some(SMALL_MAX + 1), ..SetAttr::default() };
        c.setattr(file.ino, set).await.unwrap();
        let body = ObjectBody::Nameless(file.ino);
        let put = ObjectOp::Put(PutObject { body, ..Client::put_op(key.as_bytes(), b"") });
        c.outcome(put).await.unwrap();
    };
    for key in ["b", "a", "c"] {
        c.put(key, b"x").await;
        f.clock.advance(Duration::from_millis(10));
    }
    large("large").await;
    assert_eq!(c.queued(LANE_SMALL).await, ["b", "a", "c"]);
    assert_eq!(c.queued(LANE_LARGE).await, ["large"]);
    let place = c.state("a").await.unwrap().place.unwrap();
    large("a").await;
    let moved = c.state("a").await.unwrap().place.unwrap();
    assert_eq!(moved, Place { lane: LANE_LARGE, ..place });
    assert_eq!(c.queued(LANE_LARGE).await, ["a", "large"]);
    assert!(c.remove("large").await);
    assert_eq!(c.queued(LANE_SMALL).await, ["b", "c", "large"]);
    f.clock.advance(Duration::from_mins(8));
    c.put("soon/1", b"x").await;
    assert_eq!(c.queued(LANE_SMALL).await, ["soon/1", "b", "c", "large"]);
    let page = c.queue(LANE_SMALL, None, 3).await;
    assert!(!page.end && page.entries.len() == 3);
    let rest = c.queue(LANE_SMALL, Some(page.entries[2].place), 3).await;
    assert!(rest.end && rest.entries.len() == 1 && rest.entries[0].key == b"large");
    let claims = c.claim_lane(LANE_SMALL, 3, 10).await;
    let ids: Vec<u64> = claims.iter().map(|claim| claim.state.under.unwrap().put_id).collect();
    assert_eq!(ids, [10, 11, 12]);
    let page = c.states("", "", 2).await;
    let shown = |page: &StatePage| -> Vec<String> {
        page.states.iter().map(|(key, _)| String::from_utf8(key.clone()).unwrap()).collect()
    };
    assert_eq!((shown(&page), page.end), (vec!["a".into(), "b".into()], false));
    assert_eq!(shown(&c.states("", "b", 9).await), ["c", "large", "soon/1"]);
    assert_eq!(shown(&c.states("soon", "b", 9).await), ["soon/1"]);
    assert_eq!(c.claim_lane(LANE_LARGE, 9, 20).await.len(), 1);
    for n in 0..60 {
        c.put(&format!("many/{n}"), b"x").await;
    }
    let (mut all, mut claims) = (0, c.claim_lane(LANE_SMALL, 64, 100).await);
    while !claims.is_empty() {
        all += claims.len();
        claims = c.claim_lane(LANE_SMALL, 64, 1000).await;
    }
    assert_eq!(all, 61);
    let sweep = BackingOp::Claim {
        bucket: name(BUCKET),
        lane: LANE_SWEEP,
        limit: 1,
        lease_ms: 0,
        put_ids_from: 0,
    };
    assert_eq!(c.backing_op(sweep).await, Err(MetaError::Invalid));
}

pub(crate) async fn clean_files_go_and_come_back(f: Fixture) {
    let c = f.client().await;
    let bucket = c.backed().await;
    c.put("a/k", b"1").await;
    let dirty = c.state("a/k").await.unwrap();
    assert!(!c.evict("a/k", dirty.seq).await, "the backend does not have it");
    c.claim(1).await.unwrap();
    assert!(!c.evict("a/k", dirty.seq).await);
    let clean = c.done("a/k", 1, Some("e")).await;
    assert!(!c.evict("a/k", clean.seq + 1).await && !c.evict("none", clean.seq).await);
    assert!(!c.fill("a/k", b"1", Some(clean.seq)).await, "a file is there");
    assert!(c.evict("a/k", clean.seq).await);
    assert_eq!((c.object("a/k").await, c.names(bucket).await.len()), (None, 0));
    let gone = c.state("a/k").await.unwrap();
    assert!(gone.wanted == Wanted::Forgotten && gone.seq != clean.seq);
    assert!(gone.is_clean() && gone.has == clean.has);
    for seq in [clean.seq, gone.seq] {
        assert!(!c.evict("a/k", seq).await, "nobody else writes at the backend");
    }
    let absent = c.put_if("a/k", b"2", Expect::Absent).await.unwrap();
    assert!(matches!(absent, Put::Unmet(None)), "the backend has it");
    for seen in [None, Some(clean.seq), Some(gone.seq + 1)] {
        assert!(!c.fill("a/k", b"1", seen).await);
    }
    assert!(c.fill("a/k", b"1", Some(gone.seq)).await);
    let filled = c.state("a/k").await.unwrap();
    assert!(filled.is_clean() && filled.place.is_none() && filled.seq != gone.seq);
    assert_eq!(filled.has.clone().unwrap().etag, "filled");
    assert!(!c.fill("a/k", b"old", Some(gone.seq)).await, "it comes too late");
    assert!(c.evict("a/k", filled.seq).await);
    assert!(!c.fill("a/k", b"old", Some(gone.seq)).await, "much too late");
    assert!(c.queued(LANE_SMALL).await.is_empty());
    // A mount has written in the meantime.
    let gone = c.state("a/k").await.unwrap();
    assert!(c.fill("a/k", b"1", Some(gone.seq)).await);
    let (object, state) = (c.object("a/k").await.unwrap(), c.state("a/k").await.unwrap());
    f.clock.advance(Duration::from_secs(1));
    c.write(object.attr, 0, b"mount").await.unwrap();
    assert!(!c.evict("a/k", state.seq).await);
    // A removed object does not come back.
    assert!(c.remove("a/k").await);
    let tombstone = c.state("a/k").await.unwrap();
    for seen in [None, Some(state.seq), Some(tombstone.seq)] {
        assert!(!c.fill("a/k", b"1", seen).await);
    }
    assert!(c.fill("fresh", b"1", None).await && !c.fill("fresh", b"1", None).await);
    assert!(!c.fill("tmp/x", b"1", None).await, "it is never looked for");
    // A process that has it open learns at its next write that the bytes would be in no object.
    assert!(c.fill("open", b"1", None).await);
    let (object, state) = (c.object("open").await.unwrap(), c.state("open").await.unwrap());
    assert!(c.evict("open", state.seq).await);
    assert_eq!(c.write(object.attr, 0, b"late").await, Err(MetaError::Stale));
    // Evicted keys are forgotten too, and their files do not go to the trash.
    let fresh = c.state("fresh").await.unwrap();
    assert!(c.evict("fresh", fresh.seq).await);
    f.clock.advance(HOUR);
    f.other.collect().await.unwrap();
    assert_eq!(c.state("fresh").await, None);
    assert!(c.fill("fresh", b"1", None).await);
}

/// Fills and evicts a key; returns its state.
async fn evicted(c: &Client, key: &str) -> KeyState {
    assert!(c.fill(key, b"1", None).await);
    let clean = c.state(key).await.unwrap();
    assert!(c.evict(key, clean.seq).await);
    assert!(!c.evict(key, clean.seq).await, "who evicts it too has not asked the backend again");
    let absent = c.put_if(key, b"2", Expect::Absent).await.unwrap();
    assert!(matches!(absent, Put::Unmet(None)), "the backend has it");
    c.state(key).await.unwrap()
}

/// In a shared bucket, others write at the backend too.
pub(crate) async fn what_others_removed_may_be_made_anew(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    let mut shared = Backing { is_shared: true, ..backing() };
    c.back(Some(shared.clone())).await.unwrap();
    let gone = evicted(&c, "o/k").await;
    // A gateway has seen that the backend no longer has it.
    assert!(c.evict("o/k", gone.seq).await);
    let nothing = c.state("o/k").await.unwrap();
    assert!(nothing.is_clean() && nothing.is_tombstone() && nothing.has.is_none());
    assert!(!c.evict("o/k", nothing.seq).await);
    assert!(!c.fill("o/k", b"old", Some(gone.seq)).await, "it comes too late");
    let anew = c.put_if("o/k", b"2", Expect::Absent).await.unwrap();
    assert!(matches!(anew, Put::Done(..)));
    assert!(c.state("o/k").await.unwrap().is_dirty());
    // A key that became transient is never looked up at the backend.
    evicted(&c, "t/k").await;
    let rule = Rule { prefix: b"t/".to_vec(), mode: Mode::Transient, ..Rule::default() };
    shared.rules.push(rule);
    c.back(Some(shared)).await.unwrap();
    let anew = c.put_if("t/k", b"2", Expect::Absent).await.unwrap();
    assert!(matches!(anew, Put::Done(..)));
}

pub(crate) async fn what_mounts_do_is_followed(f: Fixture) {
    let c = f.client().await;
    let bucket = c.backed().await;
    assert_eq!(c.adopt("none").await, None);
    let ino = c.file(bucket, "m").await;
    assert_eq!(c.state("m").await, None);
    let state = c.adopt("m").await.unwrap();
    assert!(
        state.is_dirty()
            && matches!(state.wanted, Wanted::File { ino: wanted, .. } if wanted == ino)
    );
    assert_eq!(c.adopt("m").await, Some(state.clone()), "it is as it says");
    // A mount writes it before it is claimed.
    f.clock.advance(Duration::from_secs(1));
    let attr = c.getattr(ino).await.unwrap();
    let attr = c.write(attr, 0, b"mount").await.unwrap();
    let claimed = c.claim(1).await.unwrap();
    let wanted = Wanted::File { ino, size: 5, ctime: attr.ctime };
    assert_eq!((claimed.state.wanted, claimed.object.unwrap().attr.size), (wanted, 5));
    assert_eq!(claimed.state.under.unwrap().seq, claimed.state.seq);
    c.done("m", 1, Some("e")).await;
    // Its bucket stays a bucket.
    let below = c.dir(Ino::ROOT, "below").await;
    c.dir(below, "x").await;
    let at = [(Ino::ROOT, BUCKET), (below, "x")];
    for (from, to, exchange) in [(0, 1, false), (0, 1, true), (1, 0, false), (1, 0, true)] {
        let moved = Rename { exchange, ..rename(at[from], at[to]) };
        assert_eq!(c.rename(moved).await.map(drop), Err(MetaError::Busy));
    }
    c.rename(rename((Ino::ROOT, BUCKET), (Ino::ROOT, "other"))).await.unwrap();
    c.rename(rename((Ino::ROOT, "other"), (Ino::ROOT, BUCKET))).await.unwrap();
    // A clean key is moved.
    c.rename(rename((bucket, "m"), (bucket, "n"))).await.unwrap();
    assert!(c.adopt("m").await.unwrap().is_tombstone());
    assert!(c.adopt("n").await.unwrap().is_dirty());
    let claims = c.claim_lane(LANE_SMALL, 9, 10).await;
    assert_eq!(claims.len(), 2);
    c.done("m", 10, None).await;
    c.done("n", 11, Some("e2")).await;
    // A key without a file at the claim becomes a removal.
    c.put("gone", b"x").await;
    c.unlink(bucket, "gone").await.unwrap();
    let claimed = c.claim(20).await.unwrap();
    assert!(claimed.object.is_none() && claimed.state.is_tombstone());
    c.done("gone", 20, None).await;
    // A mount makes a file where a tombstone is.
    c.file(bucket, "gone").await;
    assert!(c.adopt("gone").await.unwrap().is_dirty());
    assert!(c.adopt("n").await.unwrap().is_clean());
}

pub(crate) async fn what_was_transient_stays_with_another_rule(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    c.put("tmp/stays", b"x").await;
    c.put("tmp/goes", b"x").await;
    c.back(Some(Backing { rules: Vec::new(), ..backing() })).await.unwrap();
    // The state follows once a client adopts the key.
    assert!(c.adopt("tmp/stays").await.is_some_and(|state| state.is_dirty()));
    f.clock.advance(Duration::from_secs(61));
    f.volume.collect().await.unwrap();
    assert!(c.queued(LANE_SWEEP).await.is_empty());
    assert_eq!(c.keys().await, ["tmp/stays"]);
}

pub(crate) async fn transient_objects_go_with_their_time(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    for key in ["tmp/a", "tmp/dir/b", "tmp/kept/c"] {
        c.put(key, b"x").await;
    }
    assert_eq!(c.state("tmp/a").await, None);
    assert_eq!(c.queued(LANE_SMALL).await, ["tmp/kept/c"]);
    assert_eq!(c.state("tmp/kept/c").await.unwrap().mode, Mode::WriteThrough);
    assert_eq!(c.adopt("tmp/a").await, None);
    f.clock.advance(Duration::from_secs(30));
    c.put("tmp/a", b"again").await;
    assert_eq!(
        c.queued(LANE_SWEEP).await,
        ["tmp/dir/b", "tmp/a"],
        "one entry for each file that is there"
    );
    f.clock.advance(Duration::from_secs(30));
    f.volume.collect().await.unwrap();
    assert_eq!(c.keys().await, ["tmp/a", "tmp/kept/c"]);
    assert_eq!(c.queued(LANE_SWEEP).await, ["tmp/a"]);
    assert!(c.remove("tmp/a").await);
    assert_eq!(c.state("tmp/a").await, None, "the backend is not asked");
    assert!(c.queued(LANE_SWEEP).await.is_empty());
    // The backend has an object from before the rule: it does not come back.
    let rules = |mode| {
        let all = Rule { mode, ..Rule::default() };
        Some(Backing { rules: vec![all], ..backing() })
    };
    c.put("old", b"1").await;
    let claims = c.claim_lane(LANE_SMALL, 9, 1).await;
    assert_eq!(claims.len(), 2);
    c.back(rules(Mode::Transient)).await.unwrap();
    c.put("old", b"2").await;
    let state = c.state("old").await.unwrap();
    assert!(state.is_tombstone() && state.under.is_some());
    for claimed in claims {
        let key = String::from_utf8(claimed.key).unwrap();
        c.done(&key, claimed.state.under.unwrap().put_id, Some("e")).await;
    }
    let claimed = c.claim(5).await.unwrap();
    assert!(claimed.object.is_none() && claimed.key == b"old");
    assert!(c.done("old", 5, None).await.is_clean());
    assert!(c.object("old").await.is_some());
    // With other rules it is a file that the backend lacks.
    c.back(rules(Mode::WriteBack)).await.unwrap();
    assert!(c.adopt("old").await.unwrap().is_dirty());
}

pub(crate) async fn buckets_are_backed_and_not(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let claim =
        BackingOp::Claim { bucket: name(BUCKET), lane: 0, limit: 1, lease_ms: 0, put_ids_from: 0 };
    assert_eq!(c.backing_op(claim).await, Err(MetaError::NotSupported));
    assert!(c.queue(LANE_SMALL, None, 9).await.end);
    let user = c.as_user(1000, 100, &[]);
    assert_eq!(user.back(Some(backing())).await, Err(MetaError::NotPermitted));
    c.back(Some(backing())).await.unwrap();
    assert_eq!(c.bucket().await.backing, Some(backing()));
    let list = ObjectOp::ListBuckets { after: 0 };
    let ObjectReply::Buckets { buckets, .. } = c.object_op(list).await.unwrap() else { panic!() };
    assert_eq!(buckets[0].backing, Some(backing()));
    let other = Backing { prefix: b"x/".to_vec(), ..backing() };
    assert_eq!(c.back(Some(other.clone())).await, Err(MetaError::Busy));
    let state = c.persisted("k", b"x").await;
    let ruled = Backing { rules: Vec::new(), cache_bytes: 7, ..backing() };
    c.back(Some(ruled.clone())).await.unwrap();
    assert_eq!(c.bucket().await.backing, Some(ruled));
    c.put("k", b"y").await;
    assert_eq!(c.back(None).await, Err(MetaError::Busy), "something is queued");
    c.claim(1).await.unwrap();
    assert_eq!(c.back(None).await, Err(MetaError::Busy));
    let cleaned = c.done("k", 1, Some("e")).await;
    assert_ne!(cleaned.seq, state.seq);
    c.back(None).await.unwrap();
    assert_eq!((c.bucket().await.backing, c.state("k").await), (None, None));
    for prefix in [keys::BACKINGS, keys::STATES, keys::QUEUES] {
        assert!(c.records(prefix).await.is_empty());
    }
    c.put("k", b"z").await;
    assert_eq!(c.state("k").await, None);
    // Records left by a meta that died are removed before the bucket gets a backend again.
    let (at, old) = (&keys::state(bucket, b"k"), &cleaned.seal());
    f.store.transact(|txn| async move { txn.put(at, old.as_slice()) }).await.unwrap();
    c.back(Some(other)).await.unwrap();
    assert_eq!(c.state("k").await, None);
    // A bucket can be removed when nothing waits.
    assert_eq!(c.rmdir(Ino::ROOT, BUCKET).await, Err(MetaError::Busy));
    c.dir(Ino::ROOT, "plain").await;
    let over = rename((Ino::ROOT, "plain"), (Ino::ROOT, BUCKET));
    assert_eq!(c.rename(over).await, Err(MetaError::Busy));
    assert!(c.remove("k").await);
    let remove = || c.object_op(ObjectOp::RemoveBucket { bucket: name(BUCKET) });
    assert_eq!(remove().await, Err(MetaError::Busy));
    c.claim(9).await.unwrap();
    c.done("k", 9, None).await;
    remove().await.unwrap();
    assert!(c.records(keys::BACKINGS).await.is_empty());
    f.volume.collect().await.unwrap();
    c.renew(&[], &[]).await.unwrap();
    c.forget_all(&f).await;
    for prefix in [keys::STATES, keys::QUEUES] {
        assert!(c.records(prefix).await.is_empty());
    }
}

/// Entries without states, and states without entries, are found and repaired.
pub(crate) async fn damage_is_found_and_put_right(f: Fixture) {
    let c = f.client().await;
    let bucket = c.backed().await;
    c.put("k", b"x").await;
    let state = c.state("k").await.unwrap();
    let place = state.place.unwrap();
    let elsewhere = Place { n: 1, ..place };
    let entry = f.store.begin().get(&keys::queued(bucket, place)).await.unwrap().unwrap();
    let damage = [(place, None), (elsewhere, Some(entry))];
    for (place, value) in damage {
        let (key, value) = (&keys::queued(bucket, place), &value);
        f.store
            .transact(|txn| async move {
                match value {
                    Some(value) => txn.put(key, value.as_slice())?,
                    None => txn.delete(key)?,
                }
                Ok::<_, millpond_store::StoreError>(())
            })
            .await
            .unwrap();
        let report = f.volume.check().await.unwrap();
        assert_eq!(report.findings.len(), 1, "{report:#?}");
        for repair in report.repairs {
            let done = c.run(MetaOp::Repair(repair)).await;
            assert_eq!(done, Ok(MetaReply::Repaired(true)));
        }
        f.assert_sound().await;
        assert_eq!(c.queued(LANE_SMALL).await, ["k"]);
    }
    assert!(c.claim(1).await.unwrap().is_fresh);
    // All records of a missing bucket are removed: its backend first, then the records that belong
    // to it.
    let gone = Ino(bucket.0 + 1_000);
    let state = KeyState { place: None, ..c.state("k").await.unwrap() };
    let at = Place { lane: LANE_SWEEP, due_ms: 1, n: 1 };
    let entry = QueueRecord { key: bytes("k"), bytes: 1, since: state.since, file: Ino(9) };
    let left = &[
        (keys::backing(gone), backing().seal()),
        (keys::state(gone, b"k"), state.seal()),
        (keys::queued(gone, at), entry.seal()),
    ];
    f.store
        .transact(|txn| async move {
            left.iter().try_for_each(|(key, value)| txn.put(key, value.as_slice()))
        })
        .await
        .unwrap();
    for found in [1, 2, 0] {
        let report = f.volume.check().await.unwrap();
        assert_eq!(report.findings.len(), found, "{report:#?}");
        for repair in report.repairs {
            c.run(MetaOp::Repair(repair)).await.unwrap();
        }
    }
}

type Far = Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// Claims and persists keys, until there is no writer and nothing waits.
async fn persist(c: Client, far: Far, (writers, n): (Arc<AtomicUsize>, u64)) {
    let mut put_id = n << 32;
    loop {
        let is_over = writers.load(Ordering::SeqCst) == 0;
        put_id += 100;
        let claims = c.claim_lane(LANE_SMALL, 4, put_id).await;
        if claims.is_empty() {
            if is_over && c.queue(LANE_SMALL, None, 1).await.entries.is_empty() {
                return;
            }
            tokio::task::yield_now().await;
        }
        for claimed in claims {
            assert!(claimed.is_fresh, "nobody else has it");
            let mut content = None;
            if let Some(object) = &claimed.object {
                content = Some(c.content(object.attr.ino).await.unwrap().bytes);
            }
            let key = claimed.key.clone();
            let etag = if let Some(content) = content {
                far.lock().insert(key, content);
                Some("e")
            } else {
                far.lock().remove(&key);
                None
            };
            let key = String::from_utf8(claimed.key).unwrap();
            c.done(&key, claimed.state.under.unwrap().put_id, etag).await;
        }
    }
}

/// Writes its own keys; returns their final contents.
async fn write_some(c: Client, n: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut rng, mut model) = (Rng::new(n), BTreeMap::new());
    for round in 0..25 {
        let key = format!("shared/{n}-{}", rng.below(3));
        if rng.chance(1, 4) {
            c.remove(&key).await;
            model.remove(key.as_bytes());
        } else {
            let content = format!("{n} {round}").into_bytes();
            c.put(&key, &content).await;
            model.insert(key.into_bytes(), content);
        }
    }
    model
}

pub(crate) async fn writers_and_persisters_at_the_same_time(f: Fixture) {
    let c = f.client().await;
    c.backed().await;
    let (far, writers) = (Far::default(), Arc::new(AtomicUsize::new(3)));
    let mut persisters = Vec::new();
    for n in 0..3 {
        let volume = if n % 2 == 0 { &f.volume } else { &f.other };
        let of = (Arc::clone(&writers), n + 1);
        let work = persist(Client::open(volume).await, Arc::clone(&far), of);
        persisters.push(tokio::spawn(work));
    }
    let mut written = Vec::new();
    for n in 0..3 {
        let volume = if n % 2 == 0 { &f.other } else { &f.volume };
        written.push(tokio::spawn(write_some(Client::open(volume).await, n)));
    }
    let mut model = BTreeMap::new();
    for writer in written {
        model.extend(writer.await.unwrap());
        writers.fetch_sub(1, Ordering::SeqCst);
    }
    for persister in persisters {
        persister.await.unwrap();
    }
    assert_eq!(*far.lock(), model);
    assert!(c.states("", "", 1000).await.states.iter().all(|(_, state)| state.is_clean()));
}
