//! Maintains the seal and the second names of journals while the store is open.

use std::io;
use std::path::Path;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_env::files::sync_folder;
use millpond_types::Tick;

use super::journal::Link;
use super::kept::Kept;
use super::seal::{Seal, SealFile};

/// How often the journals are listed and the seal is synced, while there are commits.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Keeper {
    file: SealFile,
    seal: Seal,
    kept: Kept,
    looked: Tick,
}

impl Keeper {
    /// Seals an open store in its present state.
    pub(crate) fn begin(store: &Path, last: Link, trees: u64) -> io::Result<Self> {
        let seal =
            Seal { version: last.version, sequence: last.sequence, trees, ..Seal::default() };
        let (file, kept) = (SealFile::open(store)?, Kept::new(store));
        let mut this = Self { file, seal, kept, looked: RealClock::tick() };
        this.write_and_forget()?;
        sync_folder(store)?;
        Ok(this)
    }

    /// Records a durable batch before it is answered.
    pub(crate) fn wrote(&mut self, last: Link) -> io::Result<()> {
        (self.seal.version, self.seal.sequence) = (last.version, last.sequence);
        self.file.write(&self.seal)
    }

    /// Syncs the seal from time to time, when no client waits for an answer.
    pub(crate) fn look(&mut self) {
        let now = RealClock::tick();
        if now.since(self.looked) >= EVERY {
            self.looked = now;
            self.end();
        }
    }

    /// Syncs the seal; called once more at the end.
    pub(crate) fn end(&mut self) {
        if let Err(error) = self.write_and_forget() {
            tracing::warn!(%error, "the store's seal could not be synced; trying again");
        }
    }

    fn write_and_forget(&mut self) -> io::Result<()> {
        if let Some((oldest, newest)) = self.kept.look()? {
            (self.seal.oldest, self.seal.newest) = (oldest, newest);
        }
        self.file.write(&self.seal)?;
        self.file.sync()?;
        self.kept.forget(self.seal.oldest)
    }
}
