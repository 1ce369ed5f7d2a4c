//! The verbs that every store has, for Python: batches in, lists out.
//!
//! A namespace, a pipeline and a store that fails open are subclasses: this is the only place where
//! arguments of Python become a [`Batch`] and answers become Python values.

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

use crate::buffer::{Memory, Use, fresh_bytes, overlap};
use crate::errors::raise;

/// Value of `leaders` when the keys are one prompt from its start.
const RUNS: &str = "runs";

/// A store of blocks. Thread safe; every verb takes a batch and releases the interpreter lock.
///
/// Values and buffers are objects with the buffer protocol (bytes, NumPy arrays, memoryviews), CPU
/// torch tensors, or lists of `(address, length in bytes)` segments that make up one value. Until
/// the call returns, no other code may write the memory of a `put` or use that of a `get`.
///
/// `leaders` decide placement in every verb: a block is found only with the leader that it was
/// stored with. Without `leaders` every key is its own leader. `"runs"` means that the keys are
/// one prompt from its start: the first key of each run of `run_blocks` keys leads that run.
/// Callers that move parts of a prompt give one leader per key.
///
/// `deadline_ms` bounds a call; the default is the deadline of the client, or of the store.
#[pyclass(frozen, subclass, module = "millpond")]
pub(crate) struct Store {
    inner: Arc<dyn BlockStore>,
    /// Whether a value that is longer than its room is a miss: another writer's value must not stop
    /// an engine.
    fails_open: bool,
}

impl Store {
    pub(crate) fn new(inner: Arc<dyn BlockStore>) -> Self {
        Self { inner, fails_open: false }
    }

    pub(crate) fn failing_open(inner: Arc<dyn BlockStore>) -> Self {
        Self { inner, fails_open: true }
    }
}

/// The keys of a call, copied out of Python.
pub(crate) struct Call {
    keys: Vec<BlockKey>,
    leaders: Leaders,
    deadline: Option<Duration>,
}

impl Call {
    /// Keys that are their own leaders by default.
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

/// The exception for values that are longer than their rooms; no error if there are none.
fn too_small(
    py: Python<'_>,
    keys: &[BlockKey],
    outcomes: &[GetOutcome],
    rooms: &[usize],
) -> PyResult<()> {
    let longer = |outcome: &GetOutcome| match outcome {
        GetOutcome::TooLong(len) => Some(*len),
        _ => None,
    };
    let Some(first) = outcomes.iter().position(|outcome| longer(outcome).is_some()) else {
        return Ok(());
    };
    let count = outcomes.iter().filter_map(longer).count();
    let key = PyBytes::new(py, keys[first].as_bytes()).repr()?;
    let text = format!(
        "into[{first}]: the value of {key} has {} bytes and its buffer {}; {count} of {} buffers are too \
         small, the others were read: give buffers as long as the values, or use get_bytes",
        longer(&outcomes[first]).unwrap_or(0),
        rooms[first],
        rooms.len(),
    );
    let sizes: Vec<i64> = outcomes.iter().copied().map(bytes_read).collect();
    let error = py.import("millpond.errors")?.getattr("BufferTooSmall")?.call1((text, sizes))?;
    Err(PyErr::from_value(error))
}

fn bytes_read(outcome: GetOutcome) -> i64 {
    match outcome {
        GetOutcome::Read(len) => i64::from(len),
        GetOutcome::Miss | GetOutcome::TooLong(_) | GetOutcome::Late => -1,
    }
}

/// Room for the first read of a value of unknown length.
const FIRST_ROOM: usize = 64 << 10;

impl Store {
    fn one(&self, call: &Call, room: &mut [u8]) -> Result<GetOutcome, ClientError> {
        let outcomes = self.inner.get(call.batch(), &mut [Room::One(room)])?;
        Ok(outcomes.first().copied().unwrap_or(GetOutcome::Miss))
    }
}

#[pymethods]
impl Store {
    /// Store values; the first one stored under a key wins.
    ///
    /// Returns one status per key: `stored`, `exists`, `no_space`, `busy`, `corrupt`,
    /// `read_only`, `quota` or `late`.
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

    /// Read values into `into` and return the bytes read per key, -1 for a miss.
    ///
    /// A value that fails its checksum is a miss; its buffer then holds undefined bytes.
    ///
    /// Raises:
    ///     BufferTooSmall: a value is longer than its buffer. The error has the sizes of the other
    ///         values, which were read. A store that fails open counts the long value as a miss.
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
        let rooms: Vec<usize> = memory.iter_mut().map(|memory| memory.room().len()).collect();
        let outcomes = py.detach(|| {
            let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(Memory::room).collect();
            self.inner.get(call.batch(), &mut rooms)
        });
        let outcomes = outcomes.map_err(|error| raise(py, &error))?;
        if !self.fails_open {
            too_small(py, &call.keys, &outcomes, &rooms)?;
        }
        Ok(outcomes.into_iter().map(bytes_read).collect())
    }

    /// Read one value of any length, `None` for a miss.
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
        // The length is unknown: read with little room, then with enough.
        let mut room = vec![0; FIRST_ROOM];
        let first = py.detach(|| self.one(&call, &mut room)).map_err(|error| raise(py, &error))?;
        let long = match first {
            GetOutcome::Read(len) => {
                let room = &room[..len as usize];
                let (bytes, ()) = fresh_bytes(py, room.len(), |into| into.copy_from_slice(room))?;
                return Ok(Some(bytes));
            }
            GetOutcome::TooLong(len) if len as usize <= CHUNK_BYTES_MAX => len,
            _ => return Ok(None),
        };
        let (bytes, got) = fresh_bytes(py, long as usize, |into| self.one(&call, into))?;
        let got = got.map_err(|error| raise(py, &error))?;
        // It was removed between the two reads, and perhaps replaced.
        Ok((got == GetOutcome::Read(long)).then_some(bytes))
    }

    /// Count the leading keys that are present and, in the same round trip, lease them.
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

    /// Return which keys are present.
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

    /// Mark keys as recently used and return which of them are present.
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

    /// Remove keys and return which of them were present.
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

    /// Return numbers about the store: blocks, bytes, hits, misses and so on.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = py.detach(|| self.inner.stats()).map_err(|error| raise(py, &error))?;
        let out = PyDict::new(py);
        for (name, value) in values {
            out.set_item(name, value)?;
        }
        Ok(out)
    }
}
