//! `millpond warmup`: reads files, so that the memory of this host and of the nodes has them; or has the mount fetch them
//! into its cache.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use millpond_env::{RealClock, files, thread};
use millpond_types::ByteSize;
use parking_lot::{Condvar, Mutex};
use serde_json::json;

use super::interrupt::Interrupt;
use super::output;
use crate::exit::{FAILED, OK, Outcome};

pub(super) const EXAMPLES: &str =
    "The mode of the mount decides which data stays cached. With mode=strict this host caches
nothing, so only the nodes are warm.

Examples:
  millpond warmup /mnt/pond/models/llama --threads 32
  millpond warmup --cache /models/llama";

/// Bytes of a file that one thread reads: large files are read by many.
const PIECE_BYTES: u64 = 64 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Pieces that wait for a thread, for each.
const QUEUE: usize = 4;
/// How often the main thread looks whether there is room, and whether Ctrl-C came.
const LOOK: Duration = Duration::from_millis(20);
/// How often the mount is asked how far it is with a file.
const ASK: Duration = Duration::from_millis(50);
/// Reading it of a file has the mount fetch that (`fs::cached` of the mount).
const CACHED: &str = "user.millpond.cache";
/// Errors that are shown; of more there is the number.
const ERRORS_SHOWN: usize = 100;

/// What is read.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files and folders to read; links in folders are not followed.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Number of threads that read.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Let the mount fetch the files into its cache (`mount -o cache=FOLDER`), and wait until they
    /// are cached.
    #[arg(long)]
    cache: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A part of a file.
struct Piece {
    path: Arc<PathBuf>,
    offset: u64,
    len: u64,
}

/// What all threads count together.
struct Tally {
    bytes: AtomicU64,
    /// Pieces that are not read yet.
    open: AtomicU64,
    stop: AtomicBool,
    /// Set aside by threads that wait for the mount.
    pause: (Mutex<()>, Condvar),
    cache: bool,
    errors: Mutex<BTreeMap<PathBuf, String>>,
    progress: ProgressBar,
}

impl Tally {
    fn failed(&self, path: &Path, error: &io::Error) {
        self.errors.lock().entry(path.to_owned()).or_insert_with(|| error.to_string());
    }

    fn read(&self, piece: &Piece) -> io::Result<()> {
        let file = OpenOptions::new().read(true).open(&*piece.path)?;
        let mut room = vec![0; READ_BYTES];
        let (mut at, end) = (piece.offset, piece.offset + piece.len);
        while at < end && !self.stop.load(Ordering::Relaxed) {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(READ_BYTES);
            match file.read_at(&mut room[..wanted], at) {
                // It was cut meanwhile.
                Ok(0) => break,
                Ok(n) => {
                    at += n as u64;
                    self.bytes.fetch_add(n as u64, Ordering::Relaxed);
                    self.progress.inc(n as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the mount's cache has a file.
    fn fetch(&self, piece: &Piece) -> io::Result<()> {
        let mut counted = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let answer =
                files::xattr(&piece.path, CACHED).map_err(|error| match error.raw_os_error() {
                    Some(libc::ENODATA | libc::EOPNOTSUPP) => io::Error::other(
                        "not on a mount with a cache: mount with \
                     -o mode=read-only,cache=FOLDER,cache_size=SIZE",
                    ),
                    _ => error,
                })?;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            let (state, rest) = answer.split_once(' ').unwrap_or((&answer, ""));
            let there = match state {
                "cached" => piece.len,
                "coming" => rest.parse().unwrap_or(0),
                "failed" => return Err(io::Error::other(rest.to_owned())),
                _ => 0,
            };
            let new = there.min(piece.len).saturating_sub(counted);
            counted += new;
            self.bytes.fetch_add(new, Ordering::Relaxed);
            self.progress.inc(new);
            if state == "cached" {
                break;
            }
            self.pause.1.wait_for(&mut self.pause.0.lock(), ASK);
        }
        Ok(())
    }

    fn work(&self, pieces: &Mutex<Receiver<Piece>>) {
        loop {
            let piece = pieces.lock().recv();
            let Ok(piece) = piece else { return };
            if !self.stop.load(Ordering::Relaxed) {
                let done = if self.cache { self.fetch(&piece) } else { self.read(&piece) };
                if let Err(error) = done {
                    self.failed(&piece.path, &error);
                }
            }
            self.open.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Finds files and hands them out.
struct Walk {
    tally: Arc<Tally>,
    orders: SyncSender<Piece>,
    interrupt: Interrupt,
    files: u64,
}

impl Walk {
    /// Hands out a piece once there is room; false when it is time to stop.
    fn order(&mut self, mut piece: Piece) -> bool {
        self.tally.open.fetch_add(1, Ordering::Relaxed);
        loop {
            match self.orders.try_send(piece) {
                Ok(()) => return true,
                Err(TrySendError::Full(back)) => piece = back,
                Err(TrySendError::Disconnected(_)) => return false,
            }
            if self.interrupt.pause(LOOK) {
                return false;
            }
        }
    }

    fn file(&mut self, path: &Path, len: u64) -> bool {
        self.files += 1;
        self.tally.progress.inc_length(len);
        let path = Arc::new(path.to_owned());
        let longest = if self.tally.cache { u64::MAX } else { PIECE_BYTES };
        let mut offset = 0;
        while offset < len {
            let piece = Piece { path: Arc::clone(&path), offset, len: longest.min(len - offset) };
            offset += piece.len;
            if !self.order(piece) {
                return false;
            }
        }
        !self.interrupt.came()
    }

    /// All files below a path, on the same file system; false when it is time to stop.
    fn below(&mut self, top: &Path) -> anyhow::Result<bool> {
        let found = fs::metadata(top).with_context(|| top.display().to_string())?;
        if !found.is_dir() {
            return Ok(self.file(top, found.len()));
        }
        let (device, mut left) = (found.dev(), VecDeque::from([top.to_owned()]));
        while let Some(folder) = left.pop_front() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) => {
                    self.tally.failed(&folder, &error);
                    continue;
                }
            };
            for entry in entries {
                let found = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)));
                match found {
                    Ok((path, found)) if found.is_dir() && found.dev() == device => {
                        left.push_back(path);
                    }
                    Ok((path, found)) if found.is_file() => {
                        if !self.file(&path, found.len()) {
                            return Ok(false);
                        }
                    }
                    Ok(_) => {}
                    // Removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => self.tally.failed(&folder, &error),
                }
            }
        }
        Ok(true)
    }
}

/// `millpond warmup PATH…`.
pub(super) fn run(args: &Args) -> Outcome {
    let started = RealClock::tick();
    let progress = ProgressBar::new(0);
    let template = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {elapsed}";
    progress.set_style(ProgressStyle::with_template(template)?);
    let tally = Arc::new(Tally {
        bytes: AtomicU64::new(0),
        open: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        pause: (Mutex::new(()), Condvar::new()),
        cache: args.cache,
        errors: Mutex::default(),
        progress,
    });
    let threads = usize::from(args.threads);
    let (orders, inbox) = sync_channel(threads * QUEUE);
    let inbox = Arc::new(Mutex::new(inbox));
    for _ in 0..threads {
        let (tally, inbox) = (Arc::clone(&tally), Arc::clone(&inbox));
        // They end with the orders, or with the process when the mount hangs.
        let _ends = thread("mp-warmup", move || tally.work(&inbox))?;
    }
    let interrupt = Interrupt::install()?;
    let mut walk = Walk { tally: Arc::clone(&tally), orders, interrupt, files: 0 };
    let mut goes_on = true;
    for path in &args.paths {
        goes_on = goes_on && walk.below(path)?;
    }
    while goes_on && tally.open.load(Ordering::Acquire) > 0 {
        goes_on = !walk.interrupt.pause(LOOK);
    }
    tally.stop.store(true, Ordering::Relaxed);
    tally.progress.finish_and_clear();
    let seconds = RealClock::tick().since(started).as_secs_f64();
    tell(args, &tally, (walk.files, seconds, goes_on))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is shown to two digits only"
)]
fn tell(args: &Args, tally: &Tally, (files, seconds, is_done): (u64, f64, bool)) -> Outcome {
    let bytes = tally.bytes.load(Ordering::Relaxed);
    let rate = (bytes as f64 / seconds.max(1e-6)) as u64;
    let errors = tally.errors.lock();
    for (path, error) in errors.iter().take(ERRORS_SHOWN) {
        eprintln!("millpond: {}: {error}", path.display());
    }
    if errors.len() > ERRORS_SHOWN {
        eprintln!("millpond: and {} more could not be read", errors.len() - ERRORS_SHOWN);
    }
    if !is_done {
        eprintln!("millpond: interrupted");
    }
    let text = if args.json {
        let document = json!({
            "files": files, "bytes": bytes, "seconds": seconds, "bytes_per_second": rate,
            "failed": errors.len(), "finished": is_done,
        });
        format!("{}\n", serde_json::to_string_pretty(&document)?)
    } else {
        format!("{files} files, {} in {seconds:.1} s, {}/s\n", ByteSize(bytes), ByteSize(rate))
    };
    output::bytes(text.as_bytes())?;
    Ok(if is_done && errors.is_empty() { OK } else { FAILED })
}
