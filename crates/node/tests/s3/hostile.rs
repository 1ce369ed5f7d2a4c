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
