//! Reads that go to the backend, and fills: whole objects that are stored in the pool while being
//! read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper::body::Bytes;
use millpond_client::{File, Origin};
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::object::FORGET_MS;
use s3s::dto::{Range, StreamingBlob};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, S3ErrorCode, S3Result, StdError};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::look::{Seen, look};
use super::room::told_of;
use super::{Backed, Cached, Filling, fault};
use crate::access::Asker;
use crate::acl::Permission;
use crate::back::store::{ACCESS, CONTENT, Kind, Match, Pieces, Remote};
use crate::back::words;
use crate::conditions::{Conditions, is_still};
use crate::door::{Door, Way};
use crate::error::{Told as _, refuse};
use crate::hash::{Digest, Hasher, Sum, hex, unhex};
use crate::ops::get::{Part, wanted};
use crate::receive::Content;
use crate::record::{Record, View, encode};
use crate::store::{Expect, Put, PutObject, STORED_MAX};

/// Bytes per write to the pool.
const PIECE: usize = 2 << 20;
/// How often a range is requested from an object that is being replaced.
const TRIES: usize = 4;
/// The longest `ETag` that a state can hold.
const ETAG_MAX: usize = 200;
/// A fill that takes longer than this is dropped, in milliseconds: the metas may have forgotten
/// later changes of its key. The other half is reserved for checks after the fill.
const FILL_MS_MAX: u64 = FORGET_MS / 2;
/// The error for an object with an unexpected MD5, which is not stored.
const DOUBTFUL: &str =
    "The MD5 of the content from the backend does not match its ETag. Please try again.";
/// Above this fill level of the pool, in thousandths, reads do not store objects.
const FULL: u64 = 950;

/// A read request of a client.
pub(crate) struct Asked<'a> {
    pub(crate) who: &'a Asker,
    pub(crate) conditions: &'a Conditions,
    pub(crate) range: Option<&'a Range>,
    /// `If-Range`: the version of the object that the range refers to.
    pub(crate) if_range: Option<&'a str>,
    pub(crate) part: Option<i32>,
}

impl<'a> Asked<'a> {
    /// The requested range of this object; none if `If-Range` names another version.
    pub(crate) fn range_of(&self, view: &View) -> Option<&'a Range> {
        self.range.filter(|_| self.if_range.is_none_or(|condition| is_still(condition, view)))
    }

    /// The requested part of this object; none if `If-Range` names another version.
    pub(crate) fn part_of(&self, view: &View) -> Option<i32> {
        self.part.filter(|_| self.if_range.is_none_or(|condition| is_still(condition, view)))
    }

    /// Checks that the requester may read this object, and that the conditions hold.
    ///
    /// # Errors
    /// `AccessDenied`; as [`Conditions::check_read`].
    pub(crate) fn check(&self, view: &View) -> S3Result<()> {
        self.who.check(&view.record, Permission::Read)?;
        self.conditions.check_read(view)
    }
}

/// The state of a key before the backend was asked, and the time of the request.
#[derive(Clone, Copy)]
struct Before {
    seen: Option<u64>,
    at: Tick,
}

impl Before {
    fn now(seen: Option<u64>) -> Self {
        Self { seen, at: RealClock::tick() }
    }

    /// Checks that the metas still know all changes of the key since then.
    ///
    /// # Errors
    /// `SlowDown` if not.
    fn check(self, now: Tick) -> S3Result<()> {
        if now.since(self.at) <= Duration::from_millis(FILL_MS_MAX) {
            return Ok(());
        }
        let message = "The backend took so long that its content may be out of date.";
        Err(refuse(S3ErrorCode::SlowDown, message))
    }
}

/// A body of known length for a client.
struct Passing<S> {
    pieces: S,
    left: u64,
}

impl<S: Stream<Item = Result<Bytes, StdError>> + Unpin> Stream for Passing<S> {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.pieces.poll_next_unpin(cx);
        match &next {
            Poll::Ready(Some(Ok(bytes))) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
            }
            // The length was announced: a client must not take a shorter body for the whole.
            Poll::Ready(None) if self.left > 0 => {
                self.left = 0;
                return Poll::Ready(Some(Err("the backend sent less than it announced".into())));
            }
            _ => {}
        }
        next
    }
}

impl<S> ByteStream for Passing<S>
where
    S: Stream<Item = Result<Bytes, StdError>> + Unpin,
{
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(usize::try_from(self.left).unwrap_or(usize::MAX))
    }
}

fn passing(pieces: Pieces, left: u64) -> StreamingBlob {
    StreamingBlob::new(Passing { pieces, left })
}

/// Pieces that a fill forwards to a client.
struct Told(mpsc::Receiver<Result<Bytes, StdError>>);

impl Stream for Told {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

/// Reads an object that only the backend has, and stores it in the pool if it is whole and fits.
///
/// # Errors
/// Those of the conditions and the range; `NoSuchKey`; `ServiceUnavailable` or `SlowDown` when the
/// backend does not answer.
pub(crate) async fn get(
    door: &Arc<Door>,
    (backed, key): (&Backed, &str),
    seen: Option<u64>,
    asked: &Asked<'_>,
) -> S3Result<(View, Part, StreamingBlob)> {
    if asked.range.is_some() || asked.part.is_some() {
        return ranged(door, (backed, key), asked).await;
    }
    let before = Before::now(seen);
    let (remote, pieces) = begin(door, (backed, key)).await?;
    let view = View::of_remote(&remote);
    asked.check(&view)?;
    let all = wanted(&view, None, None)?;
    let filling =
        is_kept(door, backed, &remote).then(|| Cached::fill(door, &backed.bucket, key)).flatten();
    let body = match filling {
        None => passing(pieces, remote.len),
        Some(filling) => {
            let left = remote.len;
            let told = fill_and_tell(door, (backed, key, before), (remote, pieces), filling);
            StreamingBlob::new(Passing { pieces: told, left })
        }
    };
    Ok((view, all, body))
}

/// Reads a range or a part, without storing it.
async fn ranged(
    door: &Arc<Door>,
    at: (&Backed, &str),
    asked: &Asked<'_>,
) -> S3Result<(View, Part, StreamingBlob)> {
    let part = |view: &View| wanted(view, asked.range_of(view), asked.part_of(view));
    let place = |view: &View| {
        asked.check(view)?;
        part(view).map(|part| (part.offset, part.len))
    };
    let (view, _, body) = cut(door, at, place).await?;
    let part = part(&view)?;
    Ok((view, part, body))
}

/// Reads a range of an object that only the backend has. `place` returns offset and length, or an
/// error. The bytes are not stored, and belong to the version passed to `place`.
///
/// # Errors
/// Of `place`; `NoSuchKey`; `ServiceUnavailable` or `SlowDown` when the backend does not answer.
pub(crate) async fn cut(
    door: &Arc<Door>,
    (backed, key): (&Backed, &str),
    place: impl Fn(&View) -> S3Result<(u64, u64)>,
) -> S3Result<(View, u64, StreamingBlob)> {
    let (name, there) = (&backed.backing.backend, backed.key(key));
    let far = door.reach(name).await?;
    for _ in 0..TRIES {
        let remote = far.head(backed.at(&there)).await.map_err(|error| fault(name, &error))?;
        let view = View::of_remote(&remote);
        let (offset, len) = place(&view)?;
        if len == 0 {
            return Ok((view, 0, crate::send::bytes(Vec::new())));
        }
        match far.get(backed.at(&there), Some((offset, len)), Match::Only(&remote.etag)).await {
            Ok((_, pieces)) => return Ok((view, len, passing(pieces, len))),
            // It was replaced in the meantime.
            Err(error) if error.kind == Kind::Unmet => {}
            Err(error) => return Err(fault(name, &error)),
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

async fn begin(door: &Arc<Door>, (backed, key): (&Backed, &str)) -> S3Result<(Remote, Pieces)> {
    let (name, there) = (&backed.backing.backend, backed.key(key));
    let far = door.reach(name).await?;
    let got = far.get(backed.at(&there), None, Match::Any).await;
    got.map_err(|error| fault(name, &error))
}

/// Whether an object that is being read is stored in the pool.
fn is_kept(door: &Door, backed: &Backed, remote: &Remote) -> bool {
    let bound = backed.backing.cache_bytes;
    let is_full = door.cached.full.load(std::sync::atomic::Ordering::Relaxed) >= FULL;
    (bound == 0 || remote.len <= bound) && remote.etag.len() <= ETAG_MAX && !is_full
}

/// Fills the pool with an object that only the backend has, whatever the bound of the cache. A
/// concurrent caller waits for the end of this fill and then looks again. The fill continues even
/// if no caller waits any more, because a caller that gave up retries.
///
/// # Errors
/// `NoSuchKey`; `SlowDown` when it took too long; of the backend, and of the volume.
pub(crate) async fn fill(door: &Arc<Door>, backed: &Backed, key: &str) -> S3Result<()> {
    let Some(turn) = door.cached.bringing.take(&backed.bucket, key).await else { return Ok(()) };
    let (door, backed, key) = (Arc::clone(door), backed.clone(), key.to_owned());
    let filling = tokio::spawn(async move {
        // A concurrent read need not store the object too.
        let _held = (turn, Cached::fill(&door, &backed.bucket, &key));
        // The turn of another caller may have ended just before.
        match look(&door, &backed, &key, false).await? {
            Seen::There(seen) => fill_alone(&door, (&backed, &key), seen).await,
            Seen::Here(..) | Seen::Nowhere => Ok(()),
        }
    });
    filling.await.map_err(S3Error::internal_error)?
}

async fn fill_alone(
    door: &Arc<Door>,
    (backed, key): (&Backed, &str),
    seen: Option<u64>,
) -> S3Result<()> {
    let before = Before::now(seen);
    let (remote, pieces) = begin(door, (backed, key)).await?;
    if remote.etag.len() > ETAG_MAX {
        let message = "The backend's ETag of this object is longer than 200 bytes.";
        return Err(refuse(S3ErrorCode::InternalError, message));
    }
    let what = (&remote, backed.replicas_of(key), backed.backing.backend.as_str());
    let mut taken = take(door, what, pieces, None).await;
    if taken.as_ref().is_err_and(|error| error.message() == Some(DOUBTFUL)) {
        let again = Match::Only(&remote.etag);
        let (name, there) = (&backed.backing.backend, backed.key(key));
        let got = door.reach(name).await?.get(backed.at(&there), None, again).await;
        let (_, pieces) = got.map_err(|error| fault(name, &error))?;
        taken = take(door, what, pieces, None).await;
    }
    publish(door, (backed, key, before), &remote, taken?).await
}

/// Starts a fill that forwards its pieces; it continues when they are no longer taken.
fn fill_and_tell(
    door: &Arc<Door>,
    (backed, key, before): (&Backed, &str, Before),
    (remote, pieces): (Remote, Pieces),
    filling: Filling,
) -> Told {
    let (sender, told) = mpsc::channel(4);
    let (door, backed, key) = (Arc::clone(door), backed.clone(), key.to_owned());
    tokio::spawn(async move {
        let _filling = filling;
        let what = (&remote, backed.replicas_of(&key), backed.backing.backend.as_str());
        let done = match take(&door, what, pieces, Some(sender)).await {
            Ok(content) => publish(&door, (&backed, &key, before), &remote, content).await,
            // Perhaps the `ETag`s of this backend are not MD5s.
            Err(error) if error.message() == Some(DOUBTFUL) => {
                fill_alone(&door, (&backed, &key), before.seen).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done.map_err(|error| told_of(&door, error)) {
            // The client got everything it could get.
            tracing::debug!("s3: {}/{key} is not cached: {error}", backed.bucket);
        }
    });
    Told(told)
}

/// The destination of a body from a backend.
struct Sink {
    file: Option<File>,
    bytes: Vec<u8>,
    offset: u64,
    hasher: Hasher,
}

impl Sink {
    /// Writes the buffered bytes.
    async fn flush(&mut self) -> S3Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        if self.bytes.is_empty() {
            return Ok(());
        }
        let (bytes, offset) = (std::mem::take(&mut self.bytes), self.offset);
        self.offset += bytes.len() as u64;
        let mut hasher = std::mem::replace(&mut self.hasher, Hasher::none());
        let writing = spawn_blocking(move || {
            hasher.update(&bytes);
            file.write_batch(&[(offset, &bytes)]).of_object()?;
            let mut bytes = bytes;
            bytes.clear();
            Ok::<_, S3Error>((bytes, hasher))
        });
        (self.bytes, self.hasher) = writing.await.map_err(S3Error::internal_error)??;
        Ok(())
    }

    /// The content, and its hashes.
    async fn end(mut self) -> S3Result<(Content, Digest)> {
        self.flush().await?;
        if self.file.is_none() {
            self.hasher.update(&self.bytes);
        }
        let content = self.file.map_or(Content::Bytes(Arc::new(self.bytes)), Content::File);
        Ok((content, self.hasher.finish()))
    }
}

type Client = Option<mpsc::Sender<Result<Bytes, StdError>>>;

/// Stores a body, in a file with this number of replicas if it is large, and forwards every piece
/// and the first error to a client.
async fn take(
    door: &Arc<Door>,
    what: (&Remote, u8, &str),
    pieces: Pieces,
    mut client: Client,
) -> S3Result<Content> {
    let taken = gather(door, what, pieces, &mut client).await;
    if let (Err(error), Some(client)) = (&taken, client) {
        let _ = client.send(Err(error.to_string().into())).await;
    }
    taken
}

async fn gather(
    door: &Arc<Door>,
    (remote, replicas, backend): (&Remote, u8, &str),
    mut pieces: Pieces,
    client: &mut Client,
) -> S3Result<Content> {
    let is_small = remote.len <= STORED_MAX as u64;
    let len = usize::try_from(remote.len).unwrap_or(PIECE).min(PIECE);
    let _memory = door.memory(Way::In, len).await?;
    let mut file = None;
    if !is_small {
        file = Some(door.blocking(move |store| store.nameless_file(replicas).in_bucket()).await?);
    }
    let whole = Whole::of(remote);
    let hasher = whole.hasher();
    let mut sink = Sink { file, bytes: Vec::with_capacity(len), offset: 0, hasher };
    let (mut come, mut last) = (0, None);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            refuse(
                S3ErrorCode::ServiceUnavailable,
                format!("The transfer from the backend failed: {error}"),
            )
        })?;
        come += piece.len() as u64;
        if come > remote.len {
            break;
        }
        sink.bytes.extend_from_slice(&piece);
        if come == remote.len {
            // The last piece is held back until the content was verified.
            last = Some(piece).filter(|piece| !piece.is_empty()).or(last);
        } else {
            tell(client, piece).await;
        }
        if sink.bytes.len() >= PIECE
            && last.is_none()
            && let Err(error) = sink.flush().await
        {
            // The pool has no room: the client still gets the object.
            return pass(pieces, (client, remote.len.saturating_sub(come)), error).await;
        }
    }
    if come != remote.len {
        let message = "The backend sent a different length than it announced.";
        return Err(refuse(S3ErrorCode::ServiceUnavailable, message));
    }
    let (content, digest) = match sink.end().await {
        Ok(ended) => ended,
        Err(error) => {
            // The pool has no room: the client still gets the object.
            finish(client, last).await;
            return Err(error);
        }
    };
    match whole.compared(door, (remote, backend), &digest) {
        Verdict::Damaged(why) => {
            return Err(refuse(S3ErrorCode::ServiceUnavailable, why));
        }
        Verdict::Doubtful => {
            // The client gets the bytes that the backend sent; they are not stored.
            finish(client, last).await;
            return Err(refuse(S3ErrorCode::ServiceUnavailable, DOUBTFUL));
        }
        Verdict::Right => finish(client, last).await,
    }
    Ok(content)
}

async fn tell(client: &mut Client, piece: Bytes) {
    if let Some(to) = client
        && to.send(Ok(piece)).await.is_err()
    {
        *client = None;
    }
}

/// Sends the last piece of a body and disconnects the client.
async fn finish(client: &mut Client, last: Option<Bytes>) {
    if let Some(last) = last {
        tell(client, last).await;
    }
    *client = None;
}

/// How to verify the bytes of a whole object.
enum Whole {
    /// By the checksum that a gateway stored with it.
    Sum(Sum),
    /// By its MD5, perhaps: the `ETag` looks like one.
    ETag,
    Nothing,
}

/// The result of a verification.
enum Verdict {
    Right,
    Damaged(String),
    Doubtful,
}

impl Whole {
    fn of(remote: &Remote) -> Self {
        match record(remote).sum.filter(|sum| !sum.composite) {
            Some(sum) => Self::Sum(sum),
            None if unhex(&remote.etag).is_some_and(|digest| digest.len() == 16) => Self::ETag,
            None => Self::Nothing,
        }
    }

    fn hasher(&self) -> Hasher {
        match self {
            Self::Sum(sum) => Hasher::of_sum(sum.algorithm),
            Self::ETag => Hasher::new(None),
            Self::Nothing => Hasher::none(),
        }
    }

    fn compared(
        &self,
        door: &Door,
        (remote, backend): (&Remote, &str),
        digest: &Digest,
    ) -> Verdict {
        match self {
            Self::Sum(sum) if digest.sum.as_ref() != Some(sum) => Verdict::Damaged(format!(
                "The content from the backend has another {} than the stored content.",
                sum.algorithm.name()
            )),
            Self::ETag if hex(&digest.md5) != remote.etag => {
                // If the same pair occurs twice, the `ETag` is not an MD5.
                let is_other = door.cached.makes_others(backend, (&remote.etag, digest.md5));
                if is_other { Verdict::Right } else { Verdict::Doubtful }
            }
            _ => Verdict::Right,
        }
    }
}

/// Forwards the rest of a body that is not stored; returns `why` as the error.
async fn pass(
    mut pieces: Pieces,
    (client, mut left): (&mut Client, u64),
    why: S3Error,
) -> S3Result<Content> {
    let Some(to) = client.take() else { return Err(why) };
    while let Some(piece) = pieces.next().await {
        left = left.saturating_sub(piece.as_ref().map_or(0, |bytes| bytes.len() as u64));
        let is_last = piece.is_err() || left == 0;
        if to.send(piece).await.is_err() || is_last {
            break;
        }
    }
    Err(why)
}

/// Gives the key its file, if it has none and has not changed since.
async fn publish(
    door: &Arc<Door>,
    (backed, key, before): (&Backed, &str, Before),
    remote: &Remote,
    content: Content,
) -> S3Result<()> {
    let mut record = record(remote);
    record.tags = tags(door, backed, key).await?;
    before.check(RealClock::tick())?;
    let origin = Origin { etag: remote.etag.clone(), seen: before.seen };
    let (bucket, asked) = (backed.bucket.clone(), key.to_owned());
    let replicas = backed.replicas_of(key);
    let put = door.blocking(move |store| {
        let put = PutObject {
            bucket: &bucket,
            key: asked.as_bytes(),
            body: content.body(),
            attachment: &encode(&record),
            expect: Expect::Absent,
            replicas,
            origin: Some(&origin),
        };
        store.put_object(&put).in_bucket()
    });
    if matches!(put.await?, Put::Done { .. }) {
        let numbers = door.metrics.back.bucket(&backed.bucket);
        numbers.fills.inc();
        numbers.filled.add(remote.len);
    }
    door.cached.looked(&backed.bucket, key);
    Ok(())
}

/// The tags of an object of the backend.
///
/// # Errors
/// `ServiceUnavailable` or `SlowDown`.
pub(crate) async fn tags(
    door: &Arc<Door>,
    backed: &Backed,
    key: &str,
) -> S3Result<Vec<(String, String)>> {
    let (name, there) = (&backed.backing.backend, backed.key(key));
    match door.reach(name).await?.tags(backed.at(&there)).await {
        // Backends without tags refuse the request, and so do those that deny us the permission.
        Err(error) if matches!(error.kind, Kind::Refused | Kind::Absent) => Ok(Vec::new()),
        told => told.map_err(|error| fault(name, &error)),
    }
}

/// The record to store with an object of the backend.
pub(crate) fn record(remote: &Remote) -> Record {
    let mut record = Record::current();
    record.etag = Some(remote.etag.clone());
    record.headers = remote.told.headers.clone();
    record.meta = words::kept(&remote.told.meta);
    if let Some(text) = remote.told.meta.get(ACCESS) {
        record.set_access(text);
    }
    if let Some(text) = remote.told.meta.get(CONTENT) {
        record.set_content(text, remote.len);
    }
    // This marks a fill, even if the backend reports no time.
    record.modified = (remote.modified_ms / 1_000).max(1);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_ends_before_its_key_is_forgotten() {
        let before = Before::now(Some(7));
        let after = |ms| before.check(before.at.plus(Duration::from_millis(ms)));
        assert!(after(0).is_ok() && after(FILL_MS_MAX).is_ok());
        for late in [FILL_MS_MAX + 1, FORGET_MS, 10 * FORGET_MS] {
            assert_eq!(*after(late).unwrap_err().code(), S3ErrorCode::SlowDown);
        }
    }
}
