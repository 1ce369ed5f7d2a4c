//! Opens of files in the local cache: read by the kernel itself, or by this process.

use std::os::fd::AsFd as _;

use millpond_fuse_wire::Reply;
use millpond_fuse_wire::abi::{OpenFlags, OpenOut, ReadIn};
use millpond_types::meta::{Ino, MetaOp};

use super::{Fs, Send};
use crate::backend::{Ticket, Told};
use crate::cached::{Asked, Cache, Hit};
use crate::errno::Errno;
use crate::files::Backed;

/// Reading this attribute of a file orders its fetch into the cache and returns the progress, as
/// `millpond warmup --cache` does. No listing contains it, and a mount without a cache does not
/// know it.
pub(super) const ATTRIBUTE: &[u8] = b"user.millpond.cache";

impl Fs {
    /// Answers an open of a file for reading. All opens of an inode agree about whether the kernel
    /// reads it by itself: the first one decides. The unique number of the opening request serves
    /// as the file handle.
    pub(super) fn open_to_read(&self, unique: u64, told: Told) -> OpenOut {
        let ino = told.attr.ino;
        let mut hit = None;
        let mut offer = None;
        let is_first = !self.files().is_open(ino);
        if let Some(cache) = self.cached.as_ref().filter(|_| self.files().backed(ino).is_none()) {
            hit = cache.key(&told.attr).and_then(|key| cache.find(key, &told.attr));
            offer = hit.as_ref().and_then(|hit| self.offer(cache, ino, hit));
        }
        let backed = self.files().open_backed(unique, told, offer);
        if let Some(unused) = offer.filter(|offer| Some(*offer) != backed) {
            self.let_go(unused);
        }
        let Some(Backed { id, key }) = backed else {
            if let (Some(cache), Some(hit), true) = (&self.cached, hit, is_first) {
                cache.serve(ino, hit);
            }
            return OpenOut::new(unique, self.open_flags(told.attr));
        };
        if let Some(cache) = &self.cached {
            cache.note_passed(ino, key);
            cache.numbers().passed.inc();
        }
        // The kernel combines few other flags with it (`FOPEN_PASSTHROUGH_MASK`), and none to keep
        // its pages. A flush at each close releases locks.
        OpenOut::passthrough(unique, OpenFlags::NONE, id)
    }

    /// Registers a file of the cache with the kernel, for the first open of an inode.
    fn offer(&self, cache: &Cache, ino: Ino, hit: &Hit) -> Option<Backed> {
        if !cache.passes() || self.files().is_open(ino) {
            return None;
        }
        match self.device.get()?.backing_open(hit.file.as_fd()) {
            Ok(id) => Some(Backed { id, key: hit.key }),
            Err(error) => {
                tracing::warn!(
                    "the kernel cannot read file {} of the cache directly: {error}",
                    hit.key
                );
                None
            }
        }
    }

    fn let_go(&self, backed: Backed) {
        if let Some(device) = self.device.get()
            && let Err(error) = device.backing_close(backed.id)
        {
            tracing::warn!("the kernel keeps a file of the cache open: {error}");
        }
    }

    /// Handles the close of an open file; `backed` is the kernel's backing file after the last
    /// close.
    pub(super) fn close_cached(&self, ino: Ino, backed: Option<Backed>) {
        if let Some(backed) = backed {
            self.let_go(backed);
        }
        if let Some(cache) = self.cached.as_ref().filter(|_| !self.files().is_open(ino)) {
            cache.closed(ino);
        }
    }

    /// Keeps the backing files that an earlier process gave to the kernel.
    pub(crate) fn keep_backed(&self) {
        let Some(cache) = &self.cached else { return };
        for (ino, Backed { key, .. }) in self.files().all_backed() {
            cache.note_passed(ino, key);
        }
    }

    /// Answers a read from a file of the cache; false when the cluster has to be asked.
    pub(super) fn read_cached(
        &self,
        ino: Ino,
        (args, scratch): (&ReadIn, &mut Vec<u8>),
        send: Send<'_>,
    ) -> bool {
        let Some(cache) = &self.cached else { return false };
        let Some(len) = cache.read(ino, args.offset, scratch, args.size) else { return false };
        send(Reply::Data(&scratch[..len]));
        true
    }

    /// Orders the fetch of a file into the cache, and returns the progress.
    pub(super) fn ask_cache(&self, ticket: &mut Ticket, ino: Ino) -> Result<Vec<u8>, Errno> {
        let cache = self.cached.as_ref().ok_or(Errno::NODATA)?;
        let told = self.backend.attr(ticket, MetaOp::GetAttr { ino })?;
        Ok(match cache.ask(&told.attr) {
            Asked::Cached => "cached".to_owned(),
            Asked::Coming(bytes) => format!("coming {bytes}"),
            Asked::Busy => "busy".to_owned(),
            Asked::Failed(why) => format!("failed {why}"),
        }
        .into_bytes())
    }
}
