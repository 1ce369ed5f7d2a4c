//! The kinds of faults, and the choice of a fault for each request.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use millpond_env::{RealClock, Rng};
use millpond_types::Tick;
use serde::{Deserialize, Serialize};

/// The longest latency, in milliseconds: ten minutes.
const LATENCY_MS_MAX: u64 = 600_000;

/// Faults of the proxy. Rates are shares of requests, from 0 to 1; a request meets at most one
/// fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Seed: the n-th request since the faults were set always meets the same fault for the same
    /// seed.
    pub seed: u64,
    /// Minimum and maximum of a request's delay, in milliseconds.
    pub latency_ms: (u64, u64),
    /// Requests per second that pass; the excess is answered with 503 `SlowDown`. 0 is no limit.
    pub requests_per_s: f64,
    /// Requests answered with 500 `InternalError`; the backend does not see them.
    pub error_rate: f64,
    /// Requests with a connection reset; the backend does not see them.
    pub reset_rate: f64,
    /// Requests without an answer; the backend does not see them. Setting the faults again resets
    /// the connection.
    pub hang_rate: f64,
    /// Requests that the backend executes, with a connection reset instead of the answer.
    pub commit_reset_rate: f64,
    /// Connection resets in the middle of the answer's body. Answers without a body are not
    /// affected.
    pub cut_rate: f64,
    /// Requests with one inverted bit in the request body, and one in the answer body.
    pub flip_rate: f64,
    /// Resets the connection of every request, including requests in flight.
    pub outage: bool,
    /// Only requests with this path prefix meet faults; an outage affects all.
    pub path_prefix: String,
    /// Only requests with these methods meet faults; an empty list means all.
    pub methods: Vec<String>,
}

/// The treatment of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is forwarded.
    Pass,
    /// It is answered with 500.
    Error,
    /// The connection is reset before the backend sees it.
    Reset,
    /// It is never answered.
    Hang,
    /// The connection is reset once the backend has answered.
    CommitReset,
    /// The connection is reset within the answer.
    Cut,
    /// One bit of each body is inverted.
    Flip,
}

impl Faults {
    fn rates(&self) -> [(Fate, f64); 6] {
        [
            (Fate::Error, self.error_rate),
            (Fate::Reset, self.reset_rate),
            (Fate::Hang, self.hang_rate),
            (Fate::CommitReset, self.commit_reset_rate),
            (Fate::Cut, self.cut_rate),
            (Fate::Flip, self.flip_rate),
        ]
    }

    fn validate(&self) -> Result<(), String> {
        let (least, most) = self.latency_ms;
        if least > most || most > LATENCY_MS_MAX {
            return Err(format!("latency_ms must be LEAST,MOST with at most {LATENCY_MS_MAX}"));
        }
        if !self.requests_per_s.is_finite() || self.requests_per_s < 0.0 {
            return Err("requests_per_s must be 0 or more".to_owned());
        }
        let rates = self.rates().map(|(_, rate)| rate);
        if rates.iter().any(|rate| !(0.0..=1.0).contains(rate)) || rates.iter().sum::<f64>() > 1.0 {
            return Err("rates and their sum must be from 0 to 1".to_owned());
        }
        Ok(())
    }

    /// Whether a request of this kind may meet a fault.
    #[must_use]
    pub fn meets(&self, method: &str, path: &str) -> bool {
        let is_method = self.methods.is_empty() || self.methods.iter().any(|one| one == method);
        is_method && path.starts_with(&self.path_prefix)
    }

    /// The fate of the `number`-th request that may meet faults, and its delay before it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
    pub fn decide(&self, number: u64) -> (Fate, Duration) {
        let mut rng = Rng::with_stream(self.seed, number);
        let (least, most) = self.latency_ms;
        let wait = Duration::from_millis(least + rng.below(most - least + 1));
        let mut draw = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        for (fate, rate) in self.rates() {
            if draw < rate {
                return (fate, wait);
            }
            draw -= rate;
        }
        (Fate::Pass, wait)
    }
}

/// The faults in effect, the state of their rate limit, and the number of requests so far.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) faults: Faults,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    met: u64,
    tokens: f64,
    filled: Tick,
}

impl Active {
    pub(super) fn new(faults: Faults) -> Result<Self, String> {
        faults.validate()?;
        let state = State { met: 0, tokens: 1.0, filled: RealClock::tick() };
        Ok(Self { faults, state: Mutex::new(state) })
    }

    /// Counts a request that may meet faults, and returns its number from 0; `None` above the
    /// limit.
    ///
    /// Token bucket: the burst is the requests of a tenth of a second, one at least.
    pub(super) fn admit(&self, now: Tick) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = self.faults.requests_per_s;
        if rate > 0.0 {
            let brought = now.since(state.filled).as_secs_f64() * rate;
            state.filled = now;
            state.tokens = (state.tokens + brought).min((rate / 10.0).max(1.0));
            if state.tokens < 1.0 {
                return None;
            }
            state.tokens -= 1.0;
        }
        state.met += 1;
        Some(state.met - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millpond_env::RealClock;

    use super::{Active, Fate, Faults};

    #[test]
    fn a_seed_decides_and_shares_are_kept() {
        let faults = Faults {
            seed: 7,
            latency_ms: (30, 70),
            error_rate: 0.1,
            commit_reset_rate: 0.2,
            ..Faults::default()
        };
        let fates: Vec<_> = (0..10_000).map(|number| faults.decide(number)).collect();
        let again: Vec<_> = (0..10_000).map(|number| faults.clone().decide(number)).collect();
        assert_eq!(fates, again);
        let other = Faults { seed: 8, ..faults };
        assert_ne!(fates, (0..10_000).map(|number| other.decide(number)).collect::<Vec<_>>());
        let share = |fate| fates.iter().filter(|(one, _)| *one == fate).count();
        assert!((900..1100).contains(&share(Fate::Error)), "{}", share(Fate::Error));
        assert!((1850..2150).contains(&share(Fate::CommitReset)), "{}", share(Fate::CommitReset));
        assert_eq!(share(Fate::Hang) + share(Fate::Reset) + share(Fate::Cut), 0);
        let waits = fates.iter().map(|(_, wait)| wait.as_millis());
        assert_eq!((waits.clone().min(), waits.max()), (Some(30), Some(70)));
    }

    #[test]
    fn the_limit_lets_through_what_time_brings() {
        let faults = Faults { requests_per_s: 100.0, ..Faults::default() };
        let active = Active::new(faults).unwrap();
        let start = RealClock::tick();
        let passed = (0..3000u64)
            .filter(|at| active.admit(start.plus(Duration::from_millis(*at))).is_some())
            .count();
        assert!((295..=312).contains(&passed), "{passed} in 3 s");
    }

    #[test]
    fn faults_without_sense_are_refused() {
        let bad = [
            Faults { latency_ms: (70, 30), ..Faults::default() },
            Faults { error_rate: 0.6, reset_rate: 0.6, ..Faults::default() },
            Faults { hang_rate: -0.1, ..Faults::default() },
            Faults { requests_per_s: f64::NAN, ..Faults::default() },
        ];
        for faults in bad {
            assert!(Active::new(faults.clone()).is_err(), "{faults:?}");
        }
        assert!(serde_json::from_str::<Faults>(r#"{"eror_rate":0.5}"#).is_err());
    }

    #[test]
    fn only_what_is_named_meets_faults() {
        let faults = Faults {
            path_prefix: "/b/p".to_owned(),
            methods: vec!["PUT".to_owned()],
            ..Faults::default()
        };
        assert!(faults.meets("PUT", "/b/p1"));
        assert!(!faults.meets("GET", "/b/p1"));
        assert!(!faults.meets("PUT", "/b/q"));
        assert!(Faults::default().meets("GET", "/"));
    }
}
