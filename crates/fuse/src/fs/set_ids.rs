//! A change of another user's program removes its set-user-id and set-group-id bits and its
//! capabilities: otherwise the new content would run with its owner's rights.
//!
//! The kernel is granted `HANDLE_KILLPRIV_V2`. It then reports when the bits must be removed with a
//! write, a cut or an open that cuts, unless the caller may keep them (`CAP_FSETID`). A new owner
//! always removes them. For `fallocate` it reports nothing, so there they are removed for every
//! user but root. It asks for the capabilities of a file once, and not before every write as it
//! does otherwise. Another client may add some after that, so an open file is checked here, most
//! often in memory. A file cut by its path keeps capabilities added elsewhere until the
//! notification arrives, as with all other cached state of the kernel.

use millpond_fuse_wire::Pages;
use millpond_fuse_wire::abi::{OpenInFlags, SetattrValid, WriteFlags};
use millpond_types::meta::{Attr, Ino, MetaError, MetaOp, SetAttr, XattrName};

use super::Fs;
use super::xattrs::CAPABILITY;
use crate::backend::{Ticket, Told};
use crate::errno::Errno;
use crate::files::File;
use crate::options::Mode;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// The mode without these bits, if it differs. Without the group's execute bit, the set-group-id
/// bit means mandatory locking, and stays.
const fn without_set_ids(mode: u16) -> Option<u16> {
    let gone = if mode & GROUP_EXECUTE == 0 { SET_UID } else { SET_UID | SET_GID };
    if mode & gone == 0 { None } else { Some(mode & !gone) }
}

impl Fs {
    /// Removes bits and capabilities before bytes are written.
    pub(super) fn before_write(
        &self,
        ticket: &mut Ticket,
        (file, flags): (&File, WriteFlags),
    ) -> Result<(), Errno> {
        if flags.contains(WriteFlags::KILL_SUIDGID) {
            self.drop_set_ids(ticket, file)?;
        }
        // Bytes from the kernel's cache were checked when they were written to it.
        if flags.contains(WriteFlags::CACHE) {
            Ok(())
        } else {
            self.drop_capabilities(ticket, file)
        }
    }

    /// Removes bits and capabilities before a file is changed by `fallocate`.
    pub(super) fn before_allocate(&self, ticket: &mut Ticket, file: &File) -> Result<(), Errno> {
        if !ticket.is_of_root() {
            self.drop_set_ids(ticket, file)?;
        }
        self.drop_capabilities(ticket, file)
    }

    fn drop_set_ids(&self, ticket: &mut Ticket, file: &File) -> Result<(), Errno> {
        if without_set_ids(file.told().mode).is_none() {
            return Ok(());
        }
        let ino = file.ino;
        let attr = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
        let Some(mode) = without_set_ids(attr.mode) else { return Ok(()) };
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        // A repetition finds nothing to remove, and the request's own numbers are for its main
        // operation.
        let mut own = self.backend.own_ticket();
        let _ = file.learn(self.backend.attr(&mut own, MetaOp::SetAttr { ino, set })?);
        self.drop_mode(ino);
        Ok(())
    }

    /// Removes the capabilities of an open file, if it has some. A strict mount would have to ask a
    /// meta each time, and leaves it to the kernel, which does not check writes past its cache.
    pub(super) fn drop_capabilities(&self, ticket: &mut Ticket, file: &File) -> Result<(), Errno> {
        if self.mode == Mode::Strict || self.is_bare(file) {
            return Ok(());
        }
        match self.get_xattr(ticket, file.ino, CAPABILITY) {
            Err(Errno::NODATA) => return Ok(()),
            found => drop(found?),
        }
        let name = XattrName::new(CAPABILITY).map_err(|_| Errno::RANGE)?;
        let op = MetaOp::RemoveXattr { ino: file.ino, name };
        // With its own ticket, as above.
        match self.backend.ask(&mut self.backend.own_ticket(), op)?.answer {
            Ok(_) | Err(MetaError::NoData) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The attributes to set, with a mode without the bits if they must be removed: for a cut that
    /// the kernel marks, and for a new owner.
    pub(super) fn with_set_ids_gone(
        &self,
        ticket: &mut Ticket,
        (ino, set): (Ino, SetAttr),
        valid: SetattrValid,
    ) -> Result<SetAttr, Errno> {
        let is_given = set.uid.is_some() || set.gid.is_some();
        // A chown(2) that keeps user and group, or a write that follows and removes the bits
        // itself. A caller that may not set a mode can only mean the second.
        let is_nothing = set == SetAttr::default();
        let goes = is_given || is_nothing || valid.contains(SetattrValid::KILL_SUIDGID);
        if set.mode.is_some() || !goes {
            return Ok(set);
        }
        let open = self.files().get(ino).filter(|file| self.believes(file));
        let open = open.map(|file| file.told());
        let attr = match open.or_else(|| self.known_attr(ino).map(|told| told.attr)) {
            Some(attr) => attr,
            None => self.backend.attr(ticket, MetaOp::GetAttr { ino })?.attr,
        };
        let mode = without_set_ids(attr.mode).filter(|_| !attr.is_dir());
        let mode = mode.filter(|_| !is_nothing || ticket.is_of(attr.uid));
        Ok(SetAttr { mode, ..set })
    }

    /// Cuts a file to nothing when it is opened.
    pub(super) fn cut_at_open(
        &self,
        ticket: &mut Ticket,
        attr: &Attr,
        flags: OpenInFlags,
    ) -> Result<Told, Errno> {
        let goes = flags.contains(OpenInFlags::KILL_SUIDGID) || !ticket.is_of_root();
        let mode = without_set_ids(attr.mode).filter(|_| goes);
        let set = SetAttr { size: Some(0), mode, ..SetAttr::default() };
        let told = self.resize(ticket, attr.ino, set)?;
        if mode.is_some() {
            self.drop_mode(attr.ino);
        }
        Ok(told)
    }

    /// Makes the kernel ask for the mode again. Does not block, and an inode that the kernel does
    /// not know needs no drop.
    fn drop_mode(&self, ino: Ino) {
        if let Some(device) = self.device.get() {
            let _ = device.inval_inode(ino.0, Pages::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_ids_go_and_mandatory_locking_stays() {
        let cases = [
            (0o4755, Some(0o755)),
            (0o6711, Some(0o711)),
            (0o2755, Some(0o755)),
            (0o2745, None),
            (0o6745, Some(0o2745)),
            (0o1755, None),
        ];
        for (mode, wanted) in cases {
            assert_eq!(without_set_ids(mode), wanted, "{mode:o}");
        }
    }
}
