//! Backends known to a gateway: settings at most a second old, a client and a pace for each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_client::ClientError;
use parking_lot::Mutex;
use s3s::S3Result;
use tokio::sync::Semaphore;

use super::aws::Aws;
use super::backends::{BackendSettings, read};
use super::counted::Counted;
use super::etags::Etags;
use super::folders::{Folders, Keeping};
use super::metrics::OfBackend;
use super::rate::{LANES, Pace};
use super::store::Backend;
use super::wake::Wakes;
use crate::door::Door;
use crate::lately::Lately;

/// How long settings are cached.
const BELIEVED: Duration = Duration::from_secs(1);
/// Backends cached at most.
const BACKENDS_MAX: usize = 1_024;
/// Memory for bodies to backends, in KiB by lane. The lanes are separate because parts of large
/// objects take all memory that they can get and queue for more, and small objects would wait
/// behind them.
const MEMORY_KIB: [usize; LANES] = [16 << 10, 48 << 10];
/// Threads that wait for the volume on behalf of the persister: most threads are left to clients.
const THREADS: usize = 16;

/// A backend with a client.
pub(crate) struct Connected {
    pub(crate) settings: BackendSettings,
    /// The client; it counts requests.
    pub(crate) backend: Arc<dyn Backend>,
    /// The pace of writes to the backend.
    pub(crate) pace: Arc<Pace>,
    pub(crate) numbers: Arc<OfBackend>,
    pub(crate) etags: Etags,
}

/// The backends of a gateway.
pub(crate) struct Behind {
    /// None for a name without a settings file.
    settings: Lately<Option<Arc<Connected>>>,
    /// Connections and pace outlive the cached settings.
    connected: Mutex<HashMap<String, Arc<Connected>>>,
    /// Lanes to wake after a change.
    pub(crate) wakes: Wakes,
    /// Memory for bodies on their way to backends, in KiB by lane.
    pub(super) memory: [Arc<Semaphore>; LANES],
    /// Threads for the persister.
    pub(crate) threads: Semaphore,
}

impl Behind {
    pub(crate) fn new() -> Self {
        Self {
            settings: Lately::new(BELIEVED, BACKENDS_MAX),
            connected: Mutex::default(),
            wakes: Wakes::default(),
            memory: MEMORY_KIB.map(|kib| Arc::new(Semaphore::new(kib))),
            threads: Semaphore::new(THREADS),
        }
    }
}

impl Door {
    /// A backend by its name; none if it has no settings file.
    ///
    /// # Errors
    /// `InvalidArgument` for a damaged file; and as for every call to the volume.
    pub(crate) async fn backend(
        &self,
        name: &str,
    ) -> S3Result<Result<Option<Arc<Connected>>, ClientError>> {
        let asked = name.to_owned();
        let ask = async {
            let read = self.blocking(move |store| Ok(read(store, &asked)));
            let settings = read.await.map_err(Ok)?.map_err(Err)?;
            let mut connected = self.behind.connected.lock();
            let last = connected.remove(name);
            let Some(settings) = settings else { return Ok(None) };
            let now = match last {
                Some(last) if last.settings == settings => last,
                _ => Arc::new(self.connect(name, settings)),
            };
            connected.insert(name.to_owned(), Arc::clone(&now));
            Ok(Some(now))
        };
        match self.behind.settings.get(name, ask).await {
            Ok(found) => Ok(Ok(found)),
            Err(Ok(error)) => Err(error),
            Err(Err(error)) => Ok(Err(error)),
        }
    }

    fn connect(&self, name: &str, settings: BackendSettings) -> Connected {
        let numbers = self.metrics.back.backend(name);
        let keeping = Arc::new(Keeping::default());
        let counted = Counted::new(Aws::new(&settings, &keeping), Arc::clone(&numbers));
        let backend: Arc<dyn Backend> = Arc::new(Folders::new(counted, keeping));
        let pace = Arc::new(Pace::new(settings.requests_max, settings.requests_per_s));
        Connected { settings, backend, pace, numbers, etags: Etags::default() }
    }
}
