//! A cluster as one store: routing, a node for every key, retries until the deadline.
//!
//! Reading order: `table` (the copy of the routing), `news` (how it stays fresh, and reports of
//! silent nodes), `batch` (which node to ask for which key; pure), `tags` (names of updates; pure),
//! `health` (slow and silent nodes; pure), `node` (connections to each), `race` (one round: send to
//! all, then collect; hedges), `call` (rounds until every key has its answer), `files` (contents of
//! calls about chunks of files), `any` (calls that any node or all nodes answer), `meta`
//! (operations on the file namespace).

mod any;
mod batch;
mod call;
mod files;
mod health;
mod meta;
mod news;
mod node;
mod race;
mod table;
mod tags;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::Mutex;
use millpond_env::Rng;
use millpond_types::Uuid128;
use millpond_types::cluster::{NodeId, Routing};

use crate::connection::{Connection, Deadline, ServerInfo};
use crate::error::ClientError;
use crate::options::ClientOptions;
use crate::pool::Pool;
use any::Cursors;
use health::HedgeBudget;
use news::Line;
use node::{Node, Nodes};
use table::Table;
use tags::Tagger;

pub(crate) use call::{Asked, Cargo, Work};
pub(crate) use files::Files;
pub use files::{ChainPlace, Chains};

/// First and longest pause between rounds of a call that waits for the cluster.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Most nodes to check for one on this host: each check may cost a connection.
const NEAR_MAX: usize = 64;

/// A cluster as one client sees it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) id: Uuid128,
    /// The addresses from the caller, tried again when no known node answers.
    seeds: Arc<Pool>,
    table: Table,
    nodes: Nodes,
    /// Id of this client in tags: random, not 0.
    client: u128,
    tagger: Mutex<Tagger>,
    hedges: Mutex<HedgeBudget>,
    rng: Mutex<Rng>,
    /// The connection on which callers ask for routing, one at a time.
    line: Mutex<Line>,
    cursors: Mutex<Cursors>,
    /// The meta that answered last.
    meta: Mutex<Option<NodeId>>,
    /// The connection on which changes of the namespace arrive.
    watch: Mutex<Option<(NodeId, Connection)>>,
    closed: AtomicBool,
    /// Another cluster or server answers at the seeds.
    gone: AtomicBool,
}

impl Cluster {
    /// A client of the cluster `id`, with the routing of the first node that answers.
    pub(crate) fn open(
        options: Arc<ClientOptions>,
        tls: Option<Arc<rustls::ClientConfig>>,
        seeds: Arc<Pool>,
        id: Uuid128,
    ) -> Result<Arc<Self>, ClientError> {
        let random = |source| ClientError::Connect { address: seeds.name(), source };
        let mut client = [0; 16];
        Rng::fill_from_os(&mut client).map_err(random)?;
        let rng = Rng::from_os().map_err(random)?;
        let cluster = Arc::new(Self {
            id,
            nodes: Nodes::new(options, tls),
            seeds,
            table: Table::default(),
            client: u128::from_le_bytes(client).max(1),
            tagger: Mutex::default(),
            hedges: Mutex::default(),
            rng: Mutex::new(rng),
            line: Mutex::default(),
            cursors: Mutex::default(),
            meta: Mutex::default(),
            watch: Mutex::default(),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        news::follow(&cluster);
        Ok(cluster)
    }

    /// Ends the thread that follows the routing, and every connection once its call is over.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for node in self.nodes.all() {
            node.pool.close();
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether the caller must determine again which server answers.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn node(&self, id: NodeId, routing: &Routing) -> Option<Arc<Node>> {
        self.nodes.get(id, routing)
    }

    /// The nodes, beginning with those known to be on this host; 64 at most.
    pub(crate) fn pools(&self, deadline: Deadline) -> Result<Vec<Arc<Pool>>, ClientError> {
        self.known(deadline)?;
        let routing = self.table.get();
        let mut nodes: Vec<Arc<Node>> =
            routing.nodes.keys().filter_map(|id| self.node(*id, &routing)).collect();
        nodes.sort_by_key(|node| (!node.pool.is_local(), node.is_avoided()));
        nodes.truncate(NEAR_MAX);
        Ok(nodes.iter().map(|node| Arc::clone(&node.pool)).collect())
    }

    /// Orders nodes by how well they are likely to answer a read.
    fn rank<'c>(&'c self, routing: &'c Routing) -> impl FnMut(NodeId) -> u64 + 'c {
        move |id| {
            let dice = self.rng.lock().next_u64();
            self.node(id, routing).map_or(u64::MAX, |node| node.rank(dice))
        }
    }

    /// A random pause between half of `longest` and `longest`, so that clients do not return at the
    /// same moment.
    fn jittered(&self, longest: Duration) -> Duration {
        let half = longest / 2;
        let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_micros(self.rng.lock().next_u64() % micros)
    }

    /// The latest description of a node, preferably one on this host.
    pub(crate) fn info(&self) -> Option<ServerInfo> {
        let mut nodes = self.nodes.all();
        nodes.sort_by_key(|node| (!node.pool.is_local(), node.id));
        nodes.iter().find_map(|node| node.pool.info()).or_else(|| self.seeds.info())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}
