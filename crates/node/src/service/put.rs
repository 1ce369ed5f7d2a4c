//! Storing values: the first one stored under a key wins.

use std::sync::Arc;

use millpond_engine::WriteOutcome;
use millpond_env::{RealClock, SharedBuf};
use millpond_types::wire::{ItemStatus, PutRequest};
use millpond_types::{BlockKey, Crc32c, GroupId, NamespaceOptions, UnixSeconds};

use super::hash;
use super::namespaces::Namespace;
use super::{Place, Service, WriteMode, WriteRequest};
use crate::replica::Update;

/// A namespace at its quota makes room for more than one put, a 64th of the quota, so that the log
/// and the counting are paid once for many; but not for so much that a core is held up: 8 MiB are
/// 2,048 of the smallest blocks, some 2 ms.
const QUOTA_BATCH_SHARE: u64 = 64;
const QUOTA_BATCH_BYTES_MAX: u64 = 8 << 20;

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
    /// How it goes through its chain, on a node of a cluster.
    update: Option<Update>,
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
        if let Some(host) = self.host() {
            // Whether it is there already is decided by its chain, for every attempt alike.
            let id = hash::chunk_id(namespace.info.id, key);
            let tag = request.tags.as_ref().map(|tags| (tags.client, tags.items[index]));
            let update = Update::new(namespace.info.id, leader, tag);
            return match host.takes(&update, id) {
                Ok(()) => PutItemPlan::Store(Place { id, disk: 0 }),
                Err(status) => PutItemPlan::Skip(status),
            };
        }
        if self.find(namespace.info.id, key, leader).is_some() {
            namespace.metrics.exists.inc();
            return PutItemPlan::Skip(ItemStatus::Exists);
        }
        let place = self.place(namespace.info.id, key, leader);
        if !self.fits_quota(namespace, place, ahead + u64::from(item.len)) {
            namespace.metrics.over_quota.inc();
            return PutItemPlan::Skip(ItemStatus::Quota);
        }
        PutItemPlan::Store(place)
    }

    /// A value that was received for the item at `index` of a request.
    #[must_use]
    pub fn put_write(
        &self,
        namespace: &Namespace,
        (request, index): (&PutRequest, usize),
        place: Place,
        bytes: SharedBuf,
    ) -> PutWrite {
        let key = request.keys[index];
        let update = self.host().map(|_| {
            let run_blocks = namespace.info.options.run_blocks;
            let leader = request.leaders.leader(&request.keys, index, run_blocks);
            let tag = request.tags.as_ref().map(|tags| (tags.client, tags.items[index]));
            Update::new(namespace.info.id, leader, tag)
        });
        PutWrite { place, key, bytes, crc: request.items[index].crc, update }
    }

    /// Whether the namespace may hold `wanted` bytes more, after it gave up its own coldest blocks if
    /// it allows eviction.
    ///
    /// Values being received by other requests are not counted: what is in flight may go over the
    /// quota for a moment, and the next put evicts it again.
    fn fits_quota(&self, namespace: &Namespace, place: Place, wanted: u64) -> bool {
        let NamespaceOptions { quota, evict, .. } = &namespace.info.options;
        let (quota, group) = (quota.0, namespace.info.id);
        if quota == 0 {
            return true;
        }
        let over = (self.used_bytes(group) + wanted).saturating_sub(quota);
        if over == 0 || !evict || wanted > quota {
            // A value that could never fit must not cost what is there.
            return over == 0;
        }
        let batch = (quota / QUOTA_BATCH_SHARE).min(QUOTA_BATCH_BYTES_MAX);
        self.evict_own(namespace, place, over.max(batch));
        self.used_bytes(group) + wanted <= quota
    }

    /// Evicts `bytes` of a namespace, first on the disk where a block is about to go: that keeps the
    /// disks as evenly filled as placement does.
    fn evict_own(&self, namespace: &Namespace, place: Place, bytes: u64) {
        let others = (0..self.disks.len()).filter(|disk| *disk != place.disk);
        let mut left = bytes;
        for disk in std::iter::once(place.disk).chain(others) {
            let evicted = self.disks[disk].engine.evict_group(namespace.info.id, left);
            namespace.metrics.evicted.add(evicted.chunks);
            left = left.saturating_sub(evicted.bytes);
            if left == 0 {
                break;
            }
        }
    }

    /// Blocks of a namespace evicted to keep its quota, since the server started.
    #[must_use]
    pub fn quota_evicted(&self, namespace: &Namespace) -> u64 {
        let here = self.host().map_or(0, |host| host.quota_evicted(namespace.info.id));
        here + namespace.metrics.evicted.get()
    }

    /// Bytes of a namespace that count against its quota: in a cluster those on chains that this node
    /// heads, each value once.
    #[must_use]
    pub fn quota_used(&self, group: GroupId) -> u64 {
        self.host().map_or_else(|| self.used_bytes(group), |host| host.quota_used(group))
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
        if let Some((host, update)) = self.host().zip(write.update) {
            let of = (namespace.info.id, options);
            let admitted = host.admit(of, &update, (write.place.id, len)).await;
            let status = match &admitted {
                Ok(_) => host.put(of, update, &write.key, (write.bytes, write.crc)).await,
                Err(status) => *status,
            };
            drop(admitted);
            match status {
                ItemStatus::Ok => {
                    namespace.metrics.stored.inc();
                    namespace.metrics.bytes_in.add(len);
                }
                ItemStatus::Exists => namespace.metrics.exists.inc(),
                ItemStatus::Quota => namespace.metrics.over_quota.inc(),
                _ => {}
            }
            self.metrics.stages.commit.observe(RealClock::tick().since(started));
            return status;
        }
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
