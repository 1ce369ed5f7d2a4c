//! `CompleteMultipartUpload`.

use std::sync::Arc;

use millpond_client::File;
use millpond_types::meta::object::{PART_MIN, PARTS_MAX, PartPlace};
use s3s::dto::{CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::copy::{PIECE, append};
use super::multipart::{id, upload};
use super::put::{New, store as store_object, sum_type, sums, tell_sum, told_of_room};
use super::{Answer, told};
use crate::backed::look::{self, bring_for};
use crate::backed::settle::admit_removal;
use crate::conditions::{Conditions, etag};
use crate::door::{Door, Way};
use crate::error::{Told as _, refuse};
use crate::hash::{
    Algorithm, Hasher, Sum, bad_sum, combined, composite, hex, md5, unbase64, unhex,
};
use crate::receive::Content;
use crate::record::{PartRecord, Parts, Record, View, decode};
use crate::store::{Part, Store, UploadId};

/// The largest object: 10,000 parts of 5 GiB.
const OBJECT_MAX: u64 = PARTS_MAX as u64 * (5 << 30);
/// Parts requested at once.
const PAGE: u32 = 1_000;

/// A part selected for the object.
struct Chosen {
    part: Part,
    record: PartRecord,
}

/// All parts of the upload.
fn all_parts(store: &Store, bucket: &str, id: UploadId) -> S3Result<Vec<Part>> {
    let mut all = Vec::<Part>::new();
    loop {
        let after = all.last().map_or(0, |part| part.number);
        let page = store.parts(bucket, id, after, PAGE).of_upload()?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// The parts that a client names, if they exist.
fn chosen(all: Vec<Part>, named: &[CompletedPart]) -> S3Result<Vec<Chosen>> {
    let numbers: Vec<i32> = named.iter().map(|part| part.part_number.unwrap_or(0)).collect();
    if named.is_empty() || numbers.iter().any(|number| !(1..=PARTS_MAX.into()).contains(number)) {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    if numbers.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(S3ErrorCode::InvalidPartOrder.into());
    }
    let mut all = all.into_iter().peekable();
    let mut chosen = Vec::with_capacity(named.len());
    for (want, number) in named.iter().zip(numbers) {
        let missing = || S3ErrorCode::InvalidPart;
        let part = all.find(|part| i32::from(part.number) == number).ok_or_else(missing)?;
        let record = decode::<PartRecord>(&part.attachment).ok_or_else(missing)?;
        if want.e_tag.as_ref().is_some_and(|etag| etag.value() != record.etag) {
            return Err(missing().into());
        }
        for (algorithm, told) in sums!(want) {
            let Some(told) = told else { continue };
            let found = record.sum.as_ref().filter(|sum| sum.algorithm == algorithm);
            if found.is_none_or(|sum| sum.value != *told) {
                return Err(missing().into());
            }
        }
        chosen.push(Chosen { part, record });
    }
    let (_, but_last) = chosen.split_last().ok_or(S3ErrorCode::MalformedXML)?;
    if but_last.iter().any(|choice| choice.part.len() < PART_MIN) {
        return Err(S3ErrorCode::EntityTooSmall.into());
    }
    Ok(chosen)
}

/// The checksum of the whole, computed from those of the parts; and the record of the parts.
///
/// The parts' checksums are stored if the upload asked for an algorithm, as with AWS.
fn summed(chosen: &[Chosen], wants: Option<(Algorithm, bool)>) -> (Option<Sum>, Parts) {
    let parts = Parts::of(chosen.iter().map(|choice| choice.part.len()));
    let (algorithm, is_whole) = wants.unwrap_or((Algorithm::Crc64Nvme, true));
    let of_part = |choice: &Chosen| {
        let sum = choice.record.sum.as_ref().filter(|sum| sum.algorithm == algorithm)?;
        Some((unbase64(&sum.value)?, choice.part.len()))
    };
    let Some(found) = chosen.iter().map(of_part).collect::<Option<Vec<_>>>() else {
        return (None, parts);
    };
    let sum =
        if is_whole { combined(algorithm, &found) } else { Some(composite(algorithm, &found)) };
    if wants.is_none() {
        return (sum, parts);
    }
    let digests: Vec<Vec<u8>> = found.into_iter().map(|(digest, _)| digest).collect();
    (sum, parts.with_sums(algorithm, &digests))
}

/// The `ETag` of a multipart object: the MD5 of the parts' MD5s, and the number of parts.
fn etag_of(chosen: &[Chosen]) -> String {
    let sums = chosen.iter().filter_map(|choice| unhex(&choice.record.etag)).flatten();
    format!("{}-{}", hex(&md5(&sums.collect::<Vec<u8>>())), chosen.len())
}

/// The client's expectations about the whole.
struct Expected {
    sums: Vec<(Algorithm, String)>,
    kind: Option<String>,
    size: Option<i64>,
}

impl Expected {
    fn check(&self, sum: Option<&Sum>, size: u64) -> S3Result<()> {
        if self.size.is_some_and(|expected| u64::try_from(expected) != Ok(size)) {
            let message = format!(
                "The provided 'x-amz-mp-object-size' header value {} does not match what was computed: {size}",
                self.size.unwrap_or_default()
            );
            return Err(refuse(S3ErrorCode::InvalidRequest, message));
        }
        let is_kind = |kind: &String| sum.is_some_and(|sum| sum_type(sum).as_str() == kind);
        if self.kind.as_ref().is_some_and(|kind| !is_kind(kind)) {
            let message = "The upload was created with another checksum type.";
            return Err(refuse(S3ErrorCode::InvalidRequest, message));
        }
        for (algorithm, value) in &self.sums {
            let found = sum.filter(|sum| sum.algorithm == *algorithm);
            // A composite checksum may come without its count.
            let is_same = |sum: &Sum| {
                sum.value == *value
                    || sum.value.rsplit_once('-').is_some_and(|(digest, _)| digest == value)
            };
            if !found.is_some_and(is_same) {
                return Err(bad_sum(*algorithm));
            }
        }
        Ok(())
    }
}

/// The upload's whole file, if all parts lie in it one after another: nothing needs to be copied.
/// The metas check that it has no other parts.
fn in_places(chosen: &[Chosen]) -> Option<Content> {
    let mut at = 0;
    for (choice, number) in chosen.iter().zip(1..) {
        let place = choice.part.place?;
        if choice.part.number != number || place.offset != at {
            return None;
        }
        at += place.len;
    }
    Some(Content::Whole(u16::try_from(chosen.len()).ok()?, at))
}

/// Appends a part; its file may disappear at the same time.
fn bring(from: (&File, u64, u64), to: (&File, u64)) -> S3Result<()> {
    append(from, to, &mut Hasher::none()).map_err(|error| match error.code() {
        S3ErrorCode::NoSuchKey => S3ErrorCode::NoSuchUpload.into(),
        _ => error,
    })
}

/// Moves the few parts with files of their own to their places in the whole: mostly the last part,
/// if it arrived before a part that determines the length of the others.
fn mend(
    store: &Store,
    (bucket, id): (&str, UploadId),
    chosen: &mut [Chosen],
    replicas: u8,
) -> S3Result<()> {
    let all: u64 = chosen.iter().map(|choice| choice.part.len()).sum();
    let loose = chosen.iter().filter(|choice| choice.part.place.is_none());
    let loose: u64 = loose.map(|choice| choice.part.len()).sum();
    let in_turn = chosen.iter().zip(1..).all(|(choice, number)| choice.part.number == number);
    let has_whole = chosen.iter().any(|choice| choice.part.place.is_some());
    if !in_turn || !has_whole || loose > all / 2 {
        return Ok(());
    }
    // All places are taken before the first byte is copied: if one is missing, all parts are copied
    // anyway.
    let (mut at, mut places) = (0, Vec::new());
    for Chosen { part, .. } in chosen {
        let len = part.len();
        if part.place.is_none() {
            let name = (bucket, id, part.number);
            match store.take_place(name, len, replicas).of_upload()? {
                Some((file, offset)) if offset == at => places.push((part, file, offset)),
                _ => return Ok(()),
            }
        }
        at += len;
    }
    for (part, file, offset) in places {
        let (len, modified, name) = (part.len(), part.modified(), (bucket, id, part.number));
        let from = store.part_file(part).of_upload()?;
        bring((&from, 0, len), (&file, offset))?;
        let replaces = Some(part.attr.ino);
        store.put_part(name, (&file, Some(len)), replaces, &part.attachment).of_upload()?;
        part.attr = file.stat().of_upload()?;
        part.place = Some(PartPlace { offset, len, modified });
    }
    Ok(())
}

/// The bytes of all parts, in a file without a name.
fn joined(store: &Store, chosen: &[Chosen], replicas: u8) -> S3Result<Content> {
    let file = store.nameless_file(replicas).in_bucket()?;
    let mut at = 0;
    for choice in chosen {
        let len = choice.part.len();
        if len > 0 {
            let from = store.part_file(&choice.part).of_upload()?;
            // The hashes of the whole are computed from those of the parts.
            bring((&from, choice.part.offset(), len), (&file, at))?;
        }
        at += len;
    }
    Ok(Content::File(file))
}

/// The result of an earlier completion with a lost answer.
fn done_before(store: &Store, (bucket, key): (&str, &str), id: UploadId) -> S3Result<Option<View>> {
    let object = store.get_object(bucket, key.as_bytes(), false).in_bucket()?;
    Ok(object.map(|object| View::of(&object)).filter(|view| made_by(view, id)))
}

/// Whether an object was completed from this upload.
fn made_by(view: &View, id: UploadId) -> bool {
    id.0 != 0 && view.record.upload == id.0
}

/// Completes an upload; for a thread that may block.
fn complete(
    store: &Store,
    (bucket, key, id): (&str, &str, UploadId),
    (named, expected): (&[CompletedPart], &Expected),
    (conditions, replicas): (&Conditions, u8),
) -> S3Result<View> {
    let (at, wanted) = ((bucket, key, id), (named, expected));
    match complete_once(store, at, wanted, (conditions, replicas)) {
        // The parts are gone: a concurrent completion was faster, or parts were sent again.
        Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
            if let Some(done) = done_before(store, (bucket, key), id)? {
                return Ok(done);
            }
            upload(store, (bucket, key), id)?;
            Err(S3ErrorCode::InvalidPart.into())
        }
        done => done,
    }
}

fn complete_once(
    store: &Store,
    (bucket, key, id): (&str, &str, UploadId),
    (named, expected): (&[CompletedPart], &Expected),
    (conditions, replicas): (&Conditions, u8),
) -> S3Result<View> {
    let (_, mut record) = upload(store, (bucket, key), id)?;
    let mut chosen = chosen(all_parts(store, bucket, id)?, named)?;
    let size: u64 = chosen.iter().map(|choice| choice.part.len()).sum();
    if size > OBJECT_MAX {
        return Err(S3ErrorCode::EntityTooLarge.into());
    }
    let (sum, parts) = summed(&chosen, record.wants);
    expected.check(sum.as_ref(), size)?;
    if conditions.is_for_write() {
        // Checked before the parts are joined: a condition that fails now rarely holds later.
        let there = store.get_object(bucket, key.as_bytes(), false).in_bucket()?;
        conditions.check_write(there.as_ref().map(View::of).as_ref())?;
    }
    record = Record {
        etag: Some(etag_of(&chosen)),
        sum,
        parts: Some(parts),
        upload: id.0,
        wants: None,
        ..record
    }
    .bounded();
    let store_as = |content: &Content| {
        let record = &record;
        let new = New { bucket, key, content, record, conditions, replicas, upload: Some(id) };
        store_object(store, &new)
    };
    mend(store, (bucket, id), &mut chosen, replicas)?;
    if let Some(content) = in_places(&chosen) {
        match store_as(&content) {
            // The whole has more than these parts, or is still being written; or another completion
            // was faster.
            Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
                if let Some(done) = done_before(store, (bucket, key), id)? {
                    return Ok(done);
                }
                tracing::debug!("s3: {bucket}/{key}: the parts of an upload are copied");
            }
            done => return done,
        }
    }
    store_as(&joined(store, &chosen, replicas)?)
}

/// `CompleteMultipartUpload`.
pub(crate) async fn complete_upload(
    door: &Arc<Door>,
    request: S3Request<CompleteMultipartUploadInput>,
) -> Answer<CompleteMultipartUploadOutput> {
    let mut input = request.input;
    let id = id(&input.upload_id)?;
    let named = input.multipart_upload.take().and_then(|upload| upload.parts).unwrap_or_default();
    if named.is_empty() {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let named_sums = sums!(input);
    let expected = Expected {
        sums: named_sums
            .into_iter()
            .filter_map(|(algorithm, value)| Some((algorithm, value?.clone())))
            .collect(),
        kind: input.checksum_type.as_ref().map(|kind| kind.as_str().to_owned()),
        size: input.mpu_object_size,
    };
    let conditions = Conditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        ..Conditions::default()
    };
    let (bucket, key) = (input.bucket.clone(), input.key.clone());
    let written = admit_removal(door, (&bucket, &key)).await?;
    let brought = bring_for(door, (&bucket, &key), &conditions).await?;
    let (of, replicas) = (key.clone(), written.replicas(&key));
    let _memory = door.memory(Way::In, PIECE).await?;
    let done = door
        .blocking(move |store| {
            complete(store, (&bucket, &key, id), (&named, &expected), (&conditions, replicas))
        })
        .await;
    let view = match done {
        // It may have been completed before, and the object may now be at the backend only.
        Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
            match look::view(door, (&input.bucket, &of)).await {
                Ok((view, _)) if made_by(&view, id) => view,
                Err(why) if why.status_code().is_some_and(|status| status.is_server_error()) => {
                    return Err(why);
                }
                _ => return Err(error),
            }
        }
        done => told_of_room(door, (&input.bucket, &of), brought, done).await?,
    };
    let word = written.done(door, &of).await?;
    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: Some(etag(&view.etag)),
        ..CompleteMultipartUploadOutput::default()
    };
    let sum = view.record.sum.as_ref();
    tell_sum!(output, sum);
    output.checksum_type = sum.map(sum_type);
    told(output, word)
}
