//! Quotas known to be used up: this mount reports bytes written under them to a meta before it
//! answers the write. Programs check the result of `write`, and many never check that of `close`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{Ino, MetaError, MetaOp, MetaReply};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::Fs;
use crate::backend::Ticket;
use crate::errno::Errno;
use crate::files::File;
use crate::recent;

/// How long the quota of a file is believed: the file may be moved.
const BELIEVED: Duration = Duration::from_secs(5);
/// The number of remembered files, and of quotas that are used up.
const FILES_MAX: usize = 1 << 12;
const FULL_MAX: usize = 1 << 8;

/// Quotas known to be full.
#[derive(Debug)]
pub(crate) struct Full {
    /// Whether there are any.
    any: AtomicBool,
    state: Mutex<State>,
    /// By file: the directory with the quota that applies to it, and the time of a meta's answer.
    of: Cache<u64, (Option<Ino>, Tick)>,
}

#[derive(Debug, Default)]
struct State {
    /// Files with a rejected length since the last check.
    refused: Vec<Ino>,
    /// Directories with a used-up quota, and when this mount learned of it.
    roots: HashMap<Ino, Tick>,
}

impl Default for Full {
    fn default() -> Self {
        let (any, state) = (AtomicBool::new(false), Mutex::default());
        Self { any, state, of: recent::shared(FILES_MAX) }
    }
}

impl Full {
    /// Notes that a meta has rejected bytes of a file.
    pub(crate) fn refused(&self, ino: Ino, error: MetaError) {
        if error != MetaError::Quota {
            return;
        }
        let mut state = self.state.lock();
        if state.refused.len() < FULL_MAX {
            state.refused.push(ino);
        }
        self.any.store(true, Ordering::Release);
    }

    fn take_refused(&self) -> Vec<Ino> {
        std::mem::take(&mut self.state.lock().refused)
    }

    fn add(&self, root: Ino, at: Tick) {
        let mut state = self.state.lock();
        if state.roots.len() >= FULL_MAX {
            let oldest = state.roots.iter().min_by_key(|(_, at)| **at).map(|(root, _)| *root);
            oldest.and_then(|root| state.roots.remove(&root));
        }
        state.roots.insert(root, at);
    }

    fn has(&self, root: Ino) -> bool {
        self.state.lock().roots.contains_key(&root)
    }

    fn remove(&self, root: Ino) {
        let mut state = self.state.lock();
        state.roots.remove(&root);
        self.any.store(!(state.roots.is_empty() && state.refused.is_empty()), Ordering::Release);
    }
}

impl Fs {
    /// The directory of a used-up quota that applies to a file, if a write must check at once
    /// whether the file may grow.
    pub(super) fn full_quota_of(&self, ticket: &mut Ticket, ino: Ino) -> Option<Ino> {
        if !self.full.any.load(Ordering::Acquire) {
            return None;
        }
        for refused in self.full.take_refused() {
            if let Some(root) = self.quota_of(ticket, refused) {
                self.full.add(root, RealClock::tick());
            }
        }
        self.quota_of(ticket, ino).filter(|root| self.full.has(*root))
    }

    fn quota_of(&self, ticket: &mut Ticket, ino: Ino) -> Option<Ino> {
        let now = RealClock::tick();
        let known = self.full.of.get(&ino.0).filter(|(_, at)| now.since(*at) < BELIEVED);
        if let Some((root, _)) = known {
            return root;
        }
        let root = match self.backend.meta(ticket, MetaOp::GetQuota { ino }) {
            Ok(MetaReply::Quota(quota)) => Some(quota.root),
            _ => None,
        };
        self.full.of.insert(ino.0, (root, now));
        root
    }

    /// Reports bytes written to a file with a used-up quota to a meta; the writer gets the meta's
    /// answer.
    pub(super) fn tell_full(&self, file: &File, root: Ino, before: u64) -> Result<(), Errno> {
        self.report(file, self.tell(file.ino))?;
        if file.bytes().1 > before {
            // Room was made.
            self.full.remove(root);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_full_is_so_until_somebody_made_room() {
        let full = Full::default();
        full.refused(Ino(5), MetaError::Io);
        assert!(!full.any.load(Ordering::Acquire));
        full.refused(Ino(5), MetaError::Quota);
        assert!(full.any.load(Ordering::Acquire));
        assert_eq!((full.take_refused(), full.take_refused()), (vec![Ino(5)], vec![]));
        full.add(Ino(2), Tick(1));
        for n in 0..2 * FULL_MAX as u64 {
            full.add(Ino(100 + n), Tick(2 + n));
            full.refused(Ino(n), MetaError::Quota);
        }
        assert!(!full.has(Ino(2)), "the oldest is forgotten");
        assert_eq!(full.state.lock().roots.len(), FULL_MAX);
        assert_eq!(full.take_refused().len(), FULL_MAX);
        for n in 0..2 * FULL_MAX as u64 {
            full.remove(Ino(100 + n));
        }
        assert!(!full.any.load(Ordering::Acquire));
    }
}
