//! The replication state machine of one replica of one chain: pure and synchronous.
//!
//! CRAQ (Terrace & Freedman, USENIX ATC 2009): writes pass the chain from head to tail, commits run
//! back, any serving replica reads. `docs/replication.md` explains the protocol and its proof.
//!
//! Reading order: `message` (messages), `event` (inputs and outputs), `view` (one version of the
//! chain), `slot` (one busy chunk), `replica` (state and dispatch), `update` and `seal` (the head),
//! `forward` (down and back), `read`, `lease`, `dedup`, `adopt` (changes of the chain), `credible`
//! (impossible messages), `source` and `sink` (resync), `repair`, `mend`, `collect` (tombstones),
//! `wire` (messages as bytes).
//!
//! Invariants:
//! - A replica commits a version only when it and all above it have stored it and all below it have
//!   committed it: every version that was ever read is on every disk that might bring the chain
//!   back.
//! - Once a seal is committed, no update that names it is pending or will be.
//! - One pending version per chunk; in a serving replica every staged version is pending.
//! - An admitted update is never taken back once another replica saw it, unless all replicas that
//!   did have left and it was never stored here.
//! - A chunk is handed on as lost only when all replicas that take part in writes have reported
//!   that they have no good copy.
//! - Reads and the tail's answers are given only under a lease, and the tail is asked again for
//!   each read that meets a pending version.
//! - A message is valid only between replicas that act on the same version of the chain.
//! - A target is up to date only while it has passed on every write since it began to compare.
//! - No message of a peer causes a panic: an impossible one is refused and reported.
//! - After a restart nothing in memory is trusted until the chain has noticed the absence.
//!
//! Absent on purpose: clocks, sockets, disks, randomness, the choice of states (crate `cluster`),
//! placement, and an index of chunks: the store has it, and only busy chunks are here.

mod adopt;
mod collect;
mod credible;
mod dedup;
mod event;
mod forward;
mod lease;
mod mend;
mod message;
mod mutation;
mod read;
mod repair;
mod replica;
mod seal;
mod sink;
mod slot;
mod source;
mod update;
mod view;
mod wire;

pub use event::{
    Alarm, Effect, Event, LocalReport, ReadOp, RequestId, StageRequest, StoreAnswer, StoreError,
    StoreOp, Token,
};
pub use message::{
    Answer, Content, Lane, LaneRecord, Meta, Op, Outcome, Payload, Peer, PeerBody, ReadRequest,
    Refusal, Reply, Space, SyncBody, Tag, Update, UpdateRequest, Write,
};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use replica::{Identity, Replica};
pub use source::ResyncProgress;
pub use wire::{DIFFER_ITEMS_MAX, Envelope, Head, LANES_MAX, PayloadHead};
