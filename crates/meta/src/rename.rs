//! Renaming in one transaction, including the replaced inode.

use millpond_types::meta::{
    Attr, Caller, EntryRecord, FileKind, Ino, InodeRecord, Layout, MetaError, MetaReply, Name,
    Removed, Rename,
};

use crate::entry::Fresh;
use crate::error::Failed;
use crate::object;
use crate::permit;
use crate::quota::{self, Charge};
use crate::view::View;

/// Limit of directories between a directory and the root: deeper trees can be made one by one, but
/// a transaction reads them all.
const DEPTH_MAX: usize = 100;

/// The two directories of a rename, or the only one.
struct Dirs {
    old: InodeRecord,
    new: Option<InodeRecord>,
    changed: bool,
}

impl Dirs {
    /// The directory of the new name.
    fn target(&self) -> &InodeRecord {
        self.new.as_ref().unwrap_or(&self.old)
    }

    /// Adds to the numbers of subdirectories of the old and the new directory.
    fn count(&mut self, old: i32, new: i32) {
        let mut add = |record: &mut InodeRecord, by: i32| {
            self.changed |= by != 0;
            record.attr.nlink = record.attr.nlink.saturating_add_signed(by);
        };
        add(&mut self.old, old);
        match &mut self.new {
            Some(record) => add(record, new),
            None => add(&mut self.old, new),
        }
    }

    fn put(&mut self, view: &View) -> Result<(), Failed> {
        for dir in std::iter::once(&mut self.old).chain(&mut self.new) {
            if self.changed {
                view.put_inode(dir)?;
            }
            view.touch_and_tell(dir)?;
        }
        Ok(())
    }
}

/// An inode and the entry that leads to it.
struct Named {
    entry: EntryRecord,
    record: InodeRecord,
}

async fn named(view: &View, dir: Ino, name: &Name) -> Result<Option<Named>, Failed> {
    let Some(entry) = view.entry(dir, name).await? else { return Ok(None) };
    Ok(Some(Named { entry, record: view.inode(entry.ino).await? }))
}

/// Renames, replaces or exchanges; a whiteout gets the number `id`.
pub(crate) async fn rename(
    view: &View,
    caller: &Caller,
    wanted: &Rename,
    id: u64,
) -> Result<MetaReply, Failed> {
    if wanted.exchange && (wanted.no_replace || wanted.whiteout) {
        return Err(MetaError::Invalid.into());
    }
    let old = view.dir(wanted.parent).await?;
    let new = if wanted.new_parent == wanted.parent {
        None
    } else {
        Some(view.dir(wanted.new_parent).await?)
    };
    let dirs = Dirs { old, new, changed: false };
    permit::access(caller, &dirs.old.attr, permit::EXECUTE)?;
    permit::access(caller, &dirs.target().attr, permit::EXECUTE)?;
    let source = named(view, wanted.parent, &wanted.name).await?;
    let source = source.ok_or(Failed::Refused(MetaError::NotFound))?;
    permit::remove(caller, &dirs.old.attr, &source.record.attr)?;
    permit::change_entries(caller, &dirs.target().attr)?;
    let there = named(view, wanted.new_parent, &wanted.new_name).await?;
    if let Some(there) = &there {
        if wanted.no_replace {
            return Err(MetaError::Exists.into());
        }
        permit::remove(caller, &dirs.target().attr, &there.record.attr)?;
        if there.entry.ino == source.entry.ino {
            // Two names of one inode, or one name: nothing is done (rename(2)).
            return Ok(MetaReply::Renamed(None));
        }
    }
    if dirs.new.is_some() && source.record.attr.is_dir() {
        // Its `..` changes.
        permit::access(caller, &source.record.attr, permit::WRITE)?;
        must_not_lie_in(view, dirs.target(), source.entry.ino).await?;
    }
    quota::may_move(&source.record, dirs.target())?;
    may_leave(&source.record, dirs.target())?;
    object::may_name(dirs.target(), &wanted.new_name, source.record.attr.kind)?;
    match (there, wanted.exchange) {
        (None, true) => Err(MetaError::NotFound.into()),
        (Some(there), true) => {
            if dirs.new.is_some() && there.record.attr.is_dir() {
                // The `..` of this one changes too.
                permit::access(caller, &there.record.attr, permit::WRITE)?;
                must_not_lie_in(view, &dirs.old, there.entry.ino).await?;
            }
            quota::may_move(&there.record, &dirs.old)?;
            may_leave(&there.record, &dirs.old)?;
            object::may_name(&dirs.old, &wanted.name, there.record.attr.kind)?;
            exchange(view, wanted, (source, there), dirs).await
        }
        (there, false) => {
            let mut whiteout = None;
            if wanted.whiteout {
                whiteout = Some(make_whiteout(view, caller, (&dirs.old, &wanted.name), id).await?);
            }
            replace(view, wanted, (source, there), (dirs, whiteout)).await
        }
    }
}

/// Makes the whiteout that stays under the old name, as overlays expect it.
async fn make_whiteout(
    view: &View,
    caller: &Caller,
    (dir, name): (&InodeRecord, &Name),
    id: u64,
) -> Result<EntryRecord, Failed> {
    let kind = FileKind::CharDevice;
    object::may_name(dir, name, kind)?;
    let fresh = Fresh { id, layout: Layout::NONE };
    let mut record = object::new_file(view, (caller, dir), 0, fresh);
    record.attr = Attr { kind, chunks: Some(id), ..record.attr };
    view.charge(record.quota, record.attr.ino, Charge::of(&record)).await?;
    view.put_inode(&mut record)?;
    Ok(EntryRecord { ino: record.attr.ino, kind })
}

/// Refuses to move a backed bucket out of the root: it would no longer be a bucket, and nothing
/// would persist its queue.
fn may_leave(record: &InodeRecord, target: &InodeRecord) -> Result<(), Failed> {
    if record.marks.backed && target.attr.ino != Ino::ROOT {
        return Err(MetaError::Busy.into());
    }
    Ok(())
}

/// Refuses a directory that is inside the moved one, or is it.
async fn must_not_lie_in(view: &View, dir: &InodeRecord, moved: Ino) -> Result<(), Failed> {
    let mut at = dir.attr.ino;
    let mut parent = dir.attr.parent;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(MetaError::Invalid.into());
        }
        if at == Ino::ROOT {
            return Ok(());
        }
        at = parent;
        parent = view.inode(at).await?.attr.parent;
    }
    Err(MetaError::NotSupported.into())
}

/// Moves an inode into this directory.
pub(crate) async fn moved(
    view: &View,
    record: &mut InodeRecord,
    dir: &InodeRecord,
) -> Result<(), Failed> {
    quota::moved(view, record, dir).await?;
    object::enter(view, dir, record).await?;
    record.attr.ctime = view.now;
    record.attr.parent = dir.attr.ino;
    view.put_inode(record)
}

async fn exchange(
    view: &View,
    wanted: &Rename,
    (mut source, mut there): (Named, Named),
    mut dirs: Dirs,
) -> Result<MetaReply, Failed> {
    view.delete_entry(&dirs.old, &wanted.name, source.entry.kind)?;
    view.delete_entry(dirs.target(), &wanted.new_name, there.entry.kind)?;
    view.put_entry(&dirs.old, &wanted.name, there.entry)?;
    view.put_entry(dirs.target(), &wanted.new_name, source.entry)?;
    moved(view, &mut source.record, dirs.target()).await?;
    moved(view, &mut there.record, &dirs.old).await?;
    let comes = i32::from(source.record.attr.is_dir());
    let goes = i32::from(there.record.attr.is_dir());
    dirs.count(goes - comes, comes - goes);
    dirs.put(view)?;
    Ok(MetaReply::Renamed(None))
}

async fn replace(
    view: &View,
    wanted: &Rename,
    (mut source, there): (Named, Option<Named>),
    (mut dirs, whiteout): (Dirs, Option<EntryRecord>),
) -> Result<MetaReply, Failed> {
    let is_dir = source.record.attr.is_dir();
    let mut replaced = None;
    if let Some(mut there) = there {
        match (is_dir, there.record.attr.kind == FileKind::Directory) {
            (true, false) => return Err(MetaError::NotDirectory.into()),
            (false, true) => return Err(MetaError::IsDirectory.into()),
            (true, true) if there.record.marks.backed => return Err(MetaError::Busy.into()),
            (true, true) => view.must_be_empty(there.entry.ino).await?,
            (false, false) => {}
        }
        view.unname(dirs.target(), &wanted.new_name, &mut there.record)?;
        let attr = &there.record.attr;
        replaced = Some(Removed { ino: attr.ino, nlink: attr.nlink });
        dirs.count(0, -i32::from(is_dir));
    }
    view.delete_entry(&dirs.old, &wanted.name, source.entry.kind)?;
    if let Some(whiteout) = whiteout {
        view.put_entry(&dirs.old, &wanted.name, whiteout)?;
    }
    view.put_entry(dirs.target(), &wanted.new_name, source.entry)?;
    moved(view, &mut source.record, dirs.target()).await?;
    dirs.count(-i32::from(is_dir), i32::from(is_dir));
    dirs.put(view)?;
    Ok(MetaReply::Renamed(replaced))
}
