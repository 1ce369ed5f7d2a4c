//! Removed inodes that are kept.

use std::time::Duration;

use millpond_types::meta::{
    FileKind, Ino, MetaError, MetaOp, MetaReply, Quota, QuotaLimits, SetAttr, TrashChange,
    TrashPage,
};

use crate::support::{Client, Fixture, LEASE, name, rename};

const ROOT: Ino = Ino::ROOT;
const DAY_S: u32 = 86_400;

async fn change(c: &Client, change: TrashChange) -> Result<(), MetaError> {
    let request = c.request(MetaOp::Trash(change));
    let answer = c.send(&request).await;
    assert_eq!(answer, c.send(&request).await, "once");
    assert_eq!(answer?, MetaReply::Done);
    Ok(())
}

async fn keep(c: &Client, dir: Ino, keep_s: u32) -> Result<(), MetaError> {
    change(c, TrashChange::Keep { dir, keep_s }).await
}

async fn restore(c: &Client, dir: Ino, ino: Ino, text: &str) -> Result<(), MetaError> {
    change(c, TrashChange::Restore { dir, ino, name: name(text) }).await
}

async fn page(c: &Client, dir: Ino, after: Ino, limit: u32) -> Result<TrashPage, MetaError> {
    match c.run(MetaOp::TrashList { dir, after, limit }).await? {
        MetaReply::Trash(page) => Ok(page),
        other => panic!("{other:?}"),
    }
}

/// Lists inodes and names in the trash of a directory, in small pages.
async fn trash(c: &Client, dir: Ino) -> Vec<(Ino, String)> {
    let (mut all, mut after) = (Vec::new(), Ino(0));
    loop {
        let page = page(c, dir, after, 2).await.unwrap();
        after = page.entries.last().map_or(after, |entry| entry.ino);
        all.extend(
            page.entries.into_iter().map(|entry| (entry.ino, entry.record.name.to_string())),
        );
        if page.end {
            return all;
        }
    }
}

pub(crate) async fn what_is_removed_comes_back(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    keep(&c, dir, DAY_S).await.unwrap();
    let file = c.file(dir, "f").await;
    let set = SetAttr { size: Some(9), ..SetAttr::default() };
    c.setattr(file, set).await.unwrap();
    assert_eq!(c.unlink(dir, "f").await.unwrap().nlink, 0);
    assert_eq!(c.lookup(dir, "f").await, Err(MetaError::NotFound));
    assert!(c.names(dir).await.is_empty(), "it is not in the tree");
    f.assert_sound().await;
    // It stays usable where it is open.
    let attr = c.setattr(file, SetAttr { size: Some(12), ..SetAttr::default() }).await.unwrap();
    assert_eq!((attr.size, attr.nlink), (12, 0));
    assert_eq!(c.link(file, dir, "g").await, Err(MetaError::NotFound), "only a restore does that");
    // No session is asked about it, and no round removes it.
    f.clock.advance(LEASE * 2);
    f.volume.collect().await.unwrap();
    assert_eq!(trash(&c, dir).await, [(file, "f".to_owned())]);

    let c = f.client().await;
    c.file(dir, "f").await;
    assert_eq!(restore(&c, dir, file, "f").await, Err(MetaError::Exists));
    restore(&c, dir, file, "old").await.unwrap();
    let attr = c.lookup(dir, "old").await.unwrap();
    assert_eq!((attr.ino, attr.size, attr.nlink), (file, 12, 1));
    assert_eq!(restore(&c, dir, file, "again").await, Err(MetaError::NotFound));
    // Only the removal of the last name counts, and only in a directory that keeps removed entries.
    c.link(file, ROOT, "other").await.unwrap();
    c.unlink(dir, "old").await.unwrap();
    assert!(trash(&c, dir).await.is_empty());
    c.unlink(ROOT, "other").await.unwrap();
    assert!(trash(&c, ROOT).await.is_empty());
}

pub(crate) async fn whole_branches_come_back(f: Fixture) {
    let c = f.client().await;
    let top = c.dir(ROOT, "top").await;
    keep(&c, top, DAY_S).await.unwrap();
    let dir = c.dir(top, "dir").await;
    let sub = c.dir(dir, "sub").await;
    let files = [c.file(sub, "a").await, c.file(sub, "b").await, c.file(sub, "c").await];
    for text in ["a", "b", "c"] {
        c.unlink(sub, text).await.unwrap();
    }
    c.rmdir(dir, "sub").await.unwrap();
    c.rmdir(top, "dir").await.unwrap();
    f.assert_sound().await;
    assert_eq!(c.getattr(top).await.unwrap().nlink, 2);
    let early = restore(&c, sub, files[0], "a").await;
    assert_eq!(early, Err(MetaError::NotFound), "its directory comes first");
    restore(&c, top, dir, "dir").await.unwrap();
    restore(&c, dir, sub, "sub").await.unwrap();
    for (ino, text) in trash(&c, sub).await {
        restore(&c, sub, ino, &text).await.unwrap();
    }
    assert_eq!(c.names(sub).await, ["a", "b", "c"]);
    assert_eq!(c.getattr(top).await.unwrap().nlink, 3);
    assert_eq!(c.getattr(sub).await.unwrap().parent, dir);
}

pub(crate) async fn what_a_rename_replaces_is_kept(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    keep(&c, dir, DAY_S).await.unwrap();
    let old = c.file(dir, "f").await;
    c.file(ROOT, "new").await;
    c.rename(rename((ROOT, "new"), (dir, "f"))).await.unwrap();
    assert_eq!(trash(&c, dir).await, [(old, "f".to_owned())]);
    let below = c.dir(dir, "below").await;
    c.dir(ROOT, "other").await;
    c.rename(rename((ROOT, "other"), (dir, "below"))).await.unwrap();
    assert_eq!(trash(&c, dir).await.len(), 2);
    restore(&c, dir, below, "was below").await.unwrap();
    assert_eq!(c.names(dir).await, ["below", "f", "was below"]);
    // Another directory has no trash, even for entries that came from one with a trash.
    c.rename(rename((dir, "f"), (ROOT, "f"))).await.unwrap();
    c.unlink(ROOT, "f").await.unwrap();
    assert!(trash(&c, ROOT).await.is_empty());
}

pub(crate) async fn time_runs_out(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    keep(&c, dir, 100).await.unwrap();
    let limits = QuotaLimits { bytes: 100, inodes: 0 };
    c.run(MetaOp::SetQuota { dir, limits }).await.unwrap();
    let (file, below) = (c.file(dir, "f").await, c.dir(dir, "below").await);
    c.spill(c.getattr(file).await.unwrap(), 9).await.unwrap();
    c.setattr(file, SetAttr { size: Some(60), ..SetAttr::default() }).await.unwrap();
    c.unlink(dir, "f").await.unwrap();
    let used = async || match c.run(MetaOp::GetQuota { ino: dir }).await.unwrap() {
        MetaReply::Quota(Quota { bytes, inodes, .. }) => (bytes, inodes),
        other => panic!("{other:?}"),
    };
    assert_eq!(used().await, (60, 3), "it counts as long as it is kept");
    f.clock.advance(Duration::from_secs(50));
    c.renew(&[], &[]).await.unwrap();
    keep(&c, dir, 1000).await.unwrap();
    c.rmdir(dir, "below").await.unwrap();
    f.clock.advance(Duration::from_secs(51));
    c.renew(&[], &[]).await.unwrap();
    f.volume.collect().await.unwrap();
    f.assert_sound().await;
    assert_eq!(trash(&c, dir).await, [(below, "below".to_owned())], "each had its own time");
    assert_eq!(restore(&c, dir, file, "f").await, Err(MetaError::NotFound));
    // From here on it is as without a trash: a session may have it open.
    assert_eq!(c.renew(&[], &[]).await.unwrap(), [file]);
    c.renew(&[file], &[]).await.unwrap();
    f.volume.collect().await.unwrap();
    assert_eq!(c.getattr(file).await.unwrap().size, 60);
    c.renew(&[], &[file]).await.unwrap();
    f.volume.collect().await.unwrap();
    assert_eq!(c.getattr(file).await, Err(MetaError::Stale));
    assert_eq!(used().await, (0, 2));
    let garbage = f.volume.garbage(0, 9).await.unwrap();
    // Garbage of its chunks, and of those that it might have had before.
    assert_eq!(garbage.len(), 2);
    // From now on nothing is kept; kept entries stay.
    keep(&c, dir, 0).await.unwrap();
    c.file(dir, "g").await;
    c.unlink(dir, "g").await.unwrap();
    assert_eq!(trash(&c, dir).await.len(), 1);
    change(&c, TrashChange::Drop { dir, ino: below }).await.unwrap();
    assert!(trash(&c, dir).await.is_empty());
    assert_eq!(change(&c, TrashChange::Drop { dir, ino: below }).await, Err(MetaError::NotFound));
}

pub(crate) async fn rights_are_those_of_the_directory(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let set = SetAttr { mode: Some(0o1755), uid: Some(7), gid: Some(7), ..SetAttr::default() };
    c.setattr(dir, set).await.unwrap();
    let (owner, other) = (c.as_user(7, 7, &[]), c.as_user(8, 8, &[]));
    assert_eq!(keep(&other, dir, 5).await, Err(MetaError::NotPermitted));
    keep(&owner, dir, DAY_S).await.unwrap();
    let below = c.make(dir, "below", FileKind::Directory).await.ino;
    assert_eq!(page(&c, below, Ino(0), 1).await.unwrap().keep_s, DAY_S, "as it was made");
    let file = c.file(dir, "f").await;
    c.unlink(dir, "f").await.unwrap();
    assert_eq!(page(&other, dir, Ino(0), 9).await.unwrap().entries.len(), 1);
    assert_eq!(restore(&other, dir, file, "f").await, Err(MetaError::Access));
    let dropped = change(&other, TrashChange::Drop { dir, ino: file }).await;
    assert_eq!(dropped, Err(MetaError::Access));
    c.setattr(dir, SetAttr { mode: Some(0o700), ..SetAttr::default() }).await.unwrap();
    assert_eq!(page(&other, dir, Ino(0), 9).await, Err(MetaError::Access));
    restore(&owner, dir, file, "f").await.unwrap();
    assert_eq!(page(&c, file, Ino(0), 9).await, Err(MetaError::NotDirectory));
    assert_eq!(keep(&c, file, 9).await, Err(MetaError::NotDirectory));
}
