//! The offset of a request's append: a later process that gets the request again writes to the same
//! place.

use super::{Files, Table};
use crate::journal::Entry;

impl Table {
    /// The journal entries of the appends in progress.
    pub(super) fn append_entries(&self) -> impl Iterator<Item = Entry> {
        let entry =
            |(unique, offset): (&u64, &u64)| Entry::Appends { unique: *unique, offset: *offset };
        self.appends.iter().map(entry)
    }
}

impl Files {
    /// The append offset of a request that arrived before.
    pub(crate) fn append_of(&self, unique: u64) -> Option<u64> {
        self.table.lock().appends.get(&unique).copied()
    }

    /// Notes that a request is about to append its bytes at `offset`.
    pub(crate) fn appends(&self, unique: u64, offset: u64) {
        let mut table = self.table.lock();
        table.appends.insert(unique, offset);
        table.note(&Entry::Appends { unique, offset });
    }
}
