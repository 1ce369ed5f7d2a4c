//! The context that all requests of a gateway share: the volume, the credentials, memory and
//! threads.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{Backing, Bucket, ClientError, File, Question, Reply};
use parking_lot::{Mutex, RwLock};
use s3s::{S3Error, S3ErrorCode, S3Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::Asker;
use crate::back::known::Behind;
use crate::backed::Cached;
use crate::error::{Told as _, refuse, told};
use crate::keys::Known;
use crate::lately::Lately;
use crate::metrics::Metrics;
use crate::record::BucketRecord;
use crate::spare::Spare;
use crate::store::{Found, KeyState, Object, Store};
use crate::together::Together;

/// Memory for incoming bodies, in KiB.
const IN_KIB: usize = 128 << 10;
/// Memory for outgoing bodies, in KiB.
const OUT_KIB: usize = 128 << 10;
/// How long a body waits for memory.
const MEMORY_PATIENCE: Duration = Duration::from_secs(30);
/// Concurrent questions to metas; others wait for their turn.
const QUESTIONS_MAX: usize = 64;
/// Buckets cached at most, and for how long.
const BUCKETS_MAX: usize = 1_024;
const BELIEVED: Duration = Duration::from_secs(1);
const UNREADABLE: &str =
    "the settings of the bucket cannot be read: were they written by a newer gateway?";

/// The configuration that requests need.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) region: String,
    pub(crate) domain: Option<String>,
    /// Whether clients use TLS on the gateway's own sockets.
    pub(crate) is_tls: bool,
}

/// The state of a gateway; all of it can be lost.
pub(crate) struct Door {
    pub(crate) settings: Settings,
    pub(crate) keys: Known,
    pub(crate) metrics: Arc<Metrics>,
    /// The backends.
    pub(crate) behind: Behind,
    store: RwLock<Option<Arc<Store>>>,
    asking: Semaphore,
    incoming: Arc<Semaphore>,
    outgoing: Arc<Semaphore>,
    buckets: Lately<About>,
    /// Held while a bucket record is read, changed and written back.
    changing: Arc<Mutex<()>>,
    /// Reusable buffers of bodies.
    pub(crate) spare: Spare,
    /// The hasher of bodies.
    pub(crate) md5: Arc<Together>,
    /// The memory about cached keys.
    pub(crate) cached: Cached,
}

/// A readable object.
pub(crate) struct There {
    pub(crate) object: Object,
    /// None if the bytes are in the object.
    pub(crate) file: Option<File>,
}

/// The cached data of a bucket.
#[derive(Clone)]
struct About {
    record: Arc<BucketRecord>,
    backing: Option<Arc<Backing>>,
}

impl About {
    fn of(bucket: Bucket) -> Self {
        let record = BucketRecord::read_or_nobodys(bucket.attachment.as_ref());
        Self { record: Arc::new(record), backing: bucket.backing.map(Arc::new) }
    }
}

/// The direction of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    In,
    Out,
}

impl Door {
    pub(crate) fn new(settings: Settings, keys: Known, metrics: Arc<Metrics>) -> Self {
        Self {
            settings,
            keys,
            metrics,
            behind: Behind::new(),
            store: RwLock::default(),
            asking: Semaphore::new(QUESTIONS_MAX),
            incoming: Arc::new(Semaphore::new(IN_KIB)),
            outgoing: Arc::new(Semaphore::new(OUT_KIB)),
            buckets: Lately::new(BELIEVED, BUCKETS_MAX),
            changing: Arc::default(),
            spare: Spare::default(),
            md5: Arc::new(Together::new()),
            cached: Cached::default(),
        }
    }

    /// Sets the volume, which can be used from now on.
    pub(crate) fn open(&self, store: Store) {
        *self.store.write() = Some(Arc::new(store));
    }

    /// The volume.
    ///
    /// # Errors
    /// `ServiceUnavailable` before the cluster serves files.
    pub(crate) fn store(&self) -> S3Result<Arc<Store>> {
        self.store.read().clone().ok_or_else(|| {
            let message =
                "The gateway waits for the cluster: `millpond admin status` shows its state.";
            refuse(S3ErrorCode::ServiceUnavailable, message)
        })
    }

    /// Runs a call to the volume on a thread that may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let store = self.store()?;
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(done) => done,
            Err(error) => Err(S3Error::internal_error(error)),
        }
    }

    /// Sends an operation on an object to a meta. Uses a blocking thread only if this process has
    /// no meta.
    pub(crate) async fn question(
        &self,
        question: Question,
    ) -> S3Result<Result<Reply, ClientError>> {
        let store = self.store()?;
        let _turn = self.asking.acquire().await;
        if let Some(answer) = store.ask_here(&question).await {
            return Ok(answer);
        }
        self.blocking(move |store| Ok(store.ask(question))).await
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// `NoSuchBucket`, and those of the volume.
    pub(crate) async fn look_up(
        &self,
        (bucket, key): (&str, &str),
        with_bytes: bool,
    ) -> S3Result<Found> {
        let store = self.store()?;
        let question = store.question_look_up(bucket, key.as_bytes(), with_bytes).in_bucket()?;
        let reply = self.question(question).await?;
        reply.and_then(|reply| store.looked_up(reply)).in_bucket()
    }

    /// Looks up a key for a read, together with its state for the backend.
    ///
    /// # Errors
    /// As [`Door::look_up`].
    pub(crate) async fn open_up(
        &self,
        at: (&str, &str),
    ) -> S3Result<(Option<There>, Option<KeyState>)> {
        let store = self.store()?;
        let hold = store.hold();
        let Found { object, state } = self.look_up(at, true).await?;
        let there = object.map(|object| There { file: store.file_of(&object, &hold), object });
        Ok((there, state))
    }

    /// Wakes the persister for all buckets, since keys may have been queued.
    pub(crate) fn wake_persister(&self) {
        self.behind.wakes.wake_all();
    }

    /// Wakes the persister for one bucket.
    pub(crate) fn wake_bucket(&self, bucket: &str) {
        self.behind.wakes.wake(bucket);
    }

    /// Takes memory for a body.
    ///
    /// # Errors
    /// `SlowDown` when others hold all of it for too long.
    pub(crate) async fn memory(&self, way: Way, bytes: usize) -> S3Result<OwnedSemaphorePermit> {
        let pool = match way {
            Way::In => &self.incoming,
            Way::Out => &self.outgoing,
        };
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let taken = Arc::clone(pool).acquire_many_owned(kib);
        match tokio::time::timeout(MEMORY_PATIENCE, taken).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(S3ErrorCode::SlowDown.into()),
        }
    }

    /// The record of a bucket, at most a second old; none if the bucket does not exist.
    pub(crate) async fn bucket(&self, name: &str) -> S3Result<Option<Arc<BucketRecord>>> {
        Ok(self.about(name).await?.map(|about| about.record))
    }

    /// The backing of a bucket, at most a second old.
    pub(crate) async fn backing(&self, name: &str) -> S3Result<Option<Arc<Backing>>> {
        Ok(self.about(name).await?.and_then(|about| about.backing))
    }

    async fn about(&self, name: &str) -> S3Result<Option<About>> {
        let asked = name.to_owned();
        let ask = async {
            match self.blocking(move |store| Ok(store.bucket(&asked))).await.map_err(Some)? {
                Ok(bucket) => Ok(About::of(bucket)),
                Err(ClientError::File { .. }) => Err(None),
                Err(error) => Err(Some(told(error, S3ErrorCode::NoSuchBucket))),
            }
        };
        match self.buckets.get(name, ask).await {
            Ok(about) => Ok(Some(about)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    /// Drops the cached data of a bucket.
    pub(crate) fn forget_bucket(&self, name: &str) {
        self.buckets.changed(name);
    }

    /// Changes the record of a bucket for an authorized requester.
    pub(crate) async fn change_bucket(
        &self,
        of: (&str, &Asker),
        change: impl FnOnce(&mut BucketRecord) + Send + 'static,
    ) -> S3Result<()> {
        let change = |record: &mut BucketRecord| {
            change(record);
            Ok(())
        };
        self.try_change_bucket(of, change).await
    }

    /// Like [`Door::change_bucket`], with a change that may fail on the present record.
    ///
    /// # Errors
    /// `NoSuchBucket`; `AccessDenied` if the bucket now has another owner; those of `change`.
    pub(crate) async fn try_change_bucket(
        &self,
        (name, who): (&str, &Asker),
        change: impl FnOnce(&mut BucketRecord) -> S3Result<()> + Send + 'static,
    ) -> S3Result<()> {
        let (asked, changing, who) = (name.to_owned(), Arc::clone(&self.changing), who.clone());
        self.blocking(move |store| {
            let _one = changing.lock();
            let bucket = store.bucket(&asked).in_bucket()?;
            let Some(mut record) = BucketRecord::read(bucket.attachment.as_ref()) else {
                return Err(refuse(S3ErrorCode::InternalError, UNREADABLE));
            };
            who.check_owner(&record)?;
            change(&mut record)?;
            store.set_bucket(&asked, &crate::record::encode(&record)).in_bucket()
        })
        .await?;
        self.forget_bucket(name);
        Ok(())
    }
}
