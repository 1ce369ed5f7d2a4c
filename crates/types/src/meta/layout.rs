//! Placement of the bytes of a file.

use crate::cluster::ChainId;
use crate::ids::FileChunk;
use crate::limits::REPLICAS_MAX;
use crate::wire::{Reader, WireError, Writer};

/// Bits of the first byte of an encoded layout that hold the chunk size.
const LOG2_BITS: u32 = 5;
const _: () = assert!(REPLICAS_MAX < 1 << (u8::BITS - LOG2_BITS));

/// How a file is cut into chunks, and the chains that hold them; chosen when the file is made.
///
/// Chunk `i` is on chain `1 + (seed + i mod stripe) mod chains` of its table: neighbours in the
/// chain table share as few disks as placement allows, so a stripe spreads over the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Binary logarithm of the bytes of a chunk: 16 (64 KiB) to 26 (64 MiB).
    pub chunk_log2: u8,
    /// Number of chains that one file spreads over, at least 1.
    pub stripe: u16,
    /// Position in the chain table at which the file begins.
    pub seed: u32,
    /// Number of chains in the table when the file was made; 0 for an inode without bytes.
    pub chains: u32,
    /// The chain table: 0 is the default one, any other number is the replica count of its chains.
    pub table: u8,
}

impl Layout {
    /// Layout of an inode without bytes.
    pub const NONE: Self = Self { chunk_log2: 18, stripe: 1, seed: 0, chains: 0, table: 0 };

    /// Bytes of a chunk.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u64 {
        1 << self.chunk_log2
    }

    /// The chain of chunk `index`; [`ChainId::NONE`] without chains.
    #[must_use]
    pub fn chain(&self, index: u32) -> ChainId {
        if self.chains == 0 {
            return ChainId::NONE;
        }
        let place = u64::from(self.seed) + u64::from(index % u32::from(self.stripe.max(1)));
        let place = place % u64::from(self.chains);
        ChainId::of(self.table, 1 + u32::try_from(place).unwrap_or(0))
    }

    /// The chunk that holds the byte at `offset`, and the offset in it; `None` past the last chunk.
    /// With chunks of 64 KiB, the index at the end of the longest file is the seal's.
    #[must_use]
    pub fn locate(&self, offset: u64) -> Option<(u32, u32)> {
        let index = u32::try_from(offset >> self.chunk_log2).ok()?;
        if index == FileChunk::SEAL {
            return None;
        }
        let inner = u32::try_from(offset & (self.chunk_bytes() - 1)).ok()?;
        Some((index, inner))
    }

    /// The chains that hold chunks, each once.
    pub fn all_chains(&self) -> impl Iterator<Item = ChainId> {
        let count = u32::from(self.stripe.max(1)).min(self.chains);
        (0..count).map(|index| self.chain(index))
    }

    /// Number of chunks of a file of `size` bytes.
    #[must_use]
    pub const fn chunks(&self, size: u64) -> u64 {
        size.div_ceil(self.chunk_bytes())
    }

    pub(super) fn encode(self, w: &mut Writer) {
        // The table is in the upper three bits, which were 0 before protocol 9.
        w.u8(self.chunk_log2 | self.table << LOG2_BITS);
        w.u16(self.stripe);
        w.u32(self.seed);
        w.u32(self.chains);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (first, stripe) = (r.u8()?, r.u16()?);
        let (chunk_log2, table) = (first & ((1 << LOG2_BITS) - 1), first >> LOG2_BITS);
        if !(16..=26).contains(&chunk_log2) {
            return Err(WireError::Field("chunk size of a layout"));
        }
        if stripe == 0 {
            return Err(WireError::Field("stripe of a layout"));
        }
        if table > REPLICAS_MAX {
            return Err(WireError::Field("chain table of a layout"));
        }
        Ok(Self { chunk_log2, stripe, seed: r.u32()?, chains: r.u32()?, table })
    }
}
