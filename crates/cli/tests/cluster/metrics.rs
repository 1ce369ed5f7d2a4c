//! What nodes and managers of a cluster show at `/metrics`.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use millpond_control::admin::Status;

use crate::process::{Chains as _, Process, until};

/// An address that nobody listens on.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.0 200"), "{page}");
    page
}

/// The value of a series; 0 when it is not shown.
pub(crate) fn value(page: &str, series: &str) -> u64 {
    let is = |line: &&str| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' '));
    let line = page.lines().find(is);
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_node_shows_the_cluster_its_replicas_and_its_links() {
    let folder = tempfile::tempdir().unwrap();
    let at: Vec<String> = (0..4).map(|_| free_address()).collect();
    let flags = ["--manager", "--no-storage", "--form-nodes", "3", "--replicas", "2"];
    let manager =
        Process::start(folder.path(), "manager", &[&flags[..], &["--http", &at[3]]].concat());
    let mut nodes: Vec<Process> = (0..3)
        .map(|n| {
            let flags = ["--join", &manager.address, "--http", &at[n]];
            Process::start(folder.path(), &format!("node{n}"), &flags)
        })
        .collect();
    let status = until("chains", || nodes[0].status().filter(Status::is_whole)).0;
    let chains = status.chains() as u64;
    let (page, _) = until("all chains on the page", || {
        let page = metrics(&at[0]);
        (value(&page, "millpond_cluster_chains{serving=\"2\"}") == chains).then_some(page)
    });
    assert_eq!(value(&page, "millpond_cluster_nodes"), 4);
    assert_eq!(value(&page, "millpond_cluster_targets{state=\"serving\"}"), 2 * chains);
    assert!(page.contains("millpond_cluster_chains{serving=\"0\"} 0\n"));
    assert!(value(&page, "millpond_cluster_routing_version") >= status.routing);
    for (address, primary) in [(&at[0], 0), (&at[3], 1)] {
        assert_eq!(value(&metrics(address), "millpond_manager_role{role=\"primary\"}"), primary);
    }
    let sum = |series: &str| at[..3].iter().map(|at| value(&metrics(at), series)).sum::<u64>();
    until("all replicas act on the routing", || {
        let serving = sum("millpond_replicas{state=\"serving\"}");
        (serving == 2 * chains && sum("millpond_replica_heads") == chains).then_some(())
    });
    assert!(sum("millpond_links") > 0, "leases are asked for over links");

    // The page and its description have the same names.
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md"));
    let docs = docs.unwrap();
    let written: BTreeSet<&str> =
        docs.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let shown: BTreeSet<&str> = families.collect();
    let missing: Vec<&&str> = shown.difference(&written).collect();
    assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
    let (_, of_a_cluster) = docs.split_once("## Of the cluster").unwrap();
    let (of_a_cluster, _) = of_a_cluster.split_once("\n### ").unwrap();
    for name in of_a_cluster.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next())
    {
        assert!(shown.contains(name), "{name} is not shown");
    }

    nodes[2].kill();
    until("chains with one replica on the page", || {
        let page = metrics(&at[0]);
        let one = value(&page, "millpond_cluster_chains{serving=\"1\"}");
        let offline = value(&page, "millpond_cluster_targets{state=\"offline\"}");
        (one > 0 && one == offline).then_some(())
    });
}
