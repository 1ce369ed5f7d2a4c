//! Chunks of an open file that was cloned, or is a clone (RFC 0014).

use std::sync::Arc;

use millpond_types::meta::{Attr, MetaError, MetaOp, MetaReply};

use super::file::Opened;
use crate::error::ClientError;
use crate::share::{Chunks, SharedName};

/// Attempts of a change when the file gets other chunks in the meantime.
const TRIES: usize = 64;

impl Opened {
    /// The chunks of a file with these attributes; none when it has other chunks by now.
    pub(super) fn chunks(&self, attr: &Attr) -> Result<Option<Chunks>, ClientError> {
        if !attr.is_shared {
            return Ok(Some(Chunks::own(attr)));
        }
        let chunks = attr.chunk_data();
        if let Some(name) = self.known_name(chunks) {
            return Ok(Some(Chunks::shared(attr, name)));
        }
        let metas = &self.shared.metas;
        match metas.ask(metas.caller.clone(), MetaOp::Shared { chunks })? {
            Ok(MetaReply::Shared(record)) => {
                let name = Arc::new(SharedName::of(&record));
                self.keep_name(chunks, Arc::clone(&name));
                Ok(Some(Chunks::shared(attr, name)))
            }
            Ok(_) => Err(metas.unexpected()),
            Err(MetaError::Stale) => Ok(None),
            Err(source) => Err(self.refused(source)),
        }
    }

    /// Changes the chunks of a file that had these attributes, and now has this length. If they are
    /// sealed, the file first gets chunks of its own. Returns the changed chunks; none when its
    /// bytes are in the store by now, because another client truncated it to zero after this.
    pub(super) fn change(
        &self,
        attr: Attr,
        work: impl Fn(&Chunks, u64) -> Result<(), ClientError>,
    ) -> Result<Option<Chunks>, ClientError> {
        let mut attr = attr;
        for _ in 0..TRIES {
            let Some(chunks) = self.chunks(&attr)? else {
                attr = self.refresh()?;
                if attr.is_stored() {
                    return Ok(None);
                }
                continue;
            };
            let is_sealed = chunks.are_sealed_for(attr.ino);
            if !is_sealed {
                match work(&chunks, attr.size) {
                    Ok(()) => return Ok(Some(chunks)),
                    Err(error) if error.is_sealed() => {
                        // The chunks may be sealed on some chains only: sealing must be complete
                        // before anything continues.
                        chunks.seal(&self.shared.metas.client, None)?;
                    }
                    Err(error) => return Err(error),
                }
            }
            attr = self.ask(MetaOp::Unshare { ino: attr.ino, chunks: chunks.bytes().data.0 })?;
            if attr.is_stored() {
                return Ok(None);
            }
        }
        Err(self.shared.metas.unexpected())
    }
}
