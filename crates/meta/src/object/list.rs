//! Lists the keys of a bucket in order, a page at a time.
//!
//! A directory's names are read by their places, so a walk through a bucket is an ordered walk
//! through a tree: the content of a directory comes where the directory's place with a `/` does.
//! Only the content of a directory for the beginning of a long segment lies between names of the
//! directory above it. So the walk has several streams, and continues with the one at the smallest
//! key.

use std::collections::VecDeque;

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::object::{
    BEGINNING, INSIDE, LONG_BYTES, ListObjects, ListPage, Listed, OBJECT_KEY_MAX, Object,
    ObjectReply, SELF_NAME, beginning_name, belongs_behind, check_key, short_name,
};
use millpond_types::meta::{
    Caller, DIR_PAGE_MAX, EntryRecord, FileKind, Ino, InodeRecord, Name, keys,
};

use super::{opened_attachment, way};
use crate::error::Failed;
use crate::permit;
use crate::view::{View, opened};

/// Limit of the work for one page: places that are looked at.
const WORK_MAX: usize = 16_384;
/// Work that one read of places counts for, however few it returns.
const READ_WORK: usize = 32;
/// Places in the first read of a directory: for many directories the walk only needs to know
/// whether they are empty.
const FIRST_READ: usize = 16;
/// Objects in one read of attributes: with their attachments some MiB at most.
const FILLED_AT_ONCE: usize = 64;
/// Bytes after which a page ends: with the last entry and all attributes it fits the ring of a
/// client on the same host.
const PAGE_BYTES: usize = 1 << 20;

/// A place in a directory.
struct Place {
    at: Vec<u8>,
    entry: EntryRecord,
    /// For a directory: the object with the directory's key, which lies in it.
    itself: Option<EntryRecord>,
}

/// One directory, from a place on.
struct Stream {
    dir: Ino,
    /// The beginning of all keys in it.
    prefix: Vec<u8>,
    /// The directory is for the beginning of a long segment, the last bytes of `prefix`.
    is_beginning: bool,
    loaded: VecDeque<Place>,
    /// The place to continue at after `loaded`.
    from: Vec<u8>,
    is_read: bool,
    at_once: usize,
}

impl Stream {
    /// Lower bound of the keys that are left.
    fn head(&self) -> Vec<u8> {
        let place = self.loaded.front().map_or(&self.from, |first| &first.at);
        [&self.prefix[..], place].concat()
    }

    fn is_over(&self) -> bool {
        self.is_read && self.loaded.is_empty()
    }

    /// Whether a segment in it is the end of a key's segment, and does not belong elsewhere.
    fn has(&self, segment: &[u8]) -> bool {
        let beginning = self.prefix.len().saturating_sub(LONG_BYTES);
        !self.is_beginning || belongs_behind(&self.prefix[beginning..], segment)
    }
}

/// Result of a step of the walk.
enum Next {
    /// An object.
    Object(Vec<u8>, Ino),
    /// The limit of work is reached; the walk would continue here.
    Tired(Vec<u8>),
    End,
}

struct Walk<'v> {
    view: &'v View,
    prefix: &'v [u8],
    streams: Vec<Stream>,
    work: usize,
}

impl Walk<'_> {
    /// Begins at a bound: at the first key that is not below it.
    async fn open(&mut self, bucket: Ino, bound: &[u8]) -> Result<(), Failed> {
        let mut left = vec![(bucket, Vec::new(), false, bound.to_vec())];
        while let Some((dir, prefix, is_beginning, rest)) = left.pop() {
            let (loaded, is_read, at_once) = (VecDeque::new(), false, FIRST_READ);
            let from = rest.clone();
            let mut stream = Stream { dir, prefix, is_beginning, loaded, from, is_read, at_once };
            let slash = rest.iter().position(|byte| *byte == INSIDE);
            let segment = &rest[..slash.unwrap_or(rest.len())];
            if segment.len() >= LONG_BYTES && rest[LONG_BYTES..] > [BEGINNING][..] {
                let (beginning, behind) = rest.split_at(LONG_BYTES);
                let found = self.dir_at(dir, beginning_name(beginning)).await?;
                let prefix = [&stream.prefix[..], beginning].concat();
                left.extend(found.map(|ino| (ino, prefix, true, behind.to_vec())));
            }
            if let Some(slash) = slash {
                let name = short_name(segment).filter(|_| stream.has(segment));
                let (inside, behind) = rest.split_at(slash + 1);
                let found = self.dir_at(dir, name).await?;
                let prefix = [&stream.prefix[..], inside].concat();
                left.extend(found.map(|ino| (ino, prefix, false, behind.to_vec())));
                stream.from = [segment, &[INSIDE + 1]].concat();
            }
            self.streams.push(stream);
        }
        Ok(())
    }

    async fn dir_at(&mut self, dir: Ino, name: Option<Name>) -> Result<Option<Ino>, Failed> {
        let Some(name) = name else { return Ok(None) };
        let key = keys::entry(dir, &name);
        let found = self.view.txn.get_snapshot(&key).await?;
        let entry: Option<EntryRecord> = found.map(|bytes| opened(&key, &bytes)).transpose()?;
        let is_dir = |entry: &EntryRecord| entry.kind == FileKind::Directory;
        Ok(entry.filter(is_dir).map(|entry| entry.ino))
    }

    /// Skips keys below a bound.
    fn skip(&mut self, bound: &[u8]) {
        self.streams.retain_mut(|stream| {
            let Some(rest) = bound.strip_prefix(&stream.prefix[..]) else {
                return &stream.prefix[..] > bound;
            };
            while stream.loaded.front().is_some_and(|first| &first.at[..] < rest) {
                stream.loaded.pop_front();
            }
            if &stream.from[..] < rest {
                stream.from = rest.to_vec();
            }
            true
        });
    }

    async fn next(&mut self) -> Result<Next, Failed> {
        loop {
            self.streams.retain(|stream| !stream.is_over());
            let first = (0..self.streams.len()).map(|n| (self.streams[n].head(), n)).min();
            let Some((head, n)) = first.filter(|(head, _)| head.starts_with(self.prefix)) else {
                return Ok(Next::End);
            };
            if self.work > WORK_MAX && head.len() <= OBJECT_KEY_MAX {
                return Ok(Next::Tired(head));
            }
            match self.streams[n].loaded.pop_front() {
                None => self.read(n).await?,
                Some(place) => {
                    self.work += 1;
                    if let Some((key, ino)) = self.visit(n, place) {
                        return Ok(Next::Object(key, ino));
                    }
                }
            }
        }
    }

    /// Reads some places of a directory.
    async fn read(&mut self, n: usize) -> Result<(), Failed> {
        let stream = &mut self.streams[n];
        let mut range = KeyRange::prefix(&keys::places(stream.dir));
        range.start = keys::place(stream.dir, &stream.from);
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(stream.at_once) };
        let page = self.view.txn.range(&range, options).await?;
        self.work += READ_WORK;
        stream.at_once = (stream.at_once * 4).min(DIR_PAGE_MAX);
        match page.rest.as_ref().and_then(|rest| keys::split_place(&rest.start)) {
            Some((_, place)) => stream.from = place.to_vec(),
            None => stream.is_read = true,
        }
        for (key, bytes) in page.entries {
            let Some((_, place)) = keys::split_place(&key) else { continue };
            let (at, entry) = (place.to_vec(), opened(&key, &bytes)?);
            stream.loaded.push_back(Place { at, entry, itself: None });
        }
        // Finds the objects that lie in directories with the same key.
        let Ok(itself) = Name::new(SELF_NAME) else { return Ok(()) };
        let is_dir = |place: &&mut Place| {
            let is_inner = matches!(place.at.last(), Some(&(INSIDE | BEGINNING)));
            place.entry.kind == FileKind::Directory && !is_inner
        };
        let dirs: Vec<&mut Place> = stream.loaded.iter_mut().filter(is_dir).collect();
        let wanted: Vec<Vec<u8>> =
            dirs.iter().map(|dir| keys::entry(dir.entry.ino, &itself)).collect();
        let names: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let found = self.view.txn.get_many_snapshot(&names).await?;
        for ((dir, key), bytes) in dirs.into_iter().zip(&wanted).zip(found) {
            dir.itself = bytes.map(|bytes| opened(key, &bytes)).transpose()?;
        }
        Ok(())
    }

    /// Visits a place: it may be an object, or a directory with objects.
    fn visit(
        &mut self,
        n: usize,
        Place { at: place, entry, itself }: Place,
    ) -> Option<(Vec<u8>, Ino)> {
        let stream = &self.streams[n];
        let (inner, segment) = match place.split_last() {
            Some((&BEGINNING, beginning)) => (Some(true), beginning),
            Some((&INSIDE, segment)) => (Some(false), segment),
            _ => (None, &place[..]),
        };
        let is_beginning = inner == Some(true);
        if !is_beginning && !stream.has(segment) {
            return None;
        }
        let key = [&stream.prefix[..], if is_beginning { segment } else { &place }].concat();
        if inner.is_some() {
            if key.len() <= OBJECT_KEY_MAX && entry.kind == FileKind::Directory {
                let (loaded, from, is_read) = (VecDeque::new(), Vec::new(), false);
                let (dir, prefix, at_once) = (entry.ino, key, FIRST_READ);
                let below = Stream { dir, prefix, is_beginning, loaded, from, is_read, at_once };
                self.streams.push(below);
            }
            return None;
        }
        let found = if entry.kind == FileKind::Directory { itself } else { Some(entry) };
        let file = found.filter(|entry| entry.kind == FileKind::Regular)?;
        check_key(&key).is_ok().then_some((key, file.ino))
    }
}

/// The first bytes after all keys with a prefix; `None` when there are none.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut bound = prefix[..=end].to_vec();
    bound[end] += 1;
    Some(bound)
}

/// Cuts a key after the first delimiter that follows the prefix.
fn common<'k>(key: &'k [u8], wanted: &ListObjects) -> Option<&'k [u8]> {
    let (delimiter, rest) = (&wanted.delimiter, key.strip_prefix(&wanted.prefix[..])?);
    if delimiter.is_empty() {
        return None;
    }
    let at = rest.windows(delimiter.len()).position(|window| window == delimiter)?;
    Some(&key[..wanted.prefix.len() + at + delimiter.len()])
}

/// The first key that a page may have; `None` when there is none.
fn bound(wanted: &ListObjects) -> Option<Vec<u8>> {
    let prefix = &wanted.prefix;
    let from = match wanted.after.split_last() {
        None => prefix.clone(),
        Some((0, here)) => here.to_vec(),
        Some(_) => match common(&wanted.after, wanted) {
            Some(told) => behind(told)?,
            None => [&wanted.after[..], &[0]].concat(),
        },
    };
    let bound = from.max(prefix.clone());
    bound.starts_with(prefix).then_some(bound)
}

/// An item of a page before its attributes are read.
enum Item {
    Key(Vec<u8>, Ino),
    Prefix(Vec<u8>),
}

/// Lists a page of the keys of a bucket.
pub(super) async fn page(
    view: &View,
    caller: &Caller,
    wanted: &ListObjects,
) -> Result<ObjectReply, Failed> {
    let bucket = way::bucket(view, &wanted.bucket).await?;
    permit::access(caller, &bucket.attr, permit::READ | permit::EXECUTE)?;
    let limit = (wanted.limit as usize).clamp(1, DIR_PAGE_MAX);
    let Some(bound) = bound(wanted) else { return Ok(ObjectReply::Page(ListPage::default())) };
    let mut walk = Walk { view, prefix: &wanted.prefix, streams: Vec::new(), work: 0 };
    walk.open(bucket.attr.ino, &bound).await?;
    let (mut items, mut next) = (Vec::new(), None);
    // One more item shows that the list continues.
    while items.len() <= limit {
        match walk.next().await? {
            Next::End => break,
            Next::Tired(head) => {
                next = Some([&head[..], &[0]].concat());
                break;
            }
            Next::Object(key, ino) => match common(&key, wanted) {
                None => items.push(Item::Key(key, ino)),
                Some(prefix) => {
                    items.push(Item::Prefix(prefix.to_vec()));
                    match behind(prefix) {
                        Some(bound) => walk.skip(&bound),
                        None => break,
                    }
                }
            },
        }
    }
    let is_cut = items.len() > limit;
    items.truncate(limit);
    let (items, is_short) = fill(view, items).await?;
    if is_cut || is_short {
        next = items.last().map(|last| match last {
            Listed::Key { key, .. } => key.clone(),
            Listed::Prefix(prefix) => prefix.clone(),
        });
    }
    Ok(ObjectReply::Page(ListPage { items, next }))
}

/// Adds attributes and attachments of objects, until the page is full. Returns whether it ended
/// before the last item.
async fn fill(view: &View, items: Vec<Item>) -> Result<(Vec<Listed>, bool), Failed> {
    let (mut all, mut bytes) = (Vec::with_capacity(items.len()), 0);
    for some in items.chunks(FILLED_AT_ONCE) {
        let mut wanted = Vec::with_capacity(2 * some.len());
        for item in some {
            if let Item::Key(_, ino) = item {
                wanted.extend([keys::inode(*ino), keys::attachment(*ino)]);
            }
        }
        let names: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let mut found = view.txn.get_many_snapshot(&names).await?.into_iter();
        for item in some {
            if bytes > PAGE_BYTES {
                return Ok((all, true));
            }
            match item {
                Item::Prefix(prefix) => all.push(Listed::Prefix(prefix.clone())),
                Item::Key(key, ino) => {
                    let (inode, attached) = (found.next().flatten(), found.next().flatten());
                    bytes += key.len() + attached.as_ref().map_or(0, Vec::len);
                    // A check reports names that lead nowhere.
                    let Some(inode) = inode else { continue };
                    let InodeRecord { attr, .. } = opened(&keys::inode(*ino), &inode)?;
                    let attachment = opened_attachment(&attr, attached)?;
                    let object = Object { attr, attachment, bytes: None };
                    all.push(Listed::Key { key: key.clone(), object });
                }
            }
        }
    }
    Ok((all, false))
}
