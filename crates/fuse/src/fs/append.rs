//! Appends (`O_APPEND`). The kernel uses the end of the file that it knows, without asking first:
//! it would overwrite bytes that another mount has appended since.

use millpond_fuse_wire::Pages;
use millpond_fuse_wire::abi::{WriteFlags, WriteIn};
use millpond_types::meta::{Ino, MetaOp};

use super::Fs;
use crate::backend::Ticket;
use crate::errno::Errno;
use crate::files::File;
use crate::options::Mode;

impl Fs {
    /// Whether bytes go to the current end of the file. Pages that are written back have fixed
    /// places, and parts of one asynchronous direct write arrive concurrently, in any order: only
    /// the kernel knows their places.
    pub(super) fn appends(&self, args: &WriteIn) -> bool {
        let flags = args.flags.cast_signed();
        self.mode != Mode::OneWriter
            && flags & libc::O_APPEND != 0
            && flags & libc::O_DIRECT == 0
            && !args.write_flags.contains(WriteFlags::CACHE)
    }

    /// The offset for bytes that the kernel wants at its end of a file. The kernel sends the
    /// appends of one file one after the other.
    pub(super) fn append_at(
        &self,
        ticket: &mut Ticket,
        file: &File,
        wanted: u64,
    ) -> Result<u64, Errno> {
        let unique = ticket.unique();
        if let Some(before) = self.files().append_of(unique) {
            return Ok(before);
        }
        let mut end = file.attr().size;
        if end != wanted {
            let _ = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino: file.ino })?);
            end = file.attr().size;
        }
        self.files().appends(unique, end);
        Ok(end)
    }

    /// Makes the kernel drop its pages and attributes of the file, because bytes went to another
    /// place than it assumes.
    pub(super) fn wrote_elsewhere(&self, ino: Ino) {
        let Some(device) = self.device.get().cloned() else { return };
        // Errors only concern inodes that the kernel does not know.
        self.notices.run(move || drop(device.inval_inode(ino.0, Pages::All)));
    }
}
