//! Reads of prefetched bytes, and reads that wait for bandwidth.

use millpond_client::FileBytes as Bytes;
use millpond_fuse_wire::abi::ReadIn;

use super::Fs;
use crate::ahead::{Asked, Held, Span};
use crate::budget::Way;
use crate::files::File;

/// A read of at least this many bytes covers several chunks, which are fetched concurrently:
/// prefetching would only add a copy. It made four processes that read 1 MiB at a time past the
/// kernel's cache 19 % slower.
const LARGE: usize = 1 << 20;

impl Fs {
    /// Waits until the mount's bandwidth has room for a read.
    pub(super) fn pass_read(&self, file: &File, args: &ReadIn) {
        let left = file.bytes().1.saturating_sub(args.offset);
        self.bandwidth.pass(Way::Read, left.min(u64::from(args.size)));
    }

    /// Fills the first bytes of a read from prefetched or held bytes; returns their number. The
    /// caller has the file's gate, and has asked a meta if the mount's mode requires it.
    pub(super) fn read_ahead(
        &self,
        file: &File,
        (bytes, args): (Bytes, &ReadIn),
        buf: &mut [u8],
    ) -> usize {
        // While the mount receives no changes, prefetched bytes are not believed.
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
