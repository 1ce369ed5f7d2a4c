//! fjall's journals, checked before fjall reads them.
//!
//! fjall reads a journal up to the first entry that it cannot read and silently cuts off the rest.
//! After a power cut that is right: the last batch may be torn, and its commits were not
//! acknowledged. But a damaged entry in the middle would take acknowledged commits with it, and
//! fjall does not notice a missing or shortened journal at all. So each batch names the one before
//! it, in the record of the version. This module follows the chain from the oldest journal to the
//! newest, and compares its end with the seal. It also cuts off a torn batch at the end, so that
//! fjall has nothing to decide.
//!
//! ```text
//! batch: 1 u8  items u32  sequence u64
//!   items: 2 u8  kind u8  compression u8  tree u64  key u16  value u32  stored u32  key  value
//!   3 u8  XXH3-64 of the items u64  "FJL" 3 u8
//! ```

use std::io;
use std::path::{Path, PathBuf};

use millpond_env::files::{FileReader, list, publish, truncate};
use xxhash_rust::xxh3::xxh3_64;

use super::damage::Damage;
use super::seal::Seal;
use super::tables::{Record, VERSION_KEY};

/// The end of a batch in fjall's format.
const END: &[u8] = b"FJL\x03";
/// File extension for the copy of a torn journal; fjall reads `.jnl` only.
const KEPT: &str = "damaged";
/// For comparing many bytes with zeros at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The end of the chain: a batch's version, and the number that fjall gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) version: u64,
    pub(crate) sequence: u64,
}

impl Link {
    /// True when both are one batch. 0 is an unknown number.
    fn is(&self, other: &Self) -> bool {
        let one_number = self.sequence == other.sequence || self.sequence == 0;
        self.version == other.version && one_number
    }
}

/// Contents of the journals of a store.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The last batch; `None` when the journals have none.
    pub(crate) last: Option<Link>,
    /// The trees that batches write to: a bit for each.
    pub(crate) trees: u64,
    /// Journals with bytes after their last batch: path, end of that batch, and content.
    torn: Vec<(PathBuf, usize, Vec<u8>)>,
}

impl Found {
    /// Cuts off batches that were never acknowledged, and keeps a copy.
    pub(crate) fn cut(self) -> io::Result<()> {
        for (path, end, bytes) in self.torn {
            tracing::warn!(path = %path.display(), bytes = bytes.len() - end,
                "the last batch of the store's journal is torn and was dropped: it was never \
                 acknowledged");
            publish(&path.with_extension(KEPT), &[&bytes])?;
            truncate(&path, end as u64)?;
        }
        Ok(())
    }
}

/// Reads the journals in `folder`, oldest first, and follows the chain.
pub(crate) fn check(folder: &Path, seal: Option<&Seal>) -> Result<Found, Damage> {
    let unreadable =
        |path: &Path, error: &io::Error| Damage::new(path, format!("cannot be read: {error}"));
    let all = journals(folder).map_err(|error| unreadable(folder, &error))?;
    let mut found = Found::default();
    for (_, path) in &all {
        let bytes = read(path).map_err(|error| unreadable(path, &error))?;
        let (end, wrong) = follow(path, &bytes, &mut found)?;
        // A torn batch must be the last of all: after one in an older journal no batch may follow.
        for (torn, at, _) in &found.torn {
            if end > 0 {
                let text = format!(
                    "cannot be read at byte {at}, but acknowledged commits follow in {}",
                    path.display()
                );
                return Err(Damage::new(torn, text));
            }
        }
        if end == bytes.len() {
            continue;
        }
        if !is_one_batch(&bytes[end..]) {
            let text = format!("{wrong} at byte {end}, but acknowledged commits follow");
            return Err(Damage::new(path, text));
        }
        found.torn.push((path.clone(), end, bytes));
    }
    if let (Some(seal), Some(last), Some((_, newest))) = (seal, found.last, all.last()) {
        compare(seal, last, newest, &found)?;
    }
    Ok(found)
}

/// Checks that the journals have everything that was acknowledged.
fn compare(seal: &Seal, last: Link, newest: &Path, found: &Found) -> Result<(), Damage> {
    let (path, at) = found.torn.first().map_or((newest, String::new()), |(path, end, _)| {
        (path.as_path(), format!(" at byte {end}"))
    });
    if last.version < seal.version {
        let text = format!(
            "ends{at} with commit {}, but commit {} was acknowledged: the file was cut or is \
             damaged there",
            last.version, seal.version
        );
        return Err(Damage::new(path, text));
    }
    if last.version == seal.version && seal.sequence != 0 && last.sequence != seal.sequence {
        return Err(Damage::new(path, "has a damaged number in its last batch"));
    }
    Ok(())
}

/// Follows the chain through one journal. Returns the end of its last whole batch, and the reason
/// for stopping there.
fn follow(path: &Path, bytes: &[u8], found: &mut Found) -> Result<(usize, &'static str), Damage> {
    let mut end = 0;
    while end < bytes.len() {
        let batch = match Batch::parse(&bytes[end..]) {
            Ok(batch) => batch,
            Err(wrong) => return Ok((end, wrong)),
        };
        found.trees |= batch.trees;
        let before = batch.record.as_ref().and_then(|record| record.before);
        let is_next = match (before, found.last) {
            (Some(before), Some(last)) => before.is(&last),
            // It is from a program that did not chain batches, or the first one left.
            _ => found.last.is_none_or(|last| batch.sequence > last.sequence),
        };
        if !is_next {
            let text = format!(
                "does not continue at byte {end} after the previous batch: commits in between are \
                 missing"
            );
            return Err(Damage::new(path, text));
        }
        if let Some(record) = batch.record {
            found.last = Some(Link { version: record.version.0, sequence: batch.sequence });
        }
        end += batch.len;
    }
    Ok((end, ""))
}

struct Batch {
    len: usize,
    sequence: u64,
    trees: u64,
    record: Option<Record>,
}

impl Batch {
    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let torn = "has an unreadable entry";
        let mut rest = Rest(bytes);
        let (Some(1), Some(items), Some(sequence)) = (rest.u8(), rest.u32(), rest.u64()) else {
            return Err(torn);
        };
        let start = bytes.len() - rest.0.len();
        let (mut trees, mut record) = (0, None);
        for _ in 0..items {
            let item = rest.item().ok_or(torn)?;
            trees |= 1_u64.checked_shl(u32::try_from(item.tree).unwrap_or(64)).unwrap_or(0);
            // The record is the last item.
            record =
                (item.key == VERSION_KEY).then(|| Record::decode(item.value)).and_then(Result::ok);
        }
        let checked = &bytes[start..bytes.len() - rest.0.len()];
        let (Some(3), Some(sum), Some(END)) = (rest.u8(), rest.u64(), rest.take(END.len())) else {
            return Err(torn);
        };
        if sum != xxh3_64(checked) {
            return Err("has a batch with a wrong checksum");
        }
        Ok(Self { len: bytes.len() - rest.0.len(), sequence, trees, record })
    }
}

struct Item<'a> {
    tree: u64,
    key: &'a [u8],
    value: &'a [u8],
}

/// The unread rest.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn item(&mut self) -> Option<Item<'a>> {
        match self.u8()? {
            2 => {
                let (kind, compression) = (self.u8()?, self.u8()?);
                let tree = self.u64()?;
                let key = u16::from_le_bytes(self.array()?);
                let (value, stored) = (self.u32()?, self.u32()?);
                // Values, deletions of two kinds; nothing is compressed.
                if kind > 2 || compression != 0 || value != stored {
                    return None;
                }
                let key = self.take(key.into())?;
                Some(Item { tree, key, value: self.take(usize::try_from(stored).ok()?)? })
            }
            4 => Some(Item { tree: self.u64()?, key: &[], value: &[] }),
            _ => None,
        }
    }
}

/// Reads the bytes of a journal, without the zeros it is preallocated with.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = FileReader::open(path)?;
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    file.read_exact(&mut bytes)?;
    let mut end = len;
    while end >= ZEROS.len() && bytes[end - ZEROS.len()..end] == ZEROS {
        end -= ZEROS.len();
    }
    end = bytes[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    Ok(bytes)
}

/// Lists the journals in `folder`, oldest first; none if the folder does not exist.
pub(crate) fn journals(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let files = match list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let number =
        |path: &Path| path.file_name()?.to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok();
    let mut paths: Vec<_> =
        files.into_iter().filter_map(|file| Some((number(&file.path)?, file.path))).collect();
    paths.sort();
    Ok(paths)
}

/// The path of a journal.
pub(crate) fn journal(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number}.jnl"))
}

/// True when `cut` contains no end of a batch, or only one at its last byte.
fn is_one_batch(cut: &[u8]) -> bool {
    let end = cut.windows(END.len()).position(|bytes| bytes == END);
    end.is_none_or(|at| at + END.len() == cut.len())
}

#[cfg(test)]
mod tests {
    use super::is_one_batch;

    #[test]
    fn what_follows_an_end_is_another_batch() {
        assert!(is_one_batch(b"torn"));
        assert!(is_one_batch(b"torn in the middle FJL\x03"));
        assert!(!is_one_batch(b"torn FJL\x03 and more"));
    }
}
