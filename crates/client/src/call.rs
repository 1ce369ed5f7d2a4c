//! Contents of one call: borrowed memory of the caller, and room for the outcome.

use std::borrow::Cow;

use crate::lent::LentBytes;
use millpond_types::wire::{
    ChunkReadRequest, ChunkStat, ChunkWriteRequest, GetRequest, ItemStatus, PutRequest, Verb,
};

/// Writable memory for one value: one piece or several, filled in order.
#[derive(Debug)]
pub enum Room<'a> {
    /// One piece.
    One(&'a mut [u8]),
    /// Several pieces.
    Many(Vec<&'a mut [u8]>),
}

impl Room<'_> {
    /// Bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::One(piece) => piece.len(),
            Self::Many(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    /// Whether there is no room at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills all bytes after the first `len` with zeros.
    pub fn zero_after(&mut self, len: usize) {
        let mut skip = len;
        let mut zero = |piece: &mut [u8]| {
            let here = piece.len().min(skip);
            piece[here..].fill(0);
            skip -= here;
        };
        match self {
            Self::One(piece) => zero(piece),
            Self::Many(pieces) => pieces.iter_mut().for_each(|piece| zero(piece)),
        }
    }

    /// Calls `each` with the pieces that the first `len` bytes fill, in order.
    ///
    /// # Errors
    /// The first error of `each`.
    ///
    /// # Panics
    /// When `len` is over the length of a room in one piece.
    pub fn fill<E>(
        &mut self,
        len: usize,
        mut each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::One(piece) => each(&mut piece[..len]),
            Self::Many(pieces) => {
                let mut left = len;
                for piece in pieces {
                    let here = piece.len().min(left);
                    each(&mut piece[..here])?;
                    left -= here;
                }
                Ok(())
            }
        }
    }
}

/// Readable memory of one value: one piece or several, in order.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// One piece.
    One(&'a [u8]),
    /// Several pieces.
    Many(Vec<&'a [u8]>),
}

impl<'a> Value<'a> {
    /// Bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }

    /// Whether the value is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[&'a [u8]] {
        match self {
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Many(pieces) => pieces,
        }
    }
}

/// Outcome of one key of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// The value was read; contains its length in bytes.
    Read(u32),
    /// There is no such value, or it failed a check; damaged bytes are never returned.
    Miss,
    /// The value is longer than its room; contains its length in bytes.
    TooLong(u32),
    /// The server could not read it in time or was too busy.
    Late,
}

/// The keys of the call that a request carries.
#[derive(Debug)]
pub(crate) enum Items {
    /// A run of keys from this index on.
    From(usize),
    /// The keys with these indexes, in the request's order.
    Each(Vec<usize>),
}

impl Items {
    /// The index in the call of the request's key `index`.
    pub(crate) fn at(&self, index: usize) -> usize {
        match self {
            Self::From(start) => start + index,
            Self::Each(each) => each[index],
        }
    }
}

/// One request and its answer.
pub(crate) enum Job<'j, 'a> {
    /// Neither request nor reply has a payload.
    Plain { verb: Verb, meta: Vec<u8>, reply: Vec<u8> },
    /// Values are read into the rooms of [`Reads`].
    Get { request: GetRequest, items: Items },
    /// Values are sent from the caller's memory.
    Put { request: PutRequest, values: Cow<'j, [Value<'a>]>, reply: Vec<ItemStatus> },
    /// Parts of files are read into the rooms of [`Reads`], or lent in place.
    Read { request: ChunkReadRequest, items: Items, lends: bool },
    /// Parts of files are sent from the caller's memory.
    Write { request: ChunkWriteRequest, values: Vec<Value<'a>>, reply: Vec<ItemStatus> },
}

/// The caller's memory for a get, and the outcome of each key. The holder of this writes to it, so
/// of two connections with the same request only the one being read from can.
pub(crate) struct Reads<'r, 'a> {
    pub(crate) rooms: &'r mut [Room<'a>],
    pub(crate) out: &'r mut [GetOutcome],
    /// Keys that the server answered with [`ItemStatus::Moved`].
    pub(crate) moved: Vec<usize>,
    /// States of file chunks, for a call that asks for them.
    pub(crate) stats: &'r mut [Option<ChunkStat>],
    /// Places for values that may be lent in place, for a call that asks for it. The room of a lent
    /// value stays unchanged.
    pub(crate) lent: &'r mut [Option<LentBytes>],
}

impl Reads<'_, '_> {
    /// Empty memory for calls that read nothing.
    pub(crate) const fn none() -> Self {
        Self { rooms: &mut [], out: &mut [], moved: Vec::new(), stats: &mut [], lent: &mut [] }
    }
}

impl Job<'_, '_> {
    pub(crate) const fn verb(&self) -> Verb {
        match self {
            Self::Plain { verb, .. } => *verb,
            Self::Get { .. } => Verb::Get,
            Self::Put { .. } => Verb::Put,
            Self::Read { .. } => Verb::ChunkRead,
            Self::Write { .. } => Verb::ChunkWrite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_zeroed_behind_what_was_read() {
        for filled in 0..=6 {
            let (mut one, mut first, mut second) = ([7; 6], [7; 2], [7; 4]);
            Room::One(&mut one).zero_after(filled);
            Room::Many(vec![&mut first, &mut [], &mut second]).zero_after(filled);
            let wanted: Vec<u8> = (0..6).map(|at| if at < filled { 7 } else { 0 }).collect();
            assert_eq!(one[..], wanted);
            assert_eq!([&first[..], &second[..]].concat(), wanted);
        }
    }
}
