//! Programs with mapped files on mounts whose daemon and servers die again and again, and at last for good: nothing that they
//! wrote is wrong, and nobody waits for ever. `MILLPOND_SOAK_SECONDS` makes it longer (`make mount-soak`).

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millpond_env::Rng;

use super::host::{Host, left_out};
use crate::conformance::tools;
use crate::process::{Cluster, Process, until};

/// A call is answered or fails within this; what is away comes back sooner.
const TIMEOUT: &str = "timeout=20s";
const AWAY: Duration = Duration::from_secs(2);
/// How long the programs may take to end once all servers are gone: a page that cannot be written back is tried a few times.
const ENDS: Duration = Duration::from_secs(150);

/// One `fsx`, which maps its file, and reads, writes and cuts it, until something is wrong.
struct Program {
    child: Child,
    what: String,
    said: std::path::PathBuf,
}

impl Program {
    fn start(folder: &Path, artifacts: &Path, seed: u64) -> Self {
        let said = artifacts.join(format!("said{seed}"));
        let out = std::fs::File::create(&said).unwrap();
        let seed = seed.to_string();
        let mut fsx = Command::new(tools().join("fsx"));
        fsx.args(["-N", "1000000000", "-S", &seed, "-P"]).arg(artifacts);
        fsx.arg(folder.join(format!("file{seed}")));
        fsx.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        let what = format!("fsx with seed {seed} in {}", folder.display());
        Self { child: fsx.spawn().unwrap(), what, said }
    }

    fn said(&self) -> String {
        let text = std::fs::read_to_string(&self.said).unwrap_or_default();
        let from = text.len().saturating_sub(4000);
        text.get(from..).unwrap_or(&text).to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn soak_time() -> Duration {
    let seconds = std::env::var("MILLPOND_SOAK_SECONDS").ok().and_then(|it| it.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// Something dies or stands still, and comes back.
fn fault(host: &Host, cluster: &mut Cluster, rng: &mut Rng) -> &'static str {
    let node = usize::try_from(rng.below(3)).unwrap();
    match rng.below(5) {
        0 => {
            host.kill_daemon();
            "the daemon was killed"
        }
        1 => {
            host.must(&["mounts", "upgrade"]);
            "the daemon was upgraded"
        }
        2 => {
            cluster.nodes[node].stand_still();
            thread::sleep(AWAY);
            cluster.nodes[node].signal("CONT");
            "a node stood still"
        }
        3 => {
            cluster.manager.stand_still();
            thread::sleep(AWAY);
            cluster.manager.signal("CONT");
            "the manager stood still"
        }
        _ => {
            cluster.nodes[node].kill();
            thread::sleep(AWAY);
            cluster.nodes[node].run();
            "a node was killed and started"
        }
    }
}

#[test]
fn mapped_files_outlive_daemons_and_servers_and_nobody_waits_for_ever() {
    if left_out() {
        return;
    }
    let time = soak_time();
    let mut cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, time + ENDS + Duration::from_mins(5));
    let mounts = ["", "mode=strict,", "nodelegations,"].map(|options| {
        host.mount(&format!("of-{}", options.len()), &format!("{options}{TIMEOUT}"))
    });
    let artifacts = cluster.folder.path().to_owned();
    let start = |n: u64| Program::start(&mounts[usize::try_from(n % 3).unwrap()], &artifacts, n);
    let mut programs: Vec<Program> = (1..=5).map(start).collect();
    let (mut rng, begun, mut last) = (Rng::new(32), Instant::now(), "nothing happened yet");
    while begun.elapsed() < time {
        for program in &mut programs {
            let ended = program.child.try_wait().unwrap();
            let what = &program.what;
            assert!(ended.is_none(), "{what} ended, {last}:\n{}", program.said());
        }
        last = fault(&host, &mut cluster, &mut rng);
        until("every replica serves", || cluster.nodes[0].all_serve().then_some(()));
        thread::sleep(Duration::from_millis(200 + rng.below(800)));
    }
    cluster.nodes.iter_mut().for_each(Process::kill);
    cluster.manager.kill();
    let gone = Instant::now();
    for program in &mut programs {
        let mut ended = None;
        while ended.is_none() && gone.elapsed() < ENDS {
            ended = program.child.try_wait().unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        assert!(ended.is_some(), "{} waits for ever\n{}", program.what, host.log());
        let said = program.said();
        assert!(!said.contains("miscompare"), "{}: {said}", program.what);
    }
    assert!(host.status().is_some(), "the daemon answers");
}
