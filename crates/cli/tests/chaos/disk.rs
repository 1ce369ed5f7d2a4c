//! Disks that lie, are full, or are slow.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millpond_client::{ErrorKind, Transport};
use millpond_env::Rng;
use millpond_types::BlockKey;
use millpond_types::wire::{ItemStatus, Verb};

use super::load::Door;
use super::value::{self, PAGE};

/// Pages damaged at a time.
const FLIPS: usize = 40;
/// Bytes looked through in one go.
const WINDOW: usize = 4 << 20;

/// Changes a byte in some pages of values, past every cache; the keys concerned. Pages that the
/// server uses for itself are left alone: a damaged log is another fault than a damaged value.
pub(crate) fn flip(path: &Path, rng: &mut Rng) -> io::Result<Vec<u64>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let file = options.open(path)?;
    let mut memory = vec![0; WINDOW + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let window = &mut memory[start..start + WINDOW];
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let len = file.read_at(window, at)?;
        if len == 0 {
            break;
        }
        let pages = window[..len].chunks_exact(PAGE).enumerate();
        found.extend(pages.filter_map(|(index, page)| {
            let (key, _) = value::recognize(page)?;
            Some((at + (index * PAGE) as u64, key))
        }));
        at += len as u64;
    }
    rng.shuffle(&mut found);
    found.truncate(FLIPS);
    let mut keys = Vec::new();
    for (offset, key) in found {
        let page = &mut window[..PAGE];
        file.read_exact_at(page, offset)?;
        // The place may have been given to something else meanwhile.
        if value::recognize(page).is_some_and(|(now, _)| now == key) {
            page[rng.index(PAGE)] ^= 1 << rng.below(8);
            file.write_all_at(page, offset)?;
            keys.push(key);
        }
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

const FILL_BYTES: usize = 1 << 20;
const FILL_BATCH: usize = 8;
const FILL_MAX: Duration = Duration::from_mins(2);

/// Fills the disks with values that may not be evicted, and makes room again.
pub(crate) fn fill(addresses: &str, replicas: u8) -> Result<String, String> {
    let wait = Duration::from_secs(10);
    let door = Door::open(addresses, ("fill", replicas), Transport::Tcp, wait)
        .map_err(|error| format!("opening a namespace: {error}"))?;
    let name = |n: usize| BlockKey::new(format!("fill {n}").as_bytes()).unwrap();
    let values = vec![vec![0x5a; FILL_BYTES]; FILL_BATCH];
    let (mut next, mut in_vain) = (0, 0);
    let started = Instant::now();
    // Chains fill one by one: full is when nothing goes in any more.
    while in_vain < 8 && started.elapsed() < FILL_MAX {
        let names: Vec<BlockKey> = (next..next + FILL_BATCH).map(name).collect();
        next += FILL_BATCH;
        match door.put(&names, &values) {
            Ok(items) if items.contains(&ItemStatus::Ok) => in_vain = 0,
            Ok(_) => in_vain += 1,
            Err(error) if error.kind() == ErrorKind::NoSpace => in_vain += 1,
            Err(error) => return Err(format!("filling: {error}")),
        }
    }
    let took = started.elapsed();
    std::thread::sleep(Duration::from_secs(2));
    let names: Vec<BlockKey> = (0..next).map(name).collect();
    let mut removed = 0;
    for names in names.chunks(256) {
        let items = door.on_keys(Verb::Delete, names);
        let items = items.map_err(|error| format!("making room: {error}"))?;
        removed += items.iter().filter(|item| **item == ItemStatus::Ok).count();
    }
    // There is room once updates are taken again on every chain.
    let until = Instant::now() + FILL_MAX;
    let probes: Vec<BlockKey> = (next..next + 64).map(name).collect();
    loop {
        let done = door.put(&probes, &vec![vec![1; 100]; probes.len()]);
        let taken = |items: &Vec<ItemStatus>| {
            items.iter().all(|item| matches!(item, ItemStatus::Ok | ItemStatus::Exists))
        };
        if done.as_ref().is_ok_and(taken) {
            return Ok(format!("filled the disks with {removed} MiB in {took:.1?}"));
        }
        if Instant::now() > until {
            return Err(format!("no room after {removed} MiB were deleted: {done:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What a slow disk does.
pub(crate) const SLOW: &str = "60 operations/s";
const SLOW_IOPS: u32 = 60;
/// The controller of block I/O, where cgroups are of version 1.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

/// A process whose disk is slow, until this is dropped.
pub(crate) struct Slow {
    group: PathBuf,
    pid: u64,
}

impl Slow {
    /// Why it cannot be had.
    pub(crate) fn missing(folder: &Path) -> Option<String> {
        let group = Self::group();
        let made = Self::make(&group, folder);
        let _ = std::fs::remove_dir(&group);
        made.err().map(|error| format!("needs root and the blkio cgroup: {error}"))
    }

    fn group() -> PathBuf {
        Path::new(BLKIO).join(format!("millpond-chaos-{}", std::process::id()))
    }

    fn make(group: &Path, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(group)?;
        let device = std::fs::metadata(folder)?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        for file in ["read", "write"] {
            let limit = format!("{major}:{minor} {SLOW_IOPS}");
            std::fs::write(group.join(format!("blkio.throttle.{file}_iops_device")), limit)?;
        }
        Ok(())
    }

    pub(crate) fn start(folder: &Path, pid: u64) -> Result<Self, String> {
        let group = Self::group();
        let failed = |error: io::Error| format!("{}: {error}", group.display());
        Self::make(&group, folder).map_err(failed)?;
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).map_err(failed)?;
        Ok(Self { group, pid })
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = std::fs::write(Path::new(BLKIO).join("cgroup.procs"), self.pid.to_string());
        let _ = std::fs::remove_dir(&self.group);
    }
}
