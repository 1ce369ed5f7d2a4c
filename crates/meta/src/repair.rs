//! Repairs findings of a check: each repair is one transaction. It first checks that the records
//! are still as they were found, and loses no readable data.

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::PartRecord;
use millpond_types::meta::{
    Attr, Caller, EntryRecord, FileKind, Ino, InodeRecord, Layout, Marks, MetaError, MetaReply,
    Name, Repair, UsageRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::Failed;
use crate::object;
use crate::quota;
use crate::records::is_unreadable;
use crate::view::View;

/// The directory in which inodes without names get one.
const LOST_FOUND: &[u8] = b"lost+found";
/// Limit of directories in a ring: a transaction reads them all.
const RING_MAX: usize = 100;

/// Makes the root directory.
pub(crate) fn make_root(view: &View) -> Result<(), Failed> {
    let attr = new_dir(view, Ino::ROOT, 0o755);
    view.put_inode(&mut InodeRecord {
        attr,
        target: Vec::new(),
        xattrs: 0,
        quota: quota::NONE,
        keep_s: 0,
        delegated: None,
        marks: Marks::default(),
    })?;
    view.touch(Ino::ROOT)
}

/// Attributes of a directory of root in the root directory.
pub(crate) fn new_dir(view: &View, ino: Ino, mode: u16) -> Attr {
    let now = view.now;
    Attr {
        ino,
        kind: FileKind::Directory,
        mode,
        uid: 0,
        gid: 0,
        nlink: 2,
        rdev: 0,
        size: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        data: 0,
        chunks: Some(0),
        is_shared: false,
        solid: 0,
        cuts: 0,
        layout: Layout::NONE,
        parent: Ino::ROOT,
        version: 0,
    }
}

/// Executes a repair; `id` is the number of a directory that it may have to make.
pub(crate) async fn repair(
    view: &View,
    caller: &Caller,
    repair: &Repair,
    id: u64,
) -> Result<MetaReply, Failed> {
    if caller.uid != 0 {
        return Err(MetaError::NotPermitted.into());
    }
    let done = match repair {
        Repair::Root => root(view).await?,
        Repair::Aside { key } => aside(view, key).await?,
        Repair::Name { dir, name } => bad_name(view, *dir, name).await?,
        Repair::ExtraName { dir, name, ino, version } => {
            extra_name(view, (*dir, name), (*ino, *version)).await?
        }
        Repair::Place { ino, version, parent } => {
            change(view, *ino, *version, |record| record.attr.parent = *parent).await?
        }
        Repair::Links { ino, version, nlink } => {
            change(view, *ino, *version, |record| record.attr.nlink = *nlink).await?
        }
        Repair::Nameless { ino, version, nlink } => {
            match seen(view, *ino, *version).await? {
                Some(record) => take_in(view, record, *nlink, id).await?,
                None => return Ok(MetaReply::Repaired(false)),
            }
            true
        }
        Repair::Named { ino, version, nlink, trash } => {
            let done = change(view, *ino, *version, |record| record.attr.nlink = *nlink).await?;
            if done {
                view.txn.delete(&keys::orphan(*ino))?;
                view.txn.delete(&keys::trash(*trash, *ino))?;
            }
            done
        }
        Repair::Ring { ino } => ring(view, *ino, id).await?,
        Repair::Xattrs { ino } => xattrs(view, *ino).await?,
        Repair::Stray { key } => stray(view, key).await?,
        Repair::Usage { key, version, bytes, inodes } => {
            usage(view, key, (*version, *bytes, *inodes)).await?
        }
        Repair::Places { dir, name } => object::repair_places(view, *dir, name).await?,
        Repair::Users { chunks, version, users } => {
            view.set_users(*chunks, (*version, *users)).await?
        }
    };
    Ok(MetaReply::Repaired(done))
}

/// Reads the inode, if it still has the version that was seen.
async fn seen(view: &View, ino: Ino, version: u64) -> Result<Option<InodeRecord>, Failed> {
    let found: Option<InodeRecord> = view.read(&keys::inode(ino)).await?;
    Ok(found.filter(|record| record.attr.version == version))
}

async fn change(
    view: &View,
    ino: Ino,
    version: u64,
    to: impl FnOnce(&mut InodeRecord),
) -> Result<bool, Failed> {
    let Some(mut record) = seen(view, ino, version).await? else { return Ok(false) };
    to(&mut record);
    record.attr.ctime = view.now;
    view.put_inode(&mut record)?;
    Ok(true)
}

async fn root(view: &View) -> Result<bool, Failed> {
    if view.txn.get(&keys::inode(Ino::ROOT)).await?.is_some() {
        return Ok(false);
    }
    make_root(view)?;
    Ok(true)
}

/// Moves an unreadable record to a key that no operation reads.
async fn aside(view: &View, key: &[u8]) -> Result<bool, Failed> {
    if !key.starts_with(keys::PREFIX) || key.starts_with(keys::ASIDE) {
        return Err(MetaError::Invalid.into());
    }
    let Some(bytes) = view.txn.get(key).await? else { return Ok(false) };
    if !is_unreadable(key, &bytes) {
        return Ok(false);
    }
    tracing::warn!("putting aside the unreadable record {}", key.escape_ascii());
    view.txn.put(&keys::aside(key), bytes)?;
    view.txn.delete(key)?;
    Ok(true)
}

/// Changes the version of a directory that got or lost a name: checks that are counting its names
/// count again.
async fn renamed_in(view: &View, dir: Ino) -> Result<(), Failed> {
    if let Some(mut record) = view.read::<InodeRecord>(&keys::inode(dir)).await? {
        view.put_inode(&mut record)?;
        if record.attr.is_dir() {
            view.touch(dir)?;
        }
    }
    Ok(())
}

/// Removes an entry of a directory that may be missing.
fn delete_entry(
    view: &View,
    above: Option<&InodeRecord>,
    (dir, name): (Ino, &Name),
    kind: FileKind,
) -> Result<(), Failed> {
    match above {
        Some(above) => view.delete_entry(above, name, kind),
        None => Ok(view.txn.delete(&keys::entry(dir, name))?),
    }
}

async fn bad_name(view: &View, dir: Ino, name: &Name) -> Result<bool, Failed> {
    let Some(entry) = view.entry(dir, name).await? else { return Ok(false) };
    let above: Option<InodeRecord> = view.read(&keys::inode(dir)).await?;
    let to: Option<InodeRecord> = view.read(&keys::inode(entry.ino)).await?;
    let lies_well = above.as_ref().is_some_and(|record| record.attr.is_dir());
    match to {
        Some(record) if lies_well && record.attr.kind == entry.kind => return Ok(false),
        Some(mut record) if lies_well => {
            let kind = record.attr.kind;
            delete_entry(view, above.as_ref(), (dir, name), entry.kind)?;
            if let Some(above) = &above {
                view.put_entry(above, name, EntryRecord { kind, ..entry })?;
            }
            view.put_inode(&mut record)?;
        }
        Some(mut record) => {
            delete_entry(view, above.as_ref(), (dir, name), entry.kind)?;
            if entry.ino != dir {
                view.put_inode(&mut record)?;
            }
        }
        None => delete_entry(view, above.as_ref(), (dir, name), entry.kind)?,
    }
    renamed_in(view, dir).await?;
    Ok(true)
}

async fn extra_name(
    view: &View,
    (dir, name): (Ino, &Name),
    (ino, version): (Ino, u64),
) -> Result<bool, Failed> {
    let entry = view.entry(dir, name).await?;
    let record = seen(view, ino, version).await?;
    let (Some(entry), Some(record)) = (entry, record) else { return Ok(false) };
    if entry.ino != ino || !record.attr.is_dir() {
        return Ok(false);
    }
    let above: Option<InodeRecord> = view.read(&keys::inode(dir)).await?;
    delete_entry(view, above.as_ref(), (dir, name), entry.kind)?;
    // The inode's own version stays: repairs of its other names depend on it.
    if dir != ino {
        renamed_in(view, dir).await?;
    }
    Ok(true)
}

/// Gives an inode a name in `/lost+found`, which is made if it is missing.
async fn take_in(view: &View, mut record: InodeRecord, nlink: u32, id: u64) -> Result<(), Failed> {
    let mut dir = lost_found(view, id).await?;
    let ino = record.attr.ino;
    let name = Name::new(format!("#{ino}").as_bytes()).map_err(|_| MetaError::Invalid)?;
    if view.entry(dir.attr.ino, &name).await?.is_some() || dir.attr.ino == ino {
        return Err(MetaError::Exists.into());
    }
    record.attr.nlink = nlink;
    record.attr.parent = dir.attr.ino;
    record.attr.ctime = view.now;
    let kind = record.attr.kind;
    view.put_entry(&dir, &name, EntryRecord { ino, kind })?;
    view.put_inode(&mut record)?;
    dir.attr.nlink += u32::from(record.attr.is_dir());
    view.put_inode(&mut dir)?;
    view.touch(dir.attr.ino)
}

async fn lost_found(view: &View, id: u64) -> Result<InodeRecord, Failed> {
    let name = Name::new(LOST_FOUND).map_err(|_| MetaError::Invalid)?;
    if let Some(entry) = view.entry(Ino::ROOT, &name).await? {
        return view.dir(entry.ino).await;
    }
    let mut root = view.dir(Ino::ROOT).await?;
    let attr = new_dir(view, Ino(id), 0o700);
    let (target, quota, marks) = (Vec::new(), root.quota, Marks::default());
    let record = InodeRecord { attr, target, xattrs: 0, quota, keep_s: 0, marks, delegated: None };
    view.charge(record.quota, attr.ino, quota::Charge::of(&record)).await?;
    view.put_entry(&root, &name, EntryRecord { ino: attr.ino, kind: attr.kind })?;
    root.attr.nlink += 1;
    view.put_inode(&mut root)?;
    view.touch(Ino::ROOT)?;
    Ok(record)
}

/// Takes a directory out of a ring, if it is in one.
async fn ring(view: &View, ino: Ino, id: u64) -> Result<bool, Failed> {
    let Some(record) = view.read::<InodeRecord>(&keys::inode(ino)).await? else { return Ok(false) };
    let mut at = record.attr.parent;
    for step in 0.. {
        if at == ino {
            break;
        }
        if step == RING_MAX {
            return Err(MetaError::NotSupported.into());
        }
        let above: Option<InodeRecord> = view.read(&keys::inode(at)).await?;
        match above {
            Some(above) if at != Ino::ROOT && above.attr.parent != at => at = above.attr.parent,
            _ => return Ok(false),
        }
    }
    let parent = record.attr.parent;
    let Some(name) = name_of(view, parent, ino).await? else { return Ok(false) };
    let mut above: Option<InodeRecord> = view.read(&keys::inode(parent)).await?;
    delete_entry(view, above.as_ref(), (parent, &name), FileKind::Directory)?;
    let mut nlink = record.attr.nlink;
    if parent == ino {
        nlink = nlink.saturating_sub(1);
    } else if let Some(above) = &mut above {
        above.attr.nlink = above.attr.nlink.saturating_sub(1);
        view.put_inode(above)?;
        view.touch(parent)?;
    }
    take_in(view, record, nlink, id).await?;
    Ok(true)
}

/// Finds a name in `dir` that leads to `ino`.
async fn name_of(view: &View, dir: Ino, ino: Ino) -> Result<Option<Name>, Failed> {
    let mut more = Some(KeyRange::prefix(&keys::entries(dir)));
    while let Some(range) = more {
        let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
        let page = view.txn.range(&range, options).await?;
        more = page.rest;
        for (key, value) in page.entries {
            if EntryRecord::open(&value).is_ok_and(|entry| entry.ino == ino) {
                let Some((_, name)) = keys::split_entry(&key) else { continue };
                let entry = view.entry(dir, &name).await?;
                return Ok(entry.filter(|entry| entry.ino == ino).map(|_| name));
            }
        }
    }
    Ok(None)
}

async fn xattrs(view: &View, ino: Ino) -> Result<bool, Failed> {
    let Some(mut record) = view.read::<InodeRecord>(&keys::inode(ino)).await? else {
        return Ok(false);
    };
    let all = KeyRange::prefix(&keys::xattrs(ino));
    let found = view.txn.range_all(&all, RangeOptions::default()).await?.len();
    let found = u16::try_from(found).unwrap_or(u16::MAX);
    if record.xattrs == found {
        return Ok(false);
    }
    record.xattrs = found;
    view.put_inode(&mut record)?;
    Ok(true)
}

async fn stray(view: &View, key: &[u8]) -> Result<bool, Failed> {
    if let Some(done) = object::stray(view, key).await? {
        return Ok(done);
    }
    let beside = [
        keys::ORPHANS,
        keys::XATTRS,
        keys::TIMES,
        keys::LOCKS,
        keys::QUOTAS,
        keys::CONTENTS,
        keys::ATTACHMENTS,
        keys::PLACES,
    ];
    let part = match keys::part_number(key) {
        Some(_) => view.read::<PartRecord>(key).await?,
        None => None,
    };
    let owner = match (keys::split_trash(key), part) {
        (Some((_, ino)), _) => Some(ino.0),
        (None, Some(part)) => Some(part.ino.0),
        (None, None) => beside.iter().find_map(|prefix| keys::leading(prefix, key)),
    };
    let owner = owner.ok_or(MetaError::Invalid)?;
    let is_there = view.txn.get(key).await?.is_some();
    let inode: Option<InodeRecord> = view.read(&keys::inode(Ino(owner))).await?;
    // Bytes in the store are also stray when those of the file lie in chunks.
    let is_content = keys::number(keys::CONTENTS, key).is_some();
    let belongs = |record: &InodeRecord| !is_content || record.attr.is_stored();
    if !is_there || inode.as_ref().is_some_and(belongs) {
        return Ok(false);
    }
    view.txn.delete(key)?;
    Ok(true)
}

async fn usage(
    view: &View,
    key: &[u8],
    (version, bytes, inodes): (u64, u64, u64),
) -> Result<bool, Failed> {
    let root = keys::leading(keys::USAGE, key).ok_or(MetaError::Invalid)?;
    let old: UsageRecord = view.read(key).await?.unwrap_or_default();
    if old.version != version {
        return Ok(false);
    }
    let has_quota = view.txn.get(&keys::quota(Ino(root))).await?.is_some();
    if bytes == 0 && inodes == 0 && !has_quota {
        view.txn.delete(key)?;
    } else {
        view.txn.put(key, UsageRecord { bytes, inodes, version: version + 1 }.seal())?;
    }
    Ok(true)
}
