//! The state of a key in a backed bucket.

use super::super::super::request::flag;
use super::super::super::{Ino, Timestamp};
use super::{LANE_SWEEP, Mode, read_text, write_option, write_text};
use crate::wire::{Reader, Record, WireError, Writer};

/// Longest error text in a state, in bytes; the rest is cut off.
pub const ERROR_BYTES_MAX: usize = 200;
/// Longest `ETag` of a backend in bytes.
pub const ETAG_BYTES_MAX: usize = 200;

/// The object that the backend should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The content of a file.
    File {
        /// The inode.
        ino: Ino,
        /// Its length in bytes.
        size: u64,
        /// Time of its last change. This is not the mtime, which any user can set back.
        ctime: Timestamp,
    },
    /// Nothing: the object was removed.
    Nothing,
    /// The object that it has is right: the file was evicted here.
    Forgotten,
}

impl Wanted {
    /// Whether it is the content of this file.
    #[must_use]
    pub fn is_of(&self, file: Ino) -> bool {
        matches!(self, Self::File { ino, .. } if *ino == file)
    }
}

/// The object that the backend has, as far as known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its `ETag` on the backend, at most [`ETAG_BYTES_MAX`] bytes.
    pub etag: String,
    /// Sequence number of the change that wrote it.
    pub seq: u64,
}

/// A place in the queue of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The lane, 0 to 2.
    pub lane: u8,
    /// Due time: the key may be claimed from then on, in milliseconds since 1970.
    pub due_ms: u64,
    /// Distinguishes places with the same due time.
    pub n: u64,
}

/// An attempt in progress, or one with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Under {
    /// Sequence number of the change that it persists.
    pub seq: u64,
    /// Put id, which the backend keeps with the object.
    pub put_id: u64,
    /// Start time of the attempt.
    pub since: Timestamp,
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Number of the last acknowledged change; never used again.
    pub seq: u64,
    /// The object that the backend should have.
    pub wanted: Wanted,
    /// The object that it has, as far as known.
    pub has: Option<Remote>,
    /// The key's place in the queue. None if the backend has the file; in [`LANE_SWEEP`] if the
    /// state is to be forgotten.
    pub place: Option<Place>,
    /// The attempt in progress, or one with an unknown outcome.
    pub under: Option<Under>,
    /// Time when the key became dirty, which overwrites keep; for a clean key, time when it became
    /// clean.
    pub since: Timestamp,
    /// Mode of the rule that applied to the last change.
    pub mode: Mode,
    /// Number of failed attempts in a row.
    pub attempts: u32,
    /// Error of the last of them, cut at [`ERROR_BYTES_MAX`] bytes; empty when there is none.
    pub error: String,
}

impl KeyState {
    /// Whether the backend has the wanted object, and no attempt is in progress.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        match self.place {
            None => true,
            Some(place) => place.lane == LANE_SWEEP,
        }
    }

    /// Whether the key waits in the queue.
    #[must_use]
    pub const fn is_dirty(&self) -> bool {
        !self.is_clean()
    }

    /// Whether the key was removed here: the backend's object must be removed, or is already gone.
    #[must_use]
    pub const fn is_tombstone(&self) -> bool {
        matches!(self.wanted, Wanted::Nothing)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.seq);
        self.wanted.encode(w);
        write_option(w, self.has.as_ref(), |w, remote| remote.encode(w));
        write_option(w, self.place.as_ref(), |w, place| place.encode(w));
        write_option(w, self.under.as_ref(), |w, attempt| attempt.encode(w));
        self.since.encode(w);
        w.u8(self.mode.code());
        w.u32(self.attempts);
        write_text(w, &self.error, ERROR_BYTES_MAX);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (seq, wanted) = (r.u64()?, Wanted::decode(r)?);
        let has = flag(r, "known at the backend")?.then(|| Remote::decode(r)).transpose()?;
        let place = flag(r, "in the queue")?.then(|| Place::decode(r)).transpose()?;
        let under = flag(r, "an attempt")?.then(|| Under::decode(r)).transpose()?;
        let (since, mode, attempts) = (Timestamp::decode(r)?, Mode::decode(r)?, r.u32()?);
        let error = read_text(r, ERROR_BYTES_MAX, "error of an attempt")?;
        Ok(Self { seq, wanted, has, place, under, since, mode, attempts, error })
    }
}

impl Wanted {
    fn encode(self, w: &mut Writer) {
        match self {
            Self::File { ino, size, ctime } => {
                w.u8(0);
                w.u64(ino.0);
                w.u64(size);
                ctime.encode(w);
            }
            Self::Nothing => w.u8(1),
            Self::Forgotten => w.u8(2),
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => {
                let (ino, size) = (Ino(r.u64()?), r.u64()?);
                Self::File { ino, size, ctime: Timestamp::decode(r)? }
            }
            1 => Self::Nothing,
            2 => Self::Forgotten,
            _ => return Err(WireError::Field("wanted state at a backend")),
        })
    }
}

impl Remote {
    fn encode(&self, w: &mut Writer) {
        write_text(w, &self.etag, ETAG_BYTES_MAX);
        w.u64(self.seq);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { etag: read_text(r, ETAG_BYTES_MAX, "ETag")?, seq: r.u64()? })
    }
}

impl Place {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u8(self.lane);
        w.u64(self.due_ms);
        w.u64(self.n);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { lane: lane(r)?, due_ms: r.u64()?, n: r.u64()? })
    }
}

pub(super) fn lane(r: &mut Reader<'_>) -> Result<u8, WireError> {
    let lane = r.u8()?;
    if lane > LANE_SWEEP { Err(WireError::Field("lane of a queue (0 to 2)")) } else { Ok(lane) }
}

impl Under {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.seq);
        w.u64(self.put_id);
        self.since.encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { seq: r.u64()?, put_id: r.u64()?, since: Timestamp::decode(r)? })
    }
}

impl Record for KeyState {
    const KIND: u8 = 58;

    fn write_body(&self, w: &mut Writer) {
        self.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::decode(r)
    }
}
