//! Checks the folder of a store before fjall opens it: all committed data is there, or the store is
//! not opened.

use std::io;
use std::path::Path;

use millpond_env::files::{FileReader, remove};

use super::damage::Damage;
use super::journal::{self, Link, journal};
use super::kept::Kept;
use super::seal::{Seal, SealFile};
use super::trees::{self, Table};
use crate::StoreError;

/// fjall's mark of its format. Without it fjall makes a new store over the old one.
const MARK: (&str, &[u8]) = ("version", b"FJL\x03");

/// A folder that may be opened.
#[derive(Default)]
pub(crate) struct Checked {
    /// Its required content. New stores and those from before seals have none.
    pub(crate) seal: Option<Seal>,
    /// The last batch in its journals.
    pub(crate) last: Option<Link>,
    /// Something has been committed.
    pub(crate) is_used: bool,
    /// Tables still to be compared.
    pub(crate) later: Vec<Table>,
}

/// Checks the folder of a store, and makes repairs that lose nothing.
pub(crate) fn check(store: &Path) -> Result<Checked, StoreError> {
    look(store).map_err(|damage| damage.told(store))
}

fn look(store: &Path) -> Result<Checked, Damage> {
    let failed =
        |error: io::Error| Damage::new(store, format!("cannot be read or written: {error}"));
    let seal = SealFile::read(store).map_err(failed)?;
    let kept = Kept::new(store);
    let journals = kept.restore(seal.as_ref())?;
    let found = journal::check(store, seal.as_ref())?;
    let folders = trees::numbers(store)?;
    let is_used = seal.is_some() || found.trees != 0 || !trees::are_bare(store, &folders)?;
    if !is_used {
        // The start that made it was cut off. fjall continues once it has made its mark.
        if mark(store)?.len() < MARK.1.len() {
            for number in journals {
                remove(&journal(store, number)).map_err(failed)?;
            }
            kept.forget(u64::MAX).map_err(failed)?;
            remove(&store.join(MARK.0)).map_err(failed)?;
        }
        return Ok(Checked::default());
    }
    let needed = match &seal {
        Some(seal) => seal.trees,
        None => folders.iter().fold(found.trees, |trees, number| trees | 1 << (number % 64)),
    };
    let needed: Vec<u64> = (0..64).filter(|number| (needed | 1) >> number & 1 == 1).collect();
    let later = trees::check(store, &needed)?;
    set_mark(store)?;
    let last = found.last;
    found.cut().map_err(failed)?;
    Ok(Checked { seal, last, is_used, later })
}

/// Reads fjall's mark, which may be shorter or missing.
fn mark(store: &Path) -> Result<Vec<u8>, Damage> {
    let path = store.join(MARK.0);
    let read = FileReader::open(&path).and_then(|mut file| {
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(MARK.1.len());
        let mut bytes = vec![0; len];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    });
    match read {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Damage::new(path, format!("cannot be read: {error}"))),
    }
}

/// Writes the mark again if it is gone or shorter: it is always the same.
fn set_mark(store: &Path) -> Result<(), Damage> {
    let (found, path) = (mark(store)?, store.join(MARK.0));
    if found == MARK.1 {
        return Ok(());
    }
    if !MARK.1.starts_with(&found) {
        return Err(Damage::new(
            path,
            "is damaged, or has a format that this program does not know",
        ));
    }
    tracing::warn!(path = %path.display(),
        "the store's format mark was missing and is written again");
    millpond_env::files::publish(&path, &[MARK.1])
        .map_err(|error| Damage::new(path, format!("cannot be written: {error}")))
}
