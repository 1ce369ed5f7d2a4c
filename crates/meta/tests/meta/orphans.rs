//! Sessions, their open files without a name, and repeated requests.

use std::time::Duration;

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Extend, FileKind, Filled, Ino, MetaError, MetaOp, MetaReply, OrphanRecord, SessionRecord,
    Timestamp, keys,
};
use millpond_types::wire::Record;

use crate::support::{Client, Fixture, LEASE, create};

const ROOT: Ino = Ino::ROOT;

pub(crate) async fn live_while_a_session_says_so(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let file = a.make(ROOT, "f", FileKind::Regular).await;
    let dir = a.dir(ROOT, "d").await;
    a.unlink(ROOT, "f").await.unwrap();
    a.rmdir(ROOT, "d").await.unwrap();
    assert_eq!(a.renew(&[], &[]).await.unwrap(), [], "nobody has counted the sessions yet");
    assert_eq!(f.volume.collect().await.unwrap().waiting, 2);
    let late = f.client().await;
    assert_eq!(late.renew(&[], &[]).await.unwrap(), [], "it came too late to know them");
    assert_eq!(a.renew(&[], &[]).await.unwrap(), [file.ino, dir]);
    assert_eq!(a.renew(&[file.ino], &[dir]).await.unwrap(), [file.ino], "it is open");
    assert_eq!(f.other.collect().await.unwrap().inodes, 0, "b has said nothing");
    assert_eq!(b.renew(&[], &[file.ino, dir]).await.unwrap(), []);
    let collected = f.other.collect().await.unwrap();
    assert_eq!((collected.inodes, collected.waiting), (1, 1), "the directory goes");
    assert_eq!(a.getattr(dir).await, Err(MetaError::Stale));
    assert!(a.getattr(file.ino).await.is_ok() && f.volume.garbage(0, 9).await.unwrap().is_empty());
    // Its bytes can still grow.
    let (mtime, data) = (Timestamp::default(), file.data);
    a.run(MetaOp::Extend(Extend {
        ino: file.ino,
        data,
        size: 99,
        mtime,
        filled: Filled::default(),
    }))
    .await
    .unwrap();
    assert_eq!(a.renew(&[], &[file.ino]).await.unwrap(), []);
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1);
    assert_eq!(a.getattr(file.ino).await, Err(MetaError::Stale));
    let garbage = f.volume.garbage(0, 9).await.unwrap();
    assert_eq!((garbage.len(), garbage[0].data, garbage[0].record.size), (1, data, 99));
    assert_eq!(f.volume.collect().await.unwrap(), millpond_meta::Collected::default());
}

pub(crate) async fn go_when_their_sessions_end(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let files = [a.file(ROOT, "f").await, a.file(ROOT, "g").await];
    a.unlink(ROOT, "f").await.unwrap();
    f.volume.collect().await.unwrap();
    assert_eq!(a.renew(&files[..1], &[]).await.unwrap(), files[..1]);
    assert_eq!(b.renew(&[], &files[..1]).await.unwrap(), []);
    assert_eq!(a.run(MetaOp::SessionClose).await, Ok(MetaReply::Done));
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1, "a is gone, b has it closed");
    assert_eq!(a.renew(&[], &[]).await, Err(MetaError::Stale));
    assert_eq!(a.run(MetaOp::SessionClose).await, Ok(MetaReply::Done), "twice is once");

    b.unlink(ROOT, "g").await.unwrap();
    f.volume.collect().await.unwrap();
    f.clock.advance(LEASE);
    assert_eq!(b.renew(&files[1..], &[]).await.unwrap(), files[1..], "in time");
    f.clock.advance(LEASE + Duration::from_secs(1));
    assert_eq!(f.volume.collect().await.unwrap().waiting, 1, "clocks may differ by a second");
    f.clock.advance(Duration::from_secs(1));
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1, "no word for longer than its lease");
    assert_eq!(b.renew(&[], &[]).await, Err(MetaError::Stale));
    assert_eq!(f.volume.garbage(0, 9).await.unwrap().len(), 2);
}

/// Unlinks `count` new files of a session.
async fn unlinked(c: &Client, count: usize) -> Vec<Ino> {
    let mut inos = Vec::new();
    for n in 0..count {
        inos.push(c.file(ROOT, &format!("{n}")).await);
        c.unlink(ROOT, &format!("{n}")).await.unwrap();
    }
    inos
}

pub(crate) async fn many_that_are_open_hide_no_others(f: Fixture) {
    let c = f.client().await;
    let all = unlinked(&c, 260).await;
    f.volume.collect().await.unwrap();
    // The first of them stay open for long; the session is asked about the others nevertheless.
    let (open, closed) = all.split_at(230);
    let (mut told, mut asked) = (Vec::new(), c.renew(&[], &[]).await.unwrap());
    for _ in 0..6 {
        told.extend(asked.iter().copied().filter(|ino| closed.contains(ino)));
        let (still, not): (Vec<Ino>, Vec<Ino>) = asked.iter().partition(|ino| open.contains(ino));
        asked = c.renew(&still, &not).await.unwrap();
    }
    told.sort();
    assert_eq!(told, closed, "each is asked about, and once");
    assert_eq!(f.volume.collect().await.unwrap().inodes, closed.len());
    c.renew(&[], open).await.unwrap();
    c.run(MetaOp::SessionClose).await.unwrap();
    assert_eq!(f.volume.collect().await.unwrap().inodes, open.len());
}

pub(crate) async fn a_request_is_done_once_by_two_metas(f: Fixture) {
    let c = f.client().await;
    let other = c.at(&f.other);
    for round in 0..12 {
        let text = format!("f{round}");
        let op = MetaOp::Create(create(ROOT, &text, FileKind::Regular));
        let request = c.request(op);
        let answers = tokio::join!(c.send(&request), other.send(&request), c.send(&request));
        assert_eq!(answers.0, answers.1, "one answer");
        assert_eq!(answers.0, answers.2);
        let Ok(MetaReply::Entry(entry)) = answers.0 else { panic!("{answers:?}") };
        assert_eq!(c.lookup(ROOT, &text).await.unwrap().ino, entry.attr.ino, "one effect");
        let link = MetaOp::Link {
            ino: entry.attr.ino,
            parent: ROOT,
            name: crate::support::name(&format!("l{round}")),
        };
        let link = c.request(link);
        let first = c.send(&link).await;
        c.unlink(ROOT, &format!("l{round}")).await.unwrap();
        assert_eq!(other.send(&link).await, first, "repeated after it was undone");
        assert_eq!(c.getattr(entry.attr.ino).await.unwrap().nlink, 1);
    }
}

/// An answered refusal is not reversed by a delayed attempt.
pub(crate) async fn an_answer_is_final(f: Fixture) {
    let c = f.client().await;
    c.file(ROOT, "f").await;
    let request = c.request(MetaOp::Create(create(ROOT, "f", FileKind::Regular)));
    assert_eq!(c.send(&request).await, Err(MetaError::Exists));
    c.unlink(ROOT, "f").await.unwrap();
    assert_eq!(c.at(&f.other).send(&request).await, Err(MetaError::Exists));
    assert_eq!(c.lookup(ROOT, "f").await, Err(MetaError::NotFound), "and nothing is made");
}

/// Without a session a request has no lasting name, so it changes nothing.
pub(crate) async fn changes_need_a_session(f: Fixture) {
    let c = f.client().await;
    let mut nobody = c.clone();
    nobody.session = 0;
    let made = nobody.create(create(ROOT, "f", FileKind::Regular)).await;
    assert_eq!(made, Err(MetaError::Stale));
    assert_eq!(nobody.lookup(ROOT, "f").await, Err(MetaError::NotFound), "looking needs none");
    assert!(nobody.run(MetaOp::Usage).await.is_ok());
}

pub(crate) async fn garbage_is_listed_and_forgotten(f: Fixture) {
    let c = f.client().await;
    unlinked(&c, 60).await;
    c.make(ROOT, "s", FileKind::Symlink).await;
    c.unlink(ROOT, "s").await.unwrap();
    c.run(MetaOp::SessionClose).await.unwrap();
    assert_eq!(f.volume.collect().await.unwrap().waiting, 61);
    assert_eq!(f.volume.collect().await.unwrap().inodes, 61);
    let garbage = f.volume.garbage(0, 1000).await.unwrap();
    assert_eq!(garbage.len(), 60, "links have no bytes");
    assert_eq!(f.volume.garbage(0, 7).await.unwrap(), garbage[..7]);
    let data: Vec<u64> = garbage.iter().map(|garbage| garbage.data).collect();
    f.other.forget_garbage(&data[1..]).await.unwrap();
    f.volume.forget_garbage(&data[1..]).await.unwrap();
    assert_eq!(f.volume.garbage(0, 1000).await.unwrap(), garbage[..1]);
}

/// Thousands of mounts: each orphan names them all, and a transaction is bounded.
pub(crate) async fn thousands_of_sessions(f: Fixture) {
    let c = f.client().await;
    let now = Timestamp::from_unix_nanos(millpond_env::Clock::unix_nanos(&f.clock));
    for thousand in 0..16_u64 {
        for hundred in 0..10 {
            let txn = f.store.begin();
            for n in 0..100 {
                let id = (1 << 40) + thousand * 1000 + hundred * 100 + n;
                let record = SessionRecord { name: "m".into(), renewed: now, tenure: 0 };
                txn.put(&keys::session(id), record.seal()).unwrap();
            }
            txn.commit().await.unwrap();
        }
    }
    let orphans = unlinked(&c, 20).await;
    assert_eq!(f.volume.collect().await.unwrap().waiting, 20);
    assert_eq!(c.renew(&[], &[]).await.unwrap(), orphans);
    assert_eq!(c.renew(&[], &orphans).await.unwrap(), []);
    let op = MetaOp::SessionOpen { name: "more".into() };
    for n in 0..128_u64 {
        let record = SessionRecord { name: "m".into(), renewed: now, tenure: 0 };
        let txn = f.store.begin();
        txn.put(&keys::session(1 << 41 | n), record.seal()).unwrap();
        txn.commit().await.unwrap();
    }
    assert_eq!(c.run(op.clone()).await, Err(MetaError::Busy), "an orphan could not name them all");
    let range = KeyRange::prefix(keys::SESSIONS);
    let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
    let all = f.store.begin().range_all(&range, options).await.unwrap();
    for some in all.chunks(50) {
        let txn = f.store.begin();
        for (key, _) in some {
            txn.delete(key).unwrap();
        }
        txn.commit().await.unwrap();
    }
    assert!(c.run(op).await.is_ok(), "there is room again");
    assert_eq!(f.volume.collect().await.unwrap().inodes, 20);
}

/// No session could be renewed while all metas were away, so none is ended for that.
pub(crate) async fn sessions_outlive_an_outage(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let file = a.file(ROOT, "f").await;
    a.unlink(ROOT, "f").await.unwrap();
    f.clock.advance(LEASE * 10);
    let again = Fixture::over(f.store.clone(), f.store.clone(), f.clock.clone()).await;
    assert_eq!(again.volume.collect().await.unwrap().waiting, 1);
    let a = a.at(&again.volume);
    assert_eq!(a.renew(&[], &[]).await.unwrap(), [file], "its file is there");
    f.clock.advance(LEASE);
    a.renew(&[], &[file]).await.unwrap();
    assert_eq!(again.volume.collect().await.unwrap().inodes, 0, "b still has time");
    f.clock.advance(Duration::from_secs(2));
    assert_eq!(again.volume.collect().await.unwrap().inodes, 1);
    assert_eq!(b.renew(&[], &[]).await, Err(MetaError::Stale), "it did not come back");
    assert!(a.renew(&[], &[]).await.is_ok());
}

/// More orphans wait than one round reads.
pub(crate) async fn rounds_of_collection_go_on(f: Fixture) {
    let c = f.client().await;
    let late = unlinked(&c, 1).await[0];
    let waiting = OrphanRecord { since: Timestamp::default(), waits_for: Some(vec![c.session]) };
    // After the root's number, before those of the first files.
    for hundred in 0..10 {
        let txn = f.store.begin();
        for n in 0..100 {
            txn.put(&keys::orphan(Ino(2 + hundred * 100 + n)), waiting.seal()).unwrap();
        }
        txn.commit().await.unwrap();
    }
    assert!(late.0 > 1001, "it is the last");
    f.volume.collect().await.unwrap();
    f.volume.collect().await.unwrap();
    let asked = c.renew(&[Ino(1001)], &[]).await.unwrap();
    assert_eq!(asked[0], late);
    c.renew(&[], &[late]).await.unwrap();
    let inodes =
        f.volume.collect().await.unwrap().inodes + f.volume.collect().await.unwrap().inodes;
    assert_eq!(inodes, 1, "it goes, though all the others wait");
    c.run(MetaOp::SessionClose).await.unwrap();
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1000);
}
