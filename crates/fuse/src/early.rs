//! Interrupts that arrive before their request was put aside, because another thread handles them
//! faster.

use std::collections::VecDeque;

/// The number of kept interrupts: a request is put aside soon after it was read.
const EARLY_MAX: usize = 64;

/// The last interrupts without a waiting request.
#[derive(Debug, Default)]
pub(crate) struct Early(VecDeque<u64>);

impl Early {
    /// Notes an interrupt for a number without a waiting request.
    pub(crate) fn note(&mut self, unique: u64) {
        self.0.truncate(EARLY_MAX - 1);
        self.0.push_front(unique);
    }

    /// Whether the request that is about to wait was interrupted; returns true once.
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
