//! Little-endian reading and writing of untrusted bytes.

use crate::ids::{BlockKey, KeyError};

/// Malformed bytes from the network or disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the value does.
    #[error("message ends early")]
    Truncated,
    /// Bytes remain after the last field.
    #[error("message has {0} bytes after its last field")]
    Trailing(usize),
    /// A field has an invalid value.
    #[error("field '{0}' has a value out of its range")]
    Field(&'static str),
    /// A key is empty or too long.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The frame does not start with the magic number: the peer uses another protocol.
    #[error("not a Millpond frame: is this address a Millpond server?")]
    Magic,
    /// This build does not support the peer's protocol version.
    #[error("protocol version {0} is not supported by this build: upgrade the older side")]
    Version(u8),
    /// A checksum does not match.
    #[error("checksum of the {0} does not match: the bytes were damaged in transit")]
    Checksum(&'static str),
    /// A reply does not prove that it answers the request with its id.
    #[error("the reply belongs to another request: another thread or program uses this connection")]
    Answer,
}

/// Reads values off a byte slice.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when fewer remain; this holds for all methods below.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(WireError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.bytes(N)?.try_into().map_err(|_| WireError::Truncated)
    }

    /// The remaining bytes.
    #[must_use]
    pub const fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// One byte.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of elements, at most `max`, each of at least `each` bytes.
    ///
    /// # Errors
    /// [`WireError::Field`] named `what` over `max`; [`WireError::Truncated`] when the remaining
    /// bytes cannot hold the elements, so that a short message never causes a large allocation.
    pub fn count(
        &mut self,
        max: usize,
        each: usize,
        what: &'static str,
    ) -> Result<usize, WireError> {
        let n = self.u32()? as usize;
        if n > max {
            return Err(WireError::Field(what));
        }
        if n.saturating_mul(each) > self.rest.len() {
            return Err(WireError::Truncated);
        }
        Ok(n)
    }

    /// A key: one length byte, then its bytes.
    ///
    /// # Errors
    /// [`WireError::Key`] when it is empty or too long.
    pub fn key(&mut self) -> Result<BlockKey, WireError> {
        let n = usize::from(self.u8()?);
        Ok(BlockKey::new(self.bytes(n)?)?)
    }

    /// Text of up to 255 bytes of UTF-8.
    ///
    /// # Errors
    /// [`WireError::Field`] when it is not UTF-8.
    pub fn str8(&mut self) -> Result<&'a str, WireError> {
        let n = usize::from(self.u8()?);
        std::str::from_utf8(self.bytes(n)?).map_err(|_| WireError::Field("text"))
    }

    /// Bytes with a 16-bit length, at most `max`.
    ///
    /// # Errors
    /// [`WireError::Field`] named `what` over `max`.
    pub fn bytes16(&mut self, max: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let n = usize::from(self.u16()?);
        if n > max {
            return Err(WireError::Field(what));
        }
        self.bytes(n)
    }

    /// True when no byte remains.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Ends reading.
    ///
    /// # Errors
    /// [`WireError::Trailing`] when bytes remain.
    pub fn finish(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(WireError::Trailing(n)),
        }
    }
}

/// Appends values to a byte vector.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Starts empty with room for `n` bytes.
    #[must_use]
    pub fn with_capacity(n: usize) -> Self {
        Self { bytes: Vec::with_capacity(n) }
    }

    /// The bytes written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    /// Appends one byte.
    pub fn u8(&mut self, v: u8) {
        self.bytes.push(v);
    }
    /// Appends two bytes.
    pub fn u16(&mut self, v: u16) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends four bytes.
    pub fn u32(&mut self, v: u32) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.raw(&v.to_le_bytes());
    }
    /// Appends a count of elements.
    ///
    /// # Panics
    /// When `n` is over `u32::MAX`, which the limits exclude.
    pub fn count(&mut self, n: usize) {
        self.u32(u32::try_from(n).expect("limits keep counts below 2^32"));
    }
    /// Appends a key.
    pub fn key(&mut self, key: &BlockKey) {
        let bytes = key.as_bytes();
        self.u8(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
        self.raw(bytes);
    }
    /// Appends text, cut at 255 bytes on a character boundary.
    pub fn str8(&mut self, text: &str) {
        let mut end = text.len().min(255);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u8(u8::try_from(end).unwrap_or(u8::MAX));
        self.raw(&text.as_bytes()[..end]);
    }
    /// Appends bytes with a 16-bit length.
    ///
    /// # Panics
    /// When `bytes` is longer than 65,535, which the limits exclude.
    pub fn bytes16(&mut self, bytes: &[u8]) {
        self.u16(u16::try_from(bytes.len()).expect("limits keep these below 64 KiB"));
        self.raw(bytes);
    }
}
