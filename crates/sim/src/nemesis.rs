//! Faults and their times. Each seed draws its own mix of kinds ("swarm testing", Groce et al.,
//! ISSTA 2012): runs without crashes find bugs that runs full of crashes hide.

use millpond_cluster::manager::AdminCommand;
use millpond_types::ChunkId;
use millpond_types::cluster::{ChainId, TargetId};

use crate::member::{NodeDisk, node_at, node_id};
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
    /// Whether updates are acknowledged from memory.
    pub(crate) memory: bool,
    /// Longest pause of a client between operations.
    pub(crate) think: Time,
    /// Duration of the faults.
    pub(crate) chaos: Time,
    /// Mean time between faults.
    pace: Time,
    faults: Vec<Fault>,
    /// How many changes of a chain, in a thousand, draw a fault on one of its members.
    pub(crate) hunt: u64,
    /// How many reads, in a thousand, go to any target in any state.
    pub(crate) anywhere: u64,
    /// How many transactions, in a thousand, are late or get no answer.
    pub(crate) store_late: u64,
    /// Nodes present from the beginning; the others join.
    pub(crate) founders: usize,
    /// Disks of a node.
    pub(crate) disks: usize,
    /// Whether disks have different sizes.
    pub(crate) uneven: bool,
    /// `repair.after`.
    repair: &'static str,
    weather: Weather,
}

/// Longest delay of an order.
const LATE: Time = ms(1100);

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
    DeadDisk,
    ManagerPause,
    ManagerStop,
    ManagerClock,
    StoreDown,
    Stop,
    Join,
    Drain,
    DrainDisk,
    LoseDisk,
    AddDisk,
    MoveTarget,
    RemoveNode,
}

const KINDS: [Fault; 30] = [
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
    Fault::DeadDisk,
    Fault::ManagerPause,
    Fault::ManagerStop,
    Fault::ManagerClock,
    Fault::StoreDown,
    Fault::Stop,
    Fault::Join,
    Fault::Drain,
    Fault::DrainDisk,
    Fault::LoseDisk,
    Fault::AddDisk,
    Fault::MoveTarget,
    Fault::RemoveNode,
];

/// The end of a fault.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    Start(usize),
    Mend(Vec<(Address, Address)>),
    StartManager(usize),
    Reach(usize),
    StoreUp,
    Restart(usize),
    Order(AdminCommand),
    Orders,
    Calm,
    Space(TargetId),
    Fast(TargetId),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Nemesis {
    storms: u32,
    /// The node of the member that a hunt targets.
    prey: Option<usize>,
}

/// The kinds of faults of a run that focuses on one part of the protocol.
fn focused(focus: u64, mut faults: Vec<Fault>) -> Vec<Fault> {
    use Fault::{CutManager, CutNode, ManagerPause, ManagerStore};
    let mut only = |kinds: &[Fault], more: &[Fault]| {
        faults.retain(|fault| kinds.contains(fault));
        faults.extend(more);
    };
    match focus {
        0 => only(&[], &[CutManager, CutManager, Fault::Island, Fault::Storm]),
        // Around a resync.
        1 => only(
            &[Fault::Storm, Fault::SlowDisk, Fault::MoveTarget, Fault::Drain],
            &[CutManager, CutNode, Fault::QuickRestart],
        ),
        2 => {
            only(&[], &[Fault::SlowDisk, Fault::SlowDisk, Fault::PowerLoss, Fault::FailingDisk]);
        }
        // Changes of the primary, and their effects on nodes.
        3 => only(
            &[Fault::MoveTarget, Fault::LoseDisk, Fault::Pause, Fault::Stop],
            &[ManagerStore, ManagerStore, ManagerPause, CutManager, CutNode],
        ),
        _ if faults.is_empty() => faults.push(Fault::Crash),
        _ => {}
    }
    faults
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let replicas = [1, 2, 2, 3, 3, 3, 3, 4][rng.index(8)];
        let calm = rng.permille(300);
        let enabled = rng.between(150, 700);
        let faults: Vec<Fault> = KINDS.into_iter().filter(|_| rng.permille(enabled)).collect();
        // Half of the runs focus on one part of the protocol.
        let focus = rng.below(7);
        let faults = focused(focus, faults);
        let focused = focus < 4;
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
        let nodes = replicas + 1 + rng.index(3);
        Self {
            nodes,
            founders: if rng.permille(300) {
                replicas + rng.index(nodes - replicas)
            } else {
                nodes
            },
            disks: 1 + usize::from(rng.permille(250)),
            uneven: rng.permille(200),
            repair: ["500ms", "2s", "5s", "15m"][rng.index(4)],
            store_late: [0, 0, 5, 40, 150][rng.index(5)],
            managers: if focus == 3 { 2 + rng.index(2) } else { 1 + rng.index(3) },
            clients: 2 + rng.index(5),
            chains: 1 + usize::from(rng.permille(250)),
            replicas,
            chunks: if focused { 1 } else { 1 + rng.below(4) },
            memory: rng.permille(200),
            think: if focused { ms(4) } else { [ms(2), ms(20), ms(100)][rng.index(3)] },
            chaos: rng.between(ms(5000), ms(19_000)),
            pace: [ms(200), ms(700), ms(2000)][rng.index(3)],
            faults,
            hunt: if focused { 700 } else { [0, 100, 400, 800][rng.index(4)] },
            anywhere: [50, 200, 600][rng.index(3)],
            weather,
        }
    }
}

impl Plan {
    /// Adds damage, and targets that leave and come back near it.
    pub(crate) fn lose_chunks(&mut self) {
        let often = [Fault::Rot, Fault::Rot, Fault::Rot, Fault::QuickRestart, Fault::Crash];
        self.faults.extend(often);
    }
}

/// Divisor and remainder of the seeds with another chain table.
const TABLE_SEEDS: (u64, u64) = (4, 1);

/// Whether a run has chains with different numbers of replicas.
const fn tables_wanted(seed: u64) -> bool {
    seed % TABLE_SEEDS.0 == TABLE_SEEDS.1
}

impl World {
    /// Strikes one fault, and schedules the next.
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

    /// Strikes after a change of the chain, when the protocol is most vulnerable.
    pub(crate) fn hunt(&mut self, chain: &millpond_types::cluster::Chain) {
        if self.phase == crate::world::Phase::Chaos && self.rng.permille(self.plan.hunt) {
            let members: Vec<usize> =
                chain.writing().filter_map(|member| node_at(member.node)).collect();
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

    /// The node for the next fault.
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
            Fault::ManagerCrash
            | Fault::ManagerStore
            | Fault::ManagerPause
            | Fault::ManagerStop
            | Fault::ManagerClock
            | Fault::StoreDown => self.strike_manager(fault),
            Fault::Stop => {
                let node = self.victim();
                self.leaves(node);
            }
            Fault::DeadDisk => self.strike_dead_disk(),
            Fault::Clock => {
                let node = self.rng.index(self.nodes.len());
                let now = self.now;
                self.nodes[node].clock.disturb(&mut self.rng, now);
            }
            Fault::Storm => self.strike_storm(),
            Fault::Rot => {
                if !self.strike_last_copies() {
                    self.strike_rot();
                }
            }
            Fault::FullDisk | Fault::FailingDisk | Fault::SlowDisk => self.strike_disk(fault),
            Fault::Join
            | Fault::Drain
            | Fault::DrainDisk
            | Fault::LoseDisk
            | Fault::AddDisk
            | Fault::MoveTarget
            | Fault::RemoveNode => self.strike_membership(fault),
        }
    }

    /// Duration of a fault: mostly short, sometimes beyond every lease.
    pub(crate) const fn length(&mut self, most: Time) -> Time {
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
        let dark = fault == Fault::PowerLoss || fault == Fault::Crash && self.rng.permille(500);
        for node in victims {
            self.crash(node, dark);
            let down = self.length(most);
            self.after(down, Item::Undo(Undo::Start(node)));
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
                // Only the manager is unreachable: peer leases must carry the reads.
                for manager in (0..self.managers.len()).map(Address::Manager) {
                    for node in (0..self.nodes.len()).map(Address::Node) {
                        cuts.extend([(node, manager), (manager, node)]);
                    }
                }
                if self.rng.permille(700) {
                    cuts.retain(|(a, b)| *a == node || *b == node);
                }
                // Clients may miss routing updates as well.
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

    /// Isolates some nodes and clients together, rarely with a manager. Without a manager those
    /// clients hear of no change.
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
        // A lease of 5 s must run out in some runs.
        let length = if self.rng.permille(400) {
            self.rng.between(ms(4000), ms(11_000))
        } else {
            self.length(ms(4000))
        };
        match fault {
            Fault::ManagerCrash => {
                self.manager_crashes(manager);
                self.after(length, Item::Undo(Undo::StartManager(manager)));
            }
            Fault::ManagerStop => {
                self.manager_leaves(manager);
                self.after(length + ms(2000), Item::Undo(Undo::StartManager(manager)));
            }
            Fault::ManagerPause => self.managers[manager].paused_until = self.now + length,
            Fault::ManagerClock => {
                let now = self.now;
                self.managers[manager].clock.disturb(&mut self.rng, now);
            }
            Fault::StoreDown => {
                self.store.down = true;
                self.after(length / 2, Item::Undo(Undo::StoreUp));
            }
            _ => {
                self.managers[manager].cut = true;
                self.after(length, Item::Undo(Undo::Reach(manager)));
            }
        }
    }

    /// Makes all targets of a disk fail, until its server is started again.
    fn strike_dead_disk(&mut self) {
        let node = self.victim();
        let which = self.rng.index(self.nodes[node].disks.len());
        let disk = &mut self.nodes[node].disks[which];
        disk.dead = true;
        let id = disk.id;
        let mut hit = Vec::new();
        for host in self.hosts.values_mut().filter(|host| host.node == node && host.on == id) {
            host.disk.failing = true;
            hit.push((host.target, host.life));
        }
        for (target, life) in hit {
            self.after(self.plan.think, Item::StoreFailed { target, life });
        }
        let length = self.length(ms(8000));
        self.after(length, Item::Undo(Undo::Restart(node)));
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
            self.store.chains[&chain].chain.serving().map(|member| member.target).collect();
        let chunk = ChunkId(1 + u128::from(self.rng.below(self.plan.chunks)));
        let Some(target) = self.rng.pick(&serving) else { return };
        let copy = |t: &TargetId| {
            let entry = self.hosts.get(t)?.disk.chunks().get(&chunk)?;
            entry.committed.as_ref().filter(|stored| !stored.rotten).map(|stored| stored.meta)
        };
        let mine = copy(&target);
        let others = serving.iter().filter(|t| **t != target);
        if mine.is_none() || !others.clone().any(|t| copy(t) == mine) {
            return;
        }
        let Some(host) = self.hosts.get_mut(&target) else { return };
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
        let Some(host) = self.hosts.get_mut(&target) else { return };
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

    /// Gives operators' orders, and revokes them some time later.
    fn strike_membership(&mut self, fault: Fault) {
        let node = self.victim();
        let which = self.rng.index(self.nodes[node].disks.len());
        let (id, disk) = (node_id(node), self.nodes[node].disks[which].id);
        let length = self.length(ms(9000));
        let (order, undo) = match fault {
            Fault::Join => {
                if let Some(new) = self.nodes.iter().position(|node| node.life == 0) {
                    self.start(new);
                }
                return;
            }
            Fault::AddDisk => return self.add_disk(node),
            Fault::MoveTarget => return self.strike_move(),
            Fault::Drain => (
                AdminCommand::DrainNode { node: id, on: true },
                AdminCommand::DrainNode { node: id, on: false },
            ),
            Fault::DrainDisk => (
                AdminCommand::DrainDisk { disk, on: true },
                AdminCommand::DrainDisk { disk, on: false },
            ),
            Fault::LoseDisk => {
                (AdminCommand::LoseDisk { disk }, AdminCommand::DrainDisk { disk, on: false })
            }
            _ => {
                self.leaves(node);
                let remove = AdminCommand::RemoveNode { node: id };
                self.after(length / 2, Item::Undo(Undo::Order(remove)));
                (
                    AdminCommand::DrainNode { node: id, on: true },
                    AdminCommand::DrainNode { node: id, on: false },
                )
            }
        };
        self.order(order);
        self.after(length, Item::Undo(Undo::Order(undo)));
    }

    fn strike_move(&mut self) {
        let Some(chain) = self.any_chain() else { return };
        let targets: Vec<TargetId> =
            self.store.chains[&chain].chain.targets.iter().map(|member| member.target).collect();
        let node = self.rng.index(self.nodes.len());
        let to = self.nodes[node].disks[0].id;
        if let Some(from) = self.rng.pick(&targets) {
            self.order(AdminCommand::MoveTarget { chain, from, to });
        }
    }

    /// Adds a disk; the process reports it at its next registration.
    fn add_disk(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        let count = n.disks.len();
        if n.up && count < 3 {
            n.disks.push(NodeDisk::new(node, count, 1 << 40));
            n.member.registered = false;
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
            Undo::StoreUp => self.store.down = false,
            Undo::Restart(node) => {
                if self.nodes[node].disks.iter().any(|disk| disk.dead) {
                    self.crash(node, false);
                    self.start(node);
                }
            }
            Undo::Order(command) => {
                if self.phase == crate::world::Phase::Chaos {
                    self.order(command);
                }
            }
            Undo::Orders => self.last_orders(),
            Undo::Reach(manager) => self.managers[manager].cut = false,
            Undo::Calm => {
                self.nemesis.storms = self.nemesis.storms.saturating_sub(1);
                if self.nemesis.storms == 0 && self.phase == crate::world::Phase::Chaos {
                    self.network.weather = self.plan.weather;
                }
            }
            Undo::Space(target) => {
                if let Some(host) = self.hosts.get_mut(&target) {
                    host.disk.capacity = None;
                }
            }
            Undo::Fast(target) => {
                if let Some(host) = self.hosts.get_mut(&target) {
                    host.disk.slow = false;
                }
            }
        }
    }

    /// Ends all faults. Lost data stays lost.
    pub(crate) fn heal(&mut self) {
        self.trace.note(self.now, || "all faults end".to_owned());
        self.network.mend_all();
        self.network.weather = Weather::FAIR;
        self.store.down = false;
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = self.nodes[node].paused_until.min(self.now);
            self.undo(Undo::Restart(node));
            if !self.nodes[node].member.stopping {
                self.start(node);
            }
        }
        for manager in 0..self.managers.len() {
            let seat = &mut self.managers[manager];
            seat.cut = false;
            seat.paused_until = seat.paused_until.min(self.now);
            self.start_manager(manager);
        }
        for host in self.hosts.values_mut() {
            host.disk.capacity = None;
            host.disk.slow = false;
        }
        self.after(LATE, Item::Undo(Undo::Orders));
    }

    /// Orders all existing nodes and disks to be used.
    fn last_orders(&mut self) {
        self.orders_given = true;
        for node in 0..self.nodes.len() {
            self.order_surely(AdminCommand::DrainNode { node: node_id(node), on: false });
            for disk in self.nodes[node].disks.clone() {
                self.order_surely(AdminCommand::DrainDisk { disk: disk.id, on: false });
            }
        }
    }

    /// Sets the initial settings of operators.
    pub(crate) fn first_orders(&mut self) {
        for (name, value) in [("repair.after", self.plan.repair), ("rebalance.slots_max", "4096")] {
            let (name, value) = (name.to_owned(), value.to_owned());
            self.order_surely(AdminCommand::Set { name, value });
        }
    }

    /// In some runs, orders a table of chains with fewer or more replicas, once the cluster's
    /// chains exist.
    pub(crate) fn order_table(&mut self) {
        let replicas = self.plan.replicas;
        let others: Vec<usize> = (1..self.plan.nodes).filter(|count| *count != replicas).collect();
        if !tables_wanted(self.seed) || others.is_empty() {
            return;
        }
        let replicas = others[self.rng.index(others.len())];
        let replicas = u8::try_from(replicas).expect("small");
        let form = AdminCommand::Form { replicas };
        let at = self.rng.between(ms(2500), self.plan.chaos.max(ms(2501)));
        self.after(at, Item::Undo(Undo::Order(form)));
    }
}
