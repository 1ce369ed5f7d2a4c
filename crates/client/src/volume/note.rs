//! The file in which a process records its session. The session of a killed process lasts until its
//! lease ends, and with it the bytes of all files replaced or removed in the meantime. The next
//! process ends that session at once.

use std::path::{Path, PathBuf};

use millpond_env::files::{FileLock, publish};

/// A file that names a session, and the right to use it.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    /// Held exclusively: the process that recorded a session before has ended.
    _lock: FileLock,
}

impl Note {
    /// Takes the note. None if another process has it, or if it cannot be kept: sessions then end
    /// with their leases.
    pub(super) fn take(path: &Path) -> Option<Self> {
        let lock = FileLock::take(&path.with_added_extension("lock")).ok()??;
        Some(Self { path: path.to_owned(), _lock: lock })
    }

    /// The session recorded last and its name; none if there is none, or if it is unreadable.
    pub(super) fn read(&self) -> Option<(u64, String)> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let (session, name) = text.strip_suffix('\n')?.split_once(' ')?;
        Some((session.parse().ok()?, name.to_owned()))
    }

    /// Records a session.
    pub(super) fn write(&self, session: u64, name: &str) {
        // If this fails, the session ends with its lease.
        let _ = publish(&self.path, &[format!("{session} {name}\n").as_bytes()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_a_note_and_what_is_not_legible_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        let note = Note::take(&path).unwrap();
        assert_eq!(note.read(), None);
        note.write(17, "a name");
        assert_eq!(note.read(), Some((17, "a name".to_owned())));
        assert!(Note::take(&path).is_none(), "the first one has it");
        for torn in ["1x name\n", "17", "17 a na", ""] {
            std::fs::write(&path, torn).unwrap();
            assert_eq!(note.read(), None, "{torn}");
        }
        note.write(18, "n");
        drop(note);
        assert_eq!(Note::take(&path).unwrap().read(), Some((18, "n".to_owned())));
        assert!(Note::take(Path::new("/nowhere/session")).is_none());
    }
}
