//! The page of metrics. `docs/metrics.md` lists the names; a test compares.

use std::sync::Arc;

use millpond_types::metrics::{Histogram, Page, label};
use millpond_types::wire::Verb;

use super::cluster;
use millpond_control::member::Member;
use millpond_replica::local::{NodeDisk, Service};

/// The verb's name in snake case.
fn verb_name(verb: Verb) -> String {
    let mut text = String::new();
    for (index, letter) in verb.name().chars().enumerate() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// The page of `/metrics`.
pub(super) fn render(
    service: &Service,
    member: Option<&Arc<Member>>,
    gateway: Option<&Arc<millpond_s3::Metrics>>,
    sees: &dyn Fn(&str) -> bool,
) -> String {
    let mut page = Page::default();
    requests(&mut page, service);
    connections(&mut page, service);
    namespaces(&mut page, service, sees);
    disks(&mut page, service);
    engines(&mut page, service);
    disk_times(&mut page, service);
    if let Some(member) = member {
        cluster::pages(&mut page, service, member);
    }
    if let Some(gateway) = gateway {
        gateway.render(&mut page);
    }
    page.into_text()
}

fn requests(page: &mut Page, service: &Service) {
    let metrics = &service.metrics;
    let verbs =
        || Verb::ALL.iter().map(|verb| (label("verb", &verb_name(*verb)), metrics.verb(*verb)));
    page.histograms(
        ("millpond_request_seconds", "Time from receipt of a request's header to its reply."),
        verbs().map(|(labels, verb)| (labels, verb.latency.snapshot())),
    );
    page.many(
        ("millpond_requests_failed_total", "Requests answered with a status other than Ok."),
        "counter",
        verbs().map(|(labels, verb)| (labels, verb.failed.get())),
    );
    let stages = &metrics.stages;
    page.histograms(
        ("millpond_stage_seconds", "Time of each stage of a request."),
        [
            ("queue", &stages.queue),
            ("receive", &stages.receive),
            ("copy", &stages.copy),
            ("disk", &stages.disk),
            ("commit", &stages.commit),
            ("send", &stages.send),
        ]
        .into_iter()
        .map(|(stage, histogram)| (label("stage", stage), histogram.snapshot())),
    );
    for (family, kind, value) in [
        (("millpond_requests_in_flight", "Requests in flight."), "gauge", metrics.in_flight.get()),
        (
            ("millpond_in_flight_bytes", "Bytes of values held by requests and replies."),
            "gauge",
            metrics.in_flight_bytes.get(),
        ),
        (
            ("millpond_busy_total", "Requests or values answered Busy."),
            "counter",
            metrics.busy.get(),
        ),
        (
            ("millpond_late_total", "Requests that missed their deadline."),
            "counter",
            metrics.late.get(),
        ),
        (("millpond_receive_bytes_total", "Payload received."), "counter", metrics.bytes_in.get()),
        (("millpond_send_bytes_total", "Payload sent."), "counter", metrics.bytes_out.get()),
        (
            ("millpond_memory_hits_total", "Values read from memory."),
            "counter",
            metrics.memory_hits.get(),
        ),
        (
            ("millpond_disk_reads_total", "Values read from a disk."),
            "counter",
            metrics.disk_reads.get(),
        ),
    ] {
        page.one(family, kind, value);
    }
}

fn connections(page: &mut Page, service: &Service) {
    let metrics = &service.metrics;
    for (family, kind, value) in [
        (("millpond_connections", "Open connections."), "gauge", metrics.connections.get()),
        (
            ("millpond_connections_total", "Connections accepted."),
            "counter",
            metrics.accepted.get(),
        ),
        (
            ("millpond_connections_refused_total", "Connections above limits.connections."),
            "counter",
            metrics.refused.get(),
        ),
        (
            ("millpond_protocol_errors_total", "Connections closed for a protocol error."),
            "counter",
            metrics.protocol_errors.get(),
        ),
        (
            ("millpond_unauthorized_total", "Hellos without a known token."),
            "counter",
            metrics.unauthorized.get(),
        ),
        (
            ("millpond_stalled_clients_total", "Clients disconnected: no byte went either way."),
            "counter",
            metrics.stalled.get(),
        ),
        (("millpond_shm_clients", "Shared-memory clients."), "gauge", metrics.shm_clients.get()),
        (
            ("millpond_shm_receive_bytes_total", "Payload received through shared memory."),
            "counter",
            metrics.shm_bytes_in.get(),
        ),
        (
            (
                "millpond_own_send_bytes_total",
                "Payload that this process's gateway sent in place, without a copy.",
            ),
            "counter",
            metrics.own_bytes_out.get(),
        ),
        (
            (
                "millpond_shm_holds_expired_total",
                "Values that the server took back from shared-memory clients.",
            ),
            "counter",
            metrics.holds_expired.get(),
        ),
        (
            (
                "millpond_shm_lent_overdue_total",
                "Replies with values that shared-memory clients used for longer than limits.hold.",
            ),
            "counter",
            metrics.holds_overdue.get(),
        ),
        (("millpond_pool_bytes", "Memory for values."), "gauge", service.pool.capacity() as u64),
        (
            ("millpond_pool_used_bytes", "Memory for values in use."),
            "gauge",
            service.pool.used() as u64,
        ),
    ] {
        page.one(family, kind, value);
    }
}

/// Metrics of those namespaces that the reader may see.
fn namespaces(page: &mut Page, service: &Service, sees: &dyn Fn(&str) -> bool) {
    let mut all = service.namespaces.all();
    all.retain(|namespace| sees(&namespace.info.name));
    let mut each = |name: &str, help: &str, kind: &str, value: &dyn Fn(usize) -> u64| {
        let values = all.iter().enumerate();
        let values = values.map(|(at, ns)| (label("namespace", &ns.info.name), value(at)));
        page.many((name, help), kind, values);
    };
    let metrics = |at: usize| &all[at].metrics;
    each("millpond_namespace_bytes", "Bytes of stored values.", "gauge", &|at| {
        service.used_bytes(all[at].info.id)
    });
    each("millpond_namespace_hits_total", "Keys read and found.", "counter", &|at| {
        metrics(at).hits.get()
    });
    each("millpond_namespace_misses_total", "Keys read and not found.", "counter", &|at| {
        metrics(at).misses.get()
    });
    each("millpond_namespace_stored_total", "Values stored.", "counter", &|at| {
        metrics(at).stored.get()
    });
    each(
        "millpond_namespace_exists_total",
        "Puts that found an existing value.",
        "counter",
        &|at| metrics(at).exists.get(),
    );
    let help = "Values evicted to free a disk, or to keep the quota.";
    each("millpond_namespace_evictions_total", help, "counter", &|at| service.evicted_of(&all[at]));
    let help = "Values rejected because of the quota.";
    each("millpond_namespace_over_quota_total", help, "counter", &|at| {
        metrics(at).over_quota.get()
    });
    each("millpond_namespace_receive_bytes_total", "Bytes stored.", "counter", &|at| {
        metrics(at).bytes_in.get()
    });
    each("millpond_namespace_send_bytes_total", "Bytes read.", "counter", &|at| {
        metrics(at).bytes_out.get()
    });
}

/// A number of a disk.
type OfDisk<'f> = &'f dyn Fn(&NodeDisk) -> u64;

/// Writes one number of every disk.
fn each_disk(page: &mut Page, service: &Service) -> impl FnMut(&str, &str, &str, OfDisk<'_>) {
    |name, help, kind, value| {
        let values = service.disks.iter().map(|disk| (label("disk", &disk.name), value(disk)));
        page.many((name, help), kind, values);
    }
}

fn disks(page: &mut Page, service: &Service) {
    let mut each = each_disk(page, service);
    each("millpond_disk_capacity_bytes", "Bytes for values.", "gauge", &|disk| {
        disk.engine.stats().usable_bytes
    });
    each("millpond_disk_used_bytes", "Bytes in use.", "gauge", &|disk| {
        disk.engine.stats().used_bytes
    });
    each("millpond_disk_free_segments", "Free segments.", "gauge", &|disk| {
        disk.engine.stats().free_segments
    });
    each(
        "millpond_disk_compactable_segments",
        "Segments that compaction can free.",
        "gauge",
        &|disk| disk.engine.stats().compactable_segments,
    );
    each("millpond_disk_chunks", "Values stored.", "gauge", &|disk| disk.engine.stats().chunks);
    each("millpond_disk_index_bytes", "Memory of the index.", "gauge", &|disk| {
        disk.engine.index_bytes()
    });
    each(
        "millpond_disk_index_live_bytes",
        "Memory of the index without the remains of removed values.",
        "gauge",
        &|disk| disk.engine.stats().index_bytes,
    );
    each("millpond_disk_index_max_bytes", "Limit of the memory of the index.", "gauge", &|disk| {
        disk.engine.stats().index_bytes_max
    });
    each(
        "millpond_disk_dirty_bytes",
        "Bytes in memory that are not yet on the disk.",
        "gauge",
        &|disk| disk.engine.stats().dirty_bytes,
    );
    each("millpond_disk_leased_bytes", "Bytes under a lease.", "gauge", &|disk| {
        disk.engine.stats().leased_bytes
    });
    each("millpond_disk_read_only", "1 if the disk rejects writes.", "gauge", &|disk| {
        u64::from(disk.engine.stats().read_only)
    });
}

fn engines(page: &mut Page, service: &Service) {
    let mut each = each_disk(page, service);
    each("millpond_engine_memory_hits_total", "Reads answered from memory.", "counter", &|disk| {
        disk.engine.metrics().dram_hits.get()
    });
    each("millpond_engine_disk_hits_total", "Reads answered from the disk.", "counter", &|disk| {
        disk.engine.metrics().disk_hits.get()
    });
    each("millpond_engine_evictions_total", "Values evicted.", "counter", &|disk| {
        disk.engine.metrics().evictions.get()
    });
    each("millpond_engine_expirations_total", "Values expired.", "counter", &|disk| {
        disk.engine.metrics().expirations.get()
    });
    each(
        "millpond_engine_corruptions_total",
        "Values with a checksum mismatch.",
        "counter",
        &|disk| disk.engine.metrics().corruptions.get(),
    );
    each("millpond_engine_io_errors_total", "Failed reads and writes.", "counter", &|disk| {
        disk.engine.metrics().io_errors.get()
    });
    each("millpond_engine_commits_total", "Log flushes.", "counter", &|disk| {
        disk.engine.metrics().commits.get()
    });
    each("millpond_engine_commit_records_total", "Records in log flushes.", "counter", &|disk| {
        disk.engine.metrics().commit_records.get()
    });
    each(
        "millpond_engine_patches_total",
        "Small writes that are stored in the log only.",
        "counter",
        &|disk| disk.engine.metrics().patches.get(),
    );
    each("millpond_engine_patch_bytes_total", "Bytes of patches.", "counter", &|disk| {
        disk.engine.metrics().patch_bytes.get()
    });
    each("millpond_engine_folds_total", "Patched chunks that were folded.", "counter", &|disk| {
        disk.engine.metrics().folds.get()
    });
    each("millpond_engine_compacted_total", "Values moved by compaction.", "counter", &|disk| {
        disk.engine.metrics().compacted.get()
    });
    each(
        "millpond_engine_scrubbed_bytes_total",
        "Bytes verified by the scrubber.",
        "counter",
        &|disk| disk.engine.metrics().scrubbed_bytes.get(),
    );
    each(
        "millpond_engine_dropped_writes_total",
        "Acknowledged values that could not be written.",
        "counter",
        &|disk| disk.engine.metrics().dropped_writes.get(),
    );
}

fn disk_times(page: &mut Page, service: &Service) {
    type Pick = fn(&NodeDisk) -> &Histogram;
    let stages: [(&str, Pick); 5] = [
        ("queue", |disk| &disk.engine.metrics().queue),
        ("read", |disk| &disk.engine.metrics().disk_read),
        ("write", |disk| &disk.engine.metrics().disk_write),
        ("commit", |disk| &disk.engine.metrics().commit_wait),
        ("flush", |disk| &disk.engine.metrics().log_flush),
    ];
    let values = service.disks.iter().flat_map(|disk| {
        stages.iter().map(move |(stage, pick)| {
            let labels = format!("{},{}", label("disk", &disk.name), label("stage", stage));
            (labels, pick(disk).snapshot())
        })
    });
    page.histograms(("millpond_engine_seconds", "Time of each stage of the engine."), values);
}
