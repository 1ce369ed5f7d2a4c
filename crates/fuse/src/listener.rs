//! The thread that receives changes made elsewhere, and makes the kernel drop its cached entries
//! for them.
//!
//! It never enters the kernel itself ([`Notices`](crate::notices::Notices) do): a page that is
//! being read blocks a notice, and a thread that receives nothing for that long would leave
//! outdated entries valid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, ThreadHandle, thread};
use millpond_fuse_wire::{Device, Pages};
use millpond_types::meta::{Changed, MetaNews, MetaWatch};
use parking_lot::{Condvar, Mutex};

use crate::fs::Fs;

/// How long a request waits for changes; its answer proves that the meta is not cut off.
const WAIT_MS: u32 = 1000;
/// Without an answer for this long, all leases end.
const DEAF_AFTER: Duration = Duration::from_secs(2);
/// The pause after a failed request.
const PAUSE: Duration = Duration::from_millis(20);

/// Inodes that one job makes the kernel drop.
const DROPPED_AT_ONCE: usize = 64;

#[derive(Debug)]
struct Shared {
    active: Mutex<bool>,
    ended: Condvar,
    told: Mutex<Told>,
}

/// The version up to which the kernel was notified, by jobs that end in any order.
#[derive(Debug, Default)]
struct Told {
    next: u64,
    /// Version, and number of unfinished jobs, of each received part that is not complete yet.
    parts: BTreeMap<u64, (u64, usize)>,
}

impl Told {
    fn begin(&mut self, version: u64, jobs: usize) -> u64 {
        self.next += 1;
        self.parts.insert(self.next, (version, jobs));
        self.next
    }

    /// Notes a finished job of a part; returns the version up to which all parts are complete, if
    /// it has changed.
    fn done(&mut self, part: u64) -> Option<u64> {
        if let Some((_, left)) = self.parts.get_mut(&part) {
            *left = left.saturating_sub(1);
        }
        let mut newest = None;
        while let Some(first) = self.parts.first_entry()
            && first.get().1 == 0
        {
            newest = Some(first.remove().0);
        }
        newest
    }
}

/// The thread of a mount. After this is dropped it starts nothing more, and ends soon.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    _thread: ThreadHandle<()>,
}

impl Listener {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start(fs: &Arc<Fs>, device: Arc<Device>) -> std::io::Result<Self> {
        let (active, ended, told) = (Mutex::new(true), Condvar::new(), Mutex::default());
        let shared = Arc::new(Shared { active, ended, told });
        let (fs, of_thread) = (Arc::clone(fs), Arc::clone(&shared));
        let thread =
            thread("mp-listener", move || Hearing { fs, device, shared: of_thread }.run())?;
        Ok(Self { shared, _thread: thread })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Not joined: it may wait for news for a second.
        *self.shared.active.lock() = false;
        self.shared.ended.notify_all();
    }
}

/// The state of the thread.
struct Hearing {
    fs: Arc<Fs>,
    device: Arc<Device>,
    shared: Arc<Shared>,
}

impl Hearing {
    fn run(&self) {
        let (fs, shared) = (&self.fs, &self.shared);
        let mut heard = RealClock::tick();
        loop {
            let (session, after) = (fs.backend.session(), fs.leases.position());
            let news = fs.backend.client.meta_news(&MetaWatch { session, after, wait_ms: WAIT_MS });
            // Held while notices are queued, which does not block: a process that takes the mount
            // over begins after that.
            let mut active = shared.active.lock();
            if !*active {
                return;
            }
            match news {
                Ok(news) => {
                    heard = RealClock::tick();
                    self.take(&news);
                }
                Err(error) => {
                    let deaf = RealClock::tick().since(heard) > DEAF_AFTER;
                    if deaf && fs.leases.deafen() {
                        tracing::warn!("no meta sends changes, so nothing is cached: {error}");
                        for notice in self.drop_all() {
                            let (of_job, device) = (Arc::clone(fs), Arc::clone(&self.device));
                            fs.notices.run(move || notice.give(&of_job, &device));
                        }
                    }
                    shared.ended.wait_for(&mut active, PAUSE);
                }
            }
        }
    }

    fn take(&self, news: &MetaNews) {
        let fs = &self.fs;
        fs.leases.hear(news);
        let mut notices = if news.gap { self.drop_all() } else { Vec::new() };
        for (version, change) in &news.changes {
            if let Changed::Inode(ino) = change {
                fs.ahead.changed(*ino);
                fs.backend.behind.delegations.iter().for_each(|all| all.hint(*ino));
            }
            notices.push(Notice::Change(*version, change.clone()));
        }
        let part = self.shared.told.lock().begin(news.version, notices.len());
        if notices.is_empty() {
            note(fs, &self.shared, part);
        }
        for notice in notices {
            let (of_job, device) = (Arc::clone(fs), Arc::clone(&self.device));
            let shared = Arc::clone(&self.shared);
            fs.notices.run(move || {
                notice.give(&of_job, &device);
                note(&of_job, &shared, part);
            });
        }
    }

    /// The notices that make the kernel drop everything it may have cached.
    fn drop_all(&self) -> Vec<Notice> {
        self.fs.ahead.all_changed();
        // Kernels before 6.16 keep names for their full caching time.
        let _ = self.device.inc_epoch();
        let all = self.fs.leases.forget_told();
        all.chunks(DROPPED_AT_ONCE).map(|some| Notice::Inodes(some.to_vec())).collect()
    }
}

/// A cached entry that the kernel is to drop.
enum Notice {
    /// A change in this version of the store.
    Change(u64, Changed),
    Inodes(Vec<u64>),
}

impl Notice {
    fn give(&self, fs: &Fs, device: &Device) {
        // Errors only concern a mount that has just gone, and entries that the kernel does not
        // know.
        match self {
            Self::Change(version, Changed::Inode(ino)) => {
                let _dropping = fs.leases.dropping(*ino);
                if !fs.leases.is_dropped(*ino, *version) {
                    let _ = device.inval_inode(ino.0, Pages::All);
                }
            }
            Self::Change(_, Changed::Name(dir, name)) => {
                let _ = device.expire_entry(dir.0, name.as_bytes());
            }
            Self::Inodes(all) => {
                for ino in all {
                    let _ = device.inval_inode(*ino, Pages::All);
                }
            }
        }
    }
}

/// Notes that a notice of a part was given, or that it has none.
fn note(fs: &Fs, shared: &Shared, part: u64) {
    // Under the lock, so that versions are noted in order.
    let mut told = shared.told.lock();
    if let Some(version) = told.done(part) {
        fs.files().heard(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_was_told_up_to_where_all_before_are_done() {
        let mut told = Told::default();
        let [first, second, third] = [(7, 2), (8, 0), (9, 1)].map(|(v, jobs)| told.begin(v, jobs));
        assert_eq!((told.done(third), told.done(second)), (None, None));
        assert_eq!(told.done(first), None);
        assert_eq!(told.done(first), Some(9));
        let last = told.begin(10, 0);
        assert_eq!(told.done(last), Some(10));
    }
}
