//! Counts of gets.

use super::namespaces::Namespace;
use crate::GetOutcome;

impl Namespace {
    /// Counts the outcome of a get.
    pub fn count(&self, outcome: &GetOutcome) {
        let hits = outcome.values.len() as u64;
        let bytes = outcome.values.iter().map(|value| value.len() as u64).sum();
        self.metrics.hits.add(hits);
        self.metrics.misses.add(outcome.items.len() as u64 - hits);
        self.metrics.bytes_out.add(bytes);
    }
}
