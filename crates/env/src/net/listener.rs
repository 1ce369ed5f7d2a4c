//! Listeners.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::addr::{PeerAddr, RawAddr, local_of, set_option, stream_socket};
use super::socket::Socket;
use super::stream::Stream;
use crate::rt::op::{Action, Op};
use crate::rt::result_of;
use crate::sys::{check, own};

/// Connections the kernel keeps before they are accepted; it cuts this to `somaxconn`.
const BACKLOG: i32 = 4096;

async fn accept(socket: &Rc<Socket>) -> io::Result<Stream> {
    let action = Action::Accept { fd: socket.fd() };
    // SAFETY: the action points to no memory; the count keeps the listener open.
    let (result, _) = unsafe { Op::start(&socket.core, action, Rc::clone(socket)) }.await;
    result_of(result)?;
    Stream::from_owned_fd(own(result)?)
}

fn listen(fd: &OwnedFd, addr: &RawAddr) -> io::Result<()> {
    // SAFETY: `addr` is an address of its own length.
    check(unsafe { libc::bind(fd.as_raw_fd(), addr.as_ptr(), addr.len()) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) }).map(drop)
}

/// Accepts TCP connections on the core that made it.
pub struct TcpListener {
    socket: Rc<Socket>,
}

impl TcpListener {
    /// Listens on `addr`; port 0 picks a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `PermissionDenied` and other system errors.
    ///
    /// # Panics
    /// Outside `Runtime::block_on`.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::bind_with(addr, false)
    }

    /// As [`TcpListener::bind`], sharing the port with listeners of other cores that do the same
    /// (`SO_REUSEPORT`): the kernel spreads connections over them.
    ///
    /// # Errors
    /// As for `bind`.
    pub fn bind_shared(addr: SocketAddr) -> io::Result<Self> {
        Self::bind_with(addr, true)
    }

    fn bind_with(addr: SocketAddr, shared: bool) -> io::Result<Self> {
        let addr = RawAddr::tcp(addr);
        let fd = stream_socket(addr.family())?;
        set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
        if shared {
            set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &1i32)?;
        }
        listen(&fd, &addr)?;
        Ok(Self { socket: Socket::adopt(fd)? })
    }

    /// The next connection, with Nagle's algorithm off.
    ///
    /// # Errors
    /// Errors of the operating system. Some are temporary, a lack of descriptors for instance:
    /// retry later.
    pub async fn accept(&self) -> io::Result<Stream> {
        accept(&self.socket).await
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match local_of(self.socket.fd())? {
            PeerAddr::Tcp(addr) => Ok(addr),
            PeerAddr::Unix => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// Accepts connections on a path, on the core that made it. Removes the path when dropped.
pub struct UnixListener {
    socket: Rc<Socket>,
    path: PathBuf,
}

impl UnixListener {
    /// Listens on `path`. A stale socket without a listener is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when another listener is there; `InvalidInput` for a path over 107 bytes.
    ///
    /// # Panics
    /// Outside `Runtime::block_on`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let addr = RawAddr::unix(path)?;
        let mut fd = stream_socket(libc::AF_UNIX)?;
        if let Err(error) = listen(&fd, &addr) {
            if error.kind() != io::ErrorKind::AddrInUse || !is_stale(path, &addr)? {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            fd = stream_socket(libc::AF_UNIX)?;
            listen(&fd, &addr)?;
        }
        Ok(Self { socket: Socket::adopt(fd)?, path: path.to_owned() })
    }

    /// The next connection.
    ///
    /// # Errors
    /// As for [`TcpListener::accept`].
    pub async fn accept(&self) -> io::Result<Stream> {
        accept(&self.socket).await
    }

    /// The path it listens on.
    #[must_use]
    pub fn local_addr(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// True for a socket file whose listener is gone.
fn is_stale(path: &Path, addr: &RawAddr) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = stream_socket(libc::AF_UNIX)?;
    super::addr::set_nonblocking(&probe, true)?;
    // SAFETY: `addr` is an address of its own length.
    let result = check(unsafe { libc::connect(probe.as_raw_fd(), addr.as_ptr(), addr.len()) });
    Ok(matches!(result, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused))
}
