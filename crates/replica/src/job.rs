//! Operations of a replica on its store, and their outcomes.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use millpond_chain::{StoreAnswer, StoreError, StoreOp, Token};
use millpond_types::ChunkId;
use millpond_types::cluster::ChunkVersion;

use super::blob::Blob;
use super::store::{Flipped, Held};

/// Changes of one chunk; the first one runs.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) jobs: VecDeque<(u64, Job)>,
}

/// An operation on the store.
pub(super) enum Job {
    Store(Token, u64, StoreOp<Blob>),
    Commit(ChunkId, ChunkVersion),
    Remove(ChunkId),
    Unstage(ChunkId),
    /// Stands for the running change of its queue.
    Running {
        flips: bool,
        puts: bool,
    },
}

impl Job {
    pub(super) const fn chunk(&self) -> Option<ChunkId> {
        match self {
            Self::Store(_, _, op) => match op {
                StoreOp::Lookup(chunk)
                | StoreOp::Label(chunk)
                | StoreOp::StageLost(chunk, ..)
                | StoreOp::Restore(chunk, ..) => Some(*chunk),
                StoreOp::Stage(request) | StoreOp::Put(request) => Some(request.chunk),
                StoreOp::Read(read) => Some(read.chunk),
                _ => None,
            },
            Self::Commit(chunk, _) | Self::Remove(chunk) | Self::Unstage(chunk) => Some(*chunk),
            Self::Running { .. } => None,
        }
    }

    pub(super) const fn reads(&self) -> bool {
        let Self::Store(_, _, op) = self else { return false };
        matches!(op, StoreOp::Lookup(_) | StoreOp::Label(_) | StoreOp::Read(_))
    }

    /// Whether it changes the result of later reads and lookups.
    pub(super) const fn flips(&self) -> bool {
        matches!(
            self,
            Self::Commit(..)
                | Self::Remove(_)
                | Self::Unstage(_)
                | Self::Running { flips: true, .. }
        )
    }

    /// Whether it commits a version in one step, which needs not be visible before it is done.
    pub(super) const fn puts(&self) -> bool {
        matches!(self, Self::Store(_, _, StoreOp::Put(_)) | Self::Running { puts: true, .. })
    }
}

/// Outcome of a job.
pub(super) enum Ended {
    Answered(Token, u64, Result<StoreAnswer<Blob>, StoreError>),
    Staged(Token, u64, ChunkId, Result<StoreAnswer<Blob>, StoreError>),
    Put(Token, u64, ChunkId, Result<(StoreAnswer<Blob>, Flipped), StoreError>),
    Committed(ChunkId, Result<Option<Flipped>, StoreError>),
    /// Good bytes were put in place, or not; the flag is whether the store has none now.
    Restored(Token, u64, (ChunkId, bool), Result<StoreAnswer<Blob>, StoreError>),
    Removed(ChunkId, Held, Result<(), StoreError>),
    Unstaged(ChunkId, Result<(), StoreError>),
}

/// A running operation.
pub(super) type Work = Pin<Box<dyn Future<Output = Ended>>>;
