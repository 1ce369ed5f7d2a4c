//! Where a request appends its bytes: a later process that gets it again writes them to the same place.

use super::{Files, Table};
use crate::journal::Entry;

impl Table {
    /// The entries of a journal that come to the appends under way.
    pub(super) fn append_entries(&self) -> impl Iterator<Item = Entry> {
        let entry =
            |(unique, offset): (&u64, &u64)| Entry::Appends { unique: *unique, offset: *offset };
        self.appends.iter().map(entry)
    }
}

impl Files {
    /// Where a request that came before appends its bytes.
    pub(crate) fn append_of(&self, unique: u64) -> Option<u64> {
        self.table.lock().appends.get(&unique).copied()
    }

    /// A request is about to append its bytes there.
    pub(crate) fn appends(&self, unique: u64, offset: u64) {
        let mut table = self.table.lock();
        table.appends.insert(unique, offset);
        table.note(&Entry::Appends { unique, offset });
    }
}
