//! Bytes of a chunk in memory: as they are, or with a part that has yet to be put in its place.
//!
//! A small write makes a version of a chunk that is as the one before but for a part. Until it replaces that one both may be
//! read; most often nobody does, and then the part is put in its place in the very memory of the version before: of a write of
//! 4 KiB into a chunk of 256 KiB that is a sixth of a node's processor, and the disk's completion waited for the copy.

use std::sync::Arc;

use millpond_env::{Buf, SharedBuf};

/// Bytes of a chunk.
#[derive(Debug)]
pub(crate) struct Content {
    /// What they are; with a part over them, what the version before is.
    bytes: SharedBuf,
    over: Option<Box<Over>>,
}

/// A part, and room for all with it, so that nobody who wants that can be refused.
#[derive(Debug)]
struct Over {
    room: Buf,
    part: Part,
}

/// New bytes that lie over those of the version before.
#[derive(Debug)]
struct Part {
    start: usize,
    bytes: Arc<[u8]>,
}

impl From<SharedBuf> for Content {
    fn from(bytes: SharedBuf) -> Self {
        Self { bytes, over: None }
    }
}

impl Part {
    /// How many bytes there are with the part over so many.
    fn len(&self, below: usize) -> usize {
        below.max(self.start + self.bytes.len())
    }

    /// Makes of `below` bytes, at the begin of `buf`, those with the part over them.
    fn put_in_place(&self, mut buf: Buf, below: usize) -> SharedBuf {
        let len = self.len(below);
        let all = &mut buf.as_full_mut()[..len];
        all[below..].fill(0);
        all[self.start..self.start + self.bytes.len()].copy_from_slice(&self.bytes);
        buf.set_len(len);
        buf.freeze()
    }
}

impl Over {
    fn copied(self, below: &SharedBuf) -> SharedBuf {
        let Self { mut room, part } = self;
        room.as_full_mut()[..below.len()].copy_from_slice(below);
        part.put_in_place(room, below.len())
    }
}

impl Content {
    /// What `below` is with a part from byte `start` on, zeros between its end and there. `room` is for all of it.
    pub(crate) fn patched(below: SharedBuf, room: Buf, (start, bytes): (usize, Arc<[u8]>)) -> Self {
        let part = Part { start, bytes };
        Self { bytes: below, over: Some(Box::new(Over { room, part })) }
    }

    pub(crate) fn len(&self) -> usize {
        let below = self.bytes.len();
        self.over.as_ref().map_or(below, |over| over.part.len(below))
    }

    /// Whether somebody else has the memory too.
    pub(crate) fn is_shared(&self) -> bool {
        self.bytes.shared_count() > 1
    }

    /// The bytes, which stay as they are as long as they are kept.
    pub(crate) fn get(&mut self) -> SharedBuf {
        if let Some(over) = self.over.take() {
            self.bytes = over.copied(&self.bytes);
        }
        self.bytes.clone()
    }

    /// The same when the version before is no more: nobody gets its bytes from now on. Where somebody still has them they
    /// stay as they are.
    pub(crate) fn settled(self) -> Self {
        let Self { bytes, over } = self;
        let Some(over) = over else { return bytes.into() };
        let below = bytes.len();
        if !bytes.is_from_start() || over.part.len(below) > bytes.allocated() {
            return over.copied(&bytes).into();
        }
        match bytes.try_unique() {
            Ok(buf) => over.part.put_in_place(buf, below).into(),
            Err(bytes) => over.copied(&bytes).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_env::{BufferPool, PoolOptions};

    use super::*;

    fn patched(pool: &BufferPool, below: SharedBuf, start: usize, part: &[u8]) -> Content {
        let room = pool.try_alloc(below.len().max(start + part.len())).unwrap();
        Content::patched(below, room, (start, part.into()))
    }

    fn pool() -> BufferPool {
        BufferPool::new(PoolOptions::new(1 << 20)).unwrap()
    }

    fn buf(pool: &BufferPool, bytes: &[u8]) -> SharedBuf {
        pool.try_copy(bytes).unwrap().freeze()
    }

    #[test]
    fn a_part_goes_into_memory_that_nobody_else_has() {
        let pool = pool();
        let below = buf(&pool, &[1; 6000]);
        let at = below.pool_offset();
        let mut content = patched(&pool, below, 5000, &[2; 3000]).settled();
        assert_eq!((content.len(), content.is_shared()), (8000, false));
        let bytes = content.get();
        assert_eq!(bytes.pool_offset(), at, "nothing was copied");
        assert_eq!(*bytes, *[[1; 5000].as_slice(), &[2; 3000]].concat());
    }

    #[test]
    fn who_reads_the_version_before_keeps_it() {
        let pool = pool();
        let below = buf(&pool, &[1; 100]);
        let kept = below.clone();
        let mut content = patched(&pool, below, 40, &[2; 10]);
        // Of the new version a reader gets the new bytes, before it is settled and after.
        let wanted = [[1; 40].as_slice(), &[2; 10], &[1; 50]].concat();
        assert_eq!(*content.get(), wanted);
        assert_eq!(*content.settled().get(), wanted);
        let mut other = patched(&pool, kept.clone(), 200, &[3; 10]).settled();
        assert_eq!(*other.get(), *[[1; 100].as_slice(), &[0; 100], &[3; 10]].concat());
        assert_eq!(*kept, [1; 100]);
    }

    #[test]
    fn what_does_not_fit_its_memory_is_copied() {
        let pool = pool();
        let whole = buf(&pool, &[[1; 10], [2; 10]].concat());
        let second = whole.slice(10..20);
        drop(whole);
        assert_eq!(
            *patched(&pool, second, 0, &[3]).settled().get(),
            *[[3; 1].as_slice(), &[2; 9]].concat()
        );
        let short = buf(&pool, &[1; 10]);
        let end = short.allocated() + 5;
        let mut longer = patched(&pool, short, end, &[4]).settled();
        assert_eq!((longer.len(), longer.get()[end], longer.get()[end - 1]), (end + 1, 4, 0));
    }
}
