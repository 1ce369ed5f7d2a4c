//! A directory that one mount has to itself until somebody else comes.
//!
//! Whoever makes a directory may hold it. Metas let nobody else see or change it then: they recall it first, and
//! wait until its holder has returned, or has not for so long that it is fenced. That is a write delegation of NFS
//! (RFC 8881, section 10.4) for the names of a directory, as section 10.9 has them for reading.

/// Who holds a directory. Nobody does when its session has ended, or is in another tenure by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delegation {
    /// The mount's session.
    pub session: u64,
    /// The session's tenure when it made the directory.
    pub tenure: u32,
}

/// Directories that one request can return, and that one answer can name as recalled: the changes of one transaction
/// ([`STORE_TXN_WRITES_MAX`]).
///
/// [`STORE_TXN_WRITES_MAX`]: crate::limits::STORE_TXN_WRITES_MAX
pub const RETURNS_MAX: usize = 32;
// To return one is to delete one record, which counts two, and to write another one; and there is the answer.
const _: () = assert!(3 * RETURNS_MAX + 16 <= crate::limits::STORE_TXN_WRITES_MAX);
const _: () = assert!(3 * RETURNS_MAX + 16 <= crate::limits::STORE_TXN_CONFLICTS_MAX);
/// How long a mount believes that it holds what it holds, from when it asked a meta, in ms.
pub const DELEGATION_MS: u32 = 2000;
/// How long a holder that is asked to return a directory may take for that, from when it heard of it, or from when
/// its belief ended if that was before, in ms: then it believes in none of its directories any more.
pub const RETURN_MS: u32 = 1500;
/// How long a meta waits for a holder to return before it ends the session's tenure, in ms: longer than a holder
/// believes anything that it has asked for before the recall, and than it takes to return.
pub const FENCE_MS: u32 = 5000;
const _: () = assert!(DELEGATION_MS + RETURN_MS < FENCE_MS);
