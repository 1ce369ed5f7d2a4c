//! Starting a whole cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use millpond_env::RealClock;

use super::plan::{Role, State};
use super::{environment, identities, network, process, status};
use crate::admin::remote::{Cluster, Where};
use crate::exit::{Outcome, told};
use crate::interrupt::Interrupt;
use crate::output;
use millpond_control::admin::{Chain, Node, Status};

/// How long chains may take to be made and to serve.
const SERVE_MAX: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(100);

/// Ports that members have.
pub(super) fn ports(state: &State) -> Vec<u16> {
    state.members.iter().flat_map(|member| [member.port, member.second_port]).collect()
}

/// Starts the cluster of a folder, or a new one as `wish` makes it.
pub(super) fn run(folder: &Path, wish: impl FnOnce(PathBuf) -> anyhow::Result<State>) -> Outcome {
    let program = std::env::current_exe().context("finding this program")?;
    let known = State::read(folder)?;
    let is_new = known.is_none();
    let mut state = match known {
        Some(mut state) => {
            if state.members.iter().any(|member| member.running().is_some()) {
                bail!(
                    "the cluster of {} is already running: 'millpond dev status' shows it, \
                     'millpond dev down' stops it",
                    folder.display()
                );
            }
            eprintln!("starting the existing cluster of {} again", folder.display());
            state.program = program;
            state
        }
        None => wish(program)?,
    };
    state.write(folder)?;
    let mut interrupt = Interrupt::install()?;
    if let Err(error) = start_all(&mut state, folder, &mut interrupt) {
        eprintln!("millpond: stopping the started processes");
        let names: Vec<String> = state.members.iter().map(|it| it.name.clone()).collect();
        process::end(&mut state, folder, &names)?;
        network::remove(&mut state);
        if is_new {
            // Its logs tell why, unless it was Ctrl-C.
            if interrupt.came() {
                std::fs::remove_dir_all(folder)?;
            } else {
                // Its disks are of no cluster any more.
                for name in &names {
                    remove_data(&folder.join(name))?;
                }
                std::fs::remove_file(folder.join("dev.json"))?;
            }
        }
        return Err(error);
    }
    let shown = status(&state, &identities(&state));
    output::bytes(format!("{shown}\n{}", environment(&state)).as_bytes())
}

/// Removes what a member keeps, but its log.
fn remove_data(home: &Path) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(home) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == process::LOG {
            continue;
        }
        let path = entry.path();
        let is_folder = entry.file_type()?.is_dir();
        let removed =
            if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn start_all(state: &mut State, folder: &Path, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    for role in [Role::Etcd, Role::Manager, Role::Storage] {
        let members = state.members.iter().filter(|member| member.role == role);
        let names: Vec<String> = members.map(|member| member.name.clone()).collect();
        let since: Vec<u64> = names.iter().map(|name| process::log_len(folder, name)).collect();
        for name in &names {
            process::start(state, folder, name)?;
        }
        for (name, since) in names.iter().zip(since) {
            process::wait_ready(folder, state.member(name)?, since, interrupt)?;
        }
    }
    wait_serving(state, interrupt)
}

/// Waits until every chain has all its replicas.
fn wait_serving(state: &State, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let mut cluster = Where::at(state.servers()).cluster()?;
    let until = RealClock::tick().plus(SERVE_MAX);
    let nodes = state.members.iter().filter(|member| member.role == Role::Storage).count();
    loop {
        let now = match cluster.status() {
            Ok(status) if serves(&status, nodes) => match cluster.chains(false) {
                Ok(chains) if chains.iter().all(begun) => return Ok(()),
                Ok(_) => "replicas are starting".to_owned(),
                Err(error) => told(&error),
            },
            Ok(status) => describe(&status, nodes),
            Err(error) => told(&error),
        };
        for member in &state.members {
            if member.running().is_none() {
                bail!("{} exited: see 'millpond dev logs {}'", member.name, member.name);
            }
        }
        if RealClock::tick() > until {
            bail!("the cluster does not serve after {SERVE_MAX:?}: {now}");
        }
        if interrupted(&mut cluster, interrupt) {
            bail!("interrupted");
        }
    }
}

fn interrupted(cluster: &mut Cluster, interrupt: &mut Interrupt) -> bool {
    interrupt.pause(LOOK) || cluster.interrupt.came()
}

/// Nodes with disks that are there; managers without disks are nodes too.
fn present(status: &Status) -> usize {
    let has_disk = |node: &&Node| status.disks.iter().any(|disk| disk.node == node.id);
    status.nodes.iter().filter(has_disk).filter(|node| node.alive).count()
}

/// Whether the replicas of a chain say that they serve: new chains are taken to until theirs say that
/// they still begin.
fn begun(chain: &Chain) -> bool {
    chain.targets.iter().all(|it| it.state == "serving" && it.local.as_deref() == Some("uptodate"))
}

fn serves(status: &Status, nodes: usize) -> bool {
    status.replicas > 0
        && status.chains_whole > 0
        && status.chains_degraded + status.chains_down + status.progress.chains_to_make == 0
        && present(status) >= nodes
}

fn describe(status: &Status, nodes: usize) -> String {
    let alive = present(status);
    let problems: Vec<&str> = status.problems.iter().map(|it| it.what.as_str()).collect();
    format!("{alive} of {nodes} nodes are present; {}", problems.join("; "))
}

#[cfg(test)]
mod tests {
    use super::serves;
    use millpond_control::admin::{Disk, Node, Status};

    fn status_with_nodes(alive: &[bool]) -> Status {
        let ids = ["n1", "n2", "n3", "m1"].map(str::to_owned);
        let nodes = ids.iter().zip(alive);
        Status {
            replicas: 2,
            chains_whole: 256,
            nodes: nodes
                .map(|(id, &alive)| Node { id: id.clone(), alive, ..Node::default() })
                .collect(),
            // The last one is a manager, which has none.
            disks: ids[..3].iter().map(|it| Disk { node: it.clone(), ..Disk::default() }).collect(),
            ..Status::default()
        }
    }

    #[test]
    fn a_cluster_serves_when_every_chain_does() {
        let whole = status_with_nodes(&[true, true, true, true]);
        assert!(serves(&whole, 3));
        assert!(!serves(&whole, 4));
        assert!(!serves(&status_with_nodes(&[true, true, false, true]), 3));
        let without_disks = Status { disks: Vec::new(), ..whole.clone() };
        assert!(!serves(&without_disks, 3));
        assert!(!serves(&Status { chains_whole: 0, ..whole.clone() }, 3));
        assert!(!serves(&Status { chains_degraded: 1, ..whole.clone() }, 3));
        assert!(!serves(&Status { replicas: 0, ..whole }, 3));
    }
}
