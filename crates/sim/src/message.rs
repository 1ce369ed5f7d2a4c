//! What travels over the modelled network, and when things happen.

use millpond_chain::{LocalReport, Peer, ReadRequest, Reply, Token, UpdateRequest};
use millpond_types::Tick;
use millpond_types::cluster::{Chain, ChainId, ChainVersion, TargetId};

use crate::bytes::Bytes;
use crate::disk::Begun;
use crate::nemesis::Undo;

/// Microseconds since the run began. Nobody inside the cluster can see it.
pub(crate) type Time = u64;

/// Milliseconds as [`Time`].
pub(crate) const fn ms(n: u64) -> Time {
    n * 1000
}

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Node(usize),
    Manager(usize),
    Client(usize),
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Peer { from: TargetId, to: TargetId, peer: Box<Peer<Bytes>> },
    Update { to: TargetId, attempt: u64, body: Box<UpdateRequest<Bytes>> },
    Read { to: TargetId, attempt: u64, body: ReadRequest },
    Reply { attempt: u64, reply: Reply<Bytes> },
    Heartbeat { life: u64, number: u64, sent: Tick, reports: Vec<LocalReport> },
    Alive { life: u64, sent: Tick, versions: Vec<(ChainId, ChainVersion)>, retire: Vec<TargetId> },
    RoutingAsk,
    Routing(Vec<Chain>),
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Deliver(Address, Address, Message),
    Stored { target: TargetId, life: u64, token: Token, begun: Begun },
    StoreFailed { target: TargetId, life: u64 },
    Scrub { target: TargetId, chunk: millpond_types::ChunkId },
    NodeTick { node: usize, life: u64 },
    Heartbeat { node: usize, life: u64 },
    RestartTarget { target: TargetId, life: u64 },
    ManagerTick { manager: usize, life: u64 },
    ClientWake { client: usize, epoch: u64 },
    Nemesis,
    Hunt(usize),
    Undo(Undo),
    Probe { node: usize, life: u64 },
    Phase,
}
