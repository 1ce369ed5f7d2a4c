//! Options of a client.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{Address, Addresses};
use crate::error::ClientError;
use crate::meta::OwnMeta;
use crate::own::{OwnNode, OwnPlace};

/// Most connections of one client to one server: each is served by one core of the server.
const CONNECTIONS_MAX: usize = 64;

/// The transport to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory or the Unix socket when the server is on this host, otherwise TCP.
    #[default]
    Auto,
    /// TCP, even on the same host.
    Tcp,
    /// The server's Unix socket.
    Unix,
    /// Shared memory, set up over the Unix socket.
    Shm,
}

impl FromStr for Transport {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcp" => Ok(Self::Tcp),
            "unix" => Ok(Self::Unix),
            "shm" => Ok(Self::Shm),
            _ => Err(ClientError::argument(
                "transport",
                format!("'{text}' is not one of auto, tcp, unix and shm"),
            )),
        }
    }
}

/// The transport in use by a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportInUse {
    /// Plain TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// A Unix socket.
    Unix,
    /// Shared memory.
    Shm,
}

impl fmt::Display for TransportInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Unix => "unix",
            Self::Shm => "shm",
        })
    }
}

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Addresses of the server, or of some nodes of the cluster.
    pub addresses: Addresses,
    /// The credential; empty when the server asks for none.
    pub token: String,
    /// The transport to use.
    pub transport: Transport,
    /// PEM file with the certificates that sign the server's; if it is given, the client uses TLS.
    pub tls_ca: Option<PathBuf>,
    /// Deadline of a call that has none of its own.
    pub deadline: Duration,
    /// Most connections to one server: this many calls run at the same time, others wait for a
    /// connection.
    pub connections: usize,
    /// Time for which a caller polls for a reply through shared memory before it sleeps. Short,
    /// because longer polling slows down the server on hosts with few cores. The default is a guess
    /// between 0 and 20 µs; a busy two-core machine showed a difference in p99 only, not in the
    /// median. Replies from sockets are not polled for.
    pub spin: Duration,
    /// Bytes of the arena for puts through shared memory, per connection; larger values use the
    /// socket.
    pub arena_bytes: u64,
    /// Whether connections to a node on this host allow it to lend its memory
    /// ([`crate::Client::lend_chunks`]).
    pub lends: bool,
    /// The meta in this process, if there is one: it is asked first.
    pub own_meta: Option<Arc<dyn OwnMeta>>,
    /// The node in this process, if there is one: [`crate::File::read_here`] reads from it.
    pub own_node: Option<Arc<dyn OwnNode>>,
    /// The address at which this process reaches its own node, instead of the one in the routing.
    pub own_place: Option<OwnPlace>,
}

impl ClientOptions {
    /// The defaults for the server, or the cluster, at `addresses`.
    #[must_use]
    pub fn new(addresses: Addresses) -> Self {
        Self {
            addresses,
            token: String::new(),
            transport: Transport::Auto,
            tls_ca: None,
            deadline: Duration::from_secs(5),
            connections: 4,
            spin: Duration::from_micros(5),
            arena_bytes: 32 << 20,
            lends: false,
            own_meta: None,
            own_node: None,
            own_place: None,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`ClientError::Argument`] naming the field.
    pub fn validate(&self) -> Result<(), ClientError> {
        if self.connections == 0 || self.connections > CONNECTIONS_MAX {
            let fix = format!("{} is not between 1 and {CONNECTIONS_MAX}", self.connections);
            return Err(ClientError::argument("connections", fix));
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_hours(1) {
            return Err(ClientError::argument("deadline_ms", "must be between 1 and 3,600,000"));
        }
        if self.token.len() > millpond_types::limits::TOKEN_BYTES_MAX {
            return Err(ClientError::argument("token", "is longer than 4,096 bytes"));
        }
        let unix = self.addresses.all().iter().any(|address| matches!(address, Address::Unix(_)));
        if unix && self.transport == Transport::Tcp {
            let fix = "`tcp` needs a host:port address, not a Unix socket";
            return Err(ClientError::argument("transport", fix));
        }
        if unix && self.tls_ca.is_some() {
            return Err(ClientError::argument(
                "tls_ca",
                "a Unix socket does not use TLS: leave tls_ca out",
            ));
        }
        Ok(())
    }
}
