//! Damage of a file of the store, with advice.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::StoreError;

/// A damaged or missing file.
#[derive(Debug)]
pub(crate) struct Damage {
    path: PathBuf,
    what: String,
}

impl Damage {
    pub(crate) fn new(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self { path: path.into(), what: what.into() }
    }

    /// The user's error for the store in `folder`.
    pub(crate) fn told(self, folder: &Path) -> StoreError {
        StoreError::Damaged(Box::new(Told { damage: self, folder: folder.to_owned() }))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.what)
    }
}

impl std::error::Error for Damage {}

#[derive(Debug)]
struct Told {
    damage: Damage,
    folder: PathBuf,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { damage, folder } = self;
        let folder = folder.display();
        write!(
            f,
            "{damage}. The store does not start with missing data; nothing was removed. Restore \
             the file if you have a copy; otherwise put the whole folder back from a copy that was \
             made while its server was stopped: mv {folder} {folder}.damaged && cp -a COPY \
             {folder} (docs/store.md, \"Copies and damage\")"
        )
    }
}

impl std::error::Error for Told {}
