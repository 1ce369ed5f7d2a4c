//! The thread that hears of changes made elsewhere, and has the kernel drop what it keeps of them.

use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, ThreadHandle, thread};
use millpond_fuse_wire::{Device, Pages};
use millpond_types::meta::{Changed, MetaNews, MetaWatch};
use parking_lot::{Condvar, Mutex};

use crate::fs::Fs;

/// How long a question waits for changes; its answer says that the meta is not cut off.
const WAIT_MS: u32 = 1000;
/// Without an answer for so long, nothing is believed any more.
const DEAF_AFTER: Duration = Duration::from_secs(2);
/// Between two questions when the first one failed.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Shared {
    active: Mutex<bool>,
    ended: Condvar,
}

/// The thread of a mount. Once this is dropped it does not touch the kernel any more, and soon ends.
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
        let shared = Arc::new(Shared { active: Mutex::new(true), ended: Condvar::new() });
        let (fs, of_thread) = (Arc::clone(fs), Arc::clone(&shared));
        let thread = thread("mp-listener", move || run(&fs, &device, &of_thread))?;
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

fn run(fs: &Fs, device: &Device, shared: &Shared) {
    let mut heard = RealClock::tick();
    loop {
        let (session, after) = (fs.backend.session(), fs.leases.position());
        let news = fs.backend.client.meta_news(&MetaWatch { session, after, wait_ms: WAIT_MS });
        // Held while the kernel is told: who takes the mount over begins after that.
        let mut active = shared.active.lock();
        if !*active {
            return;
        }
        match news {
            Ok(news) => {
                heard = RealClock::tick();
                take(fs, device, &news);
            }
            Err(error) => {
                let deaf = RealClock::tick().since(heard) > DEAF_AFTER;
                if deaf && fs.leases.deafen() {
                    tracing::warn!("no meta tells of changes, nothing is cached: {error}");
                    drop_all(fs, device);
                }
                shared.ended.wait_for(&mut active, PAUSE);
            }
        }
    }
}

fn take(fs: &Fs, device: &Device, news: &MetaNews) {
    fs.leases.hear(news);
    if news.gap {
        drop_all(fs, device);
    }
    // The errors are those of a mount that has just gone.
    for (_, change) in &news.changes {
        if let Changed::Inode(ino) = change {
            fs.ahead.changed(*ino);
            fs.backend.behind.delegations.iter().for_each(|all| all.hint(*ino));
        }
        let _ = match change {
            Changed::Inode(ino) => device.inval_inode(ino.0, Pages::All),
            Changed::Name(dir, name) => device.expire_entry(dir.0, name.as_bytes()),
        };
    }
    fs.files().heard(news.version);
}

/// Has the kernel drop everything that it may have been told.
fn drop_all(fs: &Fs, device: &Device) {
    fs.ahead.all_changed();
    // Kernels before 6.16 keep names for as long as they were told to.
    let _ = device.inc_epoch();
    for ino in fs.leases.forget_told() {
        let _ = device.inval_inode(ino, Pages::All);
    }
}
