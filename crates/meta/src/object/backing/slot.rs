//! The state of a key, and its entry in the queue.

use millpond_types::meta::object::{
    KeyState, LANE_LARGE, LANE_SMALL, Place, QueueRecord, SMALL_MAX, Wanted,
};
use millpond_types::meta::{Attr, Ino, keys};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::view::View;

/// A key of a backed bucket, with the state that was read.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    bucket: Ino,
    key: &'a [u8],
    pub(super) was: Option<KeyState>,
}

impl<'a> Slot<'a> {
    /// Reads a state; it does not change until the commit.
    pub(super) async fn read(view: &View, bucket: Ino, key: &'a [u8]) -> Result<Self, Failed> {
        let was = view.read(&keys::state(bucket, key)).await?;
        Ok(Self { bucket, key, was })
    }

    fn place(&self) -> Option<Place> {
        self.was.as_ref()?.place
    }

    /// Writes the state, and moves the queue entry of the key to the place in the state.
    pub(super) fn put(&self, view: &View, state: &KeyState) -> Result<(), Failed> {
        if let Some(before) = self.place().filter(|before| state.place != Some(*before)) {
            view.txn.delete(&keys::queued(self.bucket, before))?;
        }
        if let Some(place) = state.place {
            let entry = entry(self.key, state);
            view.txn.put(&keys::queued(self.bucket, place), entry.seal())?;
        }
        Ok(view.txn.put(&keys::state(self.bucket, self.key), state.seal())?)
    }

    /// Deletes the state and its queue entry.
    pub(super) fn forget(&self, view: &View) -> Result<(), Failed> {
        if let Some(before) = self.place() {
            view.txn.delete(&keys::queued(self.bucket, before))?;
        }
        Ok(view.txn.delete(&keys::state(self.bucket, self.key))?)
    }
}

/// Builds the queue entry of a key.
pub(super) fn entry(key: &[u8], state: &KeyState) -> QueueRecord {
    let bytes = match state.wanted {
        Wanted::File { size, .. } => size,
        Wanted::Nothing | Wanted::Forgotten => 0,
    };
    QueueRecord { key: key.to_vec(), bytes, since: state.since, file: Ino(0) }
}

/// The lane of a key.
pub(super) const fn lane_of(wanted: Wanted) -> u8 {
    match wanted {
        Wanted::File { size, .. } if size > SMALL_MAX => LANE_LARGE,
        _ => LANE_SMALL,
    }
}

/// The desired state of the backend for a file.
pub(super) const fn file(attr: &Attr) -> Wanted {
    Wanted::File { ino: attr.ino, size: attr.size, ctime: attr.ctime }
}
