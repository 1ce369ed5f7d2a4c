//! Objects: what is kept with them, copies, tags, removal.

use crate::server::Server;

#[test]
fn what_is_put_comes_back_with_its_headers() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for len in [0, 1, 10_000, 65_536, 65_537, 5_000_000] {
        let body: Vec<u8> = (0..len).map(|n: u32| (n * 7 % 251) as u8).collect();
        let path = format!("/bkt/of-{len}");
        let put = s3
            .put(&path, body.clone())
            .header("content-type", "text/x-test")
            .header("cache-control", "max-age=7")
            .header("content-disposition", "attachment")
            .header("content-encoding", "identity")
            .header("content-language", "de")
            .header("expires", "Thu, 01 Dec 2033 16:00:00 GMT")
            .header("x-amz-meta-colour", "blue")
            .header("x-amz-tagging", "one=1&two=zwei%20")
            .send()
            .expect(200);
        let got = s3.get(&path).send().expect(200);
        assert_eq!(got.body, body);
        for (name, value) in [
            ("content-type", "text/x-test"),
            ("cache-control", "max-age=7"),
            ("content-disposition", "attachment"),
            ("content-encoding", "identity"),
            ("content-language", "de"),
            ("expires", "Thu, 01 Dec 2033 16:00:00 GMT"),
            ("x-amz-meta-colour", "blue"),
            ("x-amz-tagging-count", "2"),
            ("accept-ranges", "bytes"),
            ("content-length", &len.to_string()),
        ] {
            assert_eq!(got.header(name), value, "{name} of {len}");
        }
        assert_eq!(got.header("etag"), put.header("etag"));
        let head = s3.head(&path).send().expect(200);
        assert_eq!(head.header("content-length"), len.to_string());
        assert_eq!(head.header("etag"), put.header("etag"));
        assert_eq!(head.header("x-amz-meta-colour"), "blue");
        let changed = s3.get(&path).query("response-content-type", "a/b").send().expect(200);
        assert_eq!(changed.header("content-type"), "a/b");
    }
    assert_eq!(s3.object("/bkt/empty", ""), "\"d41d8cd98f00b204e9800998ecf8427e\"");
    let plain = s3.get("/bkt/empty").send();
    assert_eq!(plain.header("content-type"), "binary/octet-stream");
    let large = "m".repeat(2_100);
    let refused = s3.put("/bkt/meta", "").header("x-amz-meta-large", &large).send();
    refused.refused(400, "MetadataTooLarge");
    s3.get("/bkt/none").send().refused(404, "NoSuchKey");
    s3.head("/bkt/none").send().expect(404);
    s3.get("/none/none").send().refused(404, "NoSuchBucket");
    s3.put("/none/none", "").send().refused(404, "NoSuchBucket");
}

#[test]
fn keys_that_are_no_paths_come_back() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("keys");
    let long = "x".repeat(1_024);
    let deep = ["d"; 500].join("/");
    let keys = [
        "a",
        "a/",
        "a//",
        "a/b",
        "./x",
        "../x",
        "..",
        ".",
        "/lead",
        "tail/",
        "ü n i",
        "a\\b",
        ".%self",
        ".%empty",
        "q?x=1&y#z",
        "100%",
        "new\u{7f}line",
        &long,
        &deep,
    ];
    for key in keys {
        s3.object(&format!("/keys/{key}"), key);
    }
    for key in keys {
        assert_eq!(s3.bytes(&format!("/keys/{key}")), key.as_bytes(), "{key}");
    }
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let listed = s3.get("/keys").query("list-type", "2").query("encoding-type", "url").send();
    assert_eq!(listed.tags("Key").len(), sorted.len());
    s3.put(&format!("/keys/{long}x"), "").send().refused(400, "KeyTooLongError");
    let nul = "/keys/a\0b";
    for ask in [s3.put(nul, ""), s3.get(nul), s3.delete(nul)] {
        ask.send().refused(400, "InvalidArgument");
    }
    for key in keys {
        s3.delete(&format!("/keys/{key}")).send().expect(204);
    }
    assert!(s3.get("/keys").send().tags("Key").is_empty());
    s3.delete("/keys").send().expect(204);
}

#[test]
fn a_copy_takes_what_it_is_told_to() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("from");
    s3.bucket("dest");
    for len in [5, 300_000] {
        let body = vec![b'c'; len];
        let put = s3.put("/from/k ä", body.clone()).header("x-amz-meta-a", "1");
        let etag = put.header("content-type", "t/one").send().expect(200).header("etag");
        let source = "/from/k%20%C3%A4";
        let copy = s3.put("/dest/plain", "").header("x-amz-copy-source", source).send().expect(200);
        assert_eq!(copy.tag("ETag").replace("&quot;", "\""), etag);
        let got = s3.get("/dest/plain").send().expect(200);
        assert_eq!(got.body, body);
        assert_eq!(
            (got.header("x-amz-meta-a"), got.header("content-type")),
            ("1".to_owned(), "t/one".to_owned())
        );
        let replaced = s3.put("/dest/new", "").header("x-amz-copy-source", source);
        let replaced = replaced.header("x-amz-metadata-directive", "REPLACE");
        replaced.header("x-amz-meta-b", "2").header("content-type", "t/two").send().expect(200);
        let got = s3.head("/dest/new").send().expect(200);
        assert_eq!(got.header("x-amz-meta-a"), "");
        assert_eq!(
            (got.header("x-amz-meta-b"), got.header("content-type")),
            ("2".to_owned(), "t/two".to_owned())
        );
        let onto = |it: crate::client::Request| it.header("x-amz-copy-source", "/dest/new").send();
        onto(s3.put("/dest/new", "")).refused(400, "InvalidRequest");
        let again = s3.put("/dest/new", "").header("x-amz-metadata-directive", "REPLACE");
        onto(again.header("x-amz-meta-c", "3")).expect(200);
        assert_eq!(s3.head("/dest/new").send().header("x-amz-meta-c"), "3");
        assert_eq!(s3.bytes("/dest/new"), body);
        let with = |name: &str, value: &str| {
            s3.put("/dest/if", "").header("x-amz-copy-source", source).header(name, value).send()
        };
        with("x-amz-copy-source-if-match", &etag).expect(200);
        with("x-amz-copy-source-if-match", "\"no\"").refused(412, "PreconditionFailed");
        with("x-amz-copy-source-if-none-match", &etag).refused(412, "PreconditionFailed");
        with("x-amz-copy-source-if-modified-since", "Thu, 01 Dec 2033 16:00:00 GMT").expect(412);
        with("x-amz-copy-source-if-unmodified-since", "Thu, 01 Dec 1994 16:00:00 GMT").expect(412);
    }
    let missing = s3.put("/dest/x", "").header("x-amz-copy-source", "/from/missing").send();
    missing.refused(404, "NoSuchKey");
    let bucket = s3.put("/dest/x", "").header("x-amz-copy-source", "/missing/missing").send();
    bucket.refused(404, "NoSuchBucket");
}

#[test]
fn tags_are_set_and_removed() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let etag = s3.object("/bkt/k", "v");
    let set = |tags: &[(&str, &str)]| {
        let tags = tags.iter().map(|(k, v)| format!("<Tag><Key>{k}</Key><Value>{v}</Value></Tag>"));
        let body = format!("<Tagging><TagSet>{}</TagSet></Tagging>", tags.collect::<String>());
        s3.put("/bkt/k", body).query("tagging", "").send()
    };
    set(&[("a", "1"), ("b", "")]).expect(200);
    let got = s3.get("/bkt/k").query("tagging", "").send().expect(200);
    assert_eq!(got.tags("Key"), ["a", "b"]);
    assert_eq!(s3.get("/bkt/k").send().header("x-amz-tagging-count"), "2");
    set(&[("a", "1"), ("a", "2")]).refused(400, "InvalidTag");
    set(&[(&"k".repeat(129), "")]).refused(400, "InvalidTag");
    set(&[("k", &"v".repeat(257))]).refused(400, "InvalidTag");
    for (key, value) in [("aws:k", "v"), ("a#b", "v"), ("k", "{}"), ("k", "a\tb"), ("k", "a|b")] {
        set(&[(key, value)]).refused(400, "InvalidTag");
    }
    set(&[("a", "1 +-=._:/@"), ("b", "äöü 漢")]).expect(200);
    let many: Vec<String> = (0..11).map(|n| format!("k{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|k| (k.as_str(), "v")).collect();
    set(&many).refused(400, "InvalidTag");
    assert_eq!(s3.get("/bkt/k").query("tagging", "").send().tags("Key"), ["a", "b"]);
    s3.delete("/bkt/k").query("tagging", "").send().expect(204);
    assert!(s3.get("/bkt/k").query("tagging", "").send().expect(200).tags("Key").is_empty());
    assert_eq!(
        (s3.head("/bkt/k").send().header("etag"), s3.bytes("/bkt/k")),
        (etag, b"v".to_vec())
    );
    s3.get("/bkt/none").query("tagging", "").send().refused(404, "NoSuchKey");
}

#[test]
fn many_objects_are_removed_at_once() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let keys: Vec<String> = (0..25).map(|n| format!("d/{n}")).collect();
    for key in &keys {
        s3.object(&format!("/bkt/{key}"), "v");
    }
    let ask = |keys: &[String], quiet: bool| {
        let keys = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>"));
        let keys = keys.collect::<Vec<_>>().concat();
        let body = format!("<Delete>{keys}<Quiet>{quiet}</Quiet></Delete>");
        s3.post("/bkt", body).query("delete", "").send()
    };
    let gone = ask(&keys[..20], false).expect(200);
    assert_eq!(gone.tags("Deleted").len(), 20);
    assert_eq!(s3.get("/bkt").send().tags("Key").len(), 5);
    let quiet = ask(&keys, true).expect(200);
    assert!(quiet.tags("Deleted").is_empty() && quiet.tags("Error").is_empty());
    assert!(s3.get("/bkt").send().tags("Key").is_empty());
    ask(&[], false).refused(400, "MalformedXML");
    let too_many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    ask(&too_many, false).refused(400, "MalformedXML");
    s3.delete("/bkt/none").send().expect(204);
}
