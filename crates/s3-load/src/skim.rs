//! A GET that counts the body in the kernel: `recv` with `MSG_TRUNC` (tcp(7)) takes bytes off a
//! connection without copying them, as `iperf3 --skip-rx-copy` does. Generator and server share the
//! cores, so this leaves more CPU to the server.

use std::mem::MaybeUninit;
use std::net::SocketAddr;

use hyper::header::CONTENT_LENGTH;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

/// Bytes of an answer's head, at most.
const HEAD_MAX: usize = 16 << 10;
/// Headers of an answer, at most.
const HEADERS_MAX: usize = 64;
/// Bytes taken at once, at most. Nothing is written to this buffer.
const TAKEN_MAX: usize = 1 << 20;

/// A connection for such requests, one at a time.
pub(crate) struct Skim {
    stream: TcpStream,
    head: Vec<u8>,
    room: Box<[MaybeUninit<u8>]>,
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// Bytes of the head itself.
    len: usize,
    /// Length of the body, if the status is 200 and the head states it.
    body: Option<u64>,
}

impl Skim {
    pub(crate) async fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let room = Box::new_uninit_slice(TAKEN_MAX);
        Ok(Self { stream, head: Vec::with_capacity(HEAD_MAX), room })
    }

    /// Sends the head of a request, reads the answer and returns the length of its body in bytes.
    /// Returns `None` unless the answer is a 200 with a stated length; the connection is then
    /// unusable.
    pub(crate) async fn get(&mut self, request: &[u8]) -> std::io::Result<Option<u64>> {
        self.stream.write_all(request).await?;
        self.head.clear();
        let head = loop {
            if self.stream.read_buf(&mut self.head).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            match parse(&self.head)? {
                Some(head) => break head,
                None if self.head.len() >= HEAD_MAX => return Ok(None),
                None => {}
            }
        };
        let Some(body) = head.body else { return Ok(None) };
        let here = (self.head.len() - head.len) as u64;
        let Some(left) = body.checked_sub(here) else { return Ok(None) };
        self.pass(left).await?;
        Ok(Some(body))
    }

    async fn pass(&mut self, mut left: u64) -> std::io::Result<()> {
        while left > 0 {
            let most = usize::try_from(left).map_or(TAKEN_MAX, |left| left.min(TAKEN_MAX));
            self.stream.readable().await?;
            let take = || {
                SockRef::from(&self.stream).recv_with_flags(&mut self.room[..most], libc::MSG_TRUNC)
            };
            match self.stream.try_io(Interest::READABLE, take) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(taken) => left -= taken as u64,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The head at the start of these bytes, once it is complete.
fn parse(bytes: &[u8]) -> std::io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let parsed = answer.parse(bytes).map_err(std::io::Error::other)?;
    let httparse::Status::Complete(len) = parsed else { return Ok(None) };
    let told = answer
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str()));
    let body = told.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    Ok(Some(Head { len, body: body.filter(|_| answer.code == Some(200)) }))
}

#[cfg(test)]
mod tests {
    use super::{Head, parse};

    #[test]
    fn a_head_says_how_many_bytes_follow() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nabc";
        let head = Head { len: whole.len() - 3, body: Some(7) };
        assert_eq!(parse(whole).unwrap(), Some(head));
        assert_eq!(parse(&whole[..20]).unwrap(), None, "there is more to come");
        for none in [
            "HTTP/1.1 404 Not Found\r\ncontent-length: 7\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -7\r\n\r\n",
        ] {
            assert_eq!(parse(none.as_bytes()).unwrap().and_then(|head| head.body), None, "{none}");
        }
        assert!(parse(b"SSH-2.0-x\r\n\r\n").is_err());
    }
}
