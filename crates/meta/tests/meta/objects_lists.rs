//! Lists of objects, page by page, and findings of a check in their records.

use std::collections::BTreeMap;

use millpond_meta::Finding;
use millpond_types::meta::object::{AttachmentRecord, ListObjects};
use millpond_types::meta::{EntryRecord, FileKind, Ino, MetaOp, MetaReply, Timestamp, keys};
use millpond_types::wire::Record;

use crate::objects::{BUCKET, all_keys};
use crate::support::{Fixture, name};

const ROOT: Ino = Ino::ROOT;

pub(crate) async fn pages_end_where_keys_do(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let mut model = BTreeMap::new();
    for key in ["a", "a-b", "a/b", "a/c/d", "b//c", "b/c", "c", "dd/x", "dd/y", "e/"] {
        c.put(key, b"").await;
        model.insert(key.as_bytes().to_vec(), key);
    }
    let empty = c.dir(bucket, "empty").await;
    c.dir(empty, "below").await;
    let list = |prefix: &str, delimiter: &str, after: &str, limit| ListObjects {
        bucket: name(BUCKET),
        prefix: prefix.as_bytes().to_vec(),
        delimiter: delimiter.as_bytes().to_vec(),
        after: after.as_bytes().to_vec(),
        limit,
    };
    for prefix in ["", "a", "a/", "b/", "d", "empty/", "e", "zz"] {
        for delimiter in ["", "/", "-", "d/", "c"] {
            for after in ["", "a", "a/", "a/b", "a/zz", "b/", "dd/", "dd/x", "z"] {
                for limit in [1, 2, 1000] {
                    let list = list(prefix, delimiter, after, limit);
                    let wanted = expected(&model, &list);
                    assert_eq!(c.listed(&list).await, wanted, "{list:?}");
                    let page = c.list_page(list.clone()).await;
                    assert_eq!(page.items.len(), wanted.len().min(limit as usize));
                    assert_eq!(page.next.is_some(), wanted.len() > limit as usize, "{list:?}");
                }
            }
        }
    }
}

/// Returns the expected list over all pages.
pub(crate) fn expected<T>(
    model: &BTreeMap<Vec<u8>, T>,
    list: &ListObjects,
) -> Vec<(Vec<u8>, bool)> {
    let mut all: Vec<(Vec<u8>, bool)> = Vec::new();
    for key in model.keys().filter(|key| key.starts_with(&list.prefix)) {
        let rest = &key[list.prefix.len()..];
        let width = list.delimiter.len();
        let at = (width > 0)
            .then(|| rest.windows(width).position(|window| window == list.delimiter))
            .flatten();
        let item = match at {
            Some(at) => (key[..list.prefix.len() + at + width].to_vec(), true),
            None => (key.clone(), false),
        };
        if item.0 > list.after && all.last() != Some(&item) {
            all.push(item);
        }
    }
    all
}

/// Lists over empty directories make progress, and end.
pub(crate) async fn much_that_is_no_object_ends_a_page(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let top = c.dir(bucket, "top").await;
    for n in 0..600 {
        c.dir(top, &format!("d{n:04}")).await;
    }
    let delimited = ListObjects { delimiter: b"/".to_vec(), ..all_keys(10) };
    assert_eq!(c.listed(&delimited).await, []);
    let page = c.list_page(delimited.clone()).await;
    assert!(page.items.is_empty());
    let next = page.next.expect("it is too much for one page");
    assert_eq!(next.last(), Some(&0));
    c.put("top/d0599/x", b"").await;
    assert_eq!(c.listed(&delimited).await, [(b"top/".to_vec(), true)]);
    assert_eq!(c.keys().await, ["top/d0599/x"]);
}

/// Damage to records of objects is found and repaired.
pub(crate) async fn damage_is_found_and_put_right(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    c.put("a/b", b"x").await;
    c.put("c", b"y").await;
    let dir = c.lookup(bucket, "a").await.unwrap().ino;
    let file = c.lookup(bucket, "c").await.unwrap().ino;
    let plain = c.dir(ROOT, "plain").await;
    let entry = EntryRecord { ino: file, kind: FileKind::Regular }.seal();
    let damage: [(Vec<u8>, Option<Vec<u8>>); 6] = [
        (keys::place(bucket, b"a/"), None),
        (keys::place(bucket, b"ghost"), Some(entry.clone())),
        (keys::place(dir, b"b"), Some(entry.clone())),
        (keys::place(plain, b"x"), Some(entry.clone())),
        (keys::place(Ino(999_999), b"x"), Some(entry)),
        (keys::attachment(Ino(999_999)), None),
    ];
    for (key, value) in damage {
        let (key, is_attachment) = (&key, key.starts_with(keys::ATTACHMENTS));
        let record = AttachmentRecord { size: 1, mtime: Timestamp::default(), bytes: Vec::new() };
        let value = &if is_attachment { Some(record.seal()) } else { value };
        f.store
            .transact(|txn| async move {
                match value {
                    Some(value) => txn.put(key, value.as_slice())?,
                    None => txn.delete(key)?,
                }
                Ok::<_, millpond_store::StoreError>(())
            })
            .await
            .unwrap();
        let report = f.volume.check().await.unwrap();
        assert_eq!(report.findings.len(), 1, "{} {report:#?}", key.escape_ascii());
        let is_stray = matches!(report.findings[0], Finding::Stray { .. });
        let is_place = matches!(report.findings[0], Finding::Places { .. });
        assert!(is_stray || is_place, "{report:?}");
        for repair in report.repairs {
            let done = c.run(MetaOp::Repair(repair)).await;
            assert_eq!(done, Ok(MetaReply::Repaired(true)));
        }
        f.assert_sound().await;
    }
    assert_eq!(c.keys().await, ["a/b", "c"]);
    // A directory with an entry is removed: the places go with the name.
    let key = &keys::inode(file);
    f.store.transact(|txn| async move { txn.delete(key) }).await.unwrap();
    for _ in 0..3 {
        for repair in f.volume.check().await.unwrap().repairs {
            c.run(MetaOp::Repair(repair)).await.unwrap();
        }
    }
    f.assert_sound().await;
    assert_eq!(c.keys().await, ["a/b"]);
}
