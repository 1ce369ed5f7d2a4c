//! Words of buckets that slower object stores are behind (RFC 0020).
//!
//! Reading order: here what backs a bucket, and its rules; `state` (of a key), `op` and `reply` (what a gateway asks, and is
//! answered), `record` (what lies in the queue).

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

/// Rules of a bucket at most.
pub const RULES_MAX: usize = 256;
/// Bytes of the prefixes of a bucket's rules together, at most.
pub const RULE_PREFIXES_MAX: usize = 16 << 10;
/// Longest name of a backend, and of a bucket there, in bytes.
pub const BACKEND_NAME_MAX: usize = 63;
/// Lane of the queue for objects up to [`SMALL_MAX`], and for tombstones.
pub const LANE_SMALL: u8 = 0;
/// Lane of the queue for larger objects.
pub const LANE_LARGE: u8 = 1;
/// Lane of what metas do themselves: states that are to be forgotten, and objects whose time to live ends.
pub const LANE_SWEEP: u8 = 2;
/// Longest object of [`LANE_SMALL`] in bytes.
pub const SMALL_MAX: u64 = 1 << 20;
/// How long the state of a key is kept whose file has gone, in milliseconds.
pub const FORGET_MS: u64 = 3_600_000;

/// What becomes of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Acknowledged from the pool, and brought to the backend behind that.
    #[default]
    WriteBack,
    /// Acknowledged when the backend has it.
    WriteThrough,
    /// Never brought to the backend, nor looked for there.
    Transient,
}

/// What becomes of writes while the pool is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// They go through to the backend.
    WriteThrough,
    /// They are refused.
    #[default]
    SlowDown,
}

/// Who writes at the backend below a rule's prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// What the bucket says.
    #[default]
    AsBucket,
    /// Nobody else.
    Exclusive,
    /// Others too.
    Shared,
}

/// What holds for keys that begin with some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The bytes; none for all keys.
    pub prefix: Vec<u8>,
    /// What becomes of writes.
    pub mode: Mode,
    /// What is cached stays, whatever the bounds.
    pub is_pinned: bool,
    /// Who writes at the backend.
    pub sharing: Sharing,
    /// Its keys go to the backend before those that became dirty up to so many minutes before them.
    pub priority: u8,
    /// Seconds that transient objects live; 0 without end. Of others how long what is cached is taken for right where
    /// the prefix at the backend is shared; 0 for what the bucket says.
    pub ttl_s: u32,
    /// Bytes of transient objects at most; 0 without bound. What metas enforce is the quota of the directory, which who
    /// makes the rule gives it.
    pub quota_bytes: u64,
    /// What becomes of writes while the pool is full.
    pub when_full: WhenFull,
    /// Replicas of what is in chunks; 0 for as many as the pool has of everything.
    pub replicas: u8,
}

/// What backs a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Name of the backend: a file of gateways says where it is. 1 to [`BACKEND_NAME_MAX`] bytes.
    pub backend: String,
    /// The bucket there; 1 to [`BACKEND_NAME_MAX`] bytes.
    pub bucket: String,
    /// What keys there have before those of here.
    pub prefix: Vec<u8>,
    /// Others write there too, where no rule says something else.
    pub is_shared: bool,
    /// Seconds that what is cached is taken for right, if others write there; and between two walks for what mounts
    /// wrote.
    pub ttl_s: u32,
    /// Bytes of what is cached at most; 0 without bound.
    pub cache_bytes: u64,
    /// At most [`RULES_MAX`], each with another prefix.
    pub rules: Vec<Rule>,
}

/// A backing that no bucket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The backend's name.
    #[error("the name of a backend has 1 to 63 bytes")]
    Backend,
    /// The bucket there.
    #[error("the name of a bucket at a backend has 1 to 63 bytes")]
    Bucket,
    /// The prefix there, or that of a rule.
    #[error("a prefix is longer than a key")]
    Prefix,
    /// The rules.
    #[error("a bucket has at most 256 rules, with 16 KiB of prefixes together")]
    Rules,
    /// Two rules.
    #[error("two rules have the same prefix")]
    Twice,
    /// The replicas of a rule.
    #[error("a rule has more replicas than a chain can have")]
    Replicas,
}

impl Backing {
    /// The rule of a key: that of the longest prefix; without one objects are written back.
    #[must_use]
    pub fn rule_of(&self, key: &[u8]) -> Rule {
        let fitting = self.rules.iter().filter(|rule| key.starts_with(&rule.prefix));
        fitting.max_by_key(|rule| rule.prefix.len()).cloned().unwrap_or_default()
    }

    /// Whether others write a key at the backend too.
    #[must_use]
    pub fn is_shared_at(&self, key: &[u8]) -> bool {
        match self.rule_of(key).sharing {
            Sharing::AsBucket => self.is_shared,
            Sharing::Exclusive => false,
            Sharing::Shared => true,
        }
    }

    /// Whether it is the same place at the same backend.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        let place = |it: &Self| (it.backend.clone(), it.bucket.clone(), it.prefix.clone());
        place(self) == place(other)
    }

    /// Whether a bucket may have it.
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
    /// Bytes of a rule without its prefix.
    const BYTES_MIN: usize = 18;

    fn encode(&self, w: &mut Writer) {
        w.bytes16(&self.prefix);
        w.u8(self.mode.code());
        let sharing = match self.sharing {
            Sharing::AsBucket => 0,
            Sharing::Exclusive => 1,
            Sharing::Shared => 2,
        };
        // Bits above the first were 0 before there was something to say in them.
        w.u8(u8::from(self.is_pinned) | sharing << 1);
        w.u8(self.priority);
        w.u32(self.ttl_s);
        w.u64(self.quota_bytes);
        let when_full = match self.when_full {
            WhenFull::WriteThrough => 0,
            WhenFull::SlowDown => 1,
        };
        // Replicas in the bits above: before protocol 9 they were 0.
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

/// Writes whether there is something, and that.
fn write_option<T>(w: &mut Writer, value: Option<&T>, write: impl FnOnce(&mut Writer, &T)) {
    w.u8(u8::from(value.is_some()));
    if let Some(value) = value {
        write(w, value);
    }
}

/// Text up to so many bytes, cut on the boundary of a character.
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
