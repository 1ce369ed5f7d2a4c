//! The verbs race a model through a real server, and many threads race each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use millpond_client::{GetOutcome, Transport};
use millpond_kv::{Batch, BlockStore as _};
use millpond_types::wire::ItemStatus;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::process::Server;
use super::{ALL, bytes, get, key, keys, open, put};

#[derive(Clone, Debug)]
enum Step {
    Put(usize, usize),
    Get(usize),
    Delete(usize),
    Match(usize),
}

const KEYS: usize = 10;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..KEYS, prop_oneof![0usize..300, 4000usize..5000, 60_000usize..70_000])
            .prop_map(|(n, len)| Step::Put(n, len)),
        (0..KEYS).prop_map(Step::Get),
        (0..KEYS).prop_map(Step::Delete),
        (0..=KEYS).prop_map(Step::Match),
    ];
    proptest::collection::vec(step, 1..60)
}

#[test]
fn verbs_race_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let clients = ALL.map(|transport| server.client(transport));
    let case = AtomicU32::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(48));
    let ran = runner.run(&(0..ALL.len(), steps()), |(transport, steps)| {
        let ns =
            open(&clients[transport], &format!("case-{}", case.fetch_add(1, Ordering::SeqCst)));
        let names = keys("k", KEYS);
        let mut model: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(n, len) => {
                    let value = bytes(n + len, len);
                    let fresh = !model.contains_key(&n);
                    let expected = if fresh { ItemStatus::Ok } else { ItemStatus::Exists };
                    prop_assert_eq!(put(&ns, &names[n], &value), expected);
                    model.entry(n).or_insert(value);
                }
                Step::Get(n) => {
                    let (got, room) = get(&ns, &names[n], 70_000);
                    let expected = model.get(&n).map_or(GetOutcome::Miss, |value| {
                        GetOutcome::Read(u32::try_from(value.len()).unwrap())
                    });
                    prop_assert_eq!(got, expected);
                    if let Some(value) = model.get(&n) {
                        prop_assert!(room[..value.len()] == value[..]);
                    }
                }
                Step::Delete(n) => {
                    let there = ns.delete(Batch::own(&[names[n]])).unwrap()[0];
                    prop_assert_eq!(there, model.remove(&n).is_some());
                }
                Step::Match(n) => {
                    let run = (0..n).take_while(|n| model.contains_key(n)).count();
                    let got = ns.match_prefix(Batch::own(&names[..n]), 0).unwrap();
                    prop_assert_eq!(got.matched as usize, run);
                }
            }
        }
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn threads_that_race_for_a_key_agree_on_the_first_value() {
    const THREADS: usize = 6;
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let transports = [Transport::Tcp, Transport::Shm];
    let clients = transports.map(|transport| server.client(transport));
    let spaces = clients.each_ref().map(|client| open(client, "threads"));
    let names = keys("k", 100);
    let wins = std::thread::scope(|scope| {
        let (names, spaces) = (&names, &spaces);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let ns = &spaces[thread % 2];
                    let mine = |n: usize| bytes(thread + 100 * n, 3000 + 4000 * thread);
                    let put_one = |n: usize| put(ns, &names[n], &mine(n)) == ItemStatus::Ok;
                    (0..names.len()).map(put_one).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for n in 0..names.len() {
        let winners: Vec<usize> = (0..THREADS).filter(|thread| wins[*thread][n]).collect();
        assert_eq!(winners.len(), 1, "key {n}: exactly one put is first");
        let value = bytes(winners[0] + 100 * n, 3000 + 4000 * winners[0]);
        let (got, room) = get(&spaces[n % 2], &key(&format!("k-{n}")), 1 << 16);
        assert_eq!(got, GetOutcome::Read(u32::try_from(value.len()).unwrap()));
        assert!(room[..value.len()] == value[..]);
    }
}
