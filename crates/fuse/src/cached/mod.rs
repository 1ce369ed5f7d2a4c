//! Whole files on a local disk, which the kernel reads without asking the mount
//! (docs/rfcs/0018-passthrough.md).
//!
//! `options` (the `-o` options), `key` (one name for one content), `sums` (checksums beside a
//! file), `folder` (the files on disk), `table` (the index of files and the eviction order), `fill`
//! (fetching), `numbers`. The result of an open is in `fs::cached`.
//!
//! Invariants:
//! - A file under its final name is complete, and the name identifies its content: old content is
//!   never taken for new.
//! - Bytes are compared with their checksums before this process uses them, and again if the file
//!   was changed since.
//! - All concurrent opens of an inode agree about whether the kernel reads it by itself, even when
//!   another process answers some of them: `files` records it in its journal. The kernel fails a
//!   disagreeing open with EIO.
//! - A fault of the cache costs speed, and never causes an error: the cluster has the bytes.

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

/// Files up to this size in bytes are compared with their checksums while the first open waits:
/// some 20 ms. Larger ones are compared in the background, and read from the cluster in the
/// meantime.
const CHECK_AT_ONCE: u64 = 64 << 20;
/// The number of remembered contents that were opened once.
const SEEN_MAX: usize = 1 << 16;

/// An open file that uses the cache.
#[derive(Debug)]
struct Opened {
    key: Key,
    /// The file that this process reads; none where the kernel reads it.
    file: Option<Arc<PlacedFile>>,
}

/// The cache of a mount.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: Folder,
    /// The mounted volume; known once a meta has answered.
    volume: OnceLock<u64>,
    table: Mutex<Table>,
    opened: Mutex<HashMap<Ino, Opened>>,
    seen: Mutex<unsync::Cache<Key, ()>>,
    jobs: Jobs,
    /// Whether the kernel reads files by itself.
    passes: AtomicBool,
    ended: AtomicBool,
    numbers: CacheNumbers,
}

/// A cached file for an open.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) key: Key,
    pub(crate) file: PlacedFile,
}

impl Cache {
    /// Takes the folder of a mount at `target`; `None` where the options name no folder.
    ///
    /// # Errors
    /// [`OptionError`] that names the problem.
    pub(crate) fn open(
        options: &CacheOptions,
        target: &Path,
    ) -> Result<Option<Arc<Self>>, OptionError> {
        let Some(path) = &options.folder else { return Ok(None) };
        let folder = Folder::take(path, target)?;
        let mut table = Table::new(options.size);
        let found = folder.scan().map_err(|error| OptionError {
            option: format!("cache={}", path.display()),
            fix: format!("{error}: give another folder, or empty it"),
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

    /// Sets the volume from its root.
    pub(crate) fn enter(&self, root: &Attr) {
        let _ = self.volume.set(Key::volume(root));
    }

    /// Checks whether the kernel can read files of the folder by itself.
    fn try_passthrough(&self, device: &Device, granted: InitFlags) {
        if !granted.contains(InitFlags::PASSTHROUGH) {
            tracing::info!(
                "the daemon reads the files of the cache: -o nopassthrough is set, or the kernel \
                 is older than 6.9"
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
                tracing::info!("the kernel reads the files of the cache directly");
            }
            Err(error) => {
                let why = match error.raw_os_error() {
                    Some(libc::EPERM) => "passthrough needs root (CAP_SYS_ADMIN)".to_owned(),
                    Some(libc::ELOOP) => {
                        "its file system is stacked on another one, such as overlayfs".to_owned()
                    }
                    _ => error.to_string(),
                };
                tracing::warn!("the daemon reads the files of the cache, not the kernel: {why}");
            }
        }
    }

    pub(crate) fn passes(&self) -> bool {
        self.passes.load(Ordering::Acquire)
    }

    pub(crate) const fn numbers(&self) -> &CacheNumbers {
        &self.numbers
    }

    /// The key of a file's content; `None` if it is not cached.
    pub(crate) fn key(&self, attr: &Attr) -> Option<Key> {
        Key::of(*self.volume.get()?, attr)
    }

    /// The file for an open of this content, checked. Without one, the second open orders its
    /// fetch.
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

    /// Compares a file with its checksums; removes it when they differ.
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
            Ok((false, _)) => self.drop_damaged(key, "its bytes differ from the written bytes"),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.drop_damaged(key, &error.to_string()),
        }
        false
    }

    /// Removes an unusable file; the next open orders its fetch again.
    fn drop_damaged(&self, key: Key, why: &str) {
        if !self.table.lock().remove(key) {
            // It was evicted in the meantime.
            return;
        }
        tracing::warn!("file {key} of the cache is damaged and is removed: {why}");
        self.numbers.damaged.inc();
        self.seen.lock().insert(key, ());
        self.remove(key);
    }

    fn remove(&self, key: Key) {
        if let Err(error) = self.folder.remove(key) {
            tracing::warn!("file {key} of the cache cannot be removed: {error}");
        }
    }

    /// Notes the open of a file that is not cached.
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

    /// Notes an open inode that the kernel reads from this file.
    pub(crate) fn note_passed(&self, ino: Ino, key: Key) {
        self.opened.lock().insert(ino, Opened { key, file: None });
    }

    /// Serves an inode from this file until its last close.
    pub(crate) fn serve(&self, ino: Ino, Hit { key, file }: Hit) {
        let file = Some(Arc::new(file));
        self.opened.lock().entry(ino).or_insert(Opened { key, file });
    }

    /// Notes that an inode is no longer open.
    pub(crate) fn closed(&self, ino: Ino) {
        self.opened.lock().remove(&ino);
    }

    /// Reads bytes of an open file, at most up to its end; `None` when it is not served from here.
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

    /// Evicts files until `len` bytes fit, and reserves the room; false when that is impossible.
    fn evict_for(&self, len: u64) -> bool {
        let open = self.open_keys();
        let Some(out) = self.table.lock().make_room(len, |key| open.contains(key)) else {
            return false;
        };
        for key in out {
            self.numbers.evicted.inc();
            // More files than fit, read in turns, would all be fetched for nothing: an evicted file
            // needs two opens again.
            self.seen.lock().remove(&key);
            self.remove(key);
        }
        true
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the threads, each after its current piece; another mount or process may take the
    /// folder.
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
