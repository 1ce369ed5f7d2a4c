//! Credentials, presigned URLs, hosts that are buckets, other origins, several gateways.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use crate::client::{Client, Signing};
use crate::server::{ACCESS, SECRET, Server, until};

pub(crate) fn added(server: &Server, words: &[&str]) -> Client {
    let out = server.command(&[&["s3", "keys", "add"], words, &["--json"]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let key: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let text = |name: &str| key[name].as_str().unwrap().to_owned();
    Client::new(&server.s3, &text("access_key"), &text("secret_key"))
}

#[test]
fn a_gateway_without_keys_says_how_to_make_one() {
    let server = Server::with(&[]);
    let stranger = Client::new(&server.s3, ACCESS, SECRET);
    let told = until("the volume is open", || {
        let answer = stranger.get("/").send();
        (answer.status != 503).then_some(answer)
    });
    assert!(
        told.refused(403, "InvalidAccessKeyId").tag("Message").contains("millpond s3 keys add")
    );
    let anonymous = stranger.get("/").signing(Signing::None).send();
    assert!(anonymous.refused(403, "AccessDenied").tag("Message").contains("millpond s3 keys add"));
    let first = added(&server, &["first"]);
    first.put("/bkt", "").send().expect(200);
    let known = stranger.get("/").send().refused(403, "InvalidAccessKeyId");
    assert!(!known.tag("Message").contains("millpond"));
}

#[test]
fn keys_are_made_limited_and_removed() {
    let server = Server::start();
    let root = server.client();
    root.bucket("one");
    root.bucket("two");
    root.object("/two/k", "v");
    let key = added(&server, &["limited", "--bucket", "one"]);
    assert_eq!(key.get("/").send().expect(200).tags("Name"), ["one"]);
    key.put("/one/k", "v").send().expect(200);
    key.get("/two/k").send().refused(403, "AccessDenied");
    key.put("/three", "").send().refused(403, "AccessDenied");
    let copy = key.put("/one/c", "").header("x-amz-copy-source", "/two/k").send();
    copy.refused(403, "AccessDenied");
    let again = server.command(&["s3", "keys", "add", "limited"]);
    assert!(!again.status.success());
    let list = server.command(&["s3", "keys", "list"]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("limited") && list.contains(&key.access) && !list.contains(&key.secret));
    assert!(server.command(&["s3", "keys", "rm", "limited"]).status.success());
    assert_eq!(server.command(&["s3", "keys", "rm", "limited"]).status.code(), Some(3));
    let removed = std::time::Instant::now();
    until("the key is gone", || key.get("/").send().is(403).then_some(()));
    assert!(removed.elapsed().as_millis() < 1_500, "{:?}", removed.elapsed());
    root.get("/one/k").send().expect(200);
}

#[test]
fn a_presigned_url_works_until_it_expires() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let put = s3.put("/bkt/k ä", "value").signing(Signing::Query(60));
    put.send().expect(200);
    let get = |valid| s3.get("/bkt/k ä").signing(Signing::Query(valid));
    assert_eq!(get(60).send().expect(200).body, b"value");
    let shown = get(60).query("response-content-disposition", "attachment; filename=x").send();
    assert_eq!(shown.expect(200).header("content-disposition"), "attachment; filename=x");
    get(60).skew(-120).send().refused(403, "AccessDenied");
    get(600).skew(-120).send().expect(200);
    get(60).skew(7_200).send().refused(403, "RequestTimeTooSkewed");
    let other = Client { secret: "another secret".to_owned(), ..s3.clone() };
    let forged = other.get("/bkt/k ä").signing(Signing::Query(60)).send();
    forged.refused(403, "SignatureDoesNotMatch");
    s3.get("/bkt/k ä").signing(Signing::None).send().refused(403, "AccessDenied");
    // Who is given a URL does what was signed, and nothing else.
    s3.object("/bkt/secret", "secret");
    let put = || s3.put("/bkt/given", "").signing(Signing::Query(60));
    for (name, value) in [
        ("x-amz-copy-source", "/bkt/secret"),
        ("x-amz-acl", "public-read"),
        ("x-amz-tagging", "a=b"),
    ] {
        put().unsigned(name, value).send().refused(403, "AccessDenied");
        s3.get("/bkt/given").send().refused(404, "NoSuchKey");
    }
    put().header("x-amz-copy-source", "/bkt/secret").send().expect(200);
    assert_eq!(s3.bytes("/bkt/given"), b"secret");
    let both = put().unsigned("authorization", "AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-acl");
    both.unsigned("x-amz-acl", "public-read").send().refused(400, "InvalidArgument");
}

/// SDKs put headers into the query of a URL that they sign.
#[test]
fn what_is_signed_in_the_query_counts_as_a_header() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/source", "source");
    let put = |path: &str, body: &str| s3.put(path, body).signing(Signing::Query(60));
    put("/bkt/k", "value")
        .query("x-amz-meta-colour", "deep blue")
        .query("x-amz-tagging", "a=b")
        .query("x-amz-acl", "public-read")
        .query("x-amz-checksum-crc32", "HXdYNA==")
        .query("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        .query("x-id", "PutObject")
        .send()
        .expect(200);
    let there = s3.head("/bkt/k").send().expect(200);
    assert_eq!(there.header("x-amz-meta-colour"), "deep blue");
    assert_eq!(s3.get("/bkt/k").query("tagging", "").send().expect(200).tags("Value"), ["b"]);
    s3.get("/bkt/k").signing(Signing::None).send().expect(200);
    let shown =
        s3.get("/bkt/k").signing(Signing::Query(60)).query("x-amz-checksum-mode", "ENABLED");
    assert_eq!(shown.send().expect(200).header("x-amz-checksum-crc32"), "HXdYNA==");
    // A copy is one, and no empty object.
    put("/bkt/copy", "").query("x-amz-copy-source", "/bkt/source").send().expect(200);
    assert_eq!(s3.bytes("/bkt/copy"), b"source");
    let wrong = put("/bkt/wrong", "value").query("x-amz-checksum-crc32", "AAAAAB==").send();
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    // What the SDK of JavaScript signs into each, whose bytes it does not know.
    let of_nothing = put("/bkt/sdk", "value").query("x-amz-checksum-crc32", "AAAAAA==");
    of_nothing.query("x-amz-sdk-checksum-algorithm", "CRC32").send().expect(200);
    assert_eq!(s3.bytes("/bkt/sdk"), b"value");
    for (name, value) in [
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-checksum-md7", "x"),
        ("x-amz-grant-write", "id=1"),
    ] {
        let told = put("/bkt/refused", "value").query(name, value).send();
        let told = told.refused(501, "NotImplemented");
        assert!(told.tag("Message").contains(&name[..12]), "{}", told.text());
    }
    // By a header's signature, or by none, a query says nothing of the kind.
    for signing in [Signing::Header, Signing::None] {
        let told = s3.put("/bkt/refused", "value").signing(signing).query("x-amz-acl", "private");
        let told = told.send().refused(501, "NotImplemented");
        assert!(told.tag("Message").contains("x-amz-acl"), "{}", told.text());
    }
    let token = put("/bkt/refused", "value").query("X-Amz-Security-Token", "bogus").send();
    token.refused(400, "InvalidToken");
    let token = s3.put("/bkt/refused", "value").header("x-amz-security-token", "bogus").send();
    token.refused(400, "InvalidToken");
    let over = s3.get("/bkt/k").signing(Signing::Query(0)).send();
    over.refused(403, "AccessDenied");
    let gone = s3.get("/bkt/refused").send().refused(404, "NoSuchKey");
    assert_eq!(gone.tag("Key"), "refused");
}

#[test]
fn probes_for_minio_are_answered() {
    let server = Server::start();
    let s3 = server.client();
    for what in ["live", "ready", "cluster", "cluster/read"] {
        let path = format!("/minio/health/{what}");
        s3.get(&path).signing(Signing::None).send().expect(200);
        s3.head(&path).signing(Signing::None).send().expect(200);
    }
    s3.get("/minio/health/else").signing(Signing::None).send().refused(404, "NoSuchBucket");
    s3.get("/minio/health/live").send().refused(404, "NoSuchBucket");
}

#[test]
fn a_bucket_may_be_a_host() {
    let flags = ["--s3-access-key", ACCESS, "--s3-secret-key", SECRET, "--s3-domain", "s3.test"];
    let server = Server::with(&flags);
    let s3 = server.client();
    s3.put("/", "").header("host", "photos.s3.test:9000").send().expect(200);
    let put = s3.put("/a/b", "value").header("host", "photos.s3.test:9000");
    put.send().expect(200);
    assert_eq!(s3.bytes("/photos/a/b"), b"value");
    let listed = s3.get("/").header("host", "photos.s3.test").send().expect(200);
    assert_eq!(listed.tags("Key"), ["a/b"]);
    let all = s3.get("/").header("host", "s3.test").send().expect(200);
    assert_eq!(all.tags("Name"), ["photos"]);
}

#[test]
fn other_origins_are_let_in_by_rule() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "v");
    let ask = |origin: &str, method: &str| {
        let ask = s3.ask("OPTIONS", "/bkt/k").signing(Signing::None).header("origin", origin);
        ask.header("access-control-request-method", method).send()
    };
    let unset = ask("https://a.test", "GET").refused(403, "AccessForbidden");
    assert!(unset.tag("Message").contains("CORS is not enabled for this bucket"));
    let rules = "<CORSConfiguration><CORSRule><AllowedOrigin>https://*.test</AllowedOrigin>\
                 <AllowedMethod>GET</AllowedMethod><ExposeHeader>etag</ExposeHeader>\
                 <MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>";
    s3.put("/bkt", rules).query("cors", "").send().expect(200);
    assert_eq!(s3.get("/bkt").query("cors", "").send().expect(200).tag("AllowedMethod"), "GET");
    let allowed = ask("https://a.test", "GET").expect(200);
    assert_eq!(allowed.header("access-control-allow-origin"), "https://a.test");
    assert_eq!(allowed.header("access-control-max-age"), "60");
    ask("https://a.test", "PUT").refused(403, "AccessForbidden");
    ask("https://a.other", "GET").refused(403, "AccessForbidden");
    let nobody = s3.ask("OPTIONS", "/bkt/k").signing(Signing::None);
    nobody.header("access-control-request-method", "GET").send().refused(400, "BadRequest");
    let got = s3.get("/bkt/k").header("origin", "https://a.test").send().expect(200);
    assert_eq!(got.header("access-control-allow-origin"), "https://a.test");
    assert_eq!(got.header("access-control-expose-headers"), "etag");
    s3.delete("/bkt").query("cors", "").send().expect(204);
    s3.get("/bkt").query("cors", "").send().refused(404, "NoSuchCORSConfiguration");
}

#[test]
fn requests_are_counted_and_logged() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", vec![1; 1_000]);
    s3.bytes("/bkt/k");
    s3.get("/bkt/none").send().expect(404);
    let scrape = Client::new(&server.http, "", "");
    let page = scrape.get("/metrics").signing(Signing::None).send().expect(200).text();
    let value = |series: &str| {
        let line = page.lines().find(|line| line.starts_with(series));
        line.unwrap_or_else(|| panic!("no {series}")).rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(value("millpond_s3_request_seconds_count{operation=\"GetObject\"}"), "2");
    assert_eq!(value("millpond_s3_requests_refused_total{operation=\"GetObject\"}"), "1");
    assert_eq!(value("millpond_s3_send_bytes_total"), "1000");
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let families = page.lines().filter_map(|it| it.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<&str> = families
        .filter(|it| it.starts_with("millpond_s3_") && !docs.contains(&format!("| `{it}`")))
        .collect();
    assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
    until("the log has the requests", || {
        server.log().contains("operation=\"PutObject\"").then_some(())
    });
    assert!(server.folder().exists() && !server.log().contains(SECRET));
}

#[test]
fn any_number_of_gateways_serve_one_volume() {
    let server = Server::start();
    let one = server.client();
    one.bucket("shared");
    let key = added(&server, &["both"]);
    let gateway = server.gateway();
    let other = Client { address: gateway.s3.clone(), ..key };
    until("its volume is open", || other.get("/").send().is(200).then_some(()));
    one.object("/shared/one", "1");
    assert_eq!(other.bytes("/shared/one"), b"1");
    other.object("/shared/two", vec![2; 300_000]);
    assert_eq!(one.bytes("/shared/two"), vec![2; 300_000]);
    // An upload that was begun at one is completed at the other.
    let id = one.post("/shared/k", "").query("uploads", "").send().expect(200).tag("UploadId");
    let part = other.put("/shared/k", "p").query("partNumber", "1").query("uploadId", &id).send();
    let etag = part.expect(200).header("etag");
    drop(gateway);
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    one.post("/shared/k", body).query("uploadId", &id).send().expect(200);
    assert_eq!(one.bytes("/shared/k"), b"p");
}

#[test]
fn clients_may_speak_tls() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = ["--s3-tls-cert", cert.to_str().unwrap(), "--s3-tls-key", key.to_str().unwrap()];
    let server = Server::with(&tls);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = std::net::TcpStream::connect(&server.s3).unwrap();
    let mut tls = rustls::Stream::new(&mut session, &mut stream);
    tls.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = Vec::new();
    let _ = tls.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.starts_with("HTTP/1.1 403") || text.starts_with("HTTP/1.1 503"), "{text}");
}
