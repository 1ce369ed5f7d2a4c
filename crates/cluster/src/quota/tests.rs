use std::collections::BTreeMap;

use millpond_types::cluster::{NodeId, QuotaReport, RoutingVersion};
use millpond_types::{GroupId, Uuid128};
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::{Part, QuotaBook, Whole, share};

const GROUP: GroupId = GroupId(3);

fn node(n: u8) -> NodeId {
    NodeId(Uuid128([n + 1; 16]))
}

fn whole(quota: u64, evicts: bool, parts: &[Part]) -> Whole {
    let used = parts.iter().map(|part| part.used).sum();
    Whole { quota, evicts, used, weight: parts.iter().map(|part| part.weight).sum() }
}

fn shares(quota: u64, evicts: bool, parts: &[Part]) -> Vec<u64> {
    let whole = whole(quota, evicts, parts);
    parts.iter().map(|part| share(whole, *part)).collect()
}

/// Every node heads as much as any other.
fn even(used: &[u64]) -> Vec<Part> {
    used.iter().map(|used| Part { used: *used, weight: 100 }).collect()
}

#[test]
fn an_idle_cluster_shares_by_what_is_headed() {
    assert_eq!(shares(3 << 30, true, &even(&[0, 0, 0])), [1 << 30; 3]);
    let parts = [Part { used: 0, weight: 3 }, Part { used: 0, weight: 1 }];
    assert_eq!(shares(1 << 30, false, &parts), [3 << 28, 1 << 28]);
    let none = [Part { used: 0, weight: 0 }, Part { used: 0, weight: 1 }];
    assert_eq!(shares(1 << 30, true, &none), [0, 1 << 30]);
}

#[test]
fn who_fills_its_share_gets_what_others_leave() {
    for evicts in [true, false] {
        let mut used = [0, 0, 0];
        for _ in 0..50 {
            used[0] = shares(1 << 30, evicts, &even(&used))[0];
        }
        assert!(used[0] > (1 << 30) / 10 * 9, "{evicts}: {used:?}");
    }
}

#[test]
fn nodes_that_all_push_come_to_share_by_weight_and_nothing_is_wasted() {
    let mut parts = [900, 50, 50].map(|used| Part { used: used << 20, weight: 10 });
    parts[2].weight = 20;
    for _ in 0..200 {
        let limits = shares(1000 << 20, true, &parts);
        for (part, limit) in parts.iter_mut().zip(limits) {
            part.used = limit;
        }
    }
    let used = parts.map(|part| part.used >> 20);
    assert!((248..=251).contains(&used[0]), "{used:?}");
    assert!((248..=251).contains(&used[1]), "{used:?}");
    assert!((497..=500).contains(&used[2]), "{used:?}");
}

#[test]
fn what_does_not_evict_keeps_room_for_what_it_holds() {
    let parts = even(&[800, 100, 90]);
    let limits = shares(1000, false, &parts);
    assert_eq!(limits, [803, 103, 93]);
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (prop_oneof![Just(0), 0..1_u64 << 44], 0..70_000_u64);
    prop::collection::vec(part.prop_map(|(used, weight)| Part { used, weight }), 1..40)
}

proptest! {
    #[test]
    fn limits_sum_up_to_the_quota_at_most(
        parts in parts(), quota in prop_oneof![0..1_u64 << 48, any::<u64>()], evicts: bool,
    ) {
        let limits = shares(quota, evicts, &parts);
        let sum: u128 = limits.iter().map(|limit| u128::from(*limit)).sum();
        prop_assert!(sum <= u128::from(quota), "{} of {}", sum, quota);
    }

    #[test]
    fn below_fifteen_sixteenths_nobody_loses_what_it_holds(parts in parts(), more in 0..1_u64 << 40) {
        let used: u64 = parts.iter().map(|part| part.used).sum();
        let quota = used / 15 * 16 + 32 + more;
        for evicts in [true, false] {
            for (part, limit) in parts.iter().zip(shares(quota, evicts, &parts)) {
                // Rounding loses a byte.
                prop_assert!(limit + 1 >= part.used, "{} of {:?}", limit, part);
            }
        }
    }

    #[test]
    fn at_any_use_up_to_the_quota_what_does_not_evict_loses_nothing(parts in parts(), more: u16) {
        let used: u64 = parts.iter().map(|part| part.used).sum();
        for (part, limit) in parts.iter().zip(shares(used + u64::from(more), false, &parts)) {
            prop_assert!(limit + 1 >= part.used, "{} of {:?}", limit, part);
        }
    }
}

/// A node as the book sees it: its usage, the limit it uses, an answer in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    used: u64,
    limit: u64,
    answer: Option<u64>,
}

/// An event of one of the nodes.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Beat,
    /// The answer in flight arrives.
    Arrives,
    /// It fills this many thousandths of its free room.
    Fills(u64),
    /// It gives up this many thousandths of its usage.
    GivesUp(u64),
}

fn happens() -> impl Strategy<Value = (u8, Happens)> {
    let what = prop_oneof![
        3 => Just(Happens::Beat),
        3 => Just(Happens::Arrives),
        2 => (0..=1000_u64).prop_map(Happens::Fills),
        1 => (0..=1000_u64).prop_map(Happens::GivesUp),
    ];
    (0..4_u8, what)
}

fn report(head: Head, quota: u64) -> QuotaReport {
    QuotaReport {
        namespace: GROUP,
        quota_bytes: quota,
        evicts: false,
        used_bytes: head.used,
        limit_bytes: head.limit,
    }
}

proptest! {
    /// Whichever messages are lost or late, a namespace that does not evict never holds more than
    /// its quota.
    #[test]
    fn no_byte_is_granted_twice(
        steps in prop::collection::vec(happens(), 1..300), twice in 0..1000_u64,
    ) {
        let quota = 1_000_000;
        let mut book = QuotaBook::default();
        let weights: BTreeMap<NodeId, u64> = (0..4).map(|n| (node(n), 10)).collect();
        book.heads(weights, RoutingVersion(5), |_| true);
        let mut heads = [Head { limit: quota / 4, ..Head::default() }; 4];
        for (n, what) in steps {
            let head = &mut heads[usize::from(n)];
            match what {
                Happens::Beat => {
                    let mut said = report(*head, quota);
                    // Updates in flight may be counted twice.
                    said.used_bytes += twice;
                    let limits = book.hear(node(n), RoutingVersion(5), &[said]);
                    head.answer = limits.first().map(|limit| limit.limit_bytes);
                }
                Happens::Arrives => head.limit = head.answer.take().unwrap_or(head.limit),
                Happens::Fills(part) => {
                    head.used += head.limit.saturating_sub(head.used) * part / 1000;
                }
                Happens::GivesUp(part) => head.used -= head.used * part / 1000,
            }
            let may: u64 = heads.iter().map(|head| head.used.max(head.limit)).sum();
            prop_assert!(may <= quota, "{} in {:?}", may, heads);
        }
        // Without losses every node gets its due limit.
        for _ in 0..100 {
            for (n, head) in (0..).zip(&mut heads) {
                let limits = book.hear(node(n), RoutingVersion(5), &[report(*head, quota)]);
                head.limit = limits.first().map_or(head.limit, |limit| limit.limit_bytes);
            }
        }
        let used: u64 = heads.iter().map(|head| head.used).sum();
        let limits: u64 = heads.iter().map(|head| head.limit).sum();
        prop_assert!(limits + 8 >= quota, "{} of {} given, {} used", limits, quota, used);
        prop_assert_eq!(heads.iter().filter(|head| head.limit + 1 < head.used).count(), 0);
    }
}

#[test]
fn nothing_is_answered_before_all_heads_have_spoken() {
    let mut book = QuotaBook::default();
    let weights: BTreeMap<NodeId, u64> = (0..2).map(|n| (node(n), 10)).collect();
    book.heads(weights, RoutingVersion(5), |_| true);
    let said = |used, limit| [report(Head { used, limit, answer: None }, 1000)];
    assert_eq!(book.hear(node(0), RoutingVersion(5), &said(0, 0)), []);
    assert_eq!(book.hear(node(1), RoutingVersion(4), &said(0, 0)), [], "of an older routing");
    assert_eq!(book.hear(node(0), RoutingVersion(5), &said(0, 0)), []);
    assert_eq!(book.hear(node(1), RoutingVersion(5), &said(0, 0))[0].limit_bytes, 500);
    assert_eq!(book.hear(node(0), RoutingVersion(6), &said(0, 0))[0].limit_bytes, 500);
    assert_eq!(book.hear(node(9), RoutingVersion(6), &said(0, 0))[0].limit_bytes, 0, "heads none");
}

#[test]
fn what_a_lost_node_held_is_free_once_others_have_said_what_they_took_over() {
    let mut book = QuotaBook::default();
    let weights = |nodes: &[u8]| nodes.iter().map(|n| (node(*n), 10)).collect::<BTreeMap<_, _>>();
    book.heads(weights(&[0, 1, 2]), RoutingVersion(5), |_| true);
    let said = |used, limit| [report(Head { used, limit, answer: None }, 3000)];
    for n in 0..3 {
        book.hear(node(n), RoutingVersion(5), &said(900, 1000));
    }
    book.forget(node(2));
    let limits = book.hear(node(0), RoutingVersion(5), &said(900, 1000));
    assert_eq!(limits[0].limit_bytes, 999, "still taken");
    book.heads(weights(&[0, 1]), RoutingVersion(6), |n| n != node(2));
    assert_eq!(
        book.hear(node(0), RoutingVersion(6), &said(1800, 1000)),
        [],
        "what has 1 taken over?"
    );
    assert_eq!(book.hear(node(1), RoutingVersion(6), &said(900, 1000))[0].limit_bytes, 1031);
    assert_eq!(book.hear(node(0), RoutingVersion(6), &said(1800, 1000))[0].limit_bytes, 1967);
    let dropped = book.hear(node(0), RoutingVersion(6), &[]);
    assert_eq!(dropped, []);
    book.hear(node(1), RoutingVersion(6), &[]);
    assert!(book.accounts.is_empty());
}
