//! Updates of the routing copy: a thread follows it, and callers ask at once when a node moved a
//! key, failed or is silent.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use millpond_env::{RealClock, thread};
use millpond_types::Uuid128;
use millpond_types::cluster::{NodeId, RoutingUpdate, RoutingVersion, UpdateError};
use millpond_types::wire::{RoutingRequest, SuspectRequest, Verb};

use super::Cluster;
use super::node::PATIENCE;
use crate::call::{Job, Reads};
use crate::connection::{Connection, Deadline};
use crate::error::ClientError;

/// Time for which the thread's requests wait for news.
const FOLLOW: Duration = Duration::from_secs(5);
/// Interval at which the thread checks that the client still exists.
const LOOK: Duration = Duration::from_millis(200);
/// The thread's pause when no node answers.
const LOST_PAUSE: Duration = Duration::from_millis(200);
/// Longest time to connect to one node to ask for news.
const DIAL: Duration = Duration::from_millis(300);
/// Most nodes tried for one question; the next question tries others.
const DIALS_MAX: usize = 2;

/// A connection for news to any node.
#[derive(Debug, Default)]
pub(super) struct Line {
    open: Option<(NodeId, Connection)>,
    /// The copy has a gap: the next question asks for everything.
    gap: bool,
}

impl Cluster {
    /// Waits for newer routing than `have`, at most `pause`, and reports the nodes in `bad`.
    pub(super) fn learn(&self, have: RoutingVersion, bad: &[NodeId], pause: Duration) {
        let start = RealClock::tick();
        let Some(mut line) = self.line.try_lock() else {
            // Another caller already asks.
            return self.table.wait(have, pause);
        };
        if self.ask(&mut line, have, bad, pause).is_err() {
            line.open = None;
        }
        drop(line);
        self.table.wait(have, pause.saturating_sub(RealClock::tick().since(start)));
    }

    fn ask(
        &self,
        line: &mut Line,
        have: RoutingVersion,
        bad: &[NodeId],
        pause: Duration,
    ) -> Result<(), ClientError> {
        let deadline = Deadline::after(pause + PATIENCE);
        self.dial(line, bad)?;
        let mut jobs: Vec<Job<'_, '_>> =
            bad.iter().filter_map(|node| self.suspicion(*node)).collect();
        let told = jobs.len();
        jobs.push(self.question(line, have));
        let Some((_, connection)) = &mut line.open else { return Ok(()) };
        connection.tell(Some(pause));
        let done = connection.run(&mut jobs, &mut Reads::none(), deadline);
        if let Some(Job::Plain { reply, .. }) = jobs.get(told) {
            self.take(line, reply);
        }
        done
    }

    /// The report of a node, unless it was reported a moment ago.
    fn suspicion<'j>(&self, node: NodeId) -> Option<Job<'j, 'j>> {
        let known = self.node(node, &self.table.get())?;
        let due = known.health().suspect(RealClock::tick());
        let meta = SuspectRequest { node }.encode();
        due.then_some(Job::Plain { verb: Verb::Suspect, meta, reply: Vec::new() })
    }

    fn question<'j>(&self, line: &Line, have: RoutingVersion) -> Job<'j, 'j> {
        let known = have > RoutingVersion(0) && !line.gap;
        let request = if known {
            RoutingRequest { cluster: self.id, have }
        } else {
            RoutingRequest { cluster: Uuid128::NIL, have: RoutingVersion(0) }
        };
        Job::Plain { verb: Verb::Routing, meta: request.encode(), reply: Vec::new() }
    }

    /// Applies the answer to a request for news; an empty answer is valid.
    fn take(&self, line: &mut Line, reply: &[u8]) {
        if reply.is_empty() {
            return;
        }
        let Ok(update) = RoutingUpdate::decode(reply) else { return line.open = None };
        match self.table.apply(update) {
            Ok(()) => line.gap = false,
            Err(UpdateError::Gap { .. }) => line.gap = true,
            Err(UpdateError::Cluster { .. }) => line.open = None,
        }
    }

    /// Makes sure that the line is connected to a node outside `bad`: to a known node, in any
    /// order, or a seed.
    fn dial(&self, line: &mut Line, bad: &[NodeId]) -> Result<(), ClientError> {
        if let Some((node, connection)) = &line.open
            && !bad.contains(node)
            && connection.is_quiet()
        {
            return Ok(());
        }
        line.open = None;
        let routing = self.table.get();
        let mut rank = self.rank(&routing);
        let mut nodes: Vec<(u64, NodeId)> = routing
            .nodes
            .keys()
            .filter(|node| !bad.contains(*node))
            .map(|node| (rank(*node), *node))
            .collect();
        nodes.sort_unstable();
        for (_, id) in nodes.into_iter().take(DIALS_MAX) {
            let Some(node) = self.node(id, &routing) else { continue };
            match node.pool.dial(Deadline::after(DIAL)) {
                Ok(connection) => {
                    line.open = Some((id, connection));
                    return Ok(());
                }
                Err(_) => node.failed(),
            }
        }
        let mut connection = self.seeds.dial(Deadline::after(2 * DIAL))?;
        connection.set_patience(PATIENCE);
        let id = NodeId(connection.hello.node);
        if connection.hello.cluster != self.id {
            // The only address known now belongs to another cluster, or to none.
            let stranger = !routing.nodes.contains_key(&id);
            self.gone
                .store(stranger || connection.hello.cluster != Uuid128::NIL, Ordering::Release);
            return Err(ClientError::OtherServer { address: self.seeds.name() });
        }
        if !bad.contains(&id) {
            line.open = Some((id, connection));
        }
        Ok(())
    }

    /// Asks once and waits for news, and stops early when the request has become useless. Fails
    /// when the line failed.
    fn follow_once(self: &Arc<Self>, line: &mut Line) -> Result<(), ClientError> {
        self.dial(line, &[])?;
        let mut jobs = [self.question(line, self.table.version())];
        let Some((id, connection)) = &mut line.open else { return Ok(()) };
        let id = *id;
        connection.tell(Some(FOLLOW));
        let deadline = Deadline::after(FOLLOW + 2 * PATIENCE);
        let mut flight = connection.begin(&jobs);
        let fail = |connection: &Connection, error| Err(connection.failed(error, deadline));
        if let Err(error) = connection.push(&mut flight, &mut jobs, deadline) {
            return fail(connection, error);
        }
        loop {
            match connection.ready(&flight, &jobs, LOOK) {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => return fail(connection, error),
            }
            let avoided = self.node(id, &self.table.get()).is_some_and(|node| node.is_avoided());
            // Only this thread still holds the client.
            let alone = Arc::strong_count(self) == 1;
            if alone || self.is_closed() || avoided || RealClock::tick() >= deadline.at {
                return Err(ClientError::Closed);
            }
        }
        let answered = connection.pull(&mut flight, &mut jobs, &mut Reads::none(), deadline);
        match answered {
            Ok(answered) if answered.refusal.is_none() => connection.end(),
            Ok(_) => return Err(ClientError::Closed),
            Err(error) => return fail(connection, error),
        }
        let [Job::Plain { reply, .. }] = &jobs else { unreachable!("the job was made here") };
        self.take(line, reply);
        Ok(())
    }
}

/// Starts the thread that follows the routing. It ends soon after the client. Without it, the
/// client learns of new routing when a node answers that its routing is old.
pub(super) fn follow(cluster: &Arc<Cluster>) {
    let weak = Arc::downgrade(cluster);
    let _runs_on = thread("mp-routing", move || follow_while_alive(&weak));
}

fn follow_while_alive(weak: &Weak<Cluster>) {
    let mut line = Line::default();
    while let Some(cluster) = weak.upgrade() {
        if cluster.is_closed() {
            return;
        }
        // Before the first call has fetched the routing there is nothing to follow.
        let (version, asked) = (cluster.table.version(), RealClock::tick());
        if version == RoutingVersion(0) || cluster.follow_once(&mut line).is_err() {
            line.open = None;
            cluster.table.wait(cluster.table.version(), LOST_PAUSE);
        } else if RealClock::tick().since(asked) < LOST_PAUSE {
            // A stopping node answers at once without news.
            cluster.table.wait(version, LOST_PAUSE);
        }
    }
}
