//! Tags of objects and buckets.

use std::sync::Arc;

use s3s::dto::{
    DeleteBucketTaggingInput, DeleteBucketTaggingOutput, DeleteObjectTaggingInput,
    DeleteObjectTaggingOutput, GetBucketTaggingInput, GetBucketTaggingOutput,
    GetObjectTaggingInput, GetObjectTaggingOutput, PutBucketTaggingInput, PutBucketTaggingOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::get::find;
use super::{Answer, answer};
use crate::access::who_asks;
use crate::backed::fetch;
use crate::backed::look::{self, Seen, bring, is_given_up};
use crate::backed::settle::admit_removal;
use crate::door::Door;
use crate::error::{Told as _, refuse};
use crate::record::{Record, View, decode, encode_over};
use crate::store::{Expect, Object, Put, Store};

/// Limits of AWS: tags of an object and of a bucket, and characters of their keys and values.
const OBJECT_MAX: usize = 10;
const BUCKET_MAX: usize = 50;
const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 256;
const TRIES: usize = 8;

type Tags = Vec<(String, String)>;

fn checked(tags: Tags, max: usize) -> S3Result<Tags> {
    if tags.len() > max {
        let message = format!("Object tags cannot be greater than {max}");
        return Err(refuse(S3ErrorCode::InvalidTag, message));
    }
    let invalid = |message: &'static str| Err(refuse(S3ErrorCode::InvalidTag, message));
    for (place, (key, value)) in tags.iter().enumerate() {
        let is_ours = key.get(..4).is_none_or(|start| !start.eq_ignore_ascii_case("aws:"));
        let fits = !key.is_empty() && key.chars().count() <= KEY_MAX;
        if !fits || !is_ours || !key.chars().all(may_be_in_tag) {
            return invalid("The TagKey you have provided is invalid");
        }
        if value.chars().count() > VALUE_MAX || !value.chars().all(may_be_in_tag) {
            return invalid("The TagValue you have provided is invalid");
        }
        if tags[..place].iter().any(|(other, _)| other == key) {
            return invalid("Cannot provide multiple Tags with the same key");
        }
    }
    Ok(tags)
}

/// Characters that AWS allows in tags: letters, numbers, spaces and some signs.
fn may_be_in_tag(sign: char) -> bool {
    let is_space = sign.is_whitespace() && !sign.is_control();
    sign.is_alphabetic() || sign.is_numeric() || is_space || "_.:/=+-@".contains(sign)
}

fn of_set(set: Vec<Tag>, max: usize) -> S3Result<Tags> {
    let text = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    checked(set.into_iter().map(text).collect(), max)
}

fn to_set(tags: &[(String, String)]) -> Vec<Tag> {
    let tag = |(key, value): &(String, String)| Tag {
        key: Some(key.clone()),
        value: Some(value.clone()),
    };
    let mut set: Vec<Tag> = tags.iter().map(tag).collect();
    set.sort_by(|a, b| a.key.cmp(&b.key));
    set
}

/// The header `x-amz-tagging`: a query string.
///
/// # Errors
/// `InvalidTag`, `InvalidArgument`.
pub(crate) fn parse_header(text: &str) -> S3Result<Tags> {
    let wrong = || {
        let message = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL \
                       query parameters without tag name duplicates.";
        refuse(S3ErrorCode::InvalidArgument, message)
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((plain(key).ok_or_else(wrong)?, plain(value).ok_or_else(wrong)?))
    });
    checked(pairs.collect::<S3Result<Tags>>()?, OBJECT_MAX)
}

/// Decodes a percent-encoded text.
pub(crate) fn plain(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Changes the record of the present object, and retries after concurrent changes.
fn change(
    store: &Store,
    (bucket, key): (&str, &str),
    goes_behind: bool,
    change: impl Fn(&mut Record) -> S3Result<()>,
) -> S3Result<()> {
    for _ in 0..TRIES {
        let object = find(store, (bucket, key), false)?;
        let etag = View::of(&object).etag;
        let (attr, attachment) = (object.attr, object.attachment);
        let is_current = attachment.as_ref().is_some_and(|attachment| attachment.is_current);
        let before = attachment.map(|attachment| attachment.bytes).unwrap_or_default();
        let mut record = decode(&before).unwrap_or_else(Record::current);
        if !is_current {
            // The new record counts as that of the present content.
            record = record.without_content();
        }
        // The `ETag` of a file written by a mount is made of its times, which this change modifies.
        record.etag.get_or_insert(etag);
        let fitted = record.check_behind(goes_behind).is_ok();
        change(&mut record)?;
        // A record that is already too large may still be changed.
        record.check_behind(goes_behind && fitted)?;
        let record = record.bounded();
        let expect = Expect::Exactly { ino: attr.ino, version: attr.version };
        let bytes = encode_over(&record, &before);
        let done = store.set_attachment(bucket, key.as_bytes(), &bytes, expect);
        match done.of_object()? {
            Put::Done { .. } => return Ok(()),
            Put::Unmet(_) => {}
        }
    }
    Err(S3ErrorCode::ConditionalRequestConflict.into())
}

/// Changes the record of an object in a bucket that may be backed.
pub(super) async fn changed(
    door: &Arc<Door>,
    (bucket, key): (String, String),
    how: impl Fn(&mut Record) -> S3Result<()> + Send + Sync + 'static,
) -> S3Result<()> {
    bring(door, (&bucket, &key)).await?;
    let written = admit_removal(door, (&bucket, &key)).await?;
    let goes_behind = written.goes_behind(&key);
    let how = Arc::new(how);
    for _ in 0..look::TRIES {
        let (of, how) = ((bucket.clone(), key.clone()), Arc::clone(&how));
        let changing = door.blocking(move |store| {
            change(store, (&of.0, &of.1), goes_behind, |record| how(record))
        });
        match changing.await {
            Err(error) if is_given_up(door, (&bucket, &key), &error).await? => {
                bring(door, (&bucket, &key)).await?;
            }
            done => {
                done?;
                return written.done(door, &key).await.map(drop);
            }
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// The tags of an object, wherever it is; its bytes stay there.
async fn tags(door: &Arc<Door>, (bucket, key): (&str, &str)) -> S3Result<Tags> {
    let kept = |object: &Object| {
        let record =
            object.attachment.as_ref().and_then(|attachment| decode::<Record>(&attachment.bytes));
        record.unwrap_or_default().tags
    };
    let Some(backed) = door.backed(bucket).await? else {
        let found = door.look_up((bucket, key), false).await?;
        return Ok(kept(&found.object.ok_or(S3ErrorCode::NoSuchKey)?));
    };
    match look::look(door, &backed, key, false).await? {
        Seen::Here(there, _) => Ok(kept(&there.object)),
        Seen::Nowhere => Err(S3ErrorCode::NoSuchKey.into()),
        Seen::There(_) => {
            // Some backends return no tags for a missing key, so check that it exists.
            look::remote(door, &backed, key).await?;
            fetch::tags(door, &backed, key).await
        }
    }
}

/// `PutObjectTagging`.
pub(crate) async fn put(
    door: &Arc<Door>,
    request: S3Request<PutObjectTaggingInput>,
) -> Answer<PutObjectTaggingOutput> {
    let input = request.input;
    let tags = of_set(input.tagging.tag_set, OBJECT_MAX)?;
    let (bucket, key) = (input.bucket, input.key);
    let set = move |record: &mut Record| {
        record.tags.clone_from(&tags);
        Ok(())
    };
    changed(door, (bucket, key), set).await?;
    answer(PutObjectTaggingOutput::default())
}

/// `GetObjectTagging`.
pub(crate) async fn get(
    door: &Arc<Door>,
    request: S3Request<GetObjectTaggingInput>,
) -> Answer<GetObjectTaggingOutput> {
    let (bucket, key) = (request.input.bucket, request.input.key);
    let tags = tags(door, (&bucket, &key)).await?;
    answer(GetObjectTaggingOutput { tag_set: to_set(&tags), version_id: None })
}

/// `DeleteObjectTagging`.
pub(crate) async fn delete(
    door: &Arc<Door>,
    request: S3Request<DeleteObjectTaggingInput>,
) -> Answer<DeleteObjectTaggingOutput> {
    let (bucket, key) = (request.input.bucket, request.input.key);
    let clear = |record: &mut Record| {
        record.tags.clear();
        Ok(())
    };
    changed(door, (bucket, key), clear).await?;
    answer(DeleteObjectTaggingOutput::default())
}

/// `PutBucketTagging`.
pub(crate) async fn put_bucket(
    door: &Arc<Door>,
    request: S3Request<PutBucketTaggingInput>,
) -> Answer<PutBucketTaggingOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let tags = of_set(input.tagging.tag_set, BUCKET_MAX)?;
    door.change_bucket((&input.bucket, &who), move |record| record.tags = tags).await?;
    answer(PutBucketTaggingOutput::default())
}

/// `GetBucketTagging`.
pub(crate) async fn get_bucket(
    door: &Arc<Door>,
    request: S3Request<GetBucketTaggingInput>,
) -> Answer<GetBucketTaggingOutput> {
    let found = door.bucket(&request.input.bucket).await?;
    let record = found.ok_or(S3ErrorCode::NoSuchBucket)?;
    if record.tags.is_empty() {
        return Err(refuse(S3ErrorCode::NoSuchTagSet, "The TagSet does not exist"));
    }
    answer(GetBucketTaggingOutput { tag_set: to_set(&record.tags) })
}

/// `DeleteBucketTagging`.
pub(crate) async fn delete_bucket(
    door: &Arc<Door>,
    request: S3Request<DeleteBucketTaggingInput>,
) -> Answer<DeleteBucketTaggingOutput> {
    let who = who_asks(&request)?;
    door.change_bucket((&request.input.bucket, &who), |record| record.tags.clear()).await?;
    answer(DeleteBucketTaggingOutput::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_in_a_header_are_a_query() {
        let tags = parse_header("a=1&b%20c=x%3Dy+z&d").unwrap();
        let expected = [("a", "1"), ("b c", "x=y z"), ("d", "")];
        assert!(tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        for wrong in ["a=1&a=2", "a=%zz", "=1", "%ff=1"] {
            assert!(parse_header(wrong).is_err(), "{wrong}");
        }
        let many: Vec<String> = (0..11).map(|n| format!("k{n}=v")).collect();
        assert!(parse_header(&many.join("&")).is_err());
    }
}
