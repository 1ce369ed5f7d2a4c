//! The files of a cache and their eviction order: a list in order of last use.

use std::collections::{BTreeMap, HashMap};

use super::key::Key;

/// One file.
#[derive(Debug)]
struct Entry {
    /// The last use.
    used: u64,
    /// The stamp of the file when this process wrote it or compared its bytes with their checksums.
    checked: Option<Stamp>,
}

/// Inode number and change time of a file.
pub(super) type Stamp = (u64, i128);

/// The files of a cache.
#[derive(Debug)]
pub(super) struct Table {
    entries: HashMap<Key, Entry>,
    order: BTreeMap<u64, Key>,
    next: u64,
    bytes: u64,
    /// Bytes of files that are being written.
    reserved: u64,
    limit: u64,
}

impl Table {
    /// An empty table with a limit of `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        let (entries, order) = (HashMap::new(), BTreeMap::new());
        Self { entries, order, next: 0, bytes: 0, reserved: 0, limit }
    }

    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Number of files, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.bytes)
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    /// The stamp of a file at its last check.
    pub(super) fn checked(&self, key: Key) -> Option<Stamp> {
        self.entries.get(&key)?.checked
    }

    pub(super) fn set_checked(&mut self, key: Key, stamp: Stamp) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.checked = Some(stamp);
        }
    }

    /// Marks a file as used now.
    pub(super) fn note_used(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.order.remove(&entry.used);
        entry.used = self.next;
        self.order.insert(self.next, key);
        self.next += 1;
    }

    /// Adds a file.
    pub(super) fn add(&mut self, key: Key, checked: Option<Stamp>) {
        let _ = self.remove(key);
        self.bytes += key.len;
        self.entries.insert(key, Entry { used: self.next, checked });
        self.order.insert(self.next, key);
        self.next += 1;
    }

    /// Removes a file; false when it was not there.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        let Some(entry) = self.entries.remove(&key) else { return false };
        self.order.remove(&entry.used);
        self.bytes -= key.len;
        true
    }

    /// Removes and returns the files to evict for `len` more bytes, and reserves that room until
    /// [`Table::give`]. `None`, without any eviction, when that is impossible.
    pub(super) fn make_room(
        &mut self,
        len: u64,
        is_open: impl Fn(&Key) -> bool,
    ) -> Option<Vec<Key>> {
        let (mut out, mut freed) = (Vec::new(), 0);
        let taken = self.bytes.checked_add(self.reserved)?.checked_add(len)?;
        let mut oldest = self.order.values().filter(|key| !is_open(key));
        while taken - freed > self.limit {
            let key = *oldest.next()?;
            freed += key.len;
            out.push(key);
        }
        for key in &out {
            let _ = self.remove(*key);
        }
        self.reserved += len;
        Some(out)
    }

    /// Releases reserved room: the file is there now, or will not be.
    pub(super) fn give(&mut self, len: u64) {
        assert!(self.reserved >= len, "more room is given back than was taken");
        self.reserved -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::key;
    use super::*;

    #[test]
    fn the_oldest_that_are_not_open_go() {
        let mut table = Table::new(100);
        let [a, b, c, d] = [1, 2, 3, 4].map(|data| key(data, 30));
        for key in [a, b, c] {
            assert_eq!(table.make_room(30, |_| false), Some(Vec::new()));
            table.give(30);
            table.add(key, None);
        }
        table.note_used(a);
        assert_eq!(table.make_room(10, |_| false), Some(Vec::new()), "it just fits");
        assert_eq!(table.make_room(30, |key| *key == b), Some(vec![c]));
        assert!(table.has(a) && table.has(b) && !table.has(c));
        table.give(40);
        table.add(d, Some((1, 2)));
        assert_eq!(table.size(), (3, 90));
        assert_eq!(
            (table.checked(d), table.checked(a), table.checked(c)),
            (Some((1, 2)), None, None)
        );
        // Nothing is evicted for a file that does not fit anyway.
        assert_eq!(table.make_room(80, |key| *key == d), None);
        assert_eq!(table.make_room(101, |_| false), None);
        assert_eq!(table.make_room(u64::MAX, |_| false), None);
        assert_eq!(table.size(), (3, 90));
        assert_eq!(table.make_room(100, |_| false), Some(vec![b, a, d]));
        table.give(100);
        assert_eq!(table.size(), (0, 0));
    }

    #[test]
    fn a_file_counts_once() {
        let mut table = Table::new(100);
        table.add(key(1, 30), None);
        table.add(key(1, 30), None);
        assert_eq!(table.size(), (1, 30));
        table.set_checked(key(1, 30), (7, 7));
        table.set_checked(key(2, 30), (7, 7));
        table.note_used(key(2, 30));
        assert_eq!((table.checked(key(1, 30)), table.has(key(2, 30))), (Some((7, 7)), false));
        assert!(table.remove(key(1, 30)) && !table.remove(key(1, 30)));
        assert_eq!(table.size(), (0, 0));
    }
}
