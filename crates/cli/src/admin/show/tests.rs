use super::{
    chains, config, disks, duration, event, moves, nodes, percent, slots, status, targets, utc,
};
use crate::admin::names::Short;
use millpond_control::admin::{
    Answer, Chain, Config, Disk, Event, Move, Node, Progress, Slot, SlotTotals, Status, Target,
    decode_answer,
};

fn uuid(n: u32) -> String {
    format!("{n:08x}-0000-4000-8000-000000000000")
}

/// A cluster of three nodes, the third of which is gone.
fn sick() -> Status {
    let json = include_str!("sick.json");
    let Ok(Answer::Status(status)) = decode_answer(json.as_bytes()) else { panic!("sick.json") };
    *status
}

#[test]
fn a_sick_cluster_says_what_is_wrong_and_fits_a_screen() {
    let shown = status(&sick());
    let page = include_str!("sick.txt");
    assert_eq!(shown, page, "\n{shown}");
    assert!(shown.lines().count() <= 24);
}

#[test]
fn a_healthy_cluster_says_so() {
    let mut healthy = sick();
    healthy.problems.clear();
    healthy.nodes[2].alive = true;
    healthy.nodes[2].silent_ms = Some(480);
    assert!(status(&healthy).contains("All is well."));
    // It may have been killed a second ago.
    healthy.nodes[2].silent_ms = Some(1_600);
    let shown = status(&healthy);
    assert!(
        !shown.contains("All is well.") && shown.contains("00000003 was last heard 1600 ms ago")
    );
}

#[test]
fn a_thousand_nodes_fit_a_screen_with_the_worst_first() {
    let mut big = sick();
    let node = |n| Node { id: uuid(n), alive: true, state: "active".into(), ..Node::default() };
    big.nodes.splice(0..0, (100..1_100).map(node));
    for _ in 0..20 {
        big.problems.push(big.problems[0].clone());
    }
    let shown = status(&big);
    assert!(shown.lines().count() <= 30, "{shown}");
    let gone = shown.lines().position(|line| line.contains(" gone ")).unwrap();
    let first = shown.lines().position(|line| line.starts_with("NODE")).unwrap();
    assert_eq!(gone, first + 1, "{shown}");
    assert!(shown.contains("and 997 more: 'millpond admin nodes'"), "{shown}");
}

#[test]
fn lists_show_short_names_and_states() {
    let sick = sick();
    let nodes = nodes(&sick);
    assert!(nodes.contains("00000003  host-c  10.0.0.3:7440  gone"), "{nodes}");
    let disks = disks(&sick);
    assert!(disks.contains("000000d3  00000003  host-c  gone"), "{disks}");
    assert!(disks.contains("1.50 GiB  2 GiB  75"), "{disks}");
    let failing = Status {
        nodes: vec![Node { id: uuid(1), alive: true, ..Node::default() }],
        disks: vec![Disk { id: uuid(9), node: uuid(1), state: "active".into(), ..Disk::default() }],
        ..Status::default()
    };
    assert!(super::disks(&failing).contains("failing"));
}

#[test]
fn chains_show_where_data_is_and_how_far_it_is() {
    let target = |n: u32, state: &str, behind_bytes| Target {
        target: n,
        node: uuid(n),
        disk: uuid(n + 16),
        state: state.into(),
        local: Some("online".into()),
        used_bytes: 4096,
        behind_bytes,
    };
    let chain = Chain {
        id: 7,
        version: 3,
        targets: vec![
            target(1, "serving", 0),
            target(2, "serving", 0),
            target(3, "syncing", 1 << 20),
        ],
        moving: Some(Move { add: 3, drop: Some(1) }),
        slots: 256,
    };
    let short = Short::of(&Status::default());
    let all = [chain];
    let shown = chains(&all, short);
    assert!(
        shown.contains("1@00000001 [goes] > 2@00000002 > 3@00000003 syncing (1 MiB to go) [comes]"),
        "{shown}"
    );
    let shown = targets(&all, short);
    assert!(
        shown.contains("3       7      00000003  00000013  syncing  online     4 KiB  1 MiB"),
        "{shown}"
    );
}

#[test]
fn slots_show_how_far_they_are() {
    let all = [Chain { id: 7, slots: 256, ..Chain::default() }];
    let slot = Slot { slot: 65_535, from: 1, to: 7, ..Slot::default() };
    let told = Slot { slot: 3, through: Some(495), chunks: 12, bytes: 3 << 20, ..slot };
    let totals =
        SlotTotals { chunks: 5_012, bytes: 312 << 20, failures: 0, ..SlotTotals::default() };
    let progress = Progress { slots_running: 2, slots_waiting: 1_232, ..Progress::default() };
    let mut moves = Status { progress, slots: totals, ..Status::default() };
    let shown = slots(&all, &[told, slot], &moves);
    assert_eq!(
        shown,
        "256 slots on 1 chains, 256 to 256 each; 2 move\n\
         1234 of 65536 to move; 312 MiB in 5012 chunks copied since the nodes started\n\
         SLOT   FROM CHAIN  TO CHAIN  THROUGH  CHUNKS  COPIED\n\
         3      1           7         49 %     12      3 MiB\n\
         65535  1           7         -        0       0 B\n"
    );
    let pace = SlotTotals { bytes_per_second: 61 << 20, seconds_left: Some(40), ..totals };
    moves.slots = SlotTotals { failures: 3, ..pace };
    let line = "slots    1234 of 65536 to move; 312 MiB in 5012 chunks copied since the nodes \
                started, 61 MiB/s, about 40 s left, 3 retried\n";
    assert!(status(&moves).contains(line), "{}", status(&moves));
    let times = [119, 121, 7_199, 7_261].map(duration);
    assert_eq!(times, ["119 s", "3 min", "120 min", "2 h 1 min"]);
    moves.progress = Progress::default();
    assert!(!status(&moves).contains("slots"), "at rest nothing is said of slots");
    assert!(slots(&all, &[], &moves).ends_with("0 move\n"));
}

#[test]
fn settings_show_what_was_set_and_what_it_was_before() {
    let values = [("repair.after", "1h"), ("from.the.future", "1")];
    let values = values.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let shown = config(&Config { version: 3, values });
    assert!(shown.contains("repair.after") && shown.contains("1h (default 15m)"), "{shown}");
    assert!(shown.contains("from.the.future"), "{shown}");
    assert!(shown.contains("rebalance.paused"), "{shown}");
}

#[test]
fn moves_are_told_in_words() {
    let progress =
        Progress { moves_running: 2, moves_waiting: 10, slots_waiting: 5, ..Progress::default() };
    assert_eq!(moves(&progress, true), "paused; 2 replicas move, 10 wait; 0 slots move, 5 wait");
    assert_eq!(moves(&Progress::default(), false), "none");
}

#[test]
fn times_and_shares_are_right() {
    // As `date -u -d @N` says.
    for (seconds, text) in [
        (0, "1970-01-01 00:00:00Z"),
        (951_827_696, "2000-02-29 12:34:56Z"),
        (1_709_251_199, "2024-02-29 23:59:59Z"),
        (4_294_967_295, "2106-02-07 06:28:15Z"),
    ] {
        assert_eq!(utc(seconds), text);
    }
    let line = event(&Event { number: 7, at: 0, chain: None, text: "so".into() });
    assert_eq!(line, "     7  1970-01-01 00:00:00Z  so\n");
    assert_eq!((percent(1, 0), percent(1, 3), percent(u64::MAX, u64::MAX)), (0, 33, 100));
}
