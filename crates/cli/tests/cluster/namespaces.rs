//! Namespaces of a cluster: made anywhere, known everywhere.

use std::time::Duration;

use millpond_types::wire::{NamespaceRef, Status, Verb};

use crate::process::{Cluster, until};
use crate::wire::Refused;

#[test]
fn a_namespace_is_made_on_any_node_and_known_on_all_and_survives_the_manager() {
    let mut cluster = Cluster::start(3, 2);
    let made = cluster.nodes[0].wire().open("model", 2).unwrap();
    for node in &cluster.nodes {
        assert_eq!(node.wire().open("model", 2).unwrap(), made);
        until("it is listed", || node.wire().names().contains(&made.name).then_some(()));
    }
    assert_eq!(cluster.manager.wire().open("model", 1).unwrap(), made);
    cluster.manager.kill();
    // What a node knows needs no manager.
    assert_eq!(cluster.nodes[1].wire().open("model", 2).unwrap(), made);
    let refused = cluster.nodes[1].wire().open("another", 1);
    assert!(matches!(refused, Err(Refused::Status(..))), "{refused:?}");
    cluster.manager.run();
    let another = until("a manager", || cluster.nodes[1].wire().open("another", 1).ok()).0;
    assert!(another.id > made.id);
    let name = NamespaceRef { name: "model".to_owned() }.encode();
    cluster.nodes[2].wire().call(Verb::NamespaceDrop, &name, Duration::from_secs(5)).unwrap();
    for node in &cluster.nodes {
        until("it is gone", || (node.wire().names() == ["another"]).then_some(()));
    }
    let again = cluster.nodes[0].wire().open("model", 1).unwrap();
    assert!(again.id > another.id, "a number is never used twice");
}

#[test]
fn what_a_cluster_cannot_keep_is_refused_by_name() {
    let cluster = Cluster::start(2, 2);
    match cluster.nodes[0].wire().open("wide", 3) {
        Err(Refused::Status(Status::BadRequest, text)) => {
            assert!(text.contains("have 2"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
