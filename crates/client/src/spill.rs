//! The way of a file's bytes from the store, where those of small files lie, to chunks.
//!
//! An empty file goes there by what is written: to the chunks of its data id, and then a meta is told. One that
//! has bytes goes to chunks of a reserved name, which nobody else writes to, so that a client that is late
//! with its copy spoils nothing.

use millpond_types::DataId;
use millpond_types::meta::{
    Attr, Content, Extend, Filled, Ino, MetaOp, MetaReply, Reserve, Spill, Timestamp,
};

use crate::layout::FileBytes;

/// How often it is begun anew because somebody else has changed the file.
const TRIES: usize = 64;

/// The cluster, as somebody sees it who writes to a file.
pub trait Door {
    /// How it fails.
    type Error;

    /// Has a meta do something.
    ///
    /// # Errors
    /// What it says, or that none answers.
    fn ask(&mut self, op: MetaOp) -> Result<MetaReply, Self::Error>;

    /// Writes to chunks, durably; parts that overlap in their order. False when they are sealed: the file has gone
    /// there, and was cloned.
    ///
    /// # Errors
    /// When that is not sure to have been done.
    fn write(&mut self, bytes: FileBytes, parts: &[(u64, &[u8])]) -> Result<bool, Self::Error>;

    /// Removes chunks that were written and are nobody's; when that fails, a check finds them.
    fn remove(&mut self, bytes: FileBytes, parts: &[(u64, &[u8])]);

    /// A meta answered something else than it was asked for, or something new again and again.
    fn unexpected(&mut self) -> Self::Error;
}

/// What became of bytes for a file that was believed to be in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spilled {
    /// The file, whose bytes lie in chunks.
    pub attr: Attr,
    /// Whether the bytes are in it, and a meta knows of them. Otherwise somebody else brought it to chunks.
    pub written: bool,
    /// [`Attr::cuts`], as it was known before they were written.
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

/// How far bytes from the first one on are among these parts, without a gap.
fn solid(parts: &[(u64, &[u8])]) -> u64 {
    let mut ranges: Vec<(u64, u64)> =
        parts.iter().map(|(offset, bytes)| (*offset, offset + bytes.len() as u64)).collect();
    ranges.sort_unstable();
    let reach =
        |solid: u64, (from, to): (u64, u64)| if from <= solid { solid.max(to) } else { solid };
    ranges.into_iter().fold(0, reach)
}

/// Brings a file that lies in the store to chunks, and writes these parts to it with that, at this time if there are
/// any. A file without bytes stays where it is while there are none.
///
/// # Errors
/// The door's. Then the file is as it was, or the parts are in it.
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
                // Nobody has this name.
                return Err(door.unexpected());
            }
            let (version, solid) = (read.version, solid(&all));
            let spill = Spill { ino, version, chunks, size, solid, mtime };
            (to, attr(door, MetaOp::Spill(spill))?, read.cuts)
        };
        if told.chunks == Some(to.data.0) {
            return Ok(Spilled { attr: told, written: true, cuts });
        }
        // Their name has not become that of the file's chunks, and cannot any more. A reserved one is garbage.
        if known.size == 0 {
            door.remove(to, parts);
        }
        known = told;
    }
    Err(door.unexpected())
}

#[cfg(test)]
pub(crate) mod tests;
