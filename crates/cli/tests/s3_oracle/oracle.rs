//! What is known of keys, and what reads of them may show.
//!
//! A key has one writer, which has one request under way. A write that was not answered is in doubt: it may have been done,
//! may be done yet, or never will be. A read that shows it ends the doubt: what was there before must not come back.

use std::collections::BTreeMap;

use millpond_s3_load::content::{Checker, Content, Seen, Torn};
use millpond_s3_load::journal::{KeyState, Verdict, Write};

/// A key and its writes.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) state: KeyState,
    /// Of writes whose answer told it.
    etags: BTreeMap<u64, String>,
    next: u64,
}

/// What a read showed: which write, and its `ETag`; none for no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) seen: Option<Seen>,
    pub(crate) etag: String,
}

/// Which write the bytes of an object are.
pub(crate) fn seen(name: &str, body: &[u8]) -> Result<Seen, Torn> {
    let mut checker = Checker::new(name);
    checker.feed(body);
    checker.finish()
}

impl Key {
    pub(crate) fn new(name: String) -> Self {
        Self { name, state: KeyState::default(), etags: BTreeMap::new(), next: 1 }
    }

    /// The next write: bytes, or a removal.
    pub(crate) const fn begin(&mut self, size: Option<u64>) -> Write {
        let seq = self.next;
        self.next += 1;
        Write { seq, size }
    }

    /// The bytes of a write from here to there.
    pub(crate) fn bytes(&self, write: Write, from: u64, to: u64) -> Vec<u8> {
        let content = Content::new(&self.name, write.seq, write.size.unwrap());
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        content.fill(from, &mut bytes);
        bytes
    }

    /// A write was answered.
    pub(crate) fn done(&mut self, write: Write, etag: &str) {
        self.state.doubts.retain(|it| *it != write);
        self.state.ack(write);
        if write.size.is_some() && !etag.is_empty() {
            self.etags.insert(write.seq, etag.to_owned());
        }
    }

    /// Whether nothing is in doubt.
    pub(crate) const fn is_known(&self) -> bool {
        self.state.doubts.is_empty()
    }

    /// The `ETag` of the last write that was answered, if that told it.
    pub(crate) fn etag(&self) -> Option<String> {
        self.state.acked.and_then(|it| self.etags.get(&it.seq)).cloned()
    }

    /// The object was copied onto itself, and has this `ETag` now; or nobody knows whether it was, or will be.
    pub(crate) fn copied(&mut self, etag: Option<String>) {
        let Some(write) = self.state.acked else { return };
        if let Some(etag) = etag {
            self.etags.insert(write.seq, etag);
        } else {
            self.etags.remove(&write.seq);
            self.state.doubt(write);
        }
    }

    /// Takes what a read showed. What it may not show is an error that says so.
    pub(crate) fn read(&mut self, shown: &Result<Shown, Torn>) -> Result<Verdict, String> {
        let found = shown.as_ref().map(|it| it.seen).map_err(|torn| *torn);
        let verdict = self.state.judge(found);
        if !verdict.is_right(false) {
            return Err(format!(
                "{}: {verdict:?}: {shown:?}, known is {:?}",
                self.name, self.state
            ));
        }
        let Ok(Shown { seen, etag }) = shown else { return Ok(verdict) };
        if let Some(told) = seen.and_then(|it| self.etags.get(&it.seq))
            && told != etag
        {
            return Err(format!("{}: write {seen:?} had the ETag {told}, now {etag}", self.name));
        }
        if verdict != Verdict::Held {
            self.settle(*seen);
        }
        Ok(verdict)
    }

    /// A write that was in doubt was done: the newest of those that a read may have shown.
    fn settle(&mut self, seen: Option<Seen>) {
        let size = seen.map(|it| it.size);
        let is = |write: &&Write| write.size == size && seen.is_none_or(|it| it.seq == write.seq);
        if let Some(write) = self.state.doubts.iter().rev().find(is).copied() {
            self.state.doubts.retain(|it| *it != write);
            self.state.ack(write);
        }
    }

    /// Nothing is under way any more, and this is what the key has: there are no doubts.
    pub(crate) fn quiet(&mut self) {
        self.state.doubts.clear();
    }

    /// Whether a list may say this of its size, or that it is not there.
    pub(crate) fn may_be_listed(&self, size: Option<u64>) -> bool {
        !self.state.doubts.is_empty() || self.state.acked.and_then(|it| it.size) == size
    }
}

#[test]
fn what_a_read_has_shown_is_not_taken_back() {
    let mut key = Key::new("k".to_owned());
    let show = |write: Write, etag: &str| {
        let seen = write.size.map(|size| Seen { seq: write.seq, size });
        Ok(Shown { seen, etag: etag.to_owned() })
    };
    let (one, two) = (key.begin(Some(100)), key.begin(Some(200)));
    key.done(one, "e");
    key.state.doubt(two);
    assert_eq!(key.read(&show(one, "e")), Ok(Verdict::Held));
    key.read(&show(one, "f")).unwrap_err();
    assert_eq!(key.read(&show(two, "g")), Ok(Verdict::InDoubt));
    assert!(key.read(&show(one, "e")).unwrap_err().contains("Stale"));
    let gone = key.begin(None);
    assert!(key.read(&show(gone, "")).unwrap_err().contains("Lost"));
    key.done(gone, "");
    assert!(key.may_be_listed(None) && !key.may_be_listed(Some(200)));
    assert!(key.read(&show(two, "g")).unwrap_err().contains("Resurrected"));
    let mut bytes = key.bytes(two, 0, 200);
    assert_eq!(seen("k", &bytes), Ok(Seen { seq: two.seq, size: 200 }));
    bytes[150] ^= 1;
    seen("k", &bytes).unwrap_err();
}
