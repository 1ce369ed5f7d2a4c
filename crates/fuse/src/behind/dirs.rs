//! Attributes of directories with promises, including the promises that are not kept yet.
//!
//! The kernel drops its attributes of a directory with every name made in it, and requests them
//! again before it goes on. Without this cache, each request would wait for a meta.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{AclKind, Attr, Ino, MetaOp, Timestamp, XattrName};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::recent;

/// The number of remembered directories: some 4 MiB.
const DIRS_MAX: usize = 1 << 14;
/// How long attributes and access control lists are believed: as long as a kernel believes them
/// without a change report.
const ATTR_BELIEVED: Duration = Duration::from_hours(1);
/// How long the absence of quotas is believed: one may be set while a directory is empty.
const FREE_BELIEVED: Duration = Duration::from_secs(10);
/// Names made in a directory with this bit get its group.
const SET_GID: u16 = 0o2000;

/// Directories as metas reported them.
#[derive(Debug)]
pub(crate) struct Dirs {
    attrs: Cache<u64, (Attr, Tick)>,
    /// Whether a directory has no quota, and since when that is known.
    free: Cache<u64, (bool, Tick)>,
    /// Whether a directory has no default access control list, and since when that is known.
    listless: Cache<u64, (bool, Tick)>,
    /// Counts the begins and ends of this mount's changes of directories through a meta.
    changes: AtomicU64,
    /// The same for default access control lists.
    list_changes: AtomicU64,
    /// The time of the last move to another directory.
    moved: Mutex<Option<Tick>>,
}

impl Default for Dirs {
    fn default() -> Self {
        let (attrs, free) = (recent::shared(DIRS_MAX), recent::shared(DIRS_MAX));
        let (listless, moved) = (recent::shared(DIRS_MAX), Mutex::default());
        let (changes, list_changes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { attrs, free, listless, changes, list_changes, moved }
    }
}

impl Dirs {
    /// A directory's attributes, if known.
    pub(crate) fn attr(&self, dir: Ino) -> Option<Attr> {
        let (attr, at) = self.attrs.get(&dir.0)?;
        (RealClock::tick().since(at) < ATTR_BELIEVED).then_some(attr)
    }

    /// Whether no quota applies in a directory, if known.
    pub(crate) fn is_free(&self, dir: Ino) -> Option<bool> {
        let (free, at) = self.free.get(&dir.0)?;
        (RealClock::tick().since(at) < FREE_BELIEVED).then_some(free)
    }

    /// Whether a directory has no default access control list, if known.
    pub(crate) fn is_listless(&self, dir: Ino) -> Option<bool> {
        let (listless, at) = self.listless.get(&dir.0)?;
        (RealClock::tick().since(at) < ATTR_BELIEVED).then_some(listless)
    }

    /// Whether promises can be made in a directory, if known: no quota rejects them, and files get
    /// their creator's group.
    pub(crate) fn takes_promises(&self, dir: Ino) -> Option<bool> {
        if !self.is_free(dir)? {
            return Some(false);
        }
        self.attr(dir).map(|attr| attr.mode & SET_GID == 0)
    }

    /// The number of changes so far; take it before a meta is asked.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Notes attributes from a meta that was asked after `changes` changes.
    pub(crate) fn note(&self, attr: Attr, changes: u64) {
        self.attrs.insert(attr.ino.0, (attr, RealClock::tick()));
        if self.changes() != changes {
            let _ = self.attrs.remove(&attr.ino.0);
        }
    }

    /// Notes from such an answer whether no quota applies.
    pub(crate) fn note_free(&self, dir: Ino, free: bool, changes: u64) {
        self.free.insert(dir.0, (free, RealClock::tick()));
        if self.changes() != changes {
            let _ = self.free.remove(&dir.0);
        }
    }

    /// The number of changes of default lists so far; take it before a meta is asked.
    pub(crate) fn list_changes(&self) -> u64 {
        self.list_changes.load(Ordering::Acquire)
    }

    /// Notes whether a directory has no default access control list, from a meta that was asked
    /// after `changes` changes of lists.
    pub(crate) fn note_listless(&self, dir: Ino, listless: bool, changes: u64) {
        self.keep_listless(dir, (listless, RealClock::tick()), changes);
    }

    fn keep_listless(&self, dir: Ino, known: (bool, Tick), changes: u64) {
        self.listless.insert(dir.0, known);
        if self.list_changes() != changes {
            let _ = self.listless.remove(&dir.0);
        }
    }

    /// Notes the default list of a new directory: the same as that of its parent, which no other
    /// client changes. `changes` is the number of changes of lists before.
    pub(crate) fn note_list_of_made(&self, parent: Ino, dir: Ino, changes: u64) {
        if let Some(known) = self.listless.get(&parent.0) {
            self.keep_listless(dir, known, changes);
        }
    }

    /// Notes a directory made in another one: a quota of the parent applies to it too.
    pub(crate) fn note_made(&self, parent: Ino, attr: Attr, changes: u64) {
        self.note(attr, changes);
        if let Some((free, at)) = self.free.get(&parent.0) {
            self.free.insert(attr.ino.0, (free, at));
        }
    }

    /// Updates a directory's times after a promise of a name in it.
    pub(crate) fn touch(&self, dir: Ino, at: Timestamp) {
        let changes = self.changes();
        let Some((mut attr, told)) = self.attrs.get(&dir.0) else { return };
        (attr.mtime, attr.ctime) = (at, at);
        self.attrs.insert(dir.0, (attr, told));
        if self.changes() != changes {
            let _ = self.attrs.remove(&dir.0);
        }
    }

    /// The time since the last move to another directory.
    pub(crate) fn unmoved_for(&self) -> Duration {
        self.moved.lock().map_or(Duration::MAX, |at| RealClock::tick().since(at))
    }

    pub(crate) fn forget(&self, dir: Ino) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let _ = self.attrs.remove(&dir.0);
    }

    /// Forgets the default lists when a directory's extended attribute is set or removed.
    /// Directories made in it in the meantime may have the list from before or after.
    fn forget_list(&self, dir: Ino, name: &XattrName) {
        self.forget(dir);
        if AclKind::of(name.as_bytes()) == Some(AclKind::Default) {
            self.list_changes.fetch_add(1, Ordering::AcqRel);
            self.listless.clear();
        }
    }

    fn forget_all(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.attrs.clear();
    }

    /// Notes that an operation is about to be sent to a meta, or was answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        match op {
            MetaOp::Create(create) => self.forget(create.parent),
            MetaOp::Link { parent, .. } | MetaOp::Unlink { parent, .. } => self.forget(*parent),
            MetaOp::SetAttr { ino, .. } => self.forget(*ino),
            MetaOp::RemoveXattr { ino, name } => self.forget_list(*ino, name),
            MetaOp::SetXattr(set) => self.forget_list(set.ino, &set.name),
            // The operation does not tell the inode of the removed directory. It has no names, and
            // no promise is made in it.
            MetaOp::RemoveDir { .. } => self.forget_all(),
            MetaOp::Rename(rename) => {
                if rename.parent != rename.new_parent {
                    *self.moved.lock() = Some(RealClock::tick());
                    self.free.clear();
                }
                self.forget_all();
            }
            MetaOp::Trash(_) | MetaOp::Repair(_) | MetaOp::SetQuota { .. } => {
                *self.moved.lock() = Some(RealClock::tick());
                self.free.clear();
                self.forget_all();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{FileKind, Name, QuotaLimits};

    use super::*;
    use crate::files::tests::attr;

    #[test]
    fn promises_are_made_where_no_quota_counts_and_groups_are_the_callers() {
        let dirs = Dirs::default();
        let dir = |ino, mode| Attr { ino, mode, kind: FileKind::Directory, ..attr(0, 1) };
        let (parent, child, other) = (Ino(5), Ino(6), Ino(7));
        dirs.note(dir(parent, 0o755), dirs.changes());
        assert_eq!(dirs.takes_promises(parent), None, "there may be a quota");
        dirs.note_free(parent, true, dirs.changes());
        assert_eq!(dirs.takes_promises(parent), Some(true));
        dirs.note_made(parent, dir(child, 0o755), dirs.changes());
        dirs.note_made(parent, dir(other, 0o2755), dirs.changes());
        assert_eq!(
            (dirs.takes_promises(child), dirs.takes_promises(other)),
            (Some(true), Some(false))
        );
        let before = dirs.changes();
        let name = Name::new(b"a").unwrap();
        dirs.passes(&MetaOp::Unlink { parent, name, of: None });
        assert!(dirs.attr(parent).is_none());
        dirs.note(dir(parent, 0o755), before);
        assert!(dirs.attr(parent).is_none(), "it was asked for before the unlink");
        dirs.passes(&MetaOp::SetQuota { dir: child, limits: QuotaLimits::default() });
        assert_eq!(dirs.takes_promises(child), None);
    }

    #[test]
    fn a_directory_has_the_default_list_of_the_one_it_was_made_in_until_another_is_set() {
        let dirs = Dirs::default();
        let (parent, child) = (Ino(5), Ino(6));
        let before = dirs.list_changes();
        dirs.note_list_of_made(parent, child, before);
        assert_eq!(dirs.is_listless(child), None);
        dirs.note_listless(parent, true, before);
        dirs.note_list_of_made(parent, child, before);
        let remove = |name| dirs.passes(&MetaOp::RemoveXattr { ino: parent, name });
        remove(AclKind::Access.name());
        assert_eq!(dirs.is_listless(child), Some(true));
        remove(AclKind::Default.name());
        assert_eq!((dirs.is_listless(parent), dirs.is_listless(child)), (None, None));
        dirs.note_listless(parent, true, before);
        assert_eq!(dirs.is_listless(parent), None, "it was asked for before");
        dirs.note_listless(parent, true, dirs.list_changes());
        dirs.note_list_of_made(parent, child, before);
        assert_eq!(dirs.is_listless(child), None, "it was made before");
    }
}
