//! Uploads in parts.

use crate::client::{Answer, Client};
use crate::server::Server;

const MIB: usize = 1 << 20;

pub(crate) fn begin(s3: &Client, path: &str) -> String {
    let begun = s3.post(path, "").query("uploads", "").header("x-amz-meta-of", "parts");
    begun.send().expect(200).tag("UploadId")
}

pub(crate) fn part(s3: &Client, (path, id): (&str, &str), number: usize, body: Vec<u8>) -> Answer {
    let put = s3.put(path, body).query("partNumber", &number.to_string());
    put.query("uploadId", id).send()
}

pub(crate) fn complete(s3: &Client, (path, id): (&str, &str), parts: &[(usize, String)]) -> Answer {
    let parts = parts
        .iter()
        .map(|(n, etag)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>"));
    let parts = parts.collect::<Vec<_>>().concat();
    let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    s3.post(path, body).query("uploadId", id).send()
}

#[test]
fn parts_become_an_object() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let id = begin(&s3, "/bkt/k");
    let at = ("/bkt/k", id.as_str());
    let bodies = [vec![b'1'; 5 * MIB], vec![b'2'; 5 * MIB + 3], vec![b'3'; 7]];
    let mut etags = Vec::new();
    // Out of order, and one of them twice.
    part(&s3, at, 2, vec![b'x'; 100]).expect(200);
    for number in [3, 1, 2] {
        let etag = part(&s3, at, number, bodies[number - 1].clone()).expect(200).header("etag");
        etags.push((number, etag));
    }
    etags.sort();
    s3.get("/bkt/k").send().refused(404, "NoSuchKey");
    let listed = s3.get("/bkt/k").query("uploadId", &id).send().expect(200);
    assert_eq!(listed.tags("PartNumber"), ["1", "2", "3"]);
    let page = s3.get("/bkt/k").query("uploadId", &id).query("max-parts", "2").send().expect(200);
    assert_eq!(
        (page.tag("IsTruncated"), page.tag("NextPartNumberMarker")),
        ("true".to_owned(), "2".to_owned())
    );
    let rest = s3.get("/bkt/k").query("uploadId", &id).query("part-number-marker", "2").send();
    assert_eq!(rest.tags("PartNumber"), ["3"]);
    let done = complete(&s3, at, &etags).expect(200);
    assert!(done.tag("ETag").trim_end_matches("&quot;").trim_end_matches('"').ends_with("-3"));
    let whole: Vec<u8> = bodies.concat();
    let got = s3.get("/bkt/k").send().expect(200);
    assert!(got.body == whole, "the parts in their order");
    assert_eq!(got.header("x-amz-meta-of"), "parts");
    let second = s3.get("/bkt/k").query("partNumber", "2").send().expect(206);
    assert!(second.body == bodies[1]);
    assert_eq!(second.header("x-amz-mp-parts-count"), "3");
    let range = format!("bytes {}-{}/{}", 5 * MIB, 10 * MIB + 2, whole.len());
    assert_eq!(second.header("content-range"), range);
    s3.get("/bkt/k").query("partNumber", "4").send().refused(416, "InvalidPartNumber");
    // The answer may have been lost: the same completion is answered again.
    assert_eq!(complete(&s3, at, &etags).expect(200).tag("ETag"), done.tag("ETag"));
    part(&s3, at, 1, vec![1]).refused(404, "NoSuchUpload");
}

#[test]
fn what_does_not_fit_is_refused() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let id = begin(&s3, "/bkt/k");
    let at = ("/bkt/k", id.as_str());
    let small = part(&s3, at, 1, vec![1; 100]).expect(200).header("etag");
    let last = part(&s3, at, 2, vec![2; 100]).expect(200).header("etag");
    complete(&s3, at, &[(1, small.clone()), (2, last.clone())]).refused(400, "EntityTooSmall");
    complete(&s3, at, &[(2, last.clone()), (1, small.clone())]).refused(400, "InvalidPartOrder");
    complete(&s3, at, &[(1, last.clone())]).refused(400, "InvalidPart");
    complete(&s3, at, &[(7, last)]).refused(400, "InvalidPart");
    complete(&s3, at, &[]).refused(400, "MalformedXML");
    for number in [0, 10_001] {
        part(&s3, at, number, vec![0]).refused(400, "InvalidArgument");
    }
    part(&s3, ("/bkt/other", &id), 1, vec![0]).refused(404, "NoSuchUpload");
    // No upload has this number, nor was an object that was put completed from it.
    s3.object("/bkt/plain", "value");
    let body = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"e\"</ETag></Part></CompleteMultipartUpload>";
    let done = s3.post("/bkt/plain", body).query("uploadId", "0000000000000000").send();
    done.refused(404, "NoSuchUpload");
    part(&s3, ("/bkt/k", "nonsense"), 1, vec![0]).refused(404, "NoSuchUpload");
    let huge = s3.put("/bkt/k", "").query("partNumber", "1").query("uploadId", &id);
    let huge = huge.payload("UNSIGNED-PAYLOAD").header("content-length", "5368709121").cut(0);
    huge.send().refused(400, "EntityTooLarge");
    complete(&s3, at, &[(1, small)]).expect(200);
    assert_eq!(s3.bytes("/bkt/k"), vec![1; 100]);
}

#[test]
fn uploads_are_listed_and_given_up() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let ids: Vec<String> =
        ["b/1", "a", "b/2", "a"].iter().map(|key| begin(&s3, &format!("/bkt/{key}"))).collect();
    let list = || s3.get("/bkt").query("uploads", "");
    assert_eq!(list().send().expect(200).tags("Key"), ["a", "a", "b/1", "b/2"]);
    let below = list().query("delimiter", "/").send().expect(200);
    assert_eq!((below.tags("Key").len(), below.tags("CommonPrefixes").len()), (2, 1));
    let odd = list().query("encoding-type", "url").query("prefix", "100%").query("delimiter", "%");
    let odd = odd.query("key-marker", "a b").send().expect(200);
    for (name, text) in [("Prefix", "100%25"), ("Delimiter", "%25"), ("KeyMarker", "a%20b")] {
        assert_eq!(odd.tag(name), text);
    }
    let page = list().query("max-uploads", "1").send().expect(200);
    assert_eq!(page.tag("IsTruncated"), "true");
    let next = list().query("key-marker", &page.tag("NextKeyMarker"));
    let next = next.query("upload-id-marker", &page.tag("NextUploadIdMarker")).send().expect(200);
    assert_eq!(next.tags("Key"), ["a", "b/1", "b/2"]);
    part(&s3, ("/bkt/a", &ids[1]), 1, vec![1; 70_000]).expect(200);
    s3.delete("/bkt/a").query("uploadId", &ids[1]).send().expect(204);
    s3.delete("/bkt/a").query("uploadId", &ids[1]).send().refused(404, "NoSuchUpload");
    assert_eq!(list().send().tags("Key"), ["a", "b/1", "b/2"]);
}

#[test]
fn a_part_may_be_copied() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let body: Vec<u8> = (0..=252).cycle().take(6 * MIB).collect();
    s3.object("/bkt/source", body.clone());
    let id = begin(&s3, "/bkt/k");
    let copy = |number: &str, range: Option<&str>| {
        let mut put = s3.put("/bkt/k", "").query("partNumber", number).query("uploadId", &id);
        put = put.header("x-amz-copy-source", "/bkt/source");
        if let Some(range) = range {
            put = put.header("x-amz-copy-source-range", range);
        }
        put.send()
    };
    let etag = |answer: Answer| answer.expect(200).tag("ETag").replace("&quot;", "\"");
    let one = etag(copy("1", None));
    let two = etag(copy("2", Some("bytes=10-19")));
    let beyond = copy("3", Some("bytes=10-6291456")).refused(416, "InvalidRange");
    assert!(beyond.tag("Message").ends_with("of size: 6291456"), "{}", beyond.text());
    for range in ["bytes=9-3", "0-2", "bytes=0", "bytes=a-b", "bytes=0-2,3-5"] {
        copy("3", Some(range)).refused(400, "InvalidArgument");
    }
    complete(&s3, ("/bkt/k", &id), &[(1, one), (2, two)]).expect(200);
    let whole = [&body[..], &body[10..20]].concat();
    assert!(s3.bytes("/bkt/k") == whole);
}

#[test]
fn old_uploads_are_given_up() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[s3]\nupload_expiry = \"2s\"\n").unwrap();
    let flags =
        ["--s3-access-key", crate::server::ACCESS, "--s3-secret-key", crate::server::SECRET];
    let config = config.path().to_str().unwrap();
    let server = Server::with(&[&flags[..], &["--config", config]].concat());
    let s3 = server.client();
    s3.bucket("bkt");
    let id = begin(&s3, "/bkt/k");
    part(&s3, ("/bkt/k", &id), 1, vec![1; 70_000]).expect(200);
    crate::server::until("the upload is given up", || {
        let listed = s3.get("/bkt").query("uploads", "").send().expect(200);
        listed.tags("Upload").is_empty().then_some(())
    });
    part(&s3, ("/bkt/k", &id), 2, vec![1]).refused(404, "NoSuchUpload");
}

#[test]
fn checksums_of_parts_are_told() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let bodies = [vec![b'1'; 5 * MIB], vec![b'2'; 5 * MIB], b"123456789".to_vec()];
    let stored = |path: &str, algorithm: &str, kind: &str| {
        let begun = s3.post(path, "").query("uploads", "");
        let begun = begun.header("x-amz-checksum-algorithm", algorithm);
        let id = begun.header("x-amz-checksum-type", kind).send().expect(200).tag("UploadId");
        let header = format!("x-amz-checksum-{}", algorithm.to_lowercase());
        let put = |number: usize| {
            let answer = part(&s3, (path, &id), number, bodies[number - 1].clone()).expect(200);
            ((number, answer.header("etag")), answer.header(&header))
        };
        let (etags, sums): (Vec<_>, Vec<_>) = (1..=3).map(put).unzip();
        complete(&s3, (path, &id), &etags).expect(200);
        (header, sums)
    };
    for (algorithm, kind) in
        [("SHA256", "COMPOSITE"), ("CRC32", "COMPOSITE"), ("CRC32C", "FULL_OBJECT")]
    {
        let path = format!("/bkt/{algorithm}");
        let (header, sums) = stored(&path, algorithm, kind);
        let ask = s3.get(&path).query("attributes", "");
        let told = ask.header("x-amz-object-attributes", "ObjectParts").send().expect(200);
        assert_eq!(told.tags(&format!("Checksum{algorithm}")), sums);
        for (number, sum) in (1..).zip(&sums) {
            let of = || s3.get(&path).query("partNumber", &number.to_string());
            let got = of().header("x-amz-checksum-mode", "ENABLED").send().expect(206);
            assert_eq!(
                (&got.header(&header), got.header("x-amz-checksum-type")),
                (sum, kind.into())
            );
            assert_eq!(of().send().expect(206).header(&header), "", "only for who asks");
        }
        let whole = s3.head(&path).header("x-amz-checksum-mode", "ENABLED").send().expect(200);
        assert_eq!(whole.header(&header).ends_with("-3"), kind == "COMPOSITE");
    }
    // CRC32 of the check string of the catalogues.
    assert_eq!(stored("/bkt/again", "CRC32", "COMPOSITE").1[2], "y/Q5Jg==");
}

/// Parts of these numbers and lengths, sent in this order; an upload's name, and what the parts are in the order of their numbers.
fn sent(
    s3: &Client,
    path: &str,
    parts: &[(usize, usize)],
) -> (String, Vec<(usize, String)>, Vec<u8>) {
    let id = begin(s3, path);
    let body = |(number, len): (usize, usize)| vec![u8::try_from(number).unwrap(); len];
    let mut etags: Vec<_> = parts
        .iter()
        .map(|it| (it.0, part(s3, (path, &id), it.0, body(*it)).expect(200).header("etag")))
        .collect();
    etags.sort();
    let mut parts = parts.to_vec();
    parts.sort_unstable();
    (id, etags, parts.into_iter().flat_map(body).collect())
}

/// Whether the object is the file that the parts were written to.
#[test]
fn parts_are_copied_only_where_they_have_to_be() {
    let server = Server::start();
    let (s3, volume) = (server.client(), crate::behind::volume(&server));
    s3.bucket("bkt");
    let (short, odd) = (5 * MIB, 5 * MIB + 12_345);
    let file_of = |id: &str| {
        let id = millpond_client::UploadId(u64::from_str_radix(id, 16).unwrap());
        let parts = volume.parts("bkt", id, 0, 1_000).unwrap();
        parts.iter().find(|part| part.place.is_some()).map(|part| part.attr.ino)
    };
    let object = |key: &str| volume.get_object("bkt", key.as_bytes(), false).unwrap().unwrap();
    for (key, is_kept, parts) in [
        ("one", true, &[(1, short)][..]),
        ("in-order", true, &[(1, odd), (2, odd), (3, 7)]),
        ("backwards", true, &[(3, odd), (2, odd), (1, odd)]),
        ("last-first", true, &[(3, 7), (1, odd), (2, odd)]),
        ("nothing-last", true, &[(3, 0), (2, odd), (1, odd)]),
        ("gaps", false, &[(2, short), (7, short), (9, 1)]),
        ("growing", false, &[(1, short), (2, odd)]),
        ("shrinking", false, &[(1, odd), (2, short), (3, short)]),
        ("small", false, &[(1, 100_000)]),
        ("empty", false, &[(1, 0)]),
    ] {
        let path = format!("/bkt/{key}");
        let (id, etags, wanted) = sent(&s3, &path, parts);
        let file = file_of(&id);
        let listed = s3.get(&path).query("uploadId", &id).send().expect(200);
        let mut sizes: Vec<_> = parts.to_vec();
        sizes.sort_unstable();
        let sizes: Vec<String> = sizes.iter().map(|(_, len)| len.to_string()).collect();
        assert_eq!(listed.tags("Size"), sizes, "{key}");
        complete(&s3, (&path, &id), &etags).expect(200);
        assert!(s3.bytes(&path) == wanted, "{key}");
        assert_eq!(Some(object(key).attr.ino) == file, is_kept, "{key}");
        let last = s3.get(&path).query("partNumber", &parts.len().to_string()).send().expect(206);
        assert!(wanted.ends_with(&last.body), "{key}");
    }
    // Parts that are left out, sent again, or broken off.
    let (id, etags, _) = sent(&s3, "/bkt/less", &[(1, short), (2, short), (3, short)]);
    complete(&s3, ("/bkt/less", &id), &etags[..2]).expect(200);
    assert!(s3.bytes("/bkt/less") == [vec![1; short], vec![2; short]].concat());
    let (id, mut etags, _) = sent(&s3, "/bkt/again", &[(1, short), (2, short)]);
    let at = ("/bkt/again", &id[..]);
    etags[0].1 = part(&s3, at, 1, vec![9; short]).expect(200).header("etag");
    let wrong =
        s3.put("/bkt/again", vec![8; short]).header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==");
    let wrong = wrong.query("partNumber", "2").query("uploadId", &id);
    wrong.send().refused(400, "BadDigest");
    complete(&s3, at, &etags).expect(200);
    assert!(s3.bytes("/bkt/again") == [vec![9; short], vec![2; short]].concat());
    // Of other objects.
    let id = begin(&s3, "/bkt/copied");
    let mut etags = Vec::new();
    for (number, range) in [(1, format!("bytes=0-{}", short - 1)), (2, "bytes=0-9".to_owned())] {
        let copy = s3.put("/bkt/copied", "").header("x-amz-copy-source", "/bkt/again");
        let copy = copy.header("x-amz-copy-source-range", &range);
        let copy = copy.query("partNumber", &number.to_string()).query("uploadId", &id);
        etags.push((number, copy.send().expect(200).tag("ETag").replace("&quot;", "\"")));
    }
    let file = file_of(&id);
    complete(&s3, ("/bkt/copied", &id), &etags).expect(200);
    assert!(s3.bytes("/bkt/copied") == [vec![9; short], vec![9; 10]].concat());
    assert_eq!(Some(object("copied").attr.ino), file);
}

/// Of those who send the same part at once the one stays that ends last, whichever began first; in places and in files of their own.
#[test]
fn a_part_is_that_of_who_ends_last() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for len in [8, 5 * MIB] {
        for first_ends_last in [true, false] {
            let id = begin(&s3, "/bkt/k");
            let at = ("/bkt/k", id.as_str());
            let put = |byte: u8| {
                let put = s3.put("/bkt/k", vec![byte; len]).query("partNumber", "1");
                put.query("uploadId", &id).begun(len / 2)
            };
            let etag = |it: Answer| it.expect(200).header("etag");
            let (first, second) = (put(b'1'), put(b'2'));
            let (byte, before, last) = if first_ends_last {
                let before = etag(second.end());
                (b'1', before, etag(first.end()))
            } else {
                let before = etag(first.end());
                (b'2', before, etag(second.end()))
            };
            let listed = s3.get("/bkt/k").query("uploadId", &id).send().expect(200);
            assert_eq!(listed.tag("ETag").replace("&quot;", "\""), last);
            complete(&s3, at, &[(1, before.clone())]).refused(400, "InvalidPart");
            // A list that names a part twice is in no order, as with AWS.
            complete(&s3, at, &[(1, before), (1, last.clone())]).refused(400, "InvalidPartOrder");
            complete(&s3, at, &[(1, last)]).expect(200);
            assert!(s3.bytes("/bkt/k") == vec![byte; len], "{len} {first_ends_last}");
        }
    }
}

#[test]
fn the_first_part_of_what_was_put_whole_is_all_of_it() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let etag = s3.object("/bkt/k", "value");
    for method in ["GET", "HEAD"] {
        let ask = |number: &str| s3.ask(method, "/bkt/k").query("partNumber", number).send();
        let told = ask("1").expect(206);
        assert_eq!(
            (told.header("etag"), told.header("content-length")),
            (etag.clone(), "5".into())
        );
        assert_eq!(told.header("content-range"), "bytes 0-4/5");
        assert_eq!(told.header("x-amz-mp-parts-count"), "", "there are none");
        let none = ask("2").expect(400);
        assert_eq!(none.tag("Code"), if method == "GET" { "InvalidPart" } else { "" });
    }
    let got = s3.get("/bkt/k").query("partNumber", "1").send();
    assert_eq!(got.body, b"value");
}
