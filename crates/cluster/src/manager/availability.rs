//! Events for chains that stop serving, and for those that serve again.
//!
//! A failed node takes hundreds of chains with it, and one line for each would bury the earlier
//! events.

use std::collections::BTreeMap;

use millpond_types::cluster::{Chain, ChainId, TargetState};

/// Most chains of one transaction with an event each.
const NAMED_MAX: usize = 8;

/// Chains that stop or begin to serve in one transaction.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    serves: Vec<ChainId>,
    /// Chains that stop serving, by the node that they wait for.
    waits: BTreeMap<String, Vec<ChainId>>,
}

impl Availability {
    /// Notes a change of a chain.
    pub(super) fn note(&mut self, chain: &Chain) {
        let last = chain.targets.iter().find(|member| member.state == TargetState::LastServing);
        match last {
            Some(last) if chain.serving().next().is_none() => {
                let node = format!("node {}, disk {}", last.node, last.disk);
                self.waits.entry(node).or_default().push(chain.id);
            }
            _ => self.serves.push(chain.id),
        }
    }

    /// Most events, to reserve room in a transaction.
    pub(crate) fn count(&self) -> usize {
        let named = |chains: &Vec<ChainId>| if is_named(chains) { chains.len() } else { 1 };
        named(&self.serves) + self.waits.values().map(named).sum::<usize>()
    }

    /// The events, each with its chain, or the first of its chains.
    pub(crate) fn tell(self) -> Vec<(Option<ChainId>, String)> {
        let mut told = Vec::new();
        for (node, chains) in &self.waits {
            told.extend(events(chains, |what| {
                let (has, waits) =
                    if is_named(chains) { ("has", "it waits") } else { ("have", "they wait") };
                format!("{what} {has} no serving replica: {waits} for {node}")
            }));
        }
        told.extend(events(&self.serves, |what| {
            let serves = if is_named(&self.serves) { "serves" } else { "serve" };
            format!("{what} {serves} again")
        }));
        told
    }
}

fn is_named(chains: &[ChainId]) -> bool {
    chains.len() <= NAMED_MAX
}

fn events(chains: &[ChainId], text: impl Fn(&str) -> String) -> Vec<(Option<ChainId>, String)> {
    if is_named(chains) {
        return chains.iter().map(|id| (Some(*id), text(&format!("chain {}", id.0)))).collect();
    }
    vec![(chains.first().copied(), text(&format!("{} chains", chains.len())))]
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::{ChainTarget, DiskId, NodeId, TargetId};
    use millpond_types::ids::Uuid128;

    use super::*;

    fn chain(id: u32, state: TargetState) -> Chain {
        let (node, disk) = (NodeId(Uuid128([7; 16])), DiskId(Uuid128([8; 16])));
        let target = ChainTarget { target: TargetId(id), disk, node, state };
        Chain { id: ChainId(id), targets: vec![target], ..Chain::default() }
    }

    fn told(states: impl Iterator<Item = Chain>) -> Vec<(Option<ChainId>, String)> {
        let mut all = Availability::default();
        states.for_each(|chain| all.note(&chain));
        let count = all.count();
        let told = all.tell();
        assert_eq!(told.len(), count);
        told
    }

    #[test]
    fn few_chains_are_told_of_by_name_and_many_by_their_number() {
        let few =
            told([chain(1, TargetState::Serving), chain(2, TargetState::LastServing)].into_iter());
        assert_eq!(few.len(), 2);
        assert!(few[0].0 == Some(ChainId(2)) && few[0].1.starts_with("chain 2 has no serving"));
        assert_eq!(few[1], (Some(ChainId(1)), "chain 1 serves again".to_owned()));

        let many = told((1..=60).map(|id| chain(id, TargetState::LastServing)));
        assert_eq!(many.len(), 1);
        assert!(
            many[0].1.starts_with("60 chains have no serving replica: they wait for node 0707")
        );
        let again = told((1..=60).map(|id| chain(id, TargetState::Serving)));
        assert_eq!(again, [(Some(ChainId(1)), "60 chains serve again".to_owned())]);
    }
}
