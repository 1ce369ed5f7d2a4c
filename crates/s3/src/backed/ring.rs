//! Backed buckets for operators: what backs them, what waits, and why.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Scheme;
use millpond_client::{Backing, Bucket, Client, ClientError, Rule, Volume};
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{MetaError, Timestamp};
use tokio::runtime::Runtime;

use super::adopt::walk;
use super::room::{HIGH, LAST};
use super::{client, quota, rules_below};
use crate::back::backends::{BackendSettings, read};
use crate::back::folders::ELSEWHERE;
use crate::back::store::{At, Wanted as Query};
use crate::keys::{check_tenant, root};
use crate::record::{BucketRecord, encode};

/// Lanes of a queue that wait for the backend.
const LANES: [u8; 2] = [0, 1];
/// Entries that are asked for at once.
const PAGE: u32 = 1_000;
/// Keys whose states are looked at for one status.
const LOOKS_MAX: usize = 1_000;

/// What waits in a lane of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// How many keys.
    pub keys: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// The first of what waits in each bucket, at one moment: what has gone a little later was brought to the backend.
#[derive(Debug)]
pub struct Heads {
    at: Tick,
    buckets: BTreeMap<String, BTreeMap<Vec<u8>, u64>>,
}

impl Heads {
    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.values().all(BTreeMap::is_empty)
    }
}

/// How full the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes of all disks.
    pub bytes: u64,
    /// Of them in use.
    pub used: u64,
}

impl Pool {
    /// Thousandths in use from which on writes to backed buckets wait, and from which on they go through or are refused.
    pub const WATERMARKS: [u64; 2] = [HIGH, LAST];

    /// In thousandths.
    #[must_use]
    pub fn full(self) -> u64 {
        self.used.saturating_mul(1_000).checked_div(self.bytes).unwrap_or(0)
    }
}

/// A key that the backend did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Which one.
    pub key: String,
    /// Attempts in turn.
    pub attempts: u32,
    /// What became of the last one.
    pub error: String,
}

/// What waits in a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Objects up to 1 MiB and removals; larger objects.
    pub lanes: [Lane; 2],
    /// Since when the oldest of them is dirty.
    pub oldest: Option<Timestamp>,
    /// Attempts under way or of unknown outcome.
    pub under_way: u64,
    /// Keys that failed last time, 1,000 at most.
    pub failing: Vec<Failing>,
    /// Keys and bytes that the backend took in a second, of the 1,000 oldest of each lane; none when it was not looked at.
    pub rate: Option<Lane>,
    /// There were so many that are not due that only the first were looked at.
    pub is_cut: bool,
}

impl Backlog {
    /// Keys of all lanes.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.lanes.iter().map(|it| it.keys).sum()
    }

    /// Bytes of all lanes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lanes.iter().map(|it| it.bytes).sum()
    }
}

/// Whether places at backends answer: by the backend's name and the bucket there, else why not.
pub type Reached = BTreeMap<(String, String), Result<(), String>>;

/// Backed buckets of a volume, for those who make them.
#[derive(Debug)]
pub struct BucketRing {
    volume: Volume,
}

const fn wrong(field: &'static str, fix: String) -> ClientError {
    ClientError::Argument { field, fix }
}

/// Asks a backend for one key of a bucket, as every list does; then whether it can have keys with a prefix.
///
/// # Errors
/// What is wrong, in words.
fn probe(settings: &BackendSettings, bucket: &str, prefix: &str) -> Result<bool, String> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    let query = Query { bucket, prefix: "", delimiter: "", after: "", limit: 1 };
    let key = format!("{prefix}k");
    let asked = runtime.block_on(async {
        let far = client(settings);
        far.list(query).await?;
        far.has_place(At { bucket, key: &key }).await
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    asked.map_err(|fault| fault.text)
}

/// A place at the backend of a backing, for people.
fn place_of(backing: &Backing, place: &[u8]) -> String {
    let place = String::from_utf8_lossy(place);
    format!("keys with '{place}' in '{}' of '{}'", backing.bucket, backing.backend)
}

/// Whether a backing says of all keys of a place that it has, a prefix at the backend, that others write there too.
fn shares(backing: &Backing, place: &[u8]) -> bool {
    let prefix = place.strip_prefix(&backing.prefix[..]).unwrap_or_default();
    let mut below = rules_below(backing, prefix);
    backing.is_shared_at(prefix) && below.all(|rule| backing.is_shared_at(&rule.prefix))
}

/// Where backends answer, by their names: two names may be of one store.
#[derive(Clone, Debug, Default)]
struct Servers(BTreeMap<String, String>);

impl Servers {
    /// The host and port of an endpoint, as all who write it another way have them.
    fn of(endpoint: &str) -> String {
        let uri: Uri = endpoint.parse().unwrap_or_default();
        let usual = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
        let host = uri.host().unwrap_or(endpoint).to_ascii_lowercase();
        format!("{}:{}", host.trim_end_matches('.'), uri.port_u16().unwrap_or(usual))
    }

    fn note(&mut self, backend: &str, settings: &BackendSettings) {
        self.0.insert(backend.to_owned(), Self::of(&settings.endpoint));
    }

    /// Where the backend of a backing answers; its name where that is not known.
    fn get<'a>(&'a self, backing: &'a Backing) -> &'a str {
        self.0.get(&backing.backend).unwrap_or(&backing.backend)
    }
}

/// The place that two backings have both, if one of them says that nobody else writes there.
fn disputed<'a>(one: &'a Backing, other: &'a Backing, servers: &Servers) -> Option<&'a [u8]> {
    if (servers.get(one), &one.bucket) != (servers.get(other), &other.bucket) {
        return None;
    }
    let (short, long) =
        if one.prefix.len() < other.prefix.len() { (one, other) } else { (other, one) };
    let place = &long.prefix[..];
    let is_shared = shares(one, place) && shares(other, place);
    (place.starts_with(&short.prefix) && !is_shared).then_some(place)
}

impl BucketRing {
    /// Of the volume of this cluster.
    ///
    /// # Errors
    /// As for [`Volume::with`].
    pub fn open(client: Client) -> Result<Self, ClientError> {
        Ok(Self { volume: root(client, ("millpond s3 buckets", None))? })
    }

    /// All buckets that something backs.
    ///
    /// # Errors
    /// As for every call.
    pub fn list(&self) -> Result<Vec<(String, Backing)>, ClientError> {
        let all = self.volume.buckets()?;
        Ok(all.into_iter().filter_map(|it| Some((it.name, it.backing?))).collect())
    }

    /// What backs a bucket; none of a bucket that is not there.
    ///
    /// # Errors
    /// As for every call.
    pub fn get(&self, bucket: &str) -> Result<Option<Option<Backing>>, ClientError> {
        match self.volume.bucket(bucket) {
            Ok(Bucket { backing, .. }) => Ok(Some(backing)),
            Err(ClientError::File { source: MetaError::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a backend answers, with the bucket there, and can have the prefix.
    fn check(&self, backing: &Backing) -> Result<(), ClientError> {
        let (backend, bucket) = (&backing.backend, &backing.bucket);
        let prefix = String::from_utf8_lossy(&backing.prefix);
        let Some(settings) = read(&self.volume, backend)? else {
            let fix = format!(
                "no backend is called '{backend}': make it with `millpond s3 backend add {backend} --endpoint URL …`"
            );
            return Err(wrong("backend", fix));
        };
        let has_place = probe(&settings, bucket, &prefix).map_err(|text| {
            let fix = format!(
                "'{backend}' at {} does not list its bucket '{bucket}': {text}: make the bucket there, or correct the endpoint and the credential with `millpond s3 backend add {backend} …`",
                settings.endpoint
            );
            wrong("backend-bucket", fix)
        })?;
        if !has_place {
            let fix =
                format!("'{backend}' cannot have keys that begin with '{prefix}': {ELSEWHERE}");
            return Err(wrong("prefix", fix));
        }
        Ok(())
    }

    /// Where these backends answer. One whose file cannot be read has no other name.
    fn servers<'a>(
        &self,
        backings: impl Iterator<Item = &'a Backing>,
    ) -> Result<Servers, ClientError> {
        let mut servers = Servers::default();
        let names: BTreeSet<&str> = backings.map(|it| it.backend.as_str()).collect();
        for name in names {
            match read(&self.volume, name) {
                Ok(Some(settings)) => servers.note(name, &settings),
                Ok(None) | Err(ClientError::Argument { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(servers)
    }

    /// Whether no other bucket has the place of this one where one of them says that nobody else writes, or it was so before.
    fn check_alone(
        &self,
        bucket: &str,
        (backing, before): (&Backing, Option<&Backing>),
    ) -> Result<(), ClientError> {
        let all = self.list()?;
        let backings = all.iter().map(|(_, it)| it).chain([backing]).chain(before);
        let servers = self.servers(backings)?;
        for (name, other) in all.iter().filter(|(name, _)| name != bucket) {
            let was_so = before.is_some_and(|it| disputed(it, other, &servers).is_some());
            if let Some(place) = disputed(backing, other, &servers).filter(|_| !was_so) {
                let fix = format!(
                    "'{name}' is backed by {} too, and one of both says that nobody else writes there: give one another prefix, or have both be shared",
                    place_of(other, place)
                );
                return Err(wrong("prefix", fix));
            }
        }
        Ok(())
    }

    /// Whether buckets have their places alone as before when a backend answers elsewhere.
    ///
    /// # Errors
    /// `InvalidArgument` if two would have one place of which one of them says that nobody else writes there; and as for every call.
    pub fn check_backend(
        &self,
        backend: &str,
        settings: &BackendSettings,
    ) -> Result<(), ClientError> {
        let all = self.list()?;
        let before = self.servers(all.iter().map(|it| &it.1))?;
        let mut after = before.clone();
        after.note(backend, settings);
        for (name, backing) in all.iter().filter(|(_, it)| it.backend == backend) {
            for (other_name, other) in all.iter().filter(|(_, it)| it.backend != backend) {
                let was_so = disputed(backing, other, &before).is_some();
                if let Some(place) = disputed(backing, other, &after).filter(|_| !was_so) {
                    let fix = format!(
                        "'{name}' would be backed by {}, which '{other_name}' is backed by, and one of both says that nobody else writes there: `millpond s3 bucket rm` one of them before",
                        place_of(other, place)
                    );
                    return Err(wrong("endpoint", fix));
                }
            }
        }
        Ok(())
    }

    /// Has a bucket be backed; makes it, for the tenant, if it is not there. Whether it was made.
    ///
    /// # Errors
    /// `InvalidArgument` names the field and says what is wrong, before anything is changed; `File`: `Busy` when another place
    /// backs it; and as for every call.
    pub fn set(
        &self,
        (bucket, tenant): (&str, &str),
        backing: &Backing,
    ) -> Result<bool, ClientError> {
        check_tenant(tenant)?;
        self.check(backing)?;
        let there = self.get(bucket)?;
        self.check_alone(bucket, (backing, there.as_ref().and_then(Option::as_ref)))?;
        let is_new = there.is_none();
        if is_new {
            self.volume.make_bucket(bucket, &encode(&BucketRecord::of(tenant)))?;
        }
        self.volume.set_backing(bucket, Some(backing))?;
        Ok(is_new)
    }

    /// Makes a rule of a backed bucket, or replaces the one of its prefix; false when nothing backs the bucket.
    ///
    /// # Errors
    /// `InvalidArgument` for a quota of what is not transient, of a prefix that is no directory, and for a first one of a
    /// place where something lies; and as for every call.
    pub fn set_rule(&self, bucket: &str, rule: &Rule) -> Result<bool, ClientError> {
        let Some(Some(mut backing)) = self.get(bucket)? else { return Ok(false) };
        let before = backing.clone();
        backing.rules.retain(|it| it.prefix != rule.prefix);
        backing.rules.push(rule.clone());
        backing.rules.sort_by(|one, other| one.prefix.cmp(&other.prefix));
        self.check_alone(bucket, (&backing, Some(&before)))?;
        quota::set(&self.volume, (bucket, &before), rule)?;
        self.volume.set_backing(bucket, Some(&backing))?;
        Ok(true)
    }

    /// Removes the rule of a prefix, with its quota; whether there was one. None when nothing backs the bucket.
    ///
    /// # Errors
    /// `InvalidArgument` if another bucket has the place then; and as for every call.
    pub fn remove_rule(&self, bucket: &str, prefix: &[u8]) -> Result<Option<bool>, ClientError> {
        let Some(Some(mut backing)) = self.get(bucket)? else { return Ok(None) };
        let Some(at) = backing.rules.iter().position(|it| it.prefix == prefix) else {
            return Ok(Some(false));
        };
        let before = backing.clone();
        let rule = backing.rules.remove(at);
        self.check_alone(bucket, (&backing, Some(&before)))?;
        if rule.quota_bytes > 0 {
            quota::take(&self.volume, bucket, prefix)?;
        }
        self.volume.set_backing(bucket, Some(&backing))?;
        Ok(Some(true))
    }

    /// Has nothing back a bucket any more, nor rules bound it; what lies in the pool stays. False when nothing backs it.
    ///
    /// # Errors
    /// `File`: `Busy` while something waits; and as for every call.
    pub fn remove(&self, bucket: &str) -> Result<bool, ClientError> {
        let Some(Some(backing)) = self.get(bucket)? else { return Ok(false) };
        self.volume.set_backing(bucket, None)?;
        for rule in backing.rules.iter().filter(|rule| rule.quota_bytes > 0) {
            quota::take(&self.volume, bucket, &rule.prefix)?;
        }
        Ok(true)
    }

    /// What waits first in these buckets.
    ///
    /// # Errors
    /// As for every call.
    pub fn heads(&self, buckets: &[(String, Backing)]) -> Result<Heads, ClientError> {
        let mut all = BTreeMap::new();
        for (bucket, _) in buckets {
            let mut head = BTreeMap::new();
            for lane in LANES {
                let page = self.volume.queue_page(bucket, lane, None, PAGE)?;
                head.extend(page.entries.into_iter().map(|it| (it.key, it.bytes)));
            }
            all.insert(bucket.clone(), head);
        }
        Ok(Heads { at: RealClock::tick(), buckets: all })
    }

    /// How full the pool is.
    ///
    /// # Errors
    /// As for every call.
    pub fn pool(&self) -> Result<Pool, ClientError> {
        let usage = self.volume.usage()?;
        Ok(Pool { bytes: usage.bytes, used: usage.bytes.saturating_sub(usage.bytes_free) })
    }

    /// What waits in a bucket, and how fast what waited first has gone.
    ///
    /// # Errors
    /// As for every call.
    pub fn backlog_since(&self, bucket: &str, heads: &Heads) -> Result<Backlog, ClientError> {
        let mut gone = heads.buckets.get(bucket).cloned().unwrap_or_default();
        let is_any = !gone.is_empty();
        let mut all = self.backlog_of(bucket, b"", |key| {
            gone.remove(key);
        })?;
        let ms = u64::try_from(RealClock::tick().since(heads.at).as_millis()).unwrap_or(u64::MAX);
        let per_second = |it: u64| it.saturating_mul(1_000) / ms.max(1);
        let (keys, bytes) = (gone.len() as u64, gone.values().sum());
        let rate = Lane { keys: per_second(keys), bytes: per_second(bytes) };
        all.rate = Some(rate).filter(|_| is_any);
        Ok(all)
    }

    /// What waits in a bucket, of keys that begin so.
    ///
    /// # Errors
    /// As for every call.
    pub fn backlog(&self, bucket: &str, prefix: &[u8]) -> Result<Backlog, ClientError> {
        self.backlog_of(bucket, prefix, |_| {})
    }

    /// The same; those of some keys that do not wait any more go from these. None of them: all that waits.
    ///
    /// # Errors
    /// As for every call.
    pub fn backlog_without(
        &self,
        bucket: &str,
        prefix: &[u8],
        keys: &mut Option<HashSet<Vec<u8>>>,
    ) -> Result<Backlog, ClientError> {
        let mut seen = HashSet::new();
        let all = self.backlog_of(bucket, prefix, |key| {
            if keys.as_ref().is_none_or(|keys| keys.contains(key)) {
                seen.insert(key.to_vec());
            }
        })?;
        let Some(before) = keys.replace(seen) else { return Ok(all) };
        let Some(left) = keys else { return Ok(all) };
        for key in before {
            // One that moves within the queue may be passed over.
            if !left.contains(&key)
                && let Some(state) = self.volume.look_up(bucket, &key, false)?.state
                && state.is_dirty()
            {
                left.insert(key);
            }
        }
        Ok(all)
    }

    fn backlog_of(
        &self,
        bucket: &str,
        prefix: &[u8],
        mut see: impl FnMut(&[u8]),
    ) -> Result<Backlog, ClientError> {
        let (mut all, mut looked) = (Backlog::default(), 0);
        self.each(bucket, prefix, |entry, lane, now_ms| {
            see(&entry.key);
            let of_lane = &mut all.lanes[lane];
            of_lane.keys += 1;
            of_lane.bytes += entry.bytes;
            all.oldest = Some(all.oldest.map_or(entry.since, |it| it.min(entry.since)));
            if entry.place.due_ms <= now_ms {
                return Ok(());
            }
            looked += 1;
            if looked > LOOKS_MAX {
                all.is_cut = true;
                return Ok(());
            }
            let Some(state) = self.volume.look_up(bucket, &entry.key, false)?.state else {
                return Ok(());
            };
            all.under_way += u64::from(state.under.is_some());
            if state.attempts > 0 {
                let key = String::from_utf8_lossy(&entry.key).into_owned();
                all.failing.push(Failing { key, attempts: state.attempts, error: state.error });
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn each(
        &self,
        bucket: &str,
        prefix: &[u8],
        mut see: impl FnMut(&millpond_client::Queued, usize, u64) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        for (lane, number) in LANES.into_iter().enumerate() {
            let mut after = None;
            loop {
                let page = self.volume.queue_page(bucket, number, after, PAGE)?;
                for entry in page.entries.iter().filter(|it| it.key.starts_with(prefix)) {
                    see(entry, lane, page.now_ms)?;
                }
                after = page.entries.last().map(|it| it.place);
                if page.end || after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Has what waits of keys that begin so be due now; how many keys that were not.
    ///
    /// # Errors
    /// As for every call.
    pub fn hasten(&self, bucket: &str, prefix: &[u8]) -> Result<u64, ClientError> {
        let mut keys = Vec::new();
        self.each(bucket, prefix, |entry, _, now_ms| {
            if entry.place.due_ms > now_ms {
                keys.push(entry.key.clone());
            }
            Ok(())
        })?;
        let mut hastened = 0;
        for key in keys {
            hastened += u64::from(self.volume.hasten(bucket, &key)?);
        }
        Ok(hastened)
    }

    /// Has what mounts wrote below a prefix wait for the backend too; how many keys.
    ///
    /// # Errors
    /// As for every call.
    pub fn adopt(&self, bucket: &str, prefix: &[u8]) -> Result<u64, ClientError> {
        match self.get(bucket)? {
            Some(Some(backing)) => walk(&self.volume, (bucket, prefix), &backing),
            _ => Ok(0),
        }
    }

    /// Whether the backends of these buckets answer, by their names and the bucket there.
    ///
    /// # Errors
    /// As for every call.
    pub fn reached(&self, buckets: &[(String, Backing)]) -> Result<Reached, ClientError> {
        let mut all = BTreeMap::new();
        for (_, backing) in buckets {
            let place = (backing.backend.clone(), backing.bucket.clone());
            if let Entry::Vacant(entry) = all.entry(place) {
                entry.insert(read(&self.volume, &backing.backend)?);
            }
        }
        // Side by side: one that hangs takes its time.
        Ok(std::thread::scope(|scope| {
            let asked = all.iter().map(|(place, settings)| {
                let probed = scope.spawn(|| match settings {
                    Some(settings) => probe(settings, &place.1, "").map(drop),
                    None => Err("no file says where it is".to_owned()),
                });
                (place.clone(), probed)
            });
            let asked: Vec<_> = asked.collect();
            let answer = |(place, probed): (_, std::thread::ScopedJoinHandle<'_, _>)| {
                (place, probed.join().unwrap_or_else(|_| Err("it could not be asked".to_owned())))
            };
            asked.into_iter().map(answer).collect()
        }))
    }
}

#[cfg(test)]
mod tests {
    use millpond_client::Sharing;

    use super::*;

    #[test]
    fn a_store_is_its_host_and_port() {
        for (one, other, is_same) in [
            ("http://s3.example.org", "http://S3.example.org:80/", true),
            ("https://s3.example.org.", "https://s3.example.org:443", true),
            ("http://[::1]:9000", "http://[::1]:9000/", true),
            ("http://s3.example.org", "https://s3.example.org", false),
            ("http://127.0.0.1:9000", "http://127.0.0.1:9001", false),
        ] {
            assert_eq!(Servers::of(one) == Servers::of(other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn places_are_disputed_where_one_wants_them_alone() {
        let backing = |prefix: &str, is_shared| Backing {
            backend: "far".into(),
            bucket: "b".into(),
            prefix: prefix.into(),
            is_shared,
            ..Backing::default()
        };
        let is_disputed = |one: &Backing, other: &Backing| {
            let mut servers = Servers::default();
            for (name, endpoint) in [("far", "http://Far:80/"), ("again", "http://far")] {
                servers.note(name, &BackendSettings::new(endpoint, "key", "secret"));
            }
            assert_eq!(disputed(one, other, &servers), disputed(other, one, &servers));
            disputed(one, other, &servers).is_some()
        };
        assert!(is_disputed(&backing("", false), &backing("", false)));
        assert!(is_disputed(&backing("", true), &backing("a/", false)));
        assert!(!is_disputed(&backing("a/", false), &backing("b/", false)));
        assert!(!is_disputed(&backing("", true), &backing("a/", true)));
        let elsewhere = Backing { bucket: "c".into(), ..backing("", false) };
        assert!(!is_disputed(&backing("", false), &elsewhere));
        let again = Backing { backend: "again".into(), ..backing("", false) };
        assert!(is_disputed(&backing("", false), &again), "another name of the same store");
        let unknown = Backing { backend: "unknown".into(), ..backing("", false) };
        assert!(!is_disputed(&backing("", false), &unknown));
        assert!(is_disputed(&unknown, &unknown));
        // A rule says otherwise of the place that both have, or of some of it.
        let ruled = |prefix: &str, sharing| Backing {
            rules: vec![Rule { prefix: prefix.into(), sharing, ..Rule::default() }],
            ..backing("", sharing == Sharing::Exclusive)
        };
        assert!(!is_disputed(&ruled("a/", Sharing::Shared), &backing("a/b/", true)));
        assert!(is_disputed(&ruled("a/b/", Sharing::Shared), &backing("a/", true)));
        assert!(is_disputed(&ruled("a/b/c", Sharing::Exclusive), &backing("a/", true)));
        assert!(!is_disputed(&ruled("b/", Sharing::Exclusive), &backing("a/", true)));
    }
}
