//! `CopyObject`, and the bytes of copies.

use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH};
use millpond_client::File;
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, ETagCondition,
    MetadataDirective, StreamingBlob, TaggingDirective,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::get::open;
use super::headers::{Kept, kept, refuse_extras};
use super::put::{New, check_key, store as store_object, sum_type, tell_sum};
use super::tagging::parse_header;
use super::{Answer, access_key, told as told_answer};
use crate::access::{Asker, who_asks};
use crate::acl::{Permission, wished};
use crate::backed::fetch::cut;
use crate::backed::look::{Brought, Seen, TRIES, bring_for, bring_if, is_given_up, look};
use crate::backed::settle::admit;
use crate::conditions::{Conditions, etag, time};
use crate::door::{Door, Way};
use crate::error::{Told as _, absent, refuse};
use crate::hash::{Algorithm, Hasher, Sum, hex};
use crate::receive::{BODY_MAX, Content, Target};
use crate::record::{Record, View};
use crate::store::{Object, STORED_MAX, Store};

/// Bytes copied at once.
pub(crate) const PIECE: usize = 4 << 20;

/// The conditions of an input of `s3s` on the source of a copy.
macro_rules! conditions_of_source {
    ($input:expr) => {
        $crate::conditions::Conditions {
            if_match: $input.copy_source_if_match.take(),
            if_none_match: $input.copy_source_if_none_match.take(),
            modified_since: $input.copy_source_if_modified_since.take(),
            unmodified_since: $input.copy_source_if_unmodified_since.take(),
        }
    };
}
pub(crate) use conditions_of_source;

/// The source of a copy, and the requester.
pub(crate) struct Source {
    pub(crate) bucket: String,
    pub(crate) key: String,
    who: Asker,
}

impl Source {
    /// Checks that the requester may read this object, and the conditions.
    fn check(&self, view: &View, conditions: &Conditions) -> S3Result<()> {
        self.who.check(&view.record, Permission::Read)?;
        conditions.check_source(view)
    }

    /// Fills the pool with the object if only the backend has it, and if it can be copied in one
    /// request.
    ///
    /// # Errors
    /// `NoSuchKey`, `AccessDenied`, `PreconditionFailed`, `InvalidRequest`; of the backend.
    async fn bring(&self, door: &Arc<Door>, conditions: &Conditions) -> S3Result<()> {
        let check = |view: &View| {
            self.check(view, conditions)?;
            check_size(view)
        };
        let brought = bring_if(door, (&self.bucket, &self.key), check).await;
        brought.map_err(|error| self.who.told(error))
    }

    /// If only the backend has the object, returns a range of its bytes and the length; `place`
    /// selects it.
    ///
    /// # Errors
    /// `NoSuchKey`, `AccessDenied`, `PreconditionFailed`; of `place`, and of the backend.
    pub(crate) async fn far(
        &self,
        door: &Arc<Door>,
        conditions: &Conditions,
        place: impl Fn(&View) -> S3Result<(u64, u64)>,
    ) -> S3Result<Option<(StreamingBlob, u64)>> {
        let Some(backed) = door.backed(&self.bucket).await? else { return Ok(None) };
        let place = |view: &View| {
            self.check(view, conditions)?;
            place(view)
        };
        let found = match look(door, &backed, &self.key, false).await? {
            Seen::Here(..) => return Ok(None),
            Seen::Nowhere => Err(S3ErrorCode::NoSuchKey.into()),
            Seen::There(_) => cut(door, (&backed, &self.key), place).await,
        };
        let (_, len, body) = found.map_err(|error| self.who.told(error))?;
        Ok(Some((body, len)))
    }

    /// Checks that a requester without the right to read the tags of an object does not get them by
    /// copying it.
    ///
    /// # Errors
    /// `AccessDenied` if the copy would have tags that the requester may not read.
    fn check_tags(&self, view: &View, told: &Told) -> S3Result<()> {
        if self.who.owns() || told.tagging.is_some() || view.record.tags.is_empty() {
            return Ok(());
        }
        let message = "The source has tags that only its owner may read: copy it with \
                       `x-amz-tagging-directive: REPLACE`";
        Err(refuse(S3ErrorCode::AccessDenied, message))
    }

    /// The present object, and its file unless the object includes the bytes; for a thread that may
    /// block.
    ///
    /// # Errors
    /// `NoSuchKey`, `AccessDenied`, `PreconditionFailed`.
    pub(crate) fn open(
        &self,
        store: &Store,
        conditions: &Conditions,
    ) -> S3Result<(Object, View, Option<File>)> {
        let check = |view: &View| self.check(view, conditions);
        open(store, (&self.bucket, &self.key), check).map_err(|error| self.who.told(error))
    }
}

/// The source of a copy request; the credential must permit the bucket.
///
/// # Errors
/// `AccessDenied`, `NoSuchBucket`, `NotImplemented`.
pub(crate) async fn source<T>(
    door: &Door,
    request: &S3Request<T>,
    source: &CopySource,
) -> S3Result<Source> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(absent("A copy from an access point"));
    };
    if version_id.as_ref().is_some_and(|version| &**version != "null") {
        return Err(absent("A version of an object (versionId)"));
    }
    let credential = crate::auth::key(door, access_key(request)).await?;
    if credential.as_ref().is_some_and(|key| !key.allows(bucket)) {
        return Err(S3ErrorCode::AccessDenied.into());
    }
    let record = door.bucket(bucket).await?.ok_or(S3ErrorCode::NoSuchBucket)?;
    let expected = request.headers.get("x-amz-source-expected-bucket-owner");
    if expected.is_some_and(|owner| owner.as_bytes() != record.owner().as_bytes()) {
        return Err(S3ErrorCode::AccessDenied.into());
    }
    let who = Asker::new(credential.as_ref(), record);
    Ok(Source { bucket: bucket.to_string(), key: key.to_string(), who })
}

/// Appends a range of a file to another, and hashes it; for a thread that may block.
///
/// # Errors
/// Those of the volume.
pub(crate) fn append(
    (from, offset, len): (&File, u64, u64),
    (to, at): (&File, u64),
    hasher: &mut Hasher,
) -> S3Result<()> {
    from.fix();
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let mut done = 0;
    while done < len {
        let now = usize::try_from(len - done).unwrap_or(PIECE).min(bytes.len());
        let room = &mut bytes[..now];
        let read = from.read_batch(&mut [(offset + done, &mut *room)]).of_object()?;
        if read.first() != Some(&now) {
            return Err(S3ErrorCode::ConditionalRequestConflict.into());
        }
        hasher.update(room);
        to.write_batch(&[(at + done, room)]).of_object()?;
        done += now as u64;
    }
    // Detects concurrent changes, as far as the metas know them.
    if from.is_as_opened().of_object()? {
        Ok(())
    } else {
        Err(S3ErrorCode::ConditionalRequestConflict.into())
    }
}

/// Copies a range of an object to a file without a name yet; for a thread that may block.
///
/// # Errors
/// Those of the volume.
pub(crate) fn duplicate(
    store: &Store,
    (object, from): (&Object, Option<&File>),
    (offset, len): (u64, u64),
    (hasher, target): (&mut Hasher, Target),
) -> S3Result<Content> {
    let is_small = len <= STORED_MAX as u64;
    if is_small && !target.is_file {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        match (&object.bytes, from) {
            (Some(all), _) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(all.len());
                let end = (start + bytes.len()).min(all.len());
                bytes = all[start..end].to_vec();
            }
            (None, Some(file)) => {
                file.fix();
                let read = file.read_batch(&mut [(offset, &mut bytes)]).of_object()?;
                if read.first() != Some(&bytes.len()) {
                    return Err(S3ErrorCode::ConditionalRequestConflict.into());
                }
            }
            (None, None) => {}
        }
        hasher.update(&bytes);
        return Ok(Content::Bytes(Arc::new(bytes)));
    }
    let place = target.open(store, len)?;
    let (to, start) = (&place.file, place.offset);
    if let Some(all) = &object.bytes {
        let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(all.len());
        let range = &all[at(offset)..at(offset + len)];
        hasher.update(range);
        to.write_batch(&[(start, range)]).in_bucket()?;
    } else if let Some(from) = from {
        append((from, offset, len), (to, start), hasher)?;
    }
    Ok(place.content(len))
}

/// The settings for the record of a copy: taken from its source unless replaced.
struct Told {
    kept: Kept,
    replace_meta: bool,
    tagging: Option<Vec<(String, String)>>,
    algorithm: Option<Algorithm>,
}

impl Told {
    /// `record` has the owner and the storage class of the copy.
    fn record(&self, source: &View, mut record: Record) -> S3Result<Record> {
        record.headers.clone_from(&source.record.headers);
        record.meta.clone_from(&source.record.meta);
        record.tags.clone_from(&source.record.tags);
        if self.replace_meta {
            self.kept.clone().fill(&mut record)?;
        }
        if let Some(tags) = &self.tagging {
            record.tags.clone_from(tags);
        }
        Ok(record)
    }
}

fn directive(text: Option<&str>) -> S3Result<bool> {
    match text {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(refuse(S3ErrorCode::InvalidArgument, "Unknown metadata directive.")),
    }
}

/// Checks that an object is small enough to be copied in one request.
fn check_size(view: &View) -> S3Result<()> {
    if view.attr.size <= BODY_MAX {
        return Ok(());
    }
    let message = "The specified copy source is larger than the maximum allowable size for a copy \
                   source: 5368709120";
    Err(refuse(S3ErrorCode::InvalidRequest, message))
}

/// The error for a copy that would change nothing.
fn same() -> S3Error {
    let message = "This copy request is illegal because it is trying to copy an object to itself \
                   without changing the object's metadata, storage class, website redirect location \
                   or encryption attributes.";
    refuse(S3ErrorCode::InvalidRequest, message)
}

/// A requested copy.
struct Copying {
    from: Source,
    /// The conditions on the source.
    conditions: Conditions,
    told: Told,
    /// The record with owner and storage class.
    signed: Record,
    /// Bucket and key of the copy.
    at: (String, String),
    /// The conditions on the present object there.
    onto: Conditions,
    to: Target,
    goes_behind: bool,
}

impl Copying {
    /// Copies the object; for a thread that may block.
    fn done(&self, store: &Store) -> S3Result<(View, Option<Sum>)> {
        let (bucket, key, onto) = (self.at.0.as_str(), self.at.1.as_str(), &self.onto);
        let (object, from, file) = self.from.open(store, &self.conditions)?;
        self.from.check_tags(&from, &self.told)?;
        check_size(&from)?;
        if onto.is_for_write() {
            // Checked before anything is copied: a condition that fails now rarely holds later.
            let there = store.get_object(bucket, key.as_bytes(), false).in_bucket()?;
            onto.check_write(there.as_ref().map(View::of).as_ref())?;
        }
        let algorithm = self.told.algorithm.or(from.record.sum.as_ref().map(|sum| sum.algorithm));
        let mut hasher = Hasher::new(Some(algorithm.unwrap_or(Algorithm::Crc64Nvme)));
        let (all, replicas) = ((0, from.attr.size), self.to.replicas);
        let content =
            duplicate(store, (&object, file.as_ref()), all, (&mut hasher, self.to.clone()))?;
        let digest = hasher.finish();
        let mut record = self.told.record(&from, self.signed.clone())?;
        record.etag = Some(hex(&digest.md5));
        record.sum.clone_from(&digest.sum);
        record.check_behind(self.goes_behind)?;
        let (content, record) = (&content, &record);
        let new = New { bucket, key, content, record, conditions: onto, replicas, upload: None };
        Ok((store_object(store, &new)?, digest.sum))
    }
}

/// The conditions of a request on the object that its copy replaces: `s3s` has no fields for them.
fn conditions_of_target(headers: &HeaderMap) -> S3Result<Conditions> {
    let of = |name: HeaderName| {
        let mut values = headers.get_all(&name).iter();
        let condition = match (values.next(), values.next()) {
            (None, _) => return Ok(None),
            (Some(value), None) => ETagCondition::parse_http_header(value.as_bytes()).ok(),
            (Some(_), Some(_)) => None,
        };
        let message = format!("invalid header: {name}");
        condition.map(Some).ok_or_else(|| refuse(S3ErrorCode::InvalidArgument, message))
    };
    let (if_match, if_none_match) = (of(IF_MATCH)?, of(IF_NONE_MATCH)?);
    Ok(Conditions { if_match, if_none_match, ..Conditions::default() })
}

/// Fills source and target if needed, and copies; repeats this if one is evicted before the copy.
async fn copied(door: &Arc<Door>, copying: &Arc<Copying>) -> S3Result<(View, Option<Sum>)> {
    let Copying { from, at: (bucket, key), .. } = &**copying;
    for _ in 0..TRIES {
        from.bring(door, &copying.conditions).await?;
        let brought = bring_for(door, (bucket, key), &copying.onto).await?;
        let memory = door.memory(Way::In, PIECE).await?;
        let copy = Arc::clone(copying);
        let done = door.blocking(move |store| copy.done(store)).await;
        drop(memory);
        match done {
            Err(error) if is_given_up(door, (&from.bucket, &from.key), &error).await? => {}
            Err(error)
                if brought == Brought::Known
                    && copying.onto.if_match.is_some()
                    && is_given_up(door, (bucket, key), &error).await? => {}
            done => return done,
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// `CopyObject`.
pub(crate) async fn copy_object(
    door: &Arc<Door>,
    request: S3Request<CopyObjectInput>,
) -> Answer<CopyObjectOutput> {
    let from = source(door, &request, &request.input.copy_source).await?;
    let who = who_asks(&request)?;
    let onto = conditions_of_target(&request.headers)?;
    let mut input = request.input;
    refuse_extras!(input);
    check_key(&input.key)?;
    let names_class = input.storage_class.is_some();
    let replace_tags = directive(input.tagging_directive.as_ref().map(TaggingDirective::as_str))?;
    let told = Told {
        kept: kept!(input),
        replace_meta: directive(input.metadata_directive.as_ref().map(MetadataDirective::as_str))?,
        tagging: match input.tagging.as_deref() {
            _ if !replace_tags => None,
            text => Some(parse_header(text.unwrap_or_default())?),
        },
        algorithm: match &input.checksum_algorithm {
            Some(name) => Some(Algorithm::named(name.as_str())?),
            None => None,
        },
    };
    // They come from the request, as with AWS, and not from the source.
    let mut signed = Record { class: told.kept.class.clone(), ..Record::current() };
    who.sign(door, &wished!(input), &mut signed).await?;
    let (bucket, key) = (input.bucket, input.key);
    let is_same = bucket == from.bucket && key == from.key;
    if is_same && !told.replace_meta && !replace_tags && !names_class {
        return Err(same());
    }
    let conditions = conditions_of_source!(input);
    let written = admit(door, (&bucket, &key)).await?;
    let to = Target::of(written.replicas(&key));
    let goes_behind = written.goes_behind(&key);
    let at = (bucket, key);
    let copying = Copying { from, conditions, told, signed, at, onto, to, goes_behind };
    let copying = Arc::new(copying);
    let (view, sum) = copied(door, &copying).await?;
    let word = written.done(door, &copying.at.1).await?;
    let mut result = CopyObjectResult {
        e_tag: Some(etag(&view.etag)),
        last_modified: Some(time(view.attr.mtime)),
        ..CopyObjectResult::default()
    };
    tell_sum!(result, &sum);
    result.checksum_type = sum.as_ref().map(sum_type);
    let output =
        CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() };
    told_answer(output, word)
}
