//! Types of buckets that are backed by slower object stores (RFC 0020).
//!
//! Reading order: this file (the backing of a bucket, and its rules), `state` (of a key), `op` and
//! `reply` (requests of a gateway and their answers), `record` (entries of the queue).

mod op;
mod record;
mod reply;
mod state;

use super::super::request::flag;
use super::OBJECT_KEY_MAX;
use super::record::key;
use crate::limits::REPLICAS_MAX;
use crate::wire::{Reader, Record, WireError, Writer};

pub use op::{BackingOp, CLAIMS_MAX, Origin, Outcome, PAUSE_MS_MAX};
pub use record::QueueRecord;
pub use reply::{BackingReply, Claimed, QueuePage, Queued, StatePage};
pub(super) use reply::{state, write_state};
pub use state::{ERROR_BYTES_MAX, ETAG_BYTES_MAX, KeyState, Place, Remote, Under, Wanted};

/// Most rules of a bucket.
pub const RULES_MAX: usize = 256;
/// Most bytes of the prefixes of a bucket's rules together.
pub const RULE_PREFIXES_MAX: usize = 16 << 10;
/// Longest name of a backend, and of a bucket on it, in bytes.
pub const BACKEND_NAME_MAX: usize = 63;
/// Lane of the queue for objects up to [`SMALL_MAX`], and for tombstones.
pub const LANE_SMALL: u8 = 0;
/// Lane of the queue for larger objects.
pub const LANE_LARGE: u8 = 1;
/// Lane for work that metas do themselves: states to forget, and objects that expire.
pub const LANE_SWEEP: u8 = 2;
/// Longest object of [`LANE_SMALL`] in bytes.
pub const SMALL_MAX: u64 = 1 << 20;
/// Time in milliseconds for which the state of a key is kept after its file is gone.
pub const FORGET_MS: u64 = 3_600_000;

/// When writes are acknowledged and persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Acknowledged when the pool has them, and persisted to the backend afterwards.
    #[default]
    WriteBack,
    /// Acknowledged when the backend has it.
    WriteThrough,
    /// Never written to the backend, and never read from it.
    Transient,
}

/// Behavior of writes while the pool is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// They go through to the backend.
    WriteThrough,
    /// They are rejected.
    #[default]
    SlowDown,
}

/// The writers of a rule's prefix on the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// As the bucket is configured.
    #[default]
    AsBucket,
    /// Only this cluster.
    Exclusive,
    /// Other writers too.
    Shared,
}

/// Settings for keys with a common prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The prefix; empty for all keys.
    pub prefix: Vec<u8>,
    /// When writes are acknowledged and persisted.
    pub mode: Mode,
    /// Cached objects stay regardless of the bounds.
    pub is_pinned: bool,
    /// The writers on the backend.
    pub sharing: Sharing,
    /// Priority in minutes: its keys are persisted before keys that became dirty up to this many
    /// minutes before them.
    pub priority: u8,
    /// For transient objects the time to live in seconds; 0 for no end. For others, if the prefix
    /// is shared on the backend, the time in seconds for which cached objects are trusted; 0 for
    /// the bucket's setting.
    pub ttl_s: u32,
    /// Most bytes of transient objects; 0 for no bound. Metas enforce the quota of the directory,
    /// which the creator of the rule sets.
    pub quota_bytes: u64,
    /// Behavior of writes while the pool is full.
    pub when_full: WhenFull,
    /// Replica count of bytes in chunks; 0 for the default of the pool.
    pub replicas: u8,
}

/// The backing of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Name of the backend, 1 to [`BACKEND_NAME_MAX`] bytes: the gateways' file of backends has its
    /// address.
    pub backend: String,
    /// The bucket on the backend, 1 to [`BACKEND_NAME_MAX`] bytes.
    pub bucket: String,
    /// Prefix added to keys on the backend.
    pub prefix: Vec<u8>,
    /// Other writers write on the backend too, unless a rule has another setting.
    pub is_shared: bool,
    /// Seconds for which cached objects are trusted if others write on the backend; also the
    /// interval between two scans for files that mounts wrote.
    pub ttl_s: u32,
    /// Most bytes of cached objects; 0 for no bound.
    pub cache_bytes: u64,
    /// At most [`RULES_MAX`] rules with different prefixes.
    pub rules: Vec<Rule>,
}

/// Why a backing is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The backend's name is invalid.
    #[error("the name of a backend must have 1 to 63 bytes")]
    Backend,
    /// The name of the bucket on the backend is invalid.
    #[error("the name of a bucket at a backend must have 1 to 63 bytes")]
    Bucket,
    /// The prefix of the backing or of a rule is too long.
    #[error("a prefix must not be longer than a key")]
    Prefix,
    /// There are too many rules, or their prefixes are too long.
    #[error("a bucket can have at most 256 rules, with 16 KiB of prefixes together")]
    Rules,
    /// Two rules have the same prefix.
    #[error("two rules have the same prefix")]
    Twice,
    /// A rule's replica count is too large.
    #[error("a rule has more replicas than a chain can have")]
    Replicas,
}

impl Backing {
    /// The rule of a key: the one with the longest matching prefix; without a match objects are
    /// written back.
    #[must_use]
    pub fn rule_of(&self, key: &[u8]) -> Rule {
        let fitting = self.rules.iter().filter(|rule| key.starts_with(&rule.prefix));
        fitting.max_by_key(|rule| rule.prefix.len()).cloned().unwrap_or_default()
    }

    /// Whether others also write this key on the backend.
    #[must_use]
    pub fn is_shared_at(&self, key: &[u8]) -> bool {
        match self.rule_of(key).sharing {
            Sharing::AsBucket => self.is_shared,
            Sharing::Exclusive => false,
            Sharing::Shared => true,
        }
    }

    /// Whether both name the same prefix of the same bucket on the same backend.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        let place = |backing: &Self| {
            (backing.backend.clone(), backing.bucket.clone(), backing.prefix.clone())
        };
        place(self) == place(other)
    }

    /// Checks that the backing is valid.
    ///
    /// # Errors
    /// [`BackingError`].
    pub fn check(&self) -> Result<(), BackingError> {
        let names = 1..=BACKEND_NAME_MAX;
        if !names.contains(&self.backend.len()) {
            return Err(BackingError::Backend);
        }
        if !names.contains(&self.bucket.len()) {
            return Err(BackingError::Bucket);
        }
        let prefixes = || self.rules.iter().map(|rule| &rule.prefix);
        if prefixes().chain([&self.prefix]).any(|prefix| prefix.len() > OBJECT_KEY_MAX) {
            return Err(BackingError::Prefix);
        }
        let bytes: usize = prefixes().map(Vec::len).sum();
        if self.rules.len() > RULES_MAX || bytes > RULE_PREFIXES_MAX {
            return Err(BackingError::Rules);
        }
        if self.rules.iter().any(|rule| rule.replicas > REPLICAS_MAX) {
            return Err(BackingError::Replicas);
        }
        let different: std::collections::BTreeSet<&Vec<u8>> = prefixes().collect();
        if different.len() < self.rules.len() { Err(BackingError::Twice) } else { Ok(()) }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.str8(&self.backend);
        w.str8(&self.bucket);
        w.bytes16(&self.prefix);
        w.u8(u8::from(self.is_shared));
        w.u32(self.ttl_s);
        w.u64(self.cache_bytes);
        w.count(self.rules.len());
        for rule in &self.rules {
            rule.encode(w);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (backend, bucket) = (r.str8()?.to_owned(), r.str8()?.to_owned());
        let (prefix, is_shared) = (key(r)?, flag(r, "shared backing")?);
        let (ttl_s, cache_bytes) = (r.u32()?, r.u64()?);
        let n = r.count(RULES_MAX, Rule::BYTES_MIN, "rules of a bucket")?;
        let rules = (0..n).map(|_| Rule::decode(r)).collect::<Result<_, _>>()?;
        let all = Self { backend, bucket, prefix, is_shared, ttl_s, cache_bytes, rules };
        all.check().map_err(|_| WireError::Field("backing of a bucket"))?;
        Ok(all)
    }
}

impl Rule {
    /// Smallest encoding of a rule in bytes, without its prefix.
    const BYTES_MIN: usize = 18;

    fn encode(&self, w: &mut Writer) {
        w.bytes16(&self.prefix);
        w.u8(self.mode.code());
        let sharing = match self.sharing {
            Sharing::AsBucket => 0,
            Sharing::Exclusive => 1,
            Sharing::Shared => 2,
        };
        // The bits above the first were 0 in older encodings, which means [`Sharing::AsBucket`].
        w.u8(u8::from(self.is_pinned) | sharing << 1);
        w.u8(self.priority);
        w.u32(self.ttl_s);
        w.u64(self.quota_bytes);
        let when_full = match self.when_full {
            WhenFull::WriteThrough => 0,
            WhenFull::SlowDown => 1,
        };
        // The replica count is in the upper bits, which were 0 before protocol 9.
        w.u8(when_full | self.replicas << 1);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (prefix, mode) = (key(r)?, Mode::decode(r)?);
        let (kept, priority) = (r.u8()?, r.u8()?);
        let sharing = match kept >> 1 {
            0 => Sharing::AsBucket,
            1 => Sharing::Exclusive,
            2 => Sharing::Shared,
            _ => return Err(WireError::Field("sharing of a rule")),
        };
        let is_pinned = kept & 1 == 1;
        let (ttl_s, quota_bytes) = (r.u32()?, r.u64()?);
        let last = r.u8()?;
        let when_full = if last & 1 == 0 { WhenFull::WriteThrough } else { WhenFull::SlowDown };
        let replicas = last >> 1;
        if replicas > REPLICAS_MAX {
            return Err(WireError::Field("replicas of a rule"));
        }
        Ok(Self {
            prefix,
            mode,
            is_pinned,
            sharing,
            priority,
            ttl_s,
            quota_bytes,
            when_full,
            replicas,
        })
    }
}

impl Mode {
    const fn code(self) -> u8 {
        match self {
            Self::WriteBack => 0,
            Self::WriteThrough => 1,
            Self::Transient => 2,
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => Self::WriteBack,
            1 => Self::WriteThrough,
            2 => Self::Transient,
            _ => return Err(WireError::Field("mode of a rule")),
        })
    }
}

impl Record for Backing {
    const KIND: u8 = 57;

    fn write_body(&self, w: &mut Writer) {
        self.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::decode(r)
    }
}

/// Writes a flag for the presence of the value, then the value.
fn write_option<T>(w: &mut Writer, value: Option<&T>, write: impl FnOnce(&mut Writer, &T)) {
    w.u8(u8::from(value.is_some()));
    if let Some(value) = value {
        write(w, value);
    }
}

/// Writes at most `max` bytes of text, cut at a character boundary.
fn write_text(w: &mut Writer, text: &str, max: usize) {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    w.str8(&text[..end]);
}

fn read_text(r: &mut Reader<'_>, max: usize, what: &'static str) -> Result<String, WireError> {
    let text = r.str8()?;
    if text.len() > max { Err(WireError::Field(what)) } else { Ok(text.to_owned()) }
}
