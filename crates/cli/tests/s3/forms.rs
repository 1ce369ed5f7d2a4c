//! Uploads by HTML forms, as browsers send them.

use crate::client::{Answer, Client, Signing};
use crate::server::Server;
use crate::sign;

const BOUNDARY: &str = "boundary-of-a-form";

fn base64(bytes: &[u8]) -> String {
    let signs: Vec<u8> =
        (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"+/").collect();
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for place in 0..4 {
            let sign = char::from(signs[(word >> (18 - 6 * place)) as usize & 63]);
            text.push(if place <= three.len() { sign } else { '=' });
        }
    }
    text
}

/// Names and values.
type Fields<'a> = &'a [(&'a str, &'a str)];

/// A form with these fields beside those of the signature; all of them are in its policy, and `more` conditions.
fn send(s3: &Client, fields: &[(&str, &str)], more: &str, file: &[u8]) -> Answer {
    send_as(s3, (fields, fields), more, file)
}

/// The same with a policy about other values.
fn send_as(
    s3: &Client,
    (fields, told): (Fields<'_>, Fields<'_>),
    more: &str,
    file: &[u8],
) -> Answer {
    let date = sign::now(0);
    let credential = format!("{}/{}", s3.access, sign::scope(&date));
    let signing = [
        ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        ("x-amz-credential", credential.as_str()),
        ("x-amz-date", date.as_str()),
    ];
    let all: Vec<_> = fields.iter().chain(&signing).copied().collect();
    let conditions = told
        .iter()
        .chain(&signing)
        .map(|(name, value)| format!("[\"eq\", \"${name}\", \"{value}\"],"));
    let conditions = conditions.collect::<Vec<_>>().concat();
    let policy = format!(
        "{{\"expiration\": \"2099-01-01T00:00:00.000Z\", \"conditions\": [{conditions}{more} {{\"bucket\": \"bkt\"}}]}}"
    );
    let policy = base64(policy.as_bytes());
    let signature = sign::policy(&s3.secret, &date, &policy);
    let last = [("policy", policy.as_str()), ("x-amz-signature", signature.as_str())];
    post(s3, &all.iter().chain(&last).copied().collect::<Vec<_>>(), file)
}

fn post(s3: &Client, fields: &[(&str, &str)], file: &[u8]) -> Answer {
    let part = |name: &str, value: &str| {
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        )
    };
    let mut body: Vec<u8> =
        fields.iter().flat_map(|(name, value)| part(name, value).into_bytes()).collect();
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\n\
         Content-Type: text/plain\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    s3.post("/bkt", body).signing(Signing::None).header("content-type", &kind).send()
}

#[test]
fn a_form_stores_an_object() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for len in [0, 10, 300_000, 9 << 20] {
        let file: Vec<u8> = (0..=250).cycle().take(len).collect();
        let fields = [("key", "form/k"), ("content-type", "text/x-form"), ("x-amz-meta-a", "b c")];
        send(&s3, &fields, "", &file).expect(204);
        let got = s3.get("/bkt/form/k").send().expect(200);
        assert!(got.body == file, "{len} bytes");
        assert_eq!(got.header("content-type"), "text/x-form");
        assert_eq!(got.header("x-amz-meta-a"), "b c");
    }
    let told = send(&s3, &[("key", "k"), ("success_action_status", "201")], "", b"file");
    let told = told.expect(201);
    assert_eq!((told.tag("Bucket").as_str(), told.tag("Key").as_str()), ("bkt", "k"));
    let to = "http://localhost/done";
    let sent = send(&s3, &[("key", "k"), ("success_action_redirect", to)], "", b"file").expect(303);
    assert!(sent.header("location").starts_with("http://localhost/done?bucket=bkt&key=k&etag="));
    send(&s3, &[("key", "k"), ("acl", "private")], "", b"file").expect(204);
}

/// The answer tells what is stored, and where.
#[test]
fn the_answer_to_a_form_is_that_of_aws() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let key = ("key", "a b/${filename}");
    let signed = |more: &[(&str, &str)]| {
        let of = |key: (&'static str, &'static str)| [&[key], more].concat();
        send_as(&s3, (&of(key), &of(("key", "a b/f.txt"))), "", b"file")
    };
    let etag = "\"8c7dd922ad47494fc02c388e12c00eac\"";
    let place = format!("http://{}/bkt/a%20b/f.txt", s3.address);
    for (wanted, status) in [("", 204), ("200", 200), ("201", 201), ("204", 204), ("404", 204)] {
        let asked = [("success_action_status", wanted)];
        let told = signed(if wanted.is_empty() { &[] } else { &asked }).expect(status);
        assert_eq!((told.header("etag").as_str(), told.header("location")), (etag, place.clone()));
        assert_eq!(told.body.is_empty(), status != 201, "{}", told.text());
        if status == 201 {
            assert_eq!(told.header("content-type"), "application/xml");
            let tags = ["Location", "Bucket", "Key", "ETag"].map(|it| told.tag(it));
            assert_eq!(tags, [&place, "bkt", "a b/f.txt", &etag.replace('"', "&quot;")]);
        }
        assert_eq!(s3.head("/bkt/a b/f.txt").send().expect(200).header("etag"), etag);
    }
    // The browser is sent on, if that can be.
    let query = format!("bucket=bkt&key=a%20b%2Ff.txt&etag={}", etag.replace('"', "%22"));
    for (field, to, wanted) in [
        ("success_action_redirect", "http://x/done", "http://x/done?"),
        ("success_action_redirect", "https://x/done?n=1", "https://x/done?n=1&"),
        ("redirect", "http://x/", "http://x/?"),
    ] {
        let told = signed(&[(field, to), ("success_action_status", "201")]).expect(303);
        assert_eq!(told.header("location"), format!("{wanted}{query}"));
        assert_eq!(told.header("etag"), etag);
    }
    for to in ["nowhere", "http://a b/"] {
        s3.delete("/bkt/a b/f.txt").send().expect(204);
        let told = signed(&[("success_action_redirect", to), ("success_action_status", "200")]);
        assert_eq!(told.expect(200).header("location"), place, "{to}");
        assert_eq!(s3.bytes("/bkt/a b/f.txt"), b"file");
    }
    let cold = [("key", "cold"), ("x-amz-storage-class", "GLACIER_IR")];
    send(&s3, &cold, "", b"file").expect(204);
    let head = s3.head("/bkt/cold").send().expect(200);
    assert_eq!(head.header("x-amz-storage-class"), "GLACIER_IR");
}

#[test]
fn a_form_keeps_to_its_policy() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let key = [("key", "k")];
    send(&s3, &key, "[\"starts-with\", \"$key\", \"user/\"],", b"x").refused(403, "AccessDenied");
    send(&s3, &key, "[\"content-length-range\", 0, 3],", b"four").refused(400, "EntityTooLarge");
    send(&s3, &key, "[\"content-length-range\", 9, 99],", b"four").refused(400, "EntityTooSmall");
    send(&s3, &key, "{\"bucket\": \"other\"},", b"x").refused(403, "AccessDenied");
    post(&s3, &key, b"x").refused(403, "AccessDenied");
    let wrong = Client { secret: "wrong".to_owned(), ..s3.clone() };
    send(&wrong, &key, "", b"x").refused(403, "SignatureDoesNotMatch");
    // Fields that would be passed over.
    for (name, value) in [
        ("acl", "public-ready"),
        ("tagging", "<Tagging>"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-storage-class", "COLD"),
    ] {
        let refused = send(&s3, &[("key", "k"), (name, value)], "", b"x");
        assert!(refused.is(501) || refused.is(400), "{name}: {}", refused.text());
    }
    // A field that needs no condition is no way around them.
    let inner = "form-data; name=\"acl\"\r\n\r\npublic-read\r\n";
    let smuggled = [("key", "k"), ("acl", "private"), ("submit", inner)];
    send_as(&s3, (&smuggled, &smuggled[..2]), "", b"x").expect(204);
    s3.get("/bkt/k").signing(Signing::None).send().refused(403, "AccessDenied");
    s3.delete("/bkt/k").send().expect(204);
    let twice = [("key", "k"), ("acl", "private"), ("acl", "public-read")];
    send(&s3, &twice, "", b"x").refused(400, "InvalidArgument");
    let scope = format!("{}/20260131/us-east-1/ec2/aws4_request", s3.access);
    let other = [("key", "k"), ("policy", "e30="), ("x-amz-signature", "s")];
    let other = [&other[..], &[("x-amz-credential", &*scope)]].concat();
    post(&s3, &other, b"x").refused(400, "AuthorizationQueryParametersError");
    let wrong_sum = [("key", "k"), ("x-amz-checksum-crc32", "AAAAAA==")];
    send(&s3, &wrong_sum, "", b"x").refused(400, "BadDigest");
    assert!(s3.get("/bkt").send().expect(200).tags("Key").is_empty());
    let long = vec![b'x'; 33 << 20];
    send(&s3, &key, "", &long).refused(400, "EntityTooLarge");
}

#[test]
fn a_form_names_its_object_and_says_who_may_read_it() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag></TagSet></Tagging>";
    // The policy is about the name that comes of it.
    let fields = [("acl", "public-read"), ("tagging", tags)];
    let signed = |key: &'static str, told: &'static str| {
        let all = |key| [&[("key", key)], &fields[..]].concat();
        send_as(&s3, (&all(key), &all(told)), "", b"bytes")
    };
    signed("user/${filename}", "user/f.txt").expect(204);
    signed("user/${filename}", "user/${filename}").refused(403, "AccessDenied");
    let got = s3.get("/bkt/user/f.txt").signing(Signing::None).send().expect(200);
    assert_eq!(got.body, b"bytes");
    let told = s3.get("/bkt/user/f.txt").query("tagging", "").send().expect(200);
    assert_eq!((told.tag("Key"), told.tag("Value")), ("a".to_owned(), "b c".to_owned()));
    // Without a key of anybody, where the bucket lets everybody write.
    post(&s3, &[("key", "anybodys")], b"x").refused(403, "AccessDenied");
    let open = s3.put("/bkt", "").query("acl", "").header("x-amz-acl", "public-read-write");
    open.send().expect(200);
    post(&s3, &[("key", "anybodys")], b"x").expect(204);
    post(&s3, &[("key", "anybodys"), ("policy", "e30=")], b"x").refused(400, "InvalidArgument");
    assert_eq!(s3.bytes("/bkt/anybodys"), b"x");
}
