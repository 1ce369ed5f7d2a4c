//! Attributes of files that this mount has just told a meta of: the kernel forgets those of a file that
//! it wrote to, and asks for them at the next `stat`.

use std::sync::atomic::{AtomicU64, Ordering};

use std::sync::Arc;

use millpond_types::meta::{Content, Ino, MetaOp};
use quick_cache::sync::Cache;

use crate::backend::Told;

/// Files that are remembered: some 10 MiB.
const FILES_MAX: usize = 1 << 16;

/// Bytes of small files by inode, as metas told them last.
pub(crate) type Contents = Cache<u64, Arc<Content>>;

/// What metas answered when they were told of bytes written.
#[derive(Debug)]
pub(crate) struct Settled {
    files: Cache<u64, (Told, u64)>,
    /// How often this mount began or ended to change something of files that are there. An answer says
    /// no more than the one inode that it is of, and a rename not even which one it moved.
    changes: AtomicU64,
}

impl Default for Settled {
    fn default() -> Self {
        Self { files: Cache::new(FILES_MAX), changes: AtomicU64::new(0) }
    }
}

/// Whether an operation may change attributes of a file that is there, other than its length and times
/// by writing to it.
const fn touches(op: &MetaOp) -> bool {
    let by_writing = matches!(
        op,
        MetaOp::Extend(_) | MetaOp::WriteInline(_) | MetaOp::Reserve(_) | MetaOp::Spill(_)
    );
    op.changes() && !by_writing && !matches!(op, MetaOp::Create(_))
}

impl Settled {
    /// Number of changes so far: take it before a meta is told of what was written.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// An operation is about to be asked for, or was answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        if touches(op) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A meta was told of what was written after so many changes, and answered this.
    pub(crate) fn note(&self, told: Told, changes: u64) {
        self.files.insert(told.attr.ino.0, (told, changes));
    }

    /// What a meta said of a file, if this mount has changed nothing since.
    pub(crate) fn get(&self, ino: Ino) -> Option<Told> {
        let (told, changes) = self.files.get(&ino.0)?;
        (changes == self.changes()).then_some(told)
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{Extend, Name, Timestamp};

    use super::*;
    use crate::files::tests::attr;

    #[test]
    fn what_was_told_counts_until_something_else_is_changed() {
        let settled = Settled::default();
        let told = Told { attr: attr(10, 3), version: 7 };
        let (ino, name) = (told.attr.ino, Name::new(b"a").unwrap());
        let before = settled.changes();
        settled.note(told, before);
        settled.passes(&MetaOp::GetAttr { ino });
        settled.passes(&MetaOp::Extend(Extend {
            ino,
            data: 5,
            size: 9,
            mtime: Timestamp::default(),
        }));
        assert_eq!(settled.get(ino).map(|told| told.attr.size), Some(10));
        assert!(settled.get(Ino(6)).is_none());
        // Under way while the meta was told: which of the two came first is not known.
        let unlink = MetaOp::Unlink { parent: Ino::ROOT, name };
        settled.passes(&unlink);
        let between = settled.changes();
        settled.note(told, between);
        settled.passes(&unlink);
        assert!(settled.get(ino).is_none());
        settled.note(told, settled.changes());
        assert!(settled.get(ino).is_some());
    }
}
