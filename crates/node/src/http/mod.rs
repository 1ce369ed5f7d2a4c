//! Metrics, health and facts over HTTP, on a thread of its own so that the data path never waits
//! for it.

mod cluster;
mod info;
mod prometheus;
mod pulse;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use millpond_env::{Handle, RealClock, ThreadHandle, thread};
use tokio::sync::{Semaphore, oneshot};

use crate::server::{Scope, StartError, Summary};
use millpond_control::member::Member;
use millpond_replica::local::Service;
use pulse::Pulse;

/// Maximum open HTTP connections: scrapers and probes, not users.
const CONNECTIONS_MAX: usize = 64;
/// Time within which a request must have arrived.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A core that takes longer to answer is not ready.
const PULSE_PATIENCE: Duration = Duration::from_secs(2);

/// State that the pages show.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "it holds a question to the credentials")]
pub struct HttpState {
    serving: AtomicBool,
    opened: OnceLock<(Arc<Service>, Summary)>,
    member: OnceLock<Arc<Member>>,
    gateway: OnceLock<Arc<millpond_s3::Metrics>>,
    pulses: OnceLock<Vec<Arc<Pulse>>>,
    viewers: OnceLock<Box<Viewers>>,
}

/// Checks a credential and returns the namespaces that it may see, if it is known.
pub type Viewers = dyn Fn(&[u8]) -> Option<Rc<Scope>> + Send + Sync;

impl HttpState {
    /// Notes that the disks are open and clients are served.
    pub fn open(&self, service: Arc<Service>, summary: Summary) {
        let _ = self.opened.set((service, summary));
        self.serving.store(true, Ordering::Release);
    }

    /// Sets the check of credentials, which every request runs.
    pub fn ask_viewers(&self, viewers: Box<Viewers>) {
        let _set_once = self.viewers.set(viewers);
    }

    /// Sets the loops to probe for the server's health.
    pub fn watch(&self, service: &Arc<Service>, cores: impl Iterator<Item = Handle>) {
        let pulses = cores.enumerate().map(|(core, handle)| Pulse::new(core, handle, service));
        let _set_once = self.pulses.set(pulses.collect());
    }

    /// Asks every core; returns the reason if one does not answer.
    async fn pulse(&self) -> Option<String> {
        for pulse in self.pulses.get().into_iter().flatten() {
            pulse.ask();
        }
        let end = RealClock::tick().plus(PULSE_PATIENCE);
        for pulse in self.pulses.get().into_iter().flatten() {
            if let Some(why) = pulse.missing(end).await {
                return Some(why);
            }
        }
        None
    }

    /// The reason if the loop of a core is stuck: only a restart helps.
    fn stuck(&self) -> Option<String> {
        let all = self.pulses.get()?;
        for pulse in all {
            pulse.ask();
        }
        all.iter().find_map(|pulse| pulse.stuck())
    }

    /// Scope of a request's sender; none if its credential is unknown.
    fn viewer(&self, request: &Request<hyper::body::Incoming>) -> Option<Viewer> {
        let Some(viewers) = self.viewers.get() else { return Some(Viewer(None)) };
        let given = request.headers().get(hyper::header::AUTHORIZATION);
        // Credentials for others, such as an S3 signature or the password of a proxy, are no
        // tokens.
        let bearer = given.and_then(|text| text.to_str().ok()?.strip_prefix("Bearer "));
        let Some(token) = bearer else { return Some(Viewer(viewers(b""))) };
        viewers(token.trim().as_bytes()).map(|scope| Viewer(Some(scope)))
    }

    /// Notes that the server is part of a cluster.
    pub fn join(&self, member: &Arc<Member>) {
        let _set_once = self.member.set(Arc::clone(member));
    }

    /// Notes that the server is an S3 gateway too.
    pub fn gateway(&self, metrics: Arc<millpond_s3::Metrics>) {
        let _set_once = self.gateway.set(metrics);
    }

    /// Notes that the server is stopping.
    pub fn close(&self) {
        self.serving.store(false, Ordering::Release);
    }

    /// The reason why the server is not ready for traffic; `None` if it is.
    fn not_ready(&self) -> Option<String> {
        let Some((service, _)) = self.opened.get() else {
            return Some("starting: the disks are being opened".to_owned());
        };
        if !self.serving.load(Ordering::Acquire) {
            return Some("stopping".to_owned());
        }
        let disk = service.disks.iter().find(|disk| disk.engine.stats().read_only)?;
        Some(format!(
            "disk {} is read-only because its log could not be written: see the log",
            disk.name
        ))
    }
}

/// Viewer of a page. Names of namespaces are for their owners only: others see sums.
struct Viewer(Option<Rc<Scope>>);

impl Viewer {
    fn sees(&self, namespace: &str) -> bool {
        self.0.as_ref().is_some_and(|scope| scope.allows(namespace))
    }
}

/// The HTTP server.
pub struct HttpServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: ThreadHandle<()>,
}

impl HttpServer {
    /// Starts to answer on `address`; `None` without an address.
    ///
    /// # Errors
    /// [`StartError::Listen`] naming the address and the fix.
    pub fn start(
        address: Option<SocketAddr>,
        state: Arc<HttpState>,
    ) -> Result<Option<Self>, StartError> {
        let Some(address) = address else { return Ok(None) };
        let (stop, stopped) = oneshot::channel();
        let (sender, receiver) = mpsc::channel();
        let thread = thread("millpond-http", move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(run(address, state, sender, stopped)),
                Err(error) => drop(sender.send(Err(error))),
            }
        })?;
        let bound = receiver.recv().map_err(|_| StartError::Core)?;
        let address = bound.map_err(|error| {
            crate::server::listen_error("server.http", "--http", address, &error)
        })?;
        Ok(Some(Self { address, stop, thread }))
    }

    /// The address it answers on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops at once.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

async fn run(
    address: SocketAddr,
    state: Arc<HttpState>,
    bound: mpsc::Sender<std::io::Result<SocketAddr>>,
    stopped: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return drop(bound.send(Err(error))),
    };
    let _ = bound.send(listener.local_addr());
    let local = tokio::task::LocalSet::new();
    let accepting = local.run_until(accept(listener, state));
    tokio::select! {
        () = accepting => {}
        _ = stopped => {}
    }
}

async fn accept(listener: tokio::net::TcpListener, state: Arc<HttpState>) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let state = Arc::clone(&state);
        tokio::task::spawn_local(async move {
            let _seat = seat;
            let answer = service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(respond(&state, &request).await) }
            });
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

async fn respond(
    state: &HttpState,
    request: &Request<hyper::body::Incoming>,
) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n".to_owned());
    }
    let opened = state.opened.get();
    let health = |why: Option<String>, well: &str| match why {
        None => page(StatusCode::OK, TEXT, well.to_owned()),
        Some(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, why + "\n"),
    };
    let path = request.uri().path();
    match path {
        "/healthz" => return health(state.stuck(), "ok\n"),
        "/readyz" => {
            let why = match state.not_ready() {
                None => state.pulse().await,
                why => why,
            };
            return health(why, "ready\n");
        }
        _ => {}
    }
    let Some(viewer) = state.viewer(request) else {
        let text = "this token is not in the server's token file: use another token, or none to \
                    see only data without a namespace\n";
        return page(StatusCode::UNAUTHORIZED, TEXT, text.to_owned());
    };
    let sees = |namespace: &str| viewer.sees(namespace);
    match (path, opened) {
        ("/metrics", Some((service, _))) => page(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            prometheus::render(service, state.member.get(), state.gateway.get(), &sees),
        ),
        ("/v1/info", Some((service, summary))) => {
            page(StatusCode::OK, "application/json", info::render(service, summary, &sees))
        }
        ("/metrics" | "/v1/info", None) => {
            page(StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n".to_owned())
        }
        _ => page(
            StatusCode::NOT_FOUND,
            TEXT,
            "pages: /metrics /healthz /readyz /v1/info\n".to_owned(),
        ),
    }
}

fn page(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}
