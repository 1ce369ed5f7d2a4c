//! Sockets: asynchronous ones for servers, blocking ones for clients.

mod addr;
mod blocking;
mod fds;
mod listener;
mod local;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use addr::{PeerAddr, PeerCredentials, lookup_host};
pub use blocking::{BlockingStream, RawSegment};
pub use fds::FDS_MAX;
pub use listener::{TcpListener, UnixListener};
pub use local::LocalListener;
pub use stream::{Piece, ReadHalf, Stream, WriteHalf};
