//! Three managers over a real etcd: one is primary, another one follows it, and data does not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millpond_client::{Client, ClientOptions, GetOutcome, Room, Value};
use millpond_control::admin::Status;
use millpond_kv::{Batch, BlockStore as _, Namespace};
use millpond_types::wire::ItemStatus;
use millpond_types::{Ack, BlockKey, NamespaceOptions};

use crate::etcd_members::{Etcd, left_out};
use crate::process::{Chains as _, Process, until};

/// The manager that is primary, by what nodes are told.
fn primary(node: &Process, managers: &[Process]) -> Option<usize> {
    let status = node.glance()?;
    managers.iter().position(|manager| status.primary.contains(&manager.address))
}

#[test]
fn a_manager_shows_its_certificate_to_a_store_that_wants_one() {
    if left_out() {
        return;
    }
    let etcd = Etcd::start_secure();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| etcd.file(name));
    let text =
        format!("[cluster]\nstore_ca = \"{ca}\"\nstore_cert = \"{cert}\"\nstore_key = \"{key}\"\n");
    std::fs::write(&config, text).unwrap();
    let (store, config) = (etcd.store(), config.display().to_string());
    let flags = ["--manager", "--no-storage", "--form-nodes", "1", "--store", &store];
    let flags = [&flags[..], &["--config", &config]].concat();
    let manager = Process::start(folder.path(), "manager", &flags);
    let node = Process::start(folder.path(), "node", &["--join", &manager.address]);
    until("chains", || node.status().filter(|status| status.chains() > 0));
    let status = node.glance().unwrap();
    assert!(status.primary.contains(&manager.address));
}

#[test]
fn another_manager_follows_a_primary_that_was_killed_frozen_or_stopped() {
    if left_out() {
        return;
    }
    // One member is enough here.
    let etcd = Etcd::start(1);
    let folder = tempfile::tempdir().unwrap();
    let store = etcd.store();
    let flags = ["--manager", "--no-storage", "--store", &store, "--form-nodes", "2"];
    let mut managers: Vec<Process> =
        (0..3).map(|n| Process::start(folder.path(), &format!("manager{n}"), &flags)).collect();
    let all: Vec<&str> = managers.iter().map(|manager| manager.address.as_str()).collect();
    let all = all.join(",");
    let nodes: Vec<Process> = (0..2)
        .map(|n| Process::start(folder.path(), &format!("node{n}"), &["--join", &all]))
        .collect();
    until("chains", || nodes[0].status().filter(|status| status.chains() > 0));
    let made = nodes[0].wire().open("kept", 1).unwrap();
    let mut term = nodes[0].status().unwrap().term;

    for how in ["KILL", "STOP", "TERM"] {
        let first = until("a primary", || primary(&nodes[0], &managers)).0;
        let started = Instant::now();
        match how {
            "KILL" => managers[first].kill(),
            "TERM" => drop(managers[first].stop()),
            _ => managers[first].signal(how),
        }
        let next = until("another primary", || {
            let status = nodes[1].glance().filter(|status| status.term > term)?;
            let found = primary(&nodes[1], &managers)?;
            // Not before: the node may know a new term and ask nobody yet.
            term = status.term;
            Some(found)
        });
        let took = started.elapsed();
        eprintln!("SIG{how}: a new primary answered after {took:?}");
        assert_ne!(next.0, first);
        // Who stops gives its lease back: nobody waits for the end of it, which takes 5 s.
        let limit = if how == "TERM" { 4 } else { 7 };
        assert!(took < Duration::from_secs(limit), "SIG{how}: {took:?}");
        until("all nodes are heard", || {
            let status = nodes[0].status()?;
            let mut ours = status.nodes.iter().filter(|node| {
                nodes.iter().any(|process| node.addresses.contains(&process.address))
            });
            ours.all(|node| node.alive).then_some(())
        });
        assert_eq!(nodes[1].wire().open("kept", 1).unwrap(), made);
        match how {
            "STOP" => managers[first].signal("CONT"),
            _ => managers[first].run(),
        }
    }
    // The one that was frozen stands by, and did not act on what it believed.
    let status = until("status", || nodes[0].status()).0;
    assert_eq!(status.term, term);
    assert!(managers.iter_mut().all(|manager| !manager.has_ended()));
}

/// Clients that put and get all the time.
struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Done>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Calls count from now on.
    counts: AtomicBool,
    rounds: AtomicUsize,
    errors: AtomicUsize,
}

/// What one client did since calls count.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    puts: usize,
    gets: usize,
    longest: Duration,
}

impl Load {
    /// Starts two clients, and lets calls count once both have warmed up: chains that have just been
    /// made wait for a lease.
    fn start(nodes: &[Process], namespace: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
        let addresses = addresses.join(",");
        let run = |thread: usize| {
            let client = Client::new(ClientOptions::new(addresses.parse().unwrap())).unwrap();
            let options = NamespaceOptions { ack: Ack::Disk, ..NamespaceOptions::default() };
            let blocks = Namespace::open(&client, namespace, true, options).unwrap();
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.run(&blocks, thread))
        };
        let threads = (0..2).map(run).collect();
        until("first puts", || (shared.rounds.load(Ordering::Relaxed) > 500).then_some(()));
        shared.counts.store(true, Ordering::Relaxed);
        Self { shared, threads }
    }

    /// Ends it; what both clients did, and how many of all calls failed.
    fn end(self) -> (Done, usize) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let all = self.threads.into_iter().map(|thread| thread.join().unwrap());
        let sum = all.fold(Done::default(), |a, b| Done {
            puts: a.puts + b.puts,
            gets: a.gets + b.gets,
            longest: a.longest.max(b.longest),
        });
        (sum, self.shared.errors.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn run(&self, blocks: &Namespace, thread: usize) -> Done {
        let mut done = Done::default();
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let counts = self.counts.load(Ordering::Relaxed);
            match round(blocks, thread, n) {
                Ok(longest) if counts => {
                    done.puts += 1;
                    done.gets += 1;
                    done.longest = done.longest.max(longest);
                }
                Ok(_) => {}
                Err(error) => {
                    eprintln!("client {thread}: {error}");
                    self.errors.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        done
    }
}

/// Puts a block and gets an older one; how long the slower of the two calls took.
fn round(blocks: &Namespace, thread: usize, n: usize) -> Result<Duration, String> {
    let name = |n: usize| BlockKey::new(format!("{thread}-{n}").as_bytes()).unwrap();
    let value = |n: usize| vec![(n % 251).to_le_bytes()[0]; 4096];
    let started = Instant::now();
    let put = blocks.put(Batch::own(&[name(n)]), &[Value::One(&value(n))]);
    let put = put.map_err(|error| format!("put {n}: {error}"))?;
    let took = started.elapsed();
    if put != [ItemStatus::Ok] {
        return Err(format!("put {n}: {put:?}"));
    }
    let (started, old) = (Instant::now(), n / 2);
    let mut room = vec![0; 4096];
    let got = blocks.get(Batch::own(&[name(old)]), &mut [Room::One(&mut room)]);
    let got = got.map_err(|error| format!("get {old}: {error}"))?;
    let took = took.max(started.elapsed());
    if got != [GetOutcome::Read(4096)] || room != value(old) {
        return Err(format!("get {old}: {got:?}"));
    }
    Ok(took)
}

#[test]
fn data_does_not_notice_that_the_primary_manager_and_a_member_of_etcd_die() {
    if left_out() {
        return;
    }
    let mut etcd = Etcd::start(3);
    let folder = tempfile::tempdir().unwrap();
    let store = etcd.store();
    let flags = ["--manager", "--no-storage", "--store", &store];
    let form = [&flags[..], &["--form-nodes", "3", "--replicas", "2"]].concat();
    let mut managers: Vec<Process> =
        (0..3).map(|n| Process::start(folder.path(), &format!("manager{n}"), &form)).collect();
    let all: Vec<&str> = managers.iter().map(|manager| manager.address.as_str()).collect();
    let all = all.join(",");
    let nodes: Vec<Process> = (0..3)
        .map(|n| Process::start(folder.path(), &format!("node{n}"), &["--join", &all]))
        .collect();
    until("chains", || nodes[0].status().filter(Status::is_whole));
    let load = Load::start(&nodes, "managers");

    let (first, _) = until("a primary", || primary(&nodes[0], &managers));
    let term = until("status", || nodes[0].status()).0.term;
    managers[first].kill();
    let killed = Instant::now();
    until("another primary", || nodes[1].glance().filter(|status| status.term > term));
    let took = killed.elapsed();
    std::thread::sleep(Duration::from_secs(2));
    let (done, errors) = load.end();
    eprintln!("SIGKILL of the primary manager: a new one answered after {took:?}");
    eprintln!(
        "{} puts and {} gets meanwhile, {errors} errors, the longest took {:?}",
        done.puts, done.gets, done.longest
    );
    assert!(took < Duration::from_secs(7), "{took:?}");
    assert_eq!(errors, 0);
    assert!(done.puts > 100 && done.gets > 100, "{done:?}");

    // Two of three members of etcd are enough to change things.
    let load = Load::start(&nodes, "etcd");
    etcd.kill(0);
    let killed = Instant::now();
    until("a namespace", || nodes[2].wire().open("after", 2).ok());
    eprintln!("a namespace was made {:?} after a member of etcd died", killed.elapsed());
    let (done, errors) = load.end();
    assert_eq!(errors, 0, "{done:?}");
}
