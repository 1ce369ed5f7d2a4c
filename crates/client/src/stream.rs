//! Frames over a byte stream: TCP, a Unix socket or TLS.

use std::io::{self, IoSlice};
use std::time::Duration;

use millpond_env::BlockingStream;
use millpond_types::limits::META_BYTES_MAX;
use millpond_types::wire::{
    FrameHeader, GetItem, GetReply, HEADER_BYTES, HelloReply, ItemStatus, WireError,
};
use millpond_types::{Crc32c, Tick};

use crate::call::{GetOutcome, Room, Value};
use crate::tls::TlsStream;

/// Bytes received at once into the connection's own buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Values from here on are received straight into the caller's memory; smaller ones through the
/// buffer, which saves a system call per value.
const DIRECT_BYTES: usize = 16 << 10;
/// Bytes received at once into the caller's memory: checksummed while still in the cache.
const PIECE_BYTES: usize = 128 << 10;

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
}

impl FrameStream {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    pub(crate) fn stream(&self) -> &BlockingStream {
        self.wire.stream()
    }

    /// True when an idle connection is still usable: nothing was received, not even an end.
    pub(crate) fn is_quiet(&self) -> bool {
        self.start == self.end
            && matches!(self.wire.stream().poll_readable(Duration::ZERO), Ok(false))
    }

    /// Sends a frame: header and meta in `head`, then the values.
    pub(crate) fn send(
        &mut self,
        head: &[u8],
        values: &[Value<'_>],
        deadline: Tick,
    ) -> io::Result<()> {
        if values.is_empty() {
            return self.wire.send(&[IoSlice::new(head)], deadline);
        }
        let pieces = values.iter().flat_map(Value::pieces).map(|piece| IoSlice::new(piece));
        let parts: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(head)).chain(pieces).collect();
        self.wire.send(&parts, deadline)
    }

    /// Has at least `n` bytes in the buffer, received with no more than `ahead` bytes beyond.
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
            let room = &mut self.buffer[self.end..limit];
            self.end += self.wire.recv(room, deadline)?;
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

    /// Receives a header and its meta. `ahead` bytes more are welcome with the header.
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
            return Err(StreamError::Unexpected("a reply with more meta than the limit"));
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
        (rooms, out): (&mut [Room<'_>], &mut [GetOutcome]),
        deadline: Tick,
    ) -> Result<(), StreamError> {
        check_get(reply, rooms, u64::from(header.payload_len))?;
        for ((item, room), out) in reply.items.iter().zip(rooms).zip(out) {
            *out = outcome(item);
            if item.status != ItemStatus::Ok {
                continue;
            }
            let mut crc = Crc32c::EMPTY;
            room.fill(item.len as usize, |piece| {
                crc = self.recv_into(piece, crc, deadline)?;
                Ok::<(), io::Error>(())
            })?;
            if crc != item.crc {
                *out = GetOutcome::Miss;
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
                self.wire.recv(&mut into[..piece], deadline)?
            };
            crc = crc.append(&into[..here]);
            into = &mut into[here..];
        }
        Ok(crc)
    }
}

/// Bytes that may be received together with the header of a get's reply: everything when the
/// values are small, else the meta only, so that the values go straight to their rooms.
pub(crate) fn ahead_of_get(rooms: &[Room<'_>]) -> usize {
    let small = rooms.len() <= 16 && rooms.iter().map(Room::len).sum::<usize>() < DIRECT_BYTES;
    let all_small = rooms.iter().all(|room| room.len() < DIRECT_BYTES);
    if small || all_small { BUFFER_BYTES } else { 12 + rooms.len() * GetReply::ITEM_BYTES }
}

/// Checks what a get's reply claims against what was asked.
pub(crate) fn check_get(
    reply: &GetReply,
    rooms: &[Room<'_>],
    payload: u64,
) -> Result<(), StreamError> {
    if reply.items.len() != rooms.len() {
        return Err(StreamError::Unexpected("a get's reply with another number of items"));
    }
    let mut total = 0;
    for (item, room) in reply.items.iter().zip(rooms) {
        if item.status == ItemStatus::Ok {
            if item.len as usize > room.len() {
                return Err(StreamError::Unexpected("a value longer than its room"));
            }
            total += u64::from(item.len);
        }
    }
    if total == payload { Ok(()) } else { Err(StreamError::Unexpected("a wrong payload length")) }
}

/// What an item's status means to the caller, before its bytes are checked.
pub(crate) fn outcome(item: &GetItem) -> GetOutcome {
    match item.status {
        ItemStatus::Ok => GetOutcome::Read(item.len),
        ItemStatus::TooLong => GetOutcome::TooLong(item.len),
        ItemStatus::Late | ItemStatus::Busy => GetOutcome::Late,
        _ => GetOutcome::Miss,
    }
}

/// Checks and decodes the answer to a hello.
pub(crate) fn decode_hello(meta: &[u8]) -> Result<HelloReply, StreamError> {
    Ok(HelloReply::decode(meta)?)
}
