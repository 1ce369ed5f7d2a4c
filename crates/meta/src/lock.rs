//! Locks on files. Each inode has one record of its locks; a lock ends with the session of its
//! owner.
//!
//! An operation never waits: the mount repeats the request for a blocking lock. Deadlocks between
//! processes that wait for each other are not detected, on purpose: that would take a record of
//! waiting processes, written by each of them. fcntl(2) allows leaving this out.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    FileLock, HeldLock, Ino, LOCKS_MAX, LockKind, LockSpace, LocksRecord, MetaError, MetaReply,
    keys,
};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::session;
use crate::view::View;
use crate::volume::Volume;

/// Inodes in one round of lock release.
const RELEASED_MAX: usize = 1000;

fn is_of(held: &HeldLock, session: u64, lock: &FileLock) -> bool {
    held.session == session && held.lock.owner == lock.owner && held.lock.space == lock.space
}

const fn overlap(a: &FileLock, b: &FileLock) -> bool {
    a.start <= b.end && b.start <= a.end
}

/// Returns the locks that conflict with `lock`, in stored order.
fn in_the_way<'a>(
    held: &'a [HeldLock],
    session: u64,
    lock: &'a FileLock,
) -> impl Iterator<Item = &'a HeldLock> {
    held.iter().filter(move |held| {
        let shared = held.lock.kind == LockKind::Read && lock.kind == LockKind::Read;
        held.lock.space == lock.space
            && !is_of(held, session, lock)
            && !shared
            && lock.kind != LockKind::Unlock
            && overlap(&held.lock, lock)
    })
}

/// Replaces the owner's locks on these bytes by this one: locks are cut and, where they touch and
/// are alike, joined (fcntl(2)).
fn apply(held: &mut Vec<HeldLock>, session: u64, lock: FileLock) {
    let mut new = lock;
    let mut kept = Vec::with_capacity(held.len() + 2);
    for old in held.drain(..) {
        let touches = old.lock.start <= lock.end.saturating_add(1)
            && lock.start <= old.lock.end.saturating_add(1);
        if !is_of(&old, session, &lock) || !touches {
            kept.push(old);
        } else if old.lock.kind == lock.kind {
            new.start = new.start.min(old.lock.start);
            new.end = new.end.max(old.lock.end);
        } else {
            if old.lock.start < lock.start {
                let end = old.lock.end.min(lock.start - 1);
                kept.push(HeldLock { lock: FileLock { end, ..old.lock }, ..old });
            }
            if old.lock.end > lock.end {
                let start = old.lock.start.max(lock.end + 1);
                kept.push(HeldLock { lock: FileLock { start, ..old.lock }, ..old });
            }
        }
    }
    if new.kind != LockKind::Unlock {
        kept.push(HeldLock { session, lock: new });
    }
    *held = kept;
}

/// Returns the lock in stored form: one of flock(2) covers the whole file.
fn whole(lock: FileLock) -> Result<FileLock, MetaError> {
    match lock.space {
        LockSpace::Flock => Ok(FileLock { start: 0, end: u64::MAX, ..lock }),
        LockSpace::Posix if lock.start > lock.end => Err(MetaError::Invalid),
        LockSpace::Posix => Ok(lock),
    }
}

async fn of_inode(view: &View, ino: Ino) -> Result<LocksRecord, Failed> {
    view.inode(ino).await?;
    Ok(view.read(&keys::locks(ino)).await?.unwrap_or_default())
}

/// Returns the first conflicting lock with a living session. The end of a session ends its locks;
/// their records are removed later.
async fn obstacle(
    view: &View,
    held: &[HeldLock],
    session: u64,
    lock: &FileLock,
) -> Result<Option<HeldLock>, Failed> {
    let mut found: Vec<&HeldLock> = in_the_way(held, session, lock).collect();
    found.sort_by_key(|held| held.lock.start);
    let mut sessions: Vec<u64> = found.iter().map(|held| held.session).collect();
    sessions.sort_unstable();
    sessions.dedup();
    let names: Vec<Vec<u8>> = sessions.iter().map(|id| keys::session(*id)).collect();
    let wanted: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    // A session that has ended does not come back. One that ends after this read still justifies a
    // refusal.
    let records = view.txn.get_many_snapshot(&wanted).await?;
    let lives = |held: &&&HeldLock| {
        let place = sessions.binary_search(&held.session);
        place.is_ok_and(|place| records[place].is_some())
    };
    Ok(found.iter().find(lives).map(|held| **held))
}

/// Returns the lock that conflicts with this one, if any.
pub(crate) async fn get(
    view: &View,
    session: u64,
    (ino, lock): (Ino, FileLock),
) -> Result<MetaReply, Failed> {
    if lock.kind == LockKind::Unlock {
        return Err(MetaError::Invalid.into());
    }
    let record = of_inode(view, ino).await?;
    Ok(MetaReply::Lock(obstacle(view, &record.locks, session, &whole(lock)?).await?))
}

/// Sets, changes or removes a lock; refuses at once when another one conflicts.
pub(crate) async fn set(
    view: &View,
    session: u64,
    (ino, lock): (Ino, FileLock),
) -> Result<MetaReply, Failed> {
    let lock = whole(lock)?;
    // Read with a conflict: either the session's end sees this lock, or this transaction sees the
    // end.
    if view.txn.get(&keys::session(session)).await?.is_none() {
        return Err(MetaError::Stale.into());
    }
    let mut record = of_inode(view, ino).await?;
    if obstacle(view, &record.locks, session, &lock).await?.is_some() {
        return Err(MetaError::Again.into());
    }
    // Conflicting locks that are left belong to sessions that have ended.
    let ended: Vec<HeldLock> = in_the_way(&record.locks, session, &lock).copied().collect();
    record.locks.retain(|held| !ended.contains(held));
    let before = record.locks.iter().any(|held| held.session == session);
    apply(&mut record.locks, session, lock);
    if record.locks.len() > LOCKS_MAX {
        return Err(MetaError::NoLocks.into());
    }
    let after = record.locks.iter().any(|held| held.session == session);
    let mark = keys::locked(session, ino);
    match (before, after) {
        (false, true) => view.txn.put(&mark, Vec::new())?,
        (true, false) => view.txn.delete(&mark)?,
        _ => {}
    }
    put(view, ino, &record)?;
    Ok(MetaReply::Done)
}

fn put(view: &View, ino: Ino, record: &LocksRecord) -> Result<(), Failed> {
    let key = keys::locks(ino);
    Ok(if record.locks.is_empty() {
        view.txn.delete(&key)
    } else {
        view.txn.put(&key, record.seal())
    }?)
}

/// Removes the locks of a session that has ended from an inode.
async fn release(volume: &Volume, session: u64, ino: Ino) -> Result<(), Failed> {
    volume
        .store
        .transact(|txn| async move {
            let view = View::new(txn, volume.now());
            if let Some(mut record) = view.read::<LocksRecord>(&keys::locks(ino)).await? {
                record.locks.retain(|held| held.session != session);
                put(&view, ino, &record)?;
            }
            Ok(view.txn.delete(&keys::locked(session, ino))?)
        })
        .await
}

/// Removes all locks of a session that has ended. If this is interrupted, a round of collection
/// continues it.
pub(crate) async fn release_all(volume: &Volume, session: u64) -> Result<(), Failed> {
    let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
    let mut more = Some(KeyRange::prefix(&keys::locked_by(session)));
    while let Some(range) = more {
        let page = volume.store.begin().range(&range, options).await?;
        more = page.rest;
        for (key, _) in page.entries {
            let Some((_, ino)) = keys::split_locked(&key) else { continue };
            release(volume, session, ino).await?;
        }
    }
    Ok(())
}

/// Removes some locks of sessions that have ended.
pub(crate) async fn release_ended(volume: &Volume) -> Result<(), Failed> {
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(RELEASED_MAX) };
    let all = KeyRange::prefix(keys::LOCKED);
    let range = volume.unreleased.lock().take().unwrap_or(all);
    // Reads locks before sessions: the owner of a lock had a session before.
    let page = volume.store.begin().range(&range, options).await?;
    *volume.unreleased.lock() = page.rest;
    if page.entries.is_empty() {
        return Ok(());
    }
    let living = session::living(volume).await?;
    for (key, _) in page.entries {
        let Some((session, ino)) = keys::split_locked(&key) else { continue };
        if !living.contains(&session) {
            release(volume, session, ino).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 24;
    const OWNERS: usize = 3;

    /// The kind of lock that each owner has on each byte.
    type Model = [[Option<LockKind>; BYTES]; OWNERS];

    fn lock() -> impl Strategy<Value = (u64, FileLock)> {
        let kinds = [LockKind::Read, LockKind::Write, LockKind::Unlock];
        let range = (0..BYTES as u64, 0..BYTES as u64);
        (0..OWNERS as u64, prop::sample::select(kinds.to_vec()), range).prop_map(
            |(owner, kind, (a, b))| {
                // The last byte stands for all later ones.
                let last = a.max(b);
                let end = if last == BYTES as u64 - 1 { u64::MAX } else { last };
                let (space, pid) = (LockSpace::Posix, 1);
                (owner % 2, FileLock { space, kind, owner, pid, start: a.min(b), end })
            },
        )
    }

    fn bytes(lock: &FileLock) -> std::ops::Range<usize> {
        let start = usize::try_from(lock.start).unwrap();
        start..usize::try_from(lock.end.saturating_add(1)).unwrap().min(BYTES)
    }

    /// Expands locks to bytes.
    fn told(held: &[HeldLock]) -> Model {
        let mut model = Model::default();
        for held in held {
            let owner = usize::try_from(held.lock.owner).unwrap();
            for byte in bytes(&held.lock) {
                let old = model[owner][byte].replace(held.lock.kind);
                assert_eq!(old, None, "an owner's locks do not overlap");
            }
        }
        model
    }

    proptest! {
        #[test]
        fn agrees_with_an_array_of_bytes(locks in prop::collection::vec(lock(), 1..60)) {
            let (mut held, mut model) = (Vec::new(), Model::default());
            for (session, lock) in locks {
                let owner = usize::try_from(lock.owner).unwrap();
                let blocked = (0..Model::default().len()).any(|other| {
                    other != owner && bytes(&lock).any(|byte| match model[other][byte] {
                        None => false,
                        Some(LockKind::Read) => lock.kind == LockKind::Write,
                        Some(_) => lock.kind != LockKind::Unlock,
                    })
                });
                prop_assert_eq!(in_the_way(&held, session, &lock).next().is_some(), blocked);
                if blocked {
                    continue;
                }
                apply(&mut held, session, lock);
                for byte in bytes(&lock) {
                    model[owner][byte] = Some(lock.kind).filter(|kind| *kind != LockKind::Unlock);
                }
                prop_assert_eq!(told(&held), model);
                // Joined: no two locks of one owner touch and are alike.
                for (n, a) in held.iter().enumerate() {
                    for b in &held[n + 1..] {
                        let alike = a.lock.owner == b.lock.owner && a.lock.kind == b.lock.kind;
                        let touch = a.lock.end.checked_add(1) == Some(b.lock.start)
                            || b.lock.end.checked_add(1) == Some(a.lock.start);
                        prop_assert!(!(alike && touch), "{:?} {:?}", a, b);
                    }
                }
            }
        }
    }
}
