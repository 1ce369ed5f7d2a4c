//! Moving a small file's bytes from the store to chunks.
//!
//! An empty file moves when bytes are written: they go to the chunks of its data id, and then a
//! meta is told. A file with bytes moves to chunks of a reserved name, which no other client
//! writes, so that a client with a late copy does no harm.

use millpond_types::DataId;
use millpond_types::meta::{
    Attr, Content, Extend, Filled, Ino, MetaOp, MetaReply, Reserve, Spill, Timestamp,
};

use crate::layout::FileBytes;

/// Attempts when other clients change the file.
const TRIES: usize = 64;

/// The cluster as seen by a writer of a file.
pub trait Door {
    /// The error type.
    type Error;

    /// Has a meta execute an operation.
    ///
    /// # Errors
    /// The meta's error, or the error that none answers.
    fn ask(&mut self, op: MetaOp) -> Result<MetaReply, Self::Error>;

    /// Writes to chunks, durably; overlapping parts in their order. False when they are sealed: the
    /// file has moved there, and was cloned.
    ///
    /// # Errors
    /// When the write is not certain to have been done.
    fn write(&mut self, bytes: FileBytes, parts: &[(u64, &[u8])]) -> Result<bool, Self::Error>;

    /// Removes written chunks that belong to no file; if that fails, a check finds them.
    fn remove(&mut self, bytes: FileBytes, parts: &[(u64, &[u8])]);

    /// The error for an unexpected answer of a meta, or for too many changes of the file.
    fn unexpected(&mut self) -> Self::Error;
}

/// Outcome of a write to a file that was believed to be in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spilled {
    /// The file, with its bytes in chunks.
    pub attr: Attr,
    /// Whether the bytes are in it, and a meta knows of them. Otherwise another client moved it to
    /// chunks.
    pub written: bool,
    /// [`Attr::cuts`] as known before the write.
    pub cuts: u32,
}

fn attr<D: Door>(door: &mut D, op: MetaOp) -> Result<Attr, D::Error> {
    match door.ask(op)? {
        MetaReply::Attr(attr) => Ok(attr),
        _ => Err(door.unexpected()),
    }
}

fn content<D: Door>(door: &mut D, ino: Ino) -> Result<Content, D::Error> {
    match door.ask(MetaOp::Content { ino })? {
        MetaReply::Content(content) => Ok(content),
        _ => Err(door.unexpected()),
    }
}

/// Length from the first byte on that these parts cover without a gap.
fn solid(parts: &[(u64, &[u8])]) -> u64 {
    let mut ranges: Vec<(u64, u64)> =
        parts.iter().map(|(offset, bytes)| (*offset, offset + bytes.len() as u64)).collect();
    ranges.sort_unstable();
    let reach =
        |solid: u64, (from, to): (u64, u64)| if from <= solid { solid.max(to) } else { solid };
    ranges.into_iter().fold(0, reach)
}

/// Moves a file in the store to chunks and writes these parts to it, with this time if there are
/// any. An empty file stays in the store while there are no parts.
///
/// # Errors
/// The door's. Then the file is unchanged, or the parts are in it.
pub fn spill<D: Door>(
    door: &mut D,
    known: Attr,
    parts: &[(u64, &[u8])],
    mtime: Option<Timestamp>,
) -> Result<Spilled, D::Error> {
    let ends = parts.iter().map(|(offset, bytes)| offset + bytes.len() as u64);
    let (ino, size) = (known.ino, ends.max().unwrap_or(0));
    let mut known = known;
    for _ in 0..TRIES {
        if known.size == 0 && parts.is_empty() {
            return Ok(Spilled { attr: known, written: true, cuts: known.cuts });
        }
        if !known.is_stored() {
            return Ok(Spilled { attr: known, written: false, cuts: known.cuts });
        }
        let (to, told, cuts) = if known.size == 0 {
            let to = FileBytes::of(&known);
            if !door.write(to, parts)? {
                known = content(door, ino)?.attr;
                continue;
            }
            let mtime = mtime.unwrap_or(known.mtime);
            let filled = Filled { from: 0, to: solid(parts), cuts: known.cuts };
            let extend = Extend { ino, data: to.data.0, size, mtime, filled };
            (to, attr(door, MetaOp::Extend(extend))?, known.cuts)
        } else {
            let reserve = MetaOp::Reserve(Reserve { ino, size: size.max(known.size) });
            let MetaReply::Reserved(chunks) = door.ask(reserve)? else {
                return Err(door.unexpected());
            };
            let Content { attr: read, bytes } = content(door, ino)?;
            if !read.is_stored() || read.size == 0 {
                known = read;
                continue;
            }
            let to = FileBytes { data: DataId(chunks), ..FileBytes::of(&read) };
            let first = (!bytes.is_empty()).then_some((0, &bytes[..]));
            let all: Vec<(u64, &[u8])> = first.into_iter().chain(parts.iter().copied()).collect();
            if !door.write(to, &all)? {
                // No file has this name.
                return Err(door.unexpected());
            }
            let (version, solid) = (read.version, solid(&all));
            let spill = Spill { ino, version, chunks, size, solid, mtime };
            (to, attr(door, MetaOp::Spill(spill))?, read.cuts)
        };
        if told.chunks == Some(to.data.0) {
            return Ok(Spilled { attr: told, written: true, cuts });
        }
        // The name has not become that of the file's chunks, and cannot any more. A reserved name
        // is garbage.
        if known.size == 0 {
            door.remove(to, parts);
        }
        known = told;
    }
    Err(door.unexpected())
}

#[cfg(test)]
pub(crate) mod tests;
