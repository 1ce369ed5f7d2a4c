//! A cache with single flight. Many requests need the same value at the same moment. When each of
//! them asked the volume for an expired value, 256 clients caused 256 threads and connections every
//! second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// Values by name, each cached for a limited time and requested by one caller for all.
pub(crate) struct Lately<T> {
    believed: Duration,
    names_max: usize,
    known: Mutex<HashMap<String, Known<T>>>,
}

/// None when the request returned an error, which is not cached.
type Cell<T> = Arc<OnceCell<Option<T>>>;

struct Known<T> {
    /// A time before the request was sent.
    at: Tick,
    cell: Cell<T>,
}

impl<T: Clone> Lately<T> {
    pub(crate) fn new(believed: Duration, names_max: usize) -> Self {
        Self { believed, names_max, known: Mutex::default() }
    }

    /// The value of `name`, from `ask` unless cached. The caller that runs `ask` gets its error;
    /// the other callers then run their own.
    ///
    /// # Errors
    /// Those of `ask`, which are not cached.
    pub(crate) async fn get<E>(
        &self,
        name: &str,
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let cell = self.cell(name);
        let (mut ask, mut failed) = (Some(ask), None);
        let asking = async {
            match ask.take()?.await {
                Ok(value) => Some(value),
                Err(error) => {
                    failed = Some(error);
                    // Before the other callers see it: a caller that comes now asks again.
                    self.forget(name, Some(&cell));
                    None
                }
            }
        };
        if let Some(value) = cell.get_or_init(|| asking).await {
            return Ok(value.clone());
        }
        match (failed, ask) {
            (Some(error), _) => Err(error),
            (None, Some(ask)) => ask.await,
            (None, None) => unreachable!("every caller gets an answer"),
        }
    }

    /// Drops the value of `name`, which has changed.
    pub(crate) fn changed(&self, name: &str) {
        self.forget(name, None);
    }

    fn is_believed(&self, known: &Known<T>) -> bool {
        RealClock::tick().since(known.at) < self.believed
    }

    fn cell(&self, name: &str) -> Cell<T> {
        let mut all = self.known.lock();
        if let Some(known) = all.get(name)
            && self.is_believed(known)
        {
            return Arc::clone(&known.cell);
        }
        if all.len() >= self.names_max {
            all.clear();
        }
        let cell = Cell::default();
        let known = Known { at: RealClock::tick(), cell: Arc::clone(&cell) };
        all.insert(name.to_owned(), known);
        cell
    }

    fn forget(&self, name: &str, only: Option<&Cell<T>>) {
        let mut all = self.known.lock();
        let is_it = |known: &Known<T>| only.is_none_or(|cell| Arc::ptr_eq(&known.cell, cell));
        if all.get(name).is_some_and(is_it) {
            all.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    async fn asked(
        lately: &Lately<u32>,
        asked: &AtomicU32,
        told: Result<u32, ()>,
    ) -> Result<u32, ()> {
        let ask = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            asked.fetch_add(1, Ordering::SeqCst);
            told
        };
        lately.get("name", ask).await
    }

    #[tokio::test]
    async fn one_asks_for_all() {
        let (lately, times) = (Lately::new(LONG, 8), AtomicU32::new(0));
        let all = (0..100).map(|_| asked(&lately, &times, Ok(7)));
        assert_eq!(futures_util::future::join_all(all).await, [Ok(7); 100]);
        assert_eq!(asked(&lately, &times, Ok(8)).await, Ok(7));
        assert_eq!(times.load(Ordering::SeqCst), 1);
        lately.changed("name");
        assert_eq!(asked(&lately, &times, Ok(8)).await, Ok(8));
        assert_eq!(times.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn nobody_waits_for_another_ones_failures_twice() {
        let (lately, times) = (Lately::new(LONG, 8), AtomicU32::new(0));
        let all = (0..100).map(|_| asked(&lately, &times, Err(())));
        let start = RealClock::tick();
        assert_eq!(futures_util::future::join_all(all).await, [Err(()); 100]);
        assert!(
            RealClock::tick().since(start) < Duration::from_secs(1),
            "two rounds, not a hundred"
        );
        assert_eq!(times.load(Ordering::SeqCst), 100);
        assert_eq!(asked(&lately, &times, Ok(1)).await, Ok(1), "an error is not remembered");
    }

    #[tokio::test]
    async fn who_gives_up_is_followed_by_the_next() {
        let (lately, times) = (Lately::new(LONG, 8), AtomicU32::new(0));
        let first = tokio::time::timeout(Duration::from_millis(5), asked(&lately, &times, Ok(1)));
        let (first, second) = tokio::join!(first, asked(&lately, &times, Ok(2)));
        assert!(first.is_err());
        assert_eq!(second, Ok(2));
    }

    #[tokio::test]
    async fn what_is_old_is_asked_for_again() {
        let (lately, times) = (Lately::new(Duration::ZERO, 8), AtomicU32::new(0));
        assert_eq!(asked(&lately, &times, Ok(1)).await, Ok(1));
        assert_eq!(asked(&lately, &times, Ok(2)).await, Ok(2));
    }
}
