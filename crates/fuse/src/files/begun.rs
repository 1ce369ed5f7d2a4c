//! The hour and the session of a kernel request that changes the namespace: those of its first
//! attempt, for all repetitions, so that it is executed once.
//!
//! The holder keeps the session that a mount began with. The journal has a session that replaces
//! it, and the requests that were begun before: their entries come first.

use super::{Files, Table};
use crate::journal::Entry;

/// A request that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) hour: u32,
    pub(crate) session: u64,
}

impl Table {
    /// The journal entries of the begun requests, and of the session.
    pub(super) fn begun_entries(&self) -> Vec<Entry> {
        let mut all: Vec<(u64, Begun)> =
            self.began.iter().map(|(id, begun)| (*id, *begun)).collect();
        // Session numbers increase; 0 is the session without an entry.
        all.sort_unstable_by_key(|(_, begun)| begun.session);
        let (mut entries, mut session) = (Vec::with_capacity(all.len()), 0);
        let mut turn_to = |entries: &mut Vec<Entry>, next: u64| {
            if self.is_replaced && next != session {
                session = next;
                entries.push(Entry::Session { session });
            }
        };
        for (unique, Begun { hour, session }) in all {
            turn_to(&mut entries, session);
            entries.push(Entry::Began { unique, hour });
        }
        turn_to(&mut entries, self.session);
        entries
    }

    pub(super) const fn replace_session(&mut self, session: u64) {
        (self.session, self.is_replaced) = (session, true);
    }
}

impl Files {
    /// Enters a session that the holder knows, or the one in the journal that replaced it. Returns
    /// the session entered.
    pub(crate) fn enter(&self, session: u64) -> u64 {
        let mut table = self.table.lock();
        for begun in table.began.values_mut().filter(|begun| begun.session == 0) {
            begun.session = session;
        }
        if !table.is_replaced {
            table.session = session;
        }
        table.session
    }

    /// Replaces the mount's session after its end, for the next process too.
    pub(crate) fn replace_session(&self, session: u64) {
        let mut table = self.table.lock();
        table.replace_session(session);
        table.note(&Entry::Session { session });
    }

    /// The hour and the session in which a request changes the namespace: those of its first
    /// attempt.
    pub(crate) fn begin(&self, unique: u64, hour: u32) -> Begun {
        let mut table = self.table.lock();
        if let Some(before) = table.began.get(&unique) {
            return *before;
        }
        let begun = Begun { hour, session: table.session };
        table.began.insert(unique, begun);
        table.note(&Entry::Began { unique, hour });
        begun
    }
}
