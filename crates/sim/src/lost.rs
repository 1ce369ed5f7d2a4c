//! Chunks that lose their last good copy: a resync continues without them, and no read returns
//! other bytes in their place.
//!
//! In some seeds damage also strikes chunks without another good copy. Later reads are checked as
//! always: a refusal proves nothing, and "not found", zeros or other bytes fit no history. This
//! module checks that a chunk is called lost only when no serving target has it, and refused at the
//! end only then.

use millpond_chain::Meta;
use millpond_types::ChunkId;
use millpond_types::cluster::{Chain, ChainId, ChainRecord, ChunkVersion, TargetId};

use crate::check::Action;
use crate::client::Task;
use crate::disk::Stored;
use crate::message::{Item, ms};
use crate::node::Host;
use crate::world::{Phase, World};

/// Divisor and remainder of the seeds that lose chunks; other seeds run as before losses were
/// added.
const SEEDS: (u64, u64) = (8, 3);

/// Whether chunks of this seed may be lost.
pub(crate) const fn wanted(seed: u64) -> bool {
    seed % SEEDS.0 == SEEDS.1
}

fn committed(host: &Host, chunk: ChunkId) -> Option<&Stored> {
    host.disk.chunks().get(&chunk)?.committed.as_ref()
}

impl World {
    /// Damages all good copies of a chunk that serving targets have; false when no chain was
    /// chosen.
    pub(crate) fn strike_last_copies(&mut self) -> bool {
        if !wanted(self.seed) || !self.rng.permille(700) {
            return false;
        }
        // Mostly a chain with one serving target: its other targets keep the versions that they had
        // before.
        let several = self.rng.permille(200);
        let chains = self.store.chains.values().map(|record| &record.chain);
        let chains = chains.filter(|chain| several || chain.serving().count() == 1);
        let chains: Vec<ChainId> = chains.map(|chain| chain.id).collect();
        let Some(chain) = self.rng.pick(&chains) else { return false };
        let serving = self.store.chains[&chain].chain.serving();
        let serving: Vec<TargetId> = serving.map(|member| member.target).collect();
        let chunk = ChunkId(1 + u128::from(self.rng.below(self.plan.chunks)));
        for target in serving {
            let Some(host) = self.hosts.get_mut(&target) else { continue };
            if !committed(host, chunk).is_some_and(Stored::is_good) || !host.disk.rot(chunk) {
                continue;
            }
            self.trace.note(self.now, || format!("{} of {chain:?} loses {chunk}", target.0));
            let met = self.rng.between(ms(1), ms(3000));
            self.after(met, Item::Scrub { target, chunk });
        }
        true
    }

    /// Checks that no serving target has the bytes of a chunk when a target must continue without
    /// them.
    pub(crate) fn judge_loss(&mut self, target: TargetId, chunk: ChunkId, meta: Meta) {
        self.stats.lost += 1;
        let Some(host) = self.hosts.get(&target) else { return };
        let others = host.view.serving().filter(|member| member.target != target);
        let others = others.filter_map(|member| self.hosts.get(&member.target));
        let has = |other: &&Host| {
            committed(other, chunk).is_some_and(|copy| copy.is_good() && copy.meta == meta)
        };
        let other = others.into_iter().find(has).map(|other| other.target);
        if let Some(other) = other {
            self.violate(|| format!("{chunk:?} is lost to {target:?}, and {other:?} has it"));
        }
    }

    /// The newest committed version of a chunk on the targets that take part in writes, or on all
    /// members while none does. A target that was away, or is being brought up to date, may hold
    /// another version, which helps no reader.
    fn newest(&self, chain: &Chain, chunk: ChunkId) -> Option<ChunkVersion> {
        let of = |target: TargetId| {
            let copy = committed(self.hosts.get(&target)?, chunk)?;
            Some(copy.meta.version)
        };
        let writing = chain.writing().filter_map(|member| of(member.target)).max();
        writing.or_else(|| chain.targets.iter().filter_map(|member| of(member.target)).max())
    }

    /// Whether the newest version is damaged, and no member of the chain has it whole.
    pub(crate) fn is_lost(&self, chain: ChainId, chunk: ChunkId) -> bool {
        let Some(record) = self.store.chains.get(&chain) else { return false };
        let newest = self.newest(&record.chain, chunk);
        let hosts = record.chain.targets.iter().filter_map(|member| self.hosts.get(&member.target));
        let copies = hosts.filter_map(|host| committed(host, chunk));
        let copies: Vec<&Stored> =
            copies.filter(|copy| Some(copy.meta.version) == newest).collect();
        !copies.is_empty() && copies.iter().all(|copy| copy.rotten)
    }

    /// Replaces a task that would write a whole lost chunk while chains come back: the write would
    /// repair it, and any update that waits for its bytes.
    pub(crate) fn spare_lost(&self, task: Task) -> Task {
        let (chain, chunk, action, only) = task;
        let whole =
            matches!(action, Action::Put(_) | Action::Replace(_) | Action::Remove | Action::Evict);
        let back = wanted(self.seed) && self.phase == Phase::Healing;
        let spared = whole && back && self.is_lost(chain, chunk);
        let action = if spared { Action::Read(0, u32::MAX) } else { action };
        (chain, chunk, action, only)
    }

    /// Whether a target that takes part in writes holds the newest version undamaged.
    fn is_held(&self, chain: &Chain, chunk: ChunkId) -> bool {
        let newest = self.newest(chain, chunk);
        let hosts = chain.writing().filter_map(|member| self.hosts.get(&member.target));
        let mut copies = hosts.filter_map(|host| committed(host, chunk));
        copies.any(|copy| !copy.rotten && Some(copy.meta.version) == newest)
    }

    /// Whether the task cannot succeed: it needs the bytes of a chunk that no replica has.
    pub(crate) fn in_vain(&self, (chain, chunk, action, _): &Task) -> bool {
        let needs = matches!(
            action,
            Action::Read(..) | Action::Write(..) | Action::Append(_) | Action::Truncate(_)
        );
        needs && self.is_lost(*chain, *chunk)
    }

    /// Whether an update that needs the bytes of a lost chunk is in flight on a chain with several
    /// serving targets. Its head had the bytes when it began, or did not know of the loss, and a
    /// version that others have seen is not taken back. Nothing is guaranteed for such a chain.
    pub(crate) fn waits_for_lost(&self) -> bool {
        let several = |record: &&ChainRecord| record.chain.serving().count() > 1;
        self.store.chains.values().filter(several).any(|record| {
            let hosts = record.chain.serving();
            let mut hosts = hosts.filter_map(|member| self.hosts.get(&member.target));
            hosts.any(|host| {
                let mut chunks = host.disk.chunks().keys();
                chunks.any(|chunk| {
                    host.replica.is_pending(*chunk) && !self.is_held(&record.chain, *chunk)
                })
            })
        })
    }
}
