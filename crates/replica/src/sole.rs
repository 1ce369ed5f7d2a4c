//! Whether an earlier process can have granted read leases for the replicas of a disk.
//!
//! A restarted replica honours the grants of its earlier life, which it has forgotten: it waits for
//! as long as a grant lasts before it serves (`docs/replication.md`). A replica without a peer
//! grants nothing. A mark in the data folder reports that the last process had no chain with a
//! peer, so the next process need not wait.

use std::io;
use std::path::{Path, PathBuf};

use millpond_env::files::{self, PlacedFile};
use parking_lot::Mutex;

/// Name of the mark within a data folder.
pub(super) const MARK_FILE: &str = "millpond.sole";

/// The mark of one data folder.
#[derive(Debug)]
pub struct SoleMark {
    /// The mark file; none for a block device, which has no folder.
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Grants of an earlier process may be valid.
    Unknown,
    /// The mark is in the folder.
    Set,
    /// This process has chains with peers, or the folder takes no mark.
    Ended,
}

impl SoleMark {
    /// Reads the mark of a data folder, after the data file in it was locked.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let file = folder.join(MARK_FILE);
        let is_set = files::exists(&file).unwrap_or(false);
        let state = if is_set { State::Set } else { State::Unknown };
        Self { file: Some(file), state: Mutex::new(state) }
    }

    /// Of a disk without a folder: grants are always waited for.
    #[must_use]
    pub fn none() -> Self {
        Self { file: None, state: Mutex::new(State::Ended) }
    }

    /// Whether no grant is valid that another process gave.
    pub(super) fn is_set(&self) -> bool {
        *self.state.lock() == State::Set
    }

    /// Sets the mark, unless this process has had a chain with a peer. Call this only after every
    /// grant of earlier processes has expired.
    pub(super) fn set(&self) {
        let mut state = self.state.lock();
        let Some(file) = self.file.as_deref().filter(|_| *state == State::Unknown) else { return };
        // A mark that a crash of the machine takes away costs a wait, so nothing is synced.
        *state = match PlacedFile::open_or_create(file) {
            Ok(_) => State::Set,
            Err(error) => {
                tracing::debug!("{}: {error}: the next start waits a second", file.display());
                State::Ended
            }
        };
    }

    /// Removes the mark durably, before any replica learns that it has a peer.
    ///
    /// # Errors
    /// The folder refuses: the mark may be there, and no chain may get a peer.
    pub(super) fn end(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if *state != State::Ended
            && let Some(file) = &self.file
        {
            files::remove(file)?;
            files::sync_folder(file.parent().unwrap_or(file))?;
        }
        *state = State::Ended;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_mark_is_there_as_long_as_no_chain_had_a_peer() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(MARK_FILE);
        let first = SoleMark::read(folder.path());
        assert!(!first.is_set(), "an unknown earlier process may have granted leases");
        first.set();
        assert!(first.is_set() && file.exists());

        let second = SoleMark::read(folder.path());
        assert!(second.is_set());
        second.end().unwrap();
        assert!(!second.is_set() && !file.exists());
        second.set();
        assert!(!file.exists(), "a process that had peers sets no mark");

        let third = SoleMark::read(folder.path());
        assert!(!third.is_set());
        third.end().unwrap();
        assert!(!SoleMark::none().is_set());
    }

    #[test]
    fn a_mark_that_cannot_be_removed_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        // No file, so that nobody can remove it as one, root included.
        fs::create_dir(folder.path().join(MARK_FILE)).unwrap();
        let mark = SoleMark::read(folder.path());
        assert!(mark.is_set());
        mark.end().unwrap_err();
        assert!(mark.is_set());
    }
}
