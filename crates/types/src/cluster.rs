//! Types of a cluster: nodes, disks, targets, chains, and routing under one version.
//!
//! This module has data types only. The pure crates `cluster` and `chain` decide which chain a
//! target joins and how states change. The stored and sent encodings of these types are in
//! [`crate::wire`].

use std::fmt;
use std::sync::Arc;

use crate::ids::{SlotId, Uuid128};
use crate::limits;

mod messages;
mod namespaces;
mod news;
mod records;
mod routing;

pub use crate::limits::SLOTS;
pub use messages::{
    DiskOffer, DiskReport, Grant, Heartbeat, HeartbeatAnswer, QuotaLimit, QuotaReport, Refusal,
    Register, RegisterAnswer, SlotDone, SlotProgress, SlotsMoved, TargetReport,
};
pub use namespaces::{DroppedRecord, NamespaceHead, NamespaceRecord, namespace_keys};
pub use news::News;
pub use records::{
    ChainRecord, ClusterRecord, ConfigRecord, ConfigVersion, DiskRecord, DiskState, EventRecord,
    HeadRecord, Incarnation, LeaseRecord, NodeRecord, NodeState, SLOT_PAGES, SlotPage, TableSet,
    TargetMove, Term, TermRecord, keys,
};
pub use routing::{
    NodeInfo, Routing, RoutingDiff, RoutingUpdate, SlotChange, SlotPlace, UpdateError,
};

/// One running `millpond server`: drawn once, stored on its disks, kept for its whole life. Never
/// an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub Uuid128);

/// One data directory or block device; written in its superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub Uuid128);

/// One replica slot on one disk. The manager numbers it and never reuses the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(pub u32);

/// An ordered list of targets that replicate the same chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId(pub u32);

impl ChainId {
    /// No chain: the chain of a slot before the cluster has chains. Chains count from 1.
    pub const NONE: Self = Self(0);
    /// Low bits of the id, which number the chains of one table; the bits above them are the table.
    const NUMBER_BITS: u32 = 17;

    /// The id of a chain of `table`: 0 is the cluster's default table, any other number is the
    /// replica count of the table's chains (RFC 0022).
    #[must_use]
    pub const fn of(table: u8, number: u32) -> Self {
        Self((table as u32) << Self::NUMBER_BITS | number)
    }

    /// The table of the chain.
    #[must_use]
    pub fn table(self) -> u8 {
        u8::try_from(self.0 >> Self::NUMBER_BITS).unwrap_or(u8::MAX)
    }

    /// The chain's number in its table, from 1.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }

    /// All ids that chains of `table` can have.
    #[must_use]
    pub fn all_of(table: u8) -> std::ops::RangeInclusive<Self> {
        Self::of(table, 0)..=Self::of(table, (1 << Self::NUMBER_BITS) - 1)
    }
}

const _: () = assert!(limits::CHAINS_MAX < 1 << ChainId::NUMBER_BITS);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of a chain: grows by one with every change of its members, order or states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainVersion(pub u32);

/// Version of the routing: grows with every change of nodes, chains or slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoutingVersion(pub u64);

/// Version of one chunk: grows by one with every write, the same number on every replica. Version 0
/// means that the chunk was never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkVersion(pub u64);

/// State of a target as the manager decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TargetState {
    /// Has all data; answers reads and takes part in writes.
    Serving = 1,
    /// Was the last serving target when it went away: only it may bring the chain back.
    LastServing = 2,
    /// Takes part in writes while the last serving target brings it up to date.
    Syncing = 3,
    /// Is online and waits for its turn to sync.
    Waiting = 4,
    /// Its node or disk is gone.
    Offline = 5,
}

/// State of a target as its own node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LocalState {
    /// Holds everything the chain committed.
    UpToDate = 1,
    /// Works, but may lack data.
    Online = 2,
    /// Does not work. The manager also assumes this state when the node's lease has run out.
    Offline = 3,
}

/// A number on the wire or on disk that is no valid state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a target state")]
pub struct UnknownState(pub u8);

impl TryFrom<u8> for TargetState {
    type Error = UnknownState;

    fn try_from(value: u8) -> Result<Self, UnknownState> {
        const ALL: [TargetState; 5] = [
            TargetState::Serving,
            TargetState::LastServing,
            TargetState::Syncing,
            TargetState::Waiting,
            TargetState::Offline,
        ];
        ALL.into_iter().find(|state| *state as u8 == value).ok_or(UnknownState(value))
    }
}

impl TryFrom<u8> for LocalState {
    type Error = UnknownState;

    fn try_from(value: u8) -> Result<Self, UnknownState> {
        const ALL: [LocalState; 3] =
            [LocalState::UpToDate, LocalState::Online, LocalState::Offline];
        ALL.into_iter().find(|state| *state as u8 == value).ok_or(UnknownState(value))
    }
}

/// A member of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainTarget {
    /// The replica slot.
    pub target: TargetId,
    /// The disk that holds it.
    pub disk: DiskId,
    /// The node that has the disk.
    pub node: NodeId,
    /// Its state as the manager decides it.
    pub state: TargetState,
}

/// A chain: serving targets first (head to tail), then the syncing one, then the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its id.
    pub id: ChainId,
    /// Its version.
    pub version: ChainVersion,
    /// Its members in order.
    pub targets: Vec<ChainTarget>,
}

impl Chain {
    /// The targets that answer reads, head first, tail last.
    #[must_use]
    pub fn serving(&self) -> impl DoubleEndedIterator<Item = &ChainTarget> {
        self.targets.iter().filter(|member| member.state == TargetState::Serving)
    }

    /// The targets that a write passes through, in order: the serving ones, then the syncing one.
    #[must_use]
    pub fn writing(&self) -> impl DoubleEndedIterator<Item = &ChainTarget> {
        let states = [TargetState::Serving, TargetState::Syncing];
        self.targets.iter().filter(move |member| states.contains(&member.state))
    }
}

/// The slot map: a chain for every slot.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotMap(Box<[Arc<MapPage>]>);

/// Slots of one page. A slightly changed map shares most pages with the map it was cloned from.
const PAGE: usize = 1024;

const _: () = assert!(SLOTS.is_multiple_of(PAGE));

type MapPage = [ChainId; PAGE];

impl SlotMap {
    /// A map that gives every slot to one chain.
    #[must_use]
    pub fn all(chain: ChainId) -> Self {
        // All pages share one array; the first change of a page copies it.
        let page = Arc::new([chain; PAGE]);
        Self(std::iter::repeat_n(page, SLOTS / PAGE).collect())
    }

    /// The chain of a slot.
    #[must_use]
    pub fn get(&self, slot: SlotId) -> ChainId {
        let slot = usize::from(slot.0);
        self.0[slot / PAGE][slot % PAGE]
    }

    /// Assigns a slot to a chain.
    pub fn set(&mut self, slot: SlotId, chain: ChainId) {
        let slot = usize::from(slot.0);
        Arc::make_mut(&mut self.0[slot / PAGE])[slot % PAGE] = chain;
    }

    /// Slots and their chains, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, ChainId)> {
        (0..=u16::MAX).map(|slot| (SlotId(slot), self.get(SlotId(slot))))
    }

    /// Whether any slot belongs to the chain.
    #[must_use]
    pub fn has(&self, chain: ChainId) -> bool {
        self.0.iter().any(|page| page.contains(&chain))
    }

    /// Slots with another chain than in `before`, in order. If this map was made from a clone of
    /// `before`, only the changed pages are compared.
    pub fn unlike<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = SlotId> + 'a {
        let pages = self.0.iter().zip(&before.0).enumerate();
        let differ = pages.filter(|(_, (now, was))| !Arc::ptr_eq(now, was));
        let slots = differ.flat_map(|(page, (now, was))| {
            let slots = (0..PAGE).filter(move |slot| now[*slot] != was[*slot]);
            slots.map(move |slot| page * PAGE + slot)
        });
        slots.filter_map(|slot| u16::try_from(slot).ok().map(SlotId))
    }
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_their_numbers() {
        for value in 0..=u8::MAX {
            assert_eq!(TargetState::try_from(value).is_ok(), (1..=5).contains(&value));
            assert_eq!(LocalState::try_from(value).is_ok(), (1..=3).contains(&value));
        }
    }

    #[test]
    fn a_write_passes_the_serving_targets_then_the_syncing_one() {
        let member = |n, state| ChainTarget {
            target: TargetId(n),
            disk: DiskId::default(),
            node: NodeId::default(),
            state,
        };
        let targets = vec![
            member(3, TargetState::Serving),
            member(1, TargetState::Serving),
            member(2, TargetState::Syncing),
            member(4, TargetState::Offline),
        ];
        let chain = Chain { targets, ..Chain::default() };
        assert_eq!(chain.serving().map(|m| m.target.0).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(chain.writing().map(|m| m.target.0).collect::<Vec<_>>(), [3, 1, 2]);
    }

    #[test]
    fn a_slot_map_covers_every_slot() {
        let mut map = SlotMap::all(ChainId(1));
        map.set(SlotId(u16::MAX), ChainId(2));
        assert_eq!(map.get(SlotId(0)), ChainId(1));
        assert_eq!(map.iter().filter(|(_, chain)| *chain == ChainId(2)).count(), 1);
    }

    #[test]
    fn maps_are_compared_where_they_were_changed() {
        let mut before = SlotMap::all(ChainId(1));
        before.set(SlotId(70), ChainId(9));
        let mut after = before.clone();
        assert_eq!(after.unlike(&before).count(), 0);
        for (slot, chain) in [(3, 2), (70, 2), (1023, 2), (1024, 2), (u16::MAX, 2), (5, 1)] {
            after.set(SlotId(slot), ChainId(chain));
        }
        let differ = [3, 70, 1023, 1024, u16::MAX].map(SlotId);
        assert_eq!(after.unlike(&before).collect::<Vec<_>>(), differ);
        assert_eq!(before.unlike(&after).collect::<Vec<_>>(), differ);
        // A map that was not cloned from the other one.
        let mut other = SlotMap::all(ChainId(1));
        other.set(SlotId(70), ChainId(9));
        assert_eq!((other.unlike(&before).count(), after.unlike(&other).count()), (0, 5));
        assert!(other == before && other != after);
    }
}
