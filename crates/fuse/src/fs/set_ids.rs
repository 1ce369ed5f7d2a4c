//! Who changes a program of somebody else takes its set-user-id and set-group-id bits away: otherwise what is in it then
//! would run with its owner's rights.
//!
//! The kernel sees to it by itself where it sets attributes: before a write to its page cache, a cut or a `fallocate`. It
//! does not where a write goes past its cache to a file that was opened so (`FOPEN_DIRECT_IO`, a strict mount): then it
//! says that it is wanted. Nor does it say anything of a cut that comes with an open (`ATOMIC_O_TRUNC`): there
//! whoever is not root takes them away. A kernel that is granted `HANDLE_KILLPRIV_V2` would say it
//! (`FUSE_OPEN_KILL_SUIDGID`), and leave all the rest to the mount too, capabilities of files among it: that is not wanted.

use millpond_fuse_wire::Pages;
use millpond_fuse_wire::abi::WriteFlags;
use millpond_types::meta::{Attr, Ino, MetaOp, SetAttr};

use super::Fs;
use crate::backend::{Ticket, Told};
use crate::errno::Errno;
use crate::files::File;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// The mode that is left, if it is another one. Without the group's execute bit, the set-group-id bit means mandatory
/// locking, and stays.
const fn without_set_ids(mode: u16) -> Option<u16> {
    let gone = if mode & GROUP_EXECUTE == 0 { SET_UID } else { SET_UID | SET_GID };
    if mode & gone == 0 { None } else { Some(mode & !gone) }
}

impl Fs {
    /// Takes them away before bytes are written, if the kernel wants that.
    pub(super) fn before_write(
        &self,
        ticket: &mut Ticket,
        (file, flags): (&File, WriteFlags),
    ) -> Result<(), Errno> {
        let wanted = flags.contains(WriteFlags::KILL_SUIDGID);
        if !wanted || without_set_ids(file.told().mode).is_none() {
            return Ok(());
        }
        let ino = file.ino;
        let attr = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
        let Some(mode) = without_set_ids(attr.mode) else { return Ok(()) };
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let _ = file.learn(self.backend.attr(ticket, MetaOp::SetAttr { ino, set })?);
        self.drop_mode(ino);
        Ok(())
    }

    /// Cuts a file to nothing as it is opened.
    pub(super) fn cut_at_open(&self, ticket: &mut Ticket, attr: &Attr) -> Result<Told, Errno> {
        let mode = without_set_ids(attr.mode).filter(|_| !ticket.is_of_root());
        let set = SetAttr { size: Some(0), mode, ..SetAttr::default() };
        let told = self.resize(ticket, attr.ino, set)?;
        if mode.is_some() {
            self.drop_mode(attr.ino);
        }
        Ok(told)
    }

    /// Has the kernel ask for the mode. Waits for nothing, and an inode that it does not know is none to drop.
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
