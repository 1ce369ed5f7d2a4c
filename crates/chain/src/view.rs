//! One version of the chain as one of its targets sees it.

use millpond_types::cluster::{Chain, ChainVersion, TargetId, TargetState};

/// A chain and the target of it that is this replica.
#[derive(Clone, Debug)]
pub(crate) struct View {
    chain: Chain,
    me: TargetId,
}

impl View {
    pub(crate) const fn new(chain: Chain, me: TargetId) -> Self {
        Self { chain, me }
    }

    pub(crate) const fn version(&self) -> ChainVersion {
        self.chain.version
    }

    /// State of this replica; `None` when it is not a member.
    pub(crate) fn state(&self) -> Option<TargetState> {
        self.state_of(self.me)
    }

    pub(crate) fn state_of(&self, target: TargetId) -> Option<TargetState> {
        self.chain.targets.iter().find(|member| member.target == target).map(|m| m.state)
    }

    pub(crate) fn serves(&self, target: TargetId) -> bool {
        self.state_of(target) == Some(TargetState::Serving)
    }

    pub(crate) fn is_head(&self) -> bool {
        self.chain.serving().next().is_some_and(|head| head.target == self.me)
    }

    /// The last serving target: it answers tail queries and is the source of a resync.
    pub(crate) fn tail(&self) -> Option<TargetId> {
        self.chain.serving().next_back().map(|tail| tail.target)
    }

    pub(crate) fn is_tail(&self) -> bool {
        self.tail() == Some(self.me)
    }

    pub(crate) fn syncing(&self) -> Option<TargetId> {
        let mut members = self.chain.targets.iter();
        members.find(|member| member.state == TargetState::Syncing).map(|member| member.target)
    }

    /// The previous target in the order of writes.
    pub(crate) fn predecessor(&self) -> Option<TargetId> {
        let before = self.chain.writing().take_while(|member| member.target != self.me);
        before.last().map(|member| member.target)
    }

    /// The next target in the order of writes.
    pub(crate) fn successor(&self) -> Option<TargetId> {
        let mut from_me = self.chain.writing().skip_while(|member| member.target != self.me);
        from_me.nth(1).map(|member| member.target)
    }

    /// Other targets that take part in writes: they may hold a good copy, and their grants make a
    /// peer lease.
    pub(crate) fn holders(&self) -> Vec<TargetId> {
        let writing = self.chain.writing().map(|member| member.target);
        writing.filter(|target| *target != self.me).collect()
    }

    /// All targets that take part in writes, with their states.
    pub(crate) fn writers(&self) -> impl Iterator<Item = (TargetId, TargetState)> {
        self.chain.writing().map(|member| (member.target, member.state))
    }
}
