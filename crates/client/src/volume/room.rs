//! How much room a volume has.

use std::path::Path;

use millpond_types::meta::{MetaError, MetaOp, MetaReply, Quota, QuotaLimits, Usage};

use super::Volume;
use super::walk::shown;
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

    /// The quota that a path counts for, if it counts for one.
    ///
    /// # Errors
    /// `File`: `NotFound`; and as for every call.
    pub fn quota(&self, path: impl AsRef<Path>) -> Result<Option<Quota>, ClientError> {
        let ino = self.stat(path.as_ref())?.ino;
        match self.metas().at(&shown(path.as_ref()), MetaOp::GetQuota { ino }) {
            Ok(MetaReply::Quota(quota)) => Ok(Some(quota)),
            Ok(_) => Err(self.metas().unexpected()),
            Err(ClientError::File { source: MetaError::NoData, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives a directory a quota, or other limits of the one that it has.
    ///
    /// # Errors
    /// `File`: `NotFound`, `NotDirectory`; `NotPermitted` unless the caller is root; `NotEmpty` for a first quota of what
    /// is not empty; and as for every call.
    pub fn set_quota(
        &self,
        path: impl AsRef<Path>,
        limits: QuotaLimits,
    ) -> Result<(), ClientError> {
        let dir = self.stat(path.as_ref())?.ino;
        self.change(path.as_ref(), MetaOp::SetQuota { dir, limits })
    }
}
