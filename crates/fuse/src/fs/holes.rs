//! The data and holes of a file (`SEEK_DATA`, `SEEK_HOLE`), for programs that copy only data.
//!
//! Everything before the solid length is data. Beyond it chunks are queried: an absent chunk is a
//! hole, and so is the rest of a short one. A file with chunks shared by others, and a file opened
//! for writing, count as data everywhere.

use std::ops::Range;

use millpond_client::FileBytes as Bytes;
use millpond_fuse_wire::Reply;
use millpond_fuse_wire::abi::LseekIn;
use millpond_types::FileChunk;
use millpond_types::meta::{Attr, Content, Ino, MetaOp};
use millpond_types::wire::PlacedChunk;

use super::{Fs, Send};
use crate::backend::Ticket;
use crate::deadline;
use crate::errno::Errno;
use crate::options::Mode;

/// A file in the store has holes of whole blocks, as local ones do.
const BLOCK: u64 = super::BLOCK as u64;
/// Chunks that are queried at once.
pub(super) const ASKED: u32 = 1024;
/// Chunks that one request examines; the rest counts as data.
pub(super) const LOOKED_MAX: u32 = 1 << 16;

/// The target of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seek {
    Data,
    Hole,
}

/// The parts of a file that matter for a search.
#[derive(Clone, Copy, Debug)]
struct Shape {
    size: u64,
    solid: u64,
    chunk: u64,
}

/// The first match from `offset` on; `lens` returns the lengths of chunks. `None` when no byte
/// follows.
fn found(
    shape: Shape,
    (seek, offset): (Seek, u64),
    mut lens: impl FnMut(Range<u32>) -> Result<Vec<u32>, Errno>,
) -> Result<Option<u64>, Errno> {
    let Shape { size, solid, chunk } = shape;
    if seek == Seek::Data && offset < solid {
        return Ok(Some(offset));
    }
    let from = offset.max(solid.min(size));
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let (first, end) = (count(from / chunk), count(size.div_ceil(chunk)));
    let last = end.min(first.saturating_add(LOOKED_MAX));
    let mut at = first;
    while at < last {
        let some = at..last.min(at.saturating_add(ASKED));
        for (index, len) in some.clone().zip(lens(some.clone())?) {
            let start = u64::from(index) * chunk;
            let (begin, there) = (from.max(start), (start + u64::from(len)).min(size));
            match seek {
                Seek::Data if begin < there => return Ok(Some(begin)),
                Seek::Hole if there < (start + chunk).min(size) => {
                    return Ok(Some(begin.max(there)));
                }
                _ => {}
            }
        }
        at = some.end;
    }
    let behind = u64::from(last) * chunk;
    Ok(match seek {
        // Chunks that were not examined count as data.
        Seek::Data if last < end => Some(behind),
        Seek::Data => None,
        Seek::Hole if last < end => Some(behind + chunk),
        Seek::Hole => Some(size),
    })
}

/// The first match in a file in the store, which has its bytes at the beginning.
fn found_in_store(content: &Content, (seek, offset): (Seek, u64)) -> Option<u64> {
    let size = content.attr.size;
    let there = (content.bytes.len() as u64).next_multiple_of(BLOCK).min(size);
    match seek {
        _ if offset >= size => None,
        Seek::Data => (offset < there).then_some(offset),
        Seek::Hole => Some(offset.max(there).min(size)),
    }
}

impl Fs {
    pub(super) fn seek(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        args: &LseekIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let seek = match args.whence.cast_signed() {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        // This process does not know bytes that the kernel has not written back: the kernel then
        // treats the whole file as data.
        if self.mode == Mode::OneWriter {
            return Err(Errno::NOSYS);
        }
        let file = self.file(ticket, ino)?;
        if self.files().has_held(ino) {
            let _alone = deadline::write(&file.gate)?;
            self.unless_refused(ino, self.settle(&file))?;
        }
        let _shared = deadline::read(&file.gate)?;
        let attr = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
        if args.offset >= attr.size {
            return Err(Errno::NXIO);
        }
        if attr.is_stored()
            && !file.may_be_written()
            && let Some(content) = self.stored(ticket, &file, true)?
        {
            let place = found_in_store(&content, (seek, args.offset));
            send(Reply::Lseek(place.ok_or(Errno::NXIO)?));
            return Ok(());
        }
        let bytes = Bytes::of(&attr);
        // The kernel may have pages of a writable mapping that it has not written back.
        let is_full = attr.is_stored() || attr.is_shared || file.may_be_written();
        let solid = if is_full { attr.size } else { attr.solid };
        let chunk = bytes.layout.chunk_bytes().max(1);
        let look = |solid| {
            let shape = Shape { size: attr.size, solid, chunk };
            found(shape, (seek, args.offset), |some| self.lens_of(bytes, some))
        };
        let mut place = look(solid)?;
        if !is_full {
            // The lengths of old chunks are invalid for a file that was cut or cloned in the
            // meantime.
            let now = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
            let names =
                |attr: &Attr| (attr.data, attr.chunks, attr.cuts, attr.is_shared, attr.size);
            if names(&now) != names(&attr) {
                place = look(attr.size)?;
            }
        }
        send(Reply::Lseek(place.ok_or(Errno::NXIO)?));
        Ok(())
    }

    /// The lengths of these chunks in bytes; 0 for absent ones.
    pub(super) fn lens_of(&self, bytes: Bytes, some: Range<u32>) -> Result<Vec<u32>, Errno> {
        let place = |index| PlacedChunk {
            chain: bytes.layout.chain(index),
            chunk: FileChunk { data: bytes.data, index },
        };
        let chunks: Vec<PlacedChunk> = some.map(place).collect();
        let stats = self.backend.client.stat_chunks(&chunks, Some(deadline::patience()))?;
        Ok(stats.into_iter().map(|stat| stat.map_or(0, |chunk| chunk.len)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_store_has_its_hole_behind_its_bytes() {
        let attr = crate::files::tests::attr(10_000, 1);
        let content = Content { attr, bytes: vec![7; 10] };
        for (offset, data, hole) in [
            (0, Some(0), Some(4096)),
            (4095, Some(4095), Some(4096)),
            (4096, None, Some(4096)),
            (9999, None, Some(9999)),
            (10_000, None, None),
        ] {
            let look = |seek| found_in_store(&content, (seek, offset));
            assert_eq!((look(Seek::Data), look(Seek::Hole)), (data, hole), "from {offset}");
        }
    }

    #[test]
    fn holes_and_bytes_are_found_by_the_lengths_of_chunks() {
        // 100 bytes at 0; nothing; 10 bytes; full; and the end within the fifth.
        let lens = [100, 0, 10, 1000, 300];
        let shape = Shape { size: 4300, solid: 50, chunk: 1000 };
        let look = |seek, offset| {
            let all = |some: Range<u32>| Ok(some.map(|n| lens[n as usize]).collect());
            found(shape, (seek, offset), all).unwrap()
        };
        for (offset, data, hole) in [
            (0, Some(0), 100),
            (49, Some(49), 100),
            (99, Some(99), 100),
            (100, Some(2000), 100),
            (1500, Some(2000), 1500),
            (2005, Some(2005), 2010),
            (2010, Some(3000), 2010),
            (3000, Some(3000), 4300),
            (4299, Some(4299), 4300),
        ] {
            assert_eq!(look(Seek::Data, offset), data, "data from {offset}");
            assert_eq!(look(Seek::Hole, offset), Some(hole), "a hole from {offset}");
        }
        let sparse = Shape { size: 1 << 40, solid: 0, chunk: 1 << 18 };
        let mut asked = 0;
        let none = |some: Range<u32>| {
            asked += some.len();
            Ok(vec![0; some.len()])
        };
        let behind = u64::from(LOOKED_MAX) << 18;
        assert_eq!(found(sparse, (Seek::Data, 0), none).unwrap(), Some(behind), "it may be there");
        assert_eq!(asked, LOOKED_MAX as usize);
        let end = Shape { size: 2500, ..sparse };
        let none = |some: Range<u32>| Ok(vec![0; some.len()]);
        assert_eq!(found(end, (Seek::Data, 7), none).unwrap(), None);
    }
}
