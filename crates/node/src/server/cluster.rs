//! This server as a part of a cluster, from start to stop.
//!
//! The order matters. The manager of this process comes first, since it may be the one that founds the
//! cluster; then the disks, since new ones are formatted for the cluster; then the listeners; then the
//! node registers, and is asked at its addresses whether it lives.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_cluster::manager::Form;
use millpond_env::{Handle, IoBackend, Rng, RuntimeOptions, sleep};
use millpond_types::Uuid128;
use millpond_types::cluster::{DiskId, Incarnation, NodeId, Refusal};
use parking_lot::Mutex;

use super::{CoreThread, OpenedStorage, StartError, on_core, start_loop, storage};
use crate::config::{Config, Io};
use crate::manager::{ManagerRole, ManagerSetup};
use crate::member::{
    Agent, AgentSetup, Identity, Member, Prepared, Seek, Standing, Targets, Vain, addresses,
    host_name, load_node, save_node,
};
use crate::meta;
use crate::replica::{Host, HostDisk, HostOptions, HostTargets};
use crate::service::NodeDisk;

/// Folder of the managers' embedded store within the first data folder.
const STORE_FOLDER: &str = "meta";
/// How often the start looks whether the node was let in.
const LOOK: Duration = Duration::from_millis(5);

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
}

/// What this server tells of itself.
struct Told {
    addresses: Vec<String>,
    host: String,
    domain: String,
}

impl Joining {
    /// Starts the control thread, and the manager if this process has the role. `None` for a server
    /// that stands alone.
    ///
    /// # Errors
    /// [`StartError`] naming what to change.
    pub(super) fn begin(
        config: &Config,
        listen: Option<SocketAddr>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<Self>, StartError> {
        let settings = &config.cluster;
        let (Some(listen), true) = (listen, settings.is_on()) else { return Ok(None) };
        let host = host_name();
        let told = Told {
            addresses: addresses(listen, &settings.advertise, &host),
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
        let token = settings.credential()?;
        let mut manager = None;
        if settings.manager {
            let me = node.map_or_else(|| storage::random_uuid().map(NodeId), Ok)?;
            node = Some(me);
            manager = Some(start_manager(config, (me, &told), &folders, &control.core.handle)?);
        }
        let others = settings.managers.iter().filter(|at| !told.addresses.contains(at));
        let seek = Seek {
            manager: manager.clone(),
            addresses: others.cloned().collect(),
            token,
            stop: Arc::clone(stop),
        };
        if manager.is_none() && seek.addresses.is_empty() {
            let text = "cluster.managers: only this server itself is named: name another node, or \
                        make this one a manager with --manager";
            return Err(StartError::Cluster(text.to_owned()));
        }
        Ok(Some(Self { control, manager, seek, folders, node, told }))
    }

    /// How a new disk learns which cluster it is of.
    pub(super) fn seek(&self) -> Seek {
        self.seek.clone()
    }

    /// Takes the open disks: now it is known who this is.
    ///
    /// # Errors
    /// [`StartError`] naming what to change.
    pub(super) fn open(
        self,
        opened: &OpenedStorage,
        cores: &[CoreThread],
    ) -> Result<Cluster, StartError> {
        let Self { control, manager, seek, folders, node, told } = self;
        let disks = &opened.service.disks;
        let cluster = self_or_manager(&control.core.handle, &seek, opened)?;
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
            host: told.host,
            domain: told.domain,
        };
        let token = seek.token.clone();
        let targets = targets(node, token.clone(), opened, cores)?;
        let prepared = Prepared::new(AgentSetup {
            identity,
            manager,
            addresses: seek.addresses,
            token: seek.token,
            service: Arc::clone(&opened.service),
        });
        Ok(Cluster {
            member: prepared.member(),
            token,
            starting: Mutex::new(Some((prepared, targets))),
            control,
        })
    }
}

/// The folders among the data paths, made if need be.
pub(super) fn folders(config: &Config) -> Result<Vec<PathBuf>, StartError> {
    let paths = config.server.data.iter().map(|text| storage::DataPath::parse(text));
    let folders: Vec<PathBuf> =
        paths.filter(|path| !path.is_device()).map(|path| path.path).collect();
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
    (me, told): (NodeId, &Told),
    folders: &[PathBuf],
    control: &Handle,
) -> Result<Arc<ManagerRole>, StartError> {
    let settings = &config.cluster;
    let Some(folder) = folders.first() else {
        let text =
            "server.data: a manager keeps its records in a folder: name one beside the devices";
        return Err(StartError::Cluster(text.to_owned()));
    };
    let replicas = u8::try_from(settings.replicas).unwrap_or(u8::MAX);
    let domains = settings.form_nodes;
    let setup = ManagerSetup {
        me,
        addresses: told.addresses.clone(),
        store: settings.store_choice()?,
        form: (domains > 0).then_some(Form { replicas, domains }),
        token: settings.credential()?,
    };
    let started = ManagerRole::start(setup, &folder.join(STORE_FOLDER), control);
    started.map(Arc::new).map_err(|error| StartError::Cluster(format!("cluster.store: {error}")))
}

/// The cluster that the disks are of, and that the manager of this process is of: one and the same.
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
fn targets(
    node: NodeId,
    token: Vec<u8>,
    opened: &OpenedStorage,
    cores: &[CoreThread],
) -> Result<Option<Arc<dyn Targets>>, StartError> {
    let service = &opened.service;
    if service.disks.is_empty() {
        return Ok(None);
    }
    let disk = |disk: &NodeDisk| HostDisk {
        id: DiskId(disk.id),
        engine: disk.engine.clone(),
        damaged: disk.damaged.clone(),
    };
    let options = HostOptions {
        node,
        disks: service.disks.iter().map(disk).collect(),
        cores: cores.iter().map(|core| core.core.handle.clone()).collect(),
        token,
    };
    let host = on_core(&cores[0].core.handle, move || async move { Host::open(options).await })?;
    service.join(Arc::clone(&host));
    Ok(Some(Arc::new(HostTargets(host))))
}

type Starting = (Prepared, Option<Arc<dyn Targets>>);

/// This server as a part of a cluster.
pub(super) struct Cluster {
    member: Arc<Member>,
    /// Credential towards other nodes.
    token: Vec<u8>,
    /// What the control thread gets when the server joins.
    starting: Mutex<Option<Starting>>,
    control: CoreThread,
}

impl Cluster {
    /// Answers requests about the cluster.
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Who this server is.
    pub(super) fn identity(&self) -> &Identity {
        self.member.identity()
    }

    /// Starts the agent and waits until the node is let in.
    ///
    /// # Errors
    /// [`StartError::Cluster`] when it is refused; [`StartError::Stopped`] once `stop` is set.
    pub(super) fn join(&self, stop: &Arc<AtomicBool>) -> Result<(), StartError> {
        let Some((prepared, targets)) = self.starting.lock().take() else { return Ok(()) };
        let (keeper, token) = (Arc::clone(&self.member), self.token.clone());
        self.control.core.handle.spawn_on(move || meta::keep(keeper, token))?;
        let (member, stop) = (Arc::clone(&self.member), Arc::clone(stop));
        on_core(&self.control.core.handle, move || async move {
            Agent::start(prepared, targets);
            loop {
                match member.standing() {
                    Standing::Member => return Ok(()),
                    Standing::Refused(why) => return Err(StartError::Cluster(why)),
                    Standing::Joining(_) if stop.load(Ordering::Acquire) => {
                        return Err(StartError::Stopped);
                    }
                    Standing::Joining(_) => sleep(LOOK).await,
                }
            }
        })?
    }

    /// Why this server must stop.
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
