//! Reads of file bytes from the node in the client's own process.

use millpond_env::RealClock;
use millpond_types::wire::{ChunkReadRequest, ReadPart};

use super::File;
use super::file::{BELIEVED, Opened};
use crate::layout::FileBytes;
use crate::own::OwnBytes;

impl File {
    /// Reads a range from the node in this process ([`crate::ClientOptions::own_node`]): its bytes
    /// in order, in place in the node's memory. Blocks no thread, and copies nothing.
    ///
    /// None if the range must be read with [`File::read_batch`], which reports errors: there is no
    /// such node, the range is not entirely within the length known in the last second, it has
    /// holes, others may share the chunks (a clone), the bytes are in the store, or the node cannot
    /// answer alone.
    pub async fn read_here(&self, offset: u64, len: usize) -> Option<Vec<OwnBytes>> {
        let own = self.opened.shared.metas.client.options().own_node.as_ref()?;
        let request = self.opened.parts_here(offset, len)?;
        let lens: Vec<usize> = request.parts.iter().map(|part| part.len as usize).collect();
        let found = own.read(request).await?;
        let is_whole = found.iter().map(|bytes| bytes.as_ref().len()).eq(lens);
        // Damaged bytes are read again on the normal path, which counts and repairs them.
        (is_whole && found.iter().all(OwnBytes::is_sound)).then_some(found)
    }
}

impl Opened {
    /// The parts of chunks in a range, if they are known well enough.
    fn parts_here(&self, offset: u64, len: usize) -> Option<ChunkReadRequest> {
        let (attr, heard) = self.known();
        let is_known = RealClock::tick().since(heard) < BELIEVED;
        let is_within = offset.checked_add(len as u64)? <= attr.size;
        let is_plain = !attr.is_shared && !attr.is_stored();
        if !(self.may_read() && is_known && is_within && is_plain) {
            return None;
        }
        let parts = FileBytes::of(&attr).parts(offset, len).map(|part| {
            let (at, len) = part.ok()?;
            let len = u32::try_from(len).ok()?;
            Some(ReadPart { at: at.at(), offset: at.offset, len, bases: at.bases })
        });
        Some(ChunkReadRequest { parts: parts.collect::<Option<_>>()? })
    }
}
