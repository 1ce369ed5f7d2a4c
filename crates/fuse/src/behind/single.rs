//! Files with one name, and files that have lost it.
//!
//! The kernel sets the times of a file that it has just unlinked. Nothing reads them any more, so
//! asking a meta would only add a wait.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond_types::meta::{Attr, FileKind, Ino, MetaOp, Rename};
use quick_cache::sync::Cache;

use crate::recent;

/// The number of files in each cache: some 10 MiB each.
const FILES_MAX: usize = 1 << 15;

/// Cached attributes of files with one name.
#[derive(Debug)]
pub(crate) struct Single {
    named: Cache<u64, Attr>,
    gone: Cache<u64, Attr>,
    /// Counts the begins and ends of this mount's changes to the names of files.
    changes: AtomicU64,
}

impl Default for Single {
    fn default() -> Self {
        Self {
            named: recent::shared(FILES_MAX),
            gone: recent::shared(FILES_MAX),
            changes: AtomicU64::new(0),
        }
    }
}

impl Single {
    /// The number of changes so far; take it before a meta is asked.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Notes a file from a promise, or from a meta that was asked after `changes` changes.
    pub(crate) fn note(&self, attr: &Attr, changes: u64) {
        if attr.kind == FileKind::Regular && attr.nlink == 1 {
            self.named.insert(attr.ino.0, *attr);
            if self.changes() != changes {
                let _ = self.named.remove(&attr.ino.0);
            }
        }
    }

    /// Notes that a name of a file is removed.
    pub(crate) fn unlinked(&self, ino: Ino) {
        if let Some((_, attr)) = self.named.remove(&ino.0) {
            self.gone.insert(ino.0, Attr { nlink: 0, ..attr });
        }
    }

    /// The attributes of a file that has lost its name.
    pub(crate) fn gone(&self, ino: Ino) -> Option<Attr> {
        self.gone.get(&ino.0)
    }

    /// Notes that an operation is about to be sent to a meta, or was answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        let changed = || self.changes.fetch_add(1, Ordering::AcqRel);
        match op {
            MetaOp::Link { ino, .. } => {
                changed();
                let _ = self.named.remove(&ino.0);
            }
            // Restored from the trash, or repaired.
            MetaOp::Trash(_) | MetaOp::Repair(_) => {
                changed();
                self.named.clear();
                self.gone.clear();
            }
            // The replaced file is unknown.
            MetaOp::Rename(Rename { exchange: false, no_replace: false, .. }) => {
                changed();
                self.named.clear();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::Name;

    use super::*;
    use crate::files::tests::attr;

    #[test]
    fn a_file_with_two_names_is_not_gone_with_one_of_them() {
        let single = Single::default();
        let told = attr(10, 3);
        let ino = told.ino;
        let link = MetaOp::Link { ino, parent: Ino::ROOT, name: Name::new(b"a").unwrap() };
        single.note(&told, single.changes());
        single.passes(&link);
        single.unlinked(ino);
        assert!(single.gone(ino).is_none());
        // A meta reported it before the link.
        let before = single.changes();
        single.passes(&link);
        single.note(&told, before);
        single.unlinked(ino);
        assert!(single.gone(ino).is_none());
        single.note(&told, single.changes());
        single.unlinked(ino);
        assert_eq!(single.gone(ino).map(|attr| attr.nlink), Some(0));
    }
}
