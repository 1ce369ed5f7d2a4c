//! What goes wrong, and when. Each seed draws its own mix of kinds ("swarm testing", Groce et al.,
//! ISSTA 2012): runs without crashes find what runs full of crashes hide.

use millpond_types::ChunkId;
use millpond_types::cluster::{ChainId, TargetId, TargetState};

use crate::clock::Clock;
use crate::message::{Address, Item, Time, ms};
use crate::network::Weather;
use crate::rng::Rng;
use crate::world::World;

/// The shape of one run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) managers: usize,
    pub(crate) clients: usize,
    pub(crate) chains: usize,
    pub(crate) replicas: usize,
    pub(crate) chunks: u64,
    /// Updates are acknowledged from memory.
    pub(crate) memory: bool,
    /// Longest pause of a client between operations.
    pub(crate) think: Time,
    /// How long faults happen.
    pub(crate) chaos: Time,
    /// Mean time between faults.
    pace: Time,
    faults: Vec<Fault>,
    /// How often, in a thousand, a change of a chain draws a fault on one of its members.
    pub(crate) hunt: u64,
    /// How many reads, in a thousand, go to any target, whatever its state.
    pub(crate) anywhere: u64,
    weather: Weather,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Crash,
    QuickRestart,
    PowerLoss,
    Pause,
    CutNode,
    CutOneWay,
    CutPair,
    CutManager,
    Island,
    ManagerCrash,
    ManagerStore,
    Clock,
    Storm,
    Rot,
    FullDisk,
    FailingDisk,
    SlowDisk,
    Retire,
    Add,
}

const KINDS: [Fault; 19] = [
    Fault::Crash,
    Fault::QuickRestart,
    Fault::PowerLoss,
    Fault::Pause,
    Fault::CutNode,
    Fault::CutOneWay,
    Fault::CutPair,
    Fault::CutManager,
    Fault::Island,
    Fault::ManagerCrash,
    Fault::ManagerStore,
    Fault::Clock,
    Fault::Storm,
    Fault::Rot,
    Fault::FullDisk,
    Fault::FailingDisk,
    Fault::SlowDisk,
    Fault::Retire,
    Fault::Add,
];

/// The end of a fault.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    Start(usize),
    Mend(Vec<(Address, Address)>),
    StartManager(usize),
    Reach(usize),
    Calm,
    Space(TargetId),
    Fast(TargetId),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Nemesis {
    storms: u32,
    /// The node of the member that a hunt is after.
    prey: Option<usize>,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let replicas = [1, 2, 2, 3, 3, 3, 3, 4][rng.index(8)];
        let calm = rng.permille(300);
        let enabled = rng.between(150, 700);
        let mut faults: Vec<Fault> = KINDS.into_iter().filter(|_| rng.permille(enabled)).collect();
        // Half of the runs looks closely at one part of the protocol.
        let focus = rng.below(6);
        match focus {
            0 => faults = vec![Fault::CutManager, Fault::CutManager, Fault::Island, Fault::Storm],
            1 => {
                let around_resync = [Fault::CutManager, Fault::CutNode, Fault::QuickRestart];
                faults.retain(|fault| [Fault::Storm, Fault::SlowDisk, Fault::Add].contains(fault));
                faults.extend(around_resync);
            }
            2 => {
                faults =
                    vec![Fault::SlowDisk, Fault::SlowDisk, Fault::PowerLoss, Fault::FailingDisk];
            }
            _ if faults.is_empty() => faults.push(Fault::Crash),
            _ => {}
        }
        let focused = focus < 3;
        let weather = if calm {
            Weather::FAIR
        } else {
            Weather {
                loss: rng.below(60),
                repeat: rng.below(100),
                damage: rng.below(10),
                late: rng.below(50),
                delay_max: [ms(20), ms(300), ms(3000)][rng.index(3)],
            }
        };
        Self {
            nodes: replicas + 1 + rng.index(3),
            managers: 1 + rng.index(3),
            clients: 2 + rng.index(5),
            chains: 1 + usize::from(rng.permille(250)),
            replicas,
            chunks: if focused { 1 } else { 1 + rng.below(4) },
            memory: rng.permille(200),
            think: if focused { ms(4) } else { [ms(2), ms(20), ms(100)][rng.index(3)] },
            chaos: rng.between(ms(4000), ms(18_000)),
            pace: [ms(200), ms(700), ms(2000)][rng.index(3)],
            faults,
            hunt: if focused { 700 } else { [0, 100, 400, 800][rng.index(4)] },
            anywhere: [50, 200, 600][rng.index(3)],
            weather,
        }
    }
}

impl World {
    /// One fault, and the time of the next.
    pub(crate) fn strike(&mut self) {
        if self.phase != crate::world::Phase::Chaos {
            return;
        }
        if self.nemesis.storms == 0 {
            self.network.weather = self.plan.weather;
        }
        let pause = self.rng.between(self.plan.pace / 4, self.plan.pace * 2);
        self.after(pause, Item::Nemesis);
        self.strike_once();
    }

    /// The chain changed: the moment when the protocol is easiest to hurt.
    pub(crate) fn hunt(&mut self, chain: &millpond_types::cluster::Chain) {
        if self.phase == crate::world::Phase::Chaos && self.rng.permille(self.plan.hunt) {
            let members: Vec<usize> =
                chain.writing().map(|member| self.node_of[&member.target]).collect();
            // The last one that writes is being brought up to date, or was just promoted.
            let last = members.last().copied().filter(|_| self.rng.permille(400));
            let node = last.or_else(|| self.rng.pick(&members));
            let delay = [0, 300, ms(3), ms(60)][self.rng.index(4)];
            let delay = self.rng.below(delay + 1);
            if let Some(node) = node {
                self.after(delay, Item::Hunt(node));
            }
        }
    }

    pub(crate) fn hunted(&mut self, node: usize) {
        if self.phase == crate::world::Phase::Chaos {
            self.nemesis.prey = Some(node);
            self.strike_once();
            self.nemesis.prey = None;
        }
    }

    /// A node to do harm to.
    fn victim(&mut self) -> usize {
        self.nemesis.prey.unwrap_or_else(|| self.rng.index(self.nodes.len()))
    }

    fn strike_once(&mut self) {
        let faults = self.plan.faults.clone();
        let Some(fault) = self.rng.pick(&faults) else { return };
        self.stats.faults += 1;
        self.trace.note(self.now, || format!("fault {fault:?}"));
        match fault {
            Fault::Crash | Fault::QuickRestart | Fault::PowerLoss => self.strike_crash(fault),
            Fault::Pause => {
                let node = self.victim();
                let pause = self.length(ms(3500));
                self.nodes[node].paused_until = self.now + pause;
            }
            Fault::CutNode | Fault::CutOneWay | Fault::CutPair | Fault::CutManager => {
                self.strike_cut(fault);
            }
            Fault::Island => self.strike_island(),
            Fault::ManagerCrash | Fault::ManagerStore => self.strike_manager(fault),
            Fault::Clock => {
                let node = self.rng.index(self.nodes.len());
                let now = self.now;
                self.nodes[node].clock.disturb(&mut self.rng, now);
            }
            Fault::Storm => self.strike_storm(),
            Fault::Rot => self.strike_rot(),
            Fault::FullDisk | Fault::FailingDisk | Fault::SlowDisk => self.strike_disk(fault),
            Fault::Retire | Fault::Add => self.strike_membership(fault),
        }
    }

    /// How long a fault lasts: mostly short, sometimes beyond every lease.
    const fn length(&mut self, most: Time) -> Time {
        let most = if self.rng.permille(400) { most } else { most / 5 };
        self.rng.between(ms(20), most)
    }

    fn strike_crash(&mut self, fault: Fault) {
        let victims: Vec<usize> = if fault == Fault::PowerLoss {
            (0..self.nodes.len()).collect()
        } else {
            vec![self.victim()]
        };
        let most = if fault == Fault::QuickRestart { ms(100) } else { ms(8000) };
        let suspected = self.rng.permille(400);
        for node in victims {
            let life = self.nodes[node].life;
            self.crash(node);
            let down = self.length(most);
            self.after(down, Item::Undo(Undo::Start(node)));
            if suspected {
                let probe = self.rng.between(ms(10), ms(900));
                self.after(probe, Item::Probe { node, life });
            }
        }
    }

    fn addresses(&self) -> Vec<Address> {
        let nodes = (0..self.nodes.len()).map(Address::Node);
        let managers = (0..self.managers.len()).map(Address::Manager);
        let clients = (0..self.clients.len()).map(Address::Client);
        nodes.chain(managers).chain(clients).collect()
    }

    fn strike_cut(&mut self, fault: Fault) {
        let node = Address::Node(self.victim());
        let all = self.addresses();
        let mut cuts = Vec::new();
        match fault {
            Fault::CutManager => {
                // The manager alone is out of reach: peer leases must carry the reads.
                for manager in (0..self.managers.len()).map(Address::Manager) {
                    for node in (0..self.nodes.len()).map(Address::Node) {
                        cuts.extend([(node, manager), (manager, node)]);
                    }
                }
                if self.rng.permille(700) {
                    cuts.retain(|(a, b)| *a == node || *b == node);
                }
                // Clients may stay without news as well.
                for client in (0..self.clients.len()).map(Address::Client) {
                    if self.rng.permille(400) {
                        let managers = (0..self.managers.len()).map(Address::Manager);
                        cuts.extend(managers.map(|manager| (manager, client)));
                    }
                }
            }
            Fault::CutPair => {
                let other = Address::Node(self.rng.index(self.nodes.len()));
                cuts.push((node, other));
                if self.rng.permille(500) {
                    cuts.push((other, node));
                }
            }
            _ => {
                let one_way = fault == Fault::CutOneWay;
                let inward = self.rng.permille(500);
                let share = [300, 600, 1000][self.rng.index(3)];
                for other in all.into_iter().filter(|other| *other != node) {
                    if !self.rng.permille(share) {
                        continue;
                    }
                    if !one_way || inward {
                        cuts.push((other, node));
                    }
                    if !one_way || !inward {
                        cuts.push((node, other));
                    }
                }
            }
        }
        self.cut_all(cuts);
    }

    /// Some nodes and clients are alone with each other: those clients hear of no change.
    fn strike_island(&mut self) {
        let victim = Address::Node(self.victim());
        let (mut inside, mut outside) = (vec![victim], Vec::new());
        for address in self.addresses().into_iter().filter(|address| *address != victim) {
            let share = match address {
                Address::Node(_) => 250,
                Address::Manager(_) => 100,
                Address::Client(_) => 500,
            };
            if self.rng.permille(share) { inside.push(address) } else { outside.push(address) }
        }
        let pairs = inside.iter().flat_map(|a| outside.iter().map(move |b| (*a, *b)));
        self.cut_all(pairs.flat_map(|(a, b)| [(a, b), (b, a)]).collect());
    }

    fn cut_all(&mut self, cuts: Vec<(Address, Address)>) {
        for (from, to) in &cuts {
            self.network.cut(*from, *to);
        }
        self.trace.note(self.now, || format!("cut {cuts:?}"));
        let length = self.length(ms(7000));
        self.after(length, Item::Undo(Undo::Mend(cuts)));
    }

    fn strike_manager(&mut self, fault: Fault) {
        let manager = self.rng.index(self.managers.len());
        let length = self.length(ms(8000));
        if fault == Fault::ManagerCrash {
            self.managers[manager].up = false;
            self.after(length, Item::Undo(Undo::StartManager(manager)));
        } else {
            self.managers[manager].cut = true;
            self.after(length, Item::Undo(Undo::Reach(manager)));
        }
    }

    fn strike_storm(&mut self) {
        self.nemesis.storms += 1;
        self.network.weather = Weather {
            loss: self.rng.below(400),
            repeat: self.rng.below(300),
            damage: self.rng.below(50),
            late: self.rng.below(300),
            delay_max: [ms(100), ms(1000), ms(3000)][self.rng.index(3)],
        };
        let length = self.length(ms(3000));
        self.after(length, Item::Undo(Undo::Calm));
    }

    /// Damages one copy of a chunk of which another serving target has a good one.
    fn strike_rot(&mut self) {
        let Some(chain) = self.any_chain() else { return };
        let serving: Vec<TargetId> =
            self.store.chains[&chain].serving().map(|member| member.target).collect();
        let chunk = ChunkId(1 + u128::from(self.rng.below(self.plan.chunks)));
        let Some(target) = self.rng.pick(&serving) else { return };
        let copy = |t: &TargetId| {
            let entry = self.hosts[t].disk.chunks().get(&chunk)?;
            entry.committed.as_ref().filter(|stored| !stored.rotten).map(|stored| stored.meta)
        };
        let mine = copy(&target);
        let others = serving.iter().filter(|t| **t != target);
        if mine.is_none() || !others.clone().any(|t| copy(t) == mine) {
            return;
        }
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        if host.disk.rot(chunk) {
            self.trace.note(self.now, || format!("{} has a damaged {chunk}", target.0));
            let met = self.rng.between(ms(1), ms(3000));
            self.after(met, Item::Scrub { target, chunk });
        }
    }

    fn any_chain(&mut self) -> Option<ChainId> {
        let chains: Vec<ChainId> = self.store.chains.keys().copied().collect();
        self.rng.pick(&chains)
    }

    fn strike_disk(&mut self, fault: Fault) {
        let targets: Vec<TargetId> = self.hosts.keys().copied().collect();
        let Some(target) = self.rng.pick(&targets) else { return };
        let spare = self.rng.index(120);
        let length = self.length(ms(6000));
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        match fault {
            Fault::FullDisk => {
                host.disk.capacity = Some(host.disk.used() + spare);
                self.after(length, Item::Undo(Undo::Space(target)));
            }
            Fault::SlowDisk => {
                host.disk.slow = true;
                self.after(length, Item::Undo(Undo::Fast(target)));
            }
            _ => {
                host.disk.failing = true;
                let life = host.life;
                self.after(self.plan.think, Item::StoreFailed { target, life });
            }
        }
    }

    fn strike_membership(&mut self, fault: Fault) {
        let Some(id) = self.any_chain() else { return };
        let chain = &self.store.chains[&id];
        let members: Vec<TargetId> = chain.targets.iter().map(|member| member.target).collect();
        if fault == Fault::Add {
            let spare = self.hosts.values().find(|h| h.chain == id && !members.contains(&h.target));
            if let Some(target) = spare.map(|host| host.target) {
                let node = self.node_of[&target];
                self.store.add(id, target, node);
            }
            return;
        }
        let serving = chain.serving().count();
        let states = [TargetState::Serving, TargetState::Offline];
        let leaving: Vec<TargetId> = chain
            .targets
            .iter()
            .filter(|member| states.contains(&member.state))
            .map(|member| member.target)
            .collect();
        if serving >= 2 && self.store.retiring.is_empty() {
            self.store.retiring.extend(self.rng.pick(&leaving));
        }
    }

    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Start(node) => self.start(node),
            Undo::Mend(cuts) => {
                for (from, to) in cuts {
                    self.network.mend(from, to);
                }
            }
            Undo::StartManager(manager) => self.start_manager(manager),
            Undo::Reach(manager) => self.managers[manager].cut = false,
            Undo::Calm => {
                self.nemesis.storms = self.nemesis.storms.saturating_sub(1);
                if self.nemesis.storms == 0 && self.phase == crate::world::Phase::Chaos {
                    self.network.weather = self.plan.weather;
                }
            }
            Undo::Space(target) => self.disk(target).capacity = None,
            Undo::Fast(target) => self.disk(target).slow = false,
        }
    }

    fn disk(&mut self, target: TargetId) -> &mut crate::disk::Disk {
        &mut self.hosts.get_mut(&target).expect("every target has a host").disk
    }

    fn start_manager(&mut self, manager: usize) {
        if self.managers[manager].up {
            return;
        }
        let clock = Clock::new(&mut self.rng, self.now);
        self.managers[manager].restart(clock);
        let life = self.managers[manager].life;
        self.after(ms(1), Item::ManagerTick { manager, life });
    }

    /// All faults end. What was lost stays lost.
    pub(crate) fn heal(&mut self) {
        self.trace.note(self.now, || "all faults end".to_owned());
        self.network.mend_all();
        self.network.weather = Weather::FAIR;
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = self.nodes[node].paused_until.min(self.now);
            self.start(node);
        }
        for manager in 0..self.managers.len() {
            self.managers[manager].cut = false;
            self.start_manager(manager);
        }
        let targets: Vec<TargetId> = self.hosts.keys().copied().collect();
        for target in targets {
            let disk = self.disk(target);
            disk.capacity = None;
            disk.slow = false;
        }
    }
}
