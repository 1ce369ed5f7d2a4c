//! Second names of the journals, so that the disappearance of one is recorded first.
//!
//! fjall removes a journal once tables have all of it; afterwards it is impossible to tell a
//! removal by fjall from any other. So each journal has a second name here. When a journal is gone,
//! first the seal records that it is not needed, and then the second name is removed. A start that
//! finds only the second name restores the journal, which is harmless: fjall skips entries that
//! tables have. On a file system without hard links there are no second names, and the rest works
//! the same.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use millpond_env::files::{link, make_folder, remove};

use super::damage::Damage;
use super::journal::{journal, journals};
use super::seal::Seal;

const FOLDER: &str = "kept";

/// The second names.
pub(crate) struct Kept {
    store: PathBuf,
    folder: PathBuf,
}

impl Kept {
    pub(crate) fn new(store: &Path) -> Self {
        Self { store: store.to_owned(), folder: store.join(FOLDER) }
    }

    /// Restores journals from second names, and gives missing second names; the caller has the
    /// folder to itself. Returns the journals, oldest first.
    pub(crate) fn restore(&self, seal: Option<&Seal>) -> Result<Vec<u64>, Damage> {
        let failed =
            |error: io::Error| Damage::new(&self.store, format!("cannot be read: {error}"));
        let needed = seal.map_or(0, |seal| seal.oldest);
        let mut there = numbers(&self.store).map_err(failed)?;
        for number in numbers(&self.folder).map_err(failed)? {
            let second = journal(&self.folder, number);
            if number >= needed && !there.contains(&number) {
                link(&second, &journal(&self.store, number)).map_err(failed)?;
                there.insert(number);
            } else {
                // It is not needed, or from a copy of the folder, where it is another file.
                remove(&second).map_err(failed)?;
            }
        }
        self.complete(&there, seal)?;
        self.keep(&there);
        Ok(there.into_iter().collect())
    }

    /// Checks that no journal is missing: their numbers are consecutive.
    fn complete(&self, there: &BTreeSet<u64>, seal: Option<&Seal>) -> Result<(), Damage> {
        let first = there.first().copied().into_iter().chain(seal.map(|seal| seal.oldest)).min();
        let last = there.last().copied().into_iter().chain(seal.map(|seal| seal.newest)).max();
        let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
        match (first..=last).find(|number| !there.contains(number)) {
            None => Ok(()),
            Some(number) => {
                let text = "is missing: it is a journal with commits that no other file has";
                Err(Damage::new(journal(&self.store, number), text))
            }
        }
    }

    /// Returns the oldest and the newest journal, and gives new ones second names.
    pub(crate) fn look(&self) -> io::Result<Option<(u64, u64)>> {
        let there = numbers(&self.store)?;
        self.keep(&there);
        Ok(there.first().copied().zip(there.last().copied()))
    }

    /// Removes second names that are older than the `oldest` of a seal on disk.
    pub(crate) fn forget(&self, oldest: u64) -> io::Result<()> {
        for number in numbers(&self.folder)? {
            if number < oldest {
                remove(&journal(&self.folder, number))?;
            }
        }
        Ok(())
    }

    fn keep(&self, there: &BTreeSet<u64>) {
        let kept = make_folder(&self.folder).and_then(|()| numbers(&self.folder));
        let linked = kept.and_then(|kept| {
            there
                .difference(&kept)
                .try_for_each(|n| link(&journal(&self.store, *n), &journal(&self.folder, *n)))
        });
        if let Err(error) = linked {
            tracing::debug!(path = %self.folder.display(), %error,
                "journals of the store cannot get second names (hard links)");
        }
    }
}

fn numbers(folder: &Path) -> io::Result<BTreeSet<u64>> {
    Ok(journals(folder)?.into_iter().map(|(number, _)| number).collect())
}
