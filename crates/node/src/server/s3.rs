//! The S3 gateway of this process: a client of the cluster like any other, except that it asks the meta of its own process
//! without a connection, and sends bytes that its own node has from where they lie.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_client::{Address, ClientOptions, OwnBytes, OwnMeta, OwnNode};
use millpond_env::RealClock;
use millpond_s3::{DEFAULT_TENANT, Gateway, Key, Options, StartError as GatewayError};
use millpond_types::Tick;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::meta::{Answered, MetaRequest};
use millpond_types::wire::{ChunkReadRequest, ItemStatus, Status, Verb};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::cluster::folders;
use super::conn::Shared;
use super::{StartError, listen_error, tls};
use crate::config::Config;
use crate::member::Member;
use crate::meta::MetaRole;
use crate::replica::Host;
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
/// Bytes that take longer are asked for in another way, in which other replicas are asked as well.
const OWN_READ_PATIENCE: Duration = Duration::from_millis(100);
/// The disks of a node that was so late are left alone for so long.
const LATE: Duration = Duration::from_secs(1);

/// Until when a role of this process is left alone, since it could not answer.
#[derive(Debug, Default)]
struct Away(Mutex<Option<Tick>>);

impl Away {
    fn is_on(&self, now: Tick) -> bool {
        self.0.lock().is_some_and(|until| now < until)
    }

    fn begin(&self, until: Tick) {
        *self.0.lock() = Some(until);
    }
}

/// The meta role of this process, for its gateway.
struct OwnRole {
    member: Arc<Member>,
    metrics: Arc<Metrics>,
    away: Away,
}

impl OwnRole {
    fn of(shared: &Shared) -> Option<Self> {
        let member = Arc::clone(shared.cluster.as_ref()?.member());
        let metrics = Arc::clone(&shared.service.metrics);
        Some(Self { member, metrics, away: Away::default() })
    }

    /// The role, if it can be asked, and when that was.
    fn role(&self) -> Option<(&MetaRole, Tick)> {
        let now = RealClock::tick();
        let is_away = self.away.is_on(now);
        self.member.meta().filter(|_| !is_away).map(|role| (role, now))
    }

    /// Counts an answer as one that came over a connection.
    fn counted(&self, received: Tick, done: Result<Answered, Failure>) -> Option<Answered> {
        let now = RealClock::tick();
        let status = done.as_ref().map_or_else(|failure| failure.status, |_| Status::Ok);
        if done.is_err() {
            self.away.begin(now.plus(AWAY));
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

/// Pages of the buffer pool that clients of the gateway hold at once, at most: this share of it. What is beyond that is
/// copied, so that those who read slowly keep nobody else waiting.
const HELD_SHARE: usize = 8;

/// The node role of this process, for its gateway.
struct OwnDisks {
    host: Arc<Host>,
    metrics: Arc<Metrics>,
    /// Pages that may be held.
    room: Arc<Semaphore>,
    /// Reads so far: they take turns on the cores.
    reads: AtomicUsize,
    away: Away,
}

impl OwnDisks {
    fn of(shared: &Shared) -> Option<Self> {
        let host = Arc::clone(shared.service.host()?);
        let pages = shared.service.pool.capacity() / PAGE_BYTES / HELD_SHARE;
        let (metrics, room) =
            (Arc::clone(&shared.service.metrics), Arc::new(Semaphore::new(pages)));
        Some(Self { host, metrics, room, reads: AtomicUsize::new(0), away: Away::default() })
    }
}

impl fmt::Debug for OwnDisks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnDisks").finish_non_exhaustive()
    }
}

impl OwnNode for OwnDisks {
    fn read(
        &self,
        request: ChunkReadRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<OwnBytes>>> + Send + '_>> {
        Box::pin(async move {
            let pages = request.payload_bytes().div_ceil(PAGE_BYTES as u64);
            let pages = u32::try_from(pages).ok()?;
            let received = RealClock::tick();
            let are_here = request.parts.iter().all(|part| self.host.has_chain(part.at.chain));
            if !are_here || self.away.is_on(received) {
                return None;
            }
            let held = Arc::clone(&self.room).try_acquire_many_owned(pages).ok()?;
            let (sender, answer) = oneshot::channel();
            let host = Arc::clone(&self.host);
            let core = host.core(self.reads.fetch_add(1, Ordering::Relaxed)).clone();
            let read = move || async move {
                let outcome = host.read_files(&request, received.plus(OWN_READ_PATIENCE)).await;
                // Who has gone meanwhile wants no answer.
                let _ = sender.send(outcome);
            };
            core.spawn_on(read).ok()?;
            let outcome = answer.await.ok()?;
            let now = RealClock::tick();
            let us = u64::try_from(now.since(received).as_micros()).unwrap_or(u64::MAX);
            self.metrics.answered(Verb::ChunkRead, Status::Ok, us);
            if outcome.items.iter().any(|item| item.status == ItemStatus::Late) {
                self.away.begin(now.plus(LATE));
            }
            if outcome.items.iter().any(|item| item.status != ItemStatus::Ok) {
                return None;
            }
            let bytes: usize = outcome.values.iter().map(|value| value.len()).sum();
            self.metrics.bytes_out.add(bytes as u64);
            self.metrics.own_bytes_out.add(bytes as u64);
            let held = Arc::new(held);
            let found = outcome.values.into_iter().zip(&outcome.items);
            Some(found.map(|(value, item)| OwnBytes::new(value, item.crc, held.clone())).collect())
        })
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
    let own_node = OwnDisks::of(shared).map(|node| Arc::new(node) as Arc<dyn OwnNode>);
    let cluster = ClientOptions {
        token,
        arena_bytes: ARENA_BYTES,
        own_meta,
        own_node,
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
