//! Calls to a meta: the one that answered last, or another one if it does not answer.

use millpond_env::RealClock;
use millpond_types::cluster::{NodeId, Routing};
use millpond_types::wire::{Status, Verb};

use super::any::is_passing;
use super::node::PATIENCE;
use super::{Cluster, PAUSE_MAX, PAUSE_MIN};
use crate::call::{Job, Reads};
use crate::connection::{Connection, Deadline};
use crate::error::ClientError;

/// Whether another attempt may succeed.
fn may_pass(error: &ClientError) -> bool {
    match error {
        // `Unsupported`: the node had the role when the routing was made.
        ClientError::Refused { status, .. } => {
            matches!(status, Status::Busy | Status::Unsupported | Status::DeadlineExceeded)
                || is_passing(error)
        }
        _ => is_passing(error),
    }
}

impl Cluster {
    /// Nodes with the meta role, beginning with the one that answered last.
    fn metas(&self, routing: &Routing) -> Vec<NodeId> {
        let last = *self.meta.lock();
        let mut rank = self.rank(routing);
        let mut metas: Vec<(bool, u64, NodeId)> = routing
            .nodes
            .values()
            .filter(|node| node.meta)
            .map(|node| (Some(node.id) != last, rank(node.id), node.id))
            .collect();
        metas.sort_unstable();
        metas.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Asks metas until one answers or the deadline has passed. The request must be safe to repeat.
    ///
    /// # Errors
    /// As for every call.
    pub(crate) fn ask_meta(&self, meta: &[u8], deadline: Deadline) -> Result<Vec<u8>, ClientError> {
        let mut pause = PAUSE_MIN;
        loop {
            let routing = self.table.get();
            let (mut bad, mut last) = (Vec::new(), None);
            for id in self.metas(&routing) {
                // Half of the remaining time, so that a silent node leaves time for another one.
                let left = deadline.at.since(RealClock::tick());
                match self.one(id, (Verb::Meta, meta), deadline.within(left / 2)) {
                    Err(error) if may_pass(&error) => {
                        bad.push(id);
                        last = Some(error);
                    }
                    Err(error) => return Err(error),
                    Ok(reply) => {
                        *self.meta.lock() = Some(id);
                        return Ok(reply);
                    }
                }
            }
            let left = deadline.at.since(RealClock::tick());
            if left.is_zero() || self.is_closed() {
                return Err(last.unwrap_or_else(|| self.no_meta(deadline)));
            }
            self.learn(routing.version, &bad, self.jittered(pause).min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks the meta that answered last for changes, over a separate connection, because the answer
    /// may take longer than any other. If it does not answer, the next call asks another meta. One
    /// caller at a time.
    ///
    /// # Errors
    /// As for every call; nothing is retried.
    pub(crate) fn watch_meta(
        &self,
        watch: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, ClientError> {
        let routing = self.table.get();
        let id = self.metas(&routing).first().copied().ok_or_else(|| self.no_meta(deadline))?;
        let mut line = self.watch.lock();
        let news = self.watch_over(&mut line, id, watch, deadline);
        if news.is_err() {
            *line = None;
            drop(line);
            let mut last = self.meta.lock();
            *last = last.filter(|last| *last != id);
            drop(last);
            self.learn(routing.version, &[], PAUSE_MIN);
        }
        news
    }

    fn watch_over(
        &self,
        line: &mut Option<(NodeId, Connection)>,
        id: NodeId,
        watch: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, ClientError> {
        let usable = line.as_ref().is_some_and(|(at, open)| *at == id && open.is_quiet());
        if !usable {
            let node = self.node(id, &self.table.get()).ok_or_else(|| self.no_meta(deadline))?;
            let mut open = node.pool.dial(deadline.within(PATIENCE))?;
            open.set_patience(deadline.at.since(RealClock::tick()));
            *line = Some((id, open));
        }
        let Some((_, open)) = line else { return Err(self.no_meta(deadline)) };
        let meta = watch.to_vec();
        let mut jobs = [Job::Plain { verb: Verb::MetaWatch, meta, reply: Vec::new() }];
        open.run(&mut jobs, &mut Reads::none(), deadline)?;
        let [Job::Plain { reply, .. }] = jobs else { unreachable!("the job was made here") };
        Ok(reply)
    }

    fn no_meta(&self, deadline: Deadline) -> ClientError {
        ClientError::Unanswered {
            given: deadline.given,
            open: 1,
            all: 1,
            rounds: 0,
            tried: format!("the routing of the cluster at {} lists no meta", self.seeds.name()),
        }
    }
}
