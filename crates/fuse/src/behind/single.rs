//! Files with one name, and those that have lost it.
//!
//! The kernel tells the time of change of a file that it has just unlinked: nobody cares any more, and a
//! meta that was asked would have to be waited for.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond_types::meta::{Attr, FileKind, Ino, MetaOp, Rename};
use quick_cache::sync::Cache;

use crate::recent;

/// Files that are remembered: some 10 MiB each.
const FILES_MAX: usize = 1 << 15;

/// What is known of files with one name.
#[derive(Debug)]
pub(crate) struct Single {
    named: Cache<u64, Attr>,
    gone: Cache<u64, Attr>,
    /// How often this mount began or ended to change which names lead to files.
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
    /// Changes so far: take it before a meta is asked.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// A meta that was asked after so many changes told of a file, or it was promised.
    pub(crate) fn note(&self, attr: &Attr, changes: u64) {
        if attr.kind == FileKind::Regular && attr.nlink == 1 {
            self.named.insert(attr.ino.0, *attr);
            if self.changes() != changes {
                let _ = self.named.remove(&attr.ino.0);
            }
        }
    }

    /// A name of a file goes.
    pub(crate) fn unlinked(&self, ino: Ino) {
        if let Some((_, attr)) = self.named.remove(&ino.0) {
            self.gone.insert(ino.0, Attr { nlink: 0, ..attr });
        }
    }

    /// The attributes of a file that has no name any more.
    pub(crate) fn gone(&self, ino: Ino) -> Option<Attr> {
        self.gone.get(&ino.0)
    }

    /// A meta is about to be asked for an operation, or has answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        let changed = || self.changes.fetch_add(1, Ordering::AcqRel);
        match op {
            MetaOp::Link { ino, .. } => {
                changed();
                let _ = self.named.remove(&ino.0);
            }
            // Back from the trash, or made anew.
            MetaOp::Trash(_) | MetaOp::Repair(_) => {
                changed();
                self.named.clear();
                self.gone.clear();
            }
            // What it replaced is not known.
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
        // A meta said so before the link.
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
