//! One conformance suite for real and fake disks.

use std::io;

use super::{DISK_BLOCK, Disk, FakeDisk, FileDisk};
use crate::error::EnvErrorKind;
use crate::pool::{Buf, BufferPool, PAGE_SIZE, SharedBuf};
use crate::rng::Rng;
use crate::rt::spawn;
use crate::rt::tests::on_both;

const SIZE: u64 = 4 << 20;

fn noise(pool: &BufferPool, len: usize, seed: u64) -> SharedBuf {
    let mut buf = pool.try_alloc(len).unwrap();
    Rng::new(seed).fill(&mut buf);
    buf.freeze()
}

async fn read(disk: &impl Disk, pool: &BufferPool, offset: u64, len: usize) -> Buf {
    let (buf, result) = disk.read(offset, pool.try_alloc(len).unwrap()).await;
    result.unwrap();
    buf
}

/// Behavior common to all disks.
async fn conforms(disk: impl Disk + Clone, pool: BufferPool) {
    assert_eq!(disk.capacity(), SIZE);
    let data = noise(&pool, 10_000, 1);
    disk.write(8192, data.clone()).await.unwrap();
    disk.sync().await.unwrap();
    let back = read(&disk, &pool, 8192, 10_000).await;
    assert!(*back == *data);
    assert!(back.as_full()[10_000..12_288].iter().all(|byte| *byte == 0), "the tail was cleared");

    disk.write_sync(0, data.slice(4096..8192)).await.unwrap();
    assert!(*read(&disk, &pool, 0, 4096).await == data[4096..8192]);
    let end = SIZE - 3 * DISK_BLOCK;
    disk.write_sync(end, data.clone()).await.unwrap();
    assert!(*read(&disk, &pool, end, 10_000).await == *data);

    disk.discard(8192, 12_288).await.unwrap();
    disk.discard(0, 0).await.unwrap();
    refuses(&disk, &pool, &data).await;

    // Many at once, each in its own place.
    let writers: Vec<_> = (0..128u64)
        .map(|place| {
            let (disk, data) = (disk.clone(), noise(&pool, PAGE_SIZE, place));
            spawn(async move {
                let offset = place * DISK_BLOCK;
                if place % 3 == 0 {
                    disk.write_sync(offset, data).await.unwrap();
                } else {
                    disk.write(offset, data).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    disk.sync().await.unwrap();
    for place in 0..128u64 {
        let back = read(&disk, &pool, place * DISK_BLOCK, PAGE_SIZE).await;
        assert!(*back == *noise(&pool, PAGE_SIZE, place), "block {place}");
    }
}

async fn refuses(disk: &impl Disk, pool: &BufferPool, data: &SharedBuf) {
    let bad = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    };
    bad(disk.write(100, data.clone()).await);
    bad(disk.write(SIZE - 8192, data.clone()).await);
    bad(disk.write(u64::MAX - 4095, data.clone()).await);
    bad(disk.write(0, data.slice(1..4097)).await);
    bad(disk.write_sync(0, data.slice(1..4097)).await);
    bad(disk.write_sync(100, data.clone()).await);
    bad(disk.read(512, pool.try_alloc(4096).unwrap()).await.1);
    bad(disk.read(SIZE, pool.try_alloc(1).unwrap()).await.1);
    bad(disk.discard(1, 4096).await);
    bad(disk.discard(0, SIZE + 4096).await);
}

#[test]
fn files_conform() {
    on_both(async |pool| {
        let folder = tempfile::tempdir_in(".").unwrap();
        let disk = FileDisk::create(&folder.path().join("disk"), SIZE).unwrap();
        conforms(disk, pool).await;
    });
}

/// `write_sync` omits the sync only when nothing but its own bytes needs it.
#[test]
fn what_others_wrote_is_made_durable_too() {
    on_both(async |pool| {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("disk");
        let data = noise(&pool, 8192, 4);
        for opened in 0..2 {
            let disk = FileDisk::create(&path, SIZE).unwrap();
            assert!(!disk.is_durable(), "who had it before may have left something");
            if opened == 0 {
                disk.write_sync(0, data.clone()).await.unwrap();
            } else {
                disk.sync().await.unwrap();
            }
            for _ in 0..2 {
                disk.write_sync(8192, data.clone()).await.unwrap();
                assert!(disk.is_durable());
            }
            disk.write(16_384, data.clone()).await.unwrap();
            assert!(!disk.is_durable());
            disk.write_sync(0, data.clone()).await.unwrap();
            assert!(disk.is_durable());
            assert!(*read(&disk, &pool, 16_384, 8192).await == *data);
            drop(disk);
            crate::rt::yield_now().await;
        }
    });
}

#[test]
fn the_fake_conforms() {
    on_both(async |pool| conforms(FakeDisk::new(SIZE), pool).await);
    on_both(async |pool| conforms(FakeDisk::new(SIZE).with_yields(5), pool).await);
}

#[test]
fn buffers_outside_the_registered_pool_work_too() {
    on_both(async |_| {
        let other = BufferPool::new(crate::pool::PoolOptions::new(1 << 20)).unwrap();
        let folder = tempfile::tempdir_in(".").unwrap();
        let disk = FileDisk::create(&folder.path().join("disk"), SIZE).unwrap();
        let data = noise(&other, 70_000, 3);
        disk.write(0, data.clone()).await.unwrap();
        assert!(*read(&disk, &other, 0, 70_000).await == *data);
    });
}

#[test]
fn a_file_is_held_exclusively_and_let_go() {
    on_both(async |pool| {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("disk");
        assert!(FileDisk::open(&path).is_err());
        for round in 0..100 {
            // More rounds than a ring has slots for files: slots are freed.
            let disk = FileDisk::create(&path, SIZE).unwrap();
            drop(read(&disk, &pool, 0, 4096).await);
            if round == 0 {
                let error = FileDisk::open(&path).unwrap_err();
                assert_eq!(error.kind(), EnvErrorKind::InUse);
                assert!(error.to_string().contains("--data"), "{error}");
            }
            drop(disk);
            crate::rt::yield_now().await;
        }
        let disk = FileDisk::create(&path, SIZE / 2).unwrap();
        assert_eq!(disk.capacity(), SIZE, "an existing file is never cut short");
        drop(disk);
        let disk = FileDisk::create(&path, SIZE * 2).unwrap();
        assert_eq!(disk.capacity(), SIZE * 2);
        assert!(FileDisk::create(&path, 100).is_err());
    });
}

#[test]
fn a_file_cut_short_behind_our_back_is_an_error() {
    on_both(async |pool| {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("disk");
        let disk = FileDisk::create(&path, SIZE).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let (_, result) = disk.read(8192, pool.try_alloc(4096).unwrap()).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn dropped_transfers_leave_their_buffers_with_the_kernel() {
    on_both(async |pool| {
        let folder = tempfile::tempdir_in(".").unwrap();
        let disk = FileDisk::create(&folder.path().join("disk"), SIZE).unwrap();
        for round in 0..64u64 {
            let (disk, data) = (disk.clone(), noise(&pool, 65_536, round));
            let task = spawn(async move { disk.write(round * 65_536 % SIZE, data).await });
            if round % 2 == 0 {
                crate::rt::yield_now().await;
            }
            task.abort();
        }
        disk.sync().await.unwrap();
        // `on_both` checks that every buffer is back once the runtime has ended.
    });
}

#[test]
fn several_cores_share_a_disk() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let disk = FileDisk::create(&folder.path().join("disk"), SIZE).unwrap();
    let cores: Vec<_> = (0..3u64)
        .map(|core| {
            let disk = disk.clone();
            crate::rt::thread("core", move || {
                on_both(async |pool| {
                    for round in 0..20 {
                        let offset = (core * 20 + round) * DISK_BLOCK;
                        let data = noise(&pool, PAGE_SIZE, offset);
                        disk.write(offset, data.clone()).await.unwrap();
                        assert!(*read(&disk, &pool, offset, PAGE_SIZE).await == *data);
                    }
                });
            })
            .unwrap()
        })
        .collect();
    for core in cores {
        core.join().unwrap();
    }
}
