//! The file namespace: inodes, names and their rules, over the transactional store.
//!
//! Reading order: [`Volume`] (what a meta executes), `view` (records read and written in one
//! transaction), then the operations: `attr`, `content` (bytes in the store), `share` (chunks of several files), `entry` (make, link, remove), `rename`, `dir`, `xattr`, `acl`,
//! `lock`, `quota`, `trash`, `object` (files by the keys of S3); `permit` (who may do what), `ids` (numbers of new inodes), `session` (mounts), `delegation` (directories that a mount has to itself),
//! `collect` (what nobody can reach any more), `feed` (changes, for mounts that keep what they were told);
//! `records`, `check`, `order`, `seen` and `finding` (whether all of this holds in a volume), `repair` (what to do when
//! it does not).
//!
//! Invariants:
//! - Every operation is one transaction: all of it happened, or none. Metas share nothing but the
//!   store, so any number of them may serve one volume.
//! - What changes something is done once per (session, sequence), however often it is asked for.
//! - An inode whose last name is gone stays until no session can have it open; its bytes become
//!   garbage, which is named in the store before anything forgets it.
//! - A directory's entries change without reading its times or each other, so that changes of one
//!   directory conflict only where they touch the same name.
//! - Bytes of a file lie in the store until they go to chunks, in one transaction that looks whether they are
//!   what was written there; the name of the chunks is garbage before, and nobody else's ever.
//! - A name of chunks that several files have, or that others are behind, has a record that counts the files which
//!   are read from them; at none it is garbage in the same transaction.
//! - In a directory of objects each name has its places in the order of keys, written and removed with its entry.
//! - A lock goes with the session of its owner, at once.
//! - Nobody sees or changes the names of a directory that another session holds, nor its attributes.
//! - What counts for a quota is exact, whatever happens at the same moment; its limit is kept but for
//!   what is under way together.
//!
//! Absent on purpose: detection of deadlocks (`lock` says why), bytes in chunks (crate `client`), caches, sockets, threads.

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
