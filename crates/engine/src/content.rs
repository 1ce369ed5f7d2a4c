//! Bytes of a chunk in memory: plain, or with a part that is not yet copied into its place.
//!
//! A small write makes a version of a chunk that differs from the previous one in one part. Until
//! it replaces that version, both may be read. Mostly neither is, and then the part is copied
//! straight into the memory of the previous version. Copying the whole chunk instead took a sixth
//! of a node's processor for writes of 4 KiB into chunks of 256 KiB, and the disk's completion
//! waited for the copy.

use std::sync::Arc;

use millpond_env::{Buf, SharedBuf};

/// Bytes of a chunk.
#[derive(Debug)]
pub(crate) struct Content {
    /// The bytes, or those of the previous version when there is a part over them.
    bytes: SharedBuf,
    over: Option<Box<Over>>,
}

/// A part, and room for the whole result, reserved ahead so that a read cannot fail for lack of
/// memory.
#[derive(Debug)]
struct Over {
    room: Buf,
    part: Part,
}

/// New bytes over those of the previous version.
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
    /// Length of the result of this part over `below` bytes.
    fn len(&self, below: usize) -> usize {
        below.max(self.start + self.bytes.len())
    }

    /// Puts the part over the first `below` bytes of `buf`.
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
    /// Content of `below` with a part from byte `start` on, and zeros in any gap before the part.
    /// `room` holds the whole result.
    pub(crate) fn patched(below: SharedBuf, room: Buf, (start, bytes): (usize, Arc<[u8]>)) -> Self {
        let part = Part { start, bytes };
        Self { bytes: below, over: Some(Box::new(Over { room, part })) }
    }

    pub(crate) fn len(&self) -> usize {
        let below = self.bytes.len();
        self.over.as_ref().map_or(below, |over| over.part.len(below))
    }

    /// Whether another owner shares the memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.bytes.shared_count() > 1
    }

    /// The bytes; they stay unchanged while the caller keeps them.
    pub(crate) fn get(&mut self) -> SharedBuf {
        if let Some(over) = self.over.take() {
            self.bytes = over.copied(&self.bytes);
        }
        self.bytes.clone()
    }

    /// Content once the previous version is replaced: nobody reads its bytes from now on. Bytes
    /// that another owner still keeps stay unchanged.
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
        // A reader of the new version gets the new bytes, before it is settled and after.
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
