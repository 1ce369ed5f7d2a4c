//! Notification of mounts about each other's changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_meta::Volume;
use millpond_types::meta::{
    CHANGES_MAX, Changed, FileKind, Ino, MetaNews, MetaOp, MetaRequest, MetaWatch, SetAttr, keys,
};

use crate::support::{Fixture, LEASE, create, name, rename};

const ROOT: Ino = Ino::ROOT;

/// A meta that follows its store until this is dropped.
struct Following(tokio::task::JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn watch(session: u64, after: u64) -> MetaWatch {
    MetaWatch { session, after, wait_ms: 100 }
}

/// Starts following on a meta; returns the version from which on it knows the changes.
async fn follow(volume: &Arc<Volume>) -> (Following, u64) {
    let followed = Arc::clone(volume);
    let task = tokio::spawn(async move { followed.follow().await.unwrap() });
    loop {
        if let Ok(news) = volume.news(&watch(0, 0)).await {
            assert!(news.gap && news.version > 0, "{news:?}");
            return (Following(task), news.version);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Collects the changes that a session receives after a version, up to `last`, and returns their
/// version.
async fn until(
    volume: &Volume,
    (session, mut after): (u64, u64),
    last: &Changed,
) -> (Vec<Changed>, u64) {
    let mut heard = Vec::new();
    for _ in 0..100 {
        let news = volume.news(&watch(session, after)).await.unwrap();
        assert!(!news.gap, "nothing is lost");
        for (version, change) in news.changes {
            assert!(version > after && version <= news.version);
            heard.push(change);
        }
        after = news.version;
        if heard.contains(last) {
            return (heard, after);
        }
    }
    panic!("{last:?} was not heard of, but {heard:?}");
}

pub(crate) async fn others_hear_of_every_change(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await.at(&f.other));
    let (dir, file) = (a.dir(ROOT, "d").await, a.file(ROOT, "f").await);
    // `a` receives the changes of `b` at another meta and at its own.
    let (_one, start) = follow(&f.volume).await;
    let (_two, _) = follow(&f.other).await;
    b.rename(rename((ROOT, "f"), (dir, "g"))).await.unwrap();
    b.setattr(file, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
    let made = b.file(dir, "last").await;
    let end = Changed::Inode(made);
    for volume in [&f.volume, &f.other] {
        let (heard, _) = until(volume, (a.session, start), &end).await;
        for wanted in [
            Changed::Name(ROOT, name("f")),
            Changed::Name(dir, name("g")),
            Changed::Name(dir, name("last")),
            Changed::Inode(ROOT),
            Changed::Inode(dir),
            Changed::Inode(file),
        ] {
            assert!(heard.contains(&wanted), "{wanted:?} is not in {heard:?}");
        }
    }
}

pub(crate) async fn nobody_hears_of_its_own(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await.at(&f.other));
    let (_following, start) = follow(&f.volume).await;
    let own = a.file(ROOT, "own").await;
    a.unlink(ROOT, "own").await.unwrap();
    let theirs = b.file(ROOT, "theirs").await;
    let (heard, after) = until(&f.volume, (a.session, start), &Changed::Inode(theirs)).await;
    assert!(!heard.contains(&Changed::Inode(own)), "{heard:?}");
    // Without changes the answer comes in time, with the version up to which there were none.
    let last = a.file(ROOT, "more").await;
    let quiet = f.volume.news(&watch(a.session, after)).await.unwrap();
    assert!(quiet.changes.is_empty() && !quiet.gap && quiet.version >= after, "{quiet:?}");
    let (heard, _) = until(&f.volume, (b.session, after), &Changed::Inode(last)).await;
    assert!(!heard.contains(&Changed::Inode(theirs)), "{heard:?}");
}

pub(crate) async fn answers_say_of_when_they_are(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let (_following, start) = follow(&f.volume).await;
    let look = MetaOp::Lookup { parent: ROOT, name: name("f") };
    let nothing = f.volume.execute(&a.request(look.clone())).await.unwrap();
    assert!(nothing.answer.is_err() && nothing.version >= start);
    let making = b.request(MetaOp::Create(create(ROOT, "f", FileKind::Regular)));
    let made = f.volume.execute(&making).await.unwrap();
    assert!(made.answer.is_ok() && made.version >= nothing.version);
    let name = Changed::Name(ROOT, name("f"));
    let patient = MetaWatch { wait_ms: 5000, ..watch(a.session, nothing.version) };
    let news = f.volume.news(&patient).await.unwrap();
    let (changed, _) = news.changes.iter().find(|(_, change)| *change == name).unwrap();
    assert!(*changed > nothing.version && *changed > made.version, "made in what it made");
    let found = f.volume.execute(&a.request(look)).await.unwrap();
    assert!(found.answer.is_ok() && found.version >= *changed);
    // A repeated answer has no newer version.
    let again = f.volume.execute(&making).await.unwrap();
    assert_eq!((again.answer, again.version), (made.answer, 0));
}

pub(crate) async fn who_was_away_too_long_learns_of_a_gap(f: Fixture) {
    let a = f.client().await;
    let ino = a.file(ROOT, "f").await;
    let before = f.volume.execute(&a.request(MetaOp::GetAttr { ino })).await.unwrap().version;
    f.volume.news(&watch(a.session, before)).await.unwrap_err();
    let _ = a.file(ROOT, "g").await;
    let (following, start) = follow(&f.volume).await;
    assert!(start > before);
    let gap = f.volume.news(&watch(a.session, before)).await.unwrap();
    assert_eq!(gap, MetaNews { version: start, gap: true, changes: Vec::new() });
    drop(following);
    for _ in 0..100 {
        if f.volume.news(&watch(a.session, start)).await.is_err() {
            return;
        }
    }
    panic!("a meta that does not follow its store tells of no changes");
}

pub(crate) async fn what_nobody_can_reach_is_told_of(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let ino = a.file(ROOT, "f").await;
    let (_following, start) = follow(&f.volume).await;
    a.unlink(ROOT, "f").await.unwrap();
    let (_, after) = until(&f.volume, (b.session, start), &Changed::Inode(ino)).await;
    f.clock.advance(LEASE * 2);
    while f.store.begin().get(&keys::inode(ino)).await.unwrap().is_some() {
        f.volume.collect().await.unwrap();
    }
    let (heard, _) = until(&f.volume, (a.session, after), &Changed::Inode(ino)).await;
    assert!(heard.len() < CHANGES_MAX);
}

/// A request that is too old for the memory of a meta gets a gap, and changes that do not fit one
/// answer come in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded() {
    let f = Fixture::in_memory().await;
    let (a, b) = (f.client().await, f.client().await);
    let (_following, start) = follow(&f.volume).await;
    let ino = a.file(ROOT, "f").await;
    let mut middle = 0;
    for round in 0..140_000_u32 {
        let request =
            MetaRequest { sequence: u64::from(round) + 100, ..a.request(chmod(ino, round)) };
        let done = f.volume.execute(&request).await.unwrap();
        if round == 100_000 {
            middle = done.version;
        }
    }
    // The memory follows the store, which on a busy machine takes a while.
    let waited = Instant::now();
    let news = loop {
        let news = f.volume.news(&watch(b.session, start)).await.unwrap();
        if news.gap || waited.elapsed() > Duration::from_secs(30) {
            break news;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(news.gap && news.changes.is_empty(), "{} changes", news.changes.len());
    let (mut after, mut heard) = (middle, 0);
    while heard < 39_999 {
        let news = f.volume.news(&watch(b.session, after)).await.unwrap();
        assert!(!news.gap && news.changes.len() <= CHANGES_MAX);
        assert!(news.changes.is_sorted_by_key(|(version, _)| *version));
        (after, heard) = (news.version, heard + news.changes.len());
    }
}

fn chmod(ino: Ino, round: u32) -> MetaOp {
    let mode = u16::try_from(round & 0o777).unwrap();
    MetaOp::SetAttr { ino, set: SetAttr { mode: Some(mode), ..SetAttr::default() } }
}
