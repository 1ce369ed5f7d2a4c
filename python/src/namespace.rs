//! Verbs of a namespace besides those of every store.

use std::sync::Arc;

use millpond_kv::Namespace as KvNamespace;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence};

use crate::client::NamespaceInfo;
use crate::errors::raise;
use crate::store::{Call, Store};

/// A named keyspace on a server.
#[pyclass(frozen, extends = Store, module = "millpond")]
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

impl Namespace {
    pub(crate) fn create(py: Python<'_>, inner: KvNamespace) -> PyResult<Py<Self>> {
        let store = Store::new(Arc::new(inner.clone()));
        Py::new(py, PyClassInitializer::from(store).add_subclass(Self { inner }))
    }

    /// The namespace itself.
    pub(crate) fn inner(&self) -> KvNamespace {
        self.inner.clone()
    }
}

#[pymethods]
impl Namespace {
    /// The name.
    #[getter]
    fn name(&self) -> String {
        self.inner.info().name
    }

    /// The namespace as the server knew it when it was opened.
    #[getter]
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo::from(&self.inner.info())
    }

    /// Keep keys from eviction until unpinned and return which of them are present.
    #[pyo3(signature = (keys, *, leaders=None, deadline_ms=None))]
    fn pin(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<bool>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        py.detach(|| self.inner.pin(call.batch())).map_err(|error| raise(py, &error))
    }

    /// End the pin of keys and return which of them are present.
    #[pyo3(signature = (keys, *, leaders=None, deadline_ms=None))]
    fn unpin(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PyAny>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<bool>> {
        let call = Call::new(py, keys, leaders, deadline_ms)?;
        py.detach(|| self.inner.unpin(call.batch())).map_err(|error| raise(py, &error))
    }

    /// Return one page of keys and the cursor of the next, 0 after the last.
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

    /// Iterate over all keys, or the keys that start with `prefix`, page by page.
    #[pyo3(signature = (prefix=None))]
    fn list(slf: Bound<'_, Self>, prefix: Option<&[u8]>) -> KeyIterator {
        let page = Vec::new().into_iter();
        let prefix = prefix.unwrap_or_default().to_vec();
        KeyIterator { namespace: slf.unbind(), prefix, cursor: Some(0), page }
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
    /// Where the next page starts; `None` after the last.
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
