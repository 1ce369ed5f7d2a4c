//! Calls without keys: those that any node answers, and those that all nodes answer together.

use std::collections::{BTreeMap, BTreeSet};

use millpond_env::RealClock;
use millpond_types::cluster::{ChainId, NodeId};
use millpond_types::wire::{ListReply, ListRequest, Status, Verb};

use super::{Cluster, PAUSE_MAX, PAUSE_MIN};
use crate::call::{Job, Reads};
use crate::connection::Deadline;
use crate::error::{ClientError, ErrorKind};

/// Most lists of keys in progress at the same time; beyond that the oldest must start again.
const CURSORS_MAX: usize = 64;
/// Numbers that are the same on every node, so that their sum has no meaning.
const NOT_ADDED: [&str; 3] = ["namespaces", "quota_bytes", "unix_ms"];

/// Positions of lists of keys: a node's cursor is valid for that node only.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    last: u64,
    places: BTreeMap<u64, Place>,
}

/// Nodes still to ask, the next one last, and the cursor on it.
#[derive(Clone, Debug)]
struct Place {
    nodes: Vec<NodeId>,
    cursor: u64,
}

impl Cursors {
    fn keep(&mut self, place: Place) -> u64 {
        self.last += 1;
        self.places.insert(self.last, place);
        if self.places.len() > CURSORS_MAX {
            self.places.pop_first();
        }
        self.last
    }
}

/// Whether another node, or this one later, may succeed.
pub(super) fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Closed => false,
        ClientError::Refused { status, .. } => *status == Status::ShuttingDown,
        _ => matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::DeadlineExceeded),
    }
}

impl Cluster {
    /// Asks any node, and another one if it fails, until the deadline.
    ///
    /// # Errors
    /// As for every call.
    pub(crate) fn any(
        &self,
        (verb, meta): (Verb, &[u8]),
        deadline: Deadline,
    ) -> Result<Vec<u8>, ClientError> {
        let mut pause = PAUSE_MIN;
        let mut bad = Vec::new();
        loop {
            let routing = self.table.get();
            let mut rank = self.rank(&routing);
            let mut nodes: Vec<(u64, NodeId)> =
                routing.nodes.keys().map(|id| (rank(*id), *id)).collect();
            nodes.sort_unstable();
            let mut last = None;
            for (_, id) in nodes {
                // Half of the remaining time, so that a silent node leaves time for another one.
                let left = deadline.at.since(RealClock::tick());
                match self.one(id, (verb, meta), deadline.within(left / 2)) {
                    Err(error) if is_passing(&error) => {
                        bad.push(id);
                        last = Some(error);
                    }
                    done => return done,
                }
            }
            if let Some(error) = self.gone(&routing, verb) {
                return Err(error);
            }
            let left = deadline.at.since(RealClock::tick());
            if left.is_zero() {
                return Err(last.unwrap_or(ClientError::Unanswered {
                    given: deadline.given,
                    open: 1,
                    all: 1,
                    rounds: 0,
                    tried: format!("no node of the cluster at {} answered", self.seeds.name()),
                }));
            }
            self.learn(routing.version, &bad, self.jittered(pause).min(left));
            bad.clear();
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks one node once.
    pub(super) fn one(
        &self,
        id: NodeId,
        (verb, meta): (Verb, &[u8]),
        deadline: Deadline,
    ) -> Result<Vec<u8>, ClientError> {
        let routing = self.table.get();
        let Some(node) = self.node(id, &routing) else {
            let source = std::io::Error::other("the node left the cluster");
            return Err(ClientError::Connect { address: id.to_string(), source });
        };
        let done = node.pool.checkout(deadline).and_then(|mut lent| {
            let mut jobs = [Job::Plain { verb, meta: meta.to_vec(), reply: Vec::new() }];
            lent.get()?.run(&mut jobs, &mut Reads::none(), deadline)?;
            let [Job::Plain { reply, .. }] = jobs else { unreachable!("the job was made here") };
            Ok(reply)
        });
        if done.as_ref().is_err_and(is_passing) {
            node.failed();
        }
        done
    }

    /// Asks all nodes and adds up their numbers. Stored bytes are counted by replica; the first
    /// value, `replicas`, is the greatest replica count of a chain. A node that is away and serves
    /// nothing is counted as such and left out.
    ///
    /// # Errors
    /// As for every call, when a serving node does not answer.
    pub(crate) fn stats(
        &self,
        meta: &[u8],
        decode: impl Fn(&[u8]) -> Result<Vec<(String, u64)>, ClientError>,
        deadline: Deadline,
    ) -> Result<Vec<(String, u64)>, ClientError> {
        self.known(deadline)?;
        let routing = self.table.get();
        let nodes: Vec<NodeId> = routing.nodes.keys().copied().collect();
        let own = routing.chains.range(ChainId::all_of(0));
        let replicas = own.map(|(_, chain)| chain.serving().count()).max();
        let (mut sums, mut away) = (Vec::<(String, u64)>::new(), 0);
        for id in &nodes {
            let Some(reply) = self.while_serving(*id, (Verb::Stats, meta), deadline)? else {
                away += 1;
                continue;
            };
            for (name, value) in decode(&reply)? {
                match sums.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) if NOT_ADDED.contains(&name.as_str()) => *sum = value.max(*sum),
                    Some((_, sum)) => *sum = sum.saturating_add(value),
                    None => sums.push((name, value)),
                }
            }
        }
        let own = [
            ("nodes", nodes.len() as u64),
            ("nodes_away", away),
            ("replicas", replicas.unwrap_or(0) as u64),
        ];
        Ok(own.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(sums).collect())
    }

    /// Asks one node until it answers; `None` once it does not answer and has no part in any chain.
    fn while_serving(
        &self,
        id: NodeId,
        (verb, meta): (Verb, &[u8]),
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, ClientError> {
        self.until(deadline, || {
            // Half of the remaining time, so that a silent node leaves time for the others.
            let left = deadline.at.since(RealClock::tick());
            match self.one(id, (verb, meta), deadline.within(left / 2)) {
                Err(error) if is_passing(&error) && !self.serves(id) => Ok(None),
                done => done.map(Some),
            }
        })
    }

    /// Whether a node serves in any chain.
    fn serves(&self, id: NodeId) -> bool {
        let routing = self.table.get();
        routing.chains.values().any(|chain| chain.serving().any(|member| member.node == id))
    }

    /// One page of keys, head by head; each head lists the keys of its chains.
    ///
    /// # Errors
    /// `InvalidArgument` for a cursor that is too old, and as for every call.
    pub(crate) fn list(
        &self,
        request: &ListRequest,
        decode: impl Fn(&[u8]) -> Result<ListReply, ClientError>,
        deadline: Deadline,
    ) -> Result<ListReply, ClientError> {
        self.known(deadline)?;
        let mut place = if request.cursor == 0 {
            let routing = self.table.get();
            let heads = routing.chains.values().filter_map(|chain| chain.serving().next());
            let heads: BTreeSet<NodeId> = heads.map(|head| head.node).collect();
            Place { nodes: heads.into_iter().rev().collect(), cursor: 0 }
        } else {
            let known = self.cursors.lock().places.get(&request.cursor).cloned();
            known.ok_or_else(|| {
                ClientError::argument(
                    "cursor",
                    "too old, or from another client: start again with 0",
                )
            })?
        };
        let Some(id) = place.nodes.last().copied() else {
            return Ok(ListReply { cursor: 0, keys: Vec::new() });
        };
        let meta = ListRequest { cursor: place.cursor, ..request.clone() }.encode();
        let reply = self.until(deadline, || self.one(id, (Verb::List, &meta), deadline))?;
        let page = decode(&reply)?;
        place.cursor = page.cursor;
        if page.cursor == 0 {
            place.nodes.pop();
        }
        let ended = place.nodes.is_empty();
        let cursor = if ended { 0 } else { self.cursors.lock().keep(place) };
        Ok(ListReply { cursor, ..page })
    }

    /// Waits until the routing is known.
    pub(super) fn known(&self, deadline: Deadline) -> Result<(), ClientError> {
        self.until(deadline, || {
            let known = !self.table.get().nodes.is_empty();
            let unknown = || {
                let source = std::io::Error::other("no node sent the routing of the cluster");
                ClientError::Connect { address: self.seeds.name(), source }
            };
            known.then_some(()).ok_or_else(unknown)
        })
    }

    /// Retries until success, a permanent error or the deadline.
    pub(super) fn until<T>(
        &self,
        deadline: Deadline,
        mut attempt: impl FnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut pause = PAUSE_MIN;
        loop {
            match attempt() {
                Err(error) if is_passing(&error) => {
                    let left = deadline.at.since(RealClock::tick());
                    if left.is_zero() || self.is_closed() {
                        return Err(error);
                    }
                    let version = self.table.version();
                    self.learn(version, &[], self.jittered(pause).min(left));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                done => return done,
            }
        }
    }
}
