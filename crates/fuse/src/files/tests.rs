//! What is remembered, by this process and the next one.

use millpond_types::meta::{FileKind, Layout};

use super::*;

fn told(size: u64, version: u64) -> Told {
    Told { attr: attr(size, version), version: 0 }
}

/// Of inode 5.
pub(crate) fn attr(size: u64, version: u64) -> Attr {
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
        chunks: Some(5),
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
    let files = Files::new(None);
    let file = files.open(2, told(10, 1));
    assert!(files.wrote(&file, written(30)) && !files.wrote(&file, written(20)));
    assert_eq!(file.attr().size, 30);
    // An answer that was on its way before the write.
    assert_eq!(file.learn(told(10, 1)).size, 30);
    let untold = file.untold().unwrap();
    assert_eq!(untold.end, 30);
    files.told(&file, untold, told(30, 2));
    assert_eq!((file.untold(), file.attr().size), (None, 30));
    assert_eq!(file.learn(told(10, 1)).size, 30, "an old answer");
    assert_eq!(file.learn(told(3, 4)).size, 3, "cut elsewhere");
}

#[test]
fn a_length_is_told_when_only_bytes_before_it_are_new() {
    let files = Files::new(None);
    let file = files.open(2, told(30, 1));
    assert!(file.is_length_told());
    let _ = files.wrote(&file, written(30));
    assert!(file.is_length_told() && file.untold().is_some());
    let _ = files.wrote(&file, written(31));
    assert!(!file.is_length_told());
    files.told(&file, written(31), told(31, 2));
    assert!(file.is_length_told());
    // Cut to nothing elsewhere: what was written is of other bytes, and a meta shall say so.
    let _ = files.wrote(&file, written(5));
    let cut = Attr { data: 6, chunks: Some(6), size: 40, version: 3, ..attr(0, 3) };
    let _ = file.learn(Told { attr: cut, version: 0 });
    assert!(!file.is_length_told());
}

#[test]
fn the_time_of_a_write_is_the_kernels_unless_a_meta_knows_a_later_one() {
    let at = |secs| Timestamp { secs, nanos: 0 };
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, Told { attr: Attr { mtime: at(5), ..attr(30, 1) }, version: 0 });
    assert_eq!(files.wrote_at(&file, at(6)), None, "nothing was written");
    let _ = files.wrote(&file, written(30));
    assert_eq!(files.wrote_at(&file, at(4)), None, "set back");
    assert_eq!(files.wrote_at(&file, at(10)), None, "set forward");
    let shown = files.wrote_at(&file, at(7)).unwrap();
    assert_eq!((shown.mtime, shown.size, file.attr().mtime), (at(7), 30, at(7)));
    // An answer to what was told before does not count as one to this.
    files.told(&file, written(30), told(30, 2));
    assert_eq!(file.untold(), Some(Written { at: at(7), ..written(30) }));
    let files = next(&files);
    assert_eq!(files.known(told(30, 2)).attr().mtime, at(7), "the next process knows it");
}

#[test]
fn what_a_meta_said_of_capabilities_holds_for_a_while() {
    let files = Files::new(None);
    let file = files.open(2, told(30, 1));
    let bare = Bare { asked: RealClock::tick(), version: 4 };
    assert_eq!(file.bare(), None);
    let changes = file.xattr_changes();
    file.note_bare(bare, changes);
    assert_eq!(file.bare(), Some(bare));
    file.xattrs_change();
    assert_eq!(file.bare(), None);
    // An answer that was on its way meanwhile.
    file.note_bare(bare, changes);
    assert_eq!(file.bare(), None);
}

#[test]
fn bytes_of_another_data_id_do_not_count() {
    let files = Files::new(None);
    let file = files.open(2, told(10, 1));
    let _ = files.wrote(&file, written(30));
    let cut = Attr { data: 6, chunks: Some(6), size: 0, version: 2, ..attr(0, 2) };
    assert_eq!(file.learn(Told { attr: cut, version: 0 }).size, 0);
}

#[test]
fn a_file_is_known_while_it_is_open() {
    let files = Files::new(None);
    let _one = files.open(2, told(1, 1));
    let _two = files.open(4, told(1, 1));
    files.close(6, Ino(5));
    assert!(files.get(Ino(5)).is_some());
    assert_eq!(files.split(vec![Ino(5), Ino(6)]), (vec![Ino(5)], vec![Ino(6)]));
    files.close(8, Ino(5));
    assert!(files.get(Ino(5)).is_none());
}

/// A process that is killed, and the next one.
fn next(files: &Files) -> Files {
    let region = files.table.lock().journal.as_ref().unwrap().region().clone();
    Files::resume(&region).unwrap()
}

#[test]
fn the_next_process_knows_what_is_open_and_what_no_meta_was_told() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, told(10, 1));
    files.answered(2);
    let _ = files.wrote(&file, written(30));
    assert_eq!(files.begin(4, 100), 100);
    let files = next(&files);
    assert_eq!(files.take_untold(), [Ino(5)]);
    assert_eq!(files.known(told(10, 1)).attr().size, 30);
    assert_eq!(files.begin(4, 101), 100, "as at the first attempt");
    assert!(files.knows(4) && !files.knows(6));
    assert_eq!(files.begin(6, 101), 101);
    assert!(files.knows(6));
    // The close is sent again, and closes once.
    let _ = files.open(8, told(10, 1));
    files.close(10, Ino(5));
    let files = next(&files);
    let numbers = files.numbers();
    assert_eq!((numbers.inodes, numbers.handles, numbers.untold), (1, 1, 1));
    assert_eq!(numbers.taken_over, 2);
    files.close(10, Ino(5));
    assert_eq!(files.split(vec![Ino(5)]).0, [Ino(5)]);
    files.close(12, Ino(5));
    assert!(files.split(vec![Ino(5)]).0.is_empty());
}

#[test]
fn a_journal_that_turns_loses_nothing() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, told(0, 1));
    let _ = files.begin(3, 7);
    for n in 1..400_000 {
        let _ = files.wrote(&file, written(n));
    }
    let files = next(&files);
    assert_eq!(files.known(told(0, 1)).attr().size, 399_999);
    assert_eq!(files.begin(3, 8), 7);
    let _ = files.open(2, told(0, 1));
    files.close(4, Ino(5));
    assert!(files.split(vec![Ino(5)]).0.is_empty(), "the open was counted once");
}

fn stored(size: u64, version: u64) -> Told {
    Told { attr: Attr { chunks: None, ..attr(size, version) }, version: 0 }
}

fn held(offset: u32, bytes: &[u8]) -> Held {
    Held { data: 5, at: Timestamp { secs: 9, nanos: 0 }, offset, bytes: bytes.to_vec() }
}

#[test]
fn what_is_held_is_one_range_and_shows() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, stored(3, 1));
    assert!(!files.has_held(Ino(5)));
    assert_eq!(files.hold(&file, held(4, b"efgh")), Hold::Held);
    assert_eq!(files.hold(&file, held(8, b"ij")), Hold::Held);
    assert_eq!(files.hold(&file, held(2, b"cdE")), Hold::Held);
    assert_eq!(files.hold(&file, held(11, b"l")), Hold::Full, "a gap is between");
    assert_eq!(files.hold(&file, Held { data: 6, ..held(3, b"x") }), Hold::Full, "other bytes");
    assert_eq!((file.attr().size, file.told().size), (10, 3));
    assert_eq!(files.unsent(Ino(5)), Some(held(2, b"cdEfghij")));
    assert_eq!(file.learn(stored(3, 1)).size, 10);
    let cut = Attr { data: 6, ..stored(0, 2).attr };
    assert_eq!(file.learn(Told { attr: cut, version: 0 }).size, 0, "cut to nothing elsewhere");
    files.sent(&file);
    assert!(!files.has_held(Ino(5)) && !files.is_untold(Ino(5)));
    let closed =
        File::new(Told { attr: Attr { ino: Ino(6), ..attr(0, 1) }, version: 0 }, (None, None));
    assert_eq!(files.hold(&closed, held(0, b"x")), Hold::Closed);
}

#[test]
fn the_next_process_sends_the_same_under_the_same_number() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, stored(0, 1));
    for (offset, bytes) in [(0, b"ab"), (2, b"cd"), (1, b"BC")] {
        assert_eq!(files.hold(&file, held(offset, bytes)), Hold::Held);
    }
    let files = next(&files);
    assert_eq!(files.take_untold(), [Ino(5)]);
    let file = files.known(stored(0, 1));
    assert_eq!((file.attr().size, files.unsent(Ino(5))), (4, Some(held(0, b"aBCd"))));
    let name = (77, 8);
    assert_eq!(files.sending(Ino(5), || name), Some((held(0, b"aBCd"), name)));
    let files = next(&files);
    let file = files.known(stored(0, 1));
    assert_eq!((files.unsent(Ino(5)), file.attr().size), (None, 4));
    assert_eq!(
        files.hold(&file, held(4, b"e")),
        Hold::Full,
        "nothing is added to what may be known"
    );
    assert_eq!(files.sending(Ino(5), || (78, 9)), Some((held(0, b"aBCd"), name)));
    files.sent(&file);
    let files = next(&files);
    assert!(!files.has_held(Ino(5)) && files.take_untold().is_empty());
}

#[test]
fn a_refusal_is_known_and_a_close_forgets() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, stored(0, 1));
    files.refused(Ino(5));
    assert!(!files.is_refused(Ino(5)), "nothing is held");
    assert_eq!(files.hold(&file, held(0, b"ab")), Hold::Held);
    let later = Timestamp { secs: 7, nanos: 0 };
    assert_eq!(files.wrote_at(&file, later).map(|attr| attr.mtime), Some(later));
    assert_eq!(next(&files).unsent(Ino(5)).map(|held| held.at), Some(later));
    files.refused(Ino(5));
    assert!(files.is_refused(Ino(5)));
    files.close(4, Ino(5));
    assert!(!files.has_held(Ino(5)) && !next(&files).has_held(Ino(5)));
}

#[test]
fn what_is_held_of_all_files_is_bounded_and_survives_a_turn() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let open = |n: u64| {
        let attr = Attr { ino: Ino(n), data: n, ..stored(0, 1).attr };
        files.open(2 * n, Told { attr, version: 0 })
    };
    let full = |n| Held { data: n, ..held(0, &[7; 16 << 10]) };
    let mut kept = 0;
    while files.hold(&open(kept + 9), full(kept + 9)) == Hold::Held {
        kept += 1;
    }
    assert_eq!(kept, 128);
    // Written over and over, until the journal has turned some times.
    let first = open(9);
    for _ in 0..2000 {
        files.sent(&open(10));
        assert_eq!(files.hold(&first, Held { data: 9, ..held(5, b"x") }), Hold::Held);
        assert_eq!(files.hold(&open(10), full(10)), Hold::Held);
    }
    let files = next(&files);
    let mut bytes = full(9).bytes;
    bytes[5] = b'x';
    assert_eq!(files.unsent(Ino(9)).map(|held| held.bytes), Some(bytes));
    assert_eq!(files.take_untold().len(), 128);
    for n in 9..9 + 128 {
        files.close(1_000_000 + n, Ino(n));
    }
    assert_eq!(files.table.lock().held_bytes, 0);
}
