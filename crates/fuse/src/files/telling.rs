//! Writes to chunks until a meta knows of them.

use millpond_types::meta::{Attr, Ino, Timestamp};

use super::{File, Files, Table, Written, overlaid};
use crate::backend::Told;
use crate::journal::Entry;

/// A report of written bytes to a meta under a number, until the meta answers.
///
/// If the process is killed before that, or waits too long, the report may have been executed, and
/// must not undo later changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Telling {
    pub(crate) written: Written,
    pub(crate) sequence: u64,
    pub(crate) hour: u32,
}

impl Table {
    /// Notes a meta's answer: the bytes still to report were written since, or rejected.
    fn note_told(&mut self, ino: Ino) {
        let is_left = self.open.get(&ino).is_some_and(|open| open.written.is_some());
        self.note(&if is_left { Entry::Answered { ino } } else { Entry::Told { ino } });
    }
}

impl Files {
    /// Notes written bytes. Returns true when there was nothing to report to a meta before.
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
            // The time of the last write is not worth an entry for each write.
            if before.is_none_or(|before| before.end != end) {
                table.note(&Entry::Wrote { ino: file.ino, written: now });
            }
        }
        drop(table);
        before.is_none()
    }

    /// Replaces the time of unreported bytes by the actual time of the write; returns the file's
    /// attributes. `None` when a meta knows all bytes, or a later time.
    pub(crate) fn wrote_at(&self, file: &File, at: Timestamp) -> Option<Attr> {
        let mut table = self.table.lock();
        if let Some(attr) = table.held_at(file, at) {
            return Some(attr);
        }
        let mut state = file.state.lock();
        let written = state.written.filter(|written| written.data == state.attr.chunk_data())?;
        // A time that a meta already has may have been set explicitly: that change is sent to it.
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

    /// Notes that a meta knows of these bytes, and its reported state.
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

    /// The bytes in chunks to report to a meta, with sequence and hour. An unanswered attempt is
    /// repeated unchanged, so that it is executed once. The caller has [`File::telling`].
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

    /// Whether a report of written bytes is in progress, or was not answered.
    pub(crate) fn is_told_of(&self, ino: Ino) -> bool {
        self.table.lock().open.get(&ino).is_some_and(|open| open.telling.is_some())
    }

    /// Ends a report that a meta rejected: the next attempt gets a new number.
    pub(crate) fn end_telling(&self, file: &File) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&file.ino) else { return };
        if open.telling.take().is_some() {
            table.note_told(file.ino);
        }
    }
}
