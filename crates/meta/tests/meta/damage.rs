//! What `check` finds when somebody has written into the store past all operations.

use millpond_meta::Finding;
use millpond_types::meta::{EntryRecord, FileKind, Ino, InodeRecord, XattrMode, keys};
use millpond_types::wire::Record;

use crate::support::{Client, Fixture, name};

const ROOT: Ino = Ino::ROOT;

struct Tree {
    f: Fixture,
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
    Tree { f, file, dir, below }
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

    /// The findings, whatever the size of the batches.
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
}

#[tokio::test]
async fn an_entry_that_is_away_or_wrong() {
    let t = tree().await;
    let key = keys::entry(ROOT, &name("file"));
    t.put(&key, None).await;
    assert_eq!(t.findings().await, [Finding::Orphan { ino: t.file }]);
    t.put(&key, Some(EntryRecord { ino: t.file, kind: FileKind::Fifo }.seal())).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::BadEntry { dir: ROOT, name: name("file"), ino: t.file }));
    t.put(&key, Some(b"rubbish".to_vec())).await;
    let findings = t.findings().await;
    assert!(matches!(findings[..], [Finding::Unreadable { .. }, Finding::Orphan { .. }]));
    let twice = EntryRecord { ino: t.below, kind: FileKind::Directory }.seal();
    t.put(&key, Some(twice)).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::Parent { ino: t.below, parent: t.dir }), "{findings:?}");
    assert!(findings.contains(&Finding::Links { ino: ROOT, nlink: 3, found: 4 }));
}

#[tokio::test]
async fn an_entry_below_a_file() {
    let t = tree().await;
    let entry = EntryRecord { ino: t.file, kind: FileKind::Regular }.seal();
    t.put(&keys::entry(t.file, &name("x")), Some(entry)).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::NoDirectory { dir: t.file, name: name("x") }));
    assert!(findings.contains(&Finding::Links { ino: t.file, nlink: 1, found: 2 }));
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
}

#[tokio::test]
async fn counts_and_records_that_are_wrong() {
    let t = tree().await;
    t.change(t.file, |record| record.xattrs = 2).await;
    assert_eq!(t.findings().await, [Finding::Xattrs { ino: t.file }]);
    t.change(t.file, |record| record.xattrs = 1).await;
    t.change(t.dir, |record| record.attr.nlink = 2).await;
    assert_eq!(t.findings().await, [Finding::Links { ino: t.dir, nlink: 2, found: 3 }]);
    t.change(t.dir, |record| record.attr.nlink = 3).await;
    t.put(&keys::times(Ino(77)), Some(Vec::new())).await;
    assert!(matches!(t.findings().await[..], [Finding::Stray { .. }]));
    t.put(&keys::times(Ino(77)), None).await;
    t.f.assert_sound().await;
    t.put(&keys::inode(ROOT), Some(b"rubbish".to_vec())).await;
    let findings = t.findings().await;
    assert!(findings.contains(&Finding::NoRoot), "{findings:?}");
}
