//! The transactional store: serializable, so each request is one function here. It sees every
//! decision that takes effect, so the guarantees of managers are checked here.

use std::collections::BTreeMap;

use millpond_cluster::manager::{StoreReply, StoreRequest};
use millpond_types::cluster::{
    ChainId, ChainRecord, ChainTarget, ClusterRecord, HeadRecord, NodeId, SLOT_PAGES, SlotPage,
    SlotPlace, TargetState, TermRecord, keys,
};
use millpond_types::limits::SLOT_PAGE;
use millpond_types::wire::Record as _;

/// Most operations in one transaction of etcd.
const OPERATIONS_MAX: usize = 128;

/// A chain before and after a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) before: Option<ChainRecord>,
    pub(crate) after: ChainRecord,
}

/// The records of all managers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    data: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) chains: BTreeMap<ChainId, ChainRecord>,
    pub(crate) term: TermRecord,
    pub(crate) head: HeadRecord,
    pub(crate) cluster: ClusterRecord,
    /// Whether it accepts nothing at the moment.
    pub(crate) down: bool,
}

impl Store {
    /// A store in which every slot has its place among `chains` future chains, so that a run need
    /// not spend time on that.
    pub(crate) fn new(chains: usize) -> Self {
        let mut store = Self::default();
        let chain = |slot: usize| ChainId(u32::try_from(slot % chains).expect("few") + 1);
        for page in 0..SLOT_PAGES {
            let slots = page * SLOT_PAGE..(page + 1) * SLOT_PAGE;
            let places = slots.map(|slot| SlotPlace { chain: chain(slot), old: None }).collect();
            let page = u8::try_from(page).expect("64 pages");
            store.data.insert(keys::slots(page), SlotPage { page, places }.seal());
        }
        store
    }

    /// Executes a request of `sender`. Errors are broken guarantees.
    pub(crate) fn carry_out(
        &mut self,
        sender: NodeId,
        request: StoreRequest,
    ) -> Result<(StoreReply, Vec<Change>), String> {
        match request {
            StoreRequest::Get { keys } => {
                let values = keys.iter().map(|key| self.data.get(key).cloned()).collect();
                Ok((StoreReply::Values(values), Vec::new()))
            }
            StoreRequest::Scan { prefix, after, limit } => {
                let from = if after.is_empty() { prefix.clone() } else { after.clone() };
                let found = self.data.range(from..).filter(|(key, _)| **key != after);
                let found = found.take_while(|(key, _)| key.starts_with(&prefix));
                let mut entries: Vec<_> = found
                    .take(limit + 1)
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                let more = entries.len() > limit;
                entries.truncate(limit);
                Ok((StoreReply::Page { entries, more }, Vec::new()))
            }
            StoreRequest::Commit { checks, writes } => {
                if checks.len() + writes.len() > OPERATIONS_MAX {
                    return Err(format!("{} operations in one transaction", writes.len()));
                }
                if checks.iter().any(|(key, value)| self.data.get(key) != value.as_ref()) {
                    return Ok((StoreReply::Conflict, Vec::new()));
                }
                let changes = self.commit(sender, writes)?;
                Ok((StoreReply::Committed, changes))
            }
        }
    }

    fn commit(
        &mut self,
        sender: NodeId,
        writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    ) -> Result<Vec<Change>, String> {
        let mut changes = Vec::new();
        let unreadable = |error| format!("a record that cannot be read: {error}");
        for (key, value) in writes {
            let Some(value) = value else {
                self.data.remove(&key);
                continue;
            };
            if key == keys::TERM {
                let term = TermRecord::open(&value).map_err(unreadable)?;
                if term.term.0 != self.term.term.0 + 1 {
                    return Err(format!("term {:?} follows {:?}", term.term, self.term.term));
                }
                self.term = term;
            } else if key == keys::HEAD {
                let head = HeadRecord::open(&value).map_err(unreadable)?;
                self.check_head(sender, &head)?;
                self.head = head;
            } else if key == keys::CLUSTER {
                self.cluster = ClusterRecord::open(&value).map_err(unreadable)?;
            } else if key.starts_with(keys::CHAIN) {
                let after = ChainRecord::open(&value).map_err(unreadable)?;
                let before = self.chains.insert(after.chain.id, after.clone());
                check_chain(before.as_ref(), &after)?;
                changes.push(Change { before, after });
            }
            self.data.insert(key, value);
        }
        Ok(changes)
    }

    /// Checks that every decision is made under the lease, one after the other, and that routing
    /// only grows.
    fn check_head(&self, sender: NodeId, head: &HeadRecord) -> Result<(), String> {
        if self.term.manager != sender {
            return Err("a manager decided that is not primary any more".to_owned());
        }
        let grown = head.routing.0 - self.head.routing.0.min(head.routing.0);
        let next = head.transaction == self.head.transaction + 1;
        if !next || head.routing < self.head.routing || grown > 1 {
            return Err(format!("{head:?} follows {:?}", self.head));
        }
        Ok(())
    }
}

/// Checks rules for every change of a chain, independent of its nodes.
fn check_chain(before: Option<&ChainRecord>, after: &ChainRecord) -> Result<(), String> {
    let bad = |what: &str| Err(format!("{what}: {before:?} -> {after:?}"));
    let members = &after.chain.targets;
    let nodes: std::collections::BTreeSet<NodeId> = members.iter().map(|m| m.node).collect();
    let leaving = after.moving.and_then(|moving| moving.drop);
    let leaves = members.iter().any(|member| Some(member.target) == leaving);
    if nodes.len() + usize::from(leaves) < members.len() {
        return bad("two replicas on one node");
    }
    let Some(before) = before else { return Ok(()) };
    let grown = after.chain.version.0 == before.chain.version.0 + 1;
    if !grown && after.chain != before.chain {
        return bad("a chain changed without its version");
    }
    let data = |member: &&ChainTarget| {
        matches!(member.state, TargetState::Serving | TargetState::LastServing)
    };
    if before.chain.targets.iter().any(|m| data(&m)) && !members.iter().any(|m| data(&m)) {
        return bad("nobody remembers the data of a chain");
    }
    let gone = |member: &&ChainTarget| !members.iter().any(|other| other.target == member.target);
    if before.chain.serving().any(|member| gone(&member)) {
        return bad("a replica was removed while it served");
    }
    for member in members.iter().filter(data) {
        let was = before.chain.targets.iter().find(|old| old.target == member.target);
        let had = was.is_some_and(|old| data(&old));
        let synced = was.is_some_and(|old| old.state == TargetState::Syncing);
        if !(had || synced && member.state == TargetState::Serving) {
            return bad("a replica without the data is trusted with it");
        }
    }
    Ok(())
}
