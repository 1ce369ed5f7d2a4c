//! Commands of operators.

use millpond_types::SlotId;
use millpond_types::cluster::{
    ChainId, ClusterRecord, ConfigVersion, DiskId, DiskRecord, DiskState, NodeId, NodeRecord,
    NodeState, SlotPlace, TargetId,
};
use millpond_types::limits::{CHAINS_MAX, REPLICAS_MAX};

use super::Cx;
use super::commit::{add_target, plan_disks};
use super::event::{AdminAnswer, AdminCommand, Effect, Session};
use super::primary::{Job, Live, Nodes, Primary};
use super::settings::check;
use super::state::{Draft, domain_name, is_serving};
use crate::planner::Planner;

/// Events in one answer: at most 1 MiB.
const PAGE_EVENTS: usize = 1000;
/// The setting that is stored in the shape of the chains instead of the configuration.
const REPLICAS: &str = "replicas";

impl Primary {
    pub(super) fn admin(&mut self, cx: &mut Cx<'_>, from: Session, command: AdminCommand) {
        let answer = match command {
            AdminCommand::Status => AdminAnswer::Status(Box::new(self.status(cx))),
            AdminCommand::Chains { after, unhealthy } => {
                AdminAnswer::Chains(self.chain_page(after, unhealthy))
            }
            AdminCommand::Slots => AdminAnswer::Slots(self.slots_moving()),
            AdminCommand::Config => AdminAnswer::Config(self.state.config.clone()),
            AdminCommand::Events { from: first } => {
                let newer = self.state.events.iter().filter(|event| event.number >= first);
                AdminAnswer::Events(newer.take(PAGE_EVENTS).cloned().collect())
            }
            command => {
                self.jobs.push_back(Job::Admin(from, command));
                return;
            }
        };
        cx.effects.push(Effect::AdminDone { to: from, answer });
    }
}

/// Executes a command that changes something. The answer is sent once it is committed; `None` when
/// it takes another transaction.
pub(super) fn carry_out(
    draft: &mut Draft<'_>,
    nodes: &Nodes,
    planner: &mut Planner,
    command: &AdminCommand,
) -> Option<AdminAnswer> {
    let result = match command {
        AdminCommand::Form { replicas } => form(draft, *replicas),
        AdminCommand::Set { name, value } if name == REPLICAS => {
            planner.forget();
            raise(draft, value)
        }
        AdminCommand::Set { name, value } => set(draft, name, value),
        AdminCommand::DrainNode { node, on } => drain_node(draft, *node, *on),
        AdminCommand::DrainDisk { disk, on } => {
            let state = if *on { DiskState::Draining } else { DiskState::Active };
            disk_state(draft, *disk, state)
        }
        AdminCommand::LoseDisk { disk } => disk_state(draft, *disk, DiskState::Lost),
        AdminCommand::RemoveNode { node } => remove_node(draft, nodes, *node),
        AdminCommand::MoveTarget { chain, from, to } => {
            planner.forget();
            move_target(draft, *chain, *from, *to)
        }
        AdminCommand::MoveSlot { slot, to } => {
            planner.forget();
            move_slot(draft, *slot, *to)
        }
        AdminCommand::Status
        | AdminCommand::Chains { .. }
        | AdminCommand::Slots
        | AdminCommand::Config
        | AdminCommand::Events { .. } => Ok(String::new()),
    };
    match result {
        Ok(text) => Some(AdminAnswer::Done(text)),
        Err(Halt::Refused(text)) => Some(AdminAnswer::Refused(text)),
        Err(Halt::Later) => None,
    }
}

type Outcome = Result<String, Halt>;

/// Reason why a command is not done.
enum Halt {
    /// It is not allowed.
    Refused(String),
    /// It takes more than one transaction.
    Later,
}

impl From<String> for Halt {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// Makes the first chains, and later tables of chains with other numbers of replicas.
fn form(draft: &mut Draft<'_>, replicas: u8) -> Outcome {
    let cluster = draft.cluster();
    if cluster.replicas == replicas && replicas != 0 || cluster.more.has(replicas) {
        return Err(Halt::Refused(format!(
            "the cluster already has chains of {replicas} replicas"
        )));
    }
    check_replicas(draft, replicas)?;
    let chains = draft.base.chains.len();
    if chains >= CHAINS_MAX {
        return Err(Halt::Refused(format!(
            "the cluster has {chains} chains, the maximum is {CHAINS_MAX}: there is no room for \
             another table"
        )));
    }
    draft.changes.cluster = Some(if cluster.replicas == 0 {
        ClusterRecord { replicas, ..cluster }
    } else {
        ClusterRecord { more: cluster.more.with(replicas), ..cluster }
    });
    draft.event(None, format!("chains of {replicas} replicas are being made"));
    Ok(format!("chains of {replicas} replicas are being made"))
}

/// Whether chains may have this number of replicas now.
fn check_replicas(draft: &Draft<'_>, replicas: u8) -> Result<(), Halt> {
    let disks = plan_disks(draft.base);
    let mut domains: Vec<&str> =
        disks.iter().filter(|disk| disk.takes_data).map(|disk| disk.domain.as_str()).collect();
    domains.sort_unstable();
    domains.dedup();
    if replicas == 0 || replicas > REPLICAS_MAX {
        return Err(Halt::Refused(format!(
            "{replicas} replicas: a chain has 1 to {REPLICAS_MAX} replicas"
        )));
    }
    if domains.len() < usize::from(replicas) {
        return Err(Halt::Refused(format!(
            "{replicas} replicas need as many failure domains, but there are {}: start more nodes, \
             or use fewer replicas (at least 1)",
            domains.len()
        )));
    }
    Ok(())
}

/// Gives every chain of the default table more replicas, which are filled while it serves.
fn raise(draft: &mut Draft<'_>, value: &str) -> Outcome {
    let cluster = draft.cluster();
    let Ok(replicas) = value.parse::<u8>() else {
        return Err(Halt::Refused(format!(
            "'{REPLICAS}' must be a number from 1 to {REPLICAS_MAX}, not '{value}'"
        )));
    };
    if cluster.replicas == 0 {
        let text = "the cluster has no chains yet: make them with 'millpond admin form'";
        return Err(Halt::Refused(text.to_owned()));
    }
    if replicas <= cluster.replicas {
        return Err(Halt::Refused(format!(
            "the chains have {} replicas: the number can be raised, but not lowered",
            cluster.replicas
        )));
    }
    if cluster.more.has(replicas) {
        return Err(Halt::Refused(format!(
            "the cluster already has a further table of chains of {replicas} replicas: use another \
             number"
        )));
    }
    check_replicas(draft, replicas)?;
    draft.event(None, format!("chains get {replicas} replicas instead of {}", cluster.replicas));
    draft.changes.cluster = Some(ClusterRecord { replicas, ..cluster });
    Ok(format!("every chain gets {replicas} replicas; 'millpond admin status' shows the progress"))
}

fn set(draft: &mut Draft<'_>, name: &str, value: &str) -> Outcome {
    let mut config = draft.config().clone();
    if value.is_empty() {
        config.values.remove(name);
    } else {
        check(name, value)?;
        config.values.insert(name.to_owned(), value.to_owned());
    }
    config.version = ConfigVersion(config.version.0 + 1);
    draft.event(None, format!("setting {name} = '{value}'"));
    draft.changes.config = Some(config);
    Ok(format!("{name} = '{value}'; every node gets it with its next heartbeat"))
}

fn drain_node(draft: &mut Draft<'_>, node: NodeId, on: bool) -> Outcome {
    let Some(record) = draft.node(node).cloned() else {
        return Err(Halt::Refused(format!("no node {node}")));
    };
    let state = if on { NodeState::Draining } else { NodeState::Active };
    draft.event(None, format!("node {node} is {}", if on { "drained" } else { "active" }));
    draft.changes.nodes.insert(node, Some(NodeRecord { state, ..record }));
    Ok(format!("node {node} is {}", if on { "being emptied" } else { "active" }))
}

fn disk_state(draft: &mut Draft<'_>, disk: DiskId, state: DiskState) -> Outcome {
    let Some(record) = draft.disk(disk).copied() else {
        return Err(Halt::Refused(format!("no disk {disk}")));
    };
    let word = match state {
        DiskState::Active => "active",
        DiskState::Draining => "being emptied",
        DiskState::Lost | DiskState::Missing => "declared lost; its data is rebuilt",
    };
    draft.event(None, format!("disk {disk} is {word}"));
    draft.changes.disks.insert(disk, Some(DiskRecord { state, ..record }));
    Ok(format!("disk {disk} is {word}"))
}

fn remove_node(draft: &mut Draft<'_>, nodes: &Nodes, node: NodeId) -> Outcome {
    if draft.node(node).is_none() {
        return Err(Halt::Refused(format!("no node {node}")));
    }
    let chains = draft.base.chains_of(node).count();
    if chains > 0 {
        return Err(Halt::Refused(format!(
            "node {node} still holds replicas of {chains} chains: drain it and wait until it is empty"
        )));
    }
    if nodes.live.get(&node).is_some_and(Live::is_up) {
        return Err(Halt::Refused(format!("node {node} still runs: stop it first")));
    }
    let disks: Vec<DiskId> =
        draft.base.disks.values().filter(|disk| disk.node == node).map(|disk| disk.id).collect();
    for disk in disks {
        if !draft.has_room(4) {
            return Err(Halt::Later);
        }
        draft.changes.disks.insert(disk, None);
    }
    draft.changes.nodes.insert(node, None);
    draft.event(None, format!("node {node} was removed"));
    Ok(format!("node {node} is removed"))
}

fn move_slot(draft: &mut Draft<'_>, slot: SlotId, to: ChainId) -> Outcome {
    let place = draft.place(slot.0);
    if let Some(old) = place.old {
        let text = format!("slot {} already moves from chain {}: wait for it", slot.0, old.0);
        return Err(Halt::Refused(text));
    }
    if place.chain == ChainId::NONE || draft.chain(to).is_none() {
        let text = format!("no chain {}: 'millpond admin chains' lists them", to.0);
        return Err(Halt::Refused(text));
    }
    if to.table() != 0 {
        let text = format!(
            "chain {} belongs to the table of {} replicas: slots use only the chains of the \
             default table, up to chain {}",
            to.0,
            to.table(),
            CHAINS_MAX
        );
        return Err(Halt::Refused(text));
    }
    if place.chain == to {
        return Err(Halt::Refused(format!("slot {} is already on chain {}", slot.0, to.0)));
    }
    draft.changes.slots.insert(slot.0, SlotPlace { chain: to, old: Some(place.chain) });
    let text = format!("slot {} moves from chain {} to {}", slot.0, place.chain.0, to.0);
    draft.event(Some(to), text.clone());
    Ok(text)
}

fn move_target(draft: &mut Draft<'_>, chain: ChainId, from: TargetId, to: DiskId) -> Outcome {
    let Some(record) = draft.chain(chain).filter(|_| draft.is_untouched(chain)).cloned() else {
        return Err(Halt::Refused(format!(
            "chain {} does not exist, or is changing: try again",
            chain.0
        )));
    };
    if record.moving.is_some() {
        return Err(Halt::Refused(format!(
            "a replica of chain {} already moves: wait for it",
            chain.0
        )));
    }
    let members = &record.chain.targets;
    if !members.iter().any(|member| member.target == from) {
        return Err(Halt::Refused(format!("chain {} has no target {}", chain.0, from.0)));
    }
    if !members.iter().any(|member| is_serving(member.state)) {
        return Err(Halt::Refused(format!(
            "chain {} has no serving replica: there is no copy to move",
            chain.0
        )));
    }
    let domain =
        |disk: DiskId| draft.disk(disk).and_then(|disk| draft.node(disk.node)).map(domain_name);
    let Some(there) = domain(to) else {
        return Err(Halt::Refused(format!("no disk {to}")));
    };
    let shares = members
        .iter()
        .filter(|member| member.target != from)
        .any(|member| domain(member.disk).as_ref() == Some(&there));
    if shares || members.iter().any(|member| member.disk == to) {
        return Err(Halt::Refused(format!(
            "disk {to} shares a failure domain with another replica of the chain"
        )));
    }
    add_target(draft, (chain, to, Some(from)));
    draft.event(Some(chain), format!("target {} of chain {} moves to disk {to}", from.0, chain.0));
    Ok(format!("target {} of chain {} moves to disk {to}", from.0, chain.0))
}
