//! One connection: requests out, replies to their callers, in any order.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use millpond_env::{JoinHandle, ReadHalf, RealClock, Rng, WriteHalf, spawn, timeout};
use millpond_types::Tick;
use millpond_types::limits::META_BYTES_MAX;
use millpond_types::wire::{Asked, ErrorReply, FrameHeader, HEADER_BYTES, Status, Verb};
use tokio::sync::{Semaphore, oneshot};

use super::LinkError;
use super::dial::{Peer, status_of, whole};

type Reply = Result<(Status, Vec<u8>), WhyBroken>;

/// Reason for the end of a connection, for every caller that waits on it.
#[derive(Clone, Debug)]
struct WhyBroken(String);

/// A connection after hello. Dropping its last reference closes it.
pub(super) struct Connection {
    shared: Rc<Shared>,
    writer: tokio::sync::Mutex<WriteHalf>,
    /// One permit for each request that the peer accepts in flight.
    room: Semaphore,
    next: Cell<u64>,
    proofs: RefCell<Rng>,
    receiving: JoinHandle<()>,
}

/// A caller that waits for its reply.
struct Waiting {
    asked: Asked,
    sender: oneshot::Sender<Reply>,
}

/// State that the receiving task shares with the callers.
struct Shared {
    address: String,
    waiting: RefCell<HashMap<u64, Waiting>>,
    ended: RefCell<Option<WhyBroken>>,
}

impl Connection {
    /// Starts the receiving task.
    pub(super) fn start(address: String, peer: Peer) -> Rc<Self> {
        let Peer { reader, writer, hello, rest, proofs } = peer;
        let shared =
            Rc::new(Shared { address, waiting: RefCell::default(), ended: RefCell::default() });
        let receiving = spawn(receive(Rc::clone(&shared), reader, rest));
        Rc::new(Self {
            shared,
            room: Semaphore::new(hello.in_flight_max as usize),
            writer: tokio::sync::Mutex::new(writer),
            next: Cell::new(1),
            proofs: RefCell::new(proofs),
            receiving,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.shared.ended.borrow().is_none()
    }

    /// Sends a request and waits for its reply until `deadline`.
    pub(super) async fn call(
        &self,
        verb: Verb,
        meta: &[u8],
        (deadline, server_deadline): (Tick, Tick),
    ) -> Result<Vec<u8>, LinkError> {
        let address = &self.shared.address;
        let late = || LinkError::Deadline(address.clone());
        let left = deadline.since(RealClock::tick());
        let Ok(Ok(_room)) = timeout(left, self.room.acquire()).await else { return Err(late()) };
        let id = self.next.get();
        self.next.set(id + 1);
        let (sender, receiver) = oneshot::channel();
        let proof = self.proofs.borrow_mut().next_u32();
        let header = FrameHeader { proof, ..FrameHeader::request(verb, id, meta) };
        self.shared.expect(Waiting { asked: header.asked(), sender })?;
        let _forget = Forget { shared: &self.shared, id };
        let left = deadline.since(RealClock::tick());
        let exchange = async {
            let time = server_deadline.since(RealClock::tick()).max(Duration::from_millis(1));
            let deadline_or_status = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
            let header = FrameHeader { deadline_or_status, ..header };
            let sent = self.writer.lock().await.write_all_vec(header.frame(meta)).await.1;
            sent.map_err(|error| LinkError::io(address, error))?;
            Ok(receiver.await)
        };
        let broken = |why: WhyBroken| LinkError::io(address, io::Error::other(why.0));
        match timeout(left, exchange).await.map_err(|_| late())?? {
            Ok(Ok((Status::Ok, meta))) => Ok(meta),
            Ok(Ok((status, meta))) => {
                let reply = ErrorReply::decode(&meta).map_err(|e| LinkError::wire(address, e))?;
                Err(LinkError::refused(address, status, reply))
            }
            Ok(Err(why)) => Err(broken(why)),
            Err(_) => Err(broken(WhyBroken("the connection has ended".to_owned()))),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.receiving.abort();
        if let Ok(writer) = self.writer.try_lock() {
            let _ = writer.shutdown(Shutdown::Both);
        }
    }
}

/// Forgets a request once its caller no longer waits.
struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.waiting.borrow_mut().remove(&self.id);
    }
}

impl Shared {
    fn expect(&self, waiting: Waiting) -> Result<(), LinkError> {
        if let Some(why) = &*self.ended.borrow() {
            return Err(LinkError::io(&self.address, io::Error::other(why.0.clone())));
        }
        self.waiting.borrow_mut().insert(waiting.asked.request_id, waiting);
        Ok(())
    }
}

async fn receive(shared: Rc<Shared>, mut reader: ReadHalf, mut bytes: Vec<u8>) {
    let why = loop {
        match deliver(&shared, &mut bytes) {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => break error.to_string(),
        }
        bytes.reserve(16 << 10);
        let (back, got) = reader.read_some_vec(bytes).await;
        bytes = back;
        match got {
            Ok(0) => break "closed by the other side".to_owned(),
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    let why = WhyBroken(why);
    *shared.ended.borrow_mut() = Some(why.clone());
    let waiting = std::mem::take(&mut *shared.waiting.borrow_mut());
    for waiting in waiting.into_values() {
        let _ = waiting.sender.send(Err(why.clone()));
    }
}

/// Delivers the reply at the start of `bytes`; false if it is still incomplete.
fn deliver(shared: &Shared, bytes: &mut Vec<u8>) -> Result<bool, millpond_types::wire::WireError> {
    let Some((header, meta)) = whole(bytes, META_BYTES_MAX)? else { return Ok(false) };
    bytes.drain(..HEADER_BYTES + meta.len());
    let status = status_of(&header)?;
    // A late reply no longer has a caller.
    if let Some(waiting) = shared.waiting.borrow_mut().remove(&header.request_id) {
        let answers = header.check_answers(waiting.asked);
        let reply = answers.map(|()| (status, meta));
        let _ = waiting.sender.send(reply.map_err(|error| WhyBroken(error.to_string())));
        answers?;
    }
    Ok(true)
}
