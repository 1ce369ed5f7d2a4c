//! Directories that metas have delegated to a close-to-open mount. Metas delegate directories that
//! the mount made, and recall them when another client comes (`docs/files.md`, "Delegations").
//!
//! In a delegated directory the mount knows as much as a one-writer mount does everywhere, and
//! makes promises. A file is *covered* while the directory that it was made in is delegated and no
//! other name leads to it: no other client can have seen it. The mount stops believing in a
//! delegation, by this process's clock, before metas give the directory to another client
//! (`millpond_types::meta::Delegation`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{DELEGATION_MS, Ino, MetaOp, RETURN_MS, RETURNS_MAX};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use quick_cache::sync::Cache;

use super::Known;
use super::names::Names;
use crate::recent;

/// The largest number of delegated directories: some 2 MiB.
const DIRS_MAX: usize = 1 << 14;
/// The largest number of remembered files made in them: some 4 MiB.
const FILES_MAX: usize = 1 << 16;
/// The largest number of remembered returned directories, for answers still in flight.
const RETURNED_MAX: usize = 1 << 10;
/// The interval at which metas are asked for recalls; a reported change of a delegated directory
/// triggers it at once.
const ASK: Duration = Duration::from_millis(500);
/// How long a delegation is believed after the request for it.
const BELIEVED: Duration = Duration::from_millis(DELEGATION_MS as u64);
const RETURN: Duration = Duration::from_millis(RETURN_MS as u64);
/// Recalls within this time of each other indicate a client that walks through a tree. With the
/// second recall this many more directories are returned, and twice as many with each after that.
const WALKS: Duration = Duration::from_secs(1);
const AHEAD: usize = 4;
const AHEAD_MAX: usize = 256;

#[derive(Debug, Default)]
struct State {
    /// The last tenure that metas reported for this session's delegations.
    tenure: Option<u32>,
    /// The end of that belief.
    until: Tick,
    /// Recalled directories until metas know of their return: when the reporting meta was asked,
    /// and the time after which no delegation is believed because this one is overdue.
    recalled: HashMap<Ino, (Tick, Tick)>,
    /// Each with a number that changes when files leave it. Roughly in order of creation.
    dirs: BTreeMap<Ino, u64>,
    returned: VecDeque<Ino>,
    /// The time of the last recall, and the number of directories returned ahead with it.
    ahead: (Tick, usize),
}

#[derive(Debug, Default)]
struct Due {
    /// A change of a delegated directory was reported.
    now: bool,
    /// There may be delegations, of this process or an earlier one.
    any: bool,
    ended: bool,
}

/// The delegations of a mount.
#[derive(Debug)]
pub(crate) struct Delegations {
    state: RwLock<State>,
    /// The directory that each file was made in, and its number at that time.
    files: Cache<u64, (Ino, u64)>,
    numbers: AtomicU64,
    due: Mutex<Due>,
    work: Condvar,
    recalled: AtomicU64,
}

/// A guard that blocks returns, held while a promise is made.
pub(crate) struct Still<'d> {
    _state: RwLockReadGuard<'d, State>,
}

impl State {
    fn is_believed(&self) -> bool {
        let now = RealClock::tick();
        now < self.until && self.recalled.values().all(|(_, overdue)| now < *overdue)
    }

    /// Takes the directories that a client walking through a tree would reach next.
    ///
    /// After the first recall the client may want nothing else; each further one soon after makes
    /// it more likely to go on.
    fn take_ahead(&mut self, recalled: &[Ino]) -> Vec<Ino> {
        let (now, (last, before)) = (RealClock::tick(), self.ahead);
        let is_walked = last != Tick(0) && now.since(last) < WALKS;
        let count = if is_walked { (2 * before).max(AHEAD) } else { 0 };
        let count = count.min(AHEAD_MAX);
        self.ahead = (now, count);
        let from = recalled.iter().max().copied().unwrap_or(Ino(0));
        let behind = self.dirs.range(from..).chain(self.dirs.range(..from));
        let taken: Vec<Ino> = behind.take(count).map(|(dir, _)| *dir).collect();
        for dir in &taken {
            self.dirs.remove(dir);
        }
        taken
    }
}

impl Delegations {
    /// Starts without delegations; an earlier process may have had some.
    pub(crate) fn new(is_taken_over: bool) -> Self {
        let due = Due { any: is_taken_over, ..Due::default() };
        Self {
            state: RwLock::default(),
            files: recent::shared(FILES_MAX),
            numbers: AtomicU64::new(1),
            due: Mutex::new(due),
            work: Condvar::new(),
            recalled: AtomicU64::new(0),
        }
    }

    /// Freezes the state while the guard lives. Guards may be nested.
    pub(crate) fn still(&self) -> Still<'_> {
        Still { _state: self.state.read_recursive() }
    }

    /// Whether a directory is delegated to this mount.
    pub(crate) fn has(&self, dir: Ino) -> bool {
        let state = self.state.read_recursive();
        state.dirs.contains_key(&dir) && state.is_believed()
    }

    /// Whether a file is covered.
    pub(crate) fn covers(&self, ino: Ino) -> bool {
        let Some((dir, number)) = self.files.get(&ino.0) else { return false };
        let state = self.state.read_recursive();
        state.dirs.get(&dir) == Some(&number) && state.is_believed()
    }

    /// Whether a promise of a file may belong to one of these directories.
    pub(super) fn may_be_of(&self, ino: Ino, dirs: &[Ino]) -> bool {
        self.files.get(&ino.0).is_none_or(|(dir, _)| dirs.contains(&dir))
    }

    /// The tenure for further delegations, if it is known now.
    pub(crate) fn tenure(&self) -> Option<u32> {
        let state = self.state.read_recursive();
        state.tenure.filter(|_| state.is_believed() && state.dirs.len() < DIRS_MAX)
    }

    /// Adds a directory that a meta made and delegated, as requested at this time in this tenure.
    pub(crate) fn add(&self, dir: Ino, (asked, tenure): (Tick, u32)) -> bool {
        let mut state = self.state.write();
        let is_late = RealClock::tick().since(asked) >= BELIEVED;
        if is_late || state.tenure != Some(tenure) || state.returned.contains(&dir) {
            return false;
        }
        state.dirs.insert(dir, self.number());
        true
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that this mount made a file in a directory.
    pub(crate) fn made(&self, ino: Ino, dir: Ino) {
        let number = self.state.read_recursive().dirs.get(&dir).copied();
        if let Some(number) = number {
            self.files.insert(ino.0, (dir, number));
        }
    }

    /// Notes that a directory was removed.
    pub(crate) fn gone(&self, dir: Ino) {
        self.state.write().dirs.remove(&dir);
    }

    /// Processes an answer of a meta that was asked at this time. Recalled directories are no
    /// longer this mount's and must be returned.
    ///
    /// Metas give a directory to others [`FENCE_MS`](millpond_types::meta::FENCE_MS) after they
    /// have recalled it. An answer without that directory was requested before the recall, so the
    /// belief ends [`BELIEVED`] after the recall at the latest. A mount that was away for longer,
    /// and learns of it late, has that much less time to return it.
    pub(crate) fn hear(&self, asked: Tick, tenure: u32, recalled: &[Ino]) {
        let mut state = self.state.write();
        if state.tenure != Some(tenure) {
            if state.tenure.is_some() && !state.dirs.is_empty() {
                tracing::warn!(
                    "metas gave {} directories of this mount to other clients: the mount did not \
                     answer in time",
                    state.dirs.len()
                );
            }
            state.tenure = Some(tenure);
            state.dirs.clear();
            state.recalled.clear();
        }
        // A directory that is not named is no longer recalled, unless the list is full or the
        // question was asked before its recall.
        let names_all = recalled.len() < RETURNS_MAX;
        if names_all {
            state.recalled.retain(|dir, (heard, _)| asked <= *heard || recalled.contains(dir));
        }
        let overdue = asked.min(state.until).plus(RETURN);
        for dir in recalled {
            state.dirs.remove(dir);
            if state.recalled.contains_key(dir) {
                continue;
            }
            state.recalled.insert(*dir, (asked, overdue));
            if state.returned.len() >= RETURNED_MAX {
                state.returned.pop_front();
            }
            state.returned.push_back(*dir);
            self.recalled.fetch_add(1, Ordering::Relaxed);
        }
        if names_all {
            state.until = state.until.max(asked.plus(BELIEVED));
        }
    }

    /// Takes the directories to return in addition to the recalled ones; they are no longer this
    /// mount's.
    pub(super) fn take_ahead(&self, recalled: &[Ino]) -> Vec<Ino> {
        self.state.write().take_ahead(recalled)
    }

    /// Notes the return of directories. If it was late, metas may have given everything to others
    /// before, and are asked at once.
    pub(super) fn returned(&self, dirs: &[Ino]) {
        let (now, mut state) = (RealClock::tick(), self.state.write());
        let mut is_late = false;
        for dir in dirs {
            is_late |= state.recalled.remove(dir).is_some_and(|(_, overdue)| overdue <= now);
        }
        if is_late {
            state.until = Tick(0);
            drop(state);
            self.due.lock().now = true;
        }
    }

    /// Drops all delegations, because the session has ended.
    pub(crate) fn lose(&self) {
        let mut state = self.state.write();
        *state = State { returned: std::mem::take(&mut state.returned), ..State::default() };
    }

    /// Notes that an inode was changed elsewhere: a delegated directory is then being recalled.
    pub(crate) fn hint(&self, ino: Ino) {
        if self.state.read_recursive().dirs.contains_key(&ino) {
            self.due.lock().now = true;
            self.work.notify_all();
        }
    }

    /// Notes that an operation is about to be sent to a meta, or was answered: files that get
    /// another name are no longer covered.
    pub(super) fn passes(&self, op: &MetaOp, names: &Names) {
        match op {
            MetaOp::Link { ino, .. } => drop(self.files.remove(&ino.0)),
            MetaOp::Rename(rename) if rename.parent != rename.new_parent => {
                self.leave(rename.parent, names.get(rename.parent, &rename.name));
                if rename.exchange {
                    self.leave(rename.new_parent, names.get(rename.new_parent, &rename.new_name));
                }
            }
            MetaOp::Trash(_) | MetaOp::Repair(_) => self.files.clear(),
            _ => {}
        }
    }

    /// Uncovers the file of a name that leaves a directory, or all files in the directory if the
    /// file is unknown.
    fn leave(&self, dir: Ino, known: Option<Known>) {
        if let Some(Known::Is(ino)) = known {
            let _ = self.files.remove(&ino.0);
        } else if let Some(number) = self.state.write().dirs.get_mut(&dir) {
            *number = self.number();
        }
    }

    /// Starts asking metas, because there may be delegations from now on.
    pub(crate) fn ask_soon(&self) {
        self.due.lock().any = true;
        self.work.notify_all();
    }

    /// Waits until metas are to be asked; false when the mount ends.
    pub(crate) fn wait(&self) -> bool {
        let mut due = self.due.lock();
        let until = RealClock::tick().plus(ASK);
        while !due.ended && !std::mem::take(&mut due.now) {
            let left = until.since(RealClock::tick());
            if due.any && left.is_zero() {
                break;
            }
            if due.any {
                self.work.wait_for(&mut due, left);
            } else {
                self.work.wait(&mut due);
            }
        }
        !due.ended
    }

    pub(super) fn end(&self) {
        self.due.lock().ended = true;
        self.work.notify_all();
    }

    /// The number of delegated directories, and of recalls so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let dirs = self.state.read_recursive().dirs.len() as u64;
        (dirs, self.recalled.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{Name, Rename};

    use super::*;

    const DIR: Ino = Ino(5);
    const FILE: Ino = Ino(9);

    fn given() -> Delegations {
        let all = Delegations::new(false);
        let now = RealClock::tick();
        assert_eq!(all.tenure(), None, "no meta was asked");
        all.hear(now, 3, &[]);
        assert!(all.add(DIR, (now, 3)));
        all.made(FILE, DIR);
        all
    }

    #[test]
    fn what_is_recalled_or_fenced_is_not_believed() {
        let all = given();
        assert!(all.has(DIR) && all.covers(FILE) && !all.has(Ino(6)));
        let now = RealClock::tick();
        all.hear(now, 3, &[DIR]);
        assert!(!all.has(DIR) && !all.covers(FILE));
        assert!(!all.add(DIR, (now, 3)), "the answer to its making comes late");
        let fenced = given();
        fenced.hear(now, 4, &[]);
        assert!(!fenced.has(DIR) && !fenced.covers(FILE));
        assert!(!fenced.add(Ino(7), (now, 3)), "it was asked for in the tenure before");
        let lost = given();
        lost.lose();
        assert!(!lost.has(DIR) && lost.tenure().is_none());
    }

    #[test]
    fn who_walks_is_given_more_than_was_asked_for() {
        let all = given();
        let now = RealClock::tick();
        (10..500).for_each(|n| assert!(all.add(Ino(n), (now, 3))));
        assert!(all.take_ahead(&[Ino(100)]).is_empty(), "of one that is looked at");
        assert_eq!(all.take_ahead(&[Ino(201)]), [201, 202, 203, 204].map(Ino));
        assert!(!all.has(Ino(204)) && all.has(Ino(205)));
        assert_eq!(all.take_ahead(&[Ino(300)]).len(), 8);
        // The next ones, then those before.
        let fourth = all.take_ahead(&[Ino(490)]);
        assert_eq!((fourth.len(), fourth[9], fourth[10]), (16, Ino(499), DIR));
        let rest: usize = (0..10).map(|_| all.take_ahead(&[DIR]).len()).sum();
        assert_eq!((rest, all.counts().0), (491 - 4 - 8 - 16, 0));
        assert_eq!(all.state.read().ahead.1, AHEAD_MAX);
    }

    fn before(now: Tick, ms: u64) -> Tick {
        Tick(now.0 - 1000 * ms)
    }

    #[test]
    fn belief_ends_by_itself() {
        let all = Delegations::new(false);
        let now = RealClock::tick();
        let long_ago = before(now, DELEGATION_MS.into());
        all.hear(long_ago, 3, &[]);
        assert!(!all.add(DIR, (long_ago, 3)));
        assert!(all.add(DIR, (now, 3)));
        assert!(!all.has(DIR), "a meta was asked too long ago");
        all.hear(now, 3, &[]);
        assert!(all.has(DIR));
    }

    #[test]
    fn nothing_is_believed_while_something_is_returned_late() {
        const OTHER: Ino = Ino(6);
        let (all, now) = (given(), RealClock::tick());
        all.hear(now, 3, &[OTHER]);
        assert!(all.has(DIR), "there is time to return the other one");
        all.returned(&[OTHER]);
        let late = before(now, RETURN_MS.into());
        all.state.write().recalled.insert(OTHER, (late, now));
        assert!(!all.has(DIR));
        // Only its return ends the overdue state, or a meta that was asked later.
        all.hear(now, 3, &[OTHER]);
        all.hear(late, 3, &[]);
        assert!(!all.has(DIR));
        all.hear(now, 3, &[]);
        assert!(all.has(DIR), "it was given to others");
        all.state.write().recalled.insert(OTHER, (late, now));
        all.returned(&[OTHER]);
        assert!(!all.has(DIR), "it was returned late");
        all.hear(now, 3, &[]);
        assert!(all.has(DIR));
    }

    /// Other clients wait from the recall on: a mount that learns of it late has that much less
    /// time.
    #[test]
    fn who_hears_late_believes_nothing() {
        let (all, now) = (given(), RealClock::tick());
        all.state.write().until = before(now, 2 * u64::from(DELEGATION_MS));
        all.hear(now, 3, &[Ino(6)]);
        assert!(!all.has(DIR) && all.tenure().is_none());
        all.returned(&[Ino(6)]);
        assert!(!all.has(DIR), "it may have been too late");
        all.hear(now, 3, &[]);
        assert!(all.has(DIR));
    }

    #[test]
    fn an_answer_that_may_name_more_proves_nothing() {
        let (all, now) = (given(), RealClock::tick());
        let many: Vec<Ino> = (1000..).take(RETURNS_MAX).map(Ino).collect();
        all.state.write().until = now;
        all.hear(now, 3, &many);
        all.returned(&many);
        assert!(!all.has(DIR), "it may be recalled too");
        all.hear(now, 3, &[]);
        assert!(all.has(DIR));
    }

    #[test]
    fn files_with_other_names_are_not_covered() {
        let (all, names) = (given(), Names::default());
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let rename = |new_parent| {
            let (parent, name, new_name) = (DIR, name("a"), name("b"));
            let (no_replace, exchange) = (false, false);
            MetaOp::Rename(Rename {
                parent,
                name,
                new_parent,
                new_name,
                no_replace,
                exchange,
                whiteout: false,
            })
        };
        all.passes(&rename(DIR), &names);
        assert!(all.covers(FILE));
        all.passes(&rename(Ino(6)), &names);
        assert!(!all.covers(FILE), "it may have been that one");
        all.made(FILE, DIR);
        assert!(all.covers(FILE));
        names.set(DIR, &name("a"), Known::Is(Ino(10)));
        all.passes(&rename(Ino(6)), &names);
        assert!(all.covers(FILE), "it was another one");
        all.passes(&MetaOp::Link { ino: FILE, parent: Ino(6), name: name("c") }, &names);
        assert!(!all.covers(FILE));
    }
}
