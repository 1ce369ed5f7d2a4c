//! Administration of backed buckets: their backing, the backlog, and its failures.

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

/// Lanes of a queue.
const LANES: [u8; 2] = [0, 1];
/// Entries requested at once.
const PAGE: u32 = 1_000;
/// Keys with their states read for one status, at most.
const LOOKS_MAX: usize = 1_000;

/// The backlog of a lane of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// Number of keys.
    pub keys: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The first keys of each backlog at one moment: keys that are gone a little later were persisted.
#[derive(Debug)]
pub struct Heads {
    at: Tick,
    buckets: BTreeMap<String, BTreeMap<Vec<u8>, u64>>,
}

impl Heads {
    /// Whether all backlogs were empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.values().all(BTreeMap::is_empty)
    }
}

/// The size and use of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes of all disks.
    pub bytes: u64,
    /// Bytes in use.
    pub used: u64,
}

impl Pool {
    /// Fill level, in thousandths, above which writes to backed buckets wait; and above which they
    /// are written through or refused.
    pub const WATERMARKS: [u64; 2] = [HIGH, LAST];

    /// Fill level in thousandths.
    #[must_use]
    pub fn full(self) -> u64 {
        self.used.saturating_mul(1_000).checked_div(self.bytes).unwrap_or(0)
    }
}

/// A key that the backend did not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The key.
    pub key: String,
    /// Consecutive attempts.
    pub attempts: u32,
    /// The error of the last attempt.
    pub error: String,
}

/// The backlog of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Objects up to 1 MiB and removals; larger objects.
    pub lanes: [Lane; 2],
    /// When the oldest key became dirty.
    pub oldest: Option<Timestamp>,
    /// Attempts in progress or with unknown outcome.
    pub under_way: u64,
    /// Keys with a failed last attempt, 1,000 at most.
    pub failing: Vec<Failing>,
    /// Keys and bytes persisted per second, measured on the 1,000 oldest of each lane; none if not
    /// measured.
    pub rate: Option<Lane>,
    /// Whether only the first of the keys that are not due were examined, because there were too
    /// many.
    pub is_cut: bool,
}

impl Backlog {
    /// Keys of all lanes.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.keys).sum()
    }

    /// Bytes of all lanes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }
}

/// Reachability of backends: by backend name and bucket there, the error if there is one.
pub type Reached = BTreeMap<(String, String), Result<(), String>>;

/// The backed buckets of a volume, for administration.
#[derive(Debug)]
pub struct BucketRing {
    volume: Volume,
}

const fn wrong(field: &'static str, fix: String) -> ClientError {
    ClientError::Argument { field, fix }
}

/// Asks a backend for one key of a bucket, like every listing does; then whether it can store keys
/// with a prefix.
///
/// # Errors
/// A description of the problem.
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

/// A readable description of a prefix at the backend of a backing.
fn place_of(backing: &Backing, place: &[u8]) -> String {
    let place = String::from_utf8_lossy(place);
    format!("keys that begin with '{place}' in '{}' of '{}'", backing.bucket, backing.backend)
}

/// Whether a backing declares all its keys below `place`, a prefix at the backend, as shared.
fn shares(backing: &Backing, place: &[u8]) -> bool {
    let prefix = place.strip_prefix(&backing.prefix[..]).unwrap_or_default();
    let mut below = rules_below(backing, prefix);
    backing.is_shared_at(prefix) && below.all(|rule| backing.is_shared_at(&rule.prefix))
}

/// Addresses of backends by name: two names may refer to one store.
#[derive(Clone, Debug, Default)]
struct Servers(BTreeMap<String, String>);

impl Servers {
    /// The host and port of an endpoint, normalized so that other spellings compare equal.
    fn of(endpoint: &str) -> String {
        let uri: Uri = endpoint.parse().unwrap_or_default();
        let usual = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
        let host = uri.host().unwrap_or(endpoint).to_ascii_lowercase();
        format!("{}:{}", host.trim_end_matches('.'), uri.port_u16().unwrap_or(usual))
    }

    fn note(&mut self, backend: &str, settings: &BackendSettings) {
        self.0.insert(backend.to_owned(), Self::of(&settings.endpoint));
    }

    /// The address of the backend of a backing; its name if the address is unknown.
    fn get<'a>(&'a self, backing: &'a Backing) -> &'a str {
        self.0.get(&backing.backend).unwrap_or(&backing.backend)
    }
}

/// The place that two backings have in common, if one of them claims it exclusively.
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
    /// Opens the backed buckets of the volume of a cluster.
    ///
    /// # Errors
    /// As for [`Volume::with`].
    pub fn open(client: Client) -> Result<Self, ClientError> {
        Ok(Self { volume: root(client, ("millpond s3 buckets", None))? })
    }

    /// All backed buckets.
    ///
    /// # Errors
    /// As for every call.
    pub fn list(&self) -> Result<Vec<(String, Backing)>, ClientError> {
        let all = self.volume.buckets()?;
        Ok(all.into_iter().filter_map(|bucket| Some((bucket.name, bucket.backing?))).collect())
    }

    /// The backing of a bucket; none if the bucket does not exist.
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

    /// Checks that a backend is reachable, with the bucket there, and can store the prefix.
    fn check(&self, backing: &Backing) -> Result<(), ClientError> {
        let (backend, bucket) = (&backing.backend, &backing.bucket);
        let prefix = String::from_utf8_lossy(&backing.prefix);
        let Some(settings) = read(&self.volume, backend)? else {
            let fix = format!(
                "there is no backend '{backend}': add it with `millpond s3 backend add {backend} \
                 --endpoint URL …`"
            );
            return Err(wrong("backend", fix));
        };
        let has_place = probe(&settings, bucket, &prefix).map_err(|text| {
            let fix = format!(
                "'{backend}' at {} does not list its bucket '{bucket}': {text}: make the bucket \
                 there, or correct the endpoint and the credential with `millpond s3 backend add \
                 {backend} …`",
                settings.endpoint
            );
            wrong("backend-bucket", fix)
        })?;
        if !has_place {
            let fix =
                format!("'{backend}' cannot store keys that begin with '{prefix}': {ELSEWHERE}");
            return Err(wrong("prefix", fix));
        }
        Ok(())
    }

    /// The addresses of these backends. A backend without a readable file keeps its name as
    /// address.
    fn servers<'a>(
        &self,
        backings: impl Iterator<Item = &'a Backing>,
    ) -> Result<Servers, ClientError> {
        let mut servers = Servers::default();
        let names: BTreeSet<&str> = backings.map(|backing| backing.backend.as_str()).collect();
        for name in names {
            match read(&self.volume, name) {
                Ok(Some(settings)) => servers.note(name, &settings),
                Ok(None) | Err(ClientError::Argument { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(servers)
    }

    /// Checks that no other bucket shares the place of this one if one of them claims it
    /// exclusively, unless it was so before.
    fn check_alone(
        &self,
        bucket: &str,
        (backing, before): (&Backing, Option<&Backing>),
    ) -> Result<(), ClientError> {
        let all = self.list()?;
        let backings = all.iter().map(|(_, other)| other).chain([backing]).chain(before);
        let servers = self.servers(backings)?;
        for (name, other) in all.iter().filter(|(name, _)| name != bucket) {
            let was_so = before.is_some_and(|before| disputed(before, other, &servers).is_some());
            if let Some(place) = disputed(backing, other, &servers).filter(|_| !was_so) {
                let fix = format!(
                    "'{name}' is backed by {} too, and at least one of the two is not shared: use \
                     another prefix for one, or make both shared",
                    place_of(other, place)
                );
                return Err(wrong("prefix", fix));
            }
        }
        Ok(())
    }

    /// Checks that a new address of a backend does not make buckets share a place claimed
    /// exclusively.
    ///
    /// # Errors
    /// `InvalidArgument` if two buckets would have one place that one of them claims exclusively;
    /// and as for every call.
    pub fn check_backend(
        &self,
        backend: &str,
        settings: &BackendSettings,
    ) -> Result<(), ClientError> {
        let all = self.list()?;
        let before = self.servers(all.iter().map(|entry| &entry.1))?;
        let mut after = before.clone();
        after.note(backend, settings);
        for (name, backing) in all.iter().filter(|(_, backing)| backing.backend == backend) {
            for (other_name, other) in all.iter().filter(|(_, other)| other.backend != backend) {
                let was_so = disputed(backing, other, &before).is_some();
                if let Some(place) = disputed(backing, other, &after).filter(|_| !was_so) {
                    let fix = format!(
                        "'{name}' would be backed by {}, as '{other_name}' is, and at least one of \
                         the two is not shared: run `millpond s3 bucket rm` for one of them first",
                        place_of(other, place)
                    );
                    return Err(wrong("endpoint", fix));
                }
            }
        }
        Ok(())
    }

    /// Attaches a bucket to a backend; makes the bucket, for the tenant, if it does not exist.
    /// Returns whether it was made.
    ///
    /// # Errors
    /// `InvalidArgument` names the field and the problem, before any change; `File`: `Busy` if it
    /// has another backing; and as for every call.
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

    /// Adds a rule to a backed bucket, or replaces the one of its prefix; false if the bucket is
    /// not backed.
    ///
    /// # Errors
    /// `InvalidArgument` for a quota of a rule that is not transient, for a prefix that is not a
    /// directory, and for the first quota of a directory that is not empty; and as for every call.
    pub fn set_rule(&self, bucket: &str, rule: &Rule) -> Result<bool, ClientError> {
        let Some(Some(mut backing)) = self.get(bucket)? else { return Ok(false) };
        let before = backing.clone();
        backing.rules.retain(|other| other.prefix != rule.prefix);
        backing.rules.push(rule.clone());
        backing.rules.sort_by(|one, other| one.prefix.cmp(&other.prefix));
        self.check_alone(bucket, (&backing, Some(&before)))?;
        quota::set(&self.volume, (bucket, &before), rule)?;
        self.volume.set_backing(bucket, Some(&backing))?;
        Ok(true)
    }

    /// Removes the rule of a prefix, with its quota; returns whether it existed. None if the bucket
    /// is not backed.
    ///
    /// # Errors
    /// `InvalidArgument` if another bucket would then share the place; and as for every call.
    pub fn remove_rule(&self, bucket: &str, prefix: &[u8]) -> Result<Option<bool>, ClientError> {
        let Some(Some(mut backing)) = self.get(bucket)? else { return Ok(None) };
        let Some(at) = backing.rules.iter().position(|rule| rule.prefix == prefix) else {
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

    /// Detaches a bucket from its backend, with its rules and quotas; objects in the pool stay.
    /// False if the bucket is not backed.
    ///
    /// # Errors
    /// `File`: `Busy` while the backlog is not empty; and as for every call.
    pub fn remove(&self, bucket: &str) -> Result<bool, ClientError> {
        let Some(Some(backing)) = self.get(bucket)? else { return Ok(false) };
        self.volume.set_backing(bucket, None)?;
        for rule in backing.rules.iter().filter(|rule| rule.quota_bytes > 0) {
            quota::take(&self.volume, bucket, &rule.prefix)?;
        }
        Ok(true)
    }

    /// The first keys of the backlogs of these buckets.
    ///
    /// # Errors
    /// As for every call.
    pub fn heads(&self, buckets: &[(String, Backing)]) -> Result<Heads, ClientError> {
        let mut all = BTreeMap::new();
        for (bucket, _) in buckets {
            let mut head = BTreeMap::new();
            for lane in LANES {
                let page = self.volume.queue_page(bucket, lane, None, PAGE)?;
                head.extend(page.entries.into_iter().map(|entry| (entry.key, entry.bytes)));
            }
            all.insert(bucket.clone(), head);
        }
        Ok(Heads { at: RealClock::tick(), buckets: all })
    }

    /// The size and use of the pool.
    ///
    /// # Errors
    /// As for every call.
    pub fn pool(&self) -> Result<Pool, ClientError> {
        let usage = self.volume.usage()?;
        Ok(Pool { bytes: usage.bytes, used: usage.bytes.saturating_sub(usage.bytes_free) })
    }

    /// The backlog of a bucket, and its rate since `heads`.
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
        let per_second = |count: u64| count.saturating_mul(1_000) / ms.max(1);
        let (keys, bytes) = (gone.len() as u64, gone.values().sum());
        let rate = Lane { keys: per_second(keys), bytes: per_second(bytes) };
        all.rate = Some(rate).filter(|_| is_any);
        Ok(all)
    }

    /// The backlog of a bucket, limited to keys with a prefix.
    ///
    /// # Errors
    /// As for every call.
    pub fn backlog(&self, bucket: &str, prefix: &[u8]) -> Result<Backlog, ClientError> {
        self.backlog_of(bucket, prefix, |_| {})
    }

    /// Like [`BucketRing::backlog`]; also reduces `keys` to those still in the backlog. `None` is
    /// replaced by all keys of the backlog.
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
            // A key that moves within the queue may have been missed.
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
            all.oldest = Some(all.oldest.map_or(entry.since, |oldest| oldest.min(entry.since)));
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
                for entry in page.entries.iter().filter(|entry| entry.key.starts_with(prefix)) {
                    see(entry, lane, page.now_ms)?;
                }
                after = page.entries.last().map(|entry| entry.place);
                if page.end || after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Makes waiting keys with a prefix due now; returns how many were not.
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

    /// Adopts writes of mounts below a prefix into the backlog; returns the number of keys.
    ///
    /// # Errors
    /// As for every call.
    pub fn adopt(&self, bucket: &str, prefix: &[u8]) -> Result<u64, ClientError> {
        match self.get(bucket)? {
            Some(Some(backing)) => walk(&self.volume, (bucket, prefix), &backing),
            _ => Ok(0),
        }
    }

    /// Reachability of the backends of these buckets, by backend name and bucket there.
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
        // In parallel: a backend that hangs takes its whole timeout.
        Ok(std::thread::scope(|scope| {
            let asked = all.iter().map(|(place, settings)| {
                let probed = scope.spawn(|| match settings {
                    Some(settings) => probe(settings, &place.1, "").map(drop),
                    None => Err("its settings are missing".to_owned()),
                });
                (place.clone(), probed)
            });
            let asked: Vec<_> = asked.collect();
            let answer = |(place, probed): (_, std::thread::ScopedJoinHandle<'_, _>)| {
                (place, probed.join().unwrap_or_else(|_| Err("it could not be checked".to_owned())))
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
        // A rule changes the sharing of the common place, or of a part of it.
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
