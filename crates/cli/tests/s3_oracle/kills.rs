//! `kill -9` of every role while clients put, overwrite, remove and read, with faults before the object store behind.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millpond_env::Rng;
use millpond_s3_load::proxy::Faults;

use crate::cluster::{BACKED, Cluster, PLAIN, THROUGH, Wish};
use crate::etcd_members::left_out;
use crate::load::{Shared, Worker};
use crate::number;
use crate::process::{Ends, Process};
use crate::verify::verify;

/// Clients of each bucket, and the keys of each.
const WORKERS: usize = 3;
const KEYS: usize = 16;

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Gateway,
    Manager,
    Node,
    /// One of each at once.
    OneOfEach,
    /// The object store behind.
    Behind,
    /// A member of etcd.
    Store,
    /// All at once, as if the power failed everywhere.
    All,
}

const STRIKES: [Strike; 7] = [
    Strike::Gateway,
    Strike::Manager,
    Strike::Node,
    Strike::OneOfEach,
    Strike::Behind,
    Strike::All,
    // Where there is etcd.
    Strike::Store,
];

/// What can be killed in a cluster.
const fn strikes(wish: Wish) -> &'static [Strike] {
    if wish.etcd { &STRIKES } else { STRIKES.split_at(STRIKES.len() - 1).0 }
}

/// Those of the short form: a manager that comes back first waits for the end of its own lease, five seconds.
const SHORT: [Strike; 4] = [Strike::Gateway, Strike::Node, Strike::OneOfEach, Strike::All];

/// One of the faults before the object store, and what it is.
fn faults(rng: &mut Rng) -> (&'static str, Faults) {
    let seed = rng.next_u64();
    let clear = Faults { seed, ..Faults::default() };
    match rng.below(8) {
        0 => ("latency", Faults { latency_ms: (30, 70), ..clear }),
        1 => ("throttled", Faults { requests_per_s: 20.0, ..clear }),
        2 => ("500s", Faults { error_rate: 0.3, ..clear }),
        3 => ("resets", Faults { reset_rate: 0.3, ..clear }),
        4 => ("done and reset", Faults { commit_reset_rate: 0.3, ..clear }),
        5 => ("hangs", Faults { hang_rate: 0.2, latency_ms: (0, 300), ..clear }),
        6 => ("outage", Faults { outage: true, ..clear }),
        _ => ("none", clear),
    }
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Starts all again at once: some wait for others.
fn run_all(dead: &mut [&mut Process]) {
    std::thread::scope(|scope| {
        for process in dead {
            scope.spawn(|| process.run());
        }
    });
}

/// Kills, waits, and starts again; how long it was away.
fn strike(cluster: &mut Cluster, strike: Strike, rng: &mut Rng) -> Duration {
    let Cluster { gateways, nodes, managers, far, etcd, .. } = cluster;
    let (gateway, manager) = (rng.index(gateways.len()), rng.index(managers.len()));
    let node = rng.index(nodes.len());
    let mut dead: Vec<&mut Process> = match strike {
        Strike::Gateway => vec![&mut gateways[gateway]],
        Strike::Manager => vec![&mut managers[manager]],
        Strike::Node => vec![&mut nodes[node]],
        Strike::OneOfEach => {
            vec![&mut gateways[gateway], &mut managers[manager], &mut nodes[node]]
        }
        Strike::Behind => vec![far],
        Strike::Store => Vec::new(),
        Strike::All => managers.iter_mut().chain(nodes).chain(gateways).collect(),
    };
    let mut member = etcd.as_mut().filter(|_| strike == Strike::Store);
    let which = member.as_ref().map_or(0, |etcd| rng.index(etcd.count()));
    for process in &mut dead {
        process.kill();
    }
    if let Some(etcd) = &mut member {
        etcd.kill(which);
    }
    let away = Duration::from_millis(rng.below(2_000));
    pause(away);
    run_all(&mut dead);
    if let Some(etcd) = member {
        etcd.run(which);
    }
    away
}

/// The clients of a cluster.
fn workers(cluster: &Cluster, seed: u64) -> Vec<Worker> {
    let worker = |n: usize| {
        let rng = Rng::with_stream(seed, n as u64);
        let (bucket, prefix) = match n {
            0 => (BACKED, THROUGH.to_owned()),
            n if n <= WORKERS => (BACKED, format!("w{n}/")),
            _ => (PLAIN, format!("w{n}/")),
        };
        Worker::new((bucket, &prefix), KEYS, &cluster.s3, rng)
    };
    (0..=2 * WORKERS).map(worker).collect()
}

/// Has clients work while these are killed, and then others until `time` is over. There are no faults behind it.
fn cycle(
    cluster: &mut Cluster,
    (workers, shared): (&mut [Worker], &Shared),
    (strikes, then, time): (&[Strike], &[Strike], Duration),
    rng: &mut Rng,
) {
    let started = Instant::now();
    shared.stop.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _ends = Ends(&shared.stop);
        for worker in workers {
            scope.spawn(|| worker.run(shared));
        }
        let mut kinds = strikes.iter();
        loop {
            let due = kinds.next().copied();
            if due.is_none() && started.elapsed() >= time {
                // Writes that go through wait for it.
                cluster.faults(&Faults::default());
                break;
            }
            let kind = due.unwrap_or_else(|| then[rng.index(then.len())]);
            let (fault, faults) = faults(rng);
            cluster.faults(&faults);
            pause(Duration::from_millis(200 + rng.below(1_000)));
            let acked = shared.acked.load(Ordering::Relaxed);
            let away = strike(cluster, kind, rng);
            let back = Instant::now();
            // The next one may hit the other replica of a chain.
            cluster.await_whole();
            println!(
                "{:6.1} s: {kind:?} away for {away:.1?}, whole {:.1?} later; behind: {fault}; {acked} writes before",
                started.elapsed().as_secs_f64(),
                back.elapsed()
            );
        }
    });
}

fn tell(shared: &Shared, seed: u64) {
    let get = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    println!(
        "seed {seed}: {} writes, {} in doubt, {} reads ({} late), {} lists, {} uploads, {} copies, {} \
         conditions not met ({} judged); failures {:#?}",
        get(&shared.acked),
        get(&shared.doubts),
        get(&shared.reads),
        get(&shared.late),
        get(&shared.lists),
        get(&shared.uploads),
        get(&shared.copies),
        get(&shared.unmet),
        get(&shared.judged),
        shared.failures.lock().unwrap()
    );
}

/// Runs cycles for so long, one at least. Panics when something is wrong.
fn run(wish: Wish, (first, time): (&[Strike], Duration), seed: u64) {
    println!("seed {seed}, {wish:?}");
    let started = Instant::now();
    let mut cluster = Cluster::start(wish);
    let mut rng = Rng::new(seed);
    let mut workers = workers(&cluster, seed);
    let shared = Shared::default();
    println!("{:6.1} s: the cluster stands", started.elapsed().as_secs_f64());
    let mut cycles = 0;
    while cycles == 0 || started.elapsed() < time {
        let due = if cycles == 0 { first } else { &[] };
        // What waits is looked through once in a minute.
        let load = time.saturating_sub(started.elapsed()).min(Duration::from_mins(1));
        let plan = (due, strikes(wish), load);
        cycle(&mut cluster, (&mut workers, &shared), plan, &mut rng);
        let begun = Instant::now();
        verify(&cluster, &mut workers, &shared);
        println!("cycle {cycles}: all was read and had drained within {:?}", begun.elapsed());
        tell(&shared, seed);
        let wrong = shared.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        let complaints = cluster.complaints();
        assert!(complaints.is_empty(), "seed {seed}: {complaints:#?}");
        cycles += 1;
    }
    assert!(shared.acked.load(Ordering::Relaxed) > 50, "clients could not write");
    assert!(shared.judged.load(Ordering::Relaxed) > 5, "conditions were not judged");
    assert!(shared.copies.load(Ordering::Relaxed) > 0, "nothing was copied");
}

/// The seed of this run.
fn seed() -> u64 {
    number("MILLPOND_S3_KILL_SEED", Rng::from_os().unwrap().below(1_000_000))
}

#[test]
fn killed_processes_lose_nothing() {
    let minutes: u64 = number("MILLPOND_S3_KILL_MINUTES", 0);
    let time = Duration::from_mins(minutes);
    let seed = seed();
    if minutes == 0 {
        run(Wish { replicas: 2, etcd: false }, (&SHORT, time), seed);
        return;
    }
    let long = |wish, seed| run(wish, (strikes(wish), time / 2), seed);
    long(Wish { replicas: 2, etcd: false }, seed);
    if !left_out() {
        long(Wish { replicas: 3, etcd: true }, seed + 1);
    }
}
