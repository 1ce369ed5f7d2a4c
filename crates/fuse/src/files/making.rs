//! Files that are made without a name. A meta may ask whether they are open as soon as it has made them, before the mount
//! has heard of that: they count as open while they are made.

use millpond_types::meta::Ino;

use super::Files;

/// A file is being made, until this is dropped: by then it is open, or there is none.
#[derive(Debug)]
pub(crate) struct Making<'f> {
    files: &'f Files,
    ino: Ino,
}

impl Files {
    /// A meta is about to be asked to make this one.
    pub(crate) fn making(&self, ino: Ino) -> Making<'_> {
        self.making.lock().insert(ino);
        Making { files: self, ino }
    }

    /// Parts inodes into those that are open and those that are not.
    pub(crate) fn split(&self, inos: Vec<Ino>) -> (Vec<Ino>, Vec<Ino>) {
        // First: what is made no longer is open by then.
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
