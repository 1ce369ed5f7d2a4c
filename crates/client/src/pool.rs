//! [`Pool`]: a bounded number of connections to one server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millpond_env::{BlockingStream, RealClock, ShmRegion, boot_id};
use millpond_env::{Condvar, Mutex};
use millpond_types::wire::ShmAttach;
use millpond_types::{Tick, Uuid128};

use crate::address::Address;
use crate::connection::{Connection, Deadline, ServerInfo};
use crate::error::{ClientError, ErrorKind};
use crate::options::{ClientOptions, Transport, TransportInUse};
use crate::region::Region;
use crate::stream::Wire;
use crate::tls::TlsStream;

/// First and longest pause after a failed connect, during which calls fail at once.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Longest time for one attempt to connect, so that a silent host fails before a long deadline.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// The same if there are other addresses to try.
const CONNECT_MAX_OF_SEVERAL: Duration = Duration::from_secs(1);
/// An idle connection is checked before use if it was idle for longer than this.
const IDLE_TRUSTED: Duration = Duration::from_millis(5);

/// The server of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its addresses; all are tried.
    pub(crate) addresses: Vec<Address>,
    /// The node that must answer; any node if none.
    pub(crate) node: Option<Uuid128>,
    /// For a node of a cluster, which others can replace: its longest silence in the middle of a
    /// step, and the longest pause after a failed connect.
    pub(crate) patience: Option<Duration>,
}

/// Connections to one server, each lent to one call at a time.
#[derive(Debug)]
pub(crate) struct Pool {
    options: Arc<ClientOptions>,
    tls: Option<Arc<rustls::ClientConfig>>,
    peer: Peer,
    state: Mutex<State>,
    /// Wakes one waiter for a free connection; costs no system call while nobody waits.
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
    /// The address that answered last; it is tried first as long as it answers.
    answered: usize,
    info: Option<ServerInfo>,
    /// Connections with memory of callers as their arenas; not counted in `open`.
    seats: Vec<Weak<Seat>>,
}

/// The connection with a caller's memory as its arena.
#[derive(Debug)]
pub(crate) struct Seat {
    arena: ShmRegion,
    place: Mutex<Place>,
}

#[derive(Debug)]
enum Place {
    Idle(Box<Connection>),
    Lent,
    /// The connection broke: the node no longer shares the memory.
    Lost,
}

impl Seat {
    /// Whether the node still shares the memory, as far as known here.
    pub(crate) fn is_live(&self) -> bool {
        let mut place = self.place.lock();
        if matches!(&*place, Place::Idle(connection) if !connection.is_quiet()) {
            *place = Place::Lost;
        }
        !matches!(*place, Place::Lost)
    }

    /// Its connection, if no call uses it.
    fn take(&self) -> Option<Connection> {
        let mut place = self.place.lock();
        match std::mem::replace(&mut *place, Place::Lent) {
            Place::Idle(connection) if connection.is_quiet() => return Some(*connection),
            Place::Lent => {}
            Place::Idle(_) | Place::Lost => *place = Place::Lost,
        }
        None
    }
}

#[derive(Clone, Debug)]
struct Down {
    until: Tick,
    pause: Duration,
    reason: String,
}

/// A borrowed connection: returns to the pool, or is closed when a call on it failed.
#[derive(Debug)]
pub(crate) struct Lent {
    connection: Option<Connection>,
    pool: Arc<Pool>,
    /// The seat to return to instead of the pool.
    seat: Option<Arc<Seat>>,
}

impl Lent {
    /// The connection, which exists until this is dropped.
    pub(crate) fn get(&mut self) -> Result<&mut Connection, ClientError> {
        self.connection.as_mut().ok_or(ClientError::Closed)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let connection = self.connection.take().filter(|connection| !connection.broken);
        if let Some(seat) = self.seat.take() {
            let back = |connection| Place::Idle(Box::new(connection));
            *seat.place.lock() = connection.map_or(Place::Lost, back);
            return;
        }
        let mut state = self.pool.state.lock();
        match connection {
            Some(connection) if !state.closed => state.idle.push(connection),
            _ => state.open -= 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

impl Pool {
    pub(crate) fn new(
        options: Arc<ClientOptions>,
        tls: Option<Arc<rustls::ClientConfig>>,
        peer: Peer,
    ) -> Arc<Self> {
        let (state, freed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { options, tls, peer, state, freed })
    }

    /// The addresses, for messages.
    pub(crate) fn name(&self) -> String {
        let all: Vec<String> = self.peer.addresses.iter().map(Address::to_string).collect();
        all.join(",")
    }

    pub(crate) fn addresses(&self) -> &[Address] {
        &self.peer.addresses
    }

    /// The server's latest description of itself.
    pub(crate) fn info(&self) -> Option<ServerInfo> {
        self.state.lock().info.clone()
    }

    /// Whether the server is known to be on this host.
    pub(crate) fn is_local(&self) -> bool {
        self.state.lock().local.is_some()
    }

    /// Closes connections that no call uses; the next call makes new ones.
    pub(crate) fn close_idle(&self) {
        let mut state = self.state.lock();
        let idle = std::mem::take(&mut state.idle);
        state.open -= idle.len();
        drop(state);
        drop(idle);
        self.freed.notify_all();
    }

    /// Closes every connection; running calls finish, later ones fail.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.close_idle();
    }

    fn lend(self: &Arc<Self>, connection: Option<Connection>, seat: Option<Arc<Seat>>) -> Lent {
        Lent { connection, pool: Arc::clone(self), seat }
    }

    /// The connection with `bytes` in its arena, if there is one and no call uses it; otherwise any
    /// other.
    pub(crate) fn checkout_for(
        self: &Arc<Self>,
        bytes: Option<&[u8]>,
        deadline: Deadline,
    ) -> Result<Lent, ClientError> {
        let lent = bytes.and_then(|bytes| self.seat_of(bytes));
        lent.map_or_else(|| self.checkout(deadline), Ok)
    }

    fn seat_of(self: &Arc<Self>, bytes: &[u8]) -> Option<Lent> {
        let state = self.state.lock();
        let mut seats = state.seats.iter().filter_map(Weak::upgrade);
        let seat = seats.find(|seat| seat.arena.offset_of(bytes).is_some())?;
        drop(seats);
        if state.closed {
            return None;
        }
        drop(state);
        let connection = seat.take()?;
        Some(self.lend(Some(connection), Some(seat)))
    }

    /// A connection with memory of the caller as its arena; none if this server shares no memory
    /// with this client, or does not answer.
    pub(crate) fn register(
        self: &Arc<Self>,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Option<Region>, ClientError> {
        let Ok(mut lent) = self.checkout(deadline.within(CONNECT_MAX)) else { return Ok(None) };
        let known = lent.get()?;
        if known.transport != TransportInUse::Shm {
            return Ok(None);
        }
        let path = PathBuf::from(known.hello.socket_path.clone());
        drop(lent);
        let name = format!("unix:{}", path.display());
        let mut connection = self.connect_unix(&path, deadline)?;
        match connection.attach(self.attach(bytes as u64), self.options.spin, deadline) {
            Ok(()) => {}
            Err(ClientError::Refused { .. }) if self.options.transport == Transport::Auto => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        if let Some(patience) = self.peer.patience {
            connection.set_patience(patience);
        }
        let Some((arena, memory)) = connection.lend(bytes, deadline)? else {
            let fix = format!(
                "{name} cannot share {bytes} bytes at once: register several smaller regions, or \
                 raise limits.shm_arena of the node"
            );
            return Err(ClientError::argument("bytes", fix));
        };
        let place = Mutex::new(Place::Idle(Box::new(connection)));
        let seat = Arc::new(Seat { arena, place });
        let mut state = self.state.lock();
        state.seats.retain(|seat| seat.strong_count() > 0);
        state.seats.push(Arc::downgrade(&seat));
        drop(state);
        Ok(Some(Region::shared(memory, seat)))
    }

    /// A connection that no other call uses; makes one if necessary.
    pub(crate) fn checkout(self: &Arc<Self>, deadline: Deadline) -> Result<Lent, ClientError> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(ClientError::Closed);
            }
            // The most recently used one first: its memory is warm, and unused ones can be closed.
            while let Some(connection) = state.idle.pop() {
                let idle = RealClock::tick().since(connection.idle_since);
                if idle < IDLE_TRUSTED || connection.is_quiet() {
                    drop(state);
                    return Ok(self.lend(Some(connection), None));
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
                let doing = "waiting for a free connection of the client; open more connections";
                return Err(ClientError::Deadline(deadline.given, doing));
            }
            self.freed.wait_for(&mut state, left);
        }
    }

    /// Connects; the slot in the pool was taken before.
    fn connect_counted(self: &Arc<Self>, deadline: Deadline) -> Result<Lent, ClientError> {
        // Returns the slot if connecting fails.
        let mut lent = self.lend(None, None);
        if let Some(error) = self.down() {
            return Err(error);
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
                lent.connection = Some(connection);
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

    /// Why the server cannot be reached, until the next attempt is due.
    pub(crate) fn down(&self) -> Option<ClientError> {
        let down = self.state.lock().down.clone()?;
        let retry_in = down.until.since(RealClock::tick());
        let is_over = retry_in.is_zero();
        (!is_over).then(|| ClientError::Down {
            address: self.name(),
            reason: down.reason,
            retry_in,
        })
    }

    fn note_down(&self, error: &ClientError) {
        let mut state = self.state.lock();
        // Calls to a cluster wait anyway, so a short pause finds a returning node soon.
        let longest = self.peer.patience.map_or(BACKOFF_MAX, |patience| patience / 4);
        let pause = state.down.as_ref().map_or(BACKOFF_MIN, |down| (down.pause * 2).min(longest));
        let until = RealClock::tick().plus(pause);
        state.down = Some(Down { until, pause, reason: error.to_string() });
        state.local = None;
    }

    /// A separate connection for control: without shared memory, and not counted.
    pub(crate) fn dial(&self, deadline: Deadline) -> Result<Connection, ClientError> {
        self.over_addresses(deadline, |address, limit| match address {
            Address::Unix(path) => self.connect_local(path, Transport::Unix, limit),
            Address::Tcp { .. } => self.connect_tcp(address, limit),
        })
    }

    /// Tries every address, beginning with the one that answered last, so that a dead address is
    /// not preferred.
    fn over_addresses(
        &self,
        deadline: Deadline,
        mut connect: impl FnMut(&Address, Deadline) -> Result<Connection, ClientError>,
    ) -> Result<Connection, ClientError> {
        let count = self.peer.addresses.len();
        let first = self.state.lock().answered;
        let mut last = None;
        for n in 0..count {
            let index = (first + n) % count;
            // The remaining time is divided, so that a silent address leaves time for the others.
            let all = deadline.at.since(RealClock::tick());
            let share = all / u32::try_from(count - n).unwrap_or(u32::MAX);
            let limit = match self.peer.patience {
                Some(patience) => deadline.within(patience.min(share)),
                None if count > 1 => deadline.within(CONNECT_MAX_OF_SEVERAL.min(share)),
                None => deadline,
            };
            match connect(&self.peer.addresses[index], limit) {
                Ok(mut connection) => {
                    if let Some(patience) = self.peer.patience {
                        connection.set_patience(patience);
                    }
                    self.state.lock().answered = index;
                    return Ok(connection);
                }
                Err(error) => last = Some(error),
            }
            if RealClock::tick() >= deadline.at {
                break;
            }
        }
        Err(last.unwrap_or(ClientError::Closed))
    }

    fn connect(&self, deadline: Deadline) -> Result<Connection, ClientError> {
        let known = self.state.lock().local.clone();
        if let Some(path) = known {
            let limit = self.peer.patience.map_or(deadline, |patience| deadline.within(patience));
            if let Ok(mut connection) = self.connect_local(&path, self.options.transport, limit) {
                if let Some(patience) = self.peer.patience {
                    connection.set_patience(patience);
                }
                return Ok(connection);
            }
            self.state.lock().local = None;
        }
        self.over_addresses(deadline, |address, limit| self.connect_at(address, limit))
    }

    fn connect_at(&self, address: &Address, deadline: Deadline) -> Result<Connection, ClientError> {
        let wanted = self.options.transport;
        if let Address::Unix(path) = address {
            return self.connect_local(path, wanted, deadline);
        }
        let remote = self.connect_tcp(address, deadline)?;
        if wanted == Transport::Tcp {
            return Ok(remote);
        }
        match self.upgrade(&remote, deadline) {
            Ok(local) => Ok(local),
            Err(_) if wanted == Transport::Auto => Ok(remote),
            Err(error) => Err(error),
        }
    }

    /// Moves to the Unix socket of the server that answered over TCP, if it is on this host.
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

    fn attach(&self, payload_bytes: u64) -> ShmAttach {
        ShmAttach { payload_bytes, lends: self.options.lends }
    }

    fn connect_local(
        &self,
        path: &Path,
        wanted: Transport,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let mut connection = self.connect_unix(path, deadline)?;
        let attach = self.attach(self.options.arena_bytes);
        match wanted {
            Transport::Shm => {
                connection.attach(attach, self.options.spin, deadline)?;
            }
            Transport::Auto if connection.hello.shm => {
                match connection.attach(attach, self.options.spin, deadline) {
                    // Refused, for instance because too many clients are attached: the socket works
                    // too.
                    Ok(()) | Err(ClientError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Transport::Unix | Transport::Tcp | Transport::Auto => {}
        }
        Ok(connection)
    }

    fn connect_unix(&self, path: &Path, deadline: Deadline) -> Result<Connection, ClientError> {
        let name = format!("unix:{}", path.display());
        let left = deadline.at.since(RealClock::tick()).min(CONNECT_MAX);
        let stream = BlockingStream::connect_unix(path, left)
            .map_err(|error| connect_error(&name, error))?;
        self.hello(name, Wire::Plain(stream), TransportInUse::Unix, deadline)
    }

    /// Connects to one of the present addresses of the name.
    fn connect_tcp(
        &self,
        address: &Address,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let name = address.to_string();
        let resolved = address.resolve(deadline.at).map_err(|error| connect_error(&name, error))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut left = resolved.len();
        for socket in resolved {
            // The remaining time is divided, so that a silent address leaves time for the others.
            let all = deadline.at.since(RealClock::tick());
            let share = all / u32::try_from(left).unwrap_or(u32::MAX);
            let limit = if left > 1 { deadline.within(share) } else { deadline };
            left -= 1;
            match BlockingStream::connect_tcp(socket, share.min(CONNECT_MAX)) {
                Ok(stream) => match self.hello_tcp(address, stream, limit) {
                    Err(error) if left > 0 && error.kind() != ErrorKind::Unauthorized => {
                        last = io::Error::other(error);
                    }
                    done => return done,
                },
                Err(error) => last = error,
            }
        }
        Err(connect_error(&name, last))
    }

    fn hello_tcp(
        &self,
        address: &Address,
        stream: BlockingStream,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let name = address.to_string();
        let (Some(config), Address::Tcp { host, .. }) = (&self.tls, address) else {
            return self.hello(name, Wire::Plain(stream), TransportInUse::Tcp, deadline);
        };
        let tls = TlsStream::new(Arc::clone(config), host, stream)
            .map_err(|error| connect_error(&name, error))?;
        self.hello(name, Wire::Tls(Box::new(tls)), TransportInUse::Tls, deadline)
    }

    fn hello(
        &self,
        name: String,
        wire: Wire,
        transport: TransportInUse,
        deadline: Deadline,
    ) -> Result<Connection, ClientError> {
        let connection = Connection::open(wire, transport, (name, &self.options.token), deadline)?;
        if self.peer.node.is_some_and(|node| node != connection.hello.node) {
            let source = io::Error::other("a different server answers there than the expected one");
            return Err(connect_error(&self.name(), source));
        }
        Ok(connection)
    }
}

fn connect_error(address: &str, source: io::Error) -> ClientError {
    ClientError::Connect { address: address.to_owned(), source }
}
