//! The metrics of a mount's cache.

use millpond_types::metrics::Counter;

use super::Cache;

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct CacheNumbers {
    /// Opens of cached files, opens of files that were not cached, and opens that the kernel serves
    /// by itself.
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) passed: Counter,
    /// Bytes that this process read from files of the cache.
    pub(crate) read_bytes: Counter,
    /// Fetched files, their bytes, and failed attempts.
    pub(crate) filled: Counter,
    pub(crate) filled_bytes: Counter,
    pub(crate) failed: Counter,
    /// Evicted files, and files that failed their checksums.
    pub(crate) evicted: Counter,
    pub(crate) damaged: Counter,
}

/// A snapshot of the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CachePicture {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
    /// 1 where the kernel reads files by itself.
    pub(crate) passes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) passed: u64,
    pub(crate) read_bytes: u64,
    pub(crate) filled: u64,
    pub(crate) filled_bytes: u64,
    pub(crate) failed: u64,
    pub(crate) evicted: u64,
    pub(crate) damaged: u64,
}

impl Cache {
    /// Takes a snapshot.
    pub(crate) fn picture(&self) -> CachePicture {
        let (size, limit) = {
            let table = self.table.lock();
            (table.size(), table.limit())
        };
        let numbers = self.numbers();
        CachePicture {
            files: size.0,
            bytes: size.1,
            limit,
            passes: u64::from(self.passes()),
            hits: numbers.hits.get(),
            misses: numbers.misses.get(),
            passed: numbers.passed.get(),
            read_bytes: numbers.read_bytes.get(),
            filled: numbers.filled.get(),
            filled_bytes: numbers.filled_bytes.get(),
            failed: numbers.failed.get(),
            evicted: numbers.evicted.get(),
            damaged: numbers.damaged.get(),
        }
    }
}
