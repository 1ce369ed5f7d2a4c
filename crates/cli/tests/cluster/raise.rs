//! The replicas of a running cluster are raised.

use std::process::Command;
use std::time::Duration;

use millpond_client::{Client, ClientOptions, GetOutcome, Keys, Room, Value};
use millpond_types::wire::{ItemStatus, Leaders, NamespaceOpen};
use millpond_types::{Ack, BlockKey, NamespaceInfo, NamespaceOptions};

use crate::process::{Chains as _, Cluster, until};

const VALUE_BYTES: usize = 10_000;

fn value(n: usize) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(n % 251).unwrap(); VALUE_BYTES];
    bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
    bytes
}

struct Store {
    client: Client,
    namespace: NamespaceInfo,
}

impl Store {
    fn open(cluster: &Cluster) -> Self {
        let addresses: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
        let mut options = ClientOptions::new(addresses.join(",").parse().unwrap());
        options.deadline = Duration::from_secs(20);
        let client = Client::new(options).unwrap();
        let options =
            NamespaceOptions { ack: Ack::Disk, evict: false, ..NamespaceOptions::default() };
        let open = NamespaceOpen { name: "raised".to_owned(), create: true, options };
        let namespace = client.open_namespace(&open, None).unwrap();
        Self { client, namespace }
    }

    fn with<T>(&self, n: usize, work: impl FnOnce(Keys<'_>) -> T) -> T {
        work(Keys {
            namespace: self.namespace.id,
            node: self.client.node().unwrap(),
            run_blocks: self.namespace.options.run_blocks,
            keys: &[BlockKey::new(format!("raised/{n}").as_bytes()).unwrap()],
            leaders: &Leaders::Own,
        })
    }

    fn put(&self, n: usize) {
        let bytes = value(n);
        let put = self.with(n, |keys| self.client.put(keys, &[Value::One(&bytes)], None));
        assert_eq!(put.unwrap()[0], ItemStatus::Ok, "key {n}");
    }

    fn check(&self, n: usize) {
        let mut bytes = vec![0; VALUE_BYTES];
        let mut rooms = [Room::One(&mut bytes)];
        let got = self.with(n, |keys| self.client.get(keys, &mut rooms, None)).unwrap();
        assert!(matches!(got[0], GetOutcome::Read(_)), "key {n}: {:?}", got[0]);
        assert!(bytes == value(n), "other bytes under key {n}");
    }
}

/// Every value has as many replicas as were asked for, those included that were put before and meanwhile.
#[test]
fn more_replicas_come_to_what_is_stored_and_what_comes() {
    let mut cluster = Cluster::start(2, 1);
    let address = cluster.manager.address.clone();
    let admin = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        let output = command.args(["admin", "--server", &address]).args(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let store = Store::open(&cluster);
    (0..100).for_each(|n| store.put(n));
    // Each node notes that its chains have no peer, as long as that is so.
    let marks =
        ["node0", "node1"].map(|node| cluster.folder.path().join(node).join("millpond.sole"));
    until("marks", || marks.iter().all(|mark| mark.exists()).then_some(()));
    let (done, said) = admin(&["set", "replicas", "3"]);
    assert!(!done && said.contains("failure domains, but there are 2"), "{said}");
    let (done, said) = admin(&["set", "replicas", "2"]);
    assert!(done, "{said}");
    (100..200).for_each(|n| store.put(n));
    let ((), took) = until("two replicas of every chain", || {
        let status = cluster.manager.status()?;
        let all = status.is_whole() && status.targets.serving == 2 * status.chains();
        all.then_some(())
    });
    println!("raised after {took:?}");
    assert!(marks.iter().all(|mark| !mark.exists()), "chains have peers");
    (0..200).for_each(|n| store.check(n));
    let (done, said) = admin(&["set", "replicas", "1"]);
    assert!(!done && said.contains("not lowered"), "{said}");
    // Either node has all of it.
    cluster.nodes[0].kill();
    (0..200).for_each(|n| store.check(n));
    (200..210).for_each(|n| store.put(n));
}
