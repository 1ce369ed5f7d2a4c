//! One run: a cluster, clients, faults one after the other, and the verdict.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_client::Transport;
use millpond_env::Rng;
use millpond_types::BlockKey;

use super::cluster::{Cluster, Wish};
use super::fault::{self, Fault, Nemesis};
use super::history::{Deed, Entry, History};
use super::load::{Door, Load, Shared};
use super::replicas;
use super::value;

/// Nodes of every cluster.
const NODES: usize = 3;
/// Keys read in one call at the end.
const READ_KEYS: usize = 32;
/// Faults told when there are many.
const TOLD: usize = 10;

/// What one run is like.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    seed: u64,
    time: Duration,
    /// Faults are made at least once each, even if that takes longer.
    faults: Vec<Fault>,
    replicas: u8,
    stop: Duration,
    etcd: bool,
    netns: bool,
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not understood")))
}

fn list(name: &str) -> Option<Vec<String>> {
    let text: String = variable(name)?;
    Some(text.split(',').map(|word| word.trim().to_owned()).filter(|it| !it.is_empty()).collect())
}

fn say(text: &str) {
    // Not println: progress is shown while the test runs.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// An etcd to start, if one can be had.
fn has_etcd() -> bool {
    if std::env::var_os("NO_ETCD").is_some_and(|value| value == "1") {
        return false;
    }
    if std::env::var_os("MILLPOND_ETCD").is_some() {
        return true;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/etcd/build.sh");
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap().join("etcd");
    let built = Command::new("bash").arg(script).arg(target).output();
    built.is_ok_and(|built| built.status.success())
}

/// Whether network namespaces can be made.
fn has_netns() -> bool {
    let ip = |words: &[&str]| {
        let done = Command::new("ip").args(words).output();
        done.is_ok_and(|done| done.status.success())
    };
    let name = format!("mpchaos{}", std::process::id());
    ip(&["netns", "add", &name]) && ip(&["netns", "del", &name])
}

impl Options {
    /// The runs to make: short ones, or what the environment says.
    pub(crate) fn from_environment() -> Vec<Self> {
        let minutes: Option<f64> = variable("MILLPOND_CHAOS_MINUTES");
        let seed: Option<u64> = variable("MILLPOND_CHAOS_SEED");
        let faults = list("MILLPOND_CHAOS_FAULTS");
        let replicas: Option<Vec<u8>> = list("MILLPOND_CHAOS_REPLICAS")
            .map(|all| all.iter().map(|it| it.parse().expect("a number of replicas")).collect());
        let Some(minutes) = minutes else {
            return Self::short(seed.unwrap_or(1), faults.as_deref(), replicas);
        };
        let replicas = replicas.unwrap_or_else(|| vec![2, 3]);
        let seed = seed.unwrap_or_else(|| Rng::from_os().unwrap().next_u64() >> 32);
        let faults = faults.map_or_else(
            || fault::ALL.to_vec(),
            |names| names.iter().map(|name| Fault::parse(name)).collect(),
        );
        let wants = |some: &[Fault]| faults.iter().any(|fault| some.contains(fault));
        let etcd = wants(&[Fault::Manager, Fault::ManagerPartition]) && has_etcd();
        let netns = wants(&[Fault::Partition, Fault::ManagerPartition]) && has_netns();
        let runs = u32::try_from(replicas.len()).unwrap();
        let time = Duration::from_secs_f64(minutes * 60.0) / runs;
        let run = |replicas: &u8| Self {
            seed,
            time,
            faults: faults.clone(),
            replicas: *replicas,
            stop: Duration::from_secs(10),
            etcd,
            netns,
        };
        replicas.iter().map(run).collect()
    }

    /// What every test run makes: under a minute for both.
    fn short(seed: u64, faults: Option<&[String]>, replicas: Option<Vec<u8>>) -> Vec<Self> {
        let run = |replicas: u8| {
            let usual = match replicas {
                2 => [Fault::Kill, Fault::Stop, Fault::Manager],
                _ => [Fault::KillTwo, Fault::Kill, Fault::Rolling],
            };
            let named = |names: &[String]| names.iter().map(|name| Fault::parse(name)).collect();
            Self {
                seed,
                time: Duration::ZERO,
                faults: faults.map_or_else(|| usual.to_vec(), named),
                replicas,
                stop: Duration::from_secs(4),
                etcd: false,
                netns: false,
            }
        };
        replicas.unwrap_or_else(|| vec![2, 3]).into_iter().map(run).collect()
    }
}

/// Makes one run; panics with everything that was wrong.
pub(crate) fn run(options: &Options) {
    let Options { seed, replicas, .. } = *options;
    say(&format!(
        "chaos: seed {seed}, {NODES} nodes, {replicas} replicas, {}, {}",
        if options.etcd { "3 managers over etcd" } else { "1 manager" },
        if options.netns { "network namespaces" } else { "loopback" },
    ));
    let cluster = Cluster::up(Wish {
        nodes: NODES,
        replicas,
        etcd: options.etcd,
        netns: options.netns,
        size: "1GiB",
        memory: "256MiB",
    });
    let (usable, missing): (Vec<Fault>, Vec<Fault>) =
        options.faults.iter().partition(|fault| fault.missing(&cluster).is_none());
    for fault in missing {
        let why = fault.missing(&cluster).unwrap_or_default();
        say(&format!("chaos: {} is LEFT OUT: {why}", fault.name()));
    }
    let load = Load::start(&cluster.addresses(), replicas, seed);
    let shared = std::sync::Arc::clone(&load.shared);
    let broken = strike_all(options, &usable, (&cluster, &shared));
    let mut history = History::default();
    history.extend(load.stop());
    let mut faults: Vec<String> = broken.err().into_iter().collect();
    faults.extend(shared.wrong().into_iter().map(|what| format!("WRONG BYTES: {what}")));
    faults.extend(shared.errors().into_iter().map(|what| format!("client error: {what}")));
    faults.extend(end(&cluster, &mut history, "when it was quiet"));
    if faults.is_empty() {
        faults.extend(power_cut(&cluster).err());
        faults.extend(end(&cluster, &mut history, "after all were killed at once"));
    }
    faults.extend(cluster.complaints());
    let judgement = history.judge();
    faults.extend(judgement.violations.iter().map(|text| format!("NOT LINEARIZABLE: {text}")));
    say(&format!(
        "chaos: seed {seed}, {replicas} replicas: {} calls, {} operations on {} keys, {} client errors, \
         {} histories not linearizable ({} too long to judge), {} faults in all",
        shared.calls.load(Ordering::Relaxed),
        judgement.operations,
        judgement.keys,
        shared.error_count.load(Ordering::Relaxed),
        judgement.violations.len(),
        judgement.too_hard,
        faults.len(),
    ));
    if !faults.is_empty() {
        let left_out = faults.len().saturating_sub(TOLD);
        faults.truncate(TOLD);
        let all = faults.join("\n");
        panic!("seed {seed}, {replicas} replicas:\n{all}\n({left_out} more)");
    }
}

/// Makes faults until the time is over, each kind once in a round.
fn strike_all(
    options: &Options,
    usable: &[Fault],
    (cluster, load): (&Cluster, &Shared),
) -> Result<(), String> {
    let mut nemesis =
        Nemesis { cluster, load, rng: Rng::with_stream(options.seed, 0), stop: options.stop };
    let mut first = true;
    while first || load.elapsed() < options.time {
        let mut round = usable.to_vec();
        nemesis.rng.shuffle(&mut round);
        for fault in round {
            if !first && load.elapsed() >= options.time {
                break;
            }
            std::thread::sleep(Duration::from_millis(300 + nemesis.rng.below(700)));
            let usual = load.take_longest();
            let done = nemesis.strike(fault)?;
            let whole = cluster.wait_whole()?;
            say(&format!(
                "{:7.1} s  {done}; whole {:.1} s later; longest call {} (before: {usual}); {} calls, \
                 {} errors",
                load.elapsed().as_secs_f64(),
                whole.as_secs_f64(),
                load.take_longest(),
                load.calls.load(Ordering::Relaxed),
                load.error_count.load(Ordering::Relaxed),
            ));
            if load.error_count.load(Ordering::Relaxed) > 0 || !load.wrong().is_empty() {
                return Err(format!("clients met faults during '{}'", fault.name()));
            }
        }
        first = false;
    }
    Ok(())
}

/// Kills all nodes at once and starts them again.
fn power_cut(cluster: &Cluster) -> Result<(), String> {
    for node in &cluster.nodes {
        cluster.dev(&["kill", &node.name])?;
    }
    for node in &cluster.nodes {
        cluster.dev(&["start", &node.name])?;
    }
    cluster.wait_whole().map(drop)
}

/// Reads everything, from every replica and as a client does; what is wrong.
fn end(cluster: &Cluster, history: &mut History, when: &str) -> Vec<String> {
    let keys = history.keys();
    let addresses: Vec<String> = cluster.nodes.iter().map(|it| it.address.clone()).collect();
    let at = history.end() + 1;
    let mut faults = Vec::new();
    match replicas::compare((&addresses, cluster.wish.replicas), &keys, at) {
        Ok((entries, disagree)) => {
            history.extend(entries);
            faults.extend(disagree.into_iter().map(|it| format!("REPLICAS DISAGREE {when}: {it}")));
        }
        Err(error) => faults.push(format!("asking replicas {when}: {error}")),
    }
    match read_all(cluster, &keys, at + 2) {
        Ok(entries) => {
            let absent = entries.iter().filter(|entry| entry.deed == Deed::Absent);
            let lost: Vec<u64> =
                absent.map(|it| it.key).filter(|key| history.must_be_there(*key)).collect();
            faults.extend(lost.iter().map(|key| format!("LOST {when}: key {key}")));
            history.extend(entries);
        }
        Err(error) => faults.push(format!("reading {when}: {error}")),
    }
    faults
}

/// Reads keys as a client does.
fn read_all(cluster: &Cluster, keys: &[u64], at: u64) -> Result<Vec<Entry>, String> {
    let deadline = Duration::from_secs(10);
    let namespace = ("chaos", cluster.wish.replicas);
    let door = Door::open(&cluster.addresses(), namespace, Transport::Tcp, deadline)
        .map_err(|error| error.to_string())?;
    let mut entries = Vec::new();
    for page in keys.chunks(READ_KEYS) {
        let names: Vec<BlockKey> = page.iter().map(|key| value::name(*key)).collect();
        let answers = door.get(&names).map_err(|error| error.to_string())?;
        for (key, answer) in page.iter().zip(answers) {
            let deed = match answer {
                Ok(bytes) => Deed::Read(value::verify(*key, &bytes)?),
                Err(millpond_client::GetOutcome::Miss) => Deed::Absent,
                Err(other) => return Err(format!("key {key}: {other:?}")),
            };
            entries.push(Entry { key: *key, worker: 99, call: at, ret: at + 1, deed });
        }
    }
    Ok(entries)
}
