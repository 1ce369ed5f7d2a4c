//! Errors that stop a run. Failures of single requests are counted and are not errors.

use std::path::PathBuf;

use thiserror::Error;

/// Why a command could not start or continue.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The endpoint is not `http://host:port`, or the host has no address.
    #[error("endpoint '{endpoint}': {why}; use http://HOST:PORT")]
    Endpoint {
        /// The given endpoint.
        endpoint: String,
        /// The problem.
        why: String,
    },
    /// An option that conflicts with the others.
    #[error("{0}")]
    Option(String),
    /// The bucket is missing and could not be created, or an object that reads need could not be
    /// put.
    #[error("{what}: the endpoint answered {code}")]
    Refused {
        /// The request.
        what: String,
        /// The S3 code, or a word for the failure of the connection.
        code: String,
    },
    /// A journal that cannot be read or written.
    #[error("journal {}: {why}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// The problem, with the line.
        why: String,
    },
    /// The system refused a thread, a socket or a signal handler.
    #[error("{what}")]
    System {
        /// The requested resource.
        what: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}
