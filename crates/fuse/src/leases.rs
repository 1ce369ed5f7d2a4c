//! What this mount may go on believing of what it was told.
//!
//! A meta's answer tells of a version of the store. A thread hears of every change that others make
//! (`Verb::MetaWatch`), in the order of versions, and has the kernel drop what it keeps of it. An
//! answer may be kept when nothing that it tells of was changed in a later version, and while changes
//! are heard of. It is handed to the kernel under a shared lock that the thread holds alone while it
//! notes changes, so a change comes either before the answer, which then is not kept, or after the
//! kernel has it, and then the kernel drops it.
//!
//! These are callbacks as of AFS (Howard et al., "Scale and performance in a distributed file system",
//! TOCS 1988), but for one thing: whoever makes a change does not wait until everybody has heard of it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use millpond_types::meta::{Changed, Ino, MetaNews, Name};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use quick_cache::sync::Cache;

use crate::recent;

/// How long the kernel keeps what it was told without another word: so long it may be wrong in a
/// mount whose process hangs, or hears nothing.
pub(crate) const KEPT: Duration = Duration::from_secs(10);
/// Changes that are remembered for answers that were given before them.
const CHANGED_MAX: usize = 1 << 16;
/// Inodes of which it is remembered what the kernel was told last.
const TOLD_MAX: usize = 1 << 18;
/// Opens that are remembered until they are tried again, which is at once.
const REFUSED_MAX: usize = 1024;
/// Inodes of which it is remembered that the kernel dropped them for a lock.
const DROPPED_MAX: usize = 1 << 12;
/// Inodes whose notices may be under way at the same time, about.
const DROPPING: usize = 1 << 12;
/// Nothing may be believed.
const DEAF: u64 = u64::MAX;

#[derive(Debug)]
struct Heard {
    /// What was told of an earlier version is not believed; [`DEAF`] while changes are not heard of.
    floor: u64,
    /// Up to where changes were heard of, and the floor while they are.
    position: u64,
    hearing_floor: u64,
    /// The last changes, and the version of the newest of each.
    changed: HashMap<Changed, u64>,
    order: VecDeque<(u64, Changed)>,
}

/// What may be believed.
#[derive(Debug)]
pub(crate) struct Leases {
    heard: RwLock<Heard>,
    /// The `Attr::version` of an inode that the kernel was told last.
    told: Cache<u64, u64>,
    /// Opens of files without names that were refused, by thread and inode.
    refused: Cache<(u32, u64), ()>,
    /// As of which version of the store the kernel has dropped all that it had of an inode, for who was given a lock.
    dropped: Cache<u64, u64>,
    /// Held while it drops something of some inodes.
    dropping: Box<[Mutex<()>]>,
}

/// Nothing is noted as changed while this lives: hand to the kernel what it says may be kept.
#[derive(Debug)]
pub(crate) struct Look<'l>(RwLockReadGuard<'l, Heard>);

impl Look<'_> {
    /// Whether what was told of an inode at this version of the store is still true.
    pub(crate) fn inode(&self, ino: Ino, version: u64) -> bool {
        self.holds(version, || Changed::Inode(ino))
    }

    /// The same of a name.
    pub(crate) fn name(&self, dir: Ino, name: &[u8], version: u64) -> bool {
        let Ok(name) = Name::new(name) else { return false };
        self.holds(version, || Changed::Name(dir, name))
    }

    /// Whether changes are heard of.
    pub(crate) fn hears(&self) -> bool {
        self.0.floor != DEAF
    }

    fn holds(&self, version: u64, what: impl FnOnce() -> Changed) -> bool {
        let heard = &*self.0;
        version >= heard.floor && heard.changed.get(&what()).is_none_or(|at| *at <= version)
    }
}

impl Leases {
    /// Nothing is believed before changes are heard of; behind `position`, if it is not 0.
    pub(crate) fn new(position: u64) -> Self {
        let (changed, order) = (HashMap::new(), VecDeque::new());
        let heard = Heard { floor: DEAF, position, hearing_floor: position, changed, order };
        let (told, refused) = (recent::shared(TOLD_MAX), recent::shared(REFUSED_MAX));
        let dropped = recent::shared(DROPPED_MAX);
        let dropping = (0..DROPPING).map(|_| Mutex::default()).collect();
        Self { heard: RwLock::new(heard), told, refused, dropped, dropping }
    }

    /// While this lives nobody else has the kernel drop what it has of an inode.
    pub(crate) fn dropping(&self, ino: Ino) -> MutexGuard<'_, ()> {
        let lane = usize::try_from(ino.0).unwrap_or(0) % DROPPING;
        self.dropping[lane].lock()
    }

    /// The kernel has dropped all of an inode as of a version of the store.
    pub(crate) fn note_dropped(&self, ino: Ino, version: u64) {
        self.dropped.insert(ino.0, version);
    }

    /// Whether word of a change comes too late to tell the kernel anything. It must not hear of it then: it takes no
    /// attributes that it asked for before, and a program would go on with a length that is older than its lock.
    pub(crate) fn is_dropped(&self, ino: Ino, version: u64) -> bool {
        self.dropped.get(&ino.0).is_some_and(|dropped| dropped >= version)
    }

    pub(crate) fn look(&self) -> Look<'_> {
        Look(self.heard.read())
    }

    /// Up to which version changes were heard of.
    pub(crate) fn position(&self) -> u64 {
        self.heard.read().position
    }

    /// Takes note of news, before the kernel hears of them.
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

    /// Changes are not heard of any more: nothing is believed until they are again. False when that was
    /// known.
    pub(crate) fn deafen(&self) -> bool {
        let mut heard = self.heard.write();
        std::mem::replace(&mut heard.floor, DEAF) != DEAF
    }

    /// The kernel is told of an inode.
    pub(crate) fn tells(&self, ino: Ino, version: u64) {
        self.told.insert(ino.0, version);
    }

    /// This mount has written to a file, which has this version by that: the kernel has these bytes, unless others
    /// wrote some between.
    pub(crate) fn wrote(&self, ino: Ino, version: u64) {
        if self.told(ino).is_some_and(|before| before + 1 == version) {
            self.tells(ino, version);
        }
    }

    /// Whether a thread opens this file, which has no name, for the second time: the kernel has looked
    /// the name up anew then, if it came by one.
    pub(crate) fn second_try(&self, pid: u32, ino: Ino) -> bool {
        let before = self.refused.remove(&(pid, ino.0)).is_some();
        if !before {
            self.refused.insert((pid, ino.0), ());
        }
        before
    }

    /// The kernel may keep pages that are older than what it was told of the inode.
    pub(crate) fn forget(&self, ino: Ino) {
        let _ = self.told.remove(&ino.0);
    }

    /// What the kernel was told of an inode last, if that is remembered.
    pub(crate) fn told(&self, ino: Ino) -> Option<u64> {
        self.told.get(&ino.0)
    }

    /// Forgets what the kernel was told; all inodes of which it was told something.
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
        // Nothing was missed.
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
