//! An HTTP proxy between clients and an S3 endpoint that makes faults: slow answers, throttling, errors of the
//! server, connections that end before or behind the work, answers that end in their middle, requests that hang,
//! and outages.
//!
//! It streams both ways: nothing is kept but what hyper has in flight for a connection. `Host` and all signed headers
//! pass as they came, so that signatures stay right. Each connection of a client has one to the
//! backend, so that order and keep-alive are as without it.
//!
//! `GET /_faults` tells the faults and what was counted; `PUT /_faults` sets the faults, what is left out being
//! off. No bucket can have that name.

mod body;
mod counts;
mod faults;
mod forward;
mod front;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

pub use counts::Counts;
pub use faults::{Fate, Faults};

use crate::LoadError;

/// Connections of clients at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 4096;

/// What all connections share.
struct Shared {
    backend: SocketAddr,
    faults: watch::Sender<Arc<faults::Active>>,
    counts: Counts,
}

/// A proxy that has its address.
pub struct Proxy {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Takes the address `listen` for what goes on to `backend`.
    ///
    /// # Errors
    /// [`LoadError::Option`] for faults that make no sense, [`LoadError::System`] for the address.
    pub async fn bind(
        listen: SocketAddr,
        backend: SocketAddr,
        faults: Faults,
    ) -> Result<Self, LoadError> {
        let active = faults::Active::new(faults).map_err(LoadError::Option)?;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|source| LoadError::System { what: "--listen", source })?;
        let (faults, _) = watch::channel(Arc::new(active));
        let shared = Arc::new(Shared { backend, faults, counts: Counts::default() });
        Ok(Self { listener, shared })
    }

    /// The address it has.
    ///
    /// # Errors
    /// [`LoadError::System`].
    pub fn address(&self) -> Result<SocketAddr, LoadError> {
        self.listener
            .local_addr()
            .map_err(|source| LoadError::System { what: "the address of a socket", source })
    }

    /// Serves until it is dropped. Needs an event loop of tokio with time.
    pub async fn serve(self) {
        let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Out of descriptors, mostly: some will be free soon.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            };
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                let _seat = seat;
                front::serve(stream, shared).await;
            });
        }
    }
}
