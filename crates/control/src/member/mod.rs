//! The agent of every node of a cluster: it registers, keeps the node's lease, and has copies of
//! routing, namespaces and configuration for this node's clients and for other nodes.
//!
//! Reading order: [`Targets`] (the replicas that it drives), `copy` (routing, and updates for
//! copies behind it), [`Member`] (shared by the server's cores: answers to requests about the
//! cluster), `managers` (finding the primary), `agent` (registration, heartbeats, long polls; on
//! the control thread), `seek` (the cluster that a new disk joins).
//!
//! Invariants: a lease reaches the targets only together with the routing it was granted for; a
//! manager that is not primary forwards a request only within the request's own deadline.

mod agent;
mod copy;
mod identity;
mod managers;
mod seek;
mod targets;

pub use agent::{Agent, AgentSetup, OnNamespaces, Prepared};
pub use identity::{Identity, addresses, host_name, load_node, save_node};
pub use seek::{Seek, Vain};
pub use targets::{Targets, TargetsReport};

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_cluster::manager::Role;
use millpond_env::{RealClock, timeout};
use millpond_types::cluster::{
    Heartbeat, HeartbeatAnswer, NodeId, Register, RegisterAnswer, Routing,
};
use millpond_types::limits::ADDRESSES_MAX;
use millpond_types::wire::{
    Failure, NamespaceOpen, NamespaceRef, NamespaceSet, NamespaceTableReply, NamespaceTableRequest,
    NamespacesReply, RoutingRequest, Status, SuspectRequest, Verb,
};
use millpond_types::{NamespaceInfo, Tick};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::admin;
use crate::manager::{ManagerRole, checked_layout};
use crate::meta::MetaRole;
use copy::RoutingCopy;

/// Maximum requests that wait for news in the whole process: one per connection.
const WAITERS_MAX: usize = 16_384;
/// Maximum requests that wait to be forwarded to a manager.
const INBOX_MAX: usize = 1024;
/// Shortest interval between suspicions of one node: a manager probes no sooner.
const SUSPECT_EVERY: Duration = Duration::from_millis(100);
/// Maximum remembered suspicions.
const SUSPECTS_MAX: usize = 1024;
/// Time taken off a request's deadline when it is forwarded, so that a request that circles while
/// managers change comes to an end.
const HOP_US: u64 = 20_000;

/// Where a process stands in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not admitted yet; the text names the event that it waits for.
    Joining(String),
    /// Admitted.
    Member,
    /// Refused: the process must stop. The text gives reason and remedy.
    Refused(String),
}

/// An order for the agent.
enum Order {
    /// Forward a request to the primary.
    Forward(Verb, Vec<u8>, Tick, oneshot::Sender<Result<Vec<u8>, Failure>>),
    /// Report that the process stops, and wait until others have taken over.
    Leave(oneshot::Sender<()>),
}

/// This process as a member of its cluster; every core answers from it.
pub struct Member {
    identity: Identity,
    manager: Option<Arc<ManagerRole>>,
    meta: Option<MetaRole>,
    copy: watch::Sender<Arc<RoutingCopy>>,
    names: watch::Sender<Arc<NamespaceTableReply>>,
    standing: watch::Sender<Standing>,
    stopping: watch::Sender<bool>,
    orders: mpsc::Sender<Order>,
    waiters: Semaphore,
    suspected: Mutex<HashMap<NodeId, Tick>>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Waits until `check` finds something in a value of `news`, or until `deadline`.
async fn wait_for<T: Clone, R>(
    mut news: watch::Receiver<T>,
    deadline: Tick,
    check: impl Fn(&T) -> Option<R>,
) -> Option<R> {
    loop {
        let now = news.borrow_and_update().clone();
        if let Some(found) = check(&now) {
            return Some(found);
        }
        let left = deadline.since(RealClock::tick());
        match timeout(left, news.changed()).await {
            Ok(Ok(())) => {}
            _ => return None,
        }
    }
}

impl Member {
    fn new(
        identity: Identity,
        manager: Option<Arc<ManagerRole>>,
    ) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let (orders, inbox) = mpsc::channel(INBOX_MAX);
        let standing = Standing::Joining("the first answer of a manager".to_owned());
        let member = Self {
            identity,
            meta: manager.clone().map(MetaRole::new),
            manager,
            copy: watch::Sender::new(Arc::default()),
            names: watch::Sender::new(Arc::default()),
            standing: watch::Sender::new(standing),
            stopping: watch::Sender::new(false),
            orders,
            waiters: Semaphore::new(WAITERS_MAX),
            suspected: Mutex::default(),
        };
        (Arc::new(member), inbox)
    }

    /// Identity of this process.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The manager role of this process, if any.
    #[must_use]
    pub fn manager(&self) -> Option<&Arc<ManagerRole>> {
        self.manager.as_ref()
    }

    /// Whether this process has the meta role, as every process with a manager, and so a store,
    /// does.
    pub(crate) fn has_meta(&self) -> bool {
        self.meta.is_some()
    }

    /// The meta role of this process, if any.
    pub fn meta(&self) -> Option<&MetaRole> {
        self.meta.as_ref()
    }

    /// The newest routing that this node has.
    #[must_use]
    pub fn routing(&self) -> Arc<Routing> {
        Arc::clone(&self.copy.borrow().routing)
    }

    /// Whether this process has the cluster's namespaces. A node without a manager receives nothing
    /// while the table is empty, so it cannot tell.
    pub fn knows_namespaces(&self) -> bool {
        let have = self.names.borrow().version;
        let Some(manager) = &self.manager else { return have > 0 };
        manager.knows_namespaces() && have >= manager.namespaces().borrow().version
    }

    /// Counters of this process's role in its cluster; each adds up over all nodes.
    pub fn numbers(&self) -> [(String, u64); 2] {
        let role = self.manager_role();
        [
            ("managers".to_owned(), u64::from(role.is_some())),
            ("managers_primary".to_owned(), u64::from(role == Some(Role::Primary))),
        ]
    }

    /// Role of the manager in this process, if there is one.
    pub fn manager_role(&self) -> Option<Role> {
        self.manager.as_ref().map(|manager| manager.role())
    }

    /// Whether this process is about to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Standing of this process.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    fn refuse(&self, why: String) {
        tracing::error!("{why}");
        self.standing.send_replace(Standing::Refused(why));
    }

    /// Answers a request about the cluster, from this process or from another one.
    ///
    /// # Errors
    /// [`Failure`]: malformed, not about the cluster, or refused by the role that it needs.
    pub async fn answer(
        &self,
        verb: Verb,
        meta: &[u8],
        deadline: Tick,
    ) -> Result<Vec<u8>, Failure> {
        match verb {
            Verb::Routing => {
                let request = RoutingRequest::decode(meta)?;
                let news = self.news_of_routing(request, deadline);
                Ok(self.until_stop(news).await?.flatten().unwrap_or_default())
            }
            Verb::NamespaceTable => {
                let request = NamespaceTableRequest::decode(meta)?;
                let news = self.news_of_namespaces(request, deadline);
                Ok(self.until_stop(news).await?.flatten().unwrap_or_default())
            }
            Verb::Suspect => {
                self.suspect(SuspectRequest::decode(meta)?.node);
                Ok(Vec::new())
            }
            Verb::Register => {
                let register = Register::decode(meta)?;
                let answer = match &self.manager {
                    Some(manager) => manager.register(register, deadline).await?,
                    None => RegisterAnswer::NotPrimary(self.managers_named()),
                };
                Ok(answer.encode())
            }
            Verb::Heartbeat => {
                let heartbeat = Heartbeat::decode(meta)?;
                let answer = match &self.manager {
                    Some(manager) => manager.heartbeat(heartbeat, deadline).await?,
                    None => HeartbeatAnswer::NotPrimary(self.managers_named()),
                };
                Ok(answer.encode())
            }
            Verb::Admin => self.admin(meta, deadline).await,
            Verb::Meta | Verb::MetaWatch => {
                let Some(role) = &self.meta else {
                    let text =
                        "this node is not a meta: ask a node that the routing lists as a meta";
                    return Err(Failure::new(Status::Unsupported, text.to_owned()));
                };
                if verb == Verb::Meta {
                    return role.answer(meta, &self.routing(), deadline).await;
                }
                self.until_stop(role.news(meta, deadline)).await?.unwrap_or_else(|| Ok(Vec::new()))
            }
            verb => {
                let text = format!("{}: not a cluster request", verb.name());
                Err(Failure::new(Status::Unsupported, text))
            }
        }
    }

    /// Addresses of the managers by routing: each of them has the meta role.
    fn managers_named(&self) -> Vec<String> {
        let routing = self.routing();
        let managers = routing.nodes.values().filter(|node| node.meta);
        managers.filter_map(|node| node.addresses.first().cloned()).take(ADDRESSES_MAX).collect()
    }

    /// Runs `wait`, which ends without a result when the process stops.
    async fn until_stop<T>(&self, wait: impl Future<Output = T>) -> Result<Option<T>, Failure> {
        let Ok(_waiter) = self.waiters.try_acquire() else {
            let text = format!("{WAITERS_MAX} requests already wait for news: retry in a moment");
            return Err(Failure::new(Status::Busy, text));
        };
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            news = wait => Ok(Some(news)),
            _ = stopping.wait_for(|stopping| *stopping) => Ok(None),
        }
    }

    async fn news_of_routing(&self, request: RoutingRequest, deadline: Tick) -> Option<Vec<u8>> {
        let here = self.copy.borrow().update_for(&request);
        if here.is_some() {
            return here;
        }
        let copied = || wait_for(self.copy.subscribe(), deadline, |copy| copy.update_for(&request));
        let Some(manager) = &self.manager else { return copied().await };
        let mut role = manager.role_changes();
        loop {
            role.borrow_and_update();
            // The primary's routing is newer than any copy, even that of its own process.
            let ahead = manager.routing((request.cluster, request.have), deadline).await;
            if let Some(update) = ahead {
                return Some(update.encode());
            }
            // A manager that becomes primary answers the callers that wait here: all nodes may wait
            // here, this process included, and then no copy changes before this answer.
            tokio::select! {
                news = copied() => return news,
                changed = role.changed() => changed.ok()?,
            }
        }
    }

    async fn news_of_namespaces(
        &self,
        request: NamespaceTableRequest,
        deadline: Tick,
    ) -> Option<Vec<u8>> {
        let news = match &self.manager {
            Some(manager) => manager.namespaces(),
            None => self.names.subscribe(),
        };
        let newer = |table: &Arc<NamespaceTableReply>| {
            (table.version > request.have).then(|| table.encode())
        };
        wait_for(news, deadline, newer).await
    }

    /// Reports to the primary that a node did not answer.
    pub fn suspect(&self, node: NodeId) {
        let now = RealClock::tick();
        {
            let mut suspected = self.suspected.lock();
            if suspected.len() >= SUSPECTS_MAX {
                suspected.retain(|_, at| now.since(*at) < SUSPECT_EVERY);
            }
            let again = suspected.get(&node).is_some_and(|at| now.since(*at) < SUSPECT_EVERY);
            if again || suspected.len() >= SUSPECTS_MAX {
                return;
            }
            suspected.insert(node, now);
        }
        match &self.manager {
            Some(manager) if manager.is_primary() => manager.suspect(node),
            _ => {
                // The answer is not awaited, and the manager also finds out by itself.
                let (answer, _) = oneshot::channel();
                let meta = SuspectRequest { node }.encode();
                let until = now.plus(Duration::from_secs(1));
                let _full =
                    self.orders.try_send(Order::Forward(Verb::Suspect, meta, until, answer));
            }
        }
    }

    async fn admin(&self, meta: &[u8], deadline: Tick) -> Result<Vec<u8>, Failure> {
        let command = admin::decode_command(meta).map_err(|e| Failure::bad(e.to_string()))?;
        match &self.manager {
            Some(manager) if manager.is_primary() => {
                let answer = manager.admin(command, deadline).await?;
                Ok(admin::encode_answer(&answer))
            }
            _ => self.forward(Verb::Admin, meta.to_vec(), deadline).await,
        }
    }

    /// Forwards a request to the manager that receives this node's heartbeats.
    async fn forward(&self, verb: Verb, meta: Vec<u8>, deadline: Tick) -> Result<Vec<u8>, Failure> {
        let deadline = Tick(deadline.0.saturating_sub(HOP_US));
        let (answer, answered) = oneshot::channel();
        let full = || Failure::new(Status::Busy, "too many requests wait for a manager".to_owned());
        self.orders.try_send(Order::Forward(verb, meta, deadline, answer)).map_err(|_| full())?;
        answered.await.unwrap_or_else(|_| Err(full()))
    }

    /// Opens a namespace, creating it if asked to. A namespace known to this node needs no manager.
    ///
    /// # Errors
    /// [`Failure`] naming the field and the fix.
    pub async fn open_namespace(
        &self,
        open: NamespaceOpen,
        deadline: Tick,
    ) -> Result<NamespaceInfo, Failure> {
        let known = {
            let table = self.names.borrow();
            table.namespaces.iter().find(|info| info.name == open.name).cloned()
        };
        if let Some(info) = known {
            return checked_layout(&info, &open.options.layout);
        }
        let info = if let Some(manager) = &self.manager {
            manager.open_namespace(open, deadline).await?
        } else {
            let reply = self.forward(Verb::NamespaceOpen, open.encode(), deadline).await?;
            let found = NamespacesReply::decode(&reply)?.namespaces.pop();
            let nothing =
                || Failure::new(Status::Internal, "the reply has no namespace".to_owned());
            found.ok_or_else(nothing)?
        };
        // The caller uses it at once, on this node.
        let news = self.names.subscribe();
        let id = info.id;
        wait_for(news, deadline, |table| {
            let there = table.namespaces.iter().any(|info| info.id == id);
            (there || table.dropping.contains(&id)).then_some(())
        })
        .await;
        Ok(info)
    }

    /// Changes options of a namespace. On return this node applies them; other nodes follow in a
    /// moment.
    ///
    /// # Errors
    /// [`Failure`] if there is no namespace of that name, or no manager answers.
    pub async fn set_namespace(
        &self,
        set: NamespaceSet,
        deadline: Tick,
    ) -> Result<NamespaceInfo, Failure> {
        let info = if let Some(manager) = &self.manager {
            manager.set_namespace(set, deadline).await?
        } else {
            let reply = self.forward(Verb::NamespaceSet, set.encode(), deadline).await?;
            let changed = NamespacesReply::decode(&reply)?.namespaces.pop();
            let nothing =
                || Failure::new(Status::Internal, "the reply has no namespace".to_owned());
            changed.ok_or_else(nothing)?
        };
        wait_for(self.names.subscribe(), deadline, |table| {
            let known = table.namespaces.iter().find(|known| known.id == info.id);
            // None if it has been dropped in the meantime.
            known.is_none_or(|known| *known == info).then_some(())
        })
        .await;
        Ok(info)
    }

    /// Drops a namespace. Nodes remove its blocks once they learn of it.
    ///
    /// # Errors
    /// [`Failure`] if there is no namespace of that name, or no manager answers.
    pub async fn drop_namespace(&self, name: String, deadline: Tick) -> Result<(), Failure> {
        if let Some(manager) = &self.manager {
            return manager.drop_namespace(name, deadline).await;
        }
        let meta = NamespaceRef { name }.encode();
        self.forward(Verb::NamespaceDrop, meta, deadline).await.map(drop)
    }

    /// Waits until this node knows namespace `id`, if another node may have made it a moment ago:
    /// its id is higher than any known here.
    pub async fn await_namespace(&self, id: millpond_types::GroupId, deadline: Tick) {
        let news = self.names.subscribe();
        let seen = |table: &Arc<NamespaceTableReply>| {
            let numbers = table.namespaces.iter().map(|info| info.id).chain(table.dropping.clone());
            numbers.max().is_some_and(|newest| newest >= id).then_some(())
        };
        wait_for(news, deadline, seen).await;
    }

    /// Reports that this process stops, and waits until others have taken over its work, a few
    /// seconds at most. Requests that wait for news end.
    pub async fn leave(&self) {
        let (done, left) = oneshot::channel();
        if self.orders.send(Order::Leave(done)).await.is_ok() {
            let _ = left.await;
        }
        if let Some(manager) = &self.manager {
            manager.stop().await;
        }
        self.stopping.send_replace(true);
    }
}
