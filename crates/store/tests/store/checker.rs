//! Checks a concurrent history for strict serializability, after Elle (Kingsbury and Alvaro, "Elle:
//! Inferring Isolation Anomalies from Experimental Observations", VLDB 2020).
//!
//! Transactions read lists and append numbers that are appended once only. So a list shows the
//! order in which its numbers were written, and every read shows between which two writes it was.
//! That gives the dependencies between transactions; real time gives more. A cycle among them is a
//! history that no serial order explains.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    /// Certainly not done.
    Aborted,
    Unknown,
}

/// One transaction. Times are numbers of one counter for all clients.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) invoked: u64,
    pub(crate) completed: u64,
    pub(crate) outcome: Outcome,
    /// Lists as they were before the transaction's own appends.
    pub(crate) reads: Vec<(u32, Vec<u64>)>,
    pub(crate) appends: Vec<(u32, u64)>,
}

/// The faults of a history, each in words. The last record must have read every list.
pub(crate) fn check(history: &[Record]) -> Vec<String> {
    let Some(last) = history.last() else { return vec!["nothing happened".into()] };
    let lists: BTreeMap<u32, &Vec<u64>> = last.reads.iter().map(|(k, list)| (*k, list)).collect();
    let mut writers: HashMap<u64, usize> = HashMap::new();
    for (index, record) in history.iter().enumerate() {
        for (_, value) in &record.appends {
            assert!(writers.insert(*value, index).is_none(), "the test appends a number once");
        }
    }
    let mut faults = check_lists(history, &lists, &writers);
    if faults.is_empty() {
        faults.extend(check_order(history, &lists, &writers));
    }
    faults
}

/// Checks that lists grow at their end only, contain each committed value once, and no aborted one.
fn check_lists(
    history: &[Record],
    lists: &BTreeMap<u32, &Vec<u64>>,
    writers: &HashMap<u64, usize>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut place: HashMap<u64, u32> = HashMap::new();
    for (key, list) in lists {
        for value in *list {
            if place.insert(*value, *key).is_some() {
                faults.push(format!("{value} was appended twice"));
            }
            match writers.get(value).map(|writer| history[*writer].outcome) {
                None => faults.push(format!("{value} was never appended")),
                Some(Outcome::Aborted) => faults.push(format!("{value} was aborted, and is there")),
                Some(_) => {}
            }
        }
    }
    for (index, record) in history.iter().enumerate() {
        let there = |value| place.contains_key(value);
        let all = record.appends.iter().all(|(_, value)| there(value));
        let any = record.appends.iter().any(|(_, value)| there(value));
        if record.outcome == Outcome::Committed && !all {
            faults.push(format!("transaction {index} was committed and is lost"));
        } else if any && !all {
            faults.push(format!("transaction {index} took effect in part"));
        }
        if record.outcome == Outcome::Aborted {
            continue;
        }
        for (key, read) in &record.reads {
            let whole = lists.get(key).copied().map_or(&[][..], Vec::as_slice);
            if !whole.starts_with(read) && (record.outcome == Outcome::Committed || any) {
                faults.push(format!("transaction {index} read {read:?} of {whole:?}"));
            }
        }
    }
    faults
}

/// Checks that dependencies have no cycle.
fn check_order(
    history: &[Record],
    lists: &BTreeMap<u32, &Vec<u64>>,
    writers: &HashMap<u64, usize>,
) -> Vec<String> {
    let happened = |record: &Record| {
        let seen = |(key, value): &(u32, u64)| lists.get(key).is_some_and(|l| l.contains(value));
        record.outcome == Outcome::Committed
            || record.outcome == Outcome::Unknown && record.appends.iter().any(seen)
    };
    // Nodes: transactions, then one node per point in time. Time's nodes are a chain; a transaction
    // that completed comes before the point of its completion and after that of its invocation.
    let times =
        history.iter().map(|record| record.completed.max(record.invoked)).max().unwrap_or(0);
    let time = |at: u64| history.len() + usize::try_from(at).unwrap();
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); time(times) + 1];
    for at in 0..times {
        edges[time(at)].push(time(at + 1));
    }
    for (index, record) in history.iter().enumerate().filter(|(_, record)| happened(record)) {
        edges[time(record.invoked)].push(index);
        if record.outcome == Outcome::Committed {
            edges[index].push(time(record.completed));
        }
        for (key, read) in &record.reads {
            let list = lists.get(key).copied().map_or(&[][..], Vec::as_slice);
            if let Some(value) = read.last() {
                edges[writers[value]].push(index);
            }
            if let Some(value) = list.get(read.len()) {
                edges[index].push(writers[value]);
            }
        }
    }
    for list in lists.values() {
        for pair in list.windows(2) {
            edges[writers[&pair[0]]].push(writers[&pair[1]]);
        }
    }
    for (index, next) in edges.iter_mut().enumerate() {
        next.retain(|to| *to != index);
    }
    cycle(&edges, history.len())
}

/// Returns the rest after nodes without a predecessor are removed again and again.
fn cycle(edges: &[Vec<usize>], transactions: usize) -> Vec<String> {
    let mut before = vec![0_usize; edges.len()];
    edges.iter().flatten().for_each(|to| before[*to] += 1);
    let mut free: Vec<usize> = (0..edges.len()).filter(|node| before[*node] == 0).collect();
    let mut taken = 0;
    while let Some(node) = free.pop() {
        taken += 1;
        for to in &edges[node] {
            before[*to] -= 1;
            if before[*to] == 0 {
                free.push(*to);
            }
        }
    }
    if taken == edges.len() {
        return Vec::new();
    }
    let left = (0..transactions).filter(|node| before[*node] > 0);
    let left: Vec<String> = left.map(|node| node.to_string()).collect();
    vec![format!("no serial order explains transactions {}", left.join(", "))]
}

mod tests {
    use super::{Outcome, Record, check};

    fn txn(times: (u64, u64), reads: &[(u32, &[u64])], appends: &[(u32, u64)]) -> Record {
        Record {
            invoked: times.0,
            completed: times.1,
            outcome: Outcome::Committed,
            reads: reads.iter().map(|(key, list)| (*key, list.to_vec())).collect(),
            appends: appends.to_vec(),
        }
    }

    #[test]
    fn a_serial_history_is_in_order() {
        let history = [
            txn((0, 1), &[(1, &[])], &[(1, 10)]),
            txn((2, 3), &[(1, &[10])], &[(1, 11), (2, 20)]),
            txn((4, 5), &[(1, &[10, 11]), (2, &[20])], &[]),
        ];
        assert_eq!(check(&history), Vec::<String>::new());
    }

    #[test]
    fn a_lost_update_is_found() {
        let history = [
            txn((0, 2), &[(1, &[])], &[(1, 10)]),
            txn((1, 3), &[(1, &[])], &[(1, 11)]),
            txn((4, 5), &[(1, &[11])], &[]),
        ];
        assert!(check(&history)[0].contains("lost"));
        let both = [history[0].clone(), history[1].clone(), txn((4, 5), &[(1, &[10, 11])], &[])];
        assert!(check(&both)[0].contains("no serial order"));
    }

    #[test]
    fn write_skew_is_found() {
        let history = [
            txn((0, 2), &[(1, &[]), (2, &[])], &[(1, 10)]),
            txn((1, 3), &[(1, &[]), (2, &[])], &[(2, 20)]),
            txn((4, 5), &[(1, &[10]), (2, &[20])], &[]),
        ];
        assert!(check(&history)[0].contains("no serial order explains transactions 0, 1"));
    }

    #[test]
    fn the_anomaly_of_a_reader_is_found() {
        // Fekete, O'Neil and O'Neil, "A Read-Only Transaction Anomaly Under Snapshot Isolation".
        let history = [
            txn((0, 6), &[(1, &[]), (2, &[])], &[(1, 10)]),
            txn((1, 2), &[(2, &[])], &[(2, 20)]),
            txn((3, 4), &[(1, &[]), (2, &[20])], &[]),
            txn((7, 8), &[(1, &[10]), (2, &[20])], &[]),
        ];
        assert!(check(&history)[0].contains("no serial order"));
    }

    #[test]
    fn a_stale_read_is_found() {
        let history = [
            txn((0, 1), &[], &[(1, 10)]),
            txn((2, 3), &[(1, &[])], &[]),
            txn((4, 5), &[(1, &[10])], &[]),
        ];
        assert!(check(&history)[0].contains("no serial order"));
    }

    #[test]
    fn partial_and_aborted_effects_are_found() {
        let end = txn((9, 10), &[(1, &[10]), (2, &[])], &[]);
        let part = Record { outcome: Outcome::Unknown, ..txn((0, 1), &[], &[(1, 10), (2, 20)]) };
        assert!(check(&[part, end.clone()])[0].contains("in part"));
        let aborted = Record { outcome: Outcome::Aborted, ..txn((0, 1), &[], &[(1, 10)]) };
        assert!(check(&[aborted, end.clone()])[0].contains("was aborted"));
        let unknown = Record { outcome: Outcome::Unknown, ..txn((0, 1), &[], &[(1, 10)]) };
        assert_eq!(check(&[unknown, end]), Vec::<String>::new(), "it may have been done");
    }

    #[test]
    fn lists_that_disagree_are_found() {
        let history = [
            txn((0, 1), &[], &[(1, 10)]),
            txn((0, 2), &[], &[(1, 11)]),
            txn((3, 4), &[(1, &[11])], &[]),
            txn((5, 6), &[(1, &[10, 11])], &[]),
        ];
        assert!(check(&history)[0].contains("read [11] of [10, 11]"));
    }
}
