//! Backed buckets of a real cluster, by way of the client: what waits outlives metas that are killed, and persisters that die.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use millpond_client::{
    Backing, Body, Client, ClientError, ClientOptions, Expect, Mode, Origin, Outcome, Put,
    PutObject, Rule, Volume, Wanted,
};
use millpond_types::meta::MetaError;
use millpond_types::meta::object::{LANE_LARGE, LANE_SMALL};

use crate::conformance::Mounted;
use crate::mount::left_out;
use crate::process::{Cluster, PATIENCE, until};

const BUCKET: &str = "bucket";
const LEASE: Duration = Duration::from_secs(2);

fn volume(cluster: &Cluster) -> Volume {
    let mut options = ClientOptions::new(cluster.nodes[0].address.parse().unwrap());
    options.deadline = PATIENCE / 3;
    Volume::open(Client::new(options).unwrap(), "a gateway").unwrap()
}

fn put<'a>(key: &'a [u8], body: Body<'a>) -> PutObject<'a> {
    PutObject {
        bucket: BUCKET,
        key,
        body,
        attachment: b"etag",
        expect: Expect::Any,
        replicas: 0,
        origin: None,
    }
}

fn backing() -> Backing {
    let rule = Rule { prefix: b"tmp/".to_vec(), mode: Mode::Transient, ..Rule::default() };
    let rules = vec![rule];
    Backing { backend: "far".into(), bucket: "b".into(), rules, ..Backing::default() }
}

fn done(etag: Option<&str>) -> Outcome {
    Outcome::Done { etag: etag.map(str::to_owned) }
}

#[test]
fn what_waits_outlives_everybody() {
    let mut cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster), volume(&cluster));
    one.make_bucket(BUCKET, b"").unwrap();
    assert!(one.claim(BUCKET, LANE_SMALL, 9, LEASE).unwrap().is_empty());
    one.set_backing(BUCKET, Some(&backing())).unwrap();
    assert_eq!(two.bucket(BUCKET).unwrap().backing, Some(backing()));
    one.put_object(&put(b"a", Body::Bytes(b"small"))).unwrap();
    let file = one.nameless_file(0).unwrap();
    file.write_batch(&[(0, &vec![1; 2_000_000])]).unwrap();
    one.put_object(&put(b"b", Body::File(&file))).unwrap();
    one.remove_object(BUCKET, b"c", Expect::Any).unwrap();
    cluster.manager.kill();
    cluster.manager.run();
    let claims = until("keys are claimed", || one.claim(BUCKET, LANE_SMALL, 9, LEASE).ok()).0;
    let keys: Vec<&[u8]> = claims.iter().map(|claimed| &claimed.key[..]).collect();
    assert_eq!(keys, [b"a", b"c"]);
    assert!(claims.iter().all(|claimed| claimed.is_fresh));
    assert!(claims[0].object.is_some() && claims[1].object.is_none());
    let put_id = claims[0].state.under.unwrap().put_id;
    assert_ne!(put_id, claims[1].state.under.unwrap().put_id);
    assert!(two.claim(BUCKET, LANE_SMALL, 9, LEASE).unwrap().is_empty());
    let clean = one.settle(BUCKET, b"a", put_id, &done(Some("e"))).unwrap();
    assert!(clean.is_clean());
    let stale = one.settle(BUCKET, b"a", put_id, &done(Some("e"))).unwrap_err();
    assert!(matches!(stale, ClientError::File { source: MetaError::Stale, .. }), "{stale}");
    // The other one is taken over when the lease has ended.
    let again = |claims: Vec<_>| claims.into_iter().next();
    let (again, _) =
        until("it is taken over", || again(two.claim(BUCKET, LANE_SMALL, 9, LEASE).ok()?));
    assert_eq!((&again.key[..], again.is_fresh), (&b"c"[..], false));
    assert_eq!(again.state.under, claims[1].state.under);
    let put_id = again.state.under.unwrap().put_id;
    let gone = two.settle(BUCKET, b"c", put_id, &done(None)).unwrap();
    assert!(gone.is_clean() && gone.is_tombstone());
    // The large one waits in its lane.
    let page = one.queue_page(BUCKET, LANE_LARGE, None, 9).unwrap();
    assert_eq!((&page.entries[0].key[..], page.entries[0].bytes), (&b"b"[..], 2_000_000));
    let busy = one.set_backing(BUCKET, None).unwrap_err();
    assert!(matches!(busy, ClientError::File { source: MetaError::Busy, .. }), "{busy}");
    let large = one.claim(BUCKET, LANE_LARGE, 1, LEASE).unwrap().pop().unwrap();
    let put_id = large.state.under.unwrap().put_id;
    let refused = Outcome::Failed { error: "503".into(), pause_ms: 600_000 };
    assert_eq!(one.settle(BUCKET, b"b", put_id, &refused).unwrap().attempts, 1);
    assert!(one.claim(BUCKET, LANE_LARGE, 1, LEASE).unwrap().is_empty());
    assert!(one.hasten(BUCKET, b"b").unwrap());
    assert_eq!(one.claim(BUCKET, LANE_LARGE, 1, LEASE).unwrap().len(), 1);
    // What the backend has may go, and come back.
    assert!(!one.evict(BUCKET, b"a", clean.seq + 1).unwrap());
    assert!(one.evict(BUCKET, b"a", clean.seq).unwrap());
    let found = two.look_up(BUCKET, b"a", true).unwrap();
    let left = found.state.unwrap();
    assert!(found.object.is_none() && left.wanted == Wanted::Forgotten);
    let refill = |seen| {
        let origin = Origin { etag: "e".into(), seen };
        let put = PutObject { origin: Some(&origin), ..put(b"a", Body::Bytes(b"small")) };
        matches!(two.put_object(&put).unwrap(), Put::Done { .. })
    };
    assert!(!refill(None) && refill(Some(left.seq)) && !refill(Some(left.seq)));
    assert_eq!(one.get_object(BUCKET, b"a", true).unwrap().unwrap().bytes.unwrap(), b"small");
    let page = one.states_page(BUCKET, b"", b"a", 9).unwrap();
    let keys: Vec<&[u8]> = page.states.iter().map(|(key, _)| &key[..]).collect();
    assert!(page.end && keys == [b"b", b"c"]);
}

#[test]
fn what_mounts_write_is_adopted() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let mount = Mounted::new(&cluster, "mount", "");
    let volume = volume(&cluster);
    volume.make_bucket(BUCKET, b"").unwrap();
    volume.set_backing(BUCKET, Some(&backing())).unwrap();
    let folder = mount.folder.join(BUCKET);
    fs::write(folder.join("m"), b"by a mount").unwrap();
    assert_eq!(volume.look_up(BUCKET, b"m", false).unwrap().state, None);
    assert!(volume.adopt(BUCKET, b"m").unwrap().unwrap().is_dirty());
    let claimed = volume.claim(BUCKET, LANE_SMALL, 1, LEASE).unwrap().pop().unwrap();
    let put_id = claimed.state.under.unwrap().put_id;
    let clean = volume.settle(BUCKET, b"m", put_id, &done(Some("e"))).unwrap();
    fs::write(folder.join("m"), b"changed").unwrap();
    assert!(!volume.evict(BUCKET, b"m", clean.seq).unwrap(), "the backend does not have it");
    assert!(volume.adopt(BUCKET, b"m").unwrap().unwrap().is_dirty());
    fs::remove_file(folder.join("m")).unwrap();
    assert!(volume.adopt(BUCKET, b"m").unwrap().unwrap().is_tombstone());
    assert!(fs::remove_dir(&folder).is_err(), "a gateway removes it");
    // What is evicted goes from the mount too.
    let put = done_of(volume.put_object(&put(b"x", Body::Bytes(b"x"))).unwrap());
    assert_eq!(fs::read(folder.join("x")).unwrap(), b"x");
    let claims = volume.claim(BUCKET, LANE_SMALL, 9, LEASE).unwrap();
    let claimed = claims.into_iter().find(|claimed| claimed.key == b"x").unwrap();
    assert_eq!(claimed.object.unwrap().attr.ino, put);
    let put_id = claimed.state.under.unwrap().put_id;
    let clean = volume.settle(BUCKET, b"x", put_id, &done(Some("e"))).unwrap();
    assert!(volume.evict(BUCKET, b"x", clean.seq).unwrap());
    until("the mount hears of it", || (!folder.join("x").exists()).then_some(()));
}

#[test]
fn what_is_written_over_and_dated_back_is_adopted() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let volume = volume(&cluster);
    volume.make_bucket(BUCKET, b"").unwrap();
    volume.set_backing(BUCKET, Some(&backing())).unwrap();
    for (name, options, len) in [
        ("closed", "", 4),
        ("sole", "mode=one-writer", 4),
        ("written-back", "mode=one-writer", 40_000),
        ("strict", "mode=strict", 40_000),
    ] {
        let mount = Mounted::new(&cluster, name, options);
        let folder = mount.folder.join(BUCKET);
        let (key, path) = (name.as_bytes(), folder.join(name));
        let before = vec![b'a'; len];
        done_of(volume.put_object(&put(key, Body::Bytes(&before))).unwrap());
        let claims = volume.claim(BUCKET, LANE_SMALL, 9, LEASE).unwrap();
        let claimed = claims.into_iter().find(|claimed| claimed.key == key).unwrap();
        let put_id = claimed.state.under.unwrap().put_id;
        let clean = volume.settle(BUCKET, key, put_id, &done(Some("e"))).unwrap();
        let found = || volume.look_up(BUCKET, key, false).unwrap().object.unwrap();
        assert!(found().attachment.unwrap().is_current);
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&vec![b'b'; len], 0).unwrap();
        file.set_modified(time).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
        assert!(!found().attachment.unwrap().is_current, "{name}: what is kept is of other bytes");
        assert!(!volume.evict(BUCKET, key, clean.seq).unwrap(), "the backend does not have it");
        assert!(volume.adopt(BUCKET, key).unwrap().unwrap().is_dirty());
    }
}

fn done_of(put: Put) -> millpond_types::meta::Ino {
    match put {
        Put::Done { object, .. } => object.attr.ino,
        Put::Unmet(there) => panic!("{there:?}"),
    }
}
