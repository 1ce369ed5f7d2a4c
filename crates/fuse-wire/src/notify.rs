//! Notifications to the kernel: drop cached entries, store data, resend requests.
//!
//! A notification waits for kernel locks that a request in flight may hold. Never send one about an
//! inode from a thread that still has to answer such a request: a worker that answers a request
//! about a file must not invalidate that file before its reply is out.

use std::io;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    EXPIRE_ONLY, NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut,
    NotifyPollWakeupOut, NotifyPruneOut, NotifyRetrieveOut, NotifyStoreOut, OutHeader,
};
use crate::device::Device;

/// The outcome of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// The kernel did it.
    Done,
    /// The kernel did not know the inode or name, so there was nothing to do.
    Unknown,
}

/// A range of the cached pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// No pages, only the attributes.
    None,
    /// All of the file.
    All,
    /// `len` bytes from `offset`, widened to whole pages. A `len` of 0 means to the end.
    Range {
        /// Bytes from the file's start.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl Device {
    /// Drops the kernel's attributes of an inode, and the cached pages in `pages`. The kernel
    /// writes dirty pages back first.
    ///
    /// # Errors
    /// Those of the device; `ENOTCONN` or `ENODEV` when the connection has ended.
    pub fn inval_inode(&self, ino: u64, pages: Pages) -> io::Result<Notified> {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (off, len) = match pages {
            Pages::None => (-1, 0),
            Pages::All => (0, 0),
            // The kernel adds the two as signed numbers.
            Pages::Range { offset, len } => {
                let off = signed(offset);
                (off, signed(len).min(i64::MAX - off))
            }
        };
        self.notify(NotifyCode::InvalInode, &NotifyInvalInodeOut { ino, off, len }, &[])
    }

    /// Drops the name `name` of the directory `parent` from the kernel's cache, with everything
    /// below it.
    ///
    /// # Errors
    /// `ENAMETOOLONG` beyond 1,024 bytes, and those of [`Device::inval_inode`].
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<Notified> {
        self.entry(parent, name, 0)
    }

    /// Makes the kernel look the name up again before it uses it.
    ///
    /// Unlike [`Device::inval_entry`] it leaves mounts and open files below untouched. Needs
    /// [`InitFlags::HAS_EXPIRE_ONLY`](crate::abi::InitFlags::HAS_EXPIRE_ONLY).
    ///
    /// # Errors
    /// Those of [`Device::inval_entry`].
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> io::Result<Notified> {
        self.entry(parent, name, EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> io::Result<Notified> {
        let out = NotifyInvalEntryOut { parent, namelen: name_len(name)?, flags };
        self.notify(NotifyCode::InvalEntry, &out, &[name, &[0]])
    }

    /// Reports a removed name: the kernel notifies watchers, and drops the name if it refers to the
    /// inode `child`.
    ///
    /// # Errors
    /// `ENOTEMPTY` when the kernel sees entries in the directory, `EBUSY` when something is mounted
    /// on it, and those of [`Device::inval_entry`].
    pub fn delete_entry(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<Notified> {
        let out = NotifyDeleteOut { parent, child, namelen: name_len(name)?, padding: 0 };
        self.notify(NotifyCode::Delete, &out, &[name, &[0]])
    }

    /// Puts bytes into the kernel's page cache; a file that ends before them grows.
    ///
    /// # Errors
    /// `InvalidInput` for 4 GiB and more, and those of [`Device::inval_inode`].
    pub fn store(&self, ino: u64, offset: u64, data: &[u8]) -> io::Result<Notified> {
        let size = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = NotifyStoreOut { nodeid: ino, offset, size, padding: 0 };
        self.notify(NotifyCode::Store, &out, &[data])
    }

    /// Requests bytes of the kernel's page cache.
    ///
    /// They come as an [`Operation::NotifyReply`](crate::Operation::NotifyReply) with
    /// `notify_unique` as its `unique`, perhaps fewer than `size`.
    ///
    /// # Errors
    /// Those of [`Device::inval_inode`].
    pub fn retrieve(
        &self,
        notify_unique: u64,
        ino: u64,
        offset: u64,
        size: u32,
    ) -> io::Result<Notified> {
        let out = NotifyRetrieveOut { notify_unique, nodeid: ino, offset, size, padding: 0 };
        self.notify(NotifyCode::Retrieve, &out, &[])
    }

    /// Wakes pollers of the file that a POLL named `kh`.
    ///
    /// # Errors
    /// Those of [`Device::inval_inode`].
    pub fn poll_wakeup(&self, kh: u64) -> io::Result<Notified> {
        self.notify(NotifyCode::Poll, &NotifyPollWakeupOut { kh }, &[])
    }

    /// Makes the kernel resend all unanswered requests that were read, through any descriptor: the
    /// first step of a process that takes a connection over.
    ///
    /// Requests without a reply (FORGET) that the crashed process had read are lost; account for
    /// that when counting references. Needs ABI 7.40 (Linux 6.9) and
    /// [`InitFlags::HAS_RESEND`](crate::abi::InitFlags::HAS_RESEND).
    ///
    /// # Errors
    /// `EINVAL` on an older kernel.
    pub fn resend(&self) -> io::Result<()> {
        self.notify(NotifyCode::Resend, &(), &[]).map(drop)
    }

    /// Makes the kernel look up every cached name again before it uses it. Needs ABI 7.44.
    ///
    /// # Errors
    /// `EINVAL` on an older kernel.
    pub fn inc_epoch(&self) -> io::Result<()> {
        self.notify(NotifyCode::IncEpoch, &(), &[]).map(drop)
    }

    /// Asks the kernel to forget unused inodes; their FORGETs follow. Needs ABI 7.45 (Linux 6.18).
    ///
    /// # Errors
    /// `InvalidInput` for more than `u32::MAX` inodes, `EINVAL` on an older kernel.
    pub fn prune(&self, inodes: &[u64]) -> io::Result<Notified> {
        let count = u32::try_from(inodes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = NotifyPruneOut { count, padding: 0, spare: 0 };
        self.notify(NotifyCode::Prune, &out, &[inodes.as_bytes()])
    }

    /// Sends a notification: a reply to no request, with the code in place of an error.
    fn notify(
        &self,
        code: NotifyCode,
        out: &(impl IntoBytes + Immutable),
        data: &[&[u8]],
    ) -> io::Result<Notified> {
        let body = size_of_val(out) + data.iter().map(|piece| piece.len()).sum::<usize>();
        let len = u32::try_from(size_of::<OutHeader>() + body)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = OutHeader { len, error: code as i32, unique: 0 };
        let mut pieces = [header.as_bytes(), out.as_bytes(), &[], &[]];
        pieces[2..2 + data.len()].copy_from_slice(data);
        match self.write(&pieces) {
            Ok(()) => Ok(Notified::Done),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Notified::Unknown),
            Err(error) => Err(error),
        }
    }
}

/// Checks the length of a name: the kernel limits names too, but reads the length first.
fn name_len(name: &[u8]) -> io::Result<u32> {
    if name.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    u32::try_from(name.len()).map_err(|_| io::Error::from_raw_os_error(libc::ENAMETOOLONG))
}
