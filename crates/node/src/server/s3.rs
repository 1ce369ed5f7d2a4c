//! The S3 gateway of this process: a client of the cluster like any other, except that it asks the meta of its own process
//! without a connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use millpond_client::{Address, ClientOptions, OwnMeta};
use millpond_env::RealClock;
use millpond_s3::{DEFAULT_TENANT, Gateway, Key, Options, StartError as GatewayError};
use millpond_types::Tick;
use millpond_types::meta::{Answered, MetaRequest};
use millpond_types::wire::{Status, Verb};
use parking_lot::Mutex;

use super::cluster::folders;
use super::conn::Shared;
use super::{StartError, listen_error, tls};
use crate::config::Config;
use crate::member::Member;
use crate::meta::MetaRole;
use crate::service::{Failure, Metrics};

/// In the first data folder: the session of the gateway.
const SESSION_NOTE: &str = "s3-session";
/// Memory that each connection to a node of this host shares with it: what two pieces of a body take.
const ARENA_BYTES: u64 = 8 << 20;

/// An operation that takes longer is asked for again in another way. Longer than a call to etcd may take, and shorter than calls
/// of clients.
const OWN_PATIENCE: Duration = Duration::from_secs(2);
/// A meta that could not answer, such as one that has lost its store, is left alone for so long.
const AWAY: Duration = Duration::from_secs(5);

/// The meta role of this process, for its gateway.
struct OwnRole {
    member: Arc<Member>,
    metrics: Arc<Metrics>,
    /// Others are asked until then, because this one could not answer.
    not_before: Mutex<Option<Tick>>,
}

impl OwnRole {
    fn of(shared: &Shared) -> Option<Self> {
        let member = Arc::clone(shared.cluster.as_ref()?.member());
        let metrics = Arc::clone(&shared.service.metrics);
        Some(Self { member, metrics, not_before: Mutex::default() })
    }

    /// The role, if it can be asked, and when that was.
    fn role(&self) -> Option<(&MetaRole, Tick)> {
        let now = RealClock::tick();
        let is_away = self.not_before.lock().is_some_and(|at| now < at);
        self.member.meta().filter(|_| !is_away).map(|role| (role, now))
    }

    /// Counts an answer as one that came over a connection.
    fn counted(&self, received: Tick, done: Result<Answered, Failure>) -> Option<Answered> {
        let now = RealClock::tick();
        let status = done.as_ref().map_or_else(|failure| failure.status, |_| Status::Ok);
        if done.is_err() {
            *self.not_before.lock() = Some(now.plus(AWAY));
        }
        let us = now.since(received).as_micros();
        self.metrics.answered(Verb::Meta, status, u64::try_from(us).unwrap_or(u64::MAX));
        done.ok()
    }
}

impl fmt::Debug for OwnRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnRole").finish_non_exhaustive()
    }
}

impl OwnMeta for OwnRole {
    fn answer<'a>(
        &'a self,
        request: &'a MetaRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Answered>> + Send + 'a>> {
        Box::pin(async move {
            let (role, received) = self.role()?;
            let (routing, deadline) = (self.member.routing(), received.plus(OWN_PATIENCE));
            self.counted(received, role.answer_here(request, &routing, deadline).await)
        })
    }

    fn ask(&self, request: &MetaRequest) -> Option<Answered> {
        let (role, received) = self.role()?;
        let (routing, deadline) = (self.member.routing(), received.plus(OWN_PATIENCE));
        self.counted(received, role.answer_blocking(request, &routing, deadline))
    }
}

/// Where this process reaches itself.
fn own(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Starts the gateway if this process has one.
///
/// # Errors
/// [`StartError`] naming what to change.
pub(super) fn start(
    config: &Config,
    listen: Option<SocketAddr>,
    shared: &Shared,
) -> Result<Option<Gateway>, StartError> {
    let (Some((address, is_named)), Some(listen)) = (config.s3_address()?, listen) else {
        return Ok(None);
    };
    let s3 = &config.s3;
    let tls = match (&s3.tls_cert, &s3.tls_key) {
        (Some(cert), Some(key)) => Some(tls::server_config(Path::new(cert), Path::new(key))?),
        _ => None,
    };
    let bad = |error: &dyn std::fmt::Display| StartError::Cluster(format!("S3 gateway: {error}"));
    let at: Address = own(listen).to_string().parse().map_err(|error| bad(&error))?;
    let token = String::from_utf8(config.cluster.credential()?).map_err(|error| bad(&error))?;
    let own_meta = OwnRole::of(shared).map(|role| Arc::new(role) as Arc<dyn OwnMeta>);
    let cluster = ClientOptions {
        token,
        arena_bytes: ARENA_BYTES,
        own_meta,
        ..ClientOptions::new(at.into())
    };
    let root_key = match (&s3.access_key, &s3.secret_key) {
        (Some(access_key), Some(secret_key)) => Some(Key {
            name: "of the configuration".to_owned(),
            access_key: access_key.clone(),
            secret_key: secret_key.clone(),
            tenant: DEFAULT_TENANT.to_owned(),
            buckets: Vec::new(),
            created_ms: 0,
        }),
        _ => None,
    };
    let options = Options {
        listen: address,
        cluster,
        tls,
        domain: s3.domain.clone(),
        region: s3.region.clone(),
        root_key,
        upload_expiry: s3.upload_expiry.0,
        session_note: folders(config)?.first().map(|folder| folder.join(SESSION_NOTE)),
    };
    match Gateway::start(options) {
        Ok(gateway) => Ok(Some(gateway)),
        Err(GatewayError::Listen(error)) if is_named => {
            Err(listen_error("s3.listen", "--s3", address, &error))
        }
        Err(GatewayError::Listen(error)) => {
            tracing::warn!("no S3 gateway: {address}: {error}: choose an address with --s3");
            Ok(None)
        }
        Err(error) => Err(bad(&error)),
    }
}
