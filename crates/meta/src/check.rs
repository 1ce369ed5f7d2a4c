//! Whether a volume keeps the rules of the namespace: the half of `millpond fsck` that looks at names.
//!
//! Inodes are taken some at a time, in the order of their numbers; for each such batch all names are
//! read once and counted. So memory is bounded, and a volume of `n` inodes is read
//! `n / inodes_at_once` times.
//!
//! The volume may be in use meanwhile. Whatever changes the names, the directories or the extended
//! attributes of an inode also changes its version; so what looks wrong is only called so when the
//! version is still the one that the batch was read with, and everything else was read in between.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use millpond_store::{KeyRange, RangeOptions};
use millpond_types::meta::{EntryRecord, FileKind, Ino, InodeRecord, Name, UsageRecord, keys};
use millpond_types::wire::Record;

use crate::error::{Failed, VolumeError};
use crate::finding::{CheckReport, Finding};
use crate::quota;
use crate::view::opened;
use crate::volume::{Volume, broken};

/// Inodes of a batch: some 64 MiB.
const INODES_AT_ONCE: usize = 1 << 20;
/// Directories that are known to hang on the root: some 32 MiB.
const REACHED_MAX: usize = 1 << 20;

/// An inode of the batch, and what was found to lead to it.
#[derive(Debug)]
struct Seen {
    ino: Ino,
    kind: FileKind,
    is_orphan: bool,
    version: u64,
    nlink: u32,
    names: u32,
    dirs: u32,
    xattrs: u16,
    xattrs_found: u16,
    parent: Ino,
    named_in: Ino,
}

impl Seen {
    fn of(record: &InodeRecord) -> Self {
        let attr = &record.attr;
        Self {
            ino: attr.ino,
            kind: attr.kind,
            is_orphan: false,
            version: attr.version,
            nlink: attr.nlink,
            names: 0,
            dirs: 0,
            xattrs: record.xattrs,
            xattrs_found: 0,
            parent: attr.parent,
            // The root is in itself, and no name says so.
            named_in: Ino::ROOT,
        }
    }

    /// What is wrong with it, if nothing has changed.
    fn judge(&self) -> Option<Finding> {
        let ino = self.ino;
        let is_dir = self.kind == FileKind::Directory;
        let is_root = ino == Ino::ROOT;
        let found = match (is_dir, self.is_orphan) {
            (true, false) => 2 + self.dirs,
            (true, true) => self.dirs,
            (false, _) => self.names,
        };
        if self.is_orphan != (self.names == 0 && !is_root) {
            return Some(Finding::Orphan { ino });
        }
        if self.nlink != found {
            return Some(Finding::Links { ino, nlink: self.nlink, found });
        }
        if is_dir && !self.is_orphan && (self.names > 1 || self.named_in != self.parent) {
            return Some(Finding::Parent { ino, parent: self.parent });
        }
        (self.xattrs != self.xattrs_found).then_some(Finding::Xattrs { ino })
    }
}

fn printable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

/// One walk through a volume.
struct Walk<'a> {
    volume: &'a Volume,
    report: CheckReport,
    /// By inode number.
    batch: Vec<Seen>,
    /// Numbers that the batch stands for.
    numbers: std::ops::RangeInclusive<u64>,
    reached: HashSet<Ino>,
    /// Bytes and inodes by quota.
    counted: BTreeMap<Ino, (u64, u64)>,
}

/// The parts of all quotas' usage.
type Parts = BTreeMap<Vec<u8>, UsageRecord>;

impl Volume {
    /// Looks whether the volume keeps the rules of the namespace: every name leads to an inode, every
    /// inode has as many names as it counts or is an orphan, directories form one tree.
    ///
    /// Takes some 100 MiB of memory at most and changes nothing; the volume may be in use.
    ///
    /// # Errors
    /// [`VolumeError`] when the store does not answer.
    pub async fn check(&self) -> Result<CheckReport, VolumeError> {
        self.check_in_batches(INODES_AT_ONCE).await
    }

    /// As [`Volume::check`], with so many inodes in memory at a time.
    ///
    /// # Errors
    /// As [`Volume::check`].
    pub async fn check_in_batches(
        &self,
        inodes_at_once: usize,
    ) -> Result<CheckReport, VolumeError> {
        let mut walk = Walk {
            volume: self,
            report: CheckReport::default(),
            batch: Vec::new(),
            numbers: 0..=0,
            reached: HashSet::from([Ino::ROOT]),
            counted: BTreeMap::new(),
        };
        walk.all(inodes_at_once.max(1)).await.map_err(broken)?;
        Ok(walk.report)
    }

    async fn page(&self, range: &KeyRange) -> Result<millpond_store::Page, Failed> {
        let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
        Ok(self.store.begin().range(range, options).await?)
    }
}

impl Walk<'_> {
    async fn all(&mut self, inodes_at_once: usize) -> Result<(), Failed> {
        let mut more = Some(KeyRange::prefix(keys::INODES));
        let mut is_first = true;
        let parts = self.parts().await?;
        while let Some(range) = more {
            more = self.load(range, inodes_at_once).await?;
            if is_first && self.seen(Ino::ROOT).is_none() {
                self.report.add(Finding::NoRoot);
            }
            self.count_entries(is_first).await?;
            for prefix in [keys::ORPHANS, keys::XATTRS, keys::TIMES, keys::LOCKS, keys::QUOTAS] {
                self.count_beside(prefix).await?;
            }
            for place in 0..self.batch.len() {
                self.judge(place).await?;
            }
            is_first = false;
        }
        self.judge_quotas(&parts).await
    }

    async fn parts(&mut self) -> Result<Parts, Failed> {
        let mut more = Some(KeyRange::prefix(keys::USAGE));
        let mut parts = Parts::new();
        while let Some(range) = more {
            let page = self.volume.page(&range).await?;
            more = page.rest;
            for (key, value) in page.entries {
                parts.insert(key.clone(), opened(&key, &value)?);
            }
        }
        Ok(parts)
    }

    /// Compares what was counted with the records, of quotas that did not change meanwhile.
    async fn judge_quotas(&mut self, before: &Parts) -> Result<(), Failed> {
        let after = self.parts().await?;
        let mut told: BTreeMap<Ino, (u64, u64)> = BTreeMap::new();
        for (key, part) in &after {
            let Some(root) = keys::leading(keys::USAGE, key) else { continue };
            let sum = told.entry(Ino(root)).or_default();
            *sum = (sum.0.saturating_add(part.bytes), sum.1.saturating_add(part.inodes));
        }
        let counted = std::mem::take(&mut self.counted);
        let roots: BTreeSet<Ino> = told.keys().chain(counted.keys()).copied().collect();
        for root in roots {
            let found = counted.get(&root).copied().unwrap_or_default();
            if told.get(&root).copied().unwrap_or_default() == found {
                continue;
            }
            let of_root = |parts: &Parts| -> Parts {
                let prefix = keys::usages(root);
                let is_of = |(key, _): &(&Vec<u8>, _)| key.starts_with(&prefix);
                parts.iter().filter(is_of).map(|(key, part)| (key.clone(), *part)).collect()
            };
            if of_root(before) == of_root(&after) {
                self.report.add(Finding::Usage { root, bytes: found.0, inodes: found.1 });
            } else {
                self.report.unjudged += 1;
            }
        }
        Ok(())
    }

    fn seen(&mut self, ino: Ino) -> Option<&mut Seen> {
        let place = self.batch.binary_search_by_key(&ino, |seen| seen.ino).ok()?;
        Some(&mut self.batch[place])
    }

    /// Reads the next batch; what is left.
    async fn load(&mut self, range: KeyRange, at_most: usize) -> Result<Option<KeyRange>, Failed> {
        self.batch.clear();
        let mut more = Some(range);
        while let Some(range) = more.take_if(|_| self.batch.len() < at_most) {
            let page = self.volume.page(&range).await?;
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
                            let sum = self.counted.entry(record.quota).or_default();
                            *sum = (sum.0 + record.attr.size, sum.1 + 1);
                        }
                        self.batch.push(Seen::of(&record));
                    }
                    _ => self.report.add(Finding::Unreadable { key: printable(&key) }),
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

    async fn count_entries(&mut self, is_first: bool) -> Result<(), Failed> {
        let mut more = Some(KeyRange::prefix(keys::ENTRIES));
        while let Some(range) = more {
            let page = self.volume.page(&range).await?;
            more = page.rest;
            for (key, value) in page.entries {
                self.report.entries += u64::from(is_first);
                let dir = keys::leading(keys::ENTRIES, &key).map(Ino);
                let name = keys::split_entry(&key);
                let (Some(dir), Some((_, name)), Ok(entry)) =
                    (dir, name, EntryRecord::open(&value))
                else {
                    if is_first {
                        self.report.add(Finding::Unreadable { key: printable(&key) });
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
    ) -> Result<(), Failed> {
        if self.numbers.contains(&dir.0) {
            let is_dir = entry.kind == FileKind::Directory;
            match self.seen(dir).filter(|seen| seen.kind == FileKind::Directory) {
                Some(seen) => seen.dirs += u32::from(is_dir),
                None => self.confirm(dir, name.clone(), None).await?,
            }
        }
        if self.numbers.contains(&entry.ino.0) {
            match self.seen(entry.ino).filter(|seen| seen.kind == entry.kind) {
                Some(seen) => {
                    seen.names += 1;
                    seen.named_in = dir;
                }
                None => self.confirm(dir, name, Some(entry)).await?,
            }
        }
        Ok(())
    }

    /// Looks at a name and where it leads, or where it lies, at one moment.
    async fn confirm(
        &mut self,
        dir: Ino,
        name: Name,
        leads: Option<EntryRecord>,
    ) -> Result<(), Failed> {
        let (ino, kind) = leads.map_or((dir, FileKind::Directory), |to| (to.ino, to.kind));
        let (entry, inode) = (keys::entry(dir, &name), keys::inode(ino));
        let found = self.volume.store.begin().get_many_snapshot(&[&entry, &inode]).await?;
        let [Some(entry), inode] = &found[..] else { return Ok(()) };
        let entry = EntryRecord::open(entry).ok();
        let inode = inode.as_deref().map(InodeRecord::open).transpose().ok().flatten();
        let is_there = inode.is_some_and(|record| record.attr.kind == kind);
        if leads.is_some() && entry != leads || is_there {
            return Ok(());
        }
        self.report.add(match leads {
            Some(_) => Finding::BadEntry { dir, name, ino },
            None => Finding::NoDirectory { dir, name },
        });
        Ok(())
    }

    /// Counts what lies beside inodes, each under its number.
    async fn count_beside(&mut self, prefix: &[u8]) -> Result<(), Failed> {
        let mut more = Some(KeyRange::prefix(prefix));
        while let Some(range) = more {
            let page = self.volume.page(&range).await?;
            more = page.rest;
            for (key, _) in page.entries {
                let Some(ino) = keys::leading(prefix, &key).map(Ino) else {
                    self.report.add(Finding::Unreadable { key: printable(&key) });
                    continue;
                };
                if !self.numbers.contains(&ino.0) {
                    continue;
                }
                match self.seen(ino) {
                    Some(seen) if prefix == keys::ORPHANS => seen.is_orphan = true,
                    Some(seen) if prefix == keys::XATTRS => seen.xattrs_found += 1,
                    Some(_) => {}
                    None => self.confirm_stray(&key, ino).await?,
                }
            }
        }
        Ok(())
    }

    async fn confirm_stray(&mut self, key: &[u8], ino: Ino) -> Result<(), Failed> {
        let inode = keys::inode(ino);
        let found = self.volume.store.begin().get_many_snapshot(&[key, &inode]).await?;
        if let [Some(_), None] = found[..] {
            self.report.add(Finding::Stray { key: printable(key) });
        }
        Ok(())
    }

    /// Judges one inode of the batch.
    async fn judge(&mut self, place: usize) -> Result<(), Failed> {
        let seen = &self.batch[place];
        if let Some(finding) = seen.judge() {
            let key = keys::inode(seen.ino);
            let found = self.volume.store.begin().get_snapshot(&key).await?;
            let now = found.as_deref().and_then(|bytes| InodeRecord::open(bytes).ok());
            if now.is_some_and(|record| record.attr.version == seen.version) {
                self.report.add(finding);
            } else {
                self.report.unjudged += 1;
            }
        } else if seen.kind == FileKind::Directory && !seen.is_orphan {
            let (ino, parent) = (seen.ino, seen.parent);
            self.climb(ino, parent).await?;
        }
        Ok(())
    }

    /// Goes up to a directory that is known to hang on the root; all at one moment.
    async fn climb(&mut self, ino: Ino, parent: Ino) -> Result<(), Failed> {
        if !self.reached.contains(&parent) {
            let txn = self.volume.store.begin();
            let (mut at, mut passed) = (ino, HashSet::new());
            while !self.reached.contains(&at) {
                let found = txn.get_snapshot(&keys::inode(at)).await?;
                let record = found.as_deref().and_then(|bytes| InodeRecord::open(bytes).ok());
                let Some(record) = record.filter(|_| passed.insert(at)) else {
                    // Its own removal is no fault.
                    if !passed.is_empty() {
                        self.report.add(Finding::Detached { ino });
                    }
                    return Ok(());
                };
                at = record.attr.parent;
            }
        }
        if self.reached.len() >= REACHED_MAX {
            self.reached = HashSet::from([Ino::ROOT]);
        }
        self.reached.insert(ino);
        Ok(())
    }
}
