//! What was written to chunks, until a meta knows of it.

use millpond_types::meta::{Attr, Ino, Timestamp};

use super::{File, Files, Table, Written, overlaid};
use crate::backend::Told;
use crate::journal::Entry;

/// A meta is told of bytes under a number, until it answers: a process that is killed meanwhile, or waits too long, may have
/// been heard, and what comes after must not be undone by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Telling {
    pub(crate) written: Written,
    pub(crate) sequence: u64,
    pub(crate) hour: u32,
}

impl Table {
    /// A meta has answered: what is left to tell it of was written since, or refused.
    fn note_told(&mut self, ino: Ino) {
        let is_left = self.open.get(&ino).is_some_and(|open| open.written.is_some());
        self.note(&if is_left { Entry::Answered { ino } } else { Entry::Told { ino } });
    }
}

impl Files {
    /// Takes note of bytes that were written. True when there was nothing to tell a meta before.
    pub(crate) fn wrote(&self, file: &File, written: Written) -> bool {
        let mut table = self.table.lock();
        let mut state = file.state.lock();
        let written = state.named(written);
        let before = state.written.filter(|before| before.data == written.data);
        let end = before.map_or(written.end, |before| before.end.max(written.end));
        let now = Written { end, ..written };
        state.written = Some(now);
        drop(state);
        if let Some(open) = table.open.get_mut(&file.ino) {
            open.written = Some(now);
            // The time of the last write is worth less than an entry for each.
            if before.is_none_or(|before| before.end != end) {
                table.note(&Entry::Wrote { ino: file.ino, written: now });
            }
        }
        drop(table);
        before.is_none()
    }

    /// Bytes that a meta was not told of were written at this time, and not when they came here; the
    /// file's attributes then. Nothing when a meta knows of all, or of a later time.
    pub(crate) fn wrote_at(&self, file: &File, at: Timestamp) -> Option<Attr> {
        let mut table = self.table.lock();
        if let Some(attr) = table.held_at(file, at) {
            return Some(attr);
        }
        let mut state = file.state.lock();
        let written = state.written.filter(|written| written.data == state.attr.chunk_data())?;
        // A time that a meta knows already may have been set by hand: it is told of that.
        if at > written.at || at <= state.attr.mtime {
            return None;
        }
        let now = Written { at, ..written };
        state.written = Some(now);
        let attr = overlaid(&state);
        drop(state);
        if let Some(open) = table.open.get_mut(&file.ino) {
            open.written = Some(now);
            table.note(&Entry::Wrote { ino: file.ino, written: now });
        }
        drop(table);
        Some(attr)
    }

    /// A meta knows of these bytes now, and says so.
    pub(crate) fn told(&self, file: &File, written: Written, told: Told) {
        let attr = told.attr;
        let mut table = self.table.lock();
        let mut state = file.state.lock();
        let was_last = state.written == Some(written);
        state.take(attr);
        state.version = state.version.max(told.version);
        if was_last {
            state.written = None;
        }
        file.fills.lock().learn(&state.attr);
        drop(state);
        let Some(open) = table.open.get_mut(&file.ino) else { return };
        open.note_taken();
        open.telling = None;
        if was_last {
            open.written = None;
        }
        table.note_told(file.ino);
    }

    /// What a meta is to be told of bytes in chunks, and under which sequence and hour: of an attempt that was not answered
    /// the same again, to be told once. The caller has [`File::telling`].
    pub(crate) fn begin_telling(
        &self,
        file: &File,
        name: impl FnOnce() -> (u64, u32),
    ) -> Option<Telling> {
        let mut table = self.table.lock();
        let before = table.open.get(&file.ino).and_then(|open| open.telling);
        if before.is_some() {
            return before;
        }
        let written = file.state.lock().written?;
        let (sequence, hour) = name();
        let telling = Telling { written, sequence, hour };
        if let Some(open) = table.open.get_mut(&file.ino) {
            open.telling = Some(telling);
            table.note(&Entry::Telling { ino: file.ino, telling });
        }
        Some(telling)
    }

    /// Whether a meta is being told of bytes of a file, or was and has not answered.
    pub(crate) fn is_told_of(&self, ino: Ino) -> bool {
        self.table.lock().open.get(&ino).is_some_and(|open| open.telling.is_some())
    }

    /// A meta has refused what it was told: the next attempt is another one.
    pub(crate) fn end_telling(&self, file: &File) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&file.ino) else { return };
        if open.telling.take().is_some() {
            table.note_told(file.ino);
        }
    }
}
