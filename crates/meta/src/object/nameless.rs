//! Files before they have a name: the session that made them holds them like open files.

use millpond_types::meta::{
    Attr, Caller, Entry, FileKind, Ino, InodeRecord, Layout, Marks, MetaError, MetaReply,
    OrphanRecord, keys,
};
use millpond_types::wire::Record;

use crate::acl;
use crate::entry::Fresh;
use crate::error::Failed;
use crate::permit;
use crate::quota::Charge;
use crate::view::View;

/// A new regular file, not yet written, with its bytes in the store.
pub(crate) fn new_file(
    view: &View,
    (caller, dir): (&Caller, &InodeRecord),
    mode: u16,
    fresh: Fresh,
) -> InodeRecord {
    let (gid, mode) = permit::inherit(caller, &dir.attr, false, mode);
    let (now, ino) = (view.now, Ino(fresh.id));
    let attr = Attr {
        ino,
        kind: FileKind::Regular,
        mode,
        uid: caller.uid,
        gid,
        nlink: 1,
        rdev: 0,
        size: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        data: fresh.id,
        chunks: None,
        is_shared: false,
        solid: 0,
        cuts: 0,
        layout: fresh.layout,
        parent: dir.attr.ino,
        version: 0,
    };
    let marks = Marks::default();
    InodeRecord {
        attr,
        target: Vec::new(),
        xattrs: 0,
        quota: dir.quota,
        keep_s: 0,
        marks,
        delegated: None,
    }
}

/// A new directory, not yet written.
pub(super) fn new_dir(
    view: &View,
    (caller, dir): (&Caller, &InodeRecord),
    mode: u16,
    id: u64,
) -> InodeRecord {
    let file = new_file(view, (caller, dir), 0, Fresh { id, layout: Layout::NONE });
    let (gid, mode) = permit::inherit(caller, &dir.attr, true, mode);
    let kind = FileKind::Directory;
    let attr = Attr { kind, gid, mode, nlink: 2, chunks: Some(id), ..file.attr };
    InodeRecord { attr, keep_s: dir.keep_s, ..file }
}

/// Makes a file without a name.
pub(super) async fn make(
    view: &View,
    (caller, session): (&Caller, u64),
    (parent, mode, umask): (Ino, u16, Option<u16>),
    fresh: Fresh,
) -> Result<MetaReply, Failed> {
    fresh.is_placed()?;
    if view.txn.get(&keys::inode(Ino(fresh.id))).await?.is_some() {
        return Err(MetaError::Exists.into());
    }
    let dir = view.dir(parent).await?;
    let mut record = new_file(view, (caller, &dir), mode, fresh);
    record.attr.nlink = 0;
    let (ino, kind) = (record.attr.ino, record.attr.kind);
    let inherited = acl::inherit(view, &dir, (kind, umask), record.attr.mode).await?;
    record.attr.mode = inherited.mode;
    inherited.put(view, &mut record)?;
    view.charge(record.quota, ino, Charge::of(&record)).await?;
    let orphan = OrphanRecord { since: view.now, waits_for: Some(vec![session]) };
    view.txn.put(&keys::orphan(ino), orphan.seal())?;
    view.put_inode(&mut record)?;
    Ok(MetaReply::Entry(Entry { attr: record.attr, created: true }))
}

/// Takes a file without a name from the session that holds it, so that it is no longer collected.
pub(super) async fn take(view: &View, session: u64, ino: Ino) -> Result<InodeRecord, Failed> {
    let key = keys::orphan(ino);
    let orphan: Option<OrphanRecord> = view.read(&key).await?;
    let record = view.inode(ino).await?;
    let is_held = orphan.is_some_and(|orphan| orphan.waits_for == Some(vec![session]));
    if !is_held || record.attr.kind != FileKind::Regular || record.attr.nlink > 0 {
        return Err(MetaError::Stale.into());
    }
    view.txn.delete(&key)?;
    Ok(record)
}

/// Whether this inode gets its first name now: the session of this request made it without one
/// (`O_TMPFILE`). Then it is no longer collected. An inode that has lost its last name never gets
/// another.
pub(crate) async fn takes_first_name(view: &View, record: &InodeRecord) -> Result<bool, Failed> {
    let key = keys::orphan(record.attr.ino);
    let Some(orphan) = view.read::<OrphanRecord>(&key).await? else { return Ok(false) };
    let is_held = orphan.waits_for == view.session.map(|session| vec![session]);
    // It has been without a name since it was made.
    let takes = is_held && orphan.since == record.attr.btime;
    if takes {
        view.txn.delete(&key)?;
    }
    Ok(takes)
}
