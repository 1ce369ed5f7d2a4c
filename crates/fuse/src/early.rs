//! Interrupts that came before the request that they are for was put aside: another thread may be
//! quicker with them.

use std::collections::VecDeque;

/// Interrupts that are kept: a request is put aside soon after it was read.
const EARLY_MAX: usize = 64;

/// The last interrupts that were for nobody who waits.
#[derive(Debug, Default)]
pub(crate) struct Early(VecDeque<u64>);

impl Early {
    /// Nobody waits under this number of the kernel, yet.
    pub(crate) fn note(&mut self, unique: u64) {
        self.0.truncate(EARLY_MAX - 1);
        self.0.push_front(unique);
    }

    /// Whether the request that is about to wait was interrupted; it is said once.
    pub(crate) fn take(&mut self, unique: u64) -> bool {
        let at = self.0.iter().position(|other| *other == unique);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_interrupts_are_kept() {
        let mut early = Early::default();
        for unique in 0..200 {
            early.note(unique);
        }
        assert!(early.take(199) && !early.take(199), "it is for one request");
        assert!(early.take(200 - EARLY_MAX as u64) && !early.take(5), "too long ago");
    }
}
