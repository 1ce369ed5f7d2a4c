//! A file system that others fill: the disk of a server gets less room than it may take. Needs a loop device.

use std::path::{Path, PathBuf};
use std::process::Command;

use millpond_types::wire::ItemStatus;
use millpond_types::{Ack, BlockKey, NamespaceOptions};

use super::harness::{TestServer, until};
use super::wire::{Wire, bytes, key};

const MIB: usize = 1 << 20;

/// A small file system of its own, taken down when dropped.
struct FileSystem(PathBuf);

impl FileSystem {
    /// `None` where making one is not allowed (no root, no loop driver).
    fn new(folder: &Path) -> Option<Self> {
        let (file, at) = (folder.join("image"), folder.join("mounted"));
        std::fs::File::create(&file).unwrap().set_len(4 << 30).unwrap();
        std::fs::create_dir(&at).unwrap();
        let run = |name: &str, args: &[&str]| {
            let output = Command::new(name).args(args).output().ok()?;
            if !output.status.success() {
                eprintln!("SKIPPED: {name}: {}", String::from_utf8_lossy(&output.stderr));
                return None;
            }
            Some(())
        };
        let [file, mounted] = [&file, &at].map(|path| path.display().to_string());
        run("mkfs.ext4", &["-q", "-m", "0", &file])?;
        run("mount", &["-o", "loop", &file, &mounted])?;
        Some(Self(at))
    }

    fn free(&self) -> u64 {
        millpond_env::free_bytes(&self.0).unwrap()
    }

    /// Fills it but for so many bytes.
    fn fill(&self, left: u64) {
        let len = (self.free() - left).to_string();
        let file = self.0.join("others");
        let done = Command::new("fallocate").args(["-l", &len]).arg(&file).status().unwrap();
        assert!(done.success(), "fallocate");
    }

    fn clear(&self) {
        std::fs::remove_file(self.0.join("others")).unwrap();
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn value(n: usize) -> Vec<u8> {
    bytes(n as u64, MIB)
}

/// Stores values until one is refused; their keys.
fn fill(wire: &mut Wire, ns: millpond_types::GroupId, prefix: &str, most: usize) -> Vec<BlockKey> {
    let mut stored = Vec::new();
    for n in 0..most {
        let name = key(format!("{prefix}{n}"));
        match wire.put(ns, &[(name, &value(n))])[0] {
            ItemStatus::Ok => stored.push(name),
            ItemStatus::NoSpace => break,
            ItemStatus::Busy => {}
            other => panic!("{other:?} is no answer of a full disk"),
        }
    }
    stored
}

fn all_there(wire: &mut Wire, ns: millpond_types::GroupId, stored: &[BlockKey]) {
    for (n, name) in stored.iter().enumerate() {
        assert_eq!(wire.get(ns, &[*name]), [Some(value(n))], "value {n}");
    }
}

/// Blocks of one size give way to those of another before anybody is told that the disk is full.
#[test]
fn a_full_disk_is_refilled_with_blocks_of_another_size() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &["--size", "1GiB"]);
    let mut wire = Wire::connect(&server);
    let cache = wire.open("cache", NamespaceOptions { ack: Ack::Disk, ..<_>::default() }).id;
    let mut put_all = |size: usize, count: usize| {
        let mut refused = 0;
        for n in 0..count {
            let (name, value) = (key(format!("{size}-{n}")), bytes(n as u64, size));
            match wire.put(cache, &[(name, &value)])[0] {
                ItemStatus::Ok => {}
                ItemStatus::NoSpace => refused += 1,
                other => panic!("{other:?} of {n} with {size} bytes"),
            }
        }
        refused
    };
    let refused = [(MIB, 1000), (300 << 10, 300), (40 << 10, 200), (3 * MIB, 40)]
        .map(|(size, count)| put_all(size, count));
    assert_eq!(refused, [0; 4], "refused by size");
    server.stop();
}

/// Memory of the index: in use, and at most.
fn index_bytes(server: &TestServer, folder: &Path) -> (u64, u64) {
    let disk = folder.join("data").display().to_string();
    let of =
        |what: &str| server.metric(&format!("millpond_disk_index_{what}_bytes{{disk=\"{disk}\"}}"));
    (of("live"), of("max"))
}

/// Puts a batch of small values; what became of each.
fn put_small(wire: &mut Wire, ns: millpond_types::GroupId, batch: usize) -> Vec<ItemStatus> {
    let value = [3; 100];
    let values: Vec<_> = batch_of(batch).into_iter().map(|name| (name, &value[..])).collect();
    wire.put(ns, &values)
}

fn batch_of(batch: usize) -> Vec<BlockKey> {
    let long = "k".repeat(100);
    (0..1024).map(|n| key(format!("{long} {batch} {n}"))).collect()
}

/// Where the index would take more memory than it may, values that may go give way to others, and what may not go is refused
/// until there is room.
#[test]
fn an_index_keeps_within_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[server]\nindex_memory = \"8MiB\"\n").unwrap();
    let config = config.display().to_string();
    let server = TestServer::start(folder.path(), &["--config", &config]);
    assert!(server.banner.contains("8 MiB for the index"), "{}", server.banner);
    let mut wire = Wire::connect(&server);
    let cache = wire.open("cache", NamespaceOptions::default()).id;
    for batch in 0..50 {
        let refused =
            put_small(&mut wire, cache, batch).iter().filter(|s| **s != ItemStatus::Ok).count();
        assert_eq!(refused, 0, "of batch {batch}");
    }
    let (live, most) = index_bytes(&server, folder.path());
    assert!((most / 2..most + most / 10).contains(&live), "{live} of {most}");
    assert!(wire.get(cache, &batch_of(49)).iter().all(Option::is_some), "the newest are there");

    // Of these nothing gives way. What the cache holds does, and then there is no more.
    let kept = NamespaceOptions { evict: false, ..NamespaceOptions::default() };
    let kept = wire.open("kept", kept).id;
    let mut stored = Vec::new();
    for batch in 0..60 {
        let done = put_small(&mut wire, kept, batch);
        let names = batch_of(batch).into_iter().zip(&done);
        stored.extend(names.filter(|(_, status)| **status == ItemStatus::Ok).map(|(name, _)| name));
        if done.contains(&ItemStatus::NoSpace) {
            break;
        }
    }
    assert!((15_000..60_000).contains(&stored.len()), "{} are kept", stored.len());
    let (live, most) = index_bytes(&server, folder.path());
    assert!((most / 10 * 9..most + most / 10).contains(&live), "{live} of {most}");
    assert!(server.log().contains("the index is full"), "the log says what to do");
    for names in stored.chunks(1024) {
        assert!(wire.get(kept, names).iter().all(Option::is_some), "what was acknowledged stays");
    }
    let half = stored.len() / 2;
    for names in stored[half..].chunks(1024) {
        wire.keys(millpond_types::wire::Verb::Delete, kept, names);
    }
    until("there is room again", || put_small(&mut wire, kept, 200)[0] == ItemStatus::Ok);
    server.stop();
}

/// What a file system has no room for is refused or evicts, as on a full disk; what was acknowledged stays, and the disk
/// is not read-only.
#[test]
fn a_file_system_that_others_fill_is_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let Some(system) = FileSystem::new(folder.path()) else { return };
    let server = TestServer::start(&system.0, &["--size", "1536MiB"]);
    let mut wire = Wire::connect(&server);
    let kept = NamespaceOptions { evict: false, ack: Ack::Disk, ..NamespaceOptions::default() };
    let kept = wire.open("kept", kept).id;
    assert_eq!(wire.put(kept, &[(key("first"), &value(0))]), [ItemStatus::Ok]);
    // The data file leaves 512 MiB, which the records of the cluster beside it may come to need.
    system.fill((512 + 200) << 20);
    let stored = fill(&mut wire, kept, "kept", 1000);
    assert!((60..400).contains(&stored.len()), "{} fit", stored.len());
    assert_eq!(server.page("/readyz").0, 200);
    all_there(&mut wire, kept, &stored);
    server.kill();

    let server = TestServer::start(&system.0, &[]);
    let mut wire = Wire::connect(&server);
    all_there(&mut wire, kept, &stored);
    // Blocks that may go give way to others, for as long as there is any room.
    let half = stored.len() / 2;
    wire.keys(millpond_types::wire::Verb::Delete, kept, &stored[half..]);
    let cache = NamespaceOptions { ack: Ack::Disk, ..NamespaceOptions::default() };
    let cache = wire.open("cache", cache).id;
    let mut came = 0;
    for n in 0..stored.len() {
        let name = key(format!("cached{n}"));
        until("one comes in", || wire.put(cache, &[(name, &value(n))])[0] == ItemStatus::Ok);
        came += usize::from(wire.get(cache, &[name])[0].is_some());
    }
    assert!(came > stored.len() - half, "{came} were there when they had come");
    all_there(&mut wire, kept, &stored[..half]);

    system.clear();
    let more = fill(&mut wire, kept, "more", 100);
    until("there is room again", || {
        wire.put(kept, &[(key("again"), &value(1))])[0] != ItemStatus::NoSpace
    });
    all_there(&mut wire, kept, &more);
    all_there(&mut wire, kept, &stored[..half]);
    server.stop();
}
