//! Facts about the server as JSON.

use serde_json::json;

use crate::server::Summary;
use millpond_replica::local::Service;

/// The body of `/v1/info`.
pub(super) fn render(service: &Service, summary: &Summary, sees: &dyn Fn(&str) -> bool) -> String {
    let disks: Vec<_> = service
        .disks
        .iter()
        .map(|disk| {
            let stats = disk.engine.stats();
            json!({
                "path": disk.name,
                "id": disk.id.to_string(),
                "capacity_bytes": disk.capacity,
                "usable_bytes": stats.usable_bytes,
                "used_bytes": stats.used_bytes,
                "chunks": stats.chunks,
                "read_only": stats.read_only,
            })
        })
        .collect();
    let namespaces: Vec<_> = service
        .namespaces
        .all()
        .iter()
        .filter(|namespace| sees(&namespace.info.name))
        .map(|namespace| {
            json!({
                "id": namespace.info.id.0,
                "name": namespace.info.name,
                "bytes": service.used_bytes(namespace.info.id),
                "quota_bytes": namespace.info.options.quota.0,
            })
        })
        .collect();
    let text = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": crate::BUILD,
        "node": service.node_id().to_string(),
        "cluster": summary.cluster_id.to_string(),
        "listen": summary.listen.map(|address| address.to_string()),
        "socket": summary.socket.as_ref().map(|path| path.display().to_string()),
        "io": summary.io,
        "cores": summary.cores,
        "memory_bytes": summary.memory.total,
        "pool_bytes": summary.memory.pool,
        "index_bytes_max": summary.memory.index,
        "tls": summary.tls,
        "tokens": summary.tokens,
        "disks": disks,
        "namespaces": namespaces,
    });
    format!("{text}\n")
}
