//! Files that are being made without a name. A meta may ask whether they are open as soon as it has
//! made them, before the mount has the answer: they count as open in the meantime.

use millpond_types::meta::Ino;

use super::Files;

/// A guard for a file that is being made. When it is dropped, the file is open, or does not exist.
#[derive(Debug)]
pub(crate) struct Making<'f> {
    files: &'f Files,
    ino: Ino,
}

impl Files {
    /// Notes that a meta is about to be asked to make this file.
    pub(crate) fn making(&self, ino: Ino) -> Making<'_> {
        self.making.lock().insert(ino);
        Making { files: self, ino }
    }

    /// Divides inodes into open ones and others.
    pub(crate) fn split(&self, inos: Vec<Ino>) -> (Vec<Ino>, Vec<Ino>) {
        // Read first: a file that is no longer being made is open by then.
        let making = self.making.lock().clone();
        let table = self.table.lock();
        inos.into_iter().partition(|ino| making.contains(ino) || table.open.contains_key(ino))
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.files.making.lock().remove(&self.ino);
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Told;
    use crate::files::Files;
    use crate::files::tests::attr;

    #[test]
    fn a_file_counts_as_open_from_before_it_is_made() {
        let files = Files::new(None);
        let told = Told { attr: attr(0, 1), version: 1 };
        let ino = told.attr.ino;
        let is_open = || files.split(vec![ino]) == (vec![ino], vec![]);
        assert!(!is_open());
        let making = files.making(ino);
        assert!(is_open());
        let _file = files.open(7, told);
        drop(making);
        assert!(is_open());
        let _ = files.close(8, ino);
        assert!(!is_open());
        drop(files.making(ino));
        assert!(!is_open(), "it was refused");
    }
}
