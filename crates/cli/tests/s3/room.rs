//! Pools that are nearly full of what backends have, or do not have yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millpond_client::{Mode, Rule, WhenFull};
use millpond_s3_load::proxy::Faults;

use crate::behind::{BUCKET, Backed};
use crate::client::Answer;
use crate::server::{Server, until};

/// Of each object: the pool has 1 GiB.
const LEN: usize = 4 << 20;
/// How long a whole test may take to find its room.
const PATIENCE: Duration = Duration::from_mins(4);

fn body(n: usize, len: usize) -> Vec<u8> {
    (0..=250).cycle().skip(n % 251).take(len).collect()
}

fn at(key: &str) -> String {
    format!("/{BUCKET}/{key}")
}

/// Puts until it is taken; how often it was refused for the pool's sake.
fn put(it: &Backed, key: &str, bytes: &[u8]) -> usize {
    let start = Instant::now();
    for refused in 0.. {
        let answer = it.s3.put(&at(key), bytes).send();
        if answer.is(200) {
            return refused;
        }
        is_full(answer);
        assert!(start.elapsed() < PATIENCE, "{key}: there is no room");
        std::thread::sleep(Duration::from_millis(200));
    }
    0
}

/// Panics unless it is the answer of a pool without room, after which clients try again.
fn is_full(answer: Answer) {
    let answer = answer.refused(503, "SlowDown");
    assert!(answer.tag("Message").contains("do not have yet"), "{}", answer.text());
}

#[test]
fn a_full_pool_gives_up_what_the_backend_has_but_what_is_pinned() {
    let it = Backed::between(Server::start(), Server::sized("3GiB"));
    it.rules(vec![Rule { prefix: b"kept/".to_vec(), is_pinned: true, ..Rule::default() }]);
    let pinned: Vec<String> = (0..20).map(|n| format!("kept/{n}")).collect();
    for (n, key) in pinned.iter().enumerate() {
        put(&it, key, &body(n, LEN));
    }
    // The pinned ones are the oldest: they would go first.
    let mut all = BTreeMap::new();
    for n in 0..300 {
        let key = format!("k{n}");
        put(&it, &key, &body(n, LEN));
        all.insert(key, n);
    }
    it.settled();
    let word = |key: &str| it.s3.head(&at(key)).send().expect(200).header("x-millpond-state");
    let words: Vec<String> = all.keys().map(|key| word(key)).collect();
    let there = words.iter().filter(|it| *it == "remote").count();
    // Of 1 GiB a disk of this size has some 600 MiB for objects.
    assert!((130..290).contains(&there), "{there} of 300 were given up");
    for key in &pinned {
        assert_eq!(word(key), "clean", "{key} is pinned");
    }
    assert_eq!(word("k0"), "remote", "the oldest goes first");
    let gone = it.metric("millpond_s3_evictions_total{bucket=\"front\"}");
    assert!(gone >= there as u64, "{gone} were counted");
    // There is no room to keep what is read again, and it is read all the same.
    for (key, n) in &all {
        assert!(it.s3.bytes(&at(key)) == body(*n, LEN), "{key}");
    }
    let count = |name: &str| it.metric(&format!("millpond_s3_{name}_total{{bucket=\"front\"}}"));
    let (hits, misses) = (count("hits"), count("misses"));
    assert!(misses >= there as u64, "{hits} hits, {misses} misses of {there}");
}

#[test]
fn a_pool_full_of_what_the_backend_lacks_refuses_and_loses_nothing() {
    let it = Backed::between(Server::start(), Server::sized("3GiB"));
    it.rules(vec![Rule {
        prefix: b"through/".to_vec(),
        when_full: WhenFull::WriteThrough,
        ..Rule::default()
    }]);
    it.faults(&Faults { outage: true, ..Faults::default() });
    let mut all = BTreeMap::new();
    let start = Instant::now();
    for n in 0.. {
        let key = format!("k{n}");
        let answer = it.s3.put(&at(&key), body(n, LEN)).send();
        if !answer.is(200) {
            is_full(answer);
            break;
        }
        all.insert(key, n);
        assert!(start.elapsed() < PATIENCE && n < 256, "it is never full");
    }
    assert!(all.len() > 120, "{} objects of 4 MiB in 1 GiB", all.len());
    is_full(it.s3.put(&at("one more"), "x").send());
    assert!(it.metric("millpond_s3_writes_no_room_total") >= 2);
    assert!(it.metric("millpond_s3_pool_used_thousandths") > 0);
    // What goes through is not there yet either, and the client hears of that.
    let through = it.s3.put(&at("through/1"), "x").send();
    through.refused(503, "ServiceUnavailable");
    assert_eq!(it.s3.bytes(&at("through/1")), b"x");
    for (key, n) in &all {
        assert!(it.s3.bytes(&at(key)) == body(*n, LEN), "{key}");
    }
    it.s3.delete(&at("k0")).send().expect(204);
    all.remove("k0");
    it.faults(&Faults::default());
    until("through", || it.s3.put(&at("through/2"), "y").send().is(200).then_some(()));
    put(&it, "after", &body(7, LEN));
    all.insert("after".to_owned(), 7);
    it.settled();
    let wanted = all.iter().map(|(key, n)| (key.clone(), Some(body(*n, LEN)))).collect();
    it.check(&wanted);
    it.check(&BTreeMap::from([("k0".to_owned(), None)]));
    for (key, n) in &all {
        assert!(it.s3.bytes(&at(key)) == body(*n, LEN), "{key}");
    }
}

#[test]
fn a_cache_with_a_bound_keeps_what_is_pinned_and_transient_objects() {
    let it = Backed::start();
    let rule = |prefix: &str, mode| Rule { prefix: prefix.into(), mode, ..Rule::default() };
    let rules = vec![
        Rule { is_pinned: true, ..rule("kept/", Mode::WriteBack) },
        rule("tmp/", Mode::Transient),
    ];
    it.backing(|backing| {
        backing.cache_bytes = 64 << 10;
        backing.rules = rules;
    });
    for n in 0..24 {
        it.s3.object(&at(&format!("kept/{n}")), body(n, 10_000));
        it.s3.object(&at(&format!("free/{n}")), body(n, 10_000));
        it.s3.object(&at(&format!("tmp/{n}")), body(n, 10_000));
    }
    it.settled();
    let count = |prefix: &str, word: &str| {
        let keys = (0..24).map(|n| at(&format!("{prefix}{n}")));
        keys.filter(|key| it.s3.head(key).send().header("x-millpond-state") == word).count()
    };
    // Pinned ones count, and alone are more than the bound.
    until("all others are given up", || (count("free/", "remote") == 24).then_some(()));
    assert_eq!(count("kept/", "clean"), 24);
    assert_eq!(count("tmp/", "transient"), 24);
}

/// A session that is killed would keep what it replaced until its lease ends, a minute and a second later.
#[test]
fn what_a_killed_gateway_replaced_goes_when_it_is_back() {
    const LEN: usize = 64 << 20;
    let mut server = Server::lasting();
    let s3 = server.client();
    s3.bucket("plain");
    let used = |server: &Server| server.metric("millpond_disk_used_bytes");
    let before = used(&server);
    for n in 0..2 {
        s3.put("/plain/k", body(n, LEN)).send().expect(200);
    }
    server.kill_and_start();
    let s3 = server.client();
    let both = before + 2 * LEN as u64;
    until("the first one is gone", || (used(&server) < both - LEN as u64 / 2).then_some(()));
    assert!(s3.bytes("/plain/k") == body(1, LEN));
}

/// What was deleted makes room: after the moments in which somebody may still read by what he heard before.
#[test]
fn room_is_back_soon_after_objects_are_deleted() {
    let server = Server::sized("1GiB");
    let s3 = server.client();
    s3.bucket("bkt");
    let bytes = body(3, LEN);
    let mut keys = Vec::new();
    loop {
        let key = format!("k{}", keys.len());
        let answer = s3.put(&format!("/bkt/{key}"), bytes.clone()).send();
        if answer.status == 507 {
            break;
        }
        answer.expect(200);
        keys.push(key);
    }
    assert!(keys.len() > 50, "{}", keys.len());
    for key in &keys {
        s3.delete(&format!("/bkt/{key}")).send().expect(204);
    }
    let start = Instant::now();
    until("there is room again", || s3.put("/bkt/new", bytes.clone()).send().is(200).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}
