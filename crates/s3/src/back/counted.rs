//! A backend that counts its requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures_util::Stream;
use hyper::body::Bytes;
use millpond_env::RealClock;
use s3s::StdError;

use super::metrics::{OPERATIONS, OfBackend};
use super::store::{At, Backend, Content, Fault, Match, Page, Pieces, Remote, Told, Wanted};

/// A backend and its counters.
pub(crate) struct Counted<B> {
    inner: B,
    numbers: Arc<OfBackend>,
}

/// A body that counts its bytes as they arrive.
struct Body {
    pieces: Pieces,
    numbers: Arc<OfBackend>,
}

impl Stream for Body {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.pieces.as_mut().poll_next(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            self.numbers.fetched.add(bytes.len() as u64);
        }
        next
    }
}

impl<B: Backend> Counted<B> {
    pub(crate) const fn new(inner: B, numbers: Arc<OfBackend>) -> Self {
        Self { inner, numbers }
    }

    async fn count<T>(
        &self,
        operation: &str,
        request: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let place = OPERATIONS.iter().position(|name| *name == operation);
        let start = RealClock::tick();
        let done = request.await;
        self.numbers.ended(place.unwrap_or_default(), &done, RealClock::tick().since(start));
        done
    }
}

#[async_trait]
impl<B: Backend> Backend for Counted<B> {
    async fn put(
        &self,
        at: At<'_>,
        told: &Told,
        content: Content,
        md5: Option<&str>,
    ) -> Result<String, Fault> {
        let len = content.len();
        let done = self.count("put", self.inner.put(at, told, content, md5)).await?;
        self.numbers.sent.add(len);
        Ok(done)
    }

    async fn head(&self, at: At<'_>) -> Result<Remote, Fault> {
        self.count("head", self.inner.head(at)).await
    }

    async fn get(
        &self,
        at: At<'_>,
        range: Option<(u64, u64)>,
        only: Match<'_>,
    ) -> Result<(Remote, Pieces), Fault> {
        let (remote, pieces) = self.count("get", self.inner.get(at, range, only)).await?;
        Ok((remote, Box::pin(Body { pieces, numbers: Arc::clone(&self.numbers) })))
    }

    async fn delete(&self, at: At<'_>) -> Result<(), Fault> {
        self.count("delete", self.inner.delete(at)).await
    }

    async fn list(&self, wanted: Wanted<'_>) -> Result<Page, Fault> {
        self.count("list", self.inner.list(wanted)).await
    }

    async fn tags(&self, at: At<'_>) -> Result<Vec<(String, String)>, Fault> {
        self.count("tags", self.inner.tags(at)).await
    }

    async fn create_upload(&self, at: At<'_>, told: &Told) -> Result<String, Fault> {
        self.count("create_upload", self.inner.create_upload(at, told)).await
    }

    async fn upload_part(
        &self,
        at: At<'_>,
        part: (&str, u32),
        content: Content,
    ) -> Result<String, Fault> {
        let len = content.len();
        let done = self.count("upload_part", self.inner.upload_part(at, part, content)).await?;
        self.numbers.sent.add(len);
        Ok(done)
    }

    async fn complete_upload(
        &self,
        at: At<'_>,
        upload: &str,
        parts: (&[String], u64),
    ) -> Result<String, Fault> {
        self.count("complete_upload", self.inner.complete_upload(at, upload, parts)).await
    }

    async fn abort_upload(&self, at: At<'_>, upload: &str) -> Result<(), Fault> {
        self.count("abort_upload", self.inner.abort_upload(at, upload)).await
    }

    async fn uploads(&self, at: At<'_>) -> Result<Vec<String>, Fault> {
        self.count("list_uploads", self.inner.uploads(at)).await
    }

    async fn policy(&self, bucket: &str) -> Result<String, Fault> {
        self.count("get_policy", self.inner.policy(bucket)).await
    }

    async fn is_public(&self, bucket: &str) -> Result<bool, Fault> {
        self.count("get_policy_status", self.inner.is_public(bucket)).await
    }

    async fn set_policy(&self, bucket: &str, policy: Option<&str>) -> Result<(), Fault> {
        self.count("put_policy", self.inner.set_policy(bucket, policy)).await
    }
}
