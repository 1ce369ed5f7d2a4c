//! `millpond fsck` of a cluster: damage of every kind that chunks can have is found, repaired and gone.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use millpond_client::{ChunkAt, ChunkFilter, Client, ClientOptions, Value};
use millpond_types::cluster::{ChainId, NodeId};
use millpond_types::meta::{
    Attr, Caller, Create, Extend, FileKind, Filled, Ino, MetaOp, MetaReply, MetaRequest, Name,
    Timestamp,
};
use millpond_types::wire::{ChunkBases, FileChunkInfo};
use millpond_types::{DataId, FileChunk};

use crate::process::{Cluster, until};

/// A mount without a kernel.
struct Mount {
    client: Client,
    session: u64,
    sequence: u64,
    addresses: String,
}

impl Mount {
    fn new(cluster: &Cluster) -> Self {
        let all: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
        let addresses = all.join(",");
        let mut options = ClientOptions::new(addresses.parse().unwrap());
        options.deadline = Duration::from_secs(20);
        let client = Client::new(options).unwrap();
        let mut mount = Self { client, session: 0, sequence: 0, addresses };
        match mount.ask(MetaOp::SessionOpen { name: "test".into() }) {
            MetaReply::Session(session) => mount.session = session.id,
            other => panic!("{other:?}"),
        }
        mount
    }

    fn ask(&mut self, op: MetaOp) -> MetaReply {
        self.sequence += 1;
        let hour = u32::try_from(millpond_env::RealClock::wall_ms() / 3_600_000).unwrap();
        let (session, sequence, caller) = (self.session, self.sequence, Caller::checked(0, 0));
        let request = MetaRequest { session, sequence, hour, caller, op };
        self.client.meta(&request, None).unwrap().answer.unwrap()
    }

    /// A file of so many bytes, which are all there.
    fn file(&mut self, text: &str, len: usize) -> Attr {
        let create = Create {
            parent: Ino::ROOT,
            name: Name::new(text.as_bytes()).unwrap(),
            kind: FileKind::Regular,
            mode: 0o644,
            umask: None,
            rdev: 0,
            target: Vec::new(),
            exclusive: true,
            promised: None,
            delegate: None,
        };
        let MetaReply::Entry(entry) = self.ask(MetaOp::Create(create)) else { panic!() };
        let attr = entry.attr;
        let chunk_bytes = usize::try_from(attr.layout.chunk_bytes()).unwrap();
        for index in 0..u32::try_from(len.div_ceil(chunk_bytes)).unwrap() {
            let rest = len - index as usize * chunk_bytes;
            self.write(attr.layout.chain(index), (attr.data, index), rest.min(chunk_bytes));
        }
        let (ino, data, size) = (attr.ino, attr.data, len as u64);
        let filled = Filled { from: 0, to: size, cuts: attr.cuts };
        let extend = Extend { ino, data, size, mtime: Timestamp::default(), filled };
        match self.ask(MetaOp::Extend(extend)) {
            MetaReply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, chain: ChainId, (data, index): (u64, u32), len: usize) {
        let chunk = FileChunk { data: DataId(data), index };
        let (at, bytes) =
            (ChunkAt { chain, chunk, offset: 0, bases: ChunkBases::NONE, solid: 0 }, vec![7; len]);
        self.client.write_chunks(&[at], &[Value::One(&bytes)], None).unwrap();
    }

    fn chunks(&self, data: u64) -> Vec<FileChunkInfo> {
        let filter = ChunkFilter { data: Some(DataId(data)), ..ChunkFilter::default() };
        let mut all = Vec::new();
        let chains = self.client.chains(None).unwrap().chains;
        let heads: BTreeSet<NodeId> =
            chains.iter().filter_map(|it| it.nodes.first().copied()).collect();
        for node in heads {
            let mut cursor = 0;
            loop {
                let page = self.client.list_chunks(node, filter, cursor, None).unwrap();
                all.extend(page.chunks);
                cursor = page.cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        all
    }

    fn fsck(&self, args: &[&str]) -> (i32, serde_json::Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.args(["fsck", &self.addresses, "--json", "--settle", "0"]).args(args);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        let report = serde_json::from_slice(&stdout).unwrap_or_else(|_| panic!("{said}"));
        (status.code().unwrap(), report)
    }
}

#[test]
fn a_check_goes_on_when_a_meta_dies() {
    const FILES: u64 = 2500;
    let mut cluster = Cluster::start(3, 2);
    let mut mount = Mount::new(&cluster);
    for n in 0..FILES {
        mount.file(&n.to_string(), 0);
    }
    // Checks run all the time, of some pages each; in the middle of one of them a meta goes.
    let (started, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let checks = scope.spawn(|| {
            let mut all = Vec::new();
            while !over.load(Ordering::Relaxed) {
                started.fetch_add(1, Ordering::Relaxed);
                all.push(mount.fsck(&["--names-only"]));
            }
            all
        });
        until("checks run", || (started.load(Ordering::Relaxed) > 2).then_some(()));
        cluster.nodes[0].kill();
        let seen = started.load(Ordering::Relaxed);
        until("checks go on", || (started.load(Ordering::Relaxed) > seen + 2).then_some(()));
        over.store(true, Ordering::Relaxed);
        for (code, report) in checks.join().unwrap() {
            assert_eq!((code, &report["inodes"]), (0, &(FILES + 1).into()), "{report}");
            assert_eq!(report["names"], FILES, "{report}");
        }
    });
}

fn findings(report: &serde_json::Value) -> Vec<String> {
    let all = report["findings"].as_array().unwrap();
    all.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn chunks_without_files_and_other_damage_is_repaired() {
    let mut cluster = Cluster::start(3, 2);
    let mut mount = Mount::new(&cluster);
    let good = mount.file("good", 600_000);
    let bad = mount.file("bad", 300_000);
    let (code, report) = mount.fsck(&["--read-data"]);
    assert_eq!((code, &report["left"]), (0, &0.into()), "{report}");
    assert_eq!((&report["chunks"], &report["bytes_read"]), (&5.into(), &900_000.into()));

    // Nobody has these data ids; of the second one nobody knows whether it will be given out soon.
    let soon = good.data + 100_000;
    for (data, index, chain) in [(77, 0, 1), (77, 9, 2), (77, 1, 5), (soon, 0, 1)] {
        mount.write(ChainId(chain), (data, index), 1000);
    }
    // Behind the end of a file, in its last chunk and after it.
    mount.write(bad.layout.chain(1), (bad.data, 1), 100_000);
    mount.write(bad.layout.chain(7), (bad.data, 7), 100);
    // Where nobody looks for it: once beside the right one, once without.
    mount.write(bad.layout.chain(1), (bad.data, 0), 50);
    mount.write(bad.layout.chain(4), (bad.data, 3), 50);
    let (code, report) = mount.fsck(&[]);
    let found = findings(&report);
    assert_eq!((code, found.len()), (4, 6), "{report}");
    let all = |text: &str| found.iter().filter(|it| it.contains(text)).count();
    assert_eq!((all("belong to no file"), all("the file ends at"), all("belongs on")), (2, 2, 2));
    assert_eq!(mount.chunks(77).len(), 3, "nothing is changed without --repair");

    let (code, report) = mount.fsck(&["--repair"]);
    assert_eq!((code, &report["repaired"], &report["left"]), (4, &2.into(), &4.into()), "{report}");
    mount.ask(MetaOp::SessionClose);
    let (code, report) = mount.fsck(&["--repair"]);
    assert_eq!((code, &report["repaired"], &report["left"]), (4, &2.into(), &2.into()), "{report}");
    assert!(mount.chunks(77).is_empty(), "they are gone");
    assert_eq!(mount.chunks(soon).len(), 1);
    let mut left: Vec<(u32, u32)> =
        mount.chunks(bad.data).iter().map(|it| (it.at.chunk.index, it.stat.len)).collect();
    left.sort_unstable();
    assert_eq!(left, [(0, 262_144), (1, 300_000 - 262_144), (3, 50)]);
    let (code, report) = mount.fsck(&["--repair"]);
    assert_eq!((code, &report["repaired"], &report["left"]), (4, &0.into(), &2.into()));

    // A meta and a node that heads chains dies: others answer.
    cluster.nodes[0].kill();
    let (code, report) = mount.fsck(&["--names-only"]);
    assert_eq!((code, &report["inodes"]), (0, &3.into()), "{report}");
    let (code, report) = mount.fsck(&["--read-data"]);
    assert_eq!((code, &report["left"]), (4, &2.into()), "{report}");
    assert_eq!(report["chunks"], 7, "{report}");
}
