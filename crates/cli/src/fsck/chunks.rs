//! The chunks half of a check: every chunk belongs to a file, lies where the file's layout says, and is no
//! longer than the file; and what was written of a file is there.
//!
//! Files are taken some at a time, in the order of their data ids; for each such batch all chunks are
//! listed once. So memory is bounded, and the chunks of `n` files are listed `n / FILES_AT_ONCE` times.
//!
//! The cluster may be in use. A chunk is written only after its data id lies in an inode, or, of a file whose bytes
//! go there from the store, in the garbage, from where it moves to the inode; and a data id
//! that leaves its inode becomes garbage in the same transaction, which is forgotten after its chunks are
//! removed. So a chunk that was seen, is there still, and whose data id is found neither in the garbage nor, read
//! after it, in the inodes, nor again in the garbage, belongs to nobody; and since no number is given out twice, for ever.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use indicatif::ProgressBar;
use millpond_client::{
    Chains, ChunkAt, ChunkCut, ChunkFilter, Chunks, ClientError, FileBytes, Room, SharedName,
};
use millpond_store::KeyRange;
use millpond_types::cluster::{ChainId, NodeId};
use millpond_types::limits::LIST_KEYS_MAX;
use millpond_types::meta::{
    Attr, CounterRecord, FileKind, GarbageRecord, Ino, InodeRecord, Layout, SharedRecord, keys,
};
use millpond_types::wire::{
    ChunkBases, ChunkChange, ChunkStat, FileChunkInfo, PlacedChunk, Record as _,
};
use millpond_types::{DataId, FileChunk};

use super::super::interrupt::Interrupt;
use super::super::metas::Metas;
use super::names::Remote;
use super::{Args, Report, spinner};

/// Files of a batch: some 64 MiB.
const FILES_AT_ONCE: usize = 1 << 20;
/// Chunks that look wrong and are looked at again; of more there is the number.
const SUSPECTS_MAX: usize = 1 << 18;
/// Findings that are listed.
const FINDINGS_MAX: usize = 1000;
/// Time for one question to a node.
const PATIENCE: Duration = Duration::from_secs(30);
/// Chunks whose last bytes are read at once.
const LASTS_AT_ONCE: usize = 256;
/// Bytes that are read at once.
const READ_BYTES: usize = 32 << 20;
/// Times that a list is begun.
const ATTEMPTS: u32 = 5;
/// Time for the cluster to notice that a node is gone.
const RETRY: Duration = Duration::from_secs(3);
/// Numbers that no meta gives out while a check runs.
const FAR: u64 = 1 << 32;

/// What is known of a data id.
#[derive(Clone, Copy, Debug)]
struct Owner {
    /// Of garbage 0.
    ino: Ino,
    version: u64,
    size: u64,
    solid: u64,
    /// Others may have its chunks too: such files are looked at one by one.
    is_shared: bool,
    layout: Layout,
}

impl Owner {
    /// So many bytes of a chunk of its own were written.
    fn solid_in(&self, index: u32) -> u32 {
        let solid = if self.is_shared { 0 } else { self.solid };
        Self { size: solid, ..*self }.bytes_max(index)
    }

    /// How many of these bytes are there in a listed chunk; none in one on a wrong chain, which nobody reads.
    fn solid_of(&self, info: &FileChunkInfo) -> u32 {
        let index = info.at.chunk.index;
        let is_placed = self.layout.chain(index) == info.at.chain;
        if is_placed { info.stat.len.min(self.solid_in(index)) } else { 0 }
    }

    /// The longest that a chunk may be.
    fn bytes_max(&self, index: u32) -> u32 {
        let chunk = self.layout.chunk_bytes();
        let rest = self.size.saturating_sub(u64::from(index) * chunk);
        u32::try_from(rest.min(chunk)).unwrap_or(u32::MAX)
    }
}

/// Why a chunk looks wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Nobody has its data id.
    Orphan,
    /// It is longer than the file allows.
    Long { bytes_max: u32 },
    /// The layout says another chain.
    Misplaced { chain: ChainId },
    /// Its bytes cannot be read.
    Unreadable,
}

/// A chunk that looks wrong.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    at: PlacedChunk,
    stat: ChunkStat,
    owner: Option<Owner>,
    why: Why,
}

/// What is wrong with a listed chunk of a batch, if anything.
fn judge(info: &FileChunkInfo, owner: Option<&Owner>) -> Option<Why> {
    let Some(owner) = owner else { return Some(Why::Orphan) };
    if owner.ino == Ino(0) {
        return None;
    }
    let index = info.at.chunk.index;
    let chain = owner.layout.chain(index);
    if chain != info.at.chain {
        return Some(Why::Misplaced { chain });
    }
    let bytes_max = owner.bytes_max(index);
    (info.stat.len > bytes_max).then_some(Why::Long { bytes_max })
}

/// The batch: owners by data id, and the first data id behind it.
struct Batch {
    owners: BTreeMap<u64, Owner>,
    end: Option<u64>,
}

impl Batch {
    fn add(&mut self, (from, at_most): (u64, usize), data: u64, owner: Owner) {
        if data < from || self.end.is_some_and(|end| data >= end) {
            return;
        }
        self.owners.insert(data, owner);
        if self.owners.len() > at_most {
            self.end = self.owners.pop_last().map(|(data, _)| data);
        }
    }
}

struct Check<'a> {
    records: Remote<'a>,
    metas: &'a Metas,
    args: &'a Args,
    progress: &'a ProgressBar,
    chains: Chains,
    report: &'a mut Report,
    suspects: Vec<Suspect>,
    /// Solid bytes that were seen, by data id.
    seen: HashMap<u64, u64>,
    /// Files of the batch whose chunks others have too, and later all that may lack bytes.
    short: Vec<Ino>,
    /// Files whose inodes cannot be read: their chunks look as if they were nobody's.
    unreadable: u64,
}

/// Checks the chunks of all files.
pub(super) fn check(metas: &Metas, args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let chains = metas.client.chains(Some(PATIENCE))?;
    let records_read = ProgressBar::hidden();
    let progress = spinner("chunks")?;
    let records = Remote { metas, progress: &records_read };
    let mut check = Check {
        records,
        metas,
        args,
        progress: &progress,
        chains,
        report,
        suspects: Vec::new(),
        seen: HashMap::new(),
        short: Vec::new(),
        unreadable: 0,
    };
    check.unserved();
    check.all()?;
    progress.finish_and_clear();
    Ok(())
}

impl Check<'_> {
    fn found(&mut self, text: String, is_repaired: bool) {
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(text);
        } else {
            self.report.more += 1;
        }
        if is_repaired {
            self.report.repaired += 1;
        } else {
            self.report.left += 1;
        }
    }

    fn unserved(&mut self) {
        let away: Vec<u32> = self
            .chains
            .chains
            .iter()
            .filter(|chain| chain.nodes.is_empty())
            .map(|chain| chain.id.0)
            .collect();
        for chain in away {
            self.found(
                format!("chain {chain} has no serving node: its chunks are not checked"),
                false,
            );
        }
    }

    fn all(&mut self) -> anyhow::Result<()> {
        let mut from = 0;
        loop {
            let batch = self.load(from)?;
            self.list(from, &batch)?;
            self.note_short(&batch);
            self.confirm()?;
            self.look_for_missing()?;
            match batch.end {
                Some(end) => from = end,
                None => return Ok(()),
            }
        }
    }

    /// Calls with every data id that somebody has: of garbage, then of inodes, then of garbage again.
    fn owners(&mut self, mut each: impl FnMut(u64, Owner)) -> anyhow::Result<u64> {
        let mut unreadable = 0;
        self.garbage(&mut each)?;
        let mut more = Some(KeyRange::prefix(keys::INODES));
        while let Some(range) = more {
            let page = self.records.page_now(range, true)?;
            more = page.rest;
            for (key, value) in page.entries {
                if key == keys::IDS {
                    continue;
                }
                let Ok(InodeRecord { attr, .. }) = InodeRecord::open(&value) else {
                    unreadable += 1;
                    continue;
                };
                if attr.kind == FileKind::Regular {
                    let (ino, version, layout) = (attr.ino, attr.version, attr.layout);
                    // An empty file in the store may be about to be told what is in its chunks.
                    let size = if attr.is_stored() { 0 } else { attr.size };
                    let (solid, is_shared) = (attr.solid, attr.is_shared);
                    let owner = Owner { ino, version, size, solid, is_shared, layout };
                    each(attr.chunk_data(), owner);
                }
            }
        }
        self.garbage(&mut each)?;
        let aside = KeyRange::prefix(&keys::aside(keys::INODES));
        unreadable += self.records.page_now(aside, false)?.entries.len() as u64;
        Ok(unreadable)
    }

    /// Chunks of several files and of none: the first become the second in one transaction.
    fn garbage(&self, each: &mut impl FnMut(u64, Owner)) -> anyhow::Result<()> {
        self.nobodys(keys::SHARED, each, |value| {
            SharedRecord::open(value).map_or(Layout::NONE, |it| it.layout)
        })?;
        self.nobodys(keys::GARBAGE, each, |value| {
            GarbageRecord::open(value).map_or(Layout::NONE, |it| it.layout)
        })
    }

    fn nobodys(
        &self,
        prefix: &[u8],
        each: &mut impl FnMut(u64, Owner),
        layout: impl Fn(&[u8]) -> Layout,
    ) -> anyhow::Result<()> {
        let mut more = Some(KeyRange::prefix(prefix));
        while let Some(range) = more {
            let page = self.records.page_now(range, true)?;
            more = page.rest;
            for (key, value) in page.entries {
                let Some(data) = keys::number(prefix, &key) else { continue };
                let layout = layout(&value);
                let (ino, version, size, solid, is_shared) = (Ino(0), 0, 0, 0, false);
                each(data, Owner { ino, version, size, solid, is_shared, layout });
            }
        }
        Ok(())
    }

    /// The files with the smallest data ids that are not below `from`.
    fn load(&mut self, from: u64) -> anyhow::Result<Batch> {
        let mut batch = Batch { owners: BTreeMap::new(), end: None };
        let known: BTreeSet<ChainId> = self.chains.chains.iter().map(|chain| chain.id).collect();
        let mut counts = [0_u32; u8::MAX as usize + 1];
        for chain in &known {
            counts[usize::from(chain.table())] += 1;
        }
        let (mut lost, mut clones) = (Vec::new(), Vec::new());
        self.unreadable = self.owners(|data, owner| {
            if owner.is_shared && owner.solid > 0 && from == 0 {
                clones.push(owner.ino);
            }
            batch.add((from, FILES_AT_ONCE), data, owner);
            let layout = owner.layout;
            let is_here = batch.owners.contains_key(&data) && layout.chains > 0;
            let is_known = layout.chains <= counts[usize::from(layout.table)];
            if is_here && !is_known && lost.len() < FINDINGS_MAX {
                let count = u32::try_from(layout.chunks(owner.size)).unwrap_or(u32::MAX);
                let mut used =
                    (0..count.min(layout.stripe.into())).map(|index| layout.chain(index));
                lost.extend(used.find(|chain| !known.contains(chain)).map(|it| (owner.ino, it)));
            }
        })?;
        self.short.append(&mut clones);
        for (ino, chain) in lost {
            self.found(
                format!("inode {ino} has chunks on chain {}, which does not exist", chain.0),
                false,
            );
        }
        Ok(batch)
    }

    /// Lists all chunks, and judges those of the batch; from the beginning when a node dies meanwhile.
    fn list(&mut self, from: u64, batch: &Batch) -> anyhow::Result<()> {
        let (chunks, bytes_read) = (self.report.chunks, self.report.bytes_read);
        let mut attempt = 1;
        while let Err(error) = self.list_once(from, batch) {
            if attempt == ATTEMPTS {
                return Err(error);
            }
            self.progress.println(format!("{}: retrying", crate::exit::told(&error)));
            if Interrupt::install()?.pause(RETRY) {
                bail!("interrupted");
            }
            attempt += 1;
            self.suspects.clear();
            self.seen.clear();
            (self.report.chunks, self.report.bytes_read) = (chunks, bytes_read);
            self.chains = self.metas.client.chains(Some(PATIENCE))?;
        }
        Ok(())
    }

    fn list_once(&mut self, from: u64, batch: &Batch) -> anyhow::Result<()> {
        let mut heads: BTreeSet<NodeId> = BTreeSet::new();
        heads.extend(self.chains.chains.iter().filter_map(|chain| chain.nodes.first()));
        for node in heads {
            let mut cursor = 0;
            loop {
                let list = self.metas.client.list_chunks(
                    node,
                    ChunkFilter::default(),
                    cursor,
                    Some(PATIENCE),
                );
                let page = list.with_context(|| format!("listing the chunks of node {node}"))?;
                let is_ours = |info: &FileChunkInfo| {
                    let data = info.at.chunk.data.0;
                    data >= from && batch.end.is_none_or(|end| data < end)
                };
                let ours: Vec<FileChunkInfo> =
                    page.chunks.into_iter().filter(|info| is_ours(info)).collect();
                self.progress.inc(ours.len() as u64);
                self.report.chunks += ours.len() as u64;
                self.judge_all(&ours, batch);
                cursor = page.cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn judge_all(&mut self, chunks: &[FileChunkInfo], batch: &Batch) {
        let mut good = Vec::new();
        for info in chunks {
            let data = info.at.chunk.data.0;
            let owner = batch.owners.get(&data).copied();
            let solid = owner.map_or(0, |owner| owner.solid_of(info));
            if solid > 0 {
                *self.seen.entry(data).or_default() += u64::from(solid);
            }
            match judge(info, owner.as_ref()) {
                Some(why) => self.suspect(info, owner, why),
                None => good.push((info, owner)),
            }
        }
        if !self.args.read_data {
            return;
        }
        // Many at once, and one by one where that fails.
        while !good.is_empty() {
            let mut bytes = 0;
            let fits = good.iter().take_while(|(info, _)| {
                bytes += info.stat.len as usize;
                bytes <= READ_BYTES
            });
            let some: Vec<(&FileChunkInfo, Option<Owner>)> =
                good.drain(..fits.count().max(1)).collect();
            let places: Vec<&FileChunkInfo> = some.iter().map(|(info, _)| *info).collect();
            if self.can_be_read(&places) {
                continue;
            }
            for (info, owner) in some {
                if !self.can_be_read(&[info]) {
                    self.suspect(info, owner, Why::Unreadable);
                }
            }
        }
    }

    fn suspect(&mut self, info: &FileChunkInfo, owner: Option<Owner>, why: Why) {
        let FileChunkInfo { at, stat } = *info;
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.push(Suspect { at, stat, owner, why });
        } else {
            self.report.unjudged += 1;
        }
    }

    /// Reads chunks, of any replica of each; the bytes are checked on the way.
    fn can_be_read(&mut self, chunks: &[&FileChunkInfo]) -> bool {
        let mut bytes: Vec<Vec<u8>> =
            chunks.iter().map(|info| vec![0; info.stat.len as usize]).collect();
        let mut rooms: Vec<Room<'_>> = bytes.iter_mut().map(|room| Room::One(room)).collect();
        let part = |info: &&FileChunkInfo| {
            let PlacedChunk { chain, chunk } = info.at;
            ChunkAt { chain, chunk, offset: 0, bases: ChunkBases::NONE, solid: 0 }
        };
        let parts: Vec<ChunkAt> = chunks.iter().map(part).collect();
        let is_read = self.metas.client.read_chunks(&parts, &mut rooms, Some(PATIENCE)).is_ok();
        if is_read {
            self.report.bytes_read += bytes.iter().map(|it| it.len() as u64).sum::<u64>();
        }
        is_read
    }

    fn stats(&self, chunks: &[PlacedChunk]) -> anyhow::Result<Vec<Option<ChunkStat>>> {
        let mut stats = Vec::with_capacity(chunks.len());
        for some in chunks.chunks(LIST_KEYS_MAX) {
            stats.extend(self.metas.client.stat_chunks(some, Some(PATIENCE))?);
        }
        Ok(stats)
    }

    /// Looks again at what looked wrong, and puts it right if that is wanted.
    fn confirm(&mut self) -> anyhow::Result<()> {
        let (orphans, others): (Vec<Suspect>, Vec<Suspect>) =
            std::mem::take(&mut self.suspects).into_iter().partition(|it| it.why == Why::Orphan);
        if !orphans.is_empty() {
            self.confirm_orphans(&orphans)?;
        }
        if others.is_empty() {
            return Ok(());
        }
        if Interrupt::install()?.pause(self.args.settle()) {
            bail!("interrupted");
        }
        let places: Vec<PlacedChunk> = others.iter().map(|suspect| suspect.at).collect();
        let stats = self.stats(&places)?;
        for (suspect, stat) in others.iter().zip(stats) {
            self.confirm_other(suspect, stat)?;
        }
        Ok(())
    }

    /// Files of the batch of which fewer bytes were seen than were written.
    fn note_short(&mut self, batch: &Batch) {
        let seen = std::mem::take(&mut self.seen);
        let lacks = |(data, owner): &(&u64, &Owner)| {
            let seen = seen.get(data).copied().unwrap_or_default();
            !owner.is_shared && seen < owner.solid
        };
        self.short.extend(batch.owners.iter().filter(lacks).map(|(_, owner)| owner.ino));
    }

    /// Looks at files one by one, whether all that was written is there.
    fn look_for_missing(&mut self) -> anyhow::Result<()> {
        for ino in std::mem::take(&mut self.short) {
            let Some(attr) = self.inode(ino)? else { continue };
            let missing = self.missing(&attr)?;
            // A client that takes bytes out of chunks says so before.
            let is_same = |now: Attr| (now.chunks, now.cuts) == (attr.chunks, attr.cuts);
            if missing.is_empty() || !self.inode(ino)?.is_some_and(is_same) {
                continue;
            }
            for FileChunk { index, .. } in missing {
                let chain = attr.layout.chain(index).0;
                self.found(
                    format!(
                        "chunk {index} of inode {ino} on chain {chain} was written and is lost"
                    ),
                    false,
                );
            }
            self.note(
                "lost chunks cannot be repaired: restore the files from their source; until then \
                 reads of these ranges fail with EIO",
            );
        }
        Ok(())
    }

    /// What an inode is now, if it can be read.
    fn inode(&self, ino: Ino) -> anyhow::Result<Option<Attr>> {
        let found = self.records.at_once_now(vec![keys::inode(ino)])?.into_iter().next().flatten();
        Ok(found.and_then(|it| InodeRecord::open(&it).ok()).map(|record| record.attr))
    }

    /// Chunks of a file, with those that lie behind them, that lack bytes which were written.
    fn missing(&self, attr: &Attr) -> anyhow::Result<Vec<FileChunk>> {
        let mut chunks = Chunks::own(attr);
        if attr.is_shared {
            let key = keys::shared(attr.chunk_data());
            let found = self.records.at_once_now(vec![key])?.into_iter().next().flatten();
            let Some(Ok(record)) = found.map(|it| SharedRecord::open(&it)) else {
                // The other half of the check says so.
                return Ok(Vec::new());
            };
            chunks = Chunks::shared(attr, Arc::new(SharedName::of(&record)));
        }
        let (bytes, mut missing) = (chunks.bytes(), Vec::new());
        let size = attr.layout.chunk_bytes();
        let last = |index: u64| ((index + 1) * size).min(attr.solid) - 1;
        let lasts: Vec<u64> = (0..attr.layout.chunks(attr.solid)).map(last).collect();
        for some in lasts.chunks(LASTS_AT_ONCE) {
            // Many at once, and one by one where that fails.
            if self.lacks(bytes, some)?.is_none() {
                continue;
            }
            for last in some {
                missing.extend(self.lacks(bytes, &[*last])?);
            }
        }
        Ok(missing)
    }

    /// Reads single bytes; a chunk that lacks one of them.
    fn lacks(&self, bytes: FileBytes, offsets: &[u64]) -> anyhow::Result<Option<FileChunk>> {
        let mut read = vec![[0; 1]; offsets.len()];
        let (mut parts, mut rooms) = (Vec::new(), Vec::new());
        for (offset, byte) in offsets.iter().zip(&mut read) {
            let cut = bytes.rooms(*offset, byte, (&mut parts, &mut rooms));
            cut.map_err(|_| anyhow!("a file is longer than the maximum length"))?;
        }
        match self.metas.client.read_chunks(&parts, &mut rooms, Some(PATIENCE)) {
            Ok(_) => Ok(None),
            Err(ClientError::Missing { chunk, .. }) => Ok(Some(chunk)),
            Err(error) => Err(error.into()),
        }
    }

    fn confirm_orphans(&mut self, orphans: &[Suspect]) -> anyhow::Result<()> {
        let mut by_data: BTreeMap<u64, BTreeSet<PlacedKey>> = BTreeMap::new();
        for suspect in orphans {
            by_data.entry(suspect.at.chunk.data.0).or_default().insert(key_of(suspect.at));
        }
        let owned = &mut by_data;
        self.owners(|data, _| drop(owned.remove(&data)))?;
        for (data, places) in by_data {
            let places: Vec<PlacedChunk> =
                places.into_iter().map(|key| place_of(data, key)).collect();
            let stats = self.stats(&places)?;
            let there: Vec<(PlacedChunk, ChunkStat)> =
                places.into_iter().zip(stats).filter_map(|(at, stat)| Some((at, stat?))).collect();
            if there.is_empty() {
                continue;
            }
            let bytes: u64 = there.iter().map(|(_, stat)| u64::from(stat.len)).sum();
            let text =
                format!("{} chunks of data {data}, {bytes} bytes, belong to no file", there.len());
            let places: Vec<PlacedChunk> = there.into_iter().map(|(at, _)| at).collect();
            let is_repaired = self.args.repair && self.remove_orphans(data, &places)?;
            self.found(text, is_repaired);
        }
        Ok(())
    }

    /// Removes chunks that belong to nobody, unless their file may be one that cannot be read, or one that
    /// may come.
    fn remove_orphans(&mut self, data: u64, places: &[PlacedChunk]) -> anyhow::Result<bool> {
        if self.unreadable > 0 {
            self.note("chunks without a file are kept: they may belong to unreadable inodes");
            return Ok(false);
        }
        let counter = self.records.at_once_now(vec![keys::IDS.to_vec()])?;
        let counter = counter.into_iter().next().flatten();
        let next = counter.map_or(Ok(0), |it| CounterRecord::open(&it).map(|it| it.next))?;
        if data >= next && data - next < FAR {
            self.note("chunks of data ids that are not assigned yet are kept: check again later");
            return Ok(false);
        }
        self.cut(places, None)?;
        Ok(true)
    }

    fn note(&mut self, text: &str) {
        if !self.report.notes.iter().any(|note| note == text) {
            self.report.notes.push(text.to_owned());
        }
    }

    fn cut(&self, places: &[PlacedChunk], to: Option<u32>) -> anyhow::Result<()> {
        // What nobody names goes, also where it is sealed.
        let change = to.map_or(ChunkChange::Collect, ChunkChange::Cut);
        let cut = |at: &PlacedChunk| ChunkCut { chain: at.chain, chunk: at.chunk, change };
        let cuts: Vec<ChunkCut> = places.iter().map(cut).collect();
        for some in cuts.chunks(LIST_KEYS_MAX) {
            self.metas.client.cut_chunks(some, Some(PATIENCE))?;
        }
        Ok(())
    }

    /// A chunk of a file that looked wrong, as it is now.
    fn confirm_other(&mut self, suspect: &Suspect, now: Option<ChunkStat>) -> anyhow::Result<()> {
        let Suspect { at, stat, why, .. } = *suspect;
        let (Some(now), Some(owner)) = (now, suspect.owner) else { return Ok(()) };
        let attr = self.inode(owner.ino)?;
        let data = at.chunk.data.0;
        let is_same = attr.is_some_and(|it| it.version == owner.version && it.chunk_data() == data);
        if !is_same || now.version != stat.version {
            self.report.unjudged += u64::from(attr.is_some_and(|attr| attr.chunk_data() == data));
            return Ok(());
        }
        let (ino, index) = (owner.ino, at.chunk.index);
        let chunk = format!("chunk {index} of inode {ino} on chain {}", at.chain.0);
        match why {
            Why::Orphan => {}
            Why::Long { bytes_max } => {
                // A mount may write there at this very moment.
                let can_go = self.args.repair && self.metas.are_alone()?;
                if can_go {
                    self.cut(&[at], (bytes_max > 0).then_some(bytes_max))?;
                } else if self.args.repair {
                    self.note(
                        "chunks are cut to the length of their file only while nothing is mounted",
                    );
                }
                let text = format!("{chunk} has {} bytes, the file ends at {bytes_max}", now.len);
                self.found(text, can_go);
            }
            Why::Misplaced { chain } => {
                let right = PlacedChunk { chain, ..at };
                let can_go = self.args.repair && self.stats(&[right])?[0].is_some();
                if can_go {
                    self.cut(&[at], None)?;
                } else if self.args.repair {
                    self.note("chunks on a wrong chain are kept if the right chain has none");
                }
                self.found(format!("{chunk} belongs on chain {}", chain.0), can_go);
            }
            Why::Unreadable => {
                if !self.can_be_read(&[&FileChunkInfo { at, stat: now }]) {
                    self.found(format!("{chunk} cannot be read: {} bytes", now.len), false);
                }
            }
        }
        Ok(())
    }
}

/// What of a place sorts.
type PlacedKey = (u32, u32);

const fn key_of(at: PlacedChunk) -> PlacedKey {
    (at.chain.0, at.chunk.index)
}

const fn place_of(data: u64, (chain, index): PlacedKey) -> PlacedChunk {
    PlacedChunk { chain: ChainId(chain), chunk: FileChunk { data: DataId(data), index } }
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::ChunkVersion;

    use super::*;

    fn owner(size: u64) -> Owner {
        let layout = Layout { chunk_log2: 16, stripe: 2, seed: 0, chains: 4, table: 0 };
        Owner { ino: Ino(9), version: 1, size, solid: 0, is_shared: false, layout }
    }

    fn info(index: u32, chain: u32, len: u32) -> FileChunkInfo {
        let stat = ChunkStat { version: ChunkVersion(1), len };
        FileChunkInfo { at: place_of(7, (chain, index)), stat }
    }

    #[test]
    fn chunks_are_judged_by_place_and_length() {
        let whole = 1 << 16;
        let file = owner(whole + 10);
        assert_eq!(judge(&info(0, 1, 65_536), Some(&file)), None);
        assert_eq!(judge(&info(1, 2, 10), Some(&file)), None);
        assert_eq!(judge(&info(1, 2, 11), Some(&file)), Some(Why::Long { bytes_max: 10 }));
        assert_eq!(judge(&info(0, 1, 65_537), Some(&file)), Some(Why::Long { bytes_max: 65_536 }));
        assert_eq!(judge(&info(2, 1, 1), Some(&file)), Some(Why::Long { bytes_max: 0 }));
        let right = ChainId(1);
        assert_eq!(judge(&info(0, 2, 1), Some(&file)), Some(Why::Misplaced { chain: right }));
        assert_eq!(judge(&info(0, 1, 1), None), Some(Why::Orphan));
        let garbage = Owner { ino: Ino(0), ..file };
        assert_eq!(judge(&info(5, 3, 70_000), Some(&garbage)), None);
    }

    #[test]
    fn bytes_count_where_the_layout_puts_them_and_as_far_as_they_were_written() {
        let whole = 1 << 16;
        let file = Owner { solid: whole + 10, ..owner(whole + 500) };
        assert_eq!(file.solid_of(&info(0, 1, 65_536)), 65_536);
        assert_eq!(file.solid_of(&info(0, 1, 7)), 7, "the rest is lost");
        assert_eq!(file.solid_of(&info(1, 2, 500)), 10, "the rest may be a hole");
        assert_eq!(file.solid_of(&info(0, 2, 65_536)), 0, "nobody reads a chunk on a wrong chain");
        assert_eq!(file.solid_of(&info(2, 1, 5)), 0);
        let clone = Owner { is_shared: true, ..file };
        assert_eq!(clone.solid_of(&info(0, 1, 65_536)), 0, "clones are looked at one by one");
    }

    #[test]
    fn batches_take_the_smallest_that_are_left() {
        let ids = [5, 90, 1, 40, 7, 60, 2];
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let mut batch = Batch { owners: BTreeMap::new(), end: None };
            for id in ids {
                batch.add((from, 3), id, owner(0));
            }
            assert!(batch.owners.len() <= 3);
            seen.extend(batch.owners.keys().copied());
            match batch.end {
                Some(end) => from = end,
                None => break,
            }
        }
        assert_eq!(seen, [1, 2, 5, 7, 40, 60, 90]);
    }
}
