//! Deliberate bugs of the manager, which prove that the simulator would detect them.
//!
//! They exist only with the cargo feature `mutations`, which only `millpond-sim` enables. Without
//! it `mutated!` is the constant `false` and the names below do not exist.

/// True when the manager with these options was given the named bug.
#[cfg(feature = "mutations")]
macro_rules! mutated {
    ($options:expr, $name:ident) => {
        $options.mutation == Some($crate::manager::mutation::Mutation::$name)
    };
}

/// No bugs are built in.
#[cfg(not(feature = "mutations"))]
macro_rules! mutated {
    ($options:expr, $name:ident) => {
        $crate::manager::mutation::none($options)
    };
}

/// `false`, folded away.
#[cfg(not(feature = "mutations"))]
pub(super) const fn none(_options: &super::ManagerOptions) -> bool {
    false
}

pub(super) use mutated;

/// One deliberate bug.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Transactions check neither the term nor the transaction before.
    CommitUnchecked,
    /// A transaction of unknown outcome counts as committed.
    AssumeCommitted,
    /// A primary still grants leases after its own ran out.
    ActWithoutLease,
    /// A new primary does not wait for leases granted by the previous one.
    ForgetFormerLeases,
    /// A silent node is considered gone before its lease and the margin have passed.
    GoneEarly,
    /// A probe without an answer counts as the end of the process.
    SilenceIsDeath,
    /// A node gets a lease on its old routing, although the newer one takes targets from it.
    GrantStaleRouting,
    /// A target leaves its chain before its replacement is up to date.
    LeaveEarly,
    /// UPTODATE counts for any chain version.
    TrustOldReport,
}

#[cfg(feature = "mutations")]
impl Mutation {
    /// All bugs.
    pub const ALL: [Self; 9] = [
        Self::CommitUnchecked,
        Self::AssumeCommitted,
        Self::ActWithoutLease,
        Self::ForgetFormerLeases,
        Self::GoneEarly,
        Self::SilenceIsDeath,
        Self::GrantStaleRouting,
        Self::LeaveEarly,
        Self::TrustOldReport,
    ];
}

/// Removes the target that will leave, however far its replacement is.
#[cfg(feature = "mutations")]
pub(super) fn leave_early(
    options: &super::ManagerOptions,
    record: &millpond_types::cluster::ChainRecord,
) -> Option<millpond_types::cluster::ChainRecord> {
    let drop = record.moving.and_then(|moving| moving.drop);
    let drop = drop.filter(|_| mutated!(options, LeaveEarly))?;
    let mut next = record.clone();
    next.chain.targets.retain(|member| member.target != drop);
    next.chain.version.0 += 1;
    next.moving = None;
    Some(next)
}
