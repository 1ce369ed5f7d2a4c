//! Nodes and disks as operators name them.

use anyhow::bail;

use millpond_control::admin::{Disk, Node, Status};

/// Digits of an identity that are shown, unless more are needed to tell them apart.
const DIGITS_MIN: usize = 8;

/// A node or a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Node(&'a Node),
    Disk(&'a Disk),
}

/// The node of an identity, the beginning of one, an address or a host name; `node:` may stand
/// before it.
pub(super) fn node<'a>(status: &'a Status, name: &str) -> anyhow::Result<&'a Node> {
    let name = name.strip_prefix("node:").unwrap_or(name);
    let found: Vec<&Node> = status.nodes.iter().filter(|node| is_node(node, name)).collect();
    let all = || list(status.nodes.iter().map(node_line));
    match found.as_slice() {
        [node] => Ok(node),
        [] => bail!("no node '{name}'; the nodes are:{}", all()),
        many => bail!(
            "'{name}' matches {} nodes: write more digits of the identity:{}",
            many.len(),
            list(many.iter().copied().map(node_line))
        ),
    }
}

/// The disk of an identity, or the beginning of one; `disk:` may stand before it.
pub(super) fn disk<'a>(status: &'a Status, name: &str) -> anyhow::Result<&'a Disk> {
    let name = name.strip_prefix("disk:").unwrap_or(name);
    let found: Vec<&Disk> = status.disks.iter().filter(|disk| begins(&disk.id, name)).collect();
    match found.as_slice() {
        [disk] => Ok(disk),
        [] => bail!("no disk '{name}'; the disks are:{}", list(status.disks.iter().map(disk_line))),
        many => bail!(
            "'{name}' matches {} disks: write more digits of the identity:{}",
            many.len(),
            list(many.iter().copied().map(disk_line))
        ),
    }
}

/// A node or a disk. The first disk of a node shares its identity: that names the node, unless
/// `disk:` stands before it.
pub(super) fn either<'a>(status: &'a Status, name: &str) -> anyhow::Result<Named<'a>> {
    if name.starts_with("disk:") {
        return disk(status, name).map(Named::Disk);
    }
    if name.starts_with("node:") {
        return node(status, name).map(Named::Node);
    }
    let nodes = status.nodes.iter().any(|node| is_node(node, name));
    let disks = status.disks.iter().any(|disk| begins(&disk.id, name));
    match (nodes, disks) {
        (true, true) => match (node(status, name), disk(status, name)) {
            (Ok(node), Ok(disk)) if node.id == disk.id => Ok(Named::Node(node)),
            _ => bail!("'{name}' matches a node and a disk: write node:{name} or disk:{name}"),
        },
        (true, false) => node(status, name).map(Named::Node),
        (false, true) => disk(status, name).map(Named::Disk),
        (false, false) => bail!(
            "no node and no disk matches '{name}': 'millpond admin nodes' and \
             'millpond admin disks' list them"
        ),
    }
}

fn is_node(node: &Node, name: &str) -> bool {
    begins(&node.id, name) || node.host == name || node.addresses.iter().any(|at| at == name)
}

fn begins(id: &str, name: &str) -> bool {
    let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
    !name.is_empty() && plain(id).starts_with(&plain(name))
}

fn list(lines: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 12;
    let mut lines: Vec<String> = lines.collect();
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("\n  and {more} more"));
    }
    lines.concat()
}

fn node_line(node: &Node) -> String {
    format!("\n  {}  {}  {}", node.id, node.host, node.addresses.join(", "))
}

fn disk_line(disk: &Disk) -> String {
    format!("\n  {}  of node {}", disk.id, disk.node)
}

/// Shows identities by as many digits as tell them apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short(usize);

impl Short {
    /// For the nodes and disks of a cluster.
    pub(crate) fn of(status: &Status) -> Self {
        let nodes = status.nodes.iter().map(|node| node.id.as_str());
        let disks = status.disks.iter().map(|disk| disk.id.as_str());
        let mut ids: Vec<&str> = nodes.chain(disks).collect();
        ids.sort_unstable();
        ids.dedup();
        let common = |pair: &[&str]| {
            pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count()
        };
        let longest = ids.windows(2).map(|pair| common(pair) + 1).max().unwrap_or(0);
        Self(longest.max(DIGITS_MIN))
    }

    /// The beginning of an identity.
    pub(crate) fn show(self, id: &str) -> String {
        id.chars().take(self.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Named, Short, disk, either, node};
    use millpond_control::admin::{Disk, Node, Status};

    fn status() -> Status {
        let node = |id: &str, host: &str, at: &str| Node {
            id: id.to_owned(),
            host: host.to_owned(),
            addresses: vec![at.to_owned()],
            ..Node::default()
        };
        let disk = |id: &str| Disk { id: id.to_owned(), ..Disk::default() };
        Status {
            nodes: vec![
                node("aaaaaaaa-0000-4000-8000-000000000001", "one", "10.0.0.1:7440"),
                node("aaaaaaaa-1000-4000-8000-000000000002", "two", "10.0.0.2:7440"),
            ],
            disks: vec![
                disk("aaaaaaaa-1100-4000-8000-000000000002"),
                disk("dddddddd-0000-4000-8000-000000000003"),
                disk("aaaaaaaa-0000-4000-8000-000000000001"),
            ],
            ..Status::default()
        }
    }

    #[test]
    fn names_are_found_when_they_are_unique() {
        let status = status();
        for name in ["aaaaaaaa-0", "AAAAAAAA0", "one", "10.0.0.1:7440"] {
            assert_eq!(node(&status, name).unwrap().host, "one", "{name}");
        }
        for (name, says) in [("aaaa", "2 nodes"), ("xyz", "10.0.0.2:7440"), ("", "no node")] {
            let error = node(&status, name).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
        assert!(disk(&status, "dd").is_ok());
        assert!(disk(&status, "disk:dd").is_ok());
        assert!(node(&status, "node:one").is_ok());
        assert!(disk(&status, "one").is_err());
        assert!(matches!(either(&status, "dd"), Ok(Named::Disk(_))));
        assert!(matches!(either(&status, "two"), Ok(Named::Node(_))));
        assert!(matches!(either(&status, "aaaaaaaa-0"), Ok(Named::Node(_))));
        assert!(matches!(either(&status, "disk:aaaaaaaa-0"), Ok(Named::Disk(_))));
        assert!(matches!(either(&status, "node:aaaaaaaa-1"), Ok(Named::Node(_))));
        for (name, says) in [
            ("aaaaaaaa-1", "a node and a disk"),
            ("zz", "no node and no disk"),
            ("aaaaaaaa", "a node and a disk"),
        ] {
            let error = either(&status, name).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
    }

    #[test]
    fn identities_are_shown_with_the_digits_that_tell_them_apart() {
        let status = status();
        let short = Short::of(&status);
        let shown = short.show(&status.nodes[1].id);
        assert_eq!(shown, "aaaaaaaa-10");
        assert!(matches!(either(&status, &shown), Ok(Named::Node(_))));
        assert_eq!(Short::of(&Status::default()).show("0123456789"), "01234567");
    }
}
