//! A network of namespaces on this host, in which nodes can be cut off from each other.
//!
//! Every member has a namespace, joined to a bridge by a pair of virtual interfaces. A member that
//! does not reach another one is given a false hardware address for it: what it sends is lost in
//! silence, one way only, as in a broken network. Interfaces that are set down would answer at once.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::plan::{HOST, Network, State};

/// A hardware address that nobody has.
const NOWHERE: &str = "02:00:00:00:00:00";

/// What a partition cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition<'a> {
    /// The member that is cut off.
    pub(crate) node: &'a str,
    /// From this one only; else from everybody, clients on the host included.
    pub(crate) from: Option<&'a str>,
    /// It still hears, and is not heard.
    pub(crate) one_way: bool,
}

impl Partition<'_> {
    /// The ways that are cut: sender and receiver.
    fn cuts(self, names: &[String]) -> Vec<(String, String)> {
        let mut others: Vec<&str> = names.iter().map(String::as_str).collect();
        others.push(HOST);
        let mut cuts = Vec::new();
        for other in others {
            if other == self.node || self.from.is_some_and(|from| from != other) {
                continue;
            }
            cuts.push((self.node.to_owned(), other.to_owned()));
            if !self.one_way {
                cuts.push((other.to_owned(), self.node.to_owned()));
            }
        }
        cuts
    }
}

/// Runs `ip`; its complaint is the error.
fn ip(arguments: &[&str]) -> anyhow::Result<String> {
    let done = Command::new("ip").args(arguments).output().context(
        "the command 'ip' is needed for --netns: install iproute2 (apt-get install iproute2)",
    )?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("ip {}: {}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

impl Network {
    /// Names and numbers for the cluster of a folder that nothing else on this host has.
    pub(crate) fn for_folder(folder: &Path) -> anyhow::Result<Self> {
        if !may_make_networks() {
            bail!(
                "--netns makes network namespaces, which needs root (CAP_NET_ADMIN and \
                 CAP_SYS_ADMIN): run it with sudo, or leave --netns out"
            );
        }
        let routes = ip(&["route", "show"])?;
        let links = ip(&["-o", "link", "show"])?;
        let hash = xxhash_rust::xxh3::xxh3_64(folder.as_os_str().as_encoded_bytes());
        let free = |subnet: &u8| {
            let bridge = format!("{}br", tag(*subnet));
            !routes.contains(&format!("10.213.{subnet}.")) && !links.contains(&bridge)
        };
        let mut all = (0..255).map(|n| u8::try_from((hash % 255 + n) % 255).unwrap_or(0));
        let subnet = all.find(free).context("all networks 10.213.N.0/24 are in use")?;
        Ok(Self { tag: tag(subnet), subnet, cuts: Vec::new() })
    }

    fn bridge(&self) -> String {
        format!("{}br", self.tag)
    }

    /// The namespace of a member.
    fn namespace(&self, name: &str) -> String {
        format!("{}{name}", self.tag)
    }

    /// What a command is prefixed with to run in a member's namespace. Not `ip netns exec`, which gives a process its own
    /// mounts too: those of this host that were there then would live as long as the process.
    pub(crate) fn prefix(&self, name: &str) -> Vec<String> {
        ["nsenter", &format!("--net=/run/netns/{}", self.namespace(name))].map(str::to_owned).into()
    }

    /// Makes the bridge and the host's end.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        let bridge = self.bridge();
        if ip(&["link", "show", &bridge]).is_ok() {
            return Ok(());
        }
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}/24", self.ip(HOST)?), "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"]).map(drop)
    }

    /// Makes a member's namespace.
    pub(crate) fn join(&self, name: &str) -> anyhow::Result<()> {
        let (namespace, near) = (self.namespace(name), self.namespace(name));
        let far = format!("{near}i");
        if ip(&["netns", "list"])?.split_whitespace().any(|it| it == namespace) {
            return Ok(());
        }
        ip(&["netns", "add", &namespace])?;
        ip(&["link", "add", &near, "type", "veth", "peer", "name", &far])?;
        ip(&["link", "set", &far, "netns", &namespace])?;
        ip(&["link", "set", &near, "master", &self.bridge(), "up"])?;
        let address = format!("{}/24", self.ip(name)?);
        ip(&["-n", &namespace, "addr", "add", &address, "dev", &far])?;
        ip(&["-n", &namespace, "link", "set", &far, "up"])?;
        ip(&["-n", &namespace, "link", "set", "lo", "up"]).map(drop)
    }

    /// Removes everything that was made; goes on when something is gone already.
    pub(crate) fn remove(&self, names: &[String]) {
        for name in names {
            // The interface first: a namespace goes only when its last process has.
            let _ = ip(&["link", "del", &self.namespace(name)]);
            let _ = ip(&["netns", "del", &self.namespace(name)]);
        }
        let _ = ip(&["link", "del", &self.bridge()]);
    }

    /// Lets nothing through on one way.
    fn cut(&self, from: &str, to: &str) -> anyhow::Result<()> {
        self.neighbour(from, to, &["replace"], &["lladdr", NOWHERE, "nud", "permanent"])
    }

    /// Ends a cut.
    fn join_again(&self, from: &str, to: &str) -> anyhow::Result<()> {
        self.neighbour(from, to, &["del"], &[])
    }

    fn neighbour(&self, from: &str, to: &str, verb: &[&str], rest: &[&str]) -> anyhow::Result<()> {
        let (namespace, address) = (self.namespace(from), self.ip(to)?);
        let mut command = Vec::new();
        let device = if from == HOST {
            self.bridge()
        } else {
            command.extend(["-n", &namespace]);
            format!("{namespace}i")
        };
        command.push("neigh");
        command.extend(verb);
        command.push(&address);
        command.extend(["dev", &device]);
        command.extend(rest);
        ip(&command).map(drop)
    }
}

/// Names of interfaces have 15 characters at most.
fn tag(subnet: u8) -> String {
    format!("mp{subnet:02x}")
}

fn may_make_networks() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    held & NET_ADMIN != 0 && held & SYS_ADMIN != 0
}

fn names(state: &State) -> Vec<String> {
    state.members.iter().map(|member| member.name.clone()).collect()
}

/// Cuts a member off; what is cut now is noted in the state.
pub(crate) fn partition(state: &mut State, what: Partition<'_>) -> anyhow::Result<()> {
    state.member(what.node)?;
    if let Some(from) = what.from.filter(|from| *from != HOST) {
        state.member(from)?;
    }
    let names = names(state);
    let Some(network) = &mut state.network else {
        bail!(
            "this cluster shares the host's network, which cannot be cut: \
             'millpond dev down', then 'millpond dev up --netns' (needs root)"
        );
    };
    for (from, to) in what.cuts(&names) {
        network.cut(&from, &to)?;
        if !network.cuts.contains(&(from.clone(), to.clone())) {
            network.cuts.push((from, to));
        }
    }
    Ok(())
}

/// Ends every cut; how many ways there were.
pub(crate) fn heal(state: &mut State) -> anyhow::Result<usize> {
    let Some(network) = &mut state.network else { return Ok(0) };
    let cuts = std::mem::take(&mut network.cuts);
    for (index, (from, to)) in cuts.iter().enumerate() {
        if let Err(error) = network.join_again(from, to) {
            network.cuts = cuts[index..].to_vec();
            return Err(error);
        }
    }
    Ok(cuts.len())
}

/// Makes what a member that starts needs.
pub(crate) fn prepare(state: &State, name: &str) -> anyhow::Result<()> {
    let Some(network) = &state.network else { return Ok(()) };
    network.make()?;
    network.join(name)
}

/// Removes everything that was made.
pub(crate) fn remove(state: &mut State) {
    let names = names(state);
    if let Some(network) = &mut state.network {
        network.remove(&names);
        network.cuts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::Partition;

    fn cuts(from: Option<&str>, one_way: bool) -> Vec<String> {
        let names = ["m1", "n1", "n2"].map(str::to_owned);
        let what = Partition { node: "n1", from, one_way };
        what.cuts(&names).into_iter().map(|(from, to)| format!("{from}>{to}")).collect()
    }

    #[test]
    fn a_partition_cuts_what_it_says() {
        assert_eq!(cuts(None, false), ["n1>m1", "m1>n1", "n1>n2", "n2>n1", "n1>host", "host>n1"]);
        assert_eq!(cuts(None, true), ["n1>m1", "n1>n2", "n1>host"]);
        assert_eq!(cuts(Some("n2"), false), ["n1>n2", "n2>n1"]);
        assert_eq!(cuts(Some("host"), true), ["n1>host"]);
    }
}
