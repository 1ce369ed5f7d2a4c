//! Bodies on their way in: checksums, chunks, trailers, and what does not arrive.

use crate::client::Request;
use crate::server::Server;
use crate::sign::hex;

/// Checksums of "123456789" as the catalogues of CRCs have them, and of SHA.
const SUMS: [(&str, &str); 5] = [
    ("crc32", "y/Q5Jg=="),
    ("crc32c", "4waSgw=="),
    ("crc64nvme", "rosUhgp5mIg="),
    ("sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
    ("sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
];
const BODY: &str = "123456789";
const WRONG: [(&str, &str); 2] = [("crc32", "y/Q5Jw=="), ("sha1", "98O8HYCOBHMq32eZZczDTKeuNEA=")];

#[test]
fn checksums_are_compared_and_told() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for (name, value) in SUMS {
        let header = format!("x-amz-checksum-{name}");
        let put = s3.put("/bkt/k", BODY).header(&header, value).send().expect(200);
        assert_eq!(put.header(&header), value);
        let told = s3.get("/bkt/k").header("x-amz-checksum-mode", "ENABLED").send().expect(200);
        assert_eq!(
            (told.header(&header).as_str(), told.header("x-amz-checksum-type").as_str()),
            (value, "FULL_OBJECT")
        );
        assert_eq!(s3.get("/bkt/k").send().header(&header), "", "only who asks is told");
        // One that is only named is computed.
        let named =
            s3.put("/bkt/k", BODY).header("x-amz-sdk-checksum-algorithm", &name.to_uppercase());
        assert_eq!(named.send().expect(200).header(&header), value);
    }
    let attributes = s3.get("/bkt/k").query("attributes", "");
    let attributes =
        attributes.header("x-amz-object-attributes", "ETag,Checksum,ObjectSize").send();
    assert_eq!(attributes.expect(200).tag("ObjectSize"), "9");
    for (name, value) in WRONG {
        let header = format!("x-amz-checksum-{name}");
        s3.put("/bkt/wrong", BODY).header(&header, value).send().refused(400, "BadDigest");
        s3.put("/bkt/wrong", BODY).header(&header, "short").send().refused(400, "BadDigest");
    }
    let two = s3.put("/bkt/wrong", BODY).header("x-amz-checksum-crc32", SUMS[0].1);
    two.header("x-amz-checksum-sha1", SUMS[3].1).send().refused(400, "InvalidRequest");
    let md5 = |value: &str| s3.put("/bkt/md5", BODY).header("content-md5", value).send();
    md5("JfnnlDI7RTiF9RgfG2JNCw==").expect(200);
    md5("JfnnlDI7RTiF9RgfG2JNDA==").refused(400, "BadDigest");
    md5("nonsense").refused(400, "InvalidDigest");
    let large = vec![7; 9 << 20];
    s3.put("/bkt/wrong", large)
        .header("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")
        .send()
        .refused(400, "BadDigest");
    s3.get("/bkt/wrong").send().refused(404, "NoSuchKey");
}

#[test]
fn documents_are_compared_with_their_checksums() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    let keys = "<Delete><Object><Key>k</Key></Object></Delete>";
    let sum_of = |document: &str| {
        let named = s3.put("/bkt/k", document).header("x-amz-sdk-checksum-algorithm", "CRC32C");
        named.send().expect(200).header("x-amz-checksum-crc32c")
    };
    let of = [sum_of(tags), sum_of(keys)];
    let md5 = "JfnnlDI7RTiF9RgfG2JNCw==";
    let sent = |what: usize| match what {
        0 => s3.put("/bkt/k", tags).query("tagging", ""),
        1 => s3.put("/bkt", tags).query("tagging", ""),
        _ => s3.post("/bkt", keys).query("delete", ""),
    };
    for what in 0..3 {
        let [right, wrong] = if what < 2 { [&of[0], &of[1]] } else { [&of[1], &of[0]] };
        let header = "x-amz-checksum-crc32c";
        sent(what).header(header, wrong).send().refused(400, "BadDigest");
        sent(what).header("content-md5", md5).send().refused(400, "BadDigest");
        sent(what).header("content-md5", "none").send().refused(400, "InvalidDigest");
        assert_eq!(s3.bytes("/bkt/k"), keys.as_bytes(), "nothing was done");
        let done = sent(what).header(header, right).send();
        assert!(done.is(200) || done.is(204), "{}", done.text());
    }
    s3.get("/bkt/k").send().refused(404, "NoSuchKey");
}

#[test]
fn what_would_be_passed_over_is_refused() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for name in ["sha512", "md5", "xxhash64", "xxhash3", "xxhash128"] {
        let put = s3.put("/bkt/k", BODY).header(&format!("x-amz-checksum-{name}"), "AAAA");
        put.send().refused(501, "NotImplemented");
    }
    for inner in [
        "<Tags><Tag><Key>k</Key><Value>v</Value></Tag></Tags>",
        "<Bucket><Type>Directory</Type></Bucket>",
    ] {
        let body = format!("<CreateBucketConfiguration>{inner}</CreateBucketConfiguration>");
        s3.put("/new", body.clone()).send().refused(501, "NotImplemented");
        let told = s3.put("/new", body).query("x-id", "CreateBucket").send();
        told.refused(501, "NotImplemented");
    }
    s3.head("/new").send().expect(404);
    // What has no body needs no length.
    s3.put("/new", "").without_length().send().expect(200);
    let md5 = s3.put("/new", "").header("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==");
    md5.send().refused(400, "BadDigest");
    s3.get("/bkt/k").send().refused(404, "NoSuchKey");
}

#[test]
fn a_body_in_signed_chunks_is_one_body() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let body: Vec<u8> = (0..300_000_u32).map(|n| (n % 249) as u8).collect();
    let put = || s3.put("/bkt/k", body.clone()).header("content-encoding", "aws-chunked");
    put().chunks(64 << 10).send().expect(200);
    let got = s3.get("/bkt/k").send().expect(200);
    assert!(got.body == body);
    assert_eq!(got.header("content-encoding"), "");
    // A byte of the second chunk is another.
    let tampered = s3.put("/bkt/bad", body.clone()).chunks(64 << 10).tamper(70_000).send();
    tampered.refused(403, "SignatureDoesNotMatch");
    s3.get("/bkt/bad").send().refused(404, "NoSuchKey");
}

/// A body in one chunk that nobody signed, with a trailer.
fn with_trailer(put: Request, body: &[u8], (name, value): (&str, &str)) -> Request {
    let (line, trailer) =
        (format!("{:x}\r\n", body.len()), format!("\r\n0\r\n{name}:{value}\r\n\r\n"));
    put.body([line.as_bytes(), body, trailer.as_bytes()].concat())
        .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        .header("x-amz-decoded-content-length", &body.len().to_string())
        .header("x-amz-trailer", name)
        .header("content-encoding", "aws-chunked")
}

#[test]
fn a_trailer_is_compared() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for (name, value) in SUMS {
        let header = format!("x-amz-checksum-{name}");
        let put = with_trailer(s3.put("/bkt/k", ""), BODY.as_bytes(), (&header, value));
        let put = put.send().expect(200);
        assert_eq!(put.header(&header), value);
        assert_eq!(s3.bytes("/bkt/k"), BODY.as_bytes());
    }
    for (name, value) in WRONG {
        let header = format!("x-amz-checksum-{name}");
        let put = with_trailer(s3.put("/bkt/wrong", ""), BODY.as_bytes(), (&header, value));
        put.send().refused(400, "BadDigest");
    }
    let unknown = with_trailer(s3.put("/bkt/wrong", ""), BODY.as_bytes(), ("x-amz-other", "1"));
    unknown.send().refused(400, "InvalidRequest");
    s3.get("/bkt/wrong").send().refused(404, "NoSuchKey");
}

/// The SDKs of AWS send bodies so over TLS.
#[test]
fn a_trailer_is_compared_where_the_length_is_told_of_what_is_in_chunks_alone() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let put = |path: &str, sum: (&str, &str)| {
        let (line, rest) =
            (format!("{:x}\r\n", BODY.len()), format!("\r\n0\r\n{}:{}\r\n\r\n", sum.0, sum.1));
        let inner = [&line, BODY, &rest].concat();
        let outer = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
        let put = with_trailer(s3.put(path, ""), BODY.as_bytes(), sum).body(outer);
        put.unsigned("transfer-encoding", "chunked").send()
    };
    let put_right = put("/bkt/k", ("x-amz-checksum-crc32", SUMS[0].1)).expect(200);
    assert_eq!(put_right.header("x-amz-checksum-crc32"), SUMS[0].1);
    assert_eq!(s3.bytes("/bkt/k"), BODY.as_bytes());
    put("/bkt/wrong", ("x-amz-checksum-crc32", WRONG[0].1)).refused(400, "BadDigest");
    let short = s3.put("/bkt/wrong", "1\r\nx\r\n0\r\n\r\n").payload("UNSIGNED-PAYLOAD");
    let short = short.unsigned("transfer-encoding", "chunked").send();
    short.refused(411, "MissingContentLength");
    s3.get("/bkt/wrong").send().refused(404, "NoSuchKey");
}

#[test]
fn a_body_in_one_chunk_is_not_kept_in_memory() {
    let server = Server::start();
    let gateway = server.plain_gateway();
    let s3 = gateway.client();
    s3.bucket("bkt");
    let body: Vec<u8> = (0..64_u32 << 20).map(|n| (n % 249) as u8).collect();
    // What a gateway needs for a body of this length, and what its `ETag` and its checksum are.
    let plain = s3.put("/bkt/plain", body.clone()).payload("UNSIGNED-PAYLOAD");
    let plain = plain.header("x-amz-sdk-checksum-algorithm", "CRC32").send().expect(200);
    let before = gateway.memory_max();
    let sum = plain.header("x-amz-checksum-crc32");
    let put = with_trailer(s3.put("/bkt/k", ""), &body, ("x-amz-checksum-crc32", &sum));
    let put = put.send().expect(200);
    let more = gateway.memory_max() - before;
    assert!(more < 32 << 20, "{} MiB more for one chunk", more >> 20);
    assert_eq!(put.header("etag"), plain.header("etag"));
    assert!(s3.bytes("/bkt/k") == body);
}

#[test]
fn chunks_that_are_wrong_are_refused_by_name() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let signed = |len: usize| {
        let text = format!("{len:x};chunk-signature={}\r\n", "0".repeat(64));
        let put = s3.put("/bkt/k", text).payload("STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
        put.header("x-amz-decoded-content-length", &len.to_string()).send()
    };
    let long = signed((16 << 20) + 1).refused(400, "InvalidRequest");
    assert!(long.tag("Message").contains("16777216 bytes"), "{}", long.text());
    signed(16 << 20).refused(400, "IncompleteBody");
    for (text, code) in [
        ("nonsense\r\n", "InvalidRequest"),
        ("5\r\nhelloo\r\n0\r\n\r\n", "InvalidRequest"),
        ("5;\r\nhello\r\n0\r\n\r\n", "InvalidRequest"),
        ("6\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        ("6\r\nhello", "IncompleteBody"),
        ("5\r\nhello", "IncompleteBody"),
        ("4\r\nhell\r\n0\r\n\r\n", "IncompleteBody"),
        ("5\r\nhello\r\n0\r\n\r\n", "MalformedTrailerError"),
    ] {
        let put = s3.put("/bkt/k", text).payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
        let put = put.header("x-amz-decoded-content-length", "5");
        put.header("x-amz-trailer", "x-amz-checksum-crc32").send().refused(400, code);
    }
    s3.get("/bkt/k").send().refused(404, "NoSuchKey");
}

#[test]
fn documents_do_not_come_in_chunks() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "here");
    let document = b"<Delete><Object><Key>k</Key></Object></Delete>";
    for (path, query) in [("/bkt", "delete"), ("/bkt/k", "uploads")] {
        let post = s3.post(path, "").query(query, "");
        let sent = with_trailer(post, document, ("x-amz-checksum-crc32", "A8uZRQ==")).send();
        sent.refused(501, "NotImplemented");
    }
    assert_eq!(s3.bytes("/bkt/k"), b"here");
}

#[test]
fn what_does_not_arrive_leaves_nothing() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for len in [1_000, 9 << 20] {
        let body = vec![1; len];
        let cut = s3.put("/bkt/cut", body.clone()).payload("UNSIGNED-PAYLOAD").cut(len / 2);
        // The client that broke off may or may not hear of it.
        let answer = std::panic::catch_unwind(|| cut.send());
        assert!(answer.is_err() || answer.unwrap().status == 400);
        let wrong = s3.put("/bkt/cut", body).payload(&hex(&[0; 32])).send();
        wrong.refused(400, "XAmzContentSHA256Mismatch");
    }
    s3.get("/bkt/cut").send().refused(404, "NoSuchKey");
    let endless =
        s3.put("/bkt/cut", "").payload("UNSIGNED-PAYLOAD").header("transfer-encoding", "chunked");
    endless.body("3\r\nabc\r\n0\r\n\r\n").send().refused(411, "MissingContentLength");
    let huge = s3.put("/bkt/cut", "").payload("UNSIGNED-PAYLOAD");
    huge.header("content-length", "5368709121").cut(0).send().refused(400, "EntityTooLarge");
    assert!(s3.get("/bkt").send().tags("Key").is_empty());
}
