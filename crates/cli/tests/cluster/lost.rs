//! Chunks whose last good copy is damaged, on disks of real processes: the other replica comes back without them,
//! all others have their second copy, and nobody reads anything instead of what is lost.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use millpond_client::{ChunkAt, Client, ClientError, ClientOptions, Room, Value};
use millpond_types::cluster::ChainId;
use millpond_types::wire::{ChunkBases, PlacedChunk};
use millpond_types::{DataId, FileChunk};

use crate::metrics::{metrics, value};
use crate::process::{Cluster, Process, until};

const CHUNKS: u32 = 12;
/// Some pieces of a checksum.
const LEN: usize = 200_000;
const LOST: u32 = 5;
const DATA: DataId = DataId(77);

/// Pages that are nobody else's.
fn content(index: u32) -> Vec<u8> {
    let page = |page: usize| format!("the bytes of chunk {index:04}, page {page:04} -- ");
    (0..LEN)
        .step_by(4096)
        .flat_map(|at| page(at / 4096).repeat(140).into_bytes().into_iter().take(4096))
        .take(LEN)
        .collect()
}

struct File {
    client: Client,
    chains: Vec<ChainId>,
}

impl File {
    fn new(cluster: &Cluster) -> Self {
        let addresses: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
        let mut options = ClientOptions::new(addresses.join(",").parse().unwrap());
        options.deadline = Duration::from_secs(30);
        let client = Client::new(options).unwrap();
        let chains = client.chains(None).unwrap().chains.iter().map(|chain| chain.id).collect();
        Self { client, chains }
    }

    fn at(&self, index: u32, offset: u32) -> ChunkAt {
        let chain = self.chains[index as usize % self.chains.len()];
        let chunk = FileChunk { data: DATA, index };
        ChunkAt { chain, chunk, offset, bases: ChunkBases::NONE, solid: 0 }
    }

    fn write(
        &self,
        index: u32,
        offset: u32,
        bytes: &[u8],
        wait: Duration,
    ) -> Result<(), ClientError> {
        self.client.write_chunks(&[self.at(index, offset)], &[Value::One(bytes)], Some(wait))
    }

    fn read(&self, index: u32, wait: Duration) -> Result<Vec<u8>, ClientError> {
        let mut bytes = vec![9; LEN + 100];
        let mut rooms = [Room::One(&mut bytes)];
        let held = self.client.read_chunks(&[self.at(index, 0)], &mut rooms, Some(wait))?;
        bytes.truncate(held[0] as usize);
        Ok(bytes)
    }

    /// All chunks are read, but for the lost one, which is there and refused.
    fn check(&self) {
        for index in (0..CHUNKS).filter(|index| *index != LOST) {
            let read = self.read(index, Duration::from_secs(30)).unwrap();
            assert!(read == content(index), "chunk {index}");
        }
        let read = self.read(LOST, Duration::from_millis(700));
        assert!(read.is_err(), "{:?} of lost bytes", read.map(|bytes| bytes.len()));
        let ChunkAt { chain, chunk, .. } = self.at(LOST, 0);
        let stat = self.client.stat_chunks(&[PlacedChunk { chain, chunk }], None).unwrap();
        assert_eq!(stat[0].map(|stat| stat.len as usize), Some(LEN), "its length is known");
    }
}

/// Changes a byte in the second page of a chunk, on the disk of a node that does not run; false when the chunk is
/// not there.
fn damage(folder: &Path, index: u32) -> bool {
    let wanted = &content(index)[4096..8192];
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_type().unwrap().is_file() {
            continue;
        }
        let file = OpenOptions::new().read(true).write(true).open(entry.path()).unwrap();
        let mut page = [0; 4096];
        let pages = entry.metadata().unwrap().len() / 4096;
        for at in (0..pages).map(|page| page * 4096) {
            file.read_exact_at(&mut page, at).unwrap();
            if page == *wanted {
                page[100] ^= 1;
                file.write_all_at(&page, at).unwrap();
                file.sync_all().unwrap();
                found += 1;
            }
        }
    }
    found > 0
}

fn lost(cluster: &Cluster) -> Vec<u64> {
    let of = |node: &Process| value(&metrics(&node.http), "millpond_replica_lost_chunks");
    cluster.nodes.iter().map(of).collect()
}

fn whole(cluster: &Cluster) {
    until("every replica serves", || cluster.nodes[0].all_serve().then_some(()));
}

#[test]
fn a_chunk_that_nobody_has_keeps_no_other_from_its_second_copy() {
    let mut cluster = Cluster::roomy_and_watched(2, 2);
    let file = File::new(&cluster);
    let folder = cluster.folder.path().join("node0");
    cluster.nodes[1].kill();
    for index in 0..CHUNKS {
        file.write(index, 0, &content(index), Duration::from_secs(30)).unwrap();
    }
    cluster.nodes[0].stop();
    assert!(damage(&folder, LOST), "it is on the disk");
    cluster.nodes[0].run();
    cluster.nodes[1].run();
    whole(&cluster);
    assert_eq!(lost(&cluster), [0, 1], "the other one was filled without it");
    file.check();

    // The other one alone, and then as the one that the first is brought up to date from.
    cluster.nodes[0].kill();
    file.check();
    cluster.nodes[0].run();
    whole(&cluster);
    cluster.nodes.iter_mut().for_each(Process::kill);
    cluster.nodes.iter_mut().for_each(Process::run);
    whole(&cluster);
    assert_eq!(lost(&cluster), [0, 1], "a restart forgets nothing");
    file.check();

    // A part is made from what there was.
    let part = file.write(LOST, 10, b"part", Duration::from_millis(700));
    assert!(part.is_err(), "{part:?}");
    file.check();
    let new = content(LOST + 1000);
    file.write(LOST, 0, &new, Duration::from_secs(30)).unwrap();
    for alone in [0, 1] {
        assert!(file.read(LOST, Duration::from_secs(30)).unwrap() == new, "{alone}");
        cluster.nodes[1 - alone].kill();
        assert!(file.read(LOST, Duration::from_secs(30)).unwrap() == new, "{alone} alone");
        cluster.nodes[1 - alone].run();
        whole(&cluster);
    }
    assert_eq!(lost(&cluster), [0, 0]);
}
