//! The folder shared by the processes that keep mounts alive.

use std::io;
use std::path::{Path, PathBuf};

use millpond_env::{effective_uid, files};

/// The run directory is unusable; the message names the fix.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, but this is user {user}: give a folder of your own \
         (--run-dir)",
        .path.display()
    )]
    OfAnother {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// It cannot be created or inspected.
    #[error("{}: {source}: give a writable folder (--run-dir)", .path.display())]
    Os {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A run directory: one holder, one daemon and their mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The folder at `path`.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The daemon's admin socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join("daemon.sock")
    }

    /// The lock file of a running holder.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.0.join("holder.lock")
    }

    /// The log file, unless another one is set.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("mount.log")
    }

    /// Makes the folder if it does not exist.
    ///
    /// # Errors
    /// [`RunDirError`]: it belongs to another user, or the system returns an error.
    pub fn prepare(&self) -> Result<(), RunDirError> {
        let os = |source| RunDirError::Os { path: self.0.clone(), source };
        files::make_private_folder(&self.0).map_err(os)?;
        let (owner, user) = (files::owner(&self.0).map_err(os)?, effective_uid());
        if owner != user {
            return Err(RunDirError::OfAnother { path: self.0.clone(), owner, user });
        }
        Ok(())
    }
}
