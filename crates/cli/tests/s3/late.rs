//! Answers that take so long that clients would give up.

use std::time::{Duration, Instant};

use millpond_client::{Mode, Rule};
use millpond_s3_load::proxy::Faults;

use crate::behind::{BUCKET, Backed};
use crate::client::{Answer, Client};
use crate::parts::{begin, complete, part};

/// Longer than an answer waits before it begins.
const LONG: Duration = Duration::from_secs(6);

/// It began before it was known, and is one document all the same.
fn check_late(answer: &Answer, begun: Instant) {
    assert_eq!(answer.status, 200);
    assert!(begun.elapsed() >= LONG, "{:?}", begun.elapsed());
    let text = answer.text();
    let rest = text.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?> ").expect(&text);
    assert!(rest.trim_start().starts_with('<') && !rest.contains("<?xml"), "{text}");
    assert_eq!(answer.header("content-type"), "application/xml");
    assert!(!answer.header("x-amz-request-id").is_empty());
}

fn uploaded(s3: &Client, path: &str) -> (String, [(usize, String); 1]) {
    let id = begin(s3, path);
    let etag = part(s3, (path, &id), 1, vec![7; 100_000]).expect(200).header("etag");
    (id, [(1, etag)])
}

#[test]
fn an_answer_that_comes_late_begins_in_time() {
    let it = Backed::start();
    let s3 = &it.s3;
    it.settings(|settings| settings.timeout_ms = 20_000);
    it.backing(|backing| {
        backing.rules = vec![Rule { mode: Mode::WriteThrough, ..Rule::default() }];
    });
    let at = |key: &str| format!("/{BUCKET}/{key}");
    s3.object(&at("source"), vec![1; 1_000]);
    let (upload, failing) = (uploaded(s3, &at("parts")), uploaded(s3, &at("failing")));

    let slow =
        Faults { latency_ms: (6_000, 6_000), methods: vec!["PUT".into()], ..Faults::default() };
    it.faults(&slow);
    let begun = Instant::now();
    let copy = s3.put(&at("copy"), "").header("x-amz-copy-source", &at("source"));
    let (done, copied) = std::thread::scope(|scope| {
        let copied = scope.spawn(|| copy.send());
        let path = at("parts");
        (complete(s3, (&path, &upload.0), &upload.1), copied.join().unwrap())
    });
    check_late(&done, begun);
    check_late(&copied, begun);
    assert_eq!(done.tag("Key"), "parts");
    assert!(!copied.tag("LastModified").is_empty());

    // What goes wrong after the answer has begun is in its body.
    // Two attempts fail by then.
    it.faults(&Faults { error_rate: 1.0, latency_ms: (3_000, 3_000), ..slow });
    let begun = Instant::now();
    let path = at("failing");
    let failed = complete(s3, (&path, &failing.0), &failing.1);
    check_late(&failed, begun);
    assert_eq!(failed.tag("Code"), "ServiceUnavailable");
    assert!(failed.tag("Message").contains("store"), "{}", failed.text());
    assert_eq!(failed.tag("RequestId"), failed.header("x-amz-request-id"));
    assert_eq!(s3.bytes(&path), vec![7; 100_000], "the write stays");
}
