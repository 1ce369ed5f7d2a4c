//! Calls with keys, or with chunks of files: rounds until every item has its answer, or the
//! deadline has passed.

use std::borrow::Cow;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::cluster::{News, NodeId, Routing, RoutingVersion};
use millpond_types::limits::{BATCH_KEYS_MAX, FILE_PARTS_MAX, RETRY_HORIZON_MS};
use millpond_types::wire::{
    GetRequest, KeysRequest, Leaders, MatchRequest, PlacedChunk, PutItem, PutRequest, Verb,
};
use millpond_types::{BlockKey, Crc32c, placement};

use super::batch::{Batch, Home, must_be_done};
use super::files::Files;
use super::race::{Outcome, Race};
use super::{Cluster, PAUSE_MAX, PAUSE_MIN};
use crate::call::{Items, Job, Reads, Value};
use crate::connection::Deadline;
use crate::error::ClientError;
use crate::verbs::{Keys, split, wire_len};

/// Pause when all tags of a chain are in use.
const HELD_PAUSE: Duration = Duration::from_millis(1);

/// Data that accompanies the keys.
pub(crate) enum Cargo<'w, 'a> {
    /// No data.
    None,
    /// A lease in ms (`MatchPrefix`).
    Lease(u32),
    /// Bytes of room per key (`Get`).
    Rooms(Vec<u32>),
    /// A value per key (`Put`).
    Values(&'w [Value<'a>]),
}

/// The items of a call.
pub(crate) enum Asked<'w, 'a> {
    /// Keys and their data.
    Keys(Keys<'w>, Cargo<'w, 'a>),
    /// Chunks of files.
    Files(Files<'w, 'a>),
}

/// One call.
pub(crate) struct Work<'w, 'a> {
    pub(crate) verb: Verb,
    pub(crate) asked: Asked<'w, 'a>,
}

impl<'a> Work<'_, 'a> {
    /// Its items, each with its location in the cluster.
    fn batch(&self) -> Batch {
        match &self.asked {
            Asked::Keys(keys, _) => {
                let slot = |item| placement::slot(keys.namespace, keys.leader(item));
                Batch::new(self.verb, (0..keys.keys.len()).map(|item| Home::Slot(slot(item))))
            }
            Asked::Files(files) => files.batch(self.verb),
        }
    }

    /// Payload bytes of an item.
    pub(super) fn len_of(&self, item: usize) -> u64 {
        match &self.asked {
            Asked::Keys(_, Cargo::None | Cargo::Lease(_)) => 0,
            Asked::Keys(_, Cargo::Rooms(rooms)) => u64::from(rooms[item]),
            Asked::Keys(_, Cargo::Values(values)) => values[item].len() as u64,
            Asked::Files(files) => files.len_of(item),
        }
    }

    /// The memory written from, for the choice of a connection; that of the first item.
    pub(super) fn memory_of(&self, items: &[usize]) -> Option<&'a [u8]> {
        match &self.asked {
            Asked::Files(Files::Write(_, values)) => {
                values[*items.first()?].pieces().first().copied()
            }
            _ => None,
        }
    }

    /// Whether the size of requests is limited by payload bytes, not by the number of items.
    const fn has_payload(&self) -> bool {
        match &self.asked {
            Asked::Keys(_, cargo) => matches!(cargo, Cargo::Rooms(_) | Cargo::Values(_)),
            Asked::Files(files) => files.has_payload(),
        }
    }

    /// The requests to one node, and the keys of each: one request, unless it would exceed a limit.
    pub(super) fn jobs(
        &self,
        items: &[usize],
        batch: &Batch,
        sender: (u128, &News),
    ) -> (Vec<Job<'a, 'a>>, Vec<Vec<usize>>) {
        let ends = if self.has_payload() {
            let len = |item: &usize| usize::try_from(self.len_of(*item)).unwrap_or(usize::MAX);
            split(items.iter().map(len))
        } else {
            let files = matches!(self.asked, Asked::Files(_));
            let step = if files { FILE_PARTS_MAX } else { BATCH_KEYS_MAX / 2 };
            (0..items.len()).step_by(step).map(|from| items.len().min(from + step)).collect()
        };
        let (mut jobs, mut parts, mut from) = (Vec::new(), Vec::new(), 0);
        for to in ends {
            let part = items[from..to].to_vec();
            jobs.push(self.job(&part, batch, sender));
            parts.push(part);
            from = to;
        }
        (jobs, parts)
    }

    fn job(&self, part: &[usize], batch: &Batch, (client, news): (u128, &News)) -> Job<'a, 'a> {
        let (of, cargo) = match &self.asked {
            Asked::Keys(keys, cargo) => (keys, cargo),
            Asked::Files(files) => return files.job(self.verb, part, batch.tags(part, client)),
        };
        let planned = news.planned(part.iter().filter_map(|item| batch.slot(*item)));
        let namespace = of.namespace;
        let keys: Vec<BlockKey> = part.iter().map(|item| of.keys[*item]).collect();
        let leaders = match of.leaders {
            Leaders::Own => Leaders::Own,
            _ => Leaders::Each(part.iter().map(|item| *of.leader(*item)).collect()),
        };
        let tags = || batch.tags(part, client);
        match cargo {
            Cargo::Rooms(rooms) => {
                let room = part.iter().map(|item| rooms[*item]).collect();
                let request = GetRequest { namespace, planned, keys, room, leaders };
                Job::Get { request, items: Items::Each(part.to_vec()) }
            }
            Cargo::Values(values) => {
                let values: Vec<Value<'a>> =
                    part.iter().map(|item| values[*item].clone()).collect();
                let item =
                    |value: &Value<'_>| PutItem { len: wire_len(value.len()), crc: Crc32c::EMPTY };
                let items = values.iter().map(item).collect();
                let (arena_offset, tags) = (0, tags());
                let request =
                    PutRequest { namespace, planned, arena_offset, keys, items, leaders, tags };
                Job::Put { request, values: Cow::Owned(values), reply: Vec::new() }
            }
            Cargo::Lease(lease_ms) => {
                let keys = KeysRequest { namespace, planned, keys, leaders, tags: None };
                let request = MatchRequest { keys, lease_ms: *lease_ms, each: true };
                Job::Plain { verb: self.verb, meta: request.encode(), reply: Vec::new() }
            }
            Cargo::None => {
                let request = KeysRequest { namespace, planned, keys, leaders, tags: tags() };
                Job::Plain { verb: self.verb, meta: request.encode(), reply: Vec::new() }
            }
        }
    }
}

/// Events of a call, for the message when it fails.
#[derive(Debug, Default)]
struct Trail {
    rounds: u32,
    homeless: usize,
    last: Option<(NodeId, String)>,
}

impl Cluster {
    /// Runs a call. Keys without an answer at the deadline stay unanswered, unless no key has an
    /// answer.
    ///
    /// # Errors
    /// Permanent errors that no other node can answer differently; `Unanswered` at the deadline.
    pub(crate) fn run(
        &self,
        work: &Work<'_, '_>,
        reads: &mut Reads<'_, '_>,
        deadline: Deadline,
    ) -> Result<Batch, ClientError> {
        if matches!(&work.asked, Asked::Keys(keys, _) if keys.node != self.id) {
            return Err(ClientError::OtherServer { address: self.seeds.name() });
        }
        let mut batch = work.batch();
        // Replicas would take later copies of an update for new ones.
        let horizon = Duration::from_millis(RETRY_HORIZON_MS);
        let done = self.rounds(work, (&mut batch, reads), deadline.within(horizon));
        self.release(&mut batch, true);
        done.map(|()| batch)
    }

    fn release(&self, batch: &mut Batch, ended: bool) {
        let released = batch.take_released(ended);
        if !released.is_empty() {
            let mut tagger = self.tagger.lock();
            for (chain, tag) in released {
                tagger.give_back(chain, tag);
            }
        }
    }

    fn rounds(
        &self,
        work: &Work<'_, '_>,
        (batch, reads): (&mut Batch, &mut Reads<'_, '_>),
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let (mut pause, mut trail) = (PAUSE_MIN, Trail::default());
        while batch.open() > 0 {
            if self.is_closed() {
                return Err(ClientError::Closed);
            }
            let told = self.table.news();
            let routing = &told.routing;
            let plan = {
                let mut tagger = self.tagger.lock();
                batch.plan(routing, &mut tagger, self.rank(routing))
            };
            self.release(batch, false);
            let (asks_nobody, held) = (plan.asks.is_empty(), plan.held > 0);
            trail.rounds += 1;
            trail.homeless = plan.homeless;
            let race = Race::new((self, &told), work, (batch, reads), deadline);
            let Outcome { news, bad, fatal, last } = race.go(plan.asks);
            self.release(batch, false);
            if let Some(error) = fatal {
                return Err(error);
            }
            trail.last = last.or(trail.last);
            if batch.open() > 0
                && let Some(error) = self.gone(routing, work.verb)
            {
                return if batch.may_end() { Ok(()) } else { Err(error) };
            }
            let left = deadline.at.since(RealClock::tick());
            if batch.open() > 0 && left.is_zero() {
                return self.unanswered(work, batch, (&trail, deadline));
            }
            if batch.open() > 0 && (news || plan.homeless > 0) {
                // If the routing became newer during the round, the next round starts at once.
                if self.table.version() == routing.version {
                    self.learn(routing.version, &bad, self.jittered(pause).min(left));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            } else if held && asks_nobody {
                self.table.wait(routing.version, HELD_PAUSE.min(left));
            }
        }
        Ok(())
    }

    /// Why no node will answer soon: the only node of a cluster is down, and no other one can take
    /// its place. Calls for file bytes wait for it all the same.
    pub(super) fn gone(&self, routing: &Routing, verb: Verb) -> Option<ClientError> {
        let only = routing.nodes.keys().next().filter(|_| routing.nodes.len() == 1)?;
        if must_be_done(verb) {
            return None;
        }
        self.node(*only, routing)?.pool.down()
    }

    /// The result at the deadline: an error if nothing was answered, or if unanswered keys cannot
    /// be told from others.
    fn unanswered(
        &self,
        work: &Work<'_, '_>,
        batch: &Batch,
        (trail, deadline): (&Trail, Deadline),
    ) -> Result<(), ClientError> {
        if batch.may_end() {
            return Ok(());
        }
        let mut error = self.trail_error(trail, (batch.open(), batch.len()), deadline);
        if let (ClientError::Unanswered { tried, .. }, Asked::Files(files), Some(first)) =
            (&mut error, &work.asked, batch.unanswered().next())
        {
            let PlacedChunk { chain, chunk } = files.at(first);
            let first = format!("; the first unanswered chunk is {chunk} on chain {}", chain.0);
            tried.push_str(&first);
        }
        Err(error)
    }

    fn trail_error(
        &self,
        trail: &Trail,
        (open, all): (usize, usize),
        deadline: Deadline,
    ) -> ClientError {
        let mut tried = if self.table.version() == RoutingVersion(0) {
            format!("no node of the cluster at {} sent its routing", self.seeds.name())
        } else if let Some((node, what)) = &trail.last {
            format!("the last attempt was node {node}: {what}")
        } else {
            "the nodes of the cluster redirected to each other".to_owned()
        };
        if trail.homeless > 0 {
            let text =
                format!("; {} of them belong to chains without a serving replica", trail.homeless);
            tried.push_str(&text);
        }
        let rounds = trail.rounds;
        ClientError::Unanswered { given: deadline.given, open, all, rounds, tried }
    }
}
