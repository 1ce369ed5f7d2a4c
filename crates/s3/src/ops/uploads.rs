//! `ListMultipartUploads`, and the sweep of abandoned uploads.

use std::sync::Arc;
use std::time::Duration;

use millpond_env::RealClock;
use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, ListMultipartUploadsInput, ListMultipartUploadsOutput,
    MultipartUpload,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::list::{encoded, is_url, page_len};
use super::multipart::{id, kind_told, name};
use super::{Answer, answer, count, initiator, owner};
use crate::access::{Asker, who_asks};
use crate::conditions::time;
use crate::door::Door;
use crate::error::{Told as _, refuse};
use crate::record::{Record, decode};
use crate::store::{Store, Upload, UploadId};

/// Uploads requested at once.
const PAGE: u32 = 1_000;

/// A line of the answer.
enum Line {
    Upload(Upload),
    Prefix(Vec<u8>),
}

struct Asked {
    bucket: String,
    prefix: Vec<u8>,
    delimiter: Vec<u8>,
    marker: (Vec<u8>, UploadId),
    max: usize,
}

/// The uploads after the marker, with common prefixes; and whether there are more.
fn gather(store: &Store, asked: &Asked) -> S3Result<(Vec<Line>, bool)> {
    let mut lines = Vec::new();
    let mut last_prefix: Option<Vec<u8>> = None;
    let mut at = asked.marker.clone();
    store.bucket(&asked.bucket).in_bucket()?;
    loop {
        let page = store.uploads(&asked.bucket, Some((&at.0, at.1)), PAGE).in_bucket()?;
        let Some(last) = page.last() else { return Ok((lines, false)) };
        at = (last.key.clone(), last.id);
        for upload in page.into_iter().filter(|upload| upload.key.starts_with(&asked.prefix)) {
            let rest = &upload.key[asked.prefix.len()..];
            let width = asked.delimiter.len();
            let cut = (width > 0)
                .then(|| rest.windows(width).position(|window| window == asked.delimiter))
                .flatten();
            let common = cut.map(|at| upload.key[..asked.prefix.len() + at + width].to_vec());
            if common.is_some()
                && (common == last_prefix
                    || asked.marker.0 >= *common.as_ref().unwrap_or(&upload.key))
            {
                continue;
            }
            if lines.len() == asked.max {
                return Ok((lines, true));
            }
            lines.push(match common {
                Some(prefix) => {
                    last_prefix = Some(prefix.clone());
                    Line::Prefix(prefix)
                }
                None => Line::Upload(upload),
            });
        }
    }
}

fn told(upload: &Upload, who: &Asker, url: bool) -> MultipartUpload {
    let record = decode::<Record>(&upload.attachment).unwrap_or_default();
    let (wants, whose) = (record.wants, who.owner_of(&record));
    MultipartUpload {
        checksum_algorithm: wants
            .map(|(algorithm, _)| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: wants.map(|(_, is_whole)| kind_told(is_whole)),
        initiated: Some(time(upload.started)),
        initiator: Some(initiator(whose)),
        owner: Some(owner(whose)),
        key: Some(encoded(&upload.key, url)),
        storage_class: Some(record.class().to_owned().into()),
        upload_id: Some(name(upload.id)),
    }
}

/// `ListMultipartUploads`.
pub(crate) async fn list(
    door: &Arc<Door>,
    request: S3Request<ListMultipartUploadsInput>,
) -> Answer<ListMultipartUploadsOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let url = is_url(input.encoding_type.as_ref())?;
    let max = page_len(input.max_uploads, "max-uploads")?;
    let marker_id = match input.upload_id_marker.as_deref().filter(|marker| !marker.is_empty()) {
        Some(text) => {
            id(text).map_err(|_| refuse(S3ErrorCode::InvalidArgument, "Invalid uploadId marker"))?
        }
        // After all uploads of the key, or before everything.
        None => UploadId(if input.key_marker.is_some() { u64::MAX } else { 0 }),
    };
    let bytes = |field: &Option<String>| field.clone().unwrap_or_default().into_bytes();
    let asked = Asked {
        bucket: input.bucket.clone(),
        prefix: bytes(&input.prefix),
        delimiter: bytes(&input.delimiter),
        marker: (bytes(&input.key_marker), marker_id),
        max,
    };
    let (lines, is_truncated) = door.blocking(move |store| gather(store, &asked)).await?;
    let (mut uploads, mut prefixes) = (Vec::new(), Vec::new());
    let (mut next_key, mut next_id) = (None, None);
    for line in &lines {
        match line {
            Line::Upload(upload) => {
                next_key = Some(encoded(&upload.key, url));
                next_id = Some(name(upload.id));
                uploads.push(told(upload, &who, url));
            }
            Line::Prefix(prefix) => {
                let text = encoded(prefix, url);
                next_key = Some(text.clone());
                next_id = None;
                prefixes.push(CommonPrefix { prefix: Some(text) });
            }
        }
    }
    let shown = |text: Option<String>| text.map(|text| encoded(text.as_bytes(), url));
    answer(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        uploads: Some(uploads),
        common_prefixes: Some(prefixes),
        delimiter: shown(input.delimiter),
        encoding_type: input.encoding_type,
        is_truncated: Some(is_truncated),
        key_marker: shown(input.key_marker),
        upload_id_marker: input.upload_id_marker,
        max_uploads: Some(count(max)),
        next_key_marker: next_key.filter(|_| is_truncated),
        next_upload_id_marker: next_id.filter(|_| is_truncated),
        prefix: shown(input.prefix),
        ..ListMultipartUploadsOutput::default()
    })
}

/// Aborts uploads older than `age`; returns how many. Any number of gateways may do it
/// concurrently.
pub(crate) fn sweep(store: &Store, age: Duration) -> S3Result<usize> {
    let before = RealClock::wall_ms() / 1_000;
    let before = before.saturating_sub(age.as_secs());
    let mut given_up = 0;
    for bucket in store.buckets().in_bucket()? {
        let mut at: Option<(Vec<u8>, UploadId)> = None;
        loop {
            let after = at.as_ref().map(|(key, id)| (key.as_slice(), *id));
            let page = store.uploads(&bucket.name, after, PAGE).in_bucket()?;
            let Some(last) = page.last() else { break };
            at = Some((last.key.clone(), last.id));
            for upload in &page {
                let started = u64::try_from(upload.started.secs).unwrap_or_default();
                if started < before && store.abort_upload(&bucket.name, upload.id).is_ok() {
                    given_up += 1;
                }
            }
        }
    }
    Ok(given_up)
}
