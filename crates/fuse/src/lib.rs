//! The mount: a cluster's files as a POSIX file system.
//!
//! Reading order: [`MountSpec`] and [`Mode`] (how to mount), [`Mount`] (one mount point and the
//! threads that serve it), `worker` (one thread: a request in, a reply out), `backend` (metas and
//! chunks, and the errno of failures), `fs` (the operations: `names`, `attrs`, `data`, `stored`
//! (bytes of small files), `shared` (chunks of clones), `dirs`, `xattrs`), `files` (the state of
//! open files), `leases` and `listener` (the validity of cached entries), `ahead` (read-ahead),
//! `cached` (whole files on a local disk), `budget` (limits of memory and bandwidth), `session`
//! (renewal of the session), `watch` (metrics and the access log). Then the processes of a host:
//! `run_dir` (their common folder), [`hold`] (the process that outlives the others),
//! [`serve_mounts`] (the process that serves all mounts), `link` (the protocol between these two),
//! [`admin`] (requests of operators), [`probe`] (whether a cluster can be mounted).
//!
//! Invariants:
//! - A node id of the kernel is an inode number of the namespace: there is no table of them, and
//!   nothing to lose.
//! - A change of the namespace carries the kernel's own number of the request, so that a resent
//!   request is not executed again.
//! - Bytes are durable on all replicas before a write is answered. Those of a small file are
//!   instead in the journal that outlives the process, and at a meta before a flush, fsync or
//!   release is answered. A meta has a file's length before a flush, fsync or release is answered,
//!   its modification time before a flush or release, and both soon after every write.
//! - The kernel checks permissions (`default_permissions`): it knows the caller's groups.
//!
//! Absent on purpose: the wire format (crate `fuse-wire`), rules of the namespace (crate `meta`).

pub mod admin;
mod ahead;
mod backend;
mod behind;
mod blob;
mod born;
mod budget;
mod cached;
mod daemon;
mod deadline;
mod early;
mod errno;
mod files;
mod fs;
mod holder;
mod journal;
mod leases;
mod link;
mod listener;
mod mount;
mod notices;
mod options;
mod probe;
mod recent;
mod run_dir;
mod session;
mod settled;
mod waiters;
mod watch;
mod worker;

pub use budget::Budgets;
pub use cached::CacheOptions;
pub use daemon::{DaemonError, serve as serve_mounts};
pub use holder::{HolderError, hold};
pub use mount::{Keep, Mount, MountFailure};
pub use options::{Mode, MountSpec, OptionError};
pub use probe::{ProbeError, probe};
pub use run_dir::{RunDir, RunDirError};
