//! The search for the cluster that this server joins while no disk names it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, sleep};
use millpond_types::Uuid128;
use millpond_types::wire::{Status, WireError};

use crate::link::{Dialer, LinkError};
use crate::manager::ManagerRole;

/// Interval of looks at a manager in this process.
const LOOK: Duration = Duration::from_millis(20);
/// Pause between two rounds over the addresses.
const ROUND: Duration = Duration::from_millis(250);
/// Time limit for one address.
const ADDRESS_MAX: Duration = Duration::from_secs(2);
/// Interval of log lines about the wait.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Settings of the search for the cluster.
#[derive(Clone)]
pub struct Seek {
    /// The manager of this process.
    pub manager: Option<Arc<ManagerRole>>,
    /// Addresses of managers, or of any nodes.
    pub addresses: Vec<String>,
    /// The credential.
    pub token: Vec<u8>,
    /// Set when the server should stop.
    pub stop: Arc<AtomicBool>,
}

/// Reason to end the search without a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vain {
    /// The server should stop.
    Stopped,
    /// Every node refuses this server; the text gives the reason.
    Refused(String),
}

impl Seek {
    /// Returns the cluster's identity: the one that the manager of this process has founded or
    /// found, or the one in a node's reply to hello. Waits as long as nobody answers.
    ///
    /// # Errors
    /// [`Vain`]: the server stops, or every node refuses it.
    pub async fn cluster(&self) -> Result<Uuid128, Vain> {
        let mut said = RealClock::tick();
        let mut say = |what: &str| {
            if RealClock::tick().since(said) >= SAY_EVERY {
                said = RealClock::tick();
                tracing::info!("waiting for the cluster: {what}");
            }
        };
        let dialer = Rc::new(Dialer::new(self.token.clone()));
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(Vain::Stopped);
            }
            if let Some(manager) = &self.manager {
                if let Some(cluster) = manager.cluster() {
                    return Ok(cluster);
                }
                sleep(LOOK).await;
                say("its store has no record of the cluster yet");
                continue;
            }
            let mut refusals = Vec::new();
            for address in &self.addresses {
                match dialer.dial(address, RealClock::tick().plus(ADDRESS_MAX)).await {
                    Ok(peer) if peer.hello.cluster != Uuid128::NIL => {
                        return Ok(peer.hello.cluster);
                    }
                    Ok(_) => {
                        refusals.push(format!(
                            "{address}: that server is not part of a cluster: start it with \
                             --manager, or give the address of a node of the cluster with --join"
                        ));
                    }
                    Err(error) => {
                        say(&error.to_string());
                        refusals.extend(refusal(&error));
                    }
                }
            }
            if refusals.len() == self.addresses.len() {
                return Err(Vain::Refused(refusals.swap_remove(0)));
            }
            sleep(ROUND).await;
        }
    }
}

/// The text of an error that retries cannot cure.
pub(super) fn refusal(error: &LinkError) -> Option<String> {
    let lasting = match error {
        LinkError::Refused { status, .. } => {
            matches!(status, Status::Unauthorized | Status::Unsupported)
        }
        LinkError::Protocol { source, .. } => {
            matches!(source, WireError::Magic | WireError::Version(_))
        }
        _ => false,
    };
    lasting.then(|| error.to_string())
}
