//! Capacity and quotas of a volume.

use std::path::Path;

use millpond_types::meta::{MetaError, MetaOp, MetaReply, Quota, QuotaLimits, Usage};

use super::Volume;
use super::walk::shown;
use crate::error::ClientError;

impl Volume {
    /// Total and free bytes, and the number of inodes.
    ///
    /// # Errors
    /// As for every call.
    pub fn usage(&self) -> Result<Usage, ClientError> {
        match self.metas().at("/", MetaOp::Usage)? {
            MetaReply::Usage(usage) => Ok(usage),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// The quota that counts a path, if any.
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

    /// Gives a directory a quota, or changes the limits of its quota.
    ///
    /// # Errors
    /// `File`: `NotFound`, `NotDirectory`; `NotPermitted` unless the caller is root; `NotEmpty` for
    /// the first quota of a directory with entries; and as for every call.
    pub fn set_quota(
        &self,
        path: impl AsRef<Path>,
        limits: QuotaLimits,
    ) -> Result<(), ClientError> {
        let dir = self.stat(path.as_ref())?.ino;
        self.change(path.as_ref(), MetaOp::SetQuota { dir, limits })
    }
}
