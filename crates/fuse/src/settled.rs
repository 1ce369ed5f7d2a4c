//! Attributes after this mount's own changes: the kernel drops those of a file that it wrote to,
//! and of a directory in which it made or removed a name, and requests them at once or at the next
//! `stat`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{Answered, Attr, Content, Ino, MetaOp, MetaReply};
use parking_lot::Mutex;
use quick_cache::{Weighter, sync, unsync};

use crate::backend::Told;
use crate::recent;

/// The number of cached inodes: some 10 MiB.
const KNOWN_MAX: usize = 1 << 16;
/// Counters of changes, by inode.
const SHARDS: usize = 256;
/// How long they are believed: as long as a kernel believes them without change notifications.
const BELIEVED: Duration = Duration::from_hours(1);

/// Bytes of small files by inode, as last reported by metas.
pub(crate) type Contents = sync::Cache<u64, Arc<Content>, BytesOf>;

/// The weight of a file's bytes in the cache.
#[derive(Clone, Debug)]
pub(crate) struct BytesOf;

impl Weighter<u64, Arc<Content>> for BytesOf {
    fn weight(&self, _: &u64, content: &Arc<Content>) -> u64 {
        (size_of::<Content>() + content.bytes.len()) as u64
    }
}

/// The known state of an inode as of a version of the store.
#[derive(Clone, Copy, Debug)]
struct Known {
    version: u64,
    /// None when it changed in that version without its attributes in the answer.
    attr: Option<Attr>,
    /// The number of changes before the request, and the time of the answer.
    changes: u64,
    at: Tick,
}

/// Attributes from metas' answers to changes by this mount, and from promises.
#[derive(Debug)]
pub(crate) struct Settled {
    known: Mutex<unsync::Cache<u64, Known>>,
    /// Counts the begins and ends of this mount's changes.
    all: AtomicU64,
    /// The last of these changes that affects an existing inode, by inode.
    changes: Box<[AtomicU64]>,
    /// The last change with unknown inodes: a rename does not even report the inode it moved.
    of_any: AtomicU64,
}

impl Default for Settled {
    fn default() -> Self {
        let changes = (0..SHARDS).map(|_| AtomicU64::new(0)).collect();
        let known = Mutex::new(recent::owned(KNOWN_MAX));
        Self { known, all: AtomicU64::new(0), changes, of_any: AtomicU64::new(0) }
    }
}

/// The directory of an operation that returns all attributes it changes.
pub(crate) const fn told_of(op: &MetaOp) -> Option<Ino> {
    match op {
        MetaOp::Create(create) => Some(create.parent),
        MetaOp::Link { parent, .. }
        | MetaOp::Unlink { parent, .. }
        | MetaOp::RemoveDir { parent, .. } => Some(*parent),
        _ => None,
    }
}

/// The inodes with attributes that an operation may change, other than length and times by writing.
enum Touched {
    None,
    One(Ino),
    Any,
}

const fn touched(op: &MetaOp) -> Touched {
    match op {
        MetaOp::Extend(_)
        | MetaOp::Hollow(_)
        | MetaOp::WriteInline(_)
        | MetaOp::Reserve(_)
        | MetaOp::Spill(_)
        | MetaOp::Unshare { .. }
        | MetaOp::Create(_)
        | MetaOp::SetLock { .. }
        | MetaOp::Return { .. }
        | MetaOp::RemoveDir { .. } => Touched::None,
        MetaOp::SetAttr { ino, .. }
        | MetaOp::RemoveXattr { ino, .. }
        | MetaOp::Link { ino, .. } => Touched::One(*ino),
        MetaOp::SetXattr(set) => Touched::One(set.ino),
        op if op.changes() => Touched::Any,
        _ => Touched::None,
    }
}

impl Settled {
    fn shard(&self, ino: Ino) -> &AtomicU64 {
        &self.changes[usize::try_from(ino.0).unwrap_or(0) % SHARDS]
    }

    /// The last change of a file: take it before written bytes are reported to a meta.
    pub(crate) fn changes(&self, ino: Ino) -> u64 {
        self.shard(ino).load(Ordering::Acquire).max(self.of_any.load(Ordering::Acquire))
    }

    /// The last change of anything: take it before a meta is asked for an answer for
    /// [`Self::note_looked`].
    pub(crate) fn all_changes(&self) -> u64 {
        self.all.load(Ordering::Acquire)
    }

    /// Notes that an operation is about to be sent, or was answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        match touched(op) {
            Touched::None => {}
            Touched::One(ino) => self.changed(ino),
            Touched::Any => self.changes_at(&self.of_any),
        }
    }

    /// Notes that a file is changed, or about to be.
    pub(crate) fn changed(&self, ino: Ino) {
        self.changes_at(self.shard(ino));
    }

    fn changes_at(&self, last: &AtomicU64) {
        let number = self.all.fetch_add(1, Ordering::AcqRel) + 1;
        last.fetch_max(number, Ordering::AcqRel);
    }

    /// Notes a meta's answer to a report sent after `changes` changes.
    pub(crate) fn note(&self, told: Told, changes: u64) {
        let (version, attr, at) = (told.version, Some(told.attr), RealClock::tick());
        self.keep(told.attr.ino, Known { version, attr, changes, at });
    }

    /// Notes a meta's answer about an inode, if this mount has not changed it since `before`.
    pub(crate) fn note_looked(&self, told: Told, before: u64) {
        let changes = self.changes(told.attr.ino);
        // No meta reports promised state.
        if changes <= before && told.version > 0 {
            self.note(told, changes);
        }
    }

    fn keep(&self, ino: Ino, known: Known) {
        let mut all = self.known.lock();
        // Answers come in any order.
        if all.get(&ino.0).is_none_or(|kept| kept.version <= known.version) {
            all.insert(ino.0, known);
        }
    }

    /// Processes a meta's answer to an operation sent after `changes` changes.
    pub(crate) fn hear(&self, op: &MetaOp, answered: Option<&Answered>, changes: u64) {
        if told_of(op).is_none() {
            return;
        }
        let at = RealClock::tick();
        let Some(Answered { answer: Ok(reply), after, .. }) = answered else {
            // A rejection changes nothing; an unknown outcome may have changed anything.
            if answered.is_none() {
                self.changes_at(&self.of_any);
            }
            return;
        };
        let version = after.version;
        if version == 0 {
            self.changes_at(&self.of_any);
            return;
        }
        let inode = match reply {
            MetaReply::Removed(removed) => Some(removed.ino),
            MetaReply::Entry(entry) if matches!(op, MetaOp::Link { .. }) => Some(entry.attr.ino),
            _ => None,
        };
        if let Some(ino) = inode {
            self.keep(ino, Known { version, attr: None, changes, at });
        }
        for attr in &after.dirs {
            self.keep(attr.ino, Known { version, attr: Some(*attr), changes, at });
        }
    }

    /// The attributes of an inode as last reported, if this mount has changed nothing of it since.
    pub(crate) fn get(&self, ino: Ino) -> Option<Told> {
        Some(self.aged(ino, BELIEVED)?.0)
    }

    /// The same if they are younger than `longest`, together with their age.
    pub(crate) fn aged(&self, ino: Ino, longest: Duration) -> Option<(Told, Duration)> {
        let known = self.known.lock().get(&ino.0).copied()?;
        let age = RealClock::tick().since(known.at);
        let is_true = age < longest && known.changes == self.changes(ino);
        let attr = known.attr.filter(|_| is_true)?;
        Some((Told { attr, version: known.version }, age))
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{After, Extend, Filled, MetaError, Name, Removed, Timestamp};

    use super::*;
    use crate::files::tests::attr;

    #[test]
    fn what_was_told_counts_until_something_else_is_changed() {
        let settled = Settled::default();
        let told = Told { attr: attr(10, 3), version: 7 };
        let (ino, name) = (told.attr.ino, Name::new(b"a").unwrap());
        let before = settled.changes(ino);
        settled.note(told, before);
        settled.passes(&MetaOp::GetAttr { ino });
        settled.passes(&MetaOp::Extend(Extend {
            ino,
            data: 5,
            size: 9,
            mtime: Timestamp::default(),
            filled: Filled::default(),
        }));
        assert_eq!(settled.get(ino).map(|told| told.attr.size), Some(10));
        assert!(settled.get(Ino(6)).is_none());
        // In progress during the report: the order of the two is unknown.
        let unlink = MetaOp::Unlink { parent: Ino::ROOT, name: name.clone(), of: None };
        settled.passes(&unlink);
        let between = settled.changes(ino);
        settled.note(told, between);
        settled.passes(&unlink);
        assert!(settled.get(ino).is_none());
        settled.note(told, settled.changes(ino));
        settled.changed(Ino(ino.0 + 1));
        settled.passes(&MetaOp::Link { ino: Ino(ino.0 + 2), parent: Ino::ROOT, name });
        assert!(settled.get(ino).is_some(), "of other files");
        settled.changed(ino);
        assert!(settled.get(ino).is_none());
    }

    #[test]
    fn what_was_looked_up_counts_unless_it_was_changed_meanwhile() {
        let settled = Settled::default();
        let told = Told { attr: attr(10, 3), version: 7 };
        let ino = told.attr.ino;
        settled.changed(ino);
        let before = settled.all_changes();
        settled.changed(Ino(ino.0 + 1));
        settled.note_looked(Told { version: 0, ..told }, before);
        assert!(settled.get(ino).is_none(), "it was promised");
        settled.note_looked(told, before);
        let hour = Duration::from_hours(1);
        assert_eq!(settled.aged(ino, hour).map(|(told, _)| told.version), Some(7));
        assert!(settled.aged(ino, Duration::ZERO).is_none());
        settled.changed(ino);
        assert!(settled.get(ino).is_none());
        let newer = Told { version: 9, ..told };
        settled.note_looked(newer, before);
        assert!(settled.get(ino).is_none(), "it may be of before the change");
        settled.note_looked(newer, settled.all_changes());
        assert!(settled.get(ino).is_some());
    }

    #[test]
    fn names_that_are_made_and_removed_bring_their_directories() {
        let settled = Settled::default();
        let told = |ino, version| {
            let mut attr = attr(0, version);
            attr.ino = Ino(ino);
            Told { attr, version }
        };
        let name = Name::new(b"a").unwrap();
        let op = MetaOp::Unlink { parent: Ino(1), name, of: None };
        let answered = |version, ino| {
            let dirs = vec![told(1, version).attr];
            let answer = Ok(MetaReply::Removed(Removed { ino: Ino(ino), nlink: 1 }));
            Answered { answer, version: version - 1, after: After { version, dirs } }
        };
        let changes = settled.changes(Ino(1));
        for ino in [5, 6] {
            settled.note(told(ino, 7), changes);
        }
        settled.hear(&op, Some(&answered(10, 5)), changes);
        assert_eq!(settled.get(Ino(1)).map(|told| told.version), Some(10));
        assert!(settled.get(Ino(5)).is_none() && settled.get(Ino(6)).is_some());
        // Overtaken answers.
        settled.note(told(5, 9), changes);
        settled.hear(&op, Some(&answered(9, 6)), changes);
        assert!(settled.get(Ino(5)).is_none(), "of before it lost a name");
        assert_eq!(settled.get(Ino(1)).map(|told| told.version), Some(10));
        settled.note(told(5, 11), changes);
        assert!(settled.get(Ino(5)).is_some());
        // Rejected, executed by an earlier attempt, and unknown.
        let refused = Answered { answer: Err(MetaError::NotFound), ..answered(12, 5) };
        settled.hear(&op, Some(&refused), changes);
        assert!(settled.get(Ino(1)).is_some());
        let mut earlier = answered(13, 6);
        earlier.after = After::default();
        for unknown in [Some(&earlier), None] {
            let changes = settled.changes(Ino(1));
            settled.note(told(1, 20), changes);
            assert!(settled.get(Ino(1)).is_some());
            settled.hear(&op, unknown, changes);
            assert!(settled.get(Ino(1)).is_none());
        }
    }
}
