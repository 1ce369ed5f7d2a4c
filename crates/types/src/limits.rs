//! Every bound of the system, each with its reason. An overloaded server answers with an error; it
//! does not let the client wait.

/// Longest key of a KV block in bytes: four 32-byte hashes; fits one cache line pair.
pub const KEY_BYTES_MAX: usize = 128;
/// Largest chunk and so the largest value, in bytes: one segment of the engine.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;
/// Largest opaque attribute of a chunk in bytes: the KV key and room for a header.
pub const ATTRS_BYTES_MAX: usize = 256;
/// Bytes covered by one checksum, so that a ranged read verifies only the bytes it reads.
pub const PIECE_BYTES: usize = 64 << 10;
/// Unit of disk space, alignment and buffers, in bytes: the `O_DIRECT` alignment of all devices.
pub const PAGE_BYTES: usize = 4096;
/// Longest name of a namespace in bytes: fits in a metric label.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 100;
/// Namespaces of one server: the table is one chunk and is rewritten whole.
pub const NAMESPACES_MAX: usize = 4096;
/// Hash buckets that decide placement (DESIGN section 2).
pub const SLOTS: usize = 65_536;
/// Blocks of one prompt that share a leader by default (DESIGN section 9).
pub const RUN_BLOCKS_DEFAULT: u16 = 16;

/// Keys in one request: a 128k-token prompt in blocks of 16 tokens is 8,192.
pub const BATCH_KEYS_MAX: usize = 16_384;
/// Parts of chunks of files in one request: a read of 16 MiB in pages of 4 KiB.
pub const FILE_PARTS_MAX: usize = 4096;
/// Base data ids of one file: each costs one more lookup for every chunk that the file lacks.
pub const BASES_MAX: usize = 4;
/// Bytes of metadata after the header of a request or reply: 16,384 keys with leaders.
pub const META_BYTES_MAX: usize = 5 << 20;
/// Payload bytes of one frame: four of the largest values.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;
/// Requests in flight on one connection, agreed at hello.
pub const IN_FLIGHT_MAX: u32 = 128;
/// Longest credential in bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Longest lease a client may ask for, in milliseconds: a lease must not become a leak.
pub const LEASE_MS_MAX: u32 = 60_000;
/// Keys in one list reply.
pub const LIST_KEYS_MAX: usize = 1000;
/// Deadline of a request without one, in milliseconds.
pub const DEADLINE_MS_DEFAULT: u32 = 5_000;

/// Slots in one stored page of the slot map: 8 KiB, far below the bound of one transaction.
pub const SLOT_PAGE: usize = 1024;
/// Members of one chain: [`REPLICAS_MAX`] replicas, one joining and one leaving.
pub const CHAIN_TARGETS_MAX: usize = 8;
/// Replicas of a chain: a chain has two members more while one joins and one leaves.
pub const REPLICAS_MAX: u8 = 6;
const _: () = assert!(REPLICAS_MAX as usize + 2 == CHAIN_TARGETS_MAX);
/// Addresses of one node: two for every network card.
pub const ADDRESSES_MAX: usize = 16;
/// Nodes of one cluster.
pub const NODES_MAX: usize = 16_384;
/// Disks of one node: the densest servers sold have about a hundred.
pub const NODE_DISKS_MAX: usize = 256;
/// Chains of one cluster: one per slot, so that every chain can have one.
pub const CHAINS_MAX: usize = SLOTS;
/// Targets of one node, all reported in one heartbeat: 256 disks of 256 targets.
pub const NODE_TARGETS_MAX: usize = 65_536;
/// Settings of a cluster's configuration.
pub const SETTINGS_MAX: usize = 256;
/// Events that a cluster keeps: some hours of frequent failures.
pub const EVENTS_MAX: usize = 4096;
/// Longest text of an event in bytes.
pub const EVENT_BYTES_MAX: usize = 1024;

// The transactional store. Both engines have the same bounds, which are etcd's, so that an
// operation that works on one machine works on a cluster.

/// Longest key of the transactional store in bytes: an S3 key (1,024) or a file name (255) with
/// room for ids before it.
pub const STORE_KEY_BYTES_MAX: usize = 2048;
/// Largest value of the transactional store in bytes: the slot map (65,536 × 4 B) with room to
/// grow.
pub const STORE_VALUE_BYTES_MAX: usize = 512 << 10;
/// Writes of one transaction: a put counts one, a delete two. etcd takes 128 operations, and a
/// delete is two of them; eight are reserved for the store itself.
pub const STORE_TXN_WRITES_MAX: usize = 120;
/// Conflicts of one transaction: a key that was read counts one, a range two. etcd takes 128
/// comparisons; eight are reserved for the store itself.
pub const STORE_TXN_CONFLICTS_MAX: usize = 120;
/// Keys, values and conflicts of one transaction in bytes: etcd takes 1.5 MiB with its framing.
pub const STORE_TXN_BYTES_MAX: usize = 1 << 20;
/// Keys in one page of a range read: replies stay small, and a reader cannot ask for everything.
pub const STORE_PAGE_KEYS_MAX: usize = 1000;
/// Bytes after which a page of a range read ends, regardless of its number of keys: bounds a
/// reader's memory.
pub const STORE_PAGE_BYTES_MAX: usize = 8 << 20;
/// Attempts of the retry helper: with pauses that double up to [`STORE_PAUSE_MS_MAX`] they outlast
/// an election of etcd (1 to 2 s). A longer fault is reported.
pub const STORE_ATTEMPTS_MAX: u32 = 16;
/// First pause between attempts in milliseconds: about one commit.
pub const STORE_PAUSE_MS_MIN: u64 = 2;
/// Longest pause between attempts in milliseconds.
pub const STORE_PAUSE_MS_MAX: u64 = 500;
/// Commits that wait for the embedded store's committer; the next caller waits for room.
pub const STORE_COMMIT_QUEUE_MAX: usize = 1024;
/// Transactions that share one flush of the embedded store; more bring no gain (`docs/store.md`).
pub const STORE_COMMIT_BATCH_MAX: usize = 256;
/// Bytes of the transactions that share one flush: bounds the memory of a batch.
pub const STORE_COMMIT_BATCH_BYTES_MAX: usize = 8 << 20;
/// Free bytes on its disk below which the embedded store rejects puts: room for its next journal
/// (64 MiB) and a compaction. Deletes still work.
pub const STORE_FREE_BYTES_MIN: u64 = 256 << 20;
/// Free bytes of its file system that a growing data file leaves: the bytes that the embedded store
/// beside it needs, and as much again for logs and other files.
pub const DATA_FREE_BYTES_MIN: u64 = 2 * STORE_FREE_BYTES_MIN;
/// Bytes of written keys remembered to find conflicts, about 200,000 keys. A transaction that began
/// before the oldest of them must start again.
pub const STORE_CONFLICT_BYTES_MAX: usize = 32 << 20;
/// Bytes of recent changes kept for watchers of the embedded store; a watcher that lags further
/// reads its range again.
pub const STORE_WATCH_BYTES_MAX: usize = 16 << 20;
/// Keys with values that the embedded store caches beside its tables: directories and marks that
/// every operation reads.
pub const STORE_HOT_KEYS_MAX: usize = 4096;
/// Largest cached value in bytes; records of inodes and entries are smaller.
pub const STORE_HOT_BYTES_MAX: usize = 1 << 10;
/// Delete markers in etcd that one client writes before it collects all of them. A collection
/// aborts range reads in flight, so it must be rare; a marker costs etcd about 200 B.
pub const STORE_MARKERS_MAX: u64 = 8192;

/// Updates that wait for the lock of one chunk: more means a hot spot, and the client should get an
/// error.
pub const CHAIN_QUEUE_MAX: usize = 32;
/// Updates of one replica between stage and commit; memory holds their payloads.
pub const CHAIN_PENDING_MAX: usize = 1024;
/// Reads of one replica that wait for the tail's answer.
pub const CHAIN_READS_MAX: usize = 1024;
/// Writers (client and channel) of which a chain remembers the last update, 60 bytes each.
pub const CHAIN_LANES_MAX: usize = 4096;
/// Damaged chunks of one replica fetched from others at the same time.
pub const CHAIN_REPAIRS_MAX: usize = 16;
/// Damaged chunks without a good copy that a replica remembers, 70 bytes each. It learns of others
/// only when it asks again.
pub const CHAIN_LOST_MAX: usize = 4096;
/// Chunks in one page of a resync's lists.
pub const RESYNC_PAGE_CHUNKS: usize = 256;
/// Chunks of one resync that are locked and in transfer at the same time.
pub const RESYNC_JOBS_MAX: usize = 8;
/// Tombstones of one chain watched for collection at the same time, 60 bytes each; others are found
/// later, 256 a second. A thousand evictions a second on one chain stay below this bound.
pub const TOMBSTONES_MAX: usize = 16_384;
/// Chunks of one moving slot that are copied at the same time.
pub const SLOT_JOBS_MAX: usize = 4;
/// Chunks in one page of a moving slot's list.
pub const SLOT_PAGE_CHUNKS: usize = 256;
/// Longest time from reading a chunk of a moving slot to the last attempt to write it, in
/// milliseconds: together with a client's retry horizon, far shorter than a tombstone is kept.
pub const SLOT_COPY_MS_MAX: u64 = 10_000;
/// Pause before a moving slot is scanned again after a failed copy, in milliseconds.
pub const SLOT_RETRY_MS: u64 = 500;

/// Interval at which a replica's state machine receives the time, in milliseconds.
pub const CHAIN_TICK_MS: u64 = 50;
/// Silence after which a message between replicas is sent again, in milliseconds.
pub const CHAIN_RESEND_MS: u64 = 200;
/// Longest wait of a read for the tail and of a stage for space, in milliseconds: below the 3 s
/// that a failed node may cost.
pub const CHAIN_WAIT_MS: u64 = 2_000;
/// Time for which a node may act on the manager's last answer, in milliseconds (DESIGN section 5).
pub const NODE_LEASE_MS: u64 = 2_000;
/// Time for which a peer's grant is valid, in milliseconds (DESIGN section 5).
pub const PEER_LEASE_MS: u64 = 1_000;
/// Percentage by which a lease is shortened for its holder and lengthened for its giver: clocks
/// with rates that differ by less than twice this cannot disagree about it.
pub const LEASE_SKEW_PERCENT: u32 = 10;
/// Time after which a client gives up an update, in milliseconds. Replicas need not recognize later
/// copies of it.
pub const RETRY_HORIZON_MS: u64 = 60_000;
/// Time for which the outcome of an update and a tombstone are kept, in milliseconds: twice the
/// retry horizon, so that neither a retry nor a delayed message outlives them.
pub const DEDUP_KEEP_MS: u64 = 120_000;
/// Time for which the tombstone of a chunk that a node removed by itself is kept, in milliseconds:
/// nobody retries such a removal, a link between nodes drops a message that is 1.5 s late, and a
/// copy for a moving slot is written within 10 s.
pub const EVICTED_KEEP_MS: u64 = 15_000;
/// Time for which bytes cut off a file stay, in milliseconds: other mounts trust the attributes of
/// a file for one second, and read its old bytes until then.
pub const GARBAGE_KEEP_MS: u64 = 5_000;
