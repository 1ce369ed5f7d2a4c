//! `PutObject`.

use std::sync::Arc;

use s3s::dto::{PutObjectInput, PutObjectOutput};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::form::Posted;
use super::headers::{kept, refuse_extras};
use super::{Answer, told};
use crate::access::who_asks;
use crate::acl::wished;
use crate::backed::look::{Brought, bring_for, is_given_up};
use crate::backed::settle::admit;
use crate::conditions::{Conditions, etag};
use crate::door::Door;
use crate::error::{Told as _, absent, refuse};
use crate::hash::{Algorithm, Sum, hex};
use crate::receive::{Content, Incoming, Said, Target};
use crate::record::{Record, View, encode};
use crate::store::{Body, Expect, Put, PutObject, Store, UploadId};

/// Retries of a condition when the present object changes concurrently.
const TRIES: usize = 8;

/// The checksum headers of an input of `s3s`.
macro_rules! sums {
    ($input:expr) => {
        [
            ($crate::hash::Algorithm::Crc32, $input.checksum_crc32.as_ref()),
            ($crate::hash::Algorithm::Crc32c, $input.checksum_crc32c.as_ref()),
            ($crate::hash::Algorithm::Crc64Nvme, $input.checksum_crc64nvme.as_ref()),
            ($crate::hash::Algorithm::Sha1, $input.checksum_sha1.as_ref()),
            ($crate::hash::Algorithm::Sha256, $input.checksum_sha256.as_ref()),
        ]
    };
}
pub(crate) use sums;

/// Sets a checksum in an output of `s3s`.
macro_rules! tell_sum {
    ($output:expr, $sum:expr) => {
        if let Some(sum) = $sum {
            let value = Some(sum.value.clone());
            match sum.algorithm {
                $crate::hash::Algorithm::Crc32 => $output.checksum_crc32 = value,
                $crate::hash::Algorithm::Crc32c => $output.checksum_crc32c = value,
                $crate::hash::Algorithm::Crc64Nvme => $output.checksum_crc64nvme = value,
                $crate::hash::Algorithm::Sha1 => $output.checksum_sha1 = value,
                $crate::hash::Algorithm::Sha256 => $output.checksum_sha256 = value,
            }
        }
    };
}
pub(crate) use tell_sum;

/// The type of a checksum.
pub(crate) fn sum_type(sum: &Sum) -> s3s::dto::ChecksumType {
    let name = if sum.composite { "COMPOSITE" } else { "FULL_OBJECT" };
    s3s::dto::ChecksumType::from_static(name)
}

/// A new object, its location and its conditions.
pub(crate) struct New<'a> {
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
    pub(crate) content: &'a Content,
    pub(crate) record: &'a Record,
    pub(crate) conditions: &'a Conditions,
    /// The replicas of small bytes, if they are written to chunks.
    pub(crate) replicas: u8,
    /// The upload that it completes.
    pub(crate) upload: Option<UploadId>,
}

/// Stores an object as its conditions allow; for a thread that may block.
///
/// # Errors
/// Those of the conditions; `ConditionalRequestConflict` when others keep changing the key.
pub(crate) fn store(store: &Store, new: &New<'_>) -> S3Result<View> {
    let attachment = encode(new.record);
    let key = new.key.as_bytes();
    let mut there = None;
    if new.conditions.if_match.is_some() {
        there = store.get_object(new.bucket, key, false).in_bucket()?;
    }
    for _ in 0..TRIES {
        let view = there.as_ref().map(View::of);
        let expect = if new.conditions.is_for_write() {
            new.conditions.check_write(view.as_ref())?
        } else {
            Expect::Any
        };
        let body = new.content.body();
        let (bucket, attachment, replicas) = (new.bucket, attachment.as_slice(), new.replicas);
        let put = PutObject { bucket, key, body, attachment, expect, replicas, origin: None };
        let done = match new.upload {
            Some(id) => store.complete_upload(id, &put).of_upload()?,
            None => store.put_object(&put).in_bucket()?,
        };
        match done {
            Put::Done { object, .. } => return Ok(View::of(&object)),
            Put::Unmet(now) => there = now,
        }
    }
    Err(S3ErrorCode::ConditionalRequestConflict.into())
}

/// Stores an object as its conditions allow: small bytes without a blocking thread.
async fn stored(
    door: &Arc<Door>,
    (bucket, key): (&str, &str),
    (content, replicas): (Content, u8),
    record: Record,
    conditions: Conditions,
) -> S3Result<View> {
    if let (Content::Bytes(bytes), None) = (&content, &conditions.if_match) {
        let is_for_write = conditions.is_for_write();
        let expect = if is_for_write { conditions.check_write(None)? } else { Expect::Any };
        let (key, body, attachment) = (key.as_bytes(), Body::Bytes(bytes), &encode(&record)[..]);
        let volume = door.store()?;
        let put = PutObject { bucket, key, body, attachment, expect, replicas, origin: None };
        let question = volume.question_put(&put).in_bucket()?;
        let reply = door.question(question).await?;
        // If a condition fails, the present object decides.
        if let Put::Done { object, .. } =
            reply.and_then(|reply| volume.put_done(reply)).in_bucket()?
        {
            return Ok(View::of(&object));
        }
    }
    let (bucket, key) = (bucket.to_owned(), key.to_owned());
    door.blocking(move |volume| {
        let new = New {
            bucket: &bucket,
            key: &key,
            content: &content,
            record: &record,
            conditions: &conditions,
            replicas,
            upload: None,
        };
        store(volume, &new)
    })
    .await
}

/// The result of a write with a condition on the present object, which may have been evicted before
/// the write.
///
/// # Errors
/// `ConditionalRequestConflict` if it was evicted: the client may retry.
pub(crate) async fn told_of_room<T>(
    door: &Arc<Door>,
    at: (&str, &str),
    brought: Brought,
    done: S3Result<T>,
) -> S3Result<T> {
    match done {
        Err(error) if brought == Brought::Known && is_given_up(door, at, &error).await? => {
            Err(S3ErrorCode::ConditionalRequestConflict.into())
        }
        done => done,
    }
}

/// `PutObject`.
pub(crate) async fn put_object(
    door: &Arc<Door>,
    request: S3Request<PutObjectInput>,
) -> Answer<PutObjectOutput> {
    let who = who_asks(&request)?;
    let S3Request { mut input, headers, trailing_headers, extensions, .. } = request;
    refuse_extras!(input);
    if input.write_offset_bytes.is_some() {
        return Err(absent("An append (x-amz-write-offset-bytes)"));
    }
    check_key(&input.key)?;
    let mut record = kept!(input).record(input.tagging.as_deref())?;
    who.sign(door, &wished!(input), &mut record).await?;
    let conditions = Conditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        ..Conditions::default()
    };
    let said = Said {
        headers: &headers,
        len: input.content_length,
        md5: input.content_md5.as_deref(),
        sums: sums!(input),
    };
    let mut incoming = Incoming::new(input.body.take(), trailing_headers, &said)?;
    let written = admit(door, (&input.bucket, &input.key)).await?;
    record.check_behind(written.goes_behind(&input.key))?;
    // The default of AWS.
    incoming.or_with(Algorithm::Crc64Nvme);
    let replicas = written.replicas(&input.key);
    let arrived = incoming.receive(door, Target::of(replicas)).await?;
    let (bucket, key) = (input.bucket, input.key);
    let brought = bring_for(door, (&bucket, &key), &conditions).await?;
    let (content, digest) = arrived.checked_beside(door).await?;
    record.etag = Some(hex(&digest.md5));
    record.sum.clone_from(&digest.sum);
    let (at, sum) = ((&*bucket, &*key), digest.sum);
    let stored = stored(door, at, (content, replicas), record, conditions).await;
    let view = told_of_room(door, at, brought, stored).await?;
    let word = written.done(door, &key).await?;
    let mut output =
        PutObjectOutput { e_tag: Some(etag(&view.etag)), ..PutObjectOutput::default() };
    tell_sum!(output, &sum);
    output.checksum_type = sum.as_ref().map(sum_type);
    let answer = told(output, word)?;
    if let Some(posted) = extensions.get::<Arc<Posted>>() {
        posted.set(&view.etag, &answer.headers);
    }
    Ok(answer)
}

/// Checks that a key has 1 to 1,024 bytes and no NUL.
///
/// # Errors
/// `KeyTooLongError`, `InvalidArgument`.
pub(crate) fn check_key(key: &str) -> S3Result<()> {
    if key.len() > 1_024 {
        return Err(S3ErrorCode::KeyTooLongError.into());
    }
    if key.is_empty() || key.contains('\0') {
        return Err(refuse(
            S3ErrorCode::InvalidArgument,
            "A key must have 1 to 1,024 bytes and no NUL",
        ));
    }
    Ok(())
}
