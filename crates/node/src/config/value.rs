//! Notation of sizes, durations and choices in the file and on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millpond_types::ByteSize;
use millpond_types::units::parse_duration;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Form of a setting's value, as the reference shows it.
pub trait Kind {
    /// The word for it.
    const KIND: &'static str;
}

macro_rules! kind {
    ($($ty:ty => $text:literal),* $(,)?) => { $(impl Kind for $ty { const KIND: &'static str = $text; })* };
}

kind! {
    bool => "true or false",
    u32 => "number",
    u64 => "number",
    usize => "number",
    String => "text",
    Vec<String> => "list of texts",
    Option<String> => "text, optional",
    Option<Size> => "size, optional",
    Option<u32> => "number, optional",
    Size => "size",
    Span => "duration",
    Io => "`auto`, `uring` or `threads`",
    LogFormat => "`text` or `json`",
}

/// A number of bytes, written `4096`, `64KiB`, `1.5GiB` or `10GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub ByteSize);

impl Size {
    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0.0
    }
}

impl FromStr for Size {
    type Err = millpond_types::units::UnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A length of time, written `200us`, `50ms`, `2s`, `10m` or `24h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = millpond_types::units::UnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_duration(text).map(Self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        for (unit, length) in [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)] {
            if us >= length && us.is_multiple_of(length) {
                return write!(f, "{}{unit}", us / length);
            }
        }
        if us.is_multiple_of(1000) { write!(f, "{}ms", us / 1000) } else { write!(f, "{us}us") }
    }
}

/// Backend of disk and network I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// `io_uring` where the kernel allows it, else threads.
    #[default]
    Auto,
    /// `io_uring` only; the server does not start without it.
    Uring,
    /// `epoll` and a thread pool.
    Threads,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

macro_rules! text_serde {
    ($ty:ty) => {
        impl Serialize for $ty {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&self.to_string().replace(' ', ""))
            }
        }
        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}
text_serde!(Size);
text_serde!(Span);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_what_they_parse() {
        for text in ["200us", "50ms", "2s", "10m", "24h", "90s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
    }
}
