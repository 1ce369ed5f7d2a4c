//! Listings of backed buckets: keys in the pool and keys in the backend, without keys removed here.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use millpond_client::{Mode, StatePage};
use s3s::{S3ErrorCode, S3Result};

use super::look::{Seen, look, remote};
use super::merge::{Line, Merge, Page, Step};
use super::{Backed, fault};
use crate::back::folders::{LAST, PAGE};
use crate::back::store::{Backend, Found, Page as Listing, Wanted as Query};
use crate::door::Door;
use crate::error::{Told as _, refuse};
use crate::ops::list::{Asked, Told};
use crate::record::View;
use crate::store::{KeyState, ListObjects, Listed, Object, Wanted};

/// Pages that one page of a client may take, from both sides together.
const ROUNDS_MAX: usize = 64;
/// Keys of a page at most.
const KEYS_MAX: usize = PAGE as usize;
/// States requested at once.
const STATES: u32 = 256;
/// Keys of a backend prefix that are checked for one that was not removed here; a prefix with more
/// keys is listed.
const LOOKS_MAX: usize = 20_000;
/// Keys of the pool below a prefix that are checked for one that others have not removed at the
/// backend.
const HERE_MAX: usize = 2_000;
/// Keys checked in parallel.
const LOOKS: usize = 16;

/// The two sides of a listing of a backed bucket.
struct Sides<'a> {
    door: &'a Arc<Door>,
    backed: &'a Backed,
    far: Arc<dyn Backend>,
    asked: &'a Asked,
    states: States,
}

/// The states of keys, as far as they were read.
#[derive(Default)]
struct States {
    page: StatePage,
    /// The states begin after this key, if any were read.
    from: Option<Vec<u8>>,
}

/// The treatment of a key that only the backend has.
enum Fate {
    Shown,
    Hidden,
    /// It was put here in the meantime.
    Here(Box<Object>),
}

/// A position right before a key, with the precision of the metas: its last byte is one less, and
/// the rest is as large as possible.
fn before(key: &[u8]) -> Vec<u8> {
    let Some((last, rest)) = key.split_last() else { return Vec::new() };
    let mut place = rest.to_vec();
    if *last > 0 {
        place.push(last - 1);
        place.resize(place.len().max(1_024), 0xff);
    }
    place
}

impl States {
    /// Whether a key lies within the range of the states.
    fn covers(&self, key: &[u8]) -> bool {
        let Some(from) = &self.from else { return false };
        let end = self.page.states.last().map(|entry| entry.0.as_slice());
        from.as_slice() < key && (self.page.end || end.is_some_and(|end| key <= end))
    }

    fn of(&self, key: &[u8]) -> Option<&KeyState> {
        let at = self.page.states.binary_search_by(|entry| entry.0.as_slice().cmp(key)).ok()?;
        Some(&self.page.states[at].1)
    }
}

/// A page of a list of a backed bucket.
///
/// # Errors
/// `NoSuchBucket`; `ServiceUnavailable` or `SlowDown` when the backend does not answer.
pub(crate) async fn page(
    door: &Arc<Door>,
    backed: &Backed,
    asked: &Asked,
) -> S3Result<crate::ops::list::Page> {
    let numbers = door.metrics.back.bucket(&backed.bucket);
    numbers.lists.inc();
    let page = merged(door, backed, asked).await;
    if page.is_err() {
        numbers.lists_failed.inc();
    }
    page
}

async fn merged(
    door: &Arc<Door>,
    backed: &Backed,
    asked: &Asked,
) -> S3Result<crate::ops::list::Page> {
    let far = door.reach(&backed.backing.backend).await?;
    let mut sides = Sides { door, backed, far, asked, states: States::default() };
    let mut merge = Merge::new(&asked.after);
    let (mut items, mut rounds, mut doubts) = (Vec::new(), 0, Vec::new());
    let next = loop {
        let before = merge.reached();
        let told = match merge.step() {
            Step::End => break None,
            Step::NeedHere(after) | Step::NeedThere(after) if rounds >= ROUNDS_MAX => {
                break Some(before.max(after));
            }
            Step::NeedHere(after) => {
                rounds += 1;
                let room = asked.max + 1 - items.len();
                merge.take_here(sides.here(after, room).await?);
                continue;
            }
            Step::NeedThere(after) => {
                rounds += 1;
                let room = asked.max + 1 - items.len();
                merge.take_there(sides.there(&after, room).await?);
                continue;
            }
            Step::Here(line, too) => {
                let is_doubtful = sides.is_doubtful(&line, too.as_ref());
                let found = too.and_then(|line| line.of);
                Some((Told::here(line), is_doubtful.then_some(found)))
            }
            Step::There(line) => sides.only_there(line).await?.map(|told| (told, None)),
        };
        let Some((told, doubt)) = told else { continue };
        if items.len() == asked.max {
            // There is more: the next page begins after the last returned item.
            break Some(before);
        }
        doubts.extend(doubt.map(|found| (items.len(), found)));
        items.push(told);
    };
    let items = sides.without_doubt(items, doubts).await?;
    Ok(crate::ops::list::Page { items, next })
}

impl Sides<'_> {
    async fn here(&self, after: Vec<u8>, room: usize) -> S3Result<Page<Object>> {
        let limit = u32::try_from(room.min(KEYS_MAX)).unwrap_or(1);
        let bucket = self.asked.bucket.clone();
        let (prefix, delimiter) = (self.asked.prefix.clone(), self.asked.delimiter.clone());
        let page = self
            .door
            .blocking(move |store| {
                let (prefix, delimiter) = (prefix.as_bytes(), delimiter.as_bytes());
                let list = ListObjects { bucket: &bucket, prefix, delimiter, after: &after, limit };
                store.list_objects(&list).in_bucket()
            })
            .await?;
        let lines = page.items.into_iter().map(|item| match item {
            Listed::Key { key, object } => Line { name: key, of: Some(object) },
            Listed::Prefix(name) => Line { name, of: None },
        });
        Ok(Page { lines: lines.collect(), upto: page.next })
    }

    /// Whether a line of the pool differs from the backend, where others write too: it may be
    /// cached and outdated.
    fn is_doubtful(&self, line: &Line<Object>, too: Option<&Line<Found>>) -> bool {
        let Some(object) = &line.of else {
            return too.is_none() && self.backed.is_any_shared(&line.name);
        };
        if !self.backed.is_shared(&line.name) || self.is_transient(&line.name) {
            return false;
        }
        let Some(found) = too.and_then(|line| line.of.as_ref()) else { return true };
        let view = View::of(object);
        let is_as_old =
            view.record.modified == 0 || view.record.modified == found.modified_ms / 1_000;
        found.len != view.attr.size || found.etag != view.etag || !is_as_old
    }

    /// Compares doubtful lines with the backend as reads do, so that listings and reads agree;
    /// drops lines that no longer exist.
    async fn without_doubt(
        &self,
        items: Vec<Told>,
        doubts: Vec<(usize, Option<Found>)>,
    ) -> S3Result<Vec<Told>> {
        if doubts.is_empty() {
            return Ok(items);
        }
        let mut items: Vec<_> = items.into_iter().map(Some).collect();
        let mut looks = Vec::with_capacity(doubts.len());
        for (at, found) in doubts {
            let told = items[at].take();
            let sure = |told| async move { self.sure(told, found).await.map(|told| (at, told)) };
            looks.extend(told.map(sure));
        }
        let looked: Vec<_> = stream::iter(looks).buffer_unordered(LOOKS).try_collect().await?;
        for (at, told) in looked {
            items[at] = told;
        }
        Ok(items.into_iter().flatten().collect())
    }

    /// Resolves a doubtful line; `found` is the entry of the backend.
    async fn sure(&self, told: Told, found: Option<Found>) -> S3Result<Option<Told>> {
        if told.is_prefix() {
            return Ok(self.is_any_here(&told.name).await?.then_some(told));
        }
        // A key that is not UTF-8 cannot be at a backend.
        let Ok(key) = str::from_utf8(&told.name) else { return Ok(Some(told)) };
        if let Some(found) = &found
            && self.is_told(key, found).await?
        {
            return Ok(Some(told));
        }
        match (look(self.door, self.backed, key, false).await?, found) {
            (Seen::Here(there, _), _) => {
                Ok(Some(Told::here(Line { name: told.name, of: Some(there.object) })))
            }
            (Seen::There(_), Some(found)) => Ok(Some(Told::there(told.name, &found))),
            // It may have been persisted after the page of the backend was read.
            (Seen::There(_), None) => Ok(self.is_there(key).await?.then_some(told)),
            (Seen::Nowhere, _) => Ok(None),
        }
    }

    /// Whether the backend lists the version that it is known to have: its `ETag` may differ from
    /// the one here.
    async fn is_told(&self, key: &str, found: &Found) -> S3Result<bool> {
        let at = (self.asked.bucket.as_str(), key);
        let there = self.door.look_up(at, false).await?;
        let (Some(object), Some(state)) = (there.object, there.state) else { return Ok(false) };
        let is_known = state.has.is_some_and(|has| has.etag == found.etag);
        Ok(is_known && found.len == object.attr.size && View::of(&object).record.modified == 0)
    }

    async fn is_there(&self, key: &str) -> S3Result<bool> {
        match remote(self.door, self.backed, key).await {
            Ok(_) => Ok(true),
            Err(error) if *error.code() == S3ErrorCode::NoSuchKey => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a key of the pool exists: it is not a cached key that others have removed at the
    /// backend.
    async fn is_right(&self, key: Vec<u8>) -> S3Result<bool> {
        let is_cached = self.backed.is_shared(&key) && !self.is_transient(&key);
        let Some(text) = str::from_utf8(&key).ok().filter(|_| is_cached) else { return Ok(true) };
        match look(self.door, self.backed, text, false).await? {
            Seen::Here(..) => Ok(true),
            Seen::There(_) => self.is_there(text).await,
            Seen::Nowhere => Ok(false),
        }
    }

    /// Whether a prefix unknown to the backend has an existing key here. Mostly the first key
    /// decides; after [`HERE_MAX`] keys the prefix is listed.
    async fn is_any_here(&self, prefix: &[u8]) -> S3Result<bool> {
        let (mut after, mut looked) = (Vec::new(), 0);
        while looked < HERE_MAX {
            let (bucket, prefix, from) = (self.asked.bucket.clone(), prefix.to_vec(), after);
            let list = move |store: &crate::store::Store| {
                let (prefix, after, limit) = (&prefix[..], &from[..], STATES);
                let list = ListObjects { bucket: &bucket, prefix, delimiter: b"", after, limit };
                store.list_objects(&list).in_bucket()
            };
            let page = self.door.blocking(list).await?;
            looked += page.items.len();
            let keys = page.items.into_iter().filter_map(|item| match item {
                Listed::Key { key, .. } => Some(self.is_right(key)),
                Listed::Prefix(_) => None,
            });
            let mut looks = stream::iter(keys).buffered(LOOKS);
            while let Some(is_right) = looks.next().await {
                if is_right? {
                    return Ok(true);
                }
            }
            let Some(next) = page.next else { return Ok(false) };
            after = next;
        }
        Ok(true)
    }

    async fn there(&self, after: &[u8], room: usize) -> S3Result<Page<Found>> {
        let delimiter = self.asked.delimiter.as_str();
        // One more than needed: some backends return the prefix again after which a page begins.
        let limit = room.saturating_add(1).min(KEYS_MAX);
        let page = self.listed(&self.asked.prefix, (delimiter, after), limit).await?;
        let keys = page.keys.iter().map(|found| (found.key.as_str(), Some(found.clone())));
        let prefixes = page.prefixes.iter().map(|prefix| (prefix.as_str(), None));
        let line = |(name, of)| Ok(Line { name: self.name_here(name)?.to_vec(), of });
        let mut lines: Vec<Line<Found>> =
            keys.chain(prefixes).map(line).collect::<S3Result<_>>()?;
        lines.sort_by(|one, other| one.name.cmp(&other.name));
        let last = lines.last().map(|line| line.name.clone());
        // An empty page counts as the end: it would be requested again and again.
        let upto = last.filter(|_| page.is_cut);
        Ok(Page { lines, upto })
    }

    /// The name here of a key of the backend.
    fn name_here<'k>(&self, key: &'k str) -> S3Result<&'k [u8]> {
        let name = key.strip_prefix(self.backed.prefix()).ok_or_else(|| {
            let message = "A backend lists a key outside the bucket's prefix";
            refuse(S3ErrorCode::ServiceUnavailable, message)
        })?;
        Ok(name.as_bytes())
    }

    async fn listed(
        &self,
        prefix: &str,
        (delimiter, after): (&str, &[u8]),
        limit: usize,
    ) -> S3Result<Listing> {
        let mut after = String::from_utf8_lossy(after).into_owned();
        // A position may end with the NUL of a meta, which no backend accepts.
        let len = after.trim_end_matches('\0').len();
        after.truncate(len);
        let is_prefix = !delimiter.is_empty()
            && after.strip_prefix(prefix).is_some_and(|rest| rest.ends_with(delimiter));
        if is_prefix && after.len() + self.backed.prefix().len() + LAST.len_utf8() <= 1_024 {
            after.push(LAST);
        }
        let (prefix, after) = (
            self.backed.key(prefix),
            if after.is_empty() { after } else { self.backed.key(&after) },
        );
        let query = Query {
            bucket: &self.backed.backing.bucket,
            prefix: &prefix,
            delimiter,
            after: &after,
            limit: u32::try_from(limit).unwrap_or(1),
        };
        let listed = self.far.list(query).await;
        listed.map_err(|error| fault(&self.backed.backing.backend, &error))
    }

    /// The item for a line that only the backend has, if clients see it.
    async fn only_there(&mut self, line: Line<Found>) -> S3Result<Option<Told>> {
        let Some(found) = line.of else {
            let is_shown = self.is_any_shown(&line.name).await?;
            return Ok(is_shown.then(|| Told::prefix(line.name)));
        };
        match self.fate(&line.name).await? {
            Fate::Shown => Ok(Some(Told::there(line.name, &found))),
            Fate::Hidden => Ok(None),
            Fate::Here(object) => Ok(Some(Told::here(Line { name: line.name, of: Some(*object) }))),
        }
    }

    fn is_transient(&self, key: &[u8]) -> bool {
        self.backed.backing.rule_of(key).mode == Mode::Transient
    }

    async fn fate(&mut self, key: &[u8]) -> S3Result<Fate> {
        if self.is_transient(key) {
            return Ok(Fate::Hidden);
        }
        if !self.states.covers(key) {
            let (bucket, from) = (self.asked.bucket.clone(), before(key));
            let after = from.clone();
            let read = move |store: &crate::store::Store| {
                store.states_page(&bucket, b"", &after, STATES).in_bucket()
            };
            let page = self.door.blocking(read).await?;
            self.states = States { page, from: Some(from) };
        }
        let state = self.states.of(key);
        // Others may have put it again after its removal.
        let is_over = self.backed.is_shared(key)
            && state.is_some_and(|state| state.is_tombstone() && state.is_clean());
        match state.map(|state| state.wanted) {
            None | Some(Wanted::Forgotten) => Ok(Fate::Shown),
            Some(Wanted::Nothing) if is_over => Ok(Fate::Shown),
            Some(Wanted::Nothing) => Ok(Fate::Hidden),
            Some(Wanted::File { .. }) => {
                let (bucket, asked) = (self.asked.bucket.clone(), key.to_vec());
                let look = move |store: &crate::store::Store| {
                    store.get_object(&bucket, &asked, false).in_bucket()
                };
                let found = self.door.blocking(look).await?;
                Ok(found.map_or(Fate::Hidden, |object| Fate::Here(Box::new(object))))
            }
        }
    }

    /// Whether a prefix of the backend has a key that is not hidden. Mostly the first key decides.
    async fn is_any_shown(&mut self, prefix: &[u8]) -> S3Result<bool> {
        let text = String::from_utf8_lossy(prefix).into_owned();
        let (mut after, mut looked, mut limit) = (Vec::new(), 0, 2);
        while looked < LOOKS_MAX {
            let page = self.listed(&text, ("", &after), limit).await?;
            for found in &page.keys {
                let key = self.name_here(&found.key)?;
                if !matches!(self.fate(key).await?, Fate::Hidden) {
                    return Ok(true);
                }
                after = key.to_vec();
            }
            looked += page.keys.len();
            if !page.is_cut || page.keys.is_empty() {
                return Ok(false);
            }
            limit = KEYS_MAX;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::before;

    #[test]
    fn a_place_before_a_key_has_nothing_between() {
        assert!(before(b"ab").as_slice() < b"ab".as_slice());
        assert!(before(b"ab").as_slice() > b"aa\xf4\x8f\xbf\xbf".as_slice());
        assert_eq!(before(b"ab").len(), 1_024);
        assert_eq!(before(b"a\0"), b"a");
        assert!(before(b"").is_empty());
    }
}
