//! Observations of a check about one inode, and their judgement.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use millpond_types::meta::object::places;
use millpond_types::meta::{EntryRecord, FileKind, Ino, InodeRecord, Name, Repair, keys};

use crate::finding::Finding;

/// An inode of a batch, with the names and records that were found for it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each was seen by itself")]
pub(crate) struct Seen {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    pub(crate) is_orphan: bool,
    /// It is a part of an upload.
    pub(crate) is_part: bool,
    /// The directory with the trash that it is in; 0 for none.
    pub(crate) trash: Ino,
    pub(crate) version: u64,
    nlink: u32,
    names: u32,
    pub(crate) dirs: u32,
    xattrs: u16,
    pub(crate) xattrs_found: u16,
    /// Whether its bytes may lie in the store, and whether some do.
    pub(crate) content: (bool, bool),
    pub(crate) parent: Ino,
    /// It is a directory of objects.
    is_of_objects: bool,
    /// The sum of the places that its entries should have, minus the sum of the existing places.
    places: u64,
    /// A name was found in the directory that it records as parent.
    is_placed: bool,
}

/// Hashes an entry at a place; sums of these hashes do not depend on the order.
fn sum(place: &[u8], entry: EntryRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    (place, entry.ino, entry.kind).hash(&mut hasher);
    hasher.finish()
}

impl Seen {
    pub(crate) fn of(record: &InodeRecord) -> Self {
        let attr = &record.attr;
        Self {
            ino: attr.ino,
            kind: attr.kind,
            is_orphan: false,
            is_part: false,
            trash: Ino(0),
            version: attr.version,
            nlink: attr.nlink,
            names: 0,
            dirs: 0,
            xattrs: record.xattrs,
            xattrs_found: 0,
            content: (attr.is_stored(), false),
            parent: attr.parent,
            is_of_objects: record.marks.objects,
            places: 0,
            // The root is its own parent, without a name.
            is_placed: attr.ino == Ino::ROOT && attr.parent == Ino::ROOT,
        }
    }

    /// Counts a name in `dir` that leads to it. Returns whether this is one too many for a
    /// directory.
    pub(crate) fn named_in(&mut self, dir: Ino) -> bool {
        self.names += 1;
        if self.kind != FileKind::Directory {
            return false;
        }
        let is_first = !self.is_placed && dir == self.parent;
        self.is_placed |= is_first;
        !is_first
    }

    /// Counts an entry in it.
    pub(crate) fn has(&mut self, name: &Name, entry: EntryRecord) {
        self.dirs += u32::from(entry.kind == FileKind::Directory);
        if self.is_of_objects {
            for place in places(name, entry.kind == FileKind::Directory) {
                self.places = self.places.wrapping_add(sum(&place, entry));
            }
        }
    }

    /// Counts an entry at a place.
    pub(crate) fn has_at(&mut self, place: &[u8], entry: EntryRecord) {
        self.places = self.places.wrapping_sub(sum(place, entry));
    }

    /// Whether its places are those of its entries.
    pub(crate) const fn is_in_order(&self) -> bool {
        self.places == 0
    }

    /// Whether names should lead to it.
    pub(crate) const fn has_place(&self) -> bool {
        !self.is_orphan && !self.is_part && self.trash.0 == 0
    }

    /// Returns the inconsistency, if nothing has changed, and its repairs. For a directory, `extra`
    /// has its names outside its recorded parent.
    pub(crate) fn judge(&self, extra: &[(Ino, Name)]) -> Option<(Finding, Vec<Repair>)> {
        let (ino, version) = (self.ino, self.version);
        let is_dir = self.kind == FileKind::Directory;
        let is_root = ino == Ino::ROOT;
        let found = match (is_dir, self.has_place()) {
            (true, true) => 2 + self.dirs,
            (true, false) => self.dirs,
            (false, _) => self.names,
        };
        if self.names == 0 && !is_root && self.has_place() {
            let nlink = if is_dir { found } else { 1 };
            return Some((Finding::Orphan { ino }, vec![Repair::Nameless { ino, version, nlink }]));
        }
        if !self.has_place() && (self.names > 0 || is_root) {
            let nlink = if is_dir { 2 + self.dirs } else { self.names };
            let repair = Repair::Named { ino, version, nlink, trash: self.trash };
            return Some((Finding::Orphan { ino }, vec![repair]));
        }
        if self.nlink != found {
            let repair = Repair::Links { ino, version, nlink: found };
            return Some((Finding::Links { ino, nlink: self.nlink, found }, vec![repair]));
        }
        if is_dir && self.has_place() && (!self.is_placed || !extra.is_empty()) {
            let repairs = self.place(extra);
            return Some((Finding::Parent { ino, parent: self.parent }, repairs));
        }
        if self.content == (false, true) {
            let key = keys::content(ino);
            return Some((Finding::Content { ino }, vec![Repair::Stray { key }]));
        }
        let wrong = self.xattrs != self.xattrs_found;
        wrong.then(|| (Finding::Xattrs { ino }, vec![Repair::Xattrs { ino }]))
    }

    /// Keeps the name of a directory in its recorded parent, or else its first name.
    fn place(&self, extra: &[(Ino, Name)]) -> Vec<Repair> {
        let (ino, version) = (self.ino, self.version);
        if ino == Ino::ROOT && !self.is_placed {
            return vec![Repair::Place { ino, version, parent: Ino::ROOT }];
        }
        match extra {
            [(dir, _), ..] if !self.is_placed => {
                // This changes the version: the rest waits for the next check.
                vec![Repair::Place { ino, version, parent: *dir }]
            }
            names => {
                let goes = |(dir, name): &(Ino, Name)| Repair::ExtraName {
                    dir: *dir,
                    name: name.clone(),
                    ino,
                    version,
                };
                names.iter().map(goes).collect()
            }
        }
    }
}
