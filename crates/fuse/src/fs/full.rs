//! Quotas that are used up, as far as this mount knows: it tells a meta of bytes that are written there before it answers
//! the write. Programs look at what `write` returns, and many of them never at what `close` does.

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

/// How long a file counts for the quota that a meta named: it may be moved.
const BELIEVED: Duration = Duration::from_secs(5);
/// Files that are remembered, and quotas that are used up.
const FILES_MAX: usize = 1 << 12;
const FULL_MAX: usize = 1 << 8;

/// What is known to be full.
#[derive(Debug)]
pub(crate) struct Full {
    /// There is something at all.
    any: AtomicBool,
    state: Mutex<State>,
    /// By file: the directory whose quota the file counts for, and the time at which a meta said so.
    of: Cache<u64, (Option<Ino>, Tick)>,
}

#[derive(Debug, Default)]
struct State {
    /// Files that were refused a length since somebody looked.
    refused: Vec<Ino>,
    /// Directories whose quota is used up, and the time at which this mount heard of it.
    roots: HashMap<Ino, Tick>,
}

impl Default for Full {
    fn default() -> Self {
        let (any, state) = (AtomicBool::new(false), Mutex::default());
        Self { any, state, of: recent::shared(FILES_MAX) }
    }
}

impl Full {
    /// A meta has refused what was written to a file.
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
    /// The directory of a quota that is used up and that a file counts for, if its writer is to hear at once whether it may
    /// become longer.
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

    /// Tells a meta what was written to a file whose quota is used up; the writer hears the meta's answer.
    pub(super) fn tell_full(&self, file: &File, root: Ino, before: u64) -> Result<(), Errno> {
        self.report(file, self.tell(file.ino))?;
        if file.bytes().1 > before {
            // Somebody has made room.
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
