//! What is known of open files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use millpond_types::meta::{Attr, Ino, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::backend::Bytes;

/// An open file, however often it is open.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) ino: Ino,
    /// Shared by reads and writes; held alone by what changes the length otherwise.
    pub(crate) gate: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// As the meta told it last.
    attr: Attr,
    /// What the meta has not been told: the end of the bytes written, and when.
    written: Option<Written>,
    opens: u32,
}

/// Bytes that a meta does not know of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) end: u64,
    pub(crate) at: Timestamp,
    pub(crate) data: u64,
}

impl File {
    fn new(attr: Attr) -> Self {
        let state = State { attr, written: None, opens: 0 };
        Self { ino: attr.ino, gate: RwLock::default(), state: Mutex::new(state) }
    }

    /// The file's attributes with what was written through this mount.
    pub(crate) fn attr(&self) -> Attr {
        let state = self.state.lock();
        overlaid(state.attr, state.written)
    }

    /// Where the file's bytes lie, and how many there are.
    pub(crate) fn bytes(&self) -> (Bytes, u64) {
        let attr = self.attr();
        (Bytes::of(&attr), attr.size)
    }

    /// Takes a meta's word, unless a newer one is known; returns what is true then.
    pub(crate) fn learn(&self, attr: Attr) -> Attr {
        let mut state = self.state.lock();
        if attr.version >= state.attr.version {
            state.attr = attr;
        }
        overlaid(state.attr, state.written)
    }

    /// Takes note of bytes that were written. True when there was nothing to tell a meta before.
    pub(crate) fn wrote(&self, written: Written) -> bool {
        let mut state = self.state.lock();
        let before = state.written.filter(|before| before.data == written.data);
        let end = before.map_or(written.end, |before| before.end.max(written.end));
        state.written = Some(Written { end, ..written });
        before.is_none()
    }

    /// What a meta must be told; the caller tells it, and then [`File::told`].
    pub(crate) fn untold(&self) -> Option<Written> {
        self.state.lock().written
    }

    /// A meta knows of these bytes now.
    pub(crate) fn told(&self, written: Written, attr: Attr) {
        let mut state = self.state.lock();
        if state.written == Some(written) {
            state.written = None;
        }
        if attr.version >= state.attr.version {
            state.attr = attr;
        }
    }
}

fn overlaid(attr: Attr, written: Option<Written>) -> Attr {
    match written.filter(|written| written.data == attr.data) {
        Some(written) => Attr {
            size: attr.size.max(written.end),
            mtime: written.at,
            ctime: attr.ctime.max(written.at),
            ..attr
        },
        None => attr,
    }
}

/// The open files of a mount.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: Mutex<HashMap<Ino, Arc<File>>>,
    untold: Mutex<HashSet<Ino>>,
}

impl Files {
    /// One more descriptor of a file, whose attributes are these.
    pub(crate) fn open(&self, attr: Attr) -> Arc<File> {
        let mut open = self.open.lock();
        let file = open.entry(attr.ino).or_insert_with(|| Arc::new(File::new(attr)));
        let file = Arc::clone(file);
        file.state.lock().opens += 1;
        drop(open);
        let _ = file.learn(attr);
        file
    }

    /// An open file.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<File>> {
        self.open.lock().get(&ino).cloned()
    }

    /// One descriptor less.
    pub(crate) fn close(&self, ino: Ino) {
        let mut open = self.open.lock();
        let Some(file) = open.get(&ino) else { return };
        let mut state = file.state.lock();
        state.opens = state.opens.saturating_sub(1);
        let last = state.opens == 0;
        drop(state);
        if last {
            open.remove(&ino);
        }
    }

    /// Which of these are open.
    pub(crate) fn split(&self, inos: Vec<Ino>) -> (Vec<Ino>, Vec<Ino>) {
        let open = self.open.lock();
        inos.into_iter().partition(|ino| open.contains_key(ino))
    }

    /// A file of which a meta must be told soon.
    pub(crate) fn note_untold(&self, ino: Ino) {
        self.untold.lock().insert(ino);
    }

    /// Files of which a meta must be told.
    pub(crate) fn take_untold(&self) -> Vec<Arc<File>> {
        let inos = std::mem::take(&mut *self.untold.lock());
        let open = self.open.lock();
        inos.iter().filter_map(|ino| open.get(ino).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::meta::{FileKind, Layout};

    use super::*;

    fn attr(size: u64, version: u64) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino: Ino(5),
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            data: 5,
            layout: Layout::NONE,
            parent: Ino::ROOT,
            version,
        }
    }

    fn written(end: u64) -> Written {
        Written { end, at: Timestamp { secs: 9, nanos: 0 }, data: 5 }
    }

    #[test]
    fn what_was_written_shows_before_a_meta_knows() {
        let files = Files::default();
        let file = files.open(attr(10, 1));
        assert!(file.wrote(written(30)) && !file.wrote(written(20)));
        assert_eq!(file.attr().size, 30);
        // An answer that was on its way before the write.
        assert_eq!(file.learn(attr(10, 1)).size, 30);
        let untold = file.untold().unwrap();
        assert_eq!(untold.end, 30);
        file.told(untold, attr(30, 2));
        assert_eq!((file.untold(), file.attr().size), (None, 30));
        assert_eq!(file.learn(attr(10, 1)).size, 30, "an old answer");
        assert_eq!(file.learn(attr(3, 4)).size, 3, "cut elsewhere");
    }

    #[test]
    fn bytes_of_another_data_id_do_not_count() {
        let file = File::new(attr(10, 1));
        let _ = file.wrote(written(30));
        let cut = Attr { data: 6, size: 0, version: 2, ..attr(0, 2) };
        assert_eq!(file.learn(cut).size, 0);
    }

    #[test]
    fn a_file_is_known_while_it_is_open() {
        let files = Files::default();
        let _one = files.open(attr(1, 1));
        let _two = files.open(attr(1, 1));
        files.close(Ino(5));
        assert!(files.get(Ino(5)).is_some());
        assert_eq!(files.split(vec![Ino(5), Ino(6)]), (vec![Ino(5)], vec![Ino(6)]));
        files.close(Ino(5));
        assert!(files.get(Ino(5)).is_none());
    }
}
