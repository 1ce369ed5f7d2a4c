//! Timers of one core.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millpond_types::Tick;

use super::core::{Core, current};
use crate::clock::RealClock;

/// Wakers by deadline. A tree instead of a wheel: request deadlines are mostly dropped unfired, and
/// a tree forgets them at once, at the same cost for every distance.
#[derive(Default)]
pub(super) struct Timers {
    by_deadline: BTreeMap<(Tick, u64), Waker>,
    last_id: u64,
}

impl Timers {
    fn insert(&mut self, deadline: Tick, waker: Waker) -> u64 {
        self.last_id += 1;
        self.by_deadline.insert((deadline, self.last_id), waker);
        self.last_id
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_deadline.is_empty()
    }

    pub(super) fn next(&self) -> Option<Tick> {
        self.by_deadline.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    pub(super) fn pop_due(&mut self, now: Tick) -> Option<Waker> {
        if self.next()? > now {
            return None;
        }
        self.by_deadline.pop_first().map(|(_, waker)| waker)
    }
}

/// Waits for a point in time. Dropping it removes the timer.
pub struct Sleep {
    deadline: Tick,
    armed: Option<(Rc<Core>, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if RealClock::tick() >= self.deadline {
            return Poll::Ready(());
        }
        let deadline = self.deadline;
        if let Some((core, id)) = &self.armed {
            let mut timers = core.timers.borrow_mut();
            if let Some(waker) = timers.by_deadline.get_mut(&(deadline, *id)) {
                if !waker.will_wake(context.waker()) {
                    let replaced = std::mem::replace(waker, context.waker().clone());
                    drop(timers);
                    drop(replaced);
                }
                return Poll::Pending;
            }
        }
        let core = current();
        let id = core.timers.borrow_mut().insert(deadline, context.waker().clone());
        self.armed = Some((core, id));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((core, id)) = self.armed.take() {
            let waker = core.timers.borrow_mut().by_deadline.remove(&(self.deadline, id));
            drop(waker);
        }
    }
}

/// Waits for `duration`.
#[must_use = "futures do nothing unless awaited"]
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(RealClock::tick().plus(duration))
}

/// Waits until `deadline` on [`RealClock`].
#[must_use = "futures do nothing unless awaited"]
pub const fn sleep_until(deadline: Tick) -> Sleep {
    Sleep { deadline, armed: None }
}

/// The time was up before the future finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time for this operation was up")]
pub struct Elapsed;

/// Runs `future` for at most `duration`; when the time is up it is dropped.
///
/// # Errors
/// [`Elapsed`] when the time was up first.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(duration));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    })
    .await
}

/// Lets the other ready tasks and the driver have a turn.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
