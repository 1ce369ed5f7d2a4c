//! The state of a key in a backed bucket.

use super::super::super::request::flag;
use super::super::super::{Ino, Timestamp};
use super::{LANE_SWEEP, Mode, read_text, write_option, write_text};
use crate::wire::{Reader, Record, WireError, Writer};

/// Longest text of a failure that a state keeps, in bytes; the rest is cut off.
pub const ERROR_BYTES_MAX: usize = 200;
/// Longest `ETag` of a backend in bytes.
pub const ETAG_BYTES_MAX: usize = 200;

/// What the backend is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The content of a file.
    File {
        /// Which inode.
        ino: Ino,
        /// Its length in bytes.
        size: u64,
        /// When it changed last. Not the time of its content, which anybody can set to what it was.
        ctime: Timestamp,
    },
    /// Nothing: the object was removed.
    Nothing,
    /// What it has is right: the file was evicted.
    Forgotten,
}

impl Wanted {
    /// Whether it is the content of this file.
    #[must_use]
    pub fn is_of(&self, file: Ino) -> bool {
        matches!(self, Self::File { ino, .. } if *ino == file)
    }
}

/// What the backend has, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its `ETag` there, at most [`ETAG_BYTES_MAX`] bytes.
    pub etag: String,
    /// The change that it is of.
    pub seq: u64,
}

/// A place in the queue of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// 0 to 2.
    pub lane: u8,
    /// From when on it may be taken: milliseconds since 1970.
    pub due_ms: u64,
    /// Tells those of one moment apart.
    pub n: u64,
}

/// An attempt that is under way, or of which nobody knows what became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Under {
    /// The change that it was made for.
    pub seq: u64,
    /// What the backend keeps with the object.
    pub put_id: u64,
    /// When it began.
    pub since: Timestamp,
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Names the last acknowledged change; never used again.
    pub seq: u64,
    /// What the backend is to have.
    pub wanted: Wanted,
    /// What it has, as far as is known.
    pub has: Option<Remote>,
    /// Where the key lies in the queue. None of a file that the backend has; in [`LANE_SWEEP`] when the state is to be
    /// forgotten.
    pub place: Option<Place>,
    /// The attempt that is under way, or was of unknown outcome.
    pub under: Option<Under>,
    /// When it became dirty, which overwrites keep; of a clean one when that was done.
    pub since: Timestamp,
    /// The rule that held for the last change.
    pub mode: Mode,
    /// Attempts in turn that were not done.
    pub attempts: u32,
    /// What became of the last of them, cut at [`ERROR_BYTES_MAX`] bytes; empty when there is none.
    pub error: String,
}

impl KeyState {
    /// The backend has what is wanted, and nothing is under way.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        match self.place {
            None => true,
            Some(place) => place.lane == LANE_SWEEP,
        }
    }

    /// It waits in the queue.
    #[must_use]
    pub const fn is_dirty(&self) -> bool {
        !self.is_clean()
    }

    /// The key was removed here: whatever the backend has of it is to go, or has gone.
    #[must_use]
    pub const fn is_tombstone(&self) -> bool {
        matches!(self.wanted, Wanted::Nothing)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.seq);
        self.wanted.encode(w);
        write_option(w, self.has.as_ref(), |w, it| it.encode(w));
        write_option(w, self.place.as_ref(), |w, it| it.encode(w));
        write_option(w, self.under.as_ref(), |w, it| it.encode(w));
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
            _ => return Err(WireError::Field("what a backend is to have")),
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
