//! Deliberate protocol bugs, so that the simulator can prove that it would see them.
//!
//! They exist only with the cargo feature `mutations`, which only `millpond-sim` asks for.
//! Without it `mutated!` is the constant `false` and the names below do not exist.

/// True when this replica was told to make the named mistake.
#[cfg(feature = "mutations")]
macro_rules! mutated {
    ($replica:expr, $name:ident) => {
        $replica.mutation == Some($crate::mutation::Mutation::$name)
    };
}

/// No mistakes are built in.
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
    /// Reads go on after the lease ran out.
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
    /// Retries are done again.
    NoDedup,
    /// A resync does not hand over what is known of writers.
    NoDedupHandover,
    /// A change of the chain forgets updates that were under way.
    ForgetPending,
    /// A new tail answers before it knows what the tail before it had committed.
    TrustInherited,
    /// The syncing target answers tail queries.
    SyncingIsTail,
    /// The last serving target does not pass new writes on to the syncing one.
    SyncingMissesWrites,
    /// A resync leaves out chunks that are locked by a write when their turn comes.
    ResyncSkipsLocked,
    /// A resync's put is applied whatever the sink has meanwhile.
    ResyncIgnoresExpect,
    /// A target calls itself up to date after a gap in the chain versions it saw.
    UpToDateAfterGap,
    /// A deletion leaves no tombstone.
    ForgetTombstone,
    /// Tombstones are collected at once.
    CollectAtOnce,
    /// `disk` updates are passed on and acknowledged without waiting for the disk.
    StageNotDurable,
    /// The last serving target drops what was staged when it comes back.
    LastServingDropsStaged,
    /// A restarted replica goes on in the state it finds in the routing.
    ServeAfterRestart,
    /// A promoted target reads before its predecessor acts on the promotion.
    SkipJoin,
    /// Payloads are not compared with their checksums.
    SkipChecksum,
    /// A seal is written while updates that name it are under way.
    SealAtOnce,
    /// Updates pass while the seal that they name is under way.
    PassUnderSeal,
    /// A resync does not go on without the bytes of a chunk that nobody has.
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
    /// All of them.
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
