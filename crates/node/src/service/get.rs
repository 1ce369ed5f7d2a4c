//! The values of a get.

use millpond_env::SharedBuf;
use millpond_types::wire::GetItem;

use super::namespaces::Namespace;

/// The values of a get.
#[derive(Debug, Default)]
pub struct GetOutcome {
    /// Outcome per key, pool offsets not filled in.
    pub items: Vec<GetItem>,
    /// The values of the `Ok` items, in order.
    pub values: Vec<SharedBuf>,
}

impl Namespace {
    /// Counts what a get found.
    pub fn count(&self, outcome: &GetOutcome) {
        let hits = outcome.values.len() as u64;
        let bytes = outcome.values.iter().map(|value| value.len() as u64).sum();
        self.metrics.hits.add(hits);
        self.metrics.misses.add(outcome.items.len() as u64 - hits);
        self.metrics.bytes_out.add(bytes);
    }
}
