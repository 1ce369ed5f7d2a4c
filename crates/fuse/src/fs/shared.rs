//! Chunks shared with other files (RFC 0014): reads fall through to the base chunks, and a writer
//! that may no longer change them gets chunks of its own.

use millpond_client::Chunks;
use millpond_types::meta::MetaOp;

use super::Fs;
use crate::backend::{Denied, Ticket, unexpected};
use crate::errno::Errno;
use crate::files::File;

/// How often an operation is retried while the file's chunks are replaced.
const TRIES: usize = 64;

impl Fs {
    /// The chunks of a file to read from, and its length; `None` when its bytes lie in the store.
    pub(super) fn chunks_of(
        &self,
        ticket: &mut Ticket,
        file: &File,
    ) -> Result<Option<(Chunks, u64)>, Errno> {
        for _ in 0..TRIES {
            let attr = file.attr();
            if attr.is_stored() {
                return Ok(None);
            }
            if let Some(chunks) = self.backend.chunks(&attr)? {
                return Ok(Some((chunks, attr.size)));
            }
            let _ = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino: file.ino })?);
        }
        Err(unexpected())
    }

    /// Changes the chunks of a file; `work` gets the chunks and the file's length.
    ///
    /// If they are sealed, the file first gets chunks of its own. Returns the changed chunks, or
    /// `None` when the file's bytes now lie in the store, because another client has cut it to
    /// nothing. The caller has the file's gate.
    pub(super) fn change(
        &self,
        file: &File,
        work: impl Fn(&Chunks, u64) -> Result<(), Denied>,
    ) -> Result<Option<Chunks>, Errno> {
        for _ in 0..TRIES {
            if file.has_untold_elsewhere() {
                // An earlier process wrote to chunks that another client has since put others in
                // front of: the next note replaces that one.
                self.tell_of(file)?;
            }
            let known = self.chunks_of(&mut self.backend.own_ticket(), file)?;
            let Some((chunks, size)) = known else { return Ok(None) };
            if !chunks.are_sealed_for(file.ino) {
                match work(&chunks, size) {
                    Ok(()) => return Ok(Some(chunks)),
                    Err(Denied::Failed(errno)) => return Err(errno),
                    Err(Denied::Sealed) => {}
                }
                // They may be sealed on some chains only: no writer may continue before all are.
                self.backend.seal(&chunks)?;
            }
            self.unshare(file, &chunks)?;
        }
        Err(unexpected())
    }

    /// Gives a file chunks of its own in front of these, which are sealed on all chains.
    fn unshare(&self, file: &File, chunks: &Chunks) -> Result<(), Errno> {
        // The length of the file by the writes to them.
        self.tell_of(file)?;
        let changes = self.backend.settled.changes(file.ino);
        let op = MetaOp::Unshare { ino: file.ino, chunks: chunks.bytes().data.0 };
        let told = self.backend.attr(&mut self.backend.own_ticket(), op)?;
        self.heard(file, told, changes);
        Ok(())
    }
}
