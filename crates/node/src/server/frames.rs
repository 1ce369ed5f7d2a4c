//! Splitting the received bytes into frames.
//!
//! An idle connection holds no buffer: it waits until there is input and takes a buffer then. Busy
//! connections keep theirs, as long as the core has some to give.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use millpond_env::Buf;
use millpond_types::wire::{FrameHeader, HEADER_BYTES, WireError};

use super::tls::Source;

/// Bytes of a receive buffer: many small requests, or the head of a large one.
const BUFFER_BYTES: usize = 16 << 10;
/// Larger buffers, grown for a large frame, are not kept.
const BUFFER_KEPT_MAX: usize = 64 << 10;
/// Bytes received at once while many small values arrive.
const BATCH_BYTES: usize = 256 << 10;
/// Values below this are received through the buffer, larger ones straight into place.
const DIRECT_MIN: usize = 32 << 10;
/// Connections per core that may keep their buffer while idle: 16 MiB.
const HOT_MAX: usize = 1024;
/// Frames after which a connection counts as busy.
const HOT_AFTER: u32 = 2;

/// The receive buffers of one core.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    free: RefCell<Vec<Vec<u8>>>,
    hot: Cell<usize>,
}

impl Shelf {
    fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
    }

    fn give(&self, mut buffer: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if free.len() < 64 && (BUFFER_BYTES..=BUFFER_KEPT_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            free.push(buffer);
        }
    }
}

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The client closed it between two frames.
    #[error("closed by the client")]
    Closed,
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client breaks the protocol.
    #[error(transparent)]
    Protocol(#[from] WireError),
    /// The server closes it after an answer with the reason.
    #[error("refused")]
    Refused,
}

/// The receiving side of a connection, as frames.
pub(super) struct Frames {
    source: Source,
    shelf: Rc<Shelf>,
    buffer: Vec<u8>,
    /// First byte of the buffer that is not consumed.
    at: usize,
    hot: bool,
    seen: u32,
}

impl Frames {
    /// Starts at the first frame.
    #[must_use]
    pub(super) const fn new(source: Source, shelf: Rc<Shelf>) -> Self {
        Self { source, shelf, buffer: Vec::new(), at: 0, hot: false, seen: 0 }
    }

    fn buffered(&self) -> usize {
        self.buffer.len() - self.at
    }

    /// Whether another whole header was received already.
    #[must_use]
    pub(super) fn has_header(&self) -> bool {
        self.buffered() >= HEADER_BYTES
    }

    /// Makes room for `room` bytes after what is buffered.
    fn make_room(&mut self, room: usize) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        if self.buffer.capacity() == 0 {
            self.buffer = self.shelf.take();
        }
        self.buffer.reserve(room);
    }

    async fn receive(&mut self) -> io::Result<usize> {
        let buffer = std::mem::take(&mut self.buffer);
        let (buffer, got) = self.source.read_vec(buffer).await;
        self.buffer = buffer;
        got
    }

    /// Receives until `len` bytes are buffered.
    async fn ensure(&mut self, len: usize) -> Result<(), Ended> {
        if self.buffered() >= len {
            return Ok(());
        }
        self.make_room(len.saturating_sub(self.buffered()).max(BUFFER_BYTES / 2));
        while self.buffered() < len {
            if self.buffer.capacity() == self.buffer.len() {
                self.make_room(len - self.buffered());
            }
            if self.receive().await? == 0 {
                return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(())
    }

    /// Waits for input with an empty buffer: gives the buffer back, or keeps it if the connection
    /// is busy.
    async fn wait(&mut self) -> Result<(), Ended> {
        self.at = 0;
        self.buffer.clear();
        if self.buffer.capacity() > BUFFER_KEPT_MAX {
            self.buffer = Vec::new();
        }
        if !self.hot && self.seen >= HOT_AFTER && self.shelf.hot.get() < HOT_MAX {
            self.hot = true;
            self.shelf.hot.set(self.shelf.hot.get() + 1);
        }
        if !self.hot {
            self.shelf.give(std::mem::take(&mut self.buffer));
            self.source.readable().await?;
        }
        self.make_room(BUFFER_BYTES);
        if self.receive().await? == 0 { Err(Ended::Closed) } else { Ok(()) }
    }

    /// Reads the next frame's header.
    ///
    /// # Errors
    /// [`Ended::Closed`] at the end of the stream.
    pub(super) async fn header(&mut self) -> Result<FrameHeader, Ended> {
        if self.buffered() == 0 {
            self.wait().await?;
        }
        self.ensure(HEADER_BYTES).await?;
        self.seen = self.seen.saturating_add(1);
        let bytes = self.buffer[self.at..].first_chunk().ok_or(WireError::Truncated)?;
        let header = FrameHeader::decode(bytes)?;
        self.at += HEADER_BYTES;
        Ok(header)
    }

    /// Reads the meta of the frame with the last header, and verifies its checksum.
    ///
    /// # Errors
    /// [`Ended`] if the stream ends or the checksum differs.
    pub(super) async fn meta(&mut self, header: &FrameHeader) -> Result<&[u8], Ended> {
        let len = header.meta_len as usize;
        self.ensure(len).await?;
        let meta = &self.buffer[self.at..self.at + len];
        self.at += len;
        header.check_meta(meta)?;
        Ok(meta)
    }

    /// Fills `into` with payload. `follows` is the number of payload bytes after it.
    ///
    /// # Errors
    /// [`Ended`] if the stream ends.
    pub(super) async fn payload(&mut self, mut into: Buf, follows: usize) -> Result<Buf, Ended> {
        let mut filled = 0;
        loop {
            let wanted = into.len() - filled;
            let here = wanted.min(self.buffered());
            into[filled..filled + here].copy_from_slice(&self.buffer[self.at..self.at + here]);
            self.at += here;
            filled += here;
            if filled == into.len() {
                return Ok(into);
            }
            let wanted = into.len() - filled;
            if wanted >= DIRECT_MIN || follows == 0 {
                let (into, result) = self.source.fill(into, filled).await;
                result?;
                return Ok(into);
            }
            self.make_room((wanted + follows).min(BATCH_BYTES));
            if self.receive().await? == 0 {
                return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Skips `len` bytes of payload.
    ///
    /// # Errors
    /// [`Ended`] if the stream ends.
    pub(super) async fn skip(&mut self, mut len: usize) -> Result<(), Ended> {
        loop {
            let here = len.min(self.buffered());
            self.at += here;
            len -= here;
            if len == 0 {
                return Ok(());
            }
            self.make_room(len.clamp(BUFFER_BYTES, BATCH_BYTES));
            if self.receive().await? == 0 {
                return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.hot {
            self.shelf.hot.set(self.shelf.hot.get() - 1);
        }
        self.shelf.give(std::mem::take(&mut self.buffer));
    }
}
