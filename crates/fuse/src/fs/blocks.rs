//! How much of a file there is (`st_blocks`): programs that copy or pack files see by it which of them have holes.
//!
//! What lies before the solid length is there. Behind it the chunks are asked for, once for each state of the file; until
//! they were, the kernel is told the length, and keeps that for no time.

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
/// Files that are remembered.
const COUNTED_MAX: usize = 1 << 14;
/// A file that is open to be written, in blocks, at least: the kernel may have pages of it that it has not written back, and
/// what has no blocks at all counts as a hole for some programs.
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

/// Bytes of files that have holes.
#[derive(Debug)]
pub(crate) struct Counted(Cache<u64, (State, u64)>);

impl Default for Counted {
    fn default() -> Self {
        Self(recent::shared(COUNTED_MAX))
    }
}

impl Fs {
    /// How many blocks a file has; nothing where its chunks have to be asked for first.
    pub(super) fn blocks(&self, attr: &Attr) -> Option<u64> {
        if attr.is_stored() && attr.kind == FileKind::Regular {
            let known = self.backend.contents.get(&attr.ino.0);
            let known = known.filter(|it| it.attr.version == attr.version);
            let bytes = known.map_or(STORED_MAX, |content| content.bytes.len());
            // In blocks of local file systems, where the file is as long.
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

    /// Asks for the chunks of a file of which that is not known.
    pub(super) fn count_blocks(&self, attr: &Attr) {
        if self.blocks(attr).is_some() {
            return;
        }
        match self.count(attr) {
            Ok(bytes) => self.counted.0.insert(attr.ino.0, (State::of(attr), bytes)),
            // The kernel is told the length.
            Err(Errno(errno)) => tracing::debug!("counting inode {}: errno {errno}", attr.ino),
        }
    }

    /// In one-writer mode the kernel has bytes that nobody here knows of.
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

/// The bytes that are there of a file behind its solid length and before it; `lens` tells how many chunks have.
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
    // What was not looked at counts as bytes.
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
