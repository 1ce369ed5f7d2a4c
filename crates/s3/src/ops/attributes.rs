//! `GetObjectAttributes`.

use std::sync::Arc;

use s3s::dto::{
    Checksum, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectPart, StorageClass,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::put::{sum_type, tell_sum};
use super::{Answer, count, size};
use crate::access::who_asks;
use crate::acl::Permission;
use crate::backed::look::view;
use crate::conditions::{etag, time};
use crate::door::Door;
use crate::error::{absent, refuse};
use crate::http::BareETag;
use crate::record::Parts;

/// A page of an object's parts: numbers, lengths and checksums, if known.
fn page(
    parts: &Parts,
    max: Option<i32>,
    marker: Option<i32>,
) -> S3Result<GetObjectAttributesParts> {
    let max = super::list::page_len(max, "max-parts")?;
    let after = u32::try_from(marker.unwrap_or(0)).unwrap_or(0);
    let sums = parts.sums();
    let mut told: Vec<ObjectPart> = (after.saturating_add(1)..=parts.count)
        .map_while(|number| Some((number, parts.place(number)?.1)))
        .take(max + 1)
        .map(|(number, len)| {
            let mut part = ObjectPart {
                part_number: Some(count(number as usize)),
                size: Some(size(len)),
                ..ObjectPart::default()
            };
            tell_sum!(part, sums(number));
            part
        })
        .collect();
    let is_truncated = told.len() > max;
    told.truncate(max);
    let last = told.last().and_then(|part| part.part_number);
    Ok(GetObjectAttributesParts {
        total_parts_count: Some(count(parts.count as usize)),
        max_parts: Some(count(max)),
        part_number_marker: Some(count(after as usize)),
        next_part_number_marker: last.or_else(|| Some(count(after as usize))),
        is_truncated: Some(is_truncated),
        parts: (!told.is_empty()).then_some(told),
    })
}

/// `GetObjectAttributes`.
pub(crate) async fn get(
    door: &Arc<Door>,
    request: S3Request<GetObjectAttributesInput>,
) -> Answer<GetObjectAttributesOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    if input.version_id.as_ref().is_some_and(|version| version != "null") {
        return Err(absent("A version of an object (versionId)"));
    }
    // One header may have several names, which `s3s` does not split.
    let names = input.object_attributes.iter().flat_map(|attribute| attribute.as_str().split(','));
    let names: Vec<&str> = names.map(str::trim).collect();
    let known = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];
    if names.is_empty() || names.iter().any(|name| !known.contains(name)) {
        return Err(refuse(S3ErrorCode::InvalidArgument, "Invalid attribute name specified."));
    }
    let (bucket, key) = (input.bucket, input.key);
    let (view, _) = view(door, (&bucket, &key)).await.map_err(|error| who.told(error))?;
    who.check(&view.record, Permission::Read)?;
    let is_asked = |name: &str| names.contains(&name);
    let checksum = view.record.sum.as_ref().filter(|_| is_asked("Checksum")).map(|sum| {
        let mut told = Checksum { checksum_type: Some(sum_type(sum)), ..Checksum::default() };
        tell_sum!(told, Some(sum));
        told
    });
    let parts = view.record.parts.as_ref().filter(|_| is_asked("ObjectParts"));
    let object_parts = match parts {
        Some(parts) => Some(page(parts, input.max_parts, input.part_number_marker)?),
        None => None,
    };
    let mut answer = S3Response::new(GetObjectAttributesOutput {
        checksum,
        e_tag: is_asked("ETag").then(|| etag(&view.etag)),
        last_modified: Some(time(view.attr.mtime)),
        object_parts,
        object_size: is_asked("ObjectSize").then(|| size(view.attr.size)),
        storage_class: is_asked("StorageClass")
            .then(|| StorageClass::from(view.record.class().to_owned())),
        ..GetObjectAttributesOutput::default()
    });
    answer.extensions.insert(BareETag);
    Ok(answer)
}
