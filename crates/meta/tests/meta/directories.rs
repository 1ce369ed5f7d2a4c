//! Directory listings in pages.

use std::collections::BTreeSet;

use millpond_types::meta::{FileKind, Ino, MetaError, ReadDir};

use crate::support::{Client, Fixture};

const ROOT: Ino = Ino::ROOT;
/// Enough for several pages of the store.
const MANY: usize = 5_000;

/// Makes `count` names; many at a time, so that they share syncs.
async fn fill(c: &Client, dir: Ino, count: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for part in 0..50 {
        let c = c.clone();
        tasks.spawn(async move {
            let link = c.file(dir, &format!("{part:05}")).await;
            for n in (part..count).step_by(50).skip(1) {
                c.link(link, dir, &format!("{n:05}")).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

pub(crate) async fn pages_while_entries_come_and_go(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    assert!(c.list_from(dir, 0, 10).await.is_empty());
    fill(&c, dir, MANY).await;
    let all = c.list_from(dir, 0, 777).await;
    let names: BTreeSet<String> = all.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((all.len(), names.len()), (MANY, MANY));
    assert!(all.is_sorted_by(|a, b| a.cookie < b.cookie), "cookies grow");
    assert!(all.iter().all(|entry| entry.kind == FileKind::Regular && entry.attr.is_none()));

    // A listing can continue at every cookie: the next entry follows.
    for pair in all.windows(2).step_by(7) {
        let page = ReadDir { dir, after: pair[0].cookie, limit: 1, attrs: false };
        let (entries, end) = c.page(page).await.unwrap();
        assert_eq!((entries.as_slice(), end), (&pair[1..], pair[1] == all[MANY - 1]));
    }
    let last = ReadDir { dir, after: all[MANY - 1].cookie, limit: 1, attrs: false };
    assert_eq!(c.page(last).await.unwrap(), (Vec::new(), true));

    // A reader in the middle, while names before and after it come and go.
    let (middle, mut gone, mut came) = (all[MANY / 2].cookie, BTreeSet::new(), BTreeSet::new());
    for (n, entry) in all.iter().enumerate().step_by(25) {
        let text = entry.name.to_string();
        if n % 2 == 0 {
            c.unlink(dir, &text).await.unwrap();
            gone.insert(text);
        } else {
            let text = format!("new {text}");
            c.file(dir, &text).await;
            came.insert(text);
        }
    }
    c.unlink(dir, &all[MANY / 2].name.to_string()).await.ok();
    let rest = c.list_from(dir, middle, 100).await;
    let seen: BTreeSet<String> = rest.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(seen.len(), rest.len(), "nothing comes twice");
    for entry in &all[MANY / 2 + 1..] {
        let text = entry.name.to_string();
        assert_eq!(seen.contains(&text), !gone.contains(&text), "{text}");
    }
    let old: BTreeSet<_> = all[MANY / 2 + 1..].iter().map(|e| e.name.to_string()).collect();
    assert!(seen.difference(&old).all(|text| came.contains(text)));
}

pub(crate) async fn attributes_come_with_entries(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    for n in 0..5 {
        c.dir(dir, &format!("d{n}")).await;
        c.make(dir, &format!("s{n}"), FileKind::Symlink).await;
    }
    let page = ReadDir { dir, after: 0, limit: 100, attrs: true };
    let (entries, end) = c.page(page).await.unwrap();
    assert_eq!((entries.len(), end), (10, true));
    for entry in &entries {
        let attr = c.lookup(dir, &entry.name.to_string()).await.unwrap();
        assert_eq!((entry.attr, entry.ino, entry.kind), (Some(attr), attr.ino, attr.kind));
    }
    let none = ReadDir { limit: 0, ..page };
    assert_eq!(c.page(none).await.unwrap().0.len(), 1, "a page has at least one entry");
    let beyond = ReadDir { after: u64::MAX, ..page };
    assert_eq!(c.page(beyond).await.unwrap(), (Vec::new(), true));
    let root = c.as_user(0, 0, &[]);
    let file = c.file(ROOT, "f").await;
    let of_file = ReadDir { dir: file, ..page };
    assert_eq!(root.page(of_file).await, Err(MetaError::NotDirectory));
}
