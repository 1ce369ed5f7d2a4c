//! Names of updates: a retry carries the name of its first attempt, so that it is not executed
//! twice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use millpond_types::cluster::{ChainId, ChainVersion};
use millpond_types::wire::ItemTag;

/// Low bits of a channel, which count the updates of one chain; the bits above are the chain's
/// number. So an update that follows a moving slot to another chain never collides with that
/// chain's channels.
const CHANNEL_BITS: u32 = 7;
/// Most updates of one client in progress in one chain; others wait for an answer to one of them. A
/// chain remembers 4,096 writers and stages 1,024 updates for all clients together.
const UPDATES_PER_CHAIN_MAX: u32 = 1 << CHANNEL_BITS;

/// Channels of one chain: the lowest free one is taken, so that a chain has few to remember.
#[derive(Debug, Default)]
struct Channels {
    next: u32,
    free: BinaryHeap<Reverse<u32>>,
}

/// Allocates tags. A channel has at most one update in progress in a chain; sequence numbers grow
/// over all channels.
#[derive(Debug, Default)]
pub(crate) struct Tagger {
    sequence: u64,
    chains: HashMap<ChainId, Channels>,
}

impl Tagger {
    /// A tag for a new update of `chain`; none while too many are in progress there.
    pub(crate) fn take(&mut self, chain: ChainId, issued: ChainVersion) -> Option<ItemTag> {
        let channels = self.chains.entry(chain).or_default();
        let channel = match channels.free.pop() {
            Some(Reverse(channel)) => channel,
            None if channels.next < UPDATES_PER_CHAIN_MAX => {
                channels.next += 1;
                channels.next - 1
            }
            None => return None,
        };
        self.sequence += 1;
        let channel = chain.0 << CHANNEL_BITS | channel;
        Some(ItemTag { channel, sequence: self.sequence, chain, issued })
    }

    /// Frees the channel of an update that was answered or given up.
    pub(crate) fn give_back(&mut self, chain: ChainId, tag: ItemTag) {
        if let Some(channels) = self.chains.get_mut(&chain) {
            channels.free.push(Reverse(tag.channel % UPDATES_PER_CHAIN_MAX));
            debug_assert!(channels.free.len() <= channels.next as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_lowest_free_channel_is_taken_and_a_chain_has_a_bound() {
        let (mut tagger, chain) = (Tagger::default(), ChainId(1));
        let take = |tagger: &mut Tagger| tagger.take(chain, ChainVersion(7));
        let all: Vec<ItemTag> =
            (0..UPDATES_PER_CHAIN_MAX).map(|_| take(&mut tagger).unwrap()).collect();
        assert_eq!(take(&mut tagger), None);
        assert!(tagger.take(ChainId(2), ChainVersion(1)).is_some(), "chains do not share a bound");
        tagger.give_back(chain, all[9]);
        tagger.give_back(chain, all[3]);
        let next = tagger.take(chain, ChainVersion(8)).unwrap();
        assert_eq!((next.channel, next.issued), (128 + 3, ChainVersion(8)));
        assert!(next.sequence > all[127].sequence);
    }

    proptest! {
        #[test]
        fn no_channel_has_two_updates_and_sequences_grow(
            steps in proptest::collection::vec((0u32..3, any::<bool>(), any::<prop::sample::Index>()), 1..300)
        ) {
            let mut tagger = Tagger::default();
            let mut held: Vec<(ChainId, ItemTag)> = Vec::new();
            let mut last = 0;
            for (chain, give, pick) in steps {
                if give && !held.is_empty() {
                    let (chain, tag) = held.swap_remove(pick.index(held.len()));
                    tagger.give_back(chain, tag);
                } else if let Some(tag) = tagger.take(ChainId(chain), ChainVersion(1)) {
                    prop_assert!(tag.sequence > last);
                    last = tag.sequence;
                    held.push((ChainId(chain), tag));
                }
                let distinct: HashSet<u32> = held.iter().map(|(_, t)| t.channel).collect();
                prop_assert_eq!(distinct.len(), held.len());
            }
        }
    }
}
