//! Commits, and the collection of delete markers.

use std::sync::atomic::Ordering;

use etcd_client::{Compare, CompareOp, DeleteOptions, Txn, TxnOp};
use millpond_types::limits::STORE_MARKERS_MAX;

use super::Shared;
use super::session::{EtcdSession, version_of};
use crate::backend::Commit;
use crate::{ReadSet, StoreError, Version};

impl EtcdSession {
    pub(crate) async fn commit_writes(
        self: Box<Self>,
        commit: Commit,
    ) -> Result<Version, StoreError> {
        let compares = self.compares(&commit.reads)?;
        let layout = &self.shared.layout;
        let mut operations = Vec::with_capacity(commit.writes.len());
        let mut markers = 0;
        for (key, value) in commit.writes {
            if let Some(value) = value {
                operations.push(TxnOp::put(layout.data(&key), value, None));
                continue;
            }
            operations.push(TxnOp::delete(layout.data(&key), None));
            operations.push(TxnOp::put(layout.marker(&key), "", None));
            markers += 1;
        }
        let txn = Txn::new().when(compares).and_then(operations);
        let answer = self
            .shared
            .write(&mut |mut kv| {
                let txn = txn.clone();
                Box::pin(async move { kv.txn(txn).await })
            })
            .await?;
        if !answer.succeeded() {
            return Err(StoreError::Conflict);
        }
        // The commit is done: the rest must not turn it into an error.
        self.shared.count_markers(markers).await;
        answer
            .header()
            .map(|header| version_of(header.revision()))
            .ok_or_else(|| StoreError::Damaged("etcd answered a commit without a revision".into()))
    }

    /// The comparisons that must hold for the commit (see the head of the parent module).
    fn compares(&self, reads: &ReadSet) -> Result<Vec<Compare>, StoreError> {
        let layout = &self.shared.layout;
        let mut compares = Vec::with_capacity(reads.cost() + 1);
        for key in reads.keys() {
            // The read of this key failed, so its revision is unknown; a commit in spite of that
            // must conflict.
            let seen = *self.seen.get(key).ok_or(StoreError::Conflict)?;
            compares.push(Compare::mod_revision(layout.data(key), CompareOp::Equal, seen));
        }
        let mut ranges = reads.ranges().peekable();
        if ranges.peek().is_none() {
            return Ok(compares);
        }
        let behind = self.revision.ok_or(StoreError::Conflict)? + 1;
        let unchanged = |key| Compare::mod_revision(key, CompareOp::Less, behind);
        for (start, end) in ranges {
            compares.push(unchanged(layout.data(start)).with_range(layout.data(end)));
            compares.push(unchanged(layout.marker(start)).with_range(layout.marker(end)));
        }
        compares.push(unchanged(layout.guard.clone()));
        Ok(compares)
    }
}

impl Shared {
    /// Counts written markers and collects all of them when there are many.
    async fn count_markers(&self, written: u64) {
        if written == 0 {
            return;
        }
        let count = self.markers.fetch_add(written, Ordering::Relaxed) + written;
        // The client that passes the bound collects; the others see a count that started again.
        if count < STORE_MARKERS_MAX || count - written >= STORE_MARKERS_MAX {
            return;
        }
        self.markers.store(0, Ordering::Relaxed);
        if let Err(error) = self.collect_markers().await {
            tracing::warn!(%error,
                "delete markers in etcd were not collected; the next round retries");
        }
    }

    /// Removes all markers and bumps the guard, in one transaction.
    pub(crate) async fn collect_markers(&self) -> Result<(), StoreError> {
        let layout = &self.layout;
        let mut end = layout.marker.clone();
        // The space's last byte is a letter, so incrementing it gives the end of the space.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let all = DeleteOptions::new().with_range(end);
        let operations = [
            TxnOp::delete(layout.marker.clone(), Some(all)),
            TxnOp::put(layout.guard.clone(), "", None),
        ];
        let txn = Txn::new().and_then(operations);
        self.write(&mut |mut kv| {
            let txn = txn.clone();
            Box::pin(async move { kv.txn(txn).await })
        })
        .await
        .map(|_| ())
    }
}
