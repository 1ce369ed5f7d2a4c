//! `millpond admin`: a running cluster.

mod names;
pub(super) mod remote;
mod show;
mod wait;

use std::time::Duration;

use anyhow::bail;
use millpond_types::limits::REPLICAS_MAX;
use millpond_types::wire::{NamespacesReply, Verb};
use serde_json::json;

use self::names::Named;
pub(super) use self::names::Short;
use self::remote::{Cluster, Where};
use self::wait::Waited;
use super::output;
use crate::exit::{FAILED, OK, Outcome};
use millpond_control::admin::Command as Request;

pub(super) const EXAMPLES: &str =
    "Name a node or a disk by the first digits of its identity; a node also by its address or host.

Examples:
  millpond admin status
  millpond admin --server 10.0.0.1:7440,10.0.0.2:7440 chains --unhealthy
  millpond admin drain 6f1c --wait && millpond admin remove 6f1c
  millpond admin set rebalance.bytes_per_second 500MiB
  millpond admin events --follow";

/// Where the cluster is, and what to do.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    at: Where,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the cluster on one screen, with problems and their fixes.
    Status {
        /// Exit with 1 if there is a problem.
        #[arg(long)]
        check: bool,
    },
    /// List nodes.
    Nodes,
    /// List disks.
    Disks,
    /// List targets: the replicas of chains on disks, with their sync progress.
    Targets {
        /// Only targets on this node or disk.
        #[arg(long, value_name = "NODE|DISK")]
        on: Option<String>,
    },
    /// List chains and their targets, head first.
    Chains {
        /// Only chains with a target that does not serve or that moves.
        #[arg(long)]
        unhealthy: bool,
    },
    /// Show the distribution of slots over chains, and the slots that move.
    Slots,
    /// List namespaces.
    Namespaces,
    /// List recent events.
    Events {
        /// Continue with new events, until Ctrl-C.
        #[arg(long, short)]
        follow: bool,
        /// Number of the newest events to show.
        #[arg(long, short = 'n', default_value_t = 50)]
        last: usize,
    },
    /// Show the settings of the cluster.
    Config,
    /// Change a setting of the cluster; `replicas` raises the replica count of every chain.
    Set {
        /// Name of the setting.
        name: String,
        /// Value of the setting.
        value: String,
    },
    /// Reset a setting to its default.
    Unset {
        /// Name of the setting.
        name: String,
    },
    /// Make the chains of a new cluster, or a further table of chains with another replica count.
    ///
    /// The first replica count is the default for all data. Rules of S3 buckets
    /// (`millpond s3 rules set --replicas R`) use further tables. A table stays once it is made,
    /// and has no data until a rule uses it.
    Form {
        /// Replicas of every new chain.
        #[arg(long, value_name = "R", value_parser = clap::value_parser!(u8).range(1..=i64::from(REPLICAS_MAX)))]
        replicas: u8,
    },
    /// Empty a node or a disk; it serves until it is empty.
    Drain {
        /// Node or disk.
        #[arg(value_name = "NODE|DISK")]
        name: String,
        /// Wait until it is empty; Ctrl-C ends the wait, not the drain.
        #[arg(long)]
        wait: bool,
    },
    /// End a drain; the node or disk takes its share of the data again.
    Undrain {
        /// Node or disk.
        #[arg(value_name = "NODE|DISK")]
        name: String,
    },
    /// Move one replica of a chain to another disk.
    Move {
        /// Number of the chain.
        chain: u32,
        /// Number of the target that leaves the chain.
        target: u32,
        /// Disk of the new replica.
        disk: String,
        /// Wait until it has moved; Ctrl-C ends the wait, not the move.
        #[arg(long)]
        wait: bool,
    },
    /// Move a slot with its values to another chain; reads still hit during the move.
    MoveSlot {
        /// Number of the slot, 0 to 65535.
        slot: u16,
        /// Number of the new chain.
        chain: u32,
        /// Wait until it has moved; Ctrl-C ends the wait, not the move.
        #[arg(long)]
        wait: bool,
    },
    /// Declare a disk lost: its replicas are rebuilt from the others at once.
    Lose {
        /// Disk.
        disk: String,
        /// Confirm; without it the command only reports the data at risk.
        #[arg(long)]
        yes: bool,
    },
    /// Remove a node that is empty and does not run.
    Remove {
        /// Node.
        node: String,
    },
    /// Start no new moves; running moves finish.
    Pause,
    /// Resume moves.
    Resume,
}

/// Runs it.
pub(super) fn run(args: &Args) -> Outcome {
    if matches!(args.command, Command::Namespaces) {
        return namespaces(args);
    }
    let mut cluster = args.at.cluster()?;
    match &args.command {
        Command::Status { .. }
        | Command::Nodes
        | Command::Disks
        | Command::Targets { .. }
        | Command::Chains { .. }
        | Command::Slots
        | Command::Config => look(args, &mut cluster),
        Command::Events { follow, last } => events(args, &mut cluster, (*follow, *last)),
        command => change(args, &mut cluster, command),
    }
}

fn json_line(value: &impl serde::Serialize) -> Outcome {
    output::line(&serde_json::to_string(value)?)
}

fn text(text: &str) -> Outcome {
    output::bytes(text.as_bytes())
}

/// Commands that only look.
fn look(args: &Args, cluster: &mut Cluster) -> Outcome {
    match &args.command {
        Command::Targets { on } => targets(args, cluster, on.as_deref()),
        Command::Chains { unhealthy } => {
            let chains = cluster.chains(*unhealthy)?;
            if args.json {
                return json_line(&chains);
            }
            text(&show::chains(&chains, Short::of(&cluster.status()?)))
        }
        Command::Slots => {
            let (chains, status) = (cluster.chains(false)?, cluster.status()?);
            let moving = cluster.slots()?;
            if args.json {
                let held: Vec<_> = chains
                    .iter()
                    .map(|chain| json!({"chain": chain.id, "slots": chain.slots}))
                    .collect();
                let (progress, totals) = (status.progress, status.slots);
                return json_line(&json!({
                    "chains": held, "moving": moving, "waiting": progress.slots_waiting,
                    "totals": totals,
                }));
            }
            text(&show::slots(&chains, &moving, &status))
        }
        Command::Config => {
            let config = cluster.config()?;
            if args.json { json_line(&config) } else { text(&show::config(&config)) }
        }
        command => {
            let status = cluster.status()?;
            match (command, args.json) {
                (Command::Nodes, true) => json_line(&status.nodes),
                (Command::Nodes, false) => text(&show::nodes(&status)),
                (Command::Disks, true) => json_line(&status.disks),
                (Command::Disks, false) => text(&show::disks(&status)),
                (_, true) => json_line(&status),
                (_, false) => text(&show::status(&status)),
            }?;
            let check = matches!(command, Command::Status { check: true });
            Ok(if check && !status.problems.is_empty() { FAILED } else { OK })
        }
    }
}

fn targets(args: &Args, cluster: &mut Cluster, on: Option<&str>) -> Outcome {
    let status = cluster.status()?;
    let mut chains = cluster.chains(false)?;
    if let Some(name) = on {
        let on = names::either(&status, name)?;
        for chain in &mut chains {
            chain.targets.retain(|target| match on {
                Named::Node(node) => target.node == node.id,
                Named::Disk(disk) => target.disk == disk.id,
            });
        }
    }
    if args.json {
        let all: Vec<_> = chains
            .iter()
            .flat_map(|chain| chain.targets.iter().map(move |it| (chain.id, it)))
            .map(|(chain, target)| {
                let mut value = serde_json::to_value(target).unwrap_or_default();
                value["chain"] = chain.into();
                value
            })
            .collect();
        return json_line(&all);
    }
    text(&show::targets(&chains, Short::of(&status)))
}

fn events(args: &Args, cluster: &mut Cluster, (follow, last): (bool, usize)) -> Outcome {
    const LOOK: Duration = Duration::from_millis(500);
    let mut from = 0;
    let mut skip_to = Some(last);
    loop {
        let mut events = cluster.events(from)?;
        if let Some(last) = events.last() {
            from = last.number + 1;
        }
        if let Some(last) = skip_to.take() {
            events.drain(..events.len().saturating_sub(last));
        }
        for event in &events {
            if args.json { json_line(event) } else { text(&show::event(event)) }?;
        }
        if !follow || cluster.interrupt.pause(LOOK) {
            return Ok(OK);
        }
    }
}

/// Commands that change something.
fn change(args: &Args, cluster: &mut Cluster, command: &Command) -> Outcome {
    let set =
        |name: &str, value: &str| Request::Set { name: name.to_owned(), value: value.to_owned() };
    let said = match command {
        Command::Set { name, value } if value.is_empty() => {
            bail!("the value is empty: 'millpond admin unset {name}' restores the default")
        }
        Command::Set { name, value } => cluster.change(&set(name, value))?,
        Command::Unset { name } => {
            cluster.change(&set(name, ""))?;
            format!("{name} has its default again")
        }
        Command::Pause => {
            cluster.change(&set("rebalance.paused", "true"))?;
            "no new moves start; running moves finish".to_owned()
        }
        Command::Resume => {
            cluster.change(&set("rebalance.paused", ""))?;
            "moves go on".to_owned()
        }
        Command::Form { replicas } => cluster.change(&Request::Form { replicas: *replicas })?,
        Command::Drain { name, wait } => return drain(args, cluster, (name, *wait)),
        Command::Undrain { name } => {
            let status = cluster.status()?;
            cluster.change(&drain_request(names::either(&status, name)?, false))?
        }
        Command::Move { chain, target, disk, wait } => {
            return move_target(args, cluster, (*chain, *target, disk), *wait);
        }
        Command::MoveSlot { slot, chain, wait } => {
            return move_slot(args, cluster, (*slot, *chain), *wait);
        }
        Command::Lose { disk, yes } => lose(cluster, disk, *yes)?,
        Command::Remove { node } => {
            let status = cluster.status()?;
            let node = names::node(&status, node)?.id.clone();
            cluster.change(&Request::RemoveNode { node })?
        }
        _ => unreachable!("the other commands only look"),
    };
    told(args, &said)
}

fn told(args: &Args, said: &str) -> Outcome {
    if args.json { json_line(&json!({"answer": "done", "text": said})) } else { output::line(said) }
}

fn drain_request(of: Named<'_>, on: bool) -> Request {
    match of {
        Named::Node(node) => Request::DrainNode { node: node.id.clone(), on },
        Named::Disk(disk) => Request::DrainDisk { disk: disk.id.clone(), on },
    }
}

fn drain(args: &Args, cluster: &mut Cluster, (name, wait): (&str, bool)) -> Outcome {
    let status = cluster.status()?;
    let of = names::either(&status, name)?;
    let said = cluster.change(&drain_request(of, true))?;
    if !wait {
        return told(args, &said);
    }
    eprintln!("{said}");
    let ended = match wait::drain(cluster, of)? {
        Waited::Done => return told(args, &format!("'{name}' is empty")),
        Waited::Interrupted => format!(
            "the drain continues; 'millpond admin drain {name} --wait' waits again, \
             'millpond admin undrain {name}' ends it"
        ),
        Waited::Ended(why) => why,
    };
    bail!(ended)
}

fn move_target(
    args: &Args,
    cluster: &mut Cluster,
    (chain, target, disk): (u32, u32, &str),
    wait: bool,
) -> Outcome {
    let status = cluster.status()?;
    let disk = names::disk(&status, disk)?.id.clone();
    let said = cluster.change(&Request::MoveTarget { chain, target, disk: disk.clone() })?;
    if !wait {
        return told(args, &said);
    }
    eprintln!("{said}");
    match wait::moved(cluster, chain, &disk)? {
        Waited::Done => told(args, &format!("target {target} of chain {chain} has moved")),
        Waited::Interrupted => {
            bail!("the move continues; 'millpond admin chains --unhealthy' shows it")
        }
        Waited::Ended(why) => bail!(why),
    }
}

fn move_slot(args: &Args, cluster: &mut Cluster, (slot, chain): (u16, u32), wait: bool) -> Outcome {
    let said = cluster.change(&Request::MoveSlot { slot, chain })?;
    if !wait {
        return told(args, &said);
    }
    eprintln!("{said}");
    match wait::slot_moved(cluster, slot)? {
        Waited::Done => told(args, &format!("slot {slot} has moved")),
        Waited::Interrupted => bail!("the move continues; 'millpond admin slots' shows it"),
        Waited::Ended(why) => bail!(why),
    }
}

fn lose(cluster: &mut Cluster, name: &str, yes: bool) -> anyhow::Result<String> {
    let status = cluster.status()?;
    let disk = names::disk(&status, name)?;
    if !yes {
        let only =
            cluster.chains(false)?.iter().filter(|chain| is_only_copy(chain, &disk.id)).count();
        let danger = match only {
            0 => "every chain on it has another serving replica".to_owned(),
            _ => format!("it has THE ONLY copy of {only} chains: their data would be lost"),
        };
        bail!(
            "disk {} holds {} replicas; {danger}. Repeat with --yes to declare it lost",
            disk.id,
            disk.targets
        );
    }
    cluster.change(&Request::LoseDisk { disk: disk.id.clone() })
}

/// True when nobody else has all data of the chain.
fn is_only_copy(chain: &millpond_control::admin::Chain, disk: &str) -> bool {
    let complete = |state: &str| state == "serving" || state == "lastsrv";
    let mut holders = chain.targets.iter().filter(|target| complete(&target.state));
    holders.next().is_some_and(|target| target.disk == disk) && holders.next().is_none()
}

fn namespaces(args: &Args) -> Outcome {
    let mut last = None;
    for address in &args.at.server {
        let reply = args
            .at
            .client(address)
            .and_then(|client| Ok(client.call(Verb::NamespaceList, Vec::new(), None)?));
        match reply {
            Ok(meta) => {
                let all = NamespacesReply::decode(&meta)?.namespaces;
                return super::kv::list_namespaces(&all, args.json);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("--server: give at least one address")))
}

#[cfg(test)]
mod tests {
    use super::is_only_copy;
    use millpond_control::admin::{Chain, Target};

    #[test]
    fn the_only_copy_is_told_from_one_of_several() {
        let target = |disk: &str, state: &str| Target {
            disk: disk.to_owned(),
            state: state.to_owned(),
            ..Target::default()
        };
        let chain = |targets| Chain { targets, ..Chain::default() };
        assert!(is_only_copy(&chain(vec![target("a", "serving"), target("b", "offline")]), "a"));
        assert!(is_only_copy(&chain(vec![target("a", "lastsrv"), target("b", "waiting")]), "a"));
        assert!(!is_only_copy(&chain(vec![target("a", "lastsrv"), target("b", "waiting")]), "b"));
        assert!(!is_only_copy(&chain(vec![target("a", "serving"), target("b", "serving")]), "a"));
        assert!(!is_only_copy(&chain(Vec::new()), "a"));
    }
}
