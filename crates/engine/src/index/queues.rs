//! S3-FIFO (Yang et al., SOSP 2023, section 4): a small probationary queue, a main queue and a
//! ghost of chunks that left probation unread. One per shard and priority.

use std::collections::{HashSet, VecDeque};

/// The small queue holds at most one tenth of the bytes (the paper's choice).
const SMALL_SHARE: u64 = 10;
/// Ghosts per shard; 64 shards remember two million evicted chunks in about 32 MiB.
const GHOSTS_MAX: usize = 32_768;

/// State of the item at the head of a queue, as its owner reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Absent: forget it.
    Gone,
    /// Must stay for now.
    Protected(u64),
    /// May be evicted: bytes and number of reads since it was queued.
    Idle { bytes: u64, reads: u32 },
}

/// The queue that must give up an item.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// Chosen by the sizes of the queues.
    Policy,
    Small,
    Main,
}

impl Turn {
    /// The turn of one of several looks: the policy decides the first `policy` looks, then the
    /// queues alternate. Otherwise a queue with nothing but protected items would keep its turn for
    /// ever.
    pub(crate) const fn of_look(look: usize, policy: usize) -> Self {
        match look {
            _ if look < policy => Self::Policy,
            _ if look.is_multiple_of(2) => Self::Small,
            _ => Self::Main,
        }
    }
}

/// Fate of an item, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Forgotten,
    /// Now in the main queue; `reads` is the rest of its count.
    Main {
        reads: u32,
    },
    Evicted,
}

/// Two FIFO queues of item handles.
#[derive(Debug)]
pub(crate) struct Queues<T> {
    pub(crate) small: VecDeque<T>,
    pub(crate) main: VecDeque<T>,
    pub(crate) small_bytes: u64,
    pub(crate) main_bytes: u64,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { small: VecDeque::new(), main: VecDeque::new(), small_bytes: 0, main_bytes: 0 }
    }
}

impl<T: Copy> Queues<T> {
    pub(crate) fn insert(&mut self, item: T, bytes: u64, into_main: bool) {
        if into_main {
            self.main.push_back(item);
            self.main_bytes += bytes;
        } else {
            self.small.push_back(item);
            self.small_bytes += bytes;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Takes the head of the queue whose turn it is, and reports whether that is the small one. Its
    /// bytes stay counted.
    pub(crate) fn pop(&mut self, turn: Turn) -> Option<(T, bool)> {
        let out_of_turn = match turn {
            Turn::Policy => None,
            Turn::Small => self.small.pop_front().map(|item| (item, true)),
            Turn::Main => self.main.pop_front().map(|item| (item, false)),
        };
        out_of_turn.or_else(|| self.pop_by_policy())
    }

    fn pop_by_policy(&mut self) -> Option<(T, bool)> {
        let total = self.small_bytes + self.main_bytes;
        let small_turn = self.main.is_empty()
            || (!self.small.is_empty() && self.small_bytes * SMALL_SHARE >= total);
        let queue = if small_turn { &mut self.small } else { &mut self.main };
        queue.pop_front().map(|item| (item, small_turn))
    }

    /// Processes one item: the head of the queue whose turn it is. `None` when both are empty.
    ///
    /// The paper promotes after two reads; one read is enough here, because a KV block read even
    /// once has proved that its prefix comes back.
    pub(crate) fn step(
        &mut self,
        turn: Turn,
        probe: impl FnOnce(T) -> Probe,
    ) -> Option<(T, Verdict)> {
        let (item, small_turn) = self.pop(turn)?;
        // The bytes of dead items were taken off when they died.
        let (bytes, verdict) = match probe(item) {
            Probe::Gone => return Some((item, Verdict::Forgotten)),
            Probe::Protected(bytes) => (bytes, Verdict::Main { reads: 0 }),
            Probe::Idle { bytes, reads: 0 } => (bytes, Verdict::Evicted),
            Probe::Idle { bytes, reads } if small_turn => {
                (bytes, Verdict::Main { reads: reads - 1 })
            }
            Probe::Idle { bytes, reads } => (bytes, Verdict::Main { reads: reads - 1 }),
        };
        self.forget_bytes(!small_turn, bytes);
        if matches!(verdict, Verdict::Main { .. }) {
            self.insert(item, bytes, true);
        }
        Some((item, verdict))
    }

    pub(crate) fn add_bytes(&mut self, in_main: bool, bytes: u64) {
        let sum = if in_main { &mut self.main_bytes } else { &mut self.small_bytes };
        *sum += bytes;
    }

    /// Subtracts the bytes of an item that died in its queue.
    pub(crate) fn forget_bytes(&mut self, in_main: bool, bytes: u64) {
        let sum = if in_main { &mut self.main_bytes } else { &mut self.small_bytes };
        *sum = sum.saturating_sub(bytes);
    }
}

/// Fingerprints of chunks that were evicted unread: seen again, they skip probation.
#[derive(Debug, Default)]
pub(crate) struct Ghost {
    order: VecDeque<u32>,
    set: HashSet<u32>,
}

impl Ghost {
    pub(crate) fn remember(&mut self, fingerprint: u32) {
        if !self.set.insert(fingerprint) {
            return;
        }
        self.order.push_back(fingerprint);
        if self.order.len() > GHOSTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }

    pub(crate) fn take(&self, fingerprint: u32) -> bool {
        self.set.contains(&fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_does_not_push_out_what_is_read() {
        let mut q = Queues::default();
        let mut reads = vec![0; 1000];
        (0..10).for_each(|i| q.insert(i, 1, false));
        (0..10).for_each(|i: usize| reads[i] = 1);
        let mut evicted = Vec::new();
        for i in 10..1000usize {
            q.insert(i, 1, false);
            while q.len() > 50 {
                let (item, verdict) =
                    q.step(Turn::Policy, |i| Probe::Idle { bytes: 1, reads: reads[i] }).unwrap();
                match verdict {
                    Verdict::Evicted => evicted.push(item),
                    Verdict::Main { reads: left } => reads[item] = left,
                    Verdict::Forgotten => {}
                }
            }
        }
        assert!(evicted.iter().all(|i| *i >= 10), "read items stay");
        assert_eq!(q.small_bytes + q.main_bytes, 50);
    }

    #[test]
    fn ghosts_are_bounded() {
        let mut g = Ghost::default();
        (0..100_000).for_each(|i| g.remember(i));
        assert!(g.take(99_999) && !g.take(0));
        assert_eq!(g.set.len(), GHOSTS_MAX);
    }
}
