//! Whether what is kept of objects belongs to what is there: the part of a check that looks at places and parts of
//! uploads.
//!
//! Entries and places of a directory are read in two orders. So the sums of both are compared first; only where they
//! differ, each name is looked at with its places, at one moment.

use std::collections::BTreeSet;

use millpond_store::KeyRange;
use millpond_types::meta::object::{
    KeyState, PartRecord, QueueRecord, UploadRecord, name_at, places,
};
use millpond_types::meta::{EntryRecord, FileKind, Ino, InodeRecord, Name, Repair, keys};
use millpond_types::wire::Record;

use crate::check::Walk;
use crate::error::VolumeError;
use crate::finding::Finding;
use crate::records::{Records, is_unreadable};
use crate::view::places_in;

/// Entries of queues and states that are looked at, at one moment.
const PAIRS_AT_ONCE: usize = 100;

/// The key of a record that has to be there with one: the state of an entry of a queue, or the entry of a state. With its own.
fn counterpart(key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let other = if let Some((bucket, _)) = keys::split_queued(key) {
        let entry = QueueRecord::open(value).ok().filter(|entry| entry.file == Ino(0))?;
        keys::state(bucket, &entry.key)
    } else {
        let (bucket, _) = keys::split_state(key)?;
        keys::queued(bucket, KeyState::open(value).ok()?.place?)
    };
    Some((key.to_vec(), other))
}

impl<R: Records> Walk<'_, R> {
    /// Counts the places in directories of the batch.
    pub(crate) async fn count_places(&mut self, is_first: bool) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::PLACES));
        while let Some(range) = more {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                let place = keys::split_place(&key);
                let (Some((dir, place)), Ok(entry), false) =
                    (place, EntryRecord::open(&value), is_unreadable(&key, &value))
                else {
                    if is_first {
                        self.unreadable(key);
                    }
                    continue;
                };
                if !self.numbers.contains(&dir.0) {
                    continue;
                }
                match self.seen(dir) {
                    Some(seen) => seen.has_at(place, entry),
                    None => self.confirm_stray(key, dir).await?,
                }
            }
        }
        Ok(())
    }

    /// Looks whether uploads in the order of keys are there.
    pub(crate) async fn check_uploads(&mut self) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::UPLOADS_BY_KEY));
        while let Some(range) = more {
            let page = self.records.page(range, false).await?;
            more = page.rest;
            for (key, _) in page.entries {
                let Some((bucket, id)) = keys::split_upload_by_key(&key) else { continue };
                self.confirm_without(key, vec![keys::upload(bucket, id)]).await?;
            }
        }
        Ok(())
    }

    /// Buckets that something backs. What backs one that is gone is a stray record.
    async fn check_backings(&mut self) -> Result<BTreeSet<Ino>, VolumeError> {
        let mut all = BTreeSet::new();
        let mut more = Some(KeyRange::prefix(keys::BACKINGS));
        while let Some(range) = more {
            let page = self.records.page(range, false).await?;
            more = page.rest;
            for (key, _) in page.entries {
                let Some(bucket) = keys::number(keys::BACKINGS, &key).map(Ino) else { continue };
                all.insert(bucket);
                self.confirm_without(key, vec![keys::inode(bucket)]).await?;
            }
        }
        Ok(all)
    }

    /// Looks whether every entry of a queue has the state of its key, and every state its entry; and all of them a bucket
    /// that something backs.
    pub(crate) async fn check_queues(&mut self) -> Result<(), VolumeError> {
        let backed = self.check_backings().await?;
        for prefix in [keys::QUEUES, keys::STATES] {
            let mut more = Some(KeyRange::prefix(prefix));
            while let Some(range) = more {
                let page = self.records.page(range, true).await?;
                more = page.rest;
                for (key, _) in &page.entries {
                    let Some(bucket) = keys::leading(prefix, key).map(Ino) else { continue };
                    if !backed.contains(&bucket) {
                        let owners = vec![keys::backing(bucket), keys::inode(bucket)];
                        self.confirm_without(key.clone(), owners).await?;
                    }
                }
                let pairs: Vec<(Vec<u8>, Vec<u8>)> = page
                    .entries
                    .iter()
                    .filter_map(|(key, value)| counterpart(key, value))
                    .collect();
                for pairs in pairs.chunks(PAIRS_AT_ONCE) {
                    self.confirm_pairs(pairs).await?;
                }
            }
        }
        Ok(())
    }

    /// Records that do not agree with their counterparts, at one moment, are stray ones.
    async fn confirm_pairs(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), VolumeError> {
        let wanted = pairs.iter().flat_map(|(key, other)| [key.clone(), other.clone()]).collect();
        let found = self.records.at_once(wanted).await?;
        for ((key, other), found) in pairs.iter().zip(found.chunks(2)) {
            let [Some(value), there] = found else { continue };
            let is_same =
                |there: &Vec<u8>| counterpart(other, there).is_some_and(|(_, back)| back == *key);
            let is_paired = there.as_ref().is_some_and(is_same);
            // It has another counterpart by now, or none.
            let is_other = counterpart(key, value).is_none_or(|(_, now)| now != *other);
            if !is_paired && !is_other {
                let key = key.clone();
                let text = key.escape_ascii().to_string();
                self.report.add(Finding::Stray { key: text }, [Repair::Stray { key }]);
            }
        }
        Ok(())
    }

    /// A record without any of those that it belongs to, at one moment, is a stray one.
    async fn confirm_without(
        &mut self,
        key: Vec<u8>,
        owners: Vec<Vec<u8>>,
    ) -> Result<(), VolumeError> {
        let wanted = [vec![key.clone()], owners].concat();
        let found = self.records.at_once(wanted).await?;
        if let [Some(_), owners @ ..] = &found[..]
            && owners.iter().all(Option::is_none)
        {
            let text = key.escape_ascii().to_string();
            self.report.add(Finding::Stray { key: text }, [Repair::Stray { key }]);
        }
        Ok(())
    }

    /// Finds the inodes of the batch that are parts of uploads.
    pub(crate) async fn count_parts(&mut self, is_first: bool) -> Result<(), VolumeError> {
        let mut more = Some(KeyRange::prefix(keys::UPLOADS));
        // The record of an upload lies before those of its parts.
        let mut upload = None;
        while let Some(range) = more {
            let page = self.records.page(range, true).await?;
            more = page.rest;
            for (key, value) in page.entries {
                if is_unreadable(&key, &value) {
                    if is_first {
                        self.unreadable(key);
                    }
                    continue;
                }
                let of = keys::split_upload(keys::UPLOADS, &key);
                let Ok(part) = PartRecord::open(&value) else {
                    upload = of;
                    let whole = UploadRecord::open(&value).ok().and_then(|it| it.whole);
                    if let Some(seen) = whole.and_then(|whole| self.seen(whole.ino)) {
                        seen.is_part = true;
                    }
                    continue;
                };
                if let Some((bucket, id)) = of.filter(|_| is_first && of != upload) {
                    let owners = vec![keys::upload(bucket, id), keys::ended(bucket, id)];
                    self.confirm_without(key.clone(), owners).await?;
                }
                // That of the whole is the upload's, or an object's by now.
                if part.place.is_some() || !self.numbers.contains(&part.ino.0) {
                    continue;
                }
                match self.seen(part.ino) {
                    Some(seen) => seen.is_part = true,
                    None => self.confirm_stray(key, part.ino).await?,
                }
            }
        }
        Ok(())
    }

    /// Judges whether the places of a directory of the batch are those of its entries.
    pub(crate) async fn judge_order(&mut self, place: usize) -> Result<(), VolumeError> {
        let seen = &self.batch[place];
        if seen.is_in_order() {
            return Ok(());
        }
        let dir = seen.ino;
        let mut wrong = BTreeSet::new();
        for prefix in [keys::entries(dir), keys::places(dir)] {
            let mut more = Some(KeyRange::prefix(&prefix));
            while let Some(range) = more {
                let page = self.records.page(range, false).await?;
                more = page.rest;
                for (key, _) in page.entries {
                    let name = match keys::split_place(&key) {
                        Some((_, place)) => name_at(place),
                        None => keys::split_entry(&key).map(|(_, name)| name),
                    };
                    let Some(name) = name else { continue };
                    if !self.is_well_placed(dir, &name).await? && wrong.insert(name.clone()) {
                        let repair = Repair::Places { dir, name: name.clone() };
                        self.report.add(Finding::Places { dir, name }, [repair]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at a name and all places that it may have, at one moment.
    async fn is_well_placed(&self, dir: Ino, name: &Name) -> Result<bool, VolumeError> {
        let all: BTreeSet<Vec<u8>> =
            [true, false].iter().flat_map(|is_dir| places(name, *is_dir)).collect();
        let mut wanted = vec![keys::inode(dir), keys::entry(dir, name)];
        wanted.extend(all.iter().map(|place| keys::place(dir, place)));
        let found = self.records.at_once(wanted).await?;
        let [Some(inode), entry, at @ ..] = &found[..] else { return Ok(true) };
        let Ok(record) = InodeRecord::open(inode) else { return Ok(true) };
        let opened = entry.as_deref().and_then(|entry| EntryRecord::open(entry).ok());
        let kind = opened.map_or(FileKind::Regular, |entry| entry.kind);
        let wanted = if opened.is_some() { places_in(&record, name, kind) } else { Vec::new() };
        let is_right = |(place, at): (&Vec<u8>, &Option<Vec<u8>>)| {
            let wanted = entry.as_ref().filter(|_| wanted.contains(place));
            wanted == at.as_ref()
        };
        Ok(all.iter().zip(at).all(is_right))
    }
}
