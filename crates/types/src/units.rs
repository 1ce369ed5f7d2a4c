//! Time and sizes as types, so that seconds never meet bytes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A point on a monotonic clock, in microseconds since the clock's own start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tick(pub u64);

impl Tick {
    /// The end of time: never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// The tick `after` from here, saturating.
    #[must_use]
    pub fn plus(self, after: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(after.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this tick; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Wall-clock seconds since 1970-01-01 UTC; used for expiry that must survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixSeconds(pub u32);

/// A date and a time of day in UTC, without leap seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are named by what they are")]
pub struct Utc {
    pub year: u64,
    /// From 1.
    pub month: u64,
    /// From 1.
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Utc {
    /// The date of a number of seconds since 1970. Days to date: H. Hinnant, "chrono-compatible
    /// low-level date algorithms", `civil_from_days`.
    #[must_use]
    pub const fn of_unix_seconds(seconds: u64) -> Self {
        let (days, time) = (seconds / 86_400, seconds % 86_400);
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
        let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
        let year = era * 400 + year_of_era + (month <= 2) as u64;
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        Self { year, month, day, hour, minute, second }
    }
}

/// A number of bytes, written as `4096`, `64KiB`, `1.5 GiB` or `10GB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

const SIZE_UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
];

/// A text that is no size or duration; the message shows the accepted forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a byte size.
    #[error("'{0}' is not a size: write a number and a unit, such as 4096, 64KiB, 1.5GiB or 10GB")]
    Size(String),
    /// Not a duration.
    #[error(
        "'{0}' is not a duration: write a number and a unit, such as 200us, 50ms, 2s, 10m or 24h"
    )]
    Duration(String),
}

fn split_number(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

impl FromStr for ByteSize {
    type Err = UnitError;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the product is checked to lie within u64 before the cast"
    )]
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || UnitError::Size(text.to_owned());
        let (number, unit) = split_number(text).ok_or_else(bad)?;
        let factor = if unit.is_empty() {
            1
        } else {
            SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1
        };
        let bytes = number * factor as f64;
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(bad());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    #[expect(clippy::cast_precision_loss, reason = "shown to two digits only")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (name, step) in STEPS {
            if self.0 >= step {
                let whole = self.0 / step;
                return if self.0.is_multiple_of(step) {
                    write!(f, "{whole} {name}")
                } else {
                    write!(f, "{:.2} {name}", self.0 as f64 / step as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Parses a duration such as `200us`, `50ms`, `2s`, `10m` or `24h`.
///
/// # Errors
/// [`UnitError::Duration`] showing the accepted forms.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let bad = || UnitError::Duration(text.to_owned());
    let (number, unit) = split_number(text).ok_or_else(bad)?;
    let seconds = match unit.as_str() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(bad()),
    } * number;
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        for (text, bytes) in
            [("4096", 4096), ("64KiB", 65536), ("1.5 GiB", 3 << 29), ("10GB", 10_000_000_000)]
        {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "x", "1 XB", "-5", "1e400", "9999999999TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize::gib(2).to_string(), "2 GiB");
        assert_eq!(ByteSize(1_572_864).to_string(), "1.50 MiB");
    }

    #[test]
    fn durations_parse() {
        assert_eq!(parse_duration("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(parse_duration("5").is_err());
        assert!(parse_duration("5 weeks").is_err());
    }
}
