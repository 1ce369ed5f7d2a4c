//! Pace of requests to a backend. A window of requests in flight grows with successes and halves
//! when the backend is overloaded (AIMD with slow start, as TCP Reno); a ceiling bounds the
//! requests per second; and pauses have full jitter (Brooker, "Exponential Backoff And Jitter").

use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, Rng};
use millpond_types::Tick;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::store::{Fault, Kind};

/// Lanes of the queue: small objects, and large ones.
pub(crate) const LANES: usize = 2;
/// Initial size of the window.
const FIRST: f64 = 4.0;
/// Minimum size of the window: each lane can always have one request in flight.
const LEAST: f64 = 2.0;
/// The first pause after a failure, and the longest one.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_mins(1)];
/// Consecutive failures, without a success between, that are attributed to single requests.
const FAILURES: u32 = 4;
/// The longest pause of all requests to a backend: its recovery is noticed within this time.
const HELD_MAX: Duration = Duration::from_secs(10);

/// A pause of random length after the `attempts`-th consecutive failure (from 1).
pub(crate) fn pause(attempts: u32, most: Duration, rng: &mut Rng) -> Duration {
    let doubled = PAUSE[0].saturating_mul(1 << attempts.saturating_sub(1).min(20));
    let us = u64::try_from(doubled.min(most).as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(rng.below(us.saturating_add(1)))
}

/// A window of requests in flight.
#[derive(Debug)]
struct Window {
    size: f64,
    /// Below it the window grows by one per success, above it by one per window of successes.
    threshold: f64,
    most: f64,
    cut_at: Tick,
}

impl Window {
    fn new(most: u32) -> Self {
        let most = f64::from(most);
        Self { size: FIRST.min(most), threshold: most, most, cut_at: Tick::default() }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 1,024")]
    const fn size(&self) -> u32 {
        self.size as u32
    }

    fn succeeded(&mut self) {
        let more = if self.size < self.threshold { 1.0 } else { 1.0 / self.size };
        self.size = (self.size + more).min(self.most);
    }

    /// Halves the window, once per window of requests: a request that began before the last cut
    /// carries no new information.
    fn congested(&mut self, began: Tick, now: Tick) {
        if began < self.cut_at {
            return;
        }
        self.size = (self.size / 2.0).max(LEAST.min(self.most));
        self.threshold = self.size;
        self.cut_at = now;
    }
}

/// State of the pace of a backend.
struct State {
    window: Window,
    /// Requests in flight by lane.
    busy: [u32; LANES],
    /// Waiting requests by lane.
    waiting: [u32; LANES],
    /// Claimed keys by lane.
    seats: [u32; LANES],
    /// Consecutive failed requests.
    failures: u32,
    held_until: Tick,
    /// When the next request may begin, if there is a ceiling.
    next: Tick,
    rng: Rng,
}

impl State {
    /// Requests that a lane may have in flight. Large objects get at most half of the window, so
    /// that small ones need not wait for them. Small ones leave that half free while large ones
    /// want it.
    fn room(&self, lane: usize) -> u32 {
        let (all, half) = (self.window.size(), self.window.size() / 2);
        let other_wants = self.busy[1] + self.waiting[1] + self.seats[1] > 0;
        match lane {
            0 if !other_wants => all,
            0 => all - half,
            _ => half.max(1),
        }
    }

    fn may_begin(&self, lane: usize) -> bool {
        let under_way = self.busy[0] + self.busy[1];
        self.busy[lane] < self.room(lane) && under_way < self.window.size()
    }

    /// How long a request waits for the ceiling of requests per second; takes its turn.
    fn turn(&mut self, per_s: u32, now: Tick) -> Duration {
        if per_s == 0 {
            return Duration::ZERO;
        }
        let turn = self.next.max(now);
        self.next = turn.plus(Duration::from_secs(1) / per_s);
        turn.since(now)
    }
}

/// The pace of one backend, for all writes of a gateway to it.
pub(crate) struct Pace {
    per_s: u32,
    state: Mutex<State>,
    freed: Notify,
}

/// The place of a claimed key among the running jobs.
pub(crate) struct Seat {
    pace: Arc<Pace>,
    lane: usize,
}

/// The right to have a request in flight.
pub(crate) struct Permit {
    pace: Arc<Pace>,
    lane: usize,
    began: Tick,
}

/// Counts a waiting request.
struct Waiting<'a>(&'a Pace, usize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting[self.1] -= 1;
    }
}

impl Pace {
    /// A pace with at most `most` requests in flight and `per_s` requests a second; 0 for no limit.
    pub(crate) fn new(most: u32, per_s: u32) -> Self {
        let seed = RealClock::wall_ms();
        let state = State {
            window: Window::new(most),
            busy: [0; LANES],
            waiting: [0; LANES],
            seats: [0; LANES],
            failures: 0,
            held_until: Tick::default(),
            next: Tick::default(),
            rng: Rng::from_os().unwrap_or_else(|_| Rng::new(seed)),
        };
        Self { per_s, state: Mutex::new(state), freed: Notify::new() }
    }

    /// The size of the window in requests.
    pub(crate) fn window(&self) -> u32 {
        self.state.lock().window.size()
    }

    /// A pause after the `attempts`-th consecutive failure of one key.
    pub(crate) fn pause(&self, attempts: u32) -> Duration {
        pause(attempts, PAUSE[1], &mut self.state.lock().rng)
    }

    /// Waits until keys of a lane may be claimed, and returns how many.
    pub(crate) async fn vacancies(&self, lane: usize) -> u32 {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let (free, held) = {
                let state = self.state.lock();
                let free = state.room(lane).saturating_sub(state.seats[lane]);
                (free, state.held_until.since(RealClock::tick()))
            };
            if !held.is_zero() {
                sleep(held).await;
            } else if free > 0 {
                return free;
            } else {
                freed.await;
            }
        }
    }

    /// A place for a claimed key.
    pub(crate) fn seat(self: &Arc<Self>, lane: usize) -> Seat {
        self.state.lock().seats[lane] += 1;
        Seat { pace: Arc::clone(self), lane }
    }

    /// Waits until a request may begin.
    pub(crate) async fn permit(self: &Arc<Self>, lane: usize) -> Permit {
        self.state.lock().waiting[lane] += 1;
        let waiting = Waiting(self, lane);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let (permit, wait) = self.begin(lane);
            if let Some(mut permit) = permit {
                drop(waiting);
                if !wait.is_zero() {
                    sleep(wait).await;
                }
                permit.began = RealClock::tick();
                return permit;
            }
            if wait.is_zero() {
                freed.await;
            } else {
                sleep(wait).await;
            }
        }
    }

    fn begin(self: &Arc<Self>, lane: usize) -> (Option<Permit>, Duration) {
        let now = RealClock::tick();
        let mut state = self.state.lock();
        let held = state.held_until.since(now);
        if !held.is_zero() {
            return (None, held);
        }
        if !state.may_begin(lane) {
            return (None, Duration::ZERO);
        }
        state.busy[lane] += 1;
        let wait = state.turn(self.per_s, now);
        (Some(Permit { pace: Arc::clone(self), lane, began: now }), wait)
    }

    fn ended(&self, failed: Option<&Fault>, began: Tick) {
        let now = RealClock::tick();
        let mut state = self.state.lock();
        let state = &mut *state;
        match failed {
            Some(fault)
                if matches!(fault.kind, Kind::Unreachable | Kind::SlowDown | Kind::Unknown) =>
            {
                if fault.is_congested {
                    state.window.congested(began, now);
                }
                state.failures = state.failures.saturating_add(1);
                if let Some(many) = state.failures.checked_sub(FAILURES) {
                    let held = now.plus(pause(many + 1, HELD_MAX, &mut state.rng));
                    state.held_until = state.held_until.max(held);
                }
            }
            // A refusal is an answer: the backend works, but it says nothing about its load.
            Some(_) => state.failures = 0,
            None => {
                state.failures = 0;
                state.window.succeeded();
            }
        }
    }
}

impl Permit {
    /// Records the end of the request.
    pub(crate) fn ended<T>(self, done: &Result<T, Fault>) {
        self.pace.ended(done.as_ref().err(), self.began);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.pace.state.lock().busy[self.lane] -= 1;
        self.pace.freed.notify_waiters();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pace.state.lock().seats[self.lane] -= 1;
        self.pace.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: Kind, is_congested: bool) -> Fault {
        Fault { kind, is_congested, text: String::new() }
    }

    #[test]
    fn the_window_grows_slowly_behind_a_cut_and_is_cut_once() {
        let mut window = Window::new(64);
        (0..200).for_each(|_| window.succeeded());
        assert_eq!(window.size(), 64);
        let (began, now) = (
            Tick::default().plus(Duration::from_secs(1)),
            Tick::default().plus(Duration::from_secs(2)),
        );
        window.congested(began, now);
        window.congested(began, now);
        assert_eq!(window.size(), 32);
        (0..34).for_each(|_| window.succeeded());
        assert_eq!(window.size(), 33);
        for second in 3..20 {
            let now = Tick::default().plus(Duration::from_secs(second));
            window.congested(now, now);
        }
        assert_eq!(window.size(), 2);
        assert_eq!(Window::new(1).size(), 1);
    }

    #[test]
    fn pauses_double_and_have_an_end() {
        let mut rng = Rng::new(7);
        for attempts in [1, 2, 5, 10, 40, u32::MAX] {
            let most = PAUSE[0].saturating_mul(1 << (attempts - 1).min(20)).min(PAUSE[1]);
            let drawn: Vec<_> = (0..200).map(|_| pause(attempts, PAUSE[1], &mut rng)).collect();
            assert!(drawn.iter().all(|wait| *wait <= most), "{attempts}");
            assert!(
                drawn.iter().any(|wait| *wait > most / 2)
                    && drawn.iter().any(|wait| *wait < most / 2)
            );
        }
    }

    #[test]
    fn large_objects_leave_room_for_small_ones() {
        let pace = Arc::new(Pace::new(8, 0));
        (0..8).for_each(|_| pace.ended(None, Tick::default()));
        let take = |lane| pace.begin(lane).0;
        let large: Vec<_> = (0..8).map_while(|_| take(1)).collect();
        assert_eq!(large.len(), 4);
        let small: Vec<_> = (0..8).map_while(|_| take(0)).collect();
        assert_eq!(small.len(), 4);
        drop(large);
        assert_eq!((0..8).map_while(|_| take(0)).collect::<Vec<_>>().len(), 4);
    }

    #[test]
    fn a_backend_that_fails_again_and_again_is_left_alone_for_a_while() {
        let pace = Arc::new(Pace::new(8, 0));
        let down = fault(Kind::Unreachable, false);
        (0..3).for_each(|_| pace.ended(Some(&down), Tick::default()));
        assert!(pace.begin(0).0.is_some());
        (0..30).for_each(|_| pace.ended(Some(&down), Tick::default()));
        let (permit, wait) = pace.begin(0);
        assert!(permit.is_none() && wait > Duration::ZERO && wait <= HELD_MAX);
        // The number of requests was not the problem.
        assert_eq!(pace.window(), 4);
        pace.ended(Some(&fault(Kind::SlowDown, true)), RealClock::tick());
        assert_eq!(pace.window(), 2);
    }

    #[test]
    fn a_ceiling_spaces_requests() {
        let pace = Pace::new(8, 10);
        let now = RealClock::tick();
        let mut state = pace.state.lock();
        let waits: Vec<_> = (0..3).map(|_| state.turn(10, now).as_millis()).collect();
        assert_eq!(waits, [0, 100, 200]);
    }
}
