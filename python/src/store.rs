//! The verbs that every store has, for Python: batches in, lists out.
//!
//! A namespace, a pipeline and a store that fails open are subclasses: this is the only place where
//! arguments of Python become a [`Batch`] and answers become what Python expects.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_kv::{Batch, BlockStore};
use millpond_types::BlockKey;
use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::wire::{ItemStatus, Leaders};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySequence, PyString};

use crate::buffer::{Memory, Use, overlap};
use crate::errors::raise;

/// What `leaders` is when the keys are one prompt from its start.
const RUNS: &str = "runs";

/// A store of blocks; see the type stub for what the verbs take and return.
#[pyclass(frozen, subclass, module = "millpond")]
pub(crate) struct Store {
    inner: Arc<dyn BlockStore>,
}

impl Store {
    pub(crate) fn new(inner: Arc<dyn BlockStore>) -> Self {
        Self { inner }
    }
}

/// The keys of a call, copied out of Python.
pub(crate) struct Call {
    keys: Vec<BlockKey>,
    leaders: Leaders,
    deadline: Option<Duration>,
}

impl Call {
    /// Keys that are their own leaders unless told otherwise.
    pub(crate) fn new(
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Self> {
        let keys = block_keys(py, keys)?;
        let leaders = match leaders {
            None => Leaders::Own,
            Some(leaders) => leaders_of(py, leaders, keys.len())?,
        };
        Ok(Self { keys, leaders, deadline: deadline_ms.map(Duration::from_millis) })
    }

    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { keys: &self.keys, leaders: &self.leaders, deadline: self.deadline }
    }
}

fn leaders_of(py: Python<'_>, leaders: &Bound<'_, PyAny>, keys: usize) -> PyResult<Leaders> {
    if let Ok(text) = leaders.cast::<PyString>() {
        if text.to_cow()? == RUNS {
            return Ok(Leaders::Runs);
        }
        return Err(PyValueError::new_err(format!(
            "leaders is {text:?}: give \"{RUNS}\", or one leader per key, or none"
        )));
    }
    let each = block_keys(py, leaders.cast::<PySequence>()?)?;
    if each.len() != keys {
        return Err(PyValueError::new_err(format!(
            "{} leaders were given for {keys} keys: give one per key, \"{RUNS}\", or none",
            each.len(),
        )));
    }
    Ok(Leaders::Each(each))
}

fn block_keys(py: Python<'_>, keys: &Bound<'_, PySequence>) -> PyResult<Vec<BlockKey>> {
    let mut out = Vec::with_capacity(keys.len()?);
    for key in keys.try_iter()? {
        let key = key?;
        out.push(block_key(py, key.extract::<&[u8]>()?)?);
    }
    Ok(out)
}

fn block_key(py: Python<'_>, key: &[u8]) -> PyResult<BlockKey> {
    BlockKey::new(key).map_err(|error| raise(py, &ClientError::from(error)))
}

fn memories(values: &Bound<'_, PySequence>, keys: usize, purpose: Use) -> PyResult<Vec<Memory>> {
    let count = values.len()?;
    if count != keys {
        return Err(PyValueError::new_err(format!(
            "{count} values were given for {keys} keys: give one per key"
        )));
    }
    let memory: Vec<Memory> =
        values.try_iter()?.map(|value| Memory::of(&value?, purpose)).collect::<PyResult<_>>()?;
    if purpose == Use::Write && overlap(&memory) {
        return Err(PyValueError::new_err(
            "two buffers to read into overlap: give every value memory of its own",
        ));
    }
    Ok(memory)
}

const fn put_word(status: ItemStatus) -> &'static str {
    match status {
        ItemStatus::Ok => "stored",
        ItemStatus::Exists => "exists",
        ItemStatus::NoSpace => "no_space",
        ItemStatus::Busy => "busy",
        ItemStatus::Corrupt => "corrupt",
        ItemStatus::ReadOnly => "read_only",
        ItemStatus::Quota => "quota",
        ItemStatus::Late | ItemStatus::Moved | ItemStatus::Behind => "late",
        ItemStatus::Miss | ItemStatus::TooLong | ItemStatus::Sealed => "refused",
    }
}

fn bytes_read(outcome: GetOutcome) -> i64 {
    match outcome {
        GetOutcome::Read(len) => i64::from(len),
        GetOutcome::Miss | GetOutcome::TooLong(_) | GetOutcome::Late => -1,
    }
}

#[pymethods]
impl Store {
    #[pyo3(signature = (keys, values, *, leaders=None, deadline_ms=None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        values: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<&'static str>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        let memory = memories(values, call.keys.len(), Use::Read)?;
        let statuses = py.detach(|| {
            let values: Vec<Value<'_>> = memory.iter().map(Memory::value).collect();
            self.inner.put(call.batch(), &values)
        });
        let statuses = statuses.map_err(|error| raise(py, &error))?;
        Ok(statuses.into_iter().map(put_word).collect())
    }

    #[pyo3(signature = (keys, into, *, leaders=None, deadline_ms=None))]
    fn get(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        into: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<i64>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        let mut memory = memories(into, call.keys.len(), Use::Write)?;
        let outcomes = py.detach(|| {
            let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(Memory::room).collect();
            self.inner.get(call.batch(), &mut rooms)
        });
        let outcomes = outcomes.map_err(|error| raise(py, &error))?;
        Ok(outcomes.into_iter().map(bytes_read).collect())
    }

    #[pyo3(signature = (key, leader=None, *, deadline_ms=None))]
    fn get_bytes<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        leader: Option<&[u8]>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let leaders = match leader {
            None => Leaders::Own,
            Some(leader) => Leaders::Each(vec![block_key(py, leader)?]),
        };
        let deadline = deadline_ms.map(Duration::from_millis);
        let call = Call { keys: vec![block_key(py, key)?], leaders, deadline };
        // The length is not known before: ask with little room, then with what is needed.
        let mut room = vec![0; 64 << 10];
        for _ in 0..2 {
            let outcome = py
                .detach(|| self.inner.get(call.batch(), &mut [Room::One(&mut room)]))
                .map_err(|error| raise(py, &error))?;
            match outcome.first() {
                Some(GetOutcome::Read(len)) => {
                    return Ok(Some(PyBytes::new(py, &room[..*len as usize])));
                }
                Some(GetOutcome::TooLong(len)) if (*len as usize) <= CHUNK_BYTES_MAX => {
                    room = vec![0; *len as usize];
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    #[pyo3(signature = (keys, *, lease_ms=0, leaders=None, deadline_ms=None))]
    fn match_prefix(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        lease_ms: u32,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<usize> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        py.detach(|| self.inner.match_prefix(call.batch(), lease_ms))
            .map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (keys, *, leaders=None, deadline_ms=None))]
    fn contains(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<bool>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        py.detach(|| self.inner.contains(call.batch())).map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (keys, *, leaders=None, deadline_ms=None))]
    fn touch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<bool>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        py.detach(|| self.inner.touch(call.batch())).map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (keys, *, leaders=None, deadline_ms=None))]
    fn delete(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<bool>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        py.detach(|| self.inner.delete(call.batch())).map_err(|error| raise(py, &error))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = py.detach(|| self.inner.stats()).map_err(|error| raise(py, &error))?;
        let out = PyDict::new(py);
        for (name, value) in values {
            out.set_item(name, value)?;
        }
        Ok(out)
    }
}
