//! The trash: inodes removed from a directory that keeps them, for a set time.
//!
//! A directory's own record has the time for which it keeps removed entries; a new directory in it
//! begins with the same. So a removal reads nothing besides the directory's own record, which it
//! reads anyway. An inode in the trash has no name and no link. It counts for its quota, and stays
//! usable where it is open. When its time is over it becomes an orphan, as it would have at once
//! without a trash.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{
    Caller, DIR_PAGE_MAX, EntryRecord, Ino, InodeRecord, MetaError, MetaReply, Name, OrphanRecord,
    Timestamp, TrashChange, TrashEntry, TrashPage, TrashRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::object;
use crate::permit;
use crate::quota;
use crate::view::{View, opened};
use crate::volume::Volume;

/// Records that one round looks at.
const LOOKED_AT_MAX: usize = 1000;
/// Inodes that one transaction frees: three records each.
const DROPPED_MAX: usize = 30;

/// Keeps an inode without a name, if the directory keeps removed entries. Returns whether it does.
pub(crate) fn keep(view: &View, dir: &InodeRecord, name: &Name, ino: Ino) -> Result<bool, Failed> {
    if dir.keep_s == 0 {
        return Ok(false);
    }
    let (since, name) = (view.now, name.clone());
    let until = Timestamp { secs: since.secs.saturating_add(dir.keep_s.into()), ..since };
    view.txn.put(&keys::trash(dir.attr.ino, ino), TrashRecord { name, since, until }.seal())?;
    Ok(true)
}

/// Lists a page of the trash of a directory.
pub(crate) async fn list(
    view: &View,
    caller: &Caller,
    (dir, after): (Ino, Ino),
    limit: u32,
) -> Result<MetaReply, Failed> {
    let record = view.inode(dir).await?;
    if !record.attr.is_dir() {
        return Err(MetaError::NotDirectory.into());
    }
    permit::access(caller, &record.attr, permit::READ)?;
    let limit = (limit as usize).clamp(1, DIR_PAGE_MAX);
    let mut range = KeyRange::prefix(&keys::trash_of(dir));
    range.start = keys::trash(dir, Ino(after.0.saturating_add(1)));
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
    let found = view.txn.range(&range, options).await?;
    let mut page = TrashPage { keep_s: record.keep_s, ..TrashPage::default() };
    page.end = found.rest.is_none();
    for (key, bytes) in found.entries {
        let Some((_, ino)) = keys::split_trash(&key) else { continue };
        let record: TrashRecord = opened(&key, &bytes)?;
        let inode = keys::inode(ino);
        let Some(bytes) = view.txn.get_snapshot(&inode).await? else { continue };
        let attr = opened::<InodeRecord>(&inode, &bytes)?.attr;
        page.entries.push(TrashEntry { ino, kind: attr.kind, size: attr.size, record });
    }
    Ok(MetaReply::Trash(page))
}

/// Executes a change of the trash.
pub(crate) async fn change(
    view: &View,
    caller: &Caller,
    wanted: &TrashChange,
) -> Result<MetaReply, Failed> {
    match wanted {
        TrashChange::Keep { dir, keep_s } => {
            let mut record = view.dir(*dir).await?;
            if caller.uid != 0 && caller.uid != record.attr.uid {
                return Err(MetaError::NotPermitted.into());
            }
            record.keep_s = *keep_s;
            record.attr.ctime = view.now;
            view.put_inode(&mut record)?;
        }
        TrashChange::Restore { dir, ino, name } => {
            restore(view, caller, (*dir, name), *ino).await?;
        }
        TrashChange::Drop { dir, ino } => drop_one(view, caller, *dir, *ino).await?,
    }
    Ok(MetaReply::Done)
}

/// Reads the inode of a record in the trash of `dir`.
async fn kept(view: &View, dir: Ino, ino: Ino) -> Result<InodeRecord, Failed> {
    if view.txn.get(&keys::trash(dir, ino)).await?.is_none() {
        return Err(MetaError::NotFound.into());
    }
    view.inode(ino).await
}

async fn restore(
    view: &View,
    caller: &Caller,
    (parent, name): (Ino, &Name),
    ino: Ino,
) -> Result<(), Failed> {
    let mut dir = view.dir(parent).await?;
    let mut record = kept(view, parent, ino).await?;
    permit::remove(caller, &dir.attr, &record.attr)?;
    if view.entry(parent, name).await?.is_some() {
        return Err(MetaError::Exists.into());
    }
    object::may_name(&dir, name, record.attr.kind)?;
    quota::moved(view, &mut record, &dir).await?;
    object::enter(view, &dir, &mut record).await?;
    let is_dir = record.attr.is_dir();
    record.attr.nlink = if is_dir { 2 } else { 1 };
    record.attr.ctime = view.now;
    view.txn.delete(&keys::trash(parent, ino))?;
    view.put_entry(&dir, name, EntryRecord { ino, kind: record.attr.kind })?;
    view.put_inode(&mut record)?;
    view.touch(parent)?;
    if is_dir {
        dir.attr.nlink += 1;
        view.put_inode(&mut dir)?;
    }
    Ok(())
}

async fn drop_one(view: &View, caller: &Caller, parent: Ino, ino: Ino) -> Result<(), Failed> {
    let mut record = kept(view, parent, ino).await?;
    permit::remove(caller, &view.inode(parent).await?.attr, &record.attr)?;
    orphan(view, parent, &mut record)
}

/// Makes a kept inode an orphan.
fn orphan(view: &View, dir: Ino, record: &mut InodeRecord) -> Result<(), Failed> {
    let ino = record.attr.ino;
    let orphan = OrphanRecord { since: view.now, waits_for: None };
    view.txn.delete(&keys::trash(dir, ino))?;
    view.txn.put(&keys::orphan(ino), orphan.seal())?;
    // The new version tells a running check that the inode changed.
    view.put_inode(record)
}

/// Frees inodes after their time: some of the records in one round, the next ones in the next
/// round.
pub(crate) async fn expire(volume: &Volume) -> Result<(), Failed> {
    let options = RangeOptions { snapshot: true, ..RangeOptions::limit(LOOKED_AT_MAX) };
    let all = KeyRange::prefix(keys::TRASH);
    let range = volume.unexpired.lock().take().unwrap_or(all);
    let page = volume.store.begin().range(&range, options).await?;
    *volume.unexpired.lock() = page.rest;
    let (now, mut over) = (volume.now(), Vec::new());
    for (key, bytes) in page.entries {
        let record: TrashRecord = opened(&key, &bytes)?;
        if record.until <= now {
            over.extend(keys::split_trash(&key));
        }
    }
    for some in over.chunks(DROPPED_MAX) {
        volume.store.transact(|txn| expire_some(View::new(txn, now), some)).await?;
    }
    Ok(())
}

async fn expire_some(view: View, some: &[(Ino, Ino)]) -> Result<(), Failed> {
    for (dir, ino) in some {
        let key = keys::trash(*dir, *ino);
        // It may have been restored, removed again and kept for longer in the meantime.
        let there: Option<TrashRecord> = view.read(&key).await?;
        if there.is_none_or(|record| record.until > view.now) {
            continue;
        }
        match view.read::<InodeRecord>(&keys::inode(*ino)).await? {
            Some(mut record) => orphan(&view, *dir, &mut record)?,
            None => view.txn.delete(&key)?,
        }
    }
    Ok(())
}
