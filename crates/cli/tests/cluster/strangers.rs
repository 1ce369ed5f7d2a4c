//! Who does not belong to the cluster is told so, by name.

use std::time::Duration;

use millpond_client::{Addresses, Client, ClientOptions, Volume};
use millpond_types::BlockKey;
use millpond_types::cluster::{Incarnation, NodeId, Refusal, Register, RegisterAnswer};
use millpond_types::ids::Uuid128;
use millpond_types::wire::{
    GetRequest, ItemStatus, KeysRequest, Leaders, ListRequest, MatchRequest, PROTOCOL_VERSION,
    Planned, Status, StatusReply, Verb,
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

/// One mode: a server without settings is a cluster, and grows by nodes that join it.
#[test]
fn a_server_without_settings_grows_by_nodes_that_join() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::start(folder.path(), "first", &[]);
    assert_ne!(first.wire().hello.cluster, Uuid128::NIL);
    let mut wire = first.wire();
    let namespace = wire.open("blocks", 1).unwrap().id;
    // Of any slot: a chain that did not serve would say that it moved.
    let keys: Vec<BlockKey> =
        (0..500_u32).map(|n| BlockKey::new(&n.to_le_bytes()).unwrap()).collect();
    let asked = KeysRequest {
        namespace,
        planned: Planned::default(),
        keys,
        leaders: Leaders::Own,
        tags: None,
    };
    let reply = wire.call(Verb::Contains, &asked.encode(), Duration::from_secs(5)).unwrap();
    let found = StatusReply::decode(&reply).unwrap().items;
    assert_eq!(found, [ItemStatus::Miss; 500], "READY means that its chains serve");
    let second = Process::start(folder.path(), "second", &["--join", &first.address]);
    assert_eq!(second.wire().hello.cluster, first.wire().hello.cluster);
    until("two nodes", || {
        first.status().is_some_and(|status| status.nodes.len() == 2).then_some(())
    });
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
fn what_nodes_say_is_taken_from_holders_of_their_secret_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let tokens = file("tokens", "token-for-all\ntoken-for-some some-*\n");
    // The first manager makes the secret, in its data folder.
    let flags = ["--manager", "--no-storage", "--token-file", &tokens];
    let manager = Process::start(folder.path(), "manager", &flags);
    let secret = folder.path().join("manager/node.secret");
    let node = |name: &str, more: &[&str]| {
        let flags = [&["--join", &manager.address, "--token-file", &tokens], more].concat();
        Process::new(folder.path(), name, &flags)
    };
    let said = node("without", &[]).run_refused();
    assert!(said.contains("--node-secret") && said.contains("node.secret"), "{said}");
    let short = file("short", "too-short\n");
    let said = node("short-one", &["--node-secret", &short]).run_refused();
    assert!(said.contains("16 to 4096 characters"), "{said}");
    let other = file("other", "another-secret-of-nodes\n");
    let said = node("unknown", &["--node-secret", &other]).run_refused();
    assert!(said.contains("unknown token"), "{said}");
    let mut trusted = node("trusted", &["--node-secret", secret.to_str().unwrap()]);
    trusted.run();

    // A client's token, for all namespaces or for some, is no node's.
    let register = Register { node: NodeId(Uuid128([9; 16])), ..Register::default() }.encode();
    for (address, verb, meta) in [
        (&manager.address, Verb::Register, register),
        (&manager.address, Verb::Heartbeat, Vec::new()),
        (&trusted.address, Verb::Peer, Vec::new()),
        (&trusted.address, Verb::SlotAsk, Vec::new()),
        (&trusted.address, Verb::SlotAnswer, Vec::new()),
    ] {
        for token in ["token-for-all", "token-for-some"] {
            let mut wire = Wire::greet_with(address, token.as_bytes()).unwrap();
            match wire.call(verb, &meta, Duration::from_secs(5)) {
                Err(Refused::Status(Status::Unauthorized, text)) => {
                    let is_limited = text.contains("limited to some namespaces");
                    assert!(is_limited || text.contains("--node-secret"), "{verb:?}: {text}");
                }
                other => panic!("{verb:?} with {token}: {other:?}"),
            }
        }
    }
    let secret = std::fs::read_to_string(secret).unwrap();
    let mut wire = Wire::greet_with(&manager.address, secret.trim().as_bytes()).unwrap();
    let refused = wire.call(Verb::Heartbeat, &[], Duration::from_secs(5));
    assert!(!matches!(refused, Err(Refused::Status(Status::Unauthorized, _))), "{refused:?}");
}

/// A mount or a volume needs metas as well as chunks.
#[test]
fn a_token_with_files_uses_files_and_no_other_token_does() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let text = "token-for-all\ntoken-for-files +files\ntoken-for-both some-* +files\ntoken-for-some some-*\n";
    std::fs::write(&tokens, text).unwrap();
    let whole = folder.path().join("whole");
    std::fs::write(&whole, "token-for-all\n").unwrap();
    let config = folder.path().join("node.toml");
    std::fs::write(&config, format!("[cluster]\ntoken_file = \"{}\"\n", whole.display())).unwrap();
    let [tokens, config] = [tokens, config].map(|path| path.display().to_string());
    let flags = ["--manager", "--form-nodes", "1", "--token-file", &tokens, "--config", &config];
    let server = Process::start(folder.path(), "server", &flags);
    let volume = |token: &str| {
        let mut options = ClientOptions::new(server.address.parse::<Addresses>().unwrap());
        options.token = token.to_owned();
        let client = Client::new(options).unwrap();
        Volume::open(client, "test")
    };
    for token in ["token-for-files", "token-for-both", "token-for-all"] {
        let there = until("the volume", || volume(token).ok()).0;
        there.mkdir(format!("/{token}"), 0o755).unwrap();
    }
    let refused = volume("token-for-some").err().unwrap().to_string();
    assert!(refused.contains("+files"), "{refused}");
}
