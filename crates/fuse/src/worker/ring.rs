//! The threads of a mount over `io_uring`: each has a ring of its own.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use millpond_env::thread;
use millpond_fuse_wire::{Device, Ring, prod_queue, uring_queues};

use super::{Shared, Terms, Workers, request_in, serve_bytes};
use crate::fs::Fs;

impl Workers {
    /// Starts `threads` threads, some for each queue of the kernel, and one for requests that still
    /// come through `device`. Returns when requests are served.
    ///
    /// # Errors
    /// When the system has no thread or memory left, or forbids `io_uring`.
    pub(crate) fn over_io_uring(
        fs: &Arc<Fs>,
        device: Device,
        (terms, threads, target): (Terms, usize, &Path),
    ) -> io::Result<Self> {
        let queues = usize::from(uring_queues()?);
        // Each thread has room for a request, for an answer, and for one being made.
        fs.ahead.memory().take(3 * threads as u64 * u64::from(terms.max_write));
        let mut this = Self::start(fs, vec![device], terms)?;
        let (sender, opened) = sync_channel(threads);
        let (prods, prodded) = channel();
        let target = target.to_owned();
        // Not joined: it may wait for an answer of the mount that ends.
        let _ends_with_the_rings = thread("mp-prod", move || prod(&target, &prodded))?;
        for thread in 0..threads {
            let queue = u16::try_from(thread % queues).unwrap_or(0);
            let (device, sender) = (this.device(), (sender.clone(), prods.clone()));
            this.start_serving(move |shared, number| {
                serve(shared, (&device, queue), number, &sender);
            })?;
        }
        drop(sender);
        opened.iter().take(threads).collect::<io::Result<()>>()?;
        Ok(this)
    }
}

/// Serves requests of one queue. The ring belongs to this thread: when a thread ends, the kernel
/// drops its registrations.
fn serve(
    shared: &Shared,
    (device, queue): (&Arc<Device>, u16),
    number: usize,
    (opened, prods): &(SyncSender<io::Result<()>>, Sender<u16>),
) {
    let Terms { max_write, granted } = shared.terms;
    let mut ring = match Ring::open(device, queue, max_write) {
        Ok(ring) => ring,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    let device = ring.device();
    let mut scratch = Vec::new();
    while !shared.stopping.load(Ordering::Acquire) {
        if let Ok(true) = ring.make_room() {
            let _ = prods.send(queue);
        }
        let Some(bytes) = request_in(shared, ring.next(shared.stop.as_fd())) else { return };
        let _ = serve_bytes(shared, &device, (bytes, granted), (number, &mut scratch));
    }
}

/// Makes the kernel check queues again after all their requests were put aside.
fn prod(target: &Path, queues: &Receiver<u16>) {
    for queue in queues {
        if let Err(error) = prod_queue(target, queue) {
            tracing::warn!(
                "requests of processor {queue} may wait until the next one arrives: {error}"
            );
        }
    }
}
