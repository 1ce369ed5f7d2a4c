//! Checks records of objects against their owners: the part of a check for places and parts of
//! uploads.
//!
//! Entries and places of a directory are read in two orders. So the check first compares the sums
//! of both; only if they differ, it reads each name with its places, at one moment.

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

/// Entries of queues and states that are read at one moment.
const PAIRS_AT_ONCE: usize = 100;

/// Returns the key of a record and that of its counterpart: for an entry of a queue its state, for
/// a state its entry.
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

    /// Checks that uploads in the order of keys exist.
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

    /// Lists the buckets with a backend. The backend record of a missing bucket is stray.
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

    /// Checks that every entry of a queue has the state of its key, every state its entry, and all
    /// of them a bucket with a backend.
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

    /// Reports records without a matching counterpart at one moment as stray.
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

    /// Reports a record as stray if none of its owners exists, at one moment.
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
                    let whole = UploadRecord::open(&value).ok().and_then(|record| record.whole);
                    if let Some(seen) = whole.and_then(|whole| self.seen(whole.ino)) {
                        seen.is_part = true;
                    }
                    continue;
                };
                if let Some((bucket, id)) = of.filter(|_| is_first && of != upload) {
                    let owners = vec![keys::upload(bucket, id), keys::ended(bucket, id)];
                    self.confirm_without(key.clone(), owners).await?;
                }
                // The file of a placed part is the whole, which belongs to the upload or is an
                // object by now.
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

    /// Checks whether the places of a directory of the batch are those of its entries.
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

    /// Reads a name and all places that it may have, at one moment.
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
