//! Errors of the client as the exceptions of `millpond.errors`.

use millpond_client::ClientError;
use pyo3::prelude::*;

/// The exception for `error`: the class is named by its kind, `retry_after` is in seconds.
pub(crate) fn raise(py: Python<'_>, error: &ClientError) -> PyErr {
    match exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(broken) => broken,
    }
}

fn exception<'py>(py: Python<'py>, error: &ClientError) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("millpond.errors")?.getattr(error.kind().name())?;
    let exception = class.call1((error.to_string(),))?;
    exception.setattr("retry_after", error.retry_after().as_secs_f64())?;
    Ok(exception)
}
