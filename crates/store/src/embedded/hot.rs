//! Cache of short values that transactions read again and again: directories in the path of a file,
//! marks, floors.
//!
//! fjall finds a key in microseconds, through one tree per level; a create or a PUT reads ten keys,
//! eight of them the same as the last one. The cache keeps the value that a key has had unchanged
//! since some version, so a transaction that reads at that version or a later one may use it.

use millpond_types::limits::{STORE_HOT_BYTES_MAX, STORE_HOT_KEYS_MAX};
use parking_lot::Mutex;
use quick_cache::unsync::Cache;

use crate::Version;
use crate::backend::ChangeBatch;

pub(crate) struct Hot(Mutex<Inner>);

struct Inner {
    values: Cache<Vec<u8>, Value>,
    /// Changes up to this version are known; no transaction reads at a later one.
    newest: Version,
}

/// A cached value.
#[derive(Clone)]
struct Value {
    /// The value is unchanged from this version until now.
    since: Version,
    bytes: Box<[u8]>,
}

impl Hot {
    pub(crate) fn new(newest: Version) -> Self {
        Self(Mutex::new(Inner { values: Cache::new(STORE_HOT_KEYS_MAX), newest }))
    }

    /// Returns the value of a key at a version, if it is cached.
    pub(crate) fn get(&self, key: &[u8], at: Version) -> Option<Vec<u8>> {
        let inner = self.0.lock();
        let value = inner.values.get(key)?;
        (value.since <= at).then(|| value.bytes.to_vec())
    }

    /// Caches the value that a transaction has read at a version.
    pub(crate) fn note(&self, key: &[u8], bytes: &[u8], at: Version) {
        if bytes.len() > STORE_HOT_BYTES_MAX {
            return;
        }
        let mut inner = self.0.lock();
        // A value at an older version may have changed since.
        if inner.newest == at {
            inner.values.insert(key.to_vec(), Value { since: at, bytes: bytes.into() });
        }
    }

    /// Applies the changes of transactions. Must be called before any transaction can read at their
    /// versions.
    pub(crate) fn changed(&self, batches: &[ChangeBatch]) {
        let Some(newest) = batches.last().map(|batch| batch.version) else { return };
        let mut inner = self.0.lock();
        inner.newest = newest;
        for change in batches.iter().flat_map(|batch| &batch.changes) {
            let short = change.value.as_ref().filter(|bytes| bytes.len() <= STORE_HOT_BYTES_MAX);
            match short {
                // A key that is read and written in turns stays cached.
                Some(bytes) if inner.values.contains_key(change.key.as_slice()) => {
                    let value = Value { since: newest, bytes: bytes.as_slice().into() };
                    inner.values.insert(change.key.clone(), value);
                }
                _ => drop(inner.values.remove(change.key.as_slice())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{Just, Strategy, prop, prop_oneof, proptest};

    use super::Hot;
    use crate::Version;
    use crate::backend::{Change, ChangeBatch};

    type State = BTreeMap<u8, Vec<u8>>;

    #[derive(Clone, Debug)]
    enum Step {
        /// Transactions that are published together, each with keys and the lengths of their new
        /// values.
        Commit(Vec<Vec<(u8, Option<usize>)>>),
        /// A read of a key, so many versions back.
        Read(u8, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let length = prop_oneof![Just(0usize), Just(20), Just(5000)];
        let write = (0u8..6, prop::option::weighted(0.8, length));
        let commit = prop::collection::vec(prop::collection::vec(write, 1..4), 1..4);
        let read = (0u8..6, 0usize..3).prop_map(|(key, back)| Step::Read(key, back));
        prop::collection::vec(prop_oneof![1 => commit.prop_map(Step::Commit), 3 => read], 0..120)
    }

    proptest! {
        #[test]
        fn what_is_answered_is_what_a_key_had(steps in steps()) {
            let hot = Hot::new(Version(0));
            let mut published = vec![(Version(0), State::new())];
            for step in steps {
                match step {
                    Step::Commit(transactions) => {
                        let (mut version, mut state) = published.last().unwrap().clone();
                        let mut batches = Vec::new();
                        for writes in transactions {
                            version.0 += 1;
                            let mut changes = Vec::new();
                            for (key, length) in writes {
                                let fill = version.0.to_le_bytes()[0];
                                let value = length.map(|length| vec![fill; length]);
                                match &value {
                                    Some(value) => state.insert(key, value.clone()),
                                    None => state.remove(&key),
                                };
                                changes.push(Change { key: vec![key], value });
                            }
                            batches.push(ChangeBatch { version, changes });
                        }
                        hot.changed(&batches);
                        published.push((version, state));
                    }
                    Step::Read(key, back) => {
                        let (at, state) = published.iter().rev().nth(back).unwrap_or(&published[0]);
                        let there = state.get(&key);
                        let answer = hot.get(&[key], *at);
                        if let Some(answer) = &answer {
                            assert_eq!(Some(answer), there, "key {key} at {at:?}");
                        } else if let Some(there) = there {
                            hot.note(&[key], there, *at);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_read_at_the_newest_version_is_kept_until_it_is_removed() {
        let hot = Hot::new(Version(4));
        hot.note(b"a", b"old", Version(3));
        assert_eq!(hot.get(b"a", Version(4)), None, "it may have changed");
        hot.note(b"a", b"1", Version(4));
        assert_eq!(hot.get(b"a", Version(4)), Some(b"1".to_vec()));
        let change = |version, value: Option<&[u8]>| ChangeBatch {
            version: Version(version),
            changes: vec![Change { key: b"a".to_vec(), value: value.map(<[u8]>::to_vec) }],
        };
        hot.changed(&[change(5, Some(b"2")), change(6, Some(b"3"))]);
        assert_eq!(hot.get(b"a", Version(6)), Some(b"3".to_vec()));
        assert_eq!(hot.get(b"a", Version(4)), None, "who began before the change");
        hot.changed(&[change(7, None)]);
        assert_eq!(hot.get(b"a", Version(7)), None);
    }
}
