//! `ListObjectVersions` of buckets without versions: each object is the latest version, with the id
//! `null`.

use std::sync::Arc;

use s3s::dto::{CommonPrefix, ListObjectVersionsInput, ListObjectVersionsOutput, ObjectVersion};
use s3s::{S3ErrorCode, S3Request};

use super::list::{Asked, Told, encoded, is_url, page, page_len};
use super::{Answer, answer, count, owner, size};
use crate::access::{Asker, who_asks};
use crate::conditions::{etag, time};
use crate::door::Door;
use crate::error::refuse;
use crate::record::View;

/// The version id of an object without versions.
pub(crate) const NULL: &str = "null";

fn version(key: String, view: &View, who: &Asker) -> ObjectVersion {
    let sum = view.record.sum.as_ref();
    ObjectVersion {
        checksum_algorithm: sum.map(|sum| vec![sum.algorithm.name().to_owned().into()]),
        checksum_type: sum.map(super::put::sum_type),
        e_tag: Some(etag(&view.etag)),
        is_latest: Some(true),
        key: Some(key),
        last_modified: Some(time(view.attr.mtime)),
        owner: Some(owner(who.owner_of(&view.record))),
        size: Some(size(view.attr.size)),
        storage_class: Some(view.record.class().to_owned().into()),
        version_id: Some(NULL.to_owned()),
        ..ObjectVersion::default()
    }
}

/// `ListObjectVersions`.
pub(crate) async fn list(
    door: &Arc<Door>,
    request: S3Request<ListObjectVersionsInput>,
) -> Answer<ListObjectVersionsOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let url = is_url(input.encoding_type.as_ref())?;
    let max = page_len(input.max_keys, "maxKeys")?;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (prefix, delimiter) = (text(&input.prefix), text(&input.delimiter));
    let marker = text(&input.key_marker);
    if marker.is_empty() && input.version_id_marker.as_ref().is_some_and(|id| !id.is_empty()) {
        let message = "A version-id marker cannot be specified without a key marker.";
        return Err(refuse(S3ErrorCode::InvalidArgument, message));
    }
    let asked = Asked {
        bucket: input.bucket.clone(),
        prefix: prefix.clone(),
        delimiter: delimiter.clone(),
        after: marker.clone().into_bytes(),
        max,
    };
    let found = page(door, asked).await?;
    // A key has one version: the next page begins after the key, whichever version was the last.
    let is_key = found.items.last().is_some_and(|item| item.view.is_some());
    let next_version_id_marker = (is_key && found.next.is_some()).then(|| NULL.to_owned());
    let (mut versions, mut prefixes) = (Vec::new(), Vec::new());
    for Told { name, view } in found.items {
        let name = encoded(&name, url);
        match view {
            Some(view) => versions.push(version(name, &view, &who)),
            None => prefixes.push(CommonPrefix { prefix: Some(name) }),
        }
    }
    let delimiter = (!delimiter.is_empty()).then(|| encoded(delimiter.as_bytes(), url));
    answer(ListObjectVersionsOutput {
        name: Some(input.bucket),
        prefix: Some(encoded(prefix.as_bytes(), url)),
        key_marker: Some(encoded(marker.as_bytes(), url)),
        version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
        max_keys: Some(count(max)),
        is_truncated: Some(found.next.is_some()),
        next_key_marker: found.next.map(|next| encoded(&next, url)),
        next_version_id_marker,
        versions: Some(versions),
        common_prefixes: Some(prefixes),
        delimiter,
        encoding_type: input.encoding_type,
        ..ListObjectVersionsOutput::default()
    })
}
