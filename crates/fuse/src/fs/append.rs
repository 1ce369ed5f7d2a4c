//! Appends (`O_APPEND`). The kernel says where the file ends as far as it knows, and does not ask before: what another
//! mount has appended meanwhile would be written over.

use millpond_fuse_wire::Pages;
use millpond_fuse_wire::abi::{WriteFlags, WriteIn};
use millpond_types::meta::{Ino, MetaOp};

use super::Fs;
use crate::backend::Ticket;
use crate::errno::Errno;
use crate::files::File;
use crate::options::Mode;

impl Fs {
    /// Whether bytes go to the end of the file, wherever that is. Pages that are written back have their places, and
    /// parts of one asynchronous direct write come at the same time, in any order: only the kernel knows theirs.
    pub(super) fn appends(&self, args: &WriteIn) -> bool {
        let flags = args.flags.cast_signed();
        self.mode != Mode::OneWriter
            && flags & libc::O_APPEND != 0
            && flags & libc::O_DIRECT == 0
            && !args.write_flags.contains(WriteFlags::CACHE)
    }

    /// Where bytes go that the kernel wants to have at its end of a file. It appends to a file one after the other.
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

    /// Bytes went elsewhere than the kernel thinks: it drops its pages and attributes of the file.
    pub(super) fn wrote_elsewhere(&self, ino: Ino) {
        let Some(device) = self.device.get().cloned() else { return };
        // The errors are those of what the kernel does not know.
        self.notices.run(move || drop(device.inval_inode(ino.0, Pages::All)));
    }
}
