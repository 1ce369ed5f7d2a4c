//! Required content of the store when it is opened: the last commit, its trees, its journals.
//!
//! The record is written after each batch is durable and before the batch is answered, so it never
//! promises more than there is. It lies in the page cache until it is synced (every second, and at
//! the end), which survives a kill. After a power cut it may lag behind acknowledged commits, and
//! then the journals are judged by themselves.
//!
//! ```text
//! two slots, at 0 and at 4096, written in turn; each, little endian:
//!  "MPSEAL01"  turn u64  version u64  sequence u64  oldest u64  newest u64  trees u64  XXH3-64 u64
//! ```

use std::io;
use std::path::Path;

use millpond_env::files::PlacedFile;
use xxhash_rust::xxh3::xxh3_64;

/// The file of the seal.
pub(crate) const FILE: &str = "seal";
const MAGIC: &[u8; 8] = b"MPSEAL01";
const SLOT: usize = 64;
/// Slots lie in separate blocks: a torn write of one leaves the other.
const APART: u64 = 4096;

/// The required content of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The version of the last batch.
    pub(crate) version: u64,
    /// The number that fjall gave it.
    pub(crate) sequence: u64,
    /// The oldest journal that may hold entries missing in tables.
    pub(crate) oldest: u64,
    /// The newest journal that was seen.
    pub(crate) newest: u64,
    /// The trees, by fjall's number: a bit for each.
    pub(crate) trees: u64,
}

impl Seal {
    fn encode(&self, turn: u64) -> [u8; SLOT] {
        let mut slot = [0; SLOT];
        let words = [turn, self.version, self.sequence, self.oldest, self.newest, self.trees];
        slot[..8].copy_from_slice(MAGIC);
        for (place, word) in slot[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64(&slot[..SLOT - 8]);
        slot[SLOT - 8..].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    fn decode(slot: &[u8; SLOT]) -> Option<(u64, Self)> {
        let mut words = slot.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let mut next = || words.next().unwrap_or_default();
        let magic = next();
        let turn = next();
        let (version, sequence, oldest, newest) = (next(), next(), next(), next());
        let (trees, sum) = (next(), next());
        let is_whole = magic == u64::from_le_bytes(*MAGIC) && sum == xxh3_64(&slot[..SLOT - 8]);
        is_whole.then_some((turn, Self { version, sequence, oldest, newest, trees }))
    }
}

/// The file of the seal, and its turn.
pub(crate) struct SealFile {
    file: PlacedFile,
    turn: u64,
}

impl SealFile {
    /// Reads the last seal that was written in `folder`; `None` if there is no file, or no whole
    /// slot in it.
    pub(crate) fn read(folder: &Path) -> io::Result<Option<Seal>> {
        match PlacedFile::open(&folder.join(FILE)) {
            Ok(file) => Ok(newest(&file).map(|(_, seal)| seal)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens or makes the file.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let file = PlacedFile::open_or_create(&folder.join(FILE))?;
        let turn = newest(&file).map_or(0, |(turn, _)| turn);
        Ok(Self { file, turn })
    }

    /// Writes the next seal over the last but one. Not synced.
    pub(crate) fn write(&mut self, seal: &Seal) -> io::Result<()> {
        self.turn += 1;
        self.file.write_all_at(&seal.encode(self.turn), (self.turn % 2) * APART)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

fn newest(file: &PlacedFile) -> Option<(u64, Seal)> {
    let slot = |at| {
        let mut slot = [0; SLOT];
        file.read_exact_at(&mut slot, at).ok().and_then(|()| Seal::decode(&slot))
    };
    [slot(0), slot(APART)].into_iter().flatten().max_by_key(|(turn, _)| *turn)
}

#[cfg(test)]
mod tests {
    use super::{FILE, Seal, SealFile};

    #[test]
    fn one_of_two_slots_is_always_whole() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(SealFile::read(folder.path()).unwrap(), None);
        let mut file = SealFile::open(folder.path()).unwrap();
        let seal = |version| Seal { version, sequence: 3 * version, trees: 14, ..Seal::default() };
        for version in 1..6 {
            file.write(&seal(version)).unwrap();
            assert_eq!(SealFile::read(folder.path()).unwrap(), Some(seal(version)));
            // Opened again it continues in the other slot.
            file = SealFile::open(folder.path()).unwrap();
        }
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..64 {
            let mut bytes = whole.clone();
            bytes[4096 + at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(SealFile::read(folder.path()).unwrap(), Some(seal(4)));
        }
    }
}
