//! One mount point and the threads that serve it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millpond_client::{Client, ClientError};
use millpond_env::{EnvError, Rng, ShmAccess, ShmRegion};
use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{
    self as wire, Device, InitWishes, MountError, MountOptions, NegotiateError, Negotiated,
    Operation, Received, Reply, Request, RequestBuffer, max_pages_limit, mount, mounts, negotiate,
    set_read_ahead, unmount,
};
use millpond_types::meta::{Ino, MetaOp};

use crate::ahead::{Ahead, FETCHERS};
use crate::backend::Backend;
use crate::behind::{Behind, Delegations, PROMISES_AT_ONCE, Threads};
use crate::blob::Blob;
use crate::budget::{Bandwidth, Memory};
use crate::cached::{Cache, FILLERS};
use crate::errno::Errno;
use crate::files::Files;
use crate::fs::{Counted, Fs, Full, wishes};
use crate::journal::{Journal, REGION_BYTES};
use crate::leases::Leases;
use crate::listener::Listener;
use crate::notices::Notices;
use crate::options::{Mode, MountSpec, OptionError};
use crate::session::{self, Keeper, Wake};
use crate::watch::{Picture, Watch};
use crate::worker::{Terms, Workers};

/// Bytes of the largest read and write, with the kernel's default of `fs.fuse.max_pages_limit`.
const REQUEST_BYTES: u32 = 1 << 20;
/// The same with a higher limit: each thread has a buffer of that size.
const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// Bytes of a page in requests.
const PAGE_BYTES: u32 = 4096;
/// The requested read-ahead of the kernel in bytes.
const READ_AHEAD_BYTES: u32 = 4 << 20;
/// The number of connections of a client to one server; a thread that finds all in use waits.
const CONNECTIONS_MAX: usize = 64;
/// Time for the first answer of the cluster: the mounting user waits for it.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// Why mounting failed. Nothing is left mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountFailure {
    /// An error of the cluster.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No meta accepts a session.
    #[error("no meta of the cluster accepts this mount: {0}")]
    Session(io::Error),
    /// An error of the mount point or the kernel's device.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel and this build have no common protocol.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// The state that an earlier process left of the mount is unusable.
    #[error("the state that an earlier process left of the mount cannot be used: {0}")]
    Left(String),
    /// An option cannot be used on this host.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// FUSE over `io_uring` is unavailable.
    #[error("-o io_uring: {0}")]
    Uring(&'static str),
    /// The kernel does not allow ID-mapped mounts on FUSE.
    #[error("-o idmap: this kernel has no ID-mapped mounts of FUSE (Linux 6.12): mount without it")]
    NoIdmap,
    /// An error of the system.
    #[error("{what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl From<EnvError> for MountFailure {
    fn from(error: EnvError) -> Self {
        Self::Left(error.to_string())
    }
}

fn os(what: &'static str) -> impl FnOnce(io::Error) -> MountFailure {
    move |source| MountFailure::Os { what, source }
}

/// Hands over the state that must outlive the mount's process: bytes, and descriptors.
pub type Keep<'k> = &'k mut dyn FnMut(&[u8], &[BorrowedFd<'_>]) -> io::Result<()>;

/// A mount that is served by threads of this process until it is unmounted.
///
/// Dropping it ends its threads and leaves the mount to the process that has its descriptors;
/// without one, applications get `ENOTCONN`.
pub struct Mount {
    spec: MountSpec,
    /// Dropped first: workers answer the requests that it waits for in the kernel.
    listener: Option<Listener>,
    workers: Workers,
    behind: Threads,
    keeper: Keeper,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Mount {
    /// Mounts, and returns when requests are served. Before the first one is served, `keep` gets
    /// the state for [`Mount::resume`].
    ///
    /// # Errors
    /// [`MountFailure`] with the fix; nothing is left mounted.
    pub fn start(mut spec: MountSpec, keep: Keep<'_>) -> Result<Self, MountFailure> {
        if spec.io_uring {
            spec.threads = spec.threads.max(queues()?);
        }
        let journal = Journal::create().map_err(os("making the memory of a mount"))?;
        let region = journal.region().clone();
        let cached = Cache::open(&spec.cache, &spec.target)?;
        let fs = open(&spec, Files::new(Some(journal)), (cached, false))?;
        let name = spec.target.display().to_string();
        let session = session::begin(&fs.backend, &name)
            .map_err(|errno| MountFailure::Session(io::Error::from_raw_os_error(errno.0)))?;
        let keeper = session::keep(&fs, name, (session, false)).map_err(os("starting a thread"))?;
        fs.warn_of_hidden();
        let device = mount(&spec.target, &options(&spec))?;
        let target = spec.target.clone();
        let served = serve(&fs, device, (&spec, &region, session.lease_ms), keep);
        let mounted = served.and_then(|workers| {
            read_ahead(&spec, &fs);
            Self::listening(spec, (workers, keeper), &fs)
        });
        if mounted.is_err() {
            let _ = unmount(&target, true);
        }
        mounted
    }

    /// Takes a mount over from an earlier process: its unfinished operations are finished once, and
    /// applications notice only a pause.
    ///
    /// # Errors
    /// [`MountFailure`]; the mount stays as it is.
    pub fn resume(blob: &[u8], fds: Vec<OwnedFd>) -> Result<Self, MountFailure> {
        let Blob { spec, negotiated, session, lease_ms } = Blob::decode(blob)?;
        let mut fds = fds.into_iter();
        let memory = fds.next().ok_or_else(|| MountFailure::Left("no memory".to_owned()))?;
        let region = ShmRegion::from_fd(memory, REGION_BYTES, ShmAccess::ReadWrite)?;
        let devices: Vec<Device> = fds.map(Device::from_fd).collect();
        if devices.is_empty() {
            return Err(MountFailure::Left("no descriptor of the kernel".to_owned()));
        }
        let cached = Cache::open(&spec.cache, &spec.target).unwrap_or_else(|error| {
            // The kernel continues to read its backing files.
            tracing::error!("the mount continues without its cache: {error}");
            None
        });
        let fs = open(&spec, Files::resume(&region)?, (cached, true))?;
        fs.keep_backed();
        fs.backend.enter(session);
        let name = spec.target.display().to_string();
        let session = millpond_types::meta::Session { id: fs.backend.session(), lease_ms };
        let keeper = session::keep(&fs, name, (session, true)).map_err(os("starting a thread"))?;
        devices[0].resend().map_err(os("asking the kernel for the requests in progress"))?;
        let terms = Terms { max_write: negotiated.max_write(), granted: negotiated.granted };
        let workers = Workers::start(&fs, devices, terms).map_err(os("starting a thread"))?;
        note_read_ahead(&spec, &fs);
        fs.wake.wake();
        Self::listening(spec, (workers, keeper), &fs)
    }

    /// Serves a mount, with change notifications if its mode requires them.
    fn listening(
        spec: MountSpec,
        (workers, keeper): (Workers, Keeper),
        fs: &Arc<Fs>,
    ) -> Result<Self, MountFailure> {
        let behind = Threads::start(fs).map_err(os("starting a thread"))?;
        let mut this = Self { spec, listener: None, workers, behind, keeper };
        this.listen(fs).map_err(os("starting a thread"))?;
        Ok(this)
    }

    fn listen(&mut self, fs: &Arc<Fs>) -> io::Result<()> {
        if self.spec.mode.listens() {
            self.listener = Some(Listener::start(fs, self.workers.device())?);
        }
        Ok(())
    }

    /// Stops between two requests: finishes those in progress, ends the threads, and leaves the
    /// mount to the process that has its descriptors.
    ///
    /// # Errors
    /// The mount, serving as before, when requests are in progress for longer than `patience`.
    pub fn park(mut self, patience: Duration) -> Result<(), Box<Self>> {
        drop(self.listener.take());
        if !self.workers.stop(patience) {
            let fs = Arc::clone(self.workers.fs());
            if let Err(error) = self.listen(&fs) {
                tracing::error!("a mount receives no more changes: {error}");
            }
            return Err(Box::new(self));
        }
        // Promises are in the journal.
        drop(self.behind);
        self.keeper.leave();
        Ok(())
    }

    /// Whether the mount no longer exists in the kernel.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.workers.over.load(Ordering::Acquire)
    }

    /// Waits until the mount is gone, however it is unmounted.
    pub fn wait(self) {
        let Self { listener, workers, behind, keeper, .. } = self;
        workers.join();
        drop(listener);
        behind.drain();
        drop(behind);
        drop(keeper);
    }

    /// A snapshot of its metrics.
    pub(crate) fn picture(&self) -> Picture {
        self.workers.fs().picture()
    }

    /// The options of the mount.
    #[must_use]
    pub const fn spec(&self) -> &MountSpec {
        &self.spec
    }
}

/// Makes the kernel read ahead further than by default, if we are allowed to.
fn read_ahead(spec: &MountSpec, fs: &Fs) {
    let Some(connection) = connection(spec) else { return };
    if let Err(error) = set_read_ahead(connection, READ_AHEAD_BYTES) {
        tracing::debug!("the read-ahead of the kernel stays at 128 KiB: {error}");
    }
    note_read_ahead(spec, fs);
}

/// Notes the kernel's read-ahead.
fn note_read_ahead(spec: &MountSpec, fs: &Fs) {
    let bytes = connection(spec).and_then(|connection| wire::read_ahead(connection).ok());
    fs.ahead.kernel_reads(bytes.unwrap_or(0));
}

fn connection(spec: &MountSpec) -> Option<u32> {
    let ours = mounts().ok()?.into_iter().rfind(|mount| mount.target == spec.target);
    ours.map(|mount| mount.connection)
}

fn options(spec: &MountSpec) -> MountOptions {
    MountOptions {
        fsname: spec.client.addresses.to_string(),
        read_only: spec.is_read_only(),
        allow_other: spec.allow_other,
        default_permissions: true,
        nosuid: !spec.suid,
        nodev: !spec.dev,
        noexec: spec.noexec,
        noatime: !spec.relatime,
        max_read: None,
    }
}

/// The file system of a mount, connected to its cluster.
fn open(
    spec: &MountSpec,
    files: Files,
    (cached, is_taken_over): (Option<Arc<Cache>>, bool),
) -> Result<Arc<Fs>, MountFailure> {
    let mut options = spec.client.clone();
    // One for every thread that serves, reads ahead, fills the cache or keeps promises; one each
    // for reporting writes, the session, and news.
    let delegates = spec.mode == Mode::CloseToOpen && spec.delegations;
    let makes_promises = (spec.mode == Mode::OneWriter || delegates) && spec.journal;
    // One more returns recalled directories.
    let behind = if makes_promises { PROMISES_AT_ONCE + 1 } else { 0 };
    let fillers = if cached.is_some() { FILLERS } else { 0 };
    let connections = spec.threads + 3 + FETCHERS + behind + fillers;
    options.connections = connections.min(CONNECTIONS_MAX);
    options.lends = true;
    let client = Client::new(options)?;
    client.chains(Some(FIRST_WORD))?;
    let mut random = [0; 8];
    Rng::fill_from_os(&mut random).map_err(os("getting random numbers"))?;
    let (mode, remembers, wake) = (spec.mode, spec.journal, Wake::default());
    let delegations = (makes_promises && delegates).then(|| Delegations::new(is_taken_over));
    let behind = Behind::new(makes_promises, delegations, files.left());
    let backend = Backend::new(client, files, behind, u64::from_le_bytes(random));
    if let Some(cache) = &cached {
        let root = backend.attr(&mut backend.own_ticket(), MetaOp::GetAttr { ino: Ino::ROOT });
        let os = |errno: Errno| MountFailure::Session(io::Error::from_raw_os_error(errno.0));
        cache.enter(&root.map_err(os)?.attr);
    }
    let leases = Leases::new(backend.files.position());
    let watch = Watch::new(spec.target.display().to_string(), spec.watch, spec.threads);
    let device = OnceLock::new();
    let memory = Arc::new(Memory::new(spec.budgets.memory));
    let ahead = Ahead::new(mode, spec.read_ahead, memory);
    let bandwidth = Bandwidth::new(spec.budgets);
    let notices = Notices::start().map_err(os("starting a thread"))?;
    Ok(Arc::new(Fs {
        backend,
        remembers,
        mode,
        acl: spec.acl,
        wake,
        leases,
        device,
        watch,
        ahead,
        bandwidth,
        cached,
        notices,
        counted: Counted::default(),
        full: Full::default(),
        relatime: spec.relatime && !spec.is_read_only(),
        timeout: spec.timeout,
    }))
}

fn serve(
    fs: &Arc<Fs>,
    device: Device,
    (spec, region, lease_ms): (&MountSpec, &ShmRegion, u32),
    keep: Keep<'_>,
) -> Result<Workers, MountFailure> {
    let negotiated = shake_hands(&device, spec)?;
    let terms = Terms { max_write: negotiated.max_write(), granted: negotiated.granted };
    if spec.idmap && !negotiated.granted.contains(InitFlags::ALLOW_IDMAP) {
        return Err(MountFailure::NoIdmap);
    }
    if spec.io_uring {
        if !negotiated.granted.contains(InitFlags::OVER_IO_URING) {
            return Err(MountFailure::Uring(SWITCHED_OFF));
        }
        // No holder keeps it: the kernel would not resend the requests in its queues.
        let workers = Workers::over_io_uring(fs, device, (terms, spec.threads, &spec.target));
        return workers.map_err(os("opening queues of io_uring"));
    }
    let mut devices = vec![device];
    for _ in 1..spec.threads {
        let clone = devices[0].clone_device().map_err(os("cloning /dev/fuse"))?;
        devices.push(clone);
    }
    let session = fs.backend.session();
    let blob = Blob { spec: spec.clone(), negotiated, session, lease_ms }.encode();
    let fds: Vec<BorrowedFd<'_>> =
        std::iter::once(region.fd()).chain(devices.iter().map(AsFd::as_fd)).collect();
    keep(&blob, &fds).map_err(os("giving the mount to its holder"))?;
    drop(fds);
    Workers::start(fs, devices, terms).map_err(os("starting a thread"))
}

/// The kernel's switch is off.
const SWITCHED_OFF: &str = "the kernel has it switched off: echo Y > \
                            /sys/module/fuse/parameters/enable_uring, or mount without it";

/// The number of `io_uring` queues that the kernel requires.
fn queues() -> Result<usize, MountFailure> {
    match wire::uring_switch() {
        Some(true) => {}
        Some(false) => return Err(MountFailure::Uring(SWITCHED_OFF)),
        None => {
            let why = "this kernel has no FUSE over io_uring (Linux 6.14, CONFIG_FUSE_IO_URING): \
                       mount without it";
            return Err(MountFailure::Uring(why));
        }
    }
    wire::uring_queues().map(usize::from).map_err(os("counting processors"))
}

/// Answers the kernel's first request.
fn shake_hands(device: &Device, spec: &MountSpec) -> Result<Negotiated, MountFailure> {
    let pages = max_pages_limit();
    let largest = pages.saturating_mul(PAGE_BYTES).clamp(REQUEST_BYTES, REQUEST_BYTES_MAX);
    let largest = spec.budgets.request_bytes(spec.threads, largest);
    let mut buffer = RequestBuffer::new(largest);
    let gone = || MountFailure::Os {
        what: "the kernel's first request",
        source: io::Error::from_raw_os_error(libc::ENODEV),
    };
    let received = device.read(&mut buffer).map_err(os("the kernel's first request"))?;
    let Received::Request(bytes) = received else { return Err(gone()) };
    let request = Request::decode(bytes, InitFlags::NONE).map_err(|_| gone())?;
    let Operation::Init(offer) = &request.operation else { return Err(gone()) };
    let mut flags = wishes(spec);
    if spec.cache.folder.is_some() && spec.cache.passthrough {
        flags = flags.with(InitFlags::PASSTHROUGH);
    }
    let wishes = InitWishes {
        flags: if spec.io_uring { flags.with(InitFlags::OVER_IO_URING) } else { flags },
        max_write: largest,
        max_readahead: READ_AHEAD_BYTES,
        max_pages_limit: pages,
        ..InitWishes::default()
    };
    let negotiated = negotiate(offer, &wishes)?;
    device
        .reply(request.reply_to(), &Reply::Init(negotiated.out))
        .map_err(os("answering the kernel's first request"))?;
    Ok(negotiated)
}
