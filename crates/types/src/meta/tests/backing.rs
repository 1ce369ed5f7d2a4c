//! Operations, answers and records of backed buckets.

use super::super::object::{
    Backing, BackingError, BackingOp, BackingReply, CLAIMS_MAX, Claimed, ERROR_BYTES_MAX,
    ETAG_BYTES_MAX, KeyState, LANE_LARGE, LANE_SMALL, LANE_SWEEP, Mode, OBJECT_KEY_MAX, Origin,
    Outcome, PAUSE_MS_MAX, Place, QueuePage, QueueRecord, Queued, RULES_MAX, Remote, Rule, Sharing,
    StatePage, Under, Wanted, WhenFull,
};
use super::objects::object;
use super::*;
use crate::checksum::Crc32c;
use crate::limits::REPLICAS_MAX;

pub(super) fn backing() -> Backing {
    let rule = Rule {
        prefix: b"tmp/".to_vec(),
        mode: Mode::Transient,
        is_pinned: true,
        priority: 3,
        ttl_s: 60,
        quota_bytes: 1 << 40,
        when_full: WhenFull::WriteThrough,
        replicas: 0,
        sharing: Sharing::AsBucket,
    };
    let longer = Rule { prefix: b"tmp/kept/".to_vec(), ..Rule::default() };
    Backing {
        backend: "far".into(),
        bucket: "b".into(),
        prefix: b"p/".to_vec(),
        is_shared: true,
        ttl_s: 60,
        cache_bytes: 1 << 50,
        rules: vec![rule, longer],
    }
}

pub(super) fn state() -> KeyState {
    let since = Timestamp { secs: 5, nanos: 6 };
    KeyState {
        seq: 1 << 40,
        wanted: Wanted::File { ino: Ino(77), size: 9, ctime: since },
        has: Some(Remote { etag: "e".repeat(ETAG_BYTES_MAX), seq: 7 }),
        place: Some(Place { lane: LANE_LARGE, due_ms: 1 << 41, n: 8 }),
        under: Some(Under { seq: 9, put_id: u64::MAX, since }),
        since,
        mode: Mode::WriteThrough,
        attempts: 3,
        error: "x".repeat(ERROR_BYTES_MAX),
    }
}

fn clean() -> KeyState {
    let place = None;
    KeyState { has: None, under: None, error: String::new(), place, ..state() }
}

pub(super) fn ops() -> Vec<BackingOp> {
    let (bucket, key) = (name("bucket"), b"a/b".to_vec());
    let settle = |outcome| BackingOp::Settle {
        bucket: name("bucket"),
        key: b"a".to_vec(),
        put_id: 5,
        outcome,
    };
    let (error, pause_ms) = ("503".to_owned(), PAUSE_MS_MAX);
    vec![
        BackingOp::Set { bucket: bucket.clone(), backing: None },
        BackingOp::Set { bucket: bucket.clone(), backing: Some(backing()) },
        BackingOp::Claim {
            bucket: bucket.clone(),
            lane: LANE_LARGE,
            limit: CLAIMS_MAX,
            lease_ms: PAUSE_MS_MAX,
            put_ids_from: 1 << 60,
        },
        settle(Outcome::Done { etag: Some("e".into()) }),
        settle(Outcome::Done { etag: None }),
        settle(Outcome::Failed { error: error.clone(), pause_ms }),
        settle(Outcome::Unknown { error, pause_ms }),
        settle(Outcome::GoingOn { lease_ms: 7 }),
        BackingOp::Evict { bucket: bucket.clone(), key: key.clone(), seq: 9 },
        BackingOp::Adopt { bucket: bucket.clone(), key: key.clone() },
        BackingOp::Hasten { bucket: bucket.clone(), key: key.clone() },
        BackingOp::ListQueue { bucket: bucket.clone(), lane: LANE_SMALL, after: None, limit: 9 },
        BackingOp::ListQueue {
            bucket: bucket.clone(),
            lane: LANE_SWEEP,
            after: state().place,
            limit: 9,
        },
        BackingOp::ListStates { bucket, prefix: key, after: vec![b'x'; OBJECT_KEY_MAX], limit: 9 },
    ]
}

pub(super) fn replies() -> Vec<BackingReply> {
    let place = Place { lane: LANE_SMALL, due_ms: 5, n: 6 };
    let entry = Queued { key: b"a".to_vec(), bytes: 7, since: Timestamp::default(), place };
    let claimed = |object, is_fresh| {
        let (key, state) = (b"a".to_vec(), state());
        Claimed { key, state, object, is_fresh }
    };
    let states = vec![(b"a".to_vec(), state()), (b"b".to_vec(), clean())];
    vec![
        BackingReply::Claims(vec![claimed(Some(object()), true), claimed(None, false)]),
        BackingReply::Claims(Vec::new()),
        BackingReply::Queue(QueuePage { entries: vec![entry], end: false, now_ms: 1 << 41 }),
        BackingReply::Queue(QueuePage::default()),
        BackingReply::States(StatePage { states, end: true }),
        BackingReply::Settled(state()),
        BackingReply::State(None),
        BackingReply::State(Some(clean())),
        BackingReply::Is(true),
    ]
}

pub(super) fn origins() -> [Option<Origin>; 3] {
    let origin = |seen| Some(Origin { etag: "e".into(), seen });
    [None, origin(None), origin(Some(7))]
}

fn entry() -> QueueRecord {
    QueueRecord { key: b"a".to_vec(), bytes: 5, since: Timestamp::default(), file: Ino(7) }
}

#[test]
fn records_come_back() {
    assert_eq!(Backing::open(&backing().seal()), Ok(backing()));
    for when_full in [WhenFull::SlowDown, WhenFull::WriteThrough] {
        for replicas in 0..=REPLICAS_MAX {
            let sharing = [Sharing::AsBucket, Sharing::Exclusive, Sharing::Shared];
            let sharing = sharing[usize::from(replicas) % 3];
            let is_pinned = replicas > 2;
            let rules = vec![Rule { is_pinned, sharing, when_full, replicas, ..Rule::default() }];
            let with = Backing { rules, ..backing() };
            assert_eq!(Backing::open(&with.seal()), Ok(with));
        }
        let rules = vec![Rule { when_full, replicas: REPLICAS_MAX + 1, ..Rule::default() }];
        assert!(Backing::open(&Backing { rules, ..backing() }.seal()).is_err());
    }
    for wanted in [state().wanted, Wanted::Nothing, Wanted::Forgotten] {
        for state in [KeyState { wanted, ..state() }, KeyState { wanted, ..clean() }] {
            assert_eq!(KeyState::open(&state.seal()), Ok(state));
        }
    }
    assert_eq!(QueueRecord::open(&entry().seal()), Ok(entry()));
}

/// Stored records must stay readable for ever.
#[test]
fn golden_records_never_change() {
    let sum = |sealed: Vec<u8>| Crc32c::of(&sealed[..sealed.len() - 4]).0;
    let all = [backing().seal(), state().seal(), clean().seal(), entry().seal()];
    assert_eq!(all.map(sum), [0x5ea6_e929, 0xf0cf_de3e, 0x13f6_8ac0, 0x2d50_8c49]);
}

#[test]
fn texts_are_cut_between_characters() {
    let error = "\u{20ac}".repeat(ERROR_BYTES_MAX);
    let cut = KeyState::open(&KeyState { error, ..state() }.seal()).unwrap();
    assert_eq!(cut.error, "\u{20ac}".repeat(ERROR_BYTES_MAX / 3));
}

#[test]
fn the_longest_prefix_rules() {
    let backing = backing();
    assert_eq!(backing.rule_of(b"tmp/x").mode, Mode::Transient);
    assert_eq!(backing.rule_of(b"tmp/kept/x"), backing.rules[1]);
    assert_eq!(backing.rule_of(b"tmp"), Rule::default());
    let all = Rule { mode: Mode::WriteThrough, ..Rule::default() };
    let backing = Backing { rules: vec![all.clone(), backing.rules[0].clone()], ..backing };
    assert_eq!(backing.rule_of(b"x"), all);
    assert_eq!(backing.rule_of(b"tmp/x").mode, Mode::Transient);
}

#[test]
fn what_backs_no_bucket_is_refused() {
    let refused = |change: fn(&mut Backing)| {
        let mut changed = backing();
        change(&mut changed);
        let error = changed.check().unwrap_err();
        assert!(Backing::open(&changed.seal()).is_err());
        error
    };
    assert_eq!(refused(|changed| changed.backend.clear()), BackingError::Backend);
    assert_eq!(refused(|changed| changed.bucket = "b".repeat(64)), BackingError::Bucket);
    assert_eq!(
        refused(|changed| changed.prefix = vec![1; OBJECT_KEY_MAX + 1]),
        BackingError::Prefix
    );
    assert_eq!(
        refused(|changed| changed.rules.push(changed.rules[0].clone())),
        BackingError::Twice
    );
    assert_eq!(
        refused(|changed| changed.rules = vec![Rule::default(); RULES_MAX + 1]),
        BackingError::Rules
    );
    let long = |changed: &mut Backing| {
        let rule = |n| Rule { prefix: vec![n; OBJECT_KEY_MAX], ..Rule::default() };
        changed.rules = (0..17).map(rule).collect();
    };
    assert_eq!(refused(long), BackingError::Rules);
    assert_eq!(backing().check(), Ok(()));
    let elsewhere = Backing { prefix: Vec::new(), ..backing() };
    assert!(!backing().is_same_place(&elsewhere));
    assert!(backing().is_same_place(&Backing { ttl_s: 1, ..backing() }));
}

#[test]
fn states_say_what_they_are() {
    assert!(state().is_dirty() && !state().is_clean() && !state().is_tombstone());
    assert!(clean().is_clean());
    let place = Some(Place { lane: LANE_SWEEP, due_ms: 5, n: 6 });
    let gone = KeyState { place, wanted: Wanted::Nothing, ..clean() };
    assert!(gone.is_clean() && gone.is_tombstone());
}

#[test]
fn keys_say_where_they_belong() {
    let (dir, place) = (Ino(3), Place { lane: 1, due_ms: 5, n: 6 });
    assert_eq!(keys::split_queued(&keys::queued(dir, place)), Some((dir, place)));
    assert!(keys::queued(dir, place) < keys::queued(dir, Place { due_ms: 256, ..place }));
    assert!(keys::queued(dir, place) < keys::queued(dir, Place { n: 7, ..place }));
    assert!(keys::queued(dir, place) < keys::lane(dir, 2));
    assert!(keys::queued(dir, place).starts_with(&keys::queue(dir)));
    assert_eq!(keys::split_queued(&keys::lane(dir, 1)), None);
    assert_eq!(keys::split_state(&keys::state(dir, b"a/b")), Some((dir, &b"a/b"[..])));
    assert!(keys::state(dir, b"a").starts_with(&keys::states(dir)));
    assert_eq!(keys::number(keys::BACKINGS, &keys::backing(dir)), Some(3));
    // A key with the same prefix is not one of them.
    assert_eq!(keys::number(keys::BACKINGS, keys::BY), None);
}
