//! Sessions: the mounts of a volume.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Ino, MetaError, MetaReply, OrphanRecord, SESSIONS_MAX, Session, SessionRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::view::opened;
use crate::volume::Volume;
use crate::{delegation, lock};

/// Distance below the limit at which no more sessions are opened: so many may open at the same
/// moment.
const SESSIONS_SPARE: usize = 256;
/// Orphans that a session is asked about at a time.
const ASKED_MAX: usize = 200;
/// Orphans with records that one transaction reads.
const TOLD_MAX: usize = 50;
/// Bytes of orphans' records that one transaction writes, of the 1 MiB that it may have: each names
/// the sessions it waits for, 128 KiB at most.
pub(crate) const ORPHAN_BYTES_MAX: usize = 512 << 10;

/// Begins a session.
pub(crate) async fn open(volume: &Volume, name: &str) -> Result<MetaReply, Failed> {
    if living(volume).await?.len() >= SESSIONS_MAX - SESSIONS_SPARE {
        return Err(MetaError::Busy.into());
    }
    let id = volume.fresh_id().await?;
    let record = SessionRecord { name: name.to_owned(), renewed: volume.now(), tenure: 0 };
    let (key, bytes) = (&keys::session(id), &record.seal());
    // The number is new: writing the record twice is the same as once.
    volume.store.transact(|txn| async move { txn.put(key, bytes.as_slice()) }).await?;
    let lease_ms = u32::try_from(volume.options.session_lease.as_millis()).unwrap_or(u32::MAX);
    Ok(MetaReply::Session(Session { id, lease_ms }))
}

/// Renews a session, and asks it about orphans. The session reports which of those it was asked
/// about last are open and which are closed.
pub(crate) async fn renew(
    volume: &Volume,
    session: u64,
    (open, closed): (&[Ino], &[Ino]),
) -> Result<MetaReply, Failed> {
    let (key, now) = (&keys::session(session), volume.now());
    volume
        .store
        .transact(|txn| async move {
            let found = txn.get(key).await?.ok_or(Failed::Refused(MetaError::Stale))?;
            let record: SessionRecord = opened(key, &found)?;
            txn.put(key, SessionRecord { renewed: now, ..record }.seal())?;
            Ok::<_, Failed>(())
        })
        .await?;
    let mut rest = closed;
    while !rest.is_empty() {
        let told = has_closed(volume, session, &rest[..rest.len().min(TOLD_MAX)]).await?;
        rest = &rest[told..];
    }
    let last = open.iter().chain(closed).max().copied();
    Ok(MetaReply::Renewed { asked: asked(volume, session, last.unwrap_or(Ino(0))).await? })
}

/// Records that the session does not have these open, in one transaction. Returns how many it
/// handled.
async fn has_closed(volume: &Volume, session: u64, inos: &[Ino]) -> Result<usize, Failed> {
    volume
        .store
        .transact(|txn| async move {
            let names: Vec<Vec<u8>> = inos.iter().map(|ino| keys::orphan(*ino)).collect();
            let wanted: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let found = txn.get_many(&wanted).await?;
            let mut written = 0;
            for (n, (key, bytes)) in names.iter().zip(found).enumerate() {
                let Some(bytes) = bytes else { continue };
                if written > ORPHAN_BYTES_MAX {
                    return Ok(n);
                }
                written += bytes.len();
                let mut orphan: OrphanRecord = opened(key, &bytes)?;
                let Some(waits_for) = &mut orphan.waits_for else { continue };
                waits_for.retain(|id| *id != session);
                txn.put(key, orphan.seal())?;
            }
            Ok(inos.len())
        })
        .await
}

/// Lists orphans that wait for this session: those after `last` first, so that many that stay open
/// do not hide others.
async fn asked(volume: &Volume, session: u64, last: Ino) -> Result<Vec<Ino>, Failed> {
    let (all, start) =
        (KeyRange::prefix(keys::ORPHANS), keys::orphan(Ino(last.0.saturating_add(1))));
    let before = KeyRange { start: all.start, end: start.clone() };
    let mut asked = asked_in(volume, session, KeyRange { start, end: all.end }).await?;
    if asked.len() < ASKED_MAX {
        asked.extend(asked_in(volume, session, before).await?);
        asked.truncate(ASKED_MAX);
    }
    Ok(asked)
}

async fn asked_in(volume: &Volume, session: u64, range: KeyRange) -> Result<Vec<Ino>, Failed> {
    let txn = volume.store.begin();
    let mut more = Some(range);
    let mut asked = Vec::new();
    while let Some(range) = more {
        let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
        let page = txn.range(&range, options).await?;
        for (key, bytes) in page.entries {
            let orphan: OrphanRecord = opened(&key, &bytes)?;
            let waits = orphan.waits_for.is_some_and(|ids| ids.contains(&session));
            if let Some(ino) = keys::number(keys::ORPHANS, &key).filter(|_| waits) {
                asked.push(Ino(ino));
            }
            if asked.len() == ASKED_MAX {
                return Ok(asked);
            }
        }
        more = page.rest;
    }
    Ok(asked)
}

/// Ends a session: orphans that only it had open can go.
pub(crate) async fn close(volume: &Volume, session: u64) -> Result<MetaReply, Failed> {
    end(volume, session).await?;
    Ok(MetaReply::Done)
}

/// Deletes a session, its recalls and its locks.
pub(crate) async fn end(volume: &Volume, session: u64) -> Result<(), Failed> {
    let key = &keys::session(session);
    volume.store.transact(|txn| async move { txn.delete(key) }).await?;
    delegation::forget(volume, session).await?;
    lock::release_all(volume, session).await
}

/// Whether a session's lease has run out. Clocks of metas differ a little; one second more does no
/// harm.
pub(crate) fn is_over(volume: &Volume, record: &SessionRecord) -> bool {
    let lease = i64::try_from(volume.options.session_lease.as_secs()).unwrap_or(i64::MAX);
    let now = volume.now();
    let is_late = record.renewed.secs.saturating_add(lease).saturating_add(1) < now.secs;
    is_late && *volume.grace_until.lock() <= now
}

/// Ends a session, unless it was renewed in the meantime. Returns whether it lives.
async fn end_if_over(volume: &Volume, session: u64) -> Result<bool, Failed> {
    let key = &keys::session(session);
    let lives = volume
        .store
        .transact(|txn| async move {
            let Some(found) = txn.get(key).await? else { return Ok::<_, Failed>(false) };
            let record: SessionRecord = opened(key, &found)?;
            if !is_over(volume, &record) {
                return Ok(true);
            }
            tracing::warn!(
                session,
                "{}: no renewal within its lease, the session ends",
                record.name
            );
            txn.delete(key)?;
            Ok(false)
        })
        .await?;
    if !lives {
        delegation::forget(volume, session).await?;
        lock::release_all(volume, session).await?;
    }
    Ok(lives)
}

/// Lists the living sessions; those with an expired lease are ended.
pub(crate) async fn living(volume: &Volume) -> Result<Vec<u64>, Failed> {
    let txn = volume.store.begin();
    let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
    let all = txn.range_all(&KeyRange::prefix(keys::SESSIONS), options).await?;
    let mut living = Vec::with_capacity(all.len().min(SESSIONS_MAX));
    for (key, bytes) in all {
        let record: SessionRecord = opened(&key, &bytes)?;
        let Some(id) = keys::number(keys::SESSIONS, &key) else { continue };
        if !is_over(volume, &record) || end_if_over(volume, id).await? {
            living.push(id);
        }
    }
    Ok(living)
}
