//! A directory that one mount has exclusively until another client needs it.
//!
//! A mount that makes a directory may hold it. Metas then let no other client see or change it:
//! they first recall it, and wait until the holder returns it or is fenced after a timeout. This is
//! a write delegation of NFS (RFC 8881, section 10.4) for the names of a directory; section 10.9
//! has them for reading.

/// Holder of a directory. The directory has no holder if the session has ended or is in another
/// tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delegation {
    /// The mount's session.
    pub session: u64,
    /// The session's tenure when it made the directory.
    pub tenure: u32,
}

/// Most directories that one request can return and that one answer can name as recalled: bounded
/// by the changes of one transaction ([`STORE_TXN_WRITES_MAX`]).
///
/// [`STORE_TXN_WRITES_MAX`]: crate::limits::STORE_TXN_WRITES_MAX
pub const RETURNS_MAX: usize = 32;
// Returning one directory deletes one record, which counts two, and writes another; the answer is
// stored as well.
const _: () = assert!(3 * RETURNS_MAX + 16 <= crate::limits::STORE_TXN_WRITES_MAX);
const _: () = assert!(3 * RETURNS_MAX + 16 <= crate::limits::STORE_TXN_CONFLICTS_MAX);
/// Time in ms for which a mount trusts its delegations, counted from its request to a meta.
pub const DELEGATION_MS: u32 = 2000;
/// Time in ms for a holder to return a recalled directory, counted from when it learned of the
/// recall, or from the end of its trust if that was earlier. After that it trusts none of its
/// delegations.
pub const RETURN_MS: u32 = 1500;
/// Time in ms for which a meta waits for a holder before it ends the session's tenure: longer than
/// a holder trusts any answer from before the recall plus the time to return.
pub const FENCE_MS: u32 = 5000;
const _: () = assert!(DELEGATION_MS + RETURN_MS < FENCE_MS);
