//! The only access to the volume; its calls about objects are used directly.

use std::ops::Deref;

use millpond_client::{ClientError, File, Hold, Volume};
use millpond_types::meta::MetaError;

pub(crate) use millpond_client::{
    Attachment, Body, Bucket, Expect, Found, KeyState, ListObjects, Listed, Object, Part, Put,
    PutObject, Upload, UploadId, Wanted,
};
pub(crate) use millpond_types::meta::STORED_MAX;

/// The volume, in the session of a gateway.
pub(crate) struct Store {
    volume: Volume,
}

impl Store {
    pub(crate) const fn new(volume: Volume) -> Self {
        Self { volume }
    }

    /// The bytes of a file, if it exists.
    pub(crate) fn bytes_of(&self, path: &str) -> Result<Option<Vec<u8>>, ClientError> {
        is_there(self.volume.read_file(path))
    }

    /// The file of an object that was looked up in a hold; none if the object includes its bytes.
    pub(crate) fn file_of(&self, object: &Object, hold: &Hold) -> Option<File> {
        let is_told = object.bytes.is_some() || object.attr.size == 0;
        (!is_told).then(|| self.object_file_held(object, hold))
    }

    /// Whether a directory exists and is not empty.
    pub(crate) fn has_entries(&self, path: &str) -> Result<bool, ClientError> {
        Ok(is_there(self.volume.list(path))?.is_some_and(|entries| !entries.is_empty()))
    }
}

fn is_there<T>(found: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(ClientError::File { source: MetaError::NotFound, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Deref for Store {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}
