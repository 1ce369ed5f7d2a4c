//! Checks whether a volume keeps the rules of the namespace: the half of `millpond fsck` that
//! checks names.
//!
//! The check takes inodes in batches, in the order of their numbers; for each batch it reads and
//! counts all names once. So memory is bounded, and a volume of `n` inodes is read `n /
//! inodes_at_once` times.
//!
//! The volume may be in use. Every change of the names, the directories or the extended attributes
//! of an inode also changes its version. So an inconsistency is reported only when the inode still
//! has the version that the batch was read with, after everything else was read.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use millpond_store::KeyRange;
use millpond_types::meta::{
    EntryRecord, FileKind, Ino, InodeRecord, Name, RECORDS_AT_ONCE_MAX, Repair, SharedRecord,
    UsageRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::VolumeError;
use crate::finding::{CheckReport, Finding};
use crate::quota;
use crate::records::{Records, is_unreadable};
use crate::seen::Seen;
use crate::volume::Volume;

/// Inodes of a batch: some 64 MiB.
const INODES_AT_ONCE: usize = 1 << 20;
/// Directories known to be reachable from the root: some 32 MiB.
const REACHED_MAX: usize = 1 << 20;

/// Limit of remembered names that lead to directories of a batch but are not where the directories
/// say.
const EXTRA_MAX: usize = 1000;

fn printable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

/// One walk through a volume.
pub(crate) struct Walk<'a, R> {
    pub(crate) records: &'a R,
    pub(crate) report: CheckReport,
    /// By inode number.
    pub(crate) batch: Vec<Seen>,
    /// Names that lead to directories of the batch but are not where the directories say.
    extra: BTreeMap<Ino, Vec<(Ino, Name)>>,
    /// Inode numbers that the batch covers.
    pub(crate) numbers: std::ops::RangeInclusive<u64>,
    reached: HashSet<Ino>,
    /// Bytes and inodes by the key of the part of a quota that counts them.
    counted: BTreeMap<Vec<u8>, (u64, u64)>,
    /// By chunk name with a record: the number of files that have its chunks, and one of them with
    /// its version.
    sharing: BTreeMap<u64, (u64, Ino, u64)>,
}

/// Records of shared chunks, by their names.
type Shares = BTreeMap<u64, SharedRecord>;
/// The parts of all quotas' usage.
type Parts = BTreeMap<Vec<u8>, UsageRecord>;

/// Checks whether a volume keeps the rules of the namespace: every name leads to an inode; every
/// inode has as many names as it counts, is an orphan or in the trash; directories form one tree.
/// It holds at most `inodes_at_once` inodes in memory, and reads the volume once for each such
/// batch.
///
/// Changes nothing; the volume may be in use.
///
/// # Errors
/// [`VolumeError`] when the records cannot be read.
pub async fn check<R: Records>(
    records: &R,
    inodes_at_once: usize,
) -> Result<CheckReport, VolumeError> {
    let mut walk = Walk {
        records,
        report: CheckReport::default(),
        batch: Vec::new(),
        extra: BTreeMap::new(),
        numbers: 0..=0,
        reached: HashSet::from([Ino::ROOT]),
        counted: BTreeMap::new(),
        sharing: BTreeMap::new(),
    };
    walk.all(inodes_at_once.max(1)).await?;
    Ok(walk.report)
}

impl Volume {
    /// Runs [`check`] in some 100 MiB of memory at most.
    ///
    /// # Errors
    /// [`VolumeError`] when the store does not answer.
    pub async fn check(&self) -> Result<CheckReport, VolumeError> {
        self.check_in_batches(INODES_AT_ONCE).await
    }

    /// Runs [`Volume::check`] with at most `inodes_at_once` inodes in memory.
    ///
    /// # Errors
    /// As [`Volume::check`].
    pub async fn check_in_batches(
        &self,
        inodes_at_once: usize,
    ) -> Result<CheckReport, VolumeError> {
        check(&self.store, inodes_at_once).await
    }
}

impl<R: Records> Walk<'_, R> {
    async fn all(&mut self, inodes_at_once: usize) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::INODES));
        let mut is_first = true;
        let parts = self.parts(is_first).await?;
        let shares = self.shares(is_first).await?;
        let whole = [keys::GARBAGE, keys::SESSIONS, keys::LARGE, keys::UPLOADS_BY_KEY, keys::ENDED];
        let backed = [keys::BACKINGS, keys::STATES, keys::QUEUES];
        for prefix in whole.into_iter().chain(backed) {
            self.read_all(prefix).await?;
        }
        self.check_queues().await?;
        self.check_uploads().await?;
        while let Some(range) = more {
            more = self.load(range, inodes_at_once).await?;
            if is_first && self.seen(Ino::ROOT).is_none() {
                self.report.add(Finding::NoRoot, [Repair::Root]);
            }
            self.count_entries(is_first).await?;
            let beside = [
                keys::ORPHANS,
                keys::XATTRS,
                keys::CONTENTS,
                keys::TIMES,
                keys::LOCKS,
                keys::QUOTAS,
                keys::TRASH,
                keys::ATTACHMENTS,
            ];
            for prefix in beside {
                self.count_beside(prefix, is_first).await?;
            }
            self.count_places(is_first).await?;
            self.count_parts(is_first).await?;
            for place in 0..self.batch.len() {
                self.judge(place).await?;
                self.judge_order(place).await?;
            }
            is_first = false;
        }
        self.judge_shares(&shares).await?;
        self.judge_quotas(&parts).await
    }

    pub(crate) fn unreadable(&mut self, key: Vec<u8>) {
        self.report.add(Finding::Unreadable { key: printable(&key) }, [Repair::Aside { key }]);
    }

    /// Checks whether all records of a prefix can be read.
    async fn read_all(&mut self, prefix: &[u8]) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(prefix));
        while let Some(range) = more {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                if is_unreadable(&key, &value) {
                    self.unreadable(key);
                }
            }
        }
        Ok(())
    }

    async fn parts(&mut self, is_first: bool) -> Result<Parts, VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::USAGE));
        let mut parts = Parts::new();
        while let Some(range) = more {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                match UsageRecord::open(&value) {
                    Ok(part) if !is_unreadable(&key, &value) => drop(parts.insert(key, part)),
                    _ if is_first => self.unreadable(key),
                    _ => {}
                }
            }
        }
        Ok(parts)
    }

    /// Checks whether a file still has chunks without a record.
    async fn confirm_unknown(
        &mut self,
        chunks: u64,
        (ino, version): (Ino, u64),
    ) -> Result<(), VolumeError> {
        let found = self.records.at_once(vec![keys::inode(ino), keys::shared(chunks)]).await?;
        let [Some(inode), None] = &found[..] else { return Ok(()) };
        if InodeRecord::open(inode).is_ok_and(|record| record.attr.version == version) {
            self.report.add(Finding::Unknown { chunks }, []);
        } else {
            self.report.unjudged += 1;
        }
        Ok(())
    }

    async fn shares(&mut self, is_first: bool) -> Result<Shares, VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::SHARED));
        let mut shares = Shares::new();
        while let Some(range) = more {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                match (keys::number(keys::SHARED, &key), SharedRecord::open(&value)) {
                    (Some(chunks), Ok(record)) => drop(shares.insert(chunks, record)),
                    _ if is_first => self.unreadable(key),
                    _ => {}
                }
            }
        }
        Ok(shares)
    }

    /// Compares the number of files read from chunks with the records, for records that did not
    /// change during the check. Every file that starts or stops using shared chunks changes the
    /// record of all of them.
    async fn judge_shares(&mut self, before: &Shares) -> Result<(), VolumeError> {
        let after = self.shares(false).await?;
        let own = std::mem::take(&mut self.sharing);
        let mut found: BTreeMap<u64, u64> = after.keys().map(|chunks| (*chunks, 0)).collect();
        for (chunks, (users, ..)) in &own {
            *found.entry(*chunks).or_default() += users;
            for base in after.get(chunks).iter().flat_map(|record| &record.bases) {
                *found.entry(base.chunks).or_default() += users;
            }
        }
        for (chunks, found) in found {
            match (before.get(&chunks), after.get(&chunks)) {
                (_, Some(now)) if now.users == found => {}
                (None, None) => {
                    let (_, ino, version) = own.get(&chunks).copied().unwrap_or_default();
                    self.confirm_unknown(chunks, (ino, version)).await?;
                }
                (Some(then), Some(now)) if then == now => {
                    let SharedRecord { version, users, .. } = *now;
                    let repair = Repair::Users { chunks, version, users: found };
                    self.report.add(Finding::Users { chunks, users, found }, [repair]);
                }
                _ => self.report.unjudged += 1,
            }
        }
        Ok(())
    }

    /// Compares the counted usage with the records, for quotas that did not change during the
    /// check.
    async fn judge_quotas(&mut self, before: &Parts) -> Result<(), VolumeError> {
        let after = self.parts(false).await?;
        let counted = std::mem::take(&mut self.counted);
        let all: BTreeSet<&Vec<u8>> = after.keys().chain(counted.keys()).collect();
        let (mut wrong, mut unjudged) = (BTreeMap::<Ino, Vec<Repair>>::new(), BTreeSet::new());
        for key in all {
            let Some(root) = keys::leading(keys::USAGE, key).map(Ino) else { continue };
            let part = after.get(key).copied().unwrap_or_default();
            let (bytes, inodes) = counted.get(key).copied().unwrap_or_default();
            if (part.bytes, part.inodes) == (bytes, inodes) {
                continue;
            }
            if before.get(key) == after.get(key) {
                let (key, version) = (key.clone(), part.version);
                let repair = Repair::Usage { key, version, bytes, inodes };
                wrong.entry(root).or_default().push(repair);
            } else {
                unjudged.insert(root);
            }
        }
        self.report.unjudged += unjudged.len() as u64;
        for (root, repairs) in wrong {
            let prefix = keys::usages(root);
            let parts = counted.iter().filter(|(key, _)| key.starts_with(&prefix));
            let (bytes, inodes) = parts.fold((0, 0), |sum, (_, n)| (sum.0 + n.0, sum.1 + n.1));
            self.report.add(Finding::Usage { root, bytes, inodes }, repairs);
        }
        Ok(())
    }

    pub(crate) fn seen(&mut self, ino: Ino) -> Option<&mut Seen> {
        let place = self.batch.binary_search_by_key(&ino, |seen| seen.ino).ok()?;
        Some(&mut self.batch[place])
    }

    /// Reads the next batch and returns the rest of the range.
    async fn load(
        &mut self,
        range: KeyRange,
        at_most: usize,
    ) -> Result<Option<KeyRange>, VolumeError> {
        self.batch.clear();
        self.extra.clear();
        let mut more = Some(range);
        while let Some(range) = more.take_if(|_| self.batch.len() < at_most) {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                if key == keys::IDS {
                    continue;
                }
                let number = keys::number(keys::INODES, &key);
                match InodeRecord::open(&value) {
                    Ok(record) if number == Some(record.attr.ino.0) => {
                        self.report.inodes += 1;
                        self.report.bytes += record.attr.size;
                        if record.quota != quota::NONE {
                            let part = keys::usage(record.quota, record.attr.ino);
                            let sum = self.counted.entry(part).or_default();
                            *sum = (sum.0 + record.attr.size, sum.1 + 1);
                        }
                        if let Some(chunks) = record.attr.chunks.filter(|_| record.attr.is_shared) {
                            let (ino, version) = (record.attr.ino, record.attr.version);
                            self.sharing.entry(chunks).or_insert((0, ino, version)).0 += 1;
                        }
                        self.batch.push(Seen::of(&record));
                    }
                    _ => self.unreadable(key),
                }
            }
        }
        let first = if *self.numbers.end() == 0 { 0 } else { self.numbers.end() + 1 };
        let last = match (&more, self.batch.last()) {
            (Some(_), Some(seen)) => seen.ino.0,
            _ => u64::MAX,
        };
        self.numbers = first..=last;
        Ok(more)
    }

    async fn count_entries(&mut self, is_first: bool) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::ENTRIES));
        while let Some(range) = more {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                self.report.entries += u64::from(is_first);
                let dir = keys::leading(keys::ENTRIES, &key).map(Ino);
                let name = keys::split_entry(&key);
                let (Some(dir), Some((_, name)), Ok(entry)) =
                    (dir, name, EntryRecord::open(&value))
                else {
                    if is_first {
                        self.unreadable(key);
                    }
                    continue;
                };
                self.count_entry(dir, name, entry).await?;
            }
        }
        Ok(())
    }

    async fn count_entry(
        &mut self,
        dir: Ino,
        name: Name,
        entry: EntryRecord,
    ) -> Result<(), VolumeError> {
        if self.numbers.contains(&dir.0) {
            match self.seen(dir).filter(|seen| seen.kind == FileKind::Directory) {
                Some(seen) => seen.has(&name, entry),
                None => self.confirm(dir, name.clone(), None).await?,
            }
        }
        if self.numbers.contains(&entry.ino.0) {
            match self.seen(entry.ino).filter(|seen| seen.kind == entry.kind) {
                Some(seen) => {
                    if seen.named_in(dir) && self.extra.len() < EXTRA_MAX {
                        self.extra.entry(entry.ino).or_default().push((dir, name));
                    }
                }
                None => self.confirm(dir, name, Some(entry)).await?,
            }
        }
        Ok(())
    }

    /// Reads a name and the inode that it leads to, or the directory that it lies in, at one
    /// moment.
    async fn confirm(
        &mut self,
        dir: Ino,
        name: Name,
        leads: Option<EntryRecord>,
    ) -> Result<(), VolumeError> {
        let (ino, kind) = leads.map_or((dir, FileKind::Directory), |to| (to.ino, to.kind));
        let found = self.records.at_once(vec![keys::entry(dir, &name), keys::inode(ino)]).await?;
        let [Some(entry), inode] = &found[..] else { return Ok(()) };
        let entry = EntryRecord::open(entry).ok();
        let inode = inode.as_deref().map(InodeRecord::open).transpose().ok().flatten();
        let is_there = inode.is_some_and(|record| record.attr.kind == kind);
        if leads.is_some() && entry != leads || is_there {
            return Ok(());
        }
        let repair = Repair::Name { dir, name: name.clone() };
        let finding = match leads {
            Some(_) => Finding::BadEntry { dir, name, ino },
            None => Finding::NoDirectory { dir, name },
        };
        self.report.add(finding, [repair]);
        Ok(())
    }

    /// Counts the records that belong to inodes, each under its inode's number.
    async fn count_beside(&mut self, prefix: &[u8], is_first: bool) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(prefix));
        // The first pass reads all values, except attributes, which may have any value.
        let values = is_first && prefix != keys::XATTRS;
        while let Some(range) = more {
            let page = self.records.page(range, values).await?;
            more = page.rest;
            for (key, value) in page.entries {
                let trash = keys::split_trash(&key);
                let ino = match prefix {
                    keys::TRASH => trash.map(|(_, ino)| ino),
                    _ => keys::leading(prefix, &key).map(Ino),
                };
                let is_bad = values && is_unreadable(&key, &value);
                let Some(ino) = ino.filter(|_| !is_bad) else {
                    if is_first {
                        self.unreadable(key);
                    }
                    continue;
                };
                if !self.numbers.contains(&ino.0) {
                    continue;
                }
                match self.seen(ino) {
                    Some(seen) if prefix == keys::ORPHANS => seen.is_orphan = true,
                    Some(seen) if prefix == keys::XATTRS => seen.xattrs_found += 1,
                    Some(seen) if prefix == keys::CONTENTS => seen.content.1 = true,
                    Some(_) if prefix == keys::ATTACHMENTS => {}
                    Some(seen) => seen.trash = trash.map_or(seen.trash, |(dir, _)| dir),
                    None => self.confirm_stray(key, ino).await?,
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn confirm_stray(
        &mut self,
        key: Vec<u8>,
        ino: Ino,
    ) -> Result<(), VolumeError> {
        let found = self.records.at_once(vec![key.clone(), keys::inode(ino)]).await?;
        if let [Some(_), None] = found[..] {
            self.report.add(Finding::Stray { key: printable(&key) }, [Repair::Stray { key }]);
        }
        Ok(())
    }

    async fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>, VolumeError> {
        let found = self.records.at_once(vec![keys::inode(ino)]).await?;
        let record = found.first().and_then(Option::as_deref).map(InodeRecord::open);
        Ok(record.transpose().ok().flatten())
    }

    /// Judges one inode of the batch.
    async fn judge(&mut self, place: usize) -> Result<(), VolumeError> {
        let seen = &self.batch[place];
        let (ino, version, parent) = (seen.ino, seen.version, seen.parent);
        let extra = self.extra.get(&ino).map(Vec::as_slice).unwrap_or_default();
        if let Some((finding, repairs)) = seen.judge(extra) {
            if self.inode(ino).await?.is_some_and(|record| record.attr.version == version) {
                self.report.add(finding, repairs);
            } else {
                self.report.unjudged += 1;
            }
        } else if seen.kind == FileKind::Directory && seen.has_place() {
            self.climb(ino, parent).await?;
        }
        Ok(())
    }

    /// Climbs to a directory that is known to be reachable from the root.
    async fn climb(&mut self, ino: Ino, parent: Ino) -> Result<(), VolumeError> {
        let mut way = vec![(ino, parent)];
        let mut passed = HashSet::from([ino]);
        let (mut at, mut is_lost) = (parent, false);
        while !self.reached.contains(&at) && !is_lost {
            match self.inode(at).await?.filter(|_| passed.insert(at)) {
                Some(record) => {
                    way.push((at, record.attr.parent));
                    at = record.attr.parent;
                }
                None => is_lost = true,
            }
        }
        if is_lost {
            return self.confirm_lost(ino, &way).await;
        }
        if self.reached.len() >= REACHED_MAX {
            self.reached = HashSet::from([Ino::ROOT]);
        }
        self.reached.extend(passed);
        Ok(())
    }

    /// Reads a path upwards that ends nowhere once more, at one moment.
    async fn confirm_lost(&mut self, ino: Ino, way: &[(Ino, Ino)]) -> Result<(), VolumeError> {
        let last = way.last().map_or(ino, |(_, parent)| *parent);
        let wanted: Vec<Vec<u8>> =
            way.iter().map(|(at, _)| *at).chain([last]).map(keys::inode).collect();
        if wanted.len() > RECORDS_AT_ONCE_MAX {
            self.report.unjudged += 1;
            return Ok(());
        }
        let found = self.records.at_once(wanted).await?;
        let parent = |bytes: &Option<Vec<u8>>| {
            bytes.as_deref().and_then(|bytes| InodeRecord::open(bytes).ok()).map(|r| r.attr.parent)
        };
        let is_same = way.iter().zip(&found).all(|((_, up), bytes)| parent(bytes) == Some(*up));
        let is_ring = way.iter().any(|(at, _)| *at == last);
        let is_gone = found.last().is_some_and(|bytes| parent(bytes).is_none());
        if is_same && (is_ring || is_gone) {
            self.report.add(Finding::Detached { ino }, [Repair::Ring { ino }]);
        } else {
            self.report.unjudged += 1;
        }
        Ok(())
    }
}
