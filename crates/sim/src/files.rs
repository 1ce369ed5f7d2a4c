//! Chunks of cloned files: the use of seals and copies by heads and mounts.
//!
//! On every chain files follow one another. File `n` is written until a client seals it; then there
//! is file `n + 1`, which mostly reads through it. A write to a chunk that only a base has copies
//! it first, as a `Put` of the base's bytes. No client is notified of a seal: writers of a sealed
//! file learn of it from the chain, however late they come. Every update of a chunk names the
//! file's seal.

use std::collections::BTreeMap;

use millpond_chain::Op;
use millpond_types::ChunkId;
use millpond_types::cluster::ChainId;

use crate::bytes::Bytes;
use crate::check::{Action, Heard, Operation, Verdict, check};
use crate::client::Task;
use crate::message::Time;
use crate::rng::Rng;
use crate::run::describe;
use crate::world::World;

/// Divisor and remainder of the seeds with files; other seeds run as before files were added.
const SEEDS: (u64, u64) = (9, 6);
/// Files of a chain, one after the other.
const FILES_MAX: usize = 20;
/// Number of consecutive files that read through earlier ones; the next one starts empty.
const FAMILY: usize = 5;
/// Chunks of a file.
const CHUNKS: u128 = 3;
/// Number of the last chunk of a file: its seal.
const SEAL: u128 = 0xffff_ffff;

/// Whether this seed has files.
pub(crate) const fn wanted(seed: u64) -> bool {
    seed % SEEDS.0 == SEEDS.1
}

const fn chunk(file: usize, index: u128) -> ChunkId {
    ChunkId((file as u128 + 1) << 64 | index)
}

/// Whether a file has no base.
const fn is_root(file: usize) -> bool {
    file.is_multiple_of(FAMILY)
}

/// The seal that updates of a chunk name; `None` for chunks outside of files, and for seals.
pub(crate) const fn seal_of(of: ChunkId) -> Option<ChunkId> {
    let is = of.0 >> 64 != 0 && of.0 & SEAL != SEAL;
    if is { Some(ChunkId(of.0 | SEAL)) } else { None }
}

/// The operation that seals a file.
pub(crate) fn seal() -> Op<Bytes> {
    Op::Seal(Bytes::new(&[]))
}

/// A write that copies its chunk first.
#[derive(Clone, Debug)]
pub(crate) struct Copying {
    /// The file whose chunk is being read; `None` once the copy is being written.
    from: Option<usize>,
    then: Task,
}

/// The files of all chains.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Time when the seal of each file was known to exist; the last file has none.
    sealed: BTreeMap<ChainId, Vec<Time>>,
}

impl Files {
    fn last(&self, chain: ChainId) -> usize {
        self.sealed.get(&chain).map_or(0, Vec::len)
    }
}

impl World {
    /// A random task on a file of a chain.
    pub(crate) fn file_task(&mut self, client: usize, chain: ChainId, bytes: Vec<u8>) -> Task {
        let last = self.files.last(chain);
        // Most work is on the newest file; some clients lag behind.
        let back = if self.rng.permille(250) { self.rng.index(last + 1) } else { 0 };
        let file = last - back;
        let at = chunk(file, self.rng.index(CHUNKS as usize) as u128);
        let small = |rng: &mut Rng| u32::try_from(rng.below(12)).unwrap_or(0);
        let action = match self.rng.below(100) {
            0..5 => Action::Read(small(&mut self.rng), small(&mut self.rng)),
            5..40 => Action::Write(small(&mut self.rng), bytes),
            40..48 => Action::Truncate(small(&mut self.rng)),
            48..52 if is_root(file) => Action::Remove,
            52..60 if last + 1 < FILES_MAX => {
                return (chain, chunk(last, SEAL), Action::Seal, None);
            }
            _ => Action::Read(0, u32::MAX),
        };
        let task = (chain, at, action, None);
        if is_root(file) || matches!(task.2, Action::Read(..)) {
            return task;
        }
        self.copy_from(client, file - 1, task)
    }

    /// The read of a base before a write.
    fn copy_from(&mut self, client: usize, file: usize, then: Task) -> Task {
        let read = (then.0, chunk(file, then.1.0 & SEAL), Action::Read(0, u32::MAX), None);
        self.clients[client].copying = Some(Copying { from: Some(file), then });
        read
    }

    /// Continues a write that copies first, after one of its tasks ended.
    pub(crate) fn file_task_ended(&mut self, client: usize, task: &Task, heard: &Heard) {
        let (chain, at, action, _) = task;
        if *action == Action::Seal && matches!(heard, Heard::Done(_) | Heard::Exists) {
            let sealed = self.files.sealed.entry(*chain).or_default();
            if *at == chunk(sealed.len(), SEAL) {
                sealed.push(self.now);
            }
            return;
        }
        let Some(Copying { from, then }) = self.clients[client].copying.take() else { return };
        let next = match (from, heard) {
            (None, Heard::Done(_) | Heard::Exists) => then,
            (Some(file), Heard::NotFound) if is_root(file) => then,
            (Some(file), Heard::NotFound) => self.copy_from(client, file - 1, then),
            (Some(_), Heard::Data(bytes, _)) => {
                let copy = (then.0, then.1, Action::Put(bytes.clone()), None);
                self.clients[client].copying = Some(Copying { from: None, then });
                copy
            }
            // A client that does not know whether there is a copy must not write.
            _ => return,
        };
        self.clients[client].script.push_front(next);
    }

    /// Chunks of files of a chain that the last round reads, and the file that it writes.
    pub(crate) fn files_to_look_at(&self, chain: ChainId) -> Vec<ChunkId> {
        if !self.has_files {
            return Vec::new();
        }
        let files = 0..=self.files.last(chain);
        files.flat_map(|file| (0..CHUNKS).map(move |index| chunk(file, index))).collect()
    }

    /// Checks that sealed files stayed unchanged, and that files over them began with their
    /// content.
    pub(crate) fn judge_files(&self) -> Option<(Time, String)> {
        let chains = self.files.sealed.iter();
        // A chain that lost its memory guarantees nothing that was only there, seals of files
        // included.
        let chains = chains.filter(|(chain, _)| !self.forgot.contains_key(chain));
        for (chain, sealed) in chains {
            for index in 0..CHUNKS {
                let mut base = None;
                for file in 0..=sealed.len() {
                    if is_root(file) {
                        base = None;
                    }
                    let none = Vec::new();
                    let history = self.history.get(&(*chain, chunk(file, index))).unwrap_or(&none);
                    let name = || format!("{chain:?}, chunk {index} of file {file}");
                    let seen = base
                        .as_ref()
                        .map(|base: &Option<Vec<u8>>| through(history, base.as_deref()));
                    if let Some(seen) = seen
                        && check(&seen) == Verdict::Violation
                    {
                        let (end, text) = describe(&seen);
                        return Some((end, format!("{} is not its base: {text}", name())));
                    }
                    let Some(since) = sealed.get(file) else { continue };
                    let found = match since_sealed(history, *since) {
                        Ok(found) => found,
                        Err((at, why)) => return Some((at, format!("{}: {why}", name()))),
                    };
                    // Without a read its final content is unknown.
                    base = match found {
                        Some(None) if !is_root(file) => base,
                        found => found,
                    };
                }
            }
        }
        None
    }
}

/// Content of a chunk in reads after its file was sealed, `None` if no read returned all of it. It
/// must be always the same, and no later update may be done.
#[expect(clippy::option_option, reason = "nobody knows, or there is none, or it has bytes")]
fn since_sealed(
    history: &[Operation],
    since: Time,
) -> Result<Option<Option<Vec<u8>>>, (Time, String)> {
    let mut found: Option<Option<Vec<u8>>> = None;
    for operation in history.iter().filter(|operation| operation.call > since) {
        let at = operation.ret.unwrap_or(operation.call);
        let now = match (&operation.action, &operation.heard) {
            (Action::Read(0, u32::MAX), Heard::Data(bytes, _)) => Some(bytes.clone()),
            (Action::Read(..), Heard::NotFound) => None,
            (Action::Read(..), _) => continue,
            (_, Heard::Done(_)) => {
                return Err((at, format!("sealed at {since}, and changed: {operation:?}")));
            }
            _ => continue,
        };
        match &found {
            Some(before) if *before != now => {
                return Err((at, format!("sealed at {since}, {before:?} and then {now:?}")));
            }
            _ => found = Some(now),
        }
    }
    Ok(found)
}

/// The history of a chunk as a reader through it sees it: it begins as its base, copies have no
/// effect, and an absent chunk reads as the base.
fn through(history: &[Operation], base: Option<&[u8]>) -> Vec<Operation> {
    let Some(base) = base else { return history.to_vec() };
    let first = Operation {
        client: usize::MAX,
        call: 0,
        ret: Some(0),
        action: Action::Replace(base.to_vec()),
        heard: Heard::Done(Some((
            u32::try_from(base.len()).unwrap_or(u32::MAX),
            millpond_types::Crc32c::of(base),
        ))),
    };
    let seen = history.iter().filter(|o| !matches!(o.action, Action::Put(_))).cloned();
    let seen = seen.map(|mut operation| {
        if let (Action::Read(offset, len), Heard::NotFound) = (&operation.action, &operation.heard)
        {
            let from = (*offset as usize).min(base.len());
            let to = from.saturating_add(*len as usize).min(base.len());
            let whole = u32::try_from(base.len()).unwrap_or(u32::MAX);
            operation.heard = Heard::Data(base[from..to].to_vec(), whole);
        }
        operation
    });
    std::iter::once(first).chain(seen).collect()
}
