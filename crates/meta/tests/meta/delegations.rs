//! Directories that one session may use alone until another client needs them.

use std::time::{Duration, Instant};

use millpond_types::meta::{
    Attr, Create, FENCE_MS, FileKind, Ino, MetaAnswer, MetaError, MetaOp, MetaReply, PromisedFile,
    RETURNS_MAX, ReadDir, Timestamp,
};
use tokio::task::JoinHandle;

use crate::support::{Client, Fixture, create, name, rename};

const ROOT: Ino = Ino::ROOT;
/// An operation that does not wait is faster than this.
const SOON: Duration = Duration::from_millis(FENCE_MS as u64 / 2);

async fn make(client: &Client, parent: Ino, text: &str, tenure: u32) -> MetaReply {
    let dir = Create { delegate: Some(tenure), ..create(parent, text, FileKind::Directory) };
    client.run(MetaOp::Create(dir)).await.unwrap()
}

/// A directory that the session holds.
async fn held(client: &Client, parent: Ino, text: &str) -> Ino {
    match make(client, parent, text, 0).await {
        MetaReply::Delegated(attr) => attr.ino,
        other => panic!("{other:?}"),
    }
}

async fn recalled(client: &Client) -> Result<(u32, Vec<Ino>), MetaError> {
    match client.run(MetaOp::Recalled).await? {
        MetaReply::Recalled { tenure, dirs } => Ok((tenure, dirs)),
        other => panic!("{other:?}"),
    }
}

async fn give_back(client: &Client, dir: Ino) {
    assert_eq!(client.run(MetaOp::Return { dirs: vec![dir] }).await, Ok(MetaReply::Done));
}

/// Starts an operation that waits for a holder, and returns once the holder is asked to return
/// `dir`.
async fn ask(of: (&Client, Ino), client: &Client, op: MetaOp) -> JoinHandle<MetaAnswer> {
    let client = client.clone();
    let asked = tokio::spawn(async move { client.run(op).await });
    let (holder, dir) = of;
    while !recalled(holder).await.unwrap().1.contains(&dir) {
        assert!(!asked.is_finished(), "somebody holds it");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked
}

async fn promise(client: &Client, parent: Ino, text: &str) -> Ino {
    let MetaReply::Numbers { first } = client.run(MetaOp::TakeNumbers { count: 1 }).await.unwrap()
    else {
        panic!("numbers")
    };
    let (ino, at) = (Ino(first), Timestamp::default());
    let promised = PromisedFile { ino, at, written: at, bytes: b"abc".to_vec() };
    let file = create(parent, text, FileKind::Regular);
    client.create(Create { promised: Some(promised), ..file }).await.unwrap();
    ino
}

/// A client that looks at a held directory, lists it or its parent with attributes, or changes it
/// waits until it is returned, and then sees the holder's changes.
pub(crate) async fn others_wait_until_it_is_returned(f: Fixture) {
    let (holder, other) = (f.client().await, f.client().await.at(&f.other));
    let unheld = f.client().await.dir(ROOT, "shared").await;
    let all = |dir: Ino, n: usize| {
        let listing = |dir, attrs| MetaOp::ReadDir(ReadDir { dir, after: 0, limit: 100, attrs });
        let waits = [
            MetaOp::GetAttr { ino: dir },
            MetaOp::Lookup { parent: dir, name: name("a") },
            MetaOp::Lookup { parent: ROOT, name: name(&n.to_string()) },
            listing(dir, false),
            listing(ROOT, true),
            MetaOp::Create(create(dir, "b", FileKind::Regular)),
            MetaOp::Rename(rename((dir, "a"), (unheld, &n.to_string()))),
            MetaOp::Unlink { parent: dir, name: name("a"), of: None },
            MetaOp::GetFile { path: vec![name(&n.to_string()), name("a")] },
        ];
        (waits.len(), waits[n].clone())
    };
    let mut n = 0;
    loop {
        let dir = held(&holder, ROOT, &n.to_string()).await;
        let (count, op) = all(dir, n);
        // The holder itself does not wait, nor does a listing of the parent without attributes.
        let began = Instant::now();
        let _ = holder.list_from(dir, 0, 10).await;
        let _ = other.list_from(ROOT, 0, 10).await;
        assert!(recalled(&holder).await.unwrap().1.is_empty());
        assert!(began.elapsed() < SOON);
        let asked = ask((&holder, dir), &other, op.clone()).await;
        promise(&holder, dir, "a").await;
        give_back(&holder, dir).await;
        assert!(asked.await.unwrap().is_ok(), "it comes after the file: {op:?}");
        assert!(recalled(&holder).await.unwrap().1.is_empty());
        // From now on there is no holder.
        other.file(dir, "c").await;
        n += 1;
        if n == count {
            break;
        }
    }
    f.assert_sound().await;
}

/// A holder that does not answer loses all its directories, and learns of it.
pub(crate) async fn who_does_not_yield_is_fenced(f: Fixture) {
    let (holder, other) = (f.client().await, f.client().await.at(&f.other));
    let (dir, second) = (held(&holder, ROOT, "a").await, held(&holder, ROOT, "b").await);
    let began = Instant::now();
    other.file(dir, "f").await;
    assert!(began.elapsed() >= Duration::from_millis(FENCE_MS.into()));
    // It no longer holds the second directory either.
    let began = Instant::now();
    other.file(second, "f").await;
    assert!(began.elapsed() < SOON);
    assert_eq!(recalled(&holder).await, Ok((1, Vec::new())));
    // A request in the tenure that is over gets no delegation.
    assert!(matches!(make(&holder, ROOT, "c", 0).await, MetaReply::Entry(_)));
    let MetaReply::Delegated(Attr { ino, .. }) = make(&holder, ROOT, "d", 1).await else {
        panic!("it holds again")
    };
    give_back(&holder, ino).await;
    other.file(ino, "f").await;
    f.assert_sound().await;
}

/// More directories than one transaction can change are recalled and returned in parts, or fenced
/// at once.
pub(crate) async fn many_are_recalled(f: Fixture) {
    let (holder, other) = (f.client().await, f.client().await.at(&f.other));
    for fences in [false, true] {
        let dir = f.client().await.dir(ROOT, &fences.to_string()).await;
        let count = 2 * RETURNS_MAX + 5;
        for n in 0..count {
            held(&holder, dir, &n.to_string()).await;
        }
        let began = Instant::now();
        let client = other.clone();
        let listed = tokio::spawn(async move {
            let page = ReadDir { dir, after: 0, limit: 500, attrs: true };
            client.run(MetaOp::ReadDir(page)).await
        });
        let mut returned = 0;
        while !fences && !listed.is_finished() {
            let (_, dirs) = recalled(&holder).await.unwrap();
            assert!(dirs.len() <= RETURNS_MAX);
            returned += dirs.len();
            assert_eq!(holder.run(MetaOp::Return { dirs }).await, Ok(MetaReply::Done));
        }
        let MetaReply::Page { entries, end: true } = listed.await.unwrap().unwrap() else {
            panic!("all of them")
        };
        assert!(entries.len() == count && entries.iter().all(|entry| entry.attr.is_some()));
        assert_eq!(returned, if fences { 0 } else { count });
        let once = Duration::from_millis(FENCE_MS.into());
        let took = began.elapsed();
        assert!(if fences { took >= once && took < once + SOON } else { took < SOON }, "{took:?}");
    }
    assert_eq!(recalled(&holder).await, Ok((1, Vec::new())));
    f.assert_sound().await;
}

/// After the session of a mount has ended, no client waits for directories that it held.
pub(crate) async fn what_a_session_held_goes_with_it(f: Fixture) {
    let (holder, other) = (f.client().await, f.client().await.at(&f.other));
    let dir = held(&holder, ROOT, "a").await;
    let asked = ask((&holder, dir), &other, MetaOp::GetAttr { ino: dir }).await;
    let began = Instant::now();
    assert_eq!(holder.run(MetaOp::SessionClose).await, Ok(MetaReply::Done));
    assert!(asked.await.unwrap().is_ok());
    assert!(began.elapsed() < SOON);
    assert_eq!(recalled(&holder).await, Err(MetaError::Stale));
    other.file(dir, "f").await;
    f.assert_sound().await;
}

/// Only new directories are held, and none with objects.
pub(crate) async fn not_every_directory_is_held(f: Fixture) {
    let (holder, other) = (f.client().await, f.client().await.at(&f.other));
    let hold = |parent, text, kind| Create { delegate: Some(0), ..create(parent, text, kind) };
    let file = holder.run(MetaOp::Create(hold(ROOT, "f", FileKind::Regular))).await;
    assert!(matches!(file, Ok(MetaReply::Entry(_))));
    let dir = held(&holder, ROOT, "a").await;
    let again = holder.run(MetaOp::Create(hold(ROOT, "a", FileKind::Directory))).await;
    assert_eq!(again, Err(MetaError::Exists));
    // It moves and stays held; a directory in it is held separately.
    holder.rename(rename((ROOT, "a"), (ROOT, "b"))).await.unwrap();
    let below = held(&holder, dir, "below").await;
    let asked = ask((&holder, dir), &other, MetaOp::GetAttr { ino: dir }).await;
    give_back(&holder, dir).await;
    assert_eq!(asked.await.unwrap().map(|_| ()), Ok(()));
    let asked = ask((&holder, below), &other, MetaOp::GetAttr { ino: below }).await;
    give_back(&holder, below).await;
    assert_eq!(asked.await.unwrap().map(|_| ()), Ok(()));
    f.assert_sound().await;
}

/// A name that leads to another inode by now stays.
pub(crate) async fn only_what_was_meant_is_unlinked(f: Fixture) {
    let client = f.client().await;
    let (file, other) = (client.file(ROOT, "a").await, client.file(ROOT, "b").await);
    let unlink = |of| MetaOp::Unlink { parent: ROOT, name: name("a"), of: Some(of) };
    assert_eq!(client.run(unlink(other)).await, Err(MetaError::NotFound));
    assert_eq!(client.lookup(ROOT, "a").await.map(|attr| attr.ino), Ok(file));
    assert!(client.run(unlink(file)).await.is_ok());
    assert_eq!(client.lookup(ROOT, "a").await, Err(MetaError::NotFound));
}
