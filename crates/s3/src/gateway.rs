//! Threads, sockets and lifecycle of the gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use millpond_client::{Client, ClientOptions};
use rustls::ServerConfig;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::auth::{Access, Auth, Hosts};
use crate::back::persist;
use crate::door::{Door, Settings};
use crate::gate::FORM_MAX;
use crate::http::Front;
use crate::joined::Joined;
use crate::keys::{Key, Known, root};
use crate::loops::{EventLoop, Seats};
use crate::metrics::Metrics;
use crate::ops::uploads::sweep;
use crate::service::Service;
use crate::stall::Watched;
use crate::store::Store;

/// Threads that move bytes between sockets and memory: one per this many processors, with a minimum
/// and a maximum.
const PROCESSORS_PER_LOOP: usize = 4;
const LOOPS: [usize; 2] = [2, 8];
/// Open client connections at most; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 1_024;
/// Connections that the kernel queues for accepting, as far as `net.core.somaxconn` permits.
const ACCEPTED_LATER_MAX: u32 = 4_096;
/// Bytes read ahead on a connection at most.
const AHEAD: usize = 128 << 10;
/// Connections to each node.
const NODE_CONNECTIONS: usize = 16;
/// Timeout for the header of a request, including the wait for the next request on a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// Timeout for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often the gateway checks whether the cluster serves files yet.
const LOOK: Duration = Duration::from_millis(250);
/// Interval of the search for abandoned uploads: shortest and longest.
const SWEEP: [Duration; 2] = [Duration::from_secs(1), Duration::from_hours(1)];

/// Options of a gateway.
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The cluster.
    pub cluster: ClientOptions,
    /// TLS for clients, if any.
    pub tls: Option<Arc<ServerConfig>>,
    /// Domain below which buckets are host names too.
    pub domain: Option<String>,
    /// The region that it reports.
    pub region: String,
    /// A credential that is not stored in the volume.
    pub root_key: Option<Key>,
    /// Age at which uploads are aborted.
    pub upload_expiry: Duration,
    /// The file with the gateway's session, for its successor
    /// ([`millpond_client::VolumeOptions::note`]).
    pub session_note: Option<PathBuf>,
}

/// The reason why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("{0}")]
    Listen(#[source] std::io::Error),
    /// The addresses of the cluster, or the credential for it, are invalid.
    #[error("{0}")]
    Client(#[from] millpond_client::ClientError),
    /// Threads cannot be started.
    #[error("{0}")]
    Threads(#[source] std::io::Error),
}

/// A running gateway. It has no state of its own: any number of them serve one volume.
pub struct Gateway {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    accepting: AbortHandle,
    ending: watch::Sender<bool>,
    loops: Vec<EventLoop>,
}

impl Gateway {
    /// Starts to answer; with `ServiceUnavailable` until the cluster serves files.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::default());
        let (sender, receiver) = mpsc::channel();
        let client = ClientOptions { connections: NODE_CONNECTIONS, ..options.cluster.clone() };
        let client = Client::new(client)?;
        let start = |name| EventLoop::start(name, &metrics).map_err(StartError::Threads);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (processors / PROCESSORS_PER_LOOP).clamp(LOOPS[0], LOOPS[1]);
        let mut loops = (0..count).map(|_| start("millpond-s3")).collect::<Result<Vec<_>, _>>()?;
        let seats = loops.iter().map(EventLoop::seats).collect();
        // Work that no client waits for.
        let back = start("mp-s3-back")?;
        let (ending, ended) = watch::channel(false);
        let run = run((options, client), Arc::clone(&metrics), (sender, seats), ended);
        let accepting = back.handle().spawn(run).abort_handle();
        loops.push(back);
        match receiver.recv() {
            Ok(Ok(address)) => Ok(Self { address, metrics, accepting, ending, loops }),
            Ok(Err(error)) => Err(StartError::Listen(error)),
            Err(_) => Err(StartError::Threads(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its metrics.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Stops: accepts no new connections, and soon ends the open ones.
    pub fn stop(self) {
        self.accepting.abort();
        let _ = self.ending.send(true);
        EventLoop::end_all(self.loops);
    }
}

async fn run(
    (options, client): (Options, Client),
    metrics: Arc<Metrics>,
    (bound, seats): (mpsc::Sender<std::io::Result<SocketAddr>>, Vec<Seats>),
    ended: watch::Receiver<bool>,
) {
    let listener = match listen(options.listen) {
        Ok(listener) => listener,
        Err(error) => return drop(bound.send(Err(error))),
    };
    let _ = bound.send(listener.local_addr());
    let (region, domain) = (options.region, options.domain.clone());
    let settings = Settings { region, domain, is_tls: options.tls.is_some() };
    let door = Arc::new(Door::new(settings, Known::new(options.root_key), metrics));
    let client = (client, options.session_note);
    tokio::spawn(open(Arc::clone(&door), client, options.upload_expiry, ended));
    let mut builder = S3ServiceBuilder::new(Service { door: Arc::clone(&door) });
    builder.set_auth(Auth { door: Arc::clone(&door) });
    builder.set_access(Access { door: Arc::clone(&door) });
    let mut limits = S3Config::default();
    limits.post_object_max_file_size = FORM_MAX;
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits))));
    if let Some(domain) = options.domain {
        builder.set_host(Hosts { domain });
    }
    let front = Arc::new(Front::new(door, builder.build()));
    accept((listener, seats), front, options.tls.map(TlsAcceptor::from)).await;
}

/// Binds an address. Tokio's own bind queues 128 connections for accepting, and the kernel drops
/// the excess: of 256 clients that connected at once, some were accepted only by their retry after
/// a second.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPTED_LATER_MAX)
}

/// Opens the volume once the cluster serves files, and from then on aborts old uploads.
async fn open(
    door: Arc<Door>,
    (client, note): (Client, Option<PathBuf>),
    expiry: Duration,
    ended: watch::Receiver<bool>,
) {
    let mut told = false;
    loop {
        let (client, note) = (client.clone(), note.clone());
        let opened =
            tokio::task::spawn_blocking(move || root(client, ("S3 gateway", note)).map(Store::new));
        match opened.await {
            Ok(Ok(store)) => {
                door.open(store);
                break;
            }
            Ok(Err(error)) if !told => {
                told = true;
                tracing::info!("S3: waiting for the cluster: {error}");
            }
            _ => {}
        }
        tokio::time::sleep(LOOK).await;
    }
    tracing::info!("S3: the volume is open");
    tokio::spawn(crate::backed::room::keep(Arc::clone(&door)));
    tokio::spawn(persist::run(Arc::clone(&door), ended));
    let pause = (expiry / 8).clamp(SWEEP[0], SWEEP[1]);
    loop {
        match door.blocking(move |store| sweep(store, expiry)).await {
            Ok(0) => {}
            Ok(count) => {
                door.metrics.swept.add(count as u64);
                tracing::info!(count, "S3: dropped uploads older than {expiry:?}");
            }
            Err(error) => tracing::warn!("S3: cannot list old uploads: {error}"),
        }
        tokio::time::sleep(pause).await;
    }
}

async fn accept(
    (listener, seats): (TcpListener, Vec<Seats>),
    front: Arc<Front>,
    tls: Option<TlsAcceptor>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // For example too many open files: other connections will close.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (front, tls) = (Arc::clone(&front), tls.clone());
        let serve = move |stream| connection(stream, front, tls, place);
        let served = Seats::freest(&seats).map(|seats| seats.serve(stream, serve));
        if let Some(Err(error)) = served {
            tracing::warn!("S3: a connection was not served: {error}");
        }
    }
}

async fn connection(
    stream: TcpStream,
    front: Arc<Front>,
    tls: Option<TlsAcceptor>,
    _place: OwnedSemaphorePermit,
) {
    front.door.metrics.connections.add(1);
    let metrics = Arc::clone(&front.door.metrics);
    let stream = Watched::new(stream);
    match tls {
        None => serve(stream, front).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                serve(stream, front).await;
            }
        }
    }
    metrics.connections.sub(1);
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, front: Arc<Front>) {
    let answer = service_fn(move |request| {
        let front = Arc::clone(&front);
        async move { front.answer(request).await.map(|response| response.map(Joined::new)) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(AHEAD)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = served.await {
        tracing::debug!(target: "millpond_s3::access", "connection: {error}");
    }
}
