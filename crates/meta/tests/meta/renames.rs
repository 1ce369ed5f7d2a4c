//! Renaming: which inode may replace which.

use millpond_types::meta::{FileKind, Ino, MetaError, Rename, SetAttr};

use crate::support::{Client, Fixture, rename};

const ROOT: Ino = Ino::ROOT;

async fn nlink(c: &Client, ino: Ino) -> u32 {
    c.getattr(ino).await.unwrap().nlink
}

pub(crate) async fn within_and_across_directories(f: Fixture) {
    let c = f.client().await;
    let (a, b) = (c.dir(ROOT, "a").await, c.dir(ROOT, "b").await);
    let (file, dir) = (c.file(a, "f").await, c.dir(a, "d").await);
    c.file(dir, "inside").await;
    assert_eq!(c.rename(rename((a, "f"), (a, "g"))).await, Ok(None));
    assert_eq!(c.names(a).await, ["d", "g"]);
    assert_eq!(c.rename(rename((a, "g"), (b, "f"))).await, Ok(None));
    assert_eq!(c.lookup(b, "f").await.unwrap().ino, file);
    assert_eq!(c.rename(rename((a, "d"), (b, "e"))).await, Ok(None));
    let moved = c.lookup(b, "e").await.unwrap();
    assert_eq!((moved.ino, moved.parent, moved.nlink), (dir, b, 2));
    assert_eq!((nlink(&c, a).await, nlink(&c, b).await, nlink(&c, ROOT).await), (2, 3, 4));
    assert_eq!(c.names(dir).await, ["inside"]);
    assert_eq!(c.rename(rename((a, "g"), (b, "x"))).await, Err(MetaError::NotFound));
    assert_eq!(c.rename(rename((file, "g"), (b, "x"))).await, Err(MetaError::NotDirectory));
    assert_eq!(c.rename(rename((b, "f"), (file, "x"))).await, Err(MetaError::NotDirectory));
    assert_eq!(c.rename(rename((b, "f"), (Ino(99), "x"))).await, Err(MetaError::NotFound));
}

pub(crate) async fn what_may_replace_what(f: Fixture) {
    let c = f.client().await;
    let (a, b) = (c.dir(ROOT, "a").await, c.dir(ROOT, "b").await);
    let (one, two) = (c.file(a, "one").await, c.file(b, "two").await);
    c.link(two, ROOT, "also two").await.unwrap();
    let replaced = c.rename(rename((a, "one"), (b, "two"))).await.unwrap().unwrap();
    assert_eq!((replaced.ino, replaced.nlink), (two, 1), "its other name is left");
    assert_eq!((nlink(&c, two).await, c.lookup(b, "two").await.unwrap().ino), (1, one));
    let replaced = c.rename(rename((b, "two"), (ROOT, "also two"))).await.unwrap().unwrap();
    assert_eq!((replaced.ino, replaced.nlink), (two, 0));

    c.dir(a, "full").await;
    let full = c.lookup(a, "full").await.unwrap().ino;
    c.file(full, "x").await;
    let (empty, other) = (c.dir(b, "empty").await, c.dir(b, "other").await);
    let put = async |from: (Ino, &str), to: (Ino, &str)| c.rename(rename(from, to)).await;
    assert_eq!(put((b, "empty"), (a, "full")).await, Err(MetaError::NotEmpty));
    assert_eq!(put((b, "empty"), (ROOT, "also two")).await, Err(MetaError::NotDirectory));
    assert_eq!(put((ROOT, "also two"), (b, "empty")).await, Err(MetaError::IsDirectory));
    let replaced = put((a, "full"), (b, "empty")).await.unwrap().unwrap();
    assert_eq!((replaced.ino, replaced.nlink), (empty, 0));
    assert_eq!((nlink(&c, a).await, nlink(&c, b).await), (2, 4));
    let replaced = put((b, "empty"), (b, "other")).await.unwrap().unwrap();
    assert_eq!((replaced.ino, nlink(&c, b).await), (other, 3));
    assert_eq!(c.names(full).await, ["x"]);
    // The directory above has an entry that leads to this one: it is not empty.
    assert_eq!(put((b, "other"), (ROOT, "b")).await, Err(MetaError::NotEmpty));
}

pub(crate) async fn never_into_itself(f: Fixture) {
    let c = f.client().await;
    let top = c.dir(ROOT, "a").await;
    let below = c.dir(top, "b").await;
    let deep = c.dir(below, "d").await;
    for (into, text) in [(top, "x"), (below, "x"), (deep, "x"), (below, "d")] {
        let answer = c.rename(rename((ROOT, "a"), (into, text))).await;
        assert_eq!(answer, Err(MetaError::Invalid), "{into} {text}");
    }
    c.dir(ROOT, "other").await;
    let exchange = |from, to| Rename { exchange: true, ..rename(from, to) };
    // Either of the two may be the one that would be inside itself.
    let down = exchange((ROOT, "a"), (below, "d"));
    assert_eq!(c.rename(down).await, Err(MetaError::Invalid));
    let up = exchange((below, "d"), (ROOT, "a"));
    assert_eq!(c.rename(up).await, Err(MetaError::Invalid));
    c.file(deep, "f").await;
    let file = exchange((deep, "f"), (ROOT, "a"));
    assert_eq!(c.rename(file).await, Err(MetaError::Invalid));
    c.rename(exchange((below, "d"), (ROOT, "other"))).await.unwrap();
    assert_eq!(c.lookup(ROOT, "other").await.unwrap().ino, deep, "now it lies elsewhere");
    c.rename(rename((ROOT, "a"), (deep, "a"))).await.unwrap();
}

pub(crate) async fn no_replace_and_exchange(f: Fixture) {
    let c = f.client().await;
    let (a, b) = (c.dir(ROOT, "a").await, c.dir(ROOT, "b").await);
    let (file, dir) = (c.file(a, "f").await, c.dir(b, "d").await);
    let kept = |from, to| Rename { no_replace: true, ..rename(from, to) };
    assert_eq!(c.rename(kept((a, "f"), (b, "d"))).await, Err(MetaError::Exists));
    assert_eq!(c.rename(kept((a, "f"), (a, "f"))).await, Err(MetaError::Exists));
    assert_eq!(c.rename(kept((a, "f"), (a, "g"))).await, Ok(None));
    let exchange = |from, to| Rename { exchange: true, ..rename(from, to) };
    assert_eq!(c.rename(exchange((a, "g"), (b, "x"))).await, Err(MetaError::NotFound));
    assert_eq!(c.rename(exchange((a, "g"), (b, "d"))).await, Ok(None));
    let (came, went) = (c.lookup(a, "g").await.unwrap(), c.lookup(b, "d").await.unwrap());
    assert_eq!((came.ino, came.parent, went.ino), (dir, a, file));
    assert_eq!((nlink(&c, a).await, nlink(&c, b).await), (3, 2));
    c.dir(b, "e").await;
    c.rename(exchange((a, "g"), (b, "e"))).await.unwrap();
    assert_eq!((nlink(&c, a).await, nlink(&c, b).await), (3, 3), "directory for directory");
    c.rename(exchange((b, "d"), (b, "e"))).await.unwrap();
    assert_eq!(c.lookup(b, "d").await.unwrap().ino, dir);
    let both = Rename { exchange: true, ..kept((a, "g"), (b, "d")) };
    let request = c.request(millpond_types::meta::MetaOp::Rename(both));
    assert_eq!(f.volume.execute(&request).await.unwrap().answer, Err(MetaError::Invalid));
}

pub(crate) async fn a_whiteout_stays_under_the_old_name(f: Fixture) {
    let c = f.client().await;
    let (a, b) = (c.dir(ROOT, "a").await, c.dir(ROOT, "b").await);
    let (file, dir) = (c.file(a, "f").await, c.dir(a, "d").await);
    let over = c.file(b, "over").await;
    let leaves = |from, to| Rename { whiteout: true, ..rename(from, to) };
    assert_eq!(c.rename(leaves((a, "f"), (b, "over"))).await.unwrap().unwrap().ino, over);
    assert_eq!(c.rename(leaves((a, "d"), (b, "d"))).await, Ok(None));
    assert_eq!((c.lookup(b, "over").await.unwrap().ino, nlink(&c, a).await), (file, 2));
    assert_eq!(c.lookup(b, "d").await.unwrap().ino, dir);
    for name in ["f", "d"] {
        let left = c.lookup(a, name).await.unwrap();
        assert_eq!((left.kind, left.rdev, left.mode), (FileKind::CharDevice, 0, 0), "{name}");
        assert!(left.ino != file && left.ino != dir && left.nlink == 1);
    }
    assert_eq!(c.rename(leaves((a, "x"), (a, "y"))).await, Err(MetaError::NotFound));
    let kept = Rename { no_replace: true, ..leaves((b, "over"), (b, "d")) };
    assert_eq!(c.rename(kept).await, Err(MetaError::Exists));
    let kept = Rename { no_replace: true, ..leaves((b, "over"), (b, "new")) };
    assert_eq!(c.rename(kept).await, Ok(None));
    assert_eq!(c.names(b).await, ["d", "new", "over"]);
    f.assert_sound().await;
}

pub(crate) async fn two_names_of_one_inode(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let file = c.file(ROOT, "f").await;
    c.link(file, dir, "g").await.unwrap();
    // rename(2): nothing is done, and both names stay.
    assert_eq!(c.rename(rename((ROOT, "f"), (dir, "g"))).await, Ok(None));
    assert_eq!(c.rename(rename((ROOT, "f"), (ROOT, "f"))).await, Ok(None));
    let exchange = Rename { exchange: true, ..rename((ROOT, "f"), (dir, "g")) };
    assert_eq!(c.rename(exchange).await, Ok(None));
    assert_eq!(c.rename(rename((ROOT, "d"), (ROOT, "d"))).await, Ok(None));
    assert_eq!(
        (c.names(ROOT).await, c.names(dir).await),
        (vec!["d".into(), "f".into()], vec!["g".into()])
    );
    assert_eq!(nlink(&c, file).await, 2);
}

pub(crate) async fn unchecked_callers_need_permission(f: Fixture) {
    let c = f.client().await;
    let (mine, theirs) = (c.dir(ROOT, "mine").await, c.dir(ROOT, "theirs").await);
    let own = SetAttr { uid: Some(7), ..SetAttr::default() };
    c.setattr(mine, own).await.unwrap();
    c.file(mine, "f").await;
    c.file(theirs, "g").await;
    c.dir(mine, "roots").await;
    let user = c.as_user(7, 7, &[]);
    let go = async |from, to| user.rename(rename(from, to)).await;
    assert_eq!(go((mine, "f"), (theirs, "f")).await, Err(MetaError::Access));
    assert_eq!(go((theirs, "g"), (mine, "g")).await, Err(MetaError::Access));
    assert_eq!(go((mine, "f"), (mine, "h")).await, Ok(None));
    // A directory that moves gets another `..`, so it must be writable itself.
    let also = c.dir(ROOT, "also mine").await;
    c.setattr(also, own).await.unwrap();
    assert_eq!(go((mine, "roots"), (mine, "still here")).await, Ok(None));
    assert_eq!(go((mine, "still here"), (also, "x")).await, Err(MetaError::Access));
    user.make(also, "own", FileKind::Directory).await;
    let exchange = Rename { exchange: true, ..rename((also, "own"), (mine, "still here")) };
    assert_eq!(user.rename(exchange).await, Err(MetaError::Access), "both of them move");
    // A caller without search permission for a directory does not learn its entries.
    c.setattr(theirs, SetAttr { mode: Some(0o700), ..SetAttr::default() }).await.unwrap();
    for text in ["g", "x"] {
        assert_eq!(go((theirs, text), (mine, "x")).await, Err(MetaError::Access));
        assert_eq!(go((mine, "h"), (theirs, text)).await, Err(MetaError::Access));
    }
}

/// A transaction reads all directories above the target directory, and is bounded.
pub(crate) async fn deep_trees(f: Fixture) {
    let c = f.client().await;
    let mut path = vec![ROOT];
    for _ in 0..105 {
        path.push(c.dir(*path.last().unwrap(), "d").await);
    }
    c.dir(ROOT, "moved").await;
    let deep = *path.last().unwrap();
    assert_eq!(c.rename(rename((ROOT, "moved"), (deep, "x"))).await, Err(MetaError::NotSupported));
    c.file(ROOT, "f").await;
    assert_eq!(c.rename(rename((ROOT, "f"), (deep, "f"))).await, Ok(None), "files go anywhere");
    assert_eq!(c.rename(rename((ROOT, "moved"), (path[99], "x"))).await, Ok(None));
    assert_eq!(c.rename(rename((ROOT, "d"), (path[50], "x"))).await, Err(MetaError::Invalid));
    let exchange = Rename { exchange: true, ..rename((path[99], "x"), (path[40], "d")) };
    assert_eq!(c.rename(exchange).await, Err(MetaError::Invalid));
    assert_eq!(c.rename(rename((path[99], "x"), (path[98], "y"))).await, Ok(None));
}
