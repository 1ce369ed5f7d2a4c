//! Pipelines for Python: a stage of memory before a namespace or a folder.

use std::path::PathBuf;
use std::sync::Arc;

use millpond_kv::PipelineOptions;
use millpond_types::{ByteSize, LayoutDigest};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::namespace::Namespace;
use crate::store::Store;

/// A store made of stages.
#[pyclass(frozen, extends = Store, module = "millpond")]
pub(crate) struct Pipeline {
    text: String,
}

/// Builds a pipeline; `millpond.pipeline` checks the arguments' types.
#[pyfunction]
#[pyo3(signature = (text, namespace, folder, sizes, layout))]
pub(crate) fn open_pipeline(
    py: Python<'_>,
    text: String,
    namespace: Option<&Bound<'_, Namespace>>,
    folder: Option<PathBuf>,
    sizes: (u64, u64),
    layout: [u8; 32],
) -> PyResult<Py<Pipeline>> {
    let (cache_bytes, folder_bytes) = sizes;
    let options = PipelineOptions {
        cache_bytes: ByteSize(cache_bytes),
        namespace: namespace.map(|namespace| namespace.get().inner()),
        folder,
        folder_bytes: ByteSize(folder_bytes),
        layout: LayoutDigest(layout),
    };
    let built = py.detach(|| millpond_kv::pipeline(&text, options));
    let store = Store::new(Arc::new(built.map_err(|error| raise(py, &error))?));
    Py::new(py, PyClassInitializer::from(store).add_subclass(Pipeline { text }))
}

#[pymethods]
impl Pipeline {
    fn __repr__(&self) -> String {
        format!("Pipeline('{}')", self.text)
    }
}
