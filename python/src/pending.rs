//! A batch that was submitted, for Python.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{ClientError, Pending as Submitted};
use millpond_env::{Mutex, OfProcess, RealClock};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::Piece;
use crate::errors::raise;
use crate::files::sums;

/// Longest wait between two checks for signals, so that Ctrl-C ends a wait.
const LOOK: Duration = Duration::from_millis(50);

/// The result of a batch: for a read the bytes of each range.
type Outcome = Arc<Result<Option<Vec<usize>>, ClientError>>;

enum State {
    /// A read, and how many pieces each of its ranges has.
    Reads(Submitted<Vec<(usize, Piece)>>, Vec<usize>),
    Writes(Submitted<Vec<Piece>>),
    Done(Outcome),
}

/// A submitted batch. It runs to its end even if nobody waits for it.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct Pending {
    /// Only locked without the interpreter lock, which the end of a batch needs for its memory. A
    /// forked child cannot use it: a thread that does not exist there may hold it.
    state: OfProcess<Mutex<State>>,
}

impl State {
    fn wait(&mut self, time: Duration) -> Option<Outcome> {
        let outcome = match self {
            Self::Done(outcome) => return Some(Arc::clone(outcome)),
            Self::Reads(reads, each) => reads.wait_for(time)?.map(|done| {
                let lens: Vec<usize> = done.iter().map(|(len, _)| *len).collect();
                Some(sums(&lens, each))
            }),
            Self::Writes(writes) => writes.wait_for(time)?.map(|_| None),
        };
        let outcome = Arc::new(outcome);
        *self = Self::Done(Arc::clone(&outcome));
        Some(outcome)
    }
}

impl Pending {
    pub(crate) fn reads(submitted: Submitted<Vec<(usize, Piece)>>, each: Vec<usize>) -> Self {
        Self::of(State::Reads(submitted, each))
    }

    pub(crate) fn writes(submitted: Submitted<Vec<Piece>>) -> Self {
        Self::of(State::Writes(submitted))
    }

    fn of(state: State) -> Self {
        Self { state: OfProcess::new(Mutex::new(state)) }
    }

    fn state(&self, py: Python<'_>) -> PyResult<&Mutex<State>> {
        self.state.get().ok_or_else(|| raise(py, &Submitted::<()>::of_parent()))
    }

    fn look(&self, py: Python<'_>, time: Duration) -> PyResult<Option<Outcome>> {
        let state = self.state(py)?;
        Ok(py.detach(|| state.lock().wait(time)))
    }
}

#[pymethods]
impl Pending {
    /// Wait for the end and return the bytes read of each range, or `None` for a write.
    ///
    /// Every call raises the error of a failed batch. After `timeout` seconds a call raises
    /// `TimeoutError`, and the batch continues.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Vec<usize>>> {
        let end = timeout.map(Duration::try_from_secs_f64).transpose().map_err(|_| {
            PyValueError::new_err("timeout: give seconds, 0 or more, or None to wait for the end")
        })?;
        let end = end.map(|time| RealClock::tick().plus(time));
        loop {
            let left = end.map_or(LOOK, |end| end.since(RealClock::tick()).min(LOOK));
            if let Some(outcome) = self.look(py, left)? {
                return match &*outcome {
                    Ok(lens) => Ok(lens.clone()),
                    Err(error) => Err(raise(py, error)),
                };
            }
            py.check_signals()?;
            if end.is_some_and(|end| end.since(RealClock::tick()).is_zero()) {
                let text = "the batch is not done yet: it goes on, wait for it again";
                return Err(PyTimeoutError::new_err(text));
            }
        }
    }

    /// Return whether the batch is done or has failed, without waiting.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state(py)?;
        // If the lock is taken, another thread waits for the batch.
        let look =
            || state.try_lock().is_some_and(|mut batch| batch.wait(Duration::ZERO).is_some());
        Ok(py.detach(look))
    }
}
