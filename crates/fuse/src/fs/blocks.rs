//! The number of allocated blocks of a file (`st_blocks`): programs that copy or pack files detect
//! holes by it.
//!
//! Everything before the solid length is allocated. Beyond it the chunks are queried, once per
//! state of the file. Until then the kernel gets the length, and must not cache it.

use millpond_client::FileBytes as Bytes;
use millpond_types::meta::{Attr, FileKind, Ino, STORED_MAX};
use quick_cache::sync::Cache;

use super::holes::{ASKED, LOOKED_MAX};
use super::{BLOCK, Fs};
use crate::errno::Errno;
use crate::options::Mode;
use crate::recent;

/// Bytes of a block of `st_blocks`.
const UNIT: u64 = 512;
/// The number of remembered files.
const COUNTED_MAX: usize = 1 << 14;
/// The smallest number of blocks of a file opened for writing: the kernel may have pages of it that
/// it has not written back, and some programs treat a file without blocks as a hole.
const WRITTEN_MIN: u64 = 8;

/// A state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    version: u64,
    chunks: u64,
    size: u64,
}

impl State {
    const fn of(attr: &Attr) -> Self {
        Self { version: attr.version, chunks: attr.chunk_data(), size: attr.size }
    }
}

/// Cached numbers of bytes of files with holes.
#[derive(Debug)]
pub(crate) struct Counted(Cache<u64, (State, u64)>);

impl Default for Counted {
    fn default() -> Self {
        Self(recent::shared(COUNTED_MAX))
    }
}

impl Fs {
    /// The number of blocks of a file; `None` when its chunks must be queried first.
    pub(super) fn blocks(&self, attr: &Attr) -> Option<u64> {
        if attr.is_stored() && attr.kind == FileKind::Regular {
            let known = self.backend.contents.get(&attr.ino.0);
            let known = known.filter(|content| content.attr.version == attr.version);
            let bytes = known.map_or(STORED_MAX, |content| content.bytes.len());
            // In blocks of local file systems, if the file is that long.
            let bytes = (bytes as u64).next_multiple_of(u64::from(BLOCK));
            return Some(attr.size.min(bytes).div_ceil(UNIT));
        }
        if !self.may_have_holes(attr) {
            return Some(attr.size.div_ceil(UNIT));
        }
        let counted = self.counted.0.get(&attr.ino.0);
        let (_, bytes) = counted.filter(|(state, _)| *state == State::of(attr))?;
        let least = if self.may_be_written(attr.ino) { WRITTEN_MIN } else { 0 };
        Some(bytes.div_ceil(UNIT).max(least))
    }

    /// Queries the chunks of a file with an unknown number of blocks.
    pub(super) fn count_blocks(&self, attr: &Attr) {
        if self.blocks(attr).is_some() {
            return;
        }
        match self.count(attr) {
            Ok(bytes) => self.counted.0.insert(attr.ino.0, (State::of(attr), bytes)),
            // The kernel then gets the length.
            Err(Errno(errno)) => {
                tracing::debug!("cannot count the blocks of inode {}: errno {errno}", attr.ino);
            }
        }
    }

    /// Whether a file may have holes. In one-writer mode the kernel has bytes that this process
    /// does not know.
    fn may_have_holes(&self, attr: &Attr) -> bool {
        attr.kind == FileKind::Regular
            && !attr.is_shared
            && attr.solid < attr.size
            && self.mode != Mode::OneWriter
            && !self.files().is_untold(attr.ino)
    }

    fn may_be_written(&self, ino: Ino) -> bool {
        self.files().get(ino).is_some_and(|file| file.may_be_written())
    }

    fn count(&self, attr: &Attr) -> Result<u64, Errno> {
        let bytes = Bytes::of(attr);
        let chunk = bytes.layout.chunk_bytes().max(1);
        count(attr, chunk, |some| self.lens_of(bytes, some))
    }
}

/// The number of allocated bytes of a file; `lens` returns the lengths of its chunks.
fn count(
    attr: &Attr,
    chunk: u64,
    mut lens: impl FnMut(std::ops::Range<u32>) -> Result<Vec<u32>, Errno>,
) -> Result<u64, Errno> {
    let index = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let (first, end) = (index(attr.solid / chunk), index(attr.size.div_ceil(chunk)));
    let last = end.min(first.saturating_add(LOOKED_MAX));
    let mut there = u64::from(first) * chunk;
    let mut at = first;
    while at < last {
        let some = at..last.min(at.saturating_add(ASKED));
        for (n, len) in some.clone().zip(lens(some.clone())?) {
            let start = u64::from(n) * chunk;
            let solid = attr.solid.saturating_sub(start).min(chunk);
            there += u64::from(len).max(solid).min(attr.size - start);
        }
        at = some.end;
    }
    // Chunks that were not queried count as full.
    Ok(there + attr.size.saturating_sub(u64::from(last) * chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::attr;

    #[test]
    fn what_is_there_is_counted_by_the_lengths_of_chunks() {
        let lens = [1000, 100, 0, 10, 1000, 1000];
        let some = |range: std::ops::Range<u32>| Ok(range.map(|n| lens[n as usize]).collect());
        let of = |size, solid| Attr { solid, ..attr(size, 1) };
        assert_eq!(count(&of(5300, 0), 1000, some), Ok(2410), "the last one ends with the file");
        assert_eq!(count(&of(5300, 1050), 1000, some), Ok(2410));
        assert_eq!(count(&of(5300, 1500), 1000, some), Ok(2810), "a solid byte is there");
        assert_eq!(count(&of(5300, 2000), 1000, some), Ok(3310));
        let none = |range: std::ops::Range<u32>| Ok(vec![0; range.len()]);
        let looked = u64::from(LOOKED_MAX) * 1000;
        assert_eq!(count(&of(looked + 7, 0), 1000, none), Ok(7), "nobody looked there");
    }
}
