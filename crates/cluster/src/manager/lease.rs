//! The primary's lease: one record with its holder, and one that each renewal changes.

use std::time::Duration;

use millpond_types::cluster::{LeaseRecord, Term, TermRecord, keys};
use millpond_types::units::Tick;
use millpond_types::wire::Record as _;

use super::event::{StoreReply, StoreRequest};
use super::mutation::mutated;
use super::{Cx, ManagerOptions};

/// Pause after a store that did not answer.
const RETRY: Duration = Duration::from_millis(100);

/// The lease as its holder has it.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    term: TermRecord,
    renewal: u64,
    valid_until: Tick,
    in_flight: Option<(u64, Tick)>,
    next: Tick,
    /// No other process can have the store: time alone does not end the lease, however late a busy
    /// process is.
    is_alone: bool,
}

impl Lease {
    /// The lease of a term that was claimed by a transaction sent at `sent`.
    pub(super) fn won(term: TermRecord, sent: Tick, options: &ManagerOptions) -> Self {
        let valid_until = sent.plus(options.lease.saturating_sub(options.margin));
        let (next, is_alone) = (sent.plus(options.renew), options.is_alone);
        Self { term, renewal: 0, valid_until, in_flight: None, next, is_alone }
    }

    /// The check in every transaction of this primary.
    pub(super) fn check(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        (keys::TERM.to_vec(), Some(self.term.seal()))
    }

    /// The term that this lease is for.
    pub(super) fn term(&self) -> Term {
        self.term.term
    }

    /// The sealed term, for comparison with the store's.
    pub(super) fn term_bytes(&self) -> Vec<u8> {
        self.term.seal()
    }

    /// Whether this primary may still act on its own, that is, grant leases.
    pub(super) fn is_valid(&self, now: Tick) -> bool {
        self.is_alone || now < self.valid_until
    }

    pub(super) fn next_wake(&self) -> Tick {
        let renewal = if self.in_flight.is_some() { Tick::MAX } else { self.next };
        if self.is_alone { renewal } else { renewal.min(self.valid_until) }
    }

    /// Renews the lease when due. False when it has run out.
    pub(super) fn tick(&mut self, cx: &mut Cx<'_>) -> bool {
        if !self.is_valid(cx.now) && !mutated!(cx.options, ActWithoutLease) {
            return false;
        }
        if self.in_flight.is_none() && cx.now >= self.next {
            self.renewal += 1;
            let id = cx.ask(self.write(self.renewal, false));
            self.in_flight = Some((id, cx.now));
        }
        true
    }

    fn write(&self, renewal: u64, released: bool) -> StoreRequest {
        let record = LeaseRecord { term: self.term.term, renewal, released };
        let writes = vec![(keys::LEASE.to_vec(), Some(record.seal()))];
        StoreRequest::Commit { checks: vec![self.check()], writes }
    }

    /// Takes an answer of the store if it is to a renewal. `Some(false)`: another manager is
    /// primary.
    pub(super) fn answered(&mut self, cx: &Cx<'_>, id: u64, reply: &StoreReply) -> Option<bool> {
        let (asked, sent) = self.in_flight?;
        if asked != id {
            return None;
        }
        self.in_flight = None;
        match reply {
            StoreReply::Committed => {
                // Counted from when it was sent: a standby may have seen it written right then.
                self.valid_until = sent.plus(cx.options.lease.saturating_sub(cx.options.margin));
                self.next = sent.plus(cx.options.renew);
                Some(true)
            }
            StoreReply::Conflict => Some(false),
            _ => {
                self.next = cx.now.plus(RETRY);
                Some(true)
            }
        }
    }

    /// Gives the lease back.
    pub(super) fn release(&self, cx: &mut Cx<'_>) {
        cx.ask(self.write(self.renewal + 1, true));
    }
}
