//! Events and effects of the manager.

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

/// An event. The shell, or the simulator, passes it to [`super::Manager::step`].
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed: [`super::Manager::next_wake`] is reached.
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
    /// A node registers.
    Register {
        /// The caller.
        from: Session,
        /// The content.
        register: Register,
    },
    /// A node's heartbeat.
    Heartbeat {
        /// The caller.
        from: Session,
        /// The content.
        heartbeat: Heartbeat,
    },
    /// A client or node got no answer from this node.
    Suspect {
        /// The node under suspicion.
        node: NodeId,
    },
    /// Result of [`Effect::Probe`].
    Probed {
        /// The node probed.
        node: NodeId,
        /// The process that the probe looked for.
        incarnation: Incarnation,
        /// The result.
        outcome: ProbeOutcome,
    },
    /// A node or client requests pushes of routing from now on. It repeats the request, with its
    /// version, when an update did not fit.
    Subscribe {
        /// The subscriber.
        from: Session,
        /// Cluster of its copy; nil for none.
        cluster: Uuid128,
        /// The version of its copy.
        have: RoutingVersion,
    },
    /// A pushed update arrived. Only then the next one is sent, with all changes since.
    Received {
        /// The receiver.
        from: Session,
        /// Its new version.
        version: RoutingVersion,
    },
    /// A connection closed.
    Closed {
        /// The connection.
        from: Session,
    },
    /// An operator's command.
    Admin {
        /// The caller.
        from: Session,
        /// The command.
        command: AdminCommand,
    },
    /// This process stops: let a standby take over at once.
    Resign,
}

/// Result of a probe of all addresses of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Some address answered, as this process.
    Alive(Incarnation),
    /// Every address refused the connection: the host is alive, and no process listens.
    Gone,
    /// No answer, or not from all: the state is unknown.
    Unknown,
}

/// An effect of the manager. The shell executes effects in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Ask the store; the answer comes as [`Event::Store`]. Every request is answered, at the
    /// latest with [`StoreReply::Failed`]: the shell gives each a deadline well below the lease.
    Store {
        /// Number of the request.
        id: u64,
        /// The request.
        request: StoreRequest,
    },
    /// Answer a registration.
    Registered {
        /// The receiver.
        to: Session,
        /// The answer.
        answer: RegisterAnswer,
    },
    /// Answer a heartbeat.
    Beat {
        /// The receiver.
        to: Session,
        /// The answer.
        answer: HeartbeatAnswer,
    },
    /// Push routing.
    Push {
        /// The receiver.
        to: Session,
        /// The update.
        update: RoutingUpdate,
    },
    /// Ask every address of a node whether this process is alive, all at once, each with a short
    /// deadline.
    Probe {
        /// The node.
        node: NodeId,
        /// The process to look for.
        incarnation: Incarnation,
        /// The addresses.
        addresses: Vec<String>,
    },
    /// Answer an operator.
    AdminDone {
        /// The receiver.
        to: Session,
        /// The answer.
        answer: AdminAnswer,
    },
    /// The role changed.
    Became(Role),
    /// An event for this process's log; the store has it already.
    Happened(EventRecord),
}

/// A list of effects.
pub type Effects = Vec<Effect>;

/// Role of this manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Watches the primary's lease.
    Standby,
    /// Holds the lease, and reads the records.
    TakingOver,
    /// Makes the decisions.
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
        /// Most entries.
        limit: usize,
    },
    /// Writes all entries, if all checks hold, as one serializable transaction.
    Commit {
        /// Keys with their required values; `None` requires absence.
        checks: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        /// Keys with their new values; `None` deletes.
        writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    },
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// To `Get`, in the order of the request.
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
    /// No answer; a transaction may have been executed, or may be later.
    Failed,
}

/// An operator's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// Make the first chains, with this number of replicas each.
    Form {
        /// Replicas of every chain.
        replicas: u8,
    },
    /// Change a setting; an empty value restores the default.
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
    /// Give a disk up: its data is rebuilt from the other replicas, at once.
    LoseDisk {
        /// The disk.
        disk: DiskId,
    },
    /// Forget a node that holds no data any more.
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
        /// The destination disk.
        to: DiskId,
    },
    /// Move a slot, with its chunks, to another chain.
    MoveSlot {
        /// The slot.
        slot: SlotId,
        /// The destination chain.
        to: ChainId,
    },
    /// State of the cluster.
    Status,
    /// A page of chains, with the nodes' reports of their targets.
    Chains {
        /// Chains after this one; [`ChainId::NONE`] for the first page.
        after: ChainId,
        /// Only chains with a member that does not serve, or that moves.
        unhealthy: bool,
    },
    /// The slots that move.
    Slots,
    /// The settings with changed values.
    Config,
    /// Recent events: a page, oldest first.
    Events {
        /// Events from this number on.
        from: u64,
    },
}

/// The answer to an operator.
#[derive(Clone, Debug)]
pub enum AdminAnswer {
    /// Done, durably; the text describes the consequences.
    Done(String),
    /// Not done; the text gives the reason and the fix.
    Refused(String),
    /// State of the cluster.
    Status(Box<Status>),
    /// Some chains.
    Chains(ChainPage),
    /// The slots that move.
    Slots(Vec<SlotStatus>),
    /// The configuration.
    Config(ConfigRecord),
    /// Events; empty at the end of the log.
    Events(Vec<EventRecord>),
    /// Another manager is primary, at these addresses if they are known.
    NotPrimary(Vec<String>),
}
