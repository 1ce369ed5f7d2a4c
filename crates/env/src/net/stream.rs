//! Connections of one core.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use super::addr::{
    PeerAddr, PeerCredentials, RawAddr, credentials_of, local_of, peer_of, set_nodelay,
    stream_socket,
};
use super::fds;
use super::socket::Socket;
use crate::pool::{Buf, SharedBuf};
use crate::rt::op::{Action, Op};
use crate::rt::result_of;
use crate::sys::{check, check_len};

/// Pieces the kernel takes in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Longest message that is sent at once by a call of its own. Longer ones keep a core busy for 10
/// µs and more, and their sockets are often full.
const SEND_NOW_BYTES: usize = 64 << 10;

/// Bytes to send: small ones in a vector, payloads in a pool buffer.
#[derive(Debug)]
pub enum Piece {
    /// Owned bytes.
    Vec(Vec<u8>),
    /// Bytes of a pool buffer, sent in place.
    Shared(SharedBuf),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Vec(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// The receiving side of a connection.
pub struct ReadHalf {
    socket: Rc<Socket>,
}

/// The sending side of a connection.
pub struct WriteHalf {
    socket: Rc<Socket>,
}

/// A TCP or unix connection, on the core that made it. It closes when it, or both its halves, are
/// dropped.
///
/// Dropping the future of a receive may lose bytes that had arrived, and dropping that of a send
/// may leave it half sent: afterwards the connection can only be closed.
pub struct Stream {
    reader: ReadHalf,
    writer: WriteHalf,
}

/// The length of one kernel transfer.
fn transfer_len(len: usize) -> u32 {
    u32::try_from(len.min(1 << 30)).expect("a transfer fits 32 bits")
}

impl ReadHalf {
    async fn recv<R: 'static>(
        &self,
        into: *mut u8,
        len: usize,
        all: bool,
        owner: R,
    ) -> (R, io::Result<usize>) {
        let action = Action::Recv { fd: self.socket.fd(), into, len: transfer_len(len), all };
        let resource = (owner, Rc::clone(&self.socket));
        // SAFETY: every caller passes `len` writable bytes at `into` that `owner` owns on the heap
        // or in a pool; the count keeps the socket open.
        let (result, (owner, _)) = unsafe { Op::start(&self.socket.core, action, resource) }.await;
        (owner, result_of(result))
    }

    /// Receives up to `into.len() - from` bytes into `into[from..]`; 0 at the end of the stream.
    ///
    /// # Panics
    /// When `from` is not below the length.
    pub async fn read_some(&mut self, mut into: Buf, from: usize) -> (Buf, io::Result<usize>) {
        let room = &mut into[from..];
        assert!(!room.is_empty(), "a receive has room");
        let (place, len) = (room.as_mut_ptr(), room.len());
        self.recv(place, len, false, into).await
    }

    /// Receives until `into[from..]` is full.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer ends the stream first.
    pub async fn read_full(&mut self, mut into: Buf, from: usize) -> (Buf, io::Result<()>) {
        let mut filled = from;
        while filled < into.len() {
            let room = &mut into[filled..];
            let (place, len) = (room.as_mut_ptr(), room.len());
            let (back, result) = self.recv(place, len, true, into).await;
            into = back;
            match result {
                Ok(0) => return (into, Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => filled += got,
                Err(error) => return (into, Err(error)),
            }
        }
        (into, Ok(()))
    }

    /// Receives into the spare capacity of `into` and grows its length; 0 at the end of the stream.
    ///
    /// # Panics
    /// When there is no spare capacity.
    pub async fn read_some_vec(&mut self, mut into: Vec<u8>) -> (Vec<u8>, io::Result<usize>) {
        let room = into.spare_capacity_mut();
        assert!(!room.is_empty(), "a receive has room");
        let (place, len) = (room.as_mut_ptr().cast(), room.len());
        let (mut into, result) = self.recv(place, len, false, into).await;
        if let Ok(got) = result {
            assert!(got <= len, "the kernel received more than there was room for");
            // SAFETY: the kernel has initialised `got` bytes of the spare capacity.
            unsafe { into.set_len(into.len() + got) };
        }
        (into, result)
    }

    /// Receives up to `room` bytes and the descriptors that came with them (unix sockets).
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidData` for more than [`fds::FDS_MAX`] descriptors.
    pub async fn recv_fds(&mut self, room: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let (mut bytes, mut fds) = (vec![0; room], Vec::new());
        loop {
            match fds::try_recv(self.socket.fd(), &mut bytes, &mut fds, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&self.socket, libc::POLLIN).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(got) => {
                    bytes.truncate(got);
                    return Ok((bytes, fds));
                }
            }
        }
    }

    /// Waits until there is something to receive, without receiving it: an idle connection needs no
    /// buffer.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn readable(&mut self) -> io::Result<()> {
        wait_for(&self.socket, libc::POLLIN).await
    }
}

async fn wait_for(socket: &Rc<Socket>, events: i16) -> io::Result<()> {
    let action = Action::Poll { fd: socket.fd(), events };
    // SAFETY: the action points to no memory; the count keeps the socket open.
    let (result, _) = unsafe { Op::start(&socket.core, action, Rc::clone(socket)) }.await;
    result_of(result).map(drop)
}

/// A message being sent, and all memory that the kernel reads for it.
struct Outgoing {
    pieces: Vec<Piece>,
    iov: Vec<libc::iovec>,
    /// Made for the first message of several pieces; boxed, as the kernel reads it in place.
    header: Option<Box<libc::msghdr>>,
    _socket: Rc<Socket>,
    /// First piece with bytes to send, and the number of its bytes already sent.
    next: usize,
    sent: usize,
}

impl Outgoing {
    fn new(pieces: Vec<Piece>, socket: Rc<Socket>) -> Self {
        let iov = Vec::with_capacity(pieces.len().min(PIECES_MAX));
        Self { pieces, iov, header: None, _socket: socket, next: 0, sent: 0 }
    }

    /// Whether sending it now costs less than queueing the send.
    fn is_small(&self) -> bool {
        self.pieces.len() <= 8
            && self.pieces.iter().map(|piece| piece.bytes().len()).sum::<usize>() <= SEND_NOW_BYTES
    }

    /// The action that sends the rest; `None` when the next pieces are empty.
    fn aim(&mut self, fd: RawFd) -> Option<Action> {
        self.iov.clear();
        let mut skip = self.sent;
        for piece in self.pieces[self.next..].iter().take(PIECES_MAX) {
            let bytes = &piece.bytes()[std::mem::take(&mut skip)..];
            if !bytes.is_empty() {
                let base = bytes.as_ptr().cast_mut().cast();
                self.iov.push(libc::iovec { iov_base: base, iov_len: bytes.len() });
            }
        }
        match self.iov.as_slice() {
            [] => None,
            // Cheaper for the kernel than a message of one piece.
            [one] => {
                let len = transfer_len(one.iov_len);
                Some(Action::Send { fd, from: one.iov_base.cast_const().cast(), len })
            }
            [..] => {
                // SAFETY: an all-zero msghdr is valid.
                let empty = || Box::new(unsafe { std::mem::zeroed() });
                let header = self.header.get_or_insert_with(empty);
                header.msg_iov = self.iov.as_mut_ptr();
                header.msg_iovlen = self.iov.len() as _;
                Some(Action::SendMsg { fd, message: &raw const **header })
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.get(self.next) {
            let left = piece.bytes().len() - self.sent;
            if count < left {
                self.sent += count;
                return;
            }
            count -= left;
            self.next += 1;
            self.sent = 0;
        }
        assert!(count == 0, "the kernel sent more than it was given");
    }
}

impl WriteHalf {
    /// Sends all of `parts`, in order, from where they are.
    ///
    /// # Errors
    /// `BrokenPipe` or `ConnectionReset` when the peer is gone.
    pub async fn write_all(&mut self, parts: Vec<SharedBuf>) -> io::Result<()> {
        self.write_all_mixed(parts.into_iter().map(Piece::Shared).collect()).await
    }

    /// Sends all of `pieces`, in order; payloads from where they are.
    ///
    /// # Errors
    /// `BrokenPipe` or `ConnectionReset` when the peer is gone.
    pub async fn write_all_mixed(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        let mut outgoing = Outgoing::new(pieces, Rc::clone(&self.socket));
        if outgoing.is_small() && self.send_now(&mut outgoing)? {
            return Ok(());
        }
        loop {
            let Some(action) = outgoing.aim(self.socket.fd()) else {
                if outgoing.next >= outgoing.pieces.len() {
                    return Ok(());
                }
                // This window has only empty pieces.
                outgoing.next = (outgoing.next + PIECES_MAX).min(outgoing.pieces.len());
                continue;
            };
            // SAFETY: `outgoing` owns the header, the vector and the pieces on the heap or in
            // pools, and a count of the socket.
            let op = unsafe { Op::start(&self.socket.core, action, outgoing) };
            let (result, back) = op.await;
            outgoing = back;
            match result_of(result)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => outgoing.advance(sent),
            }
        }
    }

    /// Sends the bytes that the socket takes at once; true when that was everything.
    ///
    /// A ring would send them no sooner than at the end of the turn, and wake this task once more.
    fn send_now(&self, outgoing: &mut Outgoing) -> io::Result<bool> {
        let fd = self.socket.fd();
        let Some(action) = outgoing.aim(fd) else { return Ok(false) };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let result = match action {
            // SAFETY: `aim` points into memory that `outgoing` owns; the call only reads it.
            Action::Send { from, len, .. } => unsafe {
                libc::send(fd, from.cast(), len as usize, flags)
            },
            // SAFETY: as above.
            Action::SendMsg { message, .. } => unsafe { libc::sendmsg(fd, message, flags) },
            _ => unreachable!("`aim` makes no other action"),
        };
        match check_len(result) {
            Ok(sent) => outgoing.advance(sent),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(outgoing.next >= outgoing.pieces.len())
    }

    /// Sends all of `bytes` and gives the vector back for reuse.
    ///
    /// # Errors
    /// `BrokenPipe` or `ConnectionReset` when the peer is gone.
    pub async fn write_all_vec(&mut self, mut bytes: Vec<u8>) -> (Vec<u8>, io::Result<()>) {
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let (from, len) = (rest.as_ptr(), transfer_len(rest.len()));
            let action = Action::Send { fd: self.socket.fd(), from, len };
            let resource = (bytes, Rc::clone(&self.socket));
            // SAFETY: the vector's heap memory stays where it is; the count keeps the socket open.
            let (result, back) = unsafe { Op::start(&self.socket.core, action, resource) }.await;
            bytes = back.0;
            match result_of(result) {
                Ok(0) => return (bytes, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => sent += count,
                Err(error) => return (bytes, Err(error)),
            }
        }
        (bytes, Ok(()))
    }

    /// Sends `bytes` with `fds` attached to the first of them (unix sockets).
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidInput` for no byte or more than [`fds::FDS_MAX`]
    /// descriptors.
    pub async fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let (mut rest, mut fds) = (bytes, fds);
        loop {
            match fds::try_send(self.socket.fd(), rest, fds, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&self.socket, libc::POLLOUT).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(sent) => {
                    rest = &rest[sent..];
                    fds = &[];
                    if rest.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Ends one or both directions; the other half's pending receive then ends too.
    ///
    /// # Errors
    /// `NotConnected` when the peer is gone already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: plain numbers.
        check(unsafe { libc::shutdown(self.socket.fd(), how) }).map(drop)
    }
}

impl Stream {
    /// Takes a connected socket on this core, Nagle's algorithm off. With [`Stream::into_owned_fd`]
    /// it hands a connection to another core.
    ///
    /// # Errors
    /// Errors of the operating system.
    ///
    /// # Panics
    /// Outside `Runtime::block_on`.
    pub fn from_owned_fd(fd: OwnedFd) -> io::Result<Self> {
        let socket = Socket::adopt(fd)?;
        set_nodelay(socket.fd(), true)?;
        let reader = ReadHalf { socket: Rc::clone(&socket) };
        Ok(Self { reader, writer: WriteHalf { socket } })
    }

    /// Takes the connection off this core.
    ///
    /// # Errors
    /// Gives it back while a dropped operation is still being cancelled.
    pub fn into_owned_fd(self) -> Result<OwnedFd, Self> {
        let Self { reader, writer } = self;
        drop(reader);
        Rc::try_unwrap(writer.socket).map(Socket::release).map_err(|socket| Self {
            reader: ReadHalf { socket: Rc::clone(&socket) },
            writer: WriteHalf { socket },
        })
    }

    /// Connects over TCP.
    ///
    /// # Errors
    /// `ConnectionRefused` and other system errors.
    pub async fn connect_tcp(addr: SocketAddr) -> io::Result<Self> {
        Self::connect(RawAddr::tcp(addr)).await
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused` and other system errors.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        Self::connect(RawAddr::unix(path)?).await
    }

    async fn connect(addr: RawAddr) -> io::Result<Self> {
        let socket = Socket::adopt(stream_socket(addr.family())?)?;
        let addr = Box::new(addr);
        let action = Action::Connect { fd: socket.fd(), address: addr.as_ptr(), len: addr.len() };
        let resource = (addr, Rc::clone(&socket));
        // SAFETY: the address is boxed and the count keeps the socket open.
        let (result, _) = unsafe { Op::start(&socket.core, action, resource) }.await;
        result_of(result)?;
        set_nodelay(socket.fd(), true)?;
        let reader = ReadHalf { socket: Rc::clone(&socket) };
        Ok(Self { reader, writer: WriteHalf { socket } })
    }

    /// Both directions, for two tasks of this core.
    #[must_use]
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Ends the connection with an error when the peer acknowledges nothing for `timeout`. Without
    /// it, the loss of an unreachable peer is detected after a quarter of an hour.
    ///
    /// # Errors
    /// Errors of the operating system; Unix sockets have no such option.
    pub fn set_user_timeout(&self, timeout: std::time::Duration) -> io::Result<()> {
        super::addr::set_user_timeout(self.writer.socket.fd(), timeout)
    }

    /// Address of the peer.
    ///
    /// # Errors
    /// `NotConnected` when the peer is gone already.
    pub fn peer_addr(&self) -> io::Result<PeerAddr> {
        peer_of(self.writer.socket.fd())
    }

    /// The address of this end.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn local_addr(&self) -> io::Result<PeerAddr> {
        local_of(self.writer.socket.fd())
    }

    /// The process at the other end (unix sockets).
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        credentials_of(self.writer.socket.fd())
    }

    /// See [`ReadHalf::read_some`].
    pub async fn read_some(&mut self, into: Buf, from: usize) -> (Buf, io::Result<usize>) {
        self.reader.read_some(into, from).await
    }

    /// See [`ReadHalf::read_full`].
    pub async fn read_full(&mut self, into: Buf, from: usize) -> (Buf, io::Result<()>) {
        self.reader.read_full(into, from).await
    }

    /// See [`ReadHalf::read_some_vec`].
    pub async fn read_some_vec(&mut self, into: Vec<u8>) -> (Vec<u8>, io::Result<usize>) {
        self.reader.read_some_vec(into).await
    }

    /// See [`ReadHalf::recv_fds`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_fds(&mut self, room: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.reader.recv_fds(room).await
    }

    /// See [`ReadHalf::readable`].
    ///
    /// # Errors
    /// As there.
    pub async fn readable(&mut self) -> io::Result<()> {
        self.reader.readable().await
    }

    /// See [`WriteHalf::write_all`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_all(&mut self, parts: Vec<SharedBuf>) -> io::Result<()> {
        self.writer.write_all(parts).await
    }

    /// See [`WriteHalf::write_all_mixed`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_all_mixed(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        self.writer.write_all_mixed(pieces).await
    }

    /// See [`WriteHalf::write_all_vec`].
    pub async fn write_all_vec(&mut self, bytes: Vec<u8>) -> (Vec<u8>, io::Result<()>) {
        self.writer.write_all_vec(bytes).await
    }

    /// See [`WriteHalf::send_fds`].
    ///
    /// # Errors
    /// As there.
    pub async fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.writer.send_fds(bytes, fds).await
    }

    /// See [`WriteHalf::shutdown`].
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.writer.shutdown(how)
    }
}
