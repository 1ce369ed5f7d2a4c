//! `GetObjectAttributes`.

use std::sync::Arc;

use s3s::dto::{
    Checksum, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    StorageClass,
};
use s3s::{S3ErrorCode, S3Request};

use super::put::{sum_type, tell_sum};
use super::{Answer, answer, count, size};
use crate::backed::look::view;
use crate::conditions::{etag, time};
use crate::door::Door;
use crate::error::{absent, refuse};

/// `GetObjectAttributes`. Of parts only their number is told.
pub(crate) async fn get(
    door: &Arc<Door>,
    request: S3Request<GetObjectAttributesInput>,
) -> Answer<GetObjectAttributesOutput> {
    let input = request.input;
    if input.version_id.as_ref().is_some_and(|it| it != "null") {
        return Err(absent("A version of an object (versionId)"));
    }
    // One header may have several names, and `s3s` leaves them together.
    let names = input.object_attributes.iter().flat_map(|it| it.as_str().split(','));
    let names: Vec<&str> = names.map(str::trim).collect();
    let known = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];
    if names.is_empty() || names.iter().any(|it| !known.contains(it)) {
        return Err(refuse(S3ErrorCode::InvalidArgument, "Invalid attribute name specified."));
    }
    let (bucket, key) = (input.bucket, input.key);
    let (view, _) = view(door, (&bucket, &key)).await?;
    let is_asked = |name: &str| names.contains(&name);
    let checksum = view.record.sum.as_ref().filter(|_| is_asked("Checksum")).map(|sum| {
        let mut told = Checksum { checksum_type: Some(sum_type(sum)), ..Checksum::default() };
        tell_sum!(told, Some(sum));
        told
    });
    let parts = view.record.parts.as_ref().filter(|_| is_asked("ObjectParts"));
    let object_parts = parts.map(|it| GetObjectAttributesParts {
        total_parts_count: Some(count(it.count as usize)),
        ..GetObjectAttributesParts::default()
    });
    answer(GetObjectAttributesOutput {
        checksum,
        e_tag: is_asked("ETag").then(|| etag(&view.etag)),
        last_modified: Some(time(view.attr.mtime)),
        object_parts,
        object_size: is_asked("ObjectSize").then(|| size(view.attr.size)),
        storage_class: is_asked("StorageClass").then(|| StorageClass::from_static("STANDARD")),
        ..GetObjectAttributesOutput::default()
    })
}
