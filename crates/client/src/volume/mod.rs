//! Files by their paths, without a mount: names come from metas, bytes move between nodes and the
//! caller's memory.
//!
//! Only the length of open files and the place of their bytes are cached. If a node on this host
//! shares its memory (RFC 0002), bytes of a read are copied once from the node's memory into the
//! caller's, and bytes of a write once into memory that the node reads, or not at all from a
//! [`Region`]. Other nodes are reached over TCP.

mod backing;
mod chunks;
mod file;
mod here;
mod note;
mod objects;
mod pending;
mod question;
mod room;
mod session;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond_env::{effective_gid, effective_uid, supplementary_groups};
use millpond_types::meta::{
    Attr, Caller, Create, DIR_PAGE_MAX, DirEntry, FileKind, Ino, MetaError, MetaOp, MetaReply,
    PutFile, ReadDir, Rename, STORED_MAX,
};

use self::file::Opened;
use self::objects::Numbers;
use self::pending::Workers;
use self::session::{Metas, refused};
use self::walk::{plain, shown};
use crate::client::Client;
use crate::error::ClientError;
use crate::region::Region;
use crate::share::clone_file;
use crate::spill::spill;

pub use self::backing::Found;
pub use self::file::File;
pub use self::objects::{Body, ListObjects, PutObject};
pub use self::pending::Pending;
pub use self::question::{Question, Reply};
pub use self::session::Hold;

/// Most threads for submitted batches.
const WORKERS_MAX: usize = 256;
/// Attempts to open a file that disappears between two lookups.
const OPEN_TRIES: usize = 8;
/// Bytes copied at once.
const COPY_BYTES: usize = 4 << 20;

/// Bytes added to the name of a noted session: a space and 16 digits.
const NONCE_BYTES: usize = 17;

/// Options of a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Name of the session for operators, at most 255 bytes.
    pub name: String,
    /// The user for all operations; metas check permissions unless it is marked as checked.
    pub caller: Caller,
    /// Threads that run submitted batches, 1 to 256. If there are more than connections of the
    /// client, some wait for a connection.
    pub workers: usize,
    /// A file that records the session, for a process that is restarted often. If it names the
    /// session of a process that was killed, that session ends at once instead of with its lease.
    /// The name gets 17 more bytes that distinguish sessions.
    pub note: Option<PathBuf>,
}

impl VolumeOptions {
    /// The defaults: the user and the groups of this process, and as many threads as a client has
    /// connections by default.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let groups = supplementary_groups().unwrap_or_default();
        let (uid, gid) = (effective_uid(), effective_gid());
        let caller = Caller { uid, gid, groups, checked: false };
        Self { name: name.into(), caller, workers: 4, note: None }
    }
}

/// Flags for opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of open(2)")]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Make the file if it does not exist.
    pub create: bool,
    /// Make the file, and fail if it exists; needs `create`.
    pub exclusive: bool,
    /// Truncate it to zero; needs `write`.
    pub truncate: bool,
    /// Permission bits of a new file.
    pub mode: u16,
}

impl OpenOptions {
    /// Read an existing file.
    pub const READ: Self = Self {
        read: true,
        write: false,
        create: false,
        exclusive: false,
        truncate: false,
        mode: 0o644,
    };
    /// Read and write an existing file.
    pub const UPDATE: Self = Self { write: true, ..Self::READ };
    /// Read and write a file that is made, or truncated to zero.
    pub const CREATE: Self = Self { create: true, truncate: true, ..Self::UPDATE };
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::READ
    }
}

/// The files of a cluster, in a session of this process.
///
/// Paths begin at the root of the volume, with or without `/`; symbolic links in them are followed,
/// up to 40. Clones are the same volume. The session ends when the last clone and the last of its
/// files are dropped; files that were unlinked while open here are then removed.
///
/// A child of the process that opened it begins its own session when it first uses the volume or
/// one of its files, and ends only that session.
///
/// ```no_run
/// use millpond_client::{Client, ClientOptions, OpenOptions, Volume};
///
/// let client = Client::new(ClientOptions::new("127.0.0.1:7440".parse()?))?;
/// let volume = Volume::open(client, "trainer on host 7")?;
/// let file = volume.open_file("/data/shard-00", &OpenOptions::READ)?;
/// let (mut head, mut body) = (vec![0; 512], vec![0; 1 << 20]);
/// let read = file.read_batch(&mut [(0, &mut head[..]), (4096, &mut body[..])])?;
/// // Memory goes to a batch and comes back with it, to be used again.
/// let ahead = file.submit_read(vec![(1 << 20, body)]);
/// let done = ahead.wait()?;
/// # let _ = (read, done);
/// # Ok::<(), millpond_client::ClientError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Volume {
    shared: Arc<Shared>,
}

/// State shared by a volume and its files.
#[derive(Debug)]
struct Shared {
    metas: Arc<Metas>,
    workers: Workers,
    numbers: Numbers,
}

impl Volume {
    /// Begins a session for this process's user. `name` identifies it to operators.
    ///
    /// # Errors
    /// As [`Volume::with`].
    pub fn open(client: Client, name: &str) -> Result<Self, ClientError> {
        Self::with(client, VolumeOptions::new(name))
    }

    /// Begins a session.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option, or for a standalone server; `File` when there are too
    /// many sessions; and as for every call.
    pub fn with(client: Client, options: VolumeOptions) -> Result<Self, ClientError> {
        let VolumeOptions { name, caller, workers, note } = options;
        let max = usize::from(u8::MAX) - if note.is_some() { NONCE_BYTES } else { 0 };
        if name.len() > max {
            return Err(ClientError::argument("name", format!("is longer than {max} bytes")));
        }
        if workers == 0 || workers > WORKERS_MAX {
            let fix = format!("{workers} is not between 1 and {WORKERS_MAX}");
            return Err(ClientError::argument("workers", fix));
        }
        let workers = Workers::start(workers)?;
        let metas = Metas::begin(client, (name, note.as_deref()), caller)?;
        let numbers = Numbers::default();
        Ok(Self { shared: Arc::new(Shared { metas, workers, numbers }) })
    }

    fn metas(&self) -> &Metas {
        &self.shared.metas
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// `File`, as open(2): missing, a directory, no permission; `InvalidArgument` for contradictory
    /// flags; and as for every call.
    pub fn open_file(
        &self,
        path: impl AsRef<Path>,
        options: &OpenOptions,
    ) -> Result<File, ClientError> {
        let (path, OpenOptions { read, write, create, exclusive, truncate, .. }) =
            (path.as_ref(), *options);
        if (create || truncate || !read) && !write || exclusive && !create {
            let fix = "set read or write; create and truncate need write, exclusive needs create";
            return Err(ClientError::argument("options", fix));
        }
        for _ in 0..OPEN_TRIES {
            if let Some(file) = self.try_open(path, *options)? {
                return Ok(file);
            }
        }
        Err(refused(&shown(path), MetaError::Stale))
    }

    /// Makes one attempt; none when the file disappeared in the meantime.
    fn try_open(&self, path: &Path, options: OpenOptions) -> Result<Option<File>, ClientError> {
        let (metas, text) = (self.metas(), shown(path));
        let place = metas.walk(path, true)?;
        let (attr, created) = match (place.attr, place.entry) {
            (Some(_), _) if options.exclusive => return Err(refused(&text, MetaError::Exists)),
            (Some(attr), _) => (attr, false),
            (None, Some((parent, name))) if options.create => {
                let create = Create {
                    parent,
                    name,
                    kind: FileKind::Regular,
                    mode: options.mode & 0o7777,
                    umask: None,
                    rdev: 0,
                    target: Vec::new(),
                    exclusive: options.exclusive,
                    promised: None,
                    delegate: None,
                };
                let MetaReply::Entry(entry) = metas.at(&text, MetaOp::Create(create))? else {
                    return Err(metas.unexpected());
                };
                (entry.attr, entry.created)
            }
            _ => return Err(refused(&text, MetaError::NotFound)),
        };
        let wanted = u16::from(options.read) * 4 + u16::from(options.write) * 2;
        match attr.kind {
            FileKind::Regular if created => {}
            FileKind::Regular => {
                metas.caller.access(&attr, wanted).map_err(|error| refused(&text, error))?;
            }
            FileKind::Directory => return Err(refused(&text, MetaError::IsDirectory)),
            _ => return Err(refused(&text, MetaError::NotSupported)),
        }
        // Metas count it as open from now on: if it has a name after that, it stays until it is
        // closed.
        let opened = Opened::new(Arc::clone(&self.shared), (text, attr), options);
        match opened.refresh() {
            Ok(attr) if attr.nlink > 0 => {}
            Ok(_) => return Ok(None),
            Err(ClientError::File { source: MetaError::Stale | MetaError::NotFound, .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        if options.truncate {
            opened.cut_to_nothing()?;
        }
        Ok(Some(File::of(opened)))
    }

    /// Registers `bytes` of memory with the node on this host, to write from without a copy:
    /// [`Client::register`].
    ///
    /// # Errors
    /// As there.
    pub fn register(&self, bytes: usize) -> Result<Region, ClientError> {
        self.metas().client.register(bytes, None)
    }

    /// Writes a whole file: makes one with these permission bits, or replaces the bytes of the
    /// existing one. The bytes are durable when it returns.
    ///
    /// Up to 64 KiB ([`STORED_MAX`]) this takes one round trip, and readers see either the old or
    /// the new bytes, if the path has no symbolic link and no `..`. Otherwise it is the same as
    /// opening, cutting, writing and closing.
    ///
    /// # Errors
    /// `File`, as open(2) and write(2); `NoSpace`; and as for every call.
    pub fn write_file(
        &self,
        path: impl AsRef<Path>,
        bytes: &[u8],
        mode: u16,
    ) -> Result<(), ClientError> {
        let (path, mode) = (path.as_ref(), mode & 0o7777);
        if let Some(names) = plain(path).filter(|_| bytes.len() <= STORED_MAX) {
            let put = PutFile { path: names, mode, bytes: bytes.to_vec() };
            match self.change(path, MetaOp::PutFile(put)) {
                Err(error) if has_link(&error) => {}
                done => return done,
            }
        }
        let file =
            self.open_file(path, &OpenOptions { mode, read: false, ..OpenOptions::CREATE })?;
        file.write_batch(&[(0, bytes)])?;
        file.sync()
    }

    /// Moves the bytes of a file to chunks, if they are in the store. Does nothing for a missing
    /// file.
    ///
    /// # Errors
    /// `NoSpace`; and as for every call.
    pub fn bring_to_chunks(&self, ino: Ino) -> Result<(), ClientError> {
        let text = format!("inode {}", ino.0);
        let content = match self.metas().at(&text, MetaOp::Content { ino }) {
            Ok(MetaReply::Content(content)) => content,
            Ok(_) => return Err(self.metas().unexpected()),
            Err(ClientError::File { source: MetaError::Stale | MetaError::NotFound, .. }) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // A file that is not open may be removed at any moment, together with the new chunks.
        let opened =
            Opened::new(Arc::clone(&self.shared), (text, content.attr), OpenOptions::UPDATE);
        spill(&mut &opened, content.attr, &[], None).map(drop)
    }

    /// Reads a whole file. For a file with its bytes in the store this takes one round trip, if the
    /// path has no symbolic link and no `..`; otherwise it is the same as opening, reading and
    /// closing.
    ///
    /// # Errors
    /// `File`, as open(2); `InvalidArgument` for a file that does not fit in memory; and as for
    /// every call.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, ClientError> {
        let path = path.as_ref();
        if let Some(names) = plain(path) {
            match self.metas().at(&shown(path), MetaOp::GetFile { path: names }) {
                Ok(MetaReply::Content(content)) if content.attr.is_stored() => {
                    let mut bytes = memory(content.attr.size)?;
                    content.copy(0, &mut bytes);
                    return Ok(bytes);
                }
                Ok(_) => {}
                Err(error) if has_link(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let file = self.open_file(path, &OpenOptions::READ)?;
        let mut bytes = memory(file.len()?)?;
        let lens = file.read_batch(&mut [(0, &mut bytes)])?;
        bytes.truncate(lens.first().copied().unwrap_or(0));
        Ok(bytes)
    }

    /// The attributes of an inode; follows symbolic links.
    ///
    /// # Errors
    /// `File`, as stat(2); and as for every call.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr, ClientError> {
        self.metas().inode(path.as_ref())
    }

    /// The entries of a directory, without `.` and `..`, in no particular order. They are fetched
    /// in pages of 1,000; entries added or removed between two pages may be included or not.
    ///
    /// # Errors
    /// `File`, as opendir(3); and as for every call.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>, ClientError> {
        let (metas, text) = (self.metas(), shown(path.as_ref()));
        let dir = metas.inode(path.as_ref())?.ino;
        let (mut all, mut after) = (Vec::new(), 0);
        let limit = u32::try_from(DIR_PAGE_MAX).unwrap_or(u32::MAX);
        loop {
            let op = MetaOp::ReadDir(ReadDir { dir, after, limit, attrs: false });
            let MetaReply::Page { entries, end } = metas.at(&text, op)? else {
                return Err(metas.unexpected());
            };
            let last = entries.last().map(|entry| entry.cookie);
            all.extend(entries);
            match last {
                Some(cookie) if !end => after = cookie,
                _ => return Ok(all),
            }
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `File`, as mkdir(2); and as for every call.
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u16) -> Result<(), ClientError> {
        let (parent, name) = self.metas().entry(path.as_ref())?;
        let (kind, mode, target) = (FileKind::Directory, mode & 0o7777, Vec::new());
        let create = Create {
            parent,
            name,
            kind,
            mode,
            umask: None,
            rdev: 0,
            target,
            exclusive: true,
            promised: None,
            delegate: None,
        };
        self.change(path.as_ref(), MetaOp::Create(create))
    }

    /// Removes a name that leads to no directory. Processes that have the file open can still use
    /// it.
    ///
    /// # Errors
    /// `File`, as unlink(2); and as for every call.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<(), ClientError> {
        let (parent, name) = self.metas().entry(path.as_ref())?;
        self.change(path.as_ref(), MetaOp::Unlink { parent, name, of: None })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `File`, as rmdir(2); and as for every call.
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<(), ClientError> {
        let (parent, name) = self.metas().entry(path.as_ref())?;
        self.change(path.as_ref(), MetaOp::RemoveDir { parent, name })
    }

    /// Renames `from` to `to`, and replaces an existing `to`, atomically.
    ///
    /// # Errors
    /// `File`, as rename(2), with the path `from`; and as for every call.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), ClientError> {
        let (parent, name) = self.metas().entry(from.as_ref())?;
        let (new_parent, new_name): (Ino, _) = self.metas().entry(to.as_ref())?;
        let (no_replace, exchange) = (false, false);
        let rename =
            Rename { parent, name, new_parent, new_name, no_replace, exchange, whiteout: false };
        self.change(from.as_ref(), MetaOp::Rename(rename))
    }

    /// Makes the file `to` with the present bytes of `from`. Both share the bytes until one of them
    /// is written, so this takes as long for a large file as for a small one. Owner and times are
    /// those of a new file, permission bits those of `from`.
    ///
    /// Returns false when the bytes were copied instead: for a file that was cloned and written
    /// four times in turn.
    ///
    /// # Errors
    /// `File`: `from` as open(2) to read, `to` as open(2) with `O_CREAT` and `O_EXCL`; over a
    /// quota; and as for every call.
    pub fn clone_file(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<bool, ClientError> {
        let (from, to, metas) = (from.as_ref(), to.as_ref(), self.metas());
        let source = metas.inode(from)?;
        let (parent, name) = metas.entry(to)?;
        let ask = |op: MetaOp| {
            let path = if matches!(op, MetaOp::Clone(_)) { to } else { from };
            metas.at(&shown(path), op)
        };
        match clone_file(&metas.client, ask, source.ino, (parent, &name)) {
            Ok(_) => Ok(true),
            Err(ClientError::File { source: MetaError::TooManyLinks, .. }) => {
                self.copy_file(from, (to, source.mode & 0o777)).map(|()| false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a file with these permission bits and the bytes of another one.
    fn copy_file(&self, from: &Path, (to, mode): (&Path, u16)) -> Result<(), ClientError> {
        let source = self.open_file(from, &OpenOptions::READ)?;
        let options = OpenOptions { mode, exclusive: true, read: false, ..OpenOptions::CREATE };
        let copy = self.open_file(to, &options)?;
        let all = || {
            let (mut bytes, mut at) = (vec![0; COPY_BYTES], 0);
            loop {
                let len = source.read_batch(&mut [(at, &mut bytes[..])])?[0];
                if len == 0 {
                    return copy.sync();
                }
                copy.write_batch(&[(at, &bytes[..len])])?;
                at += len as u64;
            }
        };
        all().inspect_err(|_| {
            // A partial copy is of no use.
            let _ = self.unlink(to);
        })
    }

    fn change(&self, path: &Path, op: MetaOp) -> Result<(), ClientError> {
        self.metas().at(&shown(path), op).map(drop)
    }
}

/// Whether a path has a symbolic link; a meta does not follow links.
const fn has_link(error: &ClientError) -> bool {
    matches!(error, ClientError::File { source: MetaError::NotSupported, .. })
}

/// Zeroed memory for a whole file.
fn memory(size: u64) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    let failed = |_| ClientError::argument("path", format!("{size} bytes do not fit into memory"));
    bytes.try_reserve_exact(len).map_err(failed)?;
    bytes.resize(len, 0);
    Ok(bytes)
}
