//! One round of a call: each node is sent its keys, then the replies are collected. No threads: one
//! node works while the next one is sent its keys.
//!
//! A read that takes too long is also sent to another replica. The two race: the first reply that
//! begins to arrive wins, and the other connection is closed before a byte is taken from the
//! winner. So the caller's memory has one writer, and none after the call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::cluster::{News, NodeId, Routing, RoutingVersion};
use millpond_types::wire::{ChunkStatReply, ItemStatus, Status, StatusReply, Verb};

use super::Cluster;
use super::batch::{Batch, must_be_done, reads};
use super::call::Work;
use super::health::class_of;
use super::node::{Node, PATIENCE};
use crate::call::{GetOutcome, Job, Reads};
use crate::connection::{Answered, Deadline, Flight};
use crate::error::{ClientError, ErrorKind};
use crate::pool::Lent;

/// First and longest wait for one node while others may have answered.
const NAP_MIN: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_millis(10);
/// Longest time to get a connection for a hedge.
const HEDGE_CONNECT: Duration = Duration::from_millis(20);
/// Time for which a node may lack a namespace that another one has: such news take time.
const NAMESPACE_NEWS: Duration = Duration::from_millis(500);

/// The requests sent to one node.
struct Run<'a> {
    node: Arc<Node>,
    /// The connection; none once the run is over.
    lent: Option<Lent>,
    flight: Flight,
    jobs: Vec<Job<'a, 'a>>,
    /// The keys of each job.
    parts: Vec<Vec<usize>>,
    class: usize,
    started: Tick,
    heard: Tick,
    /// Time of the next action if the node stays silent.
    silent_at: Tick,
    /// The run with which this one races.
    rival: Option<usize>,
    hedged: bool,
}

impl Run<'_> {
    fn unanswered(&self) -> Vec<usize> {
        self.flight.unanswered().flat_map(|job| self.parts[job].iter().copied()).collect()
    }
}

/// Results of a round other than answers.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Whether newer routing is needed.
    pub(super) news: bool,
    /// Nodes that failed or were silent.
    pub(super) bad: Vec<NodeId>,
    /// A permanent error of the call.
    pub(super) fatal: Option<ClientError>,
    /// The last failure and its node.
    pub(super) last: Option<(NodeId, String)>,
}

/// One round.
pub(super) struct Race<'r, 'w, 'a, 'x, 'y> {
    pub(super) cluster: &'r Cluster,
    /// The routing of this round.
    pub(super) news: &'r News,
    pub(super) routing: &'r Routing,
    pub(super) work: &'r Work<'w, 'a>,
    pub(super) batch: &'r mut Batch,
    pub(super) reads: &'r mut Reads<'x, 'y>,
    pub(super) deadline: Deadline,
    runs: Vec<Run<'a>>,
    checked: RoutingVersion,
    outcome: Outcome,
}

impl<'r, 'w, 'a, 'x, 'y> Race<'r, 'w, 'a, 'x, 'y> {
    pub(super) fn new(
        (cluster, news): (&'r Cluster, &'r News),
        work: &'r Work<'w, 'a>,
        (batch, reads): (&'r mut Batch, &'r mut Reads<'x, 'y>),
        deadline: Deadline,
    ) -> Self {
        let routing = &*news.routing;
        let (runs, checked, outcome) = (Vec::new(), routing.version, Outcome::default());
        Self { cluster, news, routing, work, batch, reads, deadline, runs, checked, outcome }
    }

    /// Sends every node its keys and collects the answers.
    pub(super) fn go(mut self, asks: BTreeMap<NodeId, Vec<usize>>) -> Outcome {
        // In the order of the nodes: a call that waits for a connection holds only connections of
        // earlier nodes, so calls cannot deadlock.
        for (id, items) in asks {
            match self.start(id, &items, self.deadline) {
                Ok(run) => self.runs.push(run),
                Err(error) => self.lost(id, error),
            }
        }
        self.collect();
        self.outcome
    }

    fn start(
        &self,
        id: NodeId,
        items: &[usize],
        connect: Deadline,
    ) -> Result<Run<'a>, ClientError> {
        let node = self.cluster.node(id, self.routing).ok_or_else(|| {
            let source = std::io::Error::other("the routing has no address of the node");
            ClientError::Connect { address: id.to_string(), source }
        })?;
        let mut lent = node.pool.checkout_for(self.work.memory_of(items), connect)?;
        let (mut jobs, parts) = self.work.jobs(items, self.batch, (self.cluster.client, self.news));
        let connection = lent.get()?;
        let mut flight = connection.begin(&jobs);
        let now = RealClock::tick();
        connection
            .push(&mut flight, &mut jobs, self.deadline)
            .map_err(|error| connection.failed(error, self.deadline))?;
        if reads(self.work.verb) {
            node.reading(true);
            self.cluster.hedges.lock().earn();
        }
        let bytes = items.iter().map(|item| self.work.len_of(*item)).sum();
        Ok(Run {
            node,
            lent: Some(lent),
            flight,
            jobs,
            parts,
            class: class_of(bytes),
            started: now,
            heard: now,
            silent_at: now.plus(PATIENCE),
            rival: None,
            hedged: false,
        })
    }

    /// Ends a run; closes its connection unless every reply was taken.
    fn close(&mut self, at: usize) {
        if self.runs[at].lent.take().is_some() && reads(self.work.verb) {
            self.runs[at].node.reading(false);
        }
    }

    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.runs.len()).filter(|at| self.runs[*at].lent.is_some())
    }

    fn collect(&mut self) {
        let mut nap = NAP_MIN;
        loop {
            let open: Vec<usize> = self.open().collect();
            let Some(first) = open.first().copied() else { return };
            let mut heard = false;
            if open.len() > 1 {
                for at in &open {
                    heard |= self.look(*at, Duration::ZERO);
                }
            }
            if !heard {
                // All replies are needed in the end, so the order of waiting hardly matters; rivals
                // take turns.
                let races = self.runs.iter().any(|run| run.lent.is_some() && run.rival.is_some());
                let wait = if open.len() == 1 { NAP_MAX } else { nap };
                let wait = if races { NAP_MIN } else { wait.min(self.next_event(first)) };
                heard = self.look(first, wait);
            }
            nap = if heard { NAP_MIN } else { (nap * 2).min(NAP_MAX) };
            self.attend();
        }
    }

    /// Time until the next action for a silent run.
    fn next_event(&self, at: usize) -> Duration {
        let run = &self.runs[at];
        let mut due = run.silent_at.min(self.deadline.at);
        // With only one node no other one can be asked.
        if reads(self.work.verb) && !run.hedged && self.routing.nodes.len() > 1 {
            due = due.min(run.started.plus(run.node.health().slow_after(run.class)));
        }
        due.since(RealClock::tick()).max(Duration::from_micros(50))
    }

    /// Takes a reply if one begins to arrive within `wait`.
    fn look(&mut self, at: usize, wait: Duration) -> bool {
        let run = &mut self.runs[at];
        let Some(lent) = &mut run.lent else { return false };
        let ready = match lent.get() {
            Ok(connection) => connection
                .ready(&run.flight, &run.jobs, wait)
                .map_err(|error| connection.failed(error, self.deadline)),
            Err(error) => Err(error),
        };
        match ready {
            Ok(false) => return false,
            Ok(true) => self.take(at),
            Err(error) => self.fail(at, error),
        }
        true
    }

    fn take(&mut self, at: usize) {
        let now = RealClock::tick();
        self.win(at);
        let run = &mut self.runs[at];
        if reads(self.work.verb) && run.heard == run.started {
            run.node.health().answered(run.class, now.since(run.started));
        }
        run.heard = now;
        run.silent_at = now.plus(PATIENCE);
        let Some(Ok(connection)) = run.lent.as_mut().map(Lent::get) else { return };
        let answered = connection.pull(&mut run.flight, &mut run.jobs, self.reads, self.deadline);
        match answered.map_err(|error| connection.failed(error, self.deadline)) {
            Ok(answered) => self.settle(at, answered),
            Err(error) => self.fail(at, error),
        }
    }

    /// The run answers first: ends those it races with.
    fn win(&mut self, at: usize) {
        let over: Vec<usize> = match self.runs[at].rival {
            // A hedge won: the slow run ends, and the other hedges carry its keys together with
            // this one.
            Some(slow) => {
                for run in self.runs.iter_mut().filter(|run| run.rival == Some(slow)) {
                    run.rival = None;
                }
                vec![slow]
            }
            None => self.open().filter(|other| self.runs[*other].rival == Some(at)).collect(),
        };
        for other in over {
            self.runs[other].rival = None;
            self.runs[other].node.failed();
            self.close(other);
        }
    }

    /// Assigns the answers of one request to their keys.
    fn settle(&mut self, at: usize, answered: Answered) {
        let id = self.runs[at].node.id;
        let part = self.runs[at].parts[answered.job].clone();
        if let Some(error) = answered.refusal {
            self.refused(id, &part, error);
        } else {
            match statuses(&self.runs[at].jobs[answered.job], &part, self.reads) {
                Ok(statuses) => {
                    for (item, status) in part.into_iter().zip(statuses) {
                        let moved = self.batch.answered((id, item), status, self.routing);
                        self.outcome.news |= moved;
                    }
                }
                Err(what) => {
                    let address = self.runs[at].node.pool.name();
                    return self.fail(at, ClientError::Unexpected { address, what });
                }
            }
        }
        let run = &mut self.runs[at];
        let Some(Ok(connection)) = run.lent.as_mut().map(Lent::get) else { return };
        if run.flight.is_done() {
            connection.end();
            self.close(at);
        } else if let Err(error) = connection.push(&mut run.flight, &mut run.jobs, self.deadline) {
            let error = connection.failed(error, self.deadline);
            self.fail(at, error);
        }
    }

    /// Handles the refusal of a whole request.
    fn refused(&mut self, id: NodeId, part: &[usize], error: ClientError) {
        let ClientError::Refused { status, .. } = &error else { return };
        let young = self.deadline.since_start(RealClock::tick()) < NAMESPACE_NEWS;
        let others_may = match status {
            Status::ShuttingDown | Status::DeadlineExceeded => true,
            Status::NoNamespace => young,
            // Half a file is useless: the client retries until the deadline.
            Status::Busy if must_be_done(self.work.verb) => true,
            Status::Busy | Status::Internal | Status::ReadOnly | Status::NoSpace
                if reads(self.work.verb) =>
            {
                let (batch, routing) = (&mut *self.batch, self.routing);
                part.iter().all(|item| batch.refused((id, *item), routing))
            }
            _ => false,
        };
        if others_may {
            self.outcome.news |= *status != Status::Busy || must_be_done(self.work.verb);
            self.outcome.last = Some((id, error.to_string()));
        } else {
            self.outcome.fatal.get_or_insert(error);
        }
    }

    /// Handles a failed connection: its keys are sent again in the next round, unless a rival has
    /// them.
    fn fail(&mut self, at: usize, error: ClientError) {
        self.close(at);
        let mut carried = false;
        if let Some(slow) = self.runs[at].rival.take() {
            carried = true;
            for other in self.open().collect::<Vec<_>>() {
                if self.runs[other].rival == Some(slow) {
                    self.runs[other].rival = None;
                    self.close(other);
                }
            }
        }
        for run in self.runs.iter_mut().filter(|run| run.rival == Some(at)) {
            run.rival = None;
            carried |= run.lent.is_some();
        }
        let id = self.runs[at].node.id;
        self.runs[at].node.failed();
        if carried {
            self.outcome.last = Some((id, error.to_string()));
        } else {
            self.lost(id, error);
        }
    }

    /// Handles a node that could not be asked, or did not answer.
    fn lost(&mut self, id: NodeId, error: ClientError) {
        match error.kind() {
            ErrorKind::Unreachable | ErrorKind::DeadlineExceeded | ErrorKind::Protocol
                if !matches!(error, ClientError::Closed) =>
            {
                if let Some(node) = self.cluster.node(id, self.routing) {
                    node.failed();
                }
                self.outcome.news = true;
                self.outcome.bad.push(id);
                self.outcome.last = Some((id, error.to_string()));
            }
            _ => {
                self.outcome.fatal.get_or_insert(error);
            }
        }
    }

    /// Checks silent runs.
    fn attend(&mut self) {
        let now = RealClock::tick();
        if now >= self.deadline.at {
            for at in self.open().collect::<Vec<_>>() {
                let id = self.runs[at].node.id;
                self.outcome.last = Some((id, "no answer".to_owned()));
                self.close(at);
            }
            return;
        }
        for at in self.open().collect::<Vec<_>>() {
            let run = &self.runs[at];
            if run.heard == run.started
                && !run.hedged
                && run.rival.is_none()
                && reads(self.work.verb)
            {
                let slow = run.node.health().slow_after(run.class);
                let took = now.since(run.started);
                if took >= PATIENCE || took >= slow && self.cluster.hedges.lock().pay() {
                    self.hedge(at);
                }
            }
            if now >= self.runs[at].silent_at && self.runs[at].lent.is_some() {
                self.silent(at, now);
            }
        }
        self.drop_stale();
    }

    /// Sends the unanswered keys of a run to other replicas.
    fn hedge(&mut self, at: usize) {
        self.runs[at].hedged = true;
        let (id, items) = (self.runs[at].node.id, self.runs[at].unanswered());
        let rank = self.cluster.rank(self.routing);
        let Some(asks) = self.batch.instead_of(id, &items, self.routing, rank) else { return };
        let from = self.runs.len();
        for (other, items) in asks {
            let started = self.start(other, &items, self.deadline.within(HEDGE_CONNECT));
            let Ok(mut run) = started else {
                for hedge in from..self.runs.len() {
                    self.close(hedge);
                }
                return self.runs.truncate(from);
            };
            run.rival = Some(at);
            run.hedged = true;
            self.runs.push(run);
        }
    }

    /// A node has been silent for long: reports it and checks the routing.
    fn silent(&mut self, at: usize, now: Tick) {
        let run = &mut self.runs[at];
        run.silent_at = now.plus(PATIENCE / 2);
        run.node.failed();
        let id = run.node.id;
        self.cluster.learn(self.routing.version, &[id], Duration::from_millis(1));
    }

    /// Ends runs on nodes that no longer serve their keys: such a node may be cut off and never
    /// answer.
    fn drop_stale(&mut self) {
        let version = self.cluster.table.version();
        if version <= self.checked {
            return;
        }
        self.checked = version;
        let newer = self.cluster.table.get();
        for at in self.open().collect::<Vec<_>>() {
            let (id, items) = (self.runs[at].node.id, self.runs[at].unanswered());
            if self.runs[at].rival.is_none() && !self.batch.still_asks(id, &items, &newer) {
                self.fail(
                    at,
                    ClientError::Unexpected {
                        address: self.runs[at].node.pool.name(),
                        what: "no answer before its part was sent to another node",
                    },
                );
            }
        }
    }
}

/// The answers to one request by key.
fn statuses(
    job: &Job<'_, '_>,
    part: &[usize],
    reads: &mut Reads<'_, '_>,
) -> Result<Vec<ItemStatus>, &'static str> {
    match job {
        Job::Put { reply, .. } | Job::Write { reply, .. } => Ok(reply.clone()),
        Job::Plain { verb: Verb::ChunkStat, reply, .. } => {
            let items = ChunkStatReply::decode(reply).map_err(|_| "a malformed reply")?.items;
            if items.len() != part.len() {
                return Err("a reply with a wrong number of items");
            }
            for (item, (status, stat)) in part.iter().zip(&items) {
                reads.stats[*item] = (*status == ItemStatus::Ok).then_some(*stat);
            }
            Ok(items.into_iter().map(|(status, _)| status).collect())
        }
        Job::Plain { reply, .. } => {
            let items = StatusReply::decode(reply).map_err(|_| "a malformed reply")?.items;
            let whole = items.len() == part.len();
            if whole { Ok(items) } else { Err("a reply with a wrong number of items") }
        }
        Job::Read { .. } => {
            reads.moved.clear();
            let status = |item: &usize| match reads.out[*item] {
                GetOutcome::Read(_) => ItemStatus::Ok,
                // Damaged in transit, not on this node, or not now: all of these are temporary.
                GetOutcome::Miss | GetOutcome::TooLong(_) | GetOutcome::Late => ItemStatus::Moved,
            };
            Ok(part.iter().map(status).collect())
        }
        Job::Get { .. } => {
            let moved = std::mem::take(&mut reads.moved);
            let status = |item: &usize| match reads.out[*item] {
                _ if moved.binary_search(item).is_ok() => ItemStatus::Moved,
                GetOutcome::Read(_) => ItemStatus::Ok,
                GetOutcome::Miss => ItemStatus::Miss,
                GetOutcome::TooLong(_) => ItemStatus::TooLong,
                GetOutcome::Late => ItemStatus::Late,
            };
            Ok(part.iter().map(status).collect())
        }
    }
}
