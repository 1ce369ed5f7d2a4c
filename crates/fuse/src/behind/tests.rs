//! Promises: merging, waiting, and the handling of failures.

use millpond_types::meta::{Caller, PromisedFile, Rename, Timestamp, WriteInline};

use super::*;
use crate::journal::Journal;

const DIR: Ino = Ino(5);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn request(sequence: u64, op: MetaOp) -> MetaRequest {
    MetaRequest { session: 1, sequence, hour: 0, caller: Caller::checked(0, 0), op }
}

fn create(text: &str, ino: Ino) -> MetaRequest {
    let at = Timestamp { secs: 9, nanos: 0 };
    let promised = Some(PromisedFile { ino, at, written: at, bytes: Vec::new() });
    let (kind, mode, rdev) = (FileKind::Regular, 0o644, 0);
    let (target, exclusive) = (Vec::new(), true);
    let create = Create {
        parent: DIR,
        name: name(text),
        kind,
        mode,
        umask: None,
        rdev,
        target,
        exclusive,
        promised,
        delegate: None,
    };
    request(ino.0, MetaOp::Create(create))
}

fn write(ino: Ino, offset: u32, bytes: &[u8]) -> MetaRequest {
    let mtime = Timestamp { secs: 10, nanos: 0 };
    let bytes = bytes.to_vec();
    request(100, MetaOp::WriteInline(WriteInline { ino, data: ino.0, offset, bytes, mtime }))
}

fn unlink(text: &str) -> MetaRequest {
    request(200, MetaOp::Unlink { parent: DIR, name: name(text), of: None })
}

fn files() -> Files {
    Files::new(Some(Journal::create().unwrap()))
}

fn bytes(promise: &Promise) -> &[u8] {
    match &promise.request.op {
        MetaOp::Create(Create { promised: Some(promised), .. }) => &promised.bytes,
        MetaOp::WriteInline(write) => &write.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_bytes_join_their_create_until_somebody_is_at_it() {
    let (behind, files) = (Behind::new(true, None, Vec::new()), files());
    let (one, two) = (Ino(10), Ino(11));
    assert!(behind.promise(&files, one, &create("one", one)));
    assert!(behind.promise(&files, two, &create("two", two)));
    assert!(behind.promise(&files, one, &write(one, 0, b"first")));
    assert_eq!(files.numbers().promised, 2, "one change");
    assert!(behind.promise(&files, one, &write(one, 5, b"more")));
    assert_eq!(files.numbers().promised, 3, "they do not begin the file");
    let taken = behind.take().unwrap();
    assert_eq!((taken.ino, bytes(&taken)), (one, &b"first"[..]));
    let second = behind.take().unwrap();
    assert!(behind.promise(&files, two, &write(two, 0, b"late")));
    assert_eq!((second.ino, files.numbers().promised), (two, 4), "a meta may have made it");
    behind.settle(&files, (&taken, Outcome::Kept(None)), |_| ());
    let third = behind.take().unwrap();
    assert_eq!((third.ino, bytes(&third)), (one, &b"more"[..]), "after its create");
    assert!(behind.is_pending(two));
    for promise in [second, third] {
        behind.settle(&files, (&promise, Outcome::Kept(None)), |_| ());
    }
    let last = behind.take().unwrap();
    behind.settle(&files, (&last, Outcome::Kept(None)), |_| ());
    assert_eq!((bytes(&last), files.numbers().promised), (&b"late"[..], 0));
    assert!(!behind.is_pending(two));
}

/// A new file that replaces an old one must have its bytes first: a crash of the host would lose
/// both.
#[test]
fn a_rename_comes_after_the_bytes_of_the_file() {
    let (behind, files) = (Behind::new(true, None, Vec::new()), files());
    let (old, new) = (Ino(10), Ino(11));
    behind.names.set(DIR, &name("old"), Known::Is(old));
    behind.names.set(DIR, &name("new"), Known::Is(new));
    let (parent, new_parent) = (DIR, DIR);
    let (no_replace, exchange) = (false, false);
    let (from, to) = (name("new"), name("old"));
    let rename = Rename {
        parent,
        name: from,
        new_parent,
        new_name: to,
        no_replace,
        exchange,
        whiteout: false,
    };
    let rename = MetaOp::Rename(rename);
    assert_eq!(behind.wait_before(&rename), Ok(()));
    assert!(behind.promise(&files, new, &write(new, 0, b"bytes")));
    behind.end();
    assert_eq!(behind.wait_before(&rename), Err(Errno::IO), "its bytes are no meta's");
}

/// An earlier process may already have sent its promises to a meta.
#[test]
fn nothing_joins_what_an_earlier_process_left() {
    let ino = Ino(10);
    let left = vec![(7, ino, create("one", ino)), (8, Ino(9), unlink("other"))];
    let (behind, files) = (Behind::new(true, None, left), files());
    assert_eq!(behind.made_before(ino.0).map(|attr| attr.ino), Some(ino));
    assert!(behind.was_promised(200) && behind.made_before(200).is_none(), "it makes no file");
    assert!(!behind.was_promised(201));
    assert!(behind.promise(&files, ino, &write(ino, 0, b"bytes")));
    assert_eq!(files.numbers().promised, 1);
    assert_eq!(behind.drain(Duration::ZERO), 3);
}

#[test]
fn the_name_of_a_file_that_was_not_made_is_not_removed() {
    let (behind, files) = (Behind::new(true, None, Vec::new()), files());
    let ino = Ino(10);
    assert!(behind.promise(&files, ino, &create("one", ino)));
    assert!(behind.promise(&files, ino, &unlink("one")));
    let made = behind.take().unwrap();
    assert!(!behind.is_unmade(&made));
    let exists = Errno(libc::EEXIST);
    behind.settle(&files, (&made, Outcome::Failed(exists)), |_| ());
    let removed = behind.take().unwrap();
    assert!(behind.is_unmade(&removed), "its name is somebody else's");
    behind.settle(&files, (&removed, Outcome::Failed(exists)), |_| ());
    assert!(!behind.is_unmade(&removed), "nothing of it is left");
    assert_eq!(files.numbers().broken, 2);
    for ino in [ino, DIR] {
        assert_eq!(behind.failure(ino), Err(exists));
        assert_eq!(behind.failure(ino), Ok(()), "told once");
    }
    let told = [behind.take_broken().unwrap(), behind.take_broken().unwrap()];
    assert_eq!(told.map(|promise| promise.number), [0, 1]);
}

#[test]
fn nobody_passes_what_this_process_does_not_keep() {
    let (behind, files) = (Behind::new(true, None, Vec::new()), files());
    let ino = Ino(10);
    assert!(behind.promise(&files, ino, &create("one", ino)));
    let other = MetaOp::GetAttr { ino: Ino(11) };
    assert_eq!(behind.wait_before(&other), Ok(()));
    behind.end();
    let lookup = MetaOp::Lookup { parent: DIR, name: name("one") };
    for op in [MetaOp::GetAttr { ino }, MetaOp::GetAttr { ino: DIR }, MetaOp::Usage, lookup] {
        assert_eq!(behind.wait_before(&op), Err(Errno::IO), "{op:?}");
    }
    assert_eq!(behind.wait_before(&other), Ok(()));
    assert!(behind.take().is_none());
    assert!(!behind.promise(&files, ino, &unlink("one")));
    assert_eq!(files.left().len(), 1, "the next process has it");
}
