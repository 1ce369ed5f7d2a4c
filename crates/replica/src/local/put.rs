//! Storing values: the first one stored under a key wins.

use std::sync::Arc;

use millpond_env::{RealClock, SharedBuf};
use millpond_types::wire::{ItemStatus, PutRequest};
use millpond_types::{BlockKey, ChunkId, Crc32c, GroupId};

use super::Service;
use super::namespaces::Namespace;
use crate::Update;

/// Plan for one value of a put, made before its bytes are received.
#[derive(Clone, Copy, Debug)]
pub enum PutItemPlan {
    /// Receive and store it.
    Store(Place),
    /// Skip its bytes and answer with this status.
    Skip(ItemStatus),
}

/// Destination of a value, and its update through the chain.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    id: ChunkId,
    update: Update,
}

/// A value that was received, about to be stored.
#[derive(Debug)]
pub struct PutWrite {
    /// Its destination.
    pub place: Place,
    /// Its key.
    pub key: BlockKey,
    /// Its bytes, in a buffer that becomes the copy in memory.
    pub bytes: SharedBuf,
    /// Its checksum as computed by the client; the engine compares it.
    pub crc: Crc32c,
}

impl Service {
    /// Decides whether the value at `index` will be stored.
    #[must_use]
    pub fn plan_put(
        &self,
        namespace: &Namespace,
        request: &PutRequest,
        index: usize,
    ) -> PutItemPlan {
        let Some(host) = self.host() else { return PutItemPlan::Skip(ItemStatus::Moved) };
        let key = &request.keys[index];
        let run_blocks = namespace.info.options.run_blocks;
        let leader = request.leaders.leader(&request.keys, index, run_blocks);
        // Its chain decides whether it exists already, for every attempt alike.
        let id = host.block_id(namespace.info.id, key);
        let tag = request.tags.as_ref().map(|tags| (tags.client, tags.items[index]));
        let update = Update::new(namespace.info.id, leader, tag);
        match host.takes(&update, id) {
            Ok(()) => PutItemPlan::Store(Place { id, update }),
            Err(status) => PutItemPlan::Skip(status),
        }
    }

    /// A value that was received for the item at `index` of a request.
    #[must_use]
    pub fn put_write(
        &self,
        request: &PutRequest,
        index: usize,
        place: Place,
        bytes: SharedBuf,
    ) -> PutWrite {
        PutWrite { place, key: request.keys[index], bytes, crc: request.items[index].crc }
    }

    /// Blocks of a namespace evicted since the server started, to make room or to keep its quota.
    #[must_use]
    pub fn evicted_of(&self, namespace: &Namespace) -> u64 {
        self.host().map_or(0, |host| host.evicted_of(namespace.info.id))
    }

    /// Bytes of a namespace that count against its quota: those on chains that this node heads,
    /// each value once.
    #[must_use]
    pub fn quota_used(&self, group: GroupId) -> u64 {
        self.host().map_or(0, |host| host.quota_used(group))
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
        let Some(host) = self.host() else { return ItemStatus::Moved };
        let of = (namespace.info.id, &namespace.info.options);
        let len = write.bytes.len() as u64;
        let Place { id, update } = write.place;
        let admitted = host.admit(of, &update, (id, len)).await;
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
        status
    }
}
