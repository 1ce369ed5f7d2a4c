//! State that must outlive this process as long as requests of the kernel do: a journal in shared
//! memory.
//!
//! The holder shares the memory, so it remains when this process is killed at any instruction. It
//! has two halves. Entries are appended to one. When that is full, the resulting state is written
//! to the other one, under a higher generation; it is valid once its last entry marks it as whole.
//!
//! A half is a sequence of frames: length u32, CRC-32C u32 of the half's generation and the entry,
//! then the entry. A frame with a wrong checksum ends it: it is torn or of an earlier generation.

use millpond_env::{EnvError, ShmRegion};
use millpond_types::Crc32c;
use millpond_types::meta::{INLINE_MAX, Ino, LockSpace, Timestamp};
use millpond_types::wire::{Reader, WireError, Writer};

use crate::cached::Key;
use crate::files::{Backed, Held, LockBytes, Owner, Telling, Written};

/// Bytes of the region; pages that are not written cost nothing.
pub(crate) const REGION_BYTES: usize = 16 << 20;
/// Bytes of one half.
pub(crate) const HALF_BYTES: u64 = REGION_BYTES as u64 / 2;
/// Bytes of length and checksum.
const FRAME_BYTES: usize = 8;
/// Longest entry in bytes.
const ENTRY_BYTES_MAX: usize = 1024 + INLINE_MAX;

/// An event in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The first entry of a half.
    Generation(u64),
    /// The state of the previous half is repeated up to here.
    Whole,
    /// A request of the kernel is about to change the namespace; its answer is kept under this
    /// hour.
    Began { unique: u64, hour: u32 },
    /// A request opened an inode.
    Opened { unique: u64, ino: Ino },
    /// A request closed an inode.
    Closed { unique: u64, ino: Ino },
    /// The number of opens of an inode.
    IsOpen { ino: Ino, times: u32 },
    /// Bytes were written that no meta knows of.
    Wrote { ino: Ino, written: Written },
    /// A meta knows of all written bytes, and no report is in progress.
    Told { ino: Ino },
    /// A meta is about to get this report, which covers all bytes written so far.
    Telling { ino: Ino, telling: Telling },
    /// It has answered, and more was written in the meantime.
    Answered { ino: Ino },
    /// A lock of the inode may exist: earlier builds wrote this in addition to the owner.
    Locked { ino: Ino },
    /// The kernel was notified of all changes made elsewhere up to this version.
    Heard { version: u64 },
    /// The number of takeovers of the mount by other processes.
    TakenOver { times: u32 },
    /// Bytes for the store were written; they join the held bytes of the file.
    Held { ino: Ino, held: Held },
    /// The held bytes of a file are about to be sent, under this sequence and hour.
    Sending { ino: Ino, sequence: u64, hour: u32 },
    /// No bytes of a file are held any more.
    Sent { ino: Ino },
    /// The kernel reads an open inode from a file of the cache, until its last close.
    Backed { ino: Ino, backed: Backed },
    /// A change was answered that no meta knows of: the request, encoded.
    Promised { number: u64, ino: Ino, request: Vec<u8> },
    /// A meta knows of it.
    Kept { number: u64 },
    /// This session replaces the mount's session, which has ended.
    Session { session: u64 },
    /// The owner may have locks of these bytes of a file, and of no others; if it is left, they
    /// must be released.
    Locker { ino: Ino, owner: Owner, is_left: bool, ranges: Vec<LockBytes> },
    /// It has no locks any more.
    Unlocked { ino: Ino, owner: Owner },
    /// The owner's number has no locks of these bytes any more, through any handle.
    UnlockedBytes { ino: Ino, owner: Owner, bytes: LockBytes },
    /// A request appends its bytes at this offset.
    Appends { unique: u64, offset: u64 },
}

fn write_number(w: &mut Writer, kind: u8, number: u64) {
    w.u8(kind);
    w.u64(number);
}

fn write_time(w: &mut Writer, at: Timestamp) {
    w.u64(at.secs.cast_unsigned());
    w.u32(at.nanos);
}

fn read_time(r: &mut Reader<'_>) -> Result<Timestamp, WireError> {
    Ok(Timestamp { secs: r.u64()?.cast_signed(), nanos: r.u32()? })
}

fn write_written(w: &mut Writer, kind: u8, (ino, written): (Ino, Written)) {
    write_number(w, kind, ino.0);
    w.u64(written.end);
    write_time(w, written.at);
    w.u64(written.data);
}

fn read_written(r: &mut Reader<'_>) -> Result<(Ino, Written), WireError> {
    let (ino, end) = (Ino(r.u64()?), r.u64()?);
    let at = read_time(r)?;
    Ok((ino, Written { end, at, data: r.u64()? }))
}

fn write_held(w: &mut Writer, ino: Ino, held: &Held) {
    write_number(w, 12, ino.0);
    w.u64(held.data);
    write_time(w, held.at);
    w.u32(held.offset);
    w.bytes16(&held.bytes);
}

fn write_owner(w: &mut Writer, kind: u8, (ino, owner): (Ino, Owner)) {
    write_number(w, kind, ino.0);
    w.u8(owner.space as u8);
    w.u64(owner.number);
    w.u64(owner.handle);
}

fn read_owner(r: &mut Reader<'_>) -> Result<(Ino, Owner), WireError> {
    let ino = Ino(r.u64()?);
    let space = match r.u8()? {
        1 => LockSpace::Posix,
        2 => LockSpace::Flock,
        _ => return Err(WireError::Field("kind of a lock")),
    };
    Ok((ino, Owner { space, number: r.u64()?, handle: r.u64()? }))
}

fn write_locker(w: &mut Writer, of: (Ino, Owner), (is_left, ranges): (bool, &[LockBytes])) {
    write_owner(w, 22, of);
    w.u8(u8::from(is_left));
    w.u8(u8::try_from(ranges.len()).unwrap_or(u8::MAX));
    for bytes in ranges {
        write_bytes(w, *bytes);
    }
}

fn write_bytes(w: &mut Writer, bytes: LockBytes) {
    w.u64(bytes.start);
    w.u64(bytes.end);
}

fn read_bytes(r: &mut Reader<'_>) -> Result<LockBytes, WireError> {
    let bytes = LockBytes { start: r.u64()?, end: r.u64()? };
    if bytes.start > bytes.end {
        return Err(WireError::Field("bytes of a lock"));
    }
    Ok(bytes)
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64);
        match *self {
            Self::Generation(generation) => write_number(&mut w, 1, generation),
            Self::Whole => w.u8(2),
            Self::Began { unique, hour } => {
                w.u8(3);
                w.u64(unique);
                w.u32(hour);
            }
            Self::Opened { unique, ino } | Self::Closed { unique, ino } => {
                w.u8(if matches!(self, Self::Opened { .. }) { 4 } else { 5 });
                w.u64(unique);
                w.u64(ino.0);
            }
            Self::IsOpen { ino, times } => {
                w.u8(6);
                w.u64(ino.0);
                w.u32(times);
            }
            Self::Wrote { ino, written } => write_written(&mut w, 7, (ino, written)),
            Self::Telling { ino, telling } => {
                write_written(&mut w, 24, (ino, telling.written));
                w.u64(telling.sequence);
                w.u32(telling.hour);
            }
            Self::Held { ino, ref held } => write_held(&mut w, ino, held),
            Self::Sending { ino, sequence, hour } => {
                w.u8(13);
                w.u64(ino.0);
                w.u64(sequence);
                w.u32(hour);
            }
            Self::Promised { number, ino, ref request } => {
                w.u8(15);
                w.u64(number);
                w.u64(ino.0);
                w.bytes16(request);
            }
            Self::Backed { ino, backed } => {
                w.u8(17);
                w.u64(ino.0);
                w.u32(backed.id.cast_unsigned());
                backed.key.encode(&mut w);
            }
            Self::Kept { number } => write_number(&mut w, 16, number),
            Self::Session { session } => write_number(&mut w, 18, session),
            Self::Unlocked { ino, owner } => write_owner(&mut w, 20, (ino, owner)),
            Self::Locker { ino, owner, is_left, ref ranges } => {
                write_locker(&mut w, (ino, owner), (is_left, ranges));
            }
            Self::UnlockedBytes { ino, owner, bytes } => {
                write_owner(&mut w, 23, (ino, owner));
                write_bytes(&mut w, bytes);
            }
            Self::Answered { ino } => write_number(&mut w, 25, ino.0),
            Self::Appends { unique, offset } => {
                write_number(&mut w, 21, unique);
                w.u64(offset);
            }
            Self::Told { ino } => write_number(&mut w, 8, ino.0),
            Self::Locked { ino } => write_number(&mut w, 9, ino.0),
            Self::Sent { ino } => write_number(&mut w, 14, ino.0),
            Self::Heard { version } => write_number(&mut w, 10, version),
            Self::TakenOver { times } => {
                w.u8(11);
                w.u32(times);
            }
        }
        w.into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let entry = match r.u8()? {
            1 => Self::Generation(r.u64()?),
            2 => Self::Whole,
            3 => Self::Began { unique: r.u64()?, hour: r.u32()? },
            4 => Self::Opened { unique: r.u64()?, ino: Ino(r.u64()?) },
            5 => Self::Closed { unique: r.u64()?, ino: Ino(r.u64()?) },
            6 => Self::IsOpen { ino: Ino(r.u64()?), times: r.u32()? },
            7 => {
                let (ino, written) = read_written(&mut r)?;
                Self::Wrote { ino, written }
            }
            24 => {
                let (ino, written) = read_written(&mut r)?;
                let telling = Telling { written, sequence: r.u64()?, hour: r.u32()? };
                Self::Telling { ino, telling }
            }
            8 => Self::Told { ino: Ino(r.u64()?) },
            9 => Self::Locked { ino: Ino(r.u64()?) },
            10 => Self::Heard { version: r.u64()? },
            11 => Self::TakenOver { times: r.u32()? },
            12 => {
                let (ino, data) = (Ino(r.u64()?), r.u64()?);
                let (at, offset) = (read_time(&mut r)?, r.u32()?);
                let bytes = r.bytes16(INLINE_MAX, "held bytes")?.to_vec();
                if offset as usize + bytes.len() > INLINE_MAX {
                    return Err(WireError::Field("end of held bytes"));
                }
                Self::Held { ino, held: Held { data, at, offset, bytes } }
            }
            13 => Self::Sending { ino: Ino(r.u64()?), sequence: r.u64()?, hour: r.u32()? },
            14 => Self::Sent { ino: Ino(r.u64()?) },
            15 => {
                let (number, ino) = (r.u64()?, Ino(r.u64()?));
                let request = r.bytes16(ENTRY_BYTES_MAX, "promise")?.to_vec();
                Self::Promised { number, ino, request }
            }
            16 => Self::Kept { number: r.u64()? },
            17 => {
                let (ino, id) = (Ino(r.u64()?), r.u32()?.cast_signed());
                Self::Backed { ino, backed: Backed { id, key: Key::decode(&mut r)? } }
            }
            18 => Self::Session { session: r.u64()? },
            // Earlier builds did not distinguish ranges.
            19 => {
                let (ino, owner) = read_owner(&mut r)?;
                Self::Locker { ino, owner, is_left: false, ranges: vec![LockBytes::ALL] }
            }
            20 => {
                let (ino, owner) = read_owner(&mut r)?;
                Self::Unlocked { ino, owner }
            }
            21 => Self::Appends { unique: r.u64()?, offset: r.u64()? },
            22 => {
                let ((ino, owner), is_left) = (read_owner(&mut r)?, r.u8()? != 0);
                let count = r.u8()?;
                let ranges = (0..count).map(|_| read_bytes(&mut r)).collect::<Result<_, _>>()?;
                Self::Locker { ino, owner, is_left, ranges }
            }
            23 => {
                let (ino, owner) = read_owner(&mut r)?;
                Self::UnlockedBytes { ino, owner, bytes: read_bytes(&mut r)? }
            }
            25 => Self::Answered { ino: Ino(r.u64()?) },
            _ => return Err(WireError::Field("kind of a journal entry")),
        };
        r.finish()?;
        Ok(entry)
    }
}

/// The journal of one mount.
#[derive(Debug)]
pub(crate) struct Journal {
    region: ShmRegion,
    half: u64,
    generation: u64,
    end: u64,
}

fn checksum(generation: u64, entry: &[u8]) -> Crc32c {
    Crc32c::of(&generation.to_le_bytes()).append(entry)
}

impl Journal {
    /// Makes an empty journal in new memory.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn create() -> std::io::Result<Self> {
        let region = ShmRegion::create("millpond-mount", REGION_BYTES)?;
        let mut journal = Self { region, half: 1, generation: 0, end: 0 };
        journal.turn(&[]).map_err(std::io::Error::other)?;
        Ok(journal)
    }

    /// Opens the journal that an earlier process wrote; returns its entries too.
    ///
    /// # Errors
    /// [`EnvError`] when neither half is whole.
    pub(crate) fn resume(region: &ShmRegion) -> Result<(Self, Vec<Entry>), EnvError> {
        let mut best: Option<(Self, Vec<Entry>)> = None;
        for half in 0..2 {
            let Some((generation, end, entries)) = read_half(region, half)? else { continue };
            if best.as_ref().is_none_or(|(before, _)| before.generation < generation) {
                best = Some((Self { region: region.clone(), half, generation, end }, entries));
            }
        }
        best.ok_or(EnvError::Hostile("the journal of a mount is damaged"))
    }

    /// Invalidates the journal, so that no later process continues from an outdated state.
    pub(crate) fn void(&self) {
        for half in 0..2 {
            let voided = self.region.copy_in(half * HALF_BYTES, &[0; FRAME_BYTES]);
            assert!(voided.is_ok(), "a half is inside its region");
        }
    }

    /// Bytes of entries in the active half.
    pub(crate) const fn used(&self) -> u64 {
        self.end
    }

    /// The memory.
    pub(crate) const fn region(&self) -> &ShmRegion {
        &self.region
    }

    /// Appends an entry; false when the half is full: then call [`Journal::turn`].
    pub(crate) fn append(&mut self, entry: &Entry) -> bool {
        let bytes = entry.encode();
        let len = (FRAME_BYTES + bytes.len()) as u64;
        if self.end + len > HALF_BYTES {
            return false;
        }
        let mut frame = Vec::with_capacity(FRAME_BYTES + bytes.len());
        frame.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
        frame.extend_from_slice(&checksum(self.generation, &bytes).0.to_le_bytes());
        frame.extend_from_slice(&bytes);
        // A process that dies within this leaves a frame with a wrong checksum.
        let written = self.region.copy_in(self.half * HALF_BYTES + self.end, &frame);
        assert!(written.is_ok(), "a half is inside its region");
        self.end += len;
        true
    }

    /// Continues in the other half, with the state after all entries so far.
    ///
    /// # Errors
    /// When that alone fills a half.
    pub(crate) fn turn(&mut self, state: &[Entry]) -> Result<(), EnvError> {
        let before = (self.half, self.generation, self.end);
        (self.half, self.generation, self.end) = (1 - self.half, self.generation + 1, 0);
        let first = [Entry::Generation(self.generation)];
        let all = first.iter().chain(state).chain(&[Entry::Whole]);
        for entry in all {
            if !self.append(entry) {
                (self.half, self.generation, self.end) = before;
                return Err(EnvError::Hostile(
                    "more files are open than the journal of a mount can hold",
                ));
            }
        }
        Ok(())
    }
}

/// Generation, end and entries of a half; `None` when it is not whole.
fn read_half(region: &ShmRegion, half: u64) -> Result<Option<(u64, u64, Vec<Entry>)>, EnvError> {
    let mut bytes = vec![0; usize::try_from(HALF_BYTES).unwrap_or(0)];
    region.copy_out(half * HALF_BYTES, &mut bytes)?;
    let (mut generation, mut whole, mut at) = (None, false, 0);
    let mut entries = Vec::new();
    while let Some((sum, entry)) = frame(&bytes[at..]) {
        let decoded = Entry::decode(entry);
        if let (None, Ok(Entry::Generation(first))) = (generation, &decoded) {
            generation = Some(*first);
        }
        let Some(generation) = generation else { break };
        if checksum(generation, entry) != sum {
            break;
        }
        let Ok(decoded) = decoded else {
            return Err(EnvError::Hostile(
                "the journal of a mount has entries that this build does not know: use the newer \
                 build",
            ));
        };
        at += FRAME_BYTES + entry.len();
        match decoded {
            Entry::Generation(_) => {}
            Entry::Whole => whole = true,
            entry => entries.push(entry),
        }
    }
    Ok(generation.filter(|_| whole).map(|generation| (generation, at as u64, entries)))
}

/// Checksum and entry of the first frame; `None` when there is none.
fn frame(bytes: &[u8]) -> Option<(Crc32c, &[u8])> {
    let mut r = Reader::new(bytes);
    let (len, sum) = (r.u32().ok()? as usize, Crc32c(r.u32().ok()?));
    if len == 0 || len > ENTRY_BYTES_MAX {
        return None;
    }
    Some((sum, r.bytes(len).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cached::tests::key;

    fn some() -> Vec<Entry> {
        let at = Timestamp { secs: -1, nanos: 5 };
        let written = Written { end: 9, at, data: 3 };
        let held = Held { data: 3, at, offset: 1, bytes: vec![7; INLINE_MAX - 1] };
        let owner = Owner { space: LockSpace::Flock, number: u64::MAX, handle: 4 };
        vec![
            Entry::Began { unique: 2, hour: 7 },
            Entry::Opened { unique: 4, ino: Ino(1) },
            Entry::Wrote { ino: Ino(1), written },
            Entry::Told { ino: Ino(1) },
            Entry::Locked { ino: Ino(1) },
            Entry::Heard { version: 70 },
            Entry::IsOpen { ino: Ino(8), times: 2 },
            Entry::Closed { unique: 6, ino: Ino(1) },
            Entry::TakenOver { times: 3 },
            Entry::Held { ino: Ino(1), held },
            Entry::Sending { ino: Ino(1), sequence: 9, hour: 7 },
            Entry::Sent { ino: Ino(1) },
            Entry::Promised { number: 9, ino: Ino(3), request: vec![7; INLINE_MAX + 400] },
            Entry::Kept { number: 9 },
            Entry::Backed { ino: Ino(8), backed: Backed { id: 5, key: key(7, 1 << 33) } },
            Entry::Session { session: 70 },
            Entry::Telling { ino: Ino(1), telling: Telling { written, sequence: 4, hour: 8 } },
            Entry::Answered { ino: Ino(1) },
            Entry::Locker { ino: Ino(1), owner, is_left: false, ranges: vec![LockBytes::ALL] },
            Entry::Locker {
                ino: Ino(1),
                owner,
                is_left: true,
                ranges: vec![LockBytes { start: 3, end: 3 }, LockBytes { start: 5, end: 9 }],
            },
            Entry::UnlockedBytes { ino: Ino(1), owner, bytes: LockBytes { start: 3, end: 3 } },
            Entry::Unlocked { ino: Ino(1), owner },
            Entry::Appends { unique: 8, offset: 1 << 40 },
        ]
    }

    fn resumed(journal: &Journal) -> Vec<Entry> {
        Journal::resume(journal.region()).unwrap().1
    }

    #[test]
    fn what_was_appended_is_there_after_the_process() {
        let mut journal = Journal::create().unwrap();
        for entry in some() {
            assert!(journal.append(&entry));
        }
        assert_eq!(resumed(&journal), some());
        let (mut again, _) = Journal::resume(journal.region()).unwrap();
        assert!(again.append(&Entry::Told { ino: Ino(5) }));
        assert_eq!(resumed(&again).len(), some().len() + 1);
    }

    #[test]
    fn a_torn_entry_ends_it_and_the_ones_before_count() {
        let mut journal = Journal::create().unwrap();
        for entry in some() {
            assert!(journal.append(&entry));
        }
        let last = journal.half * HALF_BYTES + journal.end - 1;
        let mut byte = [0];
        journal.region.copy_out(last, &mut byte).unwrap();
        journal.region.copy_in(last, &[byte[0] ^ 1]).unwrap();
        assert_eq!(resumed(&journal), some()[..some().len() - 1]);
    }

    #[test]
    fn an_entry_of_a_newer_build_is_refused_and_not_dropped_with_those_behind_it() {
        let mut journal = Journal::create().unwrap();
        assert!(journal.append(&Entry::Told { ino: Ino(5) }));
        let entry = [99, 1, 2];
        let sum = checksum(journal.generation, &entry).0.to_le_bytes();
        let frame = [&3u32.to_le_bytes()[..], &sum, &entry].concat();
        journal.region.copy_in(journal.half * HALF_BYTES + journal.end, &frame).unwrap();
        assert!(Journal::resume(journal.region()).is_err());
    }

    #[test]
    fn nothing_counts_of_a_journal_that_was_voided() {
        let mut journal = Journal::create().unwrap();
        journal.turn(&[Entry::IsOpen { ino: Ino(3), times: 1 }]).unwrap();
        journal.void();
        assert!(Journal::resume(journal.region()).is_err());
    }

    #[test]
    fn a_half_counts_once_it_is_whole() {
        let mut journal = Journal::create().unwrap();
        let mut count = 0;
        while journal.append(&Entry::Opened { unique: count, ino: Ino(count) }) {
            count += 1;
        }
        assert!(count > 100_000, "{count}");
        assert_eq!(resumed(&journal).len() as u64, count);
        let state = [Entry::IsOpen { ino: Ino(3), times: 1 }];
        journal.turn(&state).unwrap();
        assert_eq!(resumed(&journal), state);
        // Killed before the last entry of the next turn: the previous half is still valid.
        let mut killed = Journal { region: journal.region.clone(), ..journal };
        (killed.half, killed.generation, killed.end) = (1 - killed.half, killed.generation + 1, 0);
        assert!(killed.append(&Entry::Generation(killed.generation)));
        assert!(killed.append(&Entry::IsOpen { ino: Ino(4), times: 1 }));
        assert_eq!(resumed(&killed), state);
    }

    #[test]
    fn memory_that_is_no_journal_is_refused() {
        let region = ShmRegion::create("test", REGION_BYTES).unwrap();
        assert!(Journal::resume(&region).is_err());
    }
}
