//! Chunks that other files have too (RFC 0014): read through to those that lie behind them, and left for others by
//! whoever may not write there any more.

use millpond_client::Chunks;
use millpond_types::meta::MetaOp;

use super::Fs;
use crate::backend::{Denied, Ticket, unexpected};
use crate::errno::Errno;
use crate::files::File;

/// How often something is tried with a file that gets other chunks meanwhile.
const TRIES: usize = 64;

impl Fs {
    /// The chunks of a file to read from, and its length; none when its bytes lie in the store.
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

    /// Changes the chunks of a file, whose length `work` is told. The file gets chunks of its own before if these are
    /// sealed. The chunks that it was done to; none when the file's bytes lie in the store by now, since somebody
    /// else has cut it to nothing. The caller has the file's gate.
    pub(super) fn change(
        &self,
        file: &File,
        work: impl Fn(&Chunks, u64) -> Result<(), Denied>,
    ) -> Result<Option<Chunks>, Errno> {
        for _ in 0..TRIES {
            if file.has_untold_elsewhere() {
                // An earlier process wrote to chunks that somebody else has put others in front of: what is noted
                // next takes its place.
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
                // Perhaps on some chains only: then nobody may go on before it is on all.
                self.backend.seal(&chunks)?;
            }
            self.unshare(file, &chunks)?;
        }
        Err(unexpected())
    }

    /// Gives a file chunks of its own in front of these, which are sealed on all chains.
    fn unshare(&self, file: &File, chunks: &Chunks) -> Result<(), Errno> {
        // How far the file reaches by what was written to them.
        self.tell_of(file)?;
        let changes = self.backend.settled.changes(file.ino);
        let op = MetaOp::Unshare { ino: file.ino, chunks: chunks.bytes().data.0 };
        let told = self.backend.attr(&mut self.backend.own_ticket(), op)?;
        self.heard(file, told, changes);
        Ok(())
    }
}
