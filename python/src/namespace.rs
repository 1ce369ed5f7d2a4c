//! A namespace for Python: batches in, lists out.

use std::time::Duration;

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_kv::Namespace as KvNamespace;
use millpond_types::BlockKey;
use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::wire::{ItemStatus, Leaders};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySequence};

use crate::buffer::{Memory, Use, overlap};
use crate::client::NamespaceInfo;
use crate::errors::raise;

/// A named keyspace; see the type stub for what the verbs take and return.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct Namespace {
    inner: KvNamespace,
}

/// A key in a listing.
#[pyclass(frozen, get_all, module = "millpond")]
pub(crate) struct KeyInfo {
    key: Py<PyBytes>,
    size: u32,
    expires: Option<u32>,
    pinned: bool,
}

#[pymethods]
impl KeyInfo {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let key = self.key.bind(py).repr()?;
        Ok(format!("KeyInfo(key={key}, size={}, pinned={})", self.size, self.pinned))
    }
}

/// A verb that answers one truth per key.
type KeysVerb = fn(&KvNamespace, &[BlockKey], &Leaders) -> Result<Vec<bool>, ClientError>;

/// The keys of a batch with their leaders, copied out of Python.
pub(crate) struct Keys {
    pub(crate) keys: Vec<BlockKey>,
    pub(crate) leaders: Leaders,
}

impl Keys {
    /// Keys that are their own leaders unless told otherwise.
    pub(crate) fn new(
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Self> {
        Self::with(py, keys, leaders, Leaders::Own)
    }

    fn with(
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
        without: Leaders,
    ) -> PyResult<Self> {
        let keys = block_keys(py, keys)?;
        let leaders = match leaders {
            None => without,
            Some(leaders) => Leaders::Each(block_keys(py, leaders)?),
        };
        match &leaders {
            Leaders::Each(each) if each.len() != keys.len() => Err(PyValueError::new_err(format!(
                "{} leaders were given for {} keys: give one per key, or none",
                each.len(),
                keys.len()
            ))),
            _ => Ok(Self { keys, leaders }),
        }
    }
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

pub(crate) fn memories(
    values: &Bound<'_, PySequence>,
    keys: usize,
    purpose: Use,
) -> PyResult<Vec<Memory>> {
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

pub(crate) const fn put_word(status: ItemStatus) -> &'static str {
    match status {
        ItemStatus::Ok => "stored",
        ItemStatus::Exists => "exists",
        ItemStatus::NoSpace => "no_space",
        ItemStatus::Busy => "busy",
        ItemStatus::Corrupt => "corrupt",
        ItemStatus::ReadOnly => "read_only",
        ItemStatus::Quota => "quota",
        ItemStatus::Late => "late",
        ItemStatus::Miss | ItemStatus::TooLong => "refused",
    }
}

pub(crate) const fn deadline(ms: Option<u64>) -> Option<Duration> {
    match ms {
        None => None,
        Some(ms) => Some(Duration::from_millis(ms)),
    }
}

pub(crate) fn bytes_read(outcome: GetOutcome) -> i64 {
    match outcome {
        GetOutcome::Read(len) => i64::from(len),
        GetOutcome::Miss | GetOutcome::TooLong(_) | GetOutcome::Late => -1,
    }
}

impl Namespace {
    pub(crate) const fn new(inner: KvNamespace) -> Self {
        Self { inner }
    }

    /// The namespace itself.
    pub(crate) fn inner(&self) -> KvNamespace {
        self.inner.clone()
    }

    /// Runs a verb that answers one status per key.
    fn each(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
        verb: KeysVerb,
    ) -> PyResult<Vec<bool>> {
        let batch = Keys::new(py, keys, leaders)?;
        py.detach(|| verb(&self.inner, &batch.keys, &batch.leaders))
            .map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl Namespace {
    #[getter]
    fn name(&self) -> String {
        self.inner.info().name
    }

    #[getter]
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo::from(&self.inner.info())
    }

    #[pyo3(signature = (keys, values, *, leaders=None, deadline_ms=None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        values: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<&'static str>> {
        let batch = Keys::new(py, keys, leaders)?;
        let memory = memories(values, batch.keys.len(), Use::Read)?;
        let statuses = py.detach(|| {
            let values: Vec<Value<'_>> = memory.iter().map(Memory::value).collect();
            self.inner.put(&batch.keys, &batch.leaders, &values, deadline(deadline_ms))
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
        leaders: Option<&Bound<'_, PySequence>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<i64>> {
        let batch = Keys::new(py, keys, leaders)?;
        let mut memory = memories(into, batch.keys.len(), Use::Write)?;
        let outcomes = py.detach(|| {
            let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(Memory::room).collect();
            self.inner.get(&batch.keys, &batch.leaders, &mut rooms, deadline(deadline_ms))
        });
        let outcomes = outcomes.map_err(|error| raise(py, &error))?;
        Ok(outcomes.into_iter().map(bytes_read).collect())
    }

    #[pyo3(signature = (key, leader=None))]
    fn get_bytes<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        leader: Option<&[u8]>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let keys = [block_key(py, key)?];
        let leaders = match leader {
            None => Leaders::Own,
            Some(leader) => Leaders::Each(vec![block_key(py, leader)?]),
        };
        // The length is not known before: ask with little room, then with what is needed.
        let mut room = vec![0; 64 << 10];
        for _ in 0..2 {
            let outcome = py
                .detach(|| {
                    let mut rooms = [Room::One(&mut room)];
                    self.inner.get(&keys, &leaders, &mut rooms, None)
                })
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

    #[pyo3(signature = (keys, *, leaders=None))]
    fn contains(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        self.each(py, keys, leaders, KvNamespace::contains)
    }

    #[pyo3(signature = (keys, *, lease_ms=0, leaders=None))]
    fn match_prefix(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        lease_ms: u32,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<u32> {
        let batch = Keys::with(py, keys, leaders, Leaders::Runs)?;
        py.detach(|| self.inner.match_prefix(&batch.keys, &batch.leaders, lease_ms))
            .map(|reply| reply.matched)
            .map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (keys, *, leaders=None))]
    fn touch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        self.each(py, keys, leaders, KvNamespace::touch)
    }

    #[pyo3(signature = (keys, *, leaders=None))]
    fn pin(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        self.each(py, keys, leaders, KvNamespace::pin)
    }

    #[pyo3(signature = (keys, *, leaders=None))]
    fn unpin(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        self.each(py, keys, leaders, KvNamespace::unpin)
    }

    #[pyo3(signature = (keys, *, leaders=None))]
    fn delete(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        self.each(py, keys, leaders, KvNamespace::delete)
    }

    fn list_page(
        &self,
        py: Python<'_>,
        prefix: &[u8],
        cursor: u64,
    ) -> PyResult<(u64, Vec<KeyInfo>)> {
        let page = py
            .detach(|| self.inner.list_page(prefix, cursor))
            .map_err(|error| raise(py, &error))?;
        let keys = page.keys.iter().map(|info| KeyInfo {
            key: PyBytes::new(py, info.key.as_bytes()).unbind(),
            size: info.len,
            expires: (info.expires != 0).then_some(info.expires),
            pinned: info.pinned,
        });
        Ok((page.cursor, keys.collect()))
    }

    #[pyo3(signature = (prefix=None))]
    fn list(slf: Bound<'_, Self>, prefix: Option<&[u8]>) -> KeyIterator {
        let page = Vec::new().into_iter();
        let prefix = prefix.unwrap_or_default().to_vec();
        KeyIterator { namespace: slf.unbind(), prefix, cursor: Some(0), page }
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = py.detach(|| self.inner.stats()).map_err(|error| raise(py, &error))?;
        let out = PyDict::new(py);
        for (name, value) in values {
            out.set_item(name, value)?;
        }
        Ok(out)
    }

    fn __repr__(&self) -> String {
        format!("Namespace({:?})", self.name())
    }
}

/// Walks a listing page by page.
#[pyclass]
pub(crate) struct KeyIterator {
    namespace: Py<Namespace>,
    prefix: Vec<u8>,
    /// Where the next page starts; none after the last.
    cursor: Option<u64>,
    page: std::vec::IntoIter<KeyInfo>,
}

#[pymethods]
impl KeyIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<KeyInfo>> {
        loop {
            if let Some(info) = self.page.next() {
                return Ok(Some(info));
            }
            let Some(cursor) = self.cursor else { return Ok(None) };
            let (next, keys) = self.namespace.get().list_page(py, &self.prefix, cursor)?;
            self.cursor = (next != 0).then_some(next);
            self.page = keys.into_iter();
        }
    }
}
