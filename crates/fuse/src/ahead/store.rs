//! Fetched bytes that were not read yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_types::Tick;
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::detect::Span;
use crate::deadline;

/// The state of a piece.
#[derive(Debug)]
enum State {
    /// Ordered; no thread has begun to fetch it.
    Ordered,
    Coming,
    /// Fetched; the number counts the bytes read.
    Here(Vec<u8>, u64),
    /// It must not be used.
    Over,
}

/// Bytes of a file, fetched or being fetched. Its memory counts against the budget until it is
/// over.
#[derive(Debug)]
pub(crate) struct Piece {
    span: Span,
    since: Tick,
    /// Whether it is over after one read, or serves any number of reads.
    once: bool,
    state: Mutex<State>,
    arrived: Condvar,
    shared: Arc<Shared>,
}

impl Piece {
    /// Makes a piece to be fetched; `None` when the budget is used up.
    pub(super) fn new((span, once): (Span, bool), now: Tick, shared: &Arc<Shared>) -> Option<Self> {
        if !shared.memory.try_take(span.len) {
            return None;
        }
        let (state, arrived) = (Mutex::new(State::Ordered), Condvar::new());
        Some(Self { span, since: now, once, state, arrived, shared: Arc::clone(shared) })
    }

    pub(super) const fn span(&self) -> Span {
        self.span
    }

    /// The time of the order: its bytes are not older.
    pub(super) const fn since(&self) -> Tick {
        self.since
    }

    /// Whether it is over after one read.
    pub(super) const fn is_once(&self) -> bool {
        self.once
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(*self.state.lock(), State::Over)
    }

    /// Marks the begin of the fetch; false when the piece is no longer wanted.
    pub(super) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let wanted = matches!(*state, State::Ordered);
        if wanted {
            *state = State::Coming;
        }
        wanted
    }

    /// Stores the fetched bytes.
    pub(super) fn arrive(&self, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        if matches!(*state, State::Coming) {
            *state = State::Here(bytes, 0);
        } else if self.once {
            self.shared.numbers.wasted.add(self.span.len);
        }
        drop(state);
        self.arrived.notify_all();
    }

    /// Copies the bytes from `at` on. Waits for a fetch in flight; returns 0 when there are no
    /// bytes and none will come.
    pub(super) fn copy(&self, at: u64, buf: &mut [u8]) -> usize {
        let mut state = self.state.lock();
        while matches!(*state, State::Coming) {
            if self.arrived.wait_for(&mut state, deadline::patience()).timed_out() {
                return 0;
            }
        }
        let State::Here(bytes, read) = &mut *state else {
            // The reader is faster than a thread that has not begun yet.
            drop(state);
            self.end();
            return 0;
        };
        let from = usize::try_from(at.saturating_sub(self.span.offset)).unwrap_or(usize::MAX);
        let there = bytes.get(from..).unwrap_or_default();
        let len = there.len().min(buf.len());
        buf[..len].copy_from_slice(&there[..len]);
        *read += len as u64;
        if self.once && *read >= self.span.len {
            self.set_over(&mut state);
        }
        len
    }

    /// Ends the piece: it must not be used any more.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        self.set_over(&mut state);
        drop(state);
        self.arrived.notify_all();
    }

    fn set_over(&self, state: &mut State) {
        let before = std::mem::replace(state, State::Over);
        if let State::Here(bytes, read) = &before
            && self.once
        {
            self.shared.numbers.wasted.add((bytes.len() as u64).saturating_sub(*read));
        }
        if !matches!(before, State::Over) {
            self.shared.memory.give(self.span.len);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.end();
    }
}

/// The outcome of a search.
pub(super) enum Found {
    Nothing,
    Piece(Arc<Piece>),
}

/// The pieces of one file; they do not overlap.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    by_offset: BTreeMap<u64, Arc<Piece>>,
}

impl Pieces {
    /// Whether any of these bytes are held or ordered.
    pub(super) fn overlaps(&self, span: Span) -> bool {
        let before = self.by_offset.range(..span.end()).next_back();
        before.is_some_and(|(_, piece)| piece.span.end() > span.offset && !piece.is_over())
    }

    pub(super) fn add(&mut self, piece: Arc<Piece>) {
        let span = piece.span;
        // Overlapping pieces are over.
        self.by_offset
            .retain(|_, other| other.span.end() <= span.offset || other.span.offset >= span.end());
        self.by_offset.insert(span.offset, piece);
    }

    /// The piece that contains the byte at `at`, unless it is older than `kept`.
    pub(super) fn at(&mut self, at: u64, now: Tick, kept: Duration) -> Found {
        let before = self.by_offset.range(..=at).next_back();
        let Some((_, piece)) = before.filter(|(_, piece)| piece.span.end() > at) else {
            return Found::Nothing;
        };
        if now.since(piece.since) >= kept {
            self.drop_at(at);
            return Found::Nothing;
        }
        Found::Piece(Arc::clone(piece))
    }

    /// Drops the piece that contains the byte at `at`.
    pub(super) fn drop_at(&mut self, at: u64) {
        let offset = self.by_offset.range(..=at).next_back().map(|(offset, _)| *offset);
        if let Some(piece) = offset.and_then(|offset| self.by_offset.remove(&offset)) {
            piece.end();
        }
    }

    pub(super) fn clear(&mut self) {
        for piece in std::mem::take(&mut self.by_offset).into_values() {
            piece.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AheadNumbers;
    use super::*;
    use crate::budget::Memory;

    const KEPT: Duration = Duration::from_secs(1);

    fn shared(limit: u64) -> Arc<Shared> {
        let memory = Arc::new(Memory::new(limit));
        Arc::new(Shared { memory, numbers: AheadNumbers::default() })
    }

    fn piece(shared: &Arc<Shared>, offset: u64, len: u64) -> Arc<Piece> {
        Arc::new(Piece::new((Span { offset, len }, true), Tick(5), shared).unwrap())
    }

    fn read(pieces: &mut Pieces, at: u64, now: Tick) -> Vec<u8> {
        let mut buf = [0; 8];
        match pieces.at(at, now, KEPT) {
            Found::Nothing => Vec::new(),
            Found::Piece(piece) => {
                let len = piece.copy(at, &mut buf);
                buf[..len].to_vec()
            }
        }
    }

    #[test]
    fn bytes_are_used_once_and_counted() {
        let (shared, mut pieces) = (shared(100), Pieces::default());
        let (one, two) = (piece(&shared, 10, 4), piece(&shared, 14, 4));
        pieces.add(Arc::clone(&one));
        pieces.add(Arc::clone(&two));
        assert_eq!(shared.memory.used(), 8);
        assert!(one.begin() && !one.begin());
        one.arrive(vec![1, 2, 3, 4]);
        let now = Tick(6);
        assert_eq!(read(&mut pieces, 9, now), b"");
        assert_eq!(read(&mut pieces, 11, now), [2, 3, 4]);
        assert!(pieces.overlaps(Span { offset: 0, len: 11 }));
        assert!(!pieces.overlaps(Span { offset: 0, len: 10 }));
        // No thread has begun to fetch it: the read goes on without it, and it is never fetched.
        assert_eq!(read(&mut pieces, 14, now), b"");
        assert!(two.is_over() && !two.begin());
        assert_eq!((shared.memory.used(), shared.numbers.wasted.get()), (4, 0));
        pieces.clear();
        assert_eq!((shared.memory.used(), shared.numbers.wasted.get()), (0, 1));
        assert_eq!(read(&mut pieces, 11, now), b"");
    }

    #[test]
    fn a_lasting_piece_is_read_until_it_is_old_or_changed() {
        let (shared, mut pieces) = (shared(100), Pieces::default());
        let lasting = || {
            let piece = Piece::new((Span { offset: 8, len: 4 }, false), Tick(5), &shared).unwrap();
            let piece = Arc::new(piece);
            assert!(piece.begin());
            piece.arrive(vec![1, 2, 3, 4]);
            piece
        };
        pieces.add(lasting());
        for _ in 0..3 {
            assert_eq!(read(&mut pieces, 8, Tick(6)), [1, 2, 3, 4]);
        }
        pieces.clear();
        assert_eq!(read(&mut pieces, 8, Tick(6)), b"");
        pieces.add(lasting());
        assert_eq!(read(&mut pieces, 8, Tick(5).plus(KEPT)), b"");
        assert_eq!((shared.memory.used(), shared.numbers.wasted.get()), (0, 0));
    }

    #[test]
    fn what_arrives_after_a_change_is_thrown_away() {
        let (shared, mut pieces) = (shared(100), Pieces::default());
        let late = piece(&shared, 0, 4);
        pieces.add(Arc::clone(&late));
        assert!(late.begin());
        pieces.clear();
        late.arrive(vec![1; 4]);
        assert_eq!(read(&mut pieces, 0, Tick(6)), b"");
        let mut buf = [9; 4];
        assert_eq!((late.copy(0, &mut buf), buf), (0, [9; 4]), "nor by who had found it");
        assert_eq!((shared.memory.used(), shared.numbers.wasted.get()), (0, 4));
    }

    #[test]
    fn what_is_old_is_not_used_and_the_budget_holds() {
        let (shared, mut pieces) = (shared(4), Pieces::default());
        let old = piece(&shared, 0, 4);
        pieces.add(Arc::clone(&old));
        assert!(Piece::new((Span { offset: 4, len: 1 }, true), Tick(5), &shared).is_none());
        assert!(old.begin());
        old.arrive(vec![1; 4]);
        assert_eq!(read(&mut pieces, 0, Tick(5).plus(KEPT)), b"");
        assert!(old.is_over());
        assert!(Piece::new((Span { offset: 4, len: 4 }, true), Tick(5), &shared).is_some());
    }
}
