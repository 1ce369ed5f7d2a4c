//! An HTTP proxy between clients and an S3 endpoint that injects faults: slow answers, throttling,
//! server errors, connections that end before or after the work, answers that end in the middle,
//! requests that hang, and outages.
//!
//! It streams both ways, and buffers only the bytes that hyper has in flight for a connection.
//! `Host` and all signed headers pass unchanged, so that signatures stay valid. Each client
//! connection has one to the backend, so that order and keep-alive are the same as without the
//! proxy.
//!
//! `GET /_faults` returns the faults and counts. `PUT /_faults` sets the faults; omitted ones are
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

/// Concurrent client connections; more wait to be accepted.
const CONNECTIONS_MAX: usize = 4096;

/// State that all connections share.
struct Shared {
    backend: SocketAddr,
    faults: watch::Sender<Arc<faults::Active>>,
    counts: Counts,
}

/// A proxy with a bound address.
pub struct Proxy {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Binds `listen`; requests are forwarded to `backend`.
    ///
    /// # Errors
    /// [`LoadError::Option`] for invalid faults, [`LoadError::System`] for the address.
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

    /// The bound address.
    ///
    /// # Errors
    /// [`LoadError::System`].
    pub fn address(&self) -> Result<SocketAddr, LoadError> {
        self.listener
            .local_addr()
            .map_err(|source| LoadError::System { what: "the address of a socket", source })
    }

    /// Serves until it is dropped. Needs a tokio event loop with time.
    pub async fn serve(self) {
        let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Mostly a lack of descriptors: some are free soon.
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
