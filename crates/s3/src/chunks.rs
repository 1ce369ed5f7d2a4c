//! Chunked bodies (`aws-chunked`) on their way to `s3s`, which buffers a whole chunk before it
//! passes it on. Unsigned chunks are split into the pieces in which they arrive, so nothing waits
//! for their end. A signed chunk cannot be split: its size is bounded, and its memory is accounted
//! for. Signatures, trailers and lengths are left to `s3s`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::header::{AUTHORIZATION, HeaderMap};
use memchr::memchr;
use s3s::{Body, StdError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The longest signed chunk in bytes. AWS clients use 64 KiB to 1 MiB.
pub(crate) const SIGNED_MAX: u64 = 16 << 20;
/// Memory for signed chunks, in KiB.
const SIGNED_KIB: usize = 64 << 10;
/// How long a chunk waits for memory: less than a body may stall.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest line before a chunk, as in `s3s`.
const LINE_MAX: usize = 1 << 10;

/// Errors of a body, distinguished by their text like the errors of `s3s`.
pub(crate) const TOO_LONG: &str = "SignedChunkTooLong";
pub(crate) const NO_MEMORY: &str = "NoMemoryForSignedChunks";
/// The texts of `s3s` for these errors.
const MALFORMED: &str = "FormatError";
const INCOMPLETE: &str = "Incomplete";

/// State shared by chunked bodies.
pub(crate) struct Chunks {
    /// Memory for signed chunks, in KiB.
    memory: Arc<Semaphore>,
}

impl Chunks {
    pub(crate) fn new() -> Self {
        Self { memory: Arc::new(Semaphore::new(SIGNED_KIB)) }
    }

    /// Prepares a body for `s3s`; a body without chunks stays unchanged.
    pub(crate) fn of(&self, headers: &HeaderMap, body: Body) -> Body {
        if !is_chunked(headers) {
            return body;
        }
        let memory = Arc::clone(&self.memory);
        let cutter = Cutter::default();
        let pieces =
            Pieces { body, input: Bytes::new(), cutter, memory, held: None, is_over: false };
        let frames = stream::unfold(pieces, |mut pieces| async move {
            let next = pieces.next().await?;
            Some((next.map(Frame::data), pieces))
        });
        Body::http_body_unsync(StreamBody::new(frames))
    }
}

/// Whether `s3s` treats a body as chunked: its signature is in the headers and declares chunks.
fn is_chunked(headers: &HeaderMap) -> bool {
    let begins = |name: &str, with: &[u8]| {
        headers.get(name).is_some_and(|value| value.as_bytes().starts_with(with))
    };
    begins(AUTHORIZATION.as_str(), b"AWS4-") && begins("x-amz-content-sha256", b"STREAMING-")
}

/// A body, and the pieces to pass on next.
struct Pieces {
    body: Body,
    input: Bytes,
    cutter: Cutter,
    memory: Arc<Semaphore>,
    /// Memory of the signed chunk that `s3s` is buffering.
    held: Option<OwnedSemaphorePermit>,
    is_over: bool,
}

impl Pieces {
    async fn next(&mut self) -> Option<Result<Bytes, StdError>> {
        loop {
            if let Some(piece) = self.cutter.out.pop_front() {
                return Some(Ok(piece));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.more().await {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }

    async fn more(&mut self) -> Result<(), StdError> {
        if self.input.is_empty() {
            if let Some(next) = self.body.next().await {
                self.input = next?;
            } else {
                self.is_over = true;
                self.cutter.end()?;
            }
        }
        match self.cutter.step(&mut self.input)? {
            None => Ok(()),
            Some(len) => self.hold(len).await,
        }
    }

    /// Takes memory for a chunk; `s3s` has released the previous one by the time it asks for this.
    async fn hold(&mut self, len: u64) -> Result<(), StdError> {
        self.held = None;
        let kib = u32::try_from(len.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.memory).acquire_many_owned(kib);
        match tokio::time::timeout(PATIENCE, taken).await {
            Ok(Ok(permit)) => {
                self.held = Some(permit);
                Ok(())
            }
            _ => Err(NO_MEMORY.into()),
        }
    }
}

/// The position in a body.
#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// In the line before a chunk.
    #[default]
    Line,
    /// In a chunk with `left` bytes to come.
    Data { left: u64, is_signed: bool },
    /// After a chunk: `seen` bytes of its line end have arrived.
    End { seen: usize, is_signed: bool },
    /// After the last chunk.
    Rest,
}

/// Splits a body.
#[derive(Debug, Default)]
struct Cutter {
    state: State,
    /// The beginning of a line.
    line: Vec<u8>,
    /// The pieces to pass on next.
    out: VecDeque<Bytes>,
}

impl Cutter {
    /// Consumes some input. Returns the length of a signed chunk that begins with it, and 0 after
    /// the last chunk.
    fn step(&mut self, input: &mut Bytes) -> Result<Option<u64>, &'static str> {
        if input.is_empty() {
            return Ok(None);
        }
        match self.state {
            State::Line => return self.line(input),
            State::Data { left, is_signed } => self.data(input, (left, is_signed)),
            State::End { seen, is_signed } => {
                let end = input.split_to(input.len().min(2 - seen));
                let seen_now = seen + end.len();
                if end[..] != b"\r\n"[seen..seen_now] {
                    return Err(MALFORMED);
                }
                if is_signed {
                    self.out.push_back(end);
                }
                let is_line = seen_now == 2;
                self.state =
                    if is_line { State::Line } else { State::End { seen: seen_now, is_signed } };
            }
            State::Rest => self.out.push_back(std::mem::take(input)),
        }
        Ok(None)
    }

    fn line(&mut self, input: &mut Bytes) -> Result<Option<u64>, &'static str> {
        let len = memchr(b'\n', input).map_or(input.len(), |at| at + 1);
        if self.line.len() + len > LINE_MAX {
            return Err(MALFORMED);
        }
        self.line.extend_from_slice(&input.split_to(len));
        if !self.line.ends_with(b"\n") {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        let (left, is_signed) = parsed(&line).ok_or(MALFORMED)?;
        if is_signed && left > SIGNED_MAX {
            return Err(TOO_LONG);
        }
        let is_last = left == 0;
        self.state = if is_last { State::Rest } else { State::Data { left, is_signed } };
        // The pieces of a split chunk get their own lines.
        if is_last || is_signed {
            self.out.push_back(line.into());
        }
        Ok((is_last || is_signed).then_some(left))
    }

    fn data(&mut self, input: &mut Bytes, (left, is_signed): (u64, bool)) {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let piece = input.split_to(len);
        if is_signed {
            self.out.push_back(piece);
        } else {
            let line = format!("{len:x}\r\n");
            self.out.extend([line.into(), piece, Bytes::from_static(b"\r\n")]);
        }
        let left = left - len as u64;
        self.state = if left == 0 {
            State::End { seen: 0, is_signed }
        } else {
            State::Data { left, is_signed }
        };
    }

    /// The end of the input.
    fn end(&mut self) -> Result<(), &'static str> {
        match self.state {
            State::Data { .. } | State::End { .. } => Err(INCOMPLETE),
            State::Line | State::Rest => {
                let line = std::mem::take(&mut self.line);
                self.out.extend(Some(line).filter(|line| !line.is_empty()).map(Bytes::from));
                Ok(())
            }
        }
    }
}

/// The length in the line before a chunk, and whether a signature follows it.
fn parsed(line: &[u8]) -> Option<(u64, bool)> {
    let line = line.strip_suffix(b"\r\n")?;
    let (len, is_signed) = match memchr(b';', line) {
        Some(at) => (&line[..at], true),
        None => (line, false),
    };
    // `s3s` reads the first eight digits of a line, and gets only lines of that form.
    let digits_max = if is_signed { 8 } else { 16 };
    if len.len() > digits_max || !len.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let len = u64::from_str_radix(std::str::from_utf8(len).ok()?, 16).ok()?;
    Some((len, is_signed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::Rng;

    const TRAILER: &[u8] = b"x-amz-checksum-crc32:AAAA\r\n\r\n";

    /// Splits a body that arrives in pieces: returns the output and the final result.
    fn cut<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Result<(), &'static str>) {
        let (mut cutter, mut all) = (Cutter::default(), Vec::new());
        let mut take = |cutter: &mut Cutter| {
            cutter.out.drain(..).for_each(|piece| all.extend_from_slice(&piece));
        };
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while !input.is_empty() {
                if let Err(error) = cutter.step(&mut input) {
                    return (all, Err(error));
                }
                take(&mut cutter);
            }
        }
        let end = cutter.end();
        take(&mut cutter);
        (all, end)
    }

    /// The bytes of unsigned chunks, the length of the longest, and the rest after the last.
    fn decoded(mut body: &[u8]) -> (Vec<u8>, usize, &[u8]) {
        let (mut all, mut longest) = (Vec::new(), 0);
        loop {
            let at = memchr(b'\n', body).unwrap();
            let (len, _) = parsed(&body[..=at]).unwrap();
            let len = usize::try_from(len).unwrap();
            body = &body[at + 1..];
            if len == 0 {
                return (all, longest, body);
            }
            all.extend_from_slice(&body[..len]);
            assert_eq!(body[len..len + 2], *b"\r\n");
            body = &body[len + 2..];
            longest = longest.max(len);
        }
    }

    fn chunk(line: &str, bytes: &[u8]) -> Vec<u8> {
        [line.as_bytes(), b"\r\n", bytes, b"\r\n"].concat()
    }

    /// Pieces of random lengths up to `len_max`.
    fn split<'a>(mut body: &'a [u8], len_max: usize, rng: &mut Rng) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        while !body.is_empty() {
            let (piece, rest) = body.split_at((1 + rng.index(len_max)).min(body.len()));
            pieces.push(piece);
            body = rest;
        }
        pieces
    }

    #[test]
    fn unsigned_chunks_are_cut_wherever_they_are_split() {
        let mut rng = Rng::new(7);
        for round in 0..300 {
            let mut bytes = vec![0; rng.index(5_000)];
            rng.fill(&mut bytes);
            let chunk_max = 1 + rng.index(6_000);
            let mut body = Vec::new();
            for data in split(&bytes, chunk_max, &mut rng) {
                let line = if rng.chance(1, 2) {
                    format!("{:x}", data.len())
                } else {
                    format!("{:09X}", data.len())
                };
                body.extend(chunk(&line, data));
            }
            body.extend([b"0\r\n", TRAILER].concat());
            let piece_max = 1 + rng.index(2_000);
            let (out, end) = cut(split(&body, piece_max, &mut rng));
            assert_eq!(end, Ok(()), "{round}");
            let (found, longest, rest) = decoded(&out);
            assert!(found == bytes && rest == TRAILER, "{round}");
            assert!(longest <= piece_max, "{round}: {longest} of {piece_max}");
        }
    }

    #[test]
    fn nothing_waits_for_the_end_of_an_unsigned_chunk() {
        let mut cutter = Cutter::default();
        let mut input = Bytes::from_static(b"100000000\r\nhello");
        while !input.is_empty() {
            assert_eq!(cutter.step(&mut input), Ok(None));
        }
        let out: Vec<Bytes> = cutter.out.drain(..).collect();
        assert_eq!(out.concat(), b"5\r\nhello\r\n");
        // It is not buffered either.
        assert!(cutter.line.is_empty());
    }

    #[test]
    fn signed_chunks_stay_as_they_are() {
        let mut rng = Rng::new(8);
        let line = |len: usize| format!("{len:x};chunk-signature={}", "0".repeat(64));
        let mut body = chunk(&line(300), &[7; 300]);
        body.extend(chunk(&line(1), &[9]));
        body.extend(chunk(&line(0), b""));
        for piece_max in 1..200 {
            let (out, end) = cut(split(&body, piece_max, &mut rng));
            assert!(out == body && end == Ok(()));
        }
        let mut cutter = Cutter::default();
        let step = |cutter: &mut Cutter, len: u64| {
            cutter.step(&mut format!("{len:x};chunk-signature=\r\n").into())
        };
        assert_eq!(step(&mut cutter, SIGNED_MAX), Ok(Some(SIGNED_MAX)));
        assert_eq!(step(&mut Cutter::default(), SIGNED_MAX + 1), Err(TOO_LONG));
        assert_eq!(step(&mut Cutter::default(), 0), Ok(Some(0)));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for wrong in [
            "\n",
            "\r\n",
            "5\n",
            "x\r\n",
            "5 \r\n",
            "-5\r\n",
            "+5\r\n",
            "0x5\r\n",
            "5\r\nhello\n",
            "5\r\nhello\r\r",
            "5\r\nhello!\r\n",
            "123456789;chunk-signature=\r\n",
            "11111111111111111\r\n",
        ] {
            assert_eq!(cut([wrong.as_bytes()]).1, Err(MALFORMED), "{wrong:?}");
        }
        assert_eq!(cut([&[b'1'; LINE_MAX + 1][..]]).1, Err(MALFORMED));
        for cut_off in ["5\r\nhell", "5\r\nhello", "5\r\nhello\r"] {
            assert_eq!(cut([cut_off.as_bytes()]).1, Err(INCOMPLETE), "{cut_off:?}");
        }
        // An end between chunks is for the caller to judge, which knows the length of the body.
        assert_eq!(cut([&b"5\r\nhello\r\n"[..]]).1, Ok(()));
    }

    #[tokio::test]
    async fn a_signed_chunk_holds_memory_until_the_next() {
        let headers =
            [("authorization", "AWS4-HMAC-SHA256 x"), ("x-amz-content-sha256", "STREAMING-x")];
        let headers: HeaderMap = headers
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .into_iter()
            .collect();
        let mut body = chunk("c00;chunk-signature=", &[1; 3 << 10]);
        body.extend(chunk("0;chunk-signature=", b""));
        let chunks = Chunks::new();
        let mut cut = chunks.of(&headers, Body::from(body.clone()));
        let free = || chunks.memory.available_permits();
        let mut all = Vec::new();
        for _ in ["its line", "its bytes"] {
            all.extend(cut.next().await.unwrap().unwrap());
            assert_eq!(free(), SIGNED_KIB - 3);
        }
        while let Some(piece) = cut.next().await {
            all.extend(piece.unwrap());
        }
        assert!(all == body && free() == SIGNED_KIB);
        // Other bodies pass unchanged.
        let plain = chunks.of(&HeaderMap::new(), Body::from(b"5\r\nhello\r\n".to_vec()));
        assert_eq!(plain.bytes().unwrap(), &b"5\r\nhello\r\n"[..]);
    }
}
