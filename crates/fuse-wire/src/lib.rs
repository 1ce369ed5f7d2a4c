//! The kernel's FUSE protocol, and nothing else: no inodes, no cache, no threads.
//!
//! - [`abi`]: structures and constants of ABI 7.45.
//! - [`Request`], [`Operation`]: requests of the kernel, decoded from one read without a copy.
//! - [`Reply`], [`DirBuffer`]: answers to the kernel.
//! - [`Device`]: `/dev/fuse`. One per worker thread, by [`Device::clone_device`]; blocking reads
//!   into a [`RequestBuffer`], one system call per reply. Its methods also send notifications to
//!   the kernel.
//! - [`Ring`]: the same over `io_uring`, for servers that need not survive a crash.
//! - [`negotiate`]: INIT as a function from the kernel's offer to the reply. The result,
//!   [`Negotiated`], is plain data.
//! - [`mount()`], [`unmount`], [`mounts`], [`abort_connection`]: mount points.
//! - [`scm`]: descriptors over a Unix socket.
//!
//! # A server that may crash
//!
//! The connection lives while any descriptor of it is open. So a second process, the *holder*,
//! keeps copies of the primary descriptor **and of every clone** (requests that were read through a
//! clone fail when its last copy is closed) together with [`Negotiated::to_bytes`]. A restarted
//! server gets them over [`scm`], makes devices of them ([`Device::from_fd`]), calls
//! [`Device::resend`] and continues to read. There is no new INIT.
//!
//! Requests in flight come again, marked by [`Request::resent`] and with the same
//! [`Request::unique`]. The server must not repeat operations that cannot be repeated, so it keeps
//! replies ([`Reply::body`]) where a crash does not destroy them.
//!
//! The holder must not touch the mount. If it has a file of the mount open when it starts the
//! server, the copy of that file in the new process is closed before the server runs, and that
//! close waits for a FLUSH that nobody answers.
//!
//! # Invariants
//!
//! - Bytes from the kernel never panic the process; a decoder's error names operation and field.
//! - A reply goes to a [`ReplyTo`], which includes the bit that marks a resend: without it the
//!   kernel would not find the request.
//! - The server never requests a flag that the kernel did not offer.
//!
//! # Absent on purpose
//!
//! `splice(2)`: the data of a WRITE is page-aligned in the [`RequestBuffer`] instead. CUSE,
//! security contexts, kernels before 7.31 (Linux 5.5).

#![allow(unsafe_code, reason = "the system calls of the protocol are made here (STYLE rule 18)")]
#![allow(clippy::disallowed_methods, reason = "files and sockets of the protocol are opened here")]

pub mod abi;
mod buffer;
mod device;
mod directory;
mod mount;
mod mountinfo;
mod negotiate;
mod notify;
mod reply;
mod request;
mod ring;
pub mod scm;
mod waiter;

pub use buffer::RequestBuffer;
pub use device::{Delivered, Device, Received, has_ended, max_pages_limit};
pub use directory::{DirBuffer, FileKind};
pub use mount::{FS_TYPE, MountError, MountOptions, mount, place_of, unmount};
pub use mountinfo::{MountPoint, abort_connection, mounts, read_ahead, set_read_ahead};
pub use negotiate::{InitWishes, NegotiateError, Negotiated, negotiate};
pub use notify::{Notified, Pages};
pub use reply::Reply;
pub use request::{DecodeError, DecodeFault, Items, Operation, ReplyTo, Request, SuppGroups};
pub use ring::{Ring, prod_queue, uring_queues, uring_switch};
pub use waiter::Waiter;
