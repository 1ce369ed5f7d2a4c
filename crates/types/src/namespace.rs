//! Options of a KV namespace: a named keyspace with its own redundancy, quota, retention
//! and layout digest.

use crate::ids::GroupId;
use crate::limits::{NAMESPACE_NAME_BYTES_MAX, RUN_BLOCKS_DEFAULT};
use crate::units::ByteSize;
use crate::wire::codec::{Reader, WireError, Writer};

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ack {
    /// When the value is in the buffer pool; the disk is written later, in large batches. A crash
    /// may lose the value.
    #[default]
    Memory = 0,
    /// After the log flush: the value survives power loss.
    Disk = 1,
}

/// Eviction class: low is evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Priority {
    /// Evicted before the others.
    Low = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Evicted last.
    High = 2,
}

impl TryFrom<u8> for Priority {
    type Error = WireError;
    fn try_from(value: u8) -> Result<Self, WireError> {
        match value {
            0 => Ok(Self::Low),
            1 => Ok(Self::Normal),
            2 => Ok(Self::High),
            _ => Err(WireError::Field("priority")),
        }
    }
}

/// SHA-256-sized digest of everything that gives stored blocks a meaning: model, dtype, shapes,
/// block size, parallel layout, tokenizer, adapter. All zero means "not checked".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayoutDigest(pub [u8; 32]);

impl LayoutDigest {
    /// True when no layout was given.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        self.0 == [0; 32]
    }
}

/// Options for the creation of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceOptions {
    /// Must match the digest of every client that opens the namespace.
    pub layout: LayoutDigest,
    /// Replicas per block; 1 on a single node.
    pub replicas: u8,
    /// When a put is acknowledged.
    pub ack: Ack,
    /// Eviction class.
    pub priority: Priority,
    /// Whether blocks may be evicted when space runs out.
    pub evict: bool,
    /// Seconds after which a block expires; 0 means never.
    pub ttl_seconds: u32,
    /// Bytes the namespace may hold; 0 means no quota.
    pub quota: ByteSize,
    /// Consecutive blocks of a prompt that are placed together.
    pub run_blocks: u16,
}

impl Default for NamespaceOptions {
    fn default() -> Self {
        Self {
            layout: LayoutDigest::default(),
            replicas: 1,
            ack: Ack::Memory,
            priority: Priority::Normal,
            evict: true,
            ttl_seconds: 0,
            quota: ByteSize(0),
            run_blocks: RUN_BLOCKS_DEFAULT,
        }
    }
}

impl NamespaceOptions {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.raw(&self.layout.0);
        w.u8(self.replicas);
        w.u8(self.ack as u8);
        w.u8(self.priority as u8);
        w.u8(u8::from(self.evict));
        w.u32(self.ttl_seconds);
        w.u64(self.quota.0);
        w.u16(self.run_blocks);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let options = Self {
            layout: LayoutDigest(r.array()?),
            replicas: r.u8()?,
            ack: match r.u8()? {
                0 => Ack::Memory,
                1 => Ack::Disk,
                _ => return Err(WireError::Field("ack")),
            },
            priority: r.u8()?.try_into()?,
            evict: match r.u8()? {
                0 => false,
                1 => true,
                _ => return Err(WireError::Field("evict")),
            },
            ttl_seconds: r.u32()?,
            quota: ByteSize(r.u64()?),
            run_blocks: r.u16()?,
        };
        if options.run_blocks == 0 {
            return Err(WireError::Field("run_blocks"));
        }
        if options.replicas == 0 {
            return Err(WireError::Field("replicas"));
        }
        Ok(options)
    }
}

/// A namespace as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Number in requests; in the engine it is the group of the chunks.
    pub id: GroupId,
    /// Name, unique on the cluster.
    pub name: String,
    /// Its options.
    pub options: NamespaceOptions,
}

impl NamespaceInfo {
    /// Appends the encoded namespace.
    pub fn encode(&self, w: &mut Writer) {
        w.u32(self.id.0);
        w.str8(&self.name);
        self.options.encode(w);
    }

    /// Decodes a namespace.
    ///
    /// # Errors
    /// [`WireError`] when the bytes are no namespace.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let id = GroupId(r.u32()?);
        if id == GroupId::FILES {
            return Err(WireError::Field("id of a namespace"));
        }
        let name = r.str8()?.to_owned();
        if !name_is_valid(&name) {
            return Err(WireError::Field("name"));
        }
        Ok(Self { id, name, options: NamespaceOptions::decode(r)? })
    }
}

/// Whether `name` is a valid namespace name: 1 to 100 letters, digits and `._-/:@`.
#[must_use]
pub fn name_is_valid(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAMESPACE_NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b))
}
