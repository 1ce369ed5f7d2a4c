//! Faults of a real etcd cluster while clients write: kill -9 and SIGSTOP of followers and leaders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millpond_store::{KeyRange, RequestId, Store, StoreError, StoreErrorKind};

use crate::cluster::{Cluster, left_out};
use crate::conformance::{now, put};
use crate::etcd::fixture;
use crate::histories::Run;
use crate::watches::Copy;

/// Commits that must follow each fault, and the time for them: an election (1 to 2 s), calls that
/// time out (2 s), and slow machines.
const PROGRESS: usize = 40;
const PATIENCE: Duration = Duration::from_mins(1);

async fn wait_for_progress(run: &Run, what: &str) -> Duration {
    let (start, goal) = (Instant::now(), run.committed() + PROGRESS);
    while run.committed() < goal {
        assert!(start.elapsed() < PATIENCE, "nothing is committed after: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    start.elapsed()
}

/// Adds one to a counter per request, each until it is certain; returns how many.
async fn count_requests(store: Store, client: u64, stop: Arc<AtomicBool>) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let request = RequestId { epoch: 1, id: u128::from(client) << 64 | u128::from(done) };
        let reply = store
            .transact_once(request, |txn| async move {
                let old = txn.get(b"w/count").await?;
                let old = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
                txn.put(b"w/count", (old + 1).to_le_bytes())?;
                Ok::<_, StoreError>(vec![])
            })
            .await;
        match reply {
            Ok(_) => done += 1,
            // Repeats the same request until its outcome is known.
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    StoreErrorKind::Unknown
                        | StoreErrorKind::Unavailable
                        | StoreErrorKind::Conflict
                ),
                "{error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    done
}

async fn break_things(cluster: &mut Cluster, run: &Run) {
    let mut report = Vec::new();
    let follower = |leader: usize, cluster: &Cluster| (leader + 1) % cluster.len();
    wait_for_progress(run, "the start").await;

    let leader = cluster.leader().await;
    let victim = follower(leader, cluster);
    cluster.kill(victim);
    report.push(("kill -9 of a follower", wait_for_progress(run, "kill of a follower").await));
    cluster.start_member(victim);
    cluster.wait_ready().await;

    let leader = cluster.leader().await;
    cluster.kill(leader);
    report.push(("kill -9 of the leader", wait_for_progress(run, "kill of the leader").await));
    cluster.start_member(leader);
    cluster.wait_ready().await;

    let leader = cluster.leader().await;
    cluster.stop(leader);
    report.push(("SIGSTOP of the leader", wait_for_progress(run, "stop of the leader").await));
    cluster.resume(leader);
    cluster.wait_ready().await;

    let victim = follower(cluster.leader().await, cluster);
    cluster.stop(victim);
    report.push(("SIGSTOP of a follower", wait_for_progress(run, "stop of a follower").await));
    cluster.resume(victim);
    cluster.wait_ready().await;

    // Two of three: nothing can be committed, and everything continues when they are back.
    let (one, two) = (0, 1);
    cluster.kill(one);
    cluster.kill(two);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cluster.start_member(one);
    cluster.start_member(two);
    report.push(("kill -9 of two of three", wait_for_progress(run, "loss of the quorum").await));
    for (what, took) in report {
        println!("{what}: {PROGRESS} commits later after {} ms", took.as_millis());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_serializable_and_nothing_is_lost_or_done_twice() {
    if left_out() {
        return;
    }
    let mut cluster = Cluster::start(3).await;
    let f = fixture(&cluster, "faults/");
    let stop = Arc::new(AtomicBool::new(false));
    let run = Run::new();
    let clients: Vec<_> = (0..6)
        .map(|n| {
            let store = if n % 2 == 0 { f.store.clone() } else { f.other.clone() };
            let stop = Arc::clone(&stop);
            let go_on = move |_| !stop.load(Ordering::Relaxed);
            tokio::spawn(Arc::clone(&run).client(store, n, go_on))
        })
        .collect();
    let counters: Vec<_> = (0..2)
        .map(|n| {
            let store = if n % 2 == 0 { f.store.clone() } else { f.other.clone() };
            tokio::spawn(count_requests(store, n, Arc::clone(&stop)))
        })
        .collect();
    let follower = {
        let store = f.other.clone();
        tokio::spawn(async move { follow(&store).await })
    };

    break_things(&mut cluster, &run).await;

    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let mut requests = 0;
    for counter in counters {
        requests += counter.await.unwrap();
    }
    let summary = run.finish(&f.store).await;
    println!("{summary:?}, {requests} requests counted exactly once");
    let count = f.store.begin().get(b"w/count").await.unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(count.clone().try_into().unwrap()), requests, "exactly once");
    put(&f.store, &[("w/end", "")]).await;
    assert_eq!(follower.await.unwrap(), count, "the watch has seen the last change");
    assert_eq!(now(&f.other, "w/end").await.as_deref(), Some(""));
}

/// Follows the counter until the end, over every fault. Returns its last value.
async fn follow(store: &Store) -> Vec<u8> {
    let mut copy = Copy::new(store, &KeyRange::prefix(b"w/"));
    // A follower without any member for long returns an error, and continues when called again.
    while let Err(error) = copy.until(b"w/end").await {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    copy.state[&b"w/count"[..]].clone()
}
