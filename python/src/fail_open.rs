//! A namespace that an engine can rely on: no call fails, none waits for a server that is down.

use std::sync::Arc;

use millpond_client::{Client, ErrorKind};
use millpond_kv::{FailOpen as KvFailOpen, FailOpenOptions, LazyNamespace};
use millpond_types::NamespaceOptions;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::store::Store;

/// A namespace that never stops its caller; made by `Client.fail_open`.
///
/// No verb raises because of the server, and none waits longer than its deadline. A read that is
/// late or fails is a miss (-1, `None`, `False`, 0); a write that is late or fails is dropped
/// (`late`); `stats` counts both. After some failures in a row the store takes the server to be
/// down and tries nothing for a pause, which doubles. Mistakes of the caller still raise.
#[pyclass(frozen, extends = Store, module = "millpond")]
pub(crate) struct FailOpen {
    inner: Arc<KvFailOpen<LazyNamespace, millpond_env::RealClock>>,
    name: String,
}

impl FailOpen {
    /// Opens the namespace if its server answers; a refusal is an error, silence is an outage.
    pub(crate) fn create(
        py: Python<'_>,
        client: &Client,
        (name, create): (&str, bool),
        namespace: NamespaceOptions,
        options: FailOpenOptions,
    ) -> PyResult<Py<Self>> {
        let opened = py.detach(|| {
            let lazy = LazyNamespace::new(client, name, create, namespace)?;
            let inner = KvFailOpen::new(lazy, millpond_env::RealClock, options);
            match inner.attempt(|lazy| lazy.opened(Some(options.deadline)).map(drop)) {
                Err(error) if !is_outage(error.kind()) => Err(error),
                _ => Ok(Arc::new(inner)),
            }
        });
        let inner = opened.map_err(|error| raise(py, &error))?;
        let store = Store::failing_open(Arc::clone(&inner) as _);
        let name = name.to_owned();
        Py::new(py, PyClassInitializer::from(store).add_subclass(Self { inner, name }))
    }
}

/// Whether the server may answer differently in a moment.
const fn is_outage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unreachable | ErrorKind::DeadlineExceeded | ErrorKind::Busy)
}

#[pymethods]
impl FailOpen {
    /// The name of the namespace.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether calls are tried at the moment.
    #[getter]
    fn up(&self) -> bool {
        self.inner.is_up()
    }

    /// The reason of the last failure, for people to read.
    #[getter]
    fn last_error(&self) -> Option<String> {
        self.inner.last_error()
    }

    fn __repr__(&self) -> String {
        format!("FailOpen({:?})", self.name)
    }
}
