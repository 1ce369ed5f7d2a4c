//! Locks of processes on several mounts.

use millpond_types::meta::{
    FileLock, HeldLock, Ino, LOCKS_MAX, LockKind, LockSpace, LocksRecord, MetaError, MetaOp,
    MetaReply, keys,
};
use millpond_types::wire::Record;

use crate::support::{Client, Fixture, LEASE};

const ROOT: Ino = Ino::ROOT;
const ALL: (u64, u64) = (0, u64::MAX);
use LockKind::{Read, Unlock, Write};

fn lock(kind: LockKind, owner: u64, (start, end): (u64, u64)) -> FileLock {
    FileLock { space: LockSpace::Posix, kind, owner, pid: 100, start, end }
}

async fn set(c: &Client, ino: Ino, lock: FileLock) -> Result<(), MetaError> {
    assert_eq!(c.run(MetaOp::SetLock { ino, lock }).await?, MetaReply::Done);
    Ok(())
}

/// Returns owner and range of the conflicting lock.
async fn get(c: &Client, ino: Ino, lock: FileLock) -> Option<(u64, (u64, u64))> {
    match c.run(MetaOp::GetLock { ino, lock }).await.unwrap() {
        MetaReply::Lock(held) => held.map(|h| (h.lock.owner, (h.lock.start, h.lock.end))),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn ranges_and_owners(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await.at(&f.other));
    let ino = a.file(ROOT, "f").await;
    assert_eq!(set(&a, ino, lock(Write, 1, (10, 19))).await, Ok(()));
    assert_eq!(set(&a, ino, lock(Write, 1, (15, 29))).await, Ok(()), "its own is no obstacle");
    assert_eq!(set(&b, ino, lock(Read, 1, (0, 9))).await, Ok(()), "beside it");
    // The same number on another mount is another owner.
    assert_eq!(set(&b, ino, lock(Read, 1, (0, 10))).await, Err(MetaError::Again));
    assert_eq!(get(&b, ino, lock(Read, 1, (0, 10))).await, Some((1, (10, 29))), "joined");
    assert_eq!(set(&a, ino, lock(Read, 2, (29, 99))).await, Err(MetaError::Again));
    assert_eq!(set(&a, ino, lock(Unlock, 1, (14, 24))).await, Ok(()), "split");
    assert_eq!(set(&b, ino, lock(Write, 1, (14, 24))).await, Ok(()));
    assert_eq!(get(&b, ino, lock(Write, 1, ALL)).await, Some((1, (10, 13))));
    // Downgraded to shared, and upgraded again only when no other lock is shared.
    assert_eq!(set(&b, ino, lock(Read, 1, (14, 24))).await, Ok(()));
    assert_eq!(set(&a, ino, lock(Read, 3, (20, 21))).await, Ok(()));
    assert_eq!(set(&b, ino, lock(Write, 1, (14, 24))).await, Err(MetaError::Again));
    assert_eq!(set(&a, ino, lock(Unlock, 3, ALL)).await, Ok(()));
    assert_eq!(set(&b, ino, lock(Write, 1, (14, 24))).await, Ok(()));
    assert_eq!(set(&b, ino, lock(Unlock, 9, ALL)).await, Ok(()), "nothing to unlock");
    for (client, owner) in [(&a, 1), (&b, 1)] {
        assert_eq!(set(client, ino, lock(Unlock, owner, ALL)).await, Ok(()));
    }
    assert_eq!(get(&a, ino, lock(Write, 7, ALL)).await, None);
    assert_eq!(f.store.begin().get(&keys::locks(ino)).await.unwrap(), None, "nothing is left");
    let nothing = a.run(MetaOp::GetLock { ino, lock: lock(Unlock, 1, ALL) }).await;
    assert_eq!(nothing, Err(MetaError::Invalid));
    assert_eq!(set(&a, Ino(99), lock(Read, 1, ALL)).await, Err(MetaError::Stale));
}

pub(crate) async fn whole_files_of_flock(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let ino = a.file(ROOT, "f").await;
    let flock = |kind, owner| FileLock { space: LockSpace::Flock, ..lock(kind, owner, (5, 5)) };
    assert_eq!(set(&a, ino, flock(Write, 1)).await, Ok(()));
    assert_eq!(get(&b, ino, flock(Read, 1)).await, Some((1, ALL)));
    assert_eq!(set(&b, ino, lock(Write, 1, ALL)).await, Ok(()), "they do not see each other");
    assert_eq!(set(&b, ino, flock(Read, 1)).await, Err(MetaError::Again));
    assert_eq!(set(&a, ino, flock(Read, 1)).await, Ok(()));
    assert_eq!(set(&b, ino, flock(Read, 1)).await, Ok(()));
    assert_eq!(set(&a, ino, flock(Write, 1)).await, Err(MetaError::Again));
    assert_eq!(set(&b, ino, flock(Unlock, 1)).await, Ok(()));
    assert_eq!(set(&a, ino, flock(Write, 1)).await, Ok(()));
    // A request has one answer, also for a refusal.
    let wanted = b.request(MetaOp::SetLock { ino, lock: flock(Write, 1) });
    assert_eq!(b.send(&wanted).await, Err(MetaError::Again));
    assert_eq!(set(&a, ino, flock(Unlock, 1)).await, Ok(()));
    assert_eq!(b.at(&f.other).send(&wanted).await, Err(MetaError::Again));
    assert_eq!(get(&a, ino, flock(Write, 1)).await, None);
}

pub(crate) async fn go_with_their_session(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await);
    let (one, two) = (a.file(ROOT, "one").await, a.file(ROOT, "two").await);
    for ino in [one, two] {
        assert_eq!(set(&a, ino, lock(Write, 1, ALL)).await, Ok(()));
    }
    let with = async |session: u64| {
        let range = millpond_store::KeyRange::prefix(&keys::locked_by(session));
        f.store
            .begin()
            .range_all(&range, millpond_store::RangeOptions::default())
            .await
            .unwrap()
            .len()
    };
    assert_eq!(with(a.session).await, 2);
    a.run(MetaOp::SessionClose).await.unwrap();
    assert_eq!(with(a.session).await, 0);
    assert_eq!(set(&a, one, lock(Read, 1, ALL)).await, Err(MetaError::Stale));
    assert_eq!(set(&b, one, lock(Write, 1, ALL)).await, Ok(()));
    // A meta died after it ended the session and before it removed the locks: other clients need
    // not wait.
    f.store.transact(|txn| async move { txn.delete(&keys::session(b.session)) }).await.unwrap();
    let third = f.client().await;
    assert_eq!(get(&third, one, lock(Read, 1, ALL)).await, None);
    assert_eq!(set(&third, one, lock(Read, 1, (0, 5))).await, Ok(()));
    f.volume.collect().await.unwrap();
    assert_eq!((with(b.session).await, with(third.session).await), (0, 1));
    // A lease runs out.
    f.clock.advance(LEASE + std::time::Duration::from_secs(2));
    let last = f.client().await;
    f.volume.collect().await.unwrap();
    assert_eq!(with(third.session).await, 0);
    assert_eq!(set(&last, one, lock(Write, 1, ALL)).await, Ok(()));
    // The locks of an inode are removed with it.
    last.unlink(ROOT, "one").await.unwrap();
    f.volume.collect().await.unwrap();
    last.renew(&[], &[one]).await.unwrap();
    assert_eq!(f.volume.collect().await.unwrap().inodes, 1);
    assert_eq!(f.store.begin().get(&keys::locks(one)).await.unwrap(), None);
}

pub(crate) async fn have_a_limit(f: Fixture) {
    let c = f.client().await;
    let ino = c.file(ROOT, "f").await;
    let held = |n: u64| HeldLock { session: c.session, lock: lock(Read, 1, (n * 10, n * 10)) };
    let locks = (0..LOCKS_MAX as u64).map(held).collect();
    let txn = f.store.begin();
    txn.put(&keys::locks(ino), LocksRecord { locks }.seal()).unwrap();
    txn.commit().await.unwrap();
    assert_eq!(set(&c, ino, lock(Read, 2, (5, 5))).await, Err(MetaError::NoLocks));
    assert_eq!(set(&c, ino, lock(Write, 1, (0, 0))).await, Ok(()), "in place of another");
    assert_eq!(set(&c, ino, lock(Unlock, 1, (10, 10))).await, Ok(()));
    assert_eq!(set(&c, ino, lock(Read, 2, (5, 5))).await, Ok(()));
    assert_eq!(set(&c, ino, lock(Read, 1, ALL)).await, Ok(()), "one instead of thousands");
}

pub(crate) async fn exclude_each_other(f: Fixture) {
    let ino = f.client().await.file(ROOT, "f").await;
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4_u64 {
        let (volume, inside) = (if n % 2 == 0 { &f.volume } else { &f.other }, inside.clone());
        let c = Client::open(volume).await;
        tasks.spawn(async move {
            // Each wants one byte of its own and one that all want.
            let range = (10 - n, 10);
            for _ in 0..8 {
                while set(&c, ino, lock(Write, n, range)).await == Err(MetaError::Again) {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(set(&c, ino, lock(Unlock, n, ALL)).await, Ok(()));
            }
        });
    }
    tasks.join_all().await;
}
