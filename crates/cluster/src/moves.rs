//! A replica's way from one disk to another, as changes of its chain.
//!
//! `join` adds the new replica, which the target-state table takes from OFFLINE over SYNCING to
//! SERVING. Then `retiring` names the old one; its node stops serving it and reports it OFFLINE, so
//! no lease has to run out. Then `settle` removes it. `settle` precedes the table, which would take
//! the old replica back as soon as it is reported again.

use millpond_types::cluster::{
    Chain, ChainRecord, ChainTarget, ChainVersion, DiskId, TargetId, TargetMove, TargetState,
};

fn changed(chain: &Chain, targets: Vec<ChainTarget>) -> Chain {
    let version = chain.version.0.checked_add(1).expect("a chain changes less than 2^32 times");
    Chain { id: chain.id, version: ChainVersion(version), targets }
}

/// The chain with one more replica, which is OFFLINE until its node reports it; `drop` will leave.
///
/// # Panics
/// When a replica of this chain moves already.
#[must_use]
pub fn join(record: &ChainRecord, add: ChainTarget, drop: Option<TargetId>) -> ChainRecord {
    assert!(record.moving.is_none(), "one replica of a chain moves at a time");
    let mut targets = record.chain.targets.clone();
    targets.push(ChainTarget { state: TargetState::Offline, ..add });
    let moving = Some(TargetMove { add: add.target, drop });
    ChainRecord { chain: changed(&record.chain, targets), moving }
}

/// The replica that must stop serving, once its replacement serves.
#[must_use]
pub fn retiring(record: &ChainRecord) -> Option<&ChainTarget> {
    let moving = record.moving?;
    let serves = |id: TargetId| record.chain.serving().find(|member| member.target == id);
    serves(moving.add)?;
    serves(moving.drop?)
}

/// The next change of a chain in which a replica moves, apart from the target-state table's. The
/// old replica leaves once it no longer serves, or the new one is given up because its disk no
/// longer takes data. `None` while there is nothing to do.
#[must_use]
pub fn settle(record: &ChainRecord, takes_data: impl Fn(DiskId) -> bool) -> Option<ChainRecord> {
    let moving = record.moving?;
    let find = |id: TargetId| record.chain.targets.iter().find(|member| member.target == id);
    let Some(add) = find(moving.add) else {
        return Some(ChainRecord { moving: None, ..record.clone() });
    };
    if add.state == TargetState::Serving {
        return match moving.drop.and_then(find) {
            None => Some(ChainRecord { moving: None, ..record.clone() }),
            Some(drop) if drop.state == TargetState::Serving => None,
            Some(drop) => Some(without(record, drop.target)),
        };
    }
    // A replica that might be the only one left is never given up, on any disk.
    let gives_up = add.state != TargetState::LastServing && !takes_data(add.disk);
    gives_up.then(|| without(record, moving.add))
}

fn without(record: &ChainRecord, gone: TargetId) -> ChainRecord {
    let mut targets = record.chain.targets.clone();
    targets.retain(|member| member.target != gone);
    ChainRecord { chain: changed(&record.chain, targets), moving: None }
}
