//! What every key shows when nothing is under way: on both gateways, in lists, and at the object store behind.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use millpond_s3_load::journal::Verdict;

use crate::client::Client;
use crate::cluster::{BACKED, BEHIND, Cluster, PREFIX};
use crate::load::{Shared, Worker, shown};
use crate::oracle::Shown;
use crate::process::until;

/// What keys show by their names.
type All = BTreeMap<String, Shown>;

fn get(client: &Client, path: &str, name: &str) -> Shown {
    until(path, || {
        let answer = client.get(path).try_send(Duration::from_secs(30)).ok()?;
        match shown(name, &answer)? {
            Ok(shown) => Some(shown),
            Err(torn) => panic!("{path} is torn: {torn}"),
        }
    })
    .0
}

/// Reads all keys of a worker on both gateways, and says what they show.
fn keys_of(cluster: &Cluster, worker: &mut Worker, shared: &Shared) -> All {
    let mut all = All::new();
    for key in &mut worker.keys {
        let path = format!("/{}/{}", worker.bucket, key.name);
        let [one, two] = [0, 1].map(|n| get(&cluster.s3[n], &path, &key.name));
        if one != two {
            shared.wrong(format!("{path} shows {one:?}, and {two:?} on the other gateway"));
        }
        match key.read(&Ok(one.clone())) {
            Ok(Verdict::Late) => eprintln!("{path} shows a write that another one followed"),
            Ok(_) => {}
            Err(what) => shared.wrong(format!("in the end, {}/{what}", worker.bucket)),
        }
        let head = cluster.s3[1].head(&path).send();
        let wanted = one.seen.map_or((404, String::new()), |it| (200, it.size.to_string()));
        let len = if head.is(200) { head.header("content-length") } else { String::new() };
        if (head.status, len) != wanted || head.is(200) && head.header("etag") != one.etag {
            shared.wrong(format!("HEAD {path}: {:?}, and GET {one:?}", head.headers));
        }
        key.quiet();
        all.insert(key.name.clone(), one);
    }
    all
}

/// Keys and `ETag`s of a list, page by page.
fn listed(client: &Client, bucket: &str, prefix: &str) -> BTreeMap<String, (u64, String)> {
    let (mut all, mut token) = (BTreeMap::new(), String::new());
    loop {
        let ask = || client.get(&format!("/{bucket}")).query("list-type", "2");
        let ask = || ask().query("prefix", prefix).query("max-keys", "37");
        let ask = || {
            if token.is_empty() { ask() } else { ask().query("continuation-token", &token) }
        };
        let page = until("a list", || Some(ask().send()).filter(|it| it.is(200))).0;
        let etags = page.tags("ETag").into_iter().map(|it| it.replace("&quot;", "\""));
        let sizes = page.tags("Size").into_iter().map(|it| it.parse().unwrap());
        let keys = page.tags("Key").into_iter();
        let keys = keys.map(|it| it.strip_prefix(prefix).unwrap().to_owned());
        all.extend(keys.zip(sizes.zip(etags)));
        token = page.tag("NextContinuationToken");
        if token.is_empty() {
            return all;
        }
    }
}

fn same_list(shared: &Shared, what: &str, found: &BTreeMap<String, (u64, String)>, wanted: &All) {
    let wanted: BTreeMap<String, (u64, String)> = wanted
        .iter()
        .filter_map(|(key, it)| Some((key.clone(), (it.seen?.size, it.etag.clone()))))
        .collect();
    for (key, found) in found {
        if wanted.get(key) != Some(found) {
            let wanted = wanted.get(key);
            shared.wrong(format!("the list of {what} has {key} as {found:?}, not {wanted:?}"));
        }
    }
    for key in wanted.keys().filter(|key| !found.contains_key(*key)) {
        shared.wrong(format!("the list of {what} lacks {key}"));
    }
}

/// The object store must have exactly this.
fn behind(cluster: &Cluster, shared: &Shared, wanted: &All) {
    for (key, wanted) in wanted {
        let found = get(&cluster.direct, &format!("/{BEHIND}/{PREFIX}{key}"), key);
        if found != *wanted {
            shared.wrong(format!("behind, {key} is {found:?}, not {wanted:?}"));
        }
    }
    same_list(shared, "what is behind", &listed(&cluster.direct, BEHIND, PREFIX), wanted);
}

/// Holds what there is against what is known. Nothing is under way, and the object store can be reached. Keys have no doubts then.
pub(crate) fn verify(cluster: &Cluster, workers: &mut [Worker], shared: &Shared) {
    let all: Mutex<BTreeMap<&str, All>> = Mutex::default();
    std::thread::scope(|scope| {
        for worker in workers {
            let all = &all;
            scope.spawn(move || {
                let keys = keys_of(cluster, worker, shared);
                all.lock().unwrap().entry(worker.bucket).or_default().extend(keys);
            });
        }
    });
    let all = all.into_inner().unwrap();
    let persisted = cluster.command(&["s3", "persist", "--wait", &format!("s3://{BACKED}")]);
    let text = [persisted.stdout, persisted.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(persisted.status.success(), "the backlog does not drain: {text}");
    for (bucket, wanted) in all {
        for client in &cluster.s3 {
            same_list(shared, bucket, &listed(client, bucket, ""), &wanted);
        }
        if bucket == BACKED {
            behind(cluster, shared, &wanted);
        }
    }
}
