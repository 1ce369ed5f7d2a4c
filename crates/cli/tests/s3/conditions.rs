//! Preconditions and ranges.

use crate::client::{Client, Request, Signing};
use crate::server::Server;

const LONG_AGO: &str = "Thu, 01 Dec 1994 16:00:00 GMT";
const FUTURE: &str = "Thu, 01 Dec 2033 16:00:00 GMT";

#[test]
fn reads_are_conditional() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let etag = s3.object("/bkt/k", "value");
    let ask = |conditions: &[(&str, &str)]| {
        let get = conditions.iter().fold(s3.get("/bkt/k"), |it, (k, v)| it.header(k, v));
        let head = conditions.iter().fold(s3.head("/bkt/k"), |it, (k, v)| it.header(k, v));
        let answer = get.send();
        assert_eq!(answer.status, head.send().status);
        answer
    };
    ask(&[("if-match", &etag)]).expect(200);
    ask(&[("if-match", "*")]).expect(200);
    ask(&[("if-match", "\"other\"")]).refused(412, "PreconditionFailed");
    let same = ask(&[("if-none-match", &etag)]).expect(304);
    assert_eq!((same.header("etag"), same.body.len()), (etag.clone(), 0));
    ask(&[("if-none-match", "\"other\"")]).expect(200);
    ask(&[("if-modified-since", LONG_AGO)]).expect(200);
    ask(&[("if-modified-since", FUTURE)]).expect(304);
    ask(&[("if-unmodified-since", FUTURE)]).expect(200);
    ask(&[("if-unmodified-since", LONG_AGO)]).refused(412, "PreconditionFailed");
    // A match by ETag goes before times.
    ask(&[("if-match", &etag), ("if-unmodified-since", LONG_AGO)]).expect(200);
    ask(&[("if-none-match", &etag), ("if-modified-since", LONG_AGO)]).expect(304);
    ask(&[("if-none-match", "\"other\""), ("if-modified-since", FUTURE)]).expect(200);
}

#[test]
fn writes_are_conditional() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let put =
        |body: &str, name: &str, value: &str| s3.put("/bkt/k", body).header(name, value).send();
    put("no", "if-match", "\"etag\"").refused(404, "NoSuchKey");
    let first = put("one", "if-none-match", "*").expect(200).header("etag");
    put("no", "if-none-match", "*").refused(412, "PreconditionFailed");
    put("no", "if-match", "\"other\"").refused(412, "PreconditionFailed");
    put("no", "if-none-match", &first).refused(412, "PreconditionFailed");
    assert_eq!(s3.bytes("/bkt/k"), b"one");
    put("two", "if-match", &first).expect(200);
    put("no", "if-match", &first).refused(412, "PreconditionFailed");
    assert_eq!(s3.bytes("/bkt/k"), b"two");
    s3.delete("/bkt/k").header("if-match", &first).send().refused(412, "PreconditionFailed");
    let second = s3.head("/bkt/k").send().header("etag");
    s3.delete("/bkt/k").header("if-match", &second).send().expect(204);
    // Who asks again because the answer was lost is told the same.
    s3.delete("/bkt/k").header("if-match", &second).send().expect(204);
    put("three", "if-none-match", &second).expect(200);
    put("four", "if-none-match", &second).expect(200);
    let both = s3.put("/bkt/k", "no").header("if-match", "*").header("if-none-match", &second);
    both.send().refused(501, "NotImplemented");
    s3.delete("/bkt/k").send().expect(204);
    // Of many that make the same key, one does.
    let outcomes: Vec<u16> = std::thread::scope(|scope| {
        let race = |n: usize| {
            let put = s3.put("/bkt/race", format!("{n}")).header("if-none-match", "*");
            scope.spawn(move || put.send().status)
        };
        let racers: Vec<_> = (0..8).map(race).collect();
        racers.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|it| **it == 200).count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|it| **it == 412).count(), 7, "{outcomes:?}");
    // A completion too.
    let id = s3.post("/bkt/race", "").query("uploads", "").send().expect(200).tag("UploadId");
    let part = s3.put("/bkt/race", "part").query("partNumber", "1").query("uploadId", &id).send();
    let etag = part.expect(200).header("etag");
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let complete = |name: &str, value: &str| {
        s3.post("/bkt/race", body.clone()).query("uploadId", &id).header(name, value).send()
    };
    complete("if-none-match", "*").refused(412, "PreconditionFailed");
    let now = s3.head("/bkt/race").send().header("etag");
    complete("if-match", &now).expect(200);
    assert_eq!(s3.bytes("/bkt/race"), b"part");
}

#[test]
fn copies_are_conditional() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let copy = |name: &str, value: &str| {
        s3.put("/bkt/k", "").header("x-amz-copy-source", "/bkt/from").header(name, value).send()
    };
    for len in [5, 300_000] {
        let from = s3.object("/bkt/from", vec![b'c'; len]);
        copy("if-match", "*").refused(404, "NoSuchKey");
        copy("if-none-match", "*").expect(200);
        let there = s3.object("/bkt/k", "kept");
        copy("if-none-match", "*").refused(412, "PreconditionFailed");
        copy("if-none-match", &there).refused(412, "PreconditionFailed");
        copy("if-match", &from).refused(412, "PreconditionFailed");
        assert_eq!(s3.bytes("/bkt/k"), b"kept");
        // Those of the source are others.
        copy("x-amz-copy-source-if-none-match", &from).refused(412, "PreconditionFailed");
        copy("if-match", &there).expect(200);
        assert_eq!(s3.bytes("/bkt/k").len(), len);
        copy("if-match", "").refused(400, "InvalidArgument");
        s3.delete("/bkt/k").send().expect(204);
    }
}

#[test]
fn ranges_are_cut_out() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for len in [100, 3_000_000] {
        let body: Vec<u8> = (0..=250).cycle().take(len).collect();
        s3.object("/bkt/k", body.clone());
        let ask = |range: &str| s3.get("/bkt/k").header("range", range).send();
        for (range, from, to) in [
            ("bytes=0-0".to_owned(), 0, 1),
            ("bytes=10-19".to_owned(), 10, 20),
            ("bytes=90-".to_owned(), 90, len),
            (format!("bytes=5-{}", len + 100), 5, len),
            ("bytes=-7".to_owned(), len - 7, len),
            (format!("bytes=-{}", len + 7), 0, len),
        ] {
            let got = ask(&range).expect(206);
            assert!(got.body == body[from..to], "{range} of {len}");
            assert_eq!(got.header("content-range"), format!("bytes {from}-{}/{len}", to - 1));
        }
        let beyond = ask(&format!("bytes={len}-")).refused(416, "InvalidRange");
        assert_eq!(beyond.header("content-range"), format!("bytes */{len}"));
        ask("bytes=-0").refused(416, "InvalidRange");
    }
    // Of what another one has replaced a client has no part.
    let now = s3.head("/bkt/k").send().expect(200);
    let (etag, at) = (now.header("etag"), now.header("last-modified"));
    let older = "Wed, 21 Oct 2015 07:28:00 GMT";
    for method in ["GET", "HEAD"] {
        let only_if = |text: &str| {
            let ask = s3.ask(method, "/bkt/k").header("range", "bytes=10-19");
            ask.header("if-range", text).send()
        };
        for (text, status) in [
            (&*etag, 206),
            (&*at, 206),
            ("\"other\"", 200),
            (older, 200),
            (&*format!("W/{etag}"), 200),
            ("", 200),
        ] {
            let answer = only_if(text).expect(status);
            let len = if status == 206 { "10" } else { "3000000" };
            assert_eq!(answer.header("content-length"), len, "{text}");
        }
    }
    s3.object("/bkt/empty", "");
    for range in ["bytes=0-", "bytes=-5"] {
        s3.get("/bkt/empty").header("range", range).send().refused(416, "InvalidRange");
    }
    let head = s3.head("/bkt/k").header("range", "bytes=1-2").send().expect(206);
    assert_eq!(head.header("content-length"), "2");
}

/// What is no range is ignored, whether the signature covers it or not.
#[test]
fn what_is_no_range_gets_the_whole_object() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let body: Vec<u8> = (0..=250).cycle().take(100_000).collect();
    let etag = s3.object("/bkt/k", body.clone());
    let asks = |method: &str, range: &str| {
        let ask = || s3.ask(method, "/bkt/k");
        let in_query = || ask().signing(Signing::Query(60));
        [
            ask().header("range", range),
            ask().unsigned("range", range),
            in_query().header("range", range),
            in_query().unsigned("range", range),
        ]
    };
    for range in ["bytes=5-3", "bytes=0-1,4-5", "bytes=a-b", "bytes=-", "lines=0-4", "0-4", "bytes"]
    {
        for ask in asks("GET", range) {
            let got = ask.send().expect(200);
            assert!(got.body == body, "{range}");
            assert_eq!(
                (got.header("etag"), got.header("content-range")),
                (etag.clone(), String::new())
            );
        }
        for ask in asks("HEAD", range) {
            assert_eq!(ask.send().expect(200).header("content-length"), "100000", "{range}");
        }
    }
    // Numbers of any length are numbers, and units have no case.
    let huge = "9".repeat(30);
    for (range, first) in [
        (format!("bytes=99990-{huge}"), 99_990),
        (format!("bytes=-{huge}"), 0),
        ("Bytes=99998-99999".to_owned(), 99_998),
    ] {
        for ask in asks("GET", &range) {
            let got = ask.send().expect(206);
            assert!(got.body == body[first..], "{range}");
            assert_eq!(got.header("content-range"), format!("bytes {first}-99999/100000"));
        }
    }
    for ask in asks("GET", &format!("bytes={huge}-")) {
        let beyond = ask.send().refused(416, "InvalidRange");
        assert_eq!(beyond.header("content-range"), "bytes */100000");
    }
    let twice = s3.get("/bkt/k").unsigned("range", "bytes=0-1").unsigned("range", "bytes=4-5");
    assert!(twice.send().expect(200).body == body);
    // Other parameters and headers of the request count as before.
    let ask = || s3.get("/bkt/k").header("range", "bytes=5-3").signing(Signing::Query(60));
    let typed = ask().query("response-content-type", "a/b").send().expect(200);
    assert_eq!(typed.header("content-type"), "a/b");
    assert!(ask().query("partNumber", "1").send().expect(206).body == body);
    ask().header("if-match", "\"other\"").send().refused(412, "PreconditionFailed");
    ask().header("if-none-match", &etag).send().expect(304);
}

/// A request that is called again as it is meant is called for whoever signed it.
#[test]
fn a_range_that_is_ignored_lets_nobody_in() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    s3.put("/bkt/open", "value").header("x-amz-acl", "public-read").send().expect(200);
    let range = |ask: Request| ask.header("range", "bytes=5-3");
    let wrong = Client { secret: "wrong".to_owned(), ..s3.clone() };
    for signing in [Signing::Header, Signing::Query(60)] {
        let ask = range(wrong.get("/bkt/k")).signing(signing).send();
        ask.refused(403, "SignatureDoesNotMatch");
    }
    range(s3.get("/bkt/k")).signing(Signing::None).send().refused(403, "AccessDenied");
    let open = range(s3.get("/bkt/open")).signing(Signing::None).send().expect(200);
    assert_eq!(open.body, b"value");
    range(s3.get("/bkt/none")).send().refused(404, "NoSuchKey");
    range(s3.get("/none/none")).send().refused(404, "NoSuchBucket");
    let late = range(s3.get("/bkt/k")).signing(Signing::Query(1)).skew(-10).send();
    late.refused(403, "AccessDenied");
}
