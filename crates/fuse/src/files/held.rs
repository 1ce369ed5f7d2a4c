//! Written bytes of small files that no meta has yet.
//!
//! They are in the journal before the write is answered, so that they outlive this process. They
//! are sent in one operation. Its number is in the journal before it is sent: the next process
//! sends the same again, and a meta executes it once. From then on no bytes are added to them.

use millpond_types::meta::{Attr, Ino, Timestamp};

use super::{File, Files, State, Table, Written, overlaid};
use crate::journal::Entry;

/// The largest number of held bytes of all files: with them the journal's state stays below half of
/// its size.
const HELD_MAX: usize = 2 << 20;

/// Written bytes for a file in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The file's data id when they were written.
    pub(crate) data: u64,
    /// The time of the last write.
    pub(crate) at: Timestamp,
    /// Their place in the file.
    pub(crate) offset: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Held {
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + self.bytes.len() as u64
    }

    /// Whether the bytes of both form one range.
    fn touches(&self, other: &Self) -> bool {
        let touches =
            u64::from(other.offset) <= self.end() && u64::from(self.offset) <= other.end();
        self.data == other.data && touches
    }

    /// Overwrites these bytes with later ones.
    fn join(&mut self, other: &Self) {
        let start = self.offset.min(other.offset);
        let end = self.end().max(other.end()) - u64::from(start);
        let mut all = vec![0; usize::try_from(end).unwrap_or(0)];
        for held in [&*self, other] {
            let at = (held.offset - start) as usize;
            all[at..at + held.bytes.len()].copy_from_slice(&held.bytes);
        }
        (self.offset, self.at, self.bytes) = (start, other.at, all);
    }
}

/// The outcome of holding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// They are held.
    Held,
    /// The bytes held so far must be sent first, or there are too many.
    Full,
    /// The file is not open.
    Closed,
}

/// Bytes to be sent, or without an answer yet.
#[derive(Debug)]
pub(super) struct Waiting {
    held: Held,
    /// Sequence and hour of the operation that sends them.
    sent_as: Option<(u64, u32)>,
    /// Whether a meta has rejected them permanently.
    refused: bool,
}

impl Waiting {
    /// The part that the file's attributes show.
    pub(super) fn shown(&self) -> Written {
        Written { end: self.held.end(), at: self.held.at, data: self.held.data }
    }

    /// The journal entries for these bytes.
    pub(super) fn entries(&self, ino: Ino) -> impl Iterator<Item = Entry> {
        let sending = self.sent_as.map(|(sequence, hour)| Entry::Sending { ino, sequence, hour });
        [Entry::Held { ino, held: self.held.clone() }].into_iter().chain(sending)
    }
}

impl Table {
    /// Adds bytes to the held bytes of a file.
    pub(super) fn join(&mut self, ino: Ino, held: Held) {
        let open = self.open.entry(ino).or_default();
        let before = open.held.as_ref().map_or(0, |waiting| waiting.held.bytes.len());
        match &mut open.held {
            Some(waiting) => waiting.held.join(&held),
            none => *none = Some(Waiting { held, sent_as: None, refused: false }),
        }
        let after = open.held.as_ref().map_or(0, |waiting| waiting.held.bytes.len());
        self.held_bytes += after - before;
    }

    pub(super) fn begin_sending(&mut self, ino: Ino, name: (u64, u32)) {
        if let Some(waiting) = self.waiting(ino) {
            waiting.sent_as = Some(name);
        }
    }

    /// Drops the held bytes of a file.
    pub(super) fn release(&mut self, ino: Ino) {
        let held = self.open.get_mut(&ino).and_then(|open| open.held.take());
        self.held_bytes -= held.map_or(0, |waiting| waiting.held.bytes.len());
    }

    fn waiting(&mut self, ino: Ino) -> Option<&mut Waiting> {
        self.open.get_mut(&ino)?.held.as_mut()
    }

    /// Sets the write time of held bytes, as in [`Files::wrote_at`].
    pub(super) fn held_at(&mut self, file: &File, at: Timestamp) -> Option<Attr> {
        let waiting = self.waiting(file.ino).filter(|waiting| waiting.sent_as.is_none())?;
        let mut state = file.state.lock();
        let known = state.attr;
        if waiting.held.data != known.data || at > waiting.held.at || at <= known.mtime {
            return None;
        }
        waiting.held.at = at;
        state.held = Some(waiting.shown());
        let attr = overlaid(&state);
        drop(state);
        let Held { data, offset, .. } = waiting.held;
        let held = Held { data, at, offset, bytes: Vec::new() };
        self.note(&Entry::Held { ino: file.ino, held });
        Some(attr)
    }
}

impl Files {
    /// Holds bytes for the store; they outlive this process from then on. The caller has exclusive
    /// access to the file.
    pub(crate) fn hold(&self, file: &File, held: Held) -> Hold {
        let mut table = self.table.lock();
        let room = table.held_bytes + held.bytes.len() <= HELD_MAX;
        let Some(open) = table.open.get(&file.ino) else { return Hold::Closed };
        let joins = |waiting: &Waiting| waiting.sent_as.is_none() && waiting.held.touches(&held);
        if !room || !open.held.as_ref().is_none_or(joins) {
            return Hold::Full;
        }
        table.join(file.ino, held.clone());
        table.note(&Entry::Held { ino: file.ino, held });
        let shown = table.waiting(file.ino).map(|waiting| waiting.shown());
        file.state.lock().held = shown;
        drop(table);
        Hold::Held
    }

    /// Whether bytes of a file are held.
    pub(crate) fn has_held(&self, ino: Ino) -> bool {
        self.with_held(ino, |_| true).unwrap_or(false)
    }

    /// The held bytes of a file, if no attempt to send them was begun.
    pub(crate) fn unsent(&self, ino: Ino) -> Option<Held> {
        let unsent =
            |waiting: &mut Waiting| waiting.sent_as.is_none().then(|| waiting.held.clone());
        self.with_held(ino, unsent).flatten()
    }

    /// The bytes of a file to send, with sequence and hour: those of the first attempt. The caller
    /// has exclusive access to the file until it is answered.
    pub(crate) fn sending(
        &self,
        ino: Ino,
        name: impl FnOnce() -> (u64, u32),
    ) -> Option<(Held, (u64, u32))> {
        let mut table = self.table.lock();
        let waiting = table.waiting(ino)?;
        let held = waiting.held.clone();
        if let Some(name) = waiting.sent_as {
            return Some((held, name));
        }
        let (sequence, hour) = name();
        waiting.sent_as = Some((sequence, hour));
        table.note(&Entry::Sending { ino, sequence, hour });
        Some((held, (sequence, hour)))
    }

    /// Drops the held bytes of a file: a meta has them, or they are given up.
    pub(crate) fn sent(&self, file: &File) {
        let mut table = self.table.lock();
        if table.waiting(file.ino).is_some() {
            table.release(file.ino);
            table.note(&Entry::Sent { ino: file.ino });
        }
        let state: &mut State = &mut file.state.lock();
        state.held = None;
    }

    /// Notes a permanent rejection of held bytes.
    pub(crate) fn refused(&self, ino: Ino) {
        let _ = self.with_held(ino, |waiting| waiting.refused = true);
    }

    /// Whether a meta has rejected held bytes.
    pub(crate) fn is_held_refused(&self, ino: Ino) -> bool {
        self.with_held(ino, |waiting| waiting.refused).unwrap_or(false)
    }

    /// Whether a meta has rejected bytes that the file shows here.
    pub(crate) fn is_refused(&self, ino: Ino) -> bool {
        self.is_held_refused(ino) || self.is_length_refused(ino)
    }

    fn with_held<T>(&self, ino: Ino, look: impl FnOnce(&mut Waiting) -> T) -> Option<T> {
        self.table.lock().waiting(ino).map(look)
    }
}
