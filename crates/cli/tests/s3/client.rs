//! A client that says exactly what a test wants it to.

use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::sign::{self, Signed, hex, names, query_text, scope, sha256, signature};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(3);

/// Who asks whom.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) access: String,
    pub(crate) secret: String,
}

/// How a request is signed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Signing {
    Header,
    /// In the query, valid for so many seconds.
    Query(u64),
    None,
}

/// A request under way.
pub(crate) struct Request {
    client: Client,
    method: String,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    unsigned: Vec<(String, String)>,
    body: Vec<u8>,
    payload: Option<String>,
    signing: Signing,
    skew: i64,
    /// Bytes of the body that are sent, if not all.
    cut: Option<usize>,
    has_length: bool,
    /// Sent as the body's chunks, of so many bytes, signed each.
    chunks: Option<usize>,
    /// A byte of the body that is another one on the way.
    tampered: Option<usize>,
}

/// A request that is on its way: what of its body was not sent yet.
pub(crate) struct Begun(TcpStream, Vec<u8>);

impl Begun {
    /// Sends the rest and reads the answer.
    pub(crate) fn end(mut self) -> Answer {
        self.0.write_all(&self.1).unwrap();
        Unread(self.0).read()
    }
}

/// An answer that nobody has read.
pub(crate) struct Unread(TcpStream);

impl Unread {
    /// Reads it.
    pub(crate) fn read(mut self) -> Answer {
        self.try_read().unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// Reads it, if it comes whole.
    pub(crate) fn try_read(&mut self) -> std::io::Result<Answer> {
        Answer::read(&mut self.0, false)
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(address: &str, access: &str, secret: &str) -> Self {
        let [address, access, secret] = [address, access, secret].map(str::to_owned);
        Self { address, access, secret }
    }

    /// A request of a path that is not encoded.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Request {
        Request {
            client: self.clone(),
            method: method.to_owned(),
            path: sign::encoded(path, true),
            query: Vec::new(),
            headers: Vec::new(),
            unsigned: Vec::new(),
            body: Vec::new(),
            payload: None,
            signing: Signing::Header,
            skew: 0,
            cut: None,
            has_length: true,
            chunks: None,
            tampered: None,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Request {
        self.ask("GET", path)
    }

    pub(crate) fn head(&self, path: &str) -> Request {
        self.ask("HEAD", path)
    }

    pub(crate) fn delete(&self, path: &str) -> Request {
        self.ask("DELETE", path)
    }

    pub(crate) fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Request {
        self.ask("POST", path).body(body)
    }

    pub(crate) fn put(&self, path: &str, body: impl Into<Vec<u8>>) -> Request {
        self.ask("PUT", path).body(body)
    }

    /// Makes a bucket.
    pub(crate) fn bucket(&self, name: &str) {
        self.put(&format!("/{name}"), "").send().expect(200);
    }

    /// Stores an object and returns its `ETag`.
    pub(crate) fn object(&self, path: &str, body: impl Into<Vec<u8>>) -> String {
        self.put(path, body).send().expect(200).header("etag")
    }

    /// The body of an object.
    pub(crate) fn bytes(&self, path: &str) -> Vec<u8> {
        self.get(path).send().expect(200).body
    }
}

impl Request {
    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        self
    }

    /// A header that the signature does not cover.
    pub(crate) fn unsigned(mut self, name: &str, value: &str) -> Self {
        self.unsigned.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn payload(mut self, payload: &str) -> Self {
        self.payload = Some(payload.to_owned());
        self
    }

    pub(crate) const fn signing(mut self, signing: Signing) -> Self {
        self.signing = signing;
        self
    }

    pub(crate) const fn skew(mut self, seconds: i64) -> Self {
        self.skew = seconds;
        self
    }

    pub(crate) const fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    /// Says nothing of the length of its body, which it has none of.
    pub(crate) const fn without_length(mut self) -> Self {
        self.has_length = false;
        self
    }

    pub(crate) const fn chunks(mut self, bytes: usize) -> Self {
        self.chunks = Some(bytes);
        self
    }

    pub(crate) const fn tamper(mut self, at: usize) -> Self {
        self.tampered = Some(at);
        self
    }

    /// Sends it and reads the answer.
    pub(crate) fn send(self) -> Answer {
        self.try_send(PATIENCE).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// The same of a server that may die: an error when no whole answer comes. `ConnectionRefused`: nothing was sent.
    pub(crate) fn try_send(self, patience: Duration) -> std::io::Result<Answer> {
        let is_head = self.method == "HEAD";
        let (cut, tampered) = (self.cut, self.tampered);
        let (head, mut body) = self.written();
        if let Some(at) = tampered {
            body[at] ^= 1;
        }
        let mut stream = TcpStream::connect(head.0)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        stream.write_all(head.1.as_bytes()).map_err(begun)?;
        // A server that has refused it already may have closed its side.
        let _ = stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())]);
        if cut.is_some() {
            let _ = stream.shutdown(Shutdown::Write);
        }
        Answer::read(&mut stream, is_head).map_err(begun)
    }

    /// Sends it whole, and leaves the answer to be read later.
    pub(crate) fn unread(self) -> Unread {
        let Begun(mut stream, rest) = self.begun(0);
        stream.write_all(&rest).unwrap();
        Unread(stream)
    }

    /// Sends so many bytes of its body.
    pub(crate) fn begun(self, bytes: usize) -> Begun {
        let (head, mut body) = self.written();
        let rest = body.split_off(bytes);
        let mut stream = TcpStream::connect(head.0).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(head.1.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        Begun(stream, rest)
    }

    /// The request's head, where it goes, and its body.
    fn written(mut self) -> ((String, String), Vec<u8>) {
        let date = sign::now(self.skew);
        let Client { address, access, secret } = self.client.clone();
        let mut signed = vec![("host".to_owned(), address.clone())];
        if let Some(host) = self.headers.iter().position(|(name, _)| name == "host") {
            signed[0] = self.headers.remove(host);
        }
        signed.append(&mut self.headers);
        let mut payload = self.payload.clone().unwrap_or_else(|| hex(&sha256(&self.body)));
        if self.chunks.is_some() {
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".clone_into(&mut payload);
            let len = self.body.len().to_string();
            signed.push(("x-amz-decoded-content-length".to_owned(), len));
        }
        match self.signing {
            Signing::Header => {
                signed.push(("x-amz-date".to_owned(), date.clone()));
                signed.push(("x-amz-content-sha256".to_owned(), payload.clone()));
            }
            Signing::Query(valid) => {
                "UNSIGNED-PAYLOAD".clone_into(&mut payload);
                let scope = format!("{access}/{}", scope(&date));
                self.query.extend(presigned((scope, &date, valid), names(&signed)));
            }
            Signing::None => {}
        }
        let signature = signature(
            &Signed {
                method: &self.method,
                path: &self.path,
                query: &self.query,
                headers: &signed,
                payload: &payload,
                date: &date,
            },
            &secret,
        );
        let mut lines = signed.clone();
        lines.append(&mut self.unsigned);
        match self.signing {
            Signing::Header => {
                let value = format!(
                    "AWS4-HMAC-SHA256 Credential={access}/{}, SignedHeaders={}, Signature={signature}",
                    scope(&date),
                    names(&signed)
                );
                lines.push(("authorization".to_owned(), value));
            }
            Signing::Query(_) => {
                self.query.push(("X-Amz-Signature".to_owned(), signature.clone()));
            }
            Signing::None => {}
        }
        let body = match self.chunks {
            Some(len) => chunked(&self.body, len, (&secret, &date, signature)),
            None => self.body,
        };
        let is_told =
            lines.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding");
        if !is_told && self.has_length {
            lines.push(("content-length".to_owned(), body.len().to_string()));
        }
        let query = query_text(&self.query);
        let query = if query.is_empty() { query } else { format!("?{query}") };
        let lines = lines.iter().map(|(k, v)| format!("{k}: {v}\r\n"));
        let lines = lines.collect::<Vec<_>>().concat();
        let head = format!(
            "{} {}{query} HTTP/1.1\r\n{lines}connection: close\r\n\r\n",
            self.method, self.path
        );
        ((address, head), body)
    }
}

/// What a presigned URL has before its signature.
fn presigned(
    (credential, date, valid): (String, &str, u64),
    signed: String,
) -> impl Iterator<Item = (String, String)> {
    let pairs = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
        ("X-Amz-Credential", credential),
        ("X-Amz-Date", date.to_owned()),
        ("X-Amz-Expires", valid.to_string()),
        ("X-Amz-SignedHeaders", signed),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value))
}

fn chunked(body: &[u8], len: usize, (secret, date, seed): (&str, &str, String)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = seed;
    for bytes in body.chunks(len).chain([&[][..]]) {
        before = sign::chunk(secret, date, (&before, bytes));
        out.extend(format!("{:x};chunk-signature={before}\r\n", bytes.len()).into_bytes());
        out.extend_from_slice(bytes);
        out.extend(b"\r\n");
    }
    out
}

impl Answer {
    fn read(stream: &mut TcpStream, is_head: bool) -> std::io::Result<Self> {
        let mut all = Vec::new();
        let failed = stream.read_to_end(&mut all).err();
        Self::parsed(&all, is_head).ok_or_else(|| {
            let head = String::from_utf8_lossy(&all[..all.len().min(1_000)]).into_owned();
            failed.unwrap_or_else(|| Error::new(ErrorKind::UnexpectedEof, head))
        })
    }

    /// None unless it is whole.
    fn parsed(all: &[u8], is_head: bool) -> Option<Self> {
        let end = all.windows(4).position(|it| it == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&all[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        let headers: Vec<_> = lines.map(header).collect();
        let mut body = all[end + 4..].to_vec();
        if headers.iter().any(|(k, v)| k == "transfer-encoding" && v == "chunked") {
            body = plain(&body)?;
        } else if let Some((_, len)) = headers.iter().find(|(name, _)| name == "content-length")
            && !is_head
            && body.len() != len.parse::<usize>().ok()?
        {
            return None;
        }
        Some(Self { status, headers, body })
    }

    pub(crate) const fn is(&self, status: u16) -> bool {
        self.status == status
    }

    /// Panics with what came when the status is another.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?}\n{}", self.headers, self.text());
        self
    }

    /// Panics unless it is this error, with a message and the request's id.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Self {
        let answer = self.expect(status);
        assert_eq!(answer.tag("Code"), code, "{}", answer.text());
        assert!(!answer.tag("Message").is_empty(), "{}", answer.text());
        assert_eq!(answer.tag("RequestId"), answer.header("x-amz-request-id"));
        answer
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header, empty if it is not there.
    pub(crate) fn header(&self, name: &str) -> String {
        let found = self.headers.iter().find(|(it, _)| it == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// The texts of all elements of a name.
    pub(crate) fn tags(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let text = self.text();
        let parts = text.split(&open).skip(1);
        parts.map(|it| it.split(&close).next().unwrap_or_default().to_owned()).collect()
    }

    /// The text of the first.
    pub(crate) fn tag(&self, name: &str) -> String {
        self.tags(name).into_iter().next().unwrap_or_default()
    }
}

/// What was sent in chunks; none if it was not sent to its end.
fn plain(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let end = chunks.windows(2).position(|it| it == b"\r\n")?;
        let len = usize::from_str_radix(std::str::from_utf8(&chunks[..end]).ok()?, 16).ok()?;
        if len == 0 {
            return Some(out);
        }
        out.extend_from_slice(chunks.get(end + 2..end + 2 + len)?);
        chunks = chunks.get(end + 4 + len..)?;
    }
}

/// An error behind the first byte that was sent: nobody may take it for one of a request that was not.
fn begun(error: Error) -> Error {
    Error::other(error)
}
