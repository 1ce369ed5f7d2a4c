//! Raw records of the store, as a check reads them, in this process or through a meta.

use std::future::Future;

use millpond_store::{KeyRange, Page, RangeOptions, Store};
use millpond_types::meta::object::{
    AttachmentRecord, Backing, KeyState, PartRecord, QueueRecord, UploadRecord, name_at,
};
use millpond_types::meta::{
    Caller, ContentRecord, DirTimes, EntryRecord, GarbageRecord, InodeRecord, LocksRecord,
    MetaError, MetaReply, OrphanRecord, QuotaRecord, RECORDS_AT_ONCE_MAX, RecordPage, RecordRange,
    SessionRecord, SharedRecord, TrashRecord, UsageRecord, keys,
};
use millpond_types::wire::Record;

use crate::error::{Failed, VolumeError};

/// Bytes of records in one answer, about: with its last record it stays below the limit of a
/// message.
const ANSWER_BYTES: usize = 2 << 20;

/// Source of the records of a volume for a check.
pub trait Records: Sync {
    /// Reads some records of a range, at one moment; without `values` they have empty values.
    ///
    /// # Errors
    /// [`VolumeError`] when the store or the meta does not answer.
    fn page(
        &self,
        range: KeyRange,
        values: bool,
    ) -> impl Future<Output = Result<Page, VolumeError>> + Send;

    /// Reads records at one moment: [`RECORDS_AT_ONCE_MAX`] at most.
    ///
    /// # Errors
    /// [`VolumeError`] when the store or the meta does not answer.
    fn at_once(
        &self,
        keys: Vec<Vec<u8>>,
    ) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, VolumeError>> + Send;
}

impl Records for Store {
    async fn page(&self, range: KeyRange, _values: bool) -> Result<Page, VolumeError> {
        let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
        self.begin().range(&range, options).await.map_err(VolumeError::Store)
    }

    async fn at_once(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, VolumeError> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.begin().get_many_snapshot(&keys).await.map_err(VolumeError::Store)
    }
}

/// Refuses callers other than root: records show everything.
fn must_be_root(caller: &Caller) -> Result<(), MetaError> {
    if caller.uid == 0 { Ok(()) } else { Err(MetaError::NotPermitted) }
}

/// Reads a page of records of this volume, limited to the size of an answer.
pub(crate) async fn page(
    store: &Store,
    caller: &Caller,
    wanted: &RecordRange,
) -> Result<MetaReply, Failed> {
    must_be_root(caller)?;
    let all = KeyRange::prefix(keys::PREFIX);
    if wanted.start < all.start || wanted.end > all.end {
        return Err(MetaError::Invalid.into());
    }
    let range = KeyRange { start: wanted.start.clone(), end: wanted.end.clone() };
    let found = store.page(range, wanted.values).await.map_err(Failed::Broken)?;
    let mut page = RecordPage { entries: Vec::new(), next: found.rest.map(|rest| rest.start) };
    let mut bytes = 0;
    for (key, value) in found.entries {
        if bytes > ANSWER_BYTES {
            page.next = Some(key);
            break;
        }
        let value = if wanted.values { value } else { Vec::new() };
        bytes += key.len() + value.len();
        page.entries.push((key, value));
    }
    Ok(MetaReply::Records(page))
}

/// Reads records of this volume at one moment.
pub(crate) async fn at_once(
    store: &Store,
    caller: &Caller,
    wanted: &[Vec<u8>],
) -> Result<MetaReply, Failed> {
    must_be_root(caller)?;
    let is_ours = |key: &Vec<u8>| key.starts_with(keys::PREFIX);
    if wanted.len() > RECORDS_AT_ONCE_MAX || !wanted.iter().all(is_ours) {
        return Err(MetaError::Invalid.into());
    }
    let values = store.at_once(wanted.to_vec()).await.map_err(Failed::Broken)?;
    if values.iter().flatten().map(Vec::len).sum::<usize>() > 2 * ANSWER_BYTES {
        return Err(MetaError::TooLarge.into());
    }
    Ok(MetaReply::Values(values))
}

fn is_upload(prefix: &[u8], key: &[u8]) -> bool {
    key.len() == prefix.len() + 16 && keys::split_upload(prefix, key).is_some()
}

/// Whether a record of the namespace cannot be read, or its key is invalid.
pub(crate) fn is_unreadable(key: &[u8], value: &[u8]) -> bool {
    let numbered = |prefix| keys::number(prefix, key).is_some();
    if [keys::IDS, keys::VOLUME, keys::BY].contains(&key) {
        return false;
    }
    let is_good = match key.get(..keys::INODES.len()) {
        Some(keys::INODES) => InodeRecord::open(value)
            .is_ok_and(|record| keys::number(keys::INODES, key) == Some(record.attr.ino.0)),
        Some(keys::ENTRIES) => keys::split_entry(key).is_some() && EntryRecord::open(value).is_ok(),
        Some(keys::TIMES) => numbered(keys::TIMES) && DirTimes::open(value).is_ok(),
        Some(keys::CONTENTS) => numbered(keys::CONTENTS) && ContentRecord::open(value).is_ok(),
        Some(keys::LARGE) => numbered(keys::LARGE) && value.is_empty(),
        Some(keys::XATTRS) => keys::leading(keys::XATTRS, key).is_some(),
        Some(keys::ORPHANS) => numbered(keys::ORPHANS) && OrphanRecord::open(value).is_ok(),
        Some(keys::GARBAGE) => numbered(keys::GARBAGE) && GarbageRecord::open(value).is_ok(),
        Some(keys::SHARED) => numbered(keys::SHARED) && SharedRecord::open(value).is_ok(),
        Some(keys::SESSIONS) => numbered(keys::SESSIONS) && SessionRecord::open(value).is_ok(),
        Some(keys::LOCKS) => numbered(keys::LOCKS) && LocksRecord::open(value).is_ok(),
        Some(keys::LOCKED) => keys::split_locked(key).is_some(),
        Some(keys::RECALLED) => value.is_empty(),
        Some(keys::QUOTAS) => numbered(keys::QUOTAS) && QuotaRecord::open(value).is_ok(),
        Some(keys::USAGE) => {
            keys::leading(keys::USAGE, key).is_some() && UsageRecord::open(value).is_ok()
        }
        Some(keys::TRASH) => keys::split_trash(key).is_some() && TrashRecord::open(value).is_ok(),
        Some(keys::ATTACHMENTS) => {
            numbered(keys::ATTACHMENTS) && AttachmentRecord::open(value).is_ok()
        }
        Some(keys::PLACES) => {
            let name = keys::split_place(key).and_then(|(_, place)| name_at(place));
            name.is_some() && EntryRecord::open(value).is_ok()
        }
        Some(keys::UPLOADS) => match keys::part_number(key) {
            Some(_) => PartRecord::open(value).is_ok(),
            None => is_upload(keys::UPLOADS, key) && UploadRecord::open(value).is_ok(),
        },
        Some(keys::UPLOADS_BY_KEY) => keys::split_upload_by_key(key).is_some(),
        Some(keys::ENDED) => is_upload(keys::ENDED, key) && value.is_empty(),
        Some(keys::BACKINGS) => numbered(keys::BACKINGS) && Backing::open(value).is_ok(),
        Some(keys::STATES) => keys::split_state(key).is_some() && KeyState::open(value).is_ok(),
        Some(keys::QUEUES) => keys::split_queued(key).is_some() && QueueRecord::open(value).is_ok(),
        _ => true,
    };
    !is_good
}
