//! Clients: one operation at a time, retried until it is answered or given up.

use std::collections::{BTreeMap, VecDeque};

use millpond_chain::{Lane, Op, Payload, ReadRequest, Refusal, Reply, Tag, UpdateRequest};
use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, NodeId, RoutingVersion, TargetId,
};
use millpond_types::{Ack, ChunkId, Crc32c};

use crate::bytes::Bytes;
use crate::check::{Action, Heard, Operation};
use crate::files::{self, Copying};
use crate::member::node_at;
use crate::message::{Address, Item, Message, Time, ms};
use crate::world::{Phase, World};

/// Attempts of one operation share the upper bits of their numbers.
const ATTEMPTS: u64 = 1 << 16;

/// A task: chain, chunk, action, and the target if only that one may answer.
pub(crate) type Task = (ChainId, ChunkId, Action, Option<TargetId>);

#[derive(Clone, Debug)]
struct Current {
    task: Task,
    /// Place in the chunk's history.
    place: usize,
    attempt: u64,
    give_up: Time,
    issued: Option<ChainVersion>,
    /// The node that was asked last and has not answered.
    waits_for: Option<NodeId>,
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    number: usize,
    sequence: u64,
    /// Wake-ups of another epoch are void.
    epoch: u64,
    current: Option<Current>,
    version: RoutingVersion,
    routing: BTreeMap<ChainId, Chain>,
    pub(crate) script: VecDeque<Task>,
    pub(crate) copying: Option<Copying>,
    idle: bool,
}

impl Client {
    pub(crate) const fn new(number: usize) -> Self {
        Self {
            number,
            sequence: 0,
            epoch: 0,
            current: None,
            version: RoutingVersion(0),
            routing: BTreeMap::new(),
            script: VecDeque::new(),
            copying: None,
            idle: true,
        }
    }

    /// Whether nothing is in flight and the script is empty.
    pub(crate) fn finished(&self) -> bool {
        self.current.is_none() && self.script.is_empty()
    }
}

fn request(action: &Action) -> Option<(Op<Bytes>, Crc32c)> {
    let op = match action {
        Action::Put(bytes) => Op::Put(Bytes::new(bytes)),
        Action::Replace(bytes) => Op::Replace(Bytes::new(bytes)),
        Action::Write(offset, bytes) => Op::Write { offset: *offset, bytes: Bytes::new(bytes) },
        Action::Append(bytes) => Op::Append(Bytes::new(bytes)),
        Action::Truncate(len) => Op::Truncate { len: *len },
        Action::Remove | Action::Evict => Op::Remove,
        Action::Seal => files::seal(),
        Action::Read(..) => return None,
    };
    let crc = op.payload().map_or(Crc32c::EMPTY, Payload::crc);
    Some((op, crc))
}

impl World {
    pub(crate) fn client_wake(&mut self, client: usize, epoch: u64) {
        if self.clients[client].epoch != epoch {
            return;
        }
        if let Some(current) = &self.clients[client].current {
            if self.now >= current.give_up {
                return self.finish(client, Heard::Unknown);
            }
            return self.attempt(client);
        }
        let Some(task) = self.next_task(client) else {
            self.clients[client].idle = true;
            return self.wake_in(client, ms(50));
        };
        self.begin(client, task);
    }

    fn wake_in(&mut self, client: usize, delay: Time) {
        self.clients[client].epoch += 1;
        let epoch = self.clients[client].epoch;
        self.after(delay, Item::ClientWake { client, epoch });
    }

    fn next_task(&mut self, client: usize) -> Option<Task> {
        if let Some(task) = self.clients[client].script.pop_front() {
            return Some(task);
        }
        if !matches!(self.phase, Phase::Chaos | Phase::Healing) {
            return None;
        }
        let number = 1 + u32::try_from(self.rng.index(self.plan.chains)).expect("few");
        let table = self.store.cluster.more.iter().next();
        let chain = match table.filter(|_| self.rng.permille(500)) {
            Some(table) => ChainId::of(table, number),
            None => ChainId::of(0, number),
        };
        let chunk = ChunkId(1 + u128::from(self.rng.below(self.plan.chunks)));
        let bytes = self.value(client);
        if self.has_files && self.rng.permille(600) {
            return Some(self.file_task(client, chain, bytes));
        }
        let action = match self.rng.below(100) {
            0..50 => {
                let whole = self.rng.permille(700);
                let (from, len) = (self.rng.below(8), self.rng.below(12));
                let part = |n| u32::try_from(n).expect("small");
                if whole { Action::Read(0, u32::MAX) } else { Action::Read(part(from), part(len)) }
            }
            50..58 => Action::Put(bytes),
            58..72 => Action::Replace(bytes),
            72..82 => Action::Write(u32::try_from(self.rng.below(20)).expect("small"), bytes),
            82..89 => Action::Append(bytes),
            89..93 => Action::Truncate(u32::try_from(self.rng.below(16)).expect("small")),
            93..97 => Action::Remove,
            _ => Action::Evict,
        };
        Some(self.spare_lost((chain, chunk, action, None)))
    }

    /// Bytes that no other client writes.
    fn value(&mut self, client: usize) -> Vec<u8> {
        let sequence = self.clients[client].sequence + 1;
        let mut bytes = vec![u8::try_from(client).expect("few clients") + b'A'];
        bytes.extend_from_slice(&sequence.to_le_bytes()[..2]);
        bytes.resize(3 + self.rng.index(6), b'.');
        bytes
    }

    fn begin(&mut self, client: usize, task: Task) {
        let history = self.history.entry((task.0, task.1)).or_default();
        let place = history.len();
        history.push(Operation {
            client,
            call: self.now,
            ret: None,
            action: task.2.clone(),
            heard: Heard::Unknown,
        });
        let patience = match self.phase {
            Phase::Chaos if self.rng.permille(150) => self.rng.between(ms(300), ms(2000)),
            _ => ms(6000),
        };
        let c = &mut self.clients[client];
        c.sequence += 1;
        c.idle = false;
        let attempt = c.sequence * ATTEMPTS;
        let give_up = self.now + patience;
        c.current = Some(Current { task, place, attempt, give_up, issued: None, waits_for: None });
        self.attempt(client);
    }

    /// Sends the operation to the target that the client's routing names, if any.
    fn attempt(&mut self, client: usize) {
        let pause = self.rng.between(ms(250), ms(700));
        self.wake_in(client, pause);
        let c = &mut self.clients[client];
        let Some(current) = &mut c.current else { return };
        let evicts = current.task.2 == Action::Evict;
        if evicts && current.issued.is_some() {
            return self.finish(client, Heard::Unknown);
        }
        current.attempt += 1;
        if let Some(node) = current.waits_for.take() {
            self.suspect(client, node);
        }
        let Some(current) = &mut self.clients[client].current else { return };
        let (chain, chunk, action, only) = current.task.clone();
        let c = &mut self.clients[client];
        let Some(known) = c.routing.get(&chain) else { return self.client_asks(client) };
        let serving: Vec<ChainTarget> = known.serving().copied().collect();
        let update = request(&action);
        let to = if update.is_some() {
            serving.first().copied()
        } else {
            // Some clients read from any member: a replica must know when not to answer.
            let anywhere = only.is_none() && self.rng.permille(self.plan.anywhere);
            let all = &known.targets;
            match only {
                Some(only) => all.iter().find(|member| member.target == only).copied(),
                None => self.rng.pick(if anywhere { all } else { &serving }),
            }
        };
        let Some(member) = to else { return self.client_asks(client) };
        let version = known.version;
        let Some(current) = &mut c.current else { return };
        let issued = *current.issued.get_or_insert(version);
        let (attempt, to) = (current.attempt, member.target);
        current.waits_for = Some(member.node);
        let message = match (update, action) {
            (Some((op, crc)), action) => {
                let lane = Lane { client: 1 + c.number as u128, channel: 0 };
                let tag = if evicts {
                    Tag { lane: Lane::default(), sequence: attempt + c.number as u64 }
                } else {
                    Tag { lane, sequence: c.sequence }
                };
                let memory = self.plan.memory && action != Action::Seal;
                let durability = if memory { Ack::Memory } else { Ack::Disk };
                let seal = files::seal_of(chunk);
                let body = UpdateRequest { version, issued, tag, chunk, op, crc, durability, seal };
                Message::Update { to, attempt, body: Box::new(body) }
            }
            (None, Action::Read(offset, len)) => {
                Message::Read { to, attempt, body: ReadRequest { version, chunk, offset, len } }
            }
            (None, _) => unreachable!("only reads have no request"),
        };
        self.trace.note(self.now, || format!("client {client} -> {} {message:?}", to.0));
        let Some(node) = node_at(member.node) else { return };
        if evicts {
            // A head's own removals cross no network.
            self.node_receives(node, Address::Client(client), message);
        } else {
            self.send(Address::Client(client), Address::Node(node), message);
        }
    }

    /// Reports a node that did not answer to some other node.
    fn suspect(&mut self, client: usize, node: NodeId) {
        let teller = self.rng.index(self.nodes.len());
        self.send(Address::Client(client), Address::Node(teller), Message::Suspect(node));
    }

    /// Asks any node for routing; the newest is sent as it comes.
    fn client_asks(&mut self, client: usize) {
        let have = self.clients[client].version;
        for _ in 0..2 {
            let node = self.rng.index(self.nodes.len());
            self.send(Address::Client(client), Address::Node(node), Message::NewsAsk { have });
        }
        self.wake_in(client, ms(30));
    }

    pub(crate) fn client_receives(&mut self, client: usize, message: Message) {
        match message {
            Message::News { version, chains } => {
                let c = &mut self.clients[client];
                if version > c.version {
                    c.version = version;
                    c.routing = chains.iter().map(|chain| (chain.id, chain.clone())).collect();
                }
            }
            Message::Reply { attempt, reply } => self.client_hears(client, attempt, reply),
            Message::AdminDone { call, answer } => self.operator_hears(call, &answer),
            _ => {}
        }
    }

    fn client_hears(&mut self, client: usize, attempt: u64, reply: Reply<Bytes>) {
        let Some(current) = &self.clients[client].current else { return };
        if current.attempt / ATTEMPTS != attempt / ATTEMPTS {
            return;
        }
        let newest = current.attempt == attempt;
        if newest && let Some(current) = &mut self.clients[client].current {
            current.waits_for = None;
        }
        self.trace.note(self.now, || format!("client {client} <- {attempt} {reply:?}"));
        let heard = match reply {
            Reply::Done(outcome) => {
                self.trace.add(outcome.version.0);
                Heard::Done(match outcome.content {
                    millpond_chain::Content::Data { len, crc } => Some((len, crc)),
                    millpond_chain::Content::Tombstone => None,
                })
            }
            Reply::Exists { .. } => Heard::Exists,
            Reply::NotFound => Heard::NotFound,
            Reply::Data { version, chunk_len, bytes } => {
                self.trace.add(version.0 ^ u64::from(bytes.crc().0));
                Heard::Data(bytes.as_slice().to_vec(), chunk_len)
            }
            Reply::Refused(refusal) => return self.refused(client, newest, refusal),
        };
        self.finish(client, heard);
    }

    fn refused(&mut self, client: usize, newest: bool, refusal: Refusal) {
        let evicts = |current: &Current| current.task.2 == Action::Evict;
        match refusal {
            _ if self.clients[client].current.as_ref().is_some_and(evicts) => {
                self.client_asks(client);
                return self.finish(client, Heard::Unknown);
            }
            Refusal::Undecided => return self.finish(client, Heard::Unknown),
            Refusal::Sealed => return self.finish(client, Heard::Sealed),
            Refusal::Superseded | Refusal::Invalid => {
                return self.violate(|| format!("client {client} was refused: {refusal:?}"));
            }
            // A retry gets the same answer.
            Refusal::Corrupt if self.phase == Phase::Last && self.asks_for_lost(client) => {
                return self.finish(client, Heard::Unknown);
            }
            Refusal::Stale(_) | Refusal::NotServing if newest => self.client_asks(client),
            _ => {}
        }
        if newest {
            let pause = self.rng.between(ms(2), ms(40));
            self.wake_in(client, pause);
        }
    }

    fn asks_for_lost(&self, client: usize) -> bool {
        let current = self.clients[client].current.as_ref();
        current.is_some_and(|current| self.in_vain(&current.task))
    }

    fn finish(&mut self, client: usize, heard: Heard) {
        let Some(current) = self.clients[client].current.take() else { return };
        let (chain, chunk, ..) = current.task;
        self.file_task_ended(client, &current.task, &heard);
        let (sealed, known) = (heard == Heard::Sealed, heard != Heard::Unknown);
        let history = self.history.get_mut(&(chain, chunk)).expect("it was begun there");
        let operation = &mut history[current.place];
        operation.heard = heard;
        operation.ret = (known && !sealed).then_some(self.now);
        self.stats.operations += 1;
        self.stats.elsewhere += u64::from(known && chain.table() != 0);
        self.stats.unknown += u64::from(!known);
        self.trace.add(self.now ^ u64::from(known));
        if self.phase == Phase::Last && !known && !self.in_vain(&current.task) {
            // Progress is guaranteed now: the task is repeated until the phase's time is over.
            self.clients[client].script.push_front(current.task);
        }
        // Operations after the faults only have to meet the state that those left.
        let calm = if self.orders_given { ms(60) } else { 0 };
        let pause = self.rng.between(200, self.plan.think.max(calm));
        self.wake_in(client, pause);
    }

    /// Every chunk is read at every replica, written, and read again.
    pub(crate) fn script_last_round(&mut self) {
        let chains: Vec<Chain> = self.store.chains.values().map(|r| r.chain.clone()).collect();
        for chain in chains {
            for chunk in (1..=self.plan.chunks).map(|n| ChunkId(u128::from(n))) {
                let reads: Vec<Task> = chain
                    .serving()
                    .map(|m| (chain.id, chunk, Action::Read(0, u32::MAX), Some(m.target)))
                    .collect();
                let client = self.rng.index(self.clients.len());
                let value = self.value(client);
                let script = &mut self.clients[client].script;
                script.extend(reads.clone());
                script.push_back((chain.id, chunk, Action::Replace(value), None));
                script.extend(reads);
            }
            for chunk in self.files_to_look_at(chain.id) {
                let client = self.rng.index(self.clients.len());
                let reads = chain.serving().map(|m| m.target);
                let read = |target| (chain.id, chunk, Action::Read(0, u32::MAX), Some(target));
                self.clients[client].script.extend(reads.map(read));
            }
        }
    }
}
