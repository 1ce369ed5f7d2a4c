//! Buckets with another server's gateway behind them.

use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::behind::volume;
use crate::client::{Answer, Client, Request};
use crate::server::{ACCESS, SECRET, Server, heard, until};

/// A server whose bucket `data` is backed by the bucket `there` of another one.
pub(crate) struct Pair {
    pub(crate) front: Server,
    pub(crate) back: Server,
    pub(crate) s3: Client,
    pub(crate) there: Client,
}

impl Pair {
    /// With these flags of the backend, and of the bucket.
    pub(crate) fn start(of_backend: &[&str], of_bucket: &[&str]) -> Self {
        let (front, back) = (Server::start(), Server::start());
        let (s3, there) = (front.client(), back.client());
        there.bucket("there");
        let pair = Self { front, back, s3, there };
        pair.backend(of_backend);
        pair.bucket(of_bucket);
        pair
    }

    fn backend(&self, flags: &[&str]) {
        let secret = self.front.folder().join("secret");
        std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
        let endpoint = format!("http://{}", self.back.s3);
        let output = self.add_backend("other", &endpoint, flags);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn add_backend(&self, name: &str, endpoint: &str, flags: &[&str]) -> Output {
        let secret = self.front.folder().join("secret");
        let words = ["s3", "backend", "add", name, "--endpoint", endpoint, "--access-key", ACCESS];
        let secret = ["--secret-key-file", secret.to_str().unwrap()];
        self.front.command(&[&words[..], &secret, flags].concat())
    }

    fn bucket(&self, flags: &[&str]) {
        let words =
            ["s3", "bucket", "add", "data", "--backend", "other", "--backend-bucket", "there"];
        self.done(&[&words[..], flags].concat());
        heard();
    }

    /// Runs a command that must go well, and what it prints.
    pub(crate) fn done(&self, words: &[&str]) -> String {
        let output = self.front.command(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn state(&self, path: &str) -> String {
        self.s3.head(path).send().header("x-millpond-state")
    }

    pub(crate) fn until_clean(&self, path: &str) {
        until("the backend has it", || (self.state(path) == "clean").then_some(()));
    }

    fn drained(&self) {
        self.done(&["s3", "persist", "--wait", "s3://data"]);
    }
}

fn part_line(number: &str, etag: &str) -> String {
    format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
}

fn is_gone(answer: Answer) {
    answer.refused(404, "NoSuchKey");
}

/// Asks for many removals at once: the keys that were removed, and the errors of others.
fn removed(s3: &Client, objects: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let objects = objects.iter().map(|(key, etag)| {
        format!("<Object><Key>{key}</Key><ETag>{}</ETag></Object>", etag.replace('"', "&quot;"))
    });
    let body = format!("<Delete>{}</Delete>", objects.collect::<String>());
    let answer = s3.post("/data", body).query("delete", "").send().expect(200);
    (answer.tags("Deleted"), answer.tags("Code"))
}

#[test]
fn what_only_the_backend_has_is_removed_as_its_conditions_say() {
    let pair = Pair::start(&["--timeout", "1s"], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    let etag = there.object("/there/a", "value");
    for key in ["b", "c", "left"] {
        there.object(&format!("/there/{key}"), "value");
    }
    let wrong = "\"00000000000000000000000000000000\"";
    let (done, codes) = removed(s3, &[("a", wrong), ("b", &etag), ("none", wrong)]);
    // What is nowhere is removed.
    assert_eq!(done, ["<Key>b</Key>", "<Key>none</Key>"]);
    assert_eq!(codes, ["PreconditionFailed"]);
    s3.delete("/data/c").header("if-match", wrong).send().refused(412, "PreconditionFailed");
    s3.delete("/data/c").header("if-match", &etag).send().expect(204);
    pair.drained();
    assert_eq!(there.bytes("/there/a"), b"value");
    is_gone(there.get("/there/b").send());
    is_gone(there.get("/there/c").send());
    // Nobody knows whether the condition holds.
    let Pair { front: _front, back, s3, .. } = pair;
    drop(back);
    let (done, codes) = removed(&s3, &[("left", &etag), ("b", &etag)]);
    assert_eq!(done, ["<Key>b</Key>"]);
    assert_eq!(codes, ["ServiceUnavailable"]);
}

#[test]
fn what_was_there_is_read_and_kept() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    let long: Vec<u8> = (0..=250).cycle().take(3_000_000).collect();
    for (key, body) in [("small", b"value".to_vec()), ("long", long.clone()), ("empty", vec![])] {
        let put = there.put(&format!("/there/{key}"), body.clone());
        let put = put.header("content-type", "text/x-a").header("x-amz-meta-of", "them");
        let etag = put.header("x-amz-tagging", "a=1&b=2").send().expect(200).header("etag");
        let path = format!("/data/{key}");
        let head = s3.head(&path).send().expect(200);
        assert_eq!(
            (head.header("etag"), head.header("x-millpond-state")),
            (etag.clone(), "remote".into())
        );
        assert_eq!(head.header("x-amz-tagging-count"), "2");
        if body.len() > 100 {
            let part = s3.get(&path).header("range", "bytes=10-19").send().expect(206);
            assert_eq!(part.body, body[10..20]);
            assert_eq!(part.header("x-millpond-state"), "remote");
            let other = s3.get(&path).header("range", "bytes=10-19").header("if-range", "\"o\"");
            assert!(other.send().expect(200).body == body);
            let beyond = s3.get(&path).header("range", "bytes=9000000-").send();
            beyond.refused(416, "InvalidRange");
        }
        let first = s3.get(&path).send().expect(200);
        assert!(first.body == body && first.header("x-millpond-state") == "remote");
        assert_eq!(first.header("x-amz-tagging-count"), "2");
        pair.until_clean(&path);
        let kept = s3.get(&path).send().expect(200);
        assert!(kept.body == body);
        for answer in [&first, &kept] {
            assert_eq!(answer.header("etag"), etag);
            assert_eq!(answer.header("content-type"), "text/x-a");
            assert_eq!(answer.header("x-amz-meta-of"), "them");
            assert_eq!(answer.header("last-modified"), head.header("last-modified"));
        }
        let tags = s3.get(&path).query("tagging", "").send().expect(200);
        assert_eq!(tags.tags("Value"), ["1", "2"]);
    }
    is_gone(s3.get("/data/nothing").send());
    s3.delete("/data").send().refused(409, "BucketNotEmpty");
    assert!(s3.head("/data/nothing").send().is(404));
    // A copy of what only the backend has.
    there.object("/there/source", "to copy");
    let copy = s3.put("/data/copy", "").header("x-amz-copy-source", "/data/source").send();
    copy.expect(200);
    assert_eq!(s3.bytes("/data/copy"), b"to copy");
}

#[test]
fn what_is_written_goes_there_and_may_be_given_up_here() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    let put = s3.put("/data/a/b", "one").header("x-amz-meta-k", "v").send().expect(200);
    assert_eq!(put.header("x-millpond-state"), "dirty");
    pair.until_clean("/data/a/b");
    let arrived = there.get("/there/a/b").send().expect(200);
    assert_eq!(
        (arrived.body.as_slice(), arrived.header("x-amz-meta-k").as_str()),
        (&b"one"[..], "v")
    );
    // Of parts: the ETag stays.
    let id = s3.post("/data/parts", "").query("uploads", "").send().expect(200).tag("UploadId");
    let long: Vec<u8> = (0..=250).cycle().take(5 << 20).collect();
    let mut list = String::new();
    for (number, body) in [("1", long.clone()), ("2", b"end".to_vec())] {
        let part = s3.put("/data/parts", body).query("partNumber", number).query("uploadId", &id);
        let etag = part.send().expect(200).header("etag");
        list.push_str(&part_line(number, &etag));
    }
    let list = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    let complete =
        || s3.post("/data/parts", list.clone()).query("uploadId", &id).send().expect(200);
    let done = complete();
    let etag = s3.head("/data/parts").send().header("etag");
    assert!(etag.ends_with("-2\""), "{etag}: {}", done.text());
    let sum = s3.head("/data/parts").header("x-amz-checksum-mode", "ENABLED").send();
    let sum = sum.header("x-amz-checksum-crc64nvme");
    assert!(!sum.is_empty());
    pair.drained();
    // Nothing more is kept than a byte.
    pair.bucket(&["--cache", "1B"]);
    until("all is given up", || (pair.state("/data/parts") == "remote").then_some(()));
    until("all is given up", || (pair.state("/data/a/b") == "remote").then_some(()));
    pair.bucket(&[]);
    // A client that did not hear the answer asks again.
    assert_eq!(complete().tag("ETag"), done.tag("ETag"));
    // A part of what only the backend has.
    let second = s3.get("/data/parts").query("partNumber", "2").send().expect(206);
    assert_eq!(
        (second.body.as_slice(), pair.state("/data/parts").as_str()),
        (&b"end"[..], "remote")
    );
    let got = s3.get("/data/parts").send().expect(200);
    assert_eq!((got.header("etag"), got.body.len()), (etag.clone(), (5 << 20) + 3));
    pair.until_clean("/data/parts");
    assert_eq!(s3.head("/data/parts").send().header("etag"), etag);
    // And its parts and checksums are known, so that it goes there in the same parts once more.
    let second = s3.head("/data/parts").query("partNumber", "2").send().expect(206);
    assert_eq!(
        (second.header("content-length"), second.header("x-amz-mp-parts-count")),
        ("3".into(), "2".into())
    );
    let sums =
        || s3.head("/data/parts").header("x-amz-checksum-mode", "ENABLED").send().expect(200);
    assert_eq!(sums().header("x-amz-checksum-crc64nvme"), sum);
    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    s3.put("/data/parts", tags).query("tagging", "").send().expect(200);
    pair.until_clean("/data/parts");
    assert_eq!(sums().header("etag"), etag);
    assert_eq!(there.head("/there/parts").send().header("etag"), etag);
    // Removed here at once, and there soon.
    s3.delete("/data/a/b").send().expect(204);
    is_gone(s3.get("/data/a/b").send());
    until("it goes", || there.head("/there/a/b").send().is(404).then_some(()));
    is_gone(s3.get("/data/a/b").send());
}

#[test]
fn what_others_change_beside_the_bytes_is_noticed() {
    let pair = Pair::start(&[], &["--shared", "--ttl", "100ms"]);
    let (s3, there) = (&pair.s3, &pair.there);
    let full = |ask: Request| {
        let ask = ask
            .header("x-amz-meta-of", "=?UTF-8?Q?na=C3=AFve?=")
            .header("expires", "Wed, 21 Oct 2015 07:28:00 GMT");
        ask.header("x-amz-tagging", "b=2&a=1").header("cache-control", "no-store").send()
    };
    full(s3.put("/data/mine", "value")).expect(200);
    s3.object("/data/bare", "value");
    full(there.put("/there/theirs", "value")).expect(200);
    for key in ["mine", "bare", "theirs"] {
        assert_eq!(s3.bytes(&format!("/data/{key}")), b"value");
        pair.until_clean(&format!("/data/{key}"));
    }
    let fills = || pair.front.metric("millpond_s3_fills_total");
    let heads = "millpond_s3_backend_requests_total{backend=\"other\",operation=\"head\"";
    let before = pair.front.metric(heads);
    until("they are looked at again and again", || {
        for key in ["mine", "bare", "theirs"] {
            assert_eq!(pair.state(&format!("/data/{key}")), "clean", "{key}");
        }
        (pair.front.metric(heads) > before + 12).then_some(())
    });
    assert_eq!(fills(), 1, "nothing was fetched that nobody changed");
    let tags = |value: &str| {
        format!("<Tagging><TagSet><Tag><Key>a</Key><Value>{value}</Value></Tag></TagSet></Tagging>")
    };
    let told = |key: &str, header: &str| s3.get(&format!("/data/{key}")).send().header(header);
    for key in ["mine", "bare", "theirs"] {
        let path = format!("/there/{key}");
        let put = || there.put(&path, "value");
        put().header("content-type", "text/x-new").send().expect(200);
        until("a type", || (told(key, "content-type") == "text/x-new").then_some(()));
        put().header("x-amz-meta-of", "them").send().expect(200);
        until("metadata", || (told(key, "x-amz-meta-of") == "them").then_some(()));
        for value in ["1", "2"] {
            there.put(&path, tags(value)).query("tagging", "").send().expect(200);
            until("tags", || {
                let told = s3.get(&format!("/data/{key}")).query("tagging", "").send().expect(200);
                (told.tags("Value") == [value]).then_some(())
            });
        }
        std::thread::sleep(Duration::from_millis(1_100));
        put().header("x-amz-meta-of", "them").send().expect(200);
        let at = there.head(&path).send().header("last-modified");
        until("a time", || (told(key, "last-modified") == at).then_some(()));
    }
}

#[test]
fn what_is_given_up_again_and_again_is_there_all_the_same() {
    let pair = Pair::start(&[], &["--shared", "--ttl", "1ms", "--cache", "1B"]);
    let (s3, there) = (&pair.s3, &pair.there);
    there.object("/there/k", "value");
    let until = Instant::now() + Duration::from_secs(5);
    let again = |work: &dyn Fn(u32)| {
        let mut n = 0;
        while Instant::now() < until {
            work(n);
            n += 1;
        }
    };
    let writes = |n| {
        there.object("/there/k", format!("value {n}"));
        std::thread::sleep(Duration::from_millis(20));
    };
    // On a busy machine it is given up so often that a client is told to come again.
    let done = AtomicU32::new(0);
    let is_there = |answer: Answer| match answer.status {
        503 => drop(answer.refused(503, "SlowDown")),
        _ => drop((answer.expect(200), done.fetch_add(1, Ordering::Relaxed))),
    };
    let reads = |_| is_there(s3.get("/data/k").send());
    let tags = |_| is_there(s3.get("/data/k").query("tagging", "").send());
    let id = s3.post("/data/up", "").query("uploads", "").send().expect(200).tag("UploadId");
    let copies = |n: u32| {
        let copy = s3.put(&format!("/data/to{}", n % 9), "");
        is_there(copy.header("x-amz-copy-source", "/data/k").send());
        let part = s3.put("/data/up", "").query("partNumber", "1").query("uploadId", &id);
        is_there(part.header("x-amz-copy-source", "/data/k").send());
    };
    std::thread::scope(|scope| {
        for work in [&writes as &(dyn Fn(u32) + Sync), &reads, &tags, &copies, &copies, &copies] {
            scope.spawn(move || again(&work));
        }
    });
    assert!(done.into_inner() > 20);
}

#[test]
fn copies_see_what_only_the_backend_has_before_it_is_fetched() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    let long: Vec<u8> = (0..=250).cycle().take(3_000_000).collect();
    let etag = there.object("/there/k", long.clone());
    there.object("/there/none", "");
    let get = "millpond_s3_backend_requests_total{backend=\"other\",operation=\"get\"";
    let copy = || s3.put("/data/copy", "").header("x-amz-copy-source", "/data/k");
    let wrong = copy().header("x-amz-copy-source-if-match", "\"other\"").send();
    wrong.refused(412, "PreconditionFailed");
    let gone = s3.put("/data/copy", "").header("x-amz-copy-source", "/data/gone").send();
    is_gone(gone);
    let id = s3.post("/data/parts", "").query("uploads", "").send().expect(200).tag("UploadId");
    let part = |number: &str, source: &str, range: &str, etag: &str| {
        let put = s3.put("/data/parts", "").query("partNumber", number).query("uploadId", &id);
        let put = put.header("x-amz-copy-source", source);
        let put = put.header("x-amz-copy-source-if-match", etag);
        let range = Some(range).filter(|it| !it.is_empty());
        range.into_iter().fold(put, |put, it| put.header("x-amz-copy-source-range", it)).send()
    };
    part("1", "/data/k", "", "\"other\"").refused(412, "PreconditionFailed");
    part("1", "/data/k", "bytes=10-3000000", &etag).refused(416, "InvalidRange");
    is_gone(part("1", "/data/gone", "", "*"));
    assert_eq!(pair.front.metric(get), 0, "nothing was fetched for what is refused");
    // Parts are what was asked for, and go by the cache.
    let mut list = String::new();
    for (number, source, range) in
        [("1", "/data/k", "bytes=1000000-1000009"), ("2", "/data/k", ""), ("3", "/data/none", "")]
    {
        let told = part(number, source, range, "*").expect(200).tag("ETag");
        list.push_str(&part_line(number, &told));
    }
    assert_eq!((pair.state("/data/k"), pair.front.metric(get)), ("remote".into(), 2));
    let listed = s3.get("/data/parts").query("uploadId", &id).send().expect(200);
    assert_eq!(listed.tags("Size"), ["10", "3000000", "0"]);
    assert_eq!(list.matches(etag.trim_matches('"')).count(), 1, "{list}");
    copy().header("x-amz-copy-source-if-match", &etag).send().expect(200);
    assert!(s3.bytes("/data/copy") == long);
    pair.until_clean("/data/k");
    // From here it is the same part.
    let again = part("1", "/data/k", "bytes=1000000-1000009", &etag).expect(200).tag("ETag");
    assert!(list.contains(&again), "{list}");
    assert_eq!(pair.front.metric(get), 3);
}

#[test]
fn conditions_see_what_only_the_backend_has() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    let etag = there.object("/there/k", "value");
    s3.put("/data/k", "no").header("if-none-match", "*").send().refused(412, "PreconditionFailed");
    s3.put("/data/k", "no")
        .header("if-match", "\"other\"")
        .send()
        .refused(412, "PreconditionFailed");
    s3.get("/data/k").header("if-match", "\"other\"").send().refused(412, "PreconditionFailed");
    s3.get("/data/k").header("if-none-match", &etag).send().expect(304);
    s3.put("/data/none", "no").header("if-match", "\"other\"").send().refused(404, "NoSuchKey");
    s3.put("/data/none", "yes").header("if-none-match", "*").send().expect(200);
    s3.put("/data/k", "new").header("if-match", &etag).send().expect(200);
    s3.put("/data/k", "no").header("if-match", &etag).send().refused(412, "PreconditionFailed");
    let etag = there.object("/there/gone", "value");
    s3.delete("/data/gone")
        .header("if-match", "\"other\"")
        .send()
        .refused(412, "PreconditionFailed");
    s3.delete("/data/gone").header("if-match", &etag).send().expect(204);
    is_gone(s3.get("/data/gone").send());
    pair.drained();
    assert_eq!(there.bytes("/there/k"), b"new");
    is_gone(there.get("/there/gone").send());
}

#[test]
fn rules_say_what_becomes_of_keys() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    pair.done(&["s3", "rules", "set", "data", "now/", "--mode", "write-through"]);
    pair.done(&["s3", "rules", "set", "data", "tmp/", "--mode", "transient", "--ttl", "24h"]);
    let shown = pair.done(&["s3", "rules", "data"]);
    assert!(shown.contains("write-through") && shown.contains("86400s"), "{shown}");
    heard();
    let put = s3.put("/data/now/k", "at once").send().expect(200);
    assert_eq!(put.header("x-millpond-state"), "clean");
    assert_eq!(there.bytes("/there/now/k"), b"at once");
    s3.delete("/data/now/k").send().expect(204);
    is_gone(there.get("/there/now/k").send());
    let put = s3.put("/data/tmp/k", "never").send().expect(200);
    assert_eq!(put.header("x-millpond-state"), "transient");
    there.object("/there/tmp/other", "not looked for");
    is_gone(s3.get("/data/tmp/other").send());
    assert_eq!(s3.bytes("/data/tmp/k"), b"never");
    pair.drained();
    is_gone(there.get("/there/tmp/k").send());
    let list = s3.get("/data").query("list-type", "2").send().expect(200);
    assert_eq!(list.tags("Key"), ["tmp/k"]);
    pair.done(&["s3", "rules", "rm", "data", "tmp/"]);
    assert!(!pair.front.command(&["s3", "rules", "rm", "data", "tmp/"]).status.success());
}

#[test]
fn what_is_here_is_served_while_the_backend_is_away() {
    let pair = Pair::start(&["--timeout", "1s"], &[]);
    pair.there.object("/there/far", "away");
    pair.s3.object("/data/kept", "kept");
    pair.drained();
    pair.done(&["s3", "rules", "set", "data", "now/", "--mode", "write-through"]);
    pair.done(&["s3", "rules", "set", "data", "tmp/", "--mode", "transient"]);
    heard();
    let Pair { front, back, s3, .. } = pair;
    drop(back);
    let far = s3.get("/data/far").send().refused(503, "ServiceUnavailable");
    assert!(far.tag("Message").contains("other"), "{}", far.text());
    assert!(s3.head("/data/far").send().is(503));
    s3.get("/data").query("list-type", "2").send().refused(503, "ServiceUnavailable");
    assert_eq!(s3.bytes("/data/kept"), b"kept");
    s3.object("/data/tmp/k", "here");
    let list = s3.get("/data").query("list-type", "2").query("prefix", "tmp/").send().expect(200);
    assert_eq!(list.tags("Key"), ["tmp/k"]);
    let put = s3.put("/data/new", "dirty").send().expect(200);
    assert_eq!(put.header("x-millpond-state"), "dirty");
    assert_eq!(s3.bytes("/data/new"), b"dirty");
    s3.object("/data/new", "dirtier");
    assert_eq!(s3.bytes("/data/new"), b"dirtier");
    s3.delete("/data/kept").send().expect(204);
    is_gone(s3.get("/data/kept").send());
    let through = s3.put("/data/now/k", "stays").send().refused(503, "ServiceUnavailable");
    assert!(through.tag("Message").contains("stored here"), "{}", through.text());
    assert_eq!(s3.bytes("/data/now/k"), b"stays");
    let status = front.command(&["s3", "status", "--json"]);
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("\"reached\":false") && status.contains("\"keys\":3"), "{status}");
    let persist = ["s3", "persist", "--wait", "s3://data"];
    let late = front.command(&[&persist[..], &["--timeout", "10ms"]].concat());
    assert!(String::from_utf8_lossy(&late.stderr).contains("timed out"));
    let persist = front.command(&persist);
    assert_eq!(persist.status.code(), Some(1), "{}", String::from_utf8_lossy(&persist.stderr));
    assert!(front.command(&["s3", "retry", "s3://data/"]).status.success());
    let rm = front.command(&["s3", "bucket", "rm", "data"]);
    assert!(String::from_utf8_lossy(&rm.stderr).contains("persist --wait"));
}

#[test]
fn commands_say_what_is_wrong_before_anything_is_changed() {
    let pair = Pair::start(&[], &[]);
    let refused = |words: &[&str]| {
        let output = pair.front.command(words);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let add = ["s3", "bucket", "add", "new", "--backend"];
    let error = refused(&[&add[..], &["nobody"]].concat());
    assert!(error.contains("backend") && error.contains("s3 backend add"), "{error}");
    let error = refused(&[&add[..], &["other", "--backend-bucket", "nowhere"]].concat());
    assert!(error.contains("backend-bucket") && error.contains("nowhere"), "{error}");
    // No two buckets have what each has alone.
    let there = ["other", "--backend-bucket", "there", "--prefix"];
    for flags in [&["a/"][..], &["a/", "--shared"]] {
        let error = refused(&[&add[..], &there, flags].concat());
        assert!(error.contains("prefix") && error.contains("'data'"), "{error}");
    }
    // Nor by another name of the backend, whichever comes first.
    let endpoint = format!("http://{}/", pair.back.s3);
    assert!(pair.add_backend("again", &endpoint, &[]).status.success());
    let there = ["again", "--backend-bucket", "there"];
    let error = refused(&[&add[..], &there].concat());
    assert!(error.contains("prefix") && error.contains("'data'"), "{error}");
    assert!(pair.add_backend("third", &format!("http://{}", pair.front.s3), &[]).status.success());
    pair.front.client().bucket("there");
    pair.done(&["s3", "bucket", "add", "moved", "--backend", "third", "--backend-bucket", "there"]);
    let output = pair.add_backend("third", &endpoint, &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{error}");
    assert!(error.contains("endpoint") && error.contains("'moved'"), "{error}");
    pair.done(&["s3", "bucket", "rm", "moved"]);
    assert!(pair.add_backend("third", &endpoint, &[]).status.success());

    assert!(pair.s3.head("/new").send().is(404));
    let error = refused(&[
        "s3",
        "bucket",
        "add",
        "data",
        "--backend",
        "other",
        "--backend-bucket",
        "there",
        "--prefix",
        "x/",
    ]);
    assert!(error.contains("bucket rm data"), "{error}");
    assert!(refused(&["s3", "backend", "rm", "other"]).contains("data"));
    refused(&["s3", "rules", "new"]);
    refused(&["s3", "persist", "data"]);
    let backends = pair.done(&["s3", "backend", "list"]);
    assert!(backends.contains("other") && !backends.contains(SECRET), "{backends}");
    let buckets = pair.done(&["s3", "bucket", "list", "--json"]);
    assert!(buckets.contains("\"backend_bucket\":\"there\""), "{buckets}");
    let status = pair.done(&["s3", "status"]);
    assert!(status.contains("data") && status.contains("yes"), "{status}");
    pair.done(&["s3", "bucket", "rm", "data"]);
    pair.done(&["s3", "backend", "rm", "other"]);
}

#[test]
fn a_shared_place_is_looked_at_again() {
    let pair = Pair::start(&[], &["--shared", "--ttl", "1s"]);
    let (s3, there) = (&pair.s3, &pair.there);
    let now = |body: &'static str| {
        until("the new one is seen", || {
            (s3.get("/data/k").send().body == body.as_bytes()).then_some(())
        });
    };
    there.object("/there/k", "one");
    now("one");
    pair.until_clean("/data/k");
    there.object("/there/k", "two");
    now("two");
    there.delete("/there/k").send().expect(204);
    until("it is gone", || s3.get("/data/k").send().is(404).then_some(()));
    s3.object("/data/k", "ours");
    pair.drained();
    s3.delete("/data/k").send().expect(204);
    pair.drained();
    there.object("/there/k", "again");
    now("again");
    let list = s3.get("/data").query("list-type", "2").send().expect(200);
    assert_eq!(list.tags("Key"), ["k"]);
}

#[test]
fn lists_of_a_shared_place_are_as_young_as_reads() {
    let pair = Pair::start(&[], &["--shared", "--ttl", "500ms"]);
    let (s3, there) = (&pair.s3, &pair.there);
    let keys = ["changed", "dir/gone", "gone", "kept", "some/gone", "some/kept"];
    for key in keys {
        there.object(&format!("/there/{key}"), "value");
        assert_eq!(s3.bytes(&format!("/data/{key}")), b"value");
        pair.until_clean(&format!("/data/{key}"));
    }
    s3.object("/data/mine/k", "ours");
    pair.drained();
    let list = |delimiter: &str| {
        let ask = s3.get("/data").query("list-type", "2").query("delimiter", delimiter);
        let page = ask.send().expect(200);
        let prefixes = page.tags("CommonPrefixes");
        let prefixes =
            prefixes.iter().map(|it| it.replace("<Prefix>", "").replace("</Prefix>", ""));
        (page.tags("Key"), page.tags("Size"), prefixes.collect::<Vec<_>>())
    };
    assert_eq!(list("/").0, ["changed", "gone", "kept"]);
    assert_eq!(list("/").2, ["dir/", "mine/", "some/"]);
    for key in keys.iter().filter(|key| key.contains("gone")) {
        there.delete(&format!("/there/{key}")).send().expect(204);
    }
    there.object("/there/changed", "longer than before");
    until("what is gone is not listed", || {
        let (keys, sizes, prefixes) = list("/");
        let is_new = keys == ["changed", "kept"] && sizes == ["18", "5"];
        (is_new && prefixes == ["mine/", "some/"]).then_some(())
    });
    assert_eq!(list("").0, ["changed", "kept", "mine/k", "some/kept"]);
    assert_eq!(s3.bytes("/data/changed"), b"longer than before");
    // What a mount wrote has another ETag there, and is known to.
    volume(&pair.front).write_file("/data/mount", b"by a mount", 0o644).unwrap();
    pair.drained();
    std::thread::sleep(Duration::from_millis(600));
    let heads = "millpond_s3_backend_requests_total{backend=\"other\",operation=\"head\"";
    let before = pair.front.metric(heads);
    assert_eq!(list("/").0, ["changed", "kept", "mount"]);
    assert_eq!(pair.front.metric(heads), before);
    // What others made go comes back when they put it again.
    there.object("/there/gone", "again");
    assert_eq!(list("/").0, ["changed", "gone", "kept", "mount"]);
}

#[test]
fn what_mounts_do_goes_there() {
    let pair = Pair::start(&[], &["--ttl", "1s"]);
    let client = millpond_client::ClientOptions::new(pair.front.address.parse().unwrap());
    let client = millpond_client::Client::new(client).unwrap();
    let options = millpond_client::VolumeOptions {
        caller: millpond_types::meta::Caller::checked(0, 0),
        ..millpond_client::VolumeOptions::new("a mount")
    };
    let volume = millpond_client::Volume::with(client, options).unwrap();
    volume.write_file("/data/file", b"by a mount", 0o644).unwrap();
    assert_eq!(pair.state("/data/file"), "dirty");
    let etag = || pair.s3.head("/data/file").send().header("etag");
    let (before, tags) = (etag(), "<Tagging><TagSet></TagSet></Tagging>");
    pair.s3.put("/data/file", tags).query("tagging", "").send().expect(200);
    assert_eq!(etag(), before, "its bytes are what they were");
    pair.until_clean("/data/file");
    assert_eq!(pair.there.bytes("/there/file"), b"by a mount");
    volume.write_file("/data/file", b"changed by a mount", 0o644).unwrap();
    assert_eq!(pair.s3.bytes("/data/file"), b"changed by a mount");
    pair.done(&["s3", "persist", "--wait", "s3://data/f"]);
    assert_eq!(pair.there.bytes("/there/file"), b"changed by a mount");
    // Removed: a gateway does not bring it back.
    volume.unlink("/data/file").unwrap();
    is_gone(pair.s3.get("/data/file").send());
    pair.drained();
    is_gone(pair.there.get("/there/file").send());
}
