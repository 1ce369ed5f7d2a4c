//! Second names of the journals, so that none is gone before that is written down.
//!
//! fjall removes a journal once tables have all of it; whether it did, or somebody else, cannot be told afterwards. So each
//! journal has a second name here. Where a journal is gone, the seal is told first that it is not needed, and then the second
//! name is removed; a start that finds a second name alone gives the journal its name back, which is harmless:
//! fjall leaves out what tables have. On a file system without second names nothing is kept, and the rest works the same.

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

    /// Gives journals their names back, and second names to those that have none: what is there belongs to
    /// nobody else now. The journals, oldest first.
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
                // Not needed, or of a copy of the folder, and then it is another file.
                remove(&second).map_err(failed)?;
            }
        }
        self.complete(&there, seal)?;
        self.keep(&there);
        Ok(there.into_iter().collect())
    }

    /// Journals have numbers that follow each other.
    fn complete(&self, there: &BTreeSet<u64>, seal: Option<&Seal>) -> Result<(), Damage> {
        let first = there.first().copied().into_iter().chain(seal.map(|seal| seal.oldest)).min();
        let last = there.last().copied().into_iter().chain(seal.map(|seal| seal.newest)).max();
        let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
        match (first..=last).find(|number| !there.contains(number)) {
            None => Ok(()),
            Some(number) => {
                let text = "is missing: it is a journal, with commits that nothing else has";
                Err(Damage::new(journal(&self.store, number), text))
            }
        }
    }

    /// Journals by now, the oldest and the newest. New ones get second names.
    pub(crate) fn look(&self) -> io::Result<Option<(u64, u64)>> {
        let there = numbers(&self.store)?;
        self.keep(&there);
        Ok(there.first().copied().zip(there.last().copied()))
    }

    /// Removes what is older than a seal that is on disk.
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
            tracing::debug!(path = %self.folder.display(), %error, "journals of the store have no second names");
        }
    }
}

fn numbers(folder: &Path) -> io::Result<BTreeSet<u64>> {
    Ok(journals(folder)?.into_iter().map(|(number, _)| number).collect())
}
