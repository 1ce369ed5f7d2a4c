use std::collections::HashSet;

use super::{FakeDisk, Fault, FaultKind, SECTOR, block_on, race_all};
use crate::disk::{DISK_BLOCK, Disk};
use crate::pool::{BufferPool, PAGE_SIZE, PoolOptions, SharedBuf};
use crate::rng::Rng;

fn pool() -> BufferPool {
    BufferPool::new(PoolOptions::new(4 << 20)).unwrap()
}

fn page(pool: &BufferPool, byte: u8) -> SharedBuf {
    pool.try_copy(&[byte; PAGE_SIZE]).unwrap().freeze()
}

/// The first byte of every sector of the first `blocks` blocks.
fn sectors(disk: &FakeDisk, blocks: u64) -> Vec<u8> {
    let len = usize::try_from(blocks * DISK_BLOCK).unwrap();
    let mut bytes = vec![0; len];
    disk.peek(0, &mut bytes);
    bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
}

#[test]
fn synced_writes_are_in_every_later_crash() {
    let (disk, pool) = (FakeDisk::new(1 << 20), pool());
    block_on(async {
        disk.write(0, page(&pool, 1)).await.unwrap();
        disk.sync().await.unwrap();
        let durable = disk.history_len();
        disk.write(4096, page(&pool, 2)).await.unwrap();
        disk.write(8192, page(&pool, 3)).await.unwrap();
        let mut images = HashSet::new();
        for image in disk.crash_images(400, 7) {
            let seen = sectors(&image, 3);
            if image.crash_point() >= durable {
                assert!(seen[..8].iter().all(|byte| *byte == 1), "an acknowledged write is lost");
            }
            if image.crash_point() < 4 {
                assert!(seen[16..].iter().all(|byte| *byte == 0), "a write before its time");
            }
            images.insert((image.crash_point(), seen));
        }
        // All, none, either one, and torn ones.
        let last: Vec<_> = images.iter().filter(|(point, _)| *point == 4).collect();
        let whole = |block: usize, seen: &[u8]| {
            let part = &seen[block * 8..][..8];
            part.iter().all(|byte| *byte == part[0]).then_some(part[0])
        };
        for (second, third) in [(0, 0), (2, 0), (0, 3), (2, 3)] {
            assert!(
                last.iter().any(
                    |(_, seen)| whole(1, seen) == Some(second) && whole(2, seen) == Some(third)
                ),
                "no crash with {second} and {third}"
            );
        }
        assert!(last.iter().any(|(_, seen)| whole(1, seen).is_none()), "no torn write");
    });
}

#[test]
fn a_sync_covers_only_what_had_returned_when_it_began() {
    let (disk, pool) = (FakeDisk::new(1 << 20).with_yields(3), pool());
    let mut lost_after_sync = false;
    for seed in 0..50 {
        let disk = FakeDisk::new(1 << 20).with_yields(seed);
        let write = async { disk.write(0, page(&pool, 9)).await };
        let sync = async { disk.sync().await };
        let futures: Vec<std::pin::Pin<Box<dyn Future<Output = _>>>> =
            vec![Box::pin(write), Box::pin(sync)];
        for result in block_on(race_all(futures, seed)) {
            result.unwrap();
        }
        lost_after_sync |= disk
            .crash_images(100, 1)
            .any(|image| image.crash_point() == 2 && sectors(&image, 1)[0] == 0);
    }
    assert!(lost_after_sync, "a write in flight during a sync may be lost");
    drop(disk);
}

#[test]
fn images_are_the_same_for_the_same_seed_and_bounded() {
    let (disk, pool) = (FakeDisk::new(1 << 20), pool());
    block_on(async {
        for place in 0..60u8 {
            disk.write(u64::from(place) * DISK_BLOCK, page(&pool, place)).await.unwrap();
            if place % 20 == 19 {
                disk.sync().await.unwrap();
            }
        }
    });
    let run = |seed| -> Vec<_> {
        disk.crash_images(500, seed).map(|image| sectors(&image, 60)).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!(run(1).len() <= 500);
    let few: Vec<usize> = disk.crash_images(10, 1).map(|image| image.crash_point()).collect();
    assert!(few.len() <= 10);
    assert!(few.windows(2).all(|pair| pair[0] < pair[1]), "{few:?}");
}

#[test]
fn crashed_disks_go_on_and_crash_again() {
    let (disk, pool) = (FakeDisk::new(1 << 20), pool());
    block_on(async {
        disk.write_sync(0, page(&pool, 1)).await.unwrap();
        let crashed = disk.crash_images(100, 1).last().unwrap();
        assert_eq!(crashed.crash_point(), 2);
        crashed.write_sync(0, page(&pool, 2)).await.unwrap();
        assert_eq!(sectors(&crashed, 1)[0], 2);
        assert_eq!(sectors(&disk, 1)[0], 1, "the crashed disk is a copy");
        let first = crashed.crash_images(100, 1).next().unwrap();
        assert_eq!(sectors(&first, 1)[0], 1);
        crashed.forget_history();
        assert_eq!(crashed.history_len(), 0);
        assert_eq!(crashed.crash_images(100, 1).count(), 1);
        assert_eq!(crashed.written_blocks(), [0]);
    });
}

#[test]
fn faults_hit_once_and_full_disks_refuse() {
    let (disk, pool) = (FakeDisk::new(1 << 20), pool());
    block_on(async {
        disk.inject(Fault::eio(FaultKind::Write, 1));
        disk.write(0, page(&pool, 1)).await.unwrap();
        let error = disk.write(0, page(&pool, 2)).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(sectors(&disk, 1)[0], 1);
        disk.write(0, page(&pool, 3)).await.unwrap();

        disk.inject(Fault { partial: 1500, ..Fault::eio(FaultKind::Write, 0) });
        disk.write(0, page(&pool, 4)).await.unwrap_err();
        assert_eq!(sectors(&disk, 1), [4, 4, 3, 3, 3, 3, 3, 3]);

        disk.inject(Fault::eio(FaultKind::Sync, 0));
        disk.sync().await.unwrap_err();
        disk.inject(Fault::eio(FaultKind::Read, 0));
        disk.read(0, pool.try_alloc(4096).unwrap()).await.1.unwrap_err();
        disk.read(0, pool.try_alloc(4096).unwrap()).await.1.unwrap();

        disk.set_full(true);
        let error = disk.write(0, page(&pool, 5)).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        disk.set_full(false);
        disk.write(0, page(&pool, 5)).await.unwrap();

        disk.flip_bit(513, 7);
        let mut byte = [0];
        disk.peek(513, &mut byte);
        assert_eq!(byte[0], 5 ^ 0x80);
        disk.poke(513, &[5]);
        disk.peek(513, &mut byte);
        assert_eq!(byte[0], 5);
    });
}

/// Compares with a model that keeps the whole disk as plain bytes.
#[test]
fn reads_match_a_model() {
    let (disk, pool) = (FakeDisk::new(32 * DISK_BLOCK), pool());
    let mut model = vec![0u8; 32 * PAGE_SIZE];
    let mut rng = Rng::new(11);
    block_on(async {
        for _ in 0..500 {
            let (first, count) = (rng.index(32), rng.index(4) + 1);
            let count = count.min(32 - first);
            let (start, len) = (first * PAGE_SIZE, count * PAGE_SIZE);
            match rng.below(4) {
                0 => {
                    disk.discard(start as u64, len as u64).await.unwrap();
                    model[start..start + len].fill(0);
                }
                1 => disk.sync().await.unwrap(),
                _ => {
                    let mut buf = pool.try_alloc(len).unwrap();
                    rng.fill(&mut buf);
                    model[start..start + len].copy_from_slice(&buf);
                    disk.write(start as u64, buf.freeze()).await.unwrap();
                }
            }
        }
        let (back, result) = disk.read(0, pool.try_alloc(model.len()).unwrap()).await;
        result.unwrap();
        assert!(*back == *model);
    });
}
