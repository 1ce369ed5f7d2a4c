//! Bad input: what is wrong is said as AWS says it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::client::Client;
use crate::server::Server;

#[test]
fn who_signs_wrongly_is_refused() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let wrong = Client { secret: "wrong secret".to_owned(), ..s3.clone() };
    wrong.get("/bkt").send().refused(403, "SignatureDoesNotMatch");
    let unknown = Client { access: "AKIANOBODY".to_owned(), ..s3.clone() };
    unknown.get("/bkt").send().refused(403, "InvalidAccessKeyId");
    let strange = Client { access: "../../../etc".to_owned(), ..s3.clone() };
    assert!(strange.get("/bkt").send().status >= 400);
    for skew in [-1_000, 1_000] {
        s3.get("/bkt").skew(skew).send().refused(403, "RequestTimeTooSkewed");
    }
    s3.get("/bkt").skew(-600).send().expect(200);
    let unsigned = s3.put("/bkt/k", "").unsigned("x-amz-copy-source", "/bkt/other").send();
    unsigned.refused(403, "AccessDenied");
    let old = s3.get("/bkt").signing(crate::client::Signing::None);
    let old = old.header("authorization", "AWS key:signature").send();
    old.refused(400, "InvalidRequest");
    let half = s3.get("/bkt").signing(crate::client::Signing::None);
    let half = half.header("authorization", "AWS4-HMAC-SHA256 foo").send();
    half.refused(400, "AuthorizationHeaderMalformed");
    let skewed = s3.get("/bkt").skew(1_000).send();
    let message = "The difference between the request time and the current time is too large.";
    assert_eq!(skewed.tag("Message"), message);
    s3.ask("PATCH", "/bkt/k").send().refused(405, "MethodNotAllowed");
}

/// One that is answered before its body has come ends its connection, and says so.
#[test]
fn a_body_that_is_not_read_ends_the_connection() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let answer = |request: &str| {
        let mut stream = TcpStream::connect(&server.s3).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut some = [0; 4_096];
        let n = stream.read(&mut some).unwrap();
        String::from_utf8_lossy(&some[..n]).to_ascii_lowercase()
    };
    let put = "PUT /bkt/k HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 7\r\n\r\n";
    let refused = answer(put);
    assert!(
        refused.starts_with("http/1.1 403") && refused.contains("connection: close"),
        "{refused}"
    );
    let get = answer("GET /bkt/k HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(get.starts_with("http/1.1 403") && !get.contains("connection: close"), "{get}");
}

#[test]
fn a_key_with_a_carriage_return_is_told_as_it_is() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/a\rb", "x");
    let list = s3.get("/bkt").query("list-type", "2").send().expect(200);
    assert_eq!(list.tags("Key"), ["a&#13;b"]);
    // An object of the same type stays as it is.
    let put = s3.put("/bkt/xml", "<a>\r\n</a>").header("content-type", "application/xml");
    put.send().expect(200);
    assert_eq!(s3.bytes("/bkt/xml"), b"<a>\r\n</a>");
}

#[test]
fn what_is_malformed_is_refused() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for (query, body) in [("delete", "<Delete><Object>"), ("delete", "nonsense")] {
        s3.post("/bkt", body).query(query, "").send().refused(400, "MalformedXML");
    }
    s3.post("/bkt", "").query("delete", "").send().refused(400, "MissingRequestBodyError");
    for (query, body) in [("tagging", "<Tagging>"), ("cors", "<CORSConfiguration><x/>")] {
        s3.put("/bkt", body).query(query, "").send().refused(400, "MalformedXML");
    }
    let form =
        s3.post("/bkt", "x").header("content-type", "multipart/form-data; boundary=x").send();
    form.refused(400, "MalformedPOSTRequest");
    let version = s3.get("/bkt/k").query("versionId", "abc").send();
    version.refused(501, "NotImplemented");
    // Bytes that are no HTTP, and paths that are no UTF-8: the gateway lives on.
    for bytes in [
        &b"\x16\x03\x01\x00\xff\r\n\r\n"[..],
        b"GET /%ff%fe HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        b"GET /bkt/%00 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        b"PUT /bkt/k HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&server.s3).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
    s3.get("/bkt").send().expect(200);
}
