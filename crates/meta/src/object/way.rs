//! From a bucket and a key to a directory and a name in it.

use millpond_types::meta::object::{Expect, Object, SELF_NAME, names_of_key};
use millpond_types::meta::{
    Attr, Caller, ContentRecord, EntryRecord, FileKind, Ino, InodeRecord, MetaError, Name, keys,
};

use super::opened_attachment;
use crate::error::Failed;
use crate::permit;
use crate::view::{View, opened};

/// A directory on the way.
#[derive(Debug)]
pub(super) struct Step {
    /// Its name in the one before.
    pub(super) name: Name,
    pub(super) record: InodeRecord,
}

/// Where a key leads.
#[derive(Debug)]
pub(super) struct Way {
    /// The directories that are there, the bucket first.
    pub(super) dirs: Vec<Step>,
    /// Names behind the last of them, at least one: the file's is the last. Only the first may lead somewhere.
    pub(super) rest: Vec<Name>,
    /// Where that leads.
    pub(super) there: Option<EntryRecord>,
}

impl Way {
    /// The last directory that is there.
    pub(super) fn dir(&self) -> &InodeRecord {
        &self.dirs.last().expect("a way begins with its bucket").record
    }

    /// The file at the end of the way.
    pub(super) fn file(&self) -> Option<Ino> {
        let there = self.there.filter(|_| self.rest.len() == 1)?;
        (there.kind == FileKind::Regular).then_some(there.ino)
    }

    /// The name at the end.
    pub(super) fn name(&self) -> &Name {
        self.rest.last().expect("a way has a name at its end")
    }
}

/// The bucket of a name.
pub(super) async fn bucket(view: &View, name: &Name) -> Result<InodeRecord, Failed> {
    let key = keys::entry(Ino::ROOT, name);
    let missing = Failed::Refused(MetaError::NotFound);
    let Some(found) = view.txn.get_snapshot(&key).await? else { return Err(missing) };
    let entry: EntryRecord = opened(&key, &found)?;
    let inode = keys::inode(entry.ino);
    let Some(found) = view.txn.get_snapshot(&inode).await? else { return Err(missing) };
    let record: InodeRecord = opened(&inode, &found)?;
    view.may_see(&record)?;
    let is_bucket = record.marks.objects && record.attr.nlink > 0;
    if is_bucket { Ok(record) } else { Err(missing) }
}

/// Walks a key, without a conflict: who renames a directory on the way at the same moment comes later.
pub(super) async fn walk(
    view: &View,
    caller: &Caller,
    (name, key): (&Name, &[u8]),
) -> Result<Way, Failed> {
    // A key that none has is refused first.
    names_of_key(key).map_err(|_| MetaError::Invalid)?;
    let record = bucket(view, name).await?;
    walk_from(view, caller, Step { name: name.clone(), record }, key).await
}

/// The same from a bucket on that is known.
pub(super) async fn walk_from(
    view: &View,
    caller: &Caller,
    bucket: Step,
    key: &[u8],
) -> Result<Way, Failed> {
    let names = names_of_key(key).map_err(|_| MetaError::Invalid)?;
    let mut way = Way { dirs: vec![bucket], rest: names, there: None };
    loop {
        let dir = way.dir();
        permit::access(caller, &dir.attr, permit::EXECUTE)?;
        let name = way.rest.first().cloned().ok_or(MetaError::Invalid)?;
        let entry = keys::entry(dir.attr.ino, &name);
        let found = view.txn.get_snapshot(&entry).await?;
        way.there = found.map(|bytes| opened(&entry, &bytes)).transpose()?;
        let Some(there) = way.there.filter(|there| there.kind == FileKind::Directory) else {
            return Ok(way);
        };
        let inode = keys::inode(there.ino);
        let found = view.txn.get_snapshot(&inode).await?.ok_or(Failed::Refused(MetaError::Io))?;
        let record = opened(&inode, &found)?;
        view.may_see(&record)?;
        way.dirs.push(Step { name, record });
        way.rest.remove(0);
        if way.rest.is_empty() {
            // The object has the key of a directory, and lies in it.
            way.rest.extend(Name::new(SELF_NAME));
        }
    }
}

/// Walks a key for a change: what its end depends on must not change until the commit.
pub(super) async fn walk_to_change(
    view: &View,
    caller: &Caller,
    at: (&Name, &[u8]),
) -> Result<Way, Failed> {
    let way = walk(view, caller, at).await?;
    hold(view, &way).await?;
    Ok(way)
}

/// What the end of a way depends on must not change until the commit.
pub(super) async fn hold(view: &View, way: &Way) -> Result<(), Failed> {
    let dir = way.dir().attr.ino;
    let first = way.rest.first().ok_or(MetaError::Invalid)?;
    let mut wanted = vec![keys::inode(dir), keys::entry(dir, first)];
    wanted.extend(way.there.map(|there| keys::inode(there.ino)));
    let wanted: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    // They are what they were: a transaction sees one state of the store.
    view.txn.get_many(&wanted).await?;
    Ok(())
}

/// What an expectation is compared with, and whether it holds.
pub(super) fn meets(expect: Expect, there: Option<&InodeRecord>) -> bool {
    match (expect, there) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Exactly { ino, version }, Some(there)) => {
            (there.attr.ino, there.attr.version) == (ino, version)
        }
        _ => false,
    }
}

/// The object at the end of a way; without a conflict.
pub(super) async fn object(
    view: &View,
    caller: &Caller,
    way: &Way,
    with_bytes: bool,
) -> Result<Option<Object>, Failed> {
    let Some(ino) = way.file() else { return Ok(None) };
    let wanted = [keys::inode(ino), keys::attachment(ino), keys::content(ino)];
    let wanted: Vec<&[u8]> =
        wanted.iter().take(if with_bytes { 3 } else { 2 }).map(Vec::as_slice).collect();
    let mut found = view.txn.get_many_snapshot(&wanted).await?.into_iter();
    let (inode, attached, content) =
        (found.next().flatten(), found.next().flatten(), found.next().flatten());
    let inode = inode.ok_or(Failed::Refused(MetaError::Io))?;
    let InodeRecord { attr, .. } = opened(wanted[0], &inode)?;
    permit::access(caller, &attr, permit::READ)?;
    let attachment = opened_attachment(&attr, attached)?;
    let bytes = with_bytes && attr.is_stored();
    let bytes = if bytes { Some(stored(&attr, content)?) } else { None };
    Ok(Some(Object { attr, attachment, bytes }))
}

/// Bytes of a file in the store.
fn stored(attr: &Attr, found: Option<Vec<u8>>) -> Result<Vec<u8>, Failed> {
    let Some(found) = found else { return Ok(Vec::new()) };
    let record: ContentRecord = opened(&keys::content(attr.ino), &found)?;
    if record.data == attr.data { Ok(record.bytes) } else { Err(MetaError::Io.into()) }
}
