//! Files without a name (`O_TMPFILE`): the session holds them until they are closed or get one.

use millpond_fuse_wire::Reply;
use millpond_fuse_wire::abi::{CreateIn, OpenOut};
use millpond_types::meta::{Ino, MetaOp, object::ObjectOp};

use super::{Fs, Send};
use crate::backend::{Ticket, Told};
use crate::errno::Errno;

impl Fs {
    /// Makes a file without a name in a directory, and opens it.
    pub(super) fn make_nameless(
        &self,
        ticket: &mut Ticket,
        (parent, name): (Ino, &[u8]),
        args: &CreateIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let ino = self.next_number().ok_or(Errno::IO)?;
        let _making = self.files().making(ino);
        let (mode, umask) = self.mode_of(args.mode, args.umask);
        let op = ObjectOp::Nameless { parent, ino, mode, replicas: 0, umask };
        let op = MetaOp::Object(op);
        let mut told = self.backend.attr(ticket, op.clone())?;
        if told.attr.ino != ino && self.is_gone(&told) {
            // An earlier process had it made, and died before the open: it was collected since.
            let mut anew = ticket.clone().forgetful(&self.backend.own_ticket());
            told = self.backend.attr(&mut anew, op)?;
        }
        let _file = self.files().open(ticket.unique(), told);
        let out = OpenOut::new(ticket.unique(), self.open_flags(told.attr));
        let keeping = self.keeping();
        send(Reply::Create(keeping.entry((parent, name), told), out));
        Ok(())
    }

    fn is_gone(&self, told: &Told) -> bool {
        let op = MetaOp::GetAttr { ino: told.attr.ino };
        self.backend.attr(&mut self.backend.own_ticket(), op).is_err()
    }
}
