use super::*;

fn op(client: usize, call: u64, ret: u64, action: Action, heard: Heard) -> Operation {
    let ret = (heard != Heard::Unknown).then_some(ret);
    Operation { client, call, ret, action, heard }
}

fn replace(client: usize, call: u64, ret: u64, bytes: &[u8]) -> Operation {
    let heard = Heard::Done(Some((u32::try_from(bytes.len()).unwrap(), Crc32c::of(bytes))));
    op(client, call, ret, Action::Replace(bytes.to_vec()), heard)
}

fn read(client: usize, call: u64, ret: u64, bytes: &[u8]) -> Operation {
    let whole = u32::try_from(bytes.len()).unwrap();
    op(client, call, ret, Action::Read(0, u32::MAX), Heard::Data(bytes.to_vec(), whole))
}

#[test]
fn a_sequential_history_is_linearizable() {
    let history = [replace(0, 0, 1, b"a"), read(1, 2, 3, b"a"), replace(0, 4, 5, b"b")];
    assert_eq!(check(&history), Verdict::Linearizable);
}

#[test]
fn a_stale_read_is_a_violation() {
    let history = [replace(0, 0, 1, b"a"), replace(0, 2, 3, b"b"), read(1, 4, 5, b"a")];
    assert_eq!(check(&history), Verdict::Violation);
}

#[test]
fn reads_may_not_go_back_while_a_write_is_under_way() {
    let concurrent = replace(0, 2, 100, b"b");
    let forth =
        [replace(0, 0, 1, b"a"), concurrent.clone(), read(1, 3, 4, b"a"), read(2, 5, 6, b"b")];
    assert_eq!(check(&forth), Verdict::Linearizable);
    let back = [replace(0, 0, 1, b"a"), concurrent, read(1, 3, 4, b"b"), read(2, 5, 6, b"a")];
    assert_eq!(check(&back), Verdict::Violation);
}

#[test]
fn an_unknown_write_may_happen_late_or_never_but_once() {
    let unknown = op(0, 2, 0, Action::Replace(b"u".to_vec()), Heard::Unknown);
    let never = [replace(1, 0, 1, b"a"), unknown.clone(), read(1, 10, 11, b"a")];
    assert_eq!(check(&never), Verdict::Linearizable);
    let late =
        [replace(1, 0, 1, b"a"), unknown.clone(), read(1, 10, 11, b"a"), read(1, 12, 13, b"u")];
    assert_eq!(check(&late), Verdict::Linearizable);
    let twice = [
        replace(1, 0, 1, b"a"),
        unknown,
        read(1, 10, 11, b"u"),
        replace(1, 12, 13, b"b"),
        read(1, 14, 15, b"u"),
    ];
    assert_eq!(check(&twice), Verdict::Violation);
}

#[test]
fn outcomes_of_updates_must_fit() {
    let exists = op(1, 2, 3, Action::Put(b"x".to_vec()), Heard::Exists);
    assert_eq!(check(&[replace(0, 0, 1, b"a"), exists.clone()]), Verdict::Linearizable);
    assert_eq!(check(&[exists]), Verdict::Violation);
    let append = |heard: &[u8]| {
        let heard = Heard::Done(Some((u32::try_from(heard.len()).unwrap(), Crc32c::of(heard))));
        op(0, 2, 3, Action::Append(b"b".to_vec()), heard)
    };
    assert_eq!(check(&[replace(0, 0, 1, b"a"), append(b"ab")]), Verdict::Linearizable);
    assert_eq!(check(&[replace(0, 0, 1, b"a"), append(b"abb")]), Verdict::Violation);
    let removed = op(0, 2, 3, Action::Remove, Heard::Done(None));
    let gone = op(1, 4, 5, Action::Read(0, 9), Heard::NotFound);
    assert_eq!(check(&[replace(0, 0, 1, b"a"), removed, gone]), Verdict::Linearizable);
}

/// Compares the search with brute force over every order of small histories.
#[test]
fn agrees_with_brute_force_on_random_small_histories() {
    let mut rng = crate::rng::Rng::new(7);
    let mut violations = 0;
    for _ in 0..3000 {
        let history: Vec<Operation> = (0..6)
            .map(|client| {
                let call = rng.below(20);
                let ret = call + 1 + rng.below(12);
                let value = [u8::try_from(rng.below(3)).unwrap()];
                match rng.below(5) {
                    0 | 1 => read(client, call, ret, &value),
                    2 => op(client, call, ret, Action::Replace(value.to_vec()), Heard::Unknown),
                    _ => replace(client, call, ret, &value),
                }
            })
            .collect();
        let expected = brute(&history, &mut vec![], None);
        let verdict = check(&history);
        assert_eq!(verdict == Verdict::Linearizable, expected, "{history:?}");
        violations += usize::from(!expected);
    }
    assert!((300..2700).contains(&violations), "both kinds occur: {violations}");
}

fn brute(history: &[Operation], done: &mut Vec<usize>, state: Option<&Vec<u8>>) -> bool {
    let left: Vec<usize> = (0..history.len()).filter(|i| !done.contains(i)).collect();
    if left.iter().all(|i| history[*i].ret.is_none()) {
        return true;
    }
    left.iter().any(|i| {
        let first = left.iter().all(|j| history[*j].ret.is_none_or(|ret| ret >= history[*i].call));
        let mut states = States::default();
        let before = states.number(state.cloned());
        let Some(after) = states.apply(before, &history[*i]).filter(|_| first) else {
            return false;
        };
        let next = states.values[after as usize].clone();
        done.push(*i);
        let fits = brute(history, done, next.as_ref());
        done.pop();
        fits
    })
}
