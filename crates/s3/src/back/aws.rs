//! A backend reached through the AWS SDK, which signs, reads and writes XML, and pools connections.
//!
//! Retries of the SDK are off, because the caller must know the outcome of each request. Its
//! checksums in trailers are off too, because not every object store accepts them. A body in memory
//! is signed. A streamed body goes unsigned; its MD5 protects it if known.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, ConfigBag, Credentials, Intercept, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, RuntimeComponents, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{BoxError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{ByteStream, DateTime, DateTimeFormat, SdkBody};
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, EncodingType, PolicyStatus};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};
use futures_util::Stream;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use millpond_env::lookup_unbounded;
use s3s::StdError;
use s3s::crypto::{Checksum as _, Md5};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::backends::BackendSettings;
use super::folders::Keeping;
use super::store::{
    At, Backend, Content, Fault, Found, Kind, Match, Page, Pieces, Remote, Told, Wanted,
};
use crate::hash::{base64, unhex};
use crate::ops::headers::TYPE_DEFAULT;
use crate::ops::list::encoded;
use crate::ops::tagging::plain;

/// Reads the `Server` header of each answer.
#[derive(Debug)]
struct Answers(Arc<Keeping>);

impl Intercept for Answers {
    fn name(&self) -> &'static str {
        "Answers"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.heard(context.response().headers().get("server"));
        Ok(())
    }
}

/// Resolves names: a slow resolver blocks few threads, and none of the gateway's. The SDK bounds
/// the wait together with that for the connection.
#[derive(Clone, Debug)]
struct Names;

impl ResolveDns for Names {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        DnsFuture::new(async move { lookup_unbounded(name).await.map_err(ResolveDnsError::new) })
    }
}

/// An object store that the SDK reaches.
pub(crate) struct Aws {
    client: Client,
    settings: BackendSettings,
}

impl Aws {
    /// A client with these settings. Connects on the first request, and notes the server software.
    pub(crate) fn new(settings: &BackendSettings, keeping: &Arc<Keeping>) -> Self {
        let connect = Duration::from_millis(settings.connect_timeout_ms);
        let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
        let http = http.tls_context(trusted(settings.ca_pem.as_deref()));
        let http = http.build_with_resolver(Names);
        let credentials = Credentials::builder()
            .access_key_id(&settings.access_key)
            .secret_access_key(&settings.secret_key.0)
            .provider_name("millpond")
            .build();
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(settings.region.clone()))
            .endpoint_url(settings.endpoint.trim_end_matches('/'))
            .credentials_provider(credentials)
            .force_path_style(settings.path_style)
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(connect).build())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .http_client(http)
            .interceptor(Answers(Arc::clone(keeping)))
            .build();
        Self { client: Client::from_conf(config), settings: settings.clone() }
    }

    /// Sends a request with a body of `len` bytes.
    async fn ask<T, E>(
        &self,
        len: u64,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Fault>
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let patience = self.settings.timeout(len);
        match timeout(patience, Box::pin(request)).await {
            Ok(done) => done.map_err(|error| fault(&error)),
            Err(_) => Err(late(patience)),
        }
    }
}

/// The certificate authorities trusted for the backend: the given ones, or those of the system.
fn trusted(ca: Option<&str>) -> TlsContext {
    let Some(pem) = ca else { return TlsContext::default() };
    let store = TrustStore::empty().with_pem_certificate(pem.as_bytes());
    TlsContext::builder().with_trust_store(store).build().unwrap_or_default()
}

fn late(patience: Duration) -> Fault {
    let text = format!("no answer within {} ms", patience.as_millis());
    Fault { kind: Kind::Unknown, is_congested: true, text }
}

/// The kind of an error answer.
fn of_status(status: u16, code: &str) -> Kind {
    match (status, code) {
        (_, "SlowDown" | "SlowDownRead" | "SlowDownWrite" | "RequestLimitExceeded") | (429, _) => {
            Kind::SlowDown
        }
        (_, "NoSuchBucket") => Kind::Refused,
        (404, _) => Kind::Absent,
        (304 | 412, _) => Kind::Unmet,
        // 501 is "not implemented", 507 is "no space".
        (300..=499 | 501 | 507, _) => Kind::Refused,
        // This includes a 200 with an error in its body.
        _ => Kind::Unknown,
    }
}

/// Whether nothing was sent, because no connection was made.
fn is_unsent(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let hyper = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if hyper.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The text of `rustls` for a server certificate that is itself a CA certificate.
const SIGNS_OTHERS: &str = "CaUsedAsEndEntity";

/// An error with its causes, without the debug output of the SDK.
fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(error) = next {
        let _ = write!(text, ": {error}");
        next = error.source();
    }
    if text.contains(SIGNS_OTHERS) {
        text += ": the backend presents a CA certificate. Give it a certificate that is signed by \
                 a CA, or a self-signed one made with `openssl req -x509 -addext \
                 basicConstraints=critical,CA:FALSE`";
    }
    text
}

fn fault<E>(error: &SdkError<E, HttpResponse>) -> Fault
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let status = error.raw_response().map_or(0, |response| response.status().as_u16());
    match error {
        SdkError::ServiceError(of_service) => {
            let code = of_service.err().code().unwrap_or_default();
            let message = of_service.err().message().unwrap_or_default();
            let kind = of_status(status, code);
            let is_congested = kind == Kind::SlowDown || status == 503;
            Fault {
                kind,
                is_congested,
                text: format!("{status} {code} {message}").trim().to_owned(),
            }
        }
        SdkError::ConstructionFailure(_) => {
            Fault { kind: Kind::Refused, is_congested: false, text: chain(error) }
        }
        _ => {
            let is_unsent = is_unsent(error);
            let kind = if is_unsent { Kind::Unreachable } else { Kind::Unknown };
            Fault {
                kind,
                is_congested: matches!(error, SdkError::TimeoutError(_)),
                text: chain(error),
            }
        }
    }
}

/// The fault for an answer without a mandatory value.
fn broken(what: &str) -> Fault {
    Fault { kind: Kind::Unknown, is_congested: false, text: format!("the answer has no {what}") }
}

fn etag(told: Option<&str>) -> Result<String, Fault> {
    told.map(|quoted| quoted.trim_matches('"').to_owned()).ok_or_else(|| broken("ETag"))
}

/// A body of known length.
struct Sent {
    pieces: Pieces,
    left: u64,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let next = self.pieces.as_mut().poll_next(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            self.left = self.left.saturating_sub(bytes.len() as u64);
        }
        next.map_ok(Frame::data)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn body(content: Content) -> ByteStream {
    match content {
        Content::Bytes(bytes) => ByteStream::from(bytes),
        Content::Pieces { pieces, len } => {
            ByteStream::new(SdkBody::from_body_1_x(Sent { pieces, left: len }))
        }
    }
}

/// A body being received; it fails when it stalls.
struct Received {
    body: ByteStream,
    patience: Duration,
    waiting: Pin<Box<Sleep>>,
}

impl Stream for Received {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.body).poll_next(cx) {
            Poll::Ready(next) => {
                let until = Instant::now() + self.patience;
                self.waiting.as_mut().reset(until);
                Poll::Ready(next.map(|piece| piece.map_err(StdError::from)))
            }
            Poll::Pending => {
                let late = self.waiting.as_mut().poll(cx);
                late.map(|()| Some(Err("the backend stopped sending".into())))
            }
        }
    }
}

/// Puts the headers of a [`Told`] into a request of the SDK.
macro_rules! tell {
    ($request:expr, $told:expr) => {{
        let told: &Told = $told;
        let header = |name: &str| told.headers.get(name).cloned();
        let expires = told.headers.get("expires");
        let expires =
            expires.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        let tags = told.tags.iter().map(|(name, value)| {
            format!("{}={}", encoded(name.as_bytes(), true), encoded(value.as_bytes(), true))
        });
        let tags = tags.collect::<Vec<_>>().join("&");
        $request
            .set_cache_control(header("cache-control"))
            .set_content_disposition(header("content-disposition"))
            .set_content_encoding(header("content-encoding"))
            .set_content_language(header("content-language"))
            .content_type(header("content-type").unwrap_or_else(|| TYPE_DEFAULT.to_owned()))
            .set_expires(expires)
            .set_metadata(Some(told.meta.clone().into_iter().collect::<HashMap<_, _>>()))
            .set_tagging((!tags.is_empty()).then_some(tags))
    }};
}

/// Makes a [`Remote`] of the output of `HeadObject` or `GetObject`.
macro_rules! remote {
    ($output:expr, $len:expr) => {{
        let output = &$output;
        let headers = [
            ("cache-control", output.cache_control()),
            ("content-disposition", output.content_disposition()),
            ("content-encoding", output.content_encoding()),
            ("content-language", output.content_language()),
            ("content-type", output.content_type()),
            ("expires", output.expires_string()),
        ];
        let headers = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let meta = output.metadata().into_iter().flatten();
        Remote {
            etag: etag(output.e_tag())?,
            len: $len,
            modified_ms: millis(output.last_modified()),
            told: Told {
                headers: headers.collect(),
                meta: meta
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect::<BTreeMap<_, _>>(),
                tags: Vec::new(),
            },
            tags: output.tag_count().and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
        }
    }};
}

fn millis(at: Option<&DateTime>) -> u64 {
    at.and_then(|time| time.to_millis().ok()).and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)
}

fn len(told: Option<i64>) -> Result<u64, Fault> {
    told.and_then(|len| u64::try_from(len).ok()).ok_or_else(|| broken("length"))
}

fn number(part: u32) -> i32 {
    i32::try_from(part).unwrap_or(i32::MAX)
}

#[async_trait]
impl Backend for Aws {
    async fn put(
        &self,
        at: At<'_>,
        told: &Told,
        content: Content,
        md5: Option<&str>,
    ) -> Result<String, Fault> {
        let len = content.len();
        let request = self.client.put_object().bucket(at.bucket).key(at.key);
        let request = tell!(request, told)
            .content_length(i64::try_from(len).unwrap_or(i64::MAX))
            .set_content_md5(md5.and_then(unhex).map(|digest| base64(&digest)))
            .body(body(content));
        let output = self.ask(len, request.send()).await?;
        etag(output.e_tag())
    }

    async fn head(&self, at: At<'_>) -> Result<Remote, Fault> {
        let request = self.client.head_object().bucket(at.bucket).key(at.key);
        let output = self.ask(0, request.send()).await?;
        Ok(remote!(output, len(output.content_length())?))
    }

    async fn get(
        &self,
        at: At<'_>,
        range: Option<(u64, u64)>,
        only: Match<'_>,
    ) -> Result<(Remote, Pieces), Fault> {
        let mut request = self.client.get_object().bucket(at.bucket).key(at.key);
        if let Some((offset, len)) = range {
            let last = (offset + len).saturating_sub(1);
            request = request.range(format!("bytes={offset}-{last}"));
        }
        request = match only {
            Match::Any => request,
            Match::Only(etag) => request.if_match(format!("\"{etag}\"")),
        };
        let output = self.ask(0, request.send()).await?;
        let whole = output.content_range().and_then(|range| range.rsplit('/').next()?.parse().ok());
        let whole = whole.map_or_else(|| len(output.content_length()), Ok)?;
        let remote = remote!(output, whole);
        let patience = self.settings.timeout(0);
        let waiting = Box::pin(sleep(patience));
        let pieces = Received { body: output.body, patience, waiting };
        Ok((remote, Box::pin(pieces)))
    }

    async fn delete(&self, at: At<'_>) -> Result<(), Fault> {
        let request = self.client.delete_object().bucket(at.bucket).key(at.key);
        match self.ask(0, request.send()).await {
            Ok(_) => Ok(()),
            Err(fault) if fault.kind == Kind::Absent => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn list(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let request = self
            .client
            .list_objects_v2()
            .bucket(wanted.bucket)
            .set_prefix(text(wanted.prefix))
            .set_delimiter(text(wanted.delimiter))
            .set_start_after(text(wanted.after))
            .max_keys(number(wanted.limit))
            .encoding_type(EncodingType::Url);
        let output = self.ask(0, request.send()).await?;
        let is_encoded = output.encoding_type() == Some(&EncodingType::Url);
        let shown = |name: Option<&str>| {
            let name = name.unwrap_or_default();
            if is_encoded { plain(name) } else { Some(name.to_owned()) }
        };
        let mut page = Page { is_cut: output.is_truncated() == Some(true), ..Page::default() };
        for object in output.contents() {
            page.keys.push(Found {
                key: shown(object.key()).ok_or_else(|| broken("key"))?,
                etag: etag(object.e_tag())?,
                len: len(object.size())?,
                modified_ms: millis(object.last_modified()),
            });
        }
        for entry in output.common_prefixes() {
            page.prefixes.push(shown(entry.prefix()).ok_or_else(|| broken("prefix"))?);
        }
        Ok(page)
    }

    async fn tags(&self, at: At<'_>) -> Result<Vec<(String, String)>, Fault> {
        let request = self.client.get_object_tagging().bucket(at.bucket).key(at.key);
        let output = self.ask(0, request.send()).await?;
        let tags = output.tag_set().iter();
        Ok(tags.map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect())
    }

    async fn create_upload(&self, at: At<'_>, told: &Told) -> Result<String, Fault> {
        let request = self.client.create_multipart_upload().bucket(at.bucket).key(at.key);
        let output = self.ask(0, tell!(request, told).send()).await?;
        output.upload_id().map(str::to_owned).ok_or_else(|| broken("upload id"))
    }

    async fn upload_part(
        &self,
        at: At<'_>,
        (upload, part): (&str, u32),
        content: Content,
    ) -> Result<String, Fault> {
        let len = content.len();
        let request = self
            .client
            .upload_part()
            .bucket(at.bucket)
            .key(at.key)
            .upload_id(upload)
            .part_number(number(part))
            .content_length(i64::try_from(len).unwrap_or(i64::MAX))
            .body(body(content));
        let output = self.ask(len, request.send()).await?;
        etag(output.e_tag())
    }

    async fn complete_upload(
        &self,
        at: At<'_>,
        upload: &str,
        (parts, len): (&[String], u64),
    ) -> Result<String, Fault> {
        let parts = (1..).zip(parts).map(|(part, etag)| {
            CompletedPart::builder().part_number(number(part)).e_tag(format!("\"{etag}\"")).build()
        });
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts.collect())).build();
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(at.bucket)
            .key(at.key)
            .upload_id(upload)
            .multipart_upload(parts);
        let output = self.ask(len, request.send()).await?;
        etag(output.e_tag())
    }

    async fn abort_upload(&self, at: At<'_>, upload: &str) -> Result<(), Fault> {
        let request =
            self.client.abort_multipart_upload().bucket(at.bucket).key(at.key).upload_id(upload);
        match self.ask(0, request.send()).await {
            Ok(_) => Ok(()),
            Err(fault) if fault.kind == Kind::Absent => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn uploads(&self, at: At<'_>) -> Result<Vec<String>, Fault> {
        let request = self.client.list_multipart_uploads().bucket(at.bucket).prefix(at.key);
        let output = self.ask(0, request.send()).await?;
        // The prefix of the listing also matches longer keys; only this key counts.
        let of_key = output.uploads().iter().filter(|upload| upload.key() == Some(at.key));
        Ok(of_key.filter_map(|upload| upload.upload_id().map(str::to_owned)).collect())
    }

    async fn policy(&self, bucket: &str) -> Result<String, Fault> {
        let request = self.client.get_bucket_policy().bucket(bucket);
        let output = self.ask(0, request.send()).await?;
        output.policy().map(str::to_owned).ok_or_else(|| broken("policy"))
    }

    async fn is_public(&self, bucket: &str) -> Result<bool, Fault> {
        let request = self.client.get_bucket_policy_status().bucket(bucket);
        let output = self.ask(0, request.send()).await?;
        Ok(output.policy_status().and_then(PolicyStatus::is_public).unwrap_or(false))
    }

    async fn set_policy(&self, bucket: &str, policy: Option<&str>) -> Result<(), Fault> {
        let Some(policy) = policy else {
            let request = self.client.delete_bucket_policy().bucket(bucket);
            return self.ask(0, request.send()).await.map(drop);
        };
        let mut md5 = Md5::new();
        md5.update(policy.as_bytes());
        let md5 = base64(md5.finalize().as_ref());
        let request = self.client.put_bucket_policy().bucket(bucket).policy(policy);
        self.ask(0, request.content_md5(md5).send()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, of_status};

    #[test]
    fn an_error_is_known_not_to_be_done_or_it_is_not() {
        for (status, code, kind) in [
            (503, "SlowDown", Kind::SlowDown),
            (429, "", Kind::SlowDown),
            (503, "ServiceUnavailable", Kind::Unknown),
            (503, "", Kind::Unknown),
            (500, "InternalError", Kind::Unknown),
            (504, "", Kind::Unknown),
            (200, "InternalError", Kind::Unknown),
            (200, "SlowDown", Kind::SlowDown),
            (404, "NoSuchKey", Kind::Absent),
            (404, "NoSuchUpload", Kind::Absent),
            (404, "NoSuchBucket", Kind::Refused),
            (403, "AccessDenied", Kind::Refused),
            (501, "NotImplemented", Kind::Refused),
            (507, "InsufficientStorage", Kind::Refused),
            (304, "", Kind::Unmet),
            (412, "PreconditionFailed", Kind::Unmet),
        ] {
            assert_eq!(of_status(status, code), kind, "{status} {code}");
        }
    }
}
