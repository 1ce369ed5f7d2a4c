//! Records of a cluster in the transactional store. Managers keep no other state.

use std::collections::BTreeMap;

use super::{Chain, ChainId, DiskId, NodeId, RoutingVersion, SlotPlace, TargetId};
use crate::ids::{ClusterSecret, Uuid128};
use crate::limits::{REPLICAS_MAX, SLOT_PAGE, SLOTS};
use crate::units::UnixSeconds;

/// One start of a process: a random number drawn when a server starts. It distinguishes two
/// processes with one identity, and a restarted process from the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// Version of the cluster's configuration: grows with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConfigVersion(pub u64);

/// Term of a primary: grows with every change of primary. It is the fencing token of the manager's
/// lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term(pub u64);

/// The state of a node that the operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NodeState {
    /// Takes its share of the data.
    #[default]
    Active = 1,
    /// Is being emptied, and serves until it is empty.
    Draining = 2,
}

/// The state of a disk that the operator or the manager asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DiskState {
    /// Takes its share of the data.
    #[default]
    Active = 1,
    /// Is being emptied, and serves until it is empty.
    Draining = 2,
    /// Declared lost by the operator, and only the operator lets it take data again. Its replicas
    /// are rebuilt from the others.
    Lost = 3,
    /// Was away, or failed, for so long that its replicas are rebuilt from the others. It takes
    /// data again when it is back.
    Missing = 4,
}

impl DiskState {
    /// Whether the cluster no longer expects data from the disk.
    #[must_use]
    pub const fn is_given_up(self) -> bool {
        matches!(self, Self::Lost | Self::Missing)
    }
}

/// The primary. Changes only at a take-over; every transaction of a primary checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TermRecord {
    /// Grows by one with every take-over.
    pub term: Term,
    /// The primary's node.
    pub manager: NodeId,
    /// Addresses of the primary for nodes and clients.
    pub addresses: Vec<String>,
}

/// Lease of the primary, which writes it every second. Standbys watch it change by their own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The renewed term.
    pub term: Term,
    /// Grows with every renewal.
    pub renewal: u64,
    /// The primary stopped cleanly: a standby need not wait.
    pub released: bool,
}

/// Head of the cluster's state. Every transaction of the primary writes it and checks the one
/// before, so a late or repeated transaction changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadRecord {
    /// Number of the transaction.
    pub transaction: u64,
    /// The routing version after the transaction.
    pub routing: RoutingVersion,
    /// Number of the next event.
    pub next_event: u64,
    /// Number of the next target.
    pub next_target: u32,
    /// Number of the next chain.
    pub next_chain: u32,
}

/// Facts of a cluster that are fixed when it is founded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterRecord {
    /// Its identity.
    pub cluster: Uuid128,
    /// Replicas of every chain of the default table; 0 before chains were made.
    pub replicas: u8,
    /// Seed of placement.
    pub seed: u64,
    /// Chain tables with other replica counts, for files that ask for them.
    pub more: TableSet,
    /// The secret that keys the ids of chunks; none in a cluster founded before protocol 12.
    pub secret: Option<ClusterSecret>,
}

impl ClusterRecord {
    /// Replica count of the chains of a table; 0 if the table does not exist.
    #[must_use]
    pub const fn replicas_of(&self, table: u8) -> u8 {
        match table {
            0 => self.replicas,
            table if self.more.has(table) => table,
            _ => 0,
        }
    }
}

/// Chain tables beside the default one, each identified by its replica count (RFC 0022).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableSet(u8);

impl TableSet {
    /// Whether the table with this replica count exists.
    #[must_use]
    pub const fn has(self, replicas: u8) -> bool {
        replicas <= REPLICAS_MAX && self.0 >> replicas & 1 == 1
    }

    /// The set with one more table; unchanged for a replica count that no chain can have.
    #[must_use]
    pub const fn with(self, replicas: u8) -> Self {
        if replicas == 0 || replicas > REPLICAS_MAX { self } else { Self(self.0 | 1 << replicas) }
    }

    /// The stored form of the set: bit `n` is the table with `n` replicas.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set from its stored form; none if a bit is no valid replica count.
    #[must_use]
    pub const fn of_bits(bits: u8) -> Option<Self> {
        if bits & 1 == 1 || bits >> (REPLICAS_MAX + 1) != 0 { None } else { Some(Self(bits)) }
    }

    /// The replica counts in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (1..=REPLICAS_MAX).filter(move |replicas| self.has(*replicas))
    }
}

/// A node that registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its identity.
    pub id: NodeId,
    /// The process that registered last; only its heartbeats count.
    pub incarnation: Incarnation,
    /// `host:port` of every address that the node listens on.
    pub addresses: Vec<String>,
    /// Its host's name, for messages.
    pub host: String,
    /// Its failure domain.
    pub domain: String,
    /// The version of the program that it runs.
    pub build: String,
    /// The protocol version of the node.
    pub protocol: u8,
    /// The state that the operator asked for.
    pub state: NodeState,
    /// Whether it has the meta role.
    pub meta: bool,
}

/// A disk of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRecord {
    /// Its identity.
    pub id: DiskId,
    /// The node that has it.
    pub node: NodeId,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
    /// The state asked for.
    pub state: DiskState,
}

/// A replica that moves from one disk to another: `add` joins as the last member and syncs; once it
/// serves, `drop` leaves. Every step is a change of the chain, so a new primary continues from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetMove {
    /// The target that joins.
    pub add: TargetId,
    /// The target that leaves; none when the chain only gains a replica.
    pub drop: Option<TargetId>,
}

/// A chain and the move in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainRecord {
    /// The chain.
    pub chain: Chain,
    /// The move in progress: at most one target of a chain moves at a time.
    pub moving: Option<TargetMove>,
}

/// A run of [`SLOT_PAGE`] slots: the unit in which the slot map is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPage {
    /// Number of the page; its first slot is `page * SLOT_PAGE`.
    pub page: u8,
    /// The places of its slots.
    pub places: Vec<SlotPlace>,
}

/// Pages of a slot map.
pub const SLOT_PAGES: usize = SLOTS / SLOT_PAGE;

/// The cluster's configuration: names and values as the operator set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigRecord {
    /// Version of the configuration: grows with every change.
    pub version: ConfigVersion,
    /// The values that were set; absent names have their defaults.
    pub values: BTreeMap<String, String>,
}

/// An event for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRecord {
    /// Its number; the log keeps the newest events.
    pub number: u64,
    /// Its time, by the primary's wall clock.
    pub at: UnixSeconds,
    /// The chain concerned, if any.
    pub chain: Option<ChainId>,
    /// The event as text.
    pub text: String,
}

/// Keys of the records. Numbers in them are big endian, so that ranges sort by number.
pub mod keys {
    use crate::cluster::{ChainId, DiskId, NodeId};

    /// Prefix of all keys of the manager.
    pub const PREFIX: &[u8] = b"m/";
    /// [`super::TermRecord`].
    pub const TERM: &[u8] = b"m/term";
    /// [`super::LeaseRecord`].
    pub const LEASE: &[u8] = b"m/lease";
    /// [`super::HeadRecord`].
    pub const HEAD: &[u8] = b"m/head";
    /// [`super::ClusterRecord`].
    pub const CLUSTER: &[u8] = b"m/cluster";
    /// [`super::ConfigRecord`].
    pub const CONFIG: &[u8] = b"m/config";
    /// Prefix of a node's identity.
    pub const NODE: &[u8] = b"m/node/";
    /// Prefix of a disk's identity.
    pub const DISK: &[u8] = b"m/disk/";
    /// Prefix of a chain's number.
    pub const CHAIN: &[u8] = b"m/chain/";
    /// Prefix of a page's number.
    pub const SLOTS: &[u8] = b"m/slots/";
    /// Prefix of an event's position in the ring.
    pub const EVENT: &[u8] = b"m/event/";

    fn join(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
        [prefix, rest].concat()
    }

    /// Key of [`super::NodeRecord`].
    #[must_use]
    pub fn node(id: NodeId) -> Vec<u8> {
        join(NODE, &id.0.0)
    }

    /// Key of [`super::DiskRecord`].
    #[must_use]
    pub fn disk(id: DiskId) -> Vec<u8> {
        join(DISK, &id.0.0)
    }

    /// Key of [`super::ChainRecord`].
    #[must_use]
    pub fn chain(id: ChainId) -> Vec<u8> {
        join(CHAIN, &id.0.to_be_bytes())
    }

    /// Key of [`super::SlotPage`].
    #[must_use]
    pub fn slots(page: u8) -> Vec<u8> {
        join(SLOTS, &[page])
    }

    /// Key of [`super::EventRecord`]: its position in a ring of `EVENTS_MAX`.
    #[must_use]
    pub fn event(number: u64) -> Vec<u8> {
        let place = number % crate::limits::EVENTS_MAX as u64;
        join(EVENT, &place.to_be_bytes())
    }
}
