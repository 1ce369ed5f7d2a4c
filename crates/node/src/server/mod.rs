//! The server: cores, listeners and disks, from start to clean stop.
//!
//! Reading order: `core` (one thread and its connections), `session` (requests of a client),
//! `frames` (bytes to frames), `verbs` and `put` (requests to the KV service), `outbox` (replies),
//! `shm` (same-host clients), `conn` (the bounds that all of them respect).

mod adopt;
mod applied;
mod cluster;
mod conn;
mod control;
mod core;
mod files;
mod frames;
mod listen;
mod outbox;
mod own;
mod peer;
mod put;
mod s3;
mod secret;
mod session;
mod shm;
mod storage;
mod tls;
mod tokens;
mod verbs;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use millpond_env::{
    BufferPool, EnvError, Handle, IoBackend, PoolOptions, RealClock, Runtime, RuntimeOptions,
    TcpListener, ThreadHandle, boot_id, cpu_count, memory_limits, memory_total, raise_fd_limit,
    require_fd_limit, spawn, thread,
};
use millpond_types::Uuid128;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::wire::Failure;
use tokio::sync::{Semaphore, oneshot};

use crate::config::{Config, ConfigError, Io, LimitsConfig, Size};
use crate::http::{HttpServer, HttpState};
pub use applied::with_defaults;
use conn::Shared;
use core::{Core, CoreHandle};
use listen::{Listener, accept_all};
use millpond_control::member::Seek;
use millpond_replica::local::Service;
pub use storage::{DATA_FILE, DataPath};
pub use tls::TlsError;
pub use tokens::{Scope, TokenError, Tokens};

/// Maximum of the default memory of the server.
const MEMORY_DEFAULT_MAX: u64 = 4 << 30;
/// Default memory of a process that has neither disks nor a manager, such as a gateway: it keeps no
/// values, and all of the pool counts as used, since the kernel has it for I/O.
const MEMORY_DEFAULT_PLAIN: u64 = 128 << 20;
/// Minimum memory for the index and connections: 10,000 idle connections take 45 MiB.
const BESIDE_POOL_MIN: u64 = 48 << 20;
/// Memory beside the pool for every 3 bytes of the index.
const BESIDE_PER_INDEX: u64 = 4;
/// Maximum of the default number of cores.
const CORES_DEFAULT_MAX: usize = 4;
/// Bytes of a common chunk, and of its index entry with name and checksums.
const CHUNK_COMMON: u64 = 1 << 20;
const INDEX_PER_CHUNK: u64 = 256;
/// Time for which a busy core polls for the next request before it sleeps. A client that waits for
/// each answer sends again within 20 µs, and waking a core takes 5: `millpond bench kv --size 4KiB`
/// over TCP against its echo went from 1.37 to 1.05. The same time as for shared memory.
const BUSY_POLL: Duration = Duration::from_micros(30);
/// Time limit for requests in flight at a clean stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Minimum connections for which a server is worth starting.
const CONNECTIONS_USEFUL_MIN: u32 = 128;
/// Descriptors that the server needs beside its connections.
const FDS_BESIDE: u64 = 256;

/// Error at the start of the server; every message names the setting to change.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The token file.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A data folder cannot be used.
    #[error("data folder {path}: {source}: {fix}")]
    Folder {
        /// The folder.
        path: String,
        /// The fix.
        fix: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A disk would be smaller than allowed.
    #[error(
        "--data {path}: {} is too small: a disk needs at least {}",
        millpond_types::ByteSize(*size), millpond_types::ByteSize(*least)
    )]
    Small {
        /// The folder.
        path: String,
        /// Bytes requested.
        size: u64,
        /// The minimum.
        least: u64,
    },
    /// The file system has too little space.
    #[error(
        "data folder {path}: {} are needed, but {} are free: free some space, use a smaller \
         --size, or give another folder with --data",
        millpond_types::ByteSize(*size), millpond_types::ByteSize(*free)
    )]
    Full {
        /// The folder.
        path: String,
        /// Bytes requested.
        size: u64,
        /// Bytes free.
        free: u64,
    },
    /// A disk cannot be opened.
    #[error("{path}: {message}")]
    Disk {
        /// The folder or device.
        path: String,
        /// The error and the fix.
        message: String,
    },
    /// An address cannot be listened on.
    #[error("{key} {address}: {fix}")]
    Listen {
        /// The setting.
        key: &'static str,
        /// The address or path.
        address: String,
        /// The error and the fix.
        fix: String,
    },
    /// The cluster.
    #[error("{0}")]
    Cluster(String),
    /// A stop was requested before the server was ready.
    #[error("stopped before the server was ready")]
    Stopped,
    /// The namespaces cannot be read.
    #[error(transparent)]
    Service(#[from] Failure),
    /// A core's thread ended before it was ready.
    #[error("the thread of a core ended before it was ready; see the log")]
    Core,
}

impl From<std::io::Error> for StartError {
    fn from(source: std::io::Error) -> Self {
        Self::Env(EnvError::Os { what: "starting the server".to_owned(), source })
    }
}

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    cores: Vec<CoreThread>,
    http: Option<HttpServer>,
    s3: Option<millpond_s3::Gateway>,
    state: Arc<HttpState>,
    summary: Summary,
}

/// A core and the thread it runs on. The thread ends when `stop` is dropped.
struct CoreThread {
    core: CoreHandle,
    thread: ThreadHandle<()>,
    stop: oneshot::Sender<()>,
    io: IoBackend,
    io_note: Option<String>,
}

/// Disks, addresses and settings of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// TCP address for clients.
    pub listen: Option<SocketAddr>,
    /// Address for metrics.
    pub http: Option<SocketAddr>,
    /// Address for S3 clients.
    pub s3: Option<SocketAddr>,
    /// Whether TLS is on for S3 clients.
    pub s3_tls: bool,
    /// Unix socket.
    pub socket: Option<PathBuf>,
    /// Disks: location, bytes, and whether they were new.
    pub disks: Vec<(String, u64, bool)>,
    /// Bytes of memory.
    pub memory: MemorySizes,
    /// Threads that serve clients.
    pub cores: usize,
    /// I/O backend of disks and sockets.
    pub io: &'static str,
    /// The reason why `io_uring` is not used, if it was wanted.
    pub io_note: Option<String>,
    /// Whether TLS is on.
    pub tls: bool,
    /// Whether a credential is required.
    pub tokens: bool,
    /// Identity of the cluster.
    pub cluster_id: Uuid128,
}

/// Cores by configuration or by default.
fn core_count(config: &Config) -> usize {
    config.server.cores.map_or_else(|| cpu_count().min(CORES_DEFAULT_MAX), |cores| cores as usize)
}

/// The credentials that this server accepts.
fn tokens(config: &Config) -> Result<Tokens, StartError> {
    let tokens = match &config.security.token_file {
        Some(path) => Tokens::from_file(Path::new(path))?,
        None => Tokens::default(),
    };
    Ok(tokens.with_node_secret(config.cluster.node_secret()?))
}

/// Maximum memory of a server, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySizes {
    /// The total.
    pub total: u64,
    /// For values.
    pub pool: u64,
    /// For the index, which locates values.
    pub index: u64,
}

/// Memory of the server by configuration or by default.
///
/// # Errors
/// If the system does not report its memory.
pub fn memory_sizes(config: &Config) -> std::io::Result<MemorySizes> {
    let total = match config.server.memory {
        Some(memory) => memory.bytes(),
        None if !config.cluster.storage && !config.cluster.has_manager() => MEMORY_DEFAULT_PLAIN,
        None => (memory_total()? / 4).min(MEMORY_DEFAULT_MAX),
    };
    let asked = config.server.index_memory.map(Size::bytes);
    let of_index = asked.map_or(0, |index| index.saturating_mul(BESIDE_PER_INDEX) / 3);
    let beside = (total / 8).max(BESIDE_POOL_MIN).max(of_index);
    let index = asked.unwrap_or(beside / BESIDE_PER_INDEX * 3);
    let pool = total.saturating_sub(beside) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    Ok(MemorySizes { total, pool, index })
}

/// Refuses more memory than this process may use: the kernel would kill it once it is used.
fn check_memory(sizes: MemorySizes) -> Result<(), StartError> {
    let MemorySizes { total: wanted, index, .. } = sizes;
    if index > wanted / 2 {
        let fix = format!(
            "{} are more than half of the server's memory, which is {}: use a smaller value, or \
             raise --memory",
            millpond_types::ByteSize(index),
            millpond_types::ByteSize(wanted)
        );
        return Err(ConfigError::Invalid { key: "server.index_memory", fix }.into());
    }
    let (machine, limit) = memory_limits()?;
    let most = limit.unwrap_or(machine);
    if wanted <= most {
        return Ok(());
    }
    let [wanted, most] = [wanted, most].map(millpond_types::ByteSize);
    let whose =
        if limit.is_some() { "the cgroup of this process allows" } else { "this machine has" };
    let fix = format!("{wanted} were requested, but {whose} {most}: use a smaller --memory");
    Err(ConfigError::Invalid { key: "server.memory", fix }.into())
}

/// The limits, with fewer connections than by default if the system allows fewer files. A
/// configured number is kept or refused.
fn fit_fd_limit(config: &Config) -> Result<LimitsConfig, StartError> {
    let mut limits = config.limits.clone();
    let hard = raise_fd_limit()?.hard;
    let room = u32::try_from(hard.saturating_sub(FDS_BESIDE)).unwrap_or(u32::MAX);
    let is_default = limits.connections == LimitsConfig::default().connections;
    if is_default && room < limits.connections && room >= CONNECTIONS_USEFUL_MIN {
        tracing::warn!(
            "open files: the limit is {hard}, so at most {room} clients can connect: raise it with \
             `ulimit -n` (LimitNOFILE for systemd)"
        );
        limits.connections = room;
    }
    require_fd_limit(u64::from(limits.connections) + FDS_BESIDE)?;
    Ok(limits)
}

impl Server {
    /// Starts a server and returns once it answers.
    ///
    /// # Errors
    /// [`StartError`] naming the setting to change.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_until(config, &Arc::default())
    }

    /// Same as [`Server::start`], but gives up once `stop` is set: a node of a cluster waits for a
    /// manager without a time limit.
    ///
    /// # Errors
    /// [`StartError`] naming the setting to change; [`StartError::Stopped`].
    pub fn start_until(config: &Config, stop: &Arc<AtomicBool>) -> Result<Self, StartError> {
        config.validate()?;
        let config = &secret::with_secret(config)?;
        let limits = fit_fd_limit(config)?;
        let tokens = tokens(config)?;
        let tls = match (&config.security.tls_cert, &config.security.tls_key) {
            (Some(cert), Some(key)) => Some(tls::server_config(Path::new(cert), Path::new(key))?),
            _ => None,
        };
        let memory = memory_sizes(config)?;
        check_memory(memory)?;
        let files = storage::prepare_all(config)?;
        let bytes = usize::try_from(memory.pool).unwrap_or(usize::MAX);
        let pool = BufferPool::new(PoolOptions { bytes, huge_pages: config.server.huge_pages })?;
        // Listening comes before the disks are opened, so that a port in use costs nothing; the
        // health page answers "starting" in the meantime.
        let state = Arc::new(HttpState::default());
        let http = HttpServer::start(config.http_address()?, Arc::clone(&state))?;
        let cores = start_cores(config, &pool)?;
        // The socket lies in one of the folders, and a process without disks has made none yet.
        cluster::folders(config)?;
        let listeners = bind(config, &cores[0])?;
        let own = config.cluster.credential()?;
        let joining = cluster::Joining::begin(config, (listeners.tcp, own.clone()), stop)?;
        let of_disks = storage::Memory { pool: pool.clone(), index_bytes: memory.index };
        let opened = open_storage(config, (files, joining.seek()), of_disks, &cores)?;
        let cluster = joining.open(&opened, &cores)?;
        let socket = storage::socket_path(config);
        let shared = Arc::new(Shared {
            limits,
            tokens,
            tls,
            boot_id: Uuid128(boot_id()?.to_be_bytes()),
            socket_path: socket.as_ref().map_or_else(String::new, |p| p.display().to_string()),
            budget: Arc::new(Semaphore::new(bytes / 2 / PAGE_BYTES)),
            connection_bytes: config.limits.connection_bytes.bytes().min(memory.pool / 16),
            connections: AtomicUsize::new(0),
            shm_clients: AtomicU32::new(0),
            service: Arc::clone(&opened.service),
            cluster,
        });
        let listen = listeners.tcp;
        serve_on(&shared, &cores)?;
        // After the listeners: a manager probes this server at its addresses.
        let forms = config.cluster.storage && config.cluster.domains_to_form() == 1;
        shared.cluster.join(forms, stop)?;
        shared.cluster.adopt(&opened.service, &cores[0], stop)?;
        state.join(shared.cluster.member());
        let s3 = s3::start(config, own, &shared)?;
        if let Some(gateway) = &s3 {
            state.gateway(gateway.metrics());
        }
        let summary = Summary {
            listen,
            http: http.as_ref().map(HttpServer::address),
            s3: s3.as_ref().map(millpond_s3::Gateway::address),
            s3_tls: config.s3.tls_cert.is_some(),
            socket,
            disks: opened.disks,
            memory,
            cores: cores.len(),
            io: if cores[0].io == IoBackend::Uring { "io_uring" } else { "threads" },
            io_note: cores[0].io_note.clone(),
            tls: shared.tls.is_some(),
            tokens: shared.tokens.required(),
            cluster_id: opened.cluster_id,
        };
        let viewers = Arc::clone(&shared);
        state.ask_viewers(Box::new(move |token: &[u8]| viewers.tokens.check(token)));
        state.watch(&opened.service, cores.iter().map(|core| core.core.handle.clone()));
        state.open(opened.service, summary.clone());
        Ok(Self { shared, cores, http, s3, state, summary })
    }

    /// Disks, addresses and settings of this server.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Whether the token file has changed and should be read again.
    #[must_use]
    pub fn tokens_changed(&self) -> bool {
        self.shared.tokens.changed()
    }

    /// Reads the token file again. Clients with a token that is gone from it, or has another scope
    /// now, are disconnected within a second. Logs the outcome; an invalid file changes nothing.
    pub fn reload_tokens(&self) {
        match self.shared.tokens.reload() {
            Ok(None) => {}
            Ok(Some(count)) => tracing::info!(count, "token file read again"),
            Err(error) => tracing::error!("{error}; the previous tokens stay valid"),
        }
    }

    /// The reason why this server must stop: its cluster has no place for this process (any more).
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.shared.cluster.refused()
    }

    /// Stops: no new connections, requests in flight end, all data in memory goes to the disks.
    ///
    /// # Errors
    /// [`Failure`] if a disk refused data that was only in memory.
    pub fn stop(self) -> Result<(), Failure> {
        self.state.close();
        if let Some(gateway) = self.s3 {
            // While other nodes can still finish the work that it began.
            gateway.stop();
        }
        // Others take over while this server still redirects its clients.
        self.shared.cluster.leave();
        self.shared.service.stop();
        let deadline = RealClock::tick().plus(STOP_PATIENCE);
        for core in &self.cores {
            let _ = on_core(&core.core.handle, move || async move {
                if let Some(core) = Core::current() {
                    core.stop(deadline).await;
                }
            });
        }
        let service = Arc::clone(&self.shared.service);
        let flushed =
            on_core(
                &self.cores[0].core.handle,
                move || async move { service.flush_and_close().await },
            );
        for core in self.cores {
            drop(core.stop);
            let _ = core.thread.join();
        }
        if let Some(http) = self.http {
            http.stop();
        }
        flushed.unwrap_or(Ok(()))
    }
}

/// Runs a future on a core and waits for its result.
fn on_core<T, F, M>(handle: &Handle, make: M) -> Result<T, StartError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    M: FnOnce() -> F + Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    handle.spawn_on(move || {
        let work = make();
        async move {
            let _ = sender.send(work.await);
        }
    })?;
    receiver.recv().map_err(|_| StartError::Core)
}

fn start_cores(config: &Config, pool: &BufferPool) -> Result<Vec<CoreThread>, StartError> {
    let io = match config.server.io {
        Io::Auto => IoBackend::Auto,
        Io::Uring => IoBackend::Uring,
        Io::Threads => IoBackend::Threads,
    };
    let count = core_count(config);
    let begun: Result<Vec<_>, _> = (0..count)
        .map(|index| {
            let pools = vec![pool.clone()];
            let options =
                RuntimeOptions { io, pools, busy_poll: BUSY_POLL, ..RuntimeOptions::default() };
            begin_loop(&format!("millpond-{index}"), options)
        })
        .collect();
    begun?.into_iter().map(Begun::ready).collect()
}

/// A loop, its backend, and the reason why that is not `io_uring`.
type Loop = (Handle, IoBackend, Option<String>);

/// A thread with a loop that is starting.
struct Begun {
    receiver: mpsc::Receiver<Result<Loop, EnvError>>,
    thread: ThreadHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Begun {
    /// Waits until the loop runs.
    fn ready(self) -> Result<CoreThread, StartError> {
        let Self { receiver, thread, stop } = self;
        let (handle, io, io_note) = receiver.recv().map_err(|_| StartError::Core)??;
        let core = CoreHandle { handle, connections: Arc::default() };
        Ok(CoreThread { core, thread, stop, io, io_note })
    }
}

/// Starts a thread with a loop that ends on demand.
fn start_loop(name: &str, options: RuntimeOptions) -> Result<CoreThread, StartError> {
    begin_loop(name, options)?.ready()
}

fn begin_loop(name: &str, options: RuntimeOptions) -> Result<Begun, StartError> {
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let thread = thread(name, move || match Runtime::new(options) {
        Ok(runtime) => {
            let note = runtime.fallback_reason().map(ToString::to_string);
            let _ = sender.send(Ok((runtime.handle(), runtime.backend(), note)));
            let _ = runtime.block_on(stopped);
        }
        Err(error) => {
            let _ = sender.send(Err(error));
        }
    })?;
    Ok(Begun { receiver, thread, stop })
}

/// Bound addresses; the listeners themselves stay on their core until [`serve_on`].
struct Bound {
    tcp: Option<SocketAddr>,
}

fn bind(config: &Config, core: &CoreThread) -> Result<Bound, StartError> {
    let address = config.listen_address()?;
    let socket = storage::socket_path(config);
    on_core(&core.core.handle, move || async move {
        let mut listeners = Vec::new();
        let mut tcp = None;
        if let Some(address) = address {
            let listener = listen::patiently(|| TcpListener::bind(address)).await;
            let listener = listener
                .map_err(|error| listen_error("server.listen", "--listen", address, &error))?;
            tcp = listener.local_addr().ok();
            listeners.push(Listener::Tcp(listener));
        }
        if let Some(path) = socket {
            let listener = listen::patiently(|| Listener::unix(&path)).await.map_err(|error| {
                let flag = "--socket, or another folder with --data";
                listen_error("server.socket", flag, path.display(), &error)
            })?;
            listeners.push(listener);
        }
        listen::park(listeners);
        Ok(Bound { tcp })
    })?
}

pub(crate) fn listen_error(
    key: &'static str,
    flag: &str,
    address: impl std::fmt::Display,
    error: &std::io::Error,
) -> StartError {
    let fix = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("in use by another process: stop it, or choose another with {flag}")
        }
        std::io::ErrorKind::AddrNotAvailable => {
            format!("this host does not have this address: choose another with {flag}")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("not permitted ({error}): choose another with {flag}, above 1023 for a port")
        }
        _ => format!("cannot listen ({error}): choose another with {flag}"),
    };
    StartError::Listen { key, address: address.to_string(), fix }
}

struct OpenedStorage {
    service: Arc<Service>,
    disks: Vec<(String, u64, bool)>,
    cluster_id: Uuid128,
}

/// Warns if values of the common chunk size fill the index before the disks.
fn warn_of_small_index(index_bytes: u64, disks: &[(String, u64, bool)]) {
    let wanted: u64 =
        disks.iter().map(|(_, bytes, _)| bytes / CHUNK_COMMON * INDEX_PER_CHUNK).sum();
    if wanted > index_bytes {
        let [wanted, index_bytes] = [wanted, index_bytes].map(millpond_types::ByteSize);
        tracing::warn!(
            "the disks have room for more values of 1 MiB than the index can hold: it has \
             {index_bytes} of memory and needs {wanted}: raise --memory, or server.index_memory, \
             to use all of their space"
        );
    }
}

fn open_storage(
    config: &Config,
    (files, seek): (Vec<storage::Prepared>, Seek),
    memory: storage::Memory,
    cores: &[CoreThread],
) -> Result<OpenedStorage, StartError> {
    let (pool, index_bytes) = (memory.pool.clone(), memory.index_bytes);
    let opened = on_core(&cores[0].core.handle, {
        let config = config.clone();
        move || async move { storage::open_all(&config, files, memory, seek).await }
    })??;
    let storage::Opened { disks, summary, cluster_id } = opened;
    warn_of_small_index(index_bytes, &summary);
    let service = Arc::new(Service::new(disks, pool, Arc::default()));
    for (index, disk) in service.disks.iter().enumerate() {
        let engine = disk.engine.clone();
        let core = &cores[index % cores.len()].core.handle;
        core.spawn_on(move || async move { engine.run_background().await })?;
    }
    Ok(OpenedStorage { service, disks: summary, cluster_id })
}

/// Makes every thread serve connections, and the first one accept them.
fn serve_on(shared: &Arc<Shared>, cores: &[CoreThread]) -> Result<(), StartError> {
    let handles: Vec<CoreHandle> = cores.iter().map(|core| core.core.clone()).collect();
    for core in &handles {
        let (shared, count) = (Arc::clone(shared), Arc::clone(&core.connections));
        on_core(&core.handle, move || async move {
            Core::install(shared, count);
        })?;
    }
    let shared = Arc::clone(shared);
    on_core(&cores[0].core.handle, move || async move {
        for listener in listen::unpark() {
            let (shared, handles) = (Arc::clone(&shared), handles.clone());
            if let Some(core) = Core::current() {
                core.keep(spawn(accept_all(listener, shared, handles)));
            }
        }
    })
}
