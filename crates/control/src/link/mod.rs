//! Calls from one node to another: a client of the ordinary protocol on `env`'s loop of a core.
//!
//! `dial` finds addresses, connects and says hello; `connection` sends requests and delivers
//! replies to their callers, in any order. A [`Link`] is one peer: it connects on the first call,
//! and again after a failure.
//!
//! Absent on purpose: payloads (control requests have none), TLS (refused by the configuration),
//! and retries, since only the caller knows whether a request may be repeated.

mod connection;
mod dial;
mod error;

pub(crate) use dial::Dialer;
pub use dial::resolve;
pub use error::LinkError;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::wire::Verb;

use connection::Connection;

/// First pause after a failed connect; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between connects: bounds the time to find a manager that comes back.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// One peer, by its address. Stays on its core.
pub(crate) struct Link {
    dialer: Rc<Dialer>,
    address: String,
    connection: RefCell<Option<Rc<Connection>>>,
    /// Held by the caller that connects; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    /// No connect before this time, after a failure.
    not_before: Cell<Tick>,
    pause: Cell<Duration>,
}

impl Link {
    /// Makes a link to `host:port`, which connects on the first call.
    pub(crate) fn new(dialer: Rc<Dialer>, address: String) -> Self {
        Self {
            dialer,
            address,
            connection: RefCell::default(),
            connecting: tokio::sync::Mutex::new(()),
            not_before: Cell::new(Tick(0)),
            pause: Cell::new(PAUSE_MIN),
        }
    }

    /// Sends a request and waits for the answer until `deadline`. The peer receives
    /// `server_deadline`, which is earlier for requests that wait for news.
    pub(crate) async fn call(
        &self,
        verb: Verb,
        meta: &[u8],
        (deadline, server_deadline): (Tick, Tick),
    ) -> Result<Vec<u8>, LinkError> {
        let connection = self.connected(deadline).await?;
        let outcome = connection.call(verb, meta, (deadline, server_deadline)).await;
        if let Err(error) = &outcome
            && !matches!(error, LinkError::Refused { .. })
        {
            // A late peer may be dead: the next call tries a new connection.
            self.forget(&connection);
        }
        outcome
    }

    fn forget(&self, failed: &Rc<Connection>) {
        let mut current = self.connection.borrow_mut();
        if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, failed)) {
            let gone = current.take();
            drop(current);
            drop(gone);
        }
    }

    fn live(&self) -> Option<Rc<Connection>> {
        self.connection.borrow().as_ref().filter(|connection| connection.is_open()).cloned()
    }

    async fn connected(&self, deadline: Tick) -> Result<Rc<Connection>, LinkError> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let wait = self.connecting.lock();
        let left = deadline.since(RealClock::tick());
        let Ok(_turn) = millpond_env::timeout(left, wait).await else {
            return Err(LinkError::Deadline(self.address.clone()));
        };
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let resume = self.not_before.get().min(deadline);
        if resume > RealClock::tick() {
            millpond_env::sleep_until(resume).await;
        }
        match self.dialer.dial(&self.address, deadline).await {
            Ok(peer) => {
                self.pause.set(PAUSE_MIN);
                let connection = Connection::start(self.address.clone(), peer);
                *self.connection.borrow_mut() = Some(Rc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                self.not_before.set(RealClock::tick().plus(self.pause.get()));
                self.pause.set((self.pause.get() * 2).min(PAUSE_MAX));
                Err(error)
            }
        }
    }
}
