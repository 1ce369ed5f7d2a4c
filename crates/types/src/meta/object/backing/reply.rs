//! Answers of a meta about a backed bucket.

use super::super::super::request::flag;
use super::super::super::{DIR_PAGE_MAX, Timestamp};
use super::super::record::key;
use super::super::reply::{Object, object};
use super::{CLAIMS_MAX, KeyState, Place, write_option};
use crate::wire::{Reader, WireError, Writer};

/// A claimed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The key.
    pub key: Vec<u8>,
    /// Its state, which includes the attempt.
    pub state: KeyState,
    /// The object, without its bytes, if it is to be written to the backend.
    pub object: Option<Object>,
    /// The attempt begins now. If false, the outcome of an earlier attempt is unknown: the gateway
    /// must ask the backend before anything else.
    pub is_fresh: bool,
}

/// An entry of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The key.
    pub key: Vec<u8>,
    /// Bytes to persist; 0 for a tombstone.
    pub bytes: u64,
    /// Time since which the key is dirty.
    pub since: Timestamp,
    /// Its place in the queue.
    pub place: Place,
}

/// A page of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePage {
    /// Entries in the order of their places.
    pub entries: Vec<Queued>,
    /// Whether this is the last page.
    pub end: bool,
    /// The meta's time in milliseconds since 1970: entries due up to then may be claimed.
    pub now_ms: u64,
}

/// A page of states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePage {
    /// Keys and states, in the order of keys.
    pub states: Vec<(Vec<u8>, KeyState)>,
    /// Whether this is the last page.
    pub end: bool,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub enum BackingReply {
    /// The claimed keys.
    Claims(Vec<Claimed>),
    /// A page of a queue.
    Queue(QueuePage),
    /// A page of states.
    States(StatePage),
    /// The state of a key as it is now.
    Settled(KeyState),
    /// The state of a key, if it has one.
    State(Option<KeyState>),
    /// Whether the operation changed anything.
    Is(bool),
}

pub(in super::super) fn state(r: &mut Reader<'_>) -> Result<Option<KeyState>, WireError> {
    flag(r, "with a state")?.then(|| KeyState::decode(r)).transpose()
}

pub(in super::super) fn write_state(w: &mut Writer, state: Option<&KeyState>) {
    write_option(w, state, |w, state| state.encode(w));
}

impl Claimed {
    fn encode(&self, w: &mut Writer) {
        w.bytes16(&self.key);
        self.state.encode(w);
        write_option(w, self.object.as_ref(), |w, object| object.encode(w));
        w.u8(u8::from(self.is_fresh));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (key, state, object) = (key(r)?, KeyState::decode(r)?, object(r)?);
        Ok(Self { key, state, object, is_fresh: flag(r, "a fresh attempt")? })
    }
}

impl Queued {
    fn encode(&self, w: &mut Writer) {
        w.bytes16(&self.key);
        w.u64(self.bytes);
        self.since.encode(w);
        self.place.encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (key, bytes) = (key(r)?, r.u64()?);
        Ok(Self { key, bytes, since: Timestamp::decode(r)?, place: Place::decode(r)? })
    }
}

impl BackingReply {
    pub(in super::super) fn encode(&self, w: &mut Writer) {
        match self {
            Self::Claims(claims) => {
                w.u8(0);
                w.count(claims.len());
                for claimed in claims {
                    claimed.encode(w);
                }
            }
            Self::Queue(page) => {
                w.u8(1);
                w.count(page.entries.len());
                for entry in &page.entries {
                    entry.encode(w);
                }
                w.u8(u8::from(page.end));
                w.u64(page.now_ms);
            }
            Self::States(page) => {
                w.u8(2);
                w.count(page.states.len());
                for (key, state) in &page.states {
                    w.bytes16(key);
                    state.encode(w);
                }
                w.u8(u8::from(page.end));
            }
            Self::Settled(state) => {
                w.u8(3);
                state.encode(w);
            }
            Self::State(state) => {
                w.u8(4);
                write_state(w, state.as_ref());
            }
            Self::Is(done) => {
                w.u8(5);
                w.u8(u8::from(*done));
            }
        }
    }

    pub(in super::super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => {
                let n = r.count(CLAIMS_MAX as usize, 48, "claimed keys")?;
                Self::Claims((0..n).map(|_| Claimed::decode(r)).collect::<Result<_, _>>()?)
            }
            1 => {
                let n = r.count(DIR_PAGE_MAX, 39, "entries of a queue")?;
                let entries = (0..n).map(|_| Queued::decode(r)).collect::<Result<_, _>>()?;
                let end = flag(r, "end of a queue")?;
                Self::Queue(QueuePage { entries, end, now_ms: r.u64()? })
            }
            2 => {
                let n = r.count(DIR_PAGE_MAX, 32, "states of keys")?;
                let one = |r: &mut Reader<'_>| Ok((key(r)?, KeyState::decode(r)?));
                let states = (0..n).map(|_| one(r)).collect::<Result<_, WireError>>()?;
                Self::States(StatePage { states, end: flag(r, "end of the states")? })
            }
            3 => Self::Settled(KeyState::decode(r)?),
            4 => Self::State(state(r)?),
            5 => Self::Is(flag(r, "was done")?),
            _ => return Err(WireError::Field("kind of an answer for a backed bucket")),
        })
    }
}
