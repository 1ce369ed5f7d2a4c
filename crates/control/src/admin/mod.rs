//! Requests of operators and the answers, as JSON: the body of `Verb::Admin` in both directions.
//!
//! [`Command`] and [`Answer`] are the documents; their field names are a public interface, and
//! `docs/admin.md` describes them. The server turns a request into the manager's own
//! [`AdminCommand`] ([`decode_command`]) and the manager's answer into bytes ([`encode_answer`]);
//! the command line does the opposite with [`encode_command`] and [`decode_answer`].
//!
//! Requests with unknown fields are refused, so that a typo is noticed. Answers may have fields
//! unknown to the reader, which may be older than the manager.

mod answer;
mod command;
#[cfg(test)]
mod tests;

pub use answer::{
    Answer, Chain, ChainPage, Config, Disk, Event, Move, Node, Problem, Progress, Slot, SlotTotals,
    Status, Target, TargetCounts,
};
pub use command::Command;

use millpond_cluster::manager::{AdminAnswer, AdminCommand};
use millpond_types::ids::UuidError;

/// A malformed request or answer.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Not JSON, or a field is missing, unknown or of another type.
    #[error("the {what} cannot be parsed: {source}; see docs/admin.md")]
    Json {
        /// `request` or `answer`.
        what: &'static str,
        /// The error and its position.
        #[source]
        source: serde_json::Error,
    },
    /// A field names no node or disk.
    #[error("field '{field}': {source}")]
    Identity {
        /// The field.
        field: &'static str,
        /// The error.
        #[source]
        source: UuidError,
    },
}

/// Decodes the request of an operator.
///
/// # Errors
/// [`AdminError`] naming the field and the expected value.
pub fn decode_command(json: &[u8]) -> Result<AdminCommand, AdminError> {
    let command: Command = serde_json::from_slice(json)
        .map_err(|source| AdminError::Json { what: "request", source })?;
    AdminCommand::try_from(command)
}

/// Encodes the request of an operator.
#[must_use]
pub fn encode_command(command: &Command) -> Vec<u8> {
    to_json(command)
}

/// Encodes the manager's answer. If not all nodes or disks fit into one reply, healthy ones are
/// left out and counted.
#[must_use]
pub fn encode_answer(answer: &AdminAnswer) -> Vec<u8> {
    to_json(&Answer::from(answer))
}

/// Decodes the manager's answer.
///
/// # Errors
/// [`AdminError::Json`].
pub fn decode_answer(json: &[u8]) -> Result<Answer, AdminError> {
    serde_json::from_slice(json).map_err(|source| AdminError::Json { what: "answer", source })
}

fn to_json(document: &impl serde::Serialize) -> Vec<u8> {
    #[expect(
        clippy::expect_used,
        reason = "documents have text keys only and are written to memory"
    )]
    serde_json::to_vec(document).expect("serde_json can write the document")
}
