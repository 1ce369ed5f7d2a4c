//! An incoming body: counted, hashed once, and written to a file without a name unless it is small.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hyper::HeaderMap;
use hyper::body::Bytes;
use millpond_client::File;
use millpond_md5::Md5;
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result, TrailingHeaders};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::door::{Door, Way};
use crate::error::{Told as _, custom, of_body, refuse};
use crate::hash::{Algorithm, Digest, Expected, Hasher, bad_sum, several_sums};
use crate::spare::room;
use crate::store::{Body, STORED_MAX, Store, UploadId};
use crate::together::Together;

/// Bytes hashed and written at once: their chunks are written to the chains in parallel.
const PIECE: usize = 4 << 20;
/// Concurrent requests from which small bodies are hashed in batches: below, the handover costs
/// more than it saves.
const BESIDE_MIN: u64 = 4;
/// The longest body of one request in bytes.
pub(crate) const BODY_MAX: u64 = 5 << 30;
/// Timeout for the next bytes of a client.
const IDLE: Duration = Duration::from_secs(30);

/// An announced body.
pub(crate) struct Incoming {
    stream: StreamingBlob,
    trailers: Option<TrailingHeaders>,
    /// The algorithm of the announced trailer.
    trailer: Option<Algorithm>,
    len: u64,
    expected: Expected,
    algorithm: Option<Algorithm>,
}

/// The headers of a request about its body.
pub(crate) struct Said<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) len: Option<i64>,
    pub(crate) md5: Option<&'a str>,
    pub(crate) sums: [(Algorithm, Option<&'a String>); 5],
}

/// The location of the bytes.
pub(crate) enum Content {
    /// Up to [`STORED_MAX`].
    Bytes(Arc<Vec<u8>>),
    /// In a file without a name.
    File(File),
    /// This many bytes at a part's place in the whole file of its upload.
    Placed(File, u64),
    /// In the whole file of the upload that it completes: the number of parts, and the length.
    Whole(u16, u64),
}

impl Content {
    /// The content in the form for the volume.
    pub(crate) fn body(&self) -> Body<'_> {
        match self {
            Self::Bytes(bytes) => Body::Bytes(bytes),
            Self::File(file) | Self::Placed(file, _) => Body::File(file),
            Self::Whole(parts, size) => Body::Whole { parts: *parts, size: *size },
        }
    }
}

/// The destination of incoming bytes.
#[derive(Clone, Default)]
pub(crate) struct Target {
    /// Requires a file; otherwise small bodies stay in memory.
    pub(crate) is_file: bool,
    /// The replicas of a new file, for [`Store::nameless_file`].
    pub(crate) replicas: u8,
    /// The part to write to its place in the whole file of its upload, if it can have one.
    pub(crate) part: Option<PartName>,
}

/// A part of an upload.
#[derive(Clone)]
pub(crate) struct PartName {
    pub(crate) bucket: String,
    pub(crate) id: UploadId,
    pub(crate) number: u16,
}

/// A file and a position to write to.
pub(crate) struct Place {
    pub(crate) file: File,
    pub(crate) offset: u64,
    is_whole: bool,
}

impl Place {
    /// The content after `len` bytes were written.
    pub(crate) fn content(self, len: u64) -> Content {
        if self.is_whole { Content::Placed(self.file, len) } else { Content::File(self.file) }
    }
}

impl Target {
    /// A file with this number of replicas, unless the body is small.
    pub(crate) fn of(replicas: u8) -> Self {
        Self { replicas, ..Self::default() }
    }

    /// Opens the file for `len` bytes. The place of a part can be taken only once, so await
    /// everything that can fail before this call. For a thread that may block.
    ///
    /// # Errors
    /// Those of the volume; `NoSuchUpload`.
    pub(crate) fn open(self, store: &Store, len: u64) -> S3Result<Place> {
        if let Some(PartName { bucket, id, number }) = self.part {
            let taken = store.take_place((&bucket, id, number), len, self.replicas).of_upload()?;
            if let Some((file, offset)) = taken {
                return Ok(Place { file, offset, is_whole: true });
            }
        }
        let file = store.nameless_file(self.replicas).in_bucket()?;
        Ok(Place { file, offset: 0, is_whole: false })
    }
}

/// A received body, not yet compared with the client's hashes.
pub(crate) struct Arrived {
    content: Content,
    hasher: Hasher,
    expected: Expected,
}

impl Arrived {
    /// Computes the last hash and compares, off the event loop; small bodies are hashed in batches.
    ///
    /// # Errors
    /// `BadDigest`.
    pub(crate) async fn checked_beside(self, door: &Door) -> S3Result<(Content, Digest)> {
        let Self { content, mut hasher, expected } = self;
        let md5 = if hasher.is_cheap() { hasher.take_md5() } else { None };
        let (Content::Bytes(bytes), Some(md5)) = (&content, md5.clone()) else {
            if let Some(md5) = md5 {
                hasher.put_md5(md5);
            }
            let this = Self { content, hasher, expected };
            return spawn_blocking(|| this.checked()).await.map_err(S3Error::internal_error)?;
        };
        hasher.update_sum(bytes);
        let is_alone = door.metrics.in_flight.get() < BESIDE_MIN;
        hasher.put_md5(Arc::clone(&door.md5).update_small(md5, bytes, is_alone).await?);
        let digest = hasher.finish();
        expected.check(&digest)?;
        Ok((content, digest))
    }

    /// Computes the last hash and compares; for a thread that may block.
    ///
    /// # Errors
    /// `BadDigest`.
    pub(crate) fn checked(self) -> S3Result<(Content, Digest)> {
        let Self { content, mut hasher, expected } = self;
        if let Content::Bytes(bytes) = &content {
            hasher.update(bytes);
        }
        let digest = hasher.finish();
        expected.check(&digest)?;
        Ok((content, digest))
    }
}

/// The length of a chunked body (`aws-chunked`) without the chunk overhead, if the request has no
/// `Content-Length`: AWS SDKs send bodies with a trailer this way over TLS.
fn decoded_len(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("x-amz-content-sha256").filter(|value| value.starts_with("STREAMING-"))?;
    text("x-amz-decoded-content-length")?.parse().ok()
}

/// The algorithm of an announced trailer.
fn trailer(headers: &HeaderMap) -> S3Result<Option<Algorithm>> {
    let Some(name) = headers.get("x-amz-trailer").and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let name = name.trim();
    let found =
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.header().eq_ignore_ascii_case(name));
    let message = "The value specified in the x-amz-trailer header is not supported";
    found.map(Some).ok_or_else(|| refuse(S3ErrorCode::InvalidRequest, message))
}

impl Incoming {
    /// Reads the announcement of a body.
    ///
    /// # Errors
    /// `MissingContentLength`, `EntityTooLarge`, and errors for invalid headers.
    pub(crate) fn new(
        stream: Option<StreamingBlob>,
        trailers: Option<TrailingHeaders>,
        said: &Said<'_>,
    ) -> S3Result<Self> {
        let len = said.len.and_then(|len| u64::try_from(len).ok());
        let len = len.or_else(|| decoded_len(said.headers));
        let len = len.ok_or(S3ErrorCode::MissingContentLength)?;
        if len > BODY_MAX {
            return Err(S3ErrorCode::EntityTooLarge.into());
        }
        let expected = Expected::new(said.md5, &said.sums)?;
        let trailer = trailer(said.headers)?;
        if trailer.is_some() && expected.algorithm().is_some() {
            return Err(several_sums());
        }
        let named =
            said.headers.get("x-amz-sdk-checksum-algorithm").and_then(|value| value.to_str().ok());
        let named = named.map(Algorithm::named).transpose()?;
        let algorithm = expected.algorithm().or(trailer).or(named);
        if let (Some(algorithm), Some(named)) = (algorithm, named)
            && algorithm != named
        {
            let message = "Value for x-amz-sdk-checksum-algorithm header is invalid.";
            return Err(refuse(S3ErrorCode::InvalidRequest, message));
        }
        let stream = stream.unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
        Ok(Self { stream, trailers, trailer, len, expected, algorithm })
    }

    /// The algorithm of the checksum, if one is requested.
    pub(crate) const fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// Uses `algorithm` if none is requested.
    pub(crate) fn or_with(&mut self, algorithm: Algorithm) {
        self.algorithm.get_or_insert(algorithm);
    }

    /// Receives the body. A small one stays in memory unless a file is required.
    ///
    /// # Errors
    /// `IncompleteBody`, `RequestTimeout`, errors for the signature of a chunk, and those of the
    /// volume. Then nothing is left behind.
    pub(crate) async fn receive(mut self, door: &Door, to: Target) -> S3Result<Arrived> {
        let hasher = Hasher::new(self.algorithm);
        if self.len <= STORED_MAX as u64 && !to.is_file {
            let mut bytes = Vec::with_capacity(usize::try_from(self.len).unwrap_or_default());
            while let Some(frame) = self.next(bytes.len() as u64).await? {
                bytes.extend_from_slice(&frame);
            }
            self.end(bytes.len() as u64)?;
            let (content, expected) = (Content::Bytes(Arc::new(bytes)), self.expected);
            return Ok(Arrived { content, hasher, expected });
        }
        // One piece is filled while the previous one is hashed and written.
        let piece = usize::try_from(self.len).unwrap_or(PIECE).clamp(1, PIECE);
        let _memory = door.memory(Way::In, room(piece) * 2).await?;
        let len = self.len;
        let place = door.blocking(move |store| to.open(store, len)).await?;
        let (file, offset) = (place.file.clone(), place.offset);
        let md5 = Arc::clone(&door.md5);
        let _coming = md5.expect();
        let hasher = Some(hasher);
        let mut writer = Writer { file, md5: Arc::clone(&md5), hasher, offset, busy: None };
        let mut bytes = door.spare.take(piece);
        bytes.clear();
        let mut come = 0;
        while let Some(frame) = self.next(come).await? {
            come += frame.len() as u64;
            let mut rest: &[u8] = &frame;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(piece - bytes.len()));
                bytes.extend_from_slice(now);
                rest = later;
                if bytes.len() == piece {
                    bytes = writer.push(bytes).await?.unwrap_or_else(|| door.spare.take(piece));
                    bytes.clear();
                }
            }
        }
        self.end(come)?;
        let before = if bytes.is_empty() { Some(bytes) } else { writer.push(bytes).await? };
        let (hasher, last) = writer.finish().await?;
        before.into_iter().chain(last).for_each(|buffer| door.spare.give(buffer));
        Ok(Arrived { content: place.content(len), hasher, expected: self.expected })
    }

    async fn next(&mut self, come: u64) -> S3Result<Option<Bytes>> {
        let Ok(next) = tokio::time::timeout(IDLE, self.stream.next()).await else {
            return Err(S3ErrorCode::RequestTimeout.into());
        };
        match next {
            None => Ok(None),
            Some(Err(error)) => Err(of_body(&error)),
            Some(Ok(frame)) if come + frame.len() as u64 > self.len => {
                Err(S3ErrorCode::IncompleteBody.into())
            }
            Some(Ok(frame)) => Ok(Some(frame)),
        }
    }

    /// Checks that the whole body has arrived, and reads the trailer.
    fn end(&mut self, come: u64) -> S3Result<()> {
        if come != self.len {
            return Err(S3ErrorCode::IncompleteBody.into());
        }
        let Some(algorithm) = self.trailer else { return Ok(()) };
        let told = self.trailers.as_ref().and_then(|trailers| {
            trailers.read(|map| map.get(algorithm.header()).cloned()).flatten()
        });
        let text = told.as_ref().and_then(|value| value.to_str().ok()).map(str::trim);
        let Some(text) = text else {
            let message = "The trailer that x-amz-trailer announces is missing.".to_owned();
            return Err(custom("MalformedTrailerError", hyper::StatusCode::BAD_REQUEST, message));
        };
        self.expected.add(algorithm, text).map_err(|_| bad_sum(algorithm))
    }
}

/// Hashes and writes pieces off the event loop, one at a time.
struct Writer {
    file: File,
    md5: Arc<Together>,
    hasher: Option<Hasher>,
    offset: u64,
    busy: Option<Busy>,
}

/// A piece being hashed and written.
struct Busy {
    md5: Option<JoinHandle<S3Result<Md5>>>,
    writing: JoinHandle<S3Result<Hasher>>,
    bytes: Arc<Vec<u8>>,
}

impl Writer {
    /// Waits for the previous piece, starts this one and returns the buffer of the previous one.
    async fn push(&mut self, bytes: Vec<u8>) -> S3Result<Option<Vec<u8>>> {
        let spare = self.settle().await?;
        let bytes = Arc::new(bytes);
        let Some(mut hasher) = self.hasher.take() else {
            return Err(S3ErrorCode::InternalError.into());
        };
        let together = |md5| tokio::spawn(Arc::clone(&self.md5).update(md5, Arc::clone(&bytes)));
        let md5 = hasher.take_md5().map(together);
        let (file, offset, of_task) = (self.file.clone(), self.offset, Arc::clone(&bytes));
        self.offset += bytes.len() as u64;
        let writing = spawn_blocking(move || {
            hasher.update_sum(&of_task);
            file.write_batch(&[(offset, &of_task)]).of_object().map(|()| hasher)
        });
        self.busy = Some(Busy { md5, writing, bytes });
        Ok(spare)
    }

    async fn settle(&mut self) -> S3Result<Option<Vec<u8>>> {
        let Some(Busy { md5, writing, bytes }) = self.busy.take() else { return Ok(None) };
        let mut hasher = writing.await.map_err(S3Error::internal_error)??;
        if let Some(md5) = md5 {
            hasher.put_md5(md5.await.map_err(S3Error::internal_error)??);
        }
        self.hasher = Some(hasher);
        Ok(Arc::try_unwrap(bytes).ok())
    }

    /// The hashes, and the buffer of the last piece.
    async fn finish(mut self) -> S3Result<(Hasher, Option<Vec<u8>>)> {
        let last = self.settle().await?;
        let hasher = self.hasher.take().ok_or(S3ErrorCode::InternalError)?;
        Ok((hasher, last))
    }
}
