//! Random changes by keys and by names: lists agree with a plain map of keys, and that with the
//! tree.

use std::collections::BTreeMap;

use millpond_types::meta::object::{ListObjects, Meaning, SELF_NAME, meaning, names_of_key};
use millpond_types::meta::{Attr, Create, FileKind, Ino, MetaOp, Name, Rename};
use proptest::prelude::*;

use crate::flaky::Flaky;
use crate::objects_lists::expected;
use crate::support::{Client, Fixture, create, name};

const BUCKET: &str = "bucket";

#[derive(Clone, Debug)]
enum Op {
    Put(String),
    Remove(String),
    Make(Vec<String>, FileKind),
    Unlink(Vec<String>),
    RemoveDir(Vec<String>),
    Rename(Vec<String>, Vec<String>, bool),
}

/// A requested list: prefix, delimiter, start and limit.
type Wanted = (String, String, String, u32);

fn key() -> impl Strategy<Value = String> {
    let x = "x".repeat(247);
    let segments = [
        "a".to_owned(),
        "b".to_owned(),
        "a-".to_owned(),
        "a0".to_owned(),
        String::new(),
        ".".to_owned(),
        format!("{x}-"),
        format!("{x}m"),
        format!("{x}-------------"),
        format!("{x}mmmmmmmmmmmmm"),
        x,
    ];
    let segments: Vec<String> =
        (0..4).flat_map(|_| segments[..3].to_vec()).chain(segments.to_vec()).collect();
    prop::collection::vec(prop::sample::select(segments), 1..5)
        .prop_map(|segments| segments.join("/"))
        .prop_filter("a key", |key| !key.is_empty() && key.len() <= 1024)
}

fn path() -> impl Strategy<Value = Vec<String>> {
    let x = "x".repeat(247);
    let names = ["a", "b", "a-", "a", "b", ".%self", ".%empty", ".%dot", "m"];
    let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
    names.extend([format!(".%long.{x}"), format!("{x}m"), "m".repeat(20)]);
    prop::collection::vec(prop::sample::select(names), 1..4)
}

fn op() -> impl Strategy<Value = Op> {
    let kinds = prop::sample::select(vec![
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Directory,
        FileKind::Symlink,
    ]);
    prop_oneof![
        6 => key().prop_map(Op::Put),
        3 => key().prop_map(Op::Remove),
        3 => (path(), kinds).prop_map(|(path, kind)| Op::Make(path, kind)),
        1 => path().prop_map(Op::Unlink),
        1 => path().prop_map(Op::RemoveDir),
        3 => (path(), path(), any::<bool>()).prop_map(|(from, to, exchange)| {
            Op::Rename(from, to, exchange)
        }),
    ]
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let piece = || {
        prop_oneof![
            2 => Just(String::new()),
            2 => key(),
            2 => (key(), 0..5_usize).prop_map(|(key, n)| key.chars().take(n).collect()),
            1 => key().prop_map(|key| format!("{key}/")),
        ]
        .prop_filter("no longer than a key", |text: &String| text.len() <= 1024)
    };
    let delimiter = prop::sample::select(vec!["", "/", "/", "-", "x", "a/"]);
    (piece(), delimiter.prop_map(str::to_owned), piece(), 1..5_u32)
}

/// The directory of a path's last name, if it is there.
async fn parent(c: &Client, bucket: Ino, path: &[String]) -> Option<Ino> {
    let mut at = bucket;
    for text in &path[..path.len() - 1] {
        at = c.lookup(at, text).await.ok().filter(Attr::is_dir)?.ino;
    }
    Some(at)
}

/// Returns the keys of all files, by a walk through the tree.
async fn walked(c: &Client, bucket: Ino) -> BTreeMap<Vec<u8>, Ino> {
    let mut all = BTreeMap::new();
    let mut left: Vec<(Ino, Vec<Name>)> = vec![(bucket, Vec::new())];
    while let Some((dir, path)) = left.pop() {
        for entry in c.list_from(dir, 0, 100).await {
            let path = [&path[..], &[entry.name]].concat();
            match entry.kind {
                FileKind::Directory => left.push((entry.ino, path)),
                FileKind::Regular => {
                    if let Some(key) = key_at(&path) {
                        assert_eq!(all.insert(key, entry.ino), None, "two files of one key");
                    }
                }
                _ => {}
            }
        }
    }
    all
}

/// Returns the key of a file at a path, if it has one.
fn key_at(path: &[Name]) -> Option<Vec<u8>> {
    let itself = path.last()?.as_bytes() == SELF_NAME;
    let names = &path[..path.len() - usize::from(itself)];
    let (mut key, mut is_open) = (Vec::new(), true);
    for (n, name) in names.iter().enumerate() {
        if !is_open {
            key.push(b'/');
        }
        is_open = match meaning(name, itself || n + 1 < names.len()) {
            Meaning::Segment(segment) => {
                key.extend_from_slice(segment);
                false
            }
            Meaning::Beginning(beginning) => {
                key.extend_from_slice(beginning);
                true
            }
            _ => return None,
        };
    }
    let is_there = names_of_key(&key).is_ok_and(|wanted| wanted == names);
    is_there.then_some(key)
}

async fn change(c: &Client, bucket: Ino, op: &Op) {
    let last = |path: &[String]| name(path.last().unwrap());
    match op {
        Op::Put(_) | Op::Remove(_) => {}
        Op::Make(path, kind) => {
            let Some(parent) = parent(c, bucket, path).await else { return };
            let made = Create { exclusive: true, ..create(parent, path.last().unwrap(), *kind) };
            let _ = c.create(made).await;
        }
        Op::Unlink(path) => {
            let Some(parent) = parent(c, bucket, path).await else { return };
            let _ = c.run(MetaOp::Unlink { parent, name: last(path), of: None }).await;
        }
        Op::RemoveDir(path) => {
            let Some(parent) = parent(c, bucket, path).await else { return };
            let _ = c.run(MetaOp::RemoveDir { parent, name: last(path) }).await;
        }
        Op::Rename(from, to, exchange) => {
            let (Some(old), Some(new)) =
                (parent(c, bucket, from).await, parent(c, bucket, to).await)
            else {
                return;
            };
            let (name, new_name) = (last(from), last(to));
            let (no_replace, exchange) = (false, *exchange);
            let rename = Rename {
                parent: old,
                name,
                new_parent: new,
                new_name,
                no_replace,
                exchange,
                whiteout: false,
            };
            let _ = c.run(MetaOp::Rename(rename)).await;
        }
    }
}

async fn agree(f: Fixture, ops: &[(Op, Wanted)]) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let mut model: BTreeMap<Vec<u8>, Ino> = BTreeMap::new();
    for (op, (prefix, delimiter, after, limit)) in ops {
        change(&c, bucket, op).await;
        let now = walked(&c, bucket).await;
        match op {
            Op::Put(key) => {
                if let Ok(put) = c.try_put(key, b"x").await {
                    model.insert(key.clone().into_bytes(), put.ino);
                }
                assert_eq!(walked(&c, bucket).await, model, "{op:?}");
            }
            Op::Remove(key) => {
                let was = c.object(key).await.is_some();
                assert_eq!(c.remove(key).await, was);
                assert_eq!(model.remove(key.as_bytes()).is_some(), was, "{op:?}");
                assert_eq!(walked(&c, bucket).await, model, "{op:?}");
            }
            _ => model = now,
        }
        for (key, ino) in &model {
            let text = std::str::from_utf8(key).unwrap();
            assert_eq!(c.object(text).await.map(|there| there.attr.ino), Some(*ino), "{text}");
        }
        let bytes = |text: &String| text.clone().into_bytes();
        let list = ListObjects {
            bucket: name(BUCKET),
            prefix: bytes(prefix),
            delimiter: bytes(delimiter),
            after: bytes(after),
            limit: *limit,
        };
        assert_eq!(c.listed(&list).await, expected(&model, &list), "{list:?}");
    }
    f.assert_sound().await;
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work);
}

proptest! {
    #[test]
    fn lists_agree_with_a_map(ops in prop::collection::vec((op(), wanted()), 1..40)) {
        block_on(async { agree(Fixture::in_memory().await, &ops).await });
    }

    /// Lost answers change none of the answers that arrive.
    #[test]
    fn lists_agree_over_a_store_that_loses_answers(
        ops in prop::collection::vec((op(), wanted()), 1..20),
        seed in any::<u64>(),
    ) {
        block_on(async {
            let store = Flaky::store(seed);
            agree(Fixture::new(store.clone(), store).await, &ops).await;
        });
    }
}
