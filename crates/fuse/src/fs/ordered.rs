//! The order that locks establish: a new owner of a lock sees all writes made before its release.
//!
//! As in NFS: local writes are reported to a meta before a lock is requested or released, and a new
//! owner asks a meta for the file's attributes. Not where the file is exclusive to this mount, nor
//! in modes that assume no other writer.

use millpond_fuse_wire::Pages;
use millpond_types::meta::{Ino, MetaOp};

use super::{Fs, Stale};
use crate::errno::Errno;
use crate::options::Mode;

impl Fs {
    /// Reports written bytes to a meta before a lock of the file changes. The writer gets a
    /// rejection.
    pub(super) fn before_lock(&self, ino: Ino) -> Result<(), Errno> {
        if !self.files().is_untold(ino) || self.is_alone_with(ino) {
            return Ok(());
        }
        self.unless_refused(ino, self.tell(ino))
    }

    /// Asks for the file's attributes after a lock was granted. Returns the cached state that the
    /// kernel must drop before the answer, if another client wrote to the file.
    pub(super) fn after_lock(&self, ino: Ino) -> Result<Option<Stale>, Errno> {
        let file = self.files().get(ino);
        if self.mode == Mode::Strict {
            // Reads ask a meta; mapped pages are in the kernel.
            let has_pages = file.is_some_and(|file| file.has_pages());
            return Ok(has_pages.then_some(Stale { ino, pages: Pages::All, now: None }));
        }
        if !matches!(self.mode, Mode::CloseToOpen | Mode::Relaxed) || self.is_alone_with(ino) {
            return Ok(None);
        }
        let ticket = &mut self.backend.own_ticket();
        let known = self.leases.told(ino);
        let is_stored = file.as_ref().is_some_and(|file| file.told().is_stored());
        let told = if is_stored {
            self.fetch(ticket, ino)?.0
        } else {
            self.backend.attr(ticket, MetaOp::GetAttr { ino })?
        };
        let _ = self.files().known(told);
        if known == Some(told.attr.version) {
            return Ok(None);
        }
        self.ahead.changed(ino);
        Ok(Some(Stale { ino, pages: Pages::All, now: Some(told) }))
    }

    /// Whether a file is exclusive to this mount: another client first makes this mount report
    /// everything.
    fn is_alone_with(&self, ino: Ino) -> bool {
        self.mode == Mode::CloseToOpen && self.backend.behind.has_file(ino)
    }
}
