//! The file namespace: inodes, names and their rules, over the transactional store.
//!
//! Reading order: [`Volume`] (the operations of a meta), `view` (records read and written in one
//! transaction), then the operations: `attr`, `content` (bytes in the store), `share` (chunks of
//! several files), `entry` (make, link, remove), `rename`, `dir`, `xattr`, `acl`, `lock`, `quota`,
//! `trash`, `object` (files by the keys of S3); `permit` (permissions), `ids` (numbers of new
//! inodes), `session` (mounts), `delegation` (directories that one mount may use alone), `collect`
//! (unreachable inodes and bytes), `feed` (changes, for mounts that cache answers); `records`,
//! `check`, `order`, `seen` and `finding` (checks of all these rules in a volume), `repair`
//! (corrections of findings).
//!
//! Invariants:
//! - Every operation is one transaction: all of it happened, or none. Metas share nothing but the
//!   store, so any number of them may serve one volume.
//! - A change is made once per (session, sequence), however often it is requested.
//! - An inode without a name stays until no session can have it open. Its bytes become garbage,
//!   which is named in the store before any record of them is deleted.
//! - A change of a directory's entries reads neither its times nor other entries, so that changes
//!   of one directory conflict only where they touch the same name.
//! - Bytes of a file lie in the store until they move to chunks, in one transaction that checks
//!   that they are the bytes written there. The name of the chunks is garbage before, and never has
//!   another owner.
//! - A name of chunks that several files have, or that are behind other chunks, has a record that
//!   counts the files read from them; at none it becomes garbage in the same transaction.
//! - In a directory of objects each name has its places in the order of keys, written and removed
//!   with its entry.
//! - A lock ends with the session of its owner, at once.
//! - No session sees or changes the names or the attributes of a directory that another session
//!   holds.
//! - The usage of a quota is exact, also under concurrent changes; its limit is exact except for
//!   operations that are under way together.
//!
//! Absent on purpose: detection of deadlocks (`lock` gives the reason), bytes in chunks (crate
//! `client`), caches, sockets, threads.

mod acl;
mod attr;
mod check;
mod collect;
mod content;
mod delegation;
mod dir;
mod entry;
mod error;
mod feed;
mod finding;
mod ids;
mod lock;
mod object;
mod order;
mod permit;
mod quota;
mod records;
mod rename;
mod repair;
mod seen;
mod session;
mod share;
mod trash;
mod view;
mod volume;
mod xattr;

pub use check::check;
pub use collect::{Collected, Garbage};
pub use error::VolumeError;
pub use finding::{CheckReport, Finding};
pub use records::Records;
pub use volume::{Facts, Volume, VolumeOptions};
