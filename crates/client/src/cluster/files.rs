//! Contents of calls about chunks of files, and calls about nodes and chains.

use std::collections::{BTreeMap, HashMap};

use millpond_types::cluster::{ChainId, ChainVersion, NodeId, Routing, RoutingVersion};
use millpond_types::wire::{
    ChunkListReply, ChunkListRequest, ChunkReadRequest, ChunkStatRequest, ChunkUpdateRequest,
    ChunkWriteRequest, Cut, PlacedChunk, ReadPart, Tags, Verb, WritePart,
};
use millpond_types::{Ack, Crc32c, FileChunk};

use super::Cluster;
use super::batch::{Batch, Home};
use crate::call::{Items, Job, Value};
use crate::chunks::{ChunkAt, ChunkCut};
use crate::connection::Deadline;
use crate::error::ClientError;
use crate::verbs::wire_len;

/// Chunks of files, and the operation on them.
pub(crate) enum Files<'w, 'a> {
    /// Parts to read, bytes of room for each, and whether they may be lent in place.
    Read(&'w [ChunkAt], Vec<u32>, bool),
    /// Parts to write, and the bytes of each.
    Write(&'w [ChunkAt], &'w [Value<'a>]),
    /// Changes of whole chunks.
    Cut(&'w [ChunkCut]),
    /// Chunks to describe.
    Stat(&'w [PlacedChunk]),
}

impl<'a> Files<'_, 'a> {
    fn len(&self) -> usize {
        match self {
            Self::Read(parts, ..) | Self::Write(parts, _) => parts.len(),
            Self::Cut(cuts) => cuts.len(),
            Self::Stat(chunks) => chunks.len(),
        }
    }

    /// The chunk of an item.
    pub(crate) fn at(&self, item: usize) -> PlacedChunk {
        match self {
            Self::Read(parts, ..) | Self::Write(parts, _) => parts[item].at(),
            Self::Cut(cuts) => cuts[item].at(),
            Self::Stat(chunks) => chunks[item],
        }
    }

    /// Payload bytes of an item.
    pub(super) fn len_of(&self, item: usize) -> u64 {
        match self {
            Self::Read(_, rooms, _) => u64::from(rooms[item]),
            Self::Write(_, values) => values[item].len() as u64,
            Self::Cut(_) | Self::Stat(_) => 0,
        }
    }

    pub(super) const fn has_payload(&self) -> bool {
        matches!(self, Self::Read(..) | Self::Write(..))
    }

    /// The items; those that must not overtake another one of their chunk wait for it.
    pub(super) fn batch(&self, verb: Verb) -> Batch {
        let mut batch = Batch::new(verb, (0..self.len()).map(|item| Home::Chunk(self.at(item))));
        if !matches!(self, Self::Write(..) | Self::Cut(_)) {
            return batch;
        }
        let mut before: HashMap<FileChunk, Vec<usize>> = HashMap::new();
        for item in 0..self.len() {
            let earlier = before.entry(self.at(item).chunk).or_default();
            if earlier.iter().any(|other| self.collide(*other, item)) {
                batch.keep_turn(item);
            }
            earlier.push(item);
        }
        batch
    }

    /// Whether the order of two items of one chunk matters.
    fn collide(&self, one: usize, other: usize) -> bool {
        let Self::Write(parts, values) = self else { return true };
        let range = |item: usize| {
            let from = u64::from(parts[item].offset);
            from..from + values[item].len() as u64
        };
        let (one, other) = (range(one), range(other));
        one.start < other.end && other.start < one.end
    }

    /// The request for some of the items.
    pub(super) fn job(&self, verb: Verb, part: &[usize], tags: Option<Tags>) -> Job<'a, 'a> {
        let ack = Ack::Disk;
        let meta = match self {
            Self::Read(parts, rooms, lends) => {
                let read = |item: &usize| {
                    let at = &parts[*item];
                    let (offset, bases) = (at.offset, at.bases);
                    ReadPart { at: at.at(), offset, len: rooms[*item], bases }
                };
                let request = ChunkReadRequest { parts: part.iter().map(read).collect() };
                let (items, lends) = (Items::Each(part.to_vec()), *lends);
                return Job::Read { request, items, lends };
            }
            Self::Write(parts, values) => {
                let write = |item: &usize| WritePart {
                    at: parts[*item].at(),
                    offset: parts[*item].offset,
                    len: wire_len(values[*item].len()),
                    crc: Crc32c::EMPTY,
                };
                let parts = part.iter().map(write).collect();
                let values = part.iter().map(|item| values[*item].clone()).collect();
                let request = ChunkWriteRequest { ack, parts, tags, arena: Vec::new() };
                return Job::Write { request, values, reply: Vec::new() };
            }
            Self::Cut(cuts) => {
                let cut = |item: &usize| Cut { at: cuts[*item].at(), change: cuts[*item].change };
                ChunkUpdateRequest { ack, cuts: part.iter().map(cut).collect(), tags }.encode()
            }
            Self::Stat(chunks) => {
                let chunks = part.iter().map(|item| chunks[*item]).collect();
                ChunkStatRequest { chunks }.encode()
            }
        };
        Job::Plain { verb, meta, reply: Vec::new() }
    }
}

/// A chain and its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainPlace {
    /// The chain.
    pub id: ChainId,
    /// Version of the chain: grows with every change of its members.
    pub version: ChainVersion,
    /// The serving nodes, head first; empty while no node serves.
    pub nodes: Vec<NodeId>,
    /// Whether every member serves.
    pub whole: bool,
}

/// The chains of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    /// Replica count of the default chain table; 0 without chains.
    pub replicas: u8,
    /// Replica counts of the other chain tables.
    pub tables: Vec<u8>,
    /// Version of the routing with this data.
    pub routing: RoutingVersion,
    /// All chains, by id.
    pub chains: Vec<ChainPlace>,
    /// All nodes with their addresses.
    pub nodes: BTreeMap<NodeId, Vec<String>>,
}

impl Chains {
    fn of(routing: &Routing) -> Self {
        let place = |(id, chain): (&ChainId, &millpond_types::cluster::Chain)| {
            let nodes: Vec<NodeId> = chain.serving().map(|member| member.node).collect();
            let whole = !nodes.is_empty() && nodes.len() == chain.targets.len();
            ChainPlace { id: *id, version: chain.version, nodes, whole }
        };
        // Members come and go, so the most frequent count is the intended one.
        let mut counts = BTreeMap::<usize, usize>::new();
        for (_, chain) in routing.chains.range(ChainId::all_of(0)) {
            *counts.entry(chain.targets.len()).or_default() += 1;
        }
        let usual = counts
            .into_iter()
            .max_by_key(|(_, chains)| *chains)
            .map_or(0, |(replicas, _)| replicas);
        let mut tables: Vec<u8> = routing.chains.keys().map(|id| id.table()).collect();
        tables.dedup();
        Self {
            replicas: u8::try_from(usual).unwrap_or(u8::MAX),
            tables: tables.into_iter().filter(|table| *table > 0).collect(),
            routing: routing.version,
            chains: routing.chains.iter().map(place).collect(),
            nodes: routing.nodes.values().map(|node| (node.id, node.addresses.clone())).collect(),
        }
    }
}

impl Cluster {
    /// The chains of the newest routing known here.
    pub(crate) fn chains(&self, deadline: Deadline) -> Result<Chains, ClientError> {
        self.known(deadline)?;
        Ok(Chains::of(&self.table.get()))
    }

    /// One page of the chunks of files on the chains that a node heads.
    pub(crate) fn list_files(
        &self,
        node: NodeId,
        request: &ChunkListRequest,
        deadline: Deadline,
    ) -> Result<ChunkListReply, ClientError> {
        self.known(deadline)?;
        let meta = request.encode();
        let reply = self.until(deadline, || self.one(node, (Verb::ChunkList, &meta), deadline))?;
        let address = node.to_string();
        ChunkListReply::decode(&reply).map_err(|source| ClientError::Wire { address, source })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millpond_types::cluster::{Chain, ChainTarget, DiskId, TargetId, TargetState};
    use millpond_types::wire::{ChunkBases, ChunkChange, ItemStatus};
    use millpond_types::{DataId, Uuid128};

    use super::super::tags::Tagger;
    use super::*;

    const NODE: NodeId = NodeId(Uuid128([1; 16]));

    fn routing() -> Routing {
        let member = ChainTarget {
            target: TargetId(1),
            disk: DiskId::default(),
            node: NODE,
            state: TargetState::Serving,
        };
        let chain = |id| Chain { id, version: ChainVersion(4), targets: vec![member] };
        let chains: BTreeMap<ChainId, Chain> = [1, 2].map(ChainId).map(|id| (id, chain(id))).into();
        Routing { version: RoutingVersion(1), chains, ..Routing::default() }
    }

    fn at(index: u32, offset: u32) -> ChunkAt {
        let chunk = FileChunk { data: DataId(9), index };
        ChunkAt { chain: ChainId(1 + index % 2), chunk, offset, bases: ChunkBases::NONE, solid: 0 }
    }

    /// The items sent in each round when every question is answered `status` once.
    fn rounds(files: &Files<'_, '_>, verb: Verb) -> Vec<Vec<usize>> {
        let (routing, mut tagger) = (routing(), Tagger::default());
        let (mut batch, mut rounds) = (files.batch(verb), Vec::new());
        while batch.open() > 0 {
            let plan = batch.plan(&routing, &mut tagger, |_| 0);
            let asked = plan.asks.into_values().next().unwrap();
            for item in &asked {
                assert!(!batch.answered((NODE, *item), ItemStatus::Ok, &routing));
            }
            rounds.push(asked);
        }
        rounds
    }

    #[test]
    fn parts_that_overlap_go_one_after_the_other_and_others_together() {
        let bytes = [0; 10];
        let parts = [at(0, 0), at(0, 10), at(1, 0), at(0, 5), at(0, 20), at(0, 9)];
        let values: Vec<Value<'_>> = parts.iter().map(|_| Value::One(&bytes)).collect();
        let write = Files::Write(&parts, &values);
        // The fourth covers the ends of the first two; the last one overlaps all except the fifth.
        assert_eq!(rounds(&write, Verb::ChunkWrite), [vec![0, 1, 2, 4], vec![3], vec![5]]);
        let read = Files::Read(&parts, vec![10; 6], false);
        assert_eq!(rounds(&read, Verb::ChunkRead), [vec![0, 1, 2, 3, 4, 5]]);
        let cuts = [(0, ChunkChange::Cut(5)), (1, ChunkChange::Remove), (0, ChunkChange::Cut(9))];
        let cuts = cuts.map(|(index, change)| {
            let ChunkAt { chain, chunk, .. } = at(index, 0);
            ChunkCut { chain, chunk, change }
        });
        assert_eq!(rounds(&Files::Cut(&cuts), Verb::ChunkUpdate), [vec![0, 1], vec![2]]);
    }

    #[test]
    fn what_passes_is_asked_for_again_under_the_same_tag() {
        let (routing, mut tagger) = (routing(), Tagger::default());
        let (parts, bytes) = ([at(0, 0), at(1, 0)], [0; 10]);
        let values = [Value::One(&bytes), Value::One(&bytes)];
        let mut batch = Files::Write(&parts, &values).batch(Verb::ChunkWrite);
        let mut tags = Vec::new();
        for status in [ItemStatus::Busy, ItemStatus::Behind, ItemStatus::Late, ItemStatus::Moved] {
            let plan = batch.plan(&routing, &mut tagger, |_| 0);
            assert_eq!(plan.asks, [(NODE, vec![0, 1])].into());
            tags.push(batch.tags(&[0, 1], 7).unwrap());
            assert!(batch.answered((NODE, 0), status, &routing), "news are wanted");
            assert!(batch.answered((NODE, 1), status, &routing));
        }
        tags.dedup();
        let chains: Vec<ChainId> = tags[0].items.iter().map(|tag| tag.chain).collect();
        assert_eq!((tags.len(), chains), (1, vec![ChainId(1), ChainId(2)]));
        batch.plan(&routing, &mut tagger, |_| 0);
        assert!(!batch.answered((NODE, 0), ItemStatus::NoSpace, &routing), "that is an answer");
        assert_eq!(batch.open(), 1);
    }

    #[test]
    fn a_chunk_on_a_chain_that_nobody_knows_waits() {
        let parts = [ChunkAt { chain: ChainId(77), ..at(0, 0) }];
        let mut batch = Files::Read(&parts, vec![10], false).batch(Verb::ChunkRead);
        let plan = batch.plan(&routing(), &mut Tagger::default(), |_| 0);
        assert_eq!((plan.homeless, plan.asks.len()), (1, 0));
    }

    #[test]
    fn chains_tell_where_they_are() {
        let chains = Chains::of(&routing());
        let place = &chains.chains[1];
        assert_eq!(
            (place.id, place.nodes.as_slice(), place.whole),
            (ChainId(2), &[NODE][..], true)
        );
    }
}
