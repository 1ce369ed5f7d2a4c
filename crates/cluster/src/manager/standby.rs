//! Watching the primary's lease, claiming it, and reading the records.

use millpond_types::cluster::{LeaseRecord, Term, TermRecord, keys};
use millpond_types::units::Tick;
use millpond_types::wire::{Record as _, WireError};

use super::event::{Effect, Event, StoreReply, StoreRequest};
use super::lease::Lease;
use super::primary::Primary;
use super::state::State;
use super::{Cx, Next};

/// Entries of one page while the records are read.
const PAGE: usize = 1000;
/// Checks after which an unanswered request to the store is repeated.
const LOOKS_LOST: u32 = 4;

/// State of the lease, as a standby sees it.
#[derive(Debug, Default)]
pub(super) struct Standby {
    /// Term and lease as last seen, and the time since which they have not changed.
    seen: Option<(Seen, Tick)>,
    asked: Option<(u64, Tick)>,
    claim: Option<(u64, TermRecord, Tick)>,
    next: Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    term: Option<Vec<u8>>,
    lease: Option<Vec<u8>>,
}

impl Standby {
    pub(super) fn next_wake(&self) -> Tick {
        self.next
    }

    pub(super) fn step(
        &mut self,
        cx: &mut Cx<'_>,
        event: &Event,
        primary_at: &mut Vec<String>,
    ) -> Next {
        match event {
            Event::Timer { .. } if cx.now >= self.next => {
                self.next = cx.now.plus(cx.options.watch).min(self.due(cx));
                let lost = self
                    .asked
                    .is_some_and(|(_, sent)| cx.now.since(sent) >= cx.options.watch * LOOKS_LOST);
                if self.asked.is_none() || lost {
                    let keys = vec![keys::TERM.to_vec(), keys::LEASE.to_vec()];
                    self.asked = Some((cx.ask(StoreRequest::Get { keys }), cx.now));
                }
                Next::Stay
            }
            Event::Store { id, reply } => self.answered(cx, *id, reply, primary_at),
            _ => Next::Stay,
        }
    }

    /// Earliest time when a check can show that the lease as last seen has run out.
    fn due(&self, cx: &Cx<'_>) -> Tick {
        let due =
            self.seen.as_ref().map(|(_, since)| since.plus(cx.options.lease + cx.options.margin));
        due.filter(|due| *due > cx.now).unwrap_or(Tick::MAX)
    }

    fn answered(
        &mut self,
        cx: &mut Cx<'_>,
        id: u64,
        reply: &StoreReply,
        primary_at: &mut Vec<String>,
    ) -> Next {
        if let Some((claimed, term, sent)) = self.claim.take_if(|(claimed, ..)| *claimed == id) {
            debug_assert_eq!(claimed, id);
            if *reply == StoreReply::Committed {
                let lease = Lease::won(term, sent, cx.options);
                return Next::Load(Box::new(TakeOver::start(cx, lease)));
            }
            return Next::Stay;
        }
        let Some((_, sent)) = self.asked.take_if(|(asked, _)| *asked == id) else {
            return Next::Stay;
        };
        let StoreReply::Values(values) = reply else { return Next::Stay };
        let mut values = values.iter().cloned();
        let seen = Seen { term: values.next().flatten(), lease: values.next().flatten() };
        if let Some(Ok(term)) = seen.term.as_deref().map(TermRecord::open) {
            primary_at.clone_from(&term.addresses);
        }
        // Counted from the answer, not from the request: the value may be older than the answer.
        let since = match &self.seen {
            Some((before, since)) if *before == seen => *since,
            _ => cx.now,
        };
        self.seen = Some((seen.clone(), since));
        // A lease still unchanged in the answer to a request sent later than a lease's length after
        // `since` was not renewed in between.
        let still = sent.since(since) >= cx.options.lease + cx.options.margin;
        // A claim with a lost answer does not keep this standby from another.
        let claims =
            self.claim.as_ref().is_some_and(|(.., sent)| cx.now.since(*sent) < cx.options.lease);
        if (still || cx.options.is_alone || is_free(&seen)) && !claims {
            self.claim(cx, &seen);
        }
        Next::Stay
    }

    fn claim(&mut self, cx: &mut Cx<'_>, seen: &Seen) {
        let before = seen.term.as_deref().map(TermRecord::open);
        let term = match before {
            None => Term(1),
            Some(Ok(record)) => Term(record.term.0 + 1),
            // It was written by a newer build, or the store is damaged: leave it alone.
            Some(Err(_)) => return,
        };
        let addresses = cx.options.addresses.clone();
        let record = TermRecord { term, manager: cx.options.me, addresses };
        let lease = LeaseRecord { term, renewal: 0, released: false };
        let id = cx.ask(StoreRequest::Commit {
            checks: vec![
                (keys::TERM.to_vec(), seen.term.clone()),
                (keys::LEASE.to_vec(), seen.lease.clone()),
            ],
            writes: vec![
                (keys::TERM.to_vec(), Some(record.seal())),
                (keys::LEASE.to_vec(), Some(lease.seal())),
            ],
        });
        self.claim = Some((id, record, cx.now));
    }
}

/// Whether there never was a primary, or the last one gave the lease back.
fn is_free(seen: &Seen) -> bool {
    match (&seen.term, &seen.lease) {
        (None, None) => true,
        (_, Some(lease)) => LeaseRecord::open(lease).is_ok_and(|lease| lease.released),
        (Some(_), None) => false,
    }
}

/// A primary that is still reading the records of the previous one.
#[derive(Debug)]
pub(super) struct TakeOver {
    lease: Lease,
    state: State,
    /// HEAD as stored, for the first transaction to check.
    head: Option<Vec<u8>>,
    after: Vec<u8>,
    asked: u64,
}

impl TakeOver {
    fn start(cx: &mut Cx<'_>, lease: Lease) -> Self {
        let mut take_over =
            Self { lease, state: State::default(), head: None, after: Vec::new(), asked: 0 };
        take_over.ask(cx);
        take_over
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn next_wake(&self) -> Tick {
        self.lease.next_wake()
    }

    fn ask(&mut self, cx: &mut Cx<'_>) {
        let (prefix, after) = (keys::PREFIX.to_vec(), self.after.clone());
        self.asked = cx.ask(StoreRequest::Scan { prefix, after, limit: PAGE });
    }

    pub(super) fn step(&mut self, cx: &mut Cx<'_>, event: &Event) -> Next {
        let mut keeps = self.lease.tick(cx);
        if let Event::Store { id, reply } = event {
            if let Some(renewed) = self.lease.answered(cx, *id, reply) {
                keeps &= renewed;
            } else if *id == self.asked && keeps {
                return self.page(cx, reply);
            }
        }
        if keeps { Next::Stay } else { Next::Down }
    }

    fn page(&mut self, cx: &mut Cx<'_>, reply: &StoreReply) -> Next {
        let StoreReply::Page { entries, more } = reply else {
            self.ask(cx);
            return Next::Stay;
        };
        for (key, value) in entries {
            if let Err(error) = self.load(key, value) {
                // Deciding without a record would forget data; standing by leaves it to a newer
                // build, or to a repair of the store.
                let key = key.escape_ascii();
                let text = format!("cannot be primary: record '{key}' is unreadable: {error}");
                cx.effects.push(Effect::Happened(millpond_types::cluster::EventRecord {
                    text,
                    at: cx.unix,
                    ..Default::default()
                }));
                return Next::Down;
            }
        }
        match entries.last() {
            Some((last, _)) if *more => {
                self.after.clone_from(last);
                self.ask(cx);
                Next::Stay
            }
            _ => {
                let mut state = std::mem::take(&mut self.state);
                state.loaded();
                let head = self.head.take();
                Next::Lead(Box::new(Primary::new(cx, self.lease.clone(), state, head)))
            }
        }
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), WireError> {
        if key == keys::HEAD {
            self.head = Some(value.to_vec());
        }
        self.state.load(key, value)
    }
}
