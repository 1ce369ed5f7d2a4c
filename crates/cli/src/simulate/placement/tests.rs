//! Small fleets through the whole command.

use clap::Parser as _;
use millpond_env::RealClock;

use super::super::args::Args;
use super::super::chart;
use super::simulate;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    Line::try_parse_from(format!("x --quiet {line}").split_whitespace()).unwrap().args
}

#[test]
fn a_small_fleet_is_even_and_changes_cost_about_the_least() {
    let args = args("--nodes 10 --disks 4 --fail disk --fail node --grow 2 --shrink 2");
    let report = simulate(&args, RealClock::tick()).unwrap();
    assert_eq!((report.disks, report.chains), (40, 256));
    assert!(report.balance.counts.max - report.balance.counts.min <= 1.0, "{report:?}");
    assert!((59.9..=60.1).contains(&report.balance.fill.max), "{:?}", report.balance.fill);
    assert!(report.usable > 0.9, "{}", report.usable);
    assert_eq!(report.recovery.len(), 40);
    let names: Vec<&str> = report.changes.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, ["a disk fails", "a node fails", "2 nodes join", "2 nodes are drained"]);
    for change in &report.changes {
        assert!((0.95..1.1).contains(&change.ratio()), "{}: {}", change.name, change.ratio());
        assert!(change.balance.fill.max < 100.0, "{change:?}");
    }
    assert_eq!(report.changes[0].recovery.as_ref().unwrap().chains_lost, 0);
    assert_eq!(report.changes[0].disks, 1);
    assert_eq!(report.changes[1].disks, 4);
    let text = report.text();
    assert!(text.contains("chains per disk") && text.contains("2 nodes join"), "{text}");
    let json = report.json();
    assert_eq!(json["changes"][2]["disks"], 8);
    assert!(json["balance"]["fill_percent"]["stddev"].as_f64().unwrap() < 5.0);
    let svg = chart::svg(&report);
    assert!(svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn sizes_and_domains_are_respected() {
    let args = args(
        "--nodes 12 --disks 2 --domains 4 --capacity 4TiB:1,8TiB:1 --fail domain --replicas 2",
    );
    let report = simulate(&args, RealClock::tick()).unwrap();
    assert_eq!(report.domains, 4);
    let chains = report.balance.chains;
    assert!(chains.min > 0.9 && chains.max < 1.1, "in proportion to capacity: {chains:?}");
    assert!(report.balance.counts.max > 1.8 * report.balance.counts.min);
    assert_eq!(report.changes[0].disks, 6);
    assert_eq!(report.changes[0].recovery.as_ref().unwrap().chains_lost, 0);
}

#[test]
fn a_cluster_that_doubles_gets_more_chains() {
    let args = args("--nodes 60 --disks 1 --grow 180 --replicas 3");
    let report = simulate(&args, RealClock::tick()).unwrap();
    let change = &report.changes[0];
    assert!(change.chains_added > 0 && change.slots_moved > 0, "{change:?}");
    assert!(change.ratio() < 1.6, "{}", change.ratio());
}

#[test]
fn what_cannot_be_placed_is_said() {
    let few = args("--nodes 2 --replicas 3");
    let error = simulate(&few, RealClock::tick()).unwrap_err().to_string();
    assert!(error.contains("failure domains"), "{error}");
    let shrunk = args("--nodes 4 --replicas 3 --shrink 2");
    assert!(simulate(&shrunk, RealClock::tick()).is_err());
    assert!(Line::try_parse_from("x --nodes 0".split_whitespace()).is_err());
    assert!(simulate(&args("--capacity many"), RealClock::tick()).is_err());
}
