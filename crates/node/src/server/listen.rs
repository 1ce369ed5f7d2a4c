//! Accepting connections on one core and spreading them over all.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_env::{PeerAddr, RealClock, Stream, TcpListener, UnixListener, sleep};
use millpond_types::wire::{Asked, ErrorReply, FrameHeader, Status, Verb};

use super::conn::Shared;
use super::core::{CoreHandle, adopt};

/// Pause of accepting when the system is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Time for which an address in use is tried again, and the interval: the kernel closes the sockets
/// of a killed process a moment after its end, once its `io_uring` rings are gone.
const TAKEN_FOR: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// A listening socket.
pub(super) enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

thread_local! {
    static PARKED: std::cell::RefCell<Vec<Listener>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Keeps listeners on this core until the server is ready to accept.
pub(super) fn park(listeners: Vec<Listener>) {
    PARKED.set(listeners);
}

/// Takes the listeners that were kept.
pub(super) fn unpark() -> Vec<Listener> {
    PARKED.take()
}

/// Listens with `bind`, and retries for a moment while another process has the address.
///
/// # Errors
/// The system's error.
pub(super) async fn patiently<T>(bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = RealClock::tick().plus(TAKEN_FOR);
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && RealClock::tick() < until => {
                sleep(LOOK).await;
            }
            done => return done,
        }
    }
}

impl Listener {
    /// Listens on a Unix socket at `path` that this user and its group may connect to.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        Ok(Self::Unix(listener))
    }

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await,
            Self::Unix(listener) => listener.accept().await,
        }
    }
}

/// Accepts until dropped.
pub(super) async fn accept_all(listener: Listener, shared: Arc<Shared>, cores: Vec<CoreHandle>) {
    let is_unix = matches!(listener, Listener::Unix(_));
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                failing = false;
                shared.service.metrics.accepted.inc();
                give_away(stream, is_unix, &shared, &cores).await;
            }
            Err(error) => {
                if !failing {
                    tracing::error!("cannot accept connections, trying again: {error}");
                }
                failing = true;
                sleep(PAUSE).await;
            }
        }
    }
}

async fn give_away(mut stream: Stream, is_unix: bool, shared: &Arc<Shared>, cores: &[CoreHandle]) {
    let open = shared.connections.fetch_add(1, Ordering::Relaxed);
    if open >= shared.limits.connections as usize {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        shared.service.metrics.refused.inc();
        let _ = stream.write_all_vec(refusal(open)).await;
        return;
    }
    let peer = match stream.peer_addr() {
        Ok(PeerAddr::Tcp(address)) => address.to_string(),
        Ok(PeerAddr::Unix) => match stream.peer_credentials() {
            Ok(peer) => format!("unix:pid={}", peer.pid),
            Err(_) => "unix".to_owned(),
        },
        Err(_) => "unknown".to_owned(),
    };
    let core = cores.iter().min_by_key(|core| core.connections.load(Ordering::Relaxed));
    let given = match (stream.into_owned_fd(), core) {
        (Ok(fd), Some(core)) => core.handle.spawn_on(move || adopt(fd, is_unix, peer)).is_ok(),
        _ => false,
    };
    if !given {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reply to a client beyond the maximum, in place of the answer to its hello.
fn refusal(open: usize) -> Vec<u8> {
    let message = format!(
        "the server already has {open} connections: close some, or raise limits.connections"
    );
    let meta = ErrorReply { retry_after_ms: 1000, message }.encode();
    // Nothing was requested yet, so there is nothing to prove.
    let asked = Asked { request_id: 0, proof: 0 };
    FrameHeader::reply(asked, Verb::Hello, Status::Busy, &meta).frame(&meta)
}
