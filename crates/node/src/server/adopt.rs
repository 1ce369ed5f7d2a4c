//! Values of a server of an earlier version, which stood alone: its successor founds a cluster in
//! the same folder and takes them over.
//!
//! The old server stored a value under an unkeyed id, with its key beside it, and its namespaces in
//! a chunk of their own. The cluster takes the identity of the disks and the ids of the namespaces;
//! then, before the server reports READY, each value is put again through its chain, and the old
//! chunk is removed once that is durable. A file records that this has begun, so a start that was
//! interrupted continues. No leader was stored beside a value, so it becomes its own leader, and a
//! host that knows of the file finds it under that
//! ([`HostOptions::own_leaders`](millpond_replica::HostOptions)).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_engine::{ChunkInfo, Cursor, ErrorKind, Superblock};
use millpond_env::files::{FileReader, PlacedFile, exists, rename, sync_folder};
use millpond_env::{JoinHandle, RealClock, sleep, spawn};
use millpond_store::StoreChoice;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::wire::ItemStatus;
use millpond_types::{Ack, BlockKey, ChunkIds, GroupId, NamespaceOptions, Tick, Uuid128};

use super::{StartError, storage};
use crate::config::Config;
use millpond_control::manager::{NamespaceTable, TABLE_CHUNK};
use millpond_replica::Host;
use millpond_replica::local::{NodeDisk, Service};

/// Name of that file, in the first data folder.
const FILE: &str = "millpond.adopt";
const BEGUN: &[u8] = b"begun\n";
const DONE: &[u8] = b"done\n";
/// Maximum values, and bytes of them, that are put at the same time.
const AT_ONCE: usize = 128;
const BYTES_AT_ONCE: u64 = 32 << 20;
/// Pause before a value is tried again, and the time limit of all tries.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval of log lines about the progress.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// State of the values of a server that stood alone.
#[derive(Clone, Debug)]
pub(super) struct Adoption {
    marker: PathBuf,
    /// The disks' cluster, while values wait.
    pub(super) cluster: Option<Uuid128>,
    /// Whether there ever were such values.
    pub(super) was: bool,
}

impl Adoption {
    /// Looks for such values on the disks and records them before anything is founded.
    ///
    /// # Errors
    /// [`StartError`] naming the file.
    pub(super) fn look(
        config: &Config,
        is_named: bool,
        (folders, store): (&[PathBuf], &Path),
    ) -> Result<Option<Self>, StartError> {
        let Some(folder) = folders.first() else { return Ok(None) };
        let marker = folder.join(FILE);
        let failed = |source| StartError::Folder {
            path: marker.display().to_string(),
            fix: "make it readable and its folder writable for this user",
            source,
        };
        let adoption = |cluster, was| Self { marker: marker.clone(), cluster, was };
        let known = exists(&marker).map_err(failed)?;
        if known && read(&marker, DONE.len()).map_err(failed)? == DONE {
            return Ok(Some(adoption(None, true)));
        }
        let cluster = &config.cluster;
        let founds = cluster.may_make_secret() && cluster.domains_to_form() == 1;
        let is_new =
            !is_named && !store.exists() && cluster.store_choice()? == StoreChoice::Embedded;
        if !(known || founds && is_new) {
            return Ok(None);
        }
        let Some(found) = config.server.data.iter().find_map(|text| disk_of(text)) else {
            return Ok(None);
        };
        write(&marker, BEGUN).map_err(failed)?;
        Ok(Some(adoption(Some(found), true)))
    }

    /// Puts every value again.
    ///
    /// # Errors
    /// [`StartError`] naming the obstacle; [`StartError::Stopped`] once `stop` is set.
    pub(super) async fn finish(
        self,
        service: Arc<Service>,
        stop: Arc<AtomicBool>,
    ) -> Result<(), StartError> {
        let Some(host) = service.host().cloned() else { return Ok(()) };
        let table = table_of(&service.disks).await?;
        while table.namespaces.iter().any(|info| service.namespaces.by_id(info.id).is_none()) {
            check(&stop)?;
            sleep(PAUSE).await;
        }
        host.take_over(true);
        let putter =
            Arc::new(Putter { service: Arc::clone(&service), host: Arc::clone(&host), stop });
        let mut work = Work { putter, counts: Counts::default() };
        for disk in 0..service.disks.len() {
            work.take_all(disk).await?;
        }
        host.take_over(false);
        for disk in &service.disks {
            let removed = disk.engine.delete(&[TABLE_CHUNK], Ack::Disk).await;
            removed.map_err(|error| disk.failure(&error))?;
        }
        write(&self.marker, DONE)?;
        let Counts { taken, left, .. } = work.counts;
        tracing::info!(
            "took over {taken} values of a server of an earlier version; {left} were expired, \
             damaged or evicted"
        );
        Ok(())
    }
}

fn check(stop: &AtomicBool) -> Result<(), StartError> {
    if stop.load(Ordering::Acquire) { Err(StartError::Stopped) } else { Ok(()) }
}

/// The newest namespace table on the disks.
///
/// # Errors
/// [`StartError`] if a table exists and cannot be read: without it no value could be found.
pub(super) async fn table_of(disks: &[NodeDisk]) -> Result<NamespaceTable, StartError> {
    let mut table = NamespaceTable::default();
    for disk in disks {
        let data = disk.engine.read(TABLE_CHUNK).await.map_err(|error| disk.failure(&error))?;
        let Some(data) = data else { continue };
        let found = NamespaceTable::decode(&data.bytes).map_err(|error| StartError::Disk {
            path: disk.name.clone(),
            message: format!("namespace table: {error}"),
        })?;
        if found.version > table.version {
            table = found;
        }
    }
    Ok(table)
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    taken: u64,
    left: u64,
    said: Option<Tick>,
}

/// A value to be taken over.
#[derive(Clone, Copy)]
struct Old {
    info: ChunkInfo,
    key: BlockKey,
}

struct Work {
    putter: Arc<Putter>,
    counts: Counts,
}

impl Work {
    async fn take_all(&mut self, disk: usize) -> Result<(), StartError> {
        let engine = self.putter.service.disks[disk].engine.clone();
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let (page, next) = engine.scan(None, at, AT_ONCE);
            cursor = next;
            let mut batch = Vec::new();
            let mut bytes = 0;
            for (info, attrs) in page {
                let Some(key) = old_key(&info, &attrs) else { continue };
                bytes += u64::from(info.len);
                batch.push(Old { info, key });
                if bytes >= BYTES_AT_ONCE {
                    self.take(disk, std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
            }
            self.take(disk, batch).await?;
        }
        Ok(())
    }

    async fn take(&mut self, disk: usize, batch: Vec<Old>) -> Result<(), StartError> {
        if batch.is_empty() {
            return Ok(());
        }
        check(&self.putter.stop)?;
        let mut puts: Vec<JoinHandle<Result<bool, StartError>>> = Vec::with_capacity(batch.len());
        for old in &batch {
            let (putter, old) = (Arc::clone(&self.putter), *old);
            puts.push(spawn(async move { putter.put(disk, &old).await }));
        }
        for put in puts {
            let is_taken = put.await.map_err(|_| StartError::Core)??;
            if is_taken { self.counts.taken += 1 } else { self.counts.left += 1 }
        }
        let disk = &self.putter.service.disks[disk];
        let ids: Vec<_> = batch.iter().map(|old| old.info.id).collect();
        let removed = disk.engine.delete(&ids, Ack::Disk).await;
        removed.map_err(|error| disk.failure(&error))?;
        let now = RealClock::tick();
        if now.since(*self.counts.said.get_or_insert(now)) >= SAY_EVERY {
            self.counts.said = Some(now);
            tracing::info!("taking over values: {} so far", self.counts.taken);
        }
        Ok(())
    }
}

/// Puts values again.
struct Putter {
    service: Arc<Service>,
    host: Arc<Host>,
    stop: Arc<AtomicBool>,
}

impl Putter {
    /// Puts a value again; false if nothing of it is to be kept.
    async fn put(&self, disk: usize, old: &Old) -> Result<bool, StartError> {
        let disk = &self.service.disks[disk];
        let Some(namespace) = self.service.namespaces.by_id(old.info.group) else {
            return Ok(false);
        };
        let Some(options) = options_now(&namespace.info.options, &old.info) else {
            return Ok(false);
        };
        let until = RealClock::tick().plus(PATIENCE);
        loop {
            let status = match disk.engine.read(old.info.id).await {
                Ok(None) => return Ok(false),
                Ok(Some(data)) => {
                    let of = (old.info.group, &options);
                    self.host.put_own(of, &old.key, (data.bytes, data.info.crc)).await
                }
                Err(error) if error.kind() == ErrorKind::Busy => ItemStatus::Busy,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    tracing::warn!(%error, "a damaged value is not taken over");
                    return Ok(false);
                }
                Err(error) => return Err(disk.failure(&error).into()),
            };
            match status {
                ItemStatus::Ok | ItemStatus::Exists => {
                    if old.info.pinned {
                        self.host.pin_own(old.info.group, &old.key).await;
                    }
                    return Ok(true);
                }
                _ if RealClock::tick() < until => sleep(PAUSE).await,
                ItemStatus::NoSpace if options.evict && !old.info.pinned => return Ok(false),
                status => {
                    let message = format!(
                        "a value of a server of an earlier version could not be taken over \
                         ({status:?}): start that version on the folder and remove some values, or \
                         give another folder with --data"
                    );
                    return Err(StartError::Disk { path: disk.name.clone(), message });
                }
            }
            check(&self.stop)?;
        }
    }
}

/// The key of a value from a server that stood alone: nothing else has such an id.
fn old_key(info: &ChunkInfo, attrs: &[u8]) -> Option<BlockKey> {
    let key = BlockKey::new(attrs).ok()?;
    let is_old =
        info.group != GroupId::SYSTEM && info.id == ChunkIds::UNKEYED.block(info.group, &key);
    is_old.then_some(key)
}

/// The options of a value, with the rest of its time to live; none once that is over.
fn options_now(options: &NamespaceOptions, info: &ChunkInfo) -> Option<NamespaceOptions> {
    let ttl_seconds = match info.expires {
        None => 0,
        Some(at) => {
            let now = u32::try_from(RealClock::wall_ms() / 1000).unwrap_or(u32::MAX);
            at.0.checked_sub(now).filter(|left| *left > 0)?
        }
    };
    Some(NamespaceOptions { ttl_seconds, ack: Ack::Disk, evict: info.evictable, ..options.clone() })
}

/// The cluster of the Millpond disk in a data path, if there is one.
fn disk_of(text: &str) -> Option<Uuid128> {
    let head = read(&storage::DataPath::parse(text).file(), 2 * PAGE_BYTES).ok()?;
    head.chunks(PAGE_BYTES).find_map(|page| Superblock::decode(page).ok()).map(|sb| sb.cluster_id)
}

/// The beginning of a file.
fn read(path: &Path, len: usize) -> io::Result<Vec<u8>> {
    let mut file = FileReader::open(path)?;
    // A device has no length.
    let len = match file.len()? {
        0 => len,
        has => len.min(usize::try_from(has).unwrap_or(len)),
    };
    let mut bytes = vec![0; len];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let part = path.with_extension("adopt.part");
    millpond_env::files::remove(&part)?;
    let file = PlacedFile::create_new(&part)?;
    file.write_all_at(text, 0)?;
    file.sync()?;
    rename(&part, path)?;
    sync_folder(path.parent().unwrap_or(path))
}
