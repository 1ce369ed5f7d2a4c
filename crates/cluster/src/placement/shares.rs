//! Number of chains of each disk.

use super::{Fleet, PlacementError};
use millpond_types::limits::CHAINS_MAX;

/// Chains of a small cluster: enough that a share of one chain is 0.4 % of the data.
const CHAINS_MIN: u64 = 256;
/// Targets per disk of a large one: recovery reads of a dead disk spread over about 32 others.
const TARGETS_PER_DISK: u64 = 16;

/// The number of chains for a fleet: 16 targets on the average disk, at least 256 chains, and no
/// more than there are slots.
#[must_use]
pub fn chain_count(fleet: &Fleet, replicas: u8) -> u32 {
    let disks = fleet.usable().count() as u64;
    let chains = (disks * TARGETS_PER_DISK).div_ceil(u64::from(replicas.max(1)));
    u32::try_from(chains.clamp(CHAINS_MIN, CHAINS_MAX as u64)).unwrap_or(u32::MAX)
}

/// Number of chains to make beside `made`: more only when the cluster needs twice its present
/// number, as the slots of new chains must move.
#[must_use]
pub fn chains_to_add(fleet: &Fleet, replicas: u8, made: u32) -> u32 {
    let wanted = chain_count(fleet, replicas);
    if made == 0 || wanted / 2 >= made { wanted - made } else { 0 }
}

/// Rate of one domain before rounding: `numerator / weight` targets per byte of capacity.
#[derive(Clone, Copy)]
struct Rate {
    targets: u64,
    weight: u64,
}

/// The number of targets of every disk: in proportion to its capacity, but no domain is in more
/// chains than there are. The numbers add up to `replicas * chains`.
///
/// `now` are the present numbers (zeros at the start): rounding keeps them where both directions
/// are equally right, so that nothing moves for the sake of a fraction.
///
/// # Errors
/// [`PlacementError::Domains`] when fewer domains than replicas have capacity.
///
/// # Panics
/// Never: with enough domains there is always room for the rest.
pub fn shares(
    fleet: &Fleet,
    replicas: u8,
    chains: u32,
    now: &[u32],
) -> Result<Vec<u32>, PlacementError> {
    if replicas == 0 || chains == 0 {
        return Err(PlacementError::Nothing);
    }
    let rates = domain_rates(fleet, replicas, chains)?;
    let mut whole = vec![0u32; fleet.disks.len()];
    let mut per_domain = vec![0u64; fleet.domains as usize];
    let mut rest = u64::from(replicas) * u64::from(chains);
    let mut fractions = Vec::new();
    for disk in fleet.usable() {
        let rate = rates[fleet.domain(disk) as usize];
        let product = u128::from(fleet.capacity(disk)) * u128::from(rate.targets);
        let (floor, part) = (product / u128::from(rate.weight), product % u128::from(rate.weight));
        let floor = u32::try_from(floor).unwrap_or(u32::MAX);
        whole[disk as usize] = floor;
        per_domain[fleet.domain(disk) as usize] += u64::from(floor);
        rest -= u64::from(floor);
        // As parts of 2^32, so that disks of different domains compare.
        let part = u64::try_from((part << 32) / u128::from(rate.weight)).unwrap_or(u64::MAX);
        let stays = part > 0 && now.get(disk as usize).is_some_and(|now| *now > floor);
        fractions.push((stays, part, disk));
    }
    // Disks that have it keep it, then the largest fraction; the number of the disk breaks ties.
    fractions
        .sort_unstable_by_key(|(stays, part, disk)| (std::cmp::Reverse((*stays, *part)), *disk));
    while rest > 0 {
        let before = rest;
        for (_, _, disk) in &fractions {
            let domain = fleet.domain(*disk) as usize;
            if rest > 0 && per_domain[domain] < u64::from(chains) {
                whole[*disk as usize] += 1;
                per_domain[domain] += 1;
                rest -= 1;
            }
        }
        assert!(
            rest < before,
            "a failure domain has room, or this function returned an error before"
        );
    }
    Ok(whole)
}

/// Water-filling: a domain whose part would exceed one target per chain gets exactly that, and the
/// others share the rest.
fn domain_rates(fleet: &Fleet, replicas: u8, chains: u32) -> Result<Vec<Rate>, PlacementError> {
    let mut weights = vec![0u64; fleet.domains as usize];
    for disk in fleet.usable() {
        let weight = &mut weights[fleet.domain(disk) as usize];
        *weight = weight.saturating_add(fleet.capacity(disk));
    }
    let domains = weights.iter().filter(|weight| **weight > 0).count();
    if domains < usize::from(replicas) {
        return Err(PlacementError::Domains { replicas, domains });
    }
    let mut order: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0).collect();
    order.sort_unstable_by_key(|i| std::cmp::Reverse(weights[*i]));
    let mut targets = u64::from(replicas) * u64::from(chains);
    let mut weight: u64 = weights.iter().fold(0, |sum, weight| sum.saturating_add(*weight));
    let mut full = 0;
    for i in &order {
        let part = u128::from(weights[*i]) * u128::from(targets);
        if part <= u128::from(weight) * u128::from(chains) {
            break;
        }
        full += 1;
        targets -= u64::from(chains);
        weight -= weights[*i];
    }
    let mut rates = vec![Rate { targets, weight: weight.max(1) }; weights.len()];
    for i in &order[..full] {
        rates[*i] = Rate { targets: u64::from(chains), weight: weights[*i] };
    }
    Ok(rates)
}
