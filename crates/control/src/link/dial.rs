//! From an address to a connection after hello.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use millpond_client::Address;
use millpond_env::{ReadHalf, RealClock, Rng, Stream, WriteHalf, lookup_async, timeout};
use millpond_types::Tick;
use millpond_types::limits::META_BYTES_MAX;
use millpond_types::wire::{
    ErrorReply, FLAG_REPLY, FrameHeader, HEADER_BYTES, Hello, HelloReply, PROTOCOL_VERSION, Status,
    Verb, WireError,
};
use parking_lot::Mutex;

use super::LinkError;

/// Longest wait for one address while others remain: a dead host must not use up the time for live
/// ones.
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// Meta of a hello's reply at most: names and a path.
const HELLO_META_MAX: usize = 16 << 10;

/// Opens connections from this node to others.
#[derive(Debug)]
pub(crate) struct Dialer {
    hello: Vec<u8>,
    /// Index of the address of each name to try first. It advances after every failure, so that a
    /// hanging address does not stay the first.
    turn: Mutex<HashMap<String, usize>>,
}

/// A connection after hello.
pub(crate) struct Peer {
    pub(super) reader: ReadHalf,
    pub(super) writer: WriteHalf,
    /// The other side's reply to hello.
    pub(crate) hello: HelloReply,
    /// Bytes received but not consumed.
    pub(super) rest: Vec<u8>,
    /// Generator of the random proofs of requests.
    pub(super) proofs: Rng,
}

impl Dialer {
    /// Makes a dialer with the credential `token`; empty for none.
    pub(crate) fn new(token: Vec<u8>) -> Self {
        let version = u16::from(PROTOCOL_VERSION);
        let client = format!("millpond-node {}", env!("CARGO_PKG_VERSION"));
        let hello = Hello { version_min: version, version_max: version, client, token };
        Self { hello: hello.encode(), turn: Mutex::default() }
    }

    /// Connects to `host:port`, trying all addresses of the name, and says hello.
    pub(crate) async fn dial(&self, address: &str, deadline: Tick) -> Result<Peer, LinkError> {
        let found = resolve(address, deadline).await?;
        let first = self.turn.lock().get(address).copied().unwrap_or(0);
        let mut failed = LinkError::Deadline(address.to_owned());
        for index in 0..found.len() {
            let left = deadline.since(RealClock::tick());
            if left.is_zero() {
                break;
            }
            let last = index + 1 == found.len();
            let time = if last { left } else { left.min(CONNECT_MAX) };
            let at = found[(first + index) % found.len()];
            match timeout(time, self.greet(at, address)).await {
                Ok(Ok(peer)) => return Ok(peer),
                Ok(Err(error)) => failed = error,
                Err(_) => failed = LinkError::Deadline(address.to_owned()),
            }
        }
        let mut turn = self.turn.lock();
        turn.insert(address.to_owned(), (first + 1) % found.len().max(1));
        Err(failed)
    }

    /// Connects to one address and says hello. `address` is for messages.
    pub(crate) async fn greet(&self, at: SocketAddr, address: &str) -> Result<Peer, LinkError> {
        let broken = |error| LinkError::io(address, error);
        let (mut reader, mut writer) = Stream::connect_tcp(at).await.map_err(broken)?.split();
        let mut proofs = Rng::from_os().map_err(broken)?;
        let hello = FrameHeader {
            proof: proofs.next_u32(),
            ..FrameHeader::request(Verb::Hello, 0, &self.hello)
        };
        writer.write_all_vec(hello.frame(&self.hello)).await.1.map_err(broken)?;
        let mut bytes = Vec::with_capacity(4096);
        let (header, meta) = loop {
            if let Some(found) =
                whole(&bytes, HELLO_META_MAX).map_err(|e| LinkError::wire(address, e))?
            {
                break found;
            }
            bytes.reserve(4096);
            let (back, got) = reader.read_some_vec(bytes).await;
            bytes = back;
            if got.map_err(broken)? == 0 {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
        };
        header.check_answers(hello.asked()).map_err(|error| LinkError::wire(address, error))?;
        let end = HEADER_BYTES + header.meta_len as usize;
        let status = status_of(&header).map_err(|error| LinkError::wire(address, error))?;
        if status != Status::Ok {
            let reply = ErrorReply::decode(&meta).map_err(|e| LinkError::wire(address, e))?;
            return Err(LinkError::refused(address, status, reply));
        }
        let hello = HelloReply::decode(&meta).map_err(|error| LinkError::wire(address, error))?;
        let rest = bytes.split_off(end);
        Ok(Peer { reader, writer, hello, rest, proofs })
    }
}

/// Returns header and meta of the frame at the start of `bytes`, once it is complete.
pub(super) fn whole(
    bytes: &[u8],
    meta_max: usize,
) -> Result<Option<(FrameHeader, Vec<u8>)>, WireError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let header = FrameHeader::decode(head)?;
    let len = header.meta_len as usize;
    if len > meta_max.min(META_BYTES_MAX) {
        return Err(WireError::Field("meta length"));
    }
    if header.flags & FLAG_REPLY == 0 || header.payload_len > 0 {
        return Err(WireError::Field("flags"));
    }
    let Some(meta) = rest.get(..len) else { return Ok(None) };
    header.check_meta(meta)?;
    Ok(Some((header, meta.to_vec())))
}

pub(super) fn status_of(header: &FrameHeader) -> Result<Status, WireError> {
    u16::try_from(header.deadline_or_status)
        .map_err(|_| WireError::Field("status"))
        .and_then(Status::try_from)
}

/// Resolves `host:port` to its current addresses, until `deadline` at most.
///
/// # Errors
/// [`LinkError`] if no resolver knows the name, or none answers in time.
pub async fn resolve(address: &str, deadline: Tick) -> Result<Vec<SocketAddr>, LinkError> {
    if let Ok(literal) = address.parse() {
        return Ok(vec![literal]);
    }
    let broken = |error| LinkError::io(address, error);
    let invalid = || broken(io::Error::new(io::ErrorKind::InvalidInput, "not host:port"));
    let Ok(Address::Tcp { host, port }) = address.parse() else { return Err(invalid()) };
    let found = match lookup_async(&host, port, deadline).await {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(LinkError::Deadline(address.to_owned()));
        }
        found => found.map_err(broken)?,
    };
    if found.is_empty() {
        let text = "the name has no address";
        return Err(broken(io::Error::new(io::ErrorKind::NotFound, text)));
    }
    Ok(found)
}
