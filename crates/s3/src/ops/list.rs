//! `ListObjects`, both versions: pages in the order of keys.

use std::sync::Arc;

use s3s::dto::{
    CommonPrefix, EncodingType, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
    ListObjectsV2Output, Object as Entry,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::{Answer, answer, count, owner, size};
use crate::access::{Asker, who_asks};
use crate::back::store::{Found, Remote};
use crate::backed::merge::Line;
use crate::conditions::{etag, time};
use crate::door::Door;
use crate::error::{Told as _, refuse};
use crate::hash::{hex, unhex};
use crate::record::View;
use crate::store::{ListObjects, Listed, Object, Store};

/// Keys of a page at most.
const KEYS_MAX: usize = 1_000;
/// Metas pages that one page of an answer may take: this bounds the work, and allows short pages.
const ROUNDS_MAX: usize = 64;
/// Prefix of continuation tokens.
const TOKEN: &str = "1-";

/// The page that a client requests.
pub(crate) struct Asked {
    pub(crate) bucket: String,
    pub(crate) prefix: String,
    pub(crate) delimiter: String,
    pub(crate) after: Vec<u8>,
    pub(crate) max: usize,
}

/// A page of an answer.
pub(crate) struct Page {
    pub(crate) items: Vec<Told>,
    /// The position where the next page begins; none at the end.
    pub(crate) next: Option<Vec<u8>>,
}

/// An item of an answer: a key with its object, or a common prefix.
pub(crate) struct Told {
    pub(crate) name: Vec<u8>,
    pub(super) view: Option<View>,
}

impl Told {
    /// An item of the pool.
    pub(crate) fn here(line: Line<Object>) -> Self {
        Self { name: line.name, view: line.of.map(|object| View::of(&object)) }
    }

    /// A key that only the backend has.
    pub(crate) fn there(name: Vec<u8>, found: &Found) -> Self {
        let remote = Remote {
            etag: found.etag.clone(),
            len: found.len,
            modified_ms: found.modified_ms,
            ..Remote::default()
        };
        Self { name, view: Some(View::of_remote(&remote)) }
    }

    /// A common prefix.
    pub(crate) const fn prefix(name: Vec<u8>) -> Self {
        Self { name, view: None }
    }

    pub(crate) const fn is_prefix(&self) -> bool {
        self.view.is_none()
    }

    fn of(item: Listed) -> Self {
        match item {
            Listed::Prefix(name) => Self::prefix(name),
            Listed::Key { key, object } => Self { name: key, view: Some(View::of(&object)) },
        }
    }
}

/// Gathers a page; requests one more item than needed, so that a full last page is recognized.
fn gather(store: &Store, asked: &Asked) -> S3Result<Page> {
    let mut items = Vec::new();
    let mut after = asked.after.clone();
    for _ in 0..ROUNDS_MAX {
        let limit = u32::try_from((asked.max + 1 - items.len()).min(KEYS_MAX)).unwrap_or(1);
        let page = store
            .list_objects(&ListObjects {
                bucket: &asked.bucket,
                prefix: asked.prefix.as_bytes(),
                delimiter: asked.delimiter.as_bytes(),
                after: &after,
                limit,
            })
            .in_bucket()?;
        items.extend(page.items.into_iter().map(Told::of));
        if items.len() > asked.max {
            items.truncate(asked.max);
            let next = items.last().map(|item: &Told| item.name.clone());
            return Ok(Page { items, next });
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(Page { items, next: None }),
        }
    }
    Ok(Page { items, next: Some(after) })
}

/// Percent-encodes the same characters as AWS.
pub(crate) fn encoded(text: &[u8], is_asked: bool) -> String {
    use std::fmt::Write as _;
    if !is_asked {
        return String::from_utf8_lossy(text).into_owned();
    }
    text.iter().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.*/".contains(byte) {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// Whether keys are to be URL-encoded.
pub(super) fn is_url(encoding: Option<&EncodingType>) -> S3Result<bool> {
    match encoding.map(EncodingType::as_str) {
        None => Ok(false),
        Some("url") => Ok(true),
        Some(_) => {
            let message = "Invalid Encoding Method specified in Request";
            Err(refuse(S3ErrorCode::InvalidArgument, message))
        }
    }
}

pub(super) fn page_len(max: Option<i32>, name: &str) -> S3Result<usize> {
    usize::try_from(max.unwrap_or(1_000)).map(|len| len.min(KEYS_MAX)).map_err(|_| {
        let message = format!("Argument {name} must be an integer between 0 and 2147483647");
        refuse(S3ErrorCode::InvalidArgument, message)
    })
}

/// A page of a bucket, backed or not.
///
/// # Errors
/// `NoSuchBucket`; those of the backend.
pub(super) async fn page(door: &Arc<Door>, asked: Asked) -> S3Result<Page> {
    if asked.max > 0
        && let Some(backed) = door.backed(&asked.bucket).await?
        && !backed.is_all_transient(asked.prefix.as_bytes())
    {
        return crate::backed::list::page(door, &backed, &asked).await;
    }
    door.blocking(move |store| {
        if asked.max == 0 {
            store.bucket(&asked.bucket).in_bucket()?;
            return Ok(Page { items: Vec::new(), next: None });
        }
        gather(store, &asked)
    })
    .await
}

/// Splits keys from prefixes. `owners` adds the owners, if requested.
fn split(items: Vec<Told>, url: bool, owners: Option<&Asker>) -> (Vec<Entry>, Vec<CommonPrefix>) {
    let (mut entries, mut prefixes) = (Vec::new(), Vec::new());
    for item in items {
        let key = item.name;
        match item.view {
            None => {
                prefixes.push(CommonPrefix { prefix: Some(encoded(&key, url)) });
            }
            Some(view) => {
                entries.push(Entry {
                    e_tag: Some(etag(&view.etag)),
                    key: Some(encoded(&key, url)),
                    last_modified: Some(time(view.attr.mtime)),
                    owner: owners.map(|who| owner(who.owner_of(&view.record))),
                    size: Some(size(view.attr.size)),
                    storage_class: Some(view.record.class().to_owned().into()),
                    checksum_algorithm: view
                        .record
                        .sum
                        .as_ref()
                        .map(|sum| vec![sum.algorithm.name().to_owned().into()]),
                    checksum_type: view.record.sum.as_ref().map(super::put::sum_type),
                    ..Entry::default()
                });
            }
        }
    }
    (entries, prefixes)
}

/// `ListObjects`.
pub(crate) async fn v1(
    door: &Arc<Door>,
    request: S3Request<ListObjectsInput>,
) -> Answer<ListObjectsOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let url = is_url(input.encoding_type.as_ref())?;
    let max = page_len(input.max_keys, "maxKeys")?;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (prefix, delimiter, marker) =
        (text(&input.prefix), text(&input.delimiter), text(&input.marker));
    let asked = Asked {
        bucket: input.bucket.clone(),
        prefix: prefix.clone(),
        delimiter: delimiter.clone(),
        after: marker.clone().into_bytes(),
        max,
    };
    let found = page(door, asked).await?;
    // Without a delimiter clients continue after the last key, if there is one.
    let is_told = !delimiter.is_empty() || found.items.is_empty();
    let next_marker = found.next.as_deref().filter(|_| is_told).map(|next| encoded(next, url));
    let is_truncated = Some(found.next.is_some());
    let (contents, prefixes) = split(found.items, url, Some(&who));
    answer(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoded(prefix.as_bytes(), url)),
        marker: Some(encoded(marker.as_bytes(), url)),
        max_keys: Some(count(max)),
        is_truncated,
        contents: Some(contents),
        common_prefixes: Some(prefixes),
        delimiter: input
            .delimiter
            .filter(|delimiter| !delimiter.is_empty())
            .map(|delimiter| encoded(delimiter.as_bytes(), url)),
        next_marker,
        encoding_type: input.encoding_type,
        ..ListObjectsOutput::default()
    })
}

/// `ListObjectsV2`.
pub(crate) async fn v2(
    door: &Arc<Door>,
    request: S3Request<ListObjectsV2Input>,
) -> Answer<ListObjectsV2Output> {
    let who = who_asks(&request)?;
    let input = request.input;
    let url = is_url(input.encoding_type.as_ref())?;
    let max = page_len(input.max_keys, "maxKeys")?;
    let token = input.continuation_token.as_ref().filter(|token| !token.is_empty());
    let after = match token {
        Some(token) => token.strip_prefix(TOKEN).and_then(unhex).ok_or_else(|| {
            let message = "The continuation token provided is incorrect";
            refuse(S3ErrorCode::InvalidArgument, message)
        })?,
        None => input.start_after.clone().unwrap_or_default().into_bytes(),
    };
    let prefix = input.prefix.clone().unwrap_or_default();
    let asked = Asked {
        bucket: input.bucket.clone(),
        prefix: prefix.clone(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        after,
        max,
    };
    let found = page(door, asked).await?;
    let key_count = Some(count(found.items.len()));
    let next = found.next.map(|next| format!("{TOKEN}{}", hex(&next)));
    let owners = (input.fetch_owner == Some(true)).then_some(&who);
    let (contents, prefixes) = split(found.items, url, owners);
    answer(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoded(prefix.as_bytes(), url)),
        max_keys: Some(count(max)),
        key_count,
        continuation_token: input.continuation_token,
        is_truncated: Some(next.is_some()),
        next_continuation_token: next,
        contents: Some(contents),
        common_prefixes: Some(prefixes),
        delimiter: input
            .delimiter
            .filter(|delimiter| !delimiter.is_empty())
            .map(|delimiter| encoded(delimiter.as_bytes(), url)),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|key| encoded(key.as_bytes(), url)),
        ..ListObjectsV2Output::default()
    })
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn keys_are_encoded_as_aws_does() {
        assert_eq!(encoded("a b/ü+*".as_bytes(), true), "a%20b/%C3%BC%2B*");
        assert_eq!(encoded(b"a b", false), "a b");
    }
}
