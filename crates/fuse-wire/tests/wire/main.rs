//! The crate on real mounts of this kernel. Needs `/dev/fuse` and permission to mount.

#![allow(unsafe_code, reason = "locks of POSIX have no safe call in the standard library")]
#![allow(clippy::disallowed_methods, reason = "tests use threads and files as applications do")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod caches;
mod crash;
mod files;
mod guard;
mod helper;
mod memfs;
mod sessions;
