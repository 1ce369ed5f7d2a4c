//! The agent that keeps a node in its cluster: registration, heartbeats, long polls. All of it runs
//! on the control thread, so that requests of clients never delay a heartbeat.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, sleep, spawn, timeout};
use millpond_types::cluster::{
    ConfigRecord, DiskOffer, Grant, Heartbeat, HeartbeatAnswer, NodeId, Refusal, Register,
    RegisterAnswer, RoutingUpdate, RoutingVersion, TargetState,
};
use millpond_types::wire::{
    Failure, NamespaceTableReply, NamespaceTableRequest, PROTOCOL_VERSION, Status, Verb,
};
use millpond_types::{ChunkIds, Tick};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::managers::Managers;
use super::seek::refusal;
use super::{Identity, Member, Order, Standing, Targets, TargetsReport};
use crate::link::{Dialer, LinkError};
use crate::manager::ManagerRole;

/// Time between two heartbeats (DESIGN section 5).
const BEAT: Duration = Duration::from_millis(500);
/// Shortest interval between heartbeats that changes trigger.
const BEAT_PAUSE: Duration = Duration::from_millis(10);
/// Time after which an unanswered heartbeat is lost: one more fits into the lease.
const BEAT_MAX: Duration = Duration::from_millis(900);
/// Longest wait for a registration, which takes a transaction of the store.
const REGISTER_MAX: Duration = Duration::from_secs(4);
/// Time for which a manager may hold a request for news.
const POLL: Duration = Duration::from_secs(20);
/// Additional time for the answer to such a request.
const POLL_GRACE: Duration = Duration::from_secs(2);
/// Pause after a failed poll.
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for others to take over at a clean stop.
const LEAVE_MAX: Duration = Duration::from_secs(2);
/// Interval of log lines about a wait.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Settings of an agent at its start.
pub struct AgentSetup {
    /// This process.
    pub identity: Identity,
    /// Its manager role, if any.
    pub manager: Option<Arc<ManagerRole>>,
    /// Addresses of managers, or of any nodes of the cluster.
    pub addresses: Vec<String>,
    /// The credential shown to managers.
    pub token: Vec<u8>,
    /// Version and commit of this program, reported to managers.
    pub build: &'static str,
    /// The disks of this process.
    pub disks: Vec<DiskOffer>,
    /// Receives the cluster's namespaces after every change, before [`Member`] has them.
    pub on_namespaces: OnNamespaces,
}

/// Receives a table of namespaces. It runs on the control thread and must not block.
pub type OnNamespaces = Box<dyn Fn(&NamespaceTableReply) + Send>;

/// The agent. It stays on the control thread.
pub struct Agent {
    member: Arc<Member>,
    managers: Managers,
    targets: Option<Arc<dyn Targets>>,
    build: &'static str,
    disks: Vec<DiskOffer>,
    on_namespaces: OnNamespaces,
    number: Cell<u64>,
    config: RefCell<ConfigRecord>,
    /// A lease that waits for its routing.
    pending: RefCell<Option<(Tick, Grant)>>,
    /// Notified when a heartbeat should leave at once.
    hurry: Arc<Notify>,
    stopping: Cell<bool>,
    /// True once a heartbeat with `stopping` was answered.
    said_stopping: watch::Sender<bool>,
    said: Cell<Tick>,
    /// Refusals in a row, of any kind, before this process was first admitted.
    refusals: Cell<usize>,
}

/// Next action after an answer.
enum Next {
    /// Wait until the next heartbeat is due.
    Wait,
    /// Continue at once.
    Again,
    /// Register first.
    Register,
    /// This process must stop.
    End,
}

/// A member and its agent, which is made later on the control thread.
pub struct Prepared {
    setup: AgentSetup,
    member: Arc<Member>,
    orders: mpsc::Receiver<Order>,
}

impl Prepared {
    /// Makes a member that has contacted no manager yet.
    #[must_use]
    pub fn new(setup: AgentSetup) -> Self {
        let (member, orders) = Member::new(setup.identity.clone(), setup.manager.clone());
        Self { setup, member, orders }
    }

    /// The member, which the server's cores share.
    #[must_use]
    pub fn member(&self) -> Arc<Member> {
        Arc::clone(&self.member)
    }
}

impl Agent {
    /// Starts on this thread; its tasks end with the thread's loop.
    pub fn start(prepared: Prepared, targets: Option<Arc<dyn Targets>>) {
        let Prepared { setup, member, orders } = prepared;
        let dialer = Rc::new(Dialer::new(setup.token));
        let managers = Managers::new(Arc::clone(&member), dialer, &setup.addresses);
        let agent = Rc::new(Self {
            hurry: targets.as_ref().map_or_else(Arc::default, |targets| targets.changed()),
            member,
            managers,
            targets,
            build: setup.build,
            disks: setup.disks,
            on_namespaces: setup.on_namespaces,
            number: Cell::new(0),
            config: RefCell::default(),
            pending: RefCell::default(),
            stopping: Cell::new(false),
            said_stopping: watch::Sender::new(false),
            said: Cell::new(RealClock::tick()),
            refusals: Cell::new(0),
        });
        spawn(Rc::clone(&agent).keep_lease()).detach();
        spawn(Rc::clone(&agent).follow_routing()).detach();
        spawn(Rc::clone(&agent).follow_namespaces()).detach();
        spawn(agent.take_orders(orders)).detach();
    }

    async fn keep_lease(self: Rc<Self>) {
        let mut registered = false;
        loop {
            if !registered {
                match self.register().await {
                    Next::End => return,
                    Next::Wait => registered = true,
                    Next::Again | Next::Register => continue,
                }
            }
            let sent = RealClock::tick();
            match self.beat(sent).await {
                Next::End => return,
                Next::Register => registered = false,
                Next::Again => {}
                Next::Wait => self.until_next(sent).await,
            }
        }
    }

    /// Waits until the next heartbeat is due or something changed.
    async fn until_next(&self, sent: Tick) {
        let left = sent.plus(BEAT).since(RealClock::tick());
        if timeout(left, self.hurry.notified()).await.is_ok() {
            let spacing = sent.plus(BEAT_PAUSE).since(RealClock::tick());
            if !spacing.is_zero() {
                sleep(spacing).await;
            }
        }
    }

    /// Logs a problem, once every `SAY_EVERY` at most.
    fn say(&self, what: &dyn std::fmt::Display) {
        let now = RealClock::tick();
        if now.since(self.said.get()) >= SAY_EVERY {
            self.said.set(now);
            tracing::warn!("no primary manager: {what}");
        }
    }

    /// Handles a failed call to the manager in use.
    async fn unanswered(&self, error: &LinkError) -> Next {
        self.say(error);
        let joining = matches!(*self.member.standing.borrow(), Standing::Joining(_));
        match refusal(error).filter(|_| joining) {
            // Every manager asked refuses this process for good: waiting would not help.
            Some(why) if self.refusals.get() >= self.managers.count() => {
                self.member.refuse(why);
                return Next::End;
            }
            Some(_) => self.refusals.set(self.refusals.get() + 1),
            None => self.refusals.set(0),
        }
        self.managers.turn(true, &[]).await;
        Next::Again
    }

    async fn register(&self) -> Next {
        let deadline = RealClock::tick().plus(REGISTER_MAX);
        let meta = self.introduction().encode();
        let asked = self.managers.ask(Verb::Register, &meta, (deadline, deadline)).await;
        let answer = match asked.map(|bytes| RegisterAnswer::decode(&bytes)) {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                self.say(&error);
                self.managers.turn(true, &[]).await;
                return Next::Again;
            }
            Err(error) => return self.unanswered(&error).await,
        };
        let identity = self.member.identity();
        match answer {
            RegisterAnswer::Accepted { cluster, secret, .. } if cluster == identity.cluster => {
                if let Some(targets) = &self.targets {
                    targets.admitted(ChunkIds::new(secret));
                }
                tracing::info!(node = %identity.node, %cluster, manager = %self.managers.name(),
                    "this node is part of the cluster");
                self.member.standing.send_replace(Standing::Member);
                Next::Wait
            }
            RegisterAnswer::Accepted { cluster, .. } => {
                let (ours, theirs) = (cluster, identity.cluster);
                self.member.refuse(Refusal::Cluster { ours, theirs }.to_string());
                Next::End
            }
            RegisterAnswer::Refused(why) => {
                self.member.refuse(why.to_string());
                Next::End
            }
            RegisterAnswer::Retry { after_ms } => {
                self.say(&"the manager does not accept this process yet");
                sleep(Duration::from_millis(u64::from(after_ms.min(5_000)))).await;
                Next::Again
            }
            RegisterAnswer::NotPrimary(at) => {
                self.say(&format_args!("{} is not primary", self.managers.name()));
                self.managers.turn(false, &at).await;
                Next::Again
            }
        }
    }

    fn introduction(&self) -> Register {
        let identity = self.member.identity();
        Register {
            node: identity.node,
            incarnation: identity.incarnation,
            cluster: identity.cluster,
            addresses: identity.addresses.clone(),
            host: identity.host.clone(),
            domain: identity.domain.clone(),
            build: self.build.to_owned(),
            protocol: PROTOCOL_VERSION,
            meta: self.member.has_meta(),
            disks: self.disks.clone(),
        }
    }

    async fn beat(&self, sent: Tick) -> Next {
        self.number.set(self.number.get() + 1);
        let stopping = self.stopping.get();
        let report = self.targets.as_ref().map_or_else(TargetsReport::default, |t| t.report());
        // The manager assumes that a limit which this heartbeat does not report is out of use: drop
        // those that still wait.
        if let Some((_, grant)) = self.pending.borrow_mut().as_mut() {
            grant.quotas.clear();
        }
        let identity = self.member.identity();
        let heartbeat = Heartbeat {
            node: identity.node,
            incarnation: identity.incarnation,
            number: self.number.get(),
            routing: self.member.routing().version,
            config: self.config.borrow().version,
            stopping,
            targets: report.targets,
            disks: report.disks,
            slots_done: report.slots_done,
            slots_moved: report.slots_moved,
            queue_depth: report.queue_depth,
            quotas: report.quotas,
        };
        let deadline = sent.plus(BEAT_MAX);
        let meta = heartbeat.encode();
        let asked = self.managers.ask(Verb::Heartbeat, &meta, (deadline, deadline)).await;
        let answer = match asked.map(|bytes| HeartbeatAnswer::decode(&bytes)) {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                self.say(&error);
                self.managers.turn(true, &[]).await;
                return Next::Again;
            }
            Err(error) => return self.unanswered(&error).await,
        };
        match answer {
            HeartbeatAnswer::Granted(grant) => {
                self.said.set(RealClock::tick());
                self.granted(sent, grant);
                if stopping {
                    self.said_stopping.send_replace(true);
                }
                Next::Wait
            }
            HeartbeatAnswer::Refused { why: Refusal::Unregistered, .. } => Next::Register,
            HeartbeatAnswer::Refused { why, .. } => {
                self.member.refuse(why.to_string());
                Next::End
            }
            HeartbeatAnswer::NotPrimary(at) => {
                self.say(&format_args!("{} is not primary", self.managers.name()));
                self.managers.turn(false, &at).await;
                Next::Again
            }
        }
    }

    fn granted(&self, sent: Tick, mut grant: Grant) {
        if let Some(config) = grant.config.take() {
            if let Some(targets) = &self.targets {
                targets.config(&config);
            }
            tracing::info!(version = config.version.0, "configuration of the cluster");
            self.config.replace(config);
        }
        self.pending.replace(Some((sent, grant)));
        self.pass_lease_on();
    }

    /// Hands the lease to the targets once they have the routing that it was granted for.
    fn pass_lease_on(&self) {
        let version = self.member.routing().version;
        let ready = |(_, grant): &mut (Tick, Grant)| grant.routing <= version;
        let Some((sent, grant)) = self.pending.borrow_mut().take_if(ready) else { return };
        if grant.lease_ms > 0
            && let Some(targets) = &self.targets
        {
            targets.granted(sent, &grant);
        }
    }

    async fn follow_routing(self: Rc<Self>) {
        let mut afresh = false;
        loop {
            let mut request = self.member.copy.borrow().request();
            if afresh {
                request.have = RoutingVersion(0);
            }
            let asked = self.poll(Verb::Routing, request.encode()).await;
            match asked {
                Some(bytes) if bytes.is_empty() => {}
                Some(bytes) => match RoutingUpdate::decode(&bytes) {
                    Ok(update) => {
                        let (known, told) = (self.member.routing().version, update.version());
                        afresh = !self.take_routing(update);
                        if told < known {
                            self.say_older(told, known);
                        }
                        if self.member.routing().version == known && !afresh {
                            // The same update would come again at once.
                            sleep(POLL_PAUSE).await;
                        }
                    }
                    Err(error) => {
                        tracing::error!("routing from {}: {error}", self.managers.name());
                        afresh = true;
                        sleep(POLL_PAUSE).await;
                    }
                },
                None => {}
            }
        }
    }

    /// Logs that a manager's routing is older than this node's. It is not taken: replicas never go
    /// back.
    fn say_older(&self, told: RoutingVersion, known: RoutingVersion) {
        let now = RealClock::tick();
        if now.since(self.said.get()) >= SAY_EVERY {
            self.said.set(now);
            tracing::error!(
                "routing of {} is at version {}, older than version {} of this node: was the \
                 managers' store restored from a backup? See docs/operations.md",
                self.managers.name(),
                told.0,
                known.0
            );
        }
    }

    /// Applies an update; false if it does not fit.
    fn take_routing(&self, update: RoutingUpdate) -> bool {
        let copy = Arc::clone(&self.member.copy.borrow());
        if let RoutingUpdate::Full(routing) = &update
            && routing.cluster != self.member.identity().cluster
        {
            tracing::error!(cluster = %routing.cluster, "routing of another cluster is ignored");
            return true;
        }
        match copy.after(update) {
            Ok(None) => true,
            Ok(Some(newer)) => {
                let routing = Arc::clone(&newer.routing);
                tracing::debug!(version = routing.version.0, "routing");
                if let Some(targets) = &self.targets {
                    targets.routing(&routing);
                }
                self.member.copy.send_replace(Arc::new(newer));
                self.pass_lease_on();
                // The manager waits for the report that this node uses it.
                self.hurry.notify_one();
                true
            }
            Err(error) => {
                tracing::info!("routing: {error}: requesting all of it");
                false
            }
        }
    }

    /// Waits for news from the manager in use; `None` after a failure or a change of manager.
    async fn poll(&self, verb: Verb, meta: Vec<u8>) -> Option<Vec<u8>> {
        let mut moves = self.managers.moves();
        let asked_at = RealClock::tick();
        let server_deadline = asked_at.plus(POLL);
        let deadline = server_deadline.plus(POLL_GRACE);
        let asked = tokio::select! {
            asked = self.managers.ask(verb, &meta, (deadline, server_deadline)) => asked,
            _ = moves.changed() => return None,
        };
        match asked {
            Ok(bytes) => {
                // A stopping process, which may be this one, answers at once that there is no news.
                if bytes.is_empty() && RealClock::tick().since(asked_at) < POLL_PAUSE {
                    sleep(POLL_PAUSE).await;
                }
                Some(bytes)
            }
            Err(error) => {
                tracing::debug!("{}: {error}", verb.name());
                sleep(POLL_PAUSE).await;
                None
            }
        }
    }

    async fn follow_namespaces(self: Rc<Self>) {
        if let Some(manager) = self.member.manager() {
            let mut news = manager.namespaces();
            loop {
                let table = Arc::clone(&news.borrow_and_update());
                self.take_namespaces(table);
                if news.changed().await.is_err() {
                    return;
                }
            }
        }
        loop {
            let have = self.member.names.borrow().version;
            let meta = NamespaceTableRequest { have }.encode();
            let Some(bytes) = self.poll(Verb::NamespaceTable, meta).await else { continue };
            if bytes.is_empty() {
                continue;
            }
            match NamespaceTableReply::decode(&bytes) {
                Ok(table) => self.take_namespaces(Arc::new(table)),
                Err(error) => {
                    tracing::error!("namespaces from {}: {error}", self.managers.name());
                    sleep(POLL_PAUSE).await;
                }
            }
        }
    }

    fn take_namespaces(&self, table: Arc<NamespaceTableReply>) {
        if table.version <= self.member.names.borrow().version {
            return;
        }
        tracing::debug!(version = table.version, "namespaces");
        // Before a new namespace can be used: a quota holds from its first put.
        if let Some(targets) = &self.targets {
            targets.namespaces(&table);
        }
        (self.on_namespaces)(&table);
        self.member.names.send_replace(table);
    }

    async fn take_orders(self: Rc<Self>, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.recv().await {
            let this = Rc::clone(&self);
            match order {
                Order::Forward(verb, meta, deadline, answer) => {
                    spawn(async move {
                        let _gone = answer.send(this.forward(verb, &meta, deadline).await);
                    })
                    .detach();
                }
                Order::Leave(done) => spawn(this.leave(done)).detach(),
            }
        }
    }

    async fn forward(&self, verb: Verb, meta: &[u8], deadline: Tick) -> Result<Vec<u8>, Failure> {
        let lost = || {
            let text = "no primary manager answers: retry in a few seconds";
            Failure { retry_after_ms: 500, ..Failure::new(Status::Busy, text.to_owned()) }
        };
        // Requests are forwarded to another process only: this one would have carried it out.
        if self.managers.is_here() || *self.member.standing.borrow() != Standing::Member {
            return Err(lost());
        }
        let asked = self.managers.ask(verb, meta, (deadline, deadline)).await;
        asked.map_err(LinkError::into_failure)
    }

    /// Reports that this process stops, and waits until routing sends no client here any more.
    async fn leave(self: Rc<Self>, done: oneshot::Sender<()>) {
        self.stopping.set(true);
        if let Some(targets) = &self.targets {
            targets.leave();
        }
        self.hurry.notify_one();
        if *self.member.standing.borrow() == Standing::Member {
            let until = RealClock::tick().plus(LEAVE_MAX);
            let mut said = self.said_stopping.subscribe();
            // Its return value locks the sender.
            drop(timeout(LEAVE_MAX, said.wait_for(|said| *said)).await);
            let node = self.member.identity().node;
            let gone = super::wait_for(self.member.copy.subscribe(), until, |copy| {
                let mut chains = copy.routing.chains.values();
                (!chains.any(|chain| serves(chain, node))).then_some(())
            });
            if gone.await.is_none() {
                tracing::warn!("the manager did not remove this node from its chains in time");
            }
        }
        let _gone = done.send(());
    }
}

fn serves(chain: &millpond_types::cluster::Chain, node: NodeId) -> bool {
    chain.targets.iter().any(|member| {
        member.node == node && matches!(member.state, TargetState::Serving | TargetState::Syncing)
    })
}
