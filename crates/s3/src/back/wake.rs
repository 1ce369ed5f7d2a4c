//! Lanes waiting for queued keys.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Notify;

/// The waiting lanes by bucket.
#[derive(Default)]
pub(crate) struct Wakes(RwLock<HashMap<String, Vec<Arc<Notify>>>>);

impl Wakes {
    /// Registers the lanes of a bucket.
    pub(crate) fn set(&self, bucket: &str, lanes: Vec<Arc<Notify>>) {
        self.0.write().insert(bucket.to_owned(), lanes);
    }

    /// Removes the lanes of a bucket.
    pub(crate) fn forget(&self, bucket: &str) {
        self.0.write().remove(bucket);
    }

    /// Wakes the lanes of a bucket, since a key may have been queued.
    pub(crate) fn wake(&self, bucket: &str) {
        if let Some(lanes) = self.0.read().get(bucket) {
            for lane in lanes {
                lane.notify_one();
            }
        }
    }

    /// Wakes the lanes of all buckets.
    pub(crate) fn wake_all(&self) {
        for lane in self.0.read().values().flatten() {
            lane.notify_one();
        }
    }
}
