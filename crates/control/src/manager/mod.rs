//! The manager role: the pure manager of `cluster` over a store, sockets and clocks.
//!
//! `store` is the store's thread, `shell` the loop that drives the manager on the node's control
//! thread, `probe` checks whether a node's process lives, `namespaces` changes the table of
//! namespaces, `layout` compares layouts, `table` is the namespace table on the disks of a server
//! that stood alone. [`ManagerRole`] is the interface to the rest of the server: it answers
//! requests from any core.
//!
//! Invariant: every answer about membership comes from the one primary; any other manager answers
//! that it is not primary.

mod layout;
mod namespaces;
mod probe;
mod shell;
mod store;
mod table;

use std::future::poll_fn;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use millpond_cluster::manager::{
    AdminAnswer, AdminCommand, Event, Form, Manager, ManagerOptions, Role,
};
use millpond_env::{EnvError, Handle, RealClock, Rng, timeout};
use millpond_store::{Store, StoreChoice, StoreError};
use millpond_types::cluster::{
    Heartbeat, HeartbeatAnswer, NodeId, Register, RegisterAnswer, RoutingUpdate, RoutingVersion,
};
use millpond_types::wire::{Failure, NamespaceOpen, NamespaceSet, NamespaceTableReply, Status};
use millpond_types::{ClusterSecret, NamespaceInfo, Tick, Uuid128};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::link::Dialer;
pub(crate) use layout::checked_layout;
use shell::{Input, Shell};
use store::{StoreOwner, StoreThread};
pub use table::{NamespaceTable, TABLE_CHUNK};

/// Maximum requests that wait for the loop; each takes microseconds.
const INBOX_MAX: usize = 4096;

/// Settings of a manager at its start.
pub struct ManagerSetup {
    /// The node it runs in.
    pub me: NodeId,
    /// Addresses at which it is reached.
    pub addresses: Vec<String>,
    /// Identity of the cluster if it founds one; left out: a random one.
    pub new_cluster: Option<Uuid128>,
    /// The store of its records.
    pub store: StoreChoice,
    /// Chains that it makes by itself at first, if any.
    pub form: Option<Form>,
    /// Credential shown to nodes.
    pub token: Vec<u8>,
}

/// The manager role of this process.
pub struct ManagerRole {
    inbox: mpsc::Sender<Input>,
    role: watch::Receiver<Role>,
    store: StoreThread,
    owner: Mutex<Option<StoreOwner>>,
    founded: watch::Receiver<Option<Uuid128>>,
    names: watch::Receiver<Arc<NamespaceTableReply>>,
    names_known: Arc<AtomicBool>,
}

/// Error at the start of the manager role.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Its store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system.
    #[error(transparent)]
    Env(#[from] EnvError),
}

impl From<std::io::Error> for ManagerError {
    fn from(source: std::io::Error) -> Self {
        Self::Env(EnvError::Os { what: "starting the manager".to_owned(), source })
    }
}

fn busy() -> Failure {
    Failure::new(Status::Busy, "the manager is overloaded: retry in a moment".to_owned())
}

fn late() -> Failure {
    let text = "the cluster's store did not answer in time";
    Failure::new(Status::DeadlineExceeded, text.to_owned())
}

/// Unparks a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl ManagerRole {
    /// Opens the store in `folder` (or as the setup says) and starts the loop on `control`.
    ///
    /// # Errors
    /// [`ManagerError`] when the store cannot be opened.
    pub fn start(
        setup: ManagerSetup,
        folder: &Path,
        control: &Handle,
    ) -> Result<Self, ManagerError> {
        let (mut random, mut secret) = ([0; 24], [0; 16]);
        Rng::fill_from_os(&mut random)?;
        Rng::fill_from_os(&mut secret)?;
        let (cluster, seed) = random.split_at(16);
        let random_cluster = || Uuid128::from_random(cluster.try_into().unwrap_or_default());
        let options = ManagerOptions {
            addresses: setup.addresses,
            new_cluster: setup.new_cluster.unwrap_or_else(random_cluster),
            seed: u64::from_le_bytes(seed.try_into().unwrap_or_default()),
            secret: Some(ClusterSecret(secret)),
            is_alone: setup.store == StoreChoice::Embedded,
            form: setup.form,
            ..ManagerOptions::new(setup.me)
        };
        let (store, owner) = store::start(setup.store, folder.to_owned())?;
        let (names, names_known) = namespaces::follow(&store);
        let (sender, receiver) = mpsc::channel(INBOX_MAX);
        let (role, roles) = watch::channel(Role::Standby);
        let this = Self {
            inbox: sender.clone(),
            role: roles,
            founded: store.watch_founding(),
            names,
            names_known,
            owner: Mutex::new(Some(owner)),
            store: store.clone(),
        };
        let token = setup.token;
        control.spawn_on(move || async move {
            let dialer = Rc::new(Dialer::new(token));
            let manager = Manager::new(options);
            Shell::new(manager, (sender, receiver), store, dialer, role).run().await;
        })?;
        Ok(this)
    }

    /// The cluster's identity, once it has been founded.
    pub fn cluster(&self) -> Option<Uuid128> {
        *self.founded.borrow()
    }

    /// Role of this manager.
    pub(crate) fn role(&self) -> Role {
        *self.role.borrow()
    }

    /// Whether this manager is primary.
    pub(crate) fn is_primary(&self) -> bool {
        self.role() == Role::Primary
    }

    /// Role of this manager, now and after every change.
    pub(crate) fn role_changes(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// Sends an input to the loop and waits for its answer until `deadline`.
    async fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> Input,
        deadline: Tick,
    ) -> Result<T, Failure> {
        let (sender, receiver) = oneshot::channel();
        self.inbox.try_send(make(sender)).map_err(|_| busy())?;
        let Ok(answer) = timeout(deadline.since(RealClock::tick()), receiver).await else {
            let text = "the manager did not decide in time: its store may be slow or unreachable";
            return Err(Failure::new(Status::DeadlineExceeded, text.to_owned()));
        };
        answer.map_err(|_| busy())
    }

    /// Handles the registration of a node.
    pub(crate) async fn register(
        &self,
        register: Register,
        deadline: Tick,
    ) -> Result<RegisterAnswer, Failure> {
        self.ask(|answer| Input::Register(Box::new(register), answer), deadline).await
    }

    /// Handles the heartbeat of a node.
    pub(crate) async fn heartbeat(
        &self,
        heartbeat: Heartbeat,
        deadline: Tick,
    ) -> Result<HeartbeatAnswer, Failure> {
        self.ask(|answer| Input::Heartbeat(Box::new(heartbeat), answer), deadline).await
    }

    /// Handles the command of an operator.
    pub(crate) async fn admin(
        &self,
        command: AdminCommand,
        deadline: Tick,
    ) -> Result<AdminAnswer, Failure> {
        self.ask(|answer| Input::Admin(command, answer), deadline).await
    }

    /// Waits for routing newer than `have`; `None` if this manager is not primary (any more) or the
    /// deadline passes.
    pub(crate) async fn routing(
        &self,
        (cluster, have): (Uuid128, RoutingVersion),
        deadline: Tick,
    ) -> Option<RoutingUpdate> {
        if !self.is_primary() {
            return None;
        }
        self.ask(|answer| Input::Routing(cluster, have, answer), deadline).await.ok().flatten()
    }

    /// Notes a suspicion: this node did not answer somebody.
    pub(crate) fn suspect(&self, node: NodeId) {
        // Dropped if the loop is overloaded: the manager also probes by itself.
        let _ = self.inbox.try_send(Input::Event(Event::Suspect { node }));
    }

    /// The namespaces, now and after every change.
    pub(crate) fn namespaces(&self) -> watch::Receiver<Arc<NamespaceTableReply>> {
        self.names.clone()
    }

    /// Whether the namespaces have been read from the store; the table is empty until then.
    pub(crate) fn knows_namespaces(&self) -> bool {
        self.names_known.load(Ordering::Acquire)
    }

    /// The store, for work [on its thread](Self::on_store).
    pub(crate) fn store(&self) -> &Store {
        self.store.store()
    }

    /// Runs `work` with the store on the caller's thread until `deadline`; no other thread is woken
    /// for it.
    pub(crate) async fn here<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        deadline: Tick,
    ) -> Result<T, Failure> {
        let left = deadline.since(RealClock::tick());
        timeout(left, self.entered(pin!(work))).await.unwrap_or_else(|_| Err(late()))
    }

    /// Same as `here`, in a task of tokio.
    pub(crate) async fn here_in_tokio<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        deadline: Tick,
    ) -> Result<T, Failure> {
        let left = deadline.since(RealClock::tick());
        tokio::time::timeout(left, self.entered(pin!(work))).await.unwrap_or_else(|_| Err(late()))
    }

    /// Enters the store's runtime at every poll of `work`: timers of the store, and tasks that it
    /// spawns, belong to tokio. They run on the store's thread and wake the waiting task.
    fn entered<F: Future>(&self, mut work: Pin<&mut F>) -> impl Future<Output = F::Output> {
        let handle = self.store.handle();
        poll_fn(move |context| {
            let _entered = handle.enter();
            work.as_mut().poll(context)
        })
    }

    /// Same as `here`, on a thread that may block.
    pub(crate) fn here_blocking<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        deadline: Tick,
    ) -> Result<T, Failure> {
        let work = pin!(work);
        let mut work = pin!(self.entered(work));
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
                return done;
            }
            let left = deadline.since(RealClock::tick());
            if left.is_zero() {
                return Err(late());
            }
            std::thread::park_timeout(left);
        }
    }

    /// Runs `work` on the store's thread until that ends.
    pub(crate) fn spawn_on_store(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.store.handle().spawn(work));
    }

    /// Runs `work` on the store's thread until `deadline`.
    pub(crate) async fn on_store<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
        deadline: Tick,
    ) -> Result<T, Failure> {
        let left = deadline.since(RealClock::tick());
        // The timer is one of tokio's, which can be made on that thread only.
        let bounded = async move { tokio::time::timeout(left, work).await };
        let task = self.store.handle().spawn(bounded);
        match task.await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(late()),
            Err(_) => Err(busy()),
        }
    }

    /// Opens a namespace, creating it if asked to.
    pub(crate) async fn open_namespace(
        &self,
        open: NamespaceOpen,
        deadline: Tick,
    ) -> Result<NamespaceInfo, Failure> {
        let store = self.store.store().clone();
        self.on_store(async move { namespaces::open(&store, &open).await }, deadline).await
    }

    /// Changes options of a namespace.
    pub(crate) async fn set_namespace(
        &self,
        set: NamespaceSet,
        deadline: Tick,
    ) -> Result<NamespaceInfo, Failure> {
        let store = self.store.store().clone();
        self.on_store(async move { namespaces::set(&store, &set).await }, deadline).await
    }

    /// Takes over the namespaces of a server of an earlier version, with their ids.
    ///
    /// # Errors
    /// [`Failure`] of the store; some namespaces may have been taken over by then.
    pub async fn adopt_namespaces(
        &self,
        table: NamespaceTable,
        deadline: Tick,
    ) -> Result<(), Failure> {
        let store = self.store.store().clone();
        self.on_store(async move { namespaces::adopt(&store, &table).await }, deadline).await
    }

    /// Drops a namespace.
    pub(crate) async fn drop_namespace(&self, name: String, deadline: Tick) -> Result<(), Failure> {
        let store = self.store.store().clone();
        self.on_store(async move { namespaces::drop(&store, &name).await }, deadline).await
    }

    /// Returns the lease, so that a standby need not wait for its expiry, and closes the store.
    pub(crate) async fn stop(&self) {
        let (sender, receiver) = oneshot::channel();
        if self.inbox.send(Input::Stop(sender)).await.is_ok() {
            let _ = receiver.await;
        }
        let owner = self.owner.lock().take();
        drop(owner);
    }
}
