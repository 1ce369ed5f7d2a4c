//! Waiting for a drain or a move, with a bar.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millpond_types::ByteSize;

use super::names::Named;
use super::remote::Cluster;
use millpond_control::admin::{Chain, Status};

/// How often the cluster is asked.
const LOOK: Duration = Duration::from_millis(500);

/// How the wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// It is done.
    Done,
    /// Ctrl-C: what was waited for goes on.
    Interrupted,
    /// It was given up, and why.
    Ended(String),
}

fn bar(what: &str, all: u64) -> ProgressBar {
    let bar = ProgressBar::new(all);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix} [{bar:32}] {pos}/{len} {elapsed} {msg}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what.to_owned());
    bar
}

/// Waits until no replica is left on a node or disk.
pub(super) fn drain(cluster: &mut Cluster, of: Named<'_>) -> anyhow::Result<Waited> {
    let (what, all) = match of {
        Named::Node(node) => ("replicas to move", node.targets),
        Named::Disk(disk) => ("replicas to move", disk.targets),
    };
    let bar = bar(what, all as u64);
    loop {
        let status = cluster.status()?;
        match left(&status, of) {
            Left::Targets(0) => {
                bar.finish_and_clear();
                return Ok(Waited::Done);
            }
            Left::Targets(left) => {
                bar.set_length(all.max(left) as u64);
                bar.set_position((all.max(left) - left) as u64);
                bar.set_message(message(&status));
            }
            Left::Ended(why) => {
                bar.abandon();
                return Ok(Waited::Ended(why));
            }
        }
        if cluster.interrupt.pause(LOOK) {
            bar.abandon();
            return Ok(Waited::Interrupted);
        }
    }
}

/// What is left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Left {
    Targets(usize),
    Ended(String),
}

fn left(status: &Status, of: Named<'_>) -> Left {
    let (targets, state) = match of {
        Named::Node(node) => match status.nodes.iter().find(|it| it.id == node.id) {
            Some(node) => (node.targets, &node.state),
            None => return Left::Targets(0),
        },
        Named::Disk(disk) => match status.disks.iter().find(|it| it.id == disk.id) {
            Some(disk) => (disk.targets, &disk.state),
            None => return Left::Targets(0),
        },
    };
    if targets > 0 && state == "active" {
        return Left::Ended("another command ended the drain".to_owned());
    }
    Left::Targets(targets)
}

fn message(status: &Status) -> String {
    if status.paused {
        return "paused: 'millpond admin resume'".to_owned();
    }
    let blocked = |text: &str| text.starts_with("data cannot be placed");
    if let Some(problem) = status.problems.iter().find(|problem| blocked(&problem.what)) {
        return problem.what.clone();
    }
    match (status.progress.moves_running, status.behind_bytes) {
        (0, _) => String::new(),
        (running, 0) => format!("{running} move"),
        (running, bytes) => format!("{running} move, {} to sync", ByteSize(bytes)),
    }
}

/// Waits until a replica has moved to a disk.
pub(super) fn moved(cluster: &mut Cluster, chain: u32, disk: &str) -> anyhow::Result<Waited> {
    let bar = bar("bytes to sync", 0);
    let mut most = 0;
    loop {
        let Some(now) = cluster.chain(chain)? else {
            return Ok(Waited::Ended(format!("chain {chain} no longer exists")));
        };
        match move_of(&now, disk) {
            Moving::Done => {
                bar.finish_and_clear();
                return Ok(Waited::Done);
            }
            Moving::Gone => {
                bar.abandon();
                let why = format!("chain {chain} no longer has a replica on that disk");
                return Ok(Waited::Ended(why));
            }
            Moving::Behind(bytes, state) => {
                most = most.max(bytes);
                bar.set_length(most);
                bar.set_position(most - bytes);
                bar.set_message(state);
            }
        }
        if cluster.interrupt.pause(LOOK) {
            bar.abandon();
            return Ok(Waited::Interrupted);
        }
    }
}

/// Waits until a slot has moved.
pub(super) fn slot_moved(cluster: &mut Cluster, slot: u16) -> anyhow::Result<Waited> {
    while cluster.slots()?.iter().any(|moving| moving.slot == slot) {
        if cluster.interrupt.pause(LOOK) {
            return Ok(Waited::Interrupted);
        }
    }
    Ok(Waited::Done)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Moving {
    Done,
    Gone,
    Behind(u64, String),
}

fn move_of(chain: &Chain, disk: &str) -> Moving {
    match chain.targets.iter().find(|target| target.disk == disk) {
        None => Moving::Gone,
        Some(target) if chain.moving.is_none() && target.state == "serving" => Moving::Done,
        Some(target) => Moving::Behind(target.behind_bytes, target.state.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Left, Moving, left, message, move_of};
    use crate::admin::names::Named;
    use millpond_control::admin::{Chain, Move, Node, Problem, Progress, Status, Target};

    #[test]
    fn a_drain_ends_when_nothing_is_left_or_somebody_ends_it() {
        let node = |targets, state: &str| Node {
            id: "n".to_owned(),
            targets,
            state: state.to_owned(),
            ..Node::default()
        };
        let of = node(5, "draining");
        let with = |nodes| Status { nodes, ..Status::default() };
        assert_eq!(left(&with(vec![node(3, "draining")]), Named::Node(&of)), Left::Targets(3));
        assert_eq!(left(&with(vec![node(0, "active")]), Named::Node(&of)), Left::Targets(0));
        assert_eq!(left(&with(Vec::new()), Named::Node(&of)), Left::Targets(0));
        assert!(matches!(left(&with(vec![node(3, "active")]), Named::Node(&of)), Left::Ended(_)));
    }

    #[test]
    fn a_drain_that_cannot_go_on_says_why() {
        let what = "data cannot be placed: 2 domains".to_owned();
        let problems = vec![Problem { what, advice: String::new() }];
        assert!(message(&Status { problems, ..Status::default() }).contains("2 domains"));
        assert!(message(&Status { paused: true, ..Status::default() }).contains("resume"));
        let progress = Progress { moves_running: 2, ..Progress::default() };
        let busy = Status { progress, behind_bytes: 1 << 20, ..Status::default() };
        assert_eq!(message(&busy), "2 move, 1 MiB to sync");
    }

    #[test]
    fn a_move_is_done_when_the_new_replica_serves_and_the_old_one_left() {
        let target = |state: &str| Target {
            disk: "d".to_owned(),
            state: state.to_owned(),
            behind_bytes: 7,
            ..Target::default()
        };
        let chain =
            |state, moving| Chain { targets: vec![target(state)], moving, ..Chain::default() };
        let moving = Some(Move { add: 2, drop: Some(1) });
        assert_eq!(move_of(&chain("serving", None), "d"), Moving::Done);
        assert_eq!(move_of(&chain("serving", None), "e"), Moving::Gone);
        assert!(matches!(move_of(&chain("serving", moving), "d"), Moving::Behind(..)));
        assert_eq!(move_of(&chain("syncing", moving), "d"), Moving::Behind(7, "syncing".into()));
    }
}
