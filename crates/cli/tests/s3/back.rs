//! What is put in a backed bucket reaches the object store behind it, whatever happens on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_client::{Body, Expect, PutObject};
use millpond_env::Rng;
use millpond_s3_load::proxy::Faults;

use crate::behind::{BEHIND, BUCKET, Backed, PREFIX, volume};
use crate::server::{Server, until};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(len).collect()
}

/// A path of the front.
fn at(key: &str) -> String {
    format!("/{BUCKET}/{key}")
}

#[test]
fn objects_reach_the_store_with_all_that_they_have() {
    let it = Backed::start();
    let mut wanted = BTreeMap::new();
    for (key, len) in
        [("none", 0), ("small", 100), ("in chunks", 300 * KIB), ("a/large+ü", 3 * MIB)]
    {
        let bytes = random(len, len as u64);
        let put = it.s3.put(&at(key), bytes.clone()).header("content-type", "text/x-test");
        let put = put.header("x-amz-meta-of", "a test").header("x-amz-tagging", "a=b%2Bc&d=");
        put.header("cache-control", "no-store").send().expect(200);
        wanted.insert(key.to_owned(), Some(bytes));
    }
    it.settled();
    it.check(&wanted);
    for key in wanted.keys() {
        let (front, behind) = (it.s3.get(&at(key)).send().expect(200), it.behind(key));
        for header in
            ["etag", "content-type", "x-amz-meta-of", "cache-control", "x-amz-tagging-count"]
        {
            assert_eq!(front.header(header), behind.header(header), "{key}: {header}");
        }
        assert_eq!(behind.header("x-amz-meta-millpond-put").len(), 16);
    }
    let tags = it.direct.get(&format!("/behind/of/front/{}", "small")).query("tagging", "");
    assert_eq!(tags.send().expect(200).tags("Value"), ["b+c", ""]);
    for key in ["small", "a/large+ü"] {
        it.s3.delete(&at(key)).send().expect(204);
        wanted.insert(key.to_owned(), None);
    }
    it.settled();
    it.check(&wanted);
    assert_eq!(it.metric("millpond_s3_backend_requests_total{backend=\"store\",operation=\"put\",result=\"done\"}"), 4);
    assert_eq!(it.metric("millpond_s3_backend_requests_total{backend=\"store\",operation=\"delete\",result=\"done\"}"), 2);
    assert!(it.metric("millpond_s3_backend_sent_bytes_total") >= 3 * MIB as u64);
}

#[test]
fn what_is_damaged_on_its_way_is_sent_and_read_again() {
    let it = Backed::start();
    let upload = |key: &str| {
        let begun = it.s3.post(&at(key), "").query("uploads", "").send().expect(200);
        let id = begun.tag("UploadId");
        let (mut named, mut all) = (String::new(), Vec::new());
        for number in 1..=2_u64 {
            let body = random(5 * MIB, number);
            let put = it.s3.put(&at(key), body.clone()).query("partNumber", &number.to_string());
            let etag = put.query("uploadId", &id).send().expect(200).header("etag");
            let part = format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
            named.push_str(&part);
            all.extend(body);
        }
        let body = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
        it.s3.post(&at(key), body).query("uploadId", &id).send().expect(200);
        all
    };
    let mut wanted = BTreeMap::from([("first".to_owned(), Some(upload("first")))]);
    it.settled();
    // Of 30 requests with a body about 5 are damaged, and of their repetitions.
    let faults = |method: &str| Faults {
        flip_rate: 0.15,
        methods: vec![method.to_owned()],
        path_prefix: "/behind/of/front/".to_owned(),
        ..Faults::default()
    };
    it.faults(&faults("PUT"));
    for n in 0..10 {
        wanted.insert(format!("parts{n}"), Some(upload(&format!("parts{n}"))));
        let small = random(100 * KIB, n);
        it.s3.put(&at(&format!("small{n}")), small.clone()).send().expect(200);
        wanted.insert(format!("small{n}"), Some(small));
    }
    it.settled();
    it.check(&wanted);
    for key in wanted.keys() {
        let (here, there) = (it.s3.head(&at(key)).send(), it.behind(key));
        assert_eq!(here.header("etag"), there.header("etag"), "{key}");
    }
    // Read again once they are given up here.
    it.backing(|backing| backing.cache_bytes = 1);
    let word = |key: &str| it.s3.head(&at(key)).send().expect(200).header("x-millpond-state");
    for key in wanted.keys() {
        until("all is given up", || (word(key) == "remote").then_some(()));
    }
    it.backing(|backing| backing.cache_bytes = 0);
    it.faults(&faults("GET"));
    for (key, bytes) in &wanted {
        // What is damaged is told: the length that was promised does not come.
        until("it is read whole", || {
            let got = it.s3.get(&at(key)).try_send(Duration::from_secs(10)).ok()?;
            assert!(!got.is(200) || Some(&got.body) == bytes.as_ref(), "{key}");
            got.is(200).then_some(())
        });
    }
    it.faults(&Faults::default());
    for (key, bytes) in &wanted {
        assert!(Some(it.s3.bytes(&at(key))) == *bytes, "{key}");
    }
}

#[test]
fn objects_of_parts_keep_their_etag() {
    let it = Backed::start();
    let begun = it.s3.post(&at("parts"), "").query("uploads", "").header("x-amz-meta-of", "parts");
    let id = begun.send().expect(200).tag("UploadId");
    let bodies = [random(5 * MIB, 1), random(6 * MIB, 2), random(9, 3)];
    let mut named = String::new();
    for (number, body) in (1..).zip(&bodies) {
        let number = format!("{number}");
        let put = it.s3.put(&at("parts"), body.clone()).query("partNumber", &number);
        let etag = put.query("uploadId", &id).send().expect(200).header("etag");
        let part = format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
        named.push_str(&part);
    }
    let named = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
    // One that a persister left behind.
    let left = it.direct.post("/behind/of/front/parts", "").query("uploads", "").send().expect(200);
    it.s3.post(&at("parts"), named).query("uploadId", &id).send().expect(200);
    it.settled();
    let (front, behind) =
        (it.s3.head(&at("parts")).send().expect(200), it.behind("parts").expect(200));
    assert!(behind.body == bodies.concat());
    assert!(front.header("etag").ends_with("-3\""));
    assert_eq!(front.header("etag"), behind.header("etag"));
    assert_eq!(behind.header("x-amz-meta-of"), "parts");
    let left = left.tag("UploadId");
    it.direct
        .get("/behind/of/front/parts")
        .query("uploadId", &left)
        .send()
        .refused(404, "NoSuchUpload");
}

/// Puts and removes of some keys, again and again; what was acknowledged last.
fn storm(it: &Backed, rounds: u64, seed: u64) -> BTreeMap<String, Option<Vec<u8>>> {
    let (mut wanted, mut rng) = (BTreeMap::new(), Rng::new(seed));
    for round in 0..rounds {
        let key = format!("k{}", rng.below(24));
        if rng.chance(1, 4) {
            it.s3.delete(&at(&key)).send().expect(204);
            wanted.insert(key, None);
        } else {
            let len = [10, 3_000, 100 * KIB, MIB + 100][rng.index(4)];
            let bytes = random(len, seed * 10_000 + round);
            it.s3.put(&at(&key), bytes.clone()).send().expect(200);
            wanted.insert(key, Some(bytes));
        }
    }
    wanted
}

#[test]
fn behind_faults_the_store_has_the_last_of_each_key() {
    let it = Backed::start();
    let clear = Faults::default();
    let faults = [
        Faults { latency_ms: (0, 300), ..clear.clone() },
        Faults { requests_per_s: 2.0, ..clear.clone() },
        Faults { error_rate: 0.3, seed: 1, ..clear.clone() },
        Faults { reset_rate: 0.3, seed: 2, ..clear.clone() },
        Faults { commit_reset_rate: 0.4, seed: 3, ..clear.clone() },
        Faults { hang_rate: 0.2, seed: 4, ..clear.clone() },
        Faults { outage: true, ..clear.clone() },
    ];
    let count = |result: &str| {
        let line = "millpond_s3_backend_requests_total{backend=\"store\",operation=\"put\",result=";
        it.metric(&format!("{line}\"{result}\"}}"))
    };
    let mut wanted = BTreeMap::new();
    for (seed, faults) in (1..).zip(&faults) {
        it.faults(faults);
        wanted.extend(storm(&it, 40, seed));
        if faults.requests_per_s > 0.0 {
            until("it is told to slow down", || (count("slow_down") > 0).then_some(()));
        }
    }
    it.faults(&clear);
    it.settled();
    it.check(&wanted);
    assert!(count("done") > 0 && count("unknown") > 0);
}

#[test]
fn what_was_done_though_nobody_heard_of_it_is_found_out() {
    let it = Backed::start();
    // Every answer is lost that is not one to a question.
    let methods = ["PUT", "DELETE", "POST"].map(str::to_owned).to_vec();
    it.faults(&Faults { commit_reset_rate: 1.0, methods, ..Faults::default() });
    let mut wanted = BTreeMap::new();
    for n in 0..6 {
        let (key, bytes) = (format!("k{n}"), random(1_000, n));
        it.s3.put(&at(&key), bytes.clone()).send().expect(200);
        wanted.insert(key, Some(bytes));
    }
    it.settled();
    it.check(&wanted);
    it.s3.delete(&at("k0")).send().expect(204);
    wanted.insert("k0".to_owned(), None);
    it.settled();
    it.check(&wanted);
    let line = "millpond_s3_backend_requests_total{backend=\"store\",operation=\"put\",result=";
    assert_eq!(it.metric(&format!("{line}\"unknown\"}}")), 6, "none was sent twice");
    assert_eq!(it.metric(&format!("{line}\"done\"}}")), 0);
}

#[test]
fn what_is_put_right_behind_another_backing_goes_to_the_new_place() {
    let it = Backed::start();
    it.s3.put(&at("first"), b"first".to_vec()).send().expect(200);
    it.settled();
    let mut backing = it.volume.bucket(BUCKET).unwrap().backing.unwrap();
    for round in 0..4 {
        it.volume.set_backing(BUCKET, None).unwrap();
        backing.prefix = format!("moved/{round}/").into_bytes();
        it.volume.set_backing(BUCKET, Some(&backing)).unwrap();
        // The gateway hears of it within a second, and of the key at once.
        let (key, bytes) = (format!("k{round}"), random(1_000, round));
        it.s3.put(&at(&key), bytes.clone()).send().expect(200);
        it.settled();
        assert_eq!(it.direct.get(&format!("/{BEHIND}/moved/{round}/{key}")).send().body, bytes);
        let keys = it.direct.get(&format!("/{BEHIND}")).send().expect(200).tags("Key");
        assert_eq!(keys.iter().filter(|it| it.ends_with(&key)).count(), 1, "{keys:?}");
        it.s3.delete(&at(&key)).send().expect(204);
        it.settled();
    }
}

#[test]
fn keys_that_the_store_cannot_have_hold_nothing_up() {
    let it = Backed::start();
    let (long, fits) = ("x".repeat(1_025 - PREFIX.len()), "x".repeat(1_024 - PREFIX.len()));
    it.s3.get(&at(&long)).send().refused(404, "NoSuchKey");
    let refused = it.s3.put(&at(&long), "too long").send().refused(400, "KeyTooLongError");
    assert!(refused.tag("Message").contains("9 bytes"), "{}", refused.text());
    let begun = it.s3.post(&at(&long), "").query("uploads", "").send();
    begun.refused(400, "KeyTooLongError");
    it.s3.put(&at(&fits), "fits").send().expect(200);
    let copy = it.s3.put(&at(&long), "").header("x-amz-copy-source", &at(&fits)).send();
    copy.refused(400, "KeyTooLongError");
    it.settled();
    assert_eq!(it.behind(&fits).expect(200).body, b"fits");
    // One that came in another way stays, and can be removed.
    let put = PutObject {
        bucket: BUCKET,
        key: long.as_bytes(),
        body: Body::Bytes(b"by a mount"),
        attachment: b"",
        expect: Expect::Any,
        replicas: 0,
        origin: None,
    };
    it.volume.put_object(&put).unwrap();
    assert_eq!(it.s3.bytes(&at(&long)), b"by a mount");
    it.s3.delete(&at(&long)).send().expect(204);
    until("its removal is done", || {
        it.volume.hasten(BUCKET, long.as_bytes()).unwrap();
        (it.waiting() == 0).then_some(())
    });
    it.s3.get(&at(&long)).send().refused(404, "NoSuchKey");
    it.s3.delete(&at(&long)).send().expect(204);
    it.settled();
    it.volume.set_backing(BUCKET, None).unwrap();
}

#[test]
fn an_etag_of_the_store_that_is_no_md5_is_not_taken_for_one() {
    let it = Backed::start();
    let store = volume(it.store());
    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    for (key, bytes) in [("small", random(1_000, 1)), ("large", random(MIB + 100, 2))] {
        it.direct.object(&format!("/{BEHIND}/{PREFIX}{key}"), bytes.clone());
        // As AWS has them of what it encrypts.
        let path = format!("{PREFIX}{key}");
        let there = store.get_object(BEHIND, path.as_bytes(), false).unwrap().unwrap();
        let kept = String::from_utf8(there.attachment.unwrap().bytes).unwrap();
        let mut kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
        kept["etag"] = "0123456789abcdef0123456789abcdef".into();
        let kept = serde_json::to_vec(&kept).unwrap();
        store.set_attachment(BEHIND, path.as_bytes(), &kept, Expect::Any).unwrap();
        assert!(it.s3.bytes(&at(key)) == bytes);
        it.s3.put(&at(key), tags).query("tagging", "").send().expect(200);
        it.settled();
        let there = it.behind(key).expect(200);
        assert!(there.body == bytes && there.header("x-amz-tagging-count") == "1");
    }
}

#[test]
fn metadata_that_no_header_can_have_goes_there_and_comes_back() {
    let it = Backed::start();
    // A line feed, and "naïve" as text and as an encoded word.
    let given = [("=?UTF-8?B?YQpi?=", "=?UTF-8?B?YQpi?="), ("na\u{ef}ve", "=?UTF-8?B?bmHDr3Zl?=")];
    let words = ("=?UTF-8?Q?na=C3=AFve?=", "=?UTF-8?B?bmHDr3Zl?=");
    for (n, (value, told)) in given.into_iter().chain([words]).enumerate() {
        let key = format!("k{n}");
        it.s3.put(&at(&key), "value").header("x-amz-meta-of", value).send().expect(200);
        it.settled();
        assert_eq!(it.behind(&key).expect(200).header("x-amz-meta-of"), told);
        let state = it.volume.look_up(BUCKET, key.as_bytes(), false).unwrap().state.unwrap();
        assert!(it.volume.evict(BUCKET, key.as_bytes(), state.seq).unwrap());
        assert_eq!(it.s3.get(&at(&key)).send().expect(200).header("x-amz-meta-of"), told);
        until("it is kept", || {
            let kept = it.volume.get_object(BUCKET, key.as_bytes(), false).unwrap()?;
            let kept = String::from_utf8(kept.attachment?.bytes).unwrap();
            (!kept.contains("=?")).then_some(())
        });
    }
    // Metadata of 2 KiB that are more by the time they are there.
    let long = "\u{fc}".repeat(800);
    let put = it.s3.put(&at("long"), "value").header("x-amz-meta-of", &long).send();
    put.refused(400, "MetadataTooLarge");
}

#[test]
fn copies_at_once_of_what_the_store_has_fetch_it_once() {
    let it = Backed::start();
    let bytes = random(3 * MIB, 5);
    it.direct.object(&format!("/{BEHIND}/{PREFIX}source"), bytes.clone());
    it.faults(&Faults { latency_ms: (300, 400), ..Faults::default() });
    let gets = || {
        let line = "millpond_s3_backend_requests_total{backend=\"store\",operation=\"get\"";
        it.metric(line)
    };
    std::thread::scope(|scope| {
        for n in 0..6 {
            let copy = it.s3.put(&at(&format!("copy{n}")), "");
            let copy = copy.header("x-amz-copy-source", &at("source"));
            scope.spawn(move || copy.send().expect(200));
        }
    });
    assert_eq!(gets(), 1);
    it.faults(&Faults::default());
    for n in 0..6 {
        assert!(it.s3.bytes(&at(&format!("copy{n}"))) == bytes);
    }
}

#[test]
fn what_others_removed_may_be_made_anew() {
    let it = Backed::start();
    it.backing(|backing| backing.is_shared = true);
    it.s3.object(&at("k"), "one");
    it.settled();
    let state = it.volume.look_up(BUCKET, b"k", false).unwrap().state.unwrap();
    assert!(it.volume.evict(BUCKET, b"k", state.seq).unwrap());
    let make = || it.s3.put(&at("k"), "two").header("if-none-match", "*").send();
    make().refused(412, "PreconditionFailed");
    it.direct.delete(&format!("/{BEHIND}/{PREFIX}k")).send().expect(204);
    make().expect(200);
    it.settled();
    it.check(&BTreeMap::from([("k".to_owned(), Some(b"two".to_vec()))]));
}

#[test]
fn overwrites_in_turn_supersede_what_waits() {
    let it = Backed::start();
    it.faults(&Faults { latency_ms: (100, 150), ..Faults::default() });
    let mut last = Vec::new();
    for n in 0..200 {
        last = random(2_000, n);
        it.s3.put(&at("one"), last.clone()).send().expect(200);
    }
    it.settled();
    it.check(&BTreeMap::from([("one".to_owned(), Some(last))]));
    let line = "millpond_s3_backend_requests_total{backend=\"store\",operation=\"put\"";
    assert!(it.metric(line) < 100, "{} requests for 200 writes", it.metric(line));
}

#[test]
fn a_server_that_dies_goes_on_where_it_was() {
    let mut it = Backed::with(Server::lasting());
    let mut wanted = storm(&it, 30, 77);
    for (seed, faults) in [
        Faults { latency_ms: (200, 600), ..Faults::default() },
        Faults { hang_rate: 0.5, seed: 9, ..Faults::default() },
        Faults { outage: true, ..Faults::default() },
    ]
    .iter()
    .enumerate()
    {
        it.faults(faults);
        wanted.extend(storm(&it, 30, 100 + seed as u64));
        it.front.kill_and_start();
        it.s3.address.clone_from(&it.front.s3);
        it.volume = volume(&it.front);
        until("the gateway has the volume", || it.s3.head("/front").send().is(200).then_some(()));
    }
    for (key, bytes) in &wanted {
        let found = it.s3.get(&at(key)).send();
        match bytes {
            Some(bytes) => assert!(found.expect(200).body == *bytes, "{key}"),
            None => assert_eq!(found.status, 404, "{key}"),
        }
    }
    it.faults(&Faults::default());
    let start = std::time::Instant::now();
    it.settled();
    it.check(&wanted);
    assert!(start.elapsed() < Duration::from_secs(50));
}
