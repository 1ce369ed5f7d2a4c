//! Identity of a node in its cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use millpond_env::files;
use millpond_types::cluster::{Incarnation, NodeId};
use millpond_types::{Crc32c, Uuid128};

/// File in a data folder that names the node.
const NODE_FILE: &str = "millpond.node";

/// Identity of this process in its cluster, fixed for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node, as its disks name it.
    pub node: NodeId,
    /// This start of its process.
    pub incarnation: Incarnation,
    /// The cluster.
    pub cluster: Uuid128,
    /// `host:port` of each of its addresses.
    pub addresses: Vec<String>,
    /// Address at which this process reaches itself without TLS, if any.
    pub here: Option<String>,
    /// The host's name.
    pub host: String,
    /// Its failure domain; empty for a domain of its own.
    pub domain: String,
}

/// The name of this host.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Addresses of a server that listens on `listen`: the advertised ones, if there are any.
#[must_use]
pub fn addresses(listen: SocketAddr, advertised: &[String], host: &str) -> Vec<String> {
    if !advertised.is_empty() {
        return advertised.to_vec();
    }
    if listen.ip().is_unspecified() {
        return vec![format!("{host}:{}", listen.port())];
    }
    vec![listen.to_string()]
}

fn line(node: NodeId) -> String {
    let text = format!("millpond-node 1 {node}");
    let sum = Crc32c::of(text.as_bytes()).0;
    format!("{text} {sum:08x}\n")
}

fn parse(text: &str) -> Option<NodeId> {
    let digits: String = text.split(' ').nth(2)?.chars().filter(|letter| *letter != '-').collect();
    let value = u128::from_str_radix(&digits, 16).ok()?;
    let node = NodeId(Uuid128(value.to_be_bytes()));
    (line(node) == text).then_some(node)
}

/// Reads the node that a data folder names, from the first folder with a name. Every folder has the
/// name, so that any disk may be replaced.
///
/// # Errors
/// The folder and the fault of its file: damage must not give a node another name.
pub fn load_node(folders: &[PathBuf]) -> Result<Option<NodeId>, (PathBuf, &'static str)> {
    for folder in folders {
        let path = folder.join(NODE_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => match parse(&text) {
                Some(node) => return Ok(Some(node)),
                None => {
                    return Err((
                        path,
                        "damaged: remove it, and the node takes the identity of its first disk",
                    ));
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return Err((path, "cannot be read: check its permissions")),
        }
    }
    Ok(None)
}

/// Writes the node's name to every folder without a name.
///
/// # Errors
/// The system's error.
pub fn save_node(folders: &[PathBuf], node: NodeId) -> std::io::Result<()> {
    let save = |folder: &Path| {
        let path = folder.join(NODE_FILE);
        if path.exists() { Ok(()) } else { files::publish(&path, &[line(node).as_bytes()]) }
    };
    folders.iter().try_for_each(|folder| save(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_name_when_a_disk_is_replaced() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [a.path().to_owned(), b.path().to_owned()];
        assert_eq!(load_node(&folders), Ok(None));
        let node = NodeId(Uuid128::from_random([9; 16]));
        save_node(&folders, node).unwrap();
        std::fs::remove_file(a.path().join(NODE_FILE)).unwrap();
        assert_eq!(load_node(&folders), Ok(Some(node)));
        save_node(&folders, NodeId(Uuid128::from_random([1; 16]))).unwrap();
        assert_eq!(load_node(&folders[1..]), Ok(Some(node)), "a name is never replaced");
        let text = line(node);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let damaged = String::from_utf8(bytes).unwrap();
            assert_eq!(parse(&damaged), None, "{damaged}");
        }
        std::fs::write(b.path().join(NODE_FILE), "millpond-node 1 x").unwrap();
        assert!(load_node(&folders[1..]).is_err());
    }

    #[test]
    fn any_address_is_told_as_the_hosts_name() {
        let told = |listen: &str, given: &[&str]| {
            let given: Vec<String> = given.iter().map(|&text| text.to_owned()).collect();
            addresses(listen.parse().unwrap(), &given, "box")
        };
        assert_eq!(told("10.0.0.1:7", &[]), ["10.0.0.1:7"]);
        assert_eq!(told("0.0.0.0:7", &[]), ["box:7"]);
        assert_eq!(told("[::]:7", &["a:1", "b:2"]), ["a:1", "b:2"]);
    }
}
