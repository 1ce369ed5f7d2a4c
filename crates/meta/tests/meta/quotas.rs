//! Quotas of directories.

use millpond_meta::Finding;
use millpond_types::meta::{
    Extend, FileKind, Filled, Ino, MetaError, MetaOp, MetaReply, Quota, QuotaLimits, Rename,
    SetAttr, Timestamp, Usage, UsageRecord, keys,
};
use millpond_types::wire::Record;

use crate::support::{Client, Fixture, create, rename};

const ROOT: Ino = Ino::ROOT;
const NO_LIMIT: QuotaLimits = QuotaLimits { bytes: 0, inodes: 0 };

async fn limit(c: &Client, dir: Ino, limits: QuotaLimits) -> Result<(), MetaError> {
    assert_eq!(c.run(MetaOp::SetQuota { dir, limits }).await?, MetaReply::Done);
    Ok(())
}

async fn quota(c: &Client, ino: Ino) -> Result<Quota, MetaError> {
    match c.run(MetaOp::GetQuota { ino }).await? {
        MetaReply::Quota(quota) => Ok(quota),
        other => panic!("{other:?}"),
    }
}

/// Returns the bytes and inodes that count.
async fn used(c: &Client, ino: Ino) -> (u64, u64) {
    let quota = quota(c, ino).await.unwrap();
    (quota.bytes, quota.inodes)
}

async fn resize(c: &Client, ino: Ino, size: u64) -> Result<(), MetaError> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    c.setattr(ino, set).await.map(drop)
}

/// A directory with a quota.
async fn with_quota(c: &Client, text: &str, limits: QuotaLimits) -> Ino {
    let dir = c.dir(ROOT, text).await;
    limit(c, dir, limits).await.unwrap();
    dir
}

pub(crate) async fn limits_hold(f: Fixture) {
    let c = f.client().await;
    let dir = with_quota(&c, "q", QuotaLimits { bytes: 1000, inodes: 4 }).await;
    let sub = c.dir(dir, "sub").await;
    let file = c.make(sub, "f", FileKind::Regular).await;
    c.file(sub, "g").await;
    let full = c.create(create(sub, "h", FileKind::Regular)).await;
    assert_eq!(full, Err(MetaError::Quota));
    assert_eq!(c.create(create(sub, "d", FileKind::Directory)).await, Err(MetaError::Quota));
    assert_eq!(c.lookup(sub, "h").await, Err(MetaError::NotFound));
    let mtime = Timestamp::default();
    let some = Extend { ino: file.ino, data: file.data, size: 9, mtime, filled: Filled::default() };
    c.run(MetaOp::Extend(some)).await.expect("it lies in chunks from now on");
    assert_eq!(resize(&c, file.ino, 1000).await, Ok(()));
    assert_eq!(resize(&c, file.ino, 1001).await, Err(MetaError::Quota));
    let more =
        Extend { ino: file.ino, data: file.data, size: 1001, mtime, filled: Filled::default() };
    assert_eq!(c.run(MetaOp::Extend(more)).await, Err(MetaError::Quota));
    assert_eq!(
        (used(&c, file.ino).await, c.getattr(file.ino).await.unwrap().size),
        ((1000, 4), 1000)
    );
    // A lower limit refuses additions, and nothing else.
    limit(&c, dir, QuotaLimits { bytes: 500, inodes: 2 }).await.unwrap();
    assert_eq!(resize(&c, file.ino, 900).await, Ok(()));
    assert_eq!(resize(&c, file.ino, 901).await, Err(MetaError::Quota));
    c.rename(rename((sub, "g"), (dir, "g"))).await.unwrap();
    c.link(file.ino, dir, "one more name").await.expect("a name is no inode");
    limit(&c, dir, NO_LIMIT).await.unwrap();
    assert_eq!(resize(&c, file.ino, 1 << 40).await, Ok(()));

    let usage = async |dir| match c.run(MetaOp::UsageAt { dir }).await.unwrap() {
        MetaReply::Usage(usage) => usage,
        other => panic!("{other:?}"),
    };
    let volume = usage(ROOT).await;
    assert_eq!(c.run(MetaOp::Usage).await, Ok(MetaReply::Usage(volume)));
    assert_eq!(usage(dir).await, Usage { inodes: 4, ..volume });
    resize(&c, file.ino, 100).await.unwrap();
    limit(&c, dir, QuotaLimits { bytes: 500, inodes: 2 }).await.unwrap();
    assert_eq!(usage(sub).await, Usage { bytes: 500, bytes_free: 400, inodes: 4 });
    // Only root sets quotas.
    let user = c.as_user(7, 7, &[]);
    assert_eq!(limit(&user, dir, NO_LIMIT).await, Err(MetaError::NotPermitted));
    assert_eq!(quota(&c, ROOT).await, Err(MetaError::NoData));
}

pub(crate) async fn only_empty_directories_get_one(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let file = c.file(dir, "f").await;
    assert_eq!(limit(&c, dir, NO_LIMIT).await, Err(MetaError::NotEmpty));
    assert_eq!(quota(&c, dir).await, Err(MetaError::NoData));
    assert_eq!(limit(&c, file, NO_LIMIT).await, Err(MetaError::NotDirectory));
    c.unlink(dir, "f").await.unwrap();
    limit(&c, dir, NO_LIMIT).await.unwrap();
    assert_eq!(used(&c, dir).await, (0, 1), "the directory itself");
    // With nested quotas, entries count for the nearer one only.
    let below = c.dir(dir, "below").await;
    assert_eq!(used(&c, dir).await, (0, 2));
    limit(&c, below, QuotaLimits { bytes: 5, inodes: 0 }).await.unwrap();
    let inner = c.file(below, "f").await;
    resize(&c, inner, 5).await.unwrap();
    assert_eq!((used(&c, dir).await, used(&c, below).await), ((0, 1), (5, 2)));
    assert_eq!(quota(&c, inner).await.unwrap().root, below);
}

pub(crate) async fn names_stay_in_their_quota(f: Fixture) {
    let c = f.client().await;
    let a = with_quota(&c, "a", NO_LIMIT).await;
    let b = with_quota(&c, "b", QuotaLimits { bytes: 10, inodes: 0 }).await;
    let file = c.file(a, "f").await;
    resize(&c, file, 7).await.unwrap();
    let sub = c.dir(a, "sub").await;
    assert_eq!(c.link(file, b, "f").await, Err(MetaError::CrossDevice));
    assert_eq!(c.link(file, ROOT, "f").await, Err(MetaError::CrossDevice));
    assert_eq!(c.rename(rename((a, "sub"), (b, "sub"))).await, Err(MetaError::CrossDevice));
    // A file takes its usage along, to another quota or to none.
    c.rename(rename((a, "f"), (b, "f"))).await.unwrap();
    assert_eq!((used(&c, a).await, used(&c, b).await), ((0, 2), (7, 2)));
    let large = c.file(a, "large").await;
    resize(&c, large, 4).await.unwrap();
    let full = c.rename(rename((a, "large"), (b, "large"))).await;
    assert_eq!(full, Err(MetaError::Quota));
    c.rename(rename((b, "f"), (ROOT, "f"))).await.unwrap();
    assert_eq!((used(&c, b).await, quota(&c, file).await), ((0, 1), Err(MetaError::NoData)));
    c.rename(rename((ROOT, "f"), (sub, "f"))).await.unwrap();
    assert_eq!(used(&c, a).await, (11, 4));
    let small = c.file(b, "small").await;
    let exchange = Rename { exchange: true, ..rename((a, "large"), (b, "small")) };
    c.rename(exchange).await.unwrap();
    assert_eq!((used(&c, a).await, used(&c, b).await), ((7, 4), (4, 2)));
    assert_eq!(quota(&c, small).await.unwrap().root, a);
    let exchange = Rename { exchange: true, ..rename((a, "sub"), (b, "small")) };
    assert_eq!(c.rename(exchange).await, Err(MetaError::CrossDevice));
    let exchange = Rename { exchange: true, ..rename((b, "small"), (a, "sub")) };
    assert_eq!(c.rename(exchange).await, Err(MetaError::CrossDevice));
    // One of its two names would be under another quota.
    c.link(file, a, "other name").await.unwrap();
    let one = c.rename(rename((a, "other name"), (b, "x"))).await;
    assert_eq!(one, Err(MetaError::CrossDevice));
    // A directory with a quota moves with all its entries.
    c.rename(rename((ROOT, "b"), (sub, "b"))).await.unwrap();
    assert_eq!((used(&c, a).await, used(&c, b).await), ((7, 4), (4, 2)));
}

pub(crate) async fn usage_follows_every_change(f: Fixture) {
    let c = f.client().await;
    let dir = with_quota(&c, "q", NO_LIMIT).await;
    let file = c.make(dir, "f", FileKind::Regular).await;
    let mtime = Timestamp::default();
    let extend = |size| {
        MetaOp::Extend(Extend {
            ino: file.ino,
            data: file.data,
            size,
            mtime,
            filled: Filled::default(),
        })
    };
    for (size, now) in [(100, 100), (50, 100), (300, 300)] {
        let request = c.request(extend(size));
        c.send(&request).await.unwrap();
        c.at(&f.other).send(&request).await.unwrap();
        assert_eq!(used(&c, dir).await, (now, 2), "twice is once");
    }
    c.link(file.ino, dir, "g").await.unwrap();
    c.unlink(dir, "f").await.unwrap();
    c.make(dir, "s", FileKind::Symlink).await;
    assert_eq!(used(&c, dir).await, (308, 3));
    resize(&c, file.ino, 0).await.unwrap();
    resize(&c, file.ino, 20).await.unwrap();
    c.unlink(dir, "g").await.unwrap();
    assert_eq!(used(&c, dir).await, (28, 3), "it may be open: its bytes are there");
    c.run(MetaOp::SessionClose).await.unwrap();
    while f.volume.collect().await.unwrap().waiting > 0 {}
    assert_eq!(used(&c, dir).await, (8, 2));

    let key = keys::usage(dir, file.ino);
    let bytes = f.store.begin().get(&key).await.unwrap().unwrap();
    let part = UsageRecord::open(&bytes).unwrap();
    let wrong = UsageRecord { bytes: part.bytes + 1, ..part }.seal();
    f.store.transact(|txn| std::future::ready(txn.put(&key, wrong.clone()))).await.unwrap();
    let findings = f.volume.check().await.unwrap().findings;
    assert_eq!(findings, [Finding::Usage { root: dir, bytes: 8, inodes: 2 }]);
    f.store.transact(|txn| std::future::ready(txn.put(&key, bytes.clone()))).await.unwrap();
}

pub(crate) async fn go_with_their_directory(f: Fixture) {
    let c = f.client().await;
    let dir = with_quota(&c, "q", QuotaLimits { bytes: 10, inodes: 0 }).await;
    let file = c.file(dir, "f").await;
    resize(&c, file, 9).await.unwrap();
    c.unlink(dir, "f").await.unwrap();
    c.rmdir(ROOT, "q").await.unwrap();
    f.volume.collect().await.unwrap();
    c.renew(&[file], &[dir]).await.unwrap();
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1, "the file is open");
    resize(&c, file, 5).await.unwrap();
    resize(&c, file, 50).await.expect("nobody's quota any more");
    assert_eq!(limit(&c, dir, NO_LIMIT).await, Err(MetaError::NotFound));
    f.assert_sound().await;
    c.renew(&[], &[file]).await.unwrap();
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1);
    for prefix in [keys::QUOTAS, keys::USAGE] {
        let left = f.store.begin();
        let range = millpond_store::KeyRange::prefix(prefix);
        let left = left.range_all(&range, millpond_store::RangeOptions::default()).await.unwrap();
        assert!(left.is_empty(), "{} records are left", left.len());
    }
}

/// Many clients at once in one quota: each gets an answer soon, and the usage is exact.
pub(crate) async fn many_at_once(f: Fixture) {
    let c = f.client().await;
    let dir = with_quota(&c, "q", QuotaLimits { bytes: 0, inodes: 1 + 16 * 8 }).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..16 {
        let c = Client::open(if n % 2 == 0 { &f.volume } else { &f.other }).await;
        tasks.spawn(async move {
            for m in 0..8 {
                let file = c.file(dir, &format!("{n} {m}")).await;
                resize(&c, file, 10).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(used(&c, dir).await, (16 * 8 * 10, 1 + 16 * 8));
    let more = c.create(create(dir, "more", FileKind::Regular)).await;
    assert_eq!(more, Err(MetaError::Quota), "none was lost");
}
