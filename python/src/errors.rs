//! Errors of the client as the exceptions of `millpond.errors`.

use millpond_client::ClientError;
use pyo3::prelude::*;

/// The exception for an argument that breaks a limit, with advice.
pub(crate) fn argument(py: Python<'_>, field: &'static str, fix: impl Into<String>) -> PyErr {
    raise(py, &ClientError::Argument { field, fix: fix.into() })
}

/// The exception for `error`: the class is named by its kind, `retry_after` is in seconds.
pub(crate) fn raise(py: Python<'_>, error: &ClientError) -> PyErr {
    match exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(broken) => broken,
    }
}

fn exception<'py>(py: Python<'py>, error: &ClientError) -> PyResult<Bound<'py, PyAny>> {
    let errors = py.import("millpond.errors")?;
    let exception = match error {
        ClientError::File { path, source } => {
            errors.call_method1("file_error", (source.errno(), source.to_string(), path))?
        }
        ClientError::Missing { chunk, .. } => {
            let (text, place) = (error.to_string(), chunk.to_string());
            errors.call_method1("file_error", (error.errno(), text, place))?
        }
        _ => errors.getattr(error.kind().name())?.call1((error.to_string(),))?,
    };
    exception.setattr("retry_after", error.retry_after().as_secs_f64())?;
    Ok(exception)
}
