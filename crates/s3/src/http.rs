//! Handling of a request before and after `s3s`: its id, headers that were not signed, requests
//! from other origins, error texts of AWS, metrics and a log line.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue,
    ORIGIN,
};
use hyper::{Method, Request, Response, StatusCode};
use millpond_env::RealClock;
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::service::S3Service;
use s3s::{Body, HttpError, S3Error, S3ErrorCode, S3Result};
use tokio::sync::Semaphore;

use crate::chunks::Chunks;
use crate::document::{self, Wrong};
use crate::door::Door;
use crate::error::{custom, message};
use crate::late;
use crate::metrics::{Metrics, Seen};
use crate::ops::cors;
use crate::ops::form::{self, Posted};
use crate::ops::tagging::plain;
use crate::range::Again;
use crate::record::CorsRule;
use crate::unread::Unread;

/// The path of health probes for `MinIO`.
const HEALTH: &str = "/minio/health/";
/// Errors about the scope of a signature, which names a region.
const SCOPES: [&str; 2] = ["AuthorizationHeaderMalformed", "AuthorizationQueryParametersError"];
/// The header with the time of the signature.
const AMZ_DATE: &str = "x-amz-date";
/// Memory for all forms in progress, in KiB.
const FORMS_KIB: usize = 64 << 10;
/// Timeout for receiving a form, and for finding memory for it.
const FORM_PATIENCE: Duration = Duration::from_mins(1);

/// Marks an answer of `GetObjectAttributes`, which has `ETag`s without quotes, as with AWS.
#[derive(Clone, Copy)]
pub(crate) struct BareETag;

/// A status that an operation sets in place of that of `s3s`.
#[derive(Clone, Copy)]
pub(crate) struct Status(pub(crate) StatusCode);

/// Counts a request until it is answered or its client disconnects.
struct UnderWay<'a>(&'a Metrics);

impl<'a> UnderWay<'a> {
    fn begin(metrics: &'a Metrics) -> Self {
        metrics.in_flight.add(1);
        Self(metrics)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_flight.sub(1);
    }
}

/// The HTTP front of a gateway.
pub(crate) struct Front {
    pub(crate) door: Arc<Door>,
    pub(crate) service: S3Service,
    ids: AtomicU64,
    region: Arc<str>,
    /// Memory for forms, in KiB.
    forms: Semaphore,
    chunks: Chunks,
}

/// Data of a request that are needed after `s3s`.
struct Asked {
    method: Method,
    path: String,
    id: String,
    origin: Option<String>,
    /// The method that a browser announces in a preflight.
    cors_method: Option<String>,
    bucket: Option<String>,
    /// Whether the path has a key after the bucket, and the key; for a copy, the key of the source.
    is_object: bool,
    key: String,
    len: u64,
    /// The region of the gateway.
    region: Arc<str>,
    unread: Unread,
}

fn text(headers: &HeaderMap, name: impl hyper::header::AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Splits a path like `s3s` does: its first name, and whether a key follows. Unreadable paths were
/// already rejected.
fn about(path: &str, is_bucket_in_host: bool) -> (Option<String>, bool) {
    let told = plain(path).unwrap_or_default();
    let inner = told.strip_prefix('/').unwrap_or(&told);
    let (first, rest) = inner.split_once('/').unwrap_or((inner, ""));
    let is_object = !if is_bucket_in_host { inner } else { rest }.is_empty();
    (Some(first.to_owned()).filter(|bucket| !bucket.is_empty()), is_object)
}

/// The key of an object that a request reads.
fn key_of(headers: &HeaderMap, path: &str, is_bucket_in_host: bool) -> String {
    let source = text(headers, "x-amz-copy-source");
    let path = source.map_or(path, |source| source.split('?').next().unwrap_or_default());
    let told = plain(path).unwrap_or_default();
    let inner = told.strip_prefix('/').unwrap_or(&told);
    if is_bucket_in_host && source.is_none() {
        return inner.to_owned();
    }
    inner.split_once('/').map_or("", |(_, key)| key).to_owned()
}

/// Supports signatures with the time in `Date` instead of `x-amz-date`, which `s3s` does not.
fn date_signed(headers: &mut HeaderMap) {
    if !headers.contains_key(AUTHORIZATION) || headers.contains_key(AMZ_DATE) {
        return;
    }
    let stamp = text(headers, DATE).and_then(stamp_of);
    if let Some(value) = stamp.and_then(|stamp| HeaderValue::from_str(&stamp).ok()) {
        headers.insert(AMZ_DATE, value);
    }
}

/// Converts a `Date` to the form of `x-amz-date`, in which it may be already. The zone of offset
/// zero has many names: boto3 writes `-0000`.
fn stamp_of(date: &str) -> Option<String> {
    let is_stamp = date.len() == 16 && date.as_bytes()[8] == b'T' && date.ends_with('Z');
    if is_stamp && date.bytes().filter(u8::is_ascii_digit).count() == 14 {
        return Some(date.to_owned());
    }
    let (time, zone) = date.rsplit_once(' ')?;
    if !["GMT", "UTC", "UT", "+0000", "-0000"].contains(&zone) {
        return None;
    }
    let time = Timestamp::parse(TimestampFormat::HttpDate, &format!("{time} GMT")).ok()?;
    let mut stamp = Vec::new();
    time.format(TimestampFormat::DateTime, &mut stamp).ok()?;
    // `2026-11-23T20:53:53.000Z` without fraction and separators.
    let seconds = std::str::from_utf8(stamp.split(|byte| *byte == b'.').next()?).ok()?;
    Some(seconds.chars().filter(|sign| !"-:Z".contains(*sign)).chain(['Z']).collect())
}

/// The URL of a request's bucket for its client, which may use a proxy that terminates TLS.
fn bucket_url(path: &str, headers: &HeaderMap, is_tls: bool) -> String {
    let path = path.trim_end_matches('/');
    let Some(host) = text(headers, HOST) else { return format!("{path}/") };
    let own = if is_tls { "https" } else { "http" };
    let told = text(headers, "x-forwarded-proto").map(str::trim);
    let scheme = told.filter(|scheme| ["http", "https"].contains(scheme)).unwrap_or(own);
    format!("{scheme}://{host}{path}/")
}

/// Rejects requests that `s3s` accepts and this gateway does not support. Turns headers signed in
/// the query into headers.
fn check_kind(request: &mut Request<hyper::body::Incoming>, asked: &Asked) -> S3Result<()> {
    if asked.method == Method::OPTIONS {
        return Ok(());
    }
    let check = |request: &Request<_>| {
        crate::gate::check(request.method(), request.uri(), request.headers(), asked.is_object)
    };
    check(request)?;
    crate::scope::check(request.uri(), request.headers(), &asked.region)?;
    crate::gate::check_signed(request.uri(), request.headers())?;
    let uri = request.uri().clone();
    if crate::query::hoist(&uri, request.headers_mut())? {
        check(request)?;
    }
    Ok(())
}

impl Front {
    pub(crate) fn new(door: Arc<Door>, service: S3Service) -> Self {
        // Gateways that started at different times have different ids.
        let ids = AtomicU64::new(u64::try_from(RealClock::wall_nanos() >> 8).unwrap_or_default());
        let (forms, chunks) = (Semaphore::new(FORMS_KIB), Chunks::new());
        let region = door.settings.region.as_str().into();
        Self { door, service, ids, region, forms, chunks }
    }

    fn asked(&self, request: &Request<hyper::body::Incoming>) -> Asked {
        let id = self.ids.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (headers, path) = (request.headers(), request.uri().path().to_owned());
        let host = text(headers, HOST).unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let domain = self.door.settings.domain.as_deref();
        let below = domain
            .and_then(|domain| host.strip_suffix(domain))
            .and_then(|rest| rest.strip_suffix('.'));
        let (first, is_object) = about(&path, below.is_some());
        Asked {
            method: request.method().clone(),
            id: format!("{id:016X}"),
            origin: text(headers, ORIGIN).map(str::to_owned),
            cors_method: text(headers, "access-control-request-method").map(str::to_owned),
            bucket: below.map(str::to_owned).or(first),
            is_object,
            key: key_of(headers, &path, below.is_some()),
            len: text(headers, CONTENT_LENGTH).and_then(|len| len.parse().ok()).unwrap_or(0),
            path,
            region: Arc::clone(&self.region),
            unread: Unread::new(request.body()),
        }
    }

    /// Answers unsigned health probes for `MinIO`: whether the process is alive, and whether it
    /// serves.
    fn health<T>(&self, request: &Request<T>, asked: &Asked) -> Option<Response<Body>> {
        let what = request.uri().path().strip_prefix(HEALTH)?;
        // As a host name, a bucket may contain this path.
        let is_of_bucket = asked.bucket.as_ref().is_some_and(|bucket| bucket != "minio");
        let is_probe = !is_of_bucket
            && matches!(*request.method(), Method::GET | Method::HEAD)
            && request.uri().query().is_none()
            && !request.headers().contains_key(AUTHORIZATION);
        let serves = match what {
            "live" => true,
            "ready" | "cluster" | "cluster/read" => self.door.store().is_ok(),
            _ => return None,
        };
        let mut response = Response::new(Body::empty());
        if !serves {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        is_probe.then_some(response)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// `s3s` could not even write an error.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        mut request: Request<hyper::body::Incoming>,
    ) -> Result<Response<Body>, HttpError> {
        let asked = self.asked(&request);
        if let Some(response) = self.health(&request, &asked) {
            return Ok(response);
        }
        let checked = check_kind(&mut request, &asked);
        if checked.is_err() || !late::may_be(&request) {
            return self.done(&asked, request, checked).await;
        }
        let asked = Arc::new(asked);
        let (front, of) = (Arc::clone(self), Arc::clone(&asked));
        let mut work = tokio::spawn(async move { front.done(&of, request, Ok(())).await });
        if let Ok(done) = tokio::time::timeout(late::PATIENCE, &mut work).await {
            return done.map_err(|error| HttpError::new(Box::new(error)))?;
        }
        let mut response = late::begun(work);
        self.cross_origin(&asked, &mut response).await;
        finish(&asked, &mut response);
        Ok(response)
    }

    async fn done(
        &self,
        asked: &Asked,
        mut request: Request<hyper::body::Incoming>,
        checked: S3Result<()>,
    ) -> Result<Response<Body>, HttpError> {
        let start = RealClock::tick();
        let _under_way = UnderWay::begin(&self.door.metrics);
        let seen = Arc::new(Seen::default());
        request.extensions_mut().insert(Arc::clone(&seen));
        let mut response = if asked.method == Method::OPTIONS {
            self.preflight(asked, request.headers()).await.or_else(written)?
        } else if let Err(error) = checked {
            written(error)?
        } else {
            date_signed(request.headers_mut());
            self.called(asked, request).await?
        };
        self.cross_origin(asked, &mut response).await;
        if seen.name() != "GetObject" {
            escape_returns(&mut response);
        }
        finish(asked, &mut response);
        let took = RealClock::tick().since(start);
        let status = response.status().as_u16();
        self.wake(asked, status);
        self.door.metrics.answered(seen.name(), (status, took));
        self.door.metrics.received.add(asked.len);
        let (method, path) = (&asked.method, asked.path.as_str());
        let operation = seen.name();
        tracing::debug!(target: "millpond_s3::access", %method, path, operation, status, took_us = took.as_micros(), id = asked.id);
        Ok(response)
    }

    /// Passes the request to `s3s`.
    async fn called(
        &self,
        asked: &Asked,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<Body>, HttpError> {
        match crate::gate::form(request.method(), request.headers()) {
            Err(error) => written(error),
            Ok(Some(len)) => self.called_form(asked, request, len).await,
            Ok(None) => self.called_plain(asked, request).await,
        }
    }

    async fn called_plain(
        &self,
        asked: &Asked,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<Body>, HttpError> {
        let (mut head, body) = request.into_parts();
        let mut body = self.chunks.of(&head.headers, asked.unread.watch(body));
        let at = (&head.method, &head.uri);
        let wrong = Wrong::default();
        match document::of(at, &head.headers, asked.is_object) {
            Err(error) => return written(error),
            Ok(None) => {}
            Ok(Some(document)) => match document.compared(body, &wrong) {
                Ok(compared) => body = compared,
                Err(error) => return written(error),
            },
        }
        let again = Again::of(&mut head);
        let first = self.service.call(Request::from_parts(head, body)).await;
        if let Some(error) = wrong.take() {
            return written(error);
        }
        let first = first?;
        match again.and_then(|again| again.request(&first)) {
            Some(request) => self.service.call(request).await,
            None => Ok(first),
        }
    }

    /// Passes a form to `s3s`, once there is memory for all of it.
    async fn called_form(
        &self,
        asked: &Asked,
        request: Request<hyper::body::Incoming>,
        len: u64,
    ) -> Result<Response<Body>, HttpError> {
        // The file is not copied; the fields are written again.
        let kib = u32::try_from((2 * len).div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let room = tokio::time::timeout(FORM_PATIENCE, self.forms.acquire_many(kib)).await;
        let Ok(Ok(_room)) = room else { return written(S3ErrorCode::SlowDown.into()) };
        let (mut head, body) = request.into_parts();
        let body = asked.unread.watch(body);
        let all = match tokio::time::timeout(FORM_PATIENCE, body.collect()).await {
            Err(_) => return written(S3ErrorCode::RequestTimeout.into()),
            Ok(Err(_)) => return written(S3ErrorCode::IncompleteBody.into()),
            Ok(Ok(all)) => all.to_bytes(),
        };
        let kind = text(&head.headers, CONTENT_TYPE).unwrap_or_default();
        let form = match form::read(&all, kind, &asked.region) {
            Ok(read) => read,
            Err(error) => return written(error),
        };
        drop(all);
        let (reply, posted) = (form.reply.clone(), Arc::new(Posted::default()));
        let url = bucket_url(&asked.path, &head.headers, self.door.settings.is_tls);
        head.extensions.insert(form.fields.clone());
        head.extensions.insert(Arc::clone(&posted));
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(form.len()));
        if let Ok(kind) = HeaderValue::try_from(form.content_type()) {
            head.headers.insert(CONTENT_TYPE, kind);
        }
        let answer = self.service.call(Request::from_parts(head, form.body())).await?;
        let bucket = asked.bucket.as_deref().unwrap_or_default();
        Ok(reply.answered(answer, &posted, (bucket, &url)))
    }

    /// Wakes the persister, as the change may be queued for a backend.
    fn wake(&self, asked: &Asked, status: u16) {
        let is_change = !matches!(asked.method, Method::GET | Method::HEAD | Method::OPTIONS);
        // A successful form may be answered with a redirection.
        if let Some(bucket) = asked.bucket.as_ref().filter(|_| is_change && status < 400) {
            self.door.wake_bucket(bucket);
        }
    }

    /// The rules of the request's bucket.
    async fn rules(&self, asked: &Asked) -> Vec<CorsRule> {
        let Some(bucket) = &asked.bucket else { return Vec::new() };
        match self.door.bucket(bucket).await {
            Ok(Some(record)) => record.cors.clone(),
            _ => Vec::new(),
        }
    }

    /// Answers a preflight request of a browser.
    async fn preflight(&self, asked: &Asked, headers: &HeaderMap) -> S3Result<Response<Body>> {
        let method = text(headers, "access-control-request-method");
        let (Some(origin), Some(method)) = (&asked.origin, method) else {
            let message = "Insufficient information. Origin request header needed.";
            return Err(custom("BadRequest", StatusCode::BAD_REQUEST, message.to_owned()));
        };
        let wanted = text(headers, "access-control-request-headers");
        let rules = self.rules(asked).await;
        let forbidden = |message: &str| {
            Err(custom("AccessForbidden", StatusCode::FORBIDDEN, message.to_owned()))
        };
        if rules.is_empty() {
            return forbidden("CORSResponse: CORS is not enabled for this bucket.");
        }
        let Some(rule) = cors::rule(&rules, (origin, method), wanted) else {
            let message = "CORSResponse: This CORS request is not allowed. This is usually because the evalution of \
                           Origin, request method / Access-Control-Request-Method or \
                           Access-Control-Request-Headers are not whitelisted by the resource's CORS spec.";
            return forbidden(message);
        };
        let mut response = Response::new(Body::empty());
        add(response.headers_mut(), cors::headers(rule, origin));
        if let Some(wanted) = wanted {
            let allowed = wanted.to_ascii_lowercase();
            add(response.headers_mut(), vec![("access-control-allow-headers", allowed)]);
        }
        Ok(response)
    }

    /// The headers that let a browser show the answer to another origin.
    async fn cross_origin(&self, asked: &Asked, response: &mut Response<Body>) {
        let Some(origin) = asked.origin.as_ref().filter(|_| asked.method != Method::OPTIONS) else {
            return;
        };
        let rules = self.rules(asked).await;
        let method = asked.cors_method.as_deref().unwrap_or(asked.method.as_str());
        if let Some(rule) = cors::rule(&rules, (origin, method), None) {
            add(response.headers_mut(), cors::headers(rule, origin));
        }
    }
}

fn add(headers: &mut HeaderMap, new: Vec<(&'static str, String)>) {
    for (name, value) in new {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

fn written(error: S3Error) -> Result<Response<Body>, HttpError> {
    error.to_http_response().map_err(|error| HttpError::new(Box::new(error)))
}

/// Adds the id of the request, and to an error its message, resource and id.
fn finish(asked: &Asked, response: &mut Response<Body>) {
    if let Some(Status(status)) = response.extensions_mut().remove::<Status>() {
        *response.status_mut() = status;
    }
    if response.extensions_mut().remove::<BareETag>().is_some()
        && let Some(bytes) = response.body().bytes()
    {
        let text = String::from_utf8_lossy(&bytes);
        let text = text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>");
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        *response.body_mut() = Body::from(text);
    }
    let status = response.status();
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&asked.id) {
        headers.insert("x-amz-request-id", id);
    }
    headers.insert("server", HeaderValue::from_static("Millpond"));
    asked.unread.tell(headers);
    if status == StatusCode::NOT_MODIFIED {
        headers.remove(CONTENT_LENGTH);
        *response.body_mut() = Body::empty();
        return;
    }
    if !(status.is_client_error() || status.is_server_error()) {
        return;
    }
    let Some(bytes) = response.body().bytes() else { return };
    let Some(text) = completed(&String::from_utf8_lossy(&bytes), asked) else { return };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    // The answer to HEAD has no body, and clients read its status only.
    let is_head = asked.method == Method::HEAD;
    if is_head {
        headers.remove(CONTENT_LENGTH);
    }
    *response.body_mut() = if is_head { Body::empty() } else { Body::from(text) };
}

/// Escapes carriage returns: a key may have one, `s3s` writes it unescaped, and XML parsers would
/// then read a line feed.
fn escape_returns(response: &mut Response<Body>) {
    let is_document = text(response.headers(), CONTENT_TYPE)
        .is_some_and(|kind| kind.starts_with("application/xml"));
    let Some(bytes) = response.body().bytes().filter(|_| is_document) else { return };
    if memchr::memchr(b'\r', &bytes).is_none() {
        return;
    }
    let text = String::from_utf8_lossy(&bytes).replace('\r', "&#13;");
    if response.headers().contains_key(CONTENT_LENGTH) {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    }
    *response.body_mut() = Body::from(text);
}

/// Escapes a text for XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn completed(text: &str, asked: &Asked) -> Option<String> {
    let head = text.strip_suffix("</Error>")?;
    let code = text.split("<Code>").nth(1)?.split("</Code>").next()?;
    let mut out = head.to_owned();
    match text.split_once("<Message>") {
        None => {
            let _ = write!(out, "<Message>{}</Message>", escaped(message(code)));
        }
        // `s3s` has its own text for this error.
        Some((before, rest)) if code == "RequestTimeTooSkewed" => {
            let behind = rest.split_once("</Message>")?.1.strip_suffix("</Error>")?;
            out = format!("{before}<Message>{}</Message>{behind}", escaped(message(code)));
        }
        Some(_) => {}
    }
    if code == "NoSuchKey" {
        let key = escaped(&asked.key).replace('\r', "&#13;");
        let _ = write!(out, "<Key>{key}</Key>");
    }
    // Clients that signed for another region sign again with this one.
    if SCOPES.contains(&code) {
        let _ = write!(out, "<Region>{}</Region>", escaped(&asked.region));
    }
    let _ = write!(out, "<Resource>{}</Resource>", escaped(&asked.path));
    if !text.contains("<RequestId>") {
        let _ = write!(out, "<RequestId>{}</RequestId>", asked.id);
    }
    out.push_str("</Error>");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_as_they_are_meant() {
        let first = |name: &str| Some(name.to_owned());
        for (path, is_bucket_in_host, told) in [
            ("/", false, (None, false)),
            ("/b", false, (first("b"), false)),
            ("/b/", false, (first("b"), false)),
            ("/b/k", false, (first("b"), true)),
            ("/b%2Fk", false, (first("b"), true)),
            ("/%62/k", false, (first("b"), true)),
            ("/k", true, (first("k"), true)),
            ("/", true, (None, false)),
        ] {
            assert_eq!(about(path, is_bucket_in_host), told, "{path}");
        }
    }

    #[test]
    fn clients_are_told_where_objects_are_as_they_see_it() {
        let mut headers = HeaderMap::new();
        assert_eq!(bucket_url("/b", &headers, true), "/b/");
        headers.insert(HOST, HeaderValue::from_static("h:9000"));
        assert_eq!(bucket_url("/b/", &headers, false), "http://h:9000/b/");
        assert_eq!(bucket_url("/", &headers, true), "https://h:9000/");
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        assert_eq!(bucket_url("/b", &headers, false), "https://h:9000/b/");
        headers.insert("x-forwarded-proto", HeaderValue::from_static("x"));
        assert_eq!(bucket_url("/b", &headers, false), "http://h:9000/b/");
    }

    #[test]
    fn a_date_takes_the_place_of_another() {
        let stamp = |date: &'static str, signed: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, HeaderValue::from_static(date));
            if signed {
                headers.insert(AUTHORIZATION, HeaderValue::from_static("AWS4-HMAC-SHA256 x"));
            }
            date_signed(&mut headers);
            text(&headers, AMZ_DATE).map(str::to_owned)
        };
        let date = "Mon, 23 Nov 2026 20:53:53 GMT";
        assert_eq!(stamp(date, true).as_deref(), Some("20261123T205353Z"));
        let others = ["Mon, 23 Nov 2026 20:53:53 -0000", "20261123T205353Z"];
        for other in others {
            assert_eq!(stamp(other, true).as_deref(), Some("20261123T205353Z"), "{other}");
        }
        assert_eq!(stamp(date, false), None);
        for wrong in ["yesterday", "Mon, 23 Nov 2026 20:53:53 +0100", "", "2026112aT205353Z"] {
            assert_eq!(stamp(wrong, true), None, "{wrong}");
        }
    }

    #[test]
    fn errors_say_what_and_which_request() {
        let asked = Asked {
            method: Method::GET,
            path: "/b/<k>".to_owned(),
            id: "0F".to_owned(),
            origin: None,
            cors_method: None,
            bucket: None,
            is_object: true,
            key: "<k>".to_owned(),
            len: 0,
            region: "pond".into(),
            unread: Unread::none(),
        };
        let text = completed("<Error><Code>NoSuchKey</Code></Error>", &asked).unwrap();
        assert!(text.contains("<Message>The specified key does not exist.</Message>"));
        assert!(text.contains(
            "<Key>&lt;k&gt;</Key><Resource>/b/&lt;k&gt;</Resource><RequestId>0F</RequestId></Error>"
        ));
        assert_eq!(completed("<Else/>", &asked), None);
        let scope = "<Error><Code>AuthorizationHeaderMalformed</Code></Error>";
        assert!(completed(scope, &asked).unwrap().contains("<Region>pond</Region><Resource>"));
        let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>x</Message></Error>";
        let text = completed(skewed, &asked).unwrap();
        assert!(text.contains("<Message>The difference between") && !text.contains("<Message>x"));
    }
}
