//! What reaches the manager and what it asks for.

use millpond_types::cluster::{
    ChainId, ConfigRecord, DiskId, EventRecord, Heartbeat, HeartbeatAnswer, Incarnation, NodeId,
    Register, RegisterAnswer, RoutingUpdate, RoutingVersion, TargetId,
};
use millpond_types::ids::{SlotId, Uuid128};
use millpond_types::units::UnixSeconds;

use super::status::{ChainPage, SlotStatus, Status};

/// A caller, numbered by the shell: one connection, or one request on it. Answers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session(pub u64);

/// What happened. The shell, or the simulator, hands it to [`super::Manager::step`].
#[derive(Clone, Debug)]
pub enum Event {
    /// Time went by: [`super::Manager::next_wake`] has come.
    Timer {
        /// The wall clock, for the event log only.
        unix: UnixSeconds,
    },
    /// The store answered the request of this number.
    Store {
        /// The number of [`Effect::Store`].
        id: u64,
        /// The answer.
        reply: StoreReply,
    },
    /// A node says who it is.
    Register {
        /// Who asks.
        from: Session,
        /// What it says.
        register: Register,
    },
    /// A node says how it is.
    Heartbeat {
        /// Who asks.
        from: Session,
        /// What it says.
        heartbeat: Heartbeat,
    },
    /// A client or node got no answer from this node.
    Suspect {
        /// The node under suspicion.
        node: NodeId,
    },
    /// What [`Effect::Probe`] found.
    Probed {
        /// The node probed.
        node: NodeId,
        /// The process that was looked for.
        incarnation: Incarnation,
        /// What was found.
        outcome: ProbeOutcome,
    },
    /// A node or client wants routing pushed from now on. Said again, with the version held, when
    /// an update did not fit.
    Subscribe {
        /// To whom.
        from: Session,
        /// The cluster of its copy; nil for none.
        cluster: Uuid128,
        /// The version of its copy.
        have: RoutingVersion,
    },
    /// A pushed update arrived. The next one goes out only then, and covers all since.
    Received {
        /// Who has it.
        from: Session,
        /// The version it has now.
        version: RoutingVersion,
    },
    /// A connection is gone.
    Closed {
        /// Which one.
        from: Session,
    },
    /// An operator asks.
    Admin {
        /// Who asks.
        from: Session,
        /// What for.
        command: AdminCommand,
    },
    /// This process stops: let a standby take over at once.
    Resign,
}

/// What a probe of every address of a node found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Some address answered, as this process.
    Alive(Incarnation),
    /// Every address refused the connection: the host lives, and no process listens.
    Gone,
    /// No answer, or not from all: nothing is known.
    Unknown,
}

/// What the manager wants done. Effects are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Ask the store; the answer comes as [`Event::Store`]. Every request is answered, in the end
    /// with [`StoreReply::Failed`]: the shell gives each a deadline well below the lease.
    Store {
        /// Number of the request.
        id: u64,
        /// The request.
        request: StoreRequest,
    },
    /// Answer a registration.
    Registered {
        /// Whom.
        to: Session,
        /// The answer.
        answer: RegisterAnswer,
    },
    /// Answer a heartbeat.
    Beat {
        /// Whom.
        to: Session,
        /// The answer.
        answer: HeartbeatAnswer,
    },
    /// Push routing.
    Push {
        /// Whom to.
        to: Session,
        /// What.
        update: RoutingUpdate,
    },
    /// Ask every address of a node whether this process lives, each with a short deadline, all at
    /// once.
    Probe {
        /// The node.
        node: NodeId,
        /// The process looked for.
        incarnation: Incarnation,
        /// Where.
        addresses: Vec<String>,
    },
    /// Answer an operator.
    AdminDone {
        /// Whom.
        to: Session,
        /// The answer.
        answer: AdminAnswer,
    },
    /// The role changed.
    Became(Role),
    /// Something worth a line in this process's log; it is in the store already.
    Happened(EventRecord),
}

/// Where effects are collected.
pub type Effects = Vec<Effect>;

/// What this manager is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Watches the primary's lease.
    Standby,
    /// Has the lease, and reads the records.
    TakingOver,
    /// Decides.
    Primary,
}

/// Key and value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A request to the transactional store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// Values of some keys, from one moment.
    Get {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Entries under a prefix, in order.
    Scan {
        /// The prefix.
        prefix: Vec<u8>,
        /// Start after this key; empty for the first.
        after: Vec<u8>,
        /// At most so many.
        limit: usize,
    },
    /// All writes, if all checks hold, as one serializable transaction.
    Commit {
        /// Keys and the values that they must have; none is absent.
        checks: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        /// Keys and their new values; none deletes.
        writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    },
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// To `Get`, in the order asked.
    Values(Vec<Option<Vec<u8>>>),
    /// To `Scan`.
    Page {
        /// The entries.
        entries: Vec<Entry>,
        /// More follow the last one.
        more: bool,
    },
    /// The transaction is durable.
    Committed,
    /// A check did not hold; nothing was written.
    Conflict,
    /// No answer; a transaction may have been carried out, or be so later.
    Failed,
}

/// What an operator can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// Make the first chains, with so many replicas each.
    Form {
        /// Replicas of every chain.
        replicas: u8,
    },
    /// Change a setting; an empty value brings the default back.
    Set {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// Empty a node, or stop emptying it.
    DrainNode {
        /// The node.
        node: NodeId,
        /// Empty it.
        on: bool,
    },
    /// Empty a disk, or stop emptying it.
    DrainDisk {
        /// The disk.
        disk: DiskId,
        /// Empty it.
        on: bool,
    },
    /// Give a disk up: what it held is made anew from the other replicas, at once.
    LoseDisk {
        /// The disk.
        disk: DiskId,
    },
    /// Forget a node that holds nothing any more.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Move one replica.
    MoveTarget {
        /// Its chain.
        chain: ChainId,
        /// The replica.
        from: TargetId,
        /// The disk it goes to.
        to: DiskId,
    },
    /// Move a slot, with its chunks, to another chain.
    MoveSlot {
        /// The slot.
        slot: SlotId,
        /// The chain it goes to.
        to: ChainId,
    },
    /// How the cluster is.
    Status,
    /// A page of chains, with what nodes say of their targets.
    Chains {
        /// Those behind this one; [`ChainId::NONE`] for the first page.
        after: ChainId,
        /// Only those with a member that does not serve, or that moves.
        unhealthy: bool,
    },
    /// The slots that move.
    Slots,
    /// The settings that were changed.
    Config,
    /// What happened lately: a page, oldest first.
    Events {
        /// Those from this number on.
        from: u64,
    },
}

/// The answer to an operator.
#[derive(Clone, Debug)]
pub enum AdminAnswer {
    /// Done, durably; the text says what follows.
    Done(String),
    /// Not done; the text says why and what to do.
    Refused(String),
    /// How the cluster is.
    Status(Box<Status>),
    /// Some chains.
    Chains(ChainPage),
    /// The slots that move.
    Slots(Vec<SlotStatus>),
    /// The configuration.
    Config(ConfigRecord),
    /// What happened; empty at the end of the log.
    Events(Vec<EventRecord>),
    /// Somebody else is primary, at these addresses if they are known.
    NotPrimary(Vec<String>),
}
