//! Whole files on a local disk, which the kernel reads without asking the mount (docs/rfcs/0018-passthrough.md).
//!
//! `options` (what `-o` says), `key` (one name for one content), `sums` (checksums beside a file), `folder` (what
//! lies on the disk), `table` (which files there are, and which go first), `fill` (how they come there), `numbers`.
//! What an open comes to is in `fs::cached`.
//!
//! Invariants:
//! - A file that has its name is whole, and its name says of which content it is: nothing old is taken for new.
//! - Bytes are compared with their checksums before this process uses them, and again when the file was changed since.
//! - All opens of an inode at a time agree about whether the kernel reads it by itself, also when another process
//!   answers some of them: `files` has that in its journal. The kernel fails an open that does not agree with EIO.
//! - What is wrong with the cache costs speed, and never an error: the cluster has the bytes.

mod fill;
mod folder;
mod key;
mod numbers;
mod options;
mod sums;
mod table;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_env::files::PlacedFile;
use millpond_fuse_wire::Device;
use millpond_fuse_wire::abi::InitFlags;
use millpond_types::meta::{Attr, Ino};
use parking_lot::Mutex;
use quick_cache::unsync;

use self::fill::Jobs;
use self::folder::Folder;
use self::table::{Stamp, Table};
use crate::options::OptionError;
use crate::recent;

pub(crate) use self::fill::{Asked, FILLERS, start};
pub(crate) use self::key::Key;
pub(crate) use self::numbers::{CacheNumbers, CachePicture};
pub use self::options::CacheOptions;

/// Files up to this are compared with their checksums while the first open waits: some 20 ms. Larger ones are
/// compared in the background, and read from the cluster meanwhile.
const CHECK_AT_ONCE: u64 = 64 << 20;
/// Contents that were opened once and are remembered.
const SEEN_MAX: usize = 1 << 16;

/// A file that is open, and for which the cache is used.
#[derive(Debug)]
struct Opened {
    key: Key,
    /// What this process reads it from; none where the kernel does.
    file: Option<Arc<PlacedFile>>,
}

/// The cache of a mount that has one.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: Folder,
    /// The volume that is mounted; known once a meta was asked.
    volume: OnceLock<u64>,
    table: Mutex<Table>,
    opened: Mutex<HashMap<Ino, Opened>>,
    seen: Mutex<unsync::Cache<Key, ()>>,
    jobs: Jobs,
    /// The kernel reads files by itself.
    passes: AtomicBool,
    ended: AtomicBool,
    numbers: CacheNumbers,
}

/// What is there for an open.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) key: Key,
    pub(crate) file: PlacedFile,
}

impl Cache {
    /// Takes the folder of a mount at `target`; none where the options name none.
    ///
    /// # Errors
    /// [`OptionError`] that names what is wrong with it.
    pub(crate) fn open(
        options: &CacheOptions,
        target: &Path,
    ) -> Result<Option<Arc<Self>>, OptionError> {
        let Some(path) = &options.folder else { return Ok(None) };
        let folder = Folder::take(path, target)?;
        let mut table = Table::new(options.size);
        let found = folder.scan().map_err(|error| OptionError {
            option: format!("cache={}", path.display()),
            fix: format!("{error}: name another folder, or empty it"),
        })?;
        for (_, key) in found {
            table.add(key, None);
        }
        let this = Self {
            folder,
            volume: OnceLock::new(),
            table: Mutex::new(table),
            opened: Mutex::default(),
            seen: Mutex::new(recent::owned(SEEN_MAX)),
            jobs: Jobs::default(),
            passes: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            numbers: CacheNumbers::default(),
        };
        // It may be larger than this mount's options allow.
        this.evict_for(0);
        Ok(Some(Arc::new(this)))
    }

    /// The volume is the one whose root this is.
    pub(crate) fn enter(&self, root: &Attr) {
        let _ = self.volume.set(Key::volume(root));
    }

    /// Finds out whether the kernel may read files of the folder by itself.
    fn try_passthrough(&self, device: &Device, granted: InitFlags) {
        if !granted.contains(InitFlags::PASSTHROUGH) {
            tracing::info!(
                "files of the cache are read by the daemon: -o nopassthrough, or a kernel before 6.9"
            );
            return;
        }
        let tried = self.folder.some_file().and_then(|file| {
            let id = device.backing_open(std::os::fd::AsFd::as_fd(&file))?;
            device.backing_close(id)
        });
        match tried {
            Ok(()) => {
                self.passes.store(true, Ordering::Release);
                tracing::info!("files of the cache are read by the kernel itself");
            }
            Err(error) => {
                let why = match error.raw_os_error() {
                    Some(libc::EPERM) => "that needs root (CAP_SYS_ADMIN)".to_owned(),
                    Some(libc::ELOOP) => {
                        "its file system lies on another one, as overlayfs".to_owned()
                    }
                    _ => error.to_string(),
                };
                tracing::warn!(
                    "files of the cache are read by the daemon, not by the kernel: {why}"
                );
            }
        }
    }

    pub(crate) fn passes(&self) -> bool {
        self.passes.load(Ordering::Acquire)
    }

    pub(crate) const fn numbers(&self) -> &CacheNumbers {
        &self.numbers
    }

    /// What the content of a file is named; none of what is not cached.
    pub(crate) fn key(&self, attr: &Attr) -> Option<Key> {
        Key::of(*self.volume.get()?, attr)
    }

    /// The file for an open of this content, checked. Where there is none, the second open has it fetched.
    pub(crate) fn find(&self, key: Key, attr: &Attr) -> Option<Hit> {
        let hit = self.find_checked(key);
        if hit.is_some() {
            self.table.lock().note_used(key);
            self.folder.touch(key);
            self.numbers.hits.inc();
        } else {
            self.numbers.misses.inc();
            self.note_missed(key, attr);
        }
        hit
    }

    fn find_checked(&self, key: Key) -> Option<Hit> {
        let checked = {
            let table = self.table.lock();
            if !table.has(key) {
                return None;
            }
            table.checked(key)
        };
        let opened = self.folder.open(key).and_then(|file| Ok((stamp(&file)?, file)));
        let (now, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.drop_damaged(key, &error.to_string());
                return None;
            }
        };
        if checked == Some(now) {
            return Some(Hit { key, file });
        }
        if key.len > CHECK_AT_ONCE {
            self.jobs.order_check(key);
            return None;
        }
        self.check(key, &file).then_some(Hit { key, file })
    }

    /// Compares a file with its checksums; throws it away when it is not what was written.
    fn check(&self, key: Key, file: &PlacedFile) -> bool {
        let checked = stamp(file).and_then(|before| {
            let fits = self.folder.check(key, file, || !self.is_ended())?;
            Ok((fits, before))
        });
        match checked {
            Ok((true, stamp)) => {
                self.table.lock().set_checked(key, stamp);
                return true;
            }
            Ok((false, _)) => self.drop_damaged(key, "its bytes are not those that were written"),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.drop_damaged(key, &error.to_string()),
        }
        false
    }

    /// A file cannot be used: it goes, and the next open has it fetched anew.
    fn drop_damaged(&self, key: Key, why: &str) {
        if !self.table.lock().remove(key) {
            // It made room for another one meanwhile.
            return;
        }
        tracing::warn!("file {key} of the cache is damaged and thrown away: {why}");
        self.numbers.damaged.inc();
        self.seen.lock().insert(key, ());
        self.remove(key);
    }

    fn remove(&self, key: Key) {
        if let Err(error) = self.folder.remove(key) {
            tracing::warn!("file {key} of the cache cannot be removed: {error}");
        }
    }

    /// Somebody opened a file that is not there.
    fn note_missed(&self, key: Key, attr: &Attr) {
        let limit = {
            let table = self.table.lock();
            if table.has(key) {
                // It is being compared with its checksums.
                return;
            }
            table.limit()
        };
        let mut seen = self.seen.lock();
        let again = seen.get(&key).is_some();
        if !again {
            seen.insert(key, ());
        }
        drop(seen);
        if again && key.len <= limit {
            self.jobs.order_fill(key, *attr, false);
        }
    }

    /// An inode is open, and the kernel reads this file for it.
    pub(crate) fn note_passed(&self, ino: Ino, key: Key) {
        self.opened.lock().insert(ino, Opened { key, file: None });
    }

    /// An inode was opened by its first, and this process reads it from this file until the last closes it.
    pub(crate) fn serve(&self, ino: Ino, Hit { key, file }: Hit) {
        let file = Some(Arc::new(file));
        self.opened.lock().entry(ino).or_insert(Opened { key, file });
    }

    /// Nobody has an inode open any more.
    pub(crate) fn closed(&self, ino: Ino) {
        self.opened.lock().remove(&ino);
    }

    /// Bytes of an open file, as many of `buf` as it has; nothing when it is not served from here.
    pub(crate) fn read(&self, ino: Ino, offset: u64, buf: &mut Vec<u8>, len: u32) -> Option<usize> {
        let (key, file) = {
            let opened = self.opened.lock();
            let opened = opened.get(&ino)?;
            (opened.key, Arc::clone(opened.file.as_ref()?))
        };
        let len = key.len.saturating_sub(offset).min(u64::from(len));
        let len = usize::try_from(len).unwrap_or(0);
        if buf.len() < len {
            buf.resize(len, 0);
        }
        match file.read_exact_at(&mut buf[..len], offset) {
            Ok(()) => {
                self.numbers.read_bytes.add(len as u64);
                Some(len)
            }
            Err(error) => {
                self.closed(ino);
                self.drop_damaged(key, &error.to_string());
                None
            }
        }
    }

    fn open_keys(&self) -> HashSet<Key> {
        self.opened.lock().values().map(|opened| opened.key).collect()
    }

    /// Makes room for so many bytes more and keeps it; false when there is none.
    fn evict_for(&self, len: u64) -> bool {
        let open = self.open_keys();
        let Some(out) = self.table.lock().make_room(len, |key| open.contains(key)) else {
            return false;
        };
        for key in out {
            self.numbers.evicted.inc();
            // More files than fit, read in turns, would all be fetched in vain: it has to be opened twice again.
            self.seen.lock().remove(&key);
            self.remove(key);
        }
        true
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The threads end, each when it has what it fetches; another mount or process may take the folder.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.jobs.end();
        self.folder.leave();
    }
}

fn stamp(file: &PlacedFile) -> io::Result<Stamp> {
    let stamp = file.stamp()?;
    Ok((stamp.inode, stamp.changed_ns))
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::key::tests::key;
}
