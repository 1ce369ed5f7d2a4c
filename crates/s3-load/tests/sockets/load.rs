//! Loads, journals and the findings of a check.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millpond_s3_load::client::{ClientOptions, Endpoint};
use millpond_s3_load::journal::{Journal, KeyState, Verdict};
use millpond_s3_load::load::{self, LoadOptions, Loaded, Workload};
use millpond_s3_load::proxy::{Faults, Proxy};
use millpond_s3_load::sign::Credentials;
use millpond_s3_load::verify::{self, Findings, VerifyOptions};

use crate::store::{self, Broken};

fn client() -> ClientOptions {
    ClientOptions {
        credentials: Credentials {
            access_key: "key".to_owned(),
            secret_key: "secret".to_owned(),
            region: "us-east-1".to_owned(),
        },
        bucket: "b".to_owned(),
        sign_payload: true,
        timeout: Duration::from_secs(5),
    }
}

fn options(address: SocketAddr, workload: Workload) -> LoadOptions {
    LoadOptions {
        endpoints: vec![Endpoint::parse(&format!("http://{address}")).unwrap()],
        client: client(),
        workload,
        size: 3000,
        concurrency: 4,
        threads: 2,
        time: Duration::from_millis(400),
        keys: 40,
        prefix: "load/ü ".to_owned(),
        read_percent: 30,
        delete_percent: 20,
        seed: 3,
        check_every: 1,
        journal: None,
    }
}

/// Runs a load with its own threads, as in a separate program.
async fn run(options: LoadOptions) -> Loaded {
    tokio::task::spawn_blocking(move || load::run(&options, &Arc::<AtomicBool>::default()).unwrap())
        .await
        .unwrap()
}

async fn check(address: SocketAddr, journal: Journal) -> Findings {
    let options = VerifyOptions {
        endpoint: Endpoint::parse(&format!("http://{address}")).unwrap(),
        client: client(),
        concurrency: 3,
        patience: Duration::ZERO,
        strict: true,
    };
    tokio::task::spawn_blocking(move || verify::run(&options, journal).unwrap()).await.unwrap()
}

fn journal_at(path: &Path) -> Journal {
    Journal::read(path).unwrap().unwrap()
}

#[tokio::test]
async fn each_workload_is_done_and_every_read_is_right() {
    let (address, store) = store::start().await;
    for workload in [Workload::Put, Workload::Get, Workload::Mixed, Workload::ReadAfterWrite] {
        let options = options(address, workload);
        let loaded = run(options.clone()).await;
        let report = loaded.report(&options);
        assert!(loaded.record.requests() > 40, "{report:#}");
        assert_eq!(loaded.record.errors(), load::Counts::new(), "{report:#}");
        assert_eq!(report["wrong"], 0, "{report:#}");
        let lane = |name: &str| report[name]["requests"].as_u64().unwrap_or_default();
        let did = (lane("put") > 0, lane("get") > 0, lane("delete") > 0);
        let wanted = match workload {
            Workload::Put => (true, false, false),
            Workload::Get => (false, true, false),
            Workload::Mixed => (true, true, true),
            Workload::ReadAfterWrite => (true, true, false),
        };
        assert_eq!(did, wanted, "{report:#}");
        let shown = if wanted.0 { &report["put"] } else { &report["get"] };
        assert!(shown["p50_us"].as_u64() > Some(0), "{report:#}");
        assert!(shown["p50_us"].as_u64() <= shown["max_us"].as_u64(), "{report:#}");
        assert!(check(address, loaded.journal).await.is_right(true));
        store.lock().unwrap().objects.clear();
    }
}

#[tokio::test]
async fn what_is_not_compared_is_counted_to_its_last_byte() {
    let (address, store) = store::start().await;
    let options = LoadOptions { size: 300_000, check_every: 8, ..options(address, Workload::Get) };
    let loaded = run(options.clone()).await;
    let report = loaded.report(&options);
    let (done, compared) = (&report["get"]["requests"], &report["reads"]["held"]);
    let (done, compared) = (done.as_u64().unwrap(), compared.as_u64().unwrap());
    let workers = options.concurrency as u64;
    assert!(done > 100 && compared <= done / 8 + workers, "{report:#}");
    assert_eq!(loaded.record.errors(), load::Counts::new(), "{report:#}");

    // With one byte less, every object is wrong, compared or not.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    loaded.journal.write(&path).unwrap();
    for object in store.lock().unwrap().objects.values_mut() {
        object.truncate(299_999);
    }
    let loaded = run(LoadOptions { journal: Some(path), ..options }).await;
    let seen = loaded.record.requests();
    assert_eq!((loaded.record.wrong(), seen > 4), (seen, true));
}

#[tokio::test]
async fn a_load_goes_on_with_its_journal() {
    let (address, store) = store::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let first = LoadOptions { journal: Some(path.clone()), ..options(address, Workload::Mixed) };
    run(first.clone()).await;
    let before = journal_at(&path);
    let second = run(LoadOptions { seed: 4, ..first }).await;
    assert_eq!(second.record.wrong(), 0);
    let after = journal_at(&path);
    assert_eq!(after, second.journal);
    let highest = |journal: &Journal| journal.keys.values().map(KeyState::next_seq).max();
    assert!(highest(&after) > highest(&before));
    assert!(check(address, after).await.is_right(true));

    // After the loss of all objects, each key that had one is reported as lost.
    store.lock().unwrap().objects.clear();
    let findings = check(address, before.clone()).await;
    let there = before.keys.values().filter(|key| key.is_there()).count();
    assert_eq!(findings.verdicts[&Verdict::Lost], there as u64);
    assert!(!findings.is_right(false));
}

#[tokio::test]
async fn broken_promises_are_found_while_reading_and_afterwards() {
    let cases = [
        (Broken::Lose, vec![Verdict::Lost, Verdict::Stale]),
        (Broken::Tear, vec![Verdict::Torn]),
        (Broken::Resurrect, vec![Verdict::Resurrected]),
    ];
    for (broken, wanted) in cases {
        let (address, store) = store::start().await;
        let healthy = run(options(address, Workload::Mixed)).await;
        assert_eq!(healthy.record.wrong(), 0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        healthy.journal.write(&path).unwrap();
        store.lock().unwrap().broken = broken;
        let journal = Some(path);
        let loaded =
            run(LoadOptions { journal, seed: 9, ..options(address, Workload::Mixed) }).await;
        assert!(loaded.record.wrong() > 0, "{broken:?} was not seen by reads");
        let findings = check(address, loaded.journal).await;
        assert!(!findings.is_right(false), "{broken:?} was not seen afterwards: {findings:?}");
        let found = findings.verdicts.keys().filter(|verdict| !verdict.is_right(true));
        assert!(found.clone().all(|verdict| wanted.contains(verdict)), "{broken:?}: {findings:?}");
    }
}

#[tokio::test]
async fn writes_without_an_answer_are_in_doubt_and_refused_ones_are_not() {
    for (faults, code, is_doubt) in [
        (Faults { commit_reset_rate: 0.5, seed: 5, ..Faults::default() }, "connection", true),
        (Faults { requests_per_s: 100.0, ..Faults::default() }, "SlowDown", false),
        (Faults { error_rate: 0.5, seed: 5, ..Faults::default() }, "InternalError", true),
    ] {
        let (address, _) = store::start().await;
        let proxy = Proxy::bind("127.0.0.1:0".parse().unwrap(), address, faults).await.unwrap();
        let front = proxy.address().unwrap();
        tokio::spawn(proxy.serve());
        let loaded = run(options(front, Workload::Put)).await;
        let errors = loaded.record.errors();
        assert!(errors.contains_key(code), "{errors:?}");
        let doubts: usize = loaded.journal.keys.values().map(|key| key.doubts.len()).sum();
        assert_eq!(doubts > 0, is_doubt, "{code}: {doubts} in doubt");
        // Writes executed without an answer show up, and are accepted.
        let findings = check(address, loaded.journal).await;
        assert!(findings.is_right(true), "{code}: {findings:?}");
        if code == "connection" {
            assert!(findings.verdicts[&Verdict::InDoubt] > 0, "{findings:?}");
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_an_error_that_says_so() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let error = tokio::task::spawn_blocking(move || {
        load::run(&options(address, Workload::Get), &Arc::<AtomicBool>::default()).unwrap_err()
    })
    .await
    .unwrap();
    assert_eq!(error.to_string(), "bucket b: the endpoint answered connect");
}
