//! Walks from a bucket and a key to a directory and a name in it.

use millpond_types::meta::object::{Expect, Object, SELF_NAME, names_of_key};
use millpond_types::meta::{
    Attr, Caller, ContentRecord, EntryRecord, FileKind, Ino, InodeRecord, MetaError, Name, keys,
};

use super::opened_attachment;
use crate::error::Failed;
use crate::permit;
use crate::view::{View, opened};

/// A directory of a path.
#[derive(Debug)]
pub(super) struct Step {
    /// Its name in the directory before.
    pub(super) name: Name,
    pub(super) record: InodeRecord,
}

/// The path of a key.
#[derive(Debug)]
pub(super) struct Way {
    /// The existing directories, the bucket first.
    pub(super) dirs: Vec<Step>,
    /// Names after the last existing directory, at least one; the last is the file's. Only the
    /// first may exist.
    pub(super) rest: Vec<Name>,
    /// The entry of the first name in `rest`.
    pub(super) there: Option<EntryRecord>,
}

impl Way {
    /// The last existing directory.
    pub(super) fn dir(&self) -> &InodeRecord {
        &self.dirs.last().expect("a path begins with its bucket").record
    }

    /// The file at the end of the path.
    pub(super) fn file(&self) -> Option<Ino> {
        let there = self.there.filter(|_| self.rest.len() == 1)?;
        (there.kind == FileKind::Regular).then_some(there.ino)
    }

    /// The name at the end.
    pub(super) fn name(&self) -> &Name {
        self.rest.last().expect("a path ends with a name")
    }
}

/// Finds the bucket of a name.
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

/// Walks a key, without a conflict: a concurrent rename of a directory in the path counts as later.
pub(super) async fn walk(
    view: &View,
    caller: &Caller,
    (name, key): (&Name, &[u8]),
) -> Result<Way, Failed> {
    // Refuses an invalid key first.
    names_of_key(key).map_err(|_| MetaError::Invalid)?;
    let record = bucket(view, name).await?;
    walk_from(view, caller, Step { name: name.clone(), record }, key).await
}

/// As [`walk`], from a known bucket.
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

/// Walks a key for a change: the records at its end must not change until the commit.
pub(super) async fn walk_to_change(
    view: &View,
    caller: &Caller,
    at: (&Name, &[u8]),
) -> Result<Way, Failed> {
    let way = walk(view, caller, at).await?;
    hold(view, &way).await?;
    Ok(way)
}

/// Reads the records at the end of a path with a conflict: they must not change until the commit.
pub(super) async fn hold(view: &View, way: &Way) -> Result<(), Failed> {
    let dir = way.dir().attr.ino;
    let first = way.rest.first().ok_or(MetaError::Invalid)?;
    let mut wanted = vec![keys::inode(dir), keys::entry(dir, first)];
    wanted.extend(way.there.map(|there| keys::inode(there.ino)));
    let wanted: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    // Their values are known already: a transaction sees one state of the store.
    view.txn.get_many(&wanted).await?;
    Ok(())
}

/// Whether an expectation holds for the present inode of a key.
pub(super) fn meets(expect: Expect, there: Option<&InodeRecord>) -> bool {
    match (expect, there) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Exactly { ino, version }, Some(there)) => {
            (there.attr.ino, there.attr.version) == (ino, version)
        }
        _ => false,
    }
}

/// Reads the object at the end of a path; without a conflict.
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

/// Decodes the bytes of a file in the store.
fn stored(attr: &Attr, found: Option<Vec<u8>>) -> Result<Vec<u8>, Failed> {
    let Some(found) = found else { return Ok(Vec::new()) };
    let record: ContentRecord = opened(&keys::content(attr.ino), &found)?;
    if record.data == attr.data { Ok(record.bytes) } else { Err(MetaError::Io.into()) }
}
