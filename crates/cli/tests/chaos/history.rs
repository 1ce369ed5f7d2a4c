//! What clients did and heard, and whether one order of it explains everything.

use std::collections::BTreeMap;

use millpond_sim::{Action, Heard, Operation, Verdict, check, describe};
use millpond_types::Crc32c;

/// What was done to a key and heard of it. Values are told apart by the number of their put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Acknowledged: the value was stored, by this put.
    Stored(u64),
    /// There is a value, this put's or another's.
    Exists(u64),
    /// No certain answer to a put.
    MaybeStored(u64),
    Removed,
    WasAbsent,
    /// No certain answer to a delete.
    MaybeRemoved,
    /// The value of this put.
    Read(u64),
    /// A value, unknown which.
    Present,
    Absent,
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) worker: usize,
    /// Microseconds since the run began.
    pub(crate) call: u64,
    pub(crate) ret: u64,
    pub(crate) deed: Deed,
}

impl Entry {
    /// As the checker of the simulator takes it: a value is its put's number.
    fn operation(&self) -> Operation {
        let bytes = |number: u64| number.to_le_bytes().to_vec();
        let stored = |number: u64| Heard::Done(Some((8, Crc32c::of(&bytes(number)))));
        let (action, heard) = match self.deed {
            Deed::Stored(number) => (Action::Put(bytes(number)), stored(number)),
            Deed::Exists(number) => (Action::Put(bytes(number)), Heard::There),
            Deed::MaybeStored(number) => (Action::Put(bytes(number)), Heard::Unknown),
            Deed::Removed => (Action::Remove, Heard::Done(None)),
            Deed::WasAbsent => (Action::Remove, Heard::NotFound),
            Deed::MaybeRemoved => (Action::Remove, Heard::Unknown),
            Deed::Read(number) => (Action::Read(0, u32::MAX), Heard::Data(bytes(number), 8)),
            Deed::Present => (Action::Read(0, 0), Heard::Data(Vec::new(), 8)),
            Deed::Absent => (Action::Read(0, u32::MAX), Heard::NotFound),
        };
        let ret = (heard != Heard::Unknown).then_some(self.ret);
        Operation { client: self.worker, call: self.call, ret, action, heard }
    }
}

/// All operations, by key.
#[derive(Debug, Default)]
pub(crate) struct History {
    keys: BTreeMap<u64, Vec<Entry>>,
}

/// What the histories say.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) keys: usize,
    pub(crate) operations: usize,
    /// Histories that no order explains.
    pub(crate) violations: Vec<String>,
    /// Histories too long to judge.
    pub(crate) too_hard: usize,
}

impl History {
    pub(crate) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.keys.entry(entry.key).or_default().push(entry);
        }
    }

    /// Every key that was touched.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.keys.keys().copied().collect()
    }

    /// When the last operation ended.
    pub(crate) fn end(&self) -> u64 {
        self.keys.values().flatten().map(|entry| entry.ret).max().unwrap_or(0)
    }

    /// Whether a put of the key was acknowledged and no delete was called that could have come after.
    pub(crate) fn must_be_there(&self, key: u64) -> bool {
        let Some(entries) = self.keys.get(&key) else { return false };
        let stored = entries.iter().filter(|it| matches!(it.deed, Deed::Stored(_)));
        let Some(stored) = stored.map(|it| it.call).max() else { return false };
        let removes =
            |it: &&Entry| matches!(it.deed, Deed::Removed | Deed::MaybeRemoved) && it.ret >= stored;
        !entries.iter().any(|it| removes(&it))
    }

    pub(crate) fn judge(&self) -> Judgement {
        let mut judgement = Judgement { keys: self.keys.len(), ..Judgement::default() };
        for (key, entries) in &self.keys {
            judgement.operations += entries.len();
            let operations: Vec<Operation> = entries.iter().map(Entry::operation).collect();
            match check(&operations) {
                Verdict::Linearizable => {}
                Verdict::TooHard => judgement.too_hard += 1,
                Verdict::Violation => {
                    let (_, text) = describe(&operations);
                    judgement.violations.push(format!("key {key} (times in µs):\n{text}"));
                }
            }
        }
        judgement
    }
}

#[cfg(test)]
mod tests {
    use super::{Deed, Entry, History};

    fn history(entries: &[(u64, u64, Deed)]) -> History {
        let mut history = History::default();
        history.extend(entries.iter().map(|&(call, ret, deed)| Entry {
            key: 1,
            worker: 0,
            call,
            ret,
            deed,
        }));
        history
    }

    fn holds(entries: &[(u64, u64, Deed)]) -> bool {
        history(entries).judge().violations.is_empty()
    }

    #[test]
    fn losses_stale_reads_and_wrong_values_are_violations() {
        let stored = (0, 10, Deed::Stored(1));
        assert!(holds(&[stored, (20, 30, Deed::Read(1))]));
        assert!(!holds(&[stored, (20, 30, Deed::Absent)]));
        assert!(!holds(&[stored, (20, 30, Deed::Read(2))]));
        assert!(!holds(&[stored, (20, 30, Deed::Removed), (40, 50, Deed::Read(1))]));
        assert!(holds(&[stored, (20, 30, Deed::MaybeRemoved), (40, 50, Deed::Read(1))]));
        assert!(!holds(&[stored, (20, 30, Deed::WasAbsent)]));
        let under_way = (0, 100, Deed::Stored(1));
        assert!(holds(&[under_way, (5, 6, Deed::Absent), (7, 8, Deed::Present)]));
        assert!(!holds(&[under_way, (5, 6, Deed::Present), (7, 8, Deed::Absent)]));
    }

    #[test]
    fn only_a_delete_excuses_a_missing_value() {
        let stored = (10, 20, Deed::Stored(1));
        assert!(history(&[stored]).must_be_there(1));
        assert!(history(&[(0, 5, Deed::Removed), stored]).must_be_there(1));
        assert!(!history(&[stored, (30, 40, Deed::MaybeRemoved)]).must_be_there(1));
        assert!(!history(&[(0, 15, Deed::Removed), stored]).must_be_there(1));
        assert!(!history(&[(0, 5, Deed::MaybeStored(1))]).must_be_there(1));
    }
}
