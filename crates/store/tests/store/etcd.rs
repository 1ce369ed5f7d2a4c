//! The etcd engine on a real cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use etcd_client::{
    CompactionOptions, ConnectOptions, DeleteOptions, GetOptions, Permission, PermissionType,
    TlsOptions, Txn, TxnOp,
};
use millpond_store::{
    EtcdBackend, EtcdOptions, EtcdTls, KeyRange, RangeOptions, Store, StoreErrorKind,
};
use millpond_types::limits::STORE_MARKERS_MAX;

use crate::cluster::{Cluster, connect, left_out};
use crate::conformance::{Fixture, delete, kind, now, put, run_all};
use crate::histories::{self, Summary};

pub(crate) fn options(cluster: &Cluster, prefix: &str) -> EtcdOptions {
    EtcdOptions { prefix: prefix.to_owned(), ..EtcdOptions::new(cluster.endpoints()) }
}

/// A store and another client of it, each with its own connections.
pub(crate) fn fixture(cluster: &Cluster, prefix: &str) -> Fixture {
    let mut options = options(cluster, prefix);
    let store = Store::new(Arc::new(EtcdBackend::new(&options).unwrap()));
    options.endpoints.rotate_left(1);
    let other = Store::new(Arc::new(EtcdBackend::new(&options).unwrap()));
    Fixture { store, other }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3).await;
    let number = AtomicU32::new(0);
    run_all(|_| {
        let prefix = format!("case{:02}/", number.fetch_add(1, Ordering::Relaxed));
        std::future::ready(fixture(&cluster, &prefix))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_etcd_no_longer_has() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1).await;
    let f = fixture(&cluster, "c/");
    let range = KeyRange::prefix(b"w/");
    let old = put(&f.store, &[("w/a", "1")]).await;
    let reader = f.store.begin();
    reader.get(b"w/a").await.unwrap();
    let mut copy = crate::watches::Copy::new(&f.store, &range);
    copy.step().await.unwrap();
    let mut watch = f.store.watch(range.clone(), old).await.unwrap();
    put(&f.store, &[("w/a", "2")]).await;
    crate::watches::next(&mut watch).await;
    let new = put(&f.store, &[("w/a", "3")]).await;
    let mut client = connect(&cluster.endpoints()[0]).await.unwrap();
    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(i64::try_from(new.0).unwrap(), physical).await.unwrap();

    let batch = crate::watches::next(&mut watch).await;
    assert_eq!(batch.version, new, "a watch that keeps up does not notice");
    let mut late = f.store.watch(range.clone(), old).await.unwrap();
    assert_eq!(kind(late.next().await), Some(StoreErrorKind::Compacted));
    // A follower reads the range again.
    put(&f.store, &[("w/end", "")]).await;
    copy.until(b"w/end").await.unwrap();
    assert_eq!((&copy.state[&b"w/a"[..]][..], copy.states), (&b"3"[..], 2));
    // A transaction at a compacted revision must start again.
    assert_eq!(kind(reader.get(b"w/b").await), Some(StoreErrorKind::Conflict));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_markers_are_collected_and_no_delete_is_missed() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(1).await;
    let f = fixture(&cluster, "g/");
    put(&f.store, &[("d/1", "1"), ("d/2", "1")]).await;
    let reader = f.other.begin();
    let page = reader.range(&KeyRange::prefix(b"d/"), RangeOptions::default()).await.unwrap();
    assert_eq!(page.entries.len(), 2);
    delete(&f.store, &["d/1"]).await;
    let mut client = connect(&cluster.endpoints()[0]).await.unwrap();
    let markers = GetOptions::new().with_prefix().with_count_only();
    let mut most = 0;
    for round in 0..STORE_MARKERS_MAX / 60 + 2 {
        let txn = f.store.begin();
        for n in 0..60 {
            txn.delete(format!("x/{round}/{n}").as_bytes()).unwrap();
        }
        txn.commit().await.unwrap();
        most = most.max(client.get("g/m", Some(markers.clone())).await.unwrap().count());
    }
    let left = client.get("g/m", Some(markers)).await.unwrap().count();
    assert!(most > 8_000 && left < 200, "{most} markers, then {left}");
    // The marker of d/1 is gone, and the reader must not conclude that nothing was deleted.
    reader.put(b"count", "2").unwrap();
    assert_eq!(kind(reader.commit().await), Some(StoreErrorKind::Conflict));
    let reader = f.other.begin();
    reader.range(&KeyRange::prefix(b"d/"), RangeOptions::default()).await.unwrap();
    reader.put(b"count", "1").unwrap();
    reader.commit().await.expect("one that began later has nothing to miss");
}

/// Collects markers as fast as possible, like many clients together; with or without the guard.
async fn collect(endpoint: String, guard: bool, stop: Arc<AtomicBool>) {
    let mut client = connect(&endpoint).await.unwrap();
    while !stop.load(Ordering::Relaxed) {
        let all = DeleteOptions::new().with_prefix();
        let mut operations = vec![TxnOp::delete("h/m", Some(all))];
        if guard {
            operations.push(TxnOp::put("h/g", "", None));
        }
        client.txn(Txn::new().and_then(operations)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(if guard { 20 } else { 0 })).await;
    }
}

/// A random history while markers are collected; panics when it is not serializable.
async fn history_while_collecting(endpoints: Vec<String>, guard: bool, seed: u64) -> Summary {
    let options = EtcdOptions { prefix: "h/".into(), ..EtcdOptions::new(endpoints) };
    let store = Store::new(Arc::new(EtcdBackend::new(&options).unwrap()));
    let mut wipe = connect(&options.endpoints[0]).await.unwrap();
    wipe.delete("h/", Some(DeleteOptions::new().with_prefix())).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let collector = tokio::spawn(collect(options.endpoints[0].clone(), guard, Arc::clone(&stop)));
    let run = tokio::spawn(histories::run([store.clone(), store], 12, 80, seed)).await;
    stop.store(true, Ordering::Relaxed);
    collector.await.unwrap();
    run.expect("the history is serializable")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_serializable_while_markers_are_collected() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3).await;
    for seed in 0..3 {
        let summary = history_while_collecting(cluster.endpoints(), true, seed).await;
        assert!(summary.committed > 200 && summary.aborted > 0, "{summary:?}");
    }
    // Without the guard deletes are missed, and the checker finds it: the check works.
    for seed in 0..20 {
        let run = history_while_collecting(cluster.endpoints(), false, seed);
        if tokio::spawn(run).await.is_err() {
            return;
        }
    }
    panic!("collecting markers without the guard was not noticed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_with_small_bounds_are_named() {
    if left_out() {
        return;
    }
    let mut cluster = Cluster::launch(1, "http", &["--max-txn-ops=8".to_owned()]);
    cluster.wait_ready().await;
    let f = fixture(&cluster, "s/");
    let txn = f.store.begin();
    for n in 0..20_u8 {
        txn.put(&[n + 1], "").unwrap();
    }
    let error = txn.commit().await.unwrap_err();
    assert!(error.to_string().contains("--max-txn-ops=128"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_unavailable_and_nothing_happened() {
    let options = EtcdOptions {
        timeout: Duration::from_millis(500),
        ..EtcdOptions::new(vec!["http://127.0.0.1:1".into(), "http://127.0.0.1:2".into()])
    };
    let store = Store::new(Arc::new(EtcdBackend::new(&options).unwrap()));
    assert_eq!(kind(store.begin().get(b"a").await), Some(StoreErrorKind::Unavailable));
    let txn = store.begin();
    txn.put(b"a", "1").unwrap();
    assert_eq!(kind(txn.commit().await), Some(StoreErrorKind::Unavailable), "not Unknown");
}

struct Certificates {
    ca: String,
    server: (String, String),
    client: (String, String),
}

fn certificates() -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &ca).unwrap();
        (signed.pem(), key.serialize_pem())
    };
    Certificates { ca: ca.pem(), server: issue("etcd.test"), client: issue("millpond.test") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_passwords() {
    if left_out() {
        return;
    }
    let made = certificates();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let extra = [
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={}", file("ca.pem", &made.ca)),
        format!("--cert-file={}", file("cert.pem", &made.server.0)),
        format!("--key-file={}", file("key.pem", &made.server.1)),
    ];
    let cluster = Cluster::launch(1, "https", &extra);
    let tls = EtcdTls {
        ca: made.ca.clone(),
        identity: Some(made.client.clone()),
        domain: Some("etcd.test".into()),
    };
    let secure = EtcdOptions { tls: Some(tls.clone()), ..options(&cluster, "t/") };
    let open = |options: &EtcdOptions| Store::new(Arc::new(EtcdBackend::new(options).unwrap()));
    let store = open(&secure);
    let start = std::time::Instant::now();
    while store.begin().get(b"a").await.is_err() {
        assert!(start.elapsed() < Duration::from_mins(1), "etcd does not answer over TLS");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    put(&store, &[("a", "1")]).await;
    let bare = EtcdTls { identity: None, ..tls };
    let refused = open(&EtcdOptions { tls: Some(bare), ..secure.clone() });
    assert!(refused.begin().get(b"a").await.is_err(), "members ask for our certificate");

    enable_auth(&cluster.endpoints()[0], &made).await;
    let user = |name: &str, password: &str| {
        let user = Some((name.to_owned(), password.to_owned()));
        open(&EtcdOptions { user, ..secure.clone() })
    };
    assert_eq!(now(&user("millpond", "good"), "a").await.as_deref(), Some("1"));
    // Deletes, ranges, watches: the engine uses only keys under the prefix.
    let allowed = user("millpond", "good");
    let start = put(&allowed, &[("a", "2"), ("b", "2")]).await;
    let txn = allowed.begin();
    txn.range(&KeyRange::all(), RangeOptions::default()).await.unwrap();
    txn.delete(b"b").unwrap();
    txn.commit().await.unwrap();
    let mut watch = allowed.watch(KeyRange::all(), start).await.unwrap();
    assert_eq!(crate::watches::next(&mut watch).await.changes.len(), 1);
    let denied = Some(StoreErrorKind::Denied);
    assert_eq!(kind(user("millpond", "bad").begin().get(b"a").await), denied);
    let outside = EtcdOptions {
        prefix: "other/".into(),
        user: Some(("millpond".into(), "good".into())),
        ..secure.clone()
    };
    assert_eq!(kind(open(&outside).begin().get(b"a").await), denied, "not our prefix");
    let txn = open(&outside).begin();
    txn.put(b"a", "1").unwrap();
    assert_eq!(kind(txn.commit().await), denied);
}

/// A root user, and one that may use the keys under `t/`.
async fn enable_auth(endpoint: &str, made: &Certificates) {
    let tls = TlsOptions::new()
        .ca_certificate(etcd_client::Certificate::from_pem(&made.ca))
        .identity(etcd_client::Identity::from_pem(&made.client.0, &made.client.1))
        .domain_name("etcd.test");
    let options = Some(ConnectOptions::new().with_tls(tls));
    let mut client = etcd_client::Client::connect([endpoint], options).await.unwrap();
    for (user, password) in [("root", "secret"), ("millpond", "good")] {
        client.role_add(user).await.unwrap();
        client.user_add(user, password, None).await.unwrap();
        client.user_grant_role(user, user).await.unwrap();
    }
    let keys = Permission::new(PermissionType::Readwrite, "t/").with_prefix();
    client.role_grant_permission("millpond", keys).await.unwrap();
    client.auth_enable().await.unwrap();
}
