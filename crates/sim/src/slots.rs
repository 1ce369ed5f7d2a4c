//! A slot that moves between two chains, and back, under clients: the rules of `docs/placement.md`
//! against the checker of histories.
//!
//! Chains are registers here, one step per update, with the records of writers and the tombstones
//! of `millpond-chain`; the rest of the simulator shows that chains behave like this. One key, one
//! slot. The mover is the production code. All participants learn late of the manager's decisions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use millpond_cluster::{Copied, SlotChunks, SlotEffect, SlotEvent, SlotMove};
use millpond_types::cluster::{ChainId, SlotDone};
use millpond_types::{ChunkId, SlotId, Tick};

use crate::check::{Action, Heard, Operation, Verdict, check};
use crate::message::{Time, ms};
use crate::rng::Rng;
use crate::run::describe;

/// Time after which a client gives an operation up.
const HORIZON: Time = ms(1000);
/// Time for which a mover tries to write a chunk that it read.
const COPY: Time = ms(300);
/// Time that a tombstone is kept.
const KEEP: Time = ms(2500);
const CLIENTS: usize = 4;
const CHUNK: ChunkId = ChunkId(1);
/// The successive places of the slot, each with the chain that it comes from.
const STAGES: [(usize, Option<usize>); 7] =
    [(0, None), (1, Some(0)), (1, None), (0, Some(1)), (0, None), (1, Some(0)), (1, None)];

/// A deliberately broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFlaw {
    /// A delete goes to the old chain first.
    OldFirst,
    /// A delete of an absent chunk leaves no tombstone.
    NoBury,
    /// An import ignores tombstones.
    ImportIsPut,
    /// An import is refused by any tombstone.
    AnyTombstone,
    /// A slot leaves while tombstones of its arrival are left.
    LeavesGraves,
    /// A read does not ask the new chain again.
    NoSecondLook,
    /// A put does not ask the old chain.
    NoProbe,
    /// A mover does not wait for updates admitted before.
    NoSettling,
    /// Servers accept any request.
    TakesAll,
    /// A client switches to another chain without an answer of the previous one.
    ForgetsTags,
}

impl SlotFlaw {
    /// All flaws.
    pub const ALL: [Self; 10] = [
        Self::OldFirst,
        Self::NoBury,
        Self::ImportIsPut,
        Self::AnyTombstone,
        Self::LeavesGraves,
        Self::NoSecondLook,
        Self::NoProbe,
        Self::NoSettling,
        Self::TakesAll,
        Self::ForgetsTags,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Put(Vec<u8>),
    Import(Vec<u8>),
    Bury,
    Remove,
    Probe,
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Exists,
    NotFound,
    Data(Vec<u8>),
    /// The slot has changed since the sender's routing. No copy of the request will be done.
    Moved,
    /// The sender's routing is newer: it asks again.
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Client {
        client: usize,
        number: u64,
        attempt: u64,
    },
    /// A mover of this generation.
    Mover(u64),
}

#[derive(Clone, Debug)]
struct Request {
    from: From,
    to: usize,
    op: Op,
    /// The sender's version of the slot.
    stage: usize,
}

#[derive(Clone, Debug)]
enum Item {
    Arrive(Request),
    Carry(Request),
    Answer(From, Op, Answer),
    Wake(usize, u64),
    Learn(usize, usize),
    Mover,
    MoverCrash,
    /// The mover got no answer to its copy or removal.
    GiveUp(u64, bool),
    Collect,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    data: Option<Vec<u8>>,
    /// Whether it is from a burial, and its time.
    tombstone: Option<(bool, Time)>,
    tags: BTreeMap<(usize, u64), Answer>,
    /// Updates admitted and not executed; true for probes, which are not recorded.
    queue: Vec<(From, bool)>,
    last: Time,
    stage: usize,
}

/// One operation of a client.
#[derive(Clone, Debug)]
struct Task {
    action: Action,
    place: usize,
    give_up: Time,
    /// The version of the slot that the plan was made from.
    stage: usize,
    step: usize,
    /// A chain that may have done earlier updates.
    unsure: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Client {
    stage: usize,
    number: u64,
    attempt: u64,
    task: Option<Task>,
}

struct World {
    now: Time,
    rng: Rng,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    items: BTreeMap<u64, Item>,
    numbered: u64,
    flaw: Option<SlotFlaw>,
    chains: [Chain; 2],
    clients: Vec<Client>,
    stage: usize,
    mover: Option<SlotMove>,
    generation: u64,
    history: Vec<Operation>,
    end: Time,
    late: u64,
}

/// Runs one seed; returns the first violation, if any.
#[must_use]
pub fn run_slots(seed: u64, flaw: Option<SlotFlaw>) -> Option<String> {
    let mut rng = Rng::new(seed);
    let late = [20, 100, 300][rng.index(3)];
    let mut world = World {
        now: 0,
        queue: BinaryHeap::new(),
        items: BTreeMap::new(),
        numbered: 0,
        flaw,
        chains: [Chain::default(), Chain::default()],
        clients: vec![Client::default(); CLIENTS],
        stage: 0,
        mover: None,
        generation: 0,
        history: Vec::new(),
        end: ms(600) + rng.below(ms(3000)),
        late,
        rng,
    };
    world.run()
}

impl World {
    fn has(&self, flaw: SlotFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn after(&mut self, delay: Time, item: Item) {
        self.numbered += 1;
        self.queue.push(Reverse((self.now + delay, self.numbered)));
        self.items.insert(self.numbered, item);
    }

    /// Mostly short, sometimes long.
    fn delay(&mut self) -> Time {
        let most = if self.rng.permille(self.late) { ms(80) } else { ms(4) };
        100 + self.rng.below(most)
    }

    fn run(&mut self) -> Option<String> {
        for client in 0..CLIENTS {
            self.after(1, Item::Wake(client, 0));
        }
        let first = self.rng.below(ms(200));
        self.after(first, Item::Learn(usize::MAX, 1));
        self.after(ms(1), Item::Mover);
        self.after(ms(1), Item::Collect);
        if self.rng.permille(500) {
            self.after(ms(30), Item::MoverCrash);
        }
        while let Some(Reverse((time, number))) = self.queue.pop() {
            let item = self.items.remove(&number).expect("queued once");
            self.now = time;
            let idle = self.clients.iter().all(|client| client.task.is_none());
            let moved = self.stage > 0 && self.stage.is_multiple_of(2);
            if self.now > self.end && idle && moved || self.now > self.end + ms(20_000) {
                break;
            }
            self.happen(item);
        }
        if self.stage % 2 == 1 {
            return Some(format!("the slot still moves: stage {}", self.stage));
        }
        (check(&self.history) == Verdict::Violation)
            .then(|| format!("not linearizable\n{}", describe(&self.history).1))
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Arrive(request) => self.arrive(request),
            Item::Carry(request) => self.carry(&request),
            Item::Answer(from, op, answer) => match from {
                From::Client { client, number, attempt } => {
                    self.client_hears(client, (number, attempt), answer);
                }
                From::Mover(generation) => self.mover_hears(generation, &op, &answer),
            },
            Item::Wake(client, attempt) => self.wake(client, attempt),
            Item::Learn(who, stage) => self.learn(who, stage),
            Item::Mover => {
                self.after(ms(20), Item::Mover);
                let busy = self.busy();
                self.move_on(&SlotEvent::Tick { busy: &busy });
            }
            Item::MoverCrash => {
                let again = self.rng.between(ms(20), ms(400));
                self.after(again, Item::MoverCrash);
                self.start_mover();
            }
            Item::GiveUp(generation, copy) if generation == self.generation => {
                let failed = SlotEvent::Copied(CHUNK, Copied::Failed);
                self.move_on(if copy { &failed } else { &SlotEvent::Removed(CHUNK, false) });
            }
            Item::GiveUp(..) => {}
            Item::Collect => {
                let again = self.rng.between(ms(10), ms(300));
                self.after(again, Item::Collect);
                let now = self.now;
                for chain in &mut self.chains {
                    chain.tombstone.take_if(|(_, at)| now > *at + KEEP);
                }
            }
        }
    }

    /// Applies a decision of the manager (`who` is `usize::MAX`), or lets a participant learn of
    /// it.
    fn learn(&mut self, who: usize, stage: usize) {
        match who {
            usize::MAX => {
                self.stage = stage;
                for who in 0..2 + CLIENTS {
                    let most = if self.rng.permille(300) { ms(150) } else { ms(10) };
                    let delay = self.rng.below(most);
                    self.after(delay, Item::Learn(who, stage));
                }
            }
            0 | 1 => {
                self.chains[who].stage = self.chains[who].stage.max(stage);
                if STAGES[self.chains[who].stage].1 == Some(who) {
                    self.start_mover();
                }
            }
            _ => self.clients[who - 2].stage = self.clients[who - 2].stage.max(stage),
        }
    }

    fn busy(&self) -> BTreeSet<ChunkId> {
        let old = STAGES[self.stage].1.map(|old| &self.chains[old]);
        old.filter(|chain| !chain.queue.is_empty()).map(|_| CHUNK).into_iter().collect()
    }

    /// Starts a mover, or restarts it, once its chain's head knows of the move.
    fn start_mover(&mut self) {
        let Some(old) = STAGES[self.stage].1 else { return };
        if self.chains[old].stage != self.stage {
            return;
        }
        self.generation += 1;
        let busy = if self.has(SlotFlaw::NoSettling) { BTreeSet::new() } else { self.busy() };
        let chain = |n: usize| ChainId(u32::try_from(n).expect("two chains") + 1);
        let what = SlotDone { slot: SlotId(0), from: chain(old), to: chain(STAGES[self.stage].0) };
        self.mover = Some(SlotMove::new(what, busy));
    }

    fn move_on(&mut self, event: &SlotEvent<'_>) {
        let Some(mover) = &mut self.mover else { return };
        let mut effects = Vec::new();
        mover.step(Tick(self.now), event.clone(), &mut effects);
        let stage = self.stage;
        let (new, old) = STAGES[stage];
        let Some(old) = old else { return };
        for effect in effects {
            let from = From::Mover(self.generation);
            match effect {
                SlotEffect::List { .. } => {
                    let chunks = self.chains[old].data.iter().map(|_| CHUNK).collect();
                    let graves = self.chains[old].tombstone.is_some_and(|(buried, _)| buried);
                    let graves = graves && !self.has(SlotFlaw::LeavesGraves);
                    let page = SlotChunks { chunks, graves, complete: true };
                    self.move_on(&SlotEvent::Page(Some(page)));
                }
                SlotEffect::Copy(chunk) => {
                    let Some(data) = self.chains[old].data.clone() else {
                        self.move_on(&SlotEvent::Copied(chunk, Copied::Gone));
                        continue;
                    };
                    let op = Op::Import(data);
                    for _ in 0..self.rng.between(1, 3) {
                        let op = op.clone();
                        let most = if self.rng.permille(300) { COPY } else { ms(5) };
                        let delay = self.rng.below(most);
                        self.after(delay, Item::Arrive(Request { from, to: new, op, stage }));
                    }
                    let patience = self.rng.between(ms(5), COPY * 2);
                    self.after(patience, Item::GiveUp(self.generation, true));
                }
                SlotEffect::Remove(_) => {
                    let delay = self.delay();
                    let request = Request { from, to: old, op: Op::Remove, stage };
                    self.after(delay, Item::Arrive(request));
                    self.after(ms(200), Item::GiveUp(self.generation, false));
                }
                SlotEffect::Done(_) => {
                    let stage = self.stage + 1;
                    self.mover = None;
                    self.learn(usize::MAX, stage);
                    if stage + 1 < STAGES.len() && self.now < self.end {
                        let pause = self.rng.below(ms(60));
                        self.after(pause, Item::Learn(usize::MAX, stage + 1));
                    }
                }
            }
        }
    }

    fn mover_hears(&mut self, generation: u64, op: &Op, answer: &Answer) {
        if generation != self.generation {
            return;
        }
        let event = match (op, answer) {
            (_, Answer::Behind) => return,
            (Op::Import(_), Answer::Moved) => SlotEvent::Copied(CHUNK, Copied::Failed),
            (Op::Import(_), _) => SlotEvent::Copied(CHUNK, Copied::There),
            _ => SlotEvent::Removed(CHUNK, true),
        };
        self.move_on(&event);
    }

    /// Delivers a request to the head of a chain, which admits or refuses it.
    fn arrive(&mut self, request: Request) {
        let chain = &self.chains[request.to];
        let known = match request.from {
            From::Client { client, number, .. } => {
                let same = |(from, probe): &(From, bool)| {
                    matches!(from, From::Client { client: c, number: n, .. }
                        if (*c, *n) == (client, number) && !probe)
                };
                chain.tags.contains_key(&(client, number)) || chain.queue.iter().any(same)
            }
            From::Mover(_) => false,
        };
        let update = request.op != Op::Read;
        if !(update && known || self.has(SlotFlaw::TakesAll)) && request.stage != chain.stage {
            let stale = request.stage < chain.stage;
            return self.answer(request, if stale { Answer::Moved } else { Answer::Behind });
        }
        if !update {
            let answer = chain.data.clone().map_or(Answer::NotFound, Answer::Data);
            return self.answer(request, answer);
        }
        // Updates of a chunk are executed in order.
        let busy = if self.rng.permille(300) { ms(25) } else { ms(2) };
        let at = (self.now + self.rng.below(busy)).max(self.chains[request.to].last + 1);
        let chain = &mut self.chains[request.to];
        chain.last = at;
        chain.queue.push((request.from, request.op == Op::Probe));
        self.after(at - self.now, Item::Carry(request));
    }

    fn carry(&mut self, request: &Request) {
        let lax = self.has(SlotFlaw::ImportIsPut);
        let strict = self.has(SlotFlaw::AnyTombstone);
        let now = self.now;
        let chain = &mut self.chains[request.to];
        let place = chain.queue.iter().position(|(from, _)| *from == request.from);
        chain.queue.remove(place.expect("it was admitted"));
        let probe = request.op == Op::Probe;
        let tag = match request.from {
            From::Client { client, number, .. } if !probe => Some((client, number)),
            _ => None,
        };
        if let Some(answer) = tag.and_then(|tag| chain.tags.get(&tag)).cloned() {
            return self.answer(request.clone(), answer);
        }
        let answer = match &request.op {
            Op::Put(_) | Op::Import(_) | Op::Probe if chain.data.is_some() => Answer::Exists,
            Op::Import(_)
                if !lax && chain.tombstone.is_some_and(|(buried, _)| buried || strict) =>
            {
                Answer::Exists
            }
            Op::Put(bytes) | Op::Import(bytes) => {
                (chain.data, chain.tombstone) = (Some(bytes.clone()), None);
                Answer::Done
            }
            Op::Remove if chain.data.is_none() => Answer::NotFound,
            Op::Bury | Op::Remove => {
                (chain.data, chain.tombstone) = (None, Some((request.op == Op::Bury, now)));
                Answer::Done
            }
            Op::Probe | Op::Read => Answer::NotFound,
        };
        if let Some(tag) = tag {
            chain.tags.insert(tag, answer.clone());
        }
        self.answer(request.clone(), answer);
    }

    fn answer(&mut self, request: Request, answer: Answer) {
        if !self.rng.permille(self.late) {
            let delay = self.delay();
            self.after(delay, Item::Answer(request.from, request.op, answer));
        }
    }

    fn wake(&mut self, client: usize, attempt: u64) {
        if self.clients[client].attempt != attempt {
            return;
        }
        if self.clients[client].task.is_none() {
            if self.now > self.end {
                return;
            }
            self.begin(client);
        }
        self.attempt(client);
    }

    fn begin(&mut self, client: usize) {
        let now = self.now;
        let action = match self.rng.below(10) {
            0..3 => {
                let number = self.clients[client].number;
                let name = u8::try_from(client).expect("few clients") + b'A';
                Action::Put(vec![name, u8::try_from(number % 250).expect("below 250")])
            }
            3..5 => Action::Remove,
            _ => Action::Read(0, u32::MAX),
        };
        let place = self.history.len();
        let heard = Heard::Unknown;
        self.history.push(Operation {
            client,
            call: now,
            ret: None,
            action: action.clone(),
            heard,
        });
        let c = &mut self.clients[client];
        c.number += 1;
        let stage = c.stage;
        let give_up = now + HORIZON;
        c.task = Some(Task { action, place, give_up, stage, step: 0, unsure: None });
    }

    /// The steps of an operation for the client's version of the slot: chain and operation.
    fn plan(&self, task: &Task) -> Vec<(usize, Op)> {
        let (new, old) = STAGES[task.stage];
        let bury = if self.has(SlotFlaw::NoBury) { Op::Remove } else { Op::Bury };
        match (&task.action, old) {
            (Action::Put(bytes), Some(old)) if !self.has(SlotFlaw::NoProbe) => {
                vec![(old, Op::Probe), (new, Op::Put(bytes.clone()))]
            }
            (Action::Put(bytes), _) => vec![(new, Op::Put(bytes.clone()))],
            (Action::Remove, Some(old)) if self.has(SlotFlaw::OldFirst) => {
                vec![(old, Op::Remove), (new, bury)]
            }
            (Action::Remove, Some(old)) => vec![(new, bury), (old, Op::Remove)],
            (Action::Remove, None) => vec![(new, Op::Remove)],
            (_, None) => vec![(new, Op::Read)],
            (_, Some(old)) if self.has(SlotFlaw::NoSecondLook) => {
                vec![(new, Op::Read), (old, Op::Read)]
            }
            (_, Some(old)) => {
                vec![(new, Op::Read), (old, Op::Read), (new, Op::Read)]
            }
        }
    }

    fn attempt(&mut self, client: usize) {
        let forgets = self.has(SlotFlaw::ForgetsTags);
        let now = self.now;
        let c = &mut self.clients[client];
        let Some(task) = &mut c.task else { return };
        if now >= task.give_up {
            return self.finish(client, Heard::Unknown);
        }
        // Newer routing: make a new plan, once no update is left that may have been done.
        if task.stage != c.stage && (task.unsure.is_none() || forgets) {
            let half = task.action == Action::Remove && task.step == 1;
            let over = STAGES[c.stage].1 != STAGES[task.stage].1;
            if half && over && !forgets {
                return self.finish(client, Heard::Gone);
            }
            (task.stage, task.step, task.unsure) = (c.stage, 0, None);
        }
        let task = task.clone();
        let (to, op) = self.plan(&task).swap_remove(task.step);
        let update = !matches!(op, Op::Read | Op::Probe);
        let c = &mut self.clients[client];
        c.attempt += 1;
        let (number, attempt, stage) = (c.number, c.attempt, task.stage);
        if let Some(task) = &mut c.task
            && update
        {
            task.unsure = Some(to);
        }
        let from = From::Client { client, number, attempt };
        if !self.rng.permille(self.late) {
            let delay = self.delay();
            self.after(delay, Item::Arrive(Request { from, to, op, stage }));
        }
        let patience = self.rng.between(ms(15), ms(60));
        self.after(patience, Item::Wake(client, attempt));
    }

    fn client_hears(&mut self, client: usize, of: (u64, u64), answer: Answer) {
        let c = &mut self.clients[client];
        let Some(task) = &mut c.task else { return };
        if of != (c.number, c.attempt) {
            return;
        }
        if answer == Answer::Behind {
            return;
        }
        task.unsure = None;
        if answer == Answer::Moved {
            if !matches!((&task.action, task.step), (Action::Remove, 1)) {
                task.step = 0;
            }
            c.attempt += 1;
            let attempt = c.attempt;
            let pause = self.rng.between(ms(1), ms(10));
            return self.after(pause, Item::Wake(client, attempt));
        }
        let task = task.clone();
        let last = task.step + 1 == self.plan(&task).len();
        let heard = match (&task.action, answer) {
            (Action::Put(_), Answer::NotFound) if !last => None,
            (Action::Put(_), _) => Some(Heard::There),
            (Action::Remove, _) => last.then_some(Heard::Gone),
            (_, Answer::Data(bytes)) => {
                let len = u32::try_from(bytes.len()).expect("short");
                Some(Heard::Data(bytes, len))
            }
            (_, _) => last.then_some(Heard::NotFound),
        };
        if let Some(heard) = heard {
            return self.finish(client, heard);
        }
        if let Some(task) = &mut self.clients[client].task {
            task.step += 1;
        }
        self.attempt(client);
    }

    fn finish(&mut self, client: usize, heard: Heard) {
        let c = &mut self.clients[client];
        let Some(task) = c.task.take() else { return };
        c.attempt += 1;
        let attempt = c.attempt;
        let operation = &mut self.history[task.place];
        operation.ret = (heard != Heard::Unknown).then_some(self.now);
        operation.heard = heard;
        let pause = self.rng.between(ms(1), ms(25));
        self.after(pause, Item::Wake(client, attempt));
    }
}
