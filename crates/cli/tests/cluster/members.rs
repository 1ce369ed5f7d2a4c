//! Nodes come and go, the manager too, and everybody hears of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millpond_control::admin::Status;
use millpond_types::cluster::{NodeId, Routing, TargetState};
use millpond_types::ids::Uuid128;

use crate::process::{Chains as _, Cluster, Process, until};

const LONG: Duration = Duration::from_secs(10);

/// A copy with all chains, from the node at `at`.
fn routing(cluster: &Cluster, at: usize) -> Routing {
    let mut copy = Routing::default();
    let mut wire = cluster.nodes[at].wire();
    while copy.chains.is_empty() {
        wire.follow(&mut copy, LONG);
    }
    copy
}

fn alive(cluster: &Cluster, at: usize, address: &str) -> Option<bool> {
    let status = cluster.nodes[at].status()?;
    let node = status.nodes.iter().find(|node| node.addresses.iter().any(|a| a == address))?;
    Some(node.alive)
}

#[test]
fn a_cluster_forms_and_every_node_tells_the_same_routing() {
    let cluster = Cluster::start(3, 2);
    let copies: Vec<Routing> = (0..3)
        .map(|at| {
            let mut copy = routing(&cluster, at);
            let mut wire = cluster.nodes[at].wire();
            until("all slots", || {
                let _ = copy.slots.iter().all(|(_, chain)| chain.0 > 0) || {
                    wire.follow(&mut copy, LONG);
                    false
                };
                copy.slots.iter().all(|(_, chain)| chain.0 > 0).then_some(())
            });
            copy
        })
        .collect();
    for copy in &copies {
        assert_eq!(copy.cluster, copies[0].cluster);
        assert_ne!(copy.cluster, Uuid128::NIL);
        assert_eq!(copy.nodes.len(), 4, "three nodes and the manager");
        let disks: BTreeSet<_> =
            copy.chains.values().flat_map(|chain| &chain.targets).map(|m| m.disk).collect();
        assert_eq!(disks.len(), 3);
        for chain in copy.chains.values() {
            let nodes: BTreeSet<NodeId> = chain.targets.iter().map(|member| member.node).collect();
            assert_eq!(nodes.len(), 2, "replicas on two nodes: {chain:?}");
        }
    }
    let hello = &cluster.nodes[1].wire().hello;
    assert_eq!(hello.cluster, copies[0].cluster);
    assert_ne!(hello.incarnation.0, 0);
    assert!(copies[0].nodes.contains_key(&NodeId(hello.node)));
}

#[test]
fn a_client_that_waits_hears_of_a_new_node_and_nothing_is_told_twice() {
    let mut cluster = Cluster::start(2, 1);
    let mut copy = routing(&cluster, 0);
    let mut wire = cluster.nodes[0].wire();
    while wire.follow(&mut copy, Duration::from_millis(700)) {}
    let (before, nodes) = (copy.version, copy.nodes.len());
    let started = Instant::now();
    assert!(!wire.follow(&mut copy, Duration::from_millis(300)), "nothing is new");
    assert!(started.elapsed() >= Duration::from_millis(300), "the answer came early");
    let address = cluster.nodes[0].address.clone();
    let waiting = std::thread::spawn(move || {
        let mut wire = crate::wire::Wire::connect(&address);
        while copy.nodes.len() == nodes {
            wire.follow(&mut copy, LONG);
        }
        copy
    });
    cluster.add();
    let copy = waiting.join().unwrap();
    assert!(copy.version > before);
    assert_eq!(copy.nodes.len(), nodes + 1);
}

#[test]
fn a_dead_node_is_noticed_in_a_second_and_the_same_node_comes_back() {
    let mut cluster = Cluster::start(3, 2);
    let node = cluster.nodes[2].wire().hello;
    let address = cluster.nodes[2].address.clone();
    until("all nodes alive", || alive(&cluster, 0, &address).filter(|alive| *alive));
    let mut copy = routing(&cluster, 0);
    cluster.nodes[2].kill();
    let killed = Instant::now();
    let mut wire = cluster.nodes[0].wire();
    let me = NodeId(node.node);
    let holds = |copy: &Routing| {
        let mut members = copy.chains.values().flat_map(|chain| &chain.targets);
        members.any(|member| {
            let works = matches!(member.state, TargetState::Serving | TargetState::Syncing);
            member.node == me && works
        })
    };
    until("it is out of its chains", || {
        let gone = alive(&cluster, 0, &address) == Some(false);
        (gone && !holds(&copy)).then_some(()).or_else(|| {
            wire.follow(&mut copy, Duration::from_millis(20));
            None
        })
    });
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(2), "noticed after {took:?}");
    eprintln!("a killed node was out of its chains after {took:?}");
    cluster.nodes[2].run();
    let back = cluster.nodes[2].wire().hello;
    assert_eq!(back.node, node.node, "the identity is on the disk");
    assert_ne!(back.incarnation, node.incarnation);
    until("it is back", || alive(&cluster, 0, &address).filter(|alive| *alive));
}

#[test]
fn a_stop_is_quick_and_is_told_as_one() {
    let mut cluster = Cluster::start(3, 2);
    let address = cluster.nodes[1].address.clone();
    until("alive", || alive(&cluster, 0, &address).filter(|alive| *alive));
    // A client that waits for news must not hold the stop up.
    let waiting = {
        let address = address.clone();
        let copy = routing(&cluster, 1);
        std::thread::spawn(move || {
            let mut copy = copy;
            let mut wire = crate::wire::Wire::connect(&address);
            while wire.follow(&mut copy, LONG) {}
        })
    };
    let took = cluster.nodes[1].stop();
    assert!(took < Duration::from_secs(3), "the stop took {took:?}");
    eprintln!("a stop took {took:?}");
    until("gone", || alive(&cluster, 0, &address).filter(|alive| !*alive));
    let _ended = waiting.join();
    let log = cluster.manager.log();
    assert!(!log.contains("its lease has run out"), "the manager had to wait for a lease:\n{log}");
}

#[test]
fn a_manager_that_was_killed_goes_on_where_it_was() {
    let mut cluster = Cluster::start(2, 2);
    let before = until("status", || cluster.nodes[0].status().filter(Status::is_whole)).0;
    cluster.manager.kill();
    // Nodes answer from their copies meanwhile.
    let copy = routing(&cluster, 1);
    assert_eq!(copy.chains.len(), before.chains());
    cluster.manager.run();
    let (after, took) = until("a primary", || cluster.nodes[0].status());
    eprintln!("a manager that was started again was primary after {took:?}");
    assert_eq!(after.cluster, before.cluster);
    assert!(after.term > before.term);
    assert_eq!(after.chains(), before.chains());
    until("all nodes are back", || {
        let status = cluster.nodes[1].status()?;
        status.nodes.iter().all(|node| node.alive).then_some(())
    });
}

#[test]
fn routing_is_told_as_soon_as_a_manager_is_primary_again() {
    let mut cluster = Cluster::start(3, 2);
    let me = NodeId(cluster.nodes[2].wire().hello.node);
    let mut copy = routing(&cluster, 0);
    cluster.manager.kill();
    cluster.manager.run();
    // All nodes ask it for news while it is not primary yet.
    until("a primary", || cluster.nodes[0].status());
    until("all nodes are heard", || {
        let status = cluster.nodes[0].status()?;
        status.nodes.iter().all(|node| node.alive).then_some(())
    });
    cluster.nodes[2].kill();
    let mut wire = cluster.nodes[0].wire();
    let serves = |copy: &Routing| {
        let mut members = copy.chains.values().flat_map(|chain| &chain.targets);
        members.any(|member| member.node == me && member.state == TargetState::Serving)
    };
    let ((), took) = until("it is out of its chains", || {
        wire.follow(&mut copy, Duration::from_millis(20));
        (!serves(&copy)).then_some(())
    });
    eprintln!("routing was told {took:?} after a node was killed");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_suspected_node_is_asked_at_once() {
    use millpond_types::wire::{SuspectRequest, Verb};
    let mut cluster = Cluster::start(3, 2);
    let node = NodeId(cluster.nodes[2].wire().hello.node);
    let address = cluster.nodes[2].address.clone();
    until("alive", || alive(&cluster, 0, &address).filter(|alive| *alive));
    let mut best = Duration::MAX;
    // At times the kernel lets go late of the listening socket that a killed process had in its ring:
    // whoever asks then gets no answer, as from a host that hangs, and the lease decides.
    for _ in 0..4 {
        cluster.nodes[2].kill();
        let killed = Instant::now();
        let mut wire = cluster.nodes[1].wire();
        // Clients say it as long as they get no answer.
        until("gone", || {
            wire.call(Verb::Suspect, &SuspectRequest { node }.encode(), LONG).unwrap();
            alive(&cluster, 0, &address).filter(|alive| !*alive)
        });
        let took = killed.elapsed();
        eprintln!("a suspected node was found dead after {took:?}");
        best = best.min(took);
        if best < Duration::from_millis(900) {
            return;
        }
        cluster.nodes[2].run();
        until("alive", || alive(&cluster, 0, &address).filter(|alive| *alive));
    }
    panic!("the lease decided every time: {best:?}");
}

/// Any node of a cluster leads to its managers.
#[test]
fn a_node_joins_by_the_address_of_one_that_is_no_manager() {
    let cluster = Cluster::start(2, 1);
    let by = &cluster.nodes[0].address;
    let late = Process::start(cluster.folder.path(), "late", &["--join", by]);
    until("it is in", || alive(&cluster, 0, &late.address).filter(|alive| *alive));
}
