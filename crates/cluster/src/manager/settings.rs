//! The cluster's configuration: its settings and their meaning.

use std::time::Duration;

use millpond_types::cluster::ConfigRecord;
use millpond_types::units::{ByteSize, parse_duration};

/// A setting of the whole cluster, changed by `millpond admin set` and sent to every node.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its value when it is not set.
    pub default: &'static str,
    /// Its effect.
    pub help: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch,
    Count { min: u32, max: u32 },
    Time,
    Rate,
}

/// All settings. Unknown names are refused, so that a typo is noticed.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "rebalance.paused",
        default: "false",
        help: "start no new moves; running moves finish",
        kind: Kind::Switch,
    },
    Setting {
        name: "rebalance.moves_max",
        default: "128",
        help: "replicas that move at once, in the whole cluster",
        kind: Kind::Count { min: 1, max: 4096 },
    },
    Setting {
        name: "rebalance.moves_per_disk",
        default: "8",
        help: "replicas that move at once to or from one disk",
        kind: Kind::Count { min: 1, max: 64 },
    },
    Setting {
        name: "rebalance.slots_max",
        default: "64",
        help: "slots that move at once, in the whole cluster",
        kind: Kind::Count { min: 1, max: 4096 },
    },
    Setting {
        name: "rebalance.bytes_per_second",
        default: "256MiB",
        help: "bytes per second that a node sends, and receives, to move and resync replicas",
        kind: Kind::Rate,
    },
    Setting {
        name: "repair.after",
        default: "15m",
        help: "time that a disk may be away before its data is rebuilt elsewhere",
        kind: Kind::Time,
    },
];

/// The settings that the manager itself uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) paused: bool,
    pub(crate) moves_max: usize,
    pub(crate) moves_per_disk: usize,
    pub(crate) slots_max: usize,
    pub(crate) repair_after: Duration,
}

/// Checks a value before it is stored.
///
/// # Errors
/// A text for the operator, naming the accepted values.
pub(crate) fn check(name: &str, value: &str) -> Result<(), String> {
    let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        return Err(format!("no setting '{name}'; the settings are {}", names.join(", ")));
    };
    match setting.kind {
        Kind::Switch if value.parse::<bool>().is_err() => {
            Err(format!("'{name}' must be true or false, not '{value}'"))
        }
        Kind::Count { min, max } if !value.parse().is_ok_and(|n| (min..=max).contains(&n)) => {
            Err(format!("'{name}' must be a number from {min} to {max}, not '{value}'"))
        }
        Kind::Time => parse_duration(value).map(|_| ()).map_err(|error| error.to_string()),
        Kind::Rate => value.parse::<ByteSize>().map(|_| ()).map_err(|error| error.to_string()),
        Kind::Switch | Kind::Count { .. } => Ok(()),
    }
}

/// The value of a setting, or its default.
#[must_use]
pub fn setting<'a>(config: &'a ConfigRecord, name: &str) -> Option<&'a str> {
    let known = SETTINGS.iter().find(|setting| setting.name == name)?;
    Some(config.values.get(name).map_or(known.default, String::as_str))
}

impl Rules {
    /// Values that do not parse (written by a newer version) count as the default.
    pub(crate) fn of(config: &ConfigRecord) -> Self {
        let default = ConfigRecord::default();
        let number = |name| {
            let parsed = |config| setting(config, name)?.parse().ok();
            parsed(config).or_else(|| parsed(&default)).unwrap_or(1)
        };
        Self {
            paused: setting(config, "rebalance.paused") == Some("true"),
            moves_max: number("rebalance.moves_max"),
            moves_per_disk: number("rebalance.moves_per_disk"),
            slots_max: number("rebalance.slots_max"),
            repair_after: setting(config, "repair.after")
                .and_then(|value| parse_duration(value).ok())
                .unwrap_or(Duration::from_mins(15)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millpond_types::cluster::ConfigRecord;

    use super::{Rules, SETTINGS, check};

    #[test]
    fn defaults_are_acceptable_and_nonsense_is_not() {
        for setting in SETTINGS {
            assert_eq!(check(setting.name, setting.default), Ok(()), "{}", setting.name);
            assert!(check(setting.name, "banana").is_err(), "{}", setting.name);
        }
        assert!(check("rebalance.paws", "true").unwrap_err().contains("rebalance.paused"));
        assert!(check("rebalance.moves_max", "0").is_err());
        let mut config = ConfigRecord::default();
        assert_eq!(Rules::of(&config).repair_after, Duration::from_mins(15));
        config.values.insert("repair.after".to_owned(), "5s".to_owned());
        config.values.insert("rebalance.moves_max".to_owned(), "from the future".to_owned());
        assert_eq!(Rules::of(&config).repair_after, Duration::from_secs(5));
        assert_eq!(Rules::of(&config).moves_max, 128);
    }
}
