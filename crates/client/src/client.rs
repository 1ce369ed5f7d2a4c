//! [`Client`] of one server or of a cluster, depending on the first answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{PerProcess, RwLock};
use millpond_types::Uuid128;
use rustls::RootCertStore;

use crate::call::{Job, Reads};
use crate::cluster::Cluster;
use crate::connection::{Deadline, ServerInfo};
use crate::error::ClientError;
use crate::options::ClientOptions;
use crate::pool::{Peer, Pool};
use crate::tls;

/// A client of one server or of a cluster. Clones share its connections; calls from several threads
/// run at the same time on separate connections.
///
/// A child process may use its parent's client, but over connections of its own: it has none of its
/// parent's ([`millpond_env::fork`]).
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Arc<ClientOptions>,
    roots: Option<RootCertStore>,
    closed: AtomicBool,
    ours: PerProcess<Ours>,
}

/// State of the client in one process.
#[derive(Debug)]
struct Ours {
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Connections to the given addresses; a standalone server has no others.
    pool: Arc<Pool>,
    mode: RwLock<Mode>,
}

/// The kind of server that answered the first hello.
#[derive(Clone, Debug)]
enum Mode {
    Unknown,
    /// A standalone server.
    Alone,
    Cluster(Arc<Cluster>),
    Closed,
}

impl Ours {
    fn new(
        options: &Arc<ClientOptions>,
        roots: Option<&RootCertStore>,
    ) -> Result<Self, ClientError> {
        let tls = roots.cloned().map(tls::config).transpose()?;
        let addresses = options.addresses.all().to_vec();
        let peer = Peer { addresses, node: None, patience: None };
        let pool = Pool::new(Arc::clone(options), tls.clone(), peer);
        Ok(Self { tls, pool, mode: RwLock::new(Mode::Unknown) })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Mode::Cluster(cluster) = self.mode.get_mut() {
            cluster.close();
        }
    }
}

impl Client {
    /// Makes a client. It connects on the first call.
    ///
    /// # Errors
    /// [`ClientError::Argument`] naming the option.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        options.validate()?;
        let roots = options.tls_ca.as_deref().map(tls::roots).transpose()?;
        let options = Arc::new(options);
        let ours = PerProcess::new(Ours::new(&options, roots.as_ref())?);
        let closed = AtomicBool::new(false);
        Ok(Self { shared: Arc::new(Shared { options, roots, closed, ours }) })
    }

    /// State of the client in this process; a child starts with new state.
    fn ours(&self) -> Result<&Ours, ClientError> {
        let Shared { options, roots, closed, ours } = &*self.shared;
        if closed.load(Ordering::Acquire) {
            return Err(ClientError::Closed);
        }
        ours.get_or_try(|| Ours::new(options, roots.as_ref()))
    }

    /// The options it was made with.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// Makes sure that the server, or a node of the cluster, answers, and returns its description.
    ///
    /// # Errors
    /// As for every call.
    pub fn server_info(&self) -> Result<ServerInfo, ClientError> {
        self.ping(None)?;
        let ours = self.ours()?;
        let info = match &*ours.mode.read() {
            Mode::Cluster(cluster) => cluster.info(),
            _ => ours.pool.info(),
        };
        info.ok_or(ClientError::Closed)
    }

    /// Closes every connection; running calls finish, later ones fail.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        let Some(ours) = self.shared.ours.get() else { return };
        let before = std::mem::replace(&mut *ours.mode.write(), Mode::Closed);
        ours.pool.close();
        if let Mode::Cluster(cluster) = before {
            cluster.close();
        }
    }

    /// Identity of the server's node, or of the cluster; connects if necessary.
    ///
    /// # Errors
    /// As for every call.
    pub fn node(&self) -> Result<Uuid128, ClientError> {
        let info = self.server_info()?;
        match &*self.ours()?.mode.read() {
            Mode::Cluster(cluster) => Ok(cluster.id),
            _ => Ok(info.node),
        }
    }

    pub(crate) fn deadline(&self, given: Option<Duration>) -> Deadline {
        Deadline::after(given.unwrap_or(self.shared.options.deadline))
    }

    /// The cluster; none for a standalone server.
    pub(crate) fn cluster(&self, deadline: Deadline) -> Result<Option<Arc<Cluster>>, ClientError> {
        let ours = self.ours()?;
        match &*ours.mode.read() {
            Mode::Alone => return Ok(None),
            Mode::Cluster(cluster) if !cluster.is_gone() => return Ok(Some(Arc::clone(cluster))),
            Mode::Closed => return Err(ClientError::Closed),
            Mode::Unknown | Mode::Cluster(_) => {}
        }
        let id = ours.pool.checkout(deadline)?.get()?.hello.cluster;
        self.become_client_of(id)
    }

    /// Records the result of a hello: a cluster, or nil for a standalone server.
    fn become_client_of(&self, id: Uuid128) -> Result<Option<Arc<Cluster>>, ClientError> {
        let Ours { tls, pool, mode } = self.ours()?;
        let mut mode = mode.write();
        match &*mode {
            Mode::Closed => return Err(ClientError::Closed),
            Mode::Cluster(cluster) if cluster.id == id && !cluster.is_gone() => {
                return Ok(Some(Arc::clone(cluster)));
            }
            Mode::Cluster(cluster) => cluster.close(),
            Mode::Alone | Mode::Unknown => {}
        }
        if id == Uuid128::NIL {
            *mode = Mode::Alone;
            return Ok(None);
        }
        let options = Arc::clone(&self.shared.options);
        let cluster = Cluster::open(options, tls.clone(), Arc::clone(pool), id)?;
        *mode = Mode::Cluster(Arc::clone(&cluster));
        drop(mode);
        pool.close_idle();
        Ok(Some(cluster))
    }

    /// Forgets the kind of server, so that the next call determines it again; called when the
    /// server answered as one of a cluster.
    pub(crate) fn look_again(&self) {
        let Some(Ours { pool, mode, .. }) = self.shared.ours.get() else { return };
        let mut mode = mode.write();
        if matches!(*mode, Mode::Alone) {
            *mode = Mode::Unknown;
        }
        drop(mode);
        pool.close_idle();
    }

    /// Runs jobs on one connection to a standalone server. With `node`, fails when another server
    /// answers.
    pub(crate) fn run(
        &self,
        jobs: &mut [Job<'_, '_>],
        reads: &mut Reads<'_, '_>,
        deadline: Deadline,
        node: Option<Uuid128>,
    ) -> Result<(), ClientError> {
        let mut lent = self.ours()?.pool.checkout(deadline)?;
        let connection = lent.get()?;
        let joined = connection.hello.cluster != Uuid128::NIL;
        if joined || node.is_some_and(|node| node != connection.hello.node) {
            let id = connection.hello.cluster;
            drop(lent);
            if joined {
                self.become_client_of(id)?;
            }
            return Err(ClientError::OtherServer { address: self.name() });
        }
        connection.run(jobs, reads, deadline)
    }

    /// Runs jobs on one connection to a given address, whether it belongs to a cluster or not.
    pub(crate) fn run_here(
        &self,
        jobs: &mut [Job<'_, '_>],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let mut lent = self.ours()?.pool.checkout(deadline)?;
        lent.get()?.run(jobs, &mut Reads::none(), deadline)
    }

    /// Connections to every server.
    pub(crate) fn pools(&self, deadline: Deadline) -> Result<Vec<Arc<Pool>>, ClientError> {
        match self.cluster(deadline)? {
            Some(cluster) => cluster.pools(deadline),
            None => Ok(vec![Arc::clone(&self.ours()?.pool)]),
        }
    }

    /// The given addresses, for messages.
    pub(crate) fn name(&self) -> String {
        self.shared.options.addresses.to_string()
    }
}
