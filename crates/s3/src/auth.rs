//! Authentication and authorization of requests.

use std::sync::Arc;

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::PostObjectInput;
use s3s::host::{S3Host, VirtualHost};
use s3s::path::S3Path;
use s3s::{S3ErrorCode, S3Request, S3Result};

use crate::access::{Admitted, Asker, Need, need};
use crate::door::Door;
use crate::error::{refuse, told};
use crate::keys::Key;
use crate::metrics::Seen;

/// The message of a gateway without any credential.
const NO_KEYS: &str = "This gateway has no access keys yet: make one with `millpond s3 keys add NAME`, or start \
                       it with MILLPOND_S3_ACCESS_KEY and MILLPOND_S3_SECRET_KEY.";

/// The credentials, for `s3s`.
pub(crate) struct Auth {
    pub(crate) door: Arc<Door>,
}

/// The credential of an access key, at most half a second old.
///
/// # Errors
/// Those of the volume.
pub(crate) async fn key(door: &Door, access_key: &str) -> S3Result<Option<Key>> {
    let asked = access_key.to_owned();
    let ask = door.blocking(move |store| {
        crate::keys::read(store, &asked).map_err(|error| told(error, S3ErrorCode::InternalError))
    });
    door.keys.get(access_key, ask).await
}

async fn is_any(door: &Door) -> S3Result<bool> {
    if door.keys.has_root() {
        return Ok(true);
    }
    door.blocking(|store| {
        crate::keys::is_any(store).map_err(|error| told(error, S3ErrorCode::InternalError))
    })
    .await
}

#[async_trait::async_trait]
impl S3Auth for Auth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if let Some(key) = key(&self.door, access_key).await? {
            return Ok(SecretKey::from(key.secret_key));
        }
        if !is_any(&self.door).await? {
            return Err(refuse(S3ErrorCode::InvalidAccessKeyId, NO_KEYS));
        }
        Err(S3ErrorCode::InvalidAccessKeyId.into())
    }
}

/// The authorization of requests, for `s3s`.
pub(crate) struct Access {
    pub(crate) door: Arc<Door>,
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let name = context.s3_op().name().to_owned();
        if let Some(seen) = context.extensions_mut().get::<Arc<Seen>>() {
            seen.set(&name);
        }
        let admitted = context.extensions_mut().get::<Arc<Admitted>>().cloned();
        if let Some(who) = admitted.as_ref().and_then(|admitted| admitted.who()) {
            context.extensions_mut().insert(who.clone());
            return Ok(());
        }
        let key = match context.credentials() {
            Some(credentials) => Some(
                key(&self.door, &credentials.access_key).await?.ok_or(S3ErrorCode::AccessDenied)?,
            ),
            None => None,
        };
        let bucket = match context.s3_path() {
            S3Path::Root => return self.needs_key(key.as_ref()).await,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => bucket,
        };
        if key.as_ref().is_some_and(|key| !key.allows(bucket)) {
            return Err(S3ErrorCode::AccessDenied.into());
        }
        let need = need(&name);
        let record = match self.door.bucket(bucket).await? {
            Some(record) => record,
            // The operation itself checks whether the bucket exists.
            None if need == Need::Key => Arc::default(),
            None => return Err(S3ErrorCode::NoSuchBucket.into()),
        };
        let expected = context.headers().get("x-amz-expected-bucket-owner");
        if expected
            .is_some_and(|owner| need != Need::Key && owner.as_bytes() != record.owner().as_bytes())
        {
            return Err(S3ErrorCode::AccessDenied.into());
        }
        let who = Asker::new(key.as_ref(), record);
        let may = match need {
            Need::Key => return self.needs_key(key.as_ref()).await,
            Need::Bucket(what) => who.may(what),
            Need::Object => true,
            Need::Owner => who.owns(),
        };
        if !may {
            self.needs_key(key.as_ref()).await?;
            return Err(S3ErrorCode::AccessDenied.into());
        }
        if let Some(admitted) = admitted {
            admitted.set(who.clone());
        }
        context.extensions_mut().insert(who);
        Ok(())
    }

    async fn post_object(&self, request: &mut S3Request<PostObjectInput>) -> S3Result<()> {
        crate::ops::form::completed(request);
        Ok(())
    }
}

impl Access {
    /// Denies a request without an access key. If there are no keys at all, the error explains how
    /// to make one.
    async fn needs_key(&self, key: Option<&Key>) -> S3Result<()> {
        match key {
            Some(_) => Ok(()),
            None if is_any(&self.door).await? => Err(S3ErrorCode::AccessDenied.into()),
            None => Err(refuse(S3ErrorCode::AccessDenied, NO_KEYS)),
        }
    }
}

/// Buckets as host names below a domain; any other host is the gateway itself.
pub(crate) struct Hosts {
    pub(crate) domain: String,
}

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let bucket =
            name.strip_suffix(self.domain.as_str()).and_then(|rest| rest.strip_suffix('.'));
        let found = VirtualHost::new(host);
        Ok(match bucket.filter(|bucket| !bucket.is_empty()) {
            Some(bucket) => found.with_bucket(bucket.to_ascii_lowercase()),
            None => found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_below_the_domain_is_a_bucket() {
        let hosts = Hosts { domain: "s3.example.com".to_owned() };
        let bucket = |host| hosts.parse_host_header(host).unwrap().bucket().map(str::to_owned);
        assert_eq!(bucket("photos.s3.example.com:9000").as_deref(), Some("photos"));
        assert_eq!(bucket("a.b.s3.example.com").as_deref(), Some("a.b"));
        for own in ["s3.example.com", "s3.example.com:9000", "127.0.0.1:9000", "other.host"] {
            assert_eq!(bucket(own), None, "{own}");
        }
    }
}
