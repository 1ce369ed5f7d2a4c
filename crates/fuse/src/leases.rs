//! Leases: the validity of the cached entries of this mount and of its kernel.
//!
//! A meta's answer belongs to a version of the store. A thread receives every change that other
//! clients make (`Verb::MetaWatch`), in the order of versions, and makes the kernel drop its cached
//! entries for it. An answer may be cached if nothing in it was changed in a later version, and
//! while change notifications arrive. It is passed to the kernel under a shared lock that the
//! thread holds exclusively while it notes changes. So a change comes either before the answer,
//! which then is not cached, or after the kernel has it, and then the kernel drops it.
//!
//! These are callbacks as in AFS (Howard et al., "Scale and performance in a distributed file
//! system", TOCS 1988), except that the client that makes a change does not wait until all others
//! have received it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use millpond_types::meta::{Changed, Ino, MetaNews, Name};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use quick_cache::sync::Cache;

use crate::recent;

/// How long the kernel keeps cached entries without renewal: for this time they may be outdated in
/// a mount with a hanging process or without notifications.
pub(crate) const KEPT: Duration = Duration::from_secs(10);
/// The number of remembered changes, for answers given before them.
const CHANGED_MAX: usize = 1 << 16;
/// The number of inodes with a remembered version in the kernel.
const TOLD_MAX: usize = 1 << 18;
/// The number of rejected opens remembered until their immediate retry.
const REFUSED_MAX: usize = 1024;
/// The number of inodes remembered as dropped by the kernel for a lock.
const DROPPED_MAX: usize = 1 << 12;
/// The number of inodes with concurrent notices, about.
const DROPPING: usize = 1 << 12;
/// A floor that invalidates everything.
const DEAF: u64 = u64::MAX;

#[derive(Debug)]
struct Heard {
    /// Answers of an earlier version are not believed; [`DEAF`] while no notifications arrive.
    floor: u64,
    /// The version up to which changes were received, and the floor while notifications arrive.
    position: u64,
    hearing_floor: u64,
    /// The last changes, each with its newest version.
    changed: HashMap<Changed, u64>,
    order: VecDeque<(u64, Changed)>,
}

/// The leases of a mount.
#[derive(Debug)]
pub(crate) struct Leases {
    heard: RwLock<Heard>,
    /// The `Attr::version` of an inode that the kernel received last.
    told: Cache<u64, u64>,
    /// Rejected opens of files without names, by thread and inode.
    refused: Cache<(u32, u64), ()>,
    /// The version of the store as of which the kernel has dropped everything of an inode, for a
    /// new owner of a lock.
    dropped: Cache<u64, u64>,
    /// Held while the kernel drops entries of some inodes.
    dropping: Box<[Mutex<()>]>,
}

/// A guard that blocks notes of changes: pass entries to the kernel while it lives.
#[derive(Debug)]
pub(crate) struct Look<'l>(RwLockReadGuard<'l, Heard>);

impl Look<'_> {
    /// Whether an answer about an inode at this version of the store is still valid.
    pub(crate) fn inode(&self, ino: Ino, version: u64) -> bool {
        self.holds(version, || Changed::Inode(ino))
    }

    /// Whether an answer about a name at this version of the store is still valid.
    pub(crate) fn name(&self, dir: Ino, name: &[u8], version: u64) -> bool {
        let Ok(name) = Name::new(name) else { return false };
        self.holds(version, || Changed::Name(dir, name))
    }

    /// Whether change notifications arrive.
    pub(crate) fn hears(&self) -> bool {
        self.0.floor != DEAF
    }

    fn holds(&self, version: u64, what: impl FnOnce() -> Changed) -> bool {
        let heard = &*self.0;
        version >= heard.floor && heard.changed.get(&what()).is_none_or(|at| *at <= version)
    }
}

impl Leases {
    /// Starts without valid leases until notifications arrive; they must continue from `position`,
    /// if it is not 0.
    pub(crate) fn new(position: u64) -> Self {
        let (changed, order) = (HashMap::new(), VecDeque::new());
        let heard = Heard { floor: DEAF, position, hearing_floor: position, changed, order };
        let (told, refused) = (recent::shared(TOLD_MAX), recent::shared(REFUSED_MAX));
        let dropped = recent::shared(DROPPED_MAX);
        let dropping = (0..DROPPING).map(|_| Mutex::default()).collect();
        Self { heard: RwLock::new(heard), told, refused, dropped, dropping }
    }

    /// A guard: while it lives, no other thread makes the kernel drop entries of an inode.
    pub(crate) fn dropping(&self, ino: Ino) -> MutexGuard<'_, ()> {
        let lane = usize::try_from(ino.0).unwrap_or(0) % DROPPING;
        self.dropping[lane].lock()
    }

    /// Notes that the kernel has dropped everything of an inode as of a version of the store.
    pub(crate) fn note_dropped(&self, ino: Ino, version: u64) {
        self.dropped.insert(ino.0, version);
    }

    /// Whether the notification of a change is too late for the kernel.
    ///
    /// It must then be skipped: the kernel would ignore attributes that it requested before the
    /// notification, and a program would continue with a length older than its lock.
    pub(crate) fn is_dropped(&self, ino: Ino, version: u64) -> bool {
        self.dropped.get(&ino.0).is_some_and(|dropped| dropped >= version)
    }

    pub(crate) fn look(&self) -> Look<'_> {
        Look(self.heard.read())
    }

    /// The version up to which changes were received.
    pub(crate) fn position(&self) -> u64 {
        self.heard.read().position
    }

    /// Notes news before they reach the kernel.
    pub(crate) fn hear(&self, news: &MetaNews) {
        let mut heard = self.heard.write();
        if news.gap {
            heard.changed.clear();
            heard.order.clear();
            heard.hearing_floor = news.version;
        }
        for (version, change) in &news.changes {
            heard.changed.insert(change.clone(), *version);
            heard.order.push_back((*version, change.clone()));
        }
        while heard.order.len() > CHANGED_MAX {
            let Some((version, change)) = heard.order.pop_front() else { break };
            if heard.changed.get(&change) == Some(&version) {
                heard.changed.remove(&change);
            }
            heard.hearing_floor = version;
        }
        heard.floor = heard.hearing_floor;
        heard.position = news.version;
    }

    /// Invalidates all leases until notifications arrive again. False if they were invalid already.
    pub(crate) fn deafen(&self) -> bool {
        let mut heard = self.heard.write();
        std::mem::replace(&mut heard.floor, DEAF) != DEAF
    }

    /// Notes that the kernel receives an inode of this version.
    pub(crate) fn tells(&self, ino: Ino, version: u64) {
        self.told.insert(ino.0, version);
    }

    /// Notes that a write of this mount produced this version of a file: the kernel has the bytes,
    /// unless another client wrote some in between.
    pub(crate) fn wrote(&self, ino: Ino, version: u64) {
        if self.told(ino).is_some_and(|before| before + 1 == version) {
            self.tells(ino, version);
        }
    }

    /// Whether a thread opens this file without a name for the second time: then the kernel has
    /// already repeated the lookup, if it came by a name.
    pub(crate) fn second_try(&self, pid: u32, ino: Ino) -> bool {
        let before = self.refused.remove(&(pid, ino.0)).is_some();
        if !before {
            self.refused.insert((pid, ino.0), ());
        }
        before
    }

    /// Forgets the kernel's version of an inode, because the kernel may have older pages.
    pub(crate) fn forget(&self, ino: Ino) {
        let _ = self.told.remove(&ino.0);
    }

    /// The version of an inode that the kernel received last, if it is remembered.
    pub(crate) fn told(&self, ino: Ino) -> Option<u64> {
        self.told.get(&ino.0)
    }

    /// Forgets all versions in the kernel; returns their inodes.
    pub(crate) fn forget_told(&self) -> Vec<u64> {
        let all = self.told.iter().map(|(ino, _)| ino).collect();
        self.told.clear();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(version: u64, ino: u64) -> (u64, Changed) {
        (version, Changed::Inode(Ino(ino)))
    }

    fn news(version: u64, changes: Vec<(u64, Changed)>) -> MetaNews {
        MetaNews { version, gap: false, changes }
    }

    #[test]
    fn an_answer_is_kept_until_what_it_tells_of_changes() {
        let leases = Leases::new(0);
        assert!(!leases.look().inode(Ino(5), 100), "nothing is heard yet");
        leases.hear(&MetaNews { version: 10, gap: true, changes: Vec::new() });
        assert!(leases.look().inode(Ino(5), 10) && !leases.look().inode(Ino(5), 9));
        let name = Name::new(b"a").unwrap();
        leases.hear(&news(12, vec![inode(11, 5), (12, Changed::Name(Ino(1), name))]));
        let look = leases.look();
        assert!(!look.inode(Ino(5), 10) && look.inode(Ino(5), 11) && look.inode(Ino(6), 10));
        assert!(!look.name(Ino(1), b"a", 11) && look.name(Ino(1), b"a", 12));
        assert!(look.name(Ino(1), b"b", 10) && look.name(Ino(2), b"a", 10));
    }

    #[test]
    fn nothing_is_believed_unheard() {
        let leases = Leases::new(7);
        leases.hear(&news(9, vec![inode(8, 5)]));
        assert!(leases.look().inode(Ino(6), 7), "what was told before this process");
        assert!(leases.deafen() && !leases.deafen());
        assert!(!leases.look().inode(Ino(6), 1000));
        // No change was missed.
        leases.hear(&news(10, Vec::new()));
        assert!(leases.look().inode(Ino(6), 7) && !leases.look().inode(Ino(5), 7));
        let _ = leases.deafen();
        leases.hear(&MetaNews { version: 20, gap: true, changes: Vec::new() });
        assert!(!leases.look().inode(Ino(6), 19) && leases.look().inode(Ino(6), 20));
        assert_eq!(leases.position(), 20);
    }

    #[test]
    fn what_is_forgotten_is_not_believed() {
        let leases = Leases::new(1);
        let many = CHANGED_MAX as u64;
        for version in 2..many + 12 {
            leases.hear(&news(version, vec![inode(version, version % 7)]));
        }
        assert!(!leases.look().inode(Ino(99), 10) && leases.look().inode(Ino(99), 11));
        leases.tells(Ino(3), 4);
        assert_eq!((leases.told(Ino(3)), leases.told(Ino(4))), (Some(4), None));
        assert_eq!(leases.forget_told(), [3]);
        assert_eq!(leases.told(Ino(3)), None);
        assert!(!leases.second_try(1, Ino(3)) && !leases.second_try(2, Ino(3)));
        assert!(leases.second_try(1, Ino(3)) && !leases.second_try(1, Ino(3)));
    }
}
