//! The faults, and which of them can be had here.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millpond_env::Rng;

use super::cluster::Cluster;
use super::disk::{self, Slow};
use super::load::Shared;
use super::replicas;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// SIGKILL of a node, and a restart.
    Kill,
    /// SIGKILL of two nodes of a chain of three.
    KillTwo,
    /// SIGSTOP of a node, and SIGCONT.
    Stop,
    /// A node after the other is stopped in good order and started.
    Rolling,
    /// SIGKILL of the primary manager, and a restart.
    Manager,
    /// A node is cut off, in both directions or one.
    Partition,
    /// The primary manager is cut off.
    ManagerPartition,
    /// Disks are filled with what may not be evicted.
    Full,
    /// Bytes change on a disk, under a running server or a dead one.
    Lie,
    /// A disk does few operations in a second.
    Slow,
}

/// All, in the order in which they are told.
pub(crate) const ALL: [Fault; 10] = [
    Fault::Kill,
    Fault::KillTwo,
    Fault::Stop,
    Fault::Rolling,
    Fault::Manager,
    Fault::Partition,
    Fault::ManagerPartition,
    Fault::Full,
    Fault::Lie,
    Fault::Slow,
];

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillTwo => "kill-two",
            Self::Stop => "stop",
            Self::Rolling => "rolling",
            Self::Manager => "manager",
            Self::Partition => "partition",
            Self::ManagerPartition => "manager-partition",
            Self::Full => "full",
            Self::Lie => "lie",
            Self::Slow => "slow",
        }
    }

    pub(crate) fn parse(name: &str) -> Self {
        let found = ALL.into_iter().find(|fault| fault.name() == name);
        let all = ALL.map(Self::name).join(", ");
        found.unwrap_or_else(|| panic!("no fault '{name}'; there are {all}"))
    }

    /// Why it cannot be had in this cluster or on this machine.
    pub(crate) fn missing(self, cluster: &Cluster) -> Option<String> {
        let wish = &cluster.wish;
        match self {
            Self::KillTwo if wish.replicas < 3 => Some("needs three replicas".to_owned()),
            Self::Partition if !wish.netns => Some("needs root and iproute2".to_owned()),
            Self::ManagerPartition if !wish.netns || !wish.etcd => {
                Some("needs root, iproute2 and etcd".to_owned())
            }
            Self::Slow => Slow::missing(cluster.folder()),
            _ => None,
        }
    }
}

/// Whoever makes faults.
pub(crate) struct Nemesis<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) load: &'c Shared,
    pub(crate) rng: Rng,
    /// How long a process stands still.
    pub(crate) stop: Duration,
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}

impl Nemesis<'_> {
    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.rng.below(to - from))
    }

    /// A member of a chain that serves, by its place: which node, and what it is there.
    fn member(&mut self) -> Result<(Vec<String>, String), String> {
        let status = self.cluster.status().ok_or("nobody is primary")?;
        let chains = self.cluster.chains().ok_or("nobody is primary")?;
        let names = self.cluster.names(&status);
        let chain = &chains[self.rng.index(chains.len())];
        let serving = chain.targets.iter().filter(|target| target.state == "serving");
        let nodes: Vec<String> =
            serving.filter_map(|target| names.get(&target.node)).cloned().collect();
        if nodes.is_empty() {
            return Err(format!("chain {} does not serve", chain.id));
        }
        let at = self.rng.index(nodes.len());
        let place = match at {
            0 => "head",
            at if at + 1 == nodes.len() => "tail",
            _ => "middle",
        };
        let mut nodes = nodes;
        nodes.rotate_left(at);
        Ok((nodes, format!("{place} of chain {}", chain.id)))
    }

    fn any_node(&mut self) -> String {
        self.cluster.nodes[self.rng.index(self.cluster.nodes.len())].name.clone()
    }

    /// Makes a fault and ends it; what was done.
    pub(crate) fn strike(&mut self, fault: Fault) -> Result<String, String> {
        match fault {
            Fault::Kill => self.kill(1),
            Fault::KillTwo => self.kill(2),
            Fault::Stop => {
                let (nodes, place) = self.member()?;
                self.cluster.dev(&["stop", &nodes[0]])?;
                pause(self.stop);
                self.cluster.dev(&["cont", &nodes[0]])?;
                Ok(format!("stopped {}, {place}, for {:?}", nodes[0], self.stop))
            }
            Fault::Rolling => self.rolling(),
            Fault::Manager => self.manager(),
            Fault::Partition => self.partition(),
            Fault::ManagerPartition => {
                let primary = self.cluster.primary().ok_or("nobody is primary")?;
                self.cluster.dev(&["partition", &primary])?;
                let next = self.wait_primary(&primary);
                pause(self.millis(100, 3_000));
                self.cluster.dev(&["heal"])?;
                Ok(format!("cut {primary} off; {}", next?))
            }
            Fault::Full => self.full(),
            Fault::Lie => self.lie(),
            Fault::Slow => {
                let node = self.any_node();
                let pid = self.cluster.pid(&node).ok_or("it does not run")?;
                let slow = Slow::start(self.cluster.folder(), pid)?;
                let time = self.millis(3_000, 8_000);
                pause(time);
                drop(slow);
                Ok(format!("slowed the disk of {node} to {} for {time:?}", disk::SLOW))
            }
        }
    }

    fn kill(&mut self, count: usize) -> Result<String, String> {
        let (mut nodes, place) = self.member()?;
        nodes.truncate(count);
        for node in &nodes {
            self.cluster.dev(&["kill", node])?;
            if count > 1 {
                // Both at once, or one while the chain does without the other.
                pause(self.millis(0, 1_500));
            }
        }
        let away = self.millis(50, 4_000);
        pause(away);
        for node in &nodes {
            self.cluster.dev(&["start", node])?;
        }
        Ok(format!("killed {}, {place}, away for {away:?}", nodes.join(" and ")))
    }

    fn rolling(&mut self) -> Result<String, String> {
        let mut took = Vec::new();
        for node in &self.cluster.nodes {
            self.cluster.dev(&["restart", &node.name])?;
            took.push(format!("{:.1} s", self.cluster.wait_whole()?.as_secs_f64()));
        }
        Ok(format!("restarted every node; whole again after {}", took.join(", ")))
    }

    /// Waits for another primary than `old`.
    fn wait_primary(&self, old: &str) -> Result<String, String> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            if let Some(primary) = self.cluster.primary().filter(|name| name != old) {
                let took = started.elapsed().as_secs_f64();
                return Ok(format!("{primary} followed after {took:.1} s"));
            }
            pause(Duration::from_millis(50));
        }
        Err(format!("no manager followed {old} within 30 s"))
    }

    fn manager(&mut self) -> Result<String, String> {
        let primary = self.cluster.primary().ok_or("nobody is primary")?;
        self.cluster.dev(&["kill", &primary])?;
        if self.cluster.managers.len() > 1 {
            let next = self.wait_primary(&primary);
            pause(self.millis(100, 3_000));
            self.cluster.dev(&["start", &primary])?;
            return Ok(format!("killed manager {primary}; {}", next?));
        }
        let away = self.millis(500, 6_000);
        pause(away);
        self.cluster.dev(&["start", &primary])?;
        Ok(format!("killed the only manager, away for {away:?}"))
    }

    fn partition(&mut self) -> Result<String, String> {
        let node = self.any_node();
        let mut words = vec!["partition".to_owned(), node.clone()];
        let mut longest_ms = 8_000;
        if self.rng.chance(1, 3) {
            let other = self.any_node();
            if other != node {
                words.extend(["--from".to_owned(), other]);
                // The manager hears both, so nobody leaves a chain, and writes wait for the end of it
                // (docs/dev.md): they must not wait for longer than a call may take.
                longest_ms = 3_000;
            }
        }
        if self.rng.chance(1, 3) {
            words.push("--one-way".to_owned());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.cluster.dev(&words)?;
        let time = self.millis(500, longest_ms);
        pause(time);
        self.cluster.dev(&["heal"])?;
        Ok(format!("{} for {time:?}", words.join(" ")))
    }

    fn full(&mut self) -> Result<String, String> {
        self.load.full.store(true, Ordering::Relaxed);
        let addresses = self.cluster.addresses();
        let filled = disk::fill(&addresses, self.cluster.wish.replicas);
        self.load.full.store(false, Ordering::Relaxed);
        let refused = self.load.refused.swap(0, Ordering::Relaxed);
        Ok(format!("{}; {refused} updates of clients were refused", filled?))
    }

    fn lie(&mut self) -> Result<String, String> {
        let node = self.any_node();
        let dead = self.rng.chance(1, 2);
        if dead {
            self.cluster.dev(&["kill", &node])?;
        }
        let flipped = disk::flip(&self.cluster.chunk_file(&node), &mut self.rng);
        if dead {
            self.cluster.dev(&["start", &node])?;
        }
        let flipped = flipped.map_err(|error| format!("flipping bytes of {node}: {error}"))?;
        self.cluster.wait_whole()?;
        self.reads_well(&node, &flipped)?;
        // Once more from the disk, without what memory holds.
        self.cluster.dev(&["restart", &node])?;
        self.cluster.wait_whole()?;
        self.reads_well(&node, &flipped)?;
        let how = if dead { "while it was dead" } else { "under its feet" };
        Ok(format!("flipped bytes in {} pages of {node} {how}", flipped.len()))
    }

    /// Waits until a node answers for these keys itself, with right bytes or none.
    fn reads_well(&self, node: &str, keys: &[u64]) -> Result<(), String> {
        let member = self.cluster.nodes.iter().find(|it| it.name == node).ok_or("no such node")?;
        let started = Instant::now();
        let mut open: Vec<u64> = keys.to_vec();
        let mut said = BTreeMap::new();
        while !open.is_empty() {
            if started.elapsed() > Duration::from_secs(30) {
                return Err(format!("{node} does not repair what was damaged: {said:?}"));
            }
            said = replicas::ask(&member.address, self.cluster.wish.replicas, &open)?;
            open.retain(|key| matches!(said.get(key), Some(replicas::Said::Other(_))));
            pause(Duration::from_millis(50));
        }
        Ok(())
    }
}
