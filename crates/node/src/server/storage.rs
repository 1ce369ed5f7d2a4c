//! Finding, making and opening the disks of a node.

use std::path::PathBuf;
use std::sync::Arc;

use millpond_engine::{EngineError, EngineOptions, FormatOptions, OnDamaged};
use millpond_env::{BufferPool, Disk as _, EnvError, FileDisk, RealClock, Rng};
use millpond_types::{ByteSize, Uuid128};

use super::StartError;
use crate::config::{Config, ConfigError, Size};
use millpond_control::member::Seek;
use millpond_replica::local::NodeDisk;
use millpond_replica::{DamagedChunks, Engine, SoleMark};

/// Name of the data file within a data folder.
pub const DATA_FILE: &str = "millpond.data";
/// Share of the free disk space that a new data file takes by default, in percent.
const FREE_SHARE: u64 = 30;
/// Maximum default size of a new data file: a laptop's disk is not ours.
const SIZE_DEFAULT_MAX: u64 = 64 << 30;
/// Minimum size of a data file: 64 MiB segments of every common size, the log and checkpoints.
const SIZE_MIN: u64 = 1 << 30;

/// Longest path of a Unix socket in bytes (`sun_path` holds 108 with its end).
const SOCKET_PATH_MAX: usize = 107;

/// A value of `--data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPath {
    /// A folder or a block device.
    pub path: PathBuf,
    /// The size after the colon.
    pub size: Option<ByteSize>,
}

impl DataPath {
    /// Parses `PATH` or `PATH:SIZE`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if let Some((path, size)) = text.rsplit_once(':')
            && !path.is_empty()
            && let Ok(size) = size.parse()
        {
            return Self { path: PathBuf::from(path), size: Some(size) };
        }
        Self { path: PathBuf::from(text), size: None }
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        use std::os::unix::fs::FileTypeExt as _;
        std::fs::metadata(&self.path).is_ok_and(|facts| facts.file_type().is_block_device())
    }

    /// The file or device that holds the data.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        if self.is_device() { self.path.clone() } else { self.path.join(DATA_FILE) }
    }
}

/// Makes the data folder and returns the size of its new data file; 0 for an existing one.
///
/// # Errors
/// [`StartError`] naming the folder and the fix.
fn prepare(path: &DataPath, config: &Config, share: u64) -> Result<u64, StartError> {
    if path.is_device() {
        return Ok(0);
    }
    let failed = |source: std::io::Error| StartError::Folder {
        path: path.path.display().to_string(),
        fix: match source.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                "make it writable for this user, or give another folder with --data"
            }
            std::io::ErrorKind::NotADirectory | std::io::ErrorKind::AlreadyExists => {
                "it is a file: give a folder or a block device with --data"
            }
            _ => "give another folder with --data",
        },
        source,
    };
    std::fs::create_dir_all(&path.path).map_err(failed)?;
    if path.file().exists() {
        return Ok(0);
    }
    // Tried before anything else is made, so that the error names the folder.
    let probe = path.path.join(".millpond-probe");
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(failed)?;
    let free = millpond_env::free_bytes(&path.path).map_err(failed)?;
    let wanted = path.size.map(|size| size.0).or(config.server.size.map(Size::bytes));
    let size = match wanted {
        Some(size) if size > free => {
            return Err(StartError::Full { path: path.path.display().to_string(), size, free });
        }
        Some(size) if size < SIZE_MIN => {
            let path = path.path.display().to_string();
            return Err(StartError::Small { path, size, least: SIZE_MIN });
        }
        Some(size) => size,
        None => size_by_default(free, share),
    };
    let size = size / 4096 * 4096;
    if size < SIZE_MIN {
        return Err(StartError::Full {
            path: path.path.display().to_string(),
            size: SIZE_MIN,
            free,
        });
    }
    Ok(size)
}

/// Default size of a new data file; `share` such files are on the file system.
pub(super) fn size_by_default(free: u64, share: u64) -> u64 {
    (free / 100 * FREE_SHARE / share.max(1)).min(SIZE_DEFAULT_MAX) / 4096 * 4096
}

/// A disk that may be opened.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    path: DataPath,
    /// Bytes of a data file to make; 0 to open the existing one.
    make: u64,
}

/// Makes the data folders and plans the files.
///
/// # Errors
/// [`StartError`] naming the folder and the fix.
pub(super) fn prepare_all(config: &Config) -> Result<Vec<Prepared>, StartError> {
    if !config.cluster.storage {
        return Ok(Vec::new());
    }
    let paths: Vec<DataPath> =
        config.server.data.iter().map(|text| DataPath::parse(text)).collect();
    // Folders on one file system share its free space.
    let share = paths.iter().filter(|path| !path.is_device()).count() as u64;
    paths
        .into_iter()
        .map(|path| prepare(&path, config, share).map(|make| Prepared { path, make }))
        .collect()
}

/// Location of the Unix socket; `None` if it is turned off.
#[must_use]
pub(super) fn socket_path(config: &Config) -> Option<PathBuf> {
    match config.server.socket.as_deref() {
        Some("") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let first = DataPath::parse(config.server.data.first()?);
            let folder = if first.is_device() { std::env::temp_dir() } else { first.path };
            // The path goes to clients, which may have another working folder.
            let folder = std::fs::canonicalize(&folder).unwrap_or(folder);
            let path = folder.join("millpond.sock");
            if path.as_os_str().len() <= SOCKET_PATH_MAX {
                return Some(path);
            }
            // Deep folders: the system accepts no longer path, so use one derived from it
            // elsewhere.
            let name = xxhash_rust::xxh3::xxh3_64(path.as_os_str().as_encoded_bytes());
            Some(std::env::temp_dir().join(format!("millpond-{name:016x}.sock")))
        }
    }
}

/// Open disks.
pub(super) struct Opened {
    /// Their engines.
    pub disks: Vec<NodeDisk>,
    /// Location, bytes, and whether they were new.
    pub summary: Vec<(String, u64, bool)>,
    /// Their cluster.
    pub cluster_id: Uuid128,
}

/// Memory that disks share.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// For payloads.
    pub pool: BufferPool,
    /// Bytes of their indexes at most.
    pub index_bytes: u64,
}

impl Memory {
    /// Bytes of the index of a disk, its share by size among `all` disks.
    fn index_of(&self, disk: &FileDisk, all: &[FileDisk]) -> ByteSize {
        let sum: u64 = all.iter().map(FileDisk::capacity).sum();
        let share =
            u128::from(self.index_bytes) * u128::from(disk.capacity()) / u128::from(sum.max(1));
        ByteSize(u64::try_from(share).unwrap_or(self.index_bytes))
    }
}

/// Opens the disks, formatting new ones, which join the cluster that `seek` finds.
///
/// # Errors
/// [`StartError`] naming the disk and the fix.
pub(super) async fn open_all(
    config: &Config,
    files: Vec<Prepared>,
    memory: Memory,
    seek: Seek,
) -> Result<Opened, StartError> {
    let mut cluster = match &config.server.cluster_id {
        Some(text) => Some(parse_uuid(text).ok_or(ConfigError::Invalid {
            key: "server.cluster_id",
            fix: format!(
                "'{text}' is not a UUID: use the UUID that `millpond engine inspect` shows"
            ),
        })?),
        None => None,
    };
    // Old disks first: they name the cluster that the new ones join.
    let mut opened: Vec<Option<NodeDisk>> = files.iter().map(|_| None).collect();
    let open = |file: &Prepared| file.open().map_err(|error| file.refused(error));
    let handles = files.iter().map(open).collect::<Result<Vec<FileDisk>, StartError>>()?;
    let pool = &memory.pool;
    let options = |disk: &FileDisk, cluster_id: Option<Uuid128>| EngineOptions {
        cluster_id,
        owner_bytes_per_chunk: millpond_replica::BYTES_PER_CHUNK,
        index_bytes_max: memory.index_of(disk, &handles),
        ..engine_options(config)
    };
    let mut blank = Vec::new();
    for (index, (file, disk)) in files.iter().zip(&handles).enumerate() {
        let name = file.name();
        if file.make > 0 || is_blank(disk, pool).await.map_err(|error| file.failed(&error))? {
            blank.push((index, disk));
            continue;
        }
        let engine = open_engine(disk.clone(), pool, options(disk, cluster)).await;
        let (engine, damaged) = engine.map_err(|error| file.failed(&error))?;
        let found = engine.superblock();
        if let Some(expected) = cluster.filter(|cluster| *cluster != found.cluster_id) {
            return Err(StartError::Disk {
                path: name,
                message: format!(
                    "belongs to cluster {}, but the other disks to {expected}: give only disks of \
                     one cluster, or set server.cluster_id",
                    found.cluster_id
                ),
            });
        }
        cluster = Some(found.cluster_id);
        let disk = NodeDisk::new(name, &found, engine, damaged);
        opened[index] = Some(NodeDisk { sole: file.sole(), ..disk });
    }
    let cluster_id = match cluster {
        Some(cluster) => cluster,
        None => seek.cluster().await?,
    };
    for (index, disk) in blank {
        let file = &files[index];
        let format = FormatOptions {
            created_unix_ms: RealClock::wall_ms(),
            ..FormatOptions::new(random_uuid()?, cluster_id)
        };
        let engine = async {
            Engine::format(disk, pool, format).await?;
            open_engine(disk.clone(), pool, options(disk, Some(cluster_id))).await
        };
        let (engine, damaged) = engine.await.map_err(|error| file.failed(&error))?;
        let found = engine.superblock();
        let disk = NodeDisk::new(file.name(), &found, engine, damaged);
        opened[index] = Some(NodeDisk { is_new: true, sole: file.sole(), ..disk });
    }
    let disks: Vec<NodeDisk> = opened.into_iter().flatten().collect();
    let summary = disks.iter().map(|d| (d.name.clone(), d.capacity, d.is_new)).collect();
    Ok(Opened { disks, summary, cluster_id })
}

impl Prepared {
    fn name(&self) -> String {
        self.path.path.display().to_string()
    }

    /// The mark beside the data file, which is open and locked.
    fn sole(&self) -> Arc<SoleMark> {
        let is_folder = !self.path.is_device();
        Arc::new(if is_folder { SoleMark::read(&self.path.path) } else { SoleMark::none() })
    }

    fn open(&self) -> Result<FileDisk, EnvError> {
        let file = self.path.file();
        if self.make > 0 { FileDisk::create(&file, self.make) } else { FileDisk::open(&file) }
    }

    fn refused(&self, error: EnvError) -> StartError {
        let fix = match &error {
            EnvError::Os { source, .. } => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    "free some space, use a smaller --size, or give another folder with --data"
                }
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                    "make it writable for this user, or give another folder with --data"
                }
                _ => "check the disk (kernel log), or give another folder with --data",
            },
            _ => return error.into(),
        };
        if self.make > 0 {
            // A partial file would be taken for a whole one at the next start.
            let _ = std::fs::remove_file(self.path.file());
        }
        StartError::Disk { path: self.name(), message: format!("{error}: {fix}") }
    }

    fn failed(&self, error: &EngineError) -> StartError {
        StartError::Disk { path: self.name(), message: error.to_string() }
    }
}

/// Options of every disk's engine, by configuration.
fn engine_options(config: &Config) -> EngineOptions {
    let settings = &config.engine;
    EngineOptions {
        high_watermark: settings.evict_high_percent * 10,
        low_watermark: settings.evict_low_percent * 10,
        scrub_period: settings.scrub_period.0,
        scrub_bytes_per_second: settings.scrub_rate.0,
        // In a chain the head decides about removals.
        own_removal: false,
        ..EngineOptions::default()
    }
}

async fn open_engine(
    disk: FileDisk,
    pool: &BufferPool,
    options: EngineOptions,
) -> Result<(Engine, DamagedChunks), EngineError> {
    let damaged = DamagedChunks::default();
    let noted = damaged.clone();
    // Another replica repairs damaged chunks.
    let note: OnDamaged = Arc::new(move |id| noted.push(id));
    let options = EngineOptions { on_damaged: Some(note), ..options };
    let engine = Engine::open(disk, pool.clone(), Arc::new(RealClock), options).await?;
    Ok((engine, damaged))
}

/// Whether nothing was ever written at the places where a Millpond disk, or any file system,
/// begins. Only then is it formatted: existing data must not be lost.
async fn is_blank(disk: &FileDisk, pool: &BufferPool) -> Result<bool, EngineError> {
    const HEAD: usize = 64 << 10;
    let buf = pool.try_alloc(HEAD).ok_or(EngineError::Busy("no memory buffer is free"))?;
    let (buf, result) = disk.read(0, buf).await;
    result.map_err(|source| EngineError::Io {
        op: "read",
        offset: 0,
        len: HEAD as u64,
        source: Arc::new(source),
    })?;
    Ok(buf.iter().all(|byte| *byte == 0))
}

pub(super) fn random_uuid() -> std::io::Result<Uuid128> {
    let mut bytes = [0; 16];
    Rng::fill_from_os(&mut bytes)?;
    Ok(Uuid128::from_random(bytes))
}

fn parse_uuid(text: &str) -> Option<Uuid128> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| Uuid128(value.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_parse_as_they_print() {
        let uuid = random_uuid().unwrap();
        assert_eq!(parse_uuid(&uuid.to_string()), Some(uuid));
        assert_eq!(parse_uuid("12"), None);
    }

    #[test]
    fn data_paths_may_carry_a_size() {
        let path = DataPath::parse("/a/b:10GiB");
        assert_eq!(path, DataPath { path: "/a/b".into(), size: Some(ByteSize::gib(10)) });
        assert_eq!(DataPath::parse("/a/b").size, None);
        assert_eq!(DataPath::parse("/a:b").path, PathBuf::from("/a:b"));
    }
}
