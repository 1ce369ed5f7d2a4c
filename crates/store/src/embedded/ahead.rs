//! Room in the journal that is written before commits need it.
//!
//! fjall makes a journal as a hole of 64 MiB, and syncs it for every batch. Where a sync covers
//! blocks that are written for the first time, it also commits the file system's own journal.
//! `PostgreSQL` fills its WAL with zeros for that reason (`wal_init_zero`); here the commit thread
//! does, between two batches, when no other thread writes to the journal. A hole and zeros read the
//! same, so correctness does not depend on this module. A journal that was opened again has no
//! room: fjall appends to it.

use std::io;
use std::path::{Path, PathBuf};

use millpond_env::files::SparseFile;

use super::journal::journals;

/// Bytes written at once: with the batch after it they take half a millisecond to sync.
const PIECE: usize = 256 << 10;
/// Upper bound of an entry's bytes besides key and value, including compression that does not pay.
const ENTRY: usize = 128;

/// fjall moves to the next journal when one has more bytes than this, and not before.
const NEXT_AT: u64 = 64_000_000;

/// The current journal.
pub(crate) struct Ahead {
    folder: PathBuf,
    number: u64,
    /// `None` when it has no room, or could not be opened.
    file: Option<SparseFile>,
    /// End of the bytes written ahead.
    end: u64,
    /// Upper bound of the bytes that commits have used.
    used: u64,
}

impl Ahead {
    /// Opens the newest journal in this folder.
    pub(crate) fn new(folder: &Path) -> Self {
        let newest = journals(folder).ok().and_then(|all| all.last().map(|(number, _)| *number));
        let mut this = Self { folder: folder.to_owned(), number: 0, file: None, end: 0, used: 0 };
        this.open(newest.unwrap_or_default());
        this
    }

    /// The maximal size of a batch of `keys` keys with `bytes` bytes.
    pub(crate) const fn room(keys: usize, bytes: usize) -> usize {
        bytes + bytes / 64 + (keys + 2) * ENTRY
    }

    /// Notes that the commit thread has written at most `bytes` bytes, and syncs nothing now.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        while self.may_have_ended() && self.path(self.number + 1).exists() {
            self.open(self.number + 1);
        }
        self.used += bytes as u64;
        if self.used + (PIECE as u64 / 2) < self.end {
            return;
        }
        if let Err(error) = self.fill() {
            tracing::debug!(%error, "the store's journal is not written ahead");
            self.file = None;
        }
    }

    /// The end of a journal that was opened again is unknown.
    const fn may_have_ended(&self) -> bool {
        self.file.is_none() || self.used > NEXT_AT
    }

    fn fill(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        match file.fill_hole(self.end, PIECE)? {
            Some(end) => {
                // Bytes before the end are used, or were written here.
                self.used = self.used.min(end - PIECE as u64);
                self.end = end;
            }
            None => self.file = None,
        }
        Ok(())
    }

    fn open(&mut self, number: u64) {
        (self.number, self.end, self.used) = (number, 0, 0);
        self.file = SparseFile::open(&self.path(number)).ok();
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}.jnl"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    use std::path::Path;

    use super::{Ahead, PIECE};

    fn journal(path: &Path) -> File {
        let file = File::create_new(path).unwrap();
        file.set_len(4 << 20).unwrap();
        file
    }

    fn has_room(file: &File) -> u64 {
        file.sync_all().unwrap();
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn room_is_there_before_it_is_needed_and_bytes_stay() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let file = journal(&folder.path().join("7.jnl"));
        let mut ahead = Ahead::new(folder.path());
        let batch = [5; 10_000];
        for n in 0..200 {
            let at = n * batch.len() as u64;
            file.write_all_at(&batch, at).unwrap();
            file.sync_data().unwrap();
            ahead.wrote(Ahead::room(1, batch.len()));
            let ahead = has_room(&file).saturating_sub(at + batch.len() as u64);
            assert!((1..3 * PIECE as u64).contains(&ahead), "{ahead} bytes ahead of {at}");
        }
        let bytes = std::fs::read(folder.path().join("7.jnl")).unwrap();
        assert!(bytes[..2_000_000].iter().all(|byte| *byte == 5));
        assert!(bytes[2_000_000..].iter().all(|byte| *byte == 0));
        // The next journal, which is looked for once this one is full.
        file.write_all_at(&vec![5; 4 << 20], 0).unwrap();
        ahead.wrote(4 << 20);
        let next = journal(&folder.path().join("8.jnl"));
        ahead.wrote(100);
        assert_eq!(has_room(&next), PIECE as u64);
    }

    #[test]
    fn a_journal_that_is_appended_to_is_left_alone() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("0.jnl");
        std::fs::write(&path, [5; 10_000]).unwrap();
        let mut ahead = Ahead::new(folder.path());
        ahead.wrote(100);
        ahead.wrote(1 << 20);
        assert_eq!(std::fs::read(&path).unwrap(), [5; 10_000]);
        // Nothing happens without a journal, either.
        Ahead::new(&folder.path().join("none")).wrote(100);
    }
}
