//! A cluster: what its managers say, and the way from here to every node.

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_client::{ClientError, ErrorKind};
use millpond_types::ByteSize;

use super::Report;
use super::way::{self, Way};
use crate::admin::remote::Where;
use crate::exit::told;
use millpond_control::admin::{Disk, Node, Status};

/// Clocks further apart make expiry and the order of logs a matter of luck.
const CLOCK_MS_MAX: i64 = 500;
/// A round trip within one site is far below.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(10);
/// Less than a network of 1 Gbit/s has. One drive takes ten times as much.
const BYTES_PER_SECOND_MIN: u64 = 100_000_000;
/// A node this many times slower than the one in the middle has a trouble of its own.
const SLOWER_MAX: u64 = 4;
/// Above where eviction starts by default: somebody stores what may not be evicted.
const FULL_PERCENT: u64 = 96;
/// A disk takes no updates above it.
const FULL_PERCENT_MAX: u64 = 98;

/// A node that answered, and its way.
struct Reached<'a> {
    node: &'a Node,
    way: Way,
}

/// Looks at all of it.
///
/// # Errors
/// Only what keeps anything from being asked at all: an address that is none, for instance.
pub(super) fn look(report: &mut Report, at: &Where) -> anyhow::Result<()> {
    let status = match at.cluster()?.status() {
        Ok(status) => status,
        Err(error) => {
            match refusal(&error) {
                Some(why) => report.fail("token", "the cluster rejects this credential", why),
                None => no_manager(report, at, &error),
            }
            return Ok(());
        }
    };
    chains(report, &status);
    // A node that is gone is a finding of its own.
    let is_there = |disk: &&Disk| status.nodes.iter().any(|it| it.id == disk.node && it.alive);
    for disk in status.disks.iter().filter(is_there) {
        self::disk(report, disk);
    }
    versions(report, &status);
    let mut reached = Vec::new();
    for node in &status.nodes {
        if let Some(way) = node_way(report, at, node) {
            reached.push(Reached { node, way });
        }
    }
    managers(report, &reached);
    clocks(report, &reached);
    speeds(report, &reached);
    lost_chunks(report, &reached);
    Ok(())
}

/// What a server that takes no questions with this credential says to that.
fn refusal(error: &anyhow::Error) -> Option<String> {
    let error = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>())?;
    (error.kind() == ErrorKind::Unauthorized).then(|| error.to_string())
}

/// Nobody speaks for the cluster: says which of the addresses given have a server at all.
fn no_manager(report: &mut Report, at: &Where, error: &anyhow::Error) {
    report.fail(
        "managers",
        told(error),
        "start a manager, or give nodes of the cluster with --server",
    );
    for address in &at.server {
        match way::measure(at, address) {
            Ok(way) => report.ok(format!("server {address}"), speed(&way)),
            Err(error) => {
                let fix = "start it, or open the port between here and it";
                report.fail(format!("server {address}"), told(&error), fix);
            }
        }
    }
}

fn chains(report: &mut Report, status: &Status) {
    let all = status.chains_whole + status.chains_degraded + status.chains_down;
    let other = if status.tables.is_empty() { "" } else { " or those of their table" };
    let text =
        format!("{} of {all} have their {} replicas{other}", status.chains_whole, status.replicas);
    if status.chains_down > 0 {
        report.fail(
            "chains",
            format!("{} do not serve", status.chains_down),
            "start the nodes named in 'millpond admin events': only they have the newest data",
        );
    } else if status.replicas == 0 {
        let fix = "start enough nodes, then 'millpond admin form --replicas N'";
        report.fail("chains", "there are none yet", fix);
    } else if status.chains_degraded > 0 {
        let fix = if status.targets.syncing > 0 {
            "wait, replicas are syncing: 'millpond admin status' shows the progress"
        } else {
            "start the nodes and disks that are away, or wait for 'repair.after'"
        };
        let text = format!("{text}, {} serve with fewer", status.chains_degraded);
        report.warn("chains", text, fix);
    } else {
        report.ok("chains", text);
    }
    if status.paused {
        report.warn("moves", "are paused", "'millpond admin resume' continues them");
    }
}

fn disk(report: &mut Report, disk: &Disk) {
    let what = format!("disk {}", short(&disk.id));
    let percent = match disk.capacity_bytes {
        0 => 0,
        all => u128::from(disk.used_bytes) * 100 / u128::from(all),
    };
    let percent = u64::try_from(percent).unwrap_or(100);
    let text = format!(
        "{} of {} used ({percent} %)",
        ByteSize(disk.used_bytes),
        ByteSize(disk.capacity_bytes)
    );
    let room = "add a node or a disk, or delete data";
    if !disk.healthy {
        let fix = "replace it; 'millpond admin lose DISK' rebuilds its data at once";
        report.fail(what, "is failing: its log cannot be written", fix);
    } else if percent >= FULL_PERCENT_MAX {
        report.fail(what, format!("{text}: it takes no new values"), room);
    } else if percent >= FULL_PERCENT {
        report.warn(what, format!("{text}: eviction does not keep up, or is not allowed"), room);
    } else {
        report.ok(what, text);
    }
}

/// Programs by version; this one counts too, since it may not know all that a newer one says.
fn versions(report: &mut Report, status: &Status) {
    let mut nodes_of: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in status.nodes.iter().filter(|node| node.alive) {
        nodes_of.entry(&node.build).or_default().push(name(node));
    }
    let here = millpond_node::BUILD;
    let mixed = nodes_of.keys().any(|build| nodes_of.keys().any(|other| !is_alike(build, other)));
    let told: Vec<String> = nodes_of
        .iter()
        .map(|(version, nodes)| format!("{version} on {}", nodes.join(", ")))
        .collect();
    if mixed {
        let fix = "finish the upgrade: restart the others with the newest version, one by one";
        report.warn("versions", told.join("; "), fix);
    } else if nodes_of.keys().any(|build| !is_alike(build, here)) {
        let text = format!("all nodes run {}, this program is {here}", told.join("; "));
        report.warn("versions", text, "use the version of the nodes here too");
    } else {
        report.ok("versions", format!("{here} everywhere"));
    }
}

/// Whether two programs may be of one source: of one version and, where both tell it, of one commit.
fn is_alike(build: &str, other: &str) -> bool {
    let parts = |build: &str| match build.split_once(" (") {
        Some((version, commit)) => (version.to_owned(), Some(commit.to_owned())),
        None => (build.to_owned(), None),
    };
    let ((version, commit), (other_version, other_commit)) = (parts(build), parts(other));
    version == other_version
        && (commit == other_commit || commit.is_none() || other_commit.is_none())
}

/// Measures the way to a node over the first of its addresses that answers.
fn node_way(report: &mut Report, at: &Where, node: &Node) -> Option<Way> {
    let what = format!("node {}", name(node));
    if !node.alive {
        let fix = if node.targets == 0 {
            "it holds no data: start it, or run 'millpond admin remove'"
        } else {
            "start it, or replace it: its data is rebuilt after 'repair.after'"
        };
        report.fail(what, format!("is gone, with {} replicas", node.targets), fix);
        return None;
    }
    let mut found = None;
    for address in &node.addresses {
        match way::measure(at, address) {
            Ok(way) => {
                found = Some(way);
                break;
            }
            Err(error) => {
                let text = format!("is alive, but does not answer from here: {}", told(&error));
                let fix = refusal(&error).unwrap_or_else(|| {
                    "open the port between here and it, or correct 'cluster.advertise'".to_owned()
                });
                report.fail(what.clone(), text, fix);
            }
        }
    }
    found
}

/// Who has the manager role, as far as nodes say.
fn managers(report: &mut Report, reached: &[Reached<'_>]) {
    let of = |number: &str| {
        let has = |it: &&Reached<'_>| it.way.number(number) == Some(1);
        reached.iter().filter(has).map(|it| name(it.node)).collect::<Vec<_>>()
    };
    let (all, primary) = (of("managers"), of("managers_primary"));
    match (all.len(), primary.first()) {
        // Out of reach from here; the way to it says so.
        (0, _) => {}
        (1, _) => report.warn(
            "managers",
            format!("{} is the only manager", all[0]),
            "while it is away, data is served but no failure is handled: run three managers with \
             etcd (--store etcd://…), see docs/cluster.md",
        ),
        (count, Some(primary)) => {
            report.ok("managers", format!("{primary} is primary, {} standby", count - 1));
        }
        (count, None) => report.warn(
            "managers",
            format!("none of {count} managers is primary"),
            "run doctor again in some seconds, then see their logs",
        ),
    }
}

/// Clocks against the one in the middle, this host's included: one that is wrong is named alone.
fn clocks(report: &mut Report, reached: &[Reached<'_>]) {
    let mut all: Vec<i64> = reached.iter().map(|it| it.way.clock_ms).collect();
    all.push(0);
    let middle = middle(&mut all);
    let fix = "synchronize it with chrony or systemd-timesyncd";
    let mut off = |what: String, ms: i64, error: i64| {
        let wrong = (ms - middle).saturating_abs() - error > CLOCK_MS_MAX;
        if wrong {
            let (by, way) = ((ms - middle).abs(), if ms > middle { "ahead of" } else { "behind" });
            report.warn(what, format!("its clock is {by} ms {way} the others"), fix);
        }
        wrong
    };
    let mut any = off("clock here".to_owned(), 0, 0);
    for it in reached {
        any |= off(format!("node {}", name(it.node)), it.way.clock_ms, it.way.clock_error_ms);
    }
    if !any && !reached.is_empty() {
        let most = reached.iter().map(|it| (it.way.clock_ms - middle).saturating_abs());
        report.ok("clocks", format!("within {} ms", most.max().unwrap_or(0).max(1)));
    }
}

fn speeds(report: &mut Report, reached: &[Reached<'_>]) {
    let mut all: Vec<u64> = reached.iter().map(|it| it.way.bytes_per_second).collect();
    let middle = middle(&mut all);
    for it in reached {
        let (what, text) = (format!("node {}", name(it.node)), speed(&it.way));
        let cable = "check its network card and cable (ethtool), and its load";
        if it.way.round_trip > ROUND_TRIP_MAX {
            report.warn(what, text, "far away or busy: run a cluster within one site");
        } else if it.way.bytes_per_second < BYTES_PER_SECOND_MIN {
            report.warn(what, format!("{text}, less than 1 Gbit/s"), cable);
        } else if it.way.bytes_per_second < middle / SLOWER_MAX {
            report.warn(what, format!("{text}, much slower than the others"), cable);
        } else {
            report.ok(what, text);
        }
    }
}

/// Chunks of which no replica had good bytes when another one was filled.
fn lost_chunks(report: &mut Report, reached: &[Reached<'_>]) {
    for it in reached {
        let count = it.way.number("lost_chunks").unwrap_or(0);
        if count > 0 {
            let what = format!("node {}", name(it.node));
            let text = format!("holds {count} chunks without a good copy: reads of them fail");
            let fix = "start the nodes that are away, since they may have them; otherwise write \
                       the chunks again or delete them (the log of the node names them)";
            report.warn(what, text, fix);
        }
    }
}

fn speed(way: &Way) -> String {
    format!(
        "{} answers in {:.2} ms, {}/s",
        way.address,
        way.round_trip.as_secs_f64() * 1000.0,
        ByteSize(way.bytes_per_second)
    )
}

/// The one in the middle; the default of none.
fn middle<T: Ord + Copy + Default>(all: &mut [T]) -> T {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

fn name(node: &Node) -> String {
    let at = node.addresses.first().map_or("?", String::as_str);
    format!("{} ({at})", short(&node.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use millpond_control::admin::TargetCounts;

    fn node(id: &str) -> Node {
        let addresses = vec![format!("{id}:7440")];
        let build = millpond_node::BUILD.to_owned();
        Node { id: id.to_owned(), addresses, build, alive: true, ..Node::default() }
    }

    fn way(clock_ms: i64, mb_per_second: u64) -> Way {
        Way {
            clock_ms,
            bytes_per_second: mb_per_second * 1_000_000,
            round_trip: Duration::from_micros(100),
            ..Way::default()
        }
    }

    fn verdicts(look: impl FnOnce(&mut Report)) -> Vec<(Verdict, String)> {
        let mut report = Report::default();
        look(&mut report);
        for finding in &report.0 {
            let has_fix = finding.fix.is_some();
            assert_eq!(has_fix, finding.verdict != Verdict::Ok, "{finding:?}");
        }
        report.0.into_iter().map(|finding| (finding.verdict, finding.what)).collect()
    }

    #[test]
    fn the_clock_that_is_wrong_is_named_and_no_other() {
        let nodes = ["a", "b", "c"].map(node);
        let with = |clocks: [i64; 3]| {
            let it = nodes.iter().zip(clocks);
            let reached: Vec<_> =
                it.map(|(node, ms)| Reached { node, way: way(ms, 1000) }).collect();
            verdicts(|report| super::clocks(report, &reached))
        };
        assert_eq!(with([0, 3, -2]), [(Verdict::Ok, "clocks".to_owned())]);
        assert_eq!(with([0, 9000, 1]), [(Verdict::Warn, "node b (b:7440)".to_owned())]);
        assert_eq!(with([-7000, -7001, -7000]), [(Verdict::Warn, "clock here".to_owned())]);
    }

    #[test]
    fn slow_and_far_nodes_are_named() {
        let nodes = ["a", "b", "c"].map(node);
        let with = |speeds: [u64; 3]| {
            let it = nodes.iter().zip(speeds);
            let reached: Vec<_> = it.map(|(node, mb)| Reached { node, way: way(0, mb) }).collect();
            let all = verdicts(|report| super::speeds(report, &reached));
            all.into_iter().map(|(verdict, _)| verdict).collect::<Vec<_>>()
        };
        assert_eq!(with([1000, 1200, 900]), [Verdict::Ok; 3]);
        assert_eq!(with([1000, 1200, 200]), [Verdict::Ok, Verdict::Ok, Verdict::Warn]);
        assert_eq!(with([50, 60, 70]), [Verdict::Warn; 3]);
        let far = Way { round_trip: Duration::from_millis(40), ..way(0, 1000) };
        let reached = [Reached { node: &nodes[0], way: far }];
        assert_eq!(verdicts(|report| super::speeds(report, &reached))[0].0, Verdict::Warn);
    }

    #[test]
    fn chunks_without_a_good_copy_are_a_finding() {
        let nodes = ["a", "b"].map(node);
        let with =
            |lost: u64| Way { numbers: vec![("lost_chunks".to_owned(), lost)], ..way(0, 1000) };
        let reached = [(0, with(0)), (1, with(3))].map(|(n, way)| Reached { node: &nodes[n], way });
        let found = verdicts(|report| super::lost_chunks(report, &reached));
        assert_eq!(found, [(Verdict::Warn, "node b (b:7440)".to_owned())]);
    }

    #[test]
    fn what_managers_say_is_judged() {
        let status = |whole, degraded, down| Status {
            replicas: 2,
            chains_whole: whole,
            chains_degraded: degraded,
            chains_down: down,
            ..Status::default()
        };
        let chains = |status: &Status| verdicts(|report| super::chains(report, status))[0].0;
        assert_eq!(chains(&status(9, 0, 0)), Verdict::Ok);
        assert_eq!(chains(&status(8, 1, 0)), Verdict::Warn);
        assert_eq!(chains(&status(8, 0, 1)), Verdict::Fail);
        assert_eq!(chains(&Status::default()), Verdict::Fail);
        let targets = TargetCounts { syncing: 1, ..TargetCounts::default() };
        let syncs = Status { targets, ..status(8, 1, 0) };
        let mut report = Report::default();
        super::chains(&mut report, &syncs);
        assert!(report.0[0].fix.as_ref().unwrap().starts_with("wait"));

        let disk = |used_bytes, healthy| {
            let disk =
                Disk { used_bytes, capacity_bytes: 100, healthy, targets: 3, ..Disk::default() };
            verdicts(|report| super::disk(report, &disk))[0].0
        };
        assert_eq!(disk(95, true), Verdict::Ok);
        assert_eq!(disk(97, true), Verdict::Warn);
        assert_eq!(disk(99, true), Verdict::Fail);
        assert_eq!(disk(5, false), Verdict::Fail);
    }

    #[test]
    fn mixed_versions_are_named() {
        let old = Node { build: "0.0.9".to_owned(), ..node("b") };
        let gone = Node { alive: false, build: "0.0.1".to_owned(), ..node("c") };
        let with = |nodes: &[&Node]| {
            let nodes = nodes.iter().map(|&node| node.clone()).collect();
            let mut report = Report::default();
            versions(&mut report, &Status { nodes, ..Status::default() });
            report.0.remove(0)
        };
        let new = node("a");
        assert_eq!(with(&[&new, &gone]).verdict, Verdict::Ok);
        let mixed = with(&[&new, &old]);
        assert_eq!(mixed.verdict, Verdict::Warn);
        assert!(mixed.text.contains("0.0.9 on b (b:7440)"), "{mixed:?}");
        assert_eq!(with(&[&old]).verdict, Verdict::Warn);
    }

    #[test]
    fn builds_of_one_version_are_alike_unless_their_commits_differ() {
        assert!(is_alike("0.1.0 (aaaa)", "0.1.0 (aaaa)"));
        assert!(is_alike("0.1.0", "0.1.0 (aaaa)"), "one of a tarball");
        assert!(!is_alike("0.1.0 (aaaa)", "0.1.0 (bbbb)"));
        assert!(!is_alike("0.1.0 (aaaa)", "0.2.0 (aaaa)"));
    }

    #[test]
    fn managers_without_a_standby_are_a_finding() {
        let nodes = ["a", "b"].map(node);
        let with = |roles: [(u64, u64); 2]| {
            let it = nodes.iter().zip(roles);
            let reached: Vec<_> = it
                .map(|(node, (manager, primary))| {
                    let numbers = vec![
                        ("managers".to_owned(), manager),
                        ("managers_primary".to_owned(), primary),
                    ];
                    Reached { node, way: Way { numbers, ..way(0, 1000) } }
                })
                .collect();
            verdicts(|report| super::managers(report, &reached))
        };
        assert_eq!(with([(1, 1), (0, 0)])[0].0, Verdict::Warn);
        assert_eq!(with([(1, 1), (1, 0)])[0].0, Verdict::Ok);
        assert_eq!(with([(1, 0), (1, 0)])[0].0, Verdict::Warn);
        assert_eq!(with([(0, 0), (0, 0)]), []);
    }
}
