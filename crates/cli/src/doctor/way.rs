//! The way to one node: is it there, how far, how fast, and what does its clock say.

use std::time::Duration;

use millpond_client::Client;
use millpond_env::RealClock;
use millpond_types::GroupId;
use millpond_types::wire::{StatsReply, StatsRequest, Verb};

use crate::admin::remote::Where;

/// Echoes of nothing; the quickest counts, since all else is waiting.
const ECHOES: usize = 5;
/// Echoes of [`LOAD_BYTES`]; the quickest counts.
const LOADS: usize = 4;
/// As many bytes as fit one request well.
const LOAD_BYTES: usize = 4 << 20;
/// Patience with one request.
const REQUEST_MAX: Duration = Duration::from_secs(3);

/// What was measured of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Way {
    /// The address that answered.
    pub(super) address: String,
    /// The quickest way there and back.
    pub(super) round_trip: Duration,
    /// Bytes per second over one connection.
    pub(super) bytes_per_second: u64,
    /// Its clock less the one of this host, in ms.
    pub(super) clock_ms: i64,
    /// How much of [`Self::clock_ms`] the way itself may be, in ms.
    pub(super) clock_error_ms: i64,
    /// Its numbers.
    pub(super) numbers: Vec<(String, u64)>,
}

impl Way {
    /// One of its numbers.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.numbers.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// Measures the way to a server at `address`.
pub(super) fn measure(at: &Where, address: &str) -> anyhow::Result<Way> {
    let client = at.client(address)?;
    // The first one also connects.
    echo(&client, 0)?;
    let round_trip = quickest(ECHOES, || echo(&client, 0))?;
    let load = quickest(LOADS, || echo(&client, LOAD_BYTES))?;
    Ok(Way {
        address: address.to_owned(),
        round_trip,
        bytes_per_second: bytes_per_second(load.saturating_sub(round_trip)),
        ..numbers(&client)?
    })
}

fn quickest(
    times: usize,
    mut measure: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..times {
        best = best.min(measure()?);
    }
    Ok(best)
}

/// What [`LOAD_BYTES`] there and then back come to. A server answers when it has all of them, so the
/// network is used in one direction at a time.
fn bytes_per_second(took: Duration) -> u64 {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    2 * LOAD_BYTES as u64 * 1_000_000 / us
}

fn echo(client: &Client, bytes: usize) -> anyhow::Result<Duration> {
    let load = vec![0xa5; bytes];
    let started = RealClock::tick();
    let back = client.call(Verb::Ping, load, Some(REQUEST_MAX))?;
    let took = RealClock::tick().since(started);
    anyhow::ensure!(
        back.len() == bytes && back.iter().all(|it| *it == 0xa5),
        "the echoed bytes differ"
    );
    Ok(took)
}

/// Its numbers, and its clock against this host's, as F. Cristian, "Probabilistic clock
/// synchronization" (1989): read once, and taken for what it was in the middle of the round trip.
fn numbers(client: &Client) -> anyhow::Result<Way> {
    let request = StatsRequest { namespace: GroupId::SYSTEM }.encode();
    let (started, here) = (RealClock::tick(), RealClock::wall_ms());
    let reply = client.call(Verb::Stats, request, Some(REQUEST_MAX))?;
    let took = RealClock::tick().since(started);
    let numbers = StatsReply::decode(&reply)?.values;
    let there = numbers.iter().find(|(name, _)| name == "unix_ms").map_or(here, |(_, ms)| *ms);
    let half = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
    Ok(Way {
        clock_ms: difference(there, here).saturating_sub(half),
        clock_error_ms: half.saturating_add(1),
        numbers,
        ..Way::default()
    })
}

fn difference(there: u64, here: u64) -> i64 {
    i64::try_from(i128::from(there) - i128::from(here)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{bytes_per_second, difference};

    #[test]
    fn the_speed_counts_both_directions_and_the_clock_has_a_sign() {
        assert_eq!(bytes_per_second(Duration::from_secs(2)), 4 << 20);
        assert!(bytes_per_second(Duration::ZERO) > 1 << 40);
        assert_eq!(difference(5, 9), -4);
        assert_eq!(difference(u64::MAX, 0), i64::MAX);
    }
}
