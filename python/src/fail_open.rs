//! A namespace that an engine can lean on: no call fails, none waits for a server that is down.

use std::sync::Arc;

use millpond_client::{Client, ErrorKind};
use millpond_kv::{FailOpen as KvFailOpen, FailOpenOptions, LazyNamespace};
use millpond_types::NamespaceOptions;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::store::Store;

/// A namespace that fails open; see the type stub.
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
        let store = Store::new(Arc::clone(&inner) as _);
        let name = name.to_owned();
        Py::new(py, PyClassInitializer::from(store).add_subclass(Self { inner, name }))
    }
}

/// Whether the server may answer otherwise in a moment.
const fn is_outage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unreachable | ErrorKind::DeadlineExceeded | ErrorKind::Busy)
}

#[pymethods]
impl FailOpen {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn up(&self) -> bool {
        self.inner.is_up()
    }

    #[getter]
    fn last_error(&self) -> Option<String> {
        self.inner.last_error()
    }

    fn __repr__(&self) -> String {
        format!("FailOpen({:?})", self.name)
    }
}
