//! The metrics of mounts as Prometheus text. `docs/metrics.md` lists the names; a test compares.

use millpond_types::metrics::{Page, label};

use super::numbers::{CallPicture, Picture};
use crate::journal;

/// A mount on the page.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The mount point.
    pub(crate) mount: String,
    /// None while it is not served.
    pub(crate) picture: Option<Picture>,
}

/// One mount with its label.
type Labelled<'a> = (String, &'a Picture);

/// Makes the page of several mounts, which have different mount points.
pub(crate) fn page(mounts: &[Shown]) -> String {
    let mut page = Page::default();
    let serving = mounts
        .iter()
        .map(|shown| (label("mount", &shown.mount), u64::from(shown.picture.is_some())));
    page.many(("millpond_mount_serving", "1 while requests are served."), "gauge", serving);
    let served: Vec<Labelled<'_>> = mounts
        .iter()
        .filter_map(|shown| Some((label("mount", &shown.mount), shown.picture.as_ref()?)))
        .collect();
    operations(&mut page, &served);
    calls(&mut page, &served);
    for (family, kind, number) in NUMBERS {
        let values = served.iter().map(|(mount, picture)| (mount.clone(), number(picture)));
        page.many(*family, kind, values);
    }
    page.into_text()
}

fn operations(page: &mut Page, served: &[Labelled<'_>]) {
    let each = || {
        served.iter().flat_map(|(mount, picture)| {
            picture.operations.iter().map(move |operation| {
                (format!("{mount},{}", label("operation", &operation.name)), operation)
            })
        })
    };
    page.histograms(
        (
            "millpond_mount_operation_seconds",
            "Time from receipt of a request until its answer is ready.",
        ),
        each().map(|(labels, operation)| (labels, operation.took.clone())),
    );
    page.many(
        ("millpond_mount_operations_failed_total", "Requests answered with an error."),
        "counter",
        each().map(|(labels, operation)| (labels, operation.failed)),
    );
    let errors = served.iter().flat_map(|(mount, picture)| {
        let errors = picture.errors.iter();
        errors.map(move |(name, count)| (format!("{mount},{}", label("errno", name)), *count))
    });
    page.many(
        ("millpond_mount_errors_total", "Requests answered with an error, by errno."),
        "counter",
        errors,
    );
}

fn calls(page: &mut Page, served: &[Labelled<'_>]) {
    type Pick = fn(&Picture) -> &[CallPicture];
    let kinds: [(&str, Pick); 2] =
        [("meta", |picture| &picture.meta), ("chunk", |picture| &picture.chunks)];
    for (kind, pick) in kinds {
        let each = || {
            served.iter().flat_map(|(mount, picture)| {
                let calls = pick(picture).iter();
                calls.map(move |call| (format!("{mount},{}", label("call", call.0)), call))
            })
        };
        page.histograms(
            (&format!("millpond_mount_{kind}_seconds"), "Calls to the cluster, retries included."),
            each().map(|(labels, call)| (labels, call.1.clone())),
        );
        page.many(
            (&format!("millpond_mount_{kind}_failed_total"), "Failed calls to the cluster."),
            "counter",
            each().map(|(labels, call)| (labels, call.2)),
        );
    }
}

type Number = ((&'static str, &'static str), &'static str, fn(&Picture) -> u64);

const NUMBERS: &[Number] = &[
    (("millpond_mount_read_bytes_total", "Bytes read."), "counter", |picture| picture.read_bytes),
    (("millpond_mount_written_bytes_total", "Bytes written."), "counter", |picture| {
        picture.written_bytes
    }),
    (("millpond_mount_in_flight", "Requests in progress."), "gauge", |picture| picture.in_flight),
    (
        ("millpond_mount_resent_total", "Requests that the kernel sent again."),
        "counter",
        |picture| picture.resent,
    ),
    (
        ("millpond_mount_repeated_total", "Resent requests that the journal knew."),
        "counter",
        |picture| picture.repeated,
    ),
    (
        ("millpond_mount_taken_over_total", "Times that another process took the mount over."),
        "counter",
        |picture| u64::from(picture.files.taken_over),
    ),
    (("millpond_mount_open_inodes", "Open inodes."), "gauge", |picture| picture.files.inodes),
    (
        ("millpond_mount_open_handles", "Open file descriptions of these inodes."),
        "gauge",
        |picture| picture.files.handles,
    ),
    (
        ("millpond_mount_untold_inodes", "Written files with a length that no meta knows yet."),
        "gauge",
        |picture| picture.files.untold,
    ),
    (
        ("millpond_mount_promised_changes", "Acknowledged changes that no meta knows yet."),
        "gauge",
        |picture| picture.files.promised,
    ),
    (
        ("millpond_mount_broken_promises_total", "Acknowledged changes that no meta could do."),
        "counter",
        |picture| picture.files.broken,
    ),
    (
        ("millpond_mount_delegated_directories", "Directories delegated to the mount."),
        "gauge",
        |picture| picture.delegations.0,
    ),
    (
        ("millpond_mount_recalled_directories_total", "Delegations that metas recalled."),
        "counter",
        |picture| picture.delegations.1,
    ),
    (("millpond_mount_journal_bytes", "Bytes in the journal."), "gauge", |picture| {
        picture.files.journal_bytes
    }),
    (
        ("millpond_mount_journal_capacity_bytes", "Size at which the journal is rewritten."),
        "gauge",
        |_| journal::HALF_BYTES,
    ),
    (("millpond_mount_log_readers", "Readers of the access log."), "gauge", |picture| {
        picture.log_readers
    }),
    (
        (
            "millpond_mount_log_dropped_total",
            "Lines of the access log dropped because a reader was too slow.",
        ),
        "counter",
        |picture| picture.log_dropped,
    ),
    (("millpond_mount_ahead_fetched_bytes_total", "Bytes of read-ahead."), "counter", |picture| {
        picture.ahead.fetched
    }),
    (
        ("millpond_mount_ahead_used_bytes_total", "Read-ahead bytes that were read."),
        "counter",
        |picture| picture.ahead.used,
    ),
    (
        ("millpond_mount_ahead_wasted_bytes_total", "Read-ahead bytes that were not read."),
        "counter",
        |picture| picture.ahead.wasted,
    ),
    (
        (
            "millpond_mount_again_fetched_bytes_total",
            "Bytes fetched to hold for repeated direct reads.",
        ),
        "counter",
        |picture| picture.ahead.again_fetched,
    ),
    (
        ("millpond_mount_again_read_bytes_total", "Bytes of repeated direct reads that were held."),
        "counter",
        |picture| picture.ahead.again_read,
    ),
    (("millpond_mount_memory_bytes", "Memory of requests and of held data."), "gauge", |picture| {
        picture.budgets.memory_used
    }),
    (("millpond_mount_memory_limit_bytes", "Limit of that memory."), "gauge", |picture| {
        picture.budgets.limits.memory
    }),
    (
        ("millpond_mount_bandwidth_limit_bytes", "Bytes a second, both ways; 0 is no limit."),
        "gauge",
        |picture| picture.budgets.limits.bandwidth,
    ),
    (
        ("millpond_mount_read_bandwidth_limit_bytes", "Bytes a second read; 0 is no limit."),
        "gauge",
        |picture| picture.budgets.limits.read_bandwidth,
    ),
    (
        ("millpond_mount_write_bandwidth_limit_bytes", "Bytes a second written; 0 is no limit."),
        "gauge",
        |picture| picture.budgets.limits.write_bandwidth,
    ),
    (
        ("millpond_mount_throttled_requests", "Requests that wait for the bandwidth."),
        "gauge",
        |picture| picture.budgets.waiting,
    ),
    (
        (
            "millpond_mount_throttled_microseconds_total",
            "Time that requests waited for the bandwidth.",
        ),
        "counter",
        |picture| picture.budgets.waited_us,
    ),
    (("millpond_mount_cache_files", "Files in the cache."), "gauge", |picture| picture.cache.files),
    (("millpond_mount_cache_bytes", "Bytes of files in the cache."), "gauge", |picture| {
        picture.cache.bytes
    }),
    (
        ("millpond_mount_cache_limit_bytes", "Limit of the cache; 0 without a cache."),
        "gauge",
        |picture| picture.cache.limit,
    ),
    (
        ("millpond_mount_cache_passthrough", "1 if the kernel reads files of the cache directly."),
        "gauge",
        |picture| picture.cache.passes,
    ),
    (
        ("millpond_mount_cache_hits_total", "Opens with the file in the cache."),
        "counter",
        |picture| picture.cache.hits,
    ),
    (
        ("millpond_mount_cache_misses_total", "Opens without the file in the cache."),
        "counter",
        |picture| picture.cache.misses,
    ),
    (
        ("millpond_mount_cache_passed_total", "Opens that leave the reads to the kernel."),
        "counter",
        |picture| picture.cache.passed,
    ),
    (
        ("millpond_mount_cache_read_bytes_total", "Bytes that the daemon read from the cache."),
        "counter",
        |picture| picture.cache.read_bytes,
    ),
    (("millpond_mount_cache_fills_total", "Files fetched into the cache."), "counter", |picture| {
        picture.cache.filled
    }),
    (
        ("millpond_mount_cache_filled_bytes_total", "Bytes fetched into the cache."),
        "counter",
        |picture| picture.cache.filled_bytes,
    ),
    (
        ("millpond_mount_cache_fills_failed_total", "Files that could not be fetched or written."),
        "counter",
        |picture| picture.cache.failed,
    ),
    (
        ("millpond_mount_cache_evictions_total", "Files evicted from the cache."),
        "counter",
        |picture| picture.cache.evicted,
    ),
    (("millpond_mount_cache_damaged_total", "Files with damaged bytes."), "counter", |picture| {
        picture.cache.damaged
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_is_not_served_is_on_the_page() {
        let text = page(&[Shown { mount: "/a\"b".to_owned(), picture: None }]);
        assert!(text.contains("millpond_mount_serving{mount=\"/a\\\"b\"} 0\n"), "{text}");
    }
}
