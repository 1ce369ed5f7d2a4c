//! Storing values: the first one stored under a key wins.

use std::sync::Arc;

use millpond_engine::WriteOutcome;
use millpond_env::{RealClock, SharedBuf};
use millpond_types::wire::{ItemStatus, PutRequest};
use millpond_types::{BlockKey, Crc32c, GroupId, UnixSeconds};

use super::namespaces::Namespace;
use super::{Place, Service, WriteMode, WriteRequest};

/// What to do with one value of a put, decided before its bytes are received.
#[derive(Clone, Copy, Debug)]
pub enum PutItemPlan {
    /// Receive and store it.
    Store(Place),
    /// Skip its bytes and answer this.
    Skip(ItemStatus),
}

/// A value that was received, about to be stored.
#[derive(Debug)]
pub struct PutWrite {
    /// Where.
    pub place: Place,
    /// Its key.
    pub key: BlockKey,
    /// Its bytes, in a buffer that becomes the copy in memory.
    pub bytes: SharedBuf,
    /// Its checksum as the client computed it; the engine compares.
    pub crc: Crc32c,
}

impl Service {
    /// Decides whether the value at `index` will be stored. `ahead` is what this request stores before it.
    #[must_use]
    pub fn plan_put(
        &self,
        namespace: &Namespace,
        request: &PutRequest,
        index: usize,
        ahead: u64,
    ) -> PutItemPlan {
        let (key, item) = (&request.keys[index], &request.items[index]);
        let run_blocks = namespace.info.options.run_blocks;
        let leader = request.leaders.leader(&request.keys, index, run_blocks);
        if self.find(namespace.info.id, key, leader).is_some() {
            namespace.metrics.exists.inc();
            return PutItemPlan::Skip(ItemStatus::Exists);
        }
        let quota = namespace.info.options.quota.0;
        if quota > 0 && self.used_bytes(namespace.info.id) + ahead + u64::from(item.len) > quota {
            return PutItemPlan::Skip(ItemStatus::Quota);
        }
        PutItemPlan::Store(self.place(namespace.info.id, key, leader))
    }

    /// Bytes that a namespace holds on all disks.
    #[must_use]
    pub fn used_bytes(&self, group: GroupId) -> u64 {
        self.disks.iter().map(|disk| disk.engine.group_usage(group).bytes).sum()
    }

    /// Stores one value and waits for its acknowledgement.
    pub async fn put_one(
        self: Arc<Self>,
        namespace: Arc<Namespace>,
        write: PutWrite,
    ) -> ItemStatus {
        let started = RealClock::tick();
        let options = &namespace.info.options;
        let len = write.bytes.len() as u64;
        let request = WriteRequest {
            bytes: write.bytes,
            crc: write.crc,
            attrs: write.key.as_bytes(),
            group: namespace.info.id,
            priority: options.priority as u8,
            expires: expiry(options.ttl_seconds),
            evictable: options.evict,
            mode: WriteMode::IfAbsent,
            ack: options.ack,
        };
        let disk = &self.disks[write.place.disk];
        let status = match disk.engine.write(write.place.id, request).await {
            Ok(WriteOutcome::Stored(_)) => {
                disk.write_worked();
                namespace.metrics.stored.inc();
                namespace.metrics.bytes_in.add(len);
                ItemStatus::Ok
            }
            Ok(WriteOutcome::Exists) => {
                namespace.metrics.exists.inc();
                ItemStatus::Exists
            }
            Err(error) => disk.write_failed(&error),
        };
        self.metrics.stages.commit.observe(RealClock::tick().since(started));
        status
    }
}

fn expiry(ttl_seconds: u32) -> Option<UnixSeconds> {
    if ttl_seconds == 0 {
        return None;
    }
    let now = u32::try_from(RealClock::wall_ms() / 1000).unwrap_or(u32::MAX);
    Some(UnixSeconds(now.saturating_add(ttl_seconds)))
}
