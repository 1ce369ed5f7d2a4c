//! Frames over a byte stream: TCP, a Unix socket or TLS.

use std::io::{self, IoSlice};
use std::time::Duration;

use millpond_env::{BlockingStream, RealClock};
use millpond_types::limits::META_BYTES_MAX;
use millpond_types::wire::{
    FrameHeader, GetItem, GetReply, HEADER_BYTES, HelloReply, ItemStatus, WireError,
};
use millpond_types::{Crc32c, Tick};

use crate::call::{GetOutcome, Items, Reads, Value};
use crate::tls::TlsStream;

/// Bytes received at once into the connection's own buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Values of at least this length are received straight into the caller's memory; smaller ones
/// through the buffer, which saves a system call per value.
const DIRECT_BYTES: usize = 16 << 10;
/// Bytes received at once into the caller's memory: checksummed while still in the cache.
const PIECE_BYTES: usize = 128 << 10;

/// The kernel keeps a socket's time limit in ticks of up to 10 ms: shorter waits are polled.
const COARSE_WAIT: Duration = Duration::from_millis(10);

/// Bytes of sent values for which a peer gets the patience once more: 2 MiB/s.
const PATIENCE_BYTES: usize = 1 << 20;

/// Why a frame could not be sent or received.
#[derive(Debug)]
pub(crate) enum StreamError {
    Io(io::Error),
    Wire(WireError),
    Unexpected(&'static str),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<WireError> for StreamError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

#[derive(Debug)]
pub(crate) enum Wire {
    Plain(BlockingStream),
    Tls(Box<TlsStream>),
}

impl Wire {
    pub(crate) fn stream(&self) -> &BlockingStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => tls.stream(),
        }
    }

    /// Whether decrypted bytes wait, which the socket does not show.
    fn has_buffered(&mut self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.has_buffered(),
        }
    }

    fn send(&mut self, parts: &[IoSlice<'_>], deadline: Tick) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.send_vectored(parts, deadline),
            Self::Tls(tls) => tls.send(parts, deadline),
        }
    }

    fn recv(&mut self, into: &mut [u8], deadline: Tick) -> io::Result<usize> {
        let got = match self {
            Self::Plain(stream) => stream.recv(into, deadline)?,
            Self::Tls(tls) => tls.recv(into, deadline)?,
        };
        if got == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(got) }
    }
}

/// A byte stream with a receive buffer.
#[derive(Debug)]
pub(crate) struct FrameStream {
    wire: Wire,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Longest time for a peer's next byte in the middle of a frame; the call's deadline if none.
    pub(crate) patience: Option<Duration>,
}

impl FrameStream {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, patience: None }
    }

    /// End of the next step: the call's deadline or the end of the patience.
    fn until(&self, deadline: Tick) -> Tick {
        self.patience.map_or(deadline, |patience| deadline.min(RealClock::tick().plus(patience)))
    }

    /// Waits until the next reply begins to arrive; false when `wait` passed first. As
    /// [`FrameStream::recv_head`] it may receive `ahead` bytes after the header with it.
    pub(crate) fn ready(&mut self, ahead: usize, wait: Duration) -> io::Result<bool> {
        if self.start < self.end || self.wire.has_buffered() {
            return Ok(true);
        }
        let stream = match &self.wire {
            Wire::Plain(stream) if wait >= COARSE_WAIT => stream,
            wire => return wire.stream().poll_readable(wait),
        };
        // Receiving at once costs one system call less than waiting first.
        let limit = (HEADER_BYTES + ahead).min(self.buffer.len());
        match stream.recv(&mut self.buffer[..limit], RealClock::tick().plus(wait)) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                (self.start, self.end) = (0, got);
                Ok(true)
            }
            // If the system gave up the connection, the error has an errno.
            Err(error)
                if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn stream(&self) -> &BlockingStream {
        self.wire.stream()
    }

    /// Whether an idle connection is still usable: nothing was received, not even the end of the
    /// stream.
    pub(crate) fn is_quiet(&self) -> bool {
        self.start == self.end
            && matches!(self.wire.stream().poll_readable(Duration::ZERO), Ok(false))
    }

    /// Sends a frame: header and metadata in `head`, then the values.
    pub(crate) fn send(
        &mut self,
        head: &[u8],
        values: &[Value<'_>],
        deadline: Tick,
    ) -> io::Result<()> {
        if values.is_empty() {
            let until = self.until(deadline);
            return self.wire.send(&[IoSlice::new(head)], until);
        }
        let bytes: usize = values.iter().map(Value::len).sum();
        let deadline = self.patience.map_or(deadline, |patience| {
            let steps = u32::try_from(1 + bytes / PATIENCE_BYTES).unwrap_or(u32::MAX);
            deadline.min(RealClock::tick().plus(patience.saturating_mul(steps)))
        });
        let pieces = values.iter().flat_map(Value::pieces).map(|piece| IoSlice::new(piece));
        let parts: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(head)).chain(pieces).collect();
        self.wire.send(&parts, deadline)
    }

    /// Makes sure that the buffer has at least `n` bytes, and receives at most `ahead` bytes more.
    fn buffered(&mut self, n: usize, ahead: usize, deadline: Tick) -> io::Result<()> {
        if self.buffer.len() < n {
            self.buffer.resize(n, 0);
        }
        if self.start + n > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < n {
            let limit = (self.start + n + ahead).min(self.buffer.len());
            let until = self.until(deadline);
            let room = &mut self.buffer[self.end..limit];
            self.end += self.wire.recv(room, until)?;
        }
        Ok(())
    }

    fn take(&mut self, n: usize) -> &[u8] {
        let bytes = &self.buffer[self.start..self.start + n];
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        bytes
    }

    /// Receives a header and its metadata, and up to `ahead` bytes more with the header.
    pub(crate) fn recv_head(
        &mut self,
        meta: &mut Vec<u8>,
        ahead: usize,
        deadline: Tick,
    ) -> Result<FrameHeader, StreamError> {
        self.buffered(HEADER_BYTES, ahead, deadline)?;
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(self.take(HEADER_BYTES));
        let header = FrameHeader::decode(&head)?;
        let len = header.meta_len as usize;
        if len > META_BYTES_MAX {
            return Err(StreamError::Unexpected("a reply with more metadata than the limit"));
        }
        self.buffered(len, ahead.saturating_sub(len), deadline)?;
        meta.clear();
        meta.extend_from_slice(self.take(len));
        header.check_meta(meta)?;
        Ok(header)
    }

    /// Receives the values of a get into their rooms.
    pub(crate) fn recv_values(
        &mut self,
        header: &FrameHeader,
        reply: &GetReply,
        (items, reads): (&Items, &mut Reads<'_, '_>),
        deadline: Tick,
    ) -> Result<(), StreamError> {
        check_get(reply, (items, reads), u64::from(header.payload_len))?;
        for (index, item) in reply.items.iter().enumerate() {
            let index = items.at(index);
            if !note(item, index, reads) {
                continue;
            }
            let mut crc = Crc32c::EMPTY;
            reads.rooms[index].fill(item.len as usize, |piece| {
                crc = self.recv_into(piece, crc, deadline)?;
                Ok::<(), io::Error>(())
            })?;
            if crc != item.crc {
                reads.out[index] = GetOutcome::Miss;
            }
        }
        Ok(())
    }

    fn recv_into(
        &mut self,
        mut into: &mut [u8],
        mut crc: Crc32c,
        deadline: Tick,
    ) -> io::Result<Crc32c> {
        while !into.is_empty() {
            let here = if self.start < self.end {
                let here = into.len().min(self.end - self.start);
                into[..here].copy_from_slice(self.take(here));
                here
            } else if into.len() < DIRECT_BYTES {
                self.buffered(1, BUFFER_BYTES, deadline)?;
                continue;
            } else {
                let piece = into.len().min(PIECE_BYTES);
                let until = self.until(deadline);
                self.wire.recv(&mut into[..piece], until)?
            };
            crc = crc.append(&into[..here]);
            into = &mut into[here..];
        }
        Ok(crc)
    }
}

/// Most bytes to receive together with the header of a get's reply: everything when the values are
/// small, otherwise the metadata only, so that the values go straight to their rooms.
pub(crate) fn ahead_of_get(rooms: impl ExactSizeIterator<Item = u32>) -> usize {
    let count = rooms.len();
    let (mut sum, mut longest) = (0, 0);
    for room in rooms {
        sum += room as usize;
        longest = longest.max(room as usize);
    }
    let small = count <= 16 && sum < DIRECT_BYTES || longest < DIRECT_BYTES;
    if small { BUFFER_BYTES } else { 12 + count * GetReply::ITEM_BYTES }
}

/// Checks that a get's reply fits the request.
pub(crate) fn check_get(
    reply: &GetReply,
    (items, reads): (&Items, &Reads<'_, '_>),
    payload: u64,
) -> Result<(), StreamError> {
    let mut total = 0;
    for (index, item) in reply.items.iter().enumerate() {
        if item.status == ItemStatus::Ok {
            if item.len as usize > reads.rooms[items.at(index)].len() {
                return Err(StreamError::Unexpected("a value longer than its buffer"));
            }
            total += u64::from(item.len);
        }
    }
    if total == payload { Ok(()) } else { Err(StreamError::Unexpected("a wrong payload length")) }
}

/// Records the meaning of an item's status for the caller, before its bytes are checked; true when
/// it has bytes.
pub(crate) fn note(item: &GetItem, index: usize, reads: &mut Reads<'_, '_>) -> bool {
    reads.out[index] = match item.status {
        ItemStatus::Ok => GetOutcome::Read(item.len),
        ItemStatus::TooLong => GetOutcome::TooLong(item.len),
        ItemStatus::Late | ItemStatus::Busy | ItemStatus::Moved => GetOutcome::Late,
        _ => GetOutcome::Miss,
    };
    if item.status == ItemStatus::Moved {
        reads.moved.push(index);
    }
    item.status == ItemStatus::Ok
}

/// Checks and decodes the answer to a hello.
pub(crate) fn decode_hello(meta: &[u8]) -> Result<HelloReply, StreamError> {
    Ok(HelloReply::decode(meta)?)
}
