//! Acknowledged writes, writes in doubt, and the verdict on a read.
//!
//! A write is *acknowledged* when the endpoint answered that it is done, *refused* when it answered
//! that it is not (4xx, `SlowDown`), and *in doubt* otherwise: the connection ended, the answer was
//! late, or the server had an error. A write in doubt may take effect now, later, or never. So it
//! stays in doubt, even after a later acknowledged write. A key that shows such a *late* write gets
//! its own verdict: it should not happen once all connections of an endpoint are dead.

use std::collections::BTreeMap;
use std::path::Path;

use millpond_env::files;
use serde::{Deserialize, Serialize};

use crate::LoadError;
use crate::content::{Seen, Torn};

/// Writes in doubt of one key at most. A key that has reached the limit is no longer written.
pub const DOUBTS_MAX: usize = 64;
/// Version of the file format.
const VERSION: u32 = 1;

/// A put of `size` bytes, or a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// The number of the write; the writes of a key are numbered from 1.
    pub seq: u64,
    /// Bytes that were put; `None` for a delete.
    pub size: Option<u64>,
}

impl Write {
    fn shows(self, seen: Option<Seen>) -> bool {
        match (self.size, seen) {
            (None, None) => true,
            (Some(size), Some(seen)) => seen == Seen { seq: self.seq, size },
            _ => false,
        }
    }
}

/// The known state of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyState {
    /// The last acknowledged write; `None` before the first.
    pub acked: Option<Write>,
    /// Writes in doubt, oldest first.
    #[serde(default)]
    pub doubts: Vec<Write>,
}

/// A read compared with the known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The last acknowledged write.
    Held,
    /// A write in doubt that began after the last acknowledged one.
    InDoubt,
    /// A write in doubt that began before the last acknowledged one.
    Late,
    /// No object, although a put was acknowledged.
    Lost,
    /// An acknowledged write that a later one has overwritten.
    Stale,
    /// An object, although a delete was acknowledged.
    Resurrected,
    /// A whole write that no worker made.
    Invented,
    /// Not a whole write of this key.
    Torn,
}

impl Verdict {
    /// Whether a correct endpoint may show it; `strict` rejects late writes.
    #[must_use]
    pub const fn is_right(self, strict: bool) -> bool {
        match self {
            Self::Held | Self::InDoubt => true,
            Self::Late => !strict,
            _ => false,
        }
    }
}

impl KeyState {
    /// The number for the next write.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        let doubts = self.doubts.iter().map(|write| write.seq);
        doubts.chain(self.acked.map(|write| write.seq)).max().map_or(1, |last| last + 1)
    }

    /// Whether an object is known to exist: a read must find one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.acked.is_some_and(|write| write.size.is_some())
    }

    /// Bytes of the object that is known to exist.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.acked?.size
    }

    /// Whether one more write in doubt fits.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.doubts.len() < DOUBTS_MAX
    }

    /// Records that `write` was acknowledged.
    pub const fn ack(&mut self, write: Write) {
        self.acked = Some(write);
    }

    /// Records that the outcome of `write` is unknown.
    ///
    /// # Panics
    /// When the key [is not writable](Self::is_writable).
    pub fn doubt(&mut self, write: Write) {
        assert!(self.is_writable(), "a key with many doubts is not written");
        self.doubts.push(write);
    }

    /// The verdict on a read; `None` is no object.
    #[must_use]
    pub fn judge(&self, seen: Result<Option<Seen>, Torn>) -> Verdict {
        let Ok(seen) = seen else { return Verdict::Torn };
        let acked = self.acked.unwrap_or(Write { seq: 0, size: None });
        if acked.shows(seen) {
            return Verdict::Held;
        }
        // Among deletes that may have taken effect, the newest is the most lenient.
        if let Some(doubt) = self.doubts.iter().rev().find(|write| write.shows(seen)) {
            return if doubt.seq > acked.seq { Verdict::InDoubt } else { Verdict::Late };
        }
        match seen {
            None => Verdict::Lost,
            Some(seen) if seen.seq >= acked.seq => Verdict::Invented,
            Some(_) if acked.size.is_none() => Verdict::Resurrected,
            Some(_) => Verdict::Stale,
        }
    }
}

/// The known state of the keys of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// The bucket.
    pub bucket: String,
    /// The keys.
    pub keys: BTreeMap<String, KeyState>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    millpond_s3_journal: u32,
    bucket: String,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    #[serde(flatten)]
    state: KeyState,
}

impl Journal {
    /// Reads a journal; `None` when the file does not exist.
    ///
    /// # Errors
    /// [`LoadError::Journal`] with the line.
    pub fn read(path: &Path) -> Result<Option<Self>, LoadError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map(Some).map_err(|why| refused(path, why)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused(path, error.to_string())),
        }
    }

    /// Writes the journal atomically: the file is the old one or the whole new one.
    ///
    /// # Errors
    /// [`LoadError::Journal`].
    pub fn write(&self, path: &Path) -> Result<(), LoadError> {
        let text = self.to_text().map_err(|error| refused(path, error.to_string()))?;
        files::publish(path, &[text.as_bytes()]).map_err(|error| refused(path, error.to_string()))
    }

    fn to_text(&self) -> serde_json::Result<String> {
        let head = Head { millpond_s3_journal: VERSION, bucket: self.bucket.clone() };
        let mut text = serde_json::to_string(&head)? + "\n";
        for (key, state) in &self.keys {
            let line = Line { key: key.clone(), state: state.clone() };
            text += &serde_json::to_string(&line)?;
            text.push('\n');
        }
        Ok(text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate();
        let (_, head) = lines.next().ok_or("is empty")?;
        let head: Head = serde_json::from_str(head).map_err(|error| format!("line 1: {error}"))?;
        if head.millpond_s3_journal != VERSION {
            return Err(format!("has version {}, not {VERSION}", head.millpond_s3_journal));
        }
        let mut keys = BTreeMap::new();
        for (index, line) in lines {
            let Line { key, state } = serde_json::from_str(line)
                .map_err(|error| format!("line {}: {error}", index + 1))?;
            if keys.insert(key, state).is_some() {
                return Err(format!("line {}: the key appears twice", index + 1));
            }
        }
        Ok(Self { bucket: head.bucket, keys })
    }
}

fn refused(path: &Path, why: String) -> LoadError {
    LoadError::Journal { path: path.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::{Journal, KeyState, Verdict, Write};
    use crate::content::{Seen, Torn};

    const fn put(seq: u64) -> Write {
        Write { seq, size: Some(100) }
    }

    const fn delete(seq: u64) -> Write {
        Write { seq, size: None }
    }

    fn state(acked: Option<Write>, doubts: &[Write]) -> KeyState {
        KeyState { acked, doubts: doubts.to_vec() }
    }

    const fn shown(seq: u64) -> Seen {
        Seen { seq, size: 100 }
    }

    #[test]
    fn verdicts() {
        let cases = [
            (state(None, &[]), Ok(None), Verdict::Held),
            (state(None, &[]), Ok(Some(shown(1))), Verdict::Invented),
            (state(Some(put(3)), &[]), Ok(Some(shown(3))), Verdict::Held),
            (state(Some(put(3)), &[]), Ok(Some(shown(2))), Verdict::Stale),
            (state(Some(put(3)), &[]), Ok(Some(shown(4))), Verdict::Invented),
            (state(Some(put(3)), &[]), Ok(Some(Seen { seq: 3, size: 99 })), Verdict::Invented),
            (state(Some(put(3)), &[]), Ok(None), Verdict::Lost),
            (state(Some(put(3)), &[]), Err(Torn::Foreign), Verdict::Torn),
            (state(Some(put(3)), &[put(4)]), Ok(Some(shown(3))), Verdict::Held),
            (state(Some(put(3)), &[put(4)]), Ok(Some(shown(4))), Verdict::InDoubt),
            (state(Some(put(3)), &[put(4)]), Ok(None), Verdict::Lost),
            (state(Some(put(3)), &[delete(4)]), Ok(None), Verdict::InDoubt),
            (state(Some(put(3)), &[put(2)]), Ok(Some(shown(2))), Verdict::Late),
            (state(Some(put(3)), &[delete(2)]), Ok(None), Verdict::Late),
            (state(Some(put(3)), &[delete(2), delete(4)]), Ok(None), Verdict::InDoubt),
            (state(Some(delete(3)), &[]), Ok(None), Verdict::Held),
            (state(Some(delete(3)), &[]), Ok(Some(shown(2))), Verdict::Resurrected),
            (state(Some(delete(3)), &[put(2)]), Ok(Some(shown(2))), Verdict::Late),
            (state(Some(delete(3)), &[put(4)]), Ok(Some(shown(4))), Verdict::InDoubt),
        ];
        for (state, seen, verdict) in cases {
            assert_eq!(state.judge(seen), verdict, "{state:?} shows {seen:?}");
        }
        assert!(Verdict::Late.is_right(false) && !Verdict::Late.is_right(true));
    }

    #[test]
    fn numbers_go_on_behind_doubts() {
        assert_eq!(state(None, &[]).next_seq(), 1);
        assert_eq!(state(Some(put(3)), &[put(2), delete(7)]).next_seq(), 8);
    }

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        assert_eq!(Journal::read(&path).unwrap(), None);
        let mut journal = Journal { bucket: "b".to_owned(), ..Journal::default() };
        journal.keys.insert("a\"/\n".to_owned(), state(Some(put(3)), &[delete(2), put(4)]));
        journal.keys.insert("b".to_owned(), state(None, &[]));
        journal.write(&path).unwrap();
        assert_eq!(Journal::read(&path).unwrap(), Some(journal));
    }

    #[test]
    fn a_damaged_journal_is_refused_with_the_line() {
        let head = r#"{"millpond_s3_journal":1,"bucket":"b"}"#;
        let key = r#"{"key":"k","acked":null}"#;
        let cases = [
            (String::new(), "is empty"),
            (head.replace('1', "2"), "has version 2, not 1"),
            (format!("{head}\n{key}\n{{\"key\":"), "line 3: "),
            (format!("{head}\n{key}\n{key}"), "line 3: the key appears twice"),
        ];
        for (text, why) in cases {
            let error = Journal::parse(&text).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
