//! Balance, domains, and the number of moves.

use millpond_types::limits::SLOTS;
use proptest::prelude::{ProptestConfig, Strategy, prop, prop_assert, prop_assert_eq, proptest};

use super::{
    ChainChoice, Fleet, FleetDisk, Members, PlacementError, chains_per_disk, generate, grow_chains,
    rebalance, recovery, recovery_of_each, shares, slot_moves, slot_shares,
};
use millpond_types::Pcg;

const TIB: u64 = 1 << 40;

fn fleet(nodes: u32, disks: u32, capacity: impl Fn(u32) -> u64) -> Fleet {
    let disks = (0..nodes * disks)
        .map(|n| FleetDisk { domain: n / disks, capacity_bytes: capacity(n) })
        .collect();
    Fleet { disks, domains: nodes }
}

fn make(fleet: &Fleet, replicas: u8, chains: u32) -> Vec<Members> {
    generate(fleet, replicas, chains, 42, &mut |_| ()).unwrap()
}

fn check_domains(fleet: &Fleet, chains: &[Members], replicas: u8) {
    for members in chains {
        assert_eq!(members.len(), usize::from(replicas));
        let mut domains: Vec<u32> = members.iter().map(|disk| fleet.domain(*disk)).collect();
        domains.sort_unstable();
        domains.dedup();
        assert_eq!(domains.len(), members.len(), "{members:?} share a failure domain");
    }
}

#[test]
fn equal_disks_get_equal_shares_and_every_pair_meets() {
    let fleet = fleet(6, 4, |_| TIB);
    let chains = make(&fleet, 3, 256);
    check_domains(&fleet, &chains, 3);
    let counts = chains_per_disk(&fleet, &chains);
    assert_eq!(counts.iter().sum::<u32>(), 768);
    assert!(counts.iter().all(|count| *count == 32), "{counts:?}");
    for (disk, each) in (0..24).zip(recovery_of_each(&chains, 24)) {
        let found = recovery(&chains, 24, &[disk]);
        assert_eq!((found.peers, found.replicas_lost), (each.peers, each.replicas_lost));
        assert!((found.share_max - each.share_max).abs() < 1e-9, "the same, one by one or at once");
        // 64 partners over the 20 disks of other nodes: 3.2 each, so a twentieth of the reads.
        assert_eq!(found.peers, 20, "disk {disk}");
        assert!(found.share_max <= 0.08, "disk {disk}: {found:?}");
    }
}

#[test]
fn capacity_decides_unless_a_domain_would_be_in_one_chain_twice() {
    // One node of three has as much as the other two together: 3 replicas need all three.
    let skewed = fleet(3, 1, |n| if n == 0 { 4 * TIB } else { TIB });
    assert_eq!(shares(&skewed, 3, 100, &[]).unwrap(), [100, 100, 100]);
    assert_eq!(shares(&skewed, 2, 100, &[]).unwrap(), [100, 50, 50]);
    assert_eq!(shares(&skewed, 1, 100, &[]).unwrap().iter().sum::<u32>(), 100);
    let mixed = fleet(4, 2, |n| if n % 2 == 0 { TIB } else { 3 * TIB });
    assert_eq!(shares(&mixed, 2, 80, &[]).unwrap(), [10, 30, 10, 30, 10, 30, 10, 30]);
    let chains = make(&mixed, 2, 80);
    assert_eq!(chains_per_disk(&mixed, &chains), [10, 30, 10, 30, 10, 30, 10, 30]);
}

#[test]
fn too_few_domains_are_named() {
    let small = fleet(2, 8, |_| TIB);
    let error = generate(&small, 3, 16, 1, &mut |_| ()).unwrap_err();
    assert_eq!(error, PlacementError::Domains { replicas: 3, domains: 2 });
    assert!(error.to_string().contains("there are 2"));
    let mut chains = vec![vec![0, 8]];
    let emptied = fleet(2, 8, |n| if n < 8 { 0 } else { TIB });
    assert!(rebalance(&emptied, 2, &mut chains, 1, &mut |_| ()).is_err());
}

#[test]
fn golden_chains_never_change() {
    let chains = make(&fleet(5, 2, |n| TIB * u64::from(1 + n % 2)), 3, 20);
    assert_eq!(chains[..4], GOLDEN);
    let sum = chains
        .iter()
        .flatten()
        .fold(0u64, |sum, disk| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(u64::from(*disk)));
    assert_eq!(sum, GOLDEN_SUM, "chains are stored: a new algorithm is a new format");
}

const GOLDEN: [[u32; 3]; 4] = [[2, 7, 1], [0, 8, 6], [4, 3, 9], [5, 9, 1]];
const GOLDEN_SUM: u64 = 1_036_959_339_884_327_756;

#[test]
fn a_new_node_takes_its_part_and_nothing_else_moves() {
    let before = fleet(5, 4, |n| if n < 16 { TIB } else { 0 });
    let mut chains = make(&before, 2, 256);
    let after = fleet(5, 4, |_| TIB);
    let moves = rebalance(&after, 2, &mut chains, 7, &mut |_| ()).unwrap();
    check_domains(&after, &chains, 2);
    let counts = chains_per_disk(&after, &chains);
    assert!(counts.iter().all(|count| (25..=26).contains(count)), "{counts:?}");
    let landed: u32 = counts[16..].iter().sum();
    assert_eq!(moves.len(), landed as usize, "one move for each replica that had to move");
    assert!(moves.iter().all(|made| made.to >= 16));
    assert!(rebalance(&after, 2, &mut chains, 8, &mut |_| ()).unwrap().is_empty(), "at rest");
}

#[test]
fn a_drained_node_ends_empty() {
    let before = fleet(5, 2, |_| TIB);
    let mut chains = make(&before, 3, 256);
    let held: u32 = chains_per_disk(&before, &chains)[..2].iter().sum();
    let after = fleet(5, 2, |n| if n < 2 { 0 } else { TIB });
    let moves = rebalance(&after, 3, &mut chains, 7, &mut |_| ()).unwrap();
    check_domains(&after, &chains, 3);
    let counts = chains_per_disk(&after, &chains);
    assert_eq!(counts[..2], [0, 0]);
    assert!(counts[2..].iter().all(|count| *count == 96), "{counts:?}");
    assert!(moves.len() <= held as usize + 8, "{} moves for {held} replicas", moves.len());
}

#[test]
fn more_chains_go_where_room_is() {
    let before = fleet(12, 2, |n| if n < 6 { TIB } else { 0 });
    let mut chains = make(&before, 3, 256);
    let after = fleet(12, 2, |_| TIB);
    let more = grow_chains(&after, 3, &chains, 256, 9).unwrap();
    check_domains(&after, &more, 3);
    assert_eq!(more.len(), 256);
    chains.extend(more);
    let moves = rebalance(&after, 3, &mut chains, 9, &mut |_| ()).unwrap();
    check_domains(&after, &chains, 3);
    let counts = chains_per_disk(&after, &chains);
    assert!(counts.iter().all(|count| *count == 64), "{counts:?}");
    assert!(moves.len() < 600, "{} moves", moves.len());
}

#[test]
fn slots_follow_weight_and_few_move() {
    let shares = slot_shares(&[1, 1, 2], &[]);
    assert_eq!(shares, [16_384, 16_384, 32_768]);
    let fresh = slot_moves(&vec![u32::MAX; SLOTS], &shares, 1);
    assert_eq!(fresh.len(), SLOTS);
    let mut now = vec![u32::MAX; SLOTS];
    for (slot, chain) in fresh {
        now[usize::from(slot)] = chain;
    }
    let wider = slot_shares(&[1, 1, 2, 4], &shares);
    let moved = slot_moves(&now, &wider, 2);
    assert_eq!(moved.len(), 32_768, "half of the weight is new");
    assert!(moved.iter().all(|(_, chain)| *chain == 3));
}

#[test]
fn new_files_prefer_free_space() {
    let mut pcg = Pcg::new(1, 1);
    let choice = ChainChoice::new(&[1 << 50, 0, 3 << 50]);
    let mut counts = [0u32; 3];
    for _ in 0..8_000 {
        counts[choice.pick(&mut pcg).unwrap()] += 1;
    }
    assert_eq!(counts[1], 0, "a full chain gets none");
    assert!((1_800..2_200).contains(&counts[0]), "{counts:?}");
    assert_eq!(ChainChoice::new(&[0, 0]).pick(&mut pcg), None);
    assert_eq!(ChainChoice::new(&[0, 1]).pick(&mut pcg), Some(1));
}

fn any_fleet() -> impl Strategy<Value = Fleet> {
    (3u32..9, 1u32..5, prop::collection::vec(1u64..5, 32))
        .prop_map(|(nodes, disks, sizes)| fleet(nodes, disks, |n| sizes[n as usize % 32] * TIB / 2))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any fleet gets chains that keep domains apart and shares exact.
    #[test]
    fn chains_are_made_for_any_fleet(
        fleet in any_fleet(), replicas in 1u8..4, chains in 1u32..200, seed: u64,
    ) {
        let made = generate(&fleet, replicas, chains, seed, &mut |_| ()).unwrap();
        check_domains(&fleet, &made, replicas);
        prop_assert_eq!(
            chains_per_disk(&fleet, &made), shares(&fleet, replicas, chains, &[]).unwrap());
    }

    /// Any change of disks ends with every disk within one chain of its share (domains permitting),
    /// at a cost near the minimum, and a second run moves nothing.
    #[test]
    fn any_change_is_levelled_with_few_moves(
        fleet in any_fleet(),
        replicas in 1u8..4,
        changes in prop::collection::vec((0usize..32, 0u64..4), 1..6),
        seed: u64,
    ) {
        let mut chains = generate(&fleet, replicas, 96, seed, &mut |_| ()).unwrap();
        let mut changed = fleet.clone();
        for (disk, size) in changes {
            let at = disk % changed.disks.len();
            changed.disks[at].capacity_bytes = size * TIB;
        }
        let now = chains_per_disk(&fleet, &chains);
        let Ok(want) = shares(&changed, replicas, 96, &now) else { return Ok(()) };
        let least: u32 = want.iter().zip(&now).map(|(want, now)| want.saturating_sub(*now)).sum();
        let moves = rebalance(&changed, replicas, &mut chains, seed, &mut |_| ()).unwrap();
        check_domains(&changed, &chains, replicas);
        let after = chains_per_disk(&changed, &chains);
        prop_assert!(moves.len() <= 2 * least as usize, "{} moves for {}", moves.len(), least);
        prop_assert_eq!(&after, &want);
        let again = rebalance(&changed, replicas, &mut chains, seed, &mut |_| ()).unwrap();
        prop_assert!(again.is_empty(), "{:?}", again);
    }
}
