//! The order in which promises are kept: promises that touch one name or one inode in order of
//! creation; all others concurrently.

use std::collections::{BTreeMap, HashMap, VecDeque};

use millpond_types::meta::{Ino, Name};

/// A name or inode that a promise touches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Inode(Ino),
    Name(Ino, Name),
}

/// Pending promises by their growing numbers.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The keys that each promise touches.
    pending: BTreeMap<u64, Vec<Key>>,
    /// The promises that touch each key, in order of creation.
    queues: HashMap<Key, VecDeque<u64>>,
}

impl Order {
    /// Adds a promise after all others. Returns true when it can be kept at once.
    pub(super) fn add(&mut self, number: u64, keys: Vec<Key>) -> bool {
        for key in &keys {
            self.queues.entry(key.clone()).or_default().push_back(number);
        }
        let free = self.is_free(&keys, number);
        let before = self.pending.insert(number, keys);
        debug_assert!(before.is_none(), "the numbers of promises are unique");
        free
    }

    /// Removes a promise that was kept or cannot be. Returns those that can be kept now because of
    /// that.
    pub(super) fn done(&mut self, number: u64) -> Vec<u64> {
        let Some(keys) = self.pending.remove(&number) else { return Vec::new() };
        let mut freed = Vec::new();
        for key in &keys {
            let Some(queue) = self.queues.get_mut(key) else { continue };
            queue.retain(|other| *other != number);
            freed.extend(queue.front().copied());
            if queue.is_empty() {
                self.queues.remove(key);
            }
        }
        freed.sort_unstable();
        freed.dedup();
        freed.retain(|next| self.pending.get(next).is_some_and(|keys| self.is_free(keys, *next)));
        freed
    }

    fn is_free(&self, keys: &[Key], number: u64) -> bool {
        keys.iter().all(|key| self.queues.get(key).and_then(VecDeque::front) == Some(&number))
    }

    /// The last promise that touches this key, if any.
    pub(super) fn last_of(&self, key: &Key) -> Option<u64> {
        self.queues.get(key)?.back().copied()
    }

    /// The last promise of a name in a directory.
    pub(super) fn last_in(&self, dir: Ino) -> Option<u64> {
        let is_in = |key: &Key| matches!(key, Key::Name(parent, _) if *parent == dir);
        let found = self.pending.iter().rev().find(|(_, keys)| keys.iter().any(is_in));
        found.map(|(number, _)| *number)
    }

    /// The last promise.
    pub(super) fn last(&self) -> Option<u64> {
        self.pending.last_key_value().map(|(number, _)| *number)
    }

    /// Whether a promise up to this number touches a matching key.
    pub(super) fn is_pending(&self, up_to: u64, touches: impl Fn(&Key) -> bool) -> bool {
        self.pending.range(..=up_to).any(|(_, keys)| keys.iter().any(&touches))
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inode(ino: u64) -> Key {
        Key::Inode(Ino(ino))
    }

    fn name(dir: u64, name: &str) -> Key {
        Key::Name(Ino(dir), Name::new(name.as_bytes()).unwrap())
    }

    #[test]
    fn what_touches_the_same_waits() {
        let mut order = Order::default();
        assert!(order.add(1, vec![name(1, "a"), inode(5)]));
        assert!(order.add(2, vec![name(1, "b"), inode(6)]), "another name");
        assert!(!order.add(3, vec![inode(5)]), "the inode is not made yet");
        assert!(!order.add(4, vec![name(1, "b"), inode(5)]));
        assert_eq!((order.last_of(&inode(5)), order.last_of(&inode(7))), (Some(4), None));
        assert_eq!(
            (order.last_in(Ino(1)), order.last_in(Ino(2)), order.last()),
            (Some(4), None, Some(4))
        );
        assert!(order.done(2).is_empty(), "4 waits for the inode too");
        assert_eq!(order.done(1), [3]);
        assert!(order.is_pending(3, |key| *key == inode(5)));
        assert_eq!(order.done(3), [4]);
        assert!(!order.is_pending(3, |key| *key == inode(5)));
        assert_eq!((order.done(4), order.len(), order.queues.len()), (vec![], 0, 0));
    }

    proptest! {
        /// In any order of execution, each promise is kept once, and after its predecessors on a
        /// key.
        #[test]
        fn each_is_kept_once_and_in_order(
            touches in prop::collection::vec(prop::collection::vec(0_u64..5, 1..3), 1..40),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let mut order = Order::default();
            let (mut ready, mut kept) = (Vec::new(), Vec::new());
            for (number, inos) in touches.iter().enumerate() {
                let mut keys: Vec<Key> = inos.iter().map(|ino| inode(*ino)).collect();
                keys.dedup();
                if order.add(number as u64, keys) {
                    ready.push(number as u64);
                }
            }
            for pick in &picks[..touches.len()] {
                prop_assert!(!ready.is_empty(), "nobody can go on");
                let number = ready.swap_remove(pick.index(ready.len()));
                kept.push(number);
                ready.extend(order.done(number));
            }
            prop_assert_eq!(order.len(), 0);
            for ino in 0..5 {
                let of = |n: &&u64| touches[usize::try_from(**n).unwrap()].contains(&ino);
                let seen: Vec<u64> = kept.iter().filter(of).copied().collect();
                prop_assert!(seen.is_sorted(), "{ino}: {seen:?}");
            }
        }
    }
}
