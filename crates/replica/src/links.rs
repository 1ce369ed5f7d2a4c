//! Links to other nodes: messages between replicas, one way, over connections of their own.
//!
//! Delivery is not guaranteed: a message may be lost when a connection ends or a queue is full. The
//! protocol repeats important messages. So a link needs no answers and no memory of sent messages.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use millpond_chain::{Envelope, Peer};
use millpond_env::{Handle, Piece, RealClock, Rng, SharedBuf, Stream, sleep, spawn, timeout};
use millpond_types::cluster::{ChainId, NodeId, TargetId};
use millpond_types::wire::{FrameHeader, HEADER_BYTES, Hello, PROTOCOL_VERSION, Status, Verb};
use parking_lot::{Mutex, RwLock};

use super::Host;
use super::blob::Blob;
use super::numbers::LinkNumbers;
use millpond_control::link::resolve;

/// Maximum messages waiting for one link; more are dropped. Two full windows of a few hundred
/// chains.
const QUEUE_MAX: usize = 16_384;
/// Maximum bytes waiting for one link: two seconds of a 1 Gbit/s network, and little enough memory.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// Bytes sent at a time.
const SEND_BYTES_MAX: usize = 4 << 20;
/// Time without progress after which a peer is connected to again: shorter than a node lease.
const STALL: Duration = Duration::from_millis(1500);
/// Pause after a failed attempt to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// One message, ready to be sent.
struct Frame {
    head: Vec<u8>,
    payload: Option<SharedBuf>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: usize,
    dropped: u64,
    waker: Option<Waker>,
    closed: bool,
}

/// One connection to another node, and its queue.
struct Link {
    node: NodeId,
    queue: Mutex<Queue>,
}

/// All links of a node.
pub(super) struct Links {
    me: NodeId,
    token: Vec<u8>,
    cores: Vec<Handle>,
    addresses: RwLock<HashMap<NodeId, Vec<String>>>,
    open: RwLock<HashMap<(NodeId, usize), Arc<Link>>>,
    /// Receiver of messages to this node itself.
    host: OnceLock<Weak<Host>>,
    this: Weak<Self>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Links {
    pub(super) fn new(me: NodeId, token: Vec<u8>, cores: Vec<Handle>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            me,
            token,
            cores,
            addresses: RwLock::default(),
            open: RwLock::default(),
            host: OnceLock::new(),
            this: Weak::clone(this),
        })
    }

    pub(super) fn deliver_to(&self, host: &Arc<Host>) {
        let _set_once = self.host.set(Arc::downgrade(host));
    }

    /// Sets the current addresses of nodes; ends links to nodes without one.
    pub(super) fn set_addresses(&self, addresses: HashMap<NodeId, Vec<String>>) {
        let mut links = self.open.write();
        links.retain(|(node, _), link| {
            let stays = addresses.contains_key(node);
            if !stays {
                link.close();
            }
            stays
        });
        *self.addresses.write() = addresses;
    }

    /// Sends a message to a target of `node`.
    pub(super) fn send(
        &self,
        node: NodeId,
        (chain, from, to): (ChainId, TargetId, TargetId),
        peer: Peer<Blob>,
    ) {
        let envelope = Envelope { chain, from, to, peer };
        if node == self.me {
            let Some(host) = self.host.get().and_then(Weak::upgrade) else { return };
            // The sender's lock is held, so the receiver gets the message in a task of its own.
            spawn(async move { host.deliver(envelope) }).detach();
            return;
        }
        let (meta, payload) = envelope.encode(|blob| blob.block.to_vec());
        self.post(node, chain, (Verb::Peer, &meta), payload.map(|blob| blob.bytes));
    }

    /// Sends a frame that has no reply to another node.
    pub(super) fn post(
        &self,
        node: NodeId,
        chain: ChainId,
        (verb, meta): (Verb, &[u8]),
        payload: Option<SharedBuf>,
    ) {
        let header = FrameHeader {
            payload_len: payload.as_ref().map_or(0, |p| u32::try_from(p.len()).unwrap_or(u32::MAX)),
            ..FrameHeader::request(verb, 0, meta)
        };
        let head = header.frame(meta);
        if let Some(link) = self.link(node, chain) {
            link.push(Frame { head, payload });
        }
    }

    fn link(&self, node: NodeId, chain: ChainId) -> Option<Arc<Link>> {
        let lane = chain.0 as usize % self.cores.len();
        if let Some(link) = self.open.read().get(&(node, lane)) {
            return Some(Arc::clone(link));
        }
        if !self.addresses.read().contains_key(&node) {
            return None;
        }
        let mut links = self.open.write();
        let link = links.entry((node, lane)).or_insert_with(|| {
            let link = Arc::new(Link { node, queue: Mutex::default() });
            let (links, mine) = (Weak::clone(&self.this), Arc::clone(&link));
            let _core_gone = self.cores[lane].spawn_on(move || run(links, mine));
            link
        });
        Some(Arc::clone(link))
    }

    /// Ends all links.
    pub(super) fn close(&self) {
        for (_, link) in self.open.write().drain() {
            link.close();
        }
    }
}

impl Link {
    fn push(&self, frame: Frame) {
        let mut queue = self.queue.lock();
        let bytes = frame.head.len() + frame.payload.as_ref().map_or(0, |p| p.len());
        if queue.closed || queue.frames.len() >= QUEUE_MAX || queue.bytes + bytes > QUEUE_BYTES_MAX
        {
            queue.dropped += 1;
            return;
        }
        queue.bytes += bytes;
        queue.frames.push_back(frame);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.frames.clear();
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Drops the queue: its messages will be repeated.
    fn clear(&self) {
        let mut queue = self.queue.lock();
        queue.bytes = 0;
        let old = std::mem::take(&mut queue.frames);
        queue.dropped += old.len() as u64;
        drop(queue);
        drop(old);
    }

    /// The next pieces to send; `None` once the link is closed.
    async fn next(&self) -> Option<Vec<Piece>> {
        poll_fn(|context| {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Poll::Ready(None);
            }
            if queue.frames.is_empty() {
                queue.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            let (mut pieces, mut bytes) = (Vec::new(), 0);
            while bytes < SEND_BYTES_MAX && pieces.len() < 512 {
                let Some(frame) = queue.frames.pop_front() else { break };
                bytes += frame.head.len() + frame.payload.as_ref().map_or(0, |p| p.len());
                match pieces.last_mut() {
                    Some(Piece::Vec(before)) => before.extend_from_slice(&frame.head),
                    _ => pieces.push(Piece::Vec(frame.head)),
                }
                pieces.extend(frame.payload.filter(|p| !p.is_empty()).map(Piece::Shared));
            }
            queue.bytes -= bytes.min(queue.bytes);
            Poll::Ready(Some(pieces))
        })
        .await
    }
}

/// Connects, again and again, until the link is closed.
async fn run(links: Weak<Links>, link: Arc<Link>) {
    loop {
        // Connects only when there is something to send.
        let Some(mut pieces) = link.next().await else { return };
        let Some(all) = links.upgrade() else { return };
        let addresses = all.addresses.read().get(&link.node).cloned().unwrap_or_default();
        let stream = connect(&addresses, &all.token, link.node).await;
        drop(all);
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(node = %link.node, "no link: {error}");
                link.clear();
                sleep(PAUSE).await;
                continue;
            }
        };
        let (mut reader, mut writer) = stream.split();
        // Nothing is answered, so any input means the end of the connection.
        let (gone, ended) = tokio::sync::oneshot::channel::<()>();
        let watcher = spawn(async move {
            let _end_or_error = reader.read_some_vec(Vec::with_capacity(64)).await;
            drop(gone);
        });
        let mut ended = ended;
        loop {
            match timeout(STALL, writer.write_all_mixed(pieces)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
            tokio::select! {
                biased;
                _ = &mut ended => break,
                next = link.next() => match next {
                    Some(next) => pieces = next,
                    None => return,
                },
            }
        }
        watcher.abort();
        link.clear();
        sleep(PAUSE).await;
    }
}

async fn connect(addresses: &[String], token: &[u8], node: NodeId) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the node has no address");
    for address in addresses {
        let found = match resolve(address, RealClock::tick().plus(STALL)).await {
            Ok(found) => found,
            Err(error) => {
                last = io::Error::other(error);
                continue;
            }
        };
        for address in found {
            match timeout(STALL, hello(address, token, node)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
    }
    Err(last)
}

async fn hello(address: SocketAddr, token: &[u8], node: NodeId) -> io::Result<Stream> {
    let mut stream = Stream::connect_tcp(address).await?;
    stream.set_user_timeout(STALL)?;
    let version = u16::from(PROTOCOL_VERSION);
    let meta = Hello {
        version_min: version,
        version_max: version,
        client: "millpond node".to_owned(),
        token: token.to_vec(),
    }
    .encode();
    let proof = Rng::from_os()?.next_u32();
    let header = FrameHeader { proof, ..FrameHeader::request(Verb::Hello, 0, &meta) };
    let (_, sent) = stream.write_all_vec(header.frame(&meta)).await;
    sent?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut reply = Vec::with_capacity(1024);
    loop {
        let got;
        (reply, got) = stream.read_some_vec(reply).await;
        if got? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(head) = reply.first_chunk::<HEADER_BYTES>() else { continue };
        let head = FrameHeader::decode(head).map_err(|error| bad(&error.to_string()))?;
        let end = HEADER_BYTES + head.meta_len as usize;
        if reply.len() < end {
            reply.reserve(end - reply.len());
            continue;
        }
        let meta = &reply[HEADER_BYTES..end];
        let answers = head.check_meta(meta).and_then(|()| head.check_answers(header.asked()));
        answers.map_err(|error| bad(&error.to_string()))?;
        if head.deadline_or_status != u32::from(Status::Ok as u16) {
            let why = millpond_types::wire::ErrorReply::decode(meta);
            return Err(bad(&why.map_or_else(|error| error.to_string(), |why| why.message)));
        }
        let hello = millpond_types::wire::HelloReply::decode(meta);
        let hello = hello.map_err(|error| bad(&error.to_string()))?;
        if NodeId(hello.node) != node {
            return Err(bad("a different node answers at this address"));
        }
        return Ok(stream);
    }
}

impl Links {
    /// Counters of all links.
    pub(super) fn numbers(&self) -> LinkNumbers {
        let mut numbers = LinkNumbers::default();
        for link in self.open.read().values() {
            let queue = link.queue.lock();
            numbers.open += 1;
            numbers.queued_messages += queue.frames.len() as u64;
            numbers.queued_bytes += queue.bytes as u64;
            numbers.dropped += queue.dropped;
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use millpond_env::{BufferPool, PoolOptions, Runtime, RuntimeOptions};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a port that nobody has")]
    fn a_name_that_nobody_knows_hides_no_other_address() {
        let pool = BufferPool::new(PoolOptions::new(1 << 20)).unwrap();
        let options = RuntimeOptions { pools: vec![pool], ..RuntimeOptions::default() };
        let runtime = Runtime::new(options).unwrap();
        // A port that nothing listens on any more.
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let addresses = ["no-such-host.invalid:1".to_owned(), closed.to_string()];
        let error = runtime
            .block_on(async { connect(&addresses, b"", NodeId::default()).await.err().unwrap() });
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
