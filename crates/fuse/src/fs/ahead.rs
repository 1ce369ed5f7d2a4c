//! Reads that were foreseen, and reads that have to wait for their turn.

use millpond_client::FileBytes as Bytes;
use millpond_fuse_wire::abi::ReadIn;

use super::Fs;
use crate::ahead::{Asked, Held, Span};
use crate::budget::Way;
use crate::files::File;

/// A read of so many bytes is of several chunks, asked for at once: to fetch it before would only add a copy. Four
/// processes that read 1 MiB at a time past the kernel's cache were 19 % slower with that.
const LARGE: usize = 1 << 20;

impl Fs {
    /// Waits until the mount's bandwidth has room for what a read will bring.
    pub(super) fn pass_read(&self, file: &File, args: &ReadIn) {
        let left = file.bytes().1.saturating_sub(args.offset);
        self.bandwidth.pass(Way::Read, left.min(u64::from(args.size)));
    }

    /// The first bytes of a read, as far as they were fetched before it or are held; how many. The caller has the
    /// file's gate, and has asked a meta if the mount's mode wants that.
    pub(super) fn read_ahead(
        &self,
        file: &File,
        (bytes, args): (Bytes, &ReadIn),
        buf: &mut [u8],
    ) -> usize {
        // While no changes are heard of, nothing that was fetched before is believed.
        if buf.is_empty() || buf.len() >= LARGE || !self.believes(file) {
            return 0;
        }
        let attr = file.attr();
        if Bytes::of(&attr).data != bytes.data {
            return 0;
        }
        let span = Span { offset: args.offset, len: buf.len() as u64 };
        let direct = args.flags.cast_signed() & libc::O_DIRECT != 0;
        let asked = Asked { bytes, span, direct };
        let Held { filled, often } = self.ahead.read(&attr, asked, buf);
        match often {
            Some(piece) if self.ahead.fetch_now(&self.backend, (&piece, asked), buf) => buf.len(),
            _ => filled,
        }
    }
}
