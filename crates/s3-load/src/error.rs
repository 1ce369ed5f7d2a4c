//! What stops a run as a whole. What a single request meets is counted, not an error.

use std::path::PathBuf;

use thiserror::Error;

/// Why a command could not begin or go on.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The endpoint is no `http://host:port`, or the host has no address.
    #[error("endpoint '{endpoint}': {why}; it is given as http://HOST:PORT")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// An option that does not fit the others.
    #[error("{0}")]
    Option(String),
    /// The bucket is not there and could not be made, or an object that reads need could not be put.
    #[error("{what}: the endpoint answered {code}")]
    Refused {
        /// What was asked for.
        what: String,
        /// S3's code, or a word for what happened to the connection.
        code: String,
    },
    /// A journal that cannot be read or written.
    #[error("journal {}: {why}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the line.
        why: String,
    },
    /// A thread, a socket or a signal handler that the system refused.
    #[error("{what}")]
    System {
        /// What was asked of the system.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}
