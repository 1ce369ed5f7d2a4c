//! Messages of the modeled network, and timed events.

use std::sync::Arc;

use millpond_chain::{Peer, ReadRequest, Reply, Token, UpdateRequest};
use millpond_cluster::manager::{AdminAnswer, AdminCommand, StoreReply, StoreRequest};
use millpond_types::Uuid128;
use millpond_types::cluster::{
    Chain, Heartbeat, HeartbeatAnswer, Incarnation, NodeId, Register, RegisterAnswer,
    RoutingUpdate, RoutingVersion, TargetId,
};

use crate::bytes::Bytes;
use crate::disk::Begun;
use crate::nemesis::Undo;

/// Microseconds since the run began, invisible inside the cluster.
pub(crate) type Time = u64;

/// Milliseconds as [`Time`].
pub(crate) const fn ms(n: u64) -> Time {
    n * 1000
}

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Node(usize),
    Manager(usize),
    Client(usize),
}

/// A message. Requests carry the number of the call, and so do their answers.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Peer {
        from: TargetId,
        to: TargetId,
        peer: Box<Peer<Bytes>>,
    },
    Update {
        to: TargetId,
        attempt: u64,
        body: Box<UpdateRequest<Bytes>>,
    },
    Read {
        to: TargetId,
        attempt: u64,
        body: ReadRequest,
    },
    Reply {
        attempt: u64,
        reply: Reply<Bytes>,
    },
    /// From a node to its manager.
    Register {
        call: u64,
        register: Box<Register>,
    },
    Registered {
        call: u64,
        answer: RegisterAnswer,
    },
    Heartbeat {
        call: u64,
        heartbeat: Box<Heartbeat>,
    },
    Beat {
        call: u64,
        answer: Box<HeartbeatAnswer>,
    },
    Poll {
        call: u64,
        cluster: Uuid128,
        have: RoutingVersion,
    },
    Push {
        call: u64,
        update: RoutingUpdate,
    },
    /// Asks for the process at this address.
    Hello {
        call: u64,
    },
    /// This process, or `None` for a refused connection.
    Greeting {
        call: u64,
        found: Option<Incarnation>,
    },
    /// A client got no answer from this node.
    Suspect(NodeId),
    /// From an operator to a manager, which does not begin after the deadline.
    Admin {
        call: u64,
        command: AdminCommand,
        until: Time,
    },
    AdminDone {
        call: u64,
        answer: Box<AdminAnswer>,
    },
    /// From a client to any node: a request for newer routing.
    NewsAsk {
        have: RoutingVersion,
    },
    News {
        version: RoutingVersion,
        chains: Arc<Vec<Chain>>,
    },
}

/// A timed event.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Deliver(Address, Address, Message),
    Stored {
        target: TargetId,
        life: u64,
        token: Token,
        begun: Begun,
    },
    StoreFailed {
        target: TargetId,
        life: u64,
    },
    Scrub {
        target: TargetId,
        chunk: millpond_types::ChunkId,
    },
    NodeTick {
        node: usize,
        life: u64,
    },
    RestartTarget {
        target: TargetId,
        life: u64,
    },
    /// The node's next message to its manager is due, or the last answer is.
    Beat {
        node: usize,
        life: u64,
        turn: u64,
    },
    /// A node requests routing again.
    PollAgain {
        node: usize,
        life: u64,
        call: u64,
    },
    /// A stopping node waits no longer.
    Leave {
        node: usize,
        life: u64,
    },
    ManagerWake {
        manager: usize,
        life: u64,
        turn: u64,
    },
    /// A transaction reaches the store.
    Transact {
        manager: usize,
        life: u64,
        id: u64,
        request: StoreRequest,
        heard: bool,
    },
    Transacted {
        manager: usize,
        life: u64,
        id: u64,
        reply: StoreReply,
    },
    /// A probe was not answered in time.
    ProbeOver {
        manager: usize,
        life: u64,
        call: u64,
    },
    ManagerLeft {
        manager: usize,
        life: u64,
    },
    ClientWake {
        client: usize,
        epoch: u64,
    },
    Operator,
    Nemesis,
    Hunt(usize),
    Undo(Undo),
    Phase,
}
