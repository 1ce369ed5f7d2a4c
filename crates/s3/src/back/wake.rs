//! Who waits for something to be queued.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Notify;

/// The lanes that wait, by bucket.
#[derive(Default)]
pub(crate) struct Wakes(RwLock<HashMap<String, Vec<Arc<Notify>>>>);

impl Wakes {
    /// From now on these are woken for a bucket.
    pub(crate) fn set(&self, bucket: &str, lanes: Vec<Arc<Notify>>) {
        self.0.write().insert(bucket.to_owned(), lanes);
    }

    /// Nobody is, any more.
    pub(crate) fn forget(&self, bucket: &str) {
        self.0.write().remove(bucket);
    }

    /// Something was queued in a bucket, or may have been.
    pub(crate) fn wake(&self, bucket: &str) {
        if let Some(lanes) = self.0.read().get(bucket) {
            for lane in lanes {
                lane.notify_one();
            }
        }
    }

    /// The same of any bucket.
    pub(crate) fn wake_all(&self) {
        for lane in self.0.read().values().flatten() {
            lane.notify_one();
        }
    }
}
