//! Bytes of files on chains of real processes: what was written is read back, whatever dies meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millpond_client::{
    Chains, ChunkAt, ChunkCut, ChunkFilter, Client, ClientOptions, ErrorKind, Room, Value,
};
use millpond_env::Rng;
use millpond_types::cluster::{ChainId, NodeId};
use millpond_types::wire::{ChunkBases, ChunkChange, FileChunkInfo, NamespaceOpen, PlacedChunk};
use millpond_types::{DataId, FileChunk, NamespaceOptions, SlotId};

use crate::process::{Cluster, Process, until};
use crate::slots::{move_slot, moved, routing};

/// Chunks here are as long as small files have them: some pieces of a checksum.
const CHUNK_BYTES: usize = 300_000;

/// The bytes of one file, as they should be.
struct File {
    client: Client,
    chains: Vec<ChainId>,
    data: DataId,
    /// Chunks that are there.
    model: BTreeMap<u32, Vec<u8>>,
    chunks: u64,
    rng: Rng,
}

fn client(cluster: &Cluster) -> Client {
    let addresses: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let mut options = ClientOptions::new(addresses.join(",").parse().unwrap());
    options.deadline = Duration::from_secs(20);
    Client::new(options).unwrap()
}

impl File {
    fn new(cluster: &Cluster, data: u64) -> Self {
        let client = client(cluster);
        let chains = client.chains(None).unwrap().chains.iter().map(|chain| chain.id).collect();
        let (model, rng) = (BTreeMap::new(), Rng::new(data));
        Self { client, chains, data: DataId(data), model, chunks: 6, rng }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.rng.next_u64() % end as u64).unwrap()
    }

    fn at(&self, index: u32, offset: usize) -> ChunkAt {
        let chunk = FileChunk { data: self.data, index };
        // Spread over all nodes, as a layout would.
        let mix = self.data.0 * 31 + u64::from(index) * 7;
        let place = usize::try_from(mix % self.chains.len() as u64).unwrap();
        let offset = u32::try_from(offset).unwrap();
        ChunkAt { chain: self.chains[place], chunk, offset, bases: ChunkBases::NONE, solid: 0 }
    }

    fn placed(&self, index: u32) -> PlacedChunk {
        let ChunkAt { chain, chunk, .. } = self.at(index, 0);
        PlacedChunk { chain, chunk }
    }

    /// A random part of a random chunk.
    fn part(&mut self) -> (u32, usize, usize) {
        let index = u32::try_from(self.rng.next_u64() % self.chunks).unwrap();
        let offset = if self.below(4) == 0 { 0 } else { self.below(CHUNK_BYTES) };
        let most = if self.below(3) == 0 { CHUNK_BYTES } else { 5000 };
        (index, offset, (1 + self.below(most)).min(CHUNK_BYTES - offset))
    }

    /// Writes some parts in one call; they may overlap.
    fn write(&mut self) {
        let mut parts = Vec::new();
        for _ in 0..=self.below(4) {
            let (index, offset, len) = self.part();
            let mut bytes = vec![0; len];
            self.rng.fill(&mut bytes);
            parts.push((index, offset, bytes));
        }
        let at: Vec<ChunkAt> =
            parts.iter().map(|(index, offset, _)| self.at(*index, *offset)).collect();
        let values: Vec<Value<'_>> = parts
            .iter()
            .map(|(_, _, bytes)| {
                let (left, right) = bytes.split_at(bytes.len() / 3);
                Value::Many(vec![left, right])
            })
            .collect();
        self.client.write_chunks(&at, &values, None).unwrap();
        for (index, offset, bytes) in parts {
            let chunk = self.model.entry(index).or_default();
            let end = offset + bytes.len();
            chunk.resize(chunk.len().max(end), 0);
            chunk[offset..end].copy_from_slice(&bytes);
        }
    }

    /// Cuts, extends or removes some chunks in one call.
    fn cut(&mut self) {
        let mut cuts = Vec::new();
        for _ in 0..=self.below(2) {
            let (index, offset, _) = self.part();
            let to = (self.below(3) > 0).then_some(u32::try_from(offset).unwrap());
            let ChunkAt { chain, chunk, .. } = self.at(index, 0);
            let change = to.map_or(ChunkChange::Remove, ChunkChange::Cut);
            cuts.push(ChunkCut { chain, chunk, change });
            match to {
                None => drop(self.model.remove(&index)),
                Some(_) => {
                    if let Some(bytes) = self.model.get_mut(&index) {
                        bytes.resize(offset, 0);
                    }
                }
            }
        }
        self.client.cut_chunks(&cuts, None).unwrap();
    }

    fn read(&mut self) {
        let parts: Vec<(u32, usize, usize)> = (0..3).map(|_| self.part()).collect();
        self.check(&parts);
    }

    /// Reads parts in one call and compares.
    fn check(&self, parts: &[(u32, usize, usize)]) {
        let mut buffers: Vec<Vec<u8>> = parts.iter().map(|(_, _, len)| vec![9; *len]).collect();
        let mut rooms: Vec<Room<'_>> = buffers.iter_mut().map(|it| Room::One(it)).collect();
        let at: Vec<ChunkAt> =
            parts.iter().map(|(index, offset, _)| self.at(*index, *offset)).collect();
        let held = self.client.read_chunks(&at, &mut rooms, None).unwrap();
        for (((index, offset, len), buffer), held) in parts.iter().zip(&buffers).zip(held) {
            let empty = Vec::new();
            let chunk = self.model.get(index).unwrap_or(&empty);
            let there = chunk.get(*offset..).unwrap_or_default();
            let there = &there[..there.len().min(*len)];
            let what = format!("chunk {index} of {}, {len} bytes at {offset}", self.data);
            assert_eq!(held as usize, there.len(), "{what}");
            assert!(buffer[..there.len()] == *there, "{what}");
            assert!(buffer[there.len()..].iter().all(|byte| *byte == 0), "{what}");
        }
    }

    /// Reads all there is.
    fn check_all(&self) {
        for index in 0..u32::try_from(self.chunks).unwrap() {
            self.check(&[(index, 0, CHUNK_BYTES + 100)]);
        }
        let chunks: Vec<PlacedChunk> =
            (0..u32::try_from(self.chunks).unwrap()).map(|index| self.placed(index)).collect();
        let stats = self.client.stat_chunks(&chunks, None).unwrap();
        for (chunk, stat) in chunks.iter().zip(stats) {
            let len = stat.map(|stat| stat.len as usize);
            assert_eq!(len, self.model.get(&chunk.chunk.index).map(Vec::len), "{}", chunk.chunk);
        }
    }

    fn step(&mut self) {
        match self.below(8) {
            0..3 => self.write(),
            3 => self.cut(),
            _ => self.read(),
        }
    }
}

/// All chunks that the heads show.
fn listed(client: &Client, filter: ChunkFilter) -> Vec<FileChunkInfo> {
    let mut all = Vec::new();
    let Chains { chains, .. } = client.chains(None).unwrap();
    let mut heads: Vec<NodeId> = chains.iter().map(|chain| chain.nodes[0]).collect();
    heads.sort_unstable();
    heads.dedup();
    for node in heads {
        let mut cursor = 0;
        loop {
            let page = client.list_chunks(node, filter, cursor, None).unwrap();
            all.extend(page.chunks);
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
    }
    all.sort_unstable_by_key(|info| info.at.chunk);
    all
}

#[test]
fn parts_are_read_back_as_a_model_has_them() {
    let cluster = Cluster::roomy(3, 2);
    let mut file = File::new(&cluster, 1);
    for _ in 0..400 {
        file.step();
    }
    file.check_all();
    // A chunk that is written far behind its start has a hole.
    file.client.write_chunks(&[file.at(50, 100_000)], &[Value::One(b"end")], None).unwrap();
    let hole = [vec![0; 100_000], b"end".to_vec()].concat();
    file.model.insert(50, hole);
    file.check(&[(50, 0, 200_000), (50, 99_999, 2), (50, 100_003, 7), (51, 5, 5)]);
    // Writing nothing makes nothing.
    file.client.write_chunks(&[file.at(52, 9)], &[Value::One(b"")], None).unwrap();
    let absent = file.client.stat_chunks(&[file.placed(52)], None).unwrap();
    assert_eq!(absent, [None]);

    let other = File::new(&cluster, 2);
    other.client.write_chunks(&[other.at(0, 0)], &[Value::One(b"other")], None).unwrap();
    let filter = ChunkFilter { data: Some(file.data), chain: None };
    let found = listed(&file.client, filter);
    let wanted: Vec<(u32, usize)> =
        file.model.iter().map(|(index, bytes)| (*index, bytes.len())).collect();
    let shown: Vec<(u32, usize)> =
        found.iter().map(|info| (info.at.chunk.index, info.stat.len as usize)).collect();
    assert_eq!(shown, wanted);
    assert!(found.iter().all(|info| info.at == file.placed(info.at.chunk.index)));
    let on_chain = ChunkFilter { data: None, chain: Some(other.at(0, 0).chain) };
    let on_chain = listed(&file.client, on_chain);
    assert!(on_chain.iter().any(|info| info.at.chunk.data == other.data));
    assert_eq!(listed(&file.client, ChunkFilter::default()).len(), wanted.len() + 1);

    let error = file.client.write_chunks(&[file.at(0, 64 << 20)], &[Value::One(b"x")], None);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_node_that_dies_and_comes_back_costs_neither_an_error_nor_a_byte() {
    let mut cluster = Cluster::roomy(3, 2);
    let (ended, steps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut files: Vec<File> = (1..4).map(|data| File::new(&cluster, data)).collect();
    std::thread::scope(|scope| {
        for file in &mut files {
            let (ended, steps) = (&ended, &steps);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    file.step();
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for node in [0, 1] {
            let more = |steps: &AtomicUsize| {
                let from = steps.load(Ordering::Relaxed);
                until("files are used", || {
                    (steps.load(Ordering::Relaxed) > from + 60).then_some(())
                });
            };
            more(&steps);
            cluster.nodes[node].kill();
            more(&steps);
            cluster.nodes[node].run();
            more(&steps);
            let whole = || cluster.nodes[2].all_serve().then_some(());
            until("every replica serves again", whole);
        }
        ended.store(true, Ordering::Relaxed);
    });
    files.iter().for_each(File::check_all);
    // What was brought up to date must do by itself.
    cluster.nodes[2].kill();
    files.iter().for_each(File::check_all);
    // With both replicas gone it is told which chunk is not to be had.
    cluster.nodes[1].kill();
    let read = |file: &File, index| {
        let (mut bytes, deadline) = ([0; 10], Some(Duration::from_millis(700)));
        let mut rooms = [Room::One(&mut bytes)];
        file.client.read_chunks(&[file.at(index, 0)], &mut rooms, deadline).err()
    };
    let each = files.iter().flat_map(|file| (0..6).map(move |index| (file, index)));
    let mut errors = each.filter_map(|(file, index)| Some((file.data, index, read(file, index)?)));
    let (data, index, error) = errors.next().expect("some chain has lost both replicas");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let (error, named) = (error.to_string(), format!("chunk {index} of data {data} on chain"));
    assert!(error.contains(&named), "{error}");
}

#[test]
fn everything_acknowledged_is_there_after_all_nodes_are_killed() {
    let mut cluster = Cluster::roomy(3, 2);
    let mut file = File::new(&cluster, 7);
    for _ in 0..120 {
        file.step();
    }
    cluster.nodes.iter_mut().for_each(Process::kill);
    cluster.nodes.iter_mut().for_each(Process::run);
    until("every replica serves", || cluster.nodes[0].all_serve().then_some(()));
    file.check_all();
    for _ in 0..60 {
        file.step();
    }
    for node in &mut cluster.nodes {
        node.stop();
    }
    cluster.nodes.iter_mut().for_each(Process::run);
    file.check_all();
}

#[test]
fn slots_that_move_leave_chunks_of_files_where_they_are() {
    let cluster = Cluster::roomy(3, 2);
    let mut file = File::new(&cluster, 3);
    for _ in 0..40 {
        file.write();
    }
    let namespaces =
        NamespaceOpen { name: "kv".to_owned(), create: true, options: NamespaceOptions::default() };
    let id = file.client.open_namespace(&namespaces, None).unwrap().id;
    let before = listed(&file.client, ChunkFilter::default());
    // Slots of the chains that the chunks lie on leave them.
    let routing = routing(&cluster);
    let of_files: BTreeSet<ChainId> = before.iter().map(|info| info.at.chain).collect();
    for chain in &of_files {
        let is_there = |slot: &SlotId| routing.place(*slot).chain == *chain;
        let slot = (0..=u16::MAX).map(SlotId).find(is_there).expect("a chain has slots");
        move_slot(&cluster, slot, chain.0 % 256 + 1);
    }
    for _ in 0..60 {
        file.step();
    }
    moved(&cluster);
    file.check_all();
    let keys = file.client.list(id, b"", 0, None).unwrap();
    assert!(keys.keys.is_empty(), "chunks of files are no keys");
    let after = listed(&file.client, ChunkFilter::default());
    let chains = |list: &[FileChunkInfo]| -> BTreeMap<u32, ChainId> {
        list.iter().map(|info| (info.at.chunk.index, info.at.chain)).collect()
    };
    let (before, after) = (chains(&before), chains(&after));
    assert!(after.iter().all(|(index, chain)| before.get(index).is_none_or(|it| it == chain)));
}
