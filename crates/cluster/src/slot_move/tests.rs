use millpond_types::SlotId;
use millpond_types::cluster::ChainId;
use proptest::prelude::*;

use super::*;

const DONE: SlotDone = SlotDone { slot: SlotId(9), from: ChainId(1), to: ChainId(2) };

fn set(chunks: &[u128]) -> BTreeSet<ChunkId> {
    chunks.iter().map(|chunk| ChunkId(*chunk)).collect()
}

#[test]
fn it_waits_for_what_was_admitted_before() {
    let mut moving = SlotMove::new(DONE, set(&[1, 2]));
    let mut effects = Vec::new();
    moving.step(Tick(0), SlotEvent::Tick { busy: &set(&[2, 3]) }, &mut effects);
    assert_eq!(effects, [], "2 is still busy");
    moving.step(Tick(1), SlotEvent::Tick { busy: &set(&[3]) }, &mut effects);
    assert_eq!(effects, [SlotEffect::List { after: None, max: SLOT_PAGE_CHUNKS }], "3 came later");
}

#[test]
fn it_is_done_when_a_look_through_the_whole_list_finds_nothing() {
    let mut moving = SlotMove::new(DONE, BTreeSet::new());
    let mut effects = Vec::new();
    let page = |chunks: &[u128], complete| {
        let chunks = set(chunks).into_iter().collect();
        SlotEvent::Page(Some(SlotChunks { chunks, graves: false, complete }))
    };
    moving.step(Tick(0), SlotEvent::Tick { busy: &BTreeSet::new() }, &mut effects);
    moving.step(Tick(0), page(&[5], true), &mut effects);
    moving.step(Tick(0), SlotEvent::Copied(ChunkId(5), Copied::There), &mut effects);
    moving.step(Tick(0), SlotEvent::Removed(ChunkId(5), true), &mut effects);
    let list = SlotEffect::List { after: None, max: SLOT_PAGE_CHUNKS };
    let so_far =
        [list.clone(), SlotEffect::Copy(ChunkId(5)), SlotEffect::Remove(ChunkId(5)), list.clone()];
    assert_eq!(effects, so_far);
    effects.clear();
    moving.step(Tick(0), SlotEvent::Page(None), &mut effects);
    assert!(effects.is_empty(), "a store that cannot say says nothing");
    let later = Tick(SLOT_RETRY_MS * 1000);
    moving.step(later, SlotEvent::Tick { busy: &BTreeSet::new() }, &mut effects);
    assert_eq!(effects.pop(), Some(list.clone()));
    let graves = SlotChunks { chunks: Vec::new(), graves: true, complete: true };
    moving.step(later, SlotEvent::Page(Some(graves)), &mut effects);
    assert!(effects.is_empty(), "a tombstone is waited for");
    let later = Tick(2 * SLOT_RETRY_MS * 1000);
    moving.step(later, SlotEvent::Tick { busy: &BTreeSet::new() }, &mut effects);
    moving.step(later, page(&[], true), &mut effects);
    assert_eq!(effects, [list, SlotEffect::Done(DONE)]);
    assert!(moving.is_done());
}

#[test]
fn what_is_through_is_told_from_the_ids_that_are() {
    let (quarter, half) = (1 << 126, 1 << 127);
    let mut moving = SlotMove::new(DONE, BTreeSet::new());
    let mut effects = Vec::new();
    let none = BTreeSet::new();
    let tick = SlotEvent::Tick { busy: &none };
    let page = |chunks: &[u128]| {
        let chunks = set(chunks).into_iter().collect();
        SlotEvent::Page(Some(SlotChunks { chunks, graves: false, complete: true }))
    };
    assert_eq!(moving.through(), 0, "it has not begun");
    moving.step(Tick(0), tick.clone(), &mut effects);
    moving.step(Tick(0), page(&[quarter, half]), &mut effects);
    assert_eq!(moving.through(), 250);
    moving.step(Tick(0), SlotEvent::Copied(ChunkId(half), Copied::Failed), &mut effects);
    assert_eq!(moving.through(), 250, "the first of them is still on its way");
    moving.step(Tick(0), SlotEvent::Copied(ChunkId(quarter), Copied::Gone), &mut effects);
    assert_eq!(moving.through(), 0, "it looks again after a failure");
    let later = Tick(SLOT_RETRY_MS * 1000);
    moving.step(later, tick, &mut effects);
    moving.step(later, page(&[half]), &mut effects);
    assert_eq!(moving.through(), 500);
    moving.step(later, SlotEvent::Copied(ChunkId(half), Copied::Gone), &mut effects);
    assert_eq!(moving.through(), 1000, "whether more came is all that is left to see");
    moving.step(later, page(&[]), &mut effects);
    assert!(moving.is_done() && moving.through() == 1000);
}

/// A chain's chunks behind the state machine; operations fail as the numbers of `luck` determine.
struct Shell {
    old: BTreeSet<ChunkId>,
    new: BTreeSet<ChunkId>,
    luck: Vec<u8>,
    page: usize,
}

impl Shell {
    fn lucky(&mut self) -> bool {
        self.luck.pop().is_none_or(|n| n > 80)
    }

    fn act(&mut self, effect: &SlotEffect) -> Option<SlotEvent<'static>> {
        let lucky = self.lucky();
        Some(match effect {
            SlotEffect::List { after, max } => {
                let max = (*max).min(self.page);
                let rest = self.old.iter().filter(|chunk| after.is_none_or(|a| **chunk > a));
                let rest: Vec<ChunkId> = rest.copied().collect();
                let complete = rest.len() <= max;
                let chunks = rest.into_iter().take(max).collect();
                SlotEvent::Page(lucky.then_some(SlotChunks { chunks, graves: false, complete }))
            }
            SlotEffect::Copy(chunk) if !self.old.contains(chunk) => {
                SlotEvent::Copied(*chunk, Copied::Gone)
            }
            SlotEffect::Copy(chunk) => {
                if lucky || self.lucky() {
                    self.new.insert(*chunk);
                }
                let copied = if lucky { Copied::There } else { Copied::Failed };
                SlotEvent::Copied(*chunk, copied)
            }
            SlotEffect::Remove(chunk) => {
                assert!(self.new.contains(chunk), "only what has arrived is removed");
                if lucky {
                    self.old.remove(chunk);
                }
                SlotEvent::Removed(*chunk, lucky)
            }
            SlotEffect::Done(_) => return None,
        })
    }
}

proptest! {
    #[test]
    fn everything_arrives_whatever_fails_and_whoever_takes_over(
        chunks in prop::collection::btree_set(0u128..200, 0..60),
        luck in prop::collection::vec(any::<u8>(), 0..200),
        page in 1usize..20,
        crashes in prop::collection::btree_set(0usize..300, 0..4),
    ) {
        let old: BTreeSet<ChunkId> = chunks.into_iter().map(ChunkId).collect();
        let all = old.clone();
        let mut shell = Shell { old, new: BTreeSet::new(), luck, page };
        let mut moving = SlotMove::new(DONE, BTreeSet::new());
        let mut effects = VecDeque::new();
        let mut now = Tick(0);
        for step in 0..5_000 {
            if crashes.contains(&step) {
                moving = SlotMove::new(DONE, BTreeSet::new());
                effects.clear();
            }
            now = now.plus(Duration::from_millis(100));
            let busy = BTreeSet::new();
            let next = effects.pop_front();
            let event = next.and_then(|effect| shell.act(&effect));
            let mut more = Vec::new();
            moving.step(now, event.unwrap_or(SlotEvent::Tick { busy: &busy }), &mut more);
            effects.extend(more);
            if moving.is_done() {
                break;
            }
        }
        prop_assert!(moving.is_done());
        prop_assert!(shell.old.is_empty());
        prop_assert_eq!(shell.new, all);
    }
}
