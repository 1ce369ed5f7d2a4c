//! Directories that this mount made, with every name in them: any other name does not exist, and no
//! meta needs to be asked. Programs that unpack, build or check out make a directory, and then look
//! up each name before they create it.
//!
//! This holds as long as no other client changes the directory, which the [leases](crate::leases)
//! report.

use std::collections::{HashMap, HashSet, VecDeque};

use millpond_types::meta::{After, Answered, FileKind, Ino, MetaOp, MetaReply};
use parking_lot::Mutex;

/// The number of remembered names, some 10 MiB; a directory counts as one.
const NAMES_MAX: usize = 1 << 17;
/// The largest number of names of one directory: a larger one is not remembered.
const DIR_NAMES_MAX: usize = NAMES_MAX / 4;

#[derive(Debug)]
struct Dir {
    /// The version of the store in which it was made.
    since: u64,
    names: HashSet<Box<[u8]>>,
}

#[derive(Debug, Default)]
struct Known {
    dirs: HashMap<u64, Dir>,
    /// In order of age; may contain removed entries.
    order: VecDeque<u64>,
    size: usize,
}

/// Directories of which all names are known.
#[derive(Debug, Default)]
pub(crate) struct Born(Mutex<Known>);

impl Known {
    fn add(&mut self, ino: Ino, since: u64) {
        self.forget(ino);
        self.dirs.insert(ino.0, Dir { since, names: HashSet::new() });
        self.order.push_back(ino.0);
        self.size += 1;
        self.shrink();
    }

    fn forget(&mut self, ino: Ino) {
        if let Some(dir) = self.dirs.remove(&ino.0) {
            self.size -= 1 + dir.names.len();
        }
    }

    fn shrink(&mut self) {
        while self.size > NAMES_MAX || self.order.len() > NAMES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.forget(Ino(oldest));
        }
    }

    fn made(&mut self, dir: Ino, name: &[u8]) {
        let Some(known) = self.dirs.get_mut(&dir.0) else { return };
        if known.names.len() >= DIR_NAMES_MAX {
            self.forget(dir);
        } else if known.names.insert(name.into()) {
            self.size += 1;
            self.shrink();
        }
    }

    fn gone(&mut self, dir: Ino, name: &[u8]) {
        let known = self.dirs.get_mut(&dir.0);
        self.size -= usize::from(known.is_some_and(|known| known.names.remove(name)));
    }

    fn heard(&mut self, op: &MetaOp, reply: &MetaReply, after: &After) {
        match (op, reply) {
            (MetaOp::Create(create), MetaReply::Entry(entry)) => {
                self.made(create.parent, create.name.as_bytes());
                // Numbers of directories are never reused, and none is made twice.
                if after.version > 0 && entry.created && entry.attr.kind == FileKind::Directory {
                    self.add(entry.attr.ino, after.version);
                }
            }
            (MetaOp::Link { parent, name, .. }, _) => self.made(*parent, name.as_bytes()),
            (MetaOp::Unlink { parent, name, .. }, _) => self.gone(*parent, name.as_bytes()),
            (MetaOp::RemoveDir { parent, name }, MetaReply::Removed(removed)) => {
                self.gone(*parent, name.as_bytes());
                self.forget(removed.ino);
            }
            (MetaOp::Rename(rename), reply) => {
                if let MetaReply::Renamed(Some(replaced)) = reply {
                    self.forget(replaced.ino);
                }
                if after.version == 0 {
                    self.forget(rename.parent);
                    self.forget(rename.new_parent);
                } else if !rename.exchange && !after.dirs.is_empty() {
                    // A rename of one name of a file to another name of it does nothing
                    // (rename(2)).
                    if !rename.whiteout {
                        self.gone(rename.parent, rename.name.as_bytes());
                    }
                    self.made(rename.new_parent, rename.new_name.as_bytes());
                }
            }
            _ => {}
        }
    }

    /// Handles an operation with an unknown outcome.
    fn doubt(&mut self, op: &MetaOp) {
        match op {
            MetaOp::Create(create) => self.forget(create.parent),
            MetaOp::Link { parent, .. }
            | MetaOp::Unlink { parent, .. }
            | MetaOp::RemoveDir { parent, .. } => self.forget(*parent),
            MetaOp::Rename(rename) => {
                self.forget(rename.parent);
                self.forget(rename.new_parent);
            }
            _ => {}
        }
    }
}

impl Born {
    /// Processes a meta's answer, or `None` if the outcome is unknown. Called before the requester
    /// is answered.
    pub(crate) fn hear(&self, op: &MetaOp, answered: Option<&Answered>) {
        if !op.changes() {
            return;
        }
        let mut known = self.0.lock();
        match answered {
            None => known.doubt(op),
            Some(Answered { answer: Ok(reply), after, .. }) => known.heard(op, reply, after),
            Some(_) => {}
        }
    }

    /// The version since which a directory that this mount made has lacked this name, if it lacks
    /// it and no other client has changed the directory.
    pub(crate) fn lacks(&self, dir: Ino, name: &[u8]) -> Option<u64> {
        let known = self.0.lock();
        let dir = known.dirs.get(&dir.0)?;
        (!dir.names.contains(name)).then_some(dir.since)
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{Create, Entry, MetaError, Name, Removed, Rename};

    use super::*;
    use crate::files::tests::attr;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn create(parent: u64, text: &str, kind: FileKind) -> MetaOp {
        let (parent, name, target) = (Ino(parent), name(text), Vec::new());
        let create = Create {
            parent,
            name,
            kind,
            mode: 0o755,
            umask: None,
            rdev: 0,
            target,
            exclusive: true,
            promised: None,
            delegate: None,
        };
        MetaOp::Create(create)
    }

    fn rename(exchange: bool) -> MetaOp {
        let (parent, new_parent) = (Ino(5), Ino(5));
        let (name, new_name) = (name("a"), name("b"));
        MetaOp::Rename(Rename {
            parent,
            name,
            new_parent,
            new_name,
            no_replace: false,
            exchange,
            whiteout: false,
        })
    }

    fn answered(reply: MetaReply, version: u64) -> Answered {
        let dirs = vec![attr(0, version)];
        Answered { answer: Ok(reply), version: 0, after: After { version, dirs } }
    }

    fn made(ino: u64, kind: FileKind, version: u64) -> Answered {
        let mut attr = attr(0, version);
        (attr.ino, attr.kind) = (Ino(ino), kind);
        answered(MetaReply::Entry(Entry { attr, created: true }), version)
    }

    fn removed(ino: u64) -> Answered {
        answered(MetaReply::Removed(Removed { ino: Ino(ino), nlink: 0 }), 9)
    }

    fn born() -> Born {
        let born = Born::default();
        let (dir, file) = (FileKind::Directory, FileKind::Regular);
        born.hear(&create(1, "dir", dir), Some(&made(5, dir, 7)));
        born.hear(&create(5, "a", file), Some(&made(6, file, 8)));
        born
    }

    #[test]
    fn names_of_a_directory_that_was_made_here_are_known() {
        let born = born();
        assert_eq!((born.lacks(Ino(5), b"a"), born.lacks(Ino(5), b"b")), (None, Some(7)));
        assert_eq!(born.lacks(Ino(1), b"b"), None, "it was there before");
        born.hear(&rename(false), Some(&answered(MetaReply::Renamed(None), 9)));
        assert_eq!((born.lacks(Ino(5), b"a"), born.lacks(Ino(5), b"b")), (Some(7), None));
        born.hear(&rename(true), Some(&answered(MetaReply::Renamed(None), 9)));
        assert_eq!((born.lacks(Ino(5), b"a"), born.lacks(Ino(5), b"b")), (Some(7), None));
        let (parent, name) = (Ino(5), name("b"));
        let unlink = MetaOp::Unlink { parent, name, of: None };
        let refused = Answered { answer: Err(MetaError::NotPermitted), ..removed(6) };
        born.hear(&unlink, Some(&refused));
        assert_eq!(born.lacks(Ino(5), b"b"), None);
        born.hear(&unlink, Some(&removed(6)));
        assert_eq!(born.lacks(Ino(5), b"b"), Some(7));
    }

    #[test]
    fn what_is_in_doubt_is_forgotten() {
        let file = FileKind::Regular;
        let unknown = born();
        unknown.hear(&create(5, "b", file), None);
        assert_eq!(unknown.lacks(Ino(5), b"c"), None);
        let before = born();
        let mut repeated = answered(MetaReply::Renamed(None), 9);
        repeated.after = After::default();
        before.hear(&rename(false), Some(&repeated));
        assert_eq!(before.lacks(Ino(5), b"c"), None);
        let gone = born();
        gone.hear(&MetaOp::RemoveDir { parent: Ino(1), name: name("dir") }, Some(&removed(5)));
        assert_eq!(gone.lacks(Ino(5), b"c"), None);
    }

    #[test]
    fn memory_is_bounded() {
        let born = born();
        let file = FileKind::Regular;
        for n in 0..DIR_NAMES_MAX as u64 {
            born.hear(&create(5, &n.to_string(), file), Some(&made(100 + n, file, 9)));
        }
        assert_eq!(born.lacks(Ino(5), b"no such name"), None, "it has too many");
        for n in 0..2 * NAMES_MAX as u64 {
            let dir = FileKind::Directory;
            born.hear(&create(1, &n.to_string(), dir), Some(&made(1000 + n, dir, 9)));
        }
        let known = born.0.lock();
        assert!(known.size <= NAMES_MAX && known.dirs.len() == known.size, "{}", known.size);
        assert!(known.order.len() <= NAMES_MAX);
    }
}
