//! Durable transactions per second of both engines, compared with the limits of the disk.
//!
//! `store_bench [--dir DIR] [--secs N] [--clients 1,32,256] [--etcd PATH | --endpoints URL,URL,…]`
//!
//! `--etcd` starts three members on loopback, each with its own folder on the same disk.

#![allow(clippy::disallowed_methods, reason = "a benchmark starts processes and reads clocks")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "printed figures"
)]

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond_env::Rng;
use millpond_store::{
    EmbeddedBackend, EmbeddedOptions, EtcdBackend, EtcdOptions, KeyRange, RangeOptions, Store,
    StoreError, StoreErrorKind, Transaction,
};

const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 100;

struct Args {
    dir: PathBuf,
    secs: u64,
    clients: Vec<u64>,
    etcd: Option<PathBuf>,
    endpoints: Vec<String>,
}

fn args() -> Args {
    let mut out = Args {
        dir: ".bench".into(),
        secs: 3,
        clients: vec![1, 32, 256],
        etcd: None,
        endpoints: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().expect("every option has a value");
        let list = || value.split(',').map(str::to_owned);
        match word.as_str() {
            "--dir" => out.dir = value.into(),
            "--secs" => out.secs = value.parse().expect("seconds"),
            "--clients" => out.clients = list().map(|n| n.parse().expect("a number")).collect(),
            "--etcd" => out.etcd = Some(value.into()),
            "--endpoints" => out.endpoints = list().collect(),
            _ => panic!("unknown option {word}"),
        }
    }
    out
}

/// The work of a transaction.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Reads one key.
    Read,
    /// Writes one key without reading.
    Put,
    /// Reads a key and writes it.
    Update,
    /// Reads a range of one key, deletes it and writes another: a rename.
    Move,
}

fn key(rng: &mut Rng) -> Vec<u8> {
    format!("bench/{:08}", rng.below(KEYS)).into_bytes()
}

async fn work(txn: &Transaction, kind: Work, key: &[u8], flip: bool) -> Result<(), StoreError> {
    match kind {
        Work::Read => txn.get(key).await.map(|_| ()),
        Work::Put => txn.put(key, vec![7; VALUE_BYTES]),
        Work::Update => {
            let mut value = txn.get(key).await?.unwrap_or_else(|| vec![0; VALUE_BYTES]);
            value[0] = value[0].wrapping_add(1);
            txn.put(key, value)
        }
        Work::Move => {
            let slot = [key, b"/"].concat();
            let range = KeyRange::prefix(&slot);
            let found = txn.range(&range, RangeOptions::limit(2)).await?;
            for (old, _) in &found.entries {
                txn.delete(old)?;
            }
            txn.put(&[&slot[..], &[u8::from(flip)]].concat(), vec![7; VALUE_BYTES])
        }
    }
}

/// Runs `clients` tasks for `secs` and prints a row.
async fn measure(store: &Store, engine: &str, kind: Work, clients: u64, secs: u64) {
    let conflicts = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let end = start + Duration::from_secs(secs);
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (store, conflicts) = (store.clone(), Arc::clone(&conflicts));
            tokio::spawn(async move {
                let mut rng = Rng::with_stream(1, client);
                let mut took = Vec::new();
                while Instant::now() < end {
                    let (began, key, flip) = (Instant::now(), key(&mut rng), rng.chance(1, 2));
                    let txn = store.begin();
                    let result = match work(&txn, kind, &key, flip).await {
                        Ok(()) => txn.commit().await.map(|_| ()),
                        Err(error) => Err(error),
                    };
                    match result {
                        Ok(()) => took.push(began.elapsed().as_micros() as u64),
                        Err(error) if error.kind() == StoreErrorKind::Conflict => {
                            conflicts.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("a client ran"));
    }
    let elapsed = start.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or(0);
    println!(
        "{engine:<9} {:<7} {clients:>7} {:>9.0} {:>8} {:>8} {:>9}",
        format!("{kind:?}").to_lowercase(),
        took.len() as f64 / elapsed,
        at(0.5),
        at(0.99),
        conflicts.load(Ordering::Relaxed)
    );
}

async fn measure_all(store: &Store, engine: &str, args: &Args) {
    for kind in [Work::Put, Work::Update, Work::Move, Work::Read] {
        for clients in &args.clients {
            measure(store, engine, kind, *clients, args.secs).await;
        }
    }
}

/// Appends of 4 KiB, each followed by `fdatasync`: the limit for one commit at a time.
fn raw_syncs(dir: &Path, secs: u64) {
    let path = dir.join("raw-syncs");
    let mut file = std::fs::File::create(&path).expect("a file");
    file.set_len(64 << 20).expect("room");
    file.sync_all().expect("a sync");
    let (start, mut took) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(secs) {
        let began = Instant::now();
        file.write_all(&[7; 4096]).expect("a write");
        file.sync_data().expect("a sync");
        took.push(began.elapsed().as_micros());
    }
    let rate = took.len() as f64 / start.elapsed().as_secs_f64();
    took.sort_unstable();
    let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("{:<9} {:<7} {:>7} {rate:>9.0} {p50:>8} {p99:>8}", "disk", "sync", 1);
    std::fs::remove_file(path).expect("our own file");
}

/// Three members of etcd; they end with it.
struct Members(Vec<Child>, Vec<String>);

impl Members {
    fn start(binary: &Path, dir: &Path) -> Self {
        let port = || TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
        let url = || format!("http://127.0.0.1:{}", port().expect("an address").port());
        let members: Vec<(String, String)> = (0..3).map(|_| (url(), url())).collect();
        let names: Vec<String> = (0..3).map(|n| format!("m{n}={}", members[n].1)).collect();
        let start = |n: usize| {
            let (client, peer) = &members[n];
            Command::new(binary)
                .env("MILLPOND_END_WITH_STDIN", "1")
                .args(["--name", &format!("m{n}"), "--log-level", "error"])
                .arg("--data-dir")
                .arg(dir.join(format!("m{n}")))
                .args(["--listen-client-urls", client, "--advertise-client-urls", client])
                .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
                .args(["--initial-cluster", &names.join(",")])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("etcd starts")
        };
        Self((0..3).map(start).collect(), members.into_iter().map(|member| member.0).collect())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

#[tokio::main]
async fn main() {
    let args = args();
    std::fs::create_dir_all(&args.dir).expect("a folder");
    let folder = tempfile::tempdir_in(&args.dir).expect("a folder");
    println!("engine    work    clients     txn/s   p50 µs   p99 µs conflicts");
    raw_syncs(folder.path(), args.secs);
    let options = EmbeddedOptions::new(folder.path().join("embedded"));
    let store = Store::new(Arc::new(EmbeddedBackend::open(&options).expect("a store")));
    measure_all(&store, "embedded", &args).await;
    drop(store);
    let members = args.etcd.as_ref().map(|binary| Members::start(binary, folder.path()));
    let endpoints =
        members.as_ref().map_or_else(|| args.endpoints.clone(), |members| members.1.clone());
    if endpoints.is_empty() {
        return;
    }
    let options = EtcdOptions::new(endpoints);
    let store = Store::new(Arc::new(EtcdBackend::new(&options).expect("options")));
    let start = Instant::now();
    while store.begin().get(b"ready").await.is_err() {
        assert!(start.elapsed() < Duration::from_mins(1), "etcd does not answer");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    measure_all(&store, "etcd", &args).await;
}
