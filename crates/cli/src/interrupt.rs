//! Waiting in a way that Ctrl-C ends.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Takes SIGINT and SIGTERM instead of dying of them, as long as it lives.
pub(super) struct Interrupt {
    arrivals: UnixStream,
    came: Arc<AtomicBool>,
    ids: Vec<signal_hook::SigId>,
}

impl Interrupt {
    /// Starts to listen.
    pub(super) fn install() -> std::io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let (arrivals, writer) = UnixStream::pair()?;
        let came = Arc::<AtomicBool>::default();
        let mut ids = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            // The flag first: it is up when the byte arrives.
            ids.push(signal_hook::flag::register(signal, Arc::clone(&came))?);
            ids.push(signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?);
        }
        Ok(Self { arrivals, came, ids })
    }

    /// Can be read once it came.
    pub(super) const fn arrivals(&self) -> &UnixStream {
        &self.arrivals
    }

    /// Whether it came.
    pub(super) fn came(&self) -> bool {
        self.came.load(Ordering::Acquire)
    }

    /// Waits; true when it is time to stop.
    pub(super) fn pause(&mut self, time: Duration) -> bool {
        if !self.came() && self.arrivals.set_read_timeout(Some(time)).is_ok() {
            let _ = self.arrivals.read(&mut [0]);
        }
        self.came()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
