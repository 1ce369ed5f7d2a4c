//! Every bound of the system, each with its reason. Overload is an answer, not a wait.

/// Longest key of a KV block in bytes: four 32-byte hashes; fits one cache line pair.
pub const KEY_BYTES_MAX: usize = 128;
/// Largest chunk and so the largest value, in bytes: one segment of the engine.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;
/// Largest opaque attribute of a chunk in bytes; the KV key and room for a header.
pub const ATTRS_BYTES_MAX: usize = 256;
/// Bytes covered by one checksum, so that a ranged read verifies only what it reads.
pub const PIECE_BYTES: usize = 64 << 10;
/// Unit of disk space, alignment and buffers, in bytes: what `O_DIRECT` asks for everywhere.
pub const PAGE_BYTES: usize = 4096;
/// Longest name of a namespace in bytes: fits a metric label.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 100;
/// Namespaces of one server; the table is one chunk and is rewritten whole.
pub const NAMESPACES_MAX: usize = 4096;
/// Hash buckets that decide placement (DESIGN section 2).
pub const SLOTS: usize = 65_536;
/// Blocks of one prompt that share a leader by default (DESIGN section 9).
pub const RUN_BLOCKS_DEFAULT: u16 = 16;

/// Keys in one request: a 128k-token prompt in blocks of 16 tokens is 8,192.
pub const BATCH_KEYS_MAX: usize = 16_384;
/// Bytes after the header that describe a request or reply: 16,384 keys with leaders.
pub const META_BYTES_MAX: usize = 5 << 20;
/// Payload bytes of one frame: four of the largest values.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;
/// Requests in flight on one connection, told at hello.
pub const IN_FLIGHT_MAX: u32 = 128;
/// Longest credential in bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Longest lease a client may ask for: a lease must not become a leak.
pub const LEASE_MS_MAX: u32 = 60_000;
/// Pages one list reply holds at most.
pub const LIST_KEYS_MAX: usize = 1000;
/// Deadline of a request that names none, in milliseconds.
pub const DEADLINE_MS_DEFAULT: u32 = 5_000;
