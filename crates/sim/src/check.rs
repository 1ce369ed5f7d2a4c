//! Linearizability check of the history of one chunk.
//!
//! The search of Wing & Gong (JPDC 1993) with the memory of Lowe ("Testing for linearizability",
//! 2017) that Porcupine uses: operations are lifted from a list of calls and returns one by one,
//! and a pair (operations lifted, state) is never examined twice. An update whose outcome is
//! unknown may take effect at any time after its call, or never: its return is placed after all
//! others.

use std::collections::{BTreeMap, HashSet};

use millpond_types::Crc32c;

/// A client's operation on a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Store these bytes unless the chunk exists.
    Put(Vec<u8>),
    /// Store these bytes.
    Replace(Vec<u8>),
    /// Write these bytes from an offset on.
    Write(u32, Vec<u8>),
    /// Append these bytes.
    Append(Vec<u8>),
    /// Cut or fill up with zeros to a length.
    Truncate(u32),
    /// Delete the chunk.
    Remove,
    /// Delete the chunk by a decision of the head itself, to make room: it is not tried again.
    Evict,
    /// Write an empty chunk unless it exists: no update that names it is done afterwards.
    Seal,
    /// Read from an offset on, at most this many bytes.
    Read(u32, u32),
}

/// The answer that the client received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing, or nothing certain.
    Unknown,
    /// Done; length and checksum of the chunk afterwards, `None` when it was deleted.
    Done(Option<(u32, Crc32c)>),
    /// Nothing was done: the chunk exists.
    Exists,
    /// Nothing was done: the chunk does not exist.
    NotFound,
    /// It was not done now; a copy of it may have been done before the seal that it names.
    Sealed,
    /// To `Put`: it exists now, by this put or by another.
    There,
    /// To `Remove`: it is gone now, whether or not it was there.
    Gone,
    /// Bytes read and the length of the whole chunk.
    Data(Vec<u8>, u32),
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The client.
    pub client: usize,
    /// Time of the call, in any unit.
    pub call: u64,
    /// Time of the answer; `None` when the outcome is unknown.
    pub ret: Option<u64>,
    /// The operation.
    pub action: Action,
    /// The answer.
    pub heard: Heard,
}

/// Result of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains all answers.
    Linearizable,
    /// No order does.
    Violation,
    /// The search was given up.
    TooHard,
}

/// Steps after which the search is given up.
const STEPS_MAX: u64 = 3_000_000;

/// Contents of the chunk, numbered; 0 is "does not exist".
#[derive(Default)]
struct States {
    numbers: BTreeMap<Option<Vec<u8>>, u32>,
    values: Vec<Option<Vec<u8>>>,
}

impl States {
    fn number(&mut self, value: Option<Vec<u8>>) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let number = u32::try_from(self.values.len()).expect("few states");
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    /// The state after `operation`, if its answer fits.
    fn apply(&mut self, state: u32, operation: &Operation) -> Option<u32> {
        let old = self.values[state as usize].as_deref();
        if let Action::Read(offset, len) = operation.action {
            return fits_read(old, offset, len, &operation.heard).then_some(state);
        }
        let new = after(old, &operation.action);
        let fits = match (&operation.heard, &new) {
            (Heard::Unknown | Heard::Sealed | Heard::There | Heard::Gone, _) => true,
            (Heard::Exists | Heard::NotFound, new) => new.is_none(),
            (Heard::Done(heard), Some(new)) => {
                let data = |bytes: &Vec<u8>| {
                    (u32::try_from(bytes.len()).unwrap_or(u32::MAX), Crc32c::of(bytes))
                };
                *heard == new.as_ref().map(data)
            }
            (Heard::Done(_), None) | (Heard::Data(..), _) => false,
        };
        if !fits {
            return None;
        }
        Some(new.map_or(state, |value| self.number(value)))
    }
}

fn fits_read(old: Option<&[u8]>, offset: u32, len: u32, heard: &Heard) -> bool {
    match (old, heard) {
        (_, Heard::Unknown) | (None, Heard::NotFound) => true,
        (Some(old), Heard::Data(bytes, whole)) => {
            let from = (offset as usize).min(old.len());
            let to = from.saturating_add(len as usize).min(old.len());
            old[from..to] == **bytes && old.len() == *whole as usize
        }
        _ => false,
    }
}

/// Content of a chunk after an update; `None` when the update changes nothing.
#[expect(clippy::option_option, reason = "nothing changes, or the chunk is gone, or it has bytes")]
fn after(old: Option<&[u8]>, action: &Action) -> Option<Option<Vec<u8>>> {
    match (action, old) {
        (Action::Put(_) | Action::Seal, Some(_))
        | (Action::Truncate(_) | Action::Remove | Action::Evict, None)
        | (Action::Read(..), _) => None,
        (Action::Put(bytes) | Action::Replace(bytes), _) => Some(Some(bytes.clone())),
        (Action::Seal, None) => Some(Some(Vec::new())),
        (Action::Write(offset, bytes), old) => {
            let (from, to) = (*offset as usize, *offset as usize + bytes.len());
            let mut all = old.unwrap_or_default().to_vec();
            all.resize(all.len().max(to), 0);
            all[from..to].copy_from_slice(bytes);
            Some(Some(all))
        }
        (Action::Append(bytes), old) => Some(Some([old.unwrap_or_default(), bytes].concat())),
        (Action::Truncate(len), Some(old)) => {
            let mut all = old.to_vec();
            all.resize(*len as usize, 0);
            Some(Some(all))
        }
        (Action::Remove | Action::Evict, Some(_)) => Some(None),
    }
}

const NONE: usize = usize::MAX;

/// A doubly linked list of calls (`2 * i`) and returns (`2 * i + 1`) of operation `i`; the last
/// node is the list's head.
struct List {
    next: Vec<usize>,
    prev: Vec<usize>,
}

impl List {
    fn new(operations: &[Operation]) -> Self {
        let mut order: Vec<usize> = (0..2 * operations.len()).collect();
        order.sort_by_key(|node| {
            let operation = &operations[node / 2];
            // At the same instant calls come first: such operations overlap.
            let time =
                if node % 2 == 0 { operation.call } else { operation.ret.unwrap_or(u64::MAX) };
            (time, node % 2)
        });
        let head = order.len();
        let mut list = Self { next: vec![NONE; head + 1], prev: vec![NONE; head + 1] };
        let mut end = head;
        for node in order {
            list.next[end] = node;
            list.prev[node] = end;
            end = node;
        }
        list
    }

    const fn head(&self) -> usize {
        self.next.len() - 1
    }

    fn unlink(&mut self, node: usize) {
        let (prev, next) = (self.prev[node], self.next[node]);
        self.next[prev] = next;
        if next != NONE {
            self.prev[next] = prev;
        }
    }

    fn relink(&mut self, node: usize) {
        let (prev, next) = (self.prev[node], self.next[node]);
        self.next[prev] = node;
        if next != NONE {
            self.prev[next] = node;
        }
    }

    fn lift(&mut self, operation: usize) {
        self.unlink(2 * operation);
        self.unlink(2 * operation + 1);
    }

    fn unlift(&mut self, operation: usize) {
        self.relink(2 * operation + 1);
        self.relink(2 * operation);
    }
}

/// Looks for an order of the operations that explains all answers, beginning with an absent chunk.
#[must_use]
pub fn check(operations: &[Operation]) -> Verdict {
    // A read without an answer explains nothing.
    let silent =
        |o: &&Operation| matches!((&o.action, &o.heard), (Action::Read(..), Heard::Unknown));
    let operations: Vec<Operation> = operations.iter().filter(|o| !silent(o)).cloned().collect();
    let mut states = States::default();
    let mut state = states.number(None);
    let mut list = List::new(&operations);
    let mut lifted = vec![0u64; operations.len().div_ceil(64)];
    let mut seen: HashSet<(Vec<u64>, u32)> = HashSet::new();
    let mut stack: Vec<(usize, u32)> = Vec::new();
    let mut node = list.next[list.head()];
    let mut steps = 0u64;
    let certain = operations.iter().filter(|o| o.ret.is_some()).count();
    let mut certain_left = certain;
    while certain_left > 0 {
        steps += 1;
        if steps > STEPS_MAX {
            return Verdict::TooHard;
        }
        if node != NONE && node.is_multiple_of(2) {
            let i = node / 2;
            if let Some(next) = states.apply(state, &operations[i]) {
                lifted[i / 64] |= 1 << (i % 64);
                if seen.insert((lifted.clone(), next)) {
                    stack.push((i, state));
                    state = next;
                    certain_left -= usize::from(operations[i].ret.is_some());
                    list.lift(i);
                    node = list.next[list.head()];
                    continue;
                }
                lifted[i / 64] &= !(1 << (i % 64));
            }
            node = list.next[node];
            continue;
        }
        // The call of this return is not lifted yet: the last choice was wrong.
        let Some((i, before)) = stack.pop() else { return Verdict::Violation };
        state = before;
        lifted[i / 64] &= !(1 << (i % 64));
        certain_left += usize::from(operations[i].ret.is_some());
        list.unlift(i);
        node = list.next[2 * i];
    }
    Verdict::Linearizable
}

#[cfg(test)]
mod tests;
