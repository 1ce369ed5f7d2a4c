//! Socket addresses in the kernel's shape, and options of sockets.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::{check, own};

/// Address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddr {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A process on this host, through a unix socket.
    Unix,
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

/// The process at the other end of a unix socket, as the kernel recorded it at the connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// An address in the kernel's format.
pub(super) struct RawAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddr {
    fn empty() -> Self {
        // SAFETY: an all-zero sockaddr_storage is valid (an unspecified family).
        let storage = unsafe { std::mem::zeroed() };
        Self { storage, len: len_of::<libc::sockaddr_storage>() }
    }

    pub(super) fn tcp(addr: SocketAddr) -> Self {
        let mut raw = Self::empty();
        let place = &raw mut raw.storage;
        match addr {
            SocketAddr::V4(addr) => {
                let value = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is larger than, and aligned for, every address.
                unsafe { place.cast::<libc::sockaddr_in>().write(value) };
                raw.len = len_of::<libc::sockaddr_in>();
            }
            SocketAddr::V6(addr) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<libc::sockaddr_in6>().write(value) };
                raw.len = len_of::<libc::sockaddr_in6>();
            }
        }
        raw
    }

    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        // SAFETY: an all-zero sockaddr_un is valid.
        let mut value: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        if bytes.is_empty() || bytes.len() >= value.sun_path.len() || bytes.contains(&0) {
            let text = format!(
                "socket path {} must have 1 to {} bytes: use a shorter folder",
                path.display(),
                value.sun_path.len() - 1
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        value.sun_family = family(libc::AF_UNIX);
        for (place, byte) in value.sun_path.iter_mut().zip(bytes) {
            *place = byte.cast_signed();
        }
        let mut raw = Self::empty();
        // SAFETY: the storage is larger than, and aligned for, every address.
        unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_un>().write(value) };
        raw.len = len_of::<libc::sockaddr_un>();
        Ok(raw)
    }

    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(super) const fn len(&self) -> libc::socklen_t {
        self.len
    }

    pub(super) fn family(&self) -> i32 {
        i32::from(self.storage.ss_family)
    }

    fn to_peer(&self) -> io::Result<PeerAddr> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family tells which address the storage holds.
                let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
                Ok(PeerAddr::Tcp(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into()))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let port = u16::from_be(raw.sin6_port);
                let addr = SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id);
                Ok(PeerAddr::Tcp(addr.into()))
            }
            libc::AF_UNIX => Ok(PeerAddr::Unix),
            family => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("address family {family} is neither TCP nor unix"),
            )),
        }
    }
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).expect("address families are small")
}

pub(super) fn len_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("addresses and options are small")
}

type NameCall = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn name_of(fd: RawFd, call: NameCall) -> io::Result<PeerAddr> {
    let mut raw = RawAddr::empty();
    let place = (&raw mut raw.storage).cast();
    // SAFETY: `place` is writable for `raw.len` bytes.
    check(unsafe { call(fd, place, &raw mut raw.len) })?;
    raw.to_peer()
}

pub(super) fn peer_of(fd: RawFd) -> io::Result<PeerAddr> {
    name_of(fd, libc::getpeername)
}

pub(super) fn local_of(fd: RawFd) -> io::Result<PeerAddr> {
    name_of(fd, libc::getsockname)
}

/// A new stream socket.
pub(super) fn stream_socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    own(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

pub(super) fn set_option<T>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let place = std::ptr::from_ref(value).cast();
    // SAFETY: `value` is readable for its own size.
    check(unsafe { libc::setsockopt(fd, level, name, place, len_of::<T>()) }).map(drop)
}

/// Disables Nagle's algorithm; no error on sockets that have none.
pub(super) fn set_nodelay(fd: RawFd, on: bool) -> io::Result<()> {
    match set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &i32::from(on)) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Ends a connection when the peer acknowledges nothing for `timeout` (`TCP_USER_TIMEOUT`).
pub(super) fn set_user_timeout(fd: RawFd, timeout: std::time::Duration) -> io::Result<()> {
    let ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &ms)
}

pub(super) fn set_nonblocking(fd: &impl AsRawFd, on: bool) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: plain numbers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: plain numbers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

pub(super) fn credentials_of(fd: RawFd) -> io::Result<PeerCredentials> {
    let mut raw = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = len_of::<libc::ucred>();
    // SAFETY: `raw` is writable for `len` bytes.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut raw).cast(),
            &raw mut len,
        )
    })?;
    Ok(PeerCredentials { pid: raw.pid, uid: raw.uid, gid: raw.gid })
}
