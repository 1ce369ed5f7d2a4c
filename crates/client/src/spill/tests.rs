//! A meta and chunks in memory, with another client that changes the file at every step.

use std::collections::BTreeMap;

use millpond_types::meta::{FileKind, Layout};

use super::*;

const LAYOUT: Layout = Layout { chunk_log2: 16, stripe: 2, seed: 4, chains: 5, table: 0 };

/// One file; `meddle` is called before each request with the number of earlier ones.
struct World<'m> {
    attr: Attr,
    bytes: Vec<u8>,
    reserved: u64,
    chunks: BTreeMap<u64, Vec<u8>>,
    asked: usize,
    /// A name that was cloned.
    sealed: Option<u64>,
    meddle: &'m dyn Fn(&mut World<'_>),
}

/// A file of `size` bytes in the store.
pub(crate) fn stored(size: u64) -> Attr {
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
        chunks: None,
        is_shared: false,
        solid: 0,
        cuts: 0,
        layout: LAYOUT,
        parent: Ino::ROOT,
        version: 1,
    }
}

impl<'m> World<'m> {
    fn new(bytes: &[u8], meddle: &'m dyn Fn(&mut World<'_>)) -> Self {
        let (attr, bytes) = (stored(bytes.len() as u64), bytes.to_vec());
        let (chunks, asked, sealed) = (BTreeMap::new(), 0, None);
        Self { attr, bytes, reserved: 100, chunks, asked, sealed, meddle }
    }

    fn set(&mut self, bytes: &[u8]) {
        self.bytes = bytes.to_vec();
        self.attr.size = bytes.len() as u64;
        self.attr.version += 1;
    }

    fn go(&mut self, chunks: u64, size: u64) {
        self.attr.chunks = Some(chunks);
        self.attr.size = self.attr.size.max(size);
        self.attr.version += 1;
    }

    /// The bytes that a reader gets.
    fn read(&self) -> Vec<u8> {
        let mut bytes = match self.attr.chunks {
            Some(chunks) => self.chunks.get(&chunks).cloned().unwrap_or_default(),
            None => self.bytes.clone(),
        };
        bytes.resize(usize::try_from(self.attr.size).unwrap(), 0);
        bytes
    }
}

impl Door for World<'_> {
    type Error = &'static str;

    fn ask(&mut self, op: MetaOp) -> Result<MetaReply, &'static str> {
        let meddle = self.meddle;
        meddle(self);
        self.asked += 1;
        match op {
            MetaOp::Content { .. } => {
                Ok(MetaReply::Content(Content { attr: self.attr, bytes: self.bytes.clone() }))
            }
            MetaOp::Reserve(_) => {
                self.reserved += 1;
                Ok(MetaReply::Reserved(self.reserved))
            }
            MetaOp::Extend(extend) => {
                if self.attr.is_stored() && self.attr.size == 0 && self.attr.data == extend.data {
                    self.go(extend.data, extend.size);
                }
                Ok(MetaReply::Attr(self.attr))
            }
            MetaOp::Spill(spill) => {
                if self.attr.is_stored() && self.attr.version == spill.version {
                    self.go(spill.chunks, spill.size);
                }
                Ok(MetaReply::Attr(self.attr))
            }
            _ => Err("not asked for"),
        }
    }

    fn write(&mut self, to: FileBytes, parts: &[(u64, &[u8])]) -> Result<bool, &'static str> {
        if self.sealed == Some(to.data.0) {
            return Ok(false);
        }
        let chunks = self.chunks.entry(to.data.0).or_default();
        for (offset, bytes) in parts {
            let start = usize::try_from(*offset).unwrap();
            chunks.resize(chunks.len().max(start + bytes.len()), 0);
            chunks[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Ok(true)
    }

    fn remove(&mut self, bytes: FileBytes, _: &[(u64, &[u8])]) {
        assert_ne!(self.attr.chunks, Some(bytes.data.0), "they are the file's");
        self.chunks.remove(&bytes.data.0);
    }

    fn unexpected(&mut self) -> &'static str {
        "unexpected"
    }
}

const PART: (u64, &[u8]) = (6, b"new");

fn run(world: &mut World<'_>) -> Spilled {
    let known = world.attr;
    spill(world, known, &[PART], Some(Timestamp::default())).unwrap()
}

#[test]
fn an_empty_file_needs_no_other_name() {
    let mut world = World::new(b"", &|_| {});
    assert!(run(&mut world).written);
    assert_eq!((world.asked, world.attr.chunks), (1, Some(5)));
    assert_eq!(world.read(), b"\0\0\0\0\0\0new");
}

#[test]
fn one_with_bytes_gets_a_name_of_its_own() {
    let mut world = World::new(b"0123456789", &|_| {});
    assert!(run(&mut world).written);
    assert_eq!((world.asked, world.attr.chunks), (3, Some(101)));
    assert_eq!(world.read(), b"012345new9");
}

#[test]
fn what_others_write_meanwhile_stays() {
    for (bytes, step) in [(&b""[..], 0), (b"01234", 0), (b"01234", 1), (b"01234", 2)] {
        let meddle = |world: &mut World<'_>| {
            if world.asked == step {
                world.set(b"others");
            }
        };
        let mut world = World::new(bytes, &meddle);
        assert!(run(&mut world).written);
        assert_eq!(world.read(), b"othersnew", "at step {step}");
        assert!(!world.chunks.contains_key(&5), "nothing is left where nobody looks");
    }
}

#[test]
fn another_one_may_be_first() {
    for step in 0..3 {
        let meddle = |world: &mut World<'_>| {
            if world.asked == step {
                world.chunks.insert(77, b"others".to_vec());
                world.go(77, 6);
            }
        };
        let mut world = World::new(b"01234", &meddle);
        let spilled = run(&mut world);
        assert_eq!((spilled.written, spilled.attr.chunks), (false, Some(77)));
        assert_eq!(world.read(), b"others", "as that one left it");
    }
}

/// A range written before another client's cut is reported with the old number of cuts, because it
/// may be gone.
#[test]
fn another_one_may_bring_it_there_and_cut_it() {
    let meddle = |world: &mut World<'_>| {
        if world.asked == 0 {
            world.go(5, 100);
            world.attr.hollow(3, false);
            world.attr.hollow(3, true);
        }
    };
    let mut world = World::new(b"", &meddle);
    let spilled = run(&mut world);
    assert_eq!((spilled.written, spilled.cuts, spilled.attr.cuts), (true, 0, 2));
}

#[test]
fn parts_count_as_far_as_they_meet() {
    let part = |offset, len| (offset, &[0; 100][..len]);
    for (parts, wanted) in [
        (vec![], 0),
        (vec![part(1, 9)], 0),
        (vec![part(5, 10), part(0, 5)], 15),
        (vec![part(0, 50), part(10, 5), part(51, 9)], 50),
    ] {
        assert_eq!(solid(&parts), wanted, "{parts:?}");
    }
}

#[test]
fn a_file_that_went_there_and_was_cloned_since_is_left_alone() {
    let mut world = World::new(b"", &|_| {});
    let known = world.attr;
    world.go(6, 3);
    world.sealed = Some(5);
    let spilled = spill(&mut world, known, &[PART], Some(Timestamp::default())).unwrap();
    assert_eq!((spilled.written, spilled.attr.chunks), (false, Some(6)));
    assert!(world.chunks.is_empty());
}

#[test]
fn it_does_not_go_on_for_ever() {
    let meddle = |world: &mut World<'_>| world.set(b"others");
    let mut world = World::new(b"01234", &meddle);
    let known = world.attr;
    assert_eq!(spill(&mut world, known, &[PART], Some(Timestamp::default())), Err("unexpected"));
}

#[test]
fn a_file_is_brought_there_as_it_is() {
    let mut world = World::new(b"01234", &|_| {});
    let known = world.attr;
    assert!(spill(&mut world, known, &[], None).unwrap().written);
    assert_eq!((world.read(), world.attr.chunks), (b"01234".to_vec(), Some(101)));
    // There are no bytes to move.
    let mut world = World::new(b"", &|_| {});
    let known = world.attr;
    assert!(spill(&mut world, known, &[], None).unwrap().attr.is_stored());
    assert_eq!(world.asked, 0);
}
