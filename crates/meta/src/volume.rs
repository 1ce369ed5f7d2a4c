//! A volume: one file namespace, and the operations that a meta executes on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::Clock;
use millpond_store::{KeyRange, RequestId, Store, StoreErrorKind, Transaction};
use millpond_types::limits::REPLICAS_MAX;
use millpond_types::meta::object::ObjectOp;
use millpond_types::meta::{
    After, Answered, Create, Layout, MetaError, MetaOp, MetaReply, MetaRequest, NUMBERS_MAX,
    Rename, Timestamp, Usage, VOLUME_FORMAT, VolumeRecord, keys,
};
use millpond_types::wire::Record;
use parking_lot::Mutex;

use crate::delegation::{Delegated, Delegations};
use crate::entry::Fresh;
use crate::error::{Failed, VolumeError};
use crate::feed::Feed;
use crate::ids::{Ids, given_out};
use crate::view::{View, opened};
use crate::{
    attr, content, delegation, dir, entry, lock, object, quota, records, rename, repair, session,
    share, trash, xattr,
};

/// Options of a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeOptions {
    /// Layout of new files, when the volume is made; seed and chains are set for each file.
    pub layout: Layout,
    /// A session ends this long after its last renewal.
    pub session_lease: Duration,
}

impl Default for VolumeOptions {
    /// Chunks of 256 KiB over 16 chains, sessions of 60 s.
    fn default() -> Self {
        Self {
            layout: Layout { chunk_log2: 18, stripe: 16, seed: 0, chains: 0, table: 0 },
            session_lease: Duration::from_mins(1),
        }
    }
}

/// Facts about the cluster; they change while the volume is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Chains of each chain table: the cluster's own, then by the replicas of their chains.
    pub chains: [u32; REPLICAS_MAX as usize + 1],
    /// Bytes that files may have, replicas counted once.
    pub bytes: u64,
    /// Free bytes of these.
    pub bytes_free: u64,
}

/// A file namespace in a store. Any number of processes may have it open.
pub struct Volume {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: VolumeOptions,
    ids: Ids,
    record: VolumeRecord,
    facts: Mutex<Facts>,
    pub(crate) feed: Feed,
    /// Orphans that the next round of collection looks at; `None` for all.
    pub(crate) uncollected: Mutex<Option<KeyRange>>,
    /// The same for locks of sessions that have ended.
    pub(crate) unreleased: Mutex<Option<KeyRange>>,
    /// The same for records of the trash.
    pub(crate) unexpired: Mutex<Option<KeyRange>>,
    /// Recalls of directories, and former holders.
    pub(crate) delegations: Arc<Delegations>,
    /// No session is ended before this time: while no meta reached the store, none could be
    /// renewed.
    pub(crate) grace_until: Mutex<Timestamp>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("record", &self.record).finish_non_exhaustive()
    }
}

pub(crate) fn broken(failed: Failed) -> VolumeError {
    match failed {
        Failed::Broken(error) => error,
        Failed::Refused(error) => {
            VolumeError::Store(millpond_store::StoreError::Unavailable(Box::new(error)))
        }
        Failed::Delegated(_) => broken(MetaError::Again.into()),
    }
}

/// Hours for which answers are kept: clients repeat a request for an hour at most, and clocks
/// differ.
const ANSWERS_KEPT_HOURS: u64 = 3;

impl Volume {
    /// Opens the volume of a store, and makes it if there is none.
    ///
    /// # Errors
    /// [`VolumeError`] when the store does not answer, or holds a volume of a newer format.
    pub async fn open(
        store: Store,
        clock: Arc<dyn Clock>,
        options: VolumeOptions,
    ) -> Result<Self, VolumeError> {
        let now = Timestamp::from_unix_nanos(clock.unix_nanos());
        let record = loop {
            let made = store.transact(|txn| found(txn, options.layout, now)).await;
            match made {
                // Made or not: the next attempt reads it.
                Err(Failed::Broken(VolumeError::Store(error)))
                    if error.kind() == StoreErrorKind::Unknown => {}
                made => break made.map_err(broken)?,
            }
        };
        if record.format > VOLUME_FORMAT {
            return Err(VolumeError::Format { found: record.format, known: VOLUME_FORMAT });
        }
        let volume = Self {
            store,
            clock,
            options,
            ids: Ids::default(),
            record,
            facts: Mutex::default(),
            feed: Feed::default(),
            uncollected: Mutex::default(),
            unreleased: Mutex::default(),
            unexpired: Mutex::default(),
            delegations: Arc::default(),
            grace_until: Mutex::default(),
        };
        volume.grant_grace();
        Ok(volume)
    }

    /// Gives all sessions the time of one lease to renew.
    pub(crate) fn grant_grace(&self) {
        let lease = i64::try_from(self.options.session_lease.as_secs()).unwrap_or(i64::MAX);
        let now = self.now();
        let secs = now.secs.saturating_add(lease).saturating_add(1);
        *self.grace_until.lock() = Timestamp { secs, ..now };
    }

    /// Forgets the answers of requests from hours that are long over, which no client repeats any
    /// more. After that, such requests are refused (`ESTALE`). Call it every few minutes; the first
    /// call after a long time takes long.
    ///
    /// An hour counts only when something was changed in it or since, so that a meta with a clock
    /// ahead of the others does not cause refusals.
    ///
    /// # Errors
    /// [`VolumeError`]; calling again continues.
    pub async fn forget_answers(&self) -> Result<(), VolumeError> {
        let hour = u64::try_from(self.now().secs / 3600).unwrap_or(0);
        let done = async {
            if self.store.has_requests_since(hour.saturating_sub(1)).await? {
                self.store.forget_requests(hour.saturating_sub(ANSWERS_KEPT_HOURS)).await?;
            }
            Ok(())
        };
        done.await.map_err(VolumeError::Store)
    }

    /// Sets the facts about the cluster.
    pub fn set_facts(&self, facts: Facts) {
        *self.facts.lock() = facts;
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(self.clock.unix_nanos())
    }

    pub(crate) async fn fresh_id(&self) -> Result<u64, Failed> {
        self.ids.next(&self.store).await
    }

    async fn take_numbers(&self, count: u32) -> Result<MetaReply, Failed> {
        if count == 0 || count > NUMBERS_MAX {
            return Err(MetaError::Invalid.into());
        }
        let taken = self.ids.take(&self.store, u64::from(count)).await?;
        Ok(MetaReply::Numbers { first: taken.start })
    }

    /// Returns the number of a new inode or data id, if the operation makes one.
    async fn id_for(&self, op: &MetaOp) -> Result<u64, Failed> {
        match op {
            MetaOp::Create(Create { promised: Some(promised), .. }) => {
                let taken = self.ids.is_taken(&self.store, promised.ino.0).await?;
                if taken { Ok(promised.ino.0) } else { Err(MetaError::Invalid.into()) }
            }
            MetaOp::Create(_)
            | MetaOp::Reserve(_)
            | MetaOp::PutFile(_)
            | MetaOp::Clone(_)
            | MetaOp::Unshare { .. }
            | MetaOp::Rename(Rename { whiteout: true, .. }) => self.fresh_id().await,
            MetaOp::SetAttr { set, .. } if set.size == Some(0) => self.fresh_id().await,
            MetaOp::Object(ObjectOp::Nameless { ino, .. }) => {
                let taken = self.ids.is_taken(&self.store, ino.0).await?;
                if taken { Ok(ino.0) } else { Err(MetaError::Invalid.into()) }
            }
            MetaOp::Object(op) if op.takes_id() => self.fresh_id().await,
            MetaOp::Repair(repair) if repair.takes_id() => self.fresh_id().await,
            _ => Ok(0),
        }
    }

    /// Executes a request.
    ///
    /// A change is durable once this returns, and made once however often it is requested. Dropping
    /// the future leaves it undecided: ask again with the same sequence.
    ///
    /// # Errors
    /// [`VolumeError`]: it may have been done or not; ask again with the same sequence.
    pub async fn execute(&self, request: &MetaRequest) -> Result<Answered, VolumeError> {
        loop {
            match self.attempt(request).await? {
                Ok(answered) => return Ok(answered),
                Err(held) => self.recall(&held).await?,
            }
        }
    }

    /// Executes a request, unless another session holds a directory that it reads.
    async fn attempt(
        &self,
        request: &MetaRequest,
    ) -> Result<Result<Answered, Delegated>, VolumeError> {
        let (mut version, mut after) = (0, After::default());
        let done = match &request.op {
            MetaOp::SessionOpen { name } => session::open(self, name).await,
            MetaOp::SessionRenew { open, closed } => {
                session::renew(self, request.session, (open, closed)).await
            }
            MetaOp::SessionClose => session::close(self, request.session).await,
            MetaOp::TakeNumbers { count } => self.take_numbers(*count).await,
            op if op.changes() => {
                let done = self.once(request, (&mut version, &mut after)).await;
                if done.is_ok() {
                    object::after(self, request).await.or_else(Failed::refused_is_done)?;
                }
                done
            }
            _ => {
                let view = View::of(self, self.store.begin(), request.session);
                let done = self.look(&view, request).await;
                // The absence of a name also holds as of a version.
                version = view.txn.version().await.map_or(0, |version| version.0);
                done
            }
        };
        if let Err(Failed::Delegated(held)) = done {
            return Ok(Err(held));
        }
        let answer = done.map_or_else(Failed::answer, |reply| Ok(Ok(reply)))?;
        Ok(Ok(Answered { answer, version, after }))
    }

    /// Makes a change once. `version` gets the state of the store that it was made in, and `after`
    /// the state that it left; both stay unchanged if it had been made before, or is refused.
    async fn once(
        &self,
        request: &MetaRequest,
        (version, after): (&mut u64, &mut After),
    ) -> Result<MetaReply, Failed> {
        if request.session == 0 {
            // Sequences of several clients would be confused.
            return Err(MetaError::Stale.into());
        }
        let is_lock = matches!(request.op, MetaOp::SetLock { .. });
        let name = RequestId {
            epoch: u64::from(request.hour),
            id: u128::from(request.session) << 64 | u128::from(request.sequence),
        };
        if matches!(&request.op, MetaOp::Object(_)) {
            Box::pin(self.prepare(request, name)).await?;
        }
        let id = self.id_for(&request.op).await?;
        let (seen, dirs) = (&AtomicU64::new(0), &Mutex::new(Vec::new()));
        let work = |txn: Transaction| async move {
            let view = View::of(self, txn, request.session);
            let reply = self.change(&view, request, id).await?;
            seen.store(view.txn.version().await?.0, Ordering::Relaxed);
            *dirs.lock() = view.touched();
            Ok(reply)
        };
        let done = self.store.transact_once(name, work).await;
        if let Ok(Some(made)) = done.as_ref().map(|reply| reply.version) {
            *version = seen.load(Ordering::Relaxed);
            *after = After { version: made.0, dirs: std::mem::take(&mut *dirs.lock()) };
        }
        let done = match done {
            // An answer is final: a delayed second attempt must not make the change after all.
            Err(Failed::Refused(error)) if error != MetaError::Again || is_lock => {
                let answer = &MetaReply::encode_answer(&Err(error));
                let refused = |_| async move { Ok::<_, Failed>(answer.clone()) };
                self.store.transact_once(name, refused).await?
            }
            done => done?,
        };
        match MetaReply::decode_answer(&done.bytes) {
            Ok(answer) => answer.map_err(Failed::Refused),
            Err(source) => {
                let key = format!("of request {name:?}");
                Err(Failed::Broken(VolumeError::Record { key, source }))
            }
        }
    }

    /// Does the work that an operation on objects needs before its transaction.
    async fn prepare(&self, request: &MetaRequest, name: RequestId) -> Result<(), Failed> {
        let removes = matches!(&request.op, MetaOp::Object(ObjectOp::RemoveBucket { .. }));
        if removes && self.store.is_done(name).await? {
            // Another client may have made a bucket of that name since.
            return Ok(());
        }
        match object::before(self, request).await {
            // The transaction is refused for the same reason, and that is its answer for ever.
            Err(Failed::Refused(_)) => Ok(()),
            done => done,
        }
    }

    async fn change(&self, view: &View, request: &MetaRequest, id: u64) -> Result<Vec<u8>, Failed> {
        let caller = &request.caller;
        let reply = match &request.op {
            MetaOp::Create(create) => {
                let fresh = Fresh { id, layout: self.layout(id, 0) };
                entry::create(view, caller, create, fresh).await?
            }
            MetaOp::SetAttr { ino, set } => attr::set(view, caller, (*ino, *set), id).await?,
            MetaOp::Extend(extend) => attr::extend(view, extend).await?,
            MetaOp::Hollow(hollow) => attr::hollow(view, *hollow).await?,
            MetaOp::Link { ino, parent, name } => {
                entry::link(view, caller, *ino, (*parent, name)).await?
            }
            MetaOp::Unlink { parent, name, of } => {
                entry::unlink(view, caller, (*parent, name), *of).await?
            }
            MetaOp::Return { dirs } => delegation::give_back(view, dirs).await?,
            MetaOp::RemoveDir { parent, name } => {
                entry::remove_dir(view, caller, *parent, name).await?
            }
            MetaOp::Rename(wanted) => rename::rename(view, caller, wanted, id).await?,
            MetaOp::SetXattr(set) => xattr::set(view, caller, set).await?,
            MetaOp::RemoveXattr { ino, name } => xattr::remove(view, caller, *ino, name).await?,
            MetaOp::SetLock { ino, lock } => {
                lock::set(view, request.session, (*ino, *lock)).await?
            }
            MetaOp::SetQuota { dir, limits } => quota::set(view, caller, (*dir, *limits)).await?,
            MetaOp::Repair(wanted) => repair::repair(view, caller, wanted, id).await?,
            MetaOp::Trash(wanted) => trash::change(view, caller, wanted).await?,
            MetaOp::WriteInline(write) => content::write(view, write).await?,
            MetaOp::Reserve(reserve) => content::reserve(view, *reserve, id).await?,
            MetaOp::Spill(spill) => content::spill(view, *spill).await?,
            MetaOp::PutFile(put) => {
                let fresh = Fresh { id, layout: self.layout(id, 0) };
                content::put(view, caller, put, fresh).await?
            }
            MetaOp::Share { ino } => share::begin(view, caller, *ino).await?,
            MetaOp::Clone(wanted) => {
                let fresh = Fresh { id, layout: self.layout(id, 0) };
                share::clone(view, caller, wanted, fresh).await?
            }
            MetaOp::Object(op) => {
                let fresh = Fresh { id, layout: self.layout(id, op.replicas()) };
                object::change(view, self, request, (op, fresh)).await?
            }
            MetaOp::Unshare { ino, chunks } => share::unshare(view, (*ino, *chunks), id).await?,
            _ => return Err(MetaError::NotSupported.into()),
        };
        // The mount that made the change need not hear of it.
        view.txn.put(keys::BY, request.session.to_be_bytes())?;
        Ok(MetaReply::encode_answer(&Ok(reply)))
    }

    async fn look(&self, view: &View, request: &MetaRequest) -> Result<MetaReply, Failed> {
        let caller = &request.caller;
        match &request.op {
            MetaOp::Lookup { parent, name } => entry::lookup(view, caller, *parent, name).await,
            MetaOp::Content { ino } => content::look(view, *ino).await,
            MetaOp::Object(op) => object::look(view, caller, op).await,
            MetaOp::Shared { chunks } => share::look(view, *chunks).await,
            MetaOp::GetFile { path } => content::get(view, caller, path).await,
            MetaOp::Recalled => delegation::recalled(self, view).await,
            MetaOp::GetAttr { ino } => view.attr(*ino).await.map(MetaReply::Attr),
            MetaOp::ReadLink { ino } => attr::target(view, *ino).await,
            MetaOp::ReadDir(page) => dir::read(view, caller, *page).await,
            MetaOp::GetXattr { ino, name } => xattr::get(view, caller, *ino, name).await,
            MetaOp::ListXattr { ino } => xattr::list(view, *ino).await,
            MetaOp::Usage => self.usage().await.map(MetaReply::Usage),
            MetaOp::UsageAt { dir } => quota::usage(view, *dir, self.usage().await?).await,
            MetaOp::GetLock { ino, lock } => lock::get(view, request.session, (*ino, *lock)).await,
            MetaOp::GetQuota { ino } => quota::get(view, *ino).await,
            MetaOp::Records(range) => records::page(&self.store, caller, range).await,
            MetaOp::RecordsAt { keys } => records::at_once(&self.store, caller, keys).await,
            MetaOp::TrashList { dir, after, limit } => {
                trash::list(view, caller, (*dir, *after), *limit).await
            }
            _ => Err(MetaError::NotSupported.into()),
        }
    }

    async fn usage(&self) -> Result<Usage, Failed> {
        let facts = *self.facts.lock();
        let inodes = given_out(&self.store).await?;
        Ok(Usage { bytes: facts.bytes, bytes_free: facts.bytes_free, inodes })
    }

    /// Returns the layout of a new file on chains of a table.
    fn layout(&self, id: u64, table: u8) -> Layout {
        let chains = self.facts.lock().chains.get(usize::from(table)).copied().unwrap_or(0);
        // Files made one after the other begin on chains far from each other (Fibonacci hashing).
        let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let seed = u32::try_from(mixed % u64::from(chains.max(1))).unwrap_or(0);
        Layout { seed, chains, table, ..self.record.layout }
    }
}

/// Reads the volume's record; makes it with its root if there is none.
async fn found(txn: Transaction, layout: Layout, now: Timestamp) -> Result<VolumeRecord, Failed> {
    if let Some(bytes) = txn.get(keys::VOLUME).await? {
        let record: VolumeRecord = opened(keys::VOLUME, &bytes)?;
        if record.format < VOLUME_FORMAT {
            let record = VolumeRecord { format: VOLUME_FORMAT, ..record };
            txn.put(keys::VOLUME, record.seal())?;
            return Ok(record);
        }
        return Ok(record);
    }
    let record = VolumeRecord { format: VOLUME_FORMAT, layout, created: now };
    txn.put(keys::VOLUME, record.seal())?;
    repair::make_root(&View::new(txn, now))?;
    Ok(record)
}
