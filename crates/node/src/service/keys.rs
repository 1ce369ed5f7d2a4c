//! The verbs that carry keys and no values.

use std::time::Duration;

use millpond_engine::Cursor;
use millpond_env::RealClock;
use millpond_types::limits::LEASE_MS_MAX;
use millpond_types::wire::{
    ItemStatus, KeyInfo, KeysRequest, ListReply, ListRequest, MatchReply, MatchRequest,
};
use millpond_types::{BlockKey, ChunkId};

use super::namespaces::Namespace;
use super::{Failure, Place, Service};

/// Bits of a list cursor that belong to the engine; the disk's index stands above them.
const CURSOR_BITS: u32 = 56;

const fn status(done: bool) -> ItemStatus {
    if done { ItemStatus::Ok } else { ItemStatus::Miss }
}

impl Service {
    fn places<'a>(
        &'a self,
        namespace: &'a Namespace,
        request: &'a KeysRequest,
    ) -> impl Iterator<Item = Option<Place>> + 'a {
        let run_blocks = namespace.info.options.run_blocks;
        request.keys.iter().enumerate().map(move |(index, key)| {
            let leader = request.leaders.leader(&request.keys, index, run_blocks);
            self.find(request.namespace, key, leader).map(|(place, _)| place)
        })
    }

    /// Which keys are present.
    #[must_use]
    pub fn contains(&self, namespace: &Namespace, request: &KeysRequest) -> Vec<ItemStatus> {
        self.places(namespace, request).map(|place| status(place.is_some())).collect()
    }

    /// Marks keys as recently used.
    #[must_use]
    pub fn touch(&self, namespace: &Namespace, request: &KeysRequest) -> Vec<ItemStatus> {
        self.places(namespace, request)
            .map(|place| status(place.is_some_and(|p| self.disks[p.disk].engine.touch(p.id))))
            .collect()
    }

    /// Counts the leading keys that are present and leases them.
    #[must_use]
    pub fn match_prefix(&self, namespace: &Namespace, request: &MatchRequest) -> MatchReply {
        let lease_ms = request.lease_ms.min(LEASE_MS_MAX);
        let until = RealClock::tick().plus(Duration::from_millis(u64::from(lease_ms)));
        let mut reply = MatchReply { matched: 0, leased: 0 };
        for place in self.places(namespace, &request.keys) {
            let Some(place) = place else { break };
            let all_leased = reply.leased == reply.matched;
            if lease_ms > 0 && all_leased && self.disks[place.disk].engine.lease(place.id, until) {
                reply.leased += 1;
            }
            reply.matched += 1;
        }
        reply
    }

    /// Which keys are present, and which of them are leased now: `Ok`, `Exists` or `Miss`.
    #[must_use]
    pub fn match_each(&self, namespace: &Namespace, request: &MatchRequest) -> Vec<ItemStatus> {
        let lease_ms = request.lease_ms.min(LEASE_MS_MAX);
        let until = RealClock::tick().plus(Duration::from_millis(u64::from(lease_ms)));
        let lease = |place: Place| {
            let leased = lease_ms > 0 && self.disks[place.disk].engine.lease(place.id, until);
            if leased { ItemStatus::Ok } else { ItemStatus::Exists }
        };
        let places = self.places(namespace, &request.keys);
        places.map(|place| place.map_or(ItemStatus::Miss, lease)).collect()
    }

    /// Pins or unpins keys.
    ///
    /// # Errors
    /// [`Failure`] when a disk refuses.
    pub async fn set_pinned(
        &self,
        namespace: &Namespace,
        request: &KeysRequest,
        pinned: bool,
    ) -> Result<Vec<ItemStatus>, Failure> {
        let mut items = Vec::with_capacity(request.keys.len());
        let places: Vec<_> = self.places(namespace, request).collect();
        for place in places {
            let Some(place) = place else {
                items.push(ItemStatus::Miss);
                continue;
            };
            let disk = &self.disks[place.disk];
            let done = disk.engine.set_pinned(place.id, pinned).await;
            items.push(status(done.map_err(|error| disk.failure(&error))?));
        }
        Ok(items)
    }

    /// Removes keys.
    ///
    /// # Errors
    /// [`Failure`] when a disk refuses.
    pub async fn delete(
        &self,
        namespace: &Namespace,
        request: &KeysRequest,
    ) -> Result<Vec<ItemStatus>, Failure> {
        let mut items = Vec::with_capacity(request.keys.len());
        let mut ids: Vec<Vec<ChunkId>> = vec![Vec::new(); self.disks.len()];
        for place in self.places(namespace, request) {
            items.push(status(place.is_some()));
            if let Some(place) = place {
                ids[place.disk].push(place.id);
            }
        }
        for (disk, ids) in self.disks.iter().zip(ids) {
            if ids.is_empty() {
                continue;
            }
            let done = disk.engine.delete(&ids, namespace.info.options.ack).await;
            done.map_err(|error| disk.failure(&error))?;
        }
        Ok(items)
    }

    /// One page of the keys of a namespace, disk after disk.
    #[must_use]
    pub fn list(&self, request: &ListRequest) -> ListReply {
        let mut disk = usize::try_from(request.cursor >> CURSOR_BITS).unwrap_or(usize::MAX);
        let mut inner = request.cursor & ((1 << CURSOR_BITS) - 1);
        let mut keys = Vec::new();
        let limit = request.limit as usize;
        while disk < self.disks.len() && keys.len() < limit {
            let (page, next) = self.disks[disk].engine.scan(
                Some(request.namespace),
                Cursor(inner),
                limit - keys.len(),
            );
            keys.extend(page.into_iter().filter_map(|(info, attrs)| {
                let key = BlockKey::new(&attrs).ok()?;
                key.as_bytes().starts_with(&request.prefix).then_some(KeyInfo {
                    key,
                    len: info.len,
                    expires: info.expires.map_or(0, |at| at.0),
                    pinned: info.pinned,
                })
            }));
            (disk, inner) = next.map_or((disk + 1, 0), |next| (disk, next.0));
        }
        let ended = disk >= self.disks.len();
        ListReply { cursor: if ended { 0 } else { (disk as u64) << CURSOR_BITS | inner }, keys }
    }
}
