//! INIT: negotiation between kernel and server.
//!
//! A pure function, so that the same offer and wishes always give the same reply: an INIT that the
//! kernel resends after a crash gets the same answer as the first one.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{
    DEFAULT_MAX_PAGES, InitFlags, InitIn, InitOut, KERNEL_MINOR, KERNEL_MINOR_MIN, KERNEL_VERSION,
    PAGE_BYTES,
};

/// Flags that are always taken when offered: they only lift limits.
const ALWAYS: InitFlags = InitFlags::INIT_EXT
    .with(InitFlags::BIG_WRITES)
    .with(InitFlags::MAX_PAGES)
    .with(InitFlags::SETXATTR_EXT);

/// The settings that the server asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitWishes {
    /// Flags to take if the kernel offers them.
    pub flags: InitFlags,
    /// Bytes of the largest write and read, from 4 KiB; rounded up to whole pages, then limited by
    /// `max_pages_limit`.
    pub max_write: u32,
    /// Bytes that the kernel may read ahead; it takes the smaller of this and its own limit.
    pub max_readahead: u32,
    /// Granularity of times in nanoseconds, from 1 to 10⁹.
    pub time_gran: u32,
    /// Background requests in flight (read-ahead, write-back); 0 means the kernel's default of 12.
    pub max_background: u16,
    /// How many of them make the device "congested"; 0 means three quarters of them.
    pub congestion_threshold: u16,
    /// Pages of a request, as limited by `/proc/sys/fs/fuse/max_pages_limit`:
    /// [`max_pages_limit`](crate::max_pages_limit).
    pub max_pages_limit: u32,
    /// How many file systems may be stacked for passthrough: 1 means "backing files lie on a plain
    /// file system". Used only with [`InitFlags::PASSTHROUGH`].
    pub max_stack_depth: u32,
    /// Seconds after which the kernel aborts the whole connection because one request has no reply;
    /// 0 means never. Used only with [`InitFlags::REQUEST_TIMEOUT`].
    pub request_timeout_s: u16,
}

impl Default for InitWishes {
    /// Settings for a server on the network: large requests, no promise about consistency.
    fn default() -> Self {
        Self {
            flags: InitFlags::ASYNC_READ
                | InitFlags::ASYNC_DIO
                | InitFlags::ATOMIC_O_TRUNC
                | InitFlags::PARALLEL_DIROPS
                | InitFlags::HAS_RESEND
                | InitFlags::HAS_EXPIRE_ONLY
                | InitFlags::ABORT_ERROR,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            time_gran: 1,
            max_background: 64,
            congestion_threshold: 48,
            max_pages_limit: 256,
            max_stack_depth: 1,
            request_timeout_s: 0,
        }
    }
}

/// The agreement: plain data for another process, because a server that takes a session over sees
/// no INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Negotiated {
    /// The reply to the INIT.
    pub out: InitOut,
    /// Flags in effect.
    pub granted: InitFlags,
    /// Flags that were requested and are not in effect.
    pub denied: InitFlags,
    /// Minor version of the kernel's interface.
    pub kernel_minor: u32,
    /// [`Negotiated::LAYOUT`].
    layout: u32,
}

const _: () = assert!(size_of::<Negotiated>() == Negotiated::BYTES);

impl Negotiated {
    /// Length of the stored form in bytes.
    pub const BYTES: usize = 88;
    /// Version of the stored form.
    const LAYOUT: u32 = 1;

    /// Encodes the agreement for storage, in the byte order of this host.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(*self)
    }

    /// Decodes the bytes of [`Negotiated::to_bytes`], perhaps from another process.
    ///
    /// # Errors
    /// [`NegotiateError::Stored`] when the bytes are invalid, or of another version of this crate.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NegotiateError> {
        Self::read_from_bytes(bytes)
            .ok()
            .filter(|stored| stored.layout == Self::LAYOUT)
            .ok_or(NegotiateError::Stored)
    }

    /// Bytes of the largest write and read.
    #[must_use]
    pub fn max_write(&self) -> u32 {
        self.out.max_write
    }
}

/// Why negotiation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NegotiateError {
    /// The kernel is too old.
    #[error(
        "the kernel uses FUSE {major}.{minor}, but the oldest supported version is 7.31 (Linux 5.5)"
    )]
    TooOld {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// A newer major version. The server must answer [`InitOut`]`{ major: 7, .. }`; the kernel then
    /// sends another INIT.
    #[error("the kernel uses FUSE {major}, but only FUSE 7 is supported")]
    TooNew {
        /// The kernel's major version.
        major: u32,
    },
    /// Bytes that are not a stored agreement.
    #[error("the stored FUSE session is not from this version")]
    Stored,
}

/// Computes the reply to the kernel's offer. Never takes a flag that was not offered.
///
/// # Errors
/// The kernel is older than 7.31, or has another major version.
pub fn negotiate(offer: &InitIn, wishes: &InitWishes) -> Result<Negotiated, NegotiateError> {
    if offer.major > KERNEL_VERSION {
        return Err(NegotiateError::TooNew { major: offer.major });
    }
    if offer.major < KERNEL_VERSION || offer.minor < KERNEL_MINOR_MIN {
        return Err(NegotiateError::TooOld { major: offer.major, minor: offer.minor });
    }
    let granted = grant(offer.offered(), wishes);
    let pages = pages(granted, wishes);
    let [flags, flags2] = split(granted);
    let has = |flag, value| if granted.contains(flag) { value } else { 0 };
    let timeout =
        if granted.contains(InitFlags::REQUEST_TIMEOUT) { wishes.request_timeout_s } else { 0 };
    let out = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR.min(offer.minor),
        max_readahead: wishes.max_readahead.min(offer.max_readahead),
        flags,
        max_background: wishes.max_background,
        congestion_threshold: wishes.congestion_threshold,
        max_write: u32::from(pages) * PAGE_BYTES,
        time_gran: wishes.time_gran.clamp(1, 1_000_000_000),
        max_pages: if granted.contains(InitFlags::MAX_PAGES) { pages } else { 0 },
        map_alignment: 0,
        flags2,
        max_stack_depth: has(InitFlags::PASSTHROUGH, wishes.max_stack_depth),
        request_timeout: timeout,
        unused: [0; 11],
    };
    let denied = wishes.flags.without(granted);
    Ok(Negotiated { out, granted, denied, kernel_minor: offer.minor, layout: Negotiated::LAYOUT })
}

/// The flags to take.
fn grant(offered: InitFlags, wishes: &InitWishes) -> InitFlags {
    let mut granted = wishes.flags.with(ALWAYS).and(offered);
    // With both, the kernel silently turns passthrough off (fs/fuse/inode.c).
    if granted.contains(InitFlags::WRITEBACK_CACHE) || wishes.max_stack_depth == 0 {
        granted = granted.without(InitFlags::PASSTHROUGH);
    }
    granted
}

/// Pages of one request: enough for the requested bytes, within the kernel's limit.
fn pages(granted: InitFlags, wishes: &InitWishes) -> u16 {
    let limit = if granted.contains(InitFlags::MAX_PAGES) {
        wishes.max_pages_limit.clamp(1, u32::from(u16::MAX))
    } else {
        DEFAULT_MAX_PAGES
    };
    let needed = wishes.max_write.div_ceil(PAGE_BYTES).clamp(1, limit);
    u16::try_from(needed).expect("bounded by a u16")
}

/// Splits flags into the two words of the wire format.
#[allow(clippy::cast_possible_truncation, reason = "each word takes the half that it is cut to")]
fn split(flags: InitFlags) -> [u32; 2] {
    [flags.bits() as u32, (flags.bits() >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::{InitWishes, NegotiateError, Negotiated, negotiate};
    use crate::abi::{InitFlags, InitIn};

    fn offer(minor: u32, flags: InitFlags) -> InitIn {
        let flags2 = u32::try_from(flags.bits() >> 32).unwrap();
        let flags = u32::try_from(flags.bits() & 0xffff_ffff).unwrap();
        InitIn { major: 7, minor, max_readahead: 131_072, flags, flags2, unused: [0; 11] }
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let all = InitFlags::from_bits(u64::MAX);
        let wishes = InitWishes { flags: all, ..InitWishes::default() };
        let offered = InitFlags::INIT_EXT | InitFlags::HAS_RESEND | InitFlags::PASSTHROUGH;
        let agreed = negotiate(&offer(45, offered), &wishes).unwrap();
        assert_eq!(agreed.granted, offered);
        assert_eq!(agreed.out.taken(), offered);
        assert!(agreed.denied.contains(InitFlags::MAX_PAGES));
        assert_eq!(agreed.out.max_pages, 0, "no MAX_PAGES, no number of pages");
        assert_eq!(agreed.max_write(), 32 * 4096, "the kernel's 32 pages");
        assert_eq!(agreed.out.max_readahead, 131_072);
        assert_eq!(agreed.out.max_stack_depth, 1);
    }

    #[test]
    fn the_second_word_counts_only_when_the_first_says_so() {
        let agreed = negotiate(&offer(35, InitFlags::HAS_RESEND), &InitWishes::default()).unwrap();
        assert_eq!(agreed.out.flags2, 0);
        assert!(agreed.denied.contains(InitFlags::HAS_RESEND));
    }

    #[test]
    fn write_back_and_passthrough_exclude_each_other() {
        let both = InitFlags::WRITEBACK_CACHE | InitFlags::PASSTHROUGH;
        let wishes = InitWishes { flags: both, ..InitWishes::default() };
        let agreed = negotiate(&offer(45, both | InitFlags::INIT_EXT), &wishes).unwrap();
        assert_eq!(agreed.denied, InitFlags::PASSTHROUGH);
        assert_eq!(agreed.out.max_stack_depth, 0);
    }

    #[test]
    fn pages_follow_the_bytes_and_the_limit() {
        let with = |max_write, max_pages_limit| {
            let wishes = InitWishes { max_write, max_pages_limit, ..InitWishes::default() };
            let agreed = negotiate(&offer(45, InitFlags::MAX_PAGES), &wishes).unwrap();
            (agreed.out.max_pages, agreed.max_write())
        };
        assert_eq!(with(1 << 20, 256), (256, 1 << 20));
        assert_eq!(with(8 << 20, 256), (256, 1 << 20), "the host's limit holds");
        assert_eq!(with(8 << 20, 4096), (2048, 8 << 20));
        assert_eq!(with(4097, 256), (2, 8192));
        assert_eq!(with(0, 256), (1, 4096));
        assert_eq!(with(u32::MAX, u32::MAX), (65_535, 65_535 * 4096));
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        let wishes = InitWishes::default();
        let old = negotiate(&offer(30, InitFlags::NONE), &wishes);
        assert_eq!(old, Err(NegotiateError::TooOld { major: 7, minor: 30 }));
        let new = InitIn { major: 8, ..offer(0, InitFlags::NONE) };
        assert_eq!(negotiate(&new, &wishes), Err(NegotiateError::TooNew { major: 8 }));
        assert!(negotiate(&offer(31, InitFlags::NONE), &wishes).is_ok());
        let newer = negotiate(&offer(99, InitFlags::NONE), &wishes).unwrap();
        assert_eq!(newer.out.minor, 45, "we say what we speak");
    }

    #[test]
    fn an_agreement_survives_being_stored() {
        let offered = InitFlags::INIT_EXT | InitFlags::MAX_PAGES | InitFlags::HAS_RESEND;
        let agreed = negotiate(&offer(45, offered), &InitWishes::default()).unwrap();
        let stored = agreed.to_bytes();
        assert_eq!(Negotiated::from_bytes(&stored), Ok(agreed));
        assert_eq!(Negotiated::from_bytes(&stored[1..]), Err(NegotiateError::Stored));
        assert_eq!(Negotiated::from_bytes(&[0; Negotiated::BYTES]), Err(NegotiateError::Stored));
    }
}
