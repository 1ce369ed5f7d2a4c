//! The native module `millpond._native`: the client for Python, and the command line.
//!
//! Invariant: memory of Python is only accessed while the call or submitted batch that received it
//! runs, and the interpreter lock is released during I/O.

#![expect(clippy::doc_markdown, reason = "what `help()` shows is written as Python is")]
#![allow(unsafe_code, reason = "the Python boundary hands out raw memory (STYLE rule 18)")]
#![allow(clippy::too_many_arguments, reason = "they are the arguments of Python functions")]

mod buffer;
mod client;
mod errors;
mod fail_open;
mod files;
mod namespace;
mod pending;
mod pipeline;
mod store;
mod volume;

use pyo3::prelude::*;

/// Runs the `millpond` command line with `argv`, program name first, and returns its exit status.
#[pyfunction]
fn run_cli(py: Python<'_>, argv: Vec<String>) -> i32 {
    py.detach(|| millpond_cli::run(argv.into_iter().map(Into::into)))
}

/// Return a number that differs between this process and those that it was forked from.
#[pyfunction]
fn generation() -> u64 {
    millpond_env::generation()
}

/// The native module; use `millpond`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(run_cli, module)?)?;
    module.add_function(wrap_pyfunction!(generation, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::open_pipeline, module)?)?;
    module.add_class::<client::NativeClient>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<namespace::Namespace>()?;
    module.add_class::<fail_open::FailOpen>()?;
    module.add_class::<namespace::KeyInfo>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<volume::NativeVolume>()?;
    module.add_class::<volume::NativeRegion>()?;
    module.add_class::<files::File>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<client::NamespaceInfo>()
}
