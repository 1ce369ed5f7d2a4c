//! `GetObject` and `HeadObject`.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HeaderMap, IF_RANGE};
use millpond_client::File;
use s3s::dto::{
    GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Range, StreamingBlob,
    Timestamp,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::headers::{TYPE_DEFAULT, expires};
use super::put::{sum_type, tell_sum};
use super::{Answer, count, size};
use crate::access::who_asks;
use crate::acl::Permission;
use crate::backed::fetch::{self, Asked};
use crate::backed::look::{Seen, look, tell, view};
use crate::conditions::{Conditions, etag, is_still, time};
use crate::door::{Door, There};
use crate::error::{Told as _, absent, custom, refuse};
use crate::hash::Sum;
use crate::http::Status;
use crate::record::View;
use crate::send;
use crate::store::{Object, Store};

/// A part of an object.
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Whether a range or a part was requested.
    is_cut: bool,
    count: Option<i32>,
    /// The number of the requested part.
    number: Option<u32>,
}

/// The object with a key; for a thread that may block.
///
/// # Errors
/// `NoSuchKey`, `NoSuchBucket`.
pub(crate) fn find(store: &Store, (bucket, key): (&str, &str), bytes: bool) -> S3Result<Object> {
    let found = store.get_object(bucket, key.as_bytes(), bytes).in_bucket()?;
    found.ok_or_else(|| S3ErrorCode::NoSuchKey.into())
}

/// The present object, and its file unless the object includes the bytes; for a thread that may
/// block.
///
/// # Errors
/// As [`find`]; those of `check`.
pub(crate) fn open(
    store: &Store,
    at: (&str, &str),
    check: impl Fn(&View) -> S3Result<()>,
) -> S3Result<(Object, View, Option<File>)> {
    let hold = store.hold();
    let object = find(store, at, true)?;
    let view = View::of(&object);
    check(&view)?;
    let file = store.file_of(&object, &hold);
    Ok((object, view, file))
}

/// The requested bytes of an object.
///
/// # Errors
/// `InvalidRange`, `InvalidPartNumber`.
pub(crate) fn wanted(view: &View, range: Option<&Range>, part: Option<i32>) -> S3Result<Part> {
    let all = view.attr.size;
    let parts = view.record.parts.as_ref();
    let parts_told = part.and(parts.map(|parts| count(parts.count as usize)));
    match (range, part) {
        (Some(_), Some(_)) => Err(refuse(
            S3ErrorCode::InvalidRequest,
            "Cannot specify both Range header and partNumber query parameter",
        )),
        (None, None) => Ok(Part { offset: 0, len: all, is_cut: false, count: None, number: None }),
        // `s3s` returns the "last bytes" of an empty object as an empty part.
        (Some(_), None) if all == 0 => Err(beyond(all)),
        (Some(range), None) => {
            let range = range.check(all).map_err(|_| beyond(all))?;
            let (offset, len) = (range.start, range.end - range.start);
            Ok(Part { offset, len, is_cut: true, count: None, number: None })
        }
        (None, Some(number)) => {
            let number = u32::try_from(number).unwrap_or_default();
            let place = match parts {
                Some(parts) if parts.are_known() => parts.place(number),
                Some(_) => return Err(absent("A part of an object with so many different parts")),
                None => (number == 1).then_some((0, all)),
            };
            let (offset, len) = place.ok_or_else(|| {
                if parts.is_none() {
                    return refuse(
                        S3ErrorCode::InvalidPart,
                        "The object was not uploaded in parts: its only part is part 1, the whole \
                         object",
                    );
                }
                let message = "The requested partnumber is not satisfiable".to_owned();
                custom("InvalidPartNumber", StatusCode::RANGE_NOT_SATISFIABLE, message)
            })?;
            Ok(Part { offset, len, is_cut: true, count: parts_told, number: Some(number) })
        }
    }
}

fn beyond(all: u64) -> S3Error {
    let mut error = S3Error::new(S3ErrorCode::InvalidRange);
    let mut headers = hyper::HeaderMap::new();
    if let Ok(value) = format!("bytes */{all}").parse() {
        headers.insert(hyper::header::CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error
}

impl Part {
    /// An answer with the status 206 where needed, which `s3s` sets only in some cases.
    #[expect(clippy::unnecessary_wraps, reason = "it is what an operation ends with")]
    fn answer<T>(&self, output: T, word: Option<&'static str>) -> Answer<T> {
        let mut response = S3Response::new(output);
        if let Some(word) = word {
            tell(&mut response, word);
        }
        if self.is_cut {
            response.extensions.insert(Status(StatusCode::PARTIAL_CONTENT));
        }
        Ok(response)
    }

    fn range(&self, all: u64) -> Option<String> {
        let is_told = self.is_cut && self.len > 0;
        is_told.then(|| format!("bytes {}-{}/{all}", self.offset, self.offset + self.len - 1))
    }

    /// The checksum of exactly these bytes, if requested: that of the part, or of the whole.
    fn sum(&self, view: &View, mode: Option<&str>) -> Option<Sum> {
        if mode != Some("ENABLED") {
            return None;
        }
        let record = &view.record;
        let of_part = self.number.and_then(|number| record.parts.as_ref()?.sums()(number));
        of_part.or_else(|| record.sum.clone().filter(|_| self.len == view.attr.size))
    }
}

/// Fills the headers common to both outputs of `s3s`.
macro_rules! describe {
    ($output:ident, $view:expr, $wanted:expr, $mode:expr) => {{
        let (view, wanted): (&View, &Part) = ($view, $wanted);
        let header = |name: &str| view.record.headers.get(name).cloned();
        $output.accept_ranges = Some("bytes".to_owned());
        $output.cache_control = header("cache-control");
        $output.content_disposition = header("content-disposition");
        $output.content_encoding = header("content-encoding");
        $output.content_language = header("content-language");
        $output.content_type = header("content-type").or_else(|| Some(TYPE_DEFAULT.to_owned()));
        $output.expires = expires(&view.record);
        $output.content_length = Some(size(wanted.len));
        $output.content_range = wanted.range(view.attr.size);
        $output.e_tag = Some(etag(&view.etag));
        $output.last_modified = Some(time(view.attr.mtime));
        $output.parts_count = wanted.count;
        // The default class is not reported, as with AWS.
        $output.storage_class = view.record.class.clone().map(Into::into);
        if !view.record.meta.is_empty() {
            $output.metadata = Some(view.record.meta.clone().into_iter().collect());
        }
        let sum = wanted.sum(view, $mode.as_ref().map(|mode| mode.as_str()));
        // The type is that of the object, even if the checksum is that of a part.
        $output.checksum_type = sum.as_ref().and(view.record.sum.as_ref()).map(sum_type);
        tell_sum!($output, sum);
    }};
}

fn refuse_version(version: Option<&String>) -> S3Result<()> {
    match version.map(String::as_str) {
        None | Some("null") => Ok(()),
        Some(_) => Err(absent("A version of an object (versionId)")),
    }
}

fn if_range(headers: &HeaderMap) -> Option<&str> {
    // A value that is not text is neither an `ETag` nor a time.
    headers.get(IF_RANGE).map(|value| value.to_str().unwrap_or_default())
}

/// `GetObject`.
pub(crate) async fn get_object(
    door: &Arc<Door>,
    request: S3Request<GetObjectInput>,
) -> Answer<GetObjectOutput> {
    let who = who_asks(&request)?;
    let mut input = request.input;
    refuse_version(input.version_id.as_ref())?;
    if input.sse_customer_algorithm.is_some() {
        return Err(absent("Encryption by the server (x-amz-server-side-encryption)"));
    }
    let conditions = Conditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        modified_since: input.if_modified_since.take(),
        unmodified_since: input.if_unmodified_since.take(),
    };
    let (bucket, key) = (input.bucket, input.key);
    let (range, part) = (input.range.as_ref(), input.part_number);
    let if_range = if_range(&request.headers);
    let asked = Asked { who: &who, conditions: &conditions, range, if_range, part };
    let read = read(door, (&bucket, &key), &asked).await;
    let ((view, wanted, body), word) = read.map_err(|error| who.told(error))?;
    let mut output = GetObjectOutput::default();
    describe!(output, &view, &wanted, input.checksum_mode);
    output.tag_count = (view.tags > 0 && who.owns()).then(|| count(view.tags));
    door.metrics.sent(wanted.len);
    output.body = Some(body);
    wanted.answer(output, word)
}

type Body = (View, Part, StreamingBlob);

/// Reads an object from the pool.
async fn here(door: &Arc<Door>, there: There, asked: &Asked<'_>) -> S3Result<Body> {
    let There { object, file } = there;
    let view = View::of(&object);
    asked.check(&view)?;
    let wanted = wanted(&view, asked.range_of(&view), asked.part_of(&view))?;
    let body = match file {
        Some(file) => send::file(door, file, (wanted.offset, wanted.len)).await?,
        None => send::bytes(cut(object.bytes.unwrap_or_default(), &wanted)),
    };
    Ok((view, wanted, body))
}

/// Reads an object, wherever it is; in a backed bucket also returns its state.
async fn read(
    door: &Arc<Door>,
    at: (&str, &str),
    asked: &Asked<'_>,
) -> S3Result<(Body, Option<&'static str>)> {
    let Some(backed) = door.backed(at.0).await? else {
        let (there, _) = door.open_up(at).await?;
        return Ok((here(door, there.ok_or(S3ErrorCode::NoSuchKey)?, asked).await?, None));
    };
    match look(door, &backed, at.1, true).await? {
        Seen::Nowhere => Err(S3ErrorCode::NoSuchKey.into()),
        Seen::There(seen) => {
            let body = fetch::get(door, (&backed, at.1), seen, asked).await?;
            Ok((body, Some("remote")))
        }
        Seen::Here(there, word) => Ok((here(door, there, asked).await?, Some(word))),
    }
}

fn cut(mut bytes: Vec<u8>, wanted: &Part) -> Vec<u8> {
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let (start, end) = (at(wanted.offset).min(bytes.len()), at(wanted.offset + wanted.len));
    bytes.truncate(end);
    if start > 0 { bytes.split_off(start) } else { bytes }
}

/// `HeadObject`.
pub(crate) async fn head_object(
    door: &Arc<Door>,
    request: S3Request<HeadObjectInput>,
) -> Answer<HeadObjectOutput> {
    let who = who_asks(&request)?;
    let mut input = request.input;
    refuse_version(input.version_id.as_ref())?;
    let conditions = Conditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        modified_since: input.if_modified_since.take(),
        unmodified_since: input.if_unmodified_since.take(),
    };
    let (bucket, key) = (input.bucket, input.key);
    let (view, word) = view(door, (&bucket, &key)).await.map_err(|error| who.told(error))?;
    who.check(&view.record, Permission::Read)?;
    conditions.check_read(&view)?;
    let is_meant = if_range(&request.headers).is_none_or(|condition| is_still(condition, &view));
    let (range, part) = (input.range.as_ref(), input.part_number);
    let wanted = wanted(&view, range.filter(|_| is_meant), part.filter(|_| is_meant))?;
    let mut output = HeadObjectOutput::default();
    describe!(output, &view, &wanted, input.checksum_mode);
    // Overrides of the answer's headers, which `s3s` itself applies only to GET.
    let set = |to: &mut Option<String>, from: Option<String>| *to = from.or(to.take());
    set(&mut output.cache_control, input.response_cache_control);
    set(&mut output.content_disposition, input.response_content_disposition);
    set(&mut output.content_encoding, input.response_content_encoding);
    set(&mut output.content_language, input.response_content_language);
    set(&mut output.content_type, input.response_content_type);
    let expires: Option<Timestamp> = input.response_expires;
    output.expires = expires.or(output.expires);
    let mut answer = wanted.answer(output, word)?;
    // `s3s` has no field for this.
    if view.tags > 0 && who.owns() {
        answer.headers.insert("x-amz-tagging-count", view.tags.into());
    }
    Ok(answer)
}
