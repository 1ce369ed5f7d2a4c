//! Space for the values of puts and writes in the arena: a circle of runs, freed in any order.

use std::collections::VecDeque;

/// One run of bytes in use.
#[derive(Debug)]
struct Run {
    id: u64,
    start: u64,
    len: u64,
    freed: bool,
}

/// Allocates runs of a byte range, first come, first served, as a ring.
#[derive(Debug)]
pub(crate) struct Arena {
    start: u64,
    end: u64,
    next: u64,
    runs: VecDeque<Run>,
}

impl Arena {
    /// Manages the bytes from `start` to `end`.
    pub(crate) const fn new(start: u64, end: u64) -> Self {
        Self { start, end, next: start, runs: VecDeque::new() }
    }

    /// Offset of its first byte.
    pub(crate) const fn start(&self) -> u64 {
        self.start
    }

    /// Length of the longest run in bytes.
    pub(crate) const fn capacity(&self) -> u64 {
        self.end - self.start
    }

    /// Takes `len` bytes for the request `id`; none when no run is free now.
    pub(crate) fn take(&mut self, id: u64, len: u64) -> Option<u64> {
        let len = len.next_multiple_of(64);
        let start = match self.runs.front() {
            None if len <= self.capacity() => self.start,
            // In use: from the front's start up to `next`, possibly around the end.
            Some(front) if self.next > front.start => {
                if len <= self.end - self.next {
                    self.next
                } else if len <= front.start - self.start {
                    self.start
                } else {
                    return None;
                }
            }
            Some(front) if len <= front.start - self.next => self.next,
            None | Some(_) => return None,
        };
        self.next = start + len;
        self.runs.push_back(Run { id, start, len, freed: len == 0 });
        Some(start)
    }

    /// Frees the run of the request `id`.
    pub(crate) fn free(&mut self, id: u64) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.id == id) {
            run.freed = true;
        }
        while self.runs.front().is_some_and(|run| run.freed) {
            self.runs.pop_front();
        }
        debug_assert!(self.runs.iter().all(|run| run.start + run.len <= self.end));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Arena;

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_space_returns(
            steps in proptest::collection::vec((0u64..400, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut arena = Arena::new(128, 128 + 1024);
            let mut live: Vec<(u64, u64, u64)> = Vec::new();
            for (id, (len, pick)) in steps.into_iter().enumerate() {
                let id = id as u64;
                if let Some(start) = arena.take(id, len) {
                    prop_assert!(start >= 128 && start + len <= 128 + 1024);
                    for (_, other, n) in &live {
                        prop_assert!(start + len <= *other || other + n <= start || len == 0 || *n == 0);
                    }
                    live.push((id, start, len));
                } else {
                    prop_assert!(!live.is_empty());
                    let (gone, ..) = live.swap_remove(pick.index(live.len()));
                    arena.free(gone);
                }
            }
            for (id, ..) in live {
                arena.free(id);
            }
            prop_assert_eq!(arena.take(u64::MAX, 1024), Some(128));
        }
    }
}
