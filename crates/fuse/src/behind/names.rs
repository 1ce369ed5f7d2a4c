//! Cached names in directories that no other client changes.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{Ino, MetaOp, Name};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::recent;

/// The number of cached names: some 10 MiB.
const NAMES_MAX: usize = 1 << 16;
/// Counters of changes, by a hash of the name.
const SHARDS: usize = 256;

/// The largest number of names in directories that this mount made, and of such directories: some
/// 20 MiB.
const MADE_NAMES_MAX: usize = 1 << 20;
const MADE_DIRS_MAX: usize = 1 << 14;
/// How long a cached name is believed: as long as a kernel believes one without a change report.
const BELIEVED: Duration = Duration::from_hours(1);

/// The state of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It leads to an inode that is not a directory.
    Is(Ino),
    /// There is none.
    IsNot,
}

/// Cached names and their inodes.
#[derive(Debug)]
pub(crate) struct Names {
    known: Cache<(u64, Name), (Known, Tick)>,
    made: Mutex<Made>,
    /// Counts the begins and ends of this mount's changes of a name: an answer from before a change
    /// is not believed.
    changes: Box<[AtomicU64]>,
    /// The same for all names.
    all_changes: AtomicU64,
}

/// Directories that this mount made: no other client makes names in them.
#[derive(Debug, Default)]
struct Made {
    /// Time of creation, and hashes of all names that they ever had.
    dirs: HashMap<Ino, (Tick, HashSet<u64>)>,
    names: usize,
}

fn is_recent(at: Tick) -> bool {
    RealClock::tick().since(at) < BELIEVED
}

fn hash(dir: Ino, name: &Name) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), dir.0)
}

impl Made {
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Notes that a name is about to be made.
    fn add(&mut self, dir: Ino, name: &Name) {
        let Some((_, names)) = self.dirs.get_mut(&dir) else { return };
        self.names += usize::from(names.insert(hash(dir, name)));
        if self.names > MADE_NAMES_MAX {
            self.clear();
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        let changes = (0..SHARDS).map(|_| AtomicU64::new(0)).collect();
        let (made, all_changes) = (Mutex::default(), AtomicU64::new(0));
        Self { known: recent::shared(NAMES_MAX), made, changes, all_changes }
    }
}

impl Names {
    fn shard(&self, dir: Ino, name: &Name) -> &AtomicU64 {
        &self.changes[usize::try_from(hash(dir, name)).unwrap_or(usize::MAX) % SHARDS]
    }

    pub(crate) fn get(&self, dir: Ino, name: &Name) -> Option<Known> {
        let known = self.known.get(&(dir.0, name.clone()));
        let known = known.filter(|(_, at)| is_recent(*at)).map(|(known, _)| known);
        known.or_else(|| self.was_never(dir, name).then_some(Known::IsNot))
    }

    /// Whether a directory that this mount made has never had a name.
    fn was_never(&self, dir: Ino, name: &Name) -> bool {
        let made = self.made.lock();
        let found = made.dirs.get(&dir).filter(|(at, _)| is_recent(*at));
        found.is_some_and(|(_, names)| !names.contains(&hash(dir, name)))
    }

    /// Notes that this mount has just made a directory.
    pub(crate) fn note_dir(&self, dir: Ino) {
        let mut made = self.made.lock();
        if made.dirs.len() >= MADE_DIRS_MAX {
            made.clear();
        }
        made.dirs.insert(dir, (RealClock::tick(), HashSet::new()));
    }

    /// Notes that a directory is no longer exclusive to this mount.
    pub(crate) fn forget_dir(&self, dir: Ino) {
        let mut made = self.made.lock();
        if let Some((_, names)) = made.dirs.remove(&dir) {
            made.names -= names.len();
        }
    }

    /// The number of changes so far; take it before a meta is asked for the name.
    pub(crate) fn changes(&self, dir: Ino, name: &Name) -> u64 {
        self.shard(dir, name).load(Ordering::Acquire)
    }

    /// Notes a name from a meta that was asked after `changes` changes.
    pub(crate) fn note(&self, dir: Ino, name: &Name, known: Known, changes: u64) {
        let shard = self.shard(dir, name);
        if shard.load(Ordering::Acquire) != changes {
            return;
        }
        self.known.insert((dir.0, name.clone()), (known, RealClock::tick()));
        // Changed between the two checks.
        if shard.load(Ordering::Acquire) != changes {
            let _ = self.known.remove(&(dir.0, name.clone()));
        }
    }

    /// The number of changes of all names so far; take it before a meta is asked for a page of
    /// them.
    pub(crate) fn all_changes(&self) -> u64 {
        self.all_changes.load(Ordering::Acquire)
    }

    /// Notes names of a directory from a meta that was asked after `changes` changes.
    pub(crate) fn note_page(
        &self,
        dir: Ino,
        page: impl Iterator<Item = (Name, Known)>,
        changes: u64,
    ) {
        for (name, known) in page {
            // Other programs make names through the cluster too, as `millpond clone` does in
            // directories that this mount made.
            self.made.lock().add(dir, &name);
            let of_name = self.changes(dir, &name);
            if self.all_changes() != changes {
                return;
            }
            self.note(dir, &name, known, of_name);
        }
    }

    fn changed(&self, dir: Ino, name: &Name) {
        self.shard(dir, name).fetch_add(1, Ordering::AcqRel);
        self.all_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that this mount has made or removed the name.
    pub(crate) fn set(&self, dir: Ino, name: &Name, known: Known) {
        self.made.lock().add(dir, name);
        self.changed(dir, name);
        self.known.insert((dir.0, name.clone()), (known, RealClock::tick()));
    }

    /// Notes that a name is about to be made, or was.
    fn comes(&self, dir: Ino, name: &Name) {
        self.made.lock().add(dir, name);
        self.forget(dir, name);
    }

    fn forget(&self, dir: Ino, name: &Name) {
        self.changed(dir, name);
        let _ = self.known.remove(&(dir.0, name.clone()));
    }

    /// Notes that an operation is about to be sent to a meta, or was answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        match op {
            MetaOp::Create(create) => self.comes(create.parent, &create.name),
            MetaOp::Link { parent, name, .. } => self.comes(*parent, name),
            MetaOp::Unlink { parent, name, .. } | MetaOp::RemoveDir { parent, name } => {
                self.forget(*parent, name);
            }
            MetaOp::Rename(rename) => {
                // In an exchange both names are made.
                self.comes(rename.parent, &rename.name);
                self.comes(rename.new_parent, &rename.new_name);
            }
            // Names of many directories.
            MetaOp::Trash(_) | MetaOp::Repair(_) => {
                for shard in &self.changes {
                    shard.fetch_add(1, Ordering::AcqRel);
                }
                self.all_changes.fetch_add(1, Ordering::AcqRel);
                self.made.lock().clear();
                self.known.clear();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::Rename;

    use super::*;

    #[test]
    fn what_was_asked_before_a_change_is_not_believed() {
        let names = Names::default();
        let (dir, name) = (Ino(1), Name::new(b"a").unwrap());
        let before = names.changes(dir, &name);
        names.note(dir, &name, Known::IsNot, before);
        assert_eq!(names.get(dir, &name), Some(Known::IsNot));
        assert_eq!(names.get(Ino(2), &name), None);
        names.passes(&MetaOp::Unlink { parent: dir, name: name.clone(), of: None });
        assert_eq!(names.get(dir, &name), None);
        names.note(dir, &name, Known::Is(Ino(5)), before);
        assert_eq!(names.get(dir, &name), None, "it was asked for before the unlink");
        names.set(dir, &name, Known::Is(Ino(6)));
        assert_eq!(names.get(dir, &name), Some(Known::Is(Ino(6))));
    }

    #[test]
    fn a_directory_that_was_made_here_has_the_names_that_were_made_here() {
        let names = Names::default();
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let (dir, other) = (Ino(5), Ino(6));
        let is = |dir, text| names.get(dir, &name(text));
        assert_eq!(is(dir, "a"), None);
        names.note_dir(dir);
        assert_eq!((is(dir, "a"), is(other, "a")), (Some(Known::IsNot), None));
        names.passes(&MetaOp::Link { ino: Ino(9), parent: dir, name: name("a") });
        assert_eq!((is(dir, "a"), is(dir, "b")), (None, Some(Known::IsNot)));
        let moved = Rename {
            parent: other,
            name: name("a"),
            new_parent: dir,
            new_name: name("b"),
            no_replace: false,
            exchange: false,
            whiteout: false,
        };
        names.passes(&MetaOp::Rename(moved));
        names.set(dir, &name("c"), Known::Is(Ino(8)));
        names.passes(&MetaOp::Unlink { parent: dir, name: name("c"), of: None });
        assert_eq!((is(dir, "b"), is(dir, "c")), (None, None), "a meta knows");
        assert_eq!(is(dir, "d"), Some(Known::IsNot));
        let page = [(name("d"), Known::Is(Ino(10)))];
        names.note_page(dir, page.into_iter(), names.all_changes());
        names.passes(&MetaOp::Unlink { parent: dir, name: name("d"), of: None });
        assert_eq!(is(dir, "d"), None, "it was seen there, whoever made it");
    }
}
