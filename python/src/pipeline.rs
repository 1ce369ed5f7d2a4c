//! Pipelines for Python: a stage of memory before a namespace or a folder.

use std::path::PathBuf;

use millpond_client::{Room, Value};
use millpond_kv::{Batch, BlockStore, PipelineOptions};
use millpond_types::{ByteSize, LayoutDigest};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySequence};

use crate::buffer::{Memory, Use};
use crate::errors::raise;
use crate::namespace::{Keys, Namespace, bytes_read, deadline, memories, put_word};

/// A store made of stages; see the type stub.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct Pipeline {
    store: Box<dyn BlockStore>,
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
) -> PyResult<Pipeline> {
    let (cache_bytes, folder_bytes) = sizes;
    let options = PipelineOptions {
        cache_bytes: ByteSize(cache_bytes),
        namespace: namespace.map(|namespace| namespace.get().inner()),
        folder,
        folder_bytes: ByteSize(folder_bytes),
        layout: LayoutDigest(layout),
    };
    let store = py.detach(|| millpond_kv::pipeline(&text, options));
    Ok(Pipeline { store: store.map_err(|error| raise(py, &error))?, text })
}

#[pymethods]
impl Pipeline {
    #[pyo3(signature = (keys, values, *, leaders=None, deadline_ms=None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        values: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
        deadline_ms: Option<u64>,
    ) -> PyResult<Vec<&'static str>> {
        let keys = Keys::new(py, keys, leaders)?;
        let memory = memories(values, keys.keys.len(), Use::Read)?;
        let statuses = py.detach(|| {
            let values: Vec<Value<'_>> = memory.iter().map(Memory::value).collect();
            self.store.put(batch(&keys, deadline_ms), &values)
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
        let keys = Keys::new(py, keys, leaders)?;
        let mut memory = memories(into, keys.keys.len(), Use::Write)?;
        let outcomes = py.detach(|| {
            let mut rooms: Vec<Room<'_>> = memory.iter_mut().map(Memory::room).collect();
            self.store.get(batch(&keys, deadline_ms), &mut rooms)
        });
        let outcomes = outcomes.map_err(|error| raise(py, &error))?;
        Ok(outcomes.into_iter().map(bytes_read).collect())
    }

    #[pyo3(signature = (keys, *, leaders=None))]
    fn contains(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        let keys = Keys::new(py, keys, leaders)?;
        py.detach(|| self.store.contains(batch(&keys, None))).map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (keys, *, lease_ms=0, leaders=None))]
    fn match_prefix(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        lease_ms: u32,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<usize> {
        let keys = Keys::new(py, keys, leaders)?;
        py.detach(|| self.store.match_prefix(batch(&keys, None), lease_ms))
            .map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (keys, *, leaders=None))]
    fn delete(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PySequence>,
        leaders: Option<&Bound<'_, PySequence>>,
    ) -> PyResult<Vec<bool>> {
        let keys = Keys::new(py, keys, leaders)?;
        py.detach(|| self.store.delete(batch(&keys, None))).map_err(|error| raise(py, &error))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.store.stats()).map_err(|error| raise(py, &error))?;
        let dict = PyDict::new(py);
        for (name, value) in stats {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("Pipeline('{}')", self.text)
    }
}

fn batch(keys: &Keys, deadline_ms: Option<u64>) -> Batch<'_> {
    Batch { keys: &keys.keys, leaders: &keys.leaders, deadline: deadline(deadline_ms) }
}
