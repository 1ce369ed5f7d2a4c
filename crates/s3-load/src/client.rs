//! One connection to an endpoint: one request at a time, like a thread of a program.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use millpond_env::{RealClock, lookup_host};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use crate::LoadError;
use crate::content::{Checker, Content, Seen, Torn};
use crate::sign::{Credentials, Signer, ToSign, UNSIGNED, amz_date, encode_path, hex, sha256_hex};
use crate::skim::Skim;

/// Bytes of a body that are generated at a time.
const PIECE: usize = 128 << 10;
/// Bytes read or sent at once at most: they stay in a core's cache until they are compared.
const BUFFER_MAX: usize = 128 << 10;
/// Bytes of an error's XML that are read; the code comes first.
const ERROR_MAX: usize = 64 << 10;

/// Address of the server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    host: String,
    address: SocketAddr,
}

impl Endpoint {
    /// Reads `http://host:port`.
    ///
    /// # Errors
    /// [`LoadError::Endpoint`].
    pub fn parse(text: &str) -> Result<Self, LoadError> {
        let refused =
            |why: &str| LoadError::Endpoint { endpoint: text.to_owned(), why: why.to_owned() };
        let host =
            text.strip_prefix("http://").ok_or_else(|| refused("does not start with http://"))?;
        let host = host.trim_end_matches('/');
        let addresses = lookup_host(host).map_err(|error| refused(&error.to_string()))?;
        let address = addresses.into_iter().next().ok_or_else(|| refused("has no address"))?;
        Ok(Self { host: host.to_owned(), address })
    }
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The S3 code, or one of `connect`, `connection`, `timeout`, `truncated` and `HTTP 123`.
    pub code: String,
    /// Whether the change may have been made, or may still be made.
    pub doubt: bool,
    /// Whether a complete answer was read: the connection can serve the next request.
    is_answer: bool,
}

impl Failure {
    /// A failure of the connection.
    fn new(code: &str, doubt: bool) -> Self {
        Self { code: code.to_owned(), doubt, is_answer: false }
    }
}

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The credentials that sign requests.
    pub credentials: Credentials,
    /// The bucket.
    pub bucket: String,
    /// Whether the hash of the content is signed.
    pub sign_payload: bool,
    /// Timeout of a request.
    pub timeout: Duration,
}

/// One connection, opened on first use.
pub struct Client {
    endpoint: Endpoint,
    options: ClientOptions,
    signer: Signer,
    connection: Option<SendRequest<Upload>>,
    /// A separate connection for answers that are only counted.
    skim: Option<Skim>,
}

impl Client {
    /// A client of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint, options: ClientOptions) -> Self {
        let signer = Signer::new(options.credentials.clone());
        Self { endpoint, options, signer, connection: None, skim: None }
    }

    /// Creates the bucket; an existing bucket is fine.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn make_bucket(&mut self) -> Result<(), Failure> {
        let path = format!("/{}", self.options.bucket);
        let made = self.change("PUT", &path, None).await;
        match made {
            Err(failure)
                if ["BucketAlreadyOwnedByYou", "BucketAlreadyExists"]
                    .contains(&failure.code.as_str()) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Puts an object.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn put(&mut self, key: &str, content: Content) -> Result<(), Failure> {
        let path = self.path_of(key);
        self.change("PUT", &path, Some(content)).await
    }

    /// Deletes an object; an absent object is fine.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn delete(&mut self, key: &str) -> Result<(), Failure> {
        let path = self.path_of(key);
        match self.change("DELETE", &path, None).await {
            Err(failure) if failure.code == "NoSuchKey" => Ok(()),
            other => other,
        }
    }

    /// Reads an object to its end and returns the write that it shows; `None` when there is no
    /// object.
    ///
    /// # Errors
    /// [`Failure`]: there is no answer that can be judged.
    pub async fn get(&mut self, key: &str) -> Result<Result<Option<Seen>, Torn>, Failure> {
        let path = self.path_of(key);
        let timeout = self.options.timeout;
        let read = async {
            let answer = self.call("GET", &path, None).await?;
            match answer.status() {
                StatusCode::OK => read_checked(key, answer).await,
                _ => Err(failure_of(answer).await),
            }
        };
        let answer = tokio::time::timeout(timeout, read).await;
        match self.settled(answer) {
            Err(failure) if failure.code == "NoSuchKey" => Ok(Ok(None)),
            other => other,
        }
    }

    /// Reads an object and counts its bytes without comparing them. Returns `None` for an answer
    /// that cannot be counted; [`Self::get`] then finds the reason.
    ///
    /// # Errors
    /// [`Failure`]: there is no answer.
    pub async fn skim(&mut self, key: &str) -> Result<Option<u64>, Failure> {
        let path = self.path_of(key);
        let mut request = format!("GET {path} HTTP/1.1\r\n");
        for (name, value) in self.headers("GET", &path, None) {
            request.extend([name, ": ", &value, "\r\n"]);
        }
        request.push_str("\r\n");
        let timeout = self.options.timeout;
        let taken = tokio::time::timeout(timeout, async {
            let mut skim = match self.skim.take() {
                Some(skim) => skim,
                None => Skim::connect(self.endpoint.address)
                    .await
                    .map_err(|_| Failure::new("connect", false))?,
            };
            let len = skim.get(request.as_bytes()).await;
            if matches!(len, Ok(Some(_))) {
                self.skim = Some(skim);
            }
            len.map_err(|_| Failure::new("connection", false))
        });
        taken.await.unwrap_or_else(|_| Err(Failure::new("timeout", false)))
    }

    /// Sends a request that changes something and discards the body of the answer.
    async fn change(
        &mut self,
        method: &'static str,
        path: &str,
        content: Option<Content>,
    ) -> Result<(), Failure> {
        let timeout = self.options.timeout;
        let answer = tokio::time::timeout(timeout, async {
            let answer = self.call(method, path, content).await?;
            if !answer.status().is_success() {
                return Err(failure_of(answer).await);
            }
            // The connection can be reused once the body has been read.
            let read = Limited::new(answer.into_body(), ERROR_MAX).collect().await;
            read.map(drop).map_err(|_| Failure::new("truncated", true))
        });
        let answer = answer.await;
        self.settled(answer)
    }

    /// Drops the connection if an answer may still come or was not read to its end.
    fn settled<T>(
        &mut self,
        answer: Result<Result<T, Failure>, tokio::time::error::Elapsed>,
    ) -> Result<T, Failure> {
        let answer = answer.unwrap_or_else(|_| Err(Failure::new("timeout", true)));
        if answer.as_ref().is_err_and(|failure| !failure.is_answer) {
            self.connection = None;
        }
        answer
    }

    fn path_of(&self, key: &str) -> String {
        format!("/{}/{}", self.options.bucket, encode_path(key))
    }

    /// The headers of a request, including its signature.
    fn headers(
        &mut self,
        method: &str,
        path: &str,
        content: Option<Content>,
    ) -> [(&'static str, String); 4] {
        let payload = match content {
            _ if !self.options.sign_payload => UNSIGNED.to_owned(),
            Some(content) => payload_hash(content),
            None => sha256_hex(b""),
        };
        let time = amz_date(RealClock::wall_ms());
        let headers = [
            ("host", self.endpoint.host.as_str()),
            ("x-amz-content-sha256", payload.as_str()),
            ("x-amz-date", time.as_str()),
        ];
        let to_sign =
            ToSign { method, path, query: "", headers: &headers, payload: &payload, time: &time };
        let authorization = self.signer.authorization(&to_sign);
        let [host, hash, date] = headers.map(|(name, value)| (name, value.to_owned()));
        [host, hash, date, ("authorization", authorization)]
    }

    /// Sends a request and returns the head of the answer.
    async fn call(
        &mut self,
        method: &'static str,
        path: &str,
        content: Option<Content>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in self.headers(method, path, content) {
            request = request.header(name, value);
        }
        let request = request
            .body(Upload { content, sent: 0 })
            .map_err(|_| Failure::new("request", false))?;
        let connection = self.connected().await.map_err(|_| Failure::new("connect", false))?;
        connection.send_request(request).await.map_err(|_| Failure::new("connection", true))
    }

    async fn connected(&mut self) -> std::io::Result<&mut SendRequest<Upload>> {
        // A connection that the server has closed in the meantime fails here.
        let usable = match self.connection.take() {
            Some(mut connection) => connection.ready().await.is_ok().then_some(connection),
            None => None,
        };
        let connection = match usable {
            Some(connection) => connection,
            None => connect(self.endpoint.address).await?,
        };
        Ok(self.connection.insert(connection))
    }
}

/// Opens a connection; the task that drives it ends with it.
async fn connect(address: SocketAddr) -> std::io::Result<SendRequest<Upload>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let made = Builder::new().max_buf_size(BUFFER_MAX).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(std::io::Error::other)?;
    tokio::spawn(async move {
        // The request in flight receives the error.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn read_checked(
    key: &str,
    mut answer: Response<Incoming>,
) -> Result<Result<Option<Seen>, Torn>, Failure> {
    let mut checker = Checker::new(key);
    while let Some(frame) = answer.frame().await {
        let frame = frame.map_err(|_| Failure::new("truncated", false))?;
        if let Some(bytes) = frame.data_ref() {
            checker.feed(bytes);
        }
    }
    Ok(checker.finish().map(Some))
}

/// The failure that an error answer describes in its XML.
async fn failure_of(answer: Response<Incoming>) -> Failure {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ERROR_MAX).collect().await;
    let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
    let is_answer = text.is_ok();
    let code = text.ok().as_deref().and_then(code_in).unwrap_or_else(|| match status {
        StatusCode::NOT_FOUND => "NoSuchKey".to_owned(),
        status => format!("HTTP {}", status.as_u16()),
    });
    // Among server errors, only throttling means that nothing was done.
    let doubt = !(status.is_client_error() || code == "SlowDown");
    Failure { code, doubt, is_answer }
}

/// The code in the XML of an S3 error.
fn code_in(xml: &str) -> Option<String> {
    let (_, rest) = xml.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_plain = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_plain.then(|| code.to_owned())
}

fn payload_hash(content: Content) -> String {
    let mut hash = Sha256::new();
    let mut upload = Upload { content: Some(content), sent: 0 };
    while let Some(piece) = upload.next_piece() {
        hash.update(&piece);
    }
    hex(&hash.finalize())
}

/// A body that is generated while it is sent.
struct Upload {
    content: Option<Content>,
    sent: u64,
}

impl Upload {
    fn left(&self) -> u64 {
        self.content.map_or(0, |content| content.size() - self.sent)
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        let content = self.content?;
        let len = usize::try_from(self.left()).map_or(PIECE, |left| left.min(PIECE));
        if len == 0 {
            return None;
        }
        let mut piece = vec![0; len];
        content.fill(self.sent, &mut piece);
        self.sent += len as u64;
        Some(Bytes::from(piece))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next_piece().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, code_in};

    #[test]
    fn codes_are_taken_from_the_xml_of_errors_only() {
        let xml = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>x</Message></Error>";
        assert_eq!(code_in(xml).as_deref(), Some("SlowDown"));
        assert_eq!(code_in("<Code></Code>"), None);
        assert_eq!(code_in("<Code>a b</Code>"), None);
        assert_eq!(code_in("<html>bad gateway</html>"), None);
    }

    #[test]
    fn endpoints_are_http_with_a_host() {
        assert_eq!(Endpoint::parse("http://127.0.0.1:9000/").unwrap().host, "127.0.0.1:9000");
        for bad in ["127.0.0.1:9000", "https://127.0.0.1:9000", "http://", "http://127.0.0.1:x"] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
