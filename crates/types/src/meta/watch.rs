//! Changes of the file namespace, for mounts that cache answers (`Verb::MetaWatch`), and answers
//! with the version of the store that they hold for.

use super::{Attr, Ino, MetaAnswer, MetaReply, Name};
use crate::wire::{Reader, WireError, Writer};

/// Changes of one answer: a busy volume makes some thousands during one round trip.
pub const CHANGES_MAX: usize = 16_384;
/// Most directories in which one operation makes or removes names.
pub const TOUCHED_MAX: usize = 2;
/// Longest wait for changes in ms.
pub const WATCH_MS_MAX: u32 = 10_000;

/// An answer of a meta, and the version of the store that it describes. A change with a later
/// version may invalidate it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The answer.
    pub answer: MetaAnswer,
    /// The version of the store; 0 when it is unknown, because the answer was given to an earlier
    /// attempt.
    pub version: u64,
    /// State right after a change; empty if an earlier attempt made the change.
    pub after: After,
}

/// State of the store right after a change, as NFS reports it (RFC 1813, 2.6, `wcc_data`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// The version that the change made; 0 when it is unknown, or nothing was changed.
    pub version: u64,
    /// Directories in which names were made or removed, as of that version; at most
    /// [`TOUCHED_MAX`].
    pub dirs: Vec<Attr>,
}

impl Answered {
    /// Encodes the metadata of the reply.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(18 + 128 * self.after.dirs.len());
        w.u64(self.version);
        w.u64(self.after.version);
        w.count(self.after.dirs.len());
        for attr in &self.after.dirs {
            attr.encode(&mut w);
        }
        [w.into_bytes(), MetaReply::encode_answer(&self.answer)].concat()
    }

    /// Decodes the metadata of the reply.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let (version, made) = (r.u64()?, r.u64()?);
        let n = r.count(TOUCHED_MAX, Attr::BYTES_MIN, "changed directories")?;
        let dirs = (0..n).map(|_| Attr::decode(&mut r)).collect::<Result<_, _>>()?;
        let answer = MetaReply::decode_answer(r.rest())?;
        Ok(Self { answer, version, after: After { version: made, dirs } })
    }
}

/// Request for changes: the metadata of a `Verb::MetaWatch` request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaWatch {
    /// Changes made by this session are left out.
    pub session: u64,
    /// Version of the store after which changes are wanted; 0 asks for the newest version only.
    pub after: u64,
    /// Longest wait for changes in ms, at most [`WATCH_MS_MAX`].
    pub wait_ms: u32,
}

/// The part of the namespace that changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    /// The attributes of an inode, the data id or length of its bytes, or its existence.
    Inode(Ino),
    /// The inode of a name in a directory, or the existence of the name.
    Name(Ino, Name),
}

/// Changes: the metadata of a `Verb::MetaWatch` reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaNews {
    /// The answer includes every change up to this version; the next request asks for later ones.
    pub version: u64,
    /// The meta no longer knows the changes between the request's version and this one: the client
    /// must drop its whole cache. `changes` is empty then.
    pub gap: bool,
    /// The changes in order, each with the version that it made.
    pub changes: Vec<(u64, Changed)>,
}

impl MetaWatch {
    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(20);
        w.u64(self.session);
        w.u64(self.after);
        w.u32(self.wait_ms);
        w.into_bytes()
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let watch = Self { session: r.u64()?, after: r.u64()?, wait_ms: r.u32()? };
        r.finish()?;
        if watch.wait_ms > WATCH_MS_MAX {
            return Err(WireError::Field("wait for changes"));
        }
        Ok(watch)
    }
}

impl MetaNews {
    /// Encodes an answer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(13 + 17 * self.changes.len());
        w.u64(self.version);
        w.u8(u8::from(self.gap));
        w.count(self.changes.len());
        for (version, changed) in &self.changes {
            w.u64(*version);
            match changed {
                Changed::Inode(ino) => {
                    w.u8(0);
                    w.u64(ino.0);
                }
                Changed::Name(dir, name) => {
                    w.u8(1);
                    w.u64(dir.0);
                    name.encode(&mut w);
                }
            }
        }
        w.into_bytes()
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let (version, gap) = (r.u64()?, super::request::flag(&mut r, "gap")?);
        let n = r.count(CHANGES_MAX, 17, "changes of the namespace")?;
        let mut changes = Vec::with_capacity(n);
        for _ in 0..n {
            let at = r.u64()?;
            let what = match r.u8()? {
                0 => Changed::Inode(Ino(r.u64()?)),
                1 => Changed::Name(Ino(r.u64()?), Name::decode(&mut r)?),
                _ => return Err(WireError::Field("kind of a change")),
            };
            changes.push((at, what));
        }
        r.finish()?;
        Ok(Self { version, gap, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::MetaError;

    #[test]
    fn questions_and_answers_travel() {
        let watch = MetaWatch { session: 7, after: 1 << 40, wait_ms: 900 };
        assert_eq!(MetaWatch::decode(&watch.encode()), Ok(watch));
        let long = MetaWatch { wait_ms: WATCH_MS_MAX + 1, ..watch };
        assert_eq!(MetaWatch::decode(&long.encode()), Err(WireError::Field("wait for changes")));
        let name = Name::new(b"a").unwrap();
        let changes = vec![(8, Changed::Inode(Ino(5))), (9, Changed::Name(Ino(1), name))];
        let news = MetaNews { version: 9, gap: false, changes };
        let bytes = news.encode();
        assert_eq!(MetaNews::decode(&bytes), Ok(news));
        for end in 0..bytes.len() {
            MetaNews::decode(&bytes[..end]).unwrap_err();
        }
        for answer in [Ok(MetaReply::Done), Err(MetaError::NotFound)] {
            let answered = Answered { answer, version: 3, after: After::default() };
            assert_eq!(Answered::decode(&answered.encode()), Ok(answered));
        }
        let after = After { version: 4, dirs: vec![crate::meta::tests::attr(); TOUCHED_MAX] };
        let answered = Answered { answer: Ok(MetaReply::Done), version: 3, after };
        let bytes = answered.encode();
        assert_eq!(Answered::decode(&bytes), Ok(answered.clone()));
        for end in 0..bytes.len() {
            Answered::decode(&bytes[..end]).unwrap_err();
        }
        let mut more = answered;
        more.after.dirs.push(more.after.dirs[0]);
        Answered::decode(&more.encode()).unwrap_err();
    }
}
