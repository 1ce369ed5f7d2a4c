//! Who does not belong to the cluster is told so, by name.

use std::time::Duration;

use millpond_types::BlockKey;
use millpond_types::cluster::{Incarnation, NodeId, Refusal, Register, RegisterAnswer};
use millpond_types::ids::Uuid128;
use millpond_types::wire::{
    GetRequest, KeysRequest, Leaders, ListRequest, MatchRequest, PROTOCOL_VERSION, Planned, Status,
    Verb,
};

use crate::process::{Cluster, Process, until};
use crate::wire::{Refused, Wire};

#[test]
fn an_old_protocol_is_refused_at_hello_and_at_registration() {
    let cluster = Cluster::start(1, 1);
    match Wire::greet(&cluster.manager.address, 1) {
        Err(Refused::Status(Status::Unsupported, text)) => {
            assert!(text.contains("upgrade the older side"), "{text}");
        }
        Ok(_) => panic!("version 1 was let in"),
        Err(other) => panic!("{other:?}"),
    }
    let register = Register {
        node: NodeId(Uuid128([9; 16])),
        incarnation: Incarnation(1),
        addresses: vec!["127.0.0.1:1".to_owned()],
        protocol: PROTOCOL_VERSION - 1,
        ..Register::default()
    };
    let mut wire = cluster.manager.wire();
    let reply = wire.call(Verb::Register, &register.encode(), Duration::from_secs(5)).unwrap();
    let refusal = Refusal::Protocol { ours: PROTOCOL_VERSION, theirs: PROTOCOL_VERSION - 1 };
    assert_eq!(RegisterAnswer::decode(&reply), Ok(RegisterAnswer::Refused(refusal)));
}

#[test]
fn disks_of_another_cluster_are_refused_and_keep_what_they_have() {
    let mut first = Cluster::start(1, 1);
    let second = Cluster::start(1, 1);
    first.nodes[0].stop();
    let folder = first.folder.path();
    let mut lost = Process::new(folder, "node0", &["--join", &second.manager.address]);
    let said = lost.run_refused();
    let ours = second.manager.wire().hello.cluster.to_string();
    let theirs = first.manager.wire().hello.cluster.to_string();
    assert!(said.contains(&ours) && said.contains(&theirs), "{said}");
    assert!(said.contains("belongs to cluster"), "{said}");
    first.nodes[0].run();
}

#[test]
fn a_server_that_stands_alone_is_no_cluster_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let alone = Process::start(folder.path(), "alone", &[]);
    let hello = alone.wire().hello;
    assert_eq!(hello.cluster, Uuid128::NIL);
    let mut node = Process::new(folder.path(), "node", &["--join", &alone.address]);
    let said = node.run_refused();
    assert!(said.contains("stands alone"), "{said}");
    match alone.wire().call(Verb::Routing, &[0; 24], Duration::from_secs(1)) {
        Err(Refused::Status(Status::Unsupported, text)) => {
            assert!(text.contains("stands alone"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_processes_with_one_identity_do_not_share_it() {
    let cluster = Cluster::start(2, 1);
    let folder = cluster.folder.path();
    // The name of a node, copied with its folder's file to a server with a new disk.
    let copy = folder.join("copy");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(folder.join("node0/millpond.node"), copy.join("millpond.node")).unwrap();
    let mut twin = Process::new(folder, "copy", &["--join", &cluster.manager.address]);
    let said = twin.run_refused();
    assert!(said.contains("already runs on host"), "{said}");
    assert!(said.contains(&cluster.nodes[0].address), "{said}");
    until("the first one goes on", || {
        let status = cluster.nodes[0].status()?;
        status.nodes.iter().all(|node| node.alive).then_some(())
    });
}

#[test]
fn a_process_without_disks_refuses_keys_and_goes_on() {
    let cluster = Cluster::start(1, 1);
    let mut wire = cluster.manager.wire();
    let namespace = wire.open("blocks", 1).unwrap().id;
    let keys = || KeysRequest {
        namespace,
        planned: Planned::default(),
        keys: vec![BlockKey::new(b"a block").unwrap()],
        leaders: Leaders::Own,
        tags: None,
    };
    let get = GetRequest {
        namespace,
        planned: Planned::default(),
        keys: keys().keys,
        room: vec![u32::MAX],
        leaders: Leaders::Own,
    };
    let match_prefix = MatchRequest { keys: keys(), lease_ms: 0, each: false };
    let list = ListRequest { namespace, prefix: Vec::new(), cursor: 0, limit: 10 };
    let of_keys = [Verb::Contains, Verb::Touch, Verb::Pin, Verb::Unpin, Verb::Delete];
    let mut requests: Vec<(Verb, Vec<u8>)> =
        of_keys.into_iter().map(|verb| (verb, keys().encode())).collect();
    requests.push((Verb::Get, get.encode()));
    requests.push((Verb::MatchPrefix, match_prefix.encode()));
    requests.push((Verb::List, list.encode()));
    for (verb, meta) in requests {
        match wire.call(verb, &meta, Duration::from_secs(5)) {
            Err(Refused::Status(Status::Unsupported, text)) => {
                assert!(text.contains("no disks"), "{verb:?}: {text}");
            }
            other => panic!("{verb:?}: {other:?}"),
        }
    }
    assert!(cluster.manager.status().is_some());
}

#[test]
fn a_token_for_some_namespaces_is_not_a_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "token-for-all\ntoken-for-some some-*\n").unwrap();
    let part = folder.path().join("part");
    std::fs::write(&part, "token-for-some\n").unwrap();
    let whole = folder.path().join("whole");
    std::fs::write(&whole, "token-for-all\n").unwrap();
    let config = |name: &str, token: &std::path::Path| {
        let path = folder.path().join(format!("{name}.toml"));
        let text = format!("[cluster]\ntoken_file = \"{}\"\n", token.display());
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let tokens = tokens.display().to_string();
    let config_of_manager = config("manager", &whole);
    let flags =
        ["--manager", "--no-storage", "--token-file", &tokens, "--config", &config_of_manager];
    let manager = Process::start(folder.path(), "manager", &flags);
    let node = |name: &str, token: &std::path::Path| {
        let config = config(name, token);
        let flags = ["--join", &manager.address, "--token-file", &tokens, "--config", &config];
        Process::new(folder.path(), name, &flags)
    };
    let said = node("limited", &part).run_refused();
    assert!(said.contains("limited to some namespaces"), "{said}");
    let said = node("unknown", &folder.path().join("manager.toml")).run_refused();
    assert!(said.contains("unknown token"), "{said}");
    node("trusted", &whole).run();
}
