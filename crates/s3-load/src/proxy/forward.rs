//! Requests of one connection: the fate of each, and the connection to the backend.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use millpond_env::RealClock;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::body::{Answer, Cut, Passed, Upload};
use super::faults::Active;
use super::{Counts, Fate, Faults, Shared};

/// The path that reads and sets the faults.
const CONTROL: &str = "/_faults";
/// Bytes of a request that sets faults, at most.
const CONTROL_MAX: usize = 64 << 10;
/// Headers that apply to one connection only.
const HOP: [HeaderName; 2] = [CONNECTION, HeaderName::from_static("keep-alive")];

/// The state that the requests of a client's connection share.
pub(super) struct Forward {
    shared: Arc<Shared>,
    backend: Mutex<Option<SendRequest<Upload>>>,
    /// Flag: close the client's connection with a reset.
    reset: Arc<AtomicBool>,
}

impl Forward {
    pub(super) fn new(shared: Arc<Shared>, reset: Arc<AtomicBool>) -> Self {
        Self { shared, backend: Mutex::new(None), reset }
    }

    fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Answers a request; an error ends the connection with a reset.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Result<Response<Answer>, Cut> {
        if request.uri().path() == CONTROL {
            return Ok(self.control(request).await);
        }
        self.counts().requests.add(1);
        let mut changes = self.shared.faults.subscribe();
        tokio::select! {
            biased;
            // `shared` holds the sender, so this fails only when the proxy ends.
            _ = changes.wait_for(|active| active.faults.outage) => {
                self.counts().outage_resets.add(1);
                Err(Cut)
            }
            answer = self.meet(request) => answer,
        }
    }

    async fn meet(&self, request: Request<Incoming>) -> Result<Response<Answer>, Cut> {
        let active = Arc::clone(&self.shared.faults.borrow());
        if !active.faults.meets(request.method().as_str(), request.uri().path()) {
            return self.pass(request, Fate::Pass).await;
        }
        let Some(number) = active.admit(RealClock::tick()) else {
            self.counts().slowed.add(1);
            self.drain(request.into_body()).await?;
            let message = "Please reduce your request rate.";
            return Ok(failure(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message));
        };
        let (fate, wait) = active.faults.decide(number);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        match fate {
            Fate::Pass | Fate::CommitReset | Fate::Cut | Fate::Flip => {
                self.pass(request, fate).await
            }
            Fate::Error => {
                self.counts().errors.add(1);
                self.drain(request.into_body()).await?;
                let message = "We encountered an internal error. Please try again.";
                Ok(failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message))
            }
            Fate::Reset => {
                self.counts().resets.add(1);
                Err(Cut)
            }
            Fate::Hang => {
                self.counts().hangs.add(1);
                self.changed(&active).await;
                Err(Cut)
            }
        }
    }

    /// Returns once the faults are set again.
    async fn changed(&self, active: &Arc<Active>) {
        let mut changes = self.shared.faults.subscribe();
        let _ = changes.wait_for(|now| !Arc::ptr_eq(now, active)).await;
    }

    /// Forwards a request, and returns the answer, half of it, or nothing.
    async fn pass(&self, request: Request<Incoming>, fate: Fate) -> Result<Response<Answer>, Cut> {
        let Ok(answer) = self.send(request, fate == Fate::Flip).await else {
            self.counts().backend_failures.add(1);
            return Err(Cut);
        };
        let (mut parts, mut body) = answer.into_parts();
        strip(&mut parts.headers);
        let (shared, reset) = (Arc::clone(&self.shared), Arc::clone(&self.reset));
        let body = match fate {
            Fate::CommitReset => {
                // The work is done after the last byte of the answer, whatever its status.
                while let Some(Ok(_)) = body.frame().await {}
                self.counts().commit_resets.add(1);
                return Err(Cut);
            }
            Fate::Cut if !hyper::body::Body::is_end_stream(&body) => {
                Passed::half(body, shared, reset)
            }
            Fate::Flip => Passed::flipped(body, shared, reset),
            _ => Passed::whole(body, shared, reset),
        };
        self.counts().forwarded.add(1);
        Ok(Response::from_parts(parts, Answer::Passed(body)))
    }

    async fn send(
        &self,
        request: Request<Incoming>,
        flips: bool,
    ) -> std::io::Result<Response<Incoming>> {
        let (mut parts, body) = request.into_parts();
        strip(&mut parts.headers);
        parts.version = Version::HTTP_11;
        if let Some(path) = parts.uri.path_and_query() {
            parts.uri = Uri::from(path.clone());
        }
        let mut request =
            Request::from_parts(parts, Upload::new(body, Arc::clone(&self.shared), flips));
        // Requests of a connection come one by one: nothing else waits for this lock.
        let mut slot = self.backend.lock().await;
        let mut kept = slot.take();
        loop {
            let is_new = kept.is_none();
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            if connection.ready().await.is_err() && !is_new {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(answer) => {
                    *slot = Some(connection);
                    return Ok(answer);
                }
                // The backend ended an idle connection; this request was not sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(std::io::Error::other(error.into_error())),
                },
            }
        }
    }

    async fn connect(&self) -> std::io::Result<SendRequest<Upload>> {
        let stream = TcpStream::connect(self.shared.backend).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        self.counts().backend_connections.add(1);
        tokio::spawn(async move {
            // The request in flight receives the error.
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Reads a body and drops it, so that the client then reads the answer.
    async fn drain(&self, mut body: Incoming) -> Result<(), Cut> {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Cut)?;
            self.counts().bytes_up.add(frame.data_ref().map_or(0, |bytes| bytes.len() as u64));
        }
        Ok(())
    }

    async fn control(&self, request: Request<Incoming>) -> Response<Answer> {
        match *request.method() {
            Method::GET => {}
            Method::PUT => {
                if let Err(why) = self.set(request.into_body()).await {
                    return page(StatusCode::BAD_REQUEST, "text/plain", why + "\n");
                }
            }
            _ => {
                return page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET, PUT\n".to_owned());
            }
        }
        let faults = self.shared.faults.borrow().faults.clone();
        let report = json!({ "faults": faults, "counts": self.counts().report() });
        page(StatusCode::OK, "application/json", format!("{report:#}\n"))
    }

    async fn set(&self, body: Incoming) -> Result<(), String> {
        let text = Limited::new(body, CONTROL_MAX).collect().await;
        let text = text.map_err(|error| error.to_string())?.to_bytes();
        let faults: Faults = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        self.shared.faults.send_replace(Arc::new(Active::new(faults)?));
        Ok(())
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in &HOP {
        headers.remove(name);
    }
}

/// An error in the format of S3.
fn failure(status: StatusCode, code: &str, message: &str) -> Response<Answer> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
         <Message>{message}</Message><RequestId>FAULTPROXY</RequestId></Error>"
    );
    page(status, "application/xml", text)
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response<Answer> {
    let mut response = Response::new(Answer::Own(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
    response
}
