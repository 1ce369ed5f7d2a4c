//! Findings of `check` after writes into the store past all operations, and the effect of the
//! repairs.

use millpond_meta::Finding;
use millpond_types::meta::{
    ContentRecord, DirTimes, EntryRecord, FileKind, Ino, InodeRecord, MetaError, MetaOp, MetaReply,
    OrphanRecord, Repair, Timestamp, TrashRecord, UsageRecord, XattrMode, keys,
};
use millpond_types::wire::Record;

use crate::support::{Client, Fixture, name, rename};

const ROOT: Ino = Ino::ROOT;

struct Tree {
    f: Fixture,
    c: Client,
    file: Ino,
    dir: Ino,
    below: Ino,
}

/// `/file`, `/dir/below` (a directory), and one attribute on the file.
async fn tree() -> Tree {
    let f = Fixture::in_memory().await;
    let c: Client = f.client().await;
    let (file, dir) = (c.file(ROOT, "file").await, c.dir(ROOT, "dir").await);
    let below = c.dir(dir, "below").await;
    c.setxattr(file, "user.a", b"v", XattrMode::Any).await.unwrap();
    f.assert_sound().await;
    Tree { f, c, file, dir, below }
}

impl Tree {
    async fn put(&self, key: &[u8], value: Option<Vec<u8>>) {
        let txn = self.f.store.begin();
        match value {
            Some(value) => txn.put(key, value).unwrap(),
            None => txn.delete(key).unwrap(),
        }
        txn.commit().await.unwrap();
    }

    async fn change(&self, ino: Ino, change: impl FnOnce(&mut InodeRecord)) {
        let key = keys::inode(ino);
        let bytes = self.f.store.begin().get(&key).await.unwrap().unwrap();
        let mut record = InodeRecord::open(&bytes).unwrap();
        change(&mut record);
        self.put(&key, Some(record.seal())).await;
    }

    /// Repairs and checks until nothing is left to do; returns how many checks found something.
    async fn heal(&self) -> usize {
        for pass in 0..10 {
            let report = self.f.volume.check_in_batches(2).await.unwrap();
            if report.findings.is_empty() {
                assert_eq!((report.more, report.unjudged), (0, 0));
                return pass;
            }
            let mut done = 0;
            for repair in report.repairs {
                let request = self.c.request(MetaOp::Repair(repair.clone()));
                let answer = self.c.send(&request).await;
                assert_eq!(answer, self.c.at(&self.f.other).send(&request).await, "once");
                match answer {
                    Ok(MetaReply::Repaired(repaired)) => done += usize::from(repaired),
                    other => panic!("{repair:?}: {other:?}"),
                }
            }
            assert!(done > 0, "nothing helps: {:#?}", report.findings);
        }
        panic!("it does not end");
    }

    /// Lists `/lost+found`.
    async fn found(&self) -> Vec<String> {
        let dir = self.c.lookup(ROOT, "lost+found").await.unwrap();
        assert_eq!((dir.mode, dir.uid), (0o700, 0), "for root only");
        self.c.names(dir.ino).await
    }

    /// Returns the findings, which do not depend on the batch size.
    async fn findings(&self) -> Vec<Finding> {
        let one = self.f.volume.check_in_batches(1).await.unwrap();
        let all = self.f.volume.check().await.unwrap();
        assert_eq!(one.findings.len(), all.findings.len(), "{one:#?} {all:#?}");
        assert!(one.findings.iter().all(|finding| all.findings.contains(finding)));
        assert!(all.findings.iter().all(|finding| !finding.to_string().is_empty()));
        all.findings
    }
}

#[tokio::test]
async fn an_inode_that_is_away() {
    let t = tree().await;
    t.put(&keys::inode(t.file), None).await;
    let bad = Finding::BadEntry { dir: ROOT, name: name("file"), ino: t.file };
    let findings = t.findings().await;
    assert!(findings.contains(&bad), "{findings:?}");
    assert!(matches!(findings[..], [_, Finding::Stray { .. }]), "its attribute: {findings:?}");
    assert_eq!(t.heal().await, 1);
    assert_eq!(t.c.names(ROOT).await, ["dir"]);
}

#[tokio::test]
async fn an_entry_that_is_away_or_wrong() {
    let t = tree().await;
    let key = keys::entry(ROOT, &name("file"));
    t.put(&key, None).await;
    assert_eq!(t.findings().await, [Finding::Orphan { ino: t.file }]);
    assert_eq!(t.heal().await, 1);
    assert_eq!(t.found().await, [format!("#{}", t.file)]);
    let found = t.c.lookup(ROOT, "lost+found").await.unwrap().ino;
    t.c.rename(rename((found, &format!("#{}", t.file)), (ROOT, "file"))).await.unwrap();
    t.c.rmdir(ROOT, "lost+found").await.unwrap();
    t.put(&key, Some(EntryRecord { ino: t.file, kind: FileKind::Fifo }.seal())).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::BadEntry { dir: ROOT, name: name("file"), ino: t.file }));
    t.put(&key, Some(b"rubbish".to_vec())).await;
    let findings = t.findings().await;
    assert!(matches!(findings[..], [Finding::Unreadable { .. }, Finding::Orphan { .. }]));
    t.heal().await;
    assert_eq!(t.f.store.begin().get(&keys::aside(&key)).await.unwrap().unwrap(), b"rubbish");
    assert_eq!(t.found().await.len(), 1);
    let twice = EntryRecord { ino: t.below, kind: FileKind::Directory }.seal();
    t.put(&key, Some(twice)).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::Parent { ino: t.below, parent: t.dir }), "{findings:?}");
    assert!(findings.contains(&Finding::Links { ino: ROOT, nlink: 4, found: 5 }));
    t.heal().await;
    assert_eq!(t.c.names(ROOT).await, ["dir", "lost+found"]);
    assert_eq!(t.c.names(t.dir).await, ["below"], "it stays where it says");
}

#[tokio::test]
async fn an_entry_below_a_file() {
    let t = tree().await;
    let entry = EntryRecord { ino: t.file, kind: FileKind::Regular }.seal();
    t.put(&keys::entry(t.file, &name("x")), Some(entry)).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::NoDirectory { dir: t.file, name: name("x") }));
    assert!(findings.contains(&Finding::Links { ino: t.file, nlink: 1, found: 2 }));
    t.heal().await;
    assert_eq!(t.c.lookup(ROOT, "file").await.unwrap().nlink, 1);
}

#[tokio::test]
async fn directories_in_a_ring() {
    let t = tree().await;
    t.put(&keys::entry(ROOT, &name("dir")), None).await;
    let entry = EntryRecord { ino: t.dir, kind: FileKind::Directory }.seal();
    t.put(&keys::entry(t.below, &name("up")), Some(entry)).await;
    let (dir, below) = (t.dir, t.below);
    t.change(dir, |record| record.attr.parent = below).await;
    t.change(below, |record| record.attr.nlink = 3).await;
    t.change(ROOT, |record| record.attr.nlink = 2).await;
    let ring = [Finding::Detached { ino: dir }, Finding::Detached { ino: below }];
    assert_eq!(t.findings().await, ring, "every count is right, and nobody gets there");
    assert_eq!(t.heal().await, 1, "one way out is enough");
    assert_eq!(t.found().await, [format!("#{dir}")]);
    assert_eq!(t.c.names(dir).await, ["below"]);
}

#[tokio::test]
async fn counts_and_records_that_are_wrong() {
    let t = tree().await;
    let times = DirTimes { mtime: Timestamp::default(), ctime: Timestamp::default() };
    t.change(t.file, |record| record.xattrs = 2).await;
    assert_eq!(t.findings().await, [Finding::Xattrs { ino: t.file }]);
    t.change(t.file, |record| record.xattrs = 1).await;
    t.change(t.dir, |record| record.attr.nlink = 2).await;
    assert_eq!(t.findings().await, [Finding::Links { ino: t.dir, nlink: 2, found: 3 }]);
    t.change(t.dir, |record| record.attr.nlink = 3).await;
    t.put(&keys::times(Ino(77)), Some(times.seal())).await;
    assert!(matches!(t.findings().await[..], [Finding::Stray { .. }]));
    t.put(&keys::times(Ino(77)), None).await;
    t.f.assert_sound().await;
    t.put(&keys::inode(ROOT), Some(b"rubbish".to_vec())).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::NoRoot), "{findings:?}");
    t.heal().await;
    assert_eq!(t.c.names(ROOT).await, ["dir", "file"], "names are not in its record");
}

#[tokio::test]
async fn counts_are_set_right() {
    let t = tree().await;
    t.change(t.file, |record| {
        record.xattrs = 2;
        record.attr.nlink = 7;
    })
    .await;
    t.change(t.dir, |record| record.attr.nlink = 9).await;
    t.put(&keys::times(Ino(77)), Some(Vec::new())).await;
    t.put(&keys::quota(Ino(77)), Some(b"rubbish".to_vec())).await;
    t.put(&keys::garbage(5), Some(b"rubbish".to_vec())).await;
    t.put(b"f/s", Some(b"no session".to_vec())).await;
    assert_eq!(t.heal().await, 2, "a link count first, then the attributes of the same inode");
    assert_eq!(t.c.getattr(t.dir).await.unwrap().nlink, 3);
    assert!(t.c.names(ROOT).await.len() == 2, "nothing was lost");
}

#[tokio::test]
async fn a_directory_that_says_another_place() {
    let t = tree().await;
    let (below, dir) = (t.below, t.dir);
    t.change(below, |record| record.attr.parent = ROOT).await;
    assert_eq!(t.findings().await, [Finding::Parent { ino: below, parent: ROOT }]);
    assert_eq!(t.heal().await, 1);
    assert_eq!(t.c.getattr(below).await.unwrap().parent, dir);
    // A wrong kind in a name is corrected.
    let key = keys::entry(ROOT, &name("file"));
    t.put(&key, Some(EntryRecord { ino: t.file, kind: FileKind::Fifo }.seal())).await;
    t.heal().await;
    assert_eq!(t.c.lookup(ROOT, "file").await.unwrap().ino, t.file);
    assert_eq!(t.c.names(ROOT).await, ["dir", "file"]);
}

#[tokio::test]
async fn what_has_names_is_no_orphan_and_not_in_the_trash() {
    let t = tree().await;
    let (since, waits_for) = (Timestamp::default(), None);
    t.put(&keys::orphan(t.file), Some(OrphanRecord { since, waits_for }.seal())).await;
    assert_eq!(t.findings().await, [Finding::Orphan { ino: t.file }]);
    t.heal().await;
    let record = TrashRecord { name: name("x"), since, until: since };
    t.put(&keys::trash(ROOT, t.below), Some(record.seal())).await;
    t.put(&keys::trash(ROOT, Ino(77)), Some(record.seal())).await;
    let findings = t.findings().await;
    assert!(
        matches!(findings[..], [Finding::Stray { .. }, Finding::Orphan { .. }]),
        "{findings:?}"
    );
    t.heal().await;
    assert_eq!(t.c.names(t.dir).await, ["below"]);
}

#[tokio::test]
async fn a_whole_branch_without_its_root() {
    let t = tree().await;
    t.put(&keys::inode(t.dir), Some(b"rubbish".to_vec())).await;
    t.heal().await;
    assert_eq!(t.found().await, [format!("#{}", t.below)], "what was in it is found");
    assert_eq!(t.c.names(ROOT).await, ["file", "lost+found"]);
}

#[tokio::test]
async fn bytes_that_are_nobodys_go() {
    let t = tree().await;
    let bytes = |data| ContentRecord { data, bytes: b"abc".to_vec() }.seal();
    let file = t.c.getattr(t.file).await.unwrap();
    t.c.write(file, 0, b"right").await.unwrap();
    t.put(&keys::content(Ino(99)), Some(bytes(99))).await;
    t.put(&keys::content(t.dir), Some(bytes(t.dir.0))).await;
    assert_eq!(t.findings().await.len(), 2);
    t.heal().await;
    assert_eq!(t.c.content(t.file).await.unwrap().bytes, b"right");
    t.change(t.file, |record| record.attr.chunks = Some(77)).await;
    assert_eq!(t.findings().await, [Finding::Content { ino: t.file }]);
    t.heal().await;
    t.change(t.file, |record| record.attr.chunks = None).await;
    // Unreadable bytes are put aside, and read as zeros.
    t.put(&keys::content(t.file), Some(b"rubbish".to_vec())).await;
    t.heal().await;
    let read = t.c.content(t.file).await.unwrap();
    assert_eq!((read.attr.size, read.bytes), (5, Vec::new()));
}

#[tokio::test]
async fn usage_is_counted_again() {
    let t = tree().await;
    let limits = millpond_types::meta::QuotaLimits { bytes: 0, inodes: 5 };
    t.c.run(MetaOp::SetQuota { dir: t.below, limits }).await.unwrap();
    let file = t.c.file(t.below, "f").await;
    let key = keys::usage(t.below, file);
    let wrong = UsageRecord { bytes: 5, inodes: 4, version: 9 };
    t.put(&key, Some(wrong.seal())).await;
    t.put(&keys::usage(Ino(55), file), Some(wrong.seal())).await;
    assert_eq!(t.findings().await.len(), 2);
    t.heal().await;
    t.put(&key, Some(b"rubbish".to_vec())).await;
    t.heal().await;
    match t.c.run(MetaOp::GetQuota { ino: t.below }).await.unwrap() {
        MetaReply::Quota(quota) => assert_eq!((quota.bytes, quota.inodes), (0, 2)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn repairs_change_nothing_that_is_right() {
    let t = tree().await;
    let (file, dir, below) = (t.file, t.dir, t.below);
    let version = t.c.getattr(file).await.unwrap().version;
    let nothing = [
        Repair::Root,
        Repair::Aside { key: keys::inode(file) },
        Repair::Name { dir: ROOT, name: name("file") },
        Repair::ExtraName { dir, name: name("below"), ino: below, version: 77 },
        Repair::ExtraName { dir: ROOT, name: name("file"), ino: file, version },
        Repair::Place { ino: below, version: 77, parent: ROOT },
        Repair::Links { ino: file, version: version + 1, nlink: 3 },
        Repair::Nameless { ino: file, version: version - 1, nlink: 1 },
        Repair::Named { ino: file, version: version + 1, nlink: 1, trash: ROOT },
        Repair::Ring { ino: below },
        Repair::Xattrs { ino: file },
        Repair::Stray { key: keys::times(dir) },
        Repair::Stray { key: keys::content(file) },
        Repair::Usage { key: keys::usage(dir, file), version: 1, bytes: 5, inodes: 5 },
    ];
    for repair in nothing {
        let answer = t.c.run(MetaOp::Repair(repair.clone())).await;
        assert_eq!(answer, Ok(MetaReply::Repaired(false)), "{repair:?}");
        let answer = t.c.as_user(7, 7, &[]).run(MetaOp::Repair(repair)).await;
        assert_eq!(answer, Err(MetaError::NotPermitted));
    }
    for key in [b"c/x".to_vec(), keys::aside(b"x")] {
        let answer = t.c.run(MetaOp::Repair(Repair::Aside { key })).await;
        assert_eq!(answer, Err(MetaError::Invalid), "not of the namespace");
    }
    t.f.assert_sound().await;
}
