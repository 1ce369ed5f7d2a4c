//! Lengths that metas reject: a quota is used up, or the file would be too long.
//!
//! The writer gets the error once. The written bytes are given up then, or earlier when another
//! length is set.

use millpond_types::meta::Ino;

use super::{File, Files, Open, Written};
use crate::errno::Errno;
use crate::journal::Entry;

/// A length that was rejected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    errno: Errno,
    written: Written,
    /// The bytes were given up, and the writer has not received the error yet.
    is_given_up: bool,
}

/// Whether a repetition would get the same answer, as far as is known.
const fn is_final(errno: Errno) -> bool {
    matches!(errno.0, libc::EDQUOT | libc::EFBIG)
}

impl Open {
    /// Forgets a rejection, because a meta has accepted the length.
    pub(super) fn note_taken(&mut self) {
        self.refused = self.refused.filter(|refused| refused.is_given_up);
    }
}

impl Files {
    /// Notes that a meta rejected these bytes. It ignores bytes that were given up or accepted
    /// since, or have grown, because those are reported separately: when two threads report the
    /// same bytes, both are rejected, and the writer gets the error once.
    pub(crate) fn refuse_length(&self, file: &File, written: Written, errno: Errno) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&file.ino).filter(|_| is_final(errno)) else { return };
        if file.state.lock().written == Some(written) {
            open.refused = Some(Refused { errno, written, is_given_up: false });
        }
    }

    /// Whether a meta has rejected the length that a file shows here.
    pub(crate) fn is_length_refused(&self, ino: Ino) -> bool {
        self.refusal(ino).is_some_and(|refused| !refused.is_given_up)
    }

    /// Whether a writer has not yet received a rejection.
    pub(crate) fn owes_refusal(&self, ino: Ino) -> bool {
        self.refusal(ino).is_some()
    }

    fn refusal(&self, ino: Ino) -> Option<Refused> {
        self.table.lock().open.get(&ino)?.refused
    }

    /// Gives up written bytes of a file with a rejected length.
    pub(crate) fn give_up_length(&self, file: &File) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&file.ino) else { return };
        let Some(refused) = &mut open.refused else { return };
        let mut state = file.state.lock();
        // Bytes written since are reported separately.
        if std::mem::replace(&mut refused.is_given_up, true)
            || state.written != Some(refused.written)
        {
            return;
        }
        state.written = None;
        drop(state);
        (open.written, open.telling) = (None, None);
        table.note(&Entry::Told { ino: file.ino });
    }

    /// The error of a rejected length, for the writer. The written bytes are given up.
    pub(crate) fn take_refusal(&self, file: &File) -> Option<Errno> {
        if !self.owes_refusal(file.ino) {
            return None;
        }
        self.give_up_length(file);
        let refused = self.table.lock().open.get_mut(&file.ino)?.refused.take();
        refused.map(|refused| refused.errno)
    }
}
