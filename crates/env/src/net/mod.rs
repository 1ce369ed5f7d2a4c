//! Sockets: asynchronous ones for servers, blocking ones for clients.

mod addr;
mod blocking;
mod fds;
mod listener;
mod local;
mod lookup;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use addr::{PeerAddr, PeerCredentials};
pub use blocking::{BlockingStream, RawSegment};
pub use fds::FDS_MAX;
pub use listener::{TcpListener, UnixListener};
pub use local::LocalListener;
pub use lookup::{lookup, lookup_async, lookup_host, lookup_unbounded};
pub use stream::{Piece, ReadHalf, Stream, WriteHalf};
