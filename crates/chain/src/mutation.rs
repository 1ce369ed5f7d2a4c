//! Deliberate protocol bugs, which prove that the simulator would detect them.
//!
//! They exist only with the cargo feature `mutations`, which only `millpond-sim` enables. Without
//! it `mutated!` is the constant `false` and the names below do not exist.

/// True when this replica was given the named bug.
#[cfg(feature = "mutations")]
macro_rules! mutated {
    ($replica:expr, $name:ident) => {
        $replica.mutation == Some($crate::mutation::Mutation::$name)
    };
}

/// No bugs are built in.
#[cfg(not(feature = "mutations"))]
macro_rules! mutated {
    ($replica:expr, $name:ident) => {
        $crate::mutation::none()
    };
}

/// `false`, folded away.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn none() -> bool {
    false
}

pub(crate) use mutated;

/// One deliberate bug.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A replica with a pending version answers the committed one without asking the tail.
    SkipTailQuery,
    /// A replica with a pending version answers that one without asking the tail.
    ReadPending,
    /// Reads continue after the lease ran out.
    ReadWithoutLease,
    /// A lease is counted from the answer instead of from the question.
    LeaseFromAnswer,
    /// A chain version that drops the holder of a grant is acted on at once.
    IgnorePeerGrant,
    /// Messages of any chain version are accepted.
    IgnoreChainVersion,
    /// A replica commits when its own stage is done, before its successor did.
    CommitBeforeForward,
    /// A replica commits although not all above it have stored the version.
    CommitBeforeReady,
    /// The head answers when its own stage is done.
    AckBeforeTail,
    /// Retries are executed again.
    NoDedup,
    /// A resync does not hand over the records of writers.
    NoDedupHandover,
    /// A change of the chain forgets updates in flight.
    ForgetPending,
    /// A new tail answers before it knows the versions that the previous tail had committed.
    TrustInherited,
    /// The syncing target answers tail queries.
    SyncingIsTail,
    /// The last serving target does not pass new writes on to the syncing one.
    SyncingMissesWrites,
    /// A resync leaves out chunks that are locked by a write when their turn comes.
    ResyncSkipsLocked,
    /// A resync's put is applied even if the sink's chunk has changed.
    ResyncIgnoresExpect,
    /// A target reports itself up to date after a gap in the chain versions it saw.
    UpToDateAfterGap,
    /// A deletion leaves no tombstone.
    ForgetTombstone,
    /// Tombstones are collected at once.
    CollectAtOnce,
    /// `disk` updates are passed on and acknowledged without waiting for the disk.
    StageNotDurable,
    /// The last serving target drops staged versions when it comes back.
    LastServingDropsStaged,
    /// A restarted replica continues in the state it finds in the routing.
    ServeAfterRestart,
    /// A promoted target reads before its predecessor acts on the promotion.
    SkipJoin,
    /// Payloads are not compared with their checksums.
    SkipChecksum,
    /// A seal is written while updates that name it are under way.
    SealAtOnce,
    /// Updates pass while the seal that they name is in flight.
    PassUnderSeal,
    /// A resync does not continue without the bytes of a chunk that no replica has.
    LostHoldsResync,
    /// A damaged chunk is handed on as lost before others were asked for a copy.
    LostUnasked,
    /// A lost chunk leaves nothing behind on the target that is brought up to date.
    LostAsNothing,
    /// A lost chunk becomes an empty one there.
    LostAsEmpty,
}

#[cfg(feature = "mutations")]
impl Mutation {
    /// All bugs.
    pub const ALL: [Self; 31] = [
        Self::SkipTailQuery,
        Self::ReadPending,
        Self::ReadWithoutLease,
        Self::LeaseFromAnswer,
        Self::IgnorePeerGrant,
        Self::IgnoreChainVersion,
        Self::CommitBeforeForward,
        Self::CommitBeforeReady,
        Self::AckBeforeTail,
        Self::NoDedup,
        Self::NoDedupHandover,
        Self::ForgetPending,
        Self::TrustInherited,
        Self::SyncingIsTail,
        Self::SyncingMissesWrites,
        Self::ResyncSkipsLocked,
        Self::ResyncIgnoresExpect,
        Self::UpToDateAfterGap,
        Self::ForgetTombstone,
        Self::CollectAtOnce,
        Self::StageNotDurable,
        Self::LastServingDropsStaged,
        Self::ServeAfterRestart,
        Self::SkipJoin,
        Self::SkipChecksum,
        Self::SealAtOnce,
        Self::PassUnderSeal,
        Self::LostHoldsResync,
        Self::LostUnasked,
        Self::LostAsNothing,
        Self::LostAsEmpty,
    ];
}
