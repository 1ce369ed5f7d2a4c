//! Lengths that no meta takes: a quota is used up, or the file would be too long.
//!
//! Whoever wrote hears of it, once. What was written is given up then, or before when somebody sets another length.

use millpond_types::meta::Ino;

use super::{File, Files, Open, Written};
use crate::errno::Errno;
use crate::journal::Entry;

/// A length that was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    errno: Errno,
    written: Written,
    /// It was given up, and who wrote has not heard of it.
    is_given_up: bool,
}

/// Whether a meta will say the same again, as far as it knows.
const fn is_final(errno: Errno) -> bool {
    matches!(errno.0, libc::EDQUOT | libc::EFBIG)
}

impl Open {
    /// A meta takes what it refused before.
    pub(super) fn note_taken(&mut self) {
        self.refused = self.refused.filter(|refused| refused.is_given_up);
    }
}

impl Files {
    /// A meta was told of these bytes, and refused. Bytes that were given up or taken since, or have grown, are told by
    /// themselves: when two threads tell the same bytes, both are refused, and the writer hears of it once.
    pub(crate) fn refuse_length(&self, file: &File, written: Written, errno: Errno) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&file.ino).filter(|_| is_final(errno)) else { return };
        if file.state.lock().written == Some(written) {
            open.refused = Some(Refused { errno, written, is_given_up: false });
        }
    }

    /// Whether a meta has refused the length that a file shows here.
    pub(crate) fn is_length_refused(&self, ino: Ino) -> bool {
        self.refusal(ino).is_some_and(|refused| !refused.is_given_up)
    }

    /// Whether somebody wrote what a meta refused, and has not heard of it.
    pub(crate) fn owes_refusal(&self, ino: Ino) -> bool {
        self.refusal(ino).is_some()
    }

    fn refusal(&self, ino: Ino) -> Option<Refused> {
        self.table.lock().open.get(&ino)?.refused
    }

    /// Gives up what was written of a file when its length was refused.
    pub(crate) fn give_up_length(&self, file: &File) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&file.ino) else { return };
        let Some(refused) = &mut open.refused else { return };
        let mut state = file.state.lock();
        // What was written since is told by itself.
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

    /// Why the length of a file was refused, for who wrote it. What was written is given up.
    pub(crate) fn take_refusal(&self, file: &File) -> Option<Errno> {
        if !self.owes_refusal(file.ino) {
            return None;
        }
        self.give_up_length(file);
        let refused = self.table.lock().open.get_mut(&file.ino)?.refused.take();
        refused.map(|refused| refused.errno)
    }
}
