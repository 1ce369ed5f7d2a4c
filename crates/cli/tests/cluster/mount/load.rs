//! Applications on a mount: they create, write, read, rename and unlink, and every answer must be right.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond_env::Rng;

/// Longest file: several requests of the kernel, and not all of them whole pages.
const BYTES_MAX: u64 = 40_000;

/// What went on so far.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) done: AtomicU64,
    pub(super) ended: AtomicBool,
    errors: Mutex<Vec<String>>,
    longest: Mutex<(Duration, &'static str)>,
}

impl Tally {
    pub(super) fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    pub(super) fn longest(&self) -> (Duration, &'static str) {
        *self.longest.lock().unwrap()
    }

    fn timed<T>(
        &self,
        what: &'static str,
        path: &Path,
        work: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        let started = Instant::now();
        let done = work();
        let took = started.elapsed();
        let mut longest = self.longest.lock().unwrap();
        *longest = (*longest).max((took, what));
        drop(longest);
        self.done.fetch_add(1, Ordering::Relaxed);
        done.map_err(|error| self.wrong(format!("{what} {}: {error}", path.display()))).ok()
    }

    fn wrong(&self, text: String) {
        self.errors.lock().unwrap().push(text);
    }
}

/// One application, in a folder of its own.
pub(super) fn work(folder: &Path, seed: u64, tally: &Tally) {
    let mut rng = Rng::new(seed);
    tally.timed("mkdir", folder, || fs::create_dir(folder));
    let mut round = 0;
    while !tally.ended.load(Ordering::Relaxed) {
        round += 1;
        let mut bytes = vec![0; usize::try_from(1 + rng.next_u64() % BYTES_MAX).unwrap()];
        rng.fill(&mut bytes);
        one_file(&folder.join(format!("file{round}")), &bytes, tally);
    }
    let left = tally.timed("readdir", folder, || Ok(fs::read_dir(folder)?.count()));
    if left.is_some_and(|left| left > 0) {
        tally.wrong(format!("{} is not empty", folder.display()));
    }
    tally.timed("rmdir", folder, || fs::remove_dir(folder));
}

/// The life of a file.
fn one_file(path: &Path, bytes: &[u8], tally: &Tally) -> Option<()> {
    let renamed: PathBuf = path.with_extension("renamed");
    let mut file = tally.timed("create", path, || File::create_new(path))?;
    let (left, right) = bytes.split_at(bytes.len() / 3);
    tally.timed("write", path, || file.write_all(left))?;
    tally.timed("write", path, || file.write_all(right))?;
    tally.timed("close", path, || {
        drop(file);
        Ok(())
    })?;
    let mut reader = tally.timed("open", path, || File::open(path))?;
    let mut got = Vec::new();
    tally.timed("read", path, || reader.read_to_end(&mut got))?;
    if got != bytes {
        tally.wrong(format!("{}: {} bytes were written, others read", path.display(), bytes.len()));
    }
    tally.timed("rename", path, || fs::rename(path, &renamed))?;
    if tally.timed("stat", path, || path.try_exists())? {
        tally.wrong(format!("{} is still there", path.display()));
    }
    tally.timed("unlink", &renamed, || fs::remove_file(&renamed))?;
    if tally.timed("stat", &renamed, || renamed.try_exists())? {
        tally.wrong(format!("{} was unlinked and is there", renamed.display()));
    }
    Some(())
}
