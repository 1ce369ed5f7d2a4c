//! Backends that store an object as a file with the key as its path, for example `SeaweedFS`.
//!
//! This has two consequences. They list folder by folder: the keys in `logs/` come before `logs-1`,
//! although `logs-1` sorts first. And a key with an empty part, `.`, `..` or a backslash leads to
//! the place of another key: `a//b` and `a\\b` are `a/b` there. So this module sorts listings by
//! key, and rejects every read, write and removal of such a key.
//!
//! Listing: a folder with at most a page of keys is read whole. For any larger folder only its
//! names are read. An entry `logs/` waits for all names that sort before it, which begin with
//! `logs` and a byte below `/`: they come right after it. Then the folders are read in turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::store::{
    At, Backend, Content, Fault, Found, Kind, Match, Page, Pieces, Remote, Told, Wanted,
};

/// The last character: nothing sorts after a folder followed by it.
pub(crate) const LAST: char = '\u{10ffff}';
/// Keys and prefixes in a page at most.
pub(crate) const PAGE: u32 = 1_000;
/// Folders read in parallel.
const FOLDERS: usize = 8;

/// The reason why a backend cannot store a key.
pub(crate) const ELSEWHERE: &str = "it keeps objects in folders, where a key with an empty part, \
                                    '.', '..' or a backslash would be another key";

/// The knowledge about how a backend stores objects.
#[derive(Debug, Default)]
pub(crate) struct Keeping(AtomicU8);

impl Keeping {
    const BY_KEY: u8 = 1;
    const IN_FOLDERS: u8 = 2;

    /// Records the `Server` header of an answer.
    pub(crate) fn heard(&self, server: Option<&str>) {
        if server.is_some_and(|name| name.starts_with("SeaweedFS")) {
            self.in_folders();
        } else {
            let _ = self.0.compare_exchange(0, Self::BY_KEY, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn in_folders(&self) {
        self.0.store(Self::IN_FOLDERS, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn is_in_folders(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::IN_FOLDERS
    }
}

/// A backend with sorted listings and without keys that lead to the place of another key.
pub(crate) struct Folders<B> {
    inner: B,
    keeping: Arc<Keeping>,
    /// Maximum number of keys of a folder that is read whole.
    whole: u32,
}

/// An entry of a folder.
#[derive(Clone, Debug)]
enum Entry {
    Key(Found),
    /// A folder with its full path, which ends with a slash.
    Folder(String),
}

/// Keys or entries in the order of keys, and whether more follow.
type Part<T> = (Vec<T>, bool);

impl Entry {
    /// The name of the entry within a folder; `depth` is the length of the folder's path in bytes.
    fn name(&self, depth: usize) -> &str {
        match self {
            Self::Key(found) => found.key.get(depth..).unwrap_or_default(),
            Self::Folder(path) => {
                let path = path.strip_suffix('/').unwrap_or(path);
                path.get(depth..).unwrap_or_default()
            }
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Key(found) => &found.key,
            Self::Folder(path) => path,
        }
    }
}

/// Whether a key can be a path: no part is empty, `.` or `..`, and none has a backslash. A slash at
/// the end makes a folder.
pub(crate) fn is_path(key: &str) -> bool {
    let path = key.strip_suffix('/').unwrap_or(key);
    path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !key.contains('\\')
}

/// Whether a path of a file can begin with `prefix`.
fn begins_paths(prefix: &str) -> bool {
    let mut folders = prefix.split('/').rev().skip(1);
    folders.all(|part| !matches!(part, "" | "." | "..")) && !prefix.contains('\\')
}

/// Whether a name sorts before the contents of the folder `folder` beside it.
fn goes_before(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder).is_some_and(|rest| rest.bytes().next().is_none_or(|byte| byte < b'/'))
}

/// Whether every key with a prefix sorts at or before `after`.
fn is_over(prefix: &str, after: &str) -> bool {
    prefix < after && !after.starts_with(prefix)
}

/// A position right before a name, in the order of names; empty for the beginning.
fn before(name: &str) -> String {
    let mut place = name.to_owned();
    let last = place.pop().map_or(0, u32::from);
    let less = (1..last).rev().find_map(char::from_u32).filter(|_| last > 1);
    place.extend(less.map(|sign| [sign, LAST]).into_iter().flatten());
    place
}

/// The position where a listing of the names of a folder must begin to include everything after the
/// key `after`: a folder with a name that is a prefix of the key's may sort before the key in a
/// listing of names, and after it in a listing of keys.
fn first(prefix: &str, after: &str) -> String {
    let depth = prefix.rfind('/').map_or(0, |at| at + 1);
    let (folder, rest) = match after.get(depth..) {
        Some(rest) if after.starts_with(&prefix[..depth]) => (&after[..depth], rest),
        _ => return String::new(),
    };
    let name = rest.split('/').next().unwrap_or_default();
    let cut = name.bytes().skip(1).position(|byte| byte < b'/').map_or(name.len(), |at| at + 1);
    let place = before(&name[..cut]);
    let place = if place.is_empty() { place } else { format!("{folder}{place}") };
    if place.starts_with(prefix) { place } else { String::new() }
}

/// Whether a page is valid for S3: after the requested position, and in the order of keys.
fn is_by_key(page: &Page, after: &str) -> bool {
    page.keys.is_sorted_by(|one, other| one.key < other.key)
        && page.prefixes.is_sorted()
        && page.keys.first().is_none_or(|found| found.key.as_str() > after)
}

fn unordered() -> Fault {
    let text = "its lists are neither in key order nor folder by folder: it cannot be a backend";
    Fault { kind: Kind::Refused, is_congested: false, text: text.to_owned() }
}

impl<B: Backend> Folders<B> {
    pub(crate) const fn new(inner: B, keeping: Arc<Keeping>) -> Self {
        Self { inner, keeping, whole: PAGE }
    }

    /// A page of the backend, checked to have only the requested keys: some callers remove every
    /// listed key.
    async fn asked(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
        let page = self.inner.list(wanted).await?;
        if page.is_of(&wanted) {
            return Ok(page);
        }
        let text = format!(
            "asked for keys that begin with '{}', it lists other keys: its lists cannot be used",
            wanted.prefix
        );
        Err(Fault { kind: Kind::Refused, is_congested: false, text })
    }

    async fn check(&self, at: At<'_>) -> Result<(), Fault> {
        if self.has_place(at).await? {
            return Ok(());
        }
        let text = format!("{ELSEWHERE}: copy the object to another key, or remove it");
        Err(Fault { kind: Kind::Refused, is_congested: false, text })
    }

    async fn check_there(&self, at: At<'_>) -> Result<(), Fault> {
        if self.has_place(at).await? {
            return Ok(());
        }
        let text = "the backend cannot have this key".to_owned();
        Err(Fault { kind: Kind::Absent, is_congested: false, text })
    }

    /// Up to `limit + 1` names in the folder of the prefix, after a key, in the order of keys.
    async fn names(&self, wanted: Wanted<'_>) -> Result<Part<Entry>, Fault> {
        let depth = wanted.prefix.rfind('/').map_or(0, |at| at + 1);
        let mut place = first(wanted.prefix, wanted.after);
        let (mut told, mut waiting) = (Vec::<Entry>::new(), Vec::<Entry>::new());
        let mut last: Option<String> = None;
        let is_wanted = |entry: &Entry| {
            let is_within = matches!(entry, Entry::Folder(path) if wanted.after.starts_with(path));
            entry.path() > wanted.after || is_within
        };
        while told.len() <= wanted.limit as usize {
            let query = Wanted { delimiter: "/", after: &place, limit: PAGE, ..wanted };
            let page = self.asked(query).await?;
            let keys: Vec<Entry> = page.keys.into_iter().map(Entry::Key).collect();
            let folders: Vec<Entry> = page.prefixes.into_iter().map(Entry::Folder).collect();
            let is_behind =
                |entry: &Entry| last.as_deref().is_none_or(|last| entry.name(depth) >= last);
            for entries in [&keys, &folders] {
                let is_sorted = entries.is_sorted_by_key(|entry| entry.name(depth));
                if !is_sorted || !entries.first().is_none_or(is_behind) {
                    return Err(unordered());
                }
            }
            let mut entries = [keys, folders].concat();
            entries.sort_by(|one, other| one.name(depth).cmp(other.name(depth)));
            entries.retain(|entry| last.as_deref().is_none_or(|last| entry.name(depth) > last));
            let Some(end) = entries.last() else {
                if page.is_cut {
                    return Err(unordered());
                }
                break;
            };
            last = Some(end.name(depth).to_owned());
            place = match end {
                Entry::Key(found) => found.key.clone(),
                Entry::Folder(path) => format!("{path}{LAST}"),
            };
            for entry in entries {
                let is_next = |next: &mut Entry| !goes_before(entry.name(depth), next.name(depth));
                while let Some(folder) = waiting.pop_if(is_next) {
                    told.extend(Some(folder).filter(is_wanted));
                }
                match entry {
                    Entry::Key(_) => told.extend(Some(entry).filter(is_wanted)),
                    Entry::Folder(_) => waiting.push(entry),
                }
            }
            if !page.is_cut {
                break;
            }
        }
        let is_all = told.len() <= wanted.limit as usize;
        if is_all {
            told.extend(waiting.into_iter().rev().filter(is_wanted));
        }
        Ok((told, !is_all))
    }

    /// Keys with a prefix after a key, in order.
    fn keys<'a>(
        &'a self,
        wanted: Wanted<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Part<Found>, Fault>> + Send + 'a>> {
        Box::pin(async move {
            if is_over(wanted.prefix, wanted.after) {
                return Ok((Vec::new(), false));
            }
            let query = Wanted { delimiter: "", after: "", limit: self.whole, ..wanted };
            let mut whole = self.asked(query).await?;
            if !whole.is_cut {
                whole.keys.sort_by(|one, other| one.key.cmp(&other.key));
                whole.keys.retain(|found| found.key.as_str() > wanted.after);
                let is_cut = whole.keys.len() > wanted.limit as usize;
                whole.keys.truncate(wanted.limit as usize);
                return Ok((whole.keys, is_cut));
            }
            let (entries, is_cut) = self.names(wanted).await?;
            let read = entries.into_iter().map(|entry| self.below(wanted, entry));
            let mut read = stream::iter(read).buffered(FOLDERS);
            let mut keys = Vec::new();
            while let Some((more, is_more)) = read.try_next().await? {
                keys.extend(more);
                if is_more || keys.len() > wanted.limit as usize {
                    keys.truncate(wanted.limit as usize);
                    return Ok((keys, true));
                }
            }
            Ok((keys, is_cut))
        })
    }

    /// The keys of an entry.
    async fn below(&self, wanted: Wanted<'_>, entry: Entry) -> Result<Part<Found>, Fault> {
        match entry {
            Entry::Key(found) => Ok((vec![found], false)),
            Entry::Folder(path) => self.keys(Wanted { prefix: &path, ..wanted }).await,
        }
    }

    /// A page in the order of keys, from a backend that lists folder by folder.
    async fn ordered(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
        let limit = wanted.limit as usize;
        let mut page = Page::default();
        match wanted.delimiter {
            "" => (page.keys, page.is_cut) = self.keys(wanted).await?,
            "/" if is_over(wanted.prefix, wanted.after) => {}
            "/" => {
                let (mut entries, is_cut) = self.names(wanted).await?;
                entries.retain(|entry| entry.path() > wanted.after);
                page.is_cut = is_cut || entries.len() > limit;
                for entry in entries.into_iter().take(limit) {
                    match entry {
                        Entry::Key(found) => page.keys.push(found),
                        Entry::Folder(path) => page.prefixes.push(path),
                    }
                }
            }
            _ => return self.grouped(wanted).await,
        }
        Ok(page)
    }

    /// A page like [`Folders::ordered`], for a delimiter that does not end a folder.
    async fn grouped(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
        let (limit, delimiter) = (wanted.limit as usize, wanted.delimiter);
        let begin = wanted.prefix.len();
        let prefix_of = |key: &str| {
            let end = key[begin..].find(delimiter)? + begin + delimiter.len();
            Some(key[..end].to_owned())
        };
        let (mut page, mut after) = (Page::default(), wanted.after.to_owned());
        loop {
            let query = Wanted { after: &after, limit: PAGE, ..wanted };
            let (keys, is_cut) = self.keys(query).await?;
            let Some(last) = keys.last().map(|found| found.key.clone()) else { return Ok(page) };
            for found in keys {
                let prefix = prefix_of(&found.key);
                let is_told = |prefix: &String| {
                    prefix.as_str() <= wanted.after
                        || page.prefixes.last().is_some_and(|last| last == prefix)
                };
                if prefix.as_ref().is_some_and(is_told) {
                    continue;
                }
                if page.keys.len() + page.prefixes.len() == limit {
                    page.is_cut = true;
                    return Ok(page);
                }
                match prefix {
                    Some(prefix) => page.prefixes.push(prefix),
                    None => page.keys.push(found),
                }
            }
            if !is_cut {
                return Ok(page);
            }
            let told = page.prefixes.last().filter(|prefix| last.starts_with(*prefix));
            after = told.map_or_else(|| last.clone(), |prefix| format!("{prefix}{LAST}"));
        }
    }
}

#[async_trait]
impl<B: Backend> Backend for Folders<B> {
    async fn put(
        &self,
        at: At<'_>,
        told: &Told,
        content: Content,
        md5: Option<&str>,
    ) -> Result<String, Fault> {
        self.check(at).await?;
        self.inner.put(at, told, content, md5).await
    }

    async fn has_place(&self, at: At<'_>) -> Result<bool, Fault> {
        if is_path(at.key) {
            return Ok(true);
        }
        if !self.keeping.is_known() {
            let one = Wanted { bucket: at.bucket, prefix: "", delimiter: "", after: "", limit: 1 };
            self.asked(one).await?;
        }
        Ok(!self.keeping.is_in_folders())
    }

    async fn head(&self, at: At<'_>) -> Result<Remote, Fault> {
        self.check_there(at).await?;
        self.inner.head(at).await
    }

    async fn get(
        &self,
        at: At<'_>,
        range: Option<(u64, u64)>,
        only: Match<'_>,
    ) -> Result<(Remote, Pieces), Fault> {
        self.check_there(at).await?;
        self.inner.get(at, range, only).await
    }

    async fn delete(&self, at: At<'_>) -> Result<(), Fault> {
        if !self.has_place(at).await? {
            return Ok(());
        }
        self.inner.delete(at).await
    }

    async fn list(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
        if !self.keeping.is_known() {
            // A backend with folders may list other keys than the requested ones, so learn from an
            // answer first.
            let one = Wanted { prefix: "", delimiter: "", after: "", limit: 1, ..wanted };
            self.asked(one).await?;
        }
        if !self.keeping.is_in_folders() {
            let page = self.asked(wanted).await?;
            if !self.keeping.is_in_folders() {
                if is_by_key(&page, wanted.after) {
                    return Ok(page);
                }
                self.keeping.in_folders();
            }
        }
        // No key with such a prefix can exist, and the backend would list other keys.
        if !begins_paths(wanted.prefix) {
            return Ok(Page::default());
        }
        self.ordered(wanted).await
    }

    async fn tags(&self, at: At<'_>) -> Result<Vec<(String, String)>, Fault> {
        self.check_there(at).await?;
        self.inner.tags(at).await
    }

    async fn create_upload(&self, at: At<'_>, told: &Told) -> Result<String, Fault> {
        self.check(at).await?;
        self.inner.create_upload(at, told).await
    }

    async fn upload_part(
        &self,
        at: At<'_>,
        part: (&str, u32),
        content: Content,
    ) -> Result<String, Fault> {
        self.inner.upload_part(at, part, content).await
    }

    async fn complete_upload(
        &self,
        at: At<'_>,
        upload: &str,
        parts: (&[String], u64),
    ) -> Result<String, Fault> {
        self.inner.complete_upload(at, upload, parts).await
    }

    async fn abort_upload(&self, at: At<'_>, upload: &str) -> Result<(), Fault> {
        self.inner.abort_upload(at, upload).await
    }

    async fn uploads(&self, at: At<'_>) -> Result<Vec<String>, Fault> {
        if !self.has_place(at).await? {
            return Ok(Vec::new());
        }
        self.inner.uploads(at).await
    }

    async fn policy(&self, bucket: &str) -> Result<String, Fault> {
        self.inner.policy(bucket).await
    }

    async fn is_public(&self, bucket: &str) -> Result<bool, Fault> {
        self.inner.is_public(bucket).await
    }

    async fn set_policy(&self, bucket: &str, policy: Option<&str>) -> Result<(), Fault> {
        self.inner.set_policy(bucket, policy).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use millpond_env::Rng;

    use super::*;

    /// Keys as a file system stores them.
    #[derive(Default)]
    struct Files {
        keys: BTreeSet<String>,
        order: Order,
        /// A prefix leads to the place of its path, as with `SeaweedFS`.
        collapses: bool,
    }

    #[derive(Clone, Copy, Default, PartialEq)]
    enum Order {
        ByKey,
        /// A slash sorts before everything.
        #[default]
        Folders,
        Backwards,
    }

    fn told(key: &str) -> Found {
        Found { key: key.to_owned(), etag: String::new(), len: 1, modified_ms: 0 }
    }

    fn none<T>() -> Result<T, Fault> {
        let text = "not here".to_owned();
        Err(Fault { kind: Kind::Refused, is_congested: false, text })
    }

    impl Files {
        fn order(&self, key: &str) -> String {
            match self.order {
                Order::ByKey | Order::Backwards => key.to_owned(),
                Order::Folders => key.replace('/', "\0"),
            }
        }

        fn page(&self, wanted: &Wanted<'_>) -> Page {
            let mut keys: Vec<&String> = self.keys.iter().collect();
            keys.sort_by_key(|key| self.order(key));
            if self.order == Order::Backwards {
                keys.reverse();
            }
            let mut page = Page::default();
            let path = wanted.prefix.replace("//", "/");
            let path = path.strip_prefix('/').unwrap_or(&path);
            let prefix = if self.collapses { path } else { wanted.prefix };
            for key in keys.into_iter().filter(|key| key.starts_with(prefix)) {
                if self.order(key) <= self.order(wanted.after) && !wanted.after.is_empty() {
                    continue;
                }
                let rest = &key[prefix.len()..];
                let cut = rest.find(wanted.delimiter).filter(|_| !wanted.delimiter.is_empty());
                let name = cut.map(|at| &key[..=prefix.len() + at]);
                if name.is_some_and(|name| page.prefixes.last().is_some_and(|last| last == name)) {
                    continue;
                }
                if page.keys.len() + page.prefixes.len() == wanted.limit as usize {
                    page.is_cut = true;
                    break;
                }
                match name {
                    Some(name) => page.prefixes.push(name.to_owned()),
                    None => page.keys.push(told(key)),
                }
            }
            page
        }
    }

    #[async_trait]
    impl Backend for Files {
        async fn put(
            &self,
            _: At<'_>,
            _: &Told,
            _: Content,
            _: Option<&str>,
        ) -> Result<String, Fault> {
            Ok("put".to_owned())
        }
        async fn head(&self, _: At<'_>) -> Result<Remote, Fault> {
            Ok(Remote::default())
        }
        async fn get(
            &self,
            _: At<'_>,
            _: Option<(u64, u64)>,
            _: Match<'_>,
        ) -> Result<(Remote, Pieces), Fault> {
            none()
        }
        async fn delete(&self, _: At<'_>) -> Result<(), Fault> {
            none()
        }
        async fn list(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
            Ok(self.page(&wanted))
        }
        async fn tags(&self, _: At<'_>) -> Result<Vec<(String, String)>, Fault> {
            none()
        }
        async fn create_upload(&self, _: At<'_>, _: &Told) -> Result<String, Fault> {
            none()
        }
        async fn upload_part(
            &self,
            _: At<'_>,
            _: (&str, u32),
            _: Content,
        ) -> Result<String, Fault> {
            none()
        }
        async fn complete_upload(
            &self,
            _: At<'_>,
            _: &str,
            _: (&[String], u64),
        ) -> Result<String, Fault> {
            none()
        }
        async fn abort_upload(&self, _: At<'_>, _: &str) -> Result<(), Fault> {
            none()
        }
        async fn uploads(&self, _: At<'_>) -> Result<Vec<String>, Fault> {
            none()
        }
        async fn policy(&self, _: &str) -> Result<String, Fault> {
            none()
        }
        async fn is_public(&self, _: &str) -> Result<bool, Fault> {
            none()
        }
        async fn set_policy(&self, _: &str, _: Option<&str>) -> Result<(), Fault> {
            none()
        }
    }

    fn files(rng: &mut Rng) -> Files {
        let letter = |rng: &mut Rng| ["a", "b", "-", "!", "z", "/", "/", "\u{e9}"][rng.index(8)];
        let key = |rng: &mut Rng| (0..=rng.index(7)).map(|_| letter(rng)).collect::<String>();
        let all = (0..rng.index(60)).map(|_| key(rng)).filter(|path| is_path(path) && *path != "/");
        Files { keys: all.collect(), order: Order::Folders, collapses: true }
    }

    fn lines(page: &Page) -> Vec<String> {
        let keys = page.keys.iter().map(|found| found.key.clone());
        let mut all: Vec<_> = keys.chain(page.prefixes.iter().cloned()).collect();
        all.sort();
        all
    }

    #[tokio::test]
    async fn a_list_is_in_the_order_of_keys_and_whole() {
        for seed in 0..4_000 {
            let mut rng = Rng::new(seed);
            let inner = files(&mut rng);
            let by_key = Files { keys: inner.keys.clone(), order: Order::ByKey, collapses: false };
            let delimiter = ["", "/", "/", "-"][rng.index(4)];
            let prefix = ["", "", "a", "a/", "b-", "a/b", "/", "a//", "//a"][rng.index(9)];
            let everything = Wanted { bucket: "b", prefix, delimiter, after: "", limit: 9_999 };
            let expected = lines(&by_key.page(&everything));
            let keeping = Arc::new(Keeping::default());
            keeping.in_folders();
            let whole = [1, 3, 1_000][rng.index(3)];
            let folders = Folders { inner, keeping, whole };
            let (mut got, mut after) = (Vec::new(), String::new());
            let limit = [1, 2, 5, 1_000][rng.index(4)];
            loop {
                let page = folders.list(Wanted { after: &after, limit, ..everything }).await;
                let page = page.unwrap();
                let more = lines(&page);
                assert!(more.len() <= limit as usize, "seed {seed}");
                let Some(last) = more.last() else { break };
                let is_prefix = page.prefixes.contains(last);
                after = if is_prefix { format!("{last}{LAST}") } else { last.clone() };
                got.extend(more);
                if !page.is_cut {
                    break;
                }
            }
            let keys = &folders.inner.keys;
            assert_eq!(got, expected, "seed {seed}: {prefix:?} {delimiter:?} of {keys:?}");
        }
    }

    #[tokio::test]
    async fn who_lists_in_another_order_is_found_out() {
        let keys = ["a/1", "a-1", "b"].map(str::to_owned).into();
        let keeping = Arc::new(Keeping::default());
        keeping.heard(None);
        let inner = Files { keys, ..Files::default() };
        let folders = Folders { inner, keeping: Arc::clone(&keeping), whole: PAGE };
        let all = Wanted { bucket: "b", prefix: "", delimiter: "", after: "", limit: 1 };
        // A page of one key does not reveal the order, the next page does.
        assert_eq!(lines(&folders.list(all).await.unwrap()), ["a/1"]);
        let next = folders.list(Wanted { after: "a/1", ..all }).await.unwrap();
        assert_eq!(lines(&next), ["b"]);
        assert!(keeping.is_in_folders());
        assert_eq!(lines(&folders.list(all).await.unwrap()), ["a-1"]);
    }

    #[tokio::test]
    async fn who_lists_in_no_order_is_refused() {
        let keeping = Arc::new(Keeping::default());
        keeping.in_folders();
        // It is taken for a backend with folders, but lists backwards.
        let keys = ["a", "b", "c"].map(str::to_owned).into();
        let inner = Files { keys, order: Order::Backwards, collapses: false };
        let folders = Folders { inner, keeping, whole: 1 };
        let all = Wanted { bucket: "b", prefix: "", delimiter: "", after: "", limit: 9 };
        assert_eq!(folders.list(all).await.unwrap_err().kind, Kind::Refused);
    }

    /// `aws s3 rm --recursive s3://b//` removes every key listed for the prefix `/`.
    #[tokio::test]
    async fn a_list_has_nothing_but_what_was_asked_for() {
        let keys: BTreeSet<String> = ["a/1", "g", "p/x"].map(str::to_owned).into();
        for (server, order) in [(Some("SeaweedFS 4.48"), Order::Folders), (None, Order::ByKey)] {
            for prefix in ["/", "p//", "//g", "./", "a/../", "p/./x", "\\"] {
                for delimiter in ["", "/", "-"] {
                    let inner = Files { keys: keys.clone(), order, collapses: true };
                    let keeping = Arc::new(Keeping::default());
                    let folders = Folders { inner, keeping: Arc::clone(&keeping), whole: PAGE };
                    keeping.heard(server);
                    let wanted = Wanted { bucket: "b", prefix, delimiter, after: "", limit: 9 };
                    // An empty page, or an error if the store is not known to use folders.
                    match folders.list(wanted).await {
                        Ok(page) => assert_eq!(lines(&page), [""; 0], "{prefix}"),
                        Err(fault) => assert!(server.is_none(), "{prefix}: {fault}"),
                    }
                }
            }
        }
        let page = |keys: &[&str], prefixes: &[&str]| Page {
            keys: keys.iter().map(|key| told(key)).collect(),
            prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
            is_cut: false,
        };
        let wanted = Wanted { bucket: "b", prefix: "a/", delimiter: "/", after: "", limit: 9 };
        assert!(page(&["a/", "a/1"], &["a/b/", "a//"]).is_of(&wanted));
        for wrong in [
            page(&["b"], &[]),
            page(&["a/b/1"], &[]),
            page(&[], &["a/"]),
            page(&[], &["a/b/c/"]),
            page(&[], &["b/"]),
        ] {
            assert!(!wrong.is_of(&wanted), "{wrong:?}");
        }
        let all = Wanted { delimiter: "", ..wanted };
        assert!(page(&["a/b/1"], &[]).is_of(&all) && !page(&[], &["a/b/"]).is_of(&all));
    }

    #[tokio::test]
    async fn a_key_that_leads_to_another_is_not_there() {
        let (at, nothing) = (|key| At { bucket: "b", key }, Told::default());
        for (server, is_there) in [("SeaweedFS 8000GB 4.48", false), ("AmazonS3", true)] {
            let keeping = Arc::new(Keeping::default());
            keeping.heard(Some(server));
            let folders = Folders::new(Files::default(), keeping);
            for key in ["a//b", "/a", "a/../b", "./a", "a//", "a\\b"] {
                let put = folders.put(at(key), &nothing, Content::Bytes(vec![].into()), None);
                assert_eq!(put.await.is_ok(), is_there, "{server} {key}");
                assert_eq!(folders.head(at(key)).await.is_ok(), is_there, "{server} {key}");
                assert_eq!(folders.delete(at(key)).await.is_err(), is_there, "sent: {key}");
            }
            for key in ["a/b", "a/", ".a", "a..b/..c"] {
                let put = folders.put(at(key), &nothing, Content::Bytes(vec![].into()), None);
                assert!(put.await.is_ok(), "{server} {key}");
            }
        }
    }
}
