//! The state that this process keeps, and that the next one inherits.

use millpond_types::meta::{Caller, Extend, FileKind, Layout, LockSpace, MetaOp, SetAttr, SetTime};

use super::*;
use crate::cached::tests::key;
use crate::errno::Errno;

fn told(size: u64, version: u64) -> Told {
    Told { attr: attr(size, version), version: 0 }
}

/// Attributes of inode 5.
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
        is_shared: false,
        solid: 0,
        cuts: 0,
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
    // An answer that was in flight before the write.
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
    // Cut to nothing elsewhere: the written bytes belong to other data, which a meta must confirm.
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
    assert_eq!(files.wrote_at(&file, at(5)), None, "set back to what a meta knows");
    assert_eq!(files.wrote_at(&file, at(10)), None, "set forward");
    let shown = files.wrote_at(&file, at(7)).unwrap();
    assert_eq!((shown.mtime, shown.size, file.attr().mtime), (at(7), 30, at(7)));
    // An answer to an earlier report does not count for this one.
    files.told(&file, written(30), told(30, 2));
    assert_eq!(file.untold(), Some(Written { at: at(7), ..written(30) }));
    let files = next(&files);
    assert_eq!(files.known(told(30, 2)).attr().mtime, at(7), "the next process knows it");
}

#[test]
fn what_a_meta_may_have_been_told_is_told_the_same_again() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, told(10, 1));
    assert_eq!(files.begin_telling(&file, || panic!("there is nothing to tell")), None);
    let _ = files.wrote(&file, written(30));
    let first = files.begin_telling(&file, || (40, 7)).unwrap();
    assert_eq!((first.written, first.sequence, first.hour), (written(30), 40, 7));
    let late = Written { at: Timestamp { secs: 12, nanos: 0 }, ..written(50) };
    let _ = files.wrote(&file, late);
    // It was not answered, and the process dies.
    assert_eq!(files.begin_telling(&file, || panic!("it has a number")), Some(first));
    let files = next(&files);
    let file = files.known(told(10, 1));
    assert_eq!(files.begin_telling(&file, || panic!("it has a number")), Some(first));
    files.told(&file, first.written, told(30, 2));
    // Bytes written since, with a kill before their report, are reported with their own time.
    let files = next(&files);
    let file = files.known(told(30, 2));
    let second = files.begin_telling(&file, || (41, 7)).unwrap();
    assert_eq!((second.written, second.sequence), (late, 41));
    let _ = files.wrote(&file, Written { at: Timestamp { secs: 13, nanos: 0 }, ..late });
    let files = next(&files);
    assert_eq!(files.known(told(30, 2)).untold(), Some(late), "as it was told");
    let file = files.known(told(30, 2));
    // A rejected report is repeated under another number.
    files.end_telling(&file);
    let files = next(&files);
    let file = files.known(told(30, 2));
    assert!(!files.is_told_of(Ino(5)));
    assert_eq!(files.begin_telling(&file, || (42, 7)).map(|telling| telling.sequence), Some(42));
    files.told(&file, late, told(50, 3));
    let files = next(&files);
    assert!(!files.is_told_of(Ino(5)) && files.known(told(50, 3)).untold().is_none());
}

#[test]
fn a_promised_time_shows_until_more_is_written() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, told(10, 1));
    let (ino, at) = (Ino(5), |secs| Timestamp { secs, nanos: 0 });
    let promise =
        |op| MetaRequest { session: 1, sequence: 1, hour: 0, caller: Caller::checked(0, 0), op };
    let extend = |end: u64, secs| {
        let (size, mtime, filled) = (end, at(secs), Filled::default());
        promise(MetaOp::Extend(Extend { ino, data: 5, size, mtime, filled }))
    };
    let set = SetAttr { mtime: Some(SetTime::At(at(3))), ..SetAttr::default() };
    assert!(files.promised(1, ino, &extend(30, 9)));
    assert!(files.promised(2, ino, &promise(MetaOp::SetAttr { ino, set })));
    let shown = file.attr();
    assert_eq!((shown.size, shown.mtime), (30, at(3)));
    assert!(shown.ctime > at(1_500_000_000), "it was changed now");
    // A meta knows of the bytes, and not yet of the time.
    files.kept(1, Some(Told { attr: Attr { mtime: at(9), ..attr(30, 2) }, version: 2 }));
    assert_eq!(file.attr().mtime, at(3));
    let files = next(&files);
    let file = files.known(Told { attr: Attr { mtime: at(9), ..attr(30, 2) }, version: 2 });
    assert_eq!(file.attr().mtime, at(3));
    let _ = files.wrote(&file, written(40));
    assert_eq!(file.attr().mtime, at(9), "of the write");
    assert!(files.promised(3, ino, &extend(40, 9)));
    assert_eq!(file.attr().mtime, at(9));
    files.kept(2, Some(Told { attr: Attr { mtime: at(3), ..attr(30, 3) }, version: 3 }));
    assert_eq!(file.attr().mtime, at(9));
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
    // An answer that was in flight in the meantime.
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

/// The file after this many clones were made and written around.
fn shared(chunks: u64, version: u64) -> Told {
    let attr = Attr { chunks: Some(chunks), is_shared: true, ..attr(10, version) };
    Told { attr, version: 0 }
}

#[test]
fn what_was_written_before_a_clone_counts_in_the_chunks_of_after() {
    let files = Files::new(None);
    let file = files.open(2, told(10, 1));
    let _ = files.wrote(&file, written(30));
    assert_eq!(file.learn(shared(5, 2)).size, 30);
    assert_eq!(file.learn(shared(7, 3)).size, 30, "it has the old chunks behind it");
    assert_eq!(file.untold().map(|untold| (untold.end, untold.data)), Some((30, 7)));
    // A write that ended before the chunks were replaced, and is noted afterwards.
    let _ = file.learn(shared(8, 4));
    assert!(!files.wrote(&file, written(40)));
    assert_eq!((file.attr().size, file.untold().map(|untold| untold.data)), (40, Some(8)));
    let _ = files.wrote(&file, Written { data: 8, ..written(20) });
    assert_eq!(file.attr().size, 40);
    // It was reported to the meta under the old name, and other chunks came in the meantime: once
    // more.
    let sent = file.untold().unwrap();
    let _ = file.learn(shared(9, 5));
    files.told(&file, sent, shared(9, 6));
    assert_eq!(file.untold().map(|untold| (untold.end, untold.data)), Some((40, 9)));
    assert!(!file.has_untold_elsewhere());
    // Cut to nothing and cloned again: earlier writes do not count.
    let cut = Attr { data: 11, chunks: Some(11), size: 0, ..attr(0, 7) };
    assert_eq!(file.learn(Told { attr: cut, version: 0 }).size, 0);
    let again = Attr { chunks: Some(12), is_shared: true, version: 8, ..cut };
    let _ = file.learn(Told { attr: again, version: 0 });
    let _ = files.wrote(&file, written(50));
    assert!(file.attr().size == 0 && file.has_untold_elsewhere());
}

#[test]
fn a_file_is_known_while_it_is_open() {
    let files = Files::new(None);
    let _one = files.open(2, told(1, 1));
    let _two = files.open(4, told(1, 1));
    let _ = files.close(6, Ino(5));
    assert!(files.get(Ino(5)).is_some());
    assert_eq!(files.split(vec![Ino(5), Ino(6)]), (vec![Ino(5)], vec![Ino(6)]));
    let _ = files.close(8, Ino(5));
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
    assert_eq!(files.begin(4, 100).hour, 100);
    let files = next(&files);
    assert_eq!(files.take_untold(), [Ino(5)]);
    assert_eq!(files.known(told(10, 1)).attr().size, 30);
    assert_eq!(files.begin(4, 101).hour, 100, "as at the first attempt");
    assert!(files.knows(4) && !files.knows(6));
    assert_eq!(files.begin(6, 101).hour, 101);
    assert!(files.knows(6));
    // The close is resent, and closes once.
    let _ = files.open(8, told(10, 1));
    let _ = files.close(10, Ino(5));
    let files = next(&files);
    let numbers = files.numbers();
    assert_eq!((numbers.inodes, numbers.handles, numbers.untold), (1, 1, 1));
    assert_eq!(numbers.taken_over, 2);
    let _ = files.close(10, Ino(5));
    assert_eq!(files.split(vec![Ino(5)]).0, [Ino(5)]);
    let _ = files.close(12, Ino(5));
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
    assert_eq!(files.begin(3, 8).hour, 7);
    let _ = files.open(2, told(0, 1));
    let _ = files.close(4, Ino(5));
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
    let _ = files.close(4, Ino(5));
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
    // Written repeatedly, until the journal has turned several times.
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
        let _ = files.close(1_000_000 + n, Ino(n));
    }
    assert_eq!(files.table.lock().held_bytes, 0);
}

#[test]
fn all_opens_of_an_inode_agree_about_what_the_kernel_reads() {
    let journal = Journal::create().unwrap();
    let region = journal.region().clone();
    let files = Files::new(Some(journal));
    let backed = |id| Backed { id, key: key(5, 10) };
    assert_eq!(files.open_backed(2, told(10, 1), Some(backed(3))), Some(backed(3)));
    assert_eq!(
        files.open_backed(4, told(10, 1), Some(backed(4))),
        Some(backed(3)),
        "the first counts"
    );
    assert_eq!(files.open_backed(6, told(10, 1), None), Some(backed(3)));
    assert_eq!(files.close(8, Ino(5)), None);
    // Another process.
    let again = Files::resume(&region).unwrap();
    assert_eq!(again.all_backed(), [(Ino(5), backed(3))]);
    assert_eq!(
        again.open_backed(6, told(10, 1), None),
        Some(backed(3)),
        "sent again, it counts once"
    );
    assert_eq!(again.open_backed(10, told(10, 1), Some(backed(9))), Some(backed(3)));
    for unique in [12, 14] {
        assert_eq!(again.close(unique, Ino(5)), None);
    }
    assert_eq!(again.close(16, Ino(5)), Some(backed(3)));
    assert_eq!(again.close(16, Ino(5)), None, "sent again");
    // The first open offers nothing: then no later one does.
    assert_eq!(again.open_backed(18, told(10, 1), None), None);
    assert_eq!(again.open_backed(20, told(10, 1), Some(backed(9))), None);
    let third = Files::resume(&region).unwrap();
    assert!(third.all_backed().is_empty());
}

#[test]
fn numbers_of_an_earlier_process_are_forgotten_once_they_cannot_come_again() {
    let journal = Journal::create().unwrap();
    let region = journal.region().clone();
    let files = Files::new(Some(journal));
    for unique in 1..100 {
        let _ = files.open(unique * 2, told(10, 1));
        files.answered(unique * 2);
    }
    let _ = (files.open(200, told(10, 1)), files.begin(202, 7));
    let again = Files::resume(&region).unwrap();
    let start = Tick(9_000_000);
    again.came(200, true, start);
    assert!(again.knows(202) && again.knows(4), "they may come yet");
    again.came(300, false, start);
    again.came(202, true, start);
    again.came(302, false, start.plus(HANDED / 2));
    assert!(again.knows(4));
    again.came(304, false, start.plus(HANDED));
    assert!(!again.knows(4) && !again.knows(198), "the kernel has their answers");
    // Resent, and not answered yet.
    assert!(again.knows(200) && again.knows(202));
    let _ = again.open(200, told(10, 1));
    assert_eq!(again.numbers().handles, 100, "it is open once");
    again.answered(200);
    assert!(!again.knows(200));
}

#[test]
fn a_request_that_comes_again_appends_where_it_did_before() {
    let files = Files::new(Some(Journal::create().unwrap()));
    assert_eq!(files.append_of(2), None);
    files.appends(2, 100);
    files.appends(4, 110);
    files.answered(4);
    let mut files = next(&files);
    assert_eq!(files.append_of(2), Some(100));
    // The journal does not record answers: the entry is forgotten once the kernel resends nothing.
    let file = files.open(6, told(0, 1));
    for n in 1..400_000 {
        let _ = files.wrote(&file, written(n));
    }
    files = next(&files);
    assert_eq!(files.append_of(2), Some(100), "after the journal has turned");
    files.came(8, false, Tick(0));
    files.came(8, false, Tick(u64::MAX));
    assert_eq!((files.append_of(2), files.append_of(4)), (None, None));
}

#[test]
fn a_request_is_repeated_in_the_session_that_it_was_begun_in() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let begun = |hour, session| Begun { hour, session };
    assert_eq!(files.enter(70), 70);
    assert_eq!(files.begin(2, 7), begun(7, 70));
    let files = next(&files);
    assert_eq!(files.enter(70), 70, "the session that the holder knows of");
    assert_eq!(files.begin(2, 8), begun(7, 70));
    files.replace_session(80);
    assert_eq!(files.begin(4, 8), begun(8, 80));
    // Killed, and again after the journal has turned several times.
    let mut files = next(&files);
    for _ in 0..2 {
        assert_eq!(files.enter(70), 80, "the one that is in its place");
        assert_eq!((files.begin(2, 9), files.begin(4, 9)), (begun(7, 70), begun(8, 80)));
        let file = files.open(6, told(0, 1));
        for n in 1..400_000 {
            let _ = files.wrote(&file, written(n));
        }
        files = next(&files);
    }
    files.replace_session(90);
    let files = next(&files);
    assert_eq!((files.enter(70), files.begin(6, 9)), (90, begun(9, 90)));
    assert_eq!((files.begin(2, 9), files.begin(4, 9)), (begun(7, 70), begun(8, 80)));
}

fn owner(space: LockSpace, number: u64, handle: u64) -> Owner {
    Owner { space, number, handle }
}

const fn bytes(start: u64, end: u64) -> LockBytes {
    LockBytes { start, end }
}

fn locks(files: &Files, owner: Owner, bytes: LockBytes) {
    let _ = files.wants_lock(Ino(5), owner, bytes);
}

#[test]
fn locks_of_an_open_file_go_with_it() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let (ino, posix) = (Ino(5), LockSpace::Posix);
    for unique in [2, 4, 6] {
        let _ = files.open(unique, told(10, 1));
    }
    // One of a process, two of open files, and one that an earlier version opened.
    let all =
        [(70, 2), (71, 2), (72, 4), (73, 0)].map(|(number, handle)| owner(posix, number, handle));
    for locker in all {
        locks(&files, locker, LockBytes::ALL);
        locks(&files, locker, LockBytes::ALL);
    }
    files.unlocked(ino, &all[0], LockBytes::ALL);
    let files = next(&files);
    assert!(!files.may_have_locks(ino, &all[0]) && files.may_have_locks(ino, &all[1]));
    assert!(files.left_locks().is_empty());
    let _ = files.close(8, ino);
    assert_eq!(files.lockers_through(ino, 2), [all[1]]);
    files.locker_gone(ino, &all[1]);
    let _ = files.close(10, ino);
    assert!(files.lockers_through(ino, 6).is_empty() && files.lockers_through(ino, 0).is_empty());
    let _ = files.close(12, ino);
    // All owners, when the file is no longer open.
    assert_eq!(files.lockers_through(ino, 6), all[2..]);
    // Killed between the close and the unlock: the next process knows the left locks.
    let files = next(&files);
    assert_eq!(files.left_locks(), [(ino, all[2]), (ino, all[3])]);
    for locker in &all {
        files.locker_gone(ino, locker);
    }
    assert!(next(&files).left_locks().is_empty());
}

/// The kernel reuses the number of an open file while the message of its close is in flight.
#[test]
fn a_late_close_takes_nothing_from_who_has_the_number_now() {
    for space in [LockSpace::Posix, LockSpace::Flock] {
        let files = Files::new(Some(Journal::create().unwrap()));
        let ino = Ino(5);
        for unique in [2, 4] {
            let _ = files.open(unique, told(10, 1));
        }
        let [before, now] = [2, 4].map(|handle| owner(space, 70, handle));
        locks(&files, before, bytes(0, 99));
        let _ = files.close(6, ino);
        assert_eq!(files.lockers_through(ino, 2), [before]);
        locks(&files, now, bytes(0, 9));
        let files = next(&files);
        assert_eq!(files.to_unlock(ino, &before), [bytes(10, 99)]);
        files.locker_gone(ino, &before);
        assert_eq!(files.to_unlock(ino, &before), []);
        assert_eq!(files.lockers_through(ino, 4), [now]);
        // The only owner of the number: everything that a meta knows.
        assert_eq!(files.to_unlock(ino, &now), [LockBytes::ALL]);
    }
}

#[test]
fn a_refused_lock_leaves_what_was_there() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let (ino, posix) = (Ino(5), LockSpace::Posix);
    let _ = files.open(2, told(10, 1));
    let [other, own] = [2, 4].map(|handle| owner(posix, 70, handle));
    locks(&files, other, bytes(0, 99));
    let before = files.wants_lock(ino, own, bytes(50, 200));
    files.lock_refused(ino, &own, before);
    assert!(files.lockers_through(ino, 4).is_empty());
    assert_eq!(files.to_unlock(ino, &other), [LockBytes::ALL]);
    locks(&files, own, bytes(300, 400));
    let before = files.wants_lock(ino, own, bytes(50, 350));
    files.lock_refused(ino, &own, before);
    let files = next(&files);
    assert_eq!(files.to_unlock(ino, &own), [bytes(300, 400)]);
    assert_eq!(files.to_unlock(ino, &other), [bytes(0, 99)]);
    // Through either handle.
    files.unlocked(ino, &own, bytes(90, 350));
    let files = next(&files);
    assert_eq!(files.to_unlock(ino, &own), [bytes(351, 400)]);
    assert_eq!(files.to_unlock(ino, &other), [bytes(0, 89)]);
    files.unlocked(ino, &own, LockBytes::ALL);
    assert!(!files.may_have_locks(ino, &other));
}

/// The journal turns at any entry: a rejection at that moment is not lost.
#[test]
fn refused_locks_outlive_a_turn_of_the_journal() {
    let mut files = Files::new(Some(Journal::create().unwrap()));
    let (ino, own) = (Ino(5), owner(LockSpace::Posix, 70, 2));
    let _ = files.open(2, told(10, 1));
    locks(&files, own, bytes(0, 9));
    for round in 0..200_u64 {
        for n in 0..1000 {
            let before = files.wants_lock(ino, own, bytes(20 + n, 20 + n));
            files.lock_refused(ino, &own, before);
        }
        if round.is_multiple_of(20) {
            files = next(&files);
            let with_other = owner(LockSpace::Posix, 70, 4);
            locks(&files, with_other, bytes(100, 100));
            assert_eq!(files.to_unlock(ino, &own), [bytes(0, 9)], "round {round}");
            files.locker_gone(ino, &with_other);
        }
    }
}

#[test]
fn many_ranges_count_as_one() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let (ino, posix) = (Ino(5), LockSpace::Posix);
    let [own, other] = [2, 4].map(|handle| owner(posix, 70, handle));
    locks(&files, other, bytes(5000, 5000));
    for n in 0..1000 {
        locks(&files, own, bytes(10 * n, 10 * n));
    }
    let all = [bytes(0, 4999), bytes(5001, 9990)];
    let mut found = files.to_unlock(ino, &own);
    found.sort_by_key(|range| range.start);
    assert_eq!(next(&files).to_unlock(ino, &own).len(), found.len());
    let covers = |n: u64| found.iter().any(|range| range.start <= n && n <= range.end);
    assert!((0..1000).all(|n| n == 500 || covers(10 * n)) && !covers(5000), "{found:?}");
    assert!(found.iter().all(|range| range.start >= all[0].start && range.end <= all[1].end));
}

#[test]
fn locks_that_were_left_are_remembered_until_they_are_given_back() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let ino = Ino(5);
    let _ = files.open(2, told(10, 1));
    let own = owner(LockSpace::Flock, 7, 2);
    locks(&files, own, LockBytes::ALL);
    assert!(files.left_of(ino, &own).is_empty());
    files.leave_locks(ino, &own, false);
    let (same, other) = (Owner { handle: 4, ..own }, Owner { space: LockSpace::Posix, ..own });
    assert_eq!(files.left_of(ino, &same), [own]);
    assert!(files.is_left(ino, &own) && !files.is_left(ino, &same));
    assert!(files.left_of(ino, &other).is_empty());
    let _ = files.close(4, ino);
    // The journal turns several times.
    let file = files.open(6, told(0, 1));
    for n in 1..400_000 {
        let _ = files.wrote(&file, written(n));
    }
    let _ = files.close(8, ino);
    let files = next(&files);
    assert_eq!(files.left_locks(), [(ino, own)]);
    // Also while other opens of the file remain.
    let _ = files.open(10, told(10, 1));
    assert_eq!(next(&files).left_locks(), [(ino, own)]);
    // Locks that are never released are limited.
    for n in 0..5000 {
        let _ = files.wants_lock(Ino(n), other, LockBytes::ALL);
        files.leave_locks(Ino(n), &other, true);
    }
    assert_eq!(files.left_locks().len(), 1 << 12);
}

#[test]
fn a_process_that_has_left_its_journal_writes_to_it_no_more() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let region = files.table.lock().journal.as_ref().unwrap().region().clone();
    let _ = files.open(2, told(10, 1));
    files.leave();
    let _ = files.open(4, told(10, 1));
    assert_eq!(Files::resume(&region).unwrap().numbers().handles, 1);
}

#[test]
fn a_length_that_is_refused_is_told_once_and_given_up() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let (ino, quota) = (Ino(5), Errno(libc::EDQUOT));
    let file = files.open(2, told(10, 1));
    let _ = files.wrote(&file, written(30));
    files.refuse_length(&file, written(30), Errno::IO);
    assert!(!files.is_refused(ino), "that may work later");
    files.refuse_length(&file, written(30), quota);
    assert!(files.is_refused(ino) && file.attr().size == 30);
    assert_eq!(next(&files).known(told(10, 1)).attr().size, 30, "the next process asks again");
    assert_eq!((files.take_refusal(&file), files.take_refusal(&file)), (Some(quota), None));
    assert_eq!((file.attr().size, file.untold()), (10, None));
    assert!(!files.is_untold(ino) && !files.owes_refusal(ino));
    // A larger quota at the next report.
    let _ = files.wrote(&file, written(30));
    files.refuse_length(&file, written(30), quota);
    files.told(&file, written(30), told(30, 2));
    assert_eq!((files.take_refusal(&file), file.attr().size), (None, 30));
}

#[test]
fn who_wrote_hears_once_of_bytes_that_two_threads_told() {
    let files = Files::new(None);
    let quota = Errno(libc::EDQUOT);
    let file = files.open(2, told(10, 1));
    let _ = files.wrote(&file, written(30));
    files.refuse_length(&file, written(30), quota);
    assert_eq!(files.take_refusal(&file), Some(quota));
    // The other thread asked before, and is answered now.
    files.refuse_length(&file, written(30), quota);
    assert_eq!(files.take_refusal(&file), None);
    let _ = files.wrote(&file, written(20));
    files.refuse_length(&file, written(30), quota);
    assert_eq!((files.take_refusal(&file), file.untold()), (None, Some(written(20))));
}

#[test]
fn the_next_process_does_not_show_a_length_that_was_given_up() {
    let files = Files::new(Some(Journal::create().unwrap()));
    let file = files.open(2, told(10, 1));
    let _ = files.wrote(&file, written(30));
    files.refuse_length(&file, written(30), Errno(libc::EDQUOT));
    assert!(files.take_refusal(&file).is_some());
    assert_eq!(next(&files).known(told(10, 1)).attr().size, 10);
}

#[test]
fn another_length_is_set_before_a_refusal_is_told() {
    let files = Files::new(None);
    let (ino, quota) = (Ino(5), Errno(libc::EDQUOT));
    let file = files.open(2, told(10, 1));
    let _ = files.wrote(&file, written(30));
    files.refuse_length(&file, written(30), quota);
    files.give_up_length(&file);
    assert_eq!((file.attr().size, files.is_refused(ino), files.is_untold(ino)), (10, false, false));
    // Bytes written afterwards reach the meta, and the earlier writer still gets the error.
    let _ = files.wrote(&file, written(12));
    files.told(&file, written(12), told(12, 2));
    assert!(files.owes_refusal(ino));
    assert_eq!((files.take_refusal(&file), files.take_refusal(&file)), (Some(quota), None));
    // Bytes written since the rejection are reported separately.
    let _ = files.wrote(&file, written(40));
    files.refuse_length(&file, written(40), quota);
    let _ = files.wrote(&file, written(50));
    assert_eq!((files.take_refusal(&file), file.attr().size), (Some(quota), 50));
    assert_eq!(file.untold(), Some(written(50)));
}
