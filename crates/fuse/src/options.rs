//! The options of a mount.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use millpond_client::ClientOptions;
use millpond_types::units::parse_duration;

use crate::budget::Budgets;
use crate::cached::CacheOptions;

/// The consistency of a mount with changes made elsewhere (docs/files.md has the table).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every system call sees what any mount has done before.
    Strict,
    /// An open sees all writes that were closed before it, on any mount.
    #[default]
    CloseToOpen,
    /// No other client writes while this mount exists: the kernel keeps its cached entries, and
    /// writes back in large pieces.
    OneWriter,
    /// Changes made elsewhere are seen within a second.
    Relaxed,
    /// Nothing changes: everything is cached.
    ReadOnly,
}

impl Mode {
    /// Every mode with its name.
    pub const NAMES: [(Self, &str); 5] = [
        (Self::Strict, "strict"),
        (Self::CloseToOpen, "close-to-open"),
        (Self::OneWriter, "one-writer"),
        (Self::Relaxed, "relaxed"),
        (Self::ReadOnly, "read-only"),
    ];

    /// Whether the mount receives changes made elsewhere.
    pub(crate) const fn listens(self) -> bool {
        matches!(self, Self::Strict | Self::CloseToOpen)
    }

    /// How long the kernel may use cached names and attributes, in a mount without change
    /// notifications.
    pub(crate) const fn kept(self) -> Duration {
        match self {
            Self::Strict | Self::CloseToOpen => Duration::ZERO,
            Self::Relaxed => Duration::from_secs(1),
            Self::OneWriter | Self::ReadOnly => Duration::from_hours(1),
        }
    }
}

/// An option of `-o` is invalid; the message names it and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("-o {option}: {fix}")]
pub struct OptionError {
    /// The option.
    pub option: String,
    /// The fix.
    pub fix: String,
}

impl FromStr for Mode {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(mode, _)| *mode).ok_or_else(|| OptionError {
            option: format!("mode={text}"),
            fix: format!("use one of {}", Self::NAMES.map(|(_, name)| name).join(", ")),
        })
    }
}

/// A mount to be made.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of that name")]
pub struct MountSpec {
    /// The cluster.
    pub client: ClientOptions,
    /// The mount point.
    pub target: PathBuf,
    /// Its consistency.
    pub mode: Mode,
    /// Mounts read-only; implied by [`Mode::ReadOnly`].
    pub read_only: bool,
    /// Allows other users.
    pub allow_other: bool,
    /// Honors set-user-id bits.
    pub suid: bool,
    /// Enables device files.
    pub dev: bool,
    /// Forbids executing files.
    pub noexec: bool,
    /// Updates the access time at an open for reading, as in mount(8).
    pub relatime: bool,
    /// Number of threads that serve requests.
    pub threads: usize,
    /// The time within which a request of the kernel is answered, even when servers die.
    pub timeout: Duration,
    /// Shows `.stats` and `.accesslog` in the root.
    pub watch: bool,
    /// Reads ahead where the kernel does not.
    pub read_ahead: bool,
    /// Uses delegations of directories that it makes, in close-to-open mode.
    pub delegations: bool,
    /// Allows ID-mapped mounts of it (`mount_setattr(2)`).
    pub idmap: bool,
    /// Keeps access control lists, which the kernel checks.
    pub acl: bool,
    /// Receives requests over `io_uring`. Such a mount ends with its process.
    pub io_uring: bool,
    /// Its limits.
    pub budgets: Budgets,
    /// Its local cache of whole files.
    pub cache: CacheOptions,
    /// Recognizes resent requests. Off only for demonstration: then a mount executes requests twice
    /// when its process is killed.
    pub journal: bool,
}

/// Number of threads of a mount: each waits for the cluster while it serves a request.
const THREADS_DEFAULT: usize = 16;
/// More would wait for each other's connections.
const THREADS_MAX: usize = 63;
/// A dead node costs seconds; a longer outage of the cluster should be noticed.
pub(crate) const TIMEOUT_DEFAULT: Duration = Duration::from_mins(1);
/// A busy disk would exceed less; more is not a useful limit.
const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(1);

impl MountSpec {
    /// The defaults for a cluster and a mount point.
    #[must_use]
    pub fn new(client: ClientOptions, target: PathBuf) -> Self {
        Self {
            client,
            target,
            mode: Mode::default(),
            read_only: false,
            allow_other: true,
            suid: true,
            dev: true,
            noexec: false,
            relatime: false,
            threads: THREADS_DEFAULT,
            timeout: TIMEOUT_DEFAULT,
            watch: true,
            read_ahead: true,
            delegations: true,
            idmap: false,
            acl: false,
            io_uring: false,
            budgets: Budgets::default(),
            cache: CacheOptions::default(),
            journal: true,
        }
    }

    /// Applies options in the syntax of `mount -o`: `mode=strict,ro,noexec`.
    ///
    /// # Errors
    /// [`OptionError`] naming the option.
    pub fn apply(&mut self, options: &str) -> Result<(), OptionError> {
        let mut asks_for_delegations = false;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, value) =
                option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
            match (name, value) {
                ("mode", Some(mode)) => self.mode = mode.parse()?,
                ("ro", None) => self.read_only = true,
                ("rw", None) => self.read_only = false,
                ("allow_other", None) => self.allow_other = true,
                ("noallow_other", None) => self.allow_other = false,
                ("suid", None) => self.suid = true,
                ("nosuid", None) => self.suid = false,
                ("dev", None) => self.dev = true,
                ("nodev", None) => self.dev = false,
                ("exec", None) => self.noexec = false,
                ("noexec", None) => self.noexec = true,
                ("relatime", None) => self.relatime = true,
                ("noatime", None) => self.relatime = false,
                ("watch", None) => self.watch = true,
                ("nowatch", None) => self.watch = false,
                ("read_ahead", None) => self.read_ahead = true,
                ("noread_ahead", None) => self.read_ahead = false,
                ("delegations", None) => (self.delegations, asks_for_delegations) = (true, true),
                ("nodelegations", None) => {
                    (self.delegations, asks_for_delegations) = (false, false);
                }
                ("idmap", None) => self.idmap = true,
                ("acl", None) => self.acl = true,
                ("noacl", None) => self.acl = false,
                ("io_uring", None) => self.io_uring = true,
                ("journal", Some("off")) => self.journal = false,
                ("threads", Some(count)) => {
                    let parsed = count.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
                    self.threads = parsed.ok_or_else(|| OptionError {
                        option: option.to_owned(),
                        fix: format!("use 1 to {THREADS_MAX}"),
                    })?;
                }
                ("timeout", Some(time)) => {
                    let parsed = parse_duration(time).ok().filter(|t| TIMEOUT_RANGE.contains(t));
                    self.timeout = parsed.ok_or_else(|| OptionError {
                        option: option.to_owned(),
                        fix: "use a time from 1s to 1h, such as 30s or 5m".to_owned(),
                    })?;
                }
                _ => {
                    let budget = value.and_then(|value| self.budgets.apply(name, value));
                    if let Some(taken) = budget.or_else(|| self.cache.apply(name, value)) {
                        taken?;
                        continue;
                    }
                    let known = "mode=NAME, ro, rw, allow_other, noallow_other, suid, nosuid, dev, \
                                 nodev, exec, noexec, noatime, relatime, watch, nowatch, threads=N, timeout=TIME, memory=SIZE, bandwidth=RATE, \
                                 read_bandwidth=RATE, write_bandwidth=RATE, read_ahead, noread_ahead, \
                                 delegations, nodelegations, acl, noacl, idmap, \
                                 cache=FOLDER, cache_size=SIZE, passthrough, nopassthrough, io_uring";
                    let fix = format!("is not an option of a mount: use {known}");
                    return Err(OptionError { option: option.to_owned(), fix });
                }
            }
        }
        if asks_for_delegations && self.mode != Mode::CloseToOpen {
            return Err(OptionError {
                option: "delegations".to_owned(),
                fix: "needs mode=close-to-open: leave one of the two out".to_owned(),
            });
        }
        self.cache.check(self.mode)?;
        self.budgets.check(self.threads)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.mode == Mode::ReadOnly
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> MountSpec {
        let addresses = "127.0.0.1:7440".parse().unwrap();
        MountSpec::new(ClientOptions::new(addresses), PathBuf::from("/mnt"))
    }

    #[test]
    fn options_are_taken_and_wrong_ones_named() {
        let mut spec = spec();
        spec.apply("mode=strict,ro,noexec,threads=3,timeout=1.5m,").unwrap();
        assert_eq!(spec.timeout, Duration::from_secs(90));
        assert_eq!((spec.mode, spec.threads), (Mode::Strict, 3));
        assert!(spec.is_read_only() && spec.noexec && !spec.acl);
        spec.apply("acl").unwrap();
        assert!(spec.acl);
        for (wrong, part) in [
            ("mode=lax", "close-to-open"),
            ("threads=0", "1 to 63"),
            ("timeout=0s", "1s to 1h"),
            ("timeout=2h", "1s to 1h"),
            ("timeout=long", "1s to 1h"),
            ("colour", "is not an option"),
            ("memory=1MiB,threads=16", "16 threads"),
            ("mode=strict,delegations", "close-to-open"),
            ("bandwidth=fast", "use a number of bytes a second"),
        ] {
            let text = spec.clone().apply(wrong).unwrap_err().to_string();
            assert!(text.starts_with("-o ") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn every_mode_has_its_name() {
        for (mode, name) in Mode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
        }
    }
}
