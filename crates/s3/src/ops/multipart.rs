//! Multipart uploads: create, add parts, list, abort.

use std::sync::Arc;

use hyper::header::HeaderMap;
use millpond_client::Mode;
use millpond_types::meta::Timestamp;
use millpond_types::meta::object::PARTS_MAX;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType,
    CopyPartResult, CreateMultipartUploadInput, CreateMultipartUploadOutput, ListPartsInput,
    ListPartsOutput, Part as PartTold, StreamingBlob, UploadPartCopyInput, UploadPartCopyOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::copy::{PIECE, Source, conditions_of_source, duplicate, source};
use super::headers::{kept, refuse_extras};
use super::put::{check_key, sums, tell_sum};
use super::{Answer, answer, count, initiator, owner, size};
use crate::access::who_asks;
use crate::acl::wished;
use crate::backed::look::{TRIES, is_given_up};
use crate::backed::settle::admit;
use crate::conditions::{Conditions, etag, time};
use crate::door::{Door, Way};
use crate::error::{Told as _, refuse};
use crate::hash::{Algorithm, Digest, Hasher, hex};
use crate::receive::{BODY_MAX, Content, Incoming, PartName, Said, Target};
use crate::record::{PartRecord, Record, View, decode, encode};
use crate::store::{Store, Upload, UploadId};

/// Parses the upload id of a client.
pub(crate) fn id(text: &str) -> S3Result<UploadId> {
    let parsed = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    parsed.map(UploadId).ok_or_else(|| S3ErrorCode::NoSuchUpload.into())
}

/// The upload id for clients.
pub(crate) fn name(id: UploadId) -> String {
    format!("{:016x}", id.0)
}

/// An upload of this key, and its record; for a thread that may block.
///
/// # Errors
/// `NoSuchUpload`, `NoSuchBucket`.
pub(crate) fn upload(
    store: &Store,
    (bucket, key): (&str, &str),
    id: UploadId,
) -> S3Result<(Upload, Record)> {
    let found = match store.upload(bucket, id).of_upload() {
        Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
            store.bucket(bucket).in_bucket()?;
            return Err(error);
        }
        found => found?,
    };
    if found.key != key.as_bytes() {
        return Err(S3ErrorCode::NoSuchUpload.into());
    }
    let record = decode::<Record>(&found.attachment).unwrap_or_else(Record::current);
    Ok((found, record))
}

/// The checksum settings of an upload: the algorithm, and whether the object gets a checksum of its
/// whole content.
fn wants(input: &CreateMultipartUploadInput) -> S3Result<Option<(Algorithm, bool)>> {
    let algorithm = match &input.checksum_algorithm {
        Some(name) => Some(Algorithm::named(name.as_str())?),
        None => None,
    };
    let kind = input.checksum_type.as_ref().map(ChecksumType::as_str);
    let wrong = |algorithm: Algorithm, kind: &str| {
        let name = algorithm.name().to_ascii_lowercase();
        let message =
            format!("The {kind} checksum type cannot be used with the {name} checksum algorithm.");
        Err(refuse(S3ErrorCode::InvalidRequest, message))
    };
    match (algorithm, kind) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let message = "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.";
            Err(refuse(S3ErrorCode::InvalidRequest, message))
        }
        (Some(algorithm), Some("FULL_OBJECT")) if !algorithm.combines() => {
            wrong(algorithm, "FULL_OBJECT")
        }
        (Some(Algorithm::Crc64Nvme), Some("COMPOSITE")) => wrong(Algorithm::Crc64Nvme, "COMPOSITE"),
        (Some(algorithm), Some("FULL_OBJECT")) => Ok(Some((algorithm, true))),
        (Some(algorithm), Some("COMPOSITE")) => Ok(Some((algorithm, false))),
        (Some(algorithm), None) => Ok(Some((algorithm, algorithm == Algorithm::Crc64Nvme))),
        (Some(_), Some(_)) => {
            let message = "Value for x-amz-checksum-type header is invalid.";
            Err(refuse(S3ErrorCode::InvalidRequest, message))
        }
    }
}

/// The checksum type of the whole object.
pub(crate) fn kind_told(is_whole: bool) -> ChecksumType {
    ChecksumType::from_static(if is_whole { "FULL_OBJECT" } else { "COMPOSITE" })
}

/// `CreateMultipartUpload`.
pub(crate) async fn create(
    door: &Arc<Door>,
    request: S3Request<CreateMultipartUploadInput>,
) -> Answer<CreateMultipartUploadOutput> {
    let who = who_asks(&request)?;
    let mut input = request.input;
    refuse_extras!(input);
    check_key(&input.key)?;
    let wants = wants(&input)?;
    let mut record = kept!(input).record(input.tagging.as_deref())?;
    who.sign(door, &wished!(input), &mut record).await?;
    record.wants = wants;
    let backed = door.backed(&input.bucket).await?;
    if let Some(backed) = &backed {
        backed.check_key(door, &input.key).await?;
    }
    let goes_behind = backed.is_some_and(|backed| backed.mode_of(&input.key) != Mode::Transient);
    record.check_behind(goes_behind)?;
    let (bucket, key) = (input.bucket.clone(), input.key.clone());
    let id = door
        .blocking(move |store| {
            store.create_upload(&bucket, key.as_bytes(), &encode(&record)).in_bucket()
        })
        .await?;
    answer(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(name(id)),
        checksum_algorithm: wants
            .map(|(algorithm, _)| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: wants.map(|(_, is_whole)| kind_told(is_whole)),
        ..CreateMultipartUploadOutput::default()
    })
}

fn part_number(number: i32) -> S3Result<u16> {
    let number = u16::try_from(number).ok().filter(|number| (1..=PARTS_MAX).contains(number));
    let message = "Part number must be an integer between 1 and 10000, inclusive";
    number.ok_or_else(|| refuse(S3ErrorCode::InvalidArgument, message))
}

/// Stores a part; for a thread that may block.
fn keep(store: &Store, part: &PartName, content: &Content, digest: &Digest) -> S3Result<()> {
    let (file, len) = match content {
        Content::File(file) => (file, None),
        Content::Placed(file, len) => (file, Some(*len)),
        Content::Bytes(_) | Content::Whole(..) => return Err(S3ErrorCode::InternalError.into()),
    };
    let record = PartRecord { etag: hex(&digest.md5), sum: digest.sum.clone() };
    let part = (&part.bucket[..], part.id, part.number);
    store.put_part(part, (file, len), None, &encode(&record)).of_upload()
}

/// `UploadPart`.
pub(crate) async fn part(
    door: &Arc<Door>,
    request: S3Request<UploadPartInput>,
) -> Answer<UploadPartOutput> {
    let S3Request { mut input, headers, trailing_headers, .. } = request;
    let number = part_number(input.part_number)?;
    let id = id(&input.upload_id)?;
    let said = Said {
        headers: &headers,
        len: input.content_length,
        md5: input.content_md5.as_deref(),
        sums: sums!(input),
    };
    let mut incoming = Incoming::new(input.body.take(), trailing_headers, &said)?;
    let (bucket, key) = (input.bucket, input.key);
    let of_key = key.clone();
    let asked = (bucket.clone(), key);
    let wants =
        door.blocking(move |store| Ok(upload(store, (&asked.0, &asked.1), id)?.1.wants)).await?;
    if let (Some((wanted, _)), Some(given)) = (wants, incoming.algorithm())
        && wanted != given
    {
        let message = format!(
            "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
            wanted.name().to_ascii_lowercase(),
            given.name().to_ascii_lowercase()
        );
        return Err(refuse(S3ErrorCode::InvalidRequest, message));
    }
    incoming.or_with(wants.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm));
    // The answer does not wait for the backend: only a whole object is written through.
    let written = admit(door, (&bucket, &of_key)).await?;
    let part = PartName { bucket, id, number };
    let replicas = written.replicas(&of_key);
    let to = Target { is_file: true, replicas, part: Some(part.clone()) };
    let arrived = incoming.receive(door, to).await?;
    let digest = door
        .blocking(move |store| {
            let (content, digest) = arrived.checked()?;
            keep(store, &part, &content, &digest)?;
            Ok(digest)
        })
        .await?;
    let mut output =
        UploadPartOutput { e_tag: Some(etag(&hex(&digest.md5))), ..UploadPartOutput::default() };
    tell_sum!(output, &digest.sum);
    answer(output)
}

/// The range of a copy's source: `bytes=first-last`, both within the source.
fn copy_range(text: Option<&str>, all: u64) -> S3Result<(u64, u64)> {
    let Some(text) = text else { return Ok((0, all)) };
    let parsed = text.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let parsed = parsed.and_then(|(a, b)| Some((a.parse::<u64>().ok()?, b.parse::<u64>().ok()?)));
    let Some((first, last)) = parsed.filter(|(first, last)| first <= last) else {
        let message = "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
                       and last are the zero-based offsets of the first and last bytes to copy";
        return Err(refuse(S3ErrorCode::InvalidArgument, message));
    };
    if last >= all {
        let message = format!("Range specified is not valid for source object of size: {all}");
        return Err(refuse(S3ErrorCode::InvalidRange, message));
    }
    Ok((first, last - first + 1))
}

/// A part being copied.
struct PartCopying {
    from: Source,
    /// The conditions on its source, and the requested range.
    conditions: Conditions,
    range: Option<String>,
    part: PartName,
    replicas: u8,
    algorithm: Algorithm,
}

impl PartCopying {
    /// Offset and length of the range in the source.
    fn place(&self, source: &View) -> S3Result<(u64, u64)> {
        let (offset, len) = copy_range(self.range.as_deref(), source.attr.size)?;
        if len > BODY_MAX {
            return Err(S3ErrorCode::EntityTooLarge.into());
        }
        Ok((offset, len))
    }

    fn to(&self) -> Target {
        Target { is_file: true, replicas: self.replicas, part: Some(self.part.clone()) }
    }

    /// Copies from a source in the pool; for a thread that may block.
    fn duplicated(&self, store: &Store) -> S3Result<(Content, Digest)> {
        let (object, view, file) = self.from.open(store, &self.conditions)?;
        let place = self.place(&view)?;
        let mut hasher = Hasher::new(Some(self.algorithm));
        let from = (&object, file.as_ref());
        let content = duplicate(store, from, place, (&mut hasher, self.to()))?;
        Ok((content, hasher.finish()))
    }

    /// Receives bytes from a backend.
    async fn received(
        &self,
        door: &Arc<Door>,
        (body, len): (StreamingBlob, u64),
    ) -> S3Result<(Content, Digest)> {
        let sums = Algorithm::ALL.map(|algorithm| (algorithm, None));
        let said = Said { headers: &HeaderMap::new(), len: Some(size(len)), md5: None, sums };
        let mut incoming = Incoming::new(Some(body), None, &said)?;
        incoming.or_with(self.algorithm);
        let arrived =
            incoming.receive(door, self.to()).await.map_err(|error| match error.code() {
                S3ErrorCode::IncompleteBody | S3ErrorCode::RequestTimeout => {
                    let message = "The transfer of the source of the copy from the backend failed.";
                    refuse(S3ErrorCode::ServiceUnavailable, message)
                }
                _ => error,
            })?;
        door.blocking(move |_| arrived.checked()).await
    }

    /// Makes the part; returns its digest and time. A source at the backend bypasses the cache,
    /// because each part of a large object would fill all of it.
    async fn done(self: Arc<Self>, door: &Arc<Door>) -> S3Result<(Digest, Timestamp)> {
        for _ in 0..TRIES {
            let far = self.from.far(door, &self.conditions, |view| self.place(view)).await?;
            if let Some(body) = far {
                let received = self.received(door, body).await?;
                return self.kept(door, received).await;
            }
            let memory = door.memory(Way::In, PIECE).await?;
            let copying = Arc::clone(&self);
            let duplicated = door.blocking(move |store| copying.duplicated(store)).await;
            drop(memory);
            match duplicated {
                // The source was evicted after it was located.
                Err(error)
                    if is_given_up(door, (&self.from.bucket, &self.from.key), &error).await? => {}
                done => return self.kept(door, done?).await,
            }
        }
        Err(S3ErrorCode::SlowDown.into())
    }

    /// Stores the content as the part.
    async fn kept(
        self: Arc<Self>,
        door: &Arc<Door>,
        (content, digest): (Content, Digest),
    ) -> S3Result<(Digest, Timestamp)> {
        door.blocking(move |store| {
            keep(store, &self.part, &content, &digest)?;
            let (Content::File(file) | Content::Placed(file, _)) = content else {
                return Err(S3ErrorCode::InternalError.into());
            };
            Ok((digest, file.stat().of_upload()?.mtime))
        })
        .await
    }
}

/// `UploadPartCopy`.
pub(crate) async fn part_copy(
    door: &Arc<Door>,
    request: S3Request<UploadPartCopyInput>,
) -> Answer<UploadPartCopyOutput> {
    let from = source(door, &request, &request.input.copy_source).await?;
    let mut input = request.input;
    let number = part_number(input.part_number)?;
    let id = id(&input.upload_id)?;
    let conditions = conditions_of_source!(input);
    let (bucket, key, range) = (input.bucket, input.key, input.copy_source_range);
    let asked = (bucket.clone(), key.clone());
    let wants =
        door.blocking(move |store| Ok(upload(store, (&asked.0, &asked.1), id)?.1.wants)).await?;
    let algorithm = wants.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm);
    let replicas = admit(door, (&bucket, &key)).await?.replicas(&key);
    let part = PartName { bucket, id, number };
    let copying = PartCopying { from, conditions, range, part, replicas, algorithm };
    let (digest, changed) = Arc::new(copying).done(door).await?;
    let mut result = CopyPartResult {
        e_tag: Some(etag(&hex(&digest.md5))),
        last_modified: Some(time(changed)),
        ..CopyPartResult::default()
    };
    tell_sum!(result, &digest.sum);
    let copy_part_result = Some(result);
    answer(UploadPartCopyOutput { copy_part_result, ..UploadPartCopyOutput::default() })
}

/// `ListParts`.
pub(crate) async fn list(
    door: &Arc<Door>,
    request: S3Request<ListPartsInput>,
) -> Answer<ListPartsOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let id = id(&input.upload_id)?;
    let max = super::list::page_len(input.max_parts, "max-parts")?;
    let after = u16::try_from(input.part_number_marker.unwrap_or(0)).unwrap_or(u16::MAX);
    let (bucket, key) = (input.bucket.clone(), input.key.clone());
    let (record, mut parts) = door
        .blocking(move |store| {
            let (_, record) = upload(store, (&bucket, &key), id)?;
            let limit = u32::try_from(max + 1).unwrap_or(u32::MAX);
            Ok((record, store.parts(&bucket, id, after, limit).of_upload()?))
        })
        .await?;
    let is_truncated = parts.len() > max;
    parts.truncate(max);
    let last = parts.last().map_or(i32::from(after), |part| i32::from(part.number));
    let told = parts.into_iter().map(|stored| {
        let record = decode::<PartRecord>(&stored.attachment);
        let mut part = PartTold {
            e_tag: record.as_ref().map(|record| etag(&record.etag)),
            last_modified: Some(time(stored.modified())),
            part_number: Some(i32::from(stored.number)),
            size: Some(size(stored.len())),
            ..PartTold::default()
        };
        tell_sum!(part, record.and_then(|record| record.sum));
        part
    });
    answer(ListPartsOutput {
        parts: Some(told.collect()),
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        is_truncated: Some(is_truncated),
        max_parts: Some(count(max)),
        part_number_marker: Some(i32::from(after)),
        next_part_number_marker: Some(last),
        owner: Some(owner(who.owner_of(&record))),
        initiator: Some(initiator(who.owner_of(&record))),
        storage_class: Some(record.class().to_owned().into()),
        checksum_algorithm: record
            .wants
            .map(|(algorithm, _)| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: record.wants.map(|(_, is_whole)| kind_told(is_whole)),
        ..ListPartsOutput::default()
    })
}

/// `AbortMultipartUpload`.
pub(crate) async fn abort(
    door: &Arc<Door>,
    request: S3Request<AbortMultipartUploadInput>,
) -> Answer<AbortMultipartUploadOutput> {
    let input = request.input;
    let id = id(&input.upload_id)?;
    door.blocking(move |store| {
        upload(store, (&input.bucket, &input.key), id)?;
        store.abort_upload(&input.bucket, id).of_upload()
    })
    .await?;
    answer(AbortMultipartUploadOutput::default())
}
