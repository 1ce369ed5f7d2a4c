//! Names: lookup, creation, links and removal.

use millpond_types::meta::{
    Attr, Caller, Create, Entry, EntryRecord, FileKind, Ino, InodeRecord, LINKS_MAX, Layout, Marks,
    MetaError, MetaReply, Name, Removed,
};

use crate::acl;
use crate::delegation;
use crate::error::{Failed, VolumeError};
use crate::object;
use crate::permit;
use crate::quota::Charge;
use crate::rename::moved;
use crate::view::View;

/// Identity and placement of a new inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    /// Its number, and the data id of its bytes.
    pub(crate) id: u64,
    /// Layout of its bytes.
    pub(crate) layout: Layout,
}

impl Fresh {
    /// Checks that the bytes of a new file have a place.
    ///
    /// # Errors
    /// [`VolumeError::NoChains`].
    pub(crate) const fn is_placed(&self) -> Result<(), Failed> {
        match self.layout.chains {
            0 => Err(Failed::Broken(VolumeError::NoChains)),
            _ => Ok(()),
        }
    }
}

/// Looks up the inode of a name.
pub(crate) async fn lookup(
    view: &View,
    caller: &Caller,
    parent: Ino,
    name: &Name,
) -> Result<MetaReply, Failed> {
    if caller.checked {
        view.may_see_names_of(parent).await?;
    } else {
        permit::access(caller, &view.dir(parent).await?.attr, permit::EXECUTE)?;
    }
    let entry = view.entry(parent, name).await?.ok_or(Failed::Refused(MetaError::NotFound))?;
    let attr = view.attr(entry.ino).await?;
    Ok(MetaReply::Entry(Entry { attr, created: false }))
}

/// Makes a name and its inode, or returns the regular file that exists. The bytes of a new file lie
/// in the store.
pub(crate) async fn create(
    view: &View,
    caller: &Caller,
    create: &Create,
    fresh: Fresh,
) -> Result<MetaReply, Failed> {
    let mut parent = view.dir(create.parent).await?;
    permit::access(caller, &parent.attr, permit::EXECUTE)?;
    if let Some(there) = view.entry(create.parent, &create.name).await? {
        return taken(view, create, there).await;
    }
    permit::change_entries(caller, &parent.attr)?;
    permit::make(caller, create.kind)?;
    makes_sense(create)?;
    object::may_name(&parent, &create.name, create.kind)?;
    is_promised_right(view, caller, create).await?;
    let is_dir = create.kind == FileKind::Directory;
    if create.kind == FileKind::Regular {
        fresh.is_placed()?;
    }
    let (gid, mode) = permit::inherit(caller, &parent.attr, is_dir, create.mode);
    let inherited = acl::inherit(view, &parent, (create.kind, create.umask), mode).await?;
    let attr = Attr { uid: caller.uid, gid, mode: inherited.mode, ..made(view, create, fresh) };
    let quota = parent.quota;
    let keep_s = if is_dir { parent.keep_s } else { 0 };
    let marks = Marks { objects: is_dir && parent.marks.objects, ..Marks::default() };
    let target = create.target.clone();
    let delegated = delegation::wanted(view, &parent, create).await?;
    let mut record = InodeRecord { attr, target, xattrs: 0, quota, keep_s, marks, delegated };
    view.charge(quota, attr.ino, Charge::of(&record)).await?;
    inherited.put(view, &mut record)?;
    view.put_inode(&mut record)?;
    if let Some(promised) = create.promised.as_ref().filter(|promised| !promised.bytes.is_empty()) {
        view.put_stored(&record.attr, promised.bytes.clone())?;
    }
    view.put_entry(&parent, &create.name, EntryRecord { ino: attr.ino, kind: attr.kind })?;
    if is_dir {
        view.touch(attr.ino)?;
        parent.attr.nlink += 1;
        view.put_inode(&mut parent)?;
    }
    view.touch_and_tell(&parent)?;
    if delegated.is_some() {
        return Ok(MetaReply::Delegated(record.attr));
    }
    Ok(MetaReply::Entry(Entry { attr: record.attr, created: true }))
}

/// Attributes of a new inode, owned by root at first.
fn made(view: &View, create: &Create, fresh: Fresh) -> Attr {
    let is_dir = create.kind == FileKind::Directory;
    let is_device = matches!(create.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let has_bytes = create.kind == FileKind::Regular;
    let promised = create.promised.as_ref();
    let born = promised.map_or(view.now, |promised| promised.at);
    let written = promised.map_or(view.now, |promised| promised.written);
    let bytes = promised.map_or(0, |promised| promised.bytes.len());
    Attr {
        ino: Ino(fresh.id),
        kind: create.kind,
        mode: create.mode,
        uid: 0,
        gid: 0,
        nlink: if is_dir { 2 } else { 1 },
        rdev: if is_device { create.rdev } else { 0 },
        size: (create.target.len() + bytes) as u64,
        atime: born,
        mtime: written,
        ctime: written.max(born),
        btime: born,
        data: fresh.id,
        chunks: (!has_bytes).then_some(fresh.id),
        is_shared: false,
        solid: 0,
        cuts: 0,
        layout: if has_bytes { fresh.layout } else { Layout::NONE },
        parent: create.parent,
        version: 0,
    }
}

/// Checks that a symbolic link, and nothing else, has a target (symlink(2): an empty one is no
/// name).
fn makes_sense(create: &Create) -> Result<(), MetaError> {
    match (create.kind == FileKind::Symlink, create.target.is_empty()) {
        (true, true) => Err(MetaError::NotFound),
        (false, false) => Err(MetaError::Invalid),
        _ => Ok(()),
    }
}

/// Checks a promised file: only a mount makes promises, of regular files only, and each number is
/// one inode for ever.
async fn is_promised_right(view: &View, caller: &Caller, create: &Create) -> Result<(), Failed> {
    let Some(promised) = &create.promised else { return Ok(()) };
    if !caller.checked || create.kind != FileKind::Regular {
        return Err(MetaError::Invalid.into());
    }
    match view.inode(promised.ino).await {
        Ok(_) => Err(MetaError::Exists.into()),
        Err(Failed::Refused(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Answers a creation of a name that exists.
async fn taken(view: &View, create: &Create, there: EntryRecord) -> Result<MetaReply, Failed> {
    if create.promised.as_ref().is_some_and(|promised| promised.ino == there.ino) {
        let attr = view.attr(there.ino).await?;
        return Ok(MetaReply::Entry(Entry { attr, created: true }));
    }
    if create.exclusive || create.kind != FileKind::Regular {
        return Err(MetaError::Exists.into());
    }
    match there.kind {
        FileKind::Regular => {
            let attr = view.attr(there.ino).await?;
            Ok(MetaReply::Entry(Entry { attr, created: false }))
        }
        FileKind::Directory => Err(MetaError::IsDirectory.into()),
        _ => Err(MetaError::Exists.into()),
    }
}

/// Adds a name to an inode.
pub(crate) async fn link(
    view: &View,
    caller: &Caller,
    ino: Ino,
    (parent, name): (Ino, &Name),
) -> Result<MetaReply, Failed> {
    let dir = view.dir(parent).await?;
    permit::change_entries(caller, &dir.attr)?;
    let mut record = view.inode(ino).await?;
    if record.attr.is_dir() {
        return Err(MetaError::NotPermitted.into());
    }
    let is_first = record.attr.nlink == 0;
    if is_first && !object::takes_first_name(view, &record).await? {
        return Err(MetaError::NotFound.into());
    }
    object::may_name(&dir, name, record.attr.kind)?;
    if !is_first && record.quota != dir.quota {
        return Err(MetaError::CrossDevice.into());
    }
    if record.attr.nlink >= LINKS_MAX {
        return Err(MetaError::TooManyLinks.into());
    }
    if view.entry(parent, name).await?.is_some() {
        return Err(MetaError::Exists.into());
    }
    record.attr.nlink += 1;
    if is_first {
        moved(view, &mut record, &dir).await?;
    } else {
        record.attr.ctime = view.now;
        view.put_inode(&mut record)?;
    }
    view.put_entry(&dir, name, EntryRecord { ino, kind: record.attr.kind })?;
    view.touch_and_tell(&dir)?;
    Ok(MetaReply::Entry(Entry { attr: record.attr, created: true }))
}

/// Reads the directory and the inode of a name that will be removed.
async fn going(
    view: &View,
    caller: &Caller,
    parent: Ino,
    name: &Name,
) -> Result<(InodeRecord, InodeRecord), Failed> {
    let dir = view.dir(parent).await?;
    permit::access(caller, &dir.attr, permit::EXECUTE)?;
    let entry = view.entry(parent, name).await?.ok_or(Failed::Refused(MetaError::NotFound))?;
    let record = view.inode(entry.ino).await?;
    permit::remove(caller, &dir.attr, &record.attr)?;
    Ok((dir, record))
}

const fn removed(record: &InodeRecord) -> Removed {
    Removed { ino: record.attr.ino, nlink: record.attr.nlink }
}

/// Removes a name of an inode that is no directory.
pub(crate) async fn unlink(
    view: &View,
    caller: &Caller,
    (parent, name): (Ino, &Name),
    of: Option<Ino>,
) -> Result<MetaReply, Failed> {
    let (dir, mut record) = going(view, caller, parent, name).await?;
    if of.is_some_and(|ino| ino != record.attr.ino) {
        return Err(MetaError::NotFound.into());
    }
    if record.attr.is_dir() {
        return Err(MetaError::IsDirectory.into());
    }
    view.delete_entry(&dir, name, record.attr.kind)?;
    view.unname(&dir, name, &mut record)?;
    view.touch_and_tell(&dir)?;
    Ok(MetaReply::Removed(removed(&record)))
}

/// Removes an empty directory.
pub(crate) async fn remove_dir(
    view: &View,
    caller: &Caller,
    parent: Ino,
    name: &Name,
) -> Result<MetaReply, Failed> {
    let (mut dir, mut record) = going(view, caller, parent, name).await?;
    if !record.attr.is_dir() {
        return Err(MetaError::NotDirectory.into());
    }
    // The backend of a bucket may have more objects than lie here.
    if record.marks.backed {
        return Err(MetaError::Busy.into());
    }
    view.must_be_empty(record.attr.ino).await?;
    view.delete_entry(&dir, name, record.attr.kind)?;
    view.unname(&dir, name, &mut record)?;
    dir.attr.nlink = dir.attr.nlink.saturating_sub(1);
    view.put_inode(&mut dir)?;
    view.touch_and_tell(&dir)?;
    Ok(MetaReply::Removed(removed(&record)))
}
