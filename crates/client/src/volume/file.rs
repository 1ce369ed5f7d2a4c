//! An open file: batches of reads and writes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{Mutex, PerProcess, RealClock, RwLock};
use millpond_types::Tick;
use millpond_types::meta::{
    Attr, Content, Extend, FILE_BYTES_MAX, Filled, Hollow, INLINE_MAX, Ino, MetaError, MetaOp,
    MetaReply, SetAttr, Timestamp, WriteInline,
};

use super::session::{Metas, refused};
use super::{OpenOptions, Pending, Shared};
use crate::error::ClientError;
use crate::fills::Fills;
use crate::layout::{BehindLastChunk, FileBytes};
use crate::share::{Chunks, SharedName};
use crate::spill::{self, Door};

/// Greatest age of the known place of bytes when they are read: they get another name when the file
/// is written after it was cloned.
pub(super) const BELIEVED: Duration = Duration::from_secs(1);
/// Attempts to set a length when other clients move the file to chunks in the meantime.
const RESIZE_TRIES: usize = 8;
/// Attempts to read bytes that are missing from a file that other clients cut in the meantime.
const READ_TRIES: usize = 16;

/// State shared by the clones of a file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) shared: Arc<Shared>,
    path: String,
    options: OpenOptions,
    /// The attributes when it was opened; a child process starts with them.
    first: Attr,
    /// Whether it must be read as it was then, or not at all.
    is_fixed: AtomicBool,
    ours: PerProcess<Ours>,
}

/// State of an open file in one process.
#[derive(Debug)]
struct Ours {
    metas: Arc<Metas>,
    ino: Ino,
    /// Held exclusively by a write that begins past the end, because it cuts first.
    gate: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The newest attributes from a meta, and the time of the last request for them.
    attr: Attr,
    heard: Tick,
    /// A name of chunks with a record, and the known facts about it.
    name: Option<(u64, Arc<SharedName>)>,
    /// Data id and time of a write with a time not yet reported to a meta.
    untold: Option<(u64, Timestamp)>,
    /// The ranges of such writes, and earlier ones that no meta accepted.
    fills: Fills,
}

/// An open file. Clones are the same file; any number of threads may use it at the same time.
///
/// *Reads* see earlier writes by all clients, up to the last known length. A read past that length
/// first asks a meta, and so does [`File::len`]. If another client cut the file in the meantime,
/// reads may return zeros for up to a second. If it was cloned in the meantime, reads may return
/// its old bytes for as long.
///
/// *Writes* are durable on all replicas when they return, and so is a new length. The time of a
/// write within the file is reported by [`File::sync`], or when the last clone is dropped. Clients
/// that write past the end of one file at the same moment should begin at chunk boundaries, or set
/// its final length first.
///
/// A child of the process that opened it also has it open, in the child's own session, from its
/// first use there on.
#[derive(Clone, Debug)]
pub struct File {
    pub(super) opened: Arc<Opened>,
}

impl Ours {
    fn new(shared: &Shared, attr: Attr, heard: Tick) -> Self {
        let metas = Arc::clone(&shared.metas);
        metas.note_open(attr.ino);
        let mut fills = Fills::default();
        fills.learn(&attr);
        let state = State { attr, heard, name: None, untold: None, fills };
        Self { metas, ino: attr.ino, gate: RwLock::default(), state: Mutex::new(state) }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.metas.note_closed(self.ino);
    }
}

impl Opened {
    /// Metas count the inode as open until this is dropped.
    pub(super) fn new(
        shared: Arc<Shared>,
        (path, attr): (String, Attr),
        options: OpenOptions,
    ) -> Self {
        let ours = PerProcess::new(Ours::new(&shared, attr, RealClock::tick()));
        let is_fixed = AtomicBool::new(false);
        Self { shared, path, options, first: attr, is_fixed, ours }
    }

    /// State in this process. A child also has the file open, in its own session, and starts with
    /// the attributes from the open.
    fn ours(&self) -> &Ours {
        self.ours.get_or(|| Ours::new(&self.shared, self.first, Tick::default()))
    }

    fn attr(&self) -> Attr {
        self.known().0
    }

    /// The newest attributes from a meta, and the time of the last request for them.
    pub(super) fn known(&self) -> (Attr, Tick) {
        let state = self.ours().state.lock();
        (state.attr, state.heard)
    }

    /// Whether it was opened for reading.
    pub(super) const fn may_read(&self) -> bool {
        self.options.read
    }

    /// Records attributes from a meta, unless newer ones are known; returns the newest.
    fn learn(&self, told: Attr) -> Attr {
        let mut state = self.ours().state.lock();
        if told.version >= state.attr.version {
            state.attr = told;
            state.fills.learn(&told);
        }
        state.heard = RealClock::tick();
        state.attr
    }

    /// Recent attributes of the file; for chunks that other files may share, present ones.
    fn recent(&self) -> Result<Attr, ClientError> {
        let (attr, heard) = self.known();
        let is_recent = RealClock::tick().since(heard) < BELIEVED && !attr.is_shared;
        if is_recent { Ok(attr) } else { self.refresh() }
    }

    pub(super) fn known_name(&self, chunks: u64) -> Option<Arc<SharedName>> {
        let state = self.ours().state.lock();
        state.name.as_ref().filter(|(of, _)| *of == chunks).map(|(_, name)| Arc::clone(name))
    }

    pub(super) fn keep_name(&self, chunks: u64, name: Arc<SharedName>) {
        self.ours().state.lock().name = Some((chunks, name));
    }

    pub(super) fn refused(&self, source: MetaError) -> ClientError {
        refused(&self.path, source)
    }

    pub(super) fn ask(&self, op: MetaOp) -> Result<Attr, ClientError> {
        self.shared.metas.attr_at(&self.path, op).map(|told| self.learn(told))
    }

    /// Asks a meta for the present attributes.
    pub(super) fn refresh(&self) -> Result<Attr, ClientError> {
        self.ask(MetaOp::GetAttr { ino: self.attr().ino })
    }

    pub(super) fn cut_to_nothing(&self) -> Result<(), ClientError> {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        self.ask(MetaOp::SetAttr { ino: self.attr().ino, set }).map(drop)
    }

    /// Sets the length.
    fn resize(&self, size: u64) -> Result<(), ClientError> {
        if !self.options.write {
            return Err(ClientError::argument("file", "was opened without write access"));
        }
        if size > FILE_BYTES_MAX {
            return Err(refused(&self.path, MetaError::TooLarge));
        }
        let _alone = self.ours().gate.write();
        // Earlier writes keep their time only if the meta learns of it first.
        self.tell()?;
        for _ in 0..RESIZE_TRIES {
            let old = self.refresh()?;
            let stored = size > 0 && old.is_stored();
            if size > 0 && size != old.size && !stored {
                let cut = |chunks: &Chunks, now| self.cut(chunks, (size.min(now), now));
                if self.change(old, cut)?.is_none() {
                    continue;
                }
            }
            let set = SetAttr { size: Some(size), stored, ..SetAttr::default() };
            let told = self.ask(MetaOp::SetAttr { ino: old.ino, set })?;
            // Otherwise its bytes moved to chunks in between, which must be cut first.
            if told.size == size {
                return Ok(());
            }
        }
        Err(self.shared.metas.unexpected())
    }

    /// Removes the bytes after `size` from the chunks of a file of `old` bytes. After a longer end
    /// there may be bytes of an unfinished write. Metas learn of the removal before and after it.
    fn cut(&self, chunks: &Chunks, (size, old): (u64, u64)) -> Result<(), ClientError> {
        let cuts = chunks.bytes().cuts(size, old).map_err(|error| self.too_long(error))?;
        let mut cuts = cuts.peekable();
        if cuts.peek().is_none() {
            return Ok(());
        }
        self.hollow(size, false)?;
        let cut = chunks.cut(&self.shared.metas.client, cuts, None);
        // Also after a failure, because part of it may be done.
        cut.and(self.hollow(size, true))
    }

    /// Tells a meta that the removal of bytes from `from` on begins, or has ended.
    fn hollow(&self, from: u64, ended: bool) -> Result<(), ClientError> {
        let before = self.ours().state.lock().fills.before(from);
        self.ask(MetaOp::Hollow(Hollow { ino: self.attr().ino, from, ended }))?;
        self.ours().state.lock().fills.keep(&before, ended);
        Ok(())
    }

    fn too_long(&self, _: BehindLastChunk) -> ClientError {
        refused(&self.path, MetaError::TooLarge)
    }

    fn read(&self, parts: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>, ClientError> {
        if !self.may_read() {
            return Err(ClientError::argument("file", "was opened without read access"));
        }
        let _shared = self.ours().gate.read();
        let mut attr = self.recent()?;
        for _ in 0..READ_TRIES {
            match self.read_as(&mut attr, parts) {
                Err(error) if error.is_missing() => {
                    // A client that removes bytes from chunks reports it first.
                    let now = self.refresh()?;
                    if (now.chunks, now.cuts) == (attr.chunks, attr.cuts) {
                        return Err(error);
                    }
                    attr = now;
                }
                done => return done,
            }
        }
        self.read_as(&mut attr, parts)
    }

    /// Whether the file has the same bytes as when it was opened, by a meta's attributes. Names,
    /// owners and permissions may differ, and the bytes may have moved.
    fn is_as_opened(&self, now: &Attr) -> bool {
        let first = &self.first;
        let content = |attr: &Attr| (attr.data, attr.size, attr.cuts, attr.mtime);
        content(first) == content(now)
    }

    fn check_fixed(&self, now: &Attr) -> Result<(), ClientError> {
        let is_other = self.is_fixed.load(Ordering::Relaxed) && !self.is_as_opened(now);
        if is_other { Err(self.refused(MetaError::Stale)) } else { Ok(()) }
    }

    /// Reads from a file with recent attributes `known`; updates them to those with which its bytes
    /// were read.
    fn read_as(
        &self,
        known: &mut Attr,
        parts: &mut [(u64, &mut [u8])],
    ) -> Result<Vec<usize>, ClientError> {
        let mut attr = *known;
        let ends = parts.iter().map(|(offset, buf)| offset.saturating_add(buf.len() as u64));
        if ends.max().is_some_and(|end| end > attr.size) {
            attr = self.refresh()?;
        }
        let mut chunks = None;
        while chunks.is_none() {
            if attr.is_stored() {
                let content = self.content()?;
                attr = content.attr;
                if attr.is_stored() {
                    self.check_fixed(&attr)?;
                    return Ok(filled(&content, parts));
                }
            }
            chunks = self.chunks(&attr)?;
            if chunks.is_none() {
                attr = self.refresh()?;
            }
        }
        *known = attr;
        self.check_fixed(&attr)?;
        let bytes = chunks.map_or(FileBytes::of(&attr), |chunks| chunks.bytes());
        let (mut at, mut rooms, mut lens) = (Vec::new(), Vec::new(), Vec::new());
        for (offset, buf) in parts {
            let left = usize::try_from(attr.size.saturating_sub(*offset)).unwrap_or(usize::MAX);
            let len = left.min(buf.len());
            let filled = bytes.rooms(*offset, &mut buf[..len], (&mut at, &mut rooms));
            filled.map_err(|error| self.too_long(error))?;
            lens.push(len);
        }
        self.shared.metas.client.read_chunks(&at, &mut rooms, None)?;
        Ok(lens)
    }

    fn write(&self, parts: &[(u64, &[u8])]) -> Result<(), ClientError> {
        if !self.options.write {
            return Err(ClientError::argument("file", "was opened without write access"));
        }
        let parts: Vec<(u64, &[u8])> =
            parts.iter().filter(|(_, data)| !data.is_empty()).copied().collect();
        let Some(first) = parts.iter().map(|(offset, _)| *offset).max() else { return Ok(()) };
        let ends = parts.iter().map(|(offset, data)| offset.saturating_add(data.len() as u64));
        let end = ends.max().unwrap_or(0);
        if end > FILE_BYTES_MAX {
            return Err(refused(&self.path, MetaError::TooLarge));
        }
        let shared = self.ours().gate.read();
        let Some(attr) = self.in_chunks(&parts, end)? else { return Ok(()) };
        if first <= attr.size {
            return self.put(attr, &parts, end);
        }
        drop(shared);
        let _alone = self.ours().gate.write();
        let Some(attr) = self.in_chunks(&parts, end)? else { return Ok(()) };
        self.put(attr, &parts, end)
    }

    /// The present attributes, if the file's bytes are in chunks; otherwise writes these parts.
    fn in_chunks(&self, parts: &[(u64, &[u8])], end: u64) -> Result<Option<Attr>, ClientError> {
        // After a truncation to zero by another client the bytes have another name.
        let attr = self.refresh()?;
        if attr.is_stored() { self.write_stored(attr, parts, end) } else { Ok(Some(attr)) }
    }

    /// The present attributes of the file, with its bytes if they are in the store.
    fn content(&self) -> Result<Content, ClientError> {
        let op = MetaOp::Content { ino: self.attr().ino };
        let MetaReply::Content(content) = self.shared.metas.at(&self.path, op)? else {
            return Err(self.shared.metas.unexpected());
        };
        self.learn(content.attr);
        Ok(content)
    }

    /// Writes to a file with its bytes in the store, which may move it to chunks. Returns its
    /// attributes when its bytes are in chunks, without these parts.
    fn write_stored(
        &self,
        attr: Attr,
        parts: &[(u64, &[u8])],
        end: u64,
    ) -> Result<Option<Attr>, ClientError> {
        let mtime = Timestamp::from_unix_nanos(RealClock::wall_nanos());
        let (ino, mut known) = (attr.ino, attr);
        if end <= INLINE_MAX as u64 {
            for (offset, bytes) in parts {
                let offset = u32::try_from(*offset).unwrap_or(u32::MAX);
                let (data, bytes) = (known.data, bytes.to_vec());
                let write = WriteInline { ino, data, offset, bytes, mtime };
                known = self.ask(MetaOp::WriteInline(write))?;
                if known.data != data {
                    // Another client truncated it to zero at this moment, and the bytes from before
                    // are gone with it.
                    return self.write_stored(known, parts, end);
                }
                if !known.is_stored() {
                    return Ok(Some(known));
                }
            }
            return Ok(None);
        }
        let spilled = spill::spill(&mut &*self, attr, parts, Some(mtime))?;
        self.learn(spilled.attr);
        if spilled.written {
            self.filled(parts, spilled.cuts);
        }
        Ok((!spilled.written).then_some(spilled.attr))
    }

    /// Writes bytes and reports a new length to a meta; the caller holds the gate, exclusively if
    /// it writes past the end.
    fn put(&self, attr: Attr, parts: &[(u64, &[u8])], end: u64) -> Result<(), ClientError> {
        let first = parts.iter().map(|(offset, _)| *offset).max().unwrap_or(0);
        let cuts = Cell::new(attr.cuts);
        let write = |chunks: &Chunks, size| {
            if first > size {
                // Bytes that an unfinished write may have left there become zeros.
                self.cut(chunks, (size, size))?;
                cuts.set(self.attr().cuts);
            }
            self.put_chunks(chunks, parts)
        };
        let Some(chunks) = self.change(attr, write)? else { return Ok(()) };
        let now = Timestamp::from_unix_nanos(RealClock::wall_nanos());
        let written = (chunks.bytes().data.0, now);
        self.filled(parts, cuts.get());
        let mut state = self.ours().state.lock();
        if end <= state.attr.size {
            state.untold = Some(written);
            return Ok(());
        }
        state.untold = None;
        drop(state);
        self.tell_of(written, end)
    }

    /// Records ranges written to chunks after this number of cuts.
    fn filled(&self, parts: &[(u64, &[u8])], cuts: u32) {
        let mut state = self.ours().state.lock();
        for (offset, data) in parts {
            state.fills.note(Filled { from: *offset, to: offset + data.len() as u64, cuts });
        }
    }

    fn put_chunks(&self, chunks: &Chunks, parts: &[(u64, &[u8])]) -> Result<(), ClientError> {
        let (mut at, mut values) = (Vec::new(), Vec::new());
        for (offset, data) in parts {
            let cut = chunks.bytes().values(*offset, data, (&mut at, &mut values));
            cut.map_err(|error| self.too_long(error))?;
        }
        chunks.write(&self.shared.metas.client, (&at, &values), None)
    }

    /// Reports the time of the last write to a meta, unless it knows it.
    fn tell(&self) -> Result<(), ClientError> {
        let untold = self.ours().state.lock().untold.take();
        untold.map_or(Ok(()), |written| self.tell_of(written, 0))
    }

    /// Reports to a meta that the file's length is at least `end`, and the time of the write.
    fn tell_of(&self, (data, mtime): (u64, Timestamp), end: u64) -> Result<(), ClientError> {
        let (ino, filled) = (self.attr().ino, self.ours().state.lock().fills.first());
        let told = self.ask(MetaOp::Extend(Extend { ino, data, size: end, mtime, filled }));
        if told.is_err() {
            // Keeps the time of a later write.
            self.ours().state.lock().untold.get_or_insert((data, mtime));
        }
        told.map(drop)
    }
}

/// Fills memory from bytes in the store; returns how many bytes of each part the file has.
fn filled(content: &Content, parts: &mut [(u64, &mut [u8])]) -> Vec<usize> {
    let fill = |(offset, buf): &mut (u64, &mut [u8])| {
        let left = usize::try_from(content.attr.size.saturating_sub(*offset)).unwrap_or(usize::MAX);
        let len = left.min(buf.len());
        content.copy(*offset, &mut buf[..len]);
        len
    };
    parts.iter_mut().map(fill).collect()
}

impl Door for &Opened {
    type Error = ClientError;

    fn ask(&mut self, op: MetaOp) -> Result<MetaReply, ClientError> {
        self.shared.metas.at(&self.path, op)
    }

    fn write(&mut self, to: FileBytes, parts: &[(u64, &[u8])]) -> Result<bool, ClientError> {
        match self.put_chunks(&Chunks::of(to), parts) {
            Ok(()) => Ok(true),
            Err(error) if error.is_sealed() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn remove(&mut self, bytes: FileBytes, parts: &[(u64, &[u8])]) {
        let _ = self.shared.metas.client.cut_chunks(&bytes.touched(parts), None);
    }

    fn unexpected(&mut self) -> ClientError {
        self.shared.metas.unexpected()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A child that did not use the file has no state of it.
        if self.ours.get().is_some() {
            // The bytes are durable and the length is reported: only their time would be older.
            let _ = self.tell();
        }
    }
}

impl File {
    pub(super) fn of(opened: Opened) -> Self {
        Self { opened: Arc::new(opened) }
    }

    /// The inode's number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.opened.first.ino
    }

    /// Its length in bytes, from a meta.
    ///
    /// # Errors
    /// As for every call.
    pub fn len(&self) -> Result<u64, ClientError> {
        self.opened.refresh().map(|attr| attr.size)
    }

    /// Sets its length in bytes; an added range reads as zeros. Durable when it returns.
    ///
    /// # Errors
    /// `InvalidArgument` when it was opened without write; `File` when it would be too long or over
    /// a quota; and as for every call.
    pub fn set_len(&self, size: u64) -> Result<(), ClientError> {
        self.opened.resize(size)
    }

    /// Whether it is empty, by a meta.
    ///
    /// # Errors
    /// As for every call.
    pub fn is_empty(&self) -> Result<bool, ClientError> {
        self.len().map(|len| len == 0)
    }

    /// The attributes of the inode, from a meta.
    ///
    /// # Errors
    /// As for every call.
    pub fn stat(&self) -> Result<Attr, ClientError> {
        self.opened.refresh()
    }

    /// Fixes reads to the content at the open: reads fail (`File`, stale) once this client learns
    /// that another one has cut the file or written to it, within a second.
    pub fn fix(&self) {
        self.opened.is_fixed.store(true, Ordering::Relaxed);
    }

    /// Whether no client has cut it or written to it since it was opened, by a meta.
    ///
    /// # Errors
    /// As for every call.
    pub fn is_as_opened(&self) -> Result<bool, ClientError> {
        self.opened.refresh().map(|now| self.opened.is_as_opened(&now))
    }

    /// Reads ranges at the same time, each from its offset into its memory. Returns how many bytes
    /// of each the file had: fewer than requested only at its end. Holes are zeros.
    ///
    /// # Errors
    /// `InvalidArgument` when it was opened without read; `DeadlineExceeded` naming a chunk and a
    /// node; and as for every call. The contents of all memory are then undefined.
    pub fn read_batch(&self, parts: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>, ClientError> {
        self.opened.read(parts)
    }

    /// Writes ranges at the same time, each to its offset; overlapping ones in their order. The
    /// bytes and the file's length are durable when it returns.
    ///
    /// # Errors
    /// `InvalidArgument` when it was opened without write; `File` when it would be too long or over
    /// a quota; `NoSpace`; and as for every call. Then any of the ranges may have been written.
    pub fn write_batch(&self, parts: &[(u64, &[u8])]) -> Result<(), ClientError> {
        self.opened.write(parts)
    }

    /// [`File::read_batch`] in a thread of the volume, into memory that is returned with the
    /// outcome: the same memory serves the next batch. Blocks only while 256 batches wait.
    #[must_use]
    pub fn submit_read<B>(&self, mut parts: Vec<(u64, B)>) -> Pending<Vec<(usize, B)>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let opened = Arc::clone(&self.opened);
        self.opened.shared.workers.submit(move || {
            let mut rooms: Vec<(u64, &mut [u8])> =
                parts.iter_mut().map(|(offset, memory)| (*offset, memory.as_mut())).collect();
            let lens = opened.read(&mut rooms)?;
            Ok(lens.into_iter().zip(parts).map(|(len, (_, memory))| (len, memory)).collect())
        })
    }

    /// [`File::write_batch`] in a thread of the volume, from memory that is returned with the
    /// outcome. Batches submitted at the same time are written in any order. Blocks only while 256
    /// batches wait.
    #[must_use]
    pub fn submit_write<B>(&self, parts: Vec<(u64, B)>) -> Pending<Vec<B>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let opened = Arc::clone(&self.opened);
        self.opened.shared.workers.submit(move || {
            let values: Vec<(u64, &[u8])> =
                parts.iter().map(|(offset, memory)| (*offset, memory.as_ref())).collect();
            opened.write(&values)?;
            Ok(parts.into_iter().map(|(_, memory)| memory).collect())
        })
    }

    /// Reports the time of the last write to a meta. The bytes and the length are durable already.
    ///
    /// # Errors
    /// As for every call.
    pub fn sync(&self) -> Result<(), ClientError> {
        self.opened.tell()
    }
}
