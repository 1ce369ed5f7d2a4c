//! Which faults there are, and which of them a request meets.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use millpond_env::{RealClock, Rng};
use millpond_types::Tick;
use serde::{Deserialize, Serialize};

/// The longest latency, in milliseconds: ten minutes.
const LATENCY_MS_MAX: u64 = 600_000;

/// What the proxy does to requests. Rates are shares of requests, from 0 to 1; a request meets one of them at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// The n-th request since the faults were set meets the same for the same seed.
    pub seed: u64,
    /// Least and most milliseconds that a request waits before it goes on.
    pub latency_ms: (u64, u64),
    /// Requests per second that pass; what is more is answered 503 `SlowDown`. 0 is no limit.
    pub requests_per_s: f64,
    /// Answered 500 `InternalError`; the backend does not see them.
    pub error_rate: f64,
    /// The connection is reset; the backend does not see them.
    pub reset_rate: f64,
    /// Never answered; the backend does not see them. The connection is reset when the faults are set anew.
    pub hang_rate: f64,
    /// The backend does the work, and the connection is reset instead of an answer.
    pub commit_reset_rate: f64,
    /// The connection is reset in the middle of the answer's body. Answers without one are not touched.
    pub cut_rate: f64,
    /// A bit of the request's body, and of the answer's, is another one than was sent.
    pub flip_rate: f64,
    /// Every request's connection is reset, those under way too.
    pub outage: bool,
    /// Only requests whose path begins so meet faults; an outage meets all.
    pub path_prefix: String,
    /// Only requests of these methods meet faults; none named is all.
    pub methods: Vec<String>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Pass,
    /// 500.
    Error,
    /// The connection is reset before the backend sees it.
    Reset,
    /// No answer.
    Hang,
    /// The connection is reset when the backend has answered.
    CommitReset,
    /// The connection is reset within the answer.
    Cut,
    /// A bit of either body is changed.
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
            return Err(format!("latency_ms is LEAST,MOST with {LATENCY_MS_MAX} at most"));
        }
        if !self.requests_per_s.is_finite() || self.requests_per_s < 0.0 {
            return Err("requests_per_s is 0 or more".to_owned());
        }
        let rates = self.rates().map(|(_, rate)| rate);
        if rates.iter().any(|rate| !(0.0..=1.0).contains(rate)) || rates.iter().sum::<f64>() > 1.0 {
            return Err("rates are from 0 to 1, and so is their sum".to_owned());
        }
        Ok(())
    }

    /// Whether a request of this kind may meet a fault.
    #[must_use]
    pub fn meets(&self, method: &str, path: &str) -> bool {
        let is_method = self.methods.is_empty() || self.methods.iter().any(|one| one == method);
        is_method && path.starts_with(&self.path_prefix)
    }

    /// What becomes of the `number`-th request that may meet faults, and how long it waits before.
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

/// Faults that are set: their limit of requests and how many requests they have met.
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

    /// The number of a request that may meet faults, from 0; `None` when it is above the limit.
    ///
    /// A bucket of tokens: what a tenth of a second brings may come at once, one at least.
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
