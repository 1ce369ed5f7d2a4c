//! Registered memory: buffers of an application for reads and writes, shared with the node on its
//! host.
//!
//! A region is the arena of a separate connection (RFC 0002): the node reads a write's bytes from
//! where the application put them, without a copy in between. Like a memory region of RDMA
//! (ibverbs), it is registered once and used often.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{OfProcess, ShmMemory, ShmRegion};

use crate::client::Client;
use crate::error::ClientError;
use crate::options::Transport;
use crate::pool::Seat;

/// Most bytes of a region; the node's limit, `limits.shm_arena`, is usually lower.
const REGION_BYTES_MAX: usize = 64 << 30;

/// Memory that was registered with the node on this host, page aligned and zeroed; or, if no node
/// shares memory with this client, ordinary memory.
///
/// Writes from it ([`crate::File::write_batch`]) go to that node without a copy in this process:
/// the node reads the bytes in place. Reads into it work as into any memory, with one copy. All
/// functions that take memory accept it, and behave the same otherwise.
///
/// A region has one connection. Bytes are copied, as from other memory, by a call that finds the
/// connection in use, a call to another node, and every call after the connection was lost
/// ([`Region::is_shared`]). So threads that write at the same time should each register a region.
/// In a child of the process that registered it, it is ordinary memory of the child.
///
/// ```no_run
/// use millpond_client::{Client, ClientOptions, OpenOptions, Volume};
///
/// let client = Client::new(ClientOptions::new("127.0.0.1:7440".parse()?))?;
/// let volume = Volume::open(client, "checkpoints")?;
/// let mut region = volume.register(64 << 20)?;
/// region[..5].copy_from_slice(b"bytes");
/// let file = volume.open_file("/step-100", &OpenOptions::CREATE)?;
/// file.write_batch(&[(0, &region[..5])])?;
/// # Ok::<(), millpond_client::ClientError>(())
/// ```
#[derive(Debug)]
pub struct Region {
    memory: ShmMemory,
    /// A child process does not use its parent's seat.
    seat: Option<OfProcess<Arc<Seat>>>,
}

impl Region {
    pub(crate) fn shared(memory: ShmMemory, seat: Arc<Seat>) -> Self {
        Self { memory, seat: Some(OfProcess::new(seat)) }
    }

    /// Whether a node shares it at the moment. False once the connection to that node broke, for
    /// instance because it was restarted; register memory again then.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.seat().is_some_and(|seat| seat.is_live())
    }

    /// Splits off the first `len` bytes as a separate region on the same connection; none when it
    /// is shorter. So batches can be submitted from parts of one registration.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> Option<Self> {
        let memory = self.memory.split_to(len)?;
        let seat = self.seat().map(|seat| OfProcess::new(Arc::clone(seat)));
        Some(Self { memory, seat })
    }

    fn seat(&self) -> Option<&Arc<Seat>> {
        self.seat.as_ref().and_then(OfProcess::get)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl AsMut<[u8]> for Region {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl Client {
    /// Registers `bytes` of memory with the node on this host. `None`: the deadline of the options.
    ///
    /// Returns memory that no node shares if there is no node on this host, the transport is TCP or
    /// the Unix socket, the token is limited to namespaces, or the node has its maximum of
    /// shared-memory clients (`limits.shm_clients`, each region is one).
    ///
    /// # Errors
    /// `InvalidArgument` when the node shares fewer bytes at once (`limits.shm_arena`, 256 MiB by
    /// default), or when there is not enough memory; and as for every call.
    pub fn register(
        &self,
        bytes: usize,
        deadline: Option<Duration>,
    ) -> Result<Region, ClientError> {
        if bytes == 0 || bytes > REGION_BYTES_MAX {
            let fix = format!("{bytes} is not between 1 and {REGION_BYTES_MAX}");
            return Err(ClientError::argument("bytes", fix));
        }
        let deadline = self.deadline(deadline);
        if matches!(self.options().transport, Transport::Auto | Transport::Shm) {
            for pool in self.pools(deadline)? {
                if let Some(region) = pool.register(bytes, deadline)? {
                    return Ok(region);
                }
            }
        }
        let failed = |error: String| {
            ClientError::argument("bytes", format!("cannot allocate {bytes} bytes: {error}"))
        };
        let memory = ShmRegion::create("millpond-region", bytes)
            .map_err(|error| failed(error.to_string()))?
            .lend(0)
            .map_err(|error| failed(error.to_string()))?;
        Ok(Region { memory, seat: None })
    }
}
