use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::runs::Runs;
use super::{BufferPool, PAGE_SIZE, PoolOptions};

fn pool(pages: usize) -> BufferPool {
    BufferPool::new(PoolOptions::new(pages * PAGE_SIZE)).unwrap()
}

#[test]
fn buffers_are_aligned_disjoint_and_returned() {
    let pool = pool(8);
    let mut a = pool.try_alloc(1).unwrap();
    let mut b = pool.try_alloc(PAGE_SIZE + 1).unwrap();
    assert_eq!((a.len(), a.capacity()), (1, PAGE_SIZE));
    assert_eq!((b.len(), b.capacity()), (PAGE_SIZE + 1, 2 * PAGE_SIZE));
    assert_eq!(a.as_ptr().addr() % PAGE_SIZE, 0);
    a.as_full_mut().fill(1);
    b.as_full_mut().fill(2);
    assert!(a.as_full().iter().all(|byte| *byte == 1));
    assert_eq!(pool.used(), 3 * PAGE_SIZE);
    assert!(pool.try_alloc(6 * PAGE_SIZE).is_none());
    drop((a, b));
    assert_eq!(pool.used(), 0);
    assert!(pool.try_alloc(8 * PAGE_SIZE).is_some());
    assert!(pool.try_alloc(usize::MAX).is_none());
}

#[test]
fn sizes_out_of_range_are_refused() {
    assert!(BufferPool::new(PoolOptions::new(0)).is_err());
    assert!(BufferPool::new(PoolOptions::new(4095)).is_err());
}

#[test]
fn freezing_clears_the_tail_and_shares() {
    let pool = pool(2);
    let mut buf = pool.try_alloc(5000).unwrap();
    buf.as_full_mut().fill(0xEE);
    let shared = buf.freeze();
    assert_eq!(shared.len(), 5000);
    assert_eq!(shared.padded().len(), 8192);
    assert!(shared.padded()[5000..].iter().all(|byte| *byte == 0));
    let part = shared.slice(4096..5000);
    assert_eq!(part.pool_offset(), shared.pool_offset() + 4096);
    assert_eq!(part.padded().len(), 4096);
    assert!(part.ptr_eq(&shared.slice(4096..4097)));
    let shared = shared.try_unique().unwrap_err();
    drop(part);
    let unique = shared.try_unique().unwrap();
    assert_eq!(unique.len(), 5000);
    drop(unique);
    assert_eq!(pool.used(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "needs a real memfd")]
fn clients_can_map_but_not_write_or_resize() {
    use super::{Access, Mapping};
    use std::os::fd::{AsFd, AsRawFd};
    let pool = pool(2);
    let mut buf = pool.try_alloc(4096).unwrap();
    buf.fill(7);
    let fd = pool.memfd_read_only().unwrap();
    let map = Mapping::new(fd.as_fd(), pool.capacity(), Access::ReadOnly).unwrap();
    // SAFETY: the offset lies within the mapping.
    let byte = unsafe { map.base().add(usize::try_from(buf.pool_offset()).unwrap()).read() };
    assert_eq!(byte, 7);
    assert!(Mapping::new(fd.as_fd(), pool.capacity(), Access::ReadWrite).is_err());
    // Reopened for writing through /proc, the seal still refuses a writable mapping and a resize.
    let path = format!("/proc/self/fd/{}", pool.memfd().as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(Mapping::new(again.as_fd(), pool.capacity(), Access::ReadWrite).is_err());
    assert!(again.set_len(0).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "needs a real memfd")]
fn memory_is_taken_as_it_is_used() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let pool = BufferPool::new(PoolOptions::new((129 << 20) + 5)).unwrap();
    let file = std::fs::File::from(pool.memfd().as_fd().try_clone_to_owned().unwrap());
    let taken = || file.metadata().unwrap().blocks() * 512;
    assert_eq!(taken(), 0);
    let mut buf = pool.try_alloc(10_000).unwrap();
    buf.fill(7);
    assert_eq!(taken(), 3 * PAGE_SIZE as u64);
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32),
    Give(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = proptest::prop_oneof![
        (1u32..20).prop_map(Step::Take),
        (60u32..200).prop_map(Step::Take),
        any::<usize>().prop_map(Step::Give),
        any::<usize>().prop_map(Step::Give),
    ];
    proptest::collection::vec(step, 1..300)
}

/// Expected free runs of a page map, in order.
fn runs_of(free: &[bool]) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for (page, _) in free.iter().enumerate().filter(|(_, free)| **free) {
        let page = u32::try_from(page).unwrap();
        match found.last_mut() {
            Some((start, length)) if *start + *length == page => *length += 1,
            _ => found.push((page, 1)),
        }
    }
    found
}

proptest! {
    /// Compares with a map of single pages: the same free runs (so freed neighbors are joined), a
    /// shortest fitting run is chosen, and `None` only when no run fits.
    #[test]
    fn runs_match_a_page_map(steps in steps(), pages in 1u32..600) {
        let mut runs = Runs::new(pages);
        let mut free = vec![true; pages as usize];
        let mut held: Vec<(u32, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Take(want) => {
                    let best = runs_of(&free).into_iter().map(|(_, length)| length)
                        .filter(|length| *length >= want).min();
                    let got = runs.take(want);
                    prop_assert_eq!(got.is_some(), best.is_some());
                    if let Some(start) = got {
                        let home = runs_of(&free).into_iter()
                            .find(|(first, length)| *first <= start && start < first + length);
                        prop_assert_eq!(home.map(|(_, length)| length), best);
                        for page in start..start + want {
                            prop_assert!(free[page as usize]);
                            free[page as usize] = false;
                        }
                        held.push((start, want));
                    }
                }
                Step::Give(which) => {
                    if !held.is_empty() {
                        let (start, count) = held.swap_remove(which % held.len());
                        runs.give(start, count);
                        free[start as usize..(start + count) as usize].fill(true);
                    }
                }
            }
            prop_assert_eq!(runs.free_runs(), runs_of(&free));
            let count = free.iter().filter(|free| **free).count();
            prop_assert_eq!(runs.free() as usize, count);
        }
    }
}
