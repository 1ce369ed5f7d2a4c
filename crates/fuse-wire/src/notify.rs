//! What the server tells the kernel unasked: drop what you cached, take this, send that again.
//!
//! A notification waits for locks of the kernel that a request in flight may hold. Never send one
//! about an inode from a thread whose reply such a request waits for: a worker that answers a
//! request about a file must not invalidate that file before its reply is out.

use std::io;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    EXPIRE_ONLY, NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut,
    NotifyPollWakeupOut, NotifyPruneOut, NotifyRetrieveOut, NotifyStoreOut, OutHeader,
};
use crate::device::Device;

/// What became of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// The kernel did it.
    Done,
    /// The kernel did not know the inode or name, so there was nothing to do.
    Unknown,
}

/// The pages of a file from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// None, only the attributes.
    None,
    /// All of the file.
    All,
    /// `len` bytes from `offset`; whole pages round them are dropped. A `len` of 0 is up to the end.
    Range {
        /// Bytes from the file's start.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Device {
    /// Drops the kernel's attributes of an inode, and its cached pages as `pages` says. Dirty
    /// pages are written back first.
    ///
    /// # Errors
    /// What the device says; a connection that has ended is `ENOTCONN` or `ENODEV`.
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

    /// Makes the kernel look the name up again before it uses it; unlike
    /// [`Device::inval_entry`] that leaves in peace what is mounted or open below. Needs
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

    /// Says that the name was removed: watchers hear of it, and the kernel drops the name if it
    /// stands for the inode `child`.
    ///
    /// # Errors
    /// `ENOTEMPTY` and `EBUSY` when the kernel sees something in or mounted on the directory, and
    /// those of [`Device::inval_entry`].
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

    /// Asks for bytes of the kernel's page cache. They come as an
    /// [`Operation::NotifyReply`](crate::Operation::NotifyReply) whose `unique` is
    /// `notify_unique`, perhaps fewer than `size`.
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

    /// Wakes who polls the file that a POLL named `kh`.
    ///
    /// # Errors
    /// Those of [`Device::inval_inode`].
    pub fn poll_wakeup(&self, kh: u64) -> io::Result<Notified> {
        self.notify(NotifyCode::Poll, &NotifyPollWakeupOut { kh }, &[])
    }

    /// Makes the kernel send again what was read and has no reply, through whatever descriptor:
    /// the first thing that a process does which takes a connection over.
    ///
    /// Requests without a reply (FORGET) that the crashed process had read are lost: count
    /// references with that in mind. Needs ABI 7.40 (Linux 6.9) and
    /// [`InitFlags::HAS_RESEND`](crate::abi::InitFlags::HAS_RESEND).
    ///
    /// # Errors
    /// `EINVAL` on an older kernel.
    pub fn resend(&self) -> io::Result<()> {
        self.notify(NotifyCode::Resend, &(), &[]).map(drop)
    }

    /// Makes every name in the kernel's cache one that must be looked up again. Needs ABI 7.44.
    ///
    /// # Errors
    /// `EINVAL` on an older kernel.
    pub fn inc_epoch(&self) -> io::Result<()> {
        self.notify(NotifyCode::IncEpoch, &(), &[]).map(drop)
    }

    /// Asks the kernel to forget inodes that nobody uses, whose FORGETs follow. Needs ABI 7.45
    /// (Linux 6.18).
    ///
    /// # Errors
    /// `InvalidInput` for more than `u32::MAX` inodes, `EINVAL` on an older kernel.
    pub fn prune(&self, inodes: &[u64]) -> io::Result<Notified> {
        let count = u32::try_from(inodes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = NotifyPruneOut { count, padding: 0, spare: 0 };
        self.notify(NotifyCode::Prune, &out, &[inodes.as_bytes()])
    }

    /// A notification is a reply to nobody, with the code for an error.
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

/// The kernel bounds names too, but reads the length first.
fn name_len(name: &[u8]) -> io::Result<u32> {
    if name.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    u32::try_from(name.len()).map_err(|_| io::Error::from_raw_os_error(libc::ENAMETOOLONG))
}
