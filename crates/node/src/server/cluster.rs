//! This server as a part of a cluster, from start to stop.
//!
//! The order matters. The manager of this process comes first, since it may found the cluster; then
//! the disks, since new ones are formatted for the cluster; then the listeners; then the node
//! registers, and managers probe it at its addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_cluster::manager::Form;
use millpond_env::{Handle, IoBackend, RealClock, Rng, RuntimeOptions, sleep};
use millpond_store::{StoreChoice, StoreError};
use millpond_types::cluster::{
    ChainId, DiskId, DiskOffer, Incarnation, NodeId, Refusal, Routing, RoutingVersion,
};
use millpond_types::{Tick, Uuid128};
use parking_lot::Mutex;

use super::adopt::{self, Adoption};
use super::{CoreThread, OpenedStorage, StartError, on_core, start_loop, storage};
use crate::config::{Config, Io, ServerConfig};
use millpond_control::manager::{ManagerError, ManagerRole, ManagerSetup};
use millpond_control::member::{
    Agent, AgentSetup, Identity, Member, Prepared, Seek, Standing, Targets, Vain, addresses,
    host_name, load_node, save_node,
};
use millpond_control::meta;
use millpond_replica::local::{NodeDisk, Service};
use millpond_replica::{Host, HostDisk, HostOptions, HostTargets};

/// Folder of the managers' embedded store within the first data folder.
const STORE_FOLDER: &str = "meta";
/// Time limit for the store to take the namespaces of a server of an earlier version.
const SEED_MAX: Duration = Duration::from_secs(30);
/// Interval of looks by the start for the node's admission.
const LOOK: Duration = Duration::from_millis(5);
/// Time that a start waits for some of its replicas while others serve: one of them may wait for a
/// node that is away.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time that a node without a manager waits for the table of namespaces: an empty table is never
/// sent to it.
const NAMES_PATIENCE: Duration = Duration::from_millis(500);
/// Interval of log lines about a wait.
const SAY_EVERY: Duration = Duration::from_secs(5);

impl From<Vain> for StartError {
    fn from(vain: Vain) -> Self {
        match vain {
            Vain::Stopped => Self::Stopped,
            Vain::Refused(why) => Self::Cluster(why),
        }
    }
}

/// A server that is about to join a cluster.
pub(super) struct Joining {
    control: CoreThread,
    manager: Option<Arc<ManagerRole>>,
    seek: Seek,
    folders: Vec<PathBuf>,
    node: Option<NodeId>,
    told: Told,
    adoption: Option<Adoption>,
}

/// Facts about this server for its cluster.
struct Told {
    addresses: Vec<String>,
    here: Option<String>,
    host: String,
    domain: String,
}

impl Joining {
    /// Starts the control thread, and the manager if this process has the role.
    ///
    /// # Errors
    /// [`StartError`] naming the setting to change.
    pub(super) fn begin(
        config: &Config,
        (listen, token): (Option<SocketAddr>, Vec<u8>),
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, StartError> {
        let settings = &config.cluster;
        let host = host_name();
        let told = Told {
            addresses: match listen {
                Some(listen) => addresses(listen, &settings.advertise, &host),
                // No other process joins a server that only clients of its own host reach.
                None => own_address(config, None).into_iter().collect(),
            },
            here: own_address(config, listen),
            host,
            domain: settings.domain.clone(),
        };
        let folders = folders(config)?;
        let mut node = load_node(&folders)
            .map_err(|(path, fix)| StartError::Cluster(format!("{}: {fix}", path.display())))?;
        let io = match config.server.io {
            Io::Auto => IoBackend::Auto,
            Io::Uring => IoBackend::Uring,
            Io::Threads => IoBackend::Threads,
        };
        let options = RuntimeOptions { io, ring_entries: 256, ..RuntimeOptions::default() };
        let control = start_loop("millpond-control", options)?;
        let (mut manager, mut adoption) = (None, None);
        if settings.has_manager() {
            if settings.is_alone() {
                check_own(config, node, &folders)?;
            }
            let store = folders.first().map(|folder| folder.join(STORE_FOLDER)).unwrap_or_default();
            adoption = Adoption::look(config, node.is_some(), (&folders, &store))?;
            let me = node.map_or_else(|| storage::random_uuid().map(NodeId), Ok)?;
            node = Some(me);
            let new_cluster = adoption.as_ref().and_then(|adoption| adoption.cluster);
            let setup = (me, &told, token.clone());
            let at = (&folders[..], &control.core.handle);
            manager = Some(start_manager(config, setup, at, new_cluster)?);
        }
        let others = settings.managers.iter().filter(|at| !told.addresses.contains(at));
        let seek = Seek {
            manager: manager.clone(),
            addresses: others.cloned().collect(),
            token,
            stop: Arc::clone(stop),
        };
        if manager.is_none() && seek.addresses.is_empty() {
            let text = "cluster.managers: lists only this server itself: add another node, or make \
                        this server a manager with --manager";
            return Err(StartError::Cluster(text.to_owned()));
        }
        Ok(Self { control, manager, seek, folders, node, told, adoption })
    }

    /// The search for the cluster of a new disk.
    pub(super) fn seek(&self) -> Seek {
        self.seek.clone()
    }

    /// Takes the open disks, which settle the identity of this server.
    ///
    /// # Errors
    /// [`StartError`] naming the setting to change.
    pub(super) fn open(
        self,
        opened: &OpenedStorage,
        cores: &[CoreThread],
    ) -> Result<Cluster, StartError> {
        let Self { control, manager, seek, folders, node, told, adoption } = self;
        let disks = &opened.service.disks;
        let cluster = self_or_manager(&control.core.handle, &seek, opened)?;
        if let (Some(manager), Some(_)) = (&manager, adoption.as_ref().and_then(|it| it.cluster)) {
            seed(manager, &opened.service, &cores[0])?;
        }
        let first = disks.first().map(|disk| NodeId(disk.id));
        let node = node.or(first).map_or_else(|| storage::random_uuid().map(NodeId), Ok)?;
        save_node(&folders, node)?;
        let mut random = [0; 8];
        Rng::fill_from_os(&mut random)?;
        let identity = Identity {
            node,
            incarnation: Incarnation(u64::from_le_bytes(random).max(1)),
            cluster,
            addresses: told.addresses,
            here: told.here,
            host: told.host,
            domain: told.domain,
        };
        let token = seek.token.clone();
        let own_leaders = adoption.as_ref().is_some_and(|adoption| adoption.was);
        let host = replicas((node, token.clone(), own_leaders), opened, cores)?;
        let targets = host.clone().map(|host| Arc::new(HostTargets(host)) as Arc<dyn Targets>);
        let service = Arc::clone(&opened.service);
        let prepared = Prepared::new(AgentSetup {
            identity,
            manager,
            addresses: seek.addresses,
            token: seek.token,
            build: crate::BUILD,
            disks: offers(disks),
            on_namespaces: Box::new(move |table| service.adopt_namespaces(table)),
        });
        Ok(Cluster {
            member: prepared.member(),
            token,
            starting: Mutex::new(Some((prepared, targets))),
            host,
            adoption,
            control,
        })
    }
}

/// The disks that this process brings into the cluster.
fn offers(disks: &[NodeDisk]) -> Vec<DiskOffer> {
    let offer = |disk: &NodeDisk| DiskOffer { id: DiskId(disk.id), capacity_bytes: disk.capacity };
    disks.iter().map(offer).collect()
}

/// Address at which this process reaches itself: its Unix socket if its TCP address speaks TLS.
fn own_address(config: &Config, listen: Option<SocketAddr>) -> Option<String> {
    match listen.filter(|_| config.security.tls_cert.is_none()) {
        Some(listen) => Some(reachable(listen).to_string()),
        None => storage::socket_path(config).map(|path| format!("unix:{}", path.display())),
    }
}

/// Converts an address to listen on into one to connect to, from the same host.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Refuses a folder with the node of a cluster that keeps its records elsewhere.
fn check_own(config: &Config, node: Option<NodeId>, folders: &[PathBuf]) -> Result<(), StartError> {
    let Some(folder) = folders.first() else { return Ok(()) };
    let store = folder.join(STORE_FOLDER);
    if config.cluster.store_choice()? != StoreChoice::Embedded || store.exists() {
        return Ok(());
    }
    // A disk without a node is older than its cluster: there was a mode without one.
    let Some(node) = node else { return Ok(()) };
    Err(StartError::Cluster(format!(
        "{}: belongs to node {node} of a cluster, but the records of the cluster ({}) are missing: \
         give the address of another node with --join HOST:PORT, or restore the folder from a \
         backup",
        folder.display(),
        store.display()
    )))
}

/// Returns the folders among the data paths, made if need be. If all paths are devices, records are
/// kept in the default folder.
pub(super) fn folders(config: &Config) -> Result<Vec<PathBuf>, StartError> {
    let paths = config.server.data.iter().map(|text| storage::DataPath::parse(text));
    let mut folders: Vec<PathBuf> =
        paths.filter(|path| !path.is_device()).map(|path| path.path).collect();
    if folders.is_empty() && config.cluster.has_manager() {
        folders.extend(ServerConfig::default().data.into_iter().map(PathBuf::from));
    }
    for folder in &folders {
        millpond_env::files::make_folder(folder).map_err(|source| StartError::Folder {
            path: folder.display().to_string(),
            fix: "make it writable for this user, or give another folder with --data",
            source,
        })?;
    }
    Ok(folders)
}

fn start_manager(
    config: &Config,
    (me, told, token): (NodeId, &Told, Vec<u8>),
    (folders, control): (&[PathBuf], &Handle),
    new_cluster: Option<Uuid128>,
) -> Result<Arc<ManagerRole>, StartError> {
    let settings = &config.cluster;
    let Some(folder) = folders.first() else {
        let text = "server.data: a manager needs a folder for its records: give a folder beside \
                    the devices";
        return Err(StartError::Cluster(text.to_owned()));
    };
    let replicas = u8::try_from(settings.replicas).unwrap_or(u8::MAX);
    let domains = settings.domains_to_form();
    let setup = ManagerSetup {
        me,
        addresses: told.addresses.clone(),
        new_cluster,
        store: settings.store_choice()?,
        form: (domains > 0).then_some(Form { replicas, domains }),
        token,
    };
    let started = ManagerRole::start(setup, &folder.join(STORE_FOLDER), control);
    started.map(Arc::new).map_err(|error| {
        let fix = match &error {
            ManagerError::Store(StoreError::InUse { .. }) => " with --data",
            _ => "",
        };
        StartError::Cluster(format!("cluster.store: {error}{fix}"))
    })
}

/// Hands the namespaces of a server of an earlier version to the cluster, before others can be
/// made.
fn seed(
    manager: &Arc<ManagerRole>,
    service: &Arc<Service>,
    core: &CoreThread,
) -> Result<(), StartError> {
    let (manager, service) = (Arc::clone(manager), Arc::clone(service));
    on_core(&core.core.handle, move || async move {
        let table = adopt::table_of(&service.disks).await?;
        let deadline = RealClock::tick().plus(SEED_MAX);
        Ok(manager.adopt_namespaces(table, deadline).await?)
    })?
}

/// Returns the cluster of the disks and of the manager of this process, which must be the same.
fn self_or_manager(
    control: &Handle,
    seek: &Seek,
    opened: &OpenedStorage,
) -> Result<Uuid128, StartError> {
    let theirs = opened.cluster_id;
    if seek.manager.is_none() {
        return Ok(theirs);
    }
    let waits = seek.clone();
    let ours = on_core(control, move || async move { waits.cluster().await })??;
    if !opened.service.disks.is_empty() && ours != theirs {
        return Err(StartError::Cluster(Refusal::Cluster { ours, theirs }.to_string()));
    }
    Ok(ours)
}

/// The replicas on this server's disks; none without disks.
fn replicas(
    (node, token, own_leaders): (NodeId, Vec<u8>, bool),
    opened: &OpenedStorage,
    cores: &[CoreThread],
) -> Result<Option<Arc<Host>>, StartError> {
    let service = &opened.service;
    if service.disks.is_empty() {
        return Ok(None);
    }
    let disk = |disk: &NodeDisk| HostDisk {
        id: DiskId(disk.id),
        engine: disk.engine.clone(),
        damaged: disk.damaged.clone(),
        is_new: disk.is_new,
        sole: Arc::clone(&disk.sole),
    };
    let options = HostOptions {
        node,
        disks: service.disks.iter().map(disk).collect(),
        cores: cores.iter().map(|core| core.core.handle.clone()).collect(),
        token,
        own_leaders,
    };
    let host = on_core(&cores[0].core.handle, move || async move { Host::open(options).await })?;
    service.join(Arc::clone(&host));
    Ok(Some(host))
}

type Starting = (Prepared, Option<Arc<dyn Targets>>);

/// This server as a part of a cluster.
pub(super) struct Cluster {
    member: Arc<Member>,
    /// Credential towards other nodes.
    token: Vec<u8>,
    /// Input of the control thread when the server joins.
    starting: Mutex<Option<Starting>>,
    /// The replicas on this server's disks.
    host: Option<Arc<Host>>,
    /// Values of a server of an earlier version.
    adoption: Option<Adoption>,
    control: CoreThread,
}

impl Cluster {
    /// Answers requests about the cluster.
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Identity of this server.
    pub(super) fn identity(&self) -> &Identity {
        self.member.identity()
    }

    /// Starts the agent and waits until the node is admitted and its replicas match routing, so
    /// that a client which sees the server ready finds its data. With `forms`, waits for chains
    /// too.
    ///
    /// # Errors
    /// [`StartError::Cluster`] if it is refused; [`StartError::Stopped`] once `stop` is set.
    pub(super) fn join(&self, forms: bool, stop: &Arc<AtomicBool>) -> Result<(), StartError> {
        let Some((prepared, targets)) = self.starting.lock().take() else { return Ok(()) };
        let (keeper, token) = (Arc::clone(&self.member), self.token.clone());
        self.control.core.handle.spawn_on(move || meta::keep(keeper, token))?;
        let (member, stop) = (Arc::clone(&self.member), Arc::clone(stop));
        let mut readiness = Readiness { forms, host: self.host.clone(), since: None, said: None };
        on_core(&self.control.core.handle, move || async move {
            Agent::start(prepared, targets);
            loop {
                match member.standing() {
                    Standing::Member if readiness.is_there(&member) => return Ok(()),
                    Standing::Refused(why) => return Err(StartError::Cluster(why)),
                    _ if stop.load(Ordering::Acquire) => return Err(StartError::Stopped),
                    _ => sleep(LOOK).await,
                }
            }
        })?
    }

    /// Takes over the values of a server of an earlier version, if there are any.
    ///
    /// # Errors
    /// [`StartError`] naming the obstacle; [`StartError::Stopped`] once `stop` is set.
    pub(super) fn adopt(
        &self,
        service: &Arc<Service>,
        core: &CoreThread,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), StartError> {
        let waits = self.adoption.clone().filter(|adoption| adoption.cluster.is_some());
        let Some(adoption) = waits else { return Ok(()) };
        let (service, stop) = (Arc::clone(service), Arc::clone(stop));
        on_core(&core.core.handle, move || async move { adoption.finish(service, stop).await })?
    }

    /// The reason why this server must stop.
    pub(super) fn refused(&self) -> Option<String> {
        match self.member.standing() {
            Standing::Refused(why) => Some(why),
            _ => None,
        }
    }

    /// Leaves the cluster: others take over, a standby becomes primary.
    pub(super) fn leave(&self) {
        let member = Arc::clone(&self.member);
        let _gone = on_core(&self.control.core.handle, move || async move { member.leave().await });
    }
}

/// Condition for an admitted server to report READY.
struct Readiness {
    /// Whether this server makes the first chains by itself, so that chains will exist.
    forms: bool,
    host: Option<Arc<Host>>,
    since: Option<Tick>,
    said: Option<Tick>,
}

impl Readiness {
    /// Whether all replicas that this server will run for now serve.
    fn is_there(&mut self, member: &Member) -> bool {
        let (routing, now) = (member.routing(), RealClock::tick());
        let since = *self.since.get_or_insert(now);
        let Some(missing) = self.missing(&routing, member) else { return true };
        let waited = now.since(since);
        if waited >= PATIENCE && missing.serves_some {
            tracing::warn!("ready, although {}", missing.what);
            return true;
        }
        if now.since(*self.said.get_or_insert(now)) >= SAY_EVERY {
            self.said = Some(now);
            tracing::info!("not ready yet: {}", missing.what);
        }
        false
    }

    fn missing(&self, routing: &Routing, member: &Member) -> Option<Missing> {
        let none = |what: &str| Some(Missing { what: what.to_owned(), serves_some: false });
        if routing.version == RoutingVersion(0) {
            return none("the routing is not known yet");
        }
        let waited = RealClock::tick().since(self.since.unwrap_or_default());
        let may_be_none = member.manager().is_none() && waited >= NAMES_PATIENCE;
        if !member.knows_namespaces() && !may_be_none {
            return none("the namespaces are not known yet");
        }
        let Some(host) = &self.host else { return None };
        if routing.chains.is_empty() {
            return if self.forms { none("the chains are not made yet") } else { None };
        }
        let (serving, waiting) = host.readiness(routing);
        if waiting > 0 {
            let what = format!("{waiting} replicas of this node do not serve yet; {serving} do");
            return Some(Missing { what, serves_some: serving > 0 });
        }
        // Chains come first, their slots with later routing; requests go by the routing of the
        // replicas.
        let what = "some slots have no chain yet".to_owned();
        let misses = host.routing().slots.has(ChainId::NONE);
        misses.then_some(Missing { what, serves_some: true })
    }
}

/// The reason why a server is not ready.
struct Missing {
    what: String,
    serves_some: bool,
}
