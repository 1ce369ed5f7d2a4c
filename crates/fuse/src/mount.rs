//! One mount point and the threads that serve it.

use std::sync::Arc;

use millpond_client::{Client, ClientError};
use millpond_env::{Rng, ThreadHandle, thread};
use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{
    Device, InitWishes, MountError, MountOptions, NegotiateError, Negotiated, Operation, Received,
    Reply, Request, RequestBuffer, max_pages_limit, mount, negotiate, unmount,
};

use crate::backend::Backend;
use crate::files::Files;
use crate::fs::{Fs, wishes};
use crate::options::MountSpec;
use crate::session::{self, Keeper, Wake};
use crate::worker::serve;

/// Bytes of the largest read and write.
const REQUEST_BYTES: u32 = 1 << 20;
/// Bytes that the kernel reads ahead.
const READ_AHEAD_BYTES: u32 = 4 << 20;

/// Why a mount could not be made. Nothing is left mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountFailure {
    /// The cluster.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No meta lets the mount in.
    #[error("no meta of the cluster lets this mount in: {0}")]
    Session(std::io::Error),
    /// The mount point or the kernel's device.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel and this build do not understand each other.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// The operating system.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}

fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> MountFailure {
    move |source| MountFailure::Os { what, source }
}

/// A mount that is served by threads of this process until it is unmounted.
pub struct Mount {
    spec: MountSpec,
    threads: Vec<ThreadHandle<()>>,
    keeper: Keeper,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Mount {
    /// Mounts, and returns when requests are served.
    ///
    /// # Errors
    /// [`MountFailure`] naming what to do; nothing is left mounted.
    pub fn start(spec: MountSpec) -> Result<Self, MountFailure> {
        let client = Client::new(spec.client.clone())?;
        client.server_info()?;
        let mut random = [0; 8];
        Rng::fill_from_os(&mut random).map_err(os("asking for random numbers"))?;
        let backend = Backend::new(client, u64::from_le_bytes(random));
        let name = spec.target.display().to_string();
        let session = session::begin(&backend, &name)
            .map_err(|errno| MountFailure::Session(std::io::Error::from_raw_os_error(errno.0)))?;
        let (files, wake) = (Files::default(), Wake::default());
        let fs = Arc::new(Fs { backend, files, mode: spec.mode, wake });
        let keeper = session::keep(&fs, name, session).map_err(os("starting a thread"))?;
        let options = MountOptions {
            fsname: spec.client.addresses.to_string(),
            read_only: spec.is_read_only(),
            allow_other: spec.allow_other,
            default_permissions: true,
            nosuid: !spec.suid,
            nodev: !spec.dev,
            noexec: spec.noexec,
            max_read: None,
        };
        let device = mount(&spec.target, &options)?;
        match start_threads(&fs, device, spec.threads) {
            Ok(threads) => Ok(Self { spec, threads, keeper }),
            Err(error) => {
                let _ = unmount(&spec.target, true);
                Err(error)
            }
        }
    }

    /// Waits until the mount is gone, whoever unmounts it.
    pub fn wait(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
        drop(self.keeper);
    }

    /// How it was mounted.
    #[must_use]
    pub const fn spec(&self) -> &MountSpec {
        &self.spec
    }
}

fn start_threads(
    fs: &Arc<Fs>,
    device: Device,
    count: usize,
) -> Result<Vec<ThreadHandle<()>>, MountFailure> {
    let negotiated = shake_hands(&device)?;
    let terms = (negotiated.max_write(), negotiated.granted);
    let mut devices = vec![device];
    for _ in 1..count {
        let clone = devices[0].clone_device().map_err(os("cloning /dev/fuse"))?;
        devices.push(clone);
    }
    let serve = |device: Device| {
        let fs = Arc::clone(fs);
        thread("mp-fuse", move || serve(&fs, &device, terms)).map_err(os("starting a thread"))
    };
    devices.into_iter().map(serve).collect()
}

/// Answers the kernel's first request.
fn shake_hands(device: &Device) -> Result<Negotiated, MountFailure> {
    let mut buffer = RequestBuffer::new(REQUEST_BYTES);
    let gone = || MountFailure::Os {
        what: "the kernel's first request",
        source: std::io::Error::from_raw_os_error(libc::ENODEV),
    };
    let received = device.read(&mut buffer).map_err(os("the kernel's first request"))?;
    let Received::Request(bytes) = received else { return Err(gone()) };
    let request = Request::decode(bytes, InitFlags::NONE).map_err(|_| gone())?;
    let Operation::Init(offer) = &request.operation else { return Err(gone()) };
    let wishes = InitWishes {
        flags: wishes(),
        max_write: REQUEST_BYTES,
        max_readahead: READ_AHEAD_BYTES,
        max_pages_limit: max_pages_limit(),
        ..InitWishes::default()
    };
    let negotiated = negotiate(offer, &wishes)?;
    device
        .reply(request.reply_to(), &Reply::Init(negotiated.out))
        .map_err(os("answering the kernel's first request"))?;
    Ok(negotiated)
}
