//! Objects of a real cluster: what a gateway puts is on mounts, and the reverse; what it holds goes with it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millpond_client::{
    Body, Client, ClientError, ClientOptions, Expect, File, ListObjects, Listed, Object, Put,
    PutObject, Volume,
};
use millpond_env::Rng;

use crate::conformance::Mounted;
use crate::direct::random;
use crate::mount::left_out;
use crate::process::{Cluster, PATIENCE, until};

const BUCKET: &str = "bucket";

fn volume_at(address: &str) -> Volume {
    let mut options = ClientOptions::new(address.parse().unwrap());
    options.deadline = PATIENCE / 3;
    Volume::open(Client::new(options).unwrap(), "a gateway").unwrap()
}

fn volume(cluster: &Cluster) -> Volume {
    volume_at(&cluster.nodes[0].address)
}

fn put<'a>(key: &'a str, body: Body<'a>) -> PutObject<'a> {
    let (key, attachment) = (key.as_bytes(), &b"etag"[..]);
    PutObject {
        bucket: BUCKET,
        key,
        body,
        attachment,
        expect: Expect::Any,
        replicas: 0,
        origin: None,
    }
}

fn done(put: Put) -> Object {
    match put {
        Put::Done { object, .. } => object,
        Put::Unmet(there) => panic!("{there:?}"),
    }
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![7; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_batch(&mut [(0, &mut bytes)]).unwrap();
    bytes
}

fn get(volume: &Volume, key: &str) -> Option<Vec<u8>> {
    let object = volume.get_object(BUCKET, key.as_bytes(), true).unwrap()?;
    Some(match object.bytes {
        Some(bytes) => bytes,
        None => content(&volume.object_file(&object).unwrap()),
    })
}

fn keys(volume: &Volume, delimiter: &str) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), Vec::new());
    loop {
        let list = ListObjects {
            bucket: BUCKET,
            prefix: b"",
            delimiter: delimiter.as_bytes(),
            after: &after,
            limit: 7,
        };
        let page = volume.list_objects(&list).unwrap();
        all.extend(page.items.into_iter().map(|item| match item {
            Listed::Key { key, .. } => String::from_utf8(key).unwrap(),
            Listed::Prefix(prefix) => String::from_utf8(prefix).unwrap(),
        }));
        match page.next {
            Some(next) => after = next,
            None => return all,
        }
    }
}

#[test]
fn what_is_put_is_on_mounts_and_the_reverse() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let mount = Mounted::new(&cluster, "mount", "");
    let (one, two) = (volume(&cluster), volume(&cluster));
    one.make_bucket(BUCKET, b"").unwrap();
    let folder = mount.folder.join(BUCKET);
    // Small and large; the mount sees each at once, also in the place of another one.
    let first = done(one.put_object(&put("a", Body::Bytes(b"first"))).unwrap());
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"first");
    let mut open = fs::File::open(folder.join("a")).unwrap();
    let large = random(&mut Rng::new(3), 3_000_000);
    let file = one.nameless_file(0).unwrap();
    file.write_batch(&[(0, &large[..1_000_000]), (1_000_000, &large[1_000_000..])]).unwrap();
    let held = two.object_file(&first).unwrap();
    let second = done(one.put_object(&put("a", Body::File(&file))).unwrap());
    assert_eq!((second.attr.size, second.attr.ino), (3_000_000, file.ino()));
    assert_eq!(fs::read(folder.join("a")).unwrap(), large);
    assert_eq!(get(&two, "a").unwrap(), large);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), content(&held)), ("first", b"first".to_vec()), "what is open stays");
    drop(file);
    // A key that is the beginning of another one, and open files that do not notice.
    let mut open = fs::File::open(folder.join("a")).unwrap();
    one.put_object(&put("a/b", Body::Bytes(b"below"))).unwrap();
    // The mount takes `a` for a file until word of the change comes.
    let (below, _) = until("the mount hears of it", || fs::read(folder.join("a/b")).ok());
    assert_eq!(below, b"below");
    assert_eq!(fs::read(folder.join("a/.%self")).unwrap(), large);
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert!(bytes == large && get(&two, "a").unwrap() == large);
    // The reverse.
    fs::create_dir_all(folder.join("dir/empty")).unwrap();
    fs::write(folder.join("dir/x"), b"by a mount").unwrap();
    fs::write(folder.join("a/b"), b"written over").unwrap();
    assert_eq!(get(&one, "dir/x").unwrap(), b"by a mount");
    assert_eq!(get(&one, "a/b").unwrap(), b"written over");
    let there = one.get_object(BUCKET, b"a/b", false).unwrap().unwrap();
    assert!(!there.attachment.unwrap().is_current, "it is another content");
    assert_eq!(keys(&one, ""), ["a", "a/b", "dir/x"]);
    assert_eq!(keys(&one, "/"), ["a", "a/", "dir/"]);
    fs::rename(folder.join("dir"), folder.join("moved")).unwrap();
    fs::remove_file(folder.join("a/b")).unwrap();
    assert_eq!(keys(&one, ""), ["a", "moved/x"]);
    assert!(fs::write(folder.join(".%x"), b"").is_err(), "a name that no key has");
    let outside = mount.folder.join("outside");
    fs::create_dir_all(outside.join("full")).unwrap();
    let error = fs::rename(&outside, folder.join("in")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::CrossesDevices);
    let tree = Command::new("mv").arg(&outside).arg(folder.join("in")).status().unwrap();
    assert!(tree.success() && folder.join("in/full").is_dir(), "mv copies");
    assert!(matches!(one.remove_bucket(BUCKET), Err(ClientError::File { .. })));
    for key in ["a", "moved/x"] {
        one.remove_object(BUCKET, key.as_bytes(), Expect::Any).unwrap();
    }
    one.remove_bucket(BUCKET).unwrap();
    assert!(one.buckets().unwrap().is_empty());
    until("the mount hears of it", || (!folder.exists()).then_some(()));
}

#[test]
fn what_is_looked_up_in_a_hold_is_there_to_be_opened() {
    let cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster), volume(&cluster));
    one.make_bucket(BUCKET, b"").unwrap();
    let bytes = random(&mut Rng::new(4), 300_000);
    let file = one.nameless_file(0).unwrap();
    file.write_batch(&[(0, &bytes)]).unwrap();
    done(one.put_object(&put("a", Body::File(&file))).unwrap());
    drop(file);
    let hold = two.hold();
    let object = two.get_object(BUCKET, b"a", true).unwrap().unwrap();
    one.remove_object(BUCKET, b"a", Expect::Any).unwrap();
    // Sessions are renewed, and asked about what others removed, every 15 seconds.
    thread::sleep(Duration::from_secs(25));
    let opened = two.object_file_held(&object, &hold);
    drop(hold);
    thread::sleep(Duration::from_secs(4));
    assert!(content(&opened) == bytes, "it is open");
    drop(opened);
    until("its bytes go", || {
        let (hold, mut read) = (two.hold(), vec![0; bytes.len()]);
        let gone = two.object_file_held(&object, &hold);
        let read = gone.read_batch(&mut [(0, &mut read)]).is_ok().then_some(read);
        (read.as_ref() != Some(&bytes)).then_some(())
    });
}

#[test]
fn of_two_gateways_that_expect_the_same_one_wins() {
    let cluster = Cluster::roomy(3, 2);
    let gateways: Vec<Volume> = (0..2).map(|_| volume(&cluster)).collect();
    gateways[0].make_bucket(BUCKET, b"").unwrap();
    for round in 0..20 {
        let key = format!("dir{round}/k");
        let won = AtomicUsize::new(0);
        thread::scope(|scope| {
            for n in 0..8_u8 {
                let (gateway, key, won) = (&gateways[usize::from(n) % 2], &key, &won);
                scope.spawn(move || {
                    let bytes = [n];
                    let expect = Expect::Absent;
                    let put = PutObject { expect, ..put(key, Body::Bytes(&bytes)) };
                    if let Put::Done { .. } = gateway.put_object(&put).unwrap() {
                        won.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(won.into_inner(), 1, "{key}");
    }
    // An upload: parts of their own, and one object of them.
    let [one, two] = &gateways[..] else { panic!() };
    let id = one.create_upload(BUCKET, b"whole", b"meta").unwrap();
    for number in [2_u16, 1] {
        let file = one.nameless_file(0).unwrap();
        file.write_batch(&[(0, &vec![u8::try_from(number).unwrap(); 100_000])]).unwrap();
        one.put_part((BUCKET, id, number), (&file, None), None, b"md5").unwrap();
    }
    assert_eq!(two.uploads(BUCKET, None, 10).unwrap()[0].key, b"whole");
    let whole = two.nameless_file(0).unwrap();
    let mut at = 0;
    for part in two.parts(BUCKET, id, 0, 10).unwrap() {
        let bytes = content(&two.part_file(&part).unwrap());
        whole.write_batch(&[(at, &bytes)]).unwrap();
        at += bytes.len() as u64;
    }
    done(two.complete_upload(id, &put("whole", Body::File(&whole))).unwrap());
    let bytes = get(one, "whole").unwrap();
    assert!(bytes.len() == 200_000 && bytes[..100_000].iter().all(|byte| *byte == 1));
    assert!(one.upload(BUCKET, id).is_err() && one.uploads(BUCKET, None, 10).unwrap().is_empty());
}

/// With chunks that two parts share.
#[test]
fn parts_that_two_gateways_write_at_once_keep_to_their_places() {
    let cluster = Cluster::roomy(3, 2);
    let [one, two] = &[volume(&cluster), volume(&cluster)];
    one.make_bucket(BUCKET, b"").unwrap();
    let (len, last) = ((5 << 20) + 3, 70_000);
    let body = |number: u16| {
        let len = if number == 6 { last } else { len };
        (0..len).map(|at| (at * 7 + usize::from(number)).to_le_bytes()[0]).collect::<Vec<u8>>()
    };
    let bodies: Vec<Vec<u8>> = (1..=6).map(body).collect();
    for round in 0..4 {
        let id = one.create_upload(BUCKET, b"k", b"meta").unwrap();
        // The first says how long parts are.
        let taken = one.take_place((BUCKET, id, 1), len as u64, 0).unwrap();
        thread::scope(|scope| {
            let mut taken = taken;
            for number in 1..=6 {
                let (taken, gateway) = (taken.take(), if number % 2 == 0 { one } else { two });
                let (bytes, at) = (&bodies[usize::from(number) - 1], (BUCKET, id, number));
                scope.spawn(move || {
                    let all = bytes.len() as u64;
                    let taken = taken.or_else(|| gateway.take_place(at, all, 0).unwrap());
                    let (file, offset) = taken.expect("a place");
                    for (piece, bytes) in (0..).zip(bytes.chunks(100_000)) {
                        file.write_batch(&[(offset + piece * 100_000, bytes)]).unwrap();
                    }
                    gateway.put_part(at, (&file, Some(all)), None, b"md5").unwrap();
                });
            }
        });
        let parts = one.parts(BUCKET, id, 0, 10).unwrap();
        assert_eq!(parts.iter().map(|it| it.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        let size = (5 * len + last) as u64;
        done(two.complete_upload(id, &put("k", Body::Whole { parts: 6, size })).unwrap());
        let found = get(one, "k").unwrap();
        let wrong = found.iter().zip(bodies.iter().flatten()).position(|(a, b)| a != b);
        assert_eq!((found.len() as u64, wrong), (size, None), "round {round}");
    }
}

/// The test below starts this as a process of its own, and kills it.
#[test]
fn a_gateway_that_is_killed() {
    let Ok(address) = std::env::var("MILLPOND_TEST_GATEWAY") else { return };
    let volume = volume_at(&address);
    let file = volume.nameless_file(0).unwrap();
    file.write_batch(&[(0, &vec![1; 1_000_000])]).unwrap();
    println!("\nINODE {}", file.ino());
    loop {
        thread::sleep(PATIENCE);
    }
}

#[test]
fn what_a_killed_gateway_held_is_collected() {
    let cluster = Cluster::roomy(3, 2);
    let volume = volume(&cluster);
    volume.make_bucket(BUCKET, b"").unwrap();
    volume.put_object(&put("x", Body::Bytes(b"x"))).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "objects::a_gateway_that_is_killed", "--nocapture"])
        .env("MILLPOND_TEST_GATEWAY", &cluster.nodes[0].address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let inode =
        lines.map(Result::unwrap).find_map(|line| line.strip_prefix("INODE ")?.parse().ok());
    let _: u64 = inode.unwrap();
    // Its inode and chunks are there; no check minds that.
    let fsck = || {
        let done = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["fsck", &cluster.nodes[0].address, "--json", "--settle", "0"])
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stdout));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        (report["inodes"].as_u64().unwrap(), report["chunks"].as_u64().unwrap())
    };
    let (inodes, chunks) = fsck();
    assert_eq!(inodes, 4, "the root, the bucket, the object and what is held");
    assert!(chunks > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    while fsck() != (3, 0) {
        assert!(killed.elapsed() < Duration::from_mins(3), "it is never collected");
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(get(&volume, "x").unwrap(), b"x");
}

#[test]
fn killed_metas_lose_nothing() {
    let mut cluster = Cluster::roomy(3, 2);
    let gateway = volume(&cluster);
    gateway.make_bucket(BUCKET, b"").unwrap();
    let (ended, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let models = thread::scope(|scope| {
        let work = |n: u64| {
            let (gateway, ended, changes) = (&gateway, &ended, &changes);
            move || {
                let (mut rng, mut model) = (Rng::new(n), BTreeMap::new());
                while !ended.load(Ordering::Relaxed) {
                    let at = rng.next_u64() % 12;
                    let key =
                        ["k", "k/below", "k/b/deep", "other"][usize::try_from(at % 4).unwrap()];
                    let key = format!("{n}/{}/{key}", at / 4);
                    if rng.next_u64() % 3 == 0 {
                        let remove =
                            || gateway.remove_object(BUCKET, key.as_bytes(), Expect::Any).ok();
                        until("an object is removed", remove);
                        model.remove(&key);
                    } else {
                        let bytes = rng.next_u64().to_le_bytes();
                        let change = || gateway.put_object(&put(&key, Body::Bytes(&bytes))).ok();
                        until("an object is put", change);
                        model.insert(key, bytes.to_vec());
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                }
                model
            }
        };
        let workers: Vec<_> = (0..4).map(|n| scope.spawn(work(n))).collect();
        for _ in 0..4 {
            let from = changes.load(Ordering::Relaxed);
            until("changes go on", || (changes.load(Ordering::Relaxed) > from + 50).then_some(()));
            cluster.manager.kill();
            cluster.manager.run();
        }
        let from = changes.load(Ordering::Relaxed);
        until("changes go on", || (changes.load(Ordering::Relaxed) > from + 50).then_some(()));
        ended.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    let model: BTreeMap<String, Vec<u8>> = models.into_iter().flatten().collect();
    assert_eq!(keys(&gateway, ""), model.keys().cloned().collect::<Vec<_>>());
    for (key, bytes) in &model {
        assert_eq!(get(&gateway, key).as_ref(), Some(bytes), "{key}");
    }
    println!("{} changes, {} objects", changes.into_inner(), model.len());
}
