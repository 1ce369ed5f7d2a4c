//! What a lock orders: who gets it sees what others wrote before they gave it up.
//!
//! As NFS does it: what was written here is told to a meta before a lock is asked for or given back, and who was given
//! one asks a meta how the file is. Not where nobody else has the file, and in modes that take nobody else to write.

use millpond_fuse_wire::Pages;
use millpond_types::meta::{Ino, MetaOp};

use super::{Fs, Stale};
use crate::errno::Errno;
use crate::options::Mode;

impl Fs {
    /// A meta is told what was written to a file, whose lock is about to change. A refusal is for who wrote it.
    pub(super) fn before_lock(&self, ino: Ino) -> Result<(), Errno> {
        if !self.files().is_untold(ino) || self.is_alone_with(ino) {
            return Ok(());
        }
        self.unless_refused(ino, self.tell(ino))
    }

    /// Somebody was given a lock: asks how the file is. What the kernel has to drop before it hears that, where others
    /// wrote to it.
    pub(super) fn after_lock(&self, ino: Ino) -> Result<Option<Stale>, Errno> {
        let file = self.files().get(ino);
        if self.mode == Mode::Strict {
            // What is read it asks for; what was mapped the kernel has.
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

    /// Whether nobody else sees or changes a file: who wants to makes this mount tell everything first.
    fn is_alone_with(&self, ino: Ino) -> bool {
        self.mode == Mode::CloseToOpen && self.backend.behind.has_file(ino)
    }
}
