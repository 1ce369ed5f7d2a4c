//! How much room a volume has.

use millpond_types::meta::{MetaOp, MetaReply, Usage};

use super::Volume;
use crate::error::ClientError;

impl Volume {
    /// How many bytes and inodes there are, and how many of them are free.
    ///
    /// # Errors
    /// As for every call.
    pub fn usage(&self) -> Result<Usage, ClientError> {
        match self.metas().at("/", MetaOp::Usage)? {
            MetaReply::Usage(usage) => Ok(usage),
            _ => Err(self.metas().unexpected()),
        }
    }
}
