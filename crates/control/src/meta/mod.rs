//! The meta role: executes operations on the file namespace, in every process that has a manager
//! and so a store. Metas share nothing except the store; a client may ask any of them.

mod keeper;

use std::sync::{Arc, Once};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_meta::{Collected, Facts, Garbage, Volume, VolumeError, VolumeOptions};
use millpond_types::Tick;
use millpond_types::cluster::{ChainId, Routing};
use millpond_types::meta::{Answered, Ino, MetaRequest, MetaWatch};
use millpond_types::wire::{Failure, Status};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::admin;
use crate::manager::ManagerRole;

pub use keeper::keep;

/// Pause before a store that failed is followed again.
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);

/// The meta role of this process.
pub struct MetaRole {
    manager: Arc<ManagerRole>,
    volume: Arc<OnceCell<Arc<Volume>>>,
    /// Runs once, when a mount first asks for changes.
    follows: Arc<Once>,
    facts: Mutex<Facts>,
}

fn failure(error: VolumeError) -> Failure {
    match error {
        // It may have been done: the client repeats it under the same request id.
        VolumeError::Store(error) => {
            let text = format!("the store of the file namespace: {error}: retry in a moment");
            Failure::new(Status::Busy, text)
        }
        VolumeError::NoChains => Failure::new(Status::Busy, format!("{error}: retry in a moment")),
        error => Failure::new(Status::Internal, error.to_string()),
    }
}

impl MetaRole {
    pub(crate) fn new(manager: Arc<ManagerRole>) -> Self {
        let (volume, follows) = (Arc::default(), Arc::new(Once::new()));
        Self { manager, volume, follows, facts: Mutex::default() }
    }

    /// The volume; opened, and made if absent, on the first call.
    async fn volume(&self, deadline: Tick) -> Result<Arc<Volume>, Failure> {
        if let Some(volume) = self.volume.get() {
            return Ok(Arc::clone(volume));
        }
        let (cell, store) = (Arc::clone(&self.volume), self.manager.store().clone());
        let open = async move {
            let clock = Arc::new(RealClock);
            let opened = cell.get_or_try_init(|| async move {
                Volume::open(store, clock, VolumeOptions::default()).await.map(Arc::new)
            });
            opened.await.map(Arc::clone).map_err(failure)
        };
        self.manager.on_store(open, deadline).await
    }

    /// Executes a request of a client.
    ///
    /// # Errors
    /// [`Failure`]: the request is malformed, or its outcome is unknown and the client repeats it
    /// under the same request id.
    pub(crate) async fn answer(
        &self,
        meta: &[u8],
        routing: &Routing,
        deadline: Tick,
    ) -> Result<Vec<u8>, Failure> {
        let request = MetaRequest::decode(meta)?;
        let work = self.execute(&request, routing, deadline);
        Ok(self.manager.here(work, deadline).await?.encode())
    }

    /// Executes a request of this process, in a task of tokio.
    ///
    /// # Errors
    /// [`Failure`]: the outcome is unknown; repeat it under the same request id.
    pub async fn answer_here(
        &self,
        request: &MetaRequest,
        routing: &Routing,
        deadline: Tick,
    ) -> Result<Answered, Failure> {
        let work = self.execute(request, routing, deadline);
        self.manager.here_in_tokio(work, deadline).await
    }

    async fn execute(
        &self,
        request: &MetaRequest,
        routing: &Routing,
        deadline: Tick,
    ) -> Result<Answered, Failure> {
        let volume = self.volume(deadline).await?;
        self.note_chains(&volume, routing);
        volume.execute(request).await.map_err(failure)
    }

    /// Same as [`Self::answer_here`], for a thread that may block.
    ///
    /// # Errors
    /// Same as [`Self::answer_here`].
    pub fn answer_blocking(
        &self,
        request: &MetaRequest,
        routing: &Routing,
        deadline: Tick,
    ) -> Result<Answered, Failure> {
        self.manager.here_blocking(self.execute(request, routing, deadline), deadline)
    }

    /// Waits for changes that a mount asks for.
    ///
    /// # Errors
    /// [`Failure`]: malformed, or changes are not known at present: ask again in a moment.
    pub(crate) async fn news(&self, meta: &[u8], deadline: Tick) -> Result<Vec<u8>, Failure> {
        let watch = MetaWatch::decode(meta)?;
        let volume = self.volume(deadline).await?;
        self.follow(&volume);
        let work = async move { volume.news(&watch).await.map_err(failure) };
        Ok(self.manager.on_store(work, deadline).await?.encode())
    }

    /// Follows the store's changes, starting when a mount first asks for them.
    fn follow(&self, volume: &Arc<Volume>) {
        self.follows.call_once(|| {
            let volume = Arc::downgrade(volume);
            self.manager.spawn_on_store(async move {
                while let Some(volume) = volume.upgrade() {
                    if let Err(error) = volume.follow().await {
                        tracing::warn!("cannot follow the changes of the file namespace: {error}");
                    }
                    tokio::time::sleep(FOLLOW_PAUSE).await;
                }
            });
        });
    }

    /// Tells the volume which chains exist, for new files.
    fn note_chains(&self, volume: &Volume, routing: &Routing) {
        // Chains of a table are numbered from 1 on, and none is removed.
        let mut chains = [0; _];
        for (count, table) in chains.iter_mut().zip(0u8..) {
            let last = routing.chains.range(ChainId::all_of(table)).next_back();
            *count = last.map_or(0, |(id, _)| id.number());
        }
        let mut facts = self.facts.lock();
        if facts.chains != chains {
            facts.chains = chains;
            volume.set_facts(*facts);
        }
    }

    /// Advances the removal of inodes without a name by one step.
    pub(super) async fn collect(&self, deadline: Tick) -> Result<Collected, Failure> {
        let volume = self.volume(deadline).await?;
        let work = async move { volume.collect().await.map_err(failure) };
        self.manager.on_store(work, deadline).await
    }

    /// Forgets the answers of requests that no client repeats any more.
    pub(super) async fn forget_answers(&self, deadline: Tick) -> Result<(), Failure> {
        let volume = self.volume(deadline).await?;
        let work = async move { volume.forget_answers().await.map_err(failure) };
        self.manager.on_store(work, deadline).await
    }

    /// Garbage with chunks to remove, from a data id on.
    pub(super) async fn garbage(
        &self,
        (from, limit): (u64, usize),
        deadline: Tick,
    ) -> Result<Vec<Garbage>, Failure> {
        let volume = self.volume(deadline).await?;
        let work = async move { volume.garbage(from, limit).await.map_err(failure) };
        self.manager.on_store(work, deadline).await
    }

    /// Forgets garbage after its chunks are removed.
    pub(super) async fn forget_garbage(
        &self,
        data: Vec<u64>,
        deadline: Tick,
    ) -> Result<(), Failure> {
        let volume = self.volume(deadline).await?;
        let work = async move { volume.forget_garbage(&data).await.map_err(failure) };
        self.manager.on_store(work, deadline).await
    }

    /// Files with enough bytes in the store to be moved to chunks.
    pub(super) async fn large(&self, limit: usize, deadline: Tick) -> Result<Vec<Ino>, Failure> {
        let volume = self.volume(deadline).await?;
        let work = async move { volume.large(limit).await.map_err(failure) };
        self.manager.on_store(work, deadline).await
    }

    /// Forgets those of these files that are no longer large.
    pub(super) async fn forget_large(
        &self,
        files: Vec<Ino>,
        deadline: Tick,
    ) -> Result<(), Failure> {
        let volume = self.volume(deadline).await?;
        let work = async move { volume.forget_large(&files).await.map_err(failure) };
        self.manager.on_store(work, deadline).await
    }

    /// Whether it has learned the free space.
    pub(super) fn knows_room(&self) -> bool {
        self.facts.lock().bytes > 0
    }

    /// Notes the space for files: the sum over all disks that take data, with replicas counted
    /// once.
    pub(super) fn note_room(&self, status: &admin::Status) {
        let replicas = u64::from(status.replicas.max(1));
        let disks = status.disks.iter().filter(|disk| disk.healthy && disk.state == "active");
        let (mut bytes, mut used) = (0, 0);
        for disk in disks {
            bytes += disk.capacity_bytes;
            used += disk.used_bytes;
        }
        let mut facts = self.facts.lock();
        facts.bytes = bytes / replicas;
        facts.bytes_free = bytes.saturating_sub(used) / replicas;
        if let Some(volume) = self.volume.get() {
            volume.set_facts(*facts);
        }
    }
}
