//! Sessions: the mounts of a volume.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Ino, MetaError, MetaReply, OrphanRecord, SESSIONS_MAX, Session, SessionRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::view::opened;
use crate::volume::Volume;

/// Orphans that a session is asked about at a time.
const ASKED_MAX: usize = 200;
/// Orphans whose record one transaction changes.
const TOLD_MAX: usize = 50;

/// Begins a session.
pub(crate) async fn open(volume: &Volume, name: &str) -> Result<MetaReply, Failed> {
    let id = volume.fresh_id().await?;
    let record = SessionRecord { name: name.to_owned(), renewed: volume.now() };
    let (key, bytes) = (&keys::session(id), &record.seal());
    // A number of its own: writing the record twice is writing it once.
    volume.store.transact(|txn| async move { txn.put(key, bytes.as_slice()) }).await?;
    let lease_ms = u32::try_from(volume.options.session_lease.as_millis()).unwrap_or(u32::MAX);
    Ok(MetaReply::Session(Session { id, lease_ms }))
}

/// Renews a session, and asks it about orphans. It says which of those it was asked about last are
/// still open and which are not.
pub(crate) async fn renew(
    volume: &Volume,
    session: u64,
    (_open, closed): (&[Ino], &[Ino]),
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
    for some in closed.chunks(TOLD_MAX) {
        has_closed(volume, session, some).await?;
    }
    Ok(MetaReply::Renewed { asked: asked(volume, session).await? })
}

/// The session does not have these open.
async fn has_closed(volume: &Volume, session: u64, inos: &[Ino]) -> Result<(), Failed> {
    volume
        .store
        .transact(|txn| async move {
            let names: Vec<Vec<u8>> = inos.iter().map(|ino| keys::orphan(*ino)).collect();
            let wanted: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let found = txn.get_many(&wanted).await?;
            for (key, bytes) in names.iter().zip(found) {
                let Some(bytes) = bytes else { continue };
                let mut orphan: OrphanRecord = opened(key, &bytes)?;
                let Some(waits_for) = &mut orphan.waits_for else { continue };
                waits_for.retain(|id| *id != session);
                txn.put(key, orphan.seal())?;
            }
            Ok(())
        })
        .await
}

/// Orphans that wait for this session's word.
async fn asked(volume: &Volume, session: u64) -> Result<Vec<Ino>, Failed> {
    let txn = volume.store.begin();
    let mut more = Some(KeyRange::prefix(keys::ORPHANS));
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

/// Ends a session: what only it had open can go.
pub(crate) async fn close(volume: &Volume, session: u64) -> Result<MetaReply, Failed> {
    end(volume, session).await?;
    Ok(MetaReply::Done)
}

/// Forgets a session.
pub(crate) async fn end(volume: &Volume, session: u64) -> Result<(), Failed> {
    let key = &keys::session(session);
    Ok(volume.store.transact(|txn| async move { txn.delete(key) }).await?)
}

/// The sessions that live; those whose lease has run out are ended.
pub(crate) async fn living(volume: &Volume) -> Result<Vec<u64>, Failed> {
    let now = volume.now();
    let lease = i64::try_from(volume.options.session_lease.as_secs()).unwrap_or(i64::MAX);
    let txn = volume.store.begin();
    let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
    let all = txn.range_all(&KeyRange::prefix(keys::SESSIONS), options).await?;
    let mut living = Vec::with_capacity(all.len().min(SESSIONS_MAX));
    for (key, bytes) in all {
        let record: SessionRecord = opened(&key, &bytes)?;
        let Some(id) = keys::number(keys::SESSIONS, &key) else { continue };
        // Clocks of metas differ by little; a second more does no harm.
        if record.renewed.secs.saturating_add(lease).saturating_add(1) < now.secs {
            tracing::warn!(
                session = id,
                "{}: no word for {lease} s, its session ends",
                record.name
            );
            end(volume, id).await?;
        } else {
            living.push(id);
        }
    }
    Ok(living)
}
