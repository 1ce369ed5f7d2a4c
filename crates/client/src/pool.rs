//! [`Client`]: a bounded pool of connections to one server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{BlockingStream, RealClock, boot_id};
use millpond_types::{Tick, Uuid128};
use parking_lot::{Condvar, Mutex};

use crate::address::Address;
use crate::call::Job;
use crate::connection::{Connection, Deadline, ServerInfo};
use crate::error::{ClientError, ErrorKind};
use crate::options::{ClientOptions, Transport, TransportInUse};
use crate::stream::Wire;
use crate::tls::{self, TlsStream};

/// First and longest pause after a failed connect, during which calls fail at once.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Longest time for one attempt to connect, so that a silent host fails before a long deadline.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// An idle connection is looked at before use when it was idle for longer than this.
const IDLE_TRUSTED: Duration = Duration::from_millis(5);

/// A client of one server. Clones share its connections; calls from several threads run side by
/// side on connections of their own.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ClientOptions,
    tls: Option<Arc<rustls::ClientConfig>>,
    state: Mutex<State>,
    /// Tells one waiter of a free connection; costs no system call while nobody waits.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    /// Connections that exist or are being made.
    open: usize,
    closed: bool,
    down: Option<Down>,
    /// The same server's Unix socket, once found.
    local: Option<PathBuf>,
    info: Option<ServerInfo>,
}

#[derive(Clone, Debug)]
struct Down {
    until: Tick,
    pause: Duration,
    reason: String,
}

impl Client {
    /// Makes a client. Connects on the first call.
    ///
    /// # Errors
    /// [`ClientError::Argument`] naming the option.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        options.validate()?;
        let tls = options.tls_ca.as_deref().map(tls::config).transpose()?;
        let (state, freed) = (Mutex::default(), Condvar::new());
        Ok(Self { shared: Arc::new(Shared { options, tls, state, freed }) })
    }

    /// The options it was made with.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// Makes sure that the server answers, and tells what it said of itself.
    ///
    /// # Errors
    /// As for every call.
    pub fn server_info(&self) -> Result<ServerInfo, ClientError> {
        self.ping(None)?;
        let info = self.shared.state.lock().info.clone();
        info.ok_or(ClientError::Closed)
    }

    /// Closes every connection; calls that run now finish, later ones fail.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let idle = std::mem::take(&mut state.idle);
        state.open -= idle.len();
        drop(state);
        drop(idle);
        self.shared.freed.notify_all();
    }

    /// Identity of the server's node, connecting if need be.
    ///
    /// # Errors
    /// As for every call.
    pub fn node(&self) -> Result<Uuid128, ClientError> {
        Ok(self.server_info()?.node)
    }

    /// Runs jobs on one connection. With `node`, fails when another server answers than that.
    pub(crate) fn run(
        &self,
        jobs: &mut [Job<'_, '_>],
        deadline: Option<Duration>,
        node: Option<Uuid128>,
    ) -> Result<(), ClientError> {
        let deadline = Deadline::after(deadline.unwrap_or(self.shared.options.deadline));
        let mut lent = self.shared.checkout(deadline)?;
        let connection = lent.0.as_mut().ok_or(ClientError::Closed)?;
        if node.is_some_and(|node| node != connection.hello.node) {
            let address = self.shared.options.address.to_string();
            return Err(ClientError::OtherServer { address });
        }
        connection.run(jobs, deadline)
    }
}

/// A connection on loan: returns to the pool, or is closed when a call on it failed.
struct Lent<'a>(Option<Connection>, &'a Shared);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let connection = self.0.take().filter(|connection| !connection.broken);
        let mut state = self.1.state.lock();
        match connection {
            Some(connection) if !state.closed => state.idle.push(connection),
            _ => state.open -= 1,
        }
        drop(state);
        self.1.freed.notify_one();
    }
}

impl Shared {
    fn checkout(&self, deadline: Deadline) -> Result<Lent<'_>, ClientError> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(ClientError::Closed);
            }
            // The last used one first: its memory is warm, and the others may be closed unused.
            while let Some(connection) = state.idle.pop() {
                let idle = RealClock::tick().since(connection.idle_since);
                if idle < IDLE_TRUSTED || connection.is_quiet() {
                    return Ok(Lent(Some(connection), self));
                }
                state.open -= 1;
            }
            if state.open < self.options.connections {
                state.open += 1;
                drop(state);
                return self.connect_counted(deadline);
            }
            let left = deadline.at.since(RealClock::tick());
            if left.is_zero() {
                let doing = "waiting for one of the client's connections; open more connections";
                return Err(ClientError::Deadline(deadline.given, doing));
            }
            self.freed.wait_for(&mut state, left);
        }
    }

    /// Connects; the place in the pool was taken already.
    fn connect_counted(&self, deadline: Deadline) -> Result<Lent<'_>, ClientError> {
        // Gives the place back when connecting fails.
        let mut lent = Lent(None, self);
        if let Some(down) = self.state.lock().down.clone() {
            let now = RealClock::tick();
            if now < down.until {
                return Err(ClientError::Down {
                    address: self.options.address.to_string(),
                    reason: down.reason,
                    retry_in: down.until.since(now),
                });
            }
        }
        match self.connect(deadline) {
            Ok(connection) => {
                let mut state = self.state.lock();
                state.down = None;
                state.info = Some(ServerInfo {
                    version: connection.hello.server.clone(),
                    node: connection.hello.node,
                    transport: connection.transport,
                    socket_path: connection.hello.socket_path.clone(),
                });
                drop(state);
                lent.0 = Some(connection);
                Ok(lent)
            }
            Err(error) => {
                if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::DeadlineExceeded) {
                    self.note_down(&error);
                }
                Err(error)
            }
        }
    }

    fn note_down(&self, error: &ClientError) {
        let mut state = self.state.lock();
        let pause =
            state.down.as_ref().map_or(BACKOFF_MIN, |down| (down.pause * 2).min(BACKOFF_MAX));
        let until = RealClock::tick().plus(pause);
        state.down = Some(Down { until, pause, reason: error.to_string() });
        state.local = None;
    }

    fn connect(&self, deadline: Deadline) -> Result<Connection, ClientError> {
        let wanted = self.options.transport;
        if let Address::Unix(path) = &self.options.address {
            return self.connect_local(path, wanted, deadline);
        }
        let known = self.state.lock().local.clone();
        if let Some(path) = known {
            if let Ok(connection) = self.connect_local(&path, wanted, deadline) {
                return Ok(connection);
            }
            self.state.lock().local = None;
        }
        let remote = self.connect_tcp(deadline)?;
        if wanted == Transport::Tcp {
            return Ok(remote);
        }
        match self.upgrade(&remote, deadline) {
            Ok(local) => Ok(local),
            Err(_) if wanted == Transport::Auto => Ok(remote),
            Err(error) => Err(error),
        }
    }

    /// Moves to the Unix socket of the server that answered over TCP, when it is on this host.
    fn upgrade(&self, remote: &Connection, deadline: Deadline) -> Result<Connection, ClientError> {
        let hello = &remote.hello;
        let refuse = |fix: &str| Err(ClientError::argument("transport", fix));
        let same_host = boot_id().is_ok_and(|id| Uuid128(id.to_be_bytes()) == hello.boot_id);
        if !same_host {
            return refuse("the server runs on another host: use tcp or auto");
        }
        if hello.socket_path.is_empty() {
            return refuse("the server has no Unix socket: use tcp or auto");
        }
        let path = Path::new(&hello.socket_path);
        let local = self.connect_local(path, self.options.transport, deadline)?;
        if local.hello.node != hello.node {
            return refuse("another server owns the Unix socket: use tcp");
        }
        self.state.lock().local = Some(path.to_owned());
        Ok(local)
    }

    fn connect_error(&self, source: io::Error) -> ClientError {
        ClientError::Connect { address: self.options.address.to_string(), source }
    }

    fn connect_local(
        &self,
        path: &Path,
        wanted: Transport,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let left = deadline.at.since(RealClock::tick()).min(CONNECT_MAX);
        let stream =
            BlockingStream::connect_unix(path, left).map_err(|error| self.connect_error(error))?;
        let mut connection = self.hello(Wire::Plain(stream), TransportInUse::Unix, deadline)?;
        match wanted {
            Transport::Shm => {
                connection.attach(self.options.arena_bytes, self.options.spin, deadline)?;
            }
            Transport::Auto if connection.hello.shm => {
                match connection.attach(self.options.arena_bytes, self.options.spin, deadline) {
                    // Refused, for instance because too many are attached: the socket works too.
                    Ok(()) | Err(ClientError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Transport::Unix | Transport::Tcp | Transport::Auto => {}
        }
        Ok(connection)
    }

    fn connect_tcp(&self, deadline: Deadline) -> Result<Connection, ClientError> {
        let addresses =
            self.options.address.resolve().map_err(|error| self.connect_error(error))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            let left = deadline.at.since(RealClock::tick()).min(CONNECT_MAX);
            match BlockingStream::connect_tcp(address, left) {
                Ok(stream) => return self.hello_tcp(stream, deadline),
                Err(error) => last = error,
            }
        }
        Err(self.connect_error(last))
    }

    fn hello_tcp(
        &self,
        stream: BlockingStream,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let (Some(config), Address::Tcp { host, .. }) = (&self.tls, &self.options.address) else {
            return self.hello(Wire::Plain(stream), TransportInUse::Tcp, deadline);
        };
        let tls = TlsStream::new(Arc::clone(config), host, stream)
            .map_err(|error| self.connect_error(error))?;
        self.hello(Wire::Tls(Box::new(tls)), TransportInUse::Tls, deadline)
    }

    fn hello(
        &self,
        wire: Wire,
        transport: TransportInUse,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let name = self.options.address.to_string();
        Connection::open(wire, transport, (name, &self.options.token), deadline)
    }
}
