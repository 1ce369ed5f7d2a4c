//! Counters for the `Stats` verb.

use millpond_env::RealClock;
use millpond_types::wire::StatsReply;

use super::Service;
use super::namespaces::Namespace;

impl Service {
    /// Counters of one namespace.
    #[must_use]
    pub fn namespace_stats(&self, namespace: &Namespace) -> StatsReply {
        let metrics = &namespace.metrics;
        let group = namespace.info.id;
        let (chunks, bytes) = self.disks.iter().fold((0, 0), |(chunks, bytes), disk| {
            let usage = disk.engine.group_usage(group);
            (chunks + usage.chunks, bytes + usage.bytes)
        });
        let values = [
            ("keys", chunks),
            ("bytes", bytes),
            ("quota_bytes", namespace.info.options.quota.0),
            ("quota_used_bytes", self.quota_used(group)),
            ("hits", metrics.hits.get()),
            ("misses", metrics.misses.get()),
            ("stored", metrics.stored.get()),
            ("exists", metrics.exists.get()),
            ("evicted", self.evicted_of(namespace)),
            ("over_quota", metrics.over_quota.get()),
            ("bytes_in", metrics.bytes_in.get()),
            ("bytes_out", metrics.bytes_out.get()),
        ];
        reply(&values)
    }

    /// Counters of the whole server.
    #[must_use]
    pub fn server_stats(&self) -> StatsReply {
        let metrics = &self.metrics;
        let capacity = self.disks.iter().map(|disk| disk.capacity).sum();
        let corrupt = self.disks.iter().map(|disk| disk.engine.metrics().corruptions.get()).sum();
        let values = [
            ("disks", self.disks.len() as u64),
            ("capacity_bytes", capacity),
            ("namespaces", self.namespaces.all().len() as u64),
            ("pool_bytes", self.pool.capacity() as u64),
            ("pool_used_bytes", self.pool.used() as u64),
            ("connections", metrics.connections.get()),
            ("requests_in_flight", metrics.in_flight.get()),
            ("memory_hits", metrics.memory_hits.get()),
            ("disk_reads", metrics.disk_reads.get()),
            ("bytes_in", metrics.bytes_in.get()),
            ("bytes_out", metrics.bytes_out.get()),
            ("busy", metrics.busy.get()),
            ("late", metrics.late.get()),
            ("corrupt", corrupt),
            ("lost_chunks", self.host().map_or(0, |host| host.numbers().lost)),
            ("shm_clients", metrics.shm_clients.get()),
            // Last, so that it is read shortly before the reply leaves: operators compare clocks
            // with it.
            ("unix_ms", RealClock::wall_ms()),
        ];
        reply(&values)
    }
}

fn reply(values: &[(&str, u64)]) -> StatsReply {
    StatsReply { values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() }
}
