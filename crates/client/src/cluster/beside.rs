//! Requests to a meta by callers that have no thread to wait with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::cluster::NodeId;
use millpond_types::wire::Verb;
use parking_lot::Mutex;

use super::Cluster;
use super::node::PATIENCE;
use crate::connection::Deadline;
use crate::multiplex::{Multiplex, Told};

/// Connections for requests at once: each takes as many as its server told.
const LINES_MAX: usize = 4;
/// One that could not be made is not tried again before.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(5);

/// Connections to the meta that answered last.
#[derive(Debug, Default)]
pub(super) struct Beside {
    lines: Mutex<Lines>,
    /// Somebody found too few of them.
    is_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct Lines {
    to: Option<NodeId>,
    all: Vec<Arc<Multiplex>>,
    not_before: Option<Tick>,
}

impl Cluster {
    /// Asks the meta that answered last, if it shares memory with this process: `told` hears it from another thread. Gives
    /// `told` back where that is not possible now; the other way of asking makes it possible next time.
    pub(crate) fn ask_meta_beside(&self, meta: &[u8], mut told: Told) -> Result<(), Told> {
        let last = *self.meta.lock();
        let all = {
            let lines = self.beside.lines.lock();
            if last.is_some() && lines.to == last { lines.all.clone() } else { Vec::new() }
        };
        for line in &all {
            match line.send(Verb::Meta, meta, told) {
                Ok(()) => return Ok(()),
                Err(back) => told = back,
            }
        }
        self.beside.is_wanted.store(true, Ordering::Relaxed);
        Err(told)
    }

    /// This meta has answered: makes a connection to it if one was wanted. For a thread that may block.
    pub(super) fn open_beside(&self, id: NodeId, deadline: Deadline) {
        if !self.beside.is_wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = RealClock::tick();
        {
            let mut lines = self.beside.lines.lock();
            if lines.to != Some(id) {
                *lines = Lines { to: Some(id), ..Lines::default() };
            }
            lines.all.retain(|line| line.is_live());
            if lines.all.len() >= LINES_MAX || lines.not_before.is_some_and(|at| now < at) {
                return;
            }
            // Nobody else tries meanwhile.
            lines.not_before = Some(now.plus(PAUSE));
        }
        let Some(node) = self.node(id, &self.table.get()) else { return };
        let Ok(Some(line)) = node.pool.multiplex(deadline.within(PATIENCE)) else { return };
        let mut lines = self.beside.lines.lock();
        if lines.to == Some(id) {
            lines.all.push(line);
            lines.not_before = None;
        }
    }
}
